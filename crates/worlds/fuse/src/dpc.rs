//! A link to a DPU side as what answers a mount.

use std::sync::Arc;
use std::time::Duration;

use outboard_base::{Errno, Result};
use outboard_dpc::host::{self, Call, Done, Session, World};
use outboard_wire::event::Event;

use crate::backend::{Answer, Backend, Port, Started};
use crate::front::Front;

/// Longest wait for a slot before the thread looks around again.
const SLOT_WAIT: Duration = Duration::from_secs(1);

impl host::Front for Front<host::Slot> {
    fn complete(&self, done: Done) {
        Front::complete(self, answer(done));
    }

    fn event(&self, event: Event) {
        Front::event(self, event);
    }
}

fn answer(done: Done) -> Answer<host::Slot> {
    Answer { tag: done.tag, outcome: done.outcome, slot: done.slot }
}

/// A session on a DPU side, as a [`Backend`].
pub struct Link {
    session: Arc<Session>,
    world: Arc<dyn World>,
}

impl Link {
    /// The session, and the world it runs in. The session's front must be the mount's [`Front`].
    #[must_use]
    pub fn new(session: Arc<Session>, world: Arc<dyn World>) -> Link {
        Link { session, world }
    }
}

/// A port of the session.
pub struct LinkPort {
    port: host::Port,
    world: Arc<dyn World>,
}

impl Backend for Link {
    type Slot = host::Slot;
    type Port = LinkPort;

    fn port(&self, worker: usize) -> Result<LinkPort> {
        let queue = u16::try_from(worker).map_err(|_| Errno::EINVAL)?;
        let port = self.session.port(queue).ok_or(Errno::EINVAL)?;
        Ok(LinkPort { port, world: Arc::clone(&self.world) })
    }

    fn abort(&self, tag: u64) -> bool {
        self.session.abort(tag)
    }
}

impl Port for LinkPort {
    type Slot = host::Slot;

    fn acquire(&mut self) -> Result<host::Slot> {
        self.port.acquire(self.world.now().after(SLOT_WAIT))
    }

    fn start(&mut self, slot: host::Slot, call: &Call<'_>, tag: u64) -> Started<host::Slot> {
        match self.port.start(slot, call, tag) {
            host::Started::Done(done) => Started::Done(answer(done)),
            host::Started::InFlight => Started::InFlight,
        }
    }
}
