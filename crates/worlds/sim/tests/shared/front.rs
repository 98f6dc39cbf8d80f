//! A host with a hybrid cache: production's session, queues and cache plane over memory that
//! outlives the DPU side, and what both sides do when that comes back.
//!
//! Only the return of a DPU side blocks its caller. It has a thread of its own then, which runs
//! while the world waits for it and at no other time.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::task::Poll;
use std::thread::JoinHandle;
use std::time::Duration;

use outboard_base::ledger::Ledger;
use outboard_base::task::{Spawn, Work};
use outboard_base::{Cred, Errno, Result, SessionId, Time, Timestamp};
use outboard_cache::coherence::{CacheSetup, Coherence};
use outboard_cache::dpu::Control;
use outboard_cache::geometry::{Geometry, Shape};
use outboard_cache::host::Plane;
use outboard_cache::policy::Policies;
use outboard_dpc::dpu::{Limits, Service};
use outboard_dpc::host::{
    Call, Completion, Front as Hears, NotResumed, QueuePort, QueueSlot, Resumed, Session,
    SessionWorld, Settings, Told,
};
use outboard_link::Region;
use outboard_link::dma::{Direct, Dma};
use outboard_link::events::{Receiver, Sender};
use outboard_link::layout::Layout;
use outboard_link::queue::nvmefs::{Initiator, Target};
use outboard_link::registers::Registers;
use outboard_volume::{Answer, Caller, Housekeeping, Payload};
use outboard_wire::event::Event;
use outboard_wire::file::{Reply, Request};
use outboard_wire::nvmefs::Dispatch;
use outboard_wire::regs::registers_len;

use crate::part::{Client, Net, net_now, timestamp};

const DEPTH: u16 = 8;
const PAGE: u32 = 4096;

thread_local! {
    /// The clock of the DPU side that runs: coherence takes its clock as a plain function.
    static CLOCK: Cell<(Time, u64)> = const { Cell::new((Time(0), 0)) };
    /// Of a thread that waits for its turn.
    static TURNS: RefCell<Option<Turns>> = const { RefCell::new(None) };
}

struct Turns {
    mine: mpsc::Receiver<()>,
    over: mpsc::Sender<()>,
}

/// What time it is for a session.
#[derive(Default)]
struct Clock {
    now: AtomicU64,
    wall: AtomicU64,
}

impl Clock {
    /// Lets the world go on until it comes back here; nothing on the world's own thread.
    fn pass_on() {
        TURNS.with_borrow(|turns| {
            let Some(turns) = turns else { return };
            // A world that ended does not come back.
            let _ended = turns.over.send(());
            let _ended = turns.mine.recv();
        });
    }
}

impl SessionWorld for Clock {
    fn now(&self) -> Time {
        Time(self.now.load(Ordering::Relaxed))
    }
    fn wall(&self) -> Timestamp {
        timestamp(self.wall.load(Ordering::Relaxed))
    }
    fn relax(&self) -> bool {
        false
    }
    fn notify(&self) {}
    fn wait(&self, _: u16, _: u32, _: Time) {
        Clock::pass_on();
    }
    fn park(&self, _: u16, _: Time) {
        Clock::pass_on();
    }
    fn unpark(&self, _: u16) {}
}

/// What was answered and told, in order.
#[derive(Default)]
struct Inbox(Mutex<Vec<(u64, Result<Answer>)>>);

impl Hears<QueueSlot> for Inbox {
    fn complete(&self, completion: Completion) {
        let mut outcome = completion.outcome.clone().map(Answer::from);
        if let (Ok(Reply::Data(len)), Some(slot)) = (&completion.outcome, &completion.slot) {
            let mut bytes = vec![0; *len as usize];
            slot.read(0, &mut bytes).unwrap();
            let reply = Reply::Data(*len);
            outcome = Ok(Answer { reply, payload: Payload::Bytes(bytes) });
        }
        self.0.lock().unwrap().push((completion.tag, outcome));
    }

    fn event(&self, _: Event, _: Told) {}
}

/// The return of a DPU side, step by step.
struct Return {
    go: Option<mpsc::Sender<()>>,
    rests: mpsc::Receiver<()>,
    alive: Arc<AtomicBool>,
    thread: Option<JoinHandle<std::result::Result<Resumed, NotResumed>>>,
}

impl Return {
    fn new(session: &Arc<Session>, registers: Registers) -> Return {
        let (go, mine) = mpsc::channel();
        let (over, rests) = mpsc::channel();
        let alive = Arc::new(AtomicBool::new(true));
        let (session, lives) = (Arc::clone(session), Arc::clone(&alive));
        let thread = std::thread::spawn(move || {
            if mine.recv().is_err() {
                return Err(NotResumed);
            }
            TURNS.set(Some(Turns { mine, over }));
            let resumed = session.resume(&registers, &|| lives.load(Ordering::Relaxed));
            TURNS.take();
            resumed
        });
        Return { go: Some(go), rests, alive, thread: Some(thread) }
    }

    /// Its turn; whether it came to its end.
    fn step(&mut self) -> Option<std::result::Result<Resumed, NotResumed>> {
        let _ended = self.go.as_ref().unwrap().send(());
        if self.rests.recv().is_ok() {
            return None;
        }
        let ended = self.thread.take().unwrap().join();
        Some(ended.unwrap_or_else(|panicked| std::panic::resume_unwind(panicked)))
    }
}

/// Work that begins with the next poll of a process.
#[derive(Default)]
pub(crate) struct Begun(pub(crate) RefCell<Vec<Work>>);

impl Spawn for Begun {
    fn spawn(&self, work: Work) {
        self.0.borrow_mut().push(work);
    }
}

/// What a DPU side does for its host, in its process.
#[derive(Clone)]
pub(crate) struct Serves {
    service: Rc<RefCell<Service<Client>>>,
    pub(crate) begun: Rc<Begun>,
    coherence: Arc<Coherence>,
    dfs: Arc<Client>,
    asked: Arc<AtomicBool>,
    maintains: Rc<Cell<Time>>,
    /// When it looks whether hosts have let go of what is stale, if somebody waits for it.
    looks: Rc<Cell<Time>>,
}

/// How long a DPU side that waits for a host sleeps at a time.
const NAP: Duration = Duration::from_millis(10);
const NEVER: Time = Time(u64::MAX);

impl Serves {
    /// Takes commands and recalls; whether there were any.
    pub(crate) fn pass(&self, now: Time, wall: u64) -> bool {
        CLOCK.set((now, wall));
        self.looks.set(NEVER);
        self.service.borrow_mut().awake();
        let taken = self.service.borrow_mut().poll(&*self.begun);
        if self.asked.swap(false, Ordering::Relaxed) || now >= self.maintains.get() {
            self.maintains.set(now.after(Coherence::MAINTAIN_EVERY));
            let (coherence, dfs) = (Arc::clone(&self.coherence), Arc::clone(&self.dfs));
            self.begun.spawn(Box::pin(async move { _ = coherence.maintain(&*dfs).await }));
        }
        taken > 0
    }

    /// Answers and events become visible; whether it must come back soon.
    pub(crate) fn flush(&self, now: Time) -> bool {
        let mut service = self.service.borrow_mut();
        service.flush(|_, _| ());
        if service.is_awaiting() {
            self.looks.set(now.after(NAP));
            return false;
        }
        !service.may_sleep()
    }

    pub(crate) fn wakes(&self) -> Time {
        self.maintains.get().min(self.looks.get())
    }
}

/// The host's end.
pub(crate) struct Front {
    id: SessionId,
    region: Arc<Region>,
    layout: Layout,
    geometry: Geometry,
    clock: Arc<Clock>,
    inbox: Arc<Inbox>,
    session: Option<Arc<Session>>,
    ports: Vec<QueuePort>,
    receiver: Option<Receiver>,
    coherence: Option<Arc<Coherence>>,
    lives: u64,
    returns: Option<Return>,
    policies: Policies,
}

impl Front {
    /// A host with a cache of so many pages, whose DPU side was never there.
    pub(crate) fn new(id: SessionId, lanes: usize, pages: u64, policies: Policies) -> Front {
        let layout = Layout::new(lanes as u16 + 1, DEPTH).unwrap();
        let len = pages * u64::from(PAGE);
        let shape = Shape { len, page_size: PAGE, ways: 4, records: 16, ..Shape::default() };
        let geometry = shape.at(layout.region_len()).unwrap();
        let region = Region::anonymous(layout.region_len() + geometry.area().len);
        Front {
            id,
            region,
            layout,
            geometry,
            clock: Arc::default(),
            inbox: Arc::default(),
            session: None,
            ports: Vec::new(),
            receiver: None,
            coherence: None,
            lives: 0,
            returns: None,
            policies,
        }
    }

    pub(crate) fn set_clock(&self, now: Time, wall: u64) {
        self.clock.now.store(now.0, Ordering::Relaxed);
        self.clock.wall.store(wall, Ordering::Relaxed);
    }

    /// A DPU side begins to serve: what its process does from now on.
    pub(crate) fn attach(&mut self, dfs: &Arc<Client>, net: &Net, wall: u64) -> Serves {
        self.lives += 1;
        let layout = self.layout;
        let pages = Region::anonymous(registers_len(layout.queues(), layout.depth()));
        let registers = Registers::create(pages, layout, self.lives).unwrap();
        let first = self.session.is_none();
        if first {
            self.begin(&registers);
        }
        let dma: Arc<dyn Dma> = Arc::new(Direct::new(Arc::clone(&self.region)));
        let ledger = Arc::new(Ledger::new());
        let target =
            |queue| Target::new(Arc::clone(&dma), &registers, queue, Arc::clone(&ledger)).unwrap();
        let targets = (0..layout.queues()).map(target).collect();
        let sender = Sender::new(Arc::clone(&dma), registers.clone(), Arc::clone(&ledger));
        Receiver::clear(&self.region, layout).unwrap();
        self.receiver = Some(Receiver::new(Arc::clone(&self.region), registers.clone()).unwrap());
        CLOCK.set((net_now(net), wall));
        let (clock, calendar) = (|| CLOCK.get().0, || timestamp(CLOCK.get().1));
        let mut service =
            Service::new(Arc::clone(dfs), Limits::default(), Box::new(clock), Box::new(calendar));
        if !first {
            // As a side reads of its sessions what the life before has written down.
            service.kv().coherence.expect([self.id]);
        }
        let attachment = service.attach(Caller::root(self.id), targets, sender).unwrap();
        let control = Control::attach(dma, self.geometry.area(), self.policies).unwrap();
        let is_dead = Box::new(|| false);
        let setup = CacheSetup { control, is_dead, clock, wall: calendar };
        let begun = Rc::new(Begun::default());
        if let Some(work) = service.attach_cache(attachment, Dispatch::Kv, setup) {
            begun.spawn(work);
        }
        let coherence = Arc::clone(&service.kv().coherence);
        self.coherence = Some(Arc::clone(&coherence));
        let asked = Arc::new(AtomicBool::new(false));
        let asks = Arc::clone(&asked);
        coherence.set_maintainer(move || asks.store(true, Ordering::Relaxed));
        if !first {
            let session = self.session.as_ref().unwrap();
            self.returns = Some(Return::new(session, registers));
        }
        Serves {
            service: Rc::new(RefCell::new(service)),
            begun,
            coherence,
            dfs: Arc::clone(dfs),
            asked,
            maintains: Rc::new(Cell::new(CLOCK.get().0.after(Coherence::MAINTAIN_EVERY))),
            looks: Rc::new(Cell::new(NEVER)),
        }
    }

    fn begin(&mut self, registers: &Registers) {
        let ledger = Arc::new(Ledger::new());
        let initiator = |queue| {
            let (region, ledger) = (Arc::clone(&self.region), Arc::clone(&ledger));
            Initiator::new(region, registers, queue, ledger).unwrap()
        };
        let initiators = (0..self.layout.queues()).map(initiator).collect();
        let queues = self.layout.queues() - 1;
        let dispatch = Dispatch::Kv;
        let spin_max = Duration::ZERO;
        let settings = Settings { queues, depth: DEPTH, dispatch, spin_max, owner: (0, 0) };
        let plane = Plane::format(Arc::clone(&self.region), self.geometry).unwrap();
        let world = Arc::clone(&self.clock) as Arc<dyn SessionWorld>;
        let front = Arc::clone(&self.inbox) as Arc<dyn Hears<QueueSlot>>;
        let session = Session::with_cache(self.id, settings, initiators, world, front, Some(plane));
        let session = session.unwrap();
        self.ports = (0..queues).map(|queue| session.port(queue).unwrap()).collect();
        self.session = Some(session);
    }

    /// The DPU side has died.
    pub(crate) fn lost(&mut self) {
        self.receiver = None;
        if let Some(mut returns) = self.returns.take() {
            returns.alive.store(false, Ordering::Relaxed);
            while returns.step().is_none() {}
        }
        if let Some(session) = &self.session {
            session.lost();
        }
    }

    /// What its DPU side does once everything is handed in.
    pub(crate) fn hand_in(&self, dfs: Arc<Client>) -> impl Future<Output = ()> + 'static {
        let coherence = self.coherence.clone();
        async move {
            if let Some(coherence) = coherence {
                coherence.recovered().await;
            }
            dfs.end_grace().await.unwrap();
        }
    }

    /// Whether everything is handed in to a DPU side that came back.
    pub(crate) fn has_returned(&mut self) -> bool {
        let Some(returns) = &mut self.returns else { return true };
        let Some(ended) = returns.step() else { return false };
        self.returns = None;
        let resumed = ended.unwrap_or_else(|NotResumed| panic!("it lives, and did not return"));
        assert!(resumed.refused.is_empty(), "{:?}", resumed.refused);
        true
    }

    /// Asks on a lane; false if there was no DPU side yet.
    pub(crate) fn ask(&mut self, lane: usize, request: &Request<'_>, payload: &[u8]) -> bool {
        let Some(port) = self.ports.get_mut(lane) else { return false };
        let mut slot = port.acquire_by(Time(0)).unwrap();
        outboard_volume::backend::Slot::write(&mut slot, 0, payload).unwrap();
        let cred = Cred::root();
        let call = Call { request, cred: &cred, checked: false, payload_len: payload.len() };
        if let Poll::Ready(completion) = port.start(slot, &call, lane as u64) {
            self.inbox.complete(completion);
        }
        true
    }

    /// Looks at what the DPU side has put into its memory.
    pub(crate) fn look(&mut self) {
        let Some(session) = &self.session else { return };
        (0..session.queues()).for_each(|queue| _ = session.drain(queue));
        let mut events = Vec::new();
        if let Some(receiver) = &mut self.receiver {
            while receiver.poll(16, &mut events) > 0 {}
        }
        events.into_iter().for_each(|event| session.event(event, Told::default()));
    }

    /// What was answered on a lane.
    pub(crate) fn take(&self, lane: usize) -> Option<Result<Answer>> {
        let mut inbox = self.inbox.0.lock().unwrap();
        let at = inbox.iter().position(|(tag, _)| *tag == lane as u64)?;
        Some(inbox.remove(at).1)
    }

    /// Hits and writes that its cache answered.
    pub(crate) fn cached(&self) -> (u64, u64) {
        let counts = self.session.as_ref().map(|session| session.counts().cache);
        counts.map_or((0, 0), |counts| (counts.hits, counts.writes))
    }
}

impl Drop for Front {
    fn drop(&mut self) {
        let Some(returns) = &mut self.returns else { return };
        // It runs to its end by itself.
        returns.alive.store(false, Ordering::Relaxed);
        returns.go = None;
    }
}

/// What a program can do nothing about.
pub(crate) fn is_loss(errno: Errno) -> bool {
    [Errno::EIO, Errno::ESTALE].contains(&errno)
}
