//! The session: what one host-side process has with its DPU, across losses.
//!
//! Locks: a queue's cell, then the shared state; never two cells, but for [`Session::resume`],
//! which takes all of them in order. [`Front`] is called with none held.

mod taking;

use std::collections::VecDeque;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, AtomicUsize};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use outboard_base::{Errno, Result, SessionId, Time, limits};
use outboard_cache::host::Plane;
use outboard_link::layout::Layout;
use outboard_link::queue::nvmefs::Initiator;
use outboard_link::queue::{Cid, Completion, HostQueue, Span as Part, Submission};
use outboard_link::region::Region;
use outboard_volume::backend::OWN;
use outboard_wire::file::{Flags, Header, Op, Reply};

use super::cached::Cached;
use super::entry::{Entry, Reader, State};
use super::locking::Decision;
use super::notes::Notes;
use super::ranges::Span;
use super::shared::SharedState;
use super::spin_budget::SpinBudget;
use super::{Call, Counts, Front, Lane, QueuePort, QueueSlot, SessionWorld, Settings};

pub(super) use taking::{Found, Haul};

/// One host-side process and its DPU. Share it by `Arc`.
pub struct Session {
    id: SessionId,
    settings: Settings,
    /// Where slots lie, and how.
    region: Arc<Region>,
    layout: Layout,
    world: Arc<dyn SessionWorld>,
    front: Arc<dyn Front<QueueSlot>>,
    /// The front-end's queues, and the session queue behind them.
    pub(super) queues: Vec<Queue>,
    pub(super) shared: Mutex<SharedState>,
    order: AtomicU64,
    sequence: AtomicU64,
    pub(super) given_up: AtomicBool,
    pub(super) losses: AtomicU64,
    /// Times that events were lost.
    pub(super) overflows: AtomicU64,
    /// Calls sent again after a loss and not yet answered.
    pub(super) replaying: AtomicUsize,
    pub(super) counters: Counters,
    pub(super) cached: Option<Cached>,
    notes: Option<Notes>,
}

/// One queue pair and what is in it.
pub(super) struct Queue {
    pub(super) cell: Mutex<Cell>,
    spin_budget: SpinBudget,
    taken: AtomicBool,
    watched: AtomicBool,
    /// Somebody of this side waits for a slot or for the return of the DPU side.
    parked: AtomicBool,
}

/// What the queue's lock guards.
pub(super) struct Cell {
    pub(super) initiator: Initiator,
    /// The DPU side is there.
    pub(super) up: bool,
    pub(super) entries: Vec<Entry>,
    completions: Vec<Completion>,
}

/// Relaxed counters; see [`Counts`].
#[derive(Debug, Default)]
pub(super) struct Counters {
    pub(super) calls: AtomicU64,
    pub(super) spun: AtomicU64,
    pub(super) slept: AtomicU64,
    pub(super) wakeups: AtomicU64,
    pub(super) replayed: AtomicU64,
    /// Requests about locks that were answered here.
    decided: AtomicU64,
}

/// What became of a call that was taken in.
#[derive(Debug)]
pub(super) enum Admission {
    /// It is in the queue.
    Sent,
    /// It waits for another call; the end of that sends it.
    Held,
    /// It waits for the DPU side, which is lost.
    Kept,
    /// It needs nobody.
    Answered(Result<Reply>),
}

pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Session {
    /// A session over freshly attached queues: `settings.queues` for the front-end and one more for
    /// the session itself. `id` was chosen at random and goes with every request. `EINVAL` when the
    /// queues are not as many as that.
    pub fn new(
        id: SessionId,
        settings: Settings,
        initiators: Vec<Initiator>,
        world: Arc<dyn SessionWorld>,
        front: Arc<dyn Front<QueueSlot>>,
    ) -> Result<Arc<Session>> {
        Session::with_cache(id, settings, initiators, world, front, None)
    }

    /// The same with a hybrid cache, empty so far, in the region of the queues.
    pub fn with_cache(
        id: SessionId,
        settings: Settings,
        initiators: Vec<Initiator>,
        world: Arc<dyn SessionWorld>,
        front: Arc<dyn Front<QueueSlot>>,
        plane: Option<Plane>,
    ) -> Result<Arc<Session>> {
        let cached = plane.map(Cached::new);
        Session::begin(id, settings, initiators, (world, front), cached, None)
    }

    /// The session of a process that has a predecessor, or may have a successor: what such a one
    /// needs is in `notes`. It is down until [`Session::resume`], which hands in what a predecessor
    /// held.
    pub fn with_notes(
        id: SessionId,
        settings: Settings,
        initiators: Vec<Initiator>,
        world: Arc<dyn SessionWorld>,
        front: Arc<dyn Front<QueueSlot>>,
        notes: Notes,
    ) -> Result<Arc<Session>> {
        Session::begin(id, settings, initiators, (world, front), None, Some(notes))
    }

    fn begin(
        id: SessionId,
        settings: Settings,
        initiators: Vec<Initiator>,
        (world, front): (Arc<dyn SessionWorld>, Arc<dyn Front<QueueSlot>>),
        cached: Option<Cached>,
        mut notes: Option<Notes>,
    ) -> Result<Arc<Session>> {
        if initiators.len() != usize::from(settings.queues) + 1 {
            return Err(Errno::EINVAL);
        }
        let region = initiators.first().map(|initiator| Arc::clone(initiator.region()));
        let layout = Layout::new(settings.queues.saturating_add(1), settings.depth);
        let (Some(region), Some(layout)) = (region, layout) else { return Err(Errno::EINVAL) };
        let queue = |initiator| Queue {
            cell: Mutex::new(Cell {
                initiator,
                up: notes.is_none(),
                entries: (1..settings.depth).map(|_| Entry::new()).collect(),
                completions: Vec::new(),
            }),
            spin_budget: SpinBudget::new(settings.spin_max),
            taken: AtomicBool::new(false),
            watched: AtomicBool::new(true),
            parked: AtomicBool::new(false),
        };
        let queues = initiators.into_iter().map(queue).collect();
        let mut shared = SharedState::default();
        shared.held = notes.as_mut().map(Notes::take_held).unwrap_or_default();
        // A predecessor's end is a loss to what it had under way.
        let losses = notes.as_ref().map_or(0, |notes| notes.generation() - 1);
        Ok(Arc::new(Session {
            id,
            settings,
            region,
            layout,
            world,
            front,
            queues,
            shared: Mutex::new(shared),
            order: AtomicU64::new(0),
            sequence: AtomicU64::new(notes.as_ref().map_or(0, Notes::first_sequence)),
            given_up: AtomicBool::new(false),
            losses: AtomicU64::new(losses),
            overflows: AtomicU64::new(0),
            replaying: AtomicUsize::new(0),
            counters: Counters::default(),
            cached,
            notes,
        }))
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

    pub(super) fn world(&self) -> &dyn SessionWorld {
        &*self.world
    }

    pub(super) fn front(&self) -> &dyn Front<QueueSlot> {
        &*self.front
    }

    /// The port of queue `queue`, for [`QueuePort::start`]; `None` if there is no such queue or its
    /// port was taken. A thread of the world sleeps for its completions.
    #[must_use]
    pub fn port(self: &Arc<Session>, queue: u16) -> Option<QueuePort> {
        self.take_port(queue, true)
    }

    /// The same for [`QueuePort::call`] alone: its owner sleeps for its completions itself.
    #[must_use]
    pub fn calling_port(self: &Arc<Session>, queue: u16) -> Option<QueuePort> {
        self.take_port(queue, false)
    }

    fn take_port(self: &Arc<Session>, queue: u16, watched: bool) -> Option<QueuePort> {
        let it = self.queues.get(usize::from(queue)).filter(|_| queue < self.settings.queues)?;
        if it.taken.swap(true, AcqRel) {
            return None;
        }
        it.watched.store(watched, Release);
        Some(QueuePort::new(Arc::clone(self), queue))
    }

    /// The session queue: the session's own, behind the front-end's.
    pub(super) fn session_queue(&self) -> u16 {
        self.settings.queues
    }

    /// Queue pairs altogether.
    #[must_use]
    pub fn queues(&self) -> u16 {
        self.settings.queues.saturating_add(1)
    }

    /// Whether a thread of the world is to sleep for the completions of `queue`.
    #[must_use]
    pub fn is_watched(&self, queue: u16) -> bool {
        self.queue(queue).is_some_and(|queue| queue.watched.load(Acquire))
    }

    pub(super) fn queue(&self, queue: u16) -> Option<&Queue> {
        self.queues.get(usize::from(queue))
    }

    fn cell(&self, queue: u16) -> Option<MutexGuard<'_, Cell>> {
        self.queue(queue).map(|queue| lock(&queue.cell))
    }

    pub(super) fn lane(&self, queue: u16, cid: u16) -> Lane {
        Lane(queue.wrapping_mul(self.settings.depth).wrapping_add(cid))
    }

    fn place(&self, lane: Lane) -> (u16, u16) {
        (lane.0 / self.settings.depth, lane.0 % self.settings.depth)
    }

    // Slots.

    pub(super) fn acquire(self: &Arc<Session>, queue: u16) -> Option<QueueSlot> {
        let mut cell = self.cell(queue)?;
        let cid = cell.initiator.acquire()?;
        Some(self.slot(queue, cid.0))
    }

    /// The slot `cid` of `queue`, which is nobody else's.
    fn slot(self: &Arc<Session>, queue: u16, cid: u16) -> QueueSlot {
        QueueSlot::new(Arc::clone(self), queue, cid, self.layout.slot(queue, cid).buffer)
    }

    /// The payload at `at` of the region.
    pub(super) fn payload(&self, at: u64) -> Option<&[AtomicU8]> {
        self.region.bytes(at, limits::IO_MAX).ok()
    }

    pub(super) fn release(&self, queue: u16, cid: u16) {
        let Some(it) = self.queue(queue) else { return };
        let freed = lock(&it.cell).initiator.release(Cid(cid));
        debug_assert!(freed.is_ok(), "slot {queue}.{cid}: {freed:?}");
        self.unpark(queue);
    }

    pub(super) fn write_payload(
        &self,
        queue: u16,
        cid: u16,
        at: usize,
        bytes: &[u8],
    ) -> Result<()> {
        let at = u32::try_from(at).map_err(|_| Errno::EINVAL)?;
        let mut cell = self.cell(queue).ok_or(Errno::EINVAL)?;
        cell.initiator.write_buffer(Cid(cid), at, bytes).map_err(|_| Errno::EINVAL)
    }

    pub(super) fn read_payload(
        &self,
        queue: u16,
        cid: u16,
        at: usize,
        out: &mut [u8],
    ) -> Result<()> {
        let at = u32::try_from(at).map_err(|_| Errno::EINVAL)?;
        let cell = self.cell(queue).ok_or(Errno::EINVAL)?;
        cell.initiator.read_buffer(Cid(cid), at, out).map_err(|_| Errno::EINVAL)
    }

    /// Sleeps until [`Session::unpark`] or `until`. What happened just before the flag was set is
    /// seen after a nap at the latest.
    pub(super) fn park(&self, queue: u16, until: Time) {
        if let Some(it) = self.queue(queue) {
            it.parked.store(true, Release);
            self.world.park(queue, until);
        }
    }

    pub(super) fn unpark(&self, queue: u16) {
        if self.queue(queue).is_some_and(|it| it.parked.swap(false, AcqRel)) {
            self.world.unpark(queue);
        }
    }

    // Submitting.

    /// Takes a call in.
    pub(super) fn submit(
        self: &Arc<Session>,
        slot: &QueueSlot,
        call: &Call<'_>,
        tag: u64,
        reader: Reader,
    ) -> Result<Admission> {
        let flags = if call.checked { Flags::CHECKED } else { Flags::default() };
        self.submit_with(slot, call, tag, reader, flags)
    }

    pub(super) fn submit_with(
        self: &Arc<Session>,
        slot: &QueueSlot,
        call: &Call<'_>,
        tag: u64,
        reader: Reader,
        flags: Flags,
    ) -> Result<Admission> {
        let (queue, cid) = (slot.queue(), slot.index());
        self.refuse_when_given_up(queue, call)?;
        let lane = self.lane(queue, cid);
        let op = call.request.op();
        let span = Span::of(call.request, call.payload_len);
        let header = self.header(lane, call, (tag, reader), flags);
        let mut cell = self.cell(queue).ok_or(Errno::EINVAL)?;
        let up = cell.up;
        if let Reader::Return { life, .. } = reader
            && !lock(&self.shared).lock_requests.is_of_this_life(life)
        {
            return Err(Errno::EAGAIN); // A loss, and a return, since it was begun.
        }
        let entry = cell.entries.get_mut(usize::from(cid)).ok_or(Errno::EINVAL)?;
        entry.load(call, &header, span)?;
        entry.order = self.order.fetch_add(1, Relaxed);
        entry.overflows = self.overflows.load(Acquire);
        (entry.tag, entry.reader) = (tag, reader);
        entry.state = State::Pending;
        if let Some(cached) = &self.cached {
            cached.sending(call.request, span);
        }
        if let Some(locking) = entry.locking {
            let decision = lock(&self.shared).begin(lane, locking);
            match self.decided(entry, decision) {
                Ok(Decision::Answer(outcome)) => {
                    entry.state = State::Idle;
                    return Ok(Admission::Answered(outcome));
                }
                Ok(Decision::Wait) => entry.state = State::Held,
                Ok(Decision::Send | Decision::SendOnly) => {}
                Err(errno) => return Err(self.undo(cell, lane, cid, errno)),
            }
        } else if let Some(span) = span {
            if !lock(&self.shared).ranges.claim(lane, span) {
                entry.state = State::Held;
            }
        } else if op == Op::Releasedir {
            lock(&self.shared).closes_directory(call.request);
        }
        self.counters.calls.fetch_add(1, Relaxed);
        if entry.state == State::Held {
            drop(cell);
            self.send_returns();
            return Ok(Admission::Held);
        }
        if !up {
            return Ok(Admission::Kept);
        }
        match self.send(&mut cell, cid) {
            Err(errno) => Err(self.undo(cell, lane, cid, errno)),
            Ok(asleep) => {
                drop(cell);
                self.notify(asleep);
                Ok(Admission::Sent)
            }
        }
    }

    /// The header of a call in `lane`, written down if it changes something and may be asked again.
    fn header(
        &self,
        lane: Lane,
        call: &Call<'_>,
        (tag, reader): (u64, Reader),
        flags: Flags,
    ) -> Header {
        let op = call.request.op();
        let flags = if op == Op::Setlk { flags.with(Flags::DELEGABLE) } else { flags };
        let (name, sequence, again) = match &self.notes {
            _ if !op.changes() => (lane.0, 0, false),
            None => (lane.0, self.next_sequence(), false),
            Some(notes) if reader == Reader::Front => notes.send(lane, tag, self.next_sequence()),
            Some(notes) => notes.send(lane, OWN, self.next_sequence()),
        };
        let flags = if again { flags.with(Flags::REPLAY) } else { flags };
        Header { cred: call.cred.clone(), flags, session: self.id, sequence, lane: name }
    }

    fn next_sequence(&self) -> u64 {
        self.sequence.fetch_add(1, Relaxed) + 1
    }

    /// `ENOTCONN` while nobody waits for another DPU side any more.
    fn refuse_when_given_up(&self, queue: u16, call: &Call<'_>) -> Result<()> {
        // Calls in the session queue are what ends the giving up.
        if queue != self.session_queue() && self.given_up.load(Acquire) {
            let mut shared = lock(&self.shared);
            // Looked at again: who is about to hand in holds the shared state.
            if self.given_up.load(Acquire) {
                // What it gives up was the lost side's to take, and is not handed in to the next.
                shared.refused(call.request);
                return Err(Errno::ENOTCONN);
            }
        }
        Ok(())
    }

    /// What was decided about a call about locks; its header then says what the answer may be.
    fn decided(&self, entry: &mut Entry, decision: Decision) -> Result<Decision> {
        match decision {
            Decision::Answer(_) => {
                self.counters.decided.fetch_add(1, Relaxed);
            }
            Decision::SendOnly => entry.not_delegable()?,
            Decision::Wait | Decision::Send => {}
        }
        Ok(decision)
    }

    /// A call that could not be put into the queue never was: why.
    fn undo(
        self: &Arc<Session>,
        mut cell: MutexGuard<'_, Cell>,
        lane: Lane,
        cid: u16,
        errno: Errno,
    ) -> Errno {
        let Some(entry) = cell.entries.get_mut(usize::from(cid)) else { return errno };
        entry.state = State::Idle;
        let mut admitted = Vec::new();
        if let Some(span) = entry.span.take() {
            self.changed(span);
            lock(&self.shared).ranges.release(lane, span.ino, |lane| admitted.push(lane));
        }
        if let Some(locking) = entry.locking.take() {
            admitted.extend(lock(&self.shared).lock_requests.leave(locking.ino(), lane));
        }
        drop(cell);
        self.admit(admitted);
        errno
    }

    /// Takes back a call that was taken in and not sent.
    pub(super) fn withdraw(self: &Arc<Session>, slot: QueueSlot) {
        let Some(mut cell) = self.cell(slot.queue()) else { return };
        let up = cell.up;
        match cell.entries.get_mut(usize::from(slot.index())) {
            Some(entry) if entry.state == State::Pending && !up => {
                entry.state = State::Idle;
                let locking = entry.locking.take();
                drop(cell);
                let lane = self.lane(slot.queue(), slot.index());
                drop(slot);
                if let Some(locking) = locking {
                    let next = lock(&self.shared).lock_requests.leave(locking.ino(), lane);
                    self.admit(next.into_iter().collect());
                }
            }
            // It was sent or ended after all.
            _ => slot.launch(),
        }
    }

    /// Puts a pending call into the queue, doorbell included; true if the DPU side sleeps.
    pub(super) fn send(&self, cell: &mut Cell, cid: u16) -> Result<bool> {
        let entry = cell.entries.get_mut(usize::from(cid)).ok_or(Errno::EINVAL)?;
        let submission = Submission {
            dispatch: self.settings.dispatch,
            header: &entry.header,
            write: Part { offset: 0, len: entry.payload_len },
            read: Part { offset: 0, len: entry.read_len },
            reply_header: entry.reply_room(),
        };
        let sent = cell.initiator.submit(Cid(cid), &submission).map_err(|_| Errno::EIO)?;
        entry.sent = Some(sent);
        Ok(cell.initiator.ring())
    }

    pub(super) fn notify(&self, asleep: bool) {
        if asleep {
            self.counters.wakeups.fetch_add(1, Relaxed);
            self.world.notify();
        }
    }

    /// Another call's end has let these go, and what ends at once may let more go.
    pub(super) fn admit(self: &Arc<Session>, lanes: Vec<Lane>) {
        let mut lanes = VecDeque::from(lanes);
        while let Some(lane) = lanes.pop_front() {
            let (queue, cid) = self.place(lane);
            let Some(mut cell) = self.cell(queue) else { continue };
            let up = cell.up;
            let Some(entry) = cell.entries.get_mut(usize::from(cid)) else { continue };
            if entry.state != State::Held {
                continue;
            }
            let decision = match entry.locking {
                Some(locking) => {
                    let decision = lock(&self.shared).begin_again(lane, locking);
                    self.decided(entry, decision)
                }
                None => Ok(Decision::Send),
            };
            match decision {
                Ok(Decision::Send | Decision::SendOnly) => {
                    entry.state = State::Pending;
                    match up.then(|| self.send(&mut cell, cid)) {
                        None => {}
                        Some(Err(errno)) => lanes.extend(self.end(cell, lane, Err(errno))),
                        Some(Ok(asleep)) => {
                            drop(cell);
                            self.notify(asleep);
                            // Nobody spins for it: somebody must be woken when it is answered.
                            self.arm(queue);
                        }
                    }
                }
                Ok(Decision::Wait) => {
                    drop(cell);
                    self.send_returns();
                }
                Ok(Decision::Answer(outcome)) => lanes.extend(self.end(cell, lane, outcome)),
                Err(errno) => lanes.extend(self.end(cell, lane, Err(errno))),
            }
        }
    }

    /// Ends a call that was not sent; whom that lets go.
    fn end(
        self: &Arc<Session>,
        mut cell: MutexGuard<'_, Cell>,
        lane: Lane,
        outcome: Result<Reply>,
    ) -> Vec<Lane> {
        let (queue, cid) = self.place(lane);
        let mut haul = Haul::new(None);
        self.answer(&mut cell, queue, cid, outcome, &mut haul);
        drop(cell);
        let admitted = haul.take_admitted();
        self.act(queue, haul);
        admitted
    }

    /// How long an answer is worth spinning for, nanoseconds.
    pub(super) fn budget(&self, queue: u16, op: Op) -> u64 {
        self.queue(queue).map_or(0, |queue| queue.spin_budget.of(op))
    }

    /// What came of spinning for the answer to `op`: it was found after `took`, or not at all.
    pub(super) fn has_spun(&self, queue: u16, op: Op, took: Option<Duration>) {
        let Some(it) = self.queue(queue) else { return };
        match took {
            Some(took) => {
                self.counters.spun.fetch_add(1, Relaxed);
                it.spin_budget.found(op, took);
            }
            None => it.spin_budget.missed(op),
        }
    }

    /// A change of a file ended.
    fn changed(&self, span: Span) {
        if let Some(cached) = &self.cached {
            cached.changed(span);
        }
    }

    /// Figures since the start.
    #[must_use]
    pub fn counts(&self) -> Counts {
        let counters = &self.counters;
        let shared = lock(&self.shared);
        let ((handles, locks), delegations) = (shared.held.counts(), shared.lock_requests.count());
        drop(shared);
        Counts {
            calls: counters.calls.load(Relaxed),
            spun: counters.spun.load(Relaxed),
            slept: counters.slept.load(Relaxed),
            wakeups: counters.wakeups.load(Relaxed),
            replayed: counters.replayed.load(Relaxed),
            losses: self.losses.load(Relaxed),
            handles,
            locks,
            delegations,
            decided: counters.decided.load(Relaxed),
            cache: self.cached.as_ref().map(Cached::counts).unwrap_or_default(),
        }
    }
}
