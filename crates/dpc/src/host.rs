//! The host side of a link: file operations in, answers out, whatever becomes of the DPU side.
//!
//! # For a front-end
//!
//! One [`Session`] for a process, one [`Port`] (a queue pair) for each of its worker threads:
//!
//! ```text
//! loop {
//!     let slot = port.acquire(..)?;                 // its pages are in the region the DPU reads
//!     readv(/dev/fuse, [header, slot.payload_ptr()])   // write data lands where the DPU takes it
//!     match port.start(slot, &call, tag) {
//!         Started::Done(done) => answer(done),      // it came while we spun for it
//!         Started::InFlight => {}                   // Front::complete(done) will get it, on some thread
//!     }
//! }
//! ```
//!
//! [`Done::slot`] still holds the pages: a read is answered by `writev` straight from them, and the
//! slot is free again when it is dropped. [`Port::call`] is `start` and waiting, for programs that have
//! nothing else to do.
//!
//! # Invariants
//!
//! 1. Every started call is completed exactly once: by the volume, by `EINTR` after [`Session::abort`],
//!    or by the errno of a given-up loss.
//! 2. Plain writes that overlap are never in flight together, nor a write with a change of the
//!    file's length or blocks: a replay cannot put an older write over a newer one.
//! 3. What is in flight at a loss is sent again in the order it was started, after open handles and
//!    held locks were handed in.
//! 4. A lock that must be waited for holds no slot.

mod port;
mod session;
mod slot;

use outboard_base::{Cred, Errno, Result, Time};
use outboard_wire::file::{Op, Reply, Request};

pub use port::{Port, Started};
pub use session::Session;
pub use slot::Slot;

/// One file operation as a front-end hands it in. Its payload, if it has one, lies in the slot.
#[derive(Clone, Copy, Debug)]
pub struct Call<'a> {
    /// What is asked.
    pub request: &'a Request<'a>,
    /// Who asks.
    pub cred: &'a Cred,
    /// The front-end has checked permissions (see `Flags::CHECKED`).
    pub checked: bool,
    /// Bytes of payload in the slot, for operations that carry some to the DPU.
    pub payload_len: usize,
}

/// An answered call.
#[derive(Debug)]
pub struct Done {
    /// What the front-end called it.
    pub tag: u64,
    /// Which operation it was.
    pub op: Op,
    /// The answer.
    pub outcome: Result<Reply>,
    /// The slot, for `Reply::Data` with the payload in it. `None` for a lock that was waited for.
    pub slot: Option<Slot>,
}

/// What a front-end provides: where calls that were left in flight are completed, and what it must
/// hear. Called from any thread, one call of a session's threads at a time per queue; must not block.
pub trait Front: Send + Sync {
    /// A call left in flight is answered.
    fn complete(&self, done: Done);
    /// The DPU side tells something: cached data is stale, caches are to shrink.
    fn event(&self, event: outboard_wire::event::Event);
}

/// What the world lends a session: time, and sleeping.
pub trait World: Send + Sync {
    /// Monotonic time.
    fn now(&self) -> Time;
    /// One pause of a spin loop.
    fn relax(&self);
    /// Sleeps until a completion interrupt of `queue`, [`World::wake`], or `until`. May return early.
    fn wait(&self, queue: u16, until: Time);
    /// Wakes who waits for `queue` on this side.
    fn wake(&self, queue: u16);
}

/// What happens to calls while the DPU side is lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LossPolicy {
    /// They wait until it is back.
    Wait,
    /// They wait this long after the loss, then fail with `ENOTCONN`, as do new ones.
    Fail {
        /// Grace, from the moment of loss.
        after: std::time::Duration,
    },
}

/// How a session is laid out and behaves.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    /// Queue pairs.
    pub queues: u16,
    /// Depth of each; it has `depth - 1` slots.
    pub depth: u16,
    /// Most payload bytes a slot holds.
    pub payload_max: usize,
    /// What happens to calls while the DPU side is lost.
    pub on_loss: LossPolicy,
    /// Longest spin for one completion.
    pub spin_max: std::time::Duration,
}

/// No slot came free in time.
pub const BUSY: Errno = Errno::EAGAIN;
