//! Taking in: completions become answers, and what those change is acted upon.

use std::sync::Arc;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed};

use outboard_base::{Errno, Ino, Result, limits};
use outboard_link::queue::{Cid, Completion as QueueCompletion, HostQueue};
use outboard_wire::file::{Op, Reply};
use outboard_wire::nvmefs::{QueueError, Status};

use super::{Cell, Session, lock};
use crate::host::entry::{Entry, Note, Reader, State};
use crate::host::loss::ended;
use crate::host::port::NAP;
use crate::host::{Completion, Lane};

/// Completions taken in at one look.
const LOOK_MAX: usize = 64;

/// What a look found out about one call.
pub(in crate::host) enum Found {
    /// It is answered.
    Completion(Completion),
    /// It waits for a lock and holds no slot any more.
    Parked,
    /// Nothing yet.
    Nothing,
}

/// What taking in completions has brought, to be acted upon once no lock is held.
pub(in crate::host) struct Haul {
    want: Option<u16>,
    found: Found,
    completions: Vec<Completion>,
    admitted: Vec<Lane>,
    cancel: Vec<u64>,
    /// Waits in doubt can be gone on with.
    renew: bool,
    wake: bool,
    asleep: bool,
    replays_over: bool,
    /// Locks are to be handed back.
    returns: bool,
    taken: usize,
}

impl Haul {
    pub(in crate::host) fn new(want: Option<u16>) -> Haul {
        Haul {
            want,
            found: Found::Nothing,
            completions: Vec::new(),
            admitted: Vec::new(),
            cancel: Vec::new(),
            renew: false,
            wake: false,
            asleep: false,
            replays_over: false,
            returns: false,
            taken: 0,
        }
    }

    pub(in crate::host) fn ring(&mut self, asleep: bool) {
        self.asleep |= asleep;
    }

    /// Calls that may go now, for who lets them go itself.
    pub(in crate::host) fn take_admitted(&mut self) -> Vec<Lane> {
        std::mem::take(&mut self.admitted)
    }
}

impl Session {
    /// Takes in what completed on `queue` and hands it to [`Front::complete`]; how many. For the
    /// thread that sleeps for completions nobody spins for.
    ///
    /// [`Front::complete`]: crate::host::Front::complete
    pub fn drain(self: &Arc<Session>, queue: u16) -> usize {
        self.look(queue, None).1
    }

    /// Takes in what completed on `queue`, the call in `want` apart; what became of that, and how
    /// many there were.
    pub(in crate::host) fn look(
        self: &Arc<Session>,
        queue: u16,
        want: Option<u16>,
    ) -> (Found, usize) {
        let Some(mut cell) = self.cell(queue) else { return (Found::Nothing, 0) };
        let mut haul = Haul::new(want);
        self.take_in(&mut cell, queue, &mut haul);
        drop(cell);
        self.act(queue, haul)
    }

    fn take_in(self: &Arc<Session>, cell: &mut Cell, queue: u16, haul: &mut Haul) {
        if cell.up {
            let mut completions = std::mem::take(&mut cell.completions);
            cell.initiator.poll(LOOK_MAX, &mut completions);
            haul.taken = completions.len();
            for completion in completions.drain(..) {
                self.settle(cell, queue, &completion, haul);
            }
            cell.completions = completions;
        }
        let Some(cid) = haul.want else { return };
        let Some(entry) = cell.entries.get_mut(usize::from(cid)) else { return };
        if matches!(entry.state, State::Answered(_)) {
            let State::Answered(outcome) = std::mem::replace(&mut entry.state, State::Idle) else {
                return;
            };
            let (tag, op) = (entry.tag, entry.op);
            haul.found = Found::Completion(Completion {
                tag,
                op,
                outcome,
                slot: Some(self.slot(queue, cid)),
            });
        }
    }

    /// One completion: what it answers, and what that changes.
    fn settle(
        self: &Arc<Session>,
        cell: &mut Cell,
        queue: u16,
        completion: &QueueCompletion,
        haul: &mut Haul,
    ) {
        let cid = completion.cid.0;
        let Some(entry) = cell.entries.get_mut(usize::from(cid)) else { return };
        if entry.state != State::Pending {
            return;
        }
        let mut header = [0; limits::REPLY_HEADER_MAX];
        let ended = match completion.status {
            // Nobody here asked for it: not the caller's doing.
            Status::Queue(QueueError::Aborted) if !entry.aborted => Err(Errno::EIO),
            status => status.to_result(),
        };
        let outcome = ended.and_then(|()| {
            let room = usize::from(entry.reply_room());
            let header = header.get_mut(..room).ok_or(Errno::EPROTO)?;
            cell.initiator.reply_header(Cid(cid), header).map_err(|_| Errno::EPROTO)?;
            Reply::decode(entry.op, completion.result, header)
        });
        let outcome = match outcome {
            Ok(reply) if entry.exceeds(&reply) => Err(Errno::EPROTO),
            outcome => outcome,
        };
        self.answer(cell, queue, cid, outcome, haul);
    }

    /// Ends a call with `outcome`: shared state, reader. One that is not under way is left alone:
    /// its slot is free, or its owner's, and would be handed out to a second.
    pub(in crate::host) fn answer(
        self: &Arc<Session>,
        cell: &mut Cell,
        queue: u16,
        cid: u16,
        mut outcome: Result<Reply>,
        haul: &mut Haul,
    ) {
        let lane = self.lane(queue, cid);
        let Some(entry) = cell.entries.get_mut(usize::from(cid)) else { return };
        if !matches!(entry.state, State::Pending | State::Held) {
            tracing::error!(queue, cid, state = ?entry.state, "no call here is under way");
            return;
        }
        let closes = matches!(entry.op, Op::Release | Op::Releasedir);
        if closes && outcome == Err(Errno::EBADF) && self.losses.load(Relaxed) > 0 {
            // Closed before the loss and so not handed in again: closed it is.
            outcome = Ok(Reply::Empty);
        }
        if entry.replayed && self.replaying.fetch_sub(1, AcqRel) == 1 {
            haul.replays_over = true;
        }
        let mut parked = false;
        let notable = !matches!(entry.note, Note::None);
        if entry.span.is_some() || entry.locking.is_some() || notable {
            (outcome, parked) = self.note_answered(entry, lane, outcome, haul);
        }
        let (tag, op, reader) = (entry.tag, entry.op, entry.reader);
        entry.state = State::Idle;
        match reader {
            _ if parked => {
                self.free(cell, cid, haul);
                if haul.want == Some(cid) {
                    haul.found = Found::Parked;
                }
            }
            Reader::Front => {
                let slot = Some(self.slot(queue, cid));
                let completion = Completion { tag, op, outcome, slot };
                if haul.want == Some(cid) {
                    haul.found = Found::Completion(completion);
                } else {
                    haul.completions.push(completion);
                }
            }
            Reader::Caller => {
                if let Some(entry) = cell.entries.get_mut(usize::from(cid)) {
                    entry.state = State::Answered(outcome);
                }
                haul.wake = true;
            }
            Reader::Cancel { ticket } => {
                self.free(cell, cid, haul);
                if outcome.is_ok() {
                    let parked = lock(&self.shared).parked.remove(&ticket);
                    let tag = parked.and_then(|parked| parked.tag);
                    haul.completions.extend(tag.map(|tag| ended(tag, Some(Errno::EINTR))));
                }
            }
            Reader::Renew { ticket } => {
                self.free(cell, cid, haul);
                self.renewed(cell, ticket, haul);
            }
            Reader::Return { ino, .. } => {
                self.free(cell, cid, haul);
                self.returned(ino, outcome, haul);
            }
            Reader::Nobody => self.free(cell, cid, haul),
        }
    }

    /// What an answered call changes in the shared state: ranges, handles, locks. Returns the
    /// answer as it stands then, and whether the call waits for a lock and leaves its slot.
    fn note_answered(
        &self,
        entry: &mut Entry,
        lane: Lane,
        mut outcome: Result<Reply>,
        haul: &mut Haul,
    ) -> (Result<Reply>, bool) {
        let mut parked = false;
        let mut shared = lock(&self.shared);
        if let Some(span) = entry.span.take() {
            self.changed(span);
            shared.ranges.release(lane, span.ino, |lane| haul.admitted.push(lane));
        }
        if let Some((fh, handle)) = outcome.as_ref().ok().and_then(|r| entry.note.handle(r)) {
            shared.held.opened(fh, handle);
            if let Some(cached) = &self.cached {
                cached.opened(fh, handle);
            }
        }
        outcome = shared.lock_answered(&entry.note, outcome);
        if let Ok(Reply::Waiting(ticket)) = outcome {
            parked = entry.reader == Reader::Front;
            if entry.aborted {
                haul.cancel.push(ticket);
            }
            if let Some(wait) = entry.park(ticket) {
                shared.parked.insert(ticket, wait);
            }
            // Its end may have been told, and lost, before this answer was read.
            if parked && entry.overflows != self.overflows.load(Acquire) {
                shared.doubtful.push(ticket);
                haul.renew = true;
            }
        }
        if let Some(locking) = entry.locking.take() {
            haul.admitted.extend(shared.lock_requests.leave(locking.ino(), lane));
            haul.returns |= shared.lock_requests.has_returns();
        }
        (outcome, parked)
    }

    /// A wait in doubt is over, or to be asked for anew.
    fn renewed(&self, cell: &Cell, ticket: u64, haul: &mut Haul) {
        let cancelled =
            |e: &Entry| e.state == State::Pending && e.reader == Reader::Cancel { ticket };
        let mut shared = lock(&self.shared);
        if let Some(parked) = shared.parked.remove(&ticket) {
            // Ended, or decided and nobody was told: what it was must be asked anew. Unless who
            // waits wants no more.
            match parked.tag.filter(|_| cell.entries.iter().any(cancelled)) {
                Some(tag) => haul.completions.push(ended(tag, Some(Errno::EINTR))),
                None => shared.again.push(parked),
            }
        }
        haul.renew = true;
    }

    /// The locks of `ino` were handed back, or are lost.
    fn returned(&self, ino: Ino, outcome: Result<Reply>, haul: &mut Haul) {
        let mut shared = lock(&self.shared);
        if let Err(errno) = outcome {
            tracing::error!(%ino, %errno, "the DPU side does not take locks back: lost");
            shared.held.unlocked(ino);
        }
        haul.admitted.extend(shared.lock_requests.returned(ino));
        haul.returns |= shared.lock_requests.has_returns();
    }

    /// Leaves the call in `cid` in flight: from here on an interrupt tells of its answer, unless
    /// that has come meanwhile.
    pub(in crate::host) fn leave(self: &Arc<Session>, queue: u16, cid: u16) -> Found {
        loop {
            let Some(mut cell) = self.cell(queue) else { return Found::Nothing };
            if !cell.up || cell.initiator.may_sleep().is_some() {
                return Found::Nothing;
            }
            drop(cell);
            match self.look(queue, Some(cid)).0 {
                Found::Nothing => {}
                found => return found,
            }
        }
    }

    /// Has the watcher of `queue` told of answers nobody spins for.
    pub(in crate::host) fn arm(self: &Arc<Session>, queue: u16) {
        loop {
            let Some(mut cell) = self.cell(queue) else { return };
            let nothing = !cell.up || cell.initiator.in_flight() == 0;
            if nothing || cell.initiator.may_sleep().is_some() {
                return;
            }
            drop(cell);
            self.drain(queue);
        }
    }

    /// For the watcher of `queue`: what to sleep on, the interrupt word's value; `None` when the
    /// DPU side is lost. Answers that have come are taken in first.
    pub fn watch(self: &Arc<Session>, queue: u16) -> Option<u32> {
        loop {
            let mut cell = self.cell(queue)?;
            if !cell.up {
                return None;
            }
            // With nothing in flight no interrupt is wanted; who leaves something will arm it.
            let word = match cell.initiator.in_flight() {
                0 => Some(cell.initiator.registers().interrupt()),
                _ => cell.initiator.may_sleep(),
            };
            drop(cell);
            if word.is_some() {
                return word;
            }
            self.drain(queue);
        }
    }

    /// Sleeps for the call in `cid`, not longer than a nap.
    pub(in crate::host) fn sleep(self: &Arc<Session>, queue: u16, cid: u16) -> Found {
        self.counters.slept.fetch_add(1, Relaxed);
        let until = self.world.now().after(NAP);
        let Some(mut cell) = self.cell(queue) else { return Found::Nothing };
        if cell.up {
            let word = cell.initiator.may_sleep();
            drop(cell);
            if let Some(seen) = word {
                self.world.wait(queue, seen, until);
            }
        } else {
            drop(cell);
            self.park(queue, until);
        }
        self.look(queue, Some(cid)).0
    }

    /// Frees a slot nobody holds.
    fn free(&self, cell: &mut Cell, cid: u16, haul: &mut Haul) {
        let freed = cell.initiator.release(Cid(cid));
        debug_assert!(freed.is_ok(), "slot {cid}: {freed:?}");
        haul.wake = true;
    }

    /// Does what a haul asks for, no lock held.
    pub(in crate::host) fn act(self: &Arc<Session>, queue: u16, haul: Haul) -> (Found, usize) {
        self.notify(haul.asleep);
        if haul.wake {
            self.unpark(queue);
        }
        self.admit(haul.admitted);
        for ticket in haul.cancel {
            self.cancel(ticket);
        }
        if haul.replays_over {
            self.handed_in();
        }
        if haul.renew {
            self.renew_waits();
        }
        if haul.returns || (queue == self.session_queue() && haul.taken > 0) {
            self.send_returns();
        }
        for completion in haul.completions {
            self.front.complete(completion);
        }
        (haul.found, haul.taken)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use outboard_base::ledger::Ledger;
    use outboard_base::{Cred, SessionId, Time, Timestamp};
    use outboard_link::Region;
    use outboard_link::layout::Layout;
    use outboard_link::queue::nvmefs::Initiator;
    use outboard_link::registers::Registers;
    use outboard_wire::event::Event;
    use outboard_wire::file::Request;
    use outboard_wire::regs::registers_len;

    use super::super::Admission;
    use super::*;
    use crate::host::{Call, Front, QueueSlot, SessionWorld, Settings, Told};

    struct Still;

    impl SessionWorld for Still {
        fn now(&self) -> Time {
            Time(0)
        }
        fn wall(&self) -> Timestamp {
            Timestamp::default()
        }
        fn relax(&self) -> bool {
            false
        }
        fn notify(&self) {}
        fn wait(&self, _: u16, _: u32, _: Time) {}
        fn park(&self, _: u16, _: Time) {}
        fn unpark(&self, _: u16) {}
    }

    #[derive(Default)]
    struct Completed(Mutex<Vec<Completion>>);

    impl Front<QueueSlot> for Completed {
        fn complete(&self, completion: Completion) {
            self.0.lock().unwrap().push(completion);
        }
        fn event(&self, _: Event, _: Told) {}
    }

    /// A session of one queue with two slots, to whose DPU side nobody listens.
    fn session(front: Arc<Completed>) -> Arc<Session> {
        let settings = Settings { queues: 1, depth: 4, ..Settings::default() };
        let layout = Layout::new(2, settings.depth).unwrap();
        let region = Region::anonymous(layout.region_len());
        let pages = Region::anonymous(registers_len(layout.queues(), layout.depth()));
        let registers = Registers::create(pages, layout, 1).unwrap();
        let ledger = Arc::new(Ledger::new());
        let initiator = |queue| {
            Initiator::new(Arc::clone(&region), &registers, queue, Arc::clone(&ledger)).unwrap()
        };
        let initiators = (0..layout.queues()).map(initiator).collect();
        Session::new(SessionId(1), settings, initiators, Arc::new(Still), front).unwrap()
    }

    /// Whoever ended a call was believed that it was under way: ended twice, or ended while its
    /// slot was free, it would have handed one slot to two owners, and freed it twice.
    #[test]
    fn a_slot_is_handed_out_once_for_each_call() {
        let front = Arc::new(Completed::default());
        let session = session(Arc::clone(&front));
        let slot = session.acquire(0).unwrap();
        let cid = slot.index();
        let end = || {
            let mut haul = Haul::new(None);
            let mut cell = session.cell(0).unwrap();
            session.answer(&mut cell, 0, cid, Err(Errno::ENOTCONN), &mut haul);
            drop(cell);
            session.act(0, haul);
            front.0.lock().unwrap().len()
        };
        assert_eq!(end(), 0, "the slot is its owner's, who has not started anything");

        session.lost();
        let (request, cred) = (Request::Noop, Cred::root());
        let call = Call { request: &request, cred: &cred, checked: true, payload_len: 0 };
        let admission = session.submit(&slot, &call, 7, Reader::Front).unwrap();
        assert!(matches!(admission, Admission::Kept), "{admission:?}");
        slot.launch();
        assert_eq!((end(), end()), (1, 1), "once");
        let completion = front.0.lock().unwrap().pop().unwrap();
        assert_eq!((completion.tag, completion.outcome), (7, Err(Errno::ENOTCONN)));
        assert_eq!(end(), 0, "it is in the hands of who heard the answer");
        drop(completion.slot);
        assert_eq!(end(), 0, "it is free");
        let depth = usize::from(session.settings().depth);
        let all: Vec<_> = std::iter::from_fn(|| session.acquire(0)).collect();
        assert_eq!(all.len(), depth - 1, "each slot once");
    }
}
