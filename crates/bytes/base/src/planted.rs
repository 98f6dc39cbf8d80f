//! Faults that a simulated cluster plants in the crates it is made of, to see that its walks find
//! them. Each stands in every build; where checks for debugging are left out it is constant that
//! none is planted, so nothing is left of it there, and tests of them are ignored.

use std::cell::Cell;

/// A rule that is taken away.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// A node is sealed, says so, and takes what is below the seal.
    Seal,
    /// A node takes what is under an old fence.
    Fence,
    /// A node takes versions of a strip in any order.
    Order,
    /// A node does what a server asks after a later one was heard.
    Term,
    /// The same, and it purges what has a later fence than the purge.
    Buried,
    /// Clients and server count a lease alike, without a margin for clocks that differ.
    Margin,
    /// A host uses what it has cached whether the lease goes on or not.
    Leased,
    /// A read counts though it comes after the lease (R8).
    Late,
    /// The same, and nodes answer reads under an old fence.
    Unfenced,
    /// A recall is answered, and hosts do not hear of it.
    Recall,
    /// A file that is being written is not marked before it is granted.
    Mark,
    /// A store reads its log on behind a block that is not there.
    Chain,
    /// A store believes its log whatever the data medium has.
    Unchecked,
    /// A store uses a slot again before a flush.
    Reused,
    /// A store frees what was retired while it flushed.
    Freed,
    /// A store calls durable what was logged while it flushed.
    Noted,
    /// A store flushes its log alone.
    Alone,
    /// A store gives back at once what a pending write replaces.
    Unkept,
    /// A store takes a write over one that was not acknowledged.
    Unordered,
    /// A store takes a write though it lacks the one before.
    Gap,
    /// A store believes that a write was settled, whatever fence it is under.
    Settled,
    /// A node that lost power serves what others have copies of, as if it had lost nothing.
    Trusting,
    /// A checkpoint leaves out what is pending.
    Omitted,
    /// A store settles writes that were not acknowledged.
    Eager,
    /// A store answers what was decided before that is durable.
    Undecided,
    /// A client writes a stripe over what is not durable at its members.
    Volatile,
    /// It takes for zeros what it does not bring of rows.
    Unread,
    /// It does not say that it tells how long a file with parities is.
    Untold,
    /// Of a stripe what one member has goes forward.
    Few,
    /// What a node finds damaged of a copy stays so.
    Rotten,
    /// A part that finds its name taken at another place takes it over.
    Name,
}

thread_local! {
    static PLANTED: Cell<Option<Fault>> = const { Cell::new(None) };
}

/// Plants a fault for this thread, and takes away the one that was there.
pub fn plant(fault: Option<Fault>) {
    PLANTED.set(fault);
}

/// Whether this fault is planted.
#[inline]
#[must_use]
pub fn is_planted(fault: Fault) -> bool {
    cfg!(debug_assertions) && PLANTED.get() == Some(fault)
}
