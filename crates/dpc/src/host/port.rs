//! A port: one queue pair, for one worker thread to submit through.

use std::sync::Arc;

use outboard_base::{Errno, Result, Time};

use super::{Call, Done, Session, Slot};

/// One queue pair of a session. Owned by one thread; completions may be taken in by any.
pub struct Port {
    session: Arc<Session>,
    queue: u16,
}

/// What became of a started call.
#[derive(Debug)]
#[expect(clippy::large_enum_variant, reason = "moved once, never stored")]
pub enum Started {
    /// It is answered already.
    Done(Done),
    /// [`super::Front::complete`] will be called with it.
    InFlight,
}

impl Port {
    pub(super) fn new(session: Arc<Session>, queue: u16) -> Port {
        Port { session, queue }
    }

    /// Which queue this is.
    #[must_use]
    pub fn queue(&self) -> u16 {
        self.queue
    }

    /// A free slot, waiting until `until` for one to come free (back-pressure); `EAGAIN` if none did.
    /// While it waits, completions of this queue are handed to [`super::Front::complete`].
    pub fn acquire(&mut self, until: Time) -> Result<Slot> {
        let _ = (until, &self.session);
        Err(Errno::EAGAIN)
    }

    /// Submits, and spins for the answer as long as experience says it is worth it. `slot` must come
    /// from this port. `tag` is the front-end's name for the call (unique among those in flight).
    pub fn start(&mut self, slot: Slot, call: &Call<'_>, tag: u64) -> Started {
        Started::Done(Done {
            tag,
            op: call.request.op(),
            outcome: Err(Errno::ENOTCONN),
            slot: Some(slot),
        })
    }

    /// Submits and waits for the answer, spinning first and then asleep.
    pub fn call(&mut self, slot: Slot, call: &Call<'_>) -> Done {
        Done { tag: 0, op: call.request.op(), outcome: Err(Errno::ENOTCONN), slot: Some(slot) }
    }
}
