//! Both sides of a link in one thread, stepped by hand: the same session and service as in
//! production, over memory of this process, with every choice of order made by a seed.
//!
//! For the conformance suite over a link, and for the simulation that loses the DPU side at any
//! step. Time is the number of steps taken.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::Poll;
use std::time::Duration;

use outboard_base::ledger::Ledger;
use outboard_base::task::{Spawn, Work};
use outboard_base::{Cred, Errno, Result, SessionId, Time, Timestamp};
use outboard_cache::coherence::CacheSetup;
use outboard_cache::dpu::Control;
use outboard_cache::geometry::{Area, Geometry, Shape};
use outboard_cache::host::Plane;
use outboard_cache::policy::Policies;
use outboard_dpc::dpu::{Limits, Service};
use outboard_dpc::host::{
    Call, Completion, Front, NotResumed, QueuePort, QueueSlot, Resumed, Session, SessionWorld,
    Settings, Told,
};
use outboard_link::Region;
use outboard_link::dma::{Counted, Direct, Dma};
use outboard_link::events::{Receiver, Sender};
use outboard_link::layout::Layout;
use outboard_link::queue::nvmefs::{Initiator, Target};
use outboard_link::registers::Registers;
use outboard_volume::{Caller, Volume};
use outboard_wire::event::Event;
use outboard_wire::file::{Reply, Request};
use outboard_wire::nvmefs::Dispatch;
use outboard_wire::regs::registers_len;

use crate::{Chooser, Tasks};

thread_local! {
    /// What a step of the other side is, for a session that waits inside a call.
    static STEP: RefCell<Option<Rc<dyn Fn()>>> = const { RefCell::new(None) };
    static STEPS: Cell<u64> = const { Cell::new(0) };
    /// The calendar of both sides.
    static WALL: Cell<fn() -> Timestamp> = const { Cell::new(standing) };
}

/// A calendar that stands still.
fn standing() -> Timestamp {
    Timestamp { sec: 1_700_000_000, nsec: 0 }
}

/// A world in which waiting lets the other side take a step.
struct Steps;

fn step() {
    STEPS.set(STEPS.get() + 1);
    let step = STEP.with_borrow(Option::clone);
    if let Some(step) = step {
        step();
    }
}

impl SessionWorld for Steps {
    fn now(&self) -> Time {
        Time(STEPS.get() * 1_000)
    }

    fn wall(&self) -> Timestamp {
        WALL.get()()
    }

    fn relax(&self) -> bool {
        step();
        true
    }

    fn notify(&self) {}

    fn wait(&self, _: u16, _: u32, _: Time) {
        step();
    }

    fn park(&self, _: u16, _: Time) {
        step();
    }

    fn unpark(&self, _: u16) {}
}

/// An answered call: its tag, the answer, and the payload that came with it.
pub type Answered = (u64, Result<Reply>, Vec<u8>);

#[derive(Default)]
struct Inbox {
    answered: Mutex<Vec<Answered>>,
    events: Mutex<Vec<Event>>,
}

impl Front<QueueSlot> for Inbox {
    fn complete(&self, completion: Completion) {
        let answered = answered(&completion);
        self.answered.lock().unwrap_or_else(PoisonError::into_inner).push(answered);
    }

    fn event(&self, event: Event, _: Told) {
        self.events.lock().unwrap_or_else(PoisonError::into_inner).push(event);
    }
}

fn answered(completion: &Completion) -> Answered {
    let mut payload = Vec::new();
    let mut outcome = completion.outcome.clone();
    if let (Ok(Reply::Data(len)), Some(slot)) = (&completion.outcome, &completion.slot) {
        payload.resize(usize::try_from(*len).unwrap_or(0), 0);
        if let Err(errno) = slot.read(0, &mut payload) {
            outcome = Err(errno);
        }
    }
    (completion.tag, outcome, payload)
}

/// One life of the DPU side.
struct Life<V> {
    service: RefCell<Service<V>>,
    tasks: Tasks<'static>,
    chooser: RefCell<Chooser>,
}

impl<V: Volume> Life<V> {
    /// One step: commands, or work that waits.
    fn step(&self) {
        let works = self.chooser.borrow_mut().below(4) > 0 && !self.tasks.is_empty();
        // It is chosen first and polled then: work may come back here.
        let chosen = works.then(|| self.chooser.borrow_mut().one_of(self.tasks.len()));
        match chosen.flatten() {
            Some(at) => _ = self.tasks.poll(at),
            None => _ = self.service.borrow_mut().poll(&self.tasks),
        }
        self.service.borrow_mut().flush(|_, _| ());
    }

    fn trace(&self) -> u64 {
        self.chooser.borrow().trace().hash()
    }
}

/// The DPU side's hand in a cache.
fn setup(dma: Arc<dyn Dma>, area: Area) -> Result<CacheSetup> {
    let policies = Policies::default();
    let control = Control::attach(dma, area, policies).map_err(|_| Errno::EINVAL)?;
    Ok(CacheSetup {
        control,
        is_dead: Box::new(|| false),
        clock: || Steps.now(),
        wall: || Steps.wall(),
    })
}

/// A session and its DPU side.
pub struct Loopback<V> {
    session: Arc<Session>,
    inbox: Arc<Inbox>,
    ports: Vec<QueuePort>,
    region: Arc<Region>,
    layout: Layout,
    life: Option<Rc<Life<V>>>,
    receiver: Option<Receiver>,
    ledger: Arc<Ledger>,
    chooser: Chooser,
    id: SessionId,
    lives: u64,
    cache: Option<Geometry>,
}

impl<V: Volume> Loopback<V> {
    /// Both sides, attached: `queues` queue pairs of `depth`, all choices made by `seed`. One at a
    /// time in a thread. `EINVAL` for a grid out of range.
    pub fn new(volume: Arc<V>, queues: u16, depth: u16, seed: u64) -> Result<Loopback<V>> {
        Loopback::with_cache(volume, queues, depth, seed, None)
    }

    /// The same with a hybrid cache. `EINVAL` also for a shape that cannot be.
    pub fn with_cache(
        volume: Arc<V>,
        queues: u16,
        depth: u16,
        seed: u64,
        shape: Option<Shape>,
    ) -> Result<Loopback<V>> {
        WALL.set(standing);
        let layout = Layout::new(queues.saturating_add(1), depth).ok_or(Errno::EINVAL)?;
        let cache = shape.map(|shape| shape.at(layout.region_len())).transpose();
        let cache = cache.map_err(|_| Errno::EINVAL)?;
        let len = cache.map_or(0, |geometry| geometry.area().len);
        let region = Region::anonymous(layout.region_len() + len);
        let plane = cache.map(|geometry| Plane::format(Arc::clone(&region), geometry));
        let plane = plane.transpose().map_err(|_| Errno::EINVAL)?;
        let ledger = Arc::new(Ledger::new());
        let registers = registers(layout, 1)?;
        let initiators = (0..layout.queues())
            .map(|queue| {
                Initiator::new(Arc::clone(&region), &registers, queue, Arc::clone(&ledger))
            })
            .collect::<std::result::Result<Vec<_>, _>>()
            .map_err(|_| Errno::EINVAL)?;
        let id = SessionId(seed | 1);
        let settings = Settings {
            queues,
            depth,
            dispatch: Dispatch::Kv,
            spin_max: Duration::ZERO,
            owner: (0, 0),
        };
        let inbox = Arc::new(Inbox::default());
        let front = Arc::clone(&inbox) as Arc<dyn Front<QueueSlot>>;
        let world = Arc::new(Steps);
        let session = Session::with_cache(id, settings, initiators, world, front, plane)?;
        let ports = (0..queues).filter_map(|queue| session.port(queue)).collect();
        let mut loopback = Loopback {
            session,
            inbox,
            ports,
            region,
            layout,
            life: None,
            receiver: None,
            ledger,
            chooser: Chooser::new(seed),
            id,
            lives: 1,
            cache,
        };
        loopback.begin(volume, &registers)?;
        Ok(loopback)
    }

    fn begin(&mut self, volume: Arc<V>, registers: &Registers) -> Result<()> {
        let direct = Direct::new(Arc::clone(&self.region));
        let dma: Arc<dyn Dma> = Arc::new(Counted::new(direct, Arc::clone(&self.ledger)));
        let targets = (0..self.layout.queues())
            .map(|queue| Target::new(Arc::clone(&dma), registers, queue, Arc::clone(&self.ledger)))
            .collect::<std::result::Result<Vec<_>, _>>()
            .map_err(|_| Errno::EINVAL)?;
        let sender = Sender::new(Arc::clone(&dma), registers.clone(), Arc::clone(&self.ledger));
        Receiver::clear(&self.region, self.layout).map_err(|_| Errno::EINVAL)?;
        let receiver = Receiver::new(Arc::clone(&self.region), registers.clone());
        self.receiver = Some(receiver.map_err(|_| Errno::EINVAL)?);
        let clock = Box::new(|| Steps.now());
        let wall = Box::new(|| Steps.wall());
        let mut service = Service::new(volume, Limits::default(), clock, wall);
        let caller = Caller::root(self.id);
        let attachment = service.attach(caller, targets, sender).ok_or(Errno::EINVAL)?;
        let adopts = match self.cache {
            Some(geometry) => {
                service.attach_cache(attachment, Dispatch::Kv, setup(dma, geometry.area())?)
            }
            None => None,
        };
        let life = Rc::new(Life {
            service: RefCell::new(service),
            tasks: Tasks::default(),
            chooser: RefCell::new(self.chooser.part()),
        });
        if let Some(work) = adopts {
            life.tasks.spawn(work);
        }
        self.life = Some(life);
        Ok(())
    }

    /// Gives both sides, in this and every later life, another calendar than one that stands still.
    pub fn set_wall(&mut self, wall: fn() -> Timestamp) {
        WALL.set(wall);
    }

    /// The session.
    #[must_use]
    pub fn session(&self) -> &Arc<Session> {
        &self.session
    }

    /// What was chosen and answered so far, as one number: the same for the same seed and calls.
    #[must_use]
    pub fn trace(&self) -> u64 {
        let mut chooser = self.chooser.clone();
        chooser.note(self.life.as_ref().map_or(0, |life| life.trace()));
        chooser.trace().hash()
    }

    /// What was charged, on both sides.
    #[must_use]
    pub fn ledger(&self) -> &Arc<Ledger> {
        &self.ledger
    }

    /// Starts a call under `tag` on a queue of the seed's choice; false if that has no free slot.
    pub fn start(&mut self, cred: &Cred, request: &Request<'_>, payload: &[u8], tag: u64) -> bool {
        let queue = self.chooser.below(self.ports.len() as u64);
        let Some(port) = usize::try_from(queue).ok().and_then(|q| self.ports.get_mut(q)) else {
            return false;
        };
        let Ok(mut slot) = port.acquire_by(Time(0)) else { return false };
        let call = Call { request, cred, checked: false, payload_len: payload.len() };
        let outcome = slot.write(0, payload);
        let started = match outcome {
            Ok(()) => port.start(slot, &call, tag),
            Err(errno) => {
                Poll::Ready(Completion { tag, op: request.op(), outcome: Err(errno), slot: None })
            }
        };
        if let Poll::Ready(completion) = started {
            self.inbox.complete(completion);
        }
        true
    }

    /// One step of either side.
    pub fn step(&mut self) {
        STEPS.set(STEPS.get() + 1);
        if let Some(life) = &self.life
            && self.chooser.chance(3, 4)
        {
            return life.step();
        }
        let queue = self.chooser.below(u64::from(self.session.queues()));
        self.session.drain(u16::try_from(queue).unwrap_or(0));
        let mut events = Vec::new();
        if let Some(receiver) = &mut self.receiver {
            receiver.poll(1, &mut events);
        }
        events.into_iter().for_each(|event| self.session.event(event, Told::default()));
    }

    /// The event ring overflows: what the DPU side has told and the host side has not heard is
    /// lost, and that is all the host side hears.
    pub fn lose_events(&mut self) {
        let mut lost = Vec::new();
        if let Some(receiver) = &mut self.receiver {
            while receiver.poll(64, &mut lost) > 0 {}
        }
        self.session.event(Event::Overflow, Told::default());
    }

    /// What was answered since the last call.
    pub fn take_answered(&mut self) -> Vec<Answered> {
        let mut inbox = self.inbox.answered.lock().unwrap_or_else(PoisonError::into_inner);
        let answered = std::mem::take(&mut *inbox);
        for (tag, outcome, payload) in &answered {
            self.chooser.note_text(format_args!("{tag} {outcome:?} {}", payload.len()));
        }
        answered
    }

    /// What the DPU side told since the last call.
    pub fn take_events(&mut self) -> Vec<Event> {
        std::mem::take(&mut *self.inbox.events.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// One call, stepped to its answer. `ETIMEDOUT` if that takes unreasonably many steps.
    pub fn call(
        &mut self,
        cred: &Cred,
        request: &Request<'_>,
        payload: &[u8],
    ) -> Result<(Reply, Vec<u8>)> {
        const STEPS_MAX: usize = 10_000_000;
        let mut started = false;
        for _ in 0..STEPS_MAX {
            started = started || self.start(cred, request, payload, 0);
            self.step();
            if let Some((_, outcome, payload)) = self.take_answered().pop() {
                return outcome.map(|reply| (reply, payload));
            }
        }
        Err(Errno::ETIMEDOUT)
    }

    /// Runs work on the DPU side's executor.
    pub fn spawn(&self, work: Work) {
        if let Some(life) = &self.life {
            life.tasks.spawn(work);
        }
    }

    /// Whether nothing waits on the DPU side.
    #[must_use]
    pub fn is_quiet(&self) -> bool {
        self.life.as_ref().is_none_or(|life| life.tasks.is_empty())
    }

    /// Whether the session has handed in everything since the last call.
    pub fn take_handed_in(&mut self) -> bool {
        let Some(life) = &self.life else { return false };
        !life.service.borrow_mut().take_handed_in().is_empty()
    }

    /// The DPU side dies: its memory is gone, whatever it was doing. The session learns of it.
    pub fn crash(&mut self) {
        let life = self.life.take();
        self.chooser.note(life.map_or(0, |life| life.trace()));
        self.receiver = None;
        self.session.lost();
    }

    /// The DPU side is there again, over the same or another volume.
    pub fn restart(&mut self, volume: Arc<V>) -> Result<std::result::Result<Resumed, NotResumed>> {
        self.restart_while(volume, &|| true)
    }

    /// The same of one that is there as long as `alive` says so.
    pub fn restart_while(
        &mut self,
        volume: Arc<V>,
        alive: &dyn Fn() -> bool,
    ) -> Result<std::result::Result<Resumed, NotResumed>> {
        self.lives += 1;
        let registers = registers(self.layout, self.lives)?;
        self.begin(volume, &registers)?;
        let life = self.life.clone();
        STEP.set(Some(Rc::new(move || {
            if let Some(life) = &life {
                life.step();
            }
        })));
        let resumed = self.session.resume(&registers, alive);
        STEP.set(None);
        Ok(resumed)
    }

    /// Gives the calls up that wait for a DPU side that is lost, as the policy `fail` does.
    pub fn give_up(&mut self) {
        self.session.give_up();
    }
}

fn registers(layout: Layout, instance: u64) -> Result<Registers> {
    let pages = Region::anonymous(registers_len(layout.queues(), layout.depth()));
    Registers::create(pages, layout, instance).map_err(|_| Errno::EINVAL)
}
