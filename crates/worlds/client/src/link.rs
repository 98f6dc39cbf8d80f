//! The attachment of this process, and calls through it.

use std::collections::VecDeque;
use std::path::PathBuf;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use outboard_attach::host::{Host, HostOptions, Shape};
use outboard_base::{Cred, Errno, Ino, Result};
use outboard_cache::policy::Choice;
use outboard_dpc::host::{Call, Done, Front, Port, Session, Slot, World};
use outboard_wire::event::Event;
use outboard_wire::file::{Attr, Reply, Request};

use crate::data::Handle;
use crate::ports::Ports;
use crate::told::Told;

pub use outboard_attach::host::ConnectError;
pub use outboard_dpc::host::LossPolicy;

/// Queue pairs of a process: as many threads are served side by side.
const QUEUES: u16 = 16;
/// Each serves one call at a time; the smallest ring holds three.
const DEPTH: u16 = 4;
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
    /// The defaults, for a DPU side listening at `socket`: calls wait a minute for a lost DPU side.
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

    /// How that cache is to be managed, where the DPU side's own settings are not to decide.
    /// Nothing without [`Connect::cache`] before it.
    #[must_use]
    pub fn managed(mut self, choice: Choice) -> Connect {
        if let Some(shape) = &mut self.options.cache {
            shape.wishes = choice.wishes();
        }
        self
    }

    /// Called first on each thread this library starts.
    #[must_use]
    pub fn on_thread(mut self, begin: fn()) -> Connect {
        self.options.on_thread = Some(begin);
        self
    }
}

/// Ends of waits for locks that came before who waits asked for them, oldest first.
#[derive(Default)]
struct Settled {
    ends: VecDeque<(u64, Option<Errno>)>,
    /// How many calls may wait. Each has one end: what is more than that was told for nobody.
    waiting: usize,
}

impl Settled {
    /// A call that may wait for a lock begins (`true`) or is over.
    fn waits(&mut self, begins: bool) {
        self.waiting = if begins { self.waiting + 1 } else { self.waiting.saturating_sub(1) };
        self.bound();
    }

    fn came(&mut self, ticket: u64, errno: Option<Errno>) {
        self.ends.push_back((ticket, errno));
        self.bound();
    }

    fn bound(&mut self) {
        let more = self.ends.len().saturating_sub(self.waiting);
        self.ends.drain(..more);
    }

    fn take(&mut self, ticket: u64) -> Option<Option<Errno>> {
        let at = self.ends.iter().position(|(other, _)| *other == ticket)?;
        self.ends.remove(at).map(|(_, errno)| errno)
    }
}

/// What the DPU side tells beside answers.
#[derive(Default)]
struct Hearing {
    settled: Mutex<Settled>,
    came: Condvar,
}

impl Front for Hearing {
    /// Every call is waited for by who made it, so nothing is left in flight.
    fn complete(&self, _: Done) {}

    fn event(&self, event: Event) {
        // Nothing here could be stale: a hybrid cache is kept right by its grants, not by events.
        if let Event::LockGranted { ticket, errno } = event {
            lock(&self.settled).came(ticket, errno);
            self.came.notify_all();
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
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
        let old = lock(&self.told).add(ino);
        for ino in old {
            self.forget(cred, ino);
        }
    }

    /// Inodes are referred to by their numbers, or (`false`) are so no more.
    pub(crate) fn hold(&self, inos: &[Ino], holds: bool) {
        let mut told = lock(&self.told);
        for ino in inos {
            told.hold(*ino, holds);
        }
    }

    /// This side refers to `ino` no more, but by what it has open.
    pub(crate) fn forget(&self, cred: &Cred, ino: Ino) {
        // A DPU side that is lost for good has forgotten everything.
        let _forgotten = self.reply(cred, &Request::Forget { ino });
    }

    /// Asks for a lock, and waits for it if `request` says so.
    pub(crate) fn lock(&self, cred: &Cred, request: &Request<'_>) -> Result<()> {
        let waits = |begins| lock(&self.hearing.settled).waits(begins);
        waits(true);
        let outcome = match self.reply(cred, request) {
            Ok(Reply::Empty) => Ok(()),
            Ok(Reply::Waiting(ticket)) => self.settled(ticket),
            Ok(_) => Err(Errno::EPROTO),
            Err(errno) => Err(errno),
        };
        waits(false);
        outcome
    }

    /// Waits for the end of a wait for a lock.
    fn settled(&self, ticket: u64) -> Result<()> {
        let mut settled = lock(&self.hearing.settled);
        loop {
            if let Some(errno) = settled.take(ticket) {
                return errno.map_or(Ok(()), Err);
            }
            settled = self.hearing.came.wait(settled).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Beyond 1,024 ends of waits that nobody had asked for yet all were forgotten, and who asked
    /// then waited for ever.
    #[test]
    fn an_end_that_somebody_will_ask_for_is_kept() {
        let mut settled = Settled::default();
        settled.came(7, None);
        assert_eq!(settled.take(7), None, "nobody waits");
        for _ in 0..5_000 {
            settled.waits(true);
        }
        settled.came(1_000_000, Some(Errno::EDEADLK));
        for ticket in 1..5_000 {
            settled.came(ticket, None);
        }
        assert_eq!(settled.take(1_000_000), Some(Some(Errno::EDEADLK)));
        for ticket in 1..5_000 {
            assert_eq!(settled.take(ticket), Some(None));
        }
        // Whatever is told for nobody takes no more room than those who wait.
        for ticket in 0..100_000 {
            settled.came(ticket, None);
        }
        assert_eq!(settled.ends.len(), 5_000);
        for _ in 0..5_000 {
            settled.waits(false);
        }
        assert!(settled.ends.is_empty());
    }
}
