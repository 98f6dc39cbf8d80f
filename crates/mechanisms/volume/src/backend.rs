//! The host-side port: how a front-end (a mount, a program past the kernel) reaches any volume.
//!
//! ```text
//!  front-end thread        Port (one a thread)         Backend                      a volume
//!    acquire ────────────▶ a Slot: room for a payload
//!    write data into it
//!    start(slot, call) ──▶ ...................................................... ▶ answers
//!      Poll::Ready(completion)  ◀─ it came while the thread waited for it
//!      Poll::Pending            ◀─ later, on any thread: Front::complete(completion)
//!    drop(completion.slot): the slot is free again
//! ```
//!
//! A front-end is generic over a [`Backend`] and names no volume and no link; who opens a volume
//! chooses the backend (a session on a DPU side is `dpc`'s `Session`). Nothing on the way of
//! a call goes through a vtable but [`Front::complete`] for answers nobody waited for.
//!
//! # Invariants
//!
//! 1. Every started call is completed exactly once: as [`Poll::Ready`], or by [`Front::complete`].
//! 2. A completion's slot holds the payload of [`Reply::Data`], until it is dropped.
//! 3. A [`Port`] is one thread's at a time; a [`Backend`] is shared by all.

use std::sync::Arc;
use std::sync::atomic::AtomicU8;
use std::task::Poll;

use outboard_base::{Cred, Fh, Ino, Result};
use outboard_wire::event::Event;
use outboard_wire::file::{Op, Reply, Request};

/// Set in the tag of a call that nobody asks again: the front-end's own.
pub const OWN: u64 = 1 << 62;
/// Set in the tag of a call that was asked before, under the tag without it, of a predecessor of
/// this process that died.
pub const AGAIN: u64 = 1 << 63;

/// One file operation as a front-end hands it in. Its payload, if it has one, lies in the slot.
#[derive(Clone, Copy, Debug)]
pub struct Call<'a> {
    /// What is asked.
    pub request: &'a Request<'a>,
    /// Who asks.
    pub cred: &'a Cred,
    /// The front-end has checked permissions (see `Flags::CHECKED`).
    pub checked: bool,
    /// Bytes of payload in the slot, for operations that carry some to the volume.
    pub payload_len: usize,
}

/// An answered call.
#[derive(Debug)]
pub struct Completion<S> {
    /// What the front-end called it at [`Port::start`].
    pub tag: u64,
    /// Which operation it was.
    pub op: Op,
    /// The answer.
    pub outcome: Result<Reply>,
    /// The slot, for `Reply::Data` with the payload in it; free again when dropped. `None` for a
    /// call that held none at its end: a lock that was waited for.
    pub slot: Option<S>,
}

/// What a front-end provides: where calls that were left in flight are completed, and what it must
/// hear. Called from any thread, several at a time, with no lock of the backend held; must not
/// block, and must not start calls.
pub trait Front<S>: Send + Sync {
    /// A call left in flight is answered.
    fn complete(&self, completion: Completion<S>);
    /// The volume's side says something unasked: cached data is stale, a lock was granted. `told`
    /// is dropped once this side relies no more on what the event says is stale; until then who
    /// changed it has no answer, as long as this side makes progress.
    fn event(&self, event: Event, told: Told);
    /// Whether this side keeps what events end. The other side waits for nobody else.
    fn keeps(&self) -> bool {
        false
    }
}

/// The wish to know when an event is acted upon: when this is dropped. The default is nobody's.
#[derive(Default)]
pub struct Told(Option<Box<dyn FnOnce() + Send>>);

impl Told {
    /// `acted` is called once, when this is dropped.
    pub fn new(acted: impl FnOnce() + Send + 'static) -> Told {
        Told(Some(Box::new(acted)))
    }
}

impl Drop for Told {
    fn drop(&mut self) {
        if let Some(acted) = self.0.take() {
            acted();
        }
    }
}

impl std::fmt::Debug for Told {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Told").field("waited_for", &self.0.is_some()).finish()
    }
}

/// A place for one call and its payload. Dropping it frees it.
pub trait Slot: Send {
    /// Where the payload lies: [`IO_MAX`](outboard_base::limits::IO_MAX) bytes or more, the same as
    /// long as the slot lives. They are shared: another process may write there at any moment. For
    /// system calls that fill or empty them (`readv`, `writev`).
    fn payload(&self) -> &[AtomicU8];
    /// Copies bytes into the payload at `at`; `EINVAL` beyond its end.
    fn write(&mut self, at: usize, bytes: &[u8]) -> Result<()>;
    /// Copies bytes of the payload at `at` out; `EINVAL` beyond its end.
    fn read(&self, at: usize, out: &mut [u8]) -> Result<()>;
}

/// A way to a volume, shared by all threads of a front-end and by its ports.
pub trait Backend: Send + Sync + 'static {
    /// A place for one call and its payload.
    type Slot: Slot + 'static;
    /// The way in for one thread.
    type Port: Port<Slot = Self::Slot>;

    /// Port number `index`, counted from 0, for [`Port::start`]; `None` if there is none, or it was
    /// taken.
    fn port(self: &Arc<Self>, index: u16) -> Option<Self::Port>;

    /// The same for [`Port::call`] alone: its owner sleeps for its answers itself.
    fn calling_port(self: &Arc<Self>, index: u16) -> Option<Self::Port>;

    /// Gives up the call `tag`: it is answered `EINTR` if that still can be, as usual otherwise,
    /// once in any case. False if no such call is in flight.
    fn abort(self: &Arc<Self>, tag: u64) -> bool;

    /// Reads what this side holds of a file into memory of this process, without a slot: how many
    /// bytes; `None` if the volume must be asked. A backend without a cache always says that.
    fn read_cached(&self, ino: Ino, fh: Fh, offset: u64, into: &mut [u8]) -> Option<usize>;

    /// Takes all of `bytes` here, at the end where the handle appends; false if the volume must be
    /// asked, and nothing was changed.
    fn write_cached(&self, ino: Ino, fh: Fh, offset: u64, bytes: &[u8]) -> bool;
}

/// One thread's way in.
pub trait Port: Send + 'static {
    /// A place for one call and its payload.
    type Slot: Slot + 'static;

    /// A free slot; waits while all are in use (back-pressure), a second or so. `EAGAIN` when none
    /// came free.
    fn acquire(&mut self) -> Result<Self::Slot>;

    /// Starts a call and waits for its answer as long as that is worth it. `slot` comes from this
    /// port; `tag` is the front-end's name for the call, unique among those in flight. `Pending`:
    /// [`Front::complete`] gets the answer, on some thread, and perhaps already has.
    fn start(
        &mut self,
        slot: Self::Slot,
        call: &Call<'_>,
        tag: u64,
    ) -> Poll<Completion<Self::Slot>>;

    /// Starts a call and waits for its answer. A lock that must be waited for is answered with
    /// `Reply::Waiting`, and [`Front::event`] hears of its end.
    fn call(&mut self, slot: Self::Slot, call: &Call<'_>) -> Completion<Self::Slot>;
}
