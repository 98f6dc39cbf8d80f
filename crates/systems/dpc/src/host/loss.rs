//! Loss of the DPU side, and its return (`docs/internals/loss.md`).
//!
//! ```text
//! lost      every queue down; slots, payloads, headers, held state stay; waits become requests
//! give up   (policy) what is pending fails with ENOTCONN, and so does what is started
//! resume    1 rings empty, session queue up   2 handles, then locks handed in
//!           3 what is pending sent again in the order it was started, all queues up; the front-end
//!             hears that whatever it keeps may be stale
//!           4 waits for locks asked for again   5 replays answered: "all handed in"
//! ```

use std::sync::Arc;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};
use std::task::Poll;

use outboard_base::{Cred, Errno, Ino};
use outboard_link::queue::HostQueue;
use outboard_link::registers::Registers;
use outboard_wire::event::Event;
use outboard_wire::file::{Flags, Lock, LockKind, Op, Reply, Request};

use super::entry::{Reader, State};
use super::locking::Locking;
use super::session::{Admission, Cell, Haul, lock};
use super::shared::Parked;
use super::{Call, Completion, QueuePort, QueueSlot, Session, Told};

/// What a return of the DPU side came to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Resumed {
    /// Open handles handed in.
    pub handles: usize,
    /// Locks handed in.
    pub locks: usize,
    /// What the new instance refused, and why.
    pub refused: Vec<(String, Errno)>,
    /// Calls sent again that the earlier instance may have executed.
    pub replayed: usize,
    /// Calls that were waiting and are sent for the first time.
    pub sent: usize,
}

/// The DPU side went away again before everything was handed in, or its queues are not those
/// expected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NotResumed;

impl Session {
    /// The DPU side is lost: nothing is sent any more and what is unanswered is kept. Nothing
    /// happens if it is known to be lost.
    pub fn lost(self: &Arc<Session>) {
        let own = self.session_queue();
        let mut hauls = Vec::new();
        for (number, queue) in (0u16..).zip(&self.queues) {
            let mut cell = lock(&queue.cell);
            if !std::mem::take(&mut cell.up) {
                continue;
            }
            cell.initiator.lose();
            cell.initiator.abandon();
            for entry in &mut cell.entries {
                entry.replayed = false;
            }
            let mut haul = Haul::new(None);
            if number == own {
                self.losses.fetch_add(1, Relaxed);
                self.drop_own_calls(&mut cell, &mut haul);
            }
            hauls.push((number, haul));
        }
        self.replaying.store(0, Release);
        let admitted = lock(&self.shared).lost();
        for (number, haul) in hauls {
            self.act(number, haul);
        }
        self.admit(admitted);
    }

    /// What the session asked for itself is not sent again: reclaims begin afresh, a wait that was
    /// being cancelled is over, and one that was being asked for is asked for again when all is
    /// handed in.
    fn drop_own_calls(self: &Arc<Session>, cell: &mut Cell, haul: &mut Haul) {
        for cid in 0..self.settings().depth - 1 {
            let Some(entry) = cell.entries.get_mut(usize::from(cid)) else { return };
            if !matches!(entry.state, State::Pending | State::Held) {
                continue;
            }
            let outcome = match entry.reader {
                Reader::Cancel { .. } | Reader::Renew { .. } | Reader::Return { .. } => {
                    Ok(Reply::Empty)
                }
                Reader::Front if !entry.aborted => Err(Errno::EAGAIN),
                Reader::Front => Err(Errno::EINTR),
                Reader::Caller | Reader::Nobody => Err(Errno::ENOTCONN),
            };
            if entry.reader == Reader::Front && !entry.aborted {
                lock(&self.shared).again.extend(entry.park(0));
                entry.reader = Reader::Nobody;
            }
            self.answer(cell, self.session_queue(), cid, outcome, haul);
        }
    }

    /// Fails everything pending, and everything started until the DPU side is back.
    pub fn give_up(self: &Arc<Session>) {
        self.given_up.store(true, Release);
        for (number, queue) in (0u16..).zip(&self.queues) {
            let mut cell = lock(&queue.cell);
            if cell.up {
                continue;
            }
            let mut haul = Haul::new(None);
            for cid in 0..self.settings().depth - 1 {
                let Some(entry) = cell.entries.get_mut(usize::from(cid)) else { break };
                if let (State::Held, Some(locking)) = (&entry.state, entry.locking) {
                    lock(&self.shared).never_sent(locking);
                }
                if matches!(entry.state, State::Pending | State::Held) {
                    self.answer(&mut cell, number, cid, Err(Errno::ENOTCONN), &mut haul);
                }
            }
            drop(cell);
            self.act(number, haul);
        }
        let again = std::mem::take(&mut lock(&self.shared).again);
        for parked in again {
            self.end_wait(&parked, Some(Errno::ENOTCONN));
        }
    }

    /// The DPU side is back, with `registers`: hands in what is held, sends what is pending.
    /// `alive` is asked now and then; once it says no, the session is lost again and the caller
    /// attaches anew.
    pub fn resume(
        self: &Arc<Session>,
        registers: &Registers,
        alive: &dyn Fn() -> bool,
    ) -> Result<Resumed, NotResumed> {
        let resumed = self.try_resume(registers, alive);
        if resumed.is_err() {
            self.lost();
        }
        resumed
    }

    fn try_resume(
        self: &Arc<Session>,
        registers: &Registers,
        alive: &dyn Fn() -> bool,
    ) -> Result<Resumed, NotResumed> {
        for queue in &self.queues {
            lock(&queue.cell).initiator.reattach(registers).map_err(|_| NotResumed)?;
        }
        if let Some(queue) = self.queue(self.session_queue()) {
            lock(&queue.cell).up = true;
        }
        let mut resumed = Resumed::default();
        self.hand_in(&mut resumed, alive)?;
        self.send_pending(&mut resumed);
        // The new instance does not know what this side was told, and what the old one had yet to
        // tell died with it.
        self.front().event(Event::Overflow, Told::default());
        self.wait_again(alive)?;
        Ok(resumed)
    }

    fn hand_in(
        self: &Arc<Session>,
        resumed: &mut Resumed,
        alive: &dyn Fn() -> bool,
    ) -> Result<(), NotResumed> {
        let mut port = QueuePort::new(Arc::clone(self), self.session_queue());
        let reclaims = {
            let shared = lock(&self.shared);
            // What is closed from here on waits, and is sent after what is handed in.
            self.given_up.store(false, Release);
            shared.held.reclaims()
        };
        for request in reclaims {
            let slot = self.session_slot(&mut port, alive)?;
            let cred = self.own_cred();
            let call = Call { request: &request, cred: &cred, checked: true, payload_len: 0 };
            let completion = port.call_while(slot, &call, alive);
            match (completion.outcome, &request) {
                (Err(Errno::ENOTCONN), _) => return Err(NotResumed),
                (Ok(_), Request::Reclaim { .. }) => resumed.handles += 1,
                (Ok(_), _) => resumed.locks += 1,
                (Err(errno), _) => {
                    resumed.refused.push((format!("{request:?}"), errno));
                    self.forget(&request);
                }
            }
        }
        Ok(())
    }

    /// A lock the new instance does not give back is held no longer. (A handle that is gone answers
    /// for itself, with `EBADF`.)
    fn forget(&self, request: &Request<'_>) {
        if let Request::Setlk { ino, fh, lock: held, .. } = *request {
            let unlock = Lock { kind: LockKind::Unlock, ..held };
            lock(&self.shared).held.locked(ino, fh, unlock);
        }
    }

    fn own_cred(&self) -> Cred {
        let (uid, gid) = self.settings().owner;
        Cred::user(uid, gid)
    }

    fn session_slot(
        &self,
        port: &mut QueuePort,
        alive: &dyn Fn() -> bool,
    ) -> Result<QueueSlot, NotResumed> {
        loop {
            let now = self.world().now();
            if let Ok(slot) = port.acquire_by(now.after(super::port::NAP)) {
                return Ok(slot);
            }
            if !alive() {
                return Err(NotResumed);
            }
        }
    }

    /// Sends everything pending, in the order it was started, and opens all queues.
    fn send_pending(self: &Arc<Session>, resumed: &mut Resumed) {
        let mut cells: Vec<_> = self.queues.iter().map(|queue| lock(&queue.cell)).collect();
        let mut pending: Vec<(u64, usize, u16)> = Vec::new();
        for (number, cell) in cells.iter_mut().enumerate() {
            // The session queue is up: what is in it was sent.
            if std::mem::replace(&mut cell.up, true) {
                continue;
            }
            let waits = (0u16..).zip(&cell.entries).filter(|(_, e)| e.state == State::Pending);
            pending.extend(waits.map(|(cid, entry)| (entry.order, number, cid)));
        }
        pending.sort_unstable();
        let mut asleep = false;
        for (_, number, cid) in pending {
            let Some(cell) = cells.get_mut(number) else { continue };
            let Some(entry) = cell.entries.get_mut(usize::from(cid)) else { continue };
            if entry.sent.is_some() && entry.mark_replay().is_ok() {
                self.replaying.fetch_add(1, AcqRel);
                self.counters.replayed.fetch_add(1, Relaxed);
                resumed.replayed += 1;
            } else {
                resumed.sent += 1;
            }
            asleep |= self.send(cell, cid).unwrap_or(false);
        }
        drop(cells);
        self.notify(asleep);
        for number in 0..self.queues() {
            self.unpark(number);
            self.arm(number);
        }
        if self.replaying.load(Acquire) == 0 {
            self.handed_in();
        }
        self.send_returns();
    }

    /// Asks again for the locks that were waited for.
    fn wait_again(self: &Arc<Session>, alive: &dyn Fn() -> bool) -> Result<(), NotResumed> {
        let mut port = QueuePort::new(Arc::clone(self), self.session_queue());
        loop {
            let Some(parked) = lock(&self.shared).again.pop() else { return Ok(()) };
            let Some(tag) = parked.tag else {
                // Its caller knows it by a ticket of the lost instance.
                self.end_wait(&parked, Some(Errno::ENOLCK));
                continue;
            };
            let slot = match self.session_slot(&mut port, alive) {
                Ok(slot) => slot,
                Err(error) => {
                    lock(&self.shared).again.push(parked);
                    return Err(error);
                }
            };
            let Parked { ino, fh, lock: wanted, wait, cred, checked, .. } = parked;
            let request = Request::Setlk { ino, fh, lock: wanted, wait, reclaim: false };
            let call = Call { request: &request, cred: &cred, checked, payload_len: 0 };
            if let Poll::Ready(completion) = port.start(slot, &call, tag) {
                self.front().complete(completion);
            }
        }
    }

    /// Tells the DPU side that nothing more will be handed in: its grace period need not wait for
    /// this session. If no slot is free its time limit will do.
    pub(super) fn handed_in(self: &Arc<Session>) {
        self.ask(&Request::Noop, &self.own_cred(), Flags::REPLAY, Reader::Nobody);
    }

    /// Ends the wait for a lock from this side; `EINTR` for who waits, unless the DPU side says it
    /// was granted. False when that cannot be asked for now.
    pub(super) fn cancel(self: &Arc<Session>, ticket: u64) -> bool {
        let Some(parked) = lock(&self.shared).parked.get(&ticket).cloned() else { return false };
        let request = Request::CancelLock { ticket };
        self.ask(&request, &parked.cred, Flags::default(), Reader::Cancel { ticket })
    }

    /// Goes on with the waits in doubt, as far as there are slots: each is ended at the DPU side
    /// and asked for again. One that was granted meanwhile is granted at once, since an owner's own
    /// lock is never in its way. Every answer leads here again.
    pub(super) fn renew_waits(self: &Arc<Session>) {
        // A loss asks again by itself, when it is time.
        if !self.queue(0).is_some_and(|queue| lock(&queue.cell).up) {
            return;
        }
        loop {
            let again = lock(&self.shared).again.pop();
            let Some(parked) = again else { break };
            if !self.ask_for_lock(&parked) {
                lock(&self.shared).again.push(parked);
                return;
            }
        }
        loop {
            let next = lock(&self.shared).next_doubtful();
            let Some((ticket, cred)) = next else { return };
            let request = Request::CancelLock { ticket };
            if !self.ask(&request, &cred, Flags::default(), Reader::Renew { ticket }) {
                lock(&self.shared).doubtful.push(ticket);
                return;
            }
        }
    }

    /// Asks for a lock again, for who waits for it; false if it cannot be sent now.
    fn ask_for_lock(self: &Arc<Session>, parked: &Parked) -> bool {
        let Parked { tag, ino, fh, lock, wait, cred, checked, .. } = parked;
        let request =
            Request::Setlk { ino: *ino, fh: *fh, lock: *lock, wait: *wait, reclaim: false };
        let call = Call { request: &request, cred, checked: *checked, payload_len: 0 };
        let flags = if *checked { Flags::CHECKED } else { Flags::default() };
        // Waits that nobody else asks for again have a tag.
        tag.is_some_and(|tag| self.send_own(&call, tag, flags, Reader::Front))
    }

    /// Hands back the locks that are to be, as far as there are slots; answers on the session's
    /// own queue lead here again.
    pub(super) fn send_returns(self: &Arc<Session>) {
        loop {
            let Some((ino, life)) = lock(&self.shared).lock_requests.next_return() else { return };
            if !self.send_return(ino, life) {
                lock(&self.shared).lock_requests.not_sent(ino, life);
                return;
            }
        }
    }

    fn send_return(self: &Arc<Session>, ino: Ino, life: u64) -> bool {
        let Some(mut slot) = self.acquire(self.session_queue()) else { return false };
        let held = lock(&self.shared).held_bytes(ino);
        if slot.write(0, &held).is_err() {
            return false;
        }
        let (request, cred) = (Request::ReturnLocks { ino }, self.own_cred());
        let call = Call { request: &request, cred: &cred, checked: true, payload_len: held.len() };
        self.launch_own(slot, &call, 0, Flags::CHECKED, Reader::Return { ino, life })
    }

    /// Sends a request of the session's own; false if it cannot be sent now.
    fn ask(
        self: &Arc<Session>,
        request: &Request<'_>,
        cred: &Cred,
        flags: Flags,
        reader: Reader,
    ) -> bool {
        let call = Call { request, cred, checked: true, payload_len: 0 };
        self.send_own(&call, 0, flags.with(Flags::CHECKED), reader)
    }

    fn send_own(
        self: &Arc<Session>,
        call: &Call<'_>,
        tag: u64,
        flags: Flags,
        reader: Reader,
    ) -> bool {
        let Some(slot) = self.acquire(self.session_queue()) else { return false };
        self.launch_own(slot, call, tag, flags, reader)
    }

    fn launch_own(
        self: &Arc<Session>,
        slot: QueueSlot,
        call: &Call<'_>,
        tag: u64,
        flags: Flags,
        reader: Reader,
    ) -> bool {
        match self.submit_with(&slot, call, tag, reader, flags) {
            Ok(Admission::Sent) => {
                slot.launch();
                self.arm(self.session_queue());
                true
            }
            Ok(Admission::Held) => {
                slot.launch();
                true
            }
            Ok(Admission::Kept) => {
                self.withdraw(slot);
                false
            }
            // A lock that was waited for, and now is this session's to decide.
            Ok(Admission::Answered(outcome)) => {
                let (op, slot) = (call.request.op(), Some(slot));
                self.front().complete(Completion { tag, op, outcome, slot });
                true
            }
            Err(_) => false,
        }
    }

    /// Gives up the call the front-end named `tag`: it is completed with `EINTR` if that still can
    /// be, with its answer otherwise, once in any case. False if no such call is known. A call that
    /// changes the volume and was sent is waited for: a local file system would not interrupt it
    /// either.
    pub fn abort(self: &Arc<Session>, tag: u64) -> bool {
        for (number, queue) in (0u16..).zip(&self.queues) {
            let mut cell = lock(&queue.cell);
            let found = (0u16..).zip(&cell.entries).find(|(_, entry)| {
                entry.tag == tag
                    && entry.reader == Reader::Front
                    && matches!(entry.state, State::Pending | State::Held)
            });
            let Some(cid) = found.map(|(cid, _)| cid) else { continue };
            let mut haul = Haul::new(None);
            self.abort_entry(&mut cell, number, cid, &mut haul);
            drop(cell);
            self.act(number, haul);
            return true;
        }
        let waits = lock(&self.shared);
        let ticket = waits.parked.iter().find(|(_, parked)| parked.tag == Some(tag));
        let Some(ticket) = ticket.map(|(&ticket, _)| ticket) else {
            drop(waits);
            return self.abort_again(tag);
        };
        drop(waits);
        self.cancel(ticket)
    }

    fn abort_entry(self: &Arc<Session>, cell: &mut Cell, queue: u16, cid: u16, haul: &mut Haul) {
        let up = cell.up;
        let Some(entry) = cell.entries.get_mut(usize::from(cid)) else { return };
        match (&entry.state, entry.locking.filter(Locking::only_drops)) {
            // Nobody else drops the locks of who is dying; it goes when the one before it is over.
            (State::Held, Some(_)) if up => return,
            (State::Held, Some(locking)) => lock(&self.shared).never_sent(locking),
            _ => {}
        }
        entry.aborted = true;
        let unsent = entry.sent.is_none();
        let harmless = !entry.op.changes() || entry.op == Op::Setlk;
        match (entry.sent, entry.op.changes()) {
            _ if entry.state == State::Held || (!up && (unsent || harmless)) => {
                self.answer(cell, queue, cid, Err(Errno::EINTR), haul);
            }
            (Some(id), false) => haul.ring(cell.initiator.abort(id)),
            _ => {}
        }
    }

    /// A wait for a lock that is to be asked for again.
    fn abort_again(self: &Arc<Session>, tag: u64) -> bool {
        let mut shared = lock(&self.shared);
        let Some(at) = shared.again.iter().position(|parked| parked.tag == Some(tag)) else {
            return false;
        };
        let parked = shared.again.swap_remove(at);
        drop(shared);
        self.end_wait(&parked, Some(Errno::EINTR));
        true
    }

    /// Whether the front-end keeps what events end ([`Front::keeps`]).
    ///
    /// [`Front::keeps`]: crate::host::Front::keeps
    #[must_use]
    pub fn keeps(&self) -> bool {
        self.front().keeps()
    }

    /// Something the DPU side tells. Ends of waits and recalls of locks are the session's; the rest
    /// is the front-end's, which drops `told` once it has acted upon it.
    pub fn event(self: &Arc<Session>, event: Event, told: Told) {
        let (ticket, errno) = match event {
            Event::LockGranted { ticket, errno } => (ticket, errno),
            Event::Recall { ino, .. } => {
                lock(&self.shared).lock_requests.hand_back(ino);
                return self.send_returns();
            }
            Event::Overflow => {
                self.overflows.fetch_add(1, AcqRel);
                let mut shared = lock(&self.shared);
                shared.events_lost();
                shared.lock_requests.hand_all_back();
                drop(shared);
                self.send_returns();
                self.renew_waits();
                return self.front().event(event, told);
            }
            other => return self.front().event(other, told),
        };
        let parked = lock(&self.shared).decided(ticket, errno);
        if let Some(parked) = parked {
            self.end_wait(&parked, errno);
        }
    }

    /// Tells who waited for a lock.
    fn end_wait(&self, parked: &Parked, errno: Option<Errno>) {
        match parked.tag {
            Some(tag) => self.front().complete(ended(tag, errno)),
            None => {
                let granted = Event::LockGranted { ticket: parked.ticket, errno };
                self.front().event(granted, Told::default());
            }
        }
    }
}

/// The answer to a lock that was waited for.
pub(super) fn ended(tag: u64, errno: Option<Errno>) -> Completion {
    let outcome = errno.map_or(Ok(Reply::Empty), Err);
    Completion { tag, op: Op::Setlk, outcome, slot: None }
}
