//! What answers a mount's requests: a link to a DPU side, or something in the same process.

use outboard_base::Result;
use outboard_dpc::host::Call;
use outboard_wire::file::Reply;

use crate::sys::Slot;

/// An answered request.
#[derive(Debug)]
pub struct Answer<S> {
    /// What the mount called the request at [`Port::start`].
    pub tag: u64,
    /// The answer.
    pub outcome: Result<Reply>,
    /// The slot, when payload lies in it. It is free again when dropped.
    pub slot: Option<S>,
}

/// What became of a started request so far.
#[derive(Debug)]
pub enum Started<S> {
    /// Answered.
    Done(Answer<S>),
    /// [`crate::Front::complete`] will get the answer, on some thread, perhaps already has.
    InFlight,
}

/// Answers requests. Shared by all threads of a mount.
pub trait Backend: Send + Sync + 'static {
    /// A place for one request and its payload.
    type Slot: Slot + 'static;
    /// The way in for one thread.
    type Port: Port<Slot = Self::Slot>;

    /// The port of worker `worker`; each is taken once. An error ends the mount.
    fn port(&self, worker: usize) -> Result<Self::Port>;

    /// Gives up the request `tag`: it is answered `EINTR` if that still can be, as usual otherwise,
    /// once in any case. False if no such request is in flight.
    fn abort(&self, tag: u64) -> bool;
}

/// One thread's way in.
pub trait Port: Send + 'static {
    /// A place for one request and its payload.
    type Slot: Slot + 'static;

    /// A free slot; waits while all are in use, a while. `EAGAIN` when none came free.
    fn acquire(&mut self) -> Result<Self::Slot>;

    /// Starts a request; waits for its answer as long as that is worth it.
    fn start(&mut self, slot: Self::Slot, call: &Call<'_>, tag: u64) -> Started<Self::Slot>;
}
