//! How a program that goes past the kernel attaches.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use outboard_cache::policy::Choice;
use outboard_dpc::host::{Front, LossPolicy, QueueSlot};
use outboard_wire::attach::Company;

use super::{ConnectError, Host, HostOptions, Shape};

/// Queue pairs of a process: as many threads are served side by side.
const QUEUES: u16 = 16;
/// Each serves one call at a time; the smallest ring holds three.
const DEPTH: u16 = 4;

/// How a program attaches by itself: many queue pairs, each for one call at a time.
#[derive(Clone, Debug)]
pub struct Connect(HostOptions);

impl Connect {
    /// The defaults, for a DPU side listening at `socket`: calls wait a minute for a lost DPU side.
    #[must_use]
    pub fn new(socket: impl Into<PathBuf>) -> Connect {
        let mut options = HostOptions::new(socket.into());
        options.settings.queues = QUEUES;
        options.settings.depth = DEPTH;
        options.company = Company::Modest;
        Connect(options)
    }

    /// What calls do while the DPU side is lost.
    #[must_use]
    pub fn on_loss(mut self, policy: LossPolicy) -> Connect {
        self.0.on_loss = policy;
        self
    }

    /// How long the DPU side may take to be there.
    #[must_use]
    pub fn timeout(mut self, timeout: Duration) -> Connect {
        self.0.connect_timeout = timeout;
        self
    }

    /// Keeps pages of files in `bytes` of this process's memory, which the DPU side manages:
    /// re-reads and small writes cost no request. None by default. `O_DIRECT` and `O_SYNC` pass it
    /// by.
    #[must_use]
    pub fn cache(mut self, bytes: u64) -> Connect {
        let shape = Shape { len: bytes, ..Shape::default() };
        self.0.cache = (bytes > 0).then_some(shape);
        self.0.company = if bytes > 0 { Company::Anybody } else { Company::Modest };
        self
    }

    /// How that cache is to be managed, where the DPU side's own settings are not to decide.
    /// Nothing without [`Connect::cache`] before it.
    #[must_use]
    pub fn managed(mut self, choice: Choice) -> Connect {
        if let Some(shape) = &mut self.0.cache {
            shape.wishes = choice.wishes();
        }
        self
    }

    /// Called first on each thread behind the attachment.
    #[must_use]
    pub fn on_thread(mut self, begin: fn()) -> Connect {
        self.0.on_thread = Some(begin);
        self
    }

    /// Attaches. `front` hears what the DPU side says unasked.
    pub fn attach(self, front: Arc<dyn Front<QueueSlot>>) -> Result<Arc<Host>, ConnectError> {
        Host::connect(self.0, front).map(Arc::new)
    }
}
