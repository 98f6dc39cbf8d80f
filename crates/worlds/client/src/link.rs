//! The attachment of this process, and calls through it.

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use outboard_base::{Cred, Errno, Ino, Result};
use outboard_volume::backend::{Backend, Call, Completion, Front, Port, Slot, Told};
use outboard_wire::event::Event;
use outboard_wire::file::{Attr, Reply, Request};

use crate::data::Handle;
use crate::interest::Interest;
use crate::ports::Ports;

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

/// What the volume's side tells beside answers.
#[derive(Default)]
struct Hearing {
    settled: Mutex<Settled>,
    came: Condvar,
}

impl<S> Front<S> for Hearing {
    /// Every call is waited for by who made it, so nothing is left in flight.
    fn complete(&self, _: Completion<S>) {}

    fn event(&self, event: Event, _: Told) {
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
pub(crate) struct Link<B: Backend> {
    ports: Ports<B::Port>,
    hearing: Arc<Hearing>,
    interest: Mutex<Interest>,
    /// Dropped last: ports are its own.
    backend: Arc<B>,
}

impl<B: Backend> Link<B> {
    pub(crate) fn attach<E>(
        attach: impl FnOnce(Arc<dyn Front<B::Slot>>) -> std::result::Result<Arc<B>, E>,
    ) -> std::result::Result<Link<B>, E> {
        let hearing = Arc::new(Hearing::default());
        let backend = attach(Arc::clone(&hearing) as Arc<dyn Front<B::Slot>>)?;
        let ports = (0..=u16::MAX).map_while(|index| backend.calling_port(index));
        Ok(Link { ports: Ports::new(ports), backend, hearing, interest: Mutex::default() })
    }

    pub(crate) fn backend(&self) -> &Arc<B> {
        &self.backend
    }

    /// Reads from the cache; `None` if the volume must be asked.
    pub(crate) fn read_cached(&self, it: &Handle, offset: u64, out: &mut [u8]) -> Option<usize> {
        self.backend.read_cached(it.ino, it.fh, offset, out)
    }

    /// Writes into the cache; false if the volume must be asked.
    pub(crate) fn write_cached(&self, it: &Handle, offset: u64, bytes: &[u8]) -> bool {
        self.backend.write_cached(it.ino, it.fh, offset, bytes)
    }

    /// Asks, and takes the answer from the slot.
    pub(crate) fn ask<T>(
        &self,
        cred: &Cred,
        request: &Request<'_>,
        payload: &[u8],
        take: impl FnOnce(Reply, Option<B::Slot>) -> Result<T>,
    ) -> Result<T> {
        let mut port = self.ports.take()?;
        let mut slot = loop {
            match port.acquire() {
                Err(Errno::EAGAIN) => {}
                slot => break slot?,
            }
        };
        if !payload.is_empty() {
            slot.write(0, payload)?;
        }
        let call = Call { request, cred, checked: false, payload_len: payload.len() };
        let Completion { outcome, slot, .. } = port.call(slot, &call);
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

    /// A reply named `ino`. Now and then that means forgetting others.
    pub(crate) fn add_interest(&self, cred: &Cred, ino: Ino) {
        let old = lock(&self.interest).add(ino);
        for ino in old {
            self.forget(cred, ino);
        }
    }

    /// Inodes are referred to by their numbers, or (`false`) are so no more.
    pub(crate) fn hold(&self, inos: &[Ino], holds: bool) {
        let mut interest = lock(&self.interest);
        for ino in inos {
            interest.hold(*ino, holds);
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
