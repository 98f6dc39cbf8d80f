//! A port: one queue pair, for one worker thread to submit through.

use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use outboard_base::{Errno, Result, Time};
use outboard_wire::file::Reply;

use super::entry::Reader;
use super::session::{Admission, Found};
use super::{Call, Completion, QueueSlot, Session};

/// A sleeper looks again after this long, whatever happens: a lost wake-up is a delay, not a hang.
pub(super) const NAP: Duration = Duration::from_millis(100);
/// The clock is read once in this many looks.
const LOOKS: u32 = 8;

/// One queue pair of a session. Owned by one thread; completions may be taken in by any.
pub struct QueuePort {
    session: Arc<Session>,
    queue: u16,
}

impl QueuePort {
    pub(super) fn new(session: Arc<Session>, queue: u16) -> QueuePort {
        QueuePort { session, queue }
    }

    /// Which queue this is.
    #[must_use]
    pub fn queue(&self) -> u16 {
        self.queue
    }

    pub(super) fn now(&self) -> Time {
        self.session.world().now()
    }

    /// A free slot, waiting until `until` for one to come free (back-pressure); `EAGAIN` if none
    /// did. While it waits, completions of this queue are handed to `Front::complete`.
    pub fn acquire_by(&mut self, until: Time) -> Result<QueueSlot> {
        loop {
            if let Some(slot) = self.session.acquire(self.queue) {
                return Ok(slot);
            }
            if self.session.drain(self.queue) > 0 {
                continue;
            }
            let now = self.session.world().now();
            if now >= until {
                return Err(Errno::EAGAIN);
            }
            self.session.park(self.queue, until.min(now.after(NAP)));
        }
    }

    /// Submits, and spins for the answer as long as experience says it is worth it. `slot` must
    /// come from this port. `tag` is the front-end's name for the call (unique among those in
    /// flight). On a calling port, nobody else sleeps for the answer: it is waited for.
    pub fn start(&mut self, slot: QueueSlot, call: &Call<'_>, tag: u64) -> Poll<Completion> {
        if let Some(reply) = self.session.cached_answer(&slot, call) {
            return Poll::Ready(ended(slot, call, tag, Ok(reply)));
        }
        if !self.session.is_watched(self.queue) {
            let completion = self.call_watching(slot, call, &|| {});
            return Poll::Ready(Completion { tag, ..completion });
        }
        let cid = slot.index();
        let sent = match self.session.submit(&slot, call, tag, Reader::Front) {
            Ok(Admission::Answered(outcome)) => {
                return Poll::Ready(ended(slot, call, tag, outcome));
            }
            Ok(admission) => matches!(admission, Admission::Sent),
            Err(errno) => return Poll::Ready(ended(slot, call, tag, Err(errno))),
        };
        slot.launch();
        if !sent {
            return Poll::Pending;
        }
        match self.spin_for(cid, call) {
            Found::Completion(completion) => Poll::Ready(completion),
            Found::Parked => Poll::Pending,
            Found::Nothing => match self.session.leave(self.queue, cid) {
                Found::Completion(completion) => Poll::Ready(completion),
                Found::Parked | Found::Nothing => Poll::Pending,
            },
        }
    }

    /// The same for the session's own calls: the session is lost once `alive` says no.
    pub(super) fn call_while(
        &mut self,
        slot: QueueSlot,
        call: &Call<'_>,
        alive: &dyn Fn() -> bool,
    ) -> Completion {
        // Of one that died right after its last answer, nothing would end this call.
        if !alive() {
            self.session.lost();
            return ended(slot, call, 0, Err(Errno::ENOTCONN));
        }
        self.call_watching(slot, call, &|| {
            if !alive() {
                self.session.lost();
            }
        })
    }

    /// Submits and waits for the answer, spinning first and then asleep. A lock that must be waited
    /// for is answered with `Reply::Waiting`, and [`super::Front::event`] hears of its end.
    pub fn call(&mut self, slot: QueueSlot, call: &Call<'_>) -> Completion {
        if let Some(reply) = self.session.cached_answer(&slot, call) {
            return ended(slot, call, 0, Ok(reply));
        }
        self.call_watching(slot, call, &|| {})
    }

    fn call_watching(&self, slot: QueueSlot, call: &Call<'_>, watch: &dyn Fn()) -> Completion {
        let cid = slot.index();
        match self.session.submit(&slot, call, 0, Reader::Caller) {
            Ok(Admission::Answered(outcome)) => return ended(slot, call, 0, outcome),
            Ok(_) => {}
            Err(errno) => return ended(slot, call, 0, Err(errno)),
        }
        slot.launch();
        if let Found::Completion(completion) = self.spin_for(cid, call) {
            return completion;
        }
        loop {
            watch();
            if let Found::Completion(completion) = self.session.sleep(self.queue, cid) {
                return completion;
            }
        }
    }

    /// Spins for the answer of the call in `cid` as long as that is worth it, and remembers what
    /// came of it.
    fn spin_for(&self, cid: u16, call: &Call<'_>) -> Found {
        let op = call.request.op();
        let budget = self.session.budget(self.queue, op);
        let from = self.session.world().now();
        let found = self.spin(cid, budget);
        let took = self.session.world().now().since(from);
        match found {
            // Cut short because others want this core: nothing is learnt.
            Found::Nothing if u128::from(budget) > took.as_nanos() => {}
            Found::Nothing if budget > 0 => self.session.has_spun(self.queue, op, None),
            Found::Completion(_) | Found::Parked if budget > 0 => {
                self.session.has_spun(self.queue, op, Some(took));
            }
            _ => {}
        }
        found
    }

    /// Looks for the answer of the call in `cid` for `budget` nanoseconds, at least once.
    fn spin(&self, cid: u16, budget: u64) -> Found {
        let world = self.session.world();
        let until = world.now().after(Duration::from_nanos(budget));
        let mut looks = 0u32;
        loop {
            match self.session.look(self.queue, Some(cid)).0 {
                Found::Nothing => {}
                found => return found,
            }
            looks = looks.wrapping_add(1);
            if looks.is_multiple_of(LOOKS) && world.now() >= until || budget == 0 {
                return Found::Nothing;
            }
            if !world.relax() {
                return Found::Nothing;
            }
        }
    }
}

fn ended(slot: QueueSlot, call: &Call<'_>, tag: u64, outcome: Result<Reply>) -> Completion {
    Completion { tag, op: call.request.op(), outcome, slot: Some(slot) }
}
