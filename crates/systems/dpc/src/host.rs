//! The host side of a link: file operations in, answers out, whatever becomes of the DPU side.
//!
//! # For a front-end
//!
//! One [`Session`] for a process, one [`QueuePort`] (a queue pair) for each of its worker threads:
//!
//! ```text
//! loop {
//!     let slot = port.acquire()?;                 // its pages are in the region the DPU reads
//!     readv(/dev/fuse, [header, slot.payload()])  // write data lands where the DPU takes it
//!     match port.start(slot, &call, tag) {
//!         Poll::Ready(completion) => answer(completion), // it came while we spun for it
//!         Poll::Pending => {}                            // Front::complete(completion) gets it
//!     }
//! }
//! ```
//!
//! The slot of a [`Completion`] still holds the pages: a read is answered by `writev` straight from
//! them, and the slot is free again when it is dropped. [`QueuePort::call`] is `start` and waiting,
//! for programs that have nothing else to do.
//!
//! A session and its ports are one filling of the port every front-end is written against
//! (`outboard_volume::backend`).
//!
//! # Invariants
//!
//! 1. Every started call is completed exactly once: by the volume, by `EINTR` after
//!    [`Session::abort`], or by the errno of a given-up loss.
//! 2. Plain writes that overlap are never in flight together, nor a write with a change of the
//!    file's length or blocks: a replay cannot put an older write over a newer one.
//! 3. What is in flight at a loss is sent again in the order it was started, after open handles and
//!    held locks were handed in.
//! 4. A lock that must be waited for holds no slot.
//! 5. Requests about the locks of one file go one at a time; while the file's locks are delegated
//!    to this session they go nowhere, and what it holds is what the DPU side will be told.
//! 6. What a predecessor of this process had sent under a tag is sent under the same name when it
//!    is asked again ([`Notes`]), and so done once.
//! 7. What the hybrid cache answers was never sent: it is no call, and nothing of it is sent again
//!    after a loss. Its pages are host memory; hits go on while the DPU side is away.

mod backend;
mod cached;
mod entry;
mod held;
mod lock_requests;
mod locking;
mod loss;
mod notes;
mod port;
mod ranges;
pub mod reconnect;
mod session;
mod shared;
mod slot;
mod spin_budget;

use std::time::Duration;

use outboard_base::{Time, Timestamp};
use outboard_wire::nvmefs::Dispatch;

pub use loss::{NotResumed, Resumed};
pub use notes::{MAGIC as NOTES_FORMAT, NoNotes, Notes};
pub use outboard_volume::backend::{Call, Front, Told};
pub use port::QueuePort;
pub use session::Session;
pub use slot::QueueSlot;

/// What the world lends a session: time, and sleeping.
pub trait SessionWorld: Send + Sync {
    /// Monotonic time.
    fn now(&self) -> Time;
    /// The wall clock: when a write that is answered here was made.
    fn wall(&self) -> Timestamp;
    /// One pause of a spin loop. False: others want this core, so spinning is no use; sleep.
    fn relax(&self) -> bool;
    /// Wakes the DPU side: it sleeps, and something was put into a queue.
    fn notify(&self);
    /// Sleeps while the interrupt word of `queue` is `seen`, until `until` at the longest.
    fn wait(&self, queue: u16, seen: u32, until: Time);
    /// Sleeps until [`SessionWorld::unpark`] of the same queue (also one that came before), or
    /// `until`.
    fn park(&self, queue: u16, until: Time);
    /// Wakes who is parked at `queue`, or will be next.
    fn unpark(&self, queue: u16);
}

/// What happens to calls while the DPU side is lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LossPolicy {
    /// They wait until it is back.
    Wait,
    /// They wait this long after the loss, then fail with `ENOTCONN`, as do new ones.
    Fail {
        /// Grace, from the moment of loss.
        after: Duration,
    },
}

impl LossPolicy {
    /// They wait so long, and for ever if that is no time.
    #[must_use]
    pub fn within(limit: Duration) -> LossPolicy {
        if limit.is_zero() { LossPolicy::Wait } else { LossPolicy::Fail { after: limit } }
    }
}

impl Default for LossPolicy {
    /// A minute, for a mount and for who goes past the kernel: a DPU side that is started again is
    /// back in seconds.
    fn default() -> LossPolicy {
        LossPolicy::Fail { after: Duration::from_secs(60) }
    }
}

/// How a session is laid out and behaves.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    /// Queue pairs for the front-end; the session has one more for itself.
    pub queues: u16,
    /// Depth of each, a power of two; it has `depth - 1` slots.
    pub depth: u16,
    /// Which stack of the DPU answers: bit 10 of every command.
    pub dispatch: Dispatch,
    /// Longest spin for one completion.
    pub spin_max: Duration,
    /// User and group of this process: who the session speaks for when it asks for itself.
    pub owner: (u32, u32),
}

impl Default for Settings {
    /// Four queues of 32, for a kv volume. A sleep and a wake-up cost about 45 us of each side, so
    /// no answer is spun for longer than that.
    fn default() -> Settings {
        Settings {
            queues: 4,
            depth: 32,
            dispatch: Dispatch::Kv,
            spin_max: Duration::from_micros(50),
            owner: (0, 0),
        }
    }
}

/// An answered call of a session.
pub type Completion = outboard_volume::backend::Completion<QueueSlot>;

/// A slot's number in the session: what a replay record is kept under.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
struct Lane(u16);

/// Figures of a session since its start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Calls started.
    pub calls: u64,
    /// Calls answered while they were spun for.
    pub spun: u64,
    /// Times a caller slept.
    pub slept: u64,
    /// Times the DPU side had to be woken.
    pub wakeups: u64,
    /// Calls sent again after a loss.
    pub replayed: u64,
    /// Losses of the DPU side.
    pub losses: u64,
    /// Handles open now.
    pub handles: usize,
    /// Locks held now.
    pub locks: usize,
    /// Files whose locks are decided here now.
    pub delegations: usize,
    /// Requests about locks that were answered here.
    pub decided: u64,
    /// What the hybrid cache answered, and what went through.
    pub cache: outboard_wire::cache::Tallied,
}
