//! Faults that a simulated cluster plants in the crates it is made of, to see that its walks find
//! them. Where checks for debugging are left out there are none.

#[cfg(debug_assertions)]
use std::cell::Cell;

/// A rule that is taken away.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// A node is sealed, says so, and takes what is below the seal.
    Seal,
    /// A node takes what is older, by fence or sequence.
    Fence,
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
}

#[cfg(debug_assertions)]
thread_local! {
    static PLANTED: Cell<Option<Fault>> = const { Cell::new(None) };
}

/// Plants a fault for this thread, and takes away the one that was there.
#[cfg(debug_assertions)]
pub fn plant(fault: Option<Fault>) {
    PLANTED.set(fault);
}

/// Whether this fault is planted.
#[cfg(debug_assertions)]
#[must_use]
pub fn is_planted(fault: Fault) -> bool {
    PLANTED.get() == Some(fault)
}

/// Whether this fault is planted: it is not.
#[cfg(not(debug_assertions))]
#[must_use]
pub const fn is_planted(_: Fault) -> bool {
    false
}
