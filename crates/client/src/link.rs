//! The attachment of this process, and calls through it.

use std::collections::{HashMap, HashSet, VecDeque};
use std::path::PathBuf;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use outboard_base::{Cred, Errno, Ino, Result};
use outboard_dpc::host::{Call, Done, Front, Port, Session, Slot, World};
use outboard_drivers::host::{Host, HostOptions, Shape};
use outboard_wire::event::Event;
use outboard_wire::file::{Attr, Reply, Request};

use crate::data::Handle;
use crate::ports::Ports;

pub use outboard_dpc::host::LossPolicy;
pub use outboard_drivers::host::ConnectError;

/// Queue pairs of a process: as many threads are served side by side.
const QUEUES: u16 = 16;
/// Each serves one call at a time; the smallest ring holds three.
const DEPTH: u16 = 4;
/// Inodes this side has been told of and has not forgotten; beyond it the oldest half is forgotten.
const TOLD_MAX: usize = 4096;
/// Ends of waits for locks that nobody asked for yet.
const SETTLED_MAX: usize = 1024;
/// A slot comes free when a call is answered; this is only how often a waiter looks.
const SLOT_WAIT: Duration = Duration::from_secs(1);
/// How long the DPU side may take to let go in order.
const DETACH: Duration = Duration::from_secs(5);

/// How to attach.
#[derive(Clone, Debug)]
pub struct Connect {
    options: HostOptions,
    /// Where the volume's root lies for the user: absolute targets of symbolic links that begin
    /// with it lead into the volume, others out of it. `None`: they lead to the volume's own root.
    pub prefix: Option<Vec<u8>>,
}

impl Connect {
    /// The defaults, for a DPU side listening at `socket`: calls wait for a lost DPU side.
    #[must_use]
    pub fn new(socket: impl Into<PathBuf>) -> Connect {
        let mut options = HostOptions::new(socket.into());
        options.settings.queues = QUEUES;
        options.settings.depth = DEPTH;
        Connect { options, prefix: None }
    }

    /// What calls do while the DPU side is lost.
    #[must_use]
    pub fn on_loss(mut self, policy: LossPolicy) -> Connect {
        self.options.on_loss = policy;
        self
    }

    /// How long the DPU side may take to be there.
    #[must_use]
    pub fn timeout(mut self, timeout: Duration) -> Connect {
        self.options.connect_timeout = timeout;
        self
    }

    /// Keeps pages of files in `bytes` of this process's memory, which the DPU side manages:
    /// re-reads and small writes cost no request. None by default. `O_DIRECT` and `O_SYNC` pass it
    /// by.
    #[must_use]
    pub fn cache(mut self, bytes: u64) -> Connect {
        let shape = Shape { len: bytes, ..Shape::default() };
        self.options.cache = (bytes > 0).then_some(shape);
        self
    }

    /// Called first on each thread this library starts.
    #[must_use]
    pub fn on_thread(mut self, begin: fn()) -> Connect {
        self.options.on_thread = Some(begin);
        self
    }
}

/// What the DPU side tells beside answers.
#[derive(Default)]
struct Hearing {
    settled: Mutex<HashMap<u64, Option<Errno>>>,
    came: Condvar,
}

impl Front for Hearing {
    /// Every call is waited for by who made it, so nothing is left in flight.
    fn complete(&self, _: Done) {}

    fn event(&self, event: Event) {
        // Nothing here could be stale: a hybrid cache is kept right by its grants, not by events.
        if let Event::LockGranted { ticket, errno } = event {
            let mut settled = lock(&self.settled);
            if settled.len() >= SETTLED_MAX {
                settled.clear();
            }
            settled.insert(ticket, errno);
            self.came.notify_all();
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Inodes the DPU side has told this one of, oldest first.
#[derive(Default)]
struct Told {
    order: VecDeque<Ino>,
    known: HashSet<Ino>,
}

/// The attachment.
pub(crate) struct Link {
    host: Mutex<Option<Host>>,
    session: Arc<Session>,
    world: Arc<dyn World>,
    ports: Ports<Port>,
    hearing: Arc<Hearing>,
    told: Mutex<Told>,
}

impl Link {
    pub(crate) fn connect(how: Connect) -> std::result::Result<Link, ConnectError> {
        let hearing = Arc::new(Hearing::default());
        let queues = how.options.settings.queues;
        let host = Host::connect(how.options, Arc::clone(&hearing) as Arc<dyn Front>)?;
        let session = Arc::clone(host.session());
        let ports = (0..queues).filter_map(|queue| session.calling_port(queue));
        Ok(Link {
            ports: Ports::new(ports),
            world: host.world(),
            session,
            host: Mutex::new(Some(host)),
            hearing,
            told: Mutex::default(),
        })
    }

    /// Lets go of everything in order; calls made later never come back.
    pub(crate) fn disconnect(&self) -> std::io::Result<()> {
        lock(&self.host).take().map_or(Ok(()), |host| host.detach(DETACH))
    }

    /// Figures since the attachment.
    pub(crate) fn counts(&self) -> outboard_dpc::host::Counts {
        self.session.counts()
    }

    /// Reads from the cache; `None` if the volume must be asked.
    pub(crate) fn read_cached(&self, it: &Handle, offset: u64, out: &mut [u8]) -> Option<usize> {
        self.session.read_cached(it.ino, it.fh, offset, out)
    }

    /// Writes into the cache; false if the volume must be asked.
    pub(crate) fn write_cached(&self, it: &Handle, offset: u64, bytes: &[u8]) -> bool {
        self.session.write_cached(it.ino, it.fh, offset, bytes)
    }

    /// Asks, and takes the answer from the slot.
    pub(crate) fn ask<T>(
        &self,
        cred: &Cred,
        request: &Request<'_>,
        payload: &[u8],
        take: impl FnOnce(Reply, Option<Slot>) -> Result<T>,
    ) -> Result<T> {
        let mut port = self.ports.take()?;
        let mut slot = loop {
            match port.acquire(self.world.now().after(SLOT_WAIT)) {
                Err(Errno::EAGAIN) => {}
                slot => break slot?,
            }
        };
        if !payload.is_empty() {
            slot.write(0, payload)?;
        }
        let call = Call { request, cred, checked: false, payload_len: payload.len() };
        let Done { outcome, slot, .. } = port.call(slot, &call);
        take(outcome?, slot)
    }

    /// Asks what is answered without payload.
    pub(crate) fn reply(&self, cred: &Cred, request: &Request<'_>) -> Result<Reply> {
        self.ask(cred, request, &[], |reply, _| Ok(reply))
    }

    /// Asks what is answered by attributes.
    pub(crate) fn attributes(&self, cred: &Cred, request: &Request<'_>) -> Result<Attr> {
        match self.reply(cred, request)? {
            Reply::Attr(attr) => Ok(attr),
            _ => Err(Errno::EPROTO),
        }
    }

    /// Asks for bytes; how many came.
    pub(crate) fn read(&self, cred: &Cred, request: &Request<'_>, out: &mut [u8]) -> Result<usize> {
        self.ask(cred, request, &[], |reply, slot| match (reply, slot) {
            (Reply::Data(len), Some(slot)) => {
                let len = len as usize;
                slot.read(0, out.get_mut(..len).ok_or(Errno::EPROTO)?)?;
                Ok(len)
            }
            _ => Err(Errno::EPROTO),
        })
    }

    /// This side was told of `ino`. Now and then that means forgetting others.
    pub(crate) fn told(&self, cred: &Cred, ino: Ino) {
        let mut old = Vec::new();
        {
            let mut told = lock(&self.told);
            if told.known.insert(ino) {
                told.order.push_back(ino);
            }
            if told.order.len() > TOLD_MAX {
                old.extend(told.order.drain(..TOLD_MAX / 2));
                for ino in &old {
                    told.known.remove(ino);
                }
            }
        }
        for ino in old {
            self.forget(cred, ino);
        }
    }

    /// This side refers to `ino` no more, but by what it has open.
    pub(crate) fn forget(&self, cred: &Cred, ino: Ino) {
        // A DPU side that is lost for good has forgotten everything.
        let _forgotten = self.reply(cred, &Request::Forget { ino });
    }

    /// Waits for the end of a wait for a lock.
    pub(crate) fn settled(&self, ticket: u64) -> Result<()> {
        let mut settled = lock(&self.hearing.settled);
        loop {
            if let Some(errno) = settled.remove(&ticket) {
                return errno.map_or(Ok(()), Err);
            }
            settled = self.hearing.came.wait(settled).unwrap_or_else(PoisonError::into_inner);
        }
    }
}
