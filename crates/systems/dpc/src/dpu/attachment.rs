//! One attachment: its queues, its events, what runs for it.

use std::cell::{Cell, OnceCell, RefCell};
use std::collections::{HashMap, VecDeque};
use std::rc::Rc;
use std::sync::Arc;

use outboard_base::{Ino, SessionId, Time, Timestamp};
use outboard_link::events::Sender;
use outboard_link::queue::nvmefs::Target;
use outboard_link::queue::{Arrival, Command, CommandId, DpuQueue, Fault};
use outboard_volume::{Caller, Volume, VolumeEvent};
use outboard_wire::event::Event;
use outboard_wire::nvmefs::{Dispatch, Status};

use super::collector::Collector;
use super::letting_go::{LettingGo, Progress};
use super::serve::{self, Running};
use super::service::AttachmentId;
use super::stats::Stats;
use outboard_base::task::Spawn;
use outboard_cache::coherence::Coherence;

/// What one attachment may use.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Payload bytes of its commands under way. Nothing more is taken from its queues beyond it.
    pub bytes_max: u64,
    /// Commands taken from one queue in one pass.
    pub pass_max: usize,
    /// Ends of waits for locks, and recalls, that found its event ring full.
    pub backlog_max: usize,
}

impl Default for Limits {
    fn default() -> Limits {
        // 64 MiB is 64 of the largest requests; 16 is what one DMA fetches; every lock an
        // attachment may wait for (8,192) may be granted while its host does not look, and all it
        // decides be recalled.
        Limits { bytes_max: 64 << 20, pass_max: 16, backlog_max: 2 * 8192 }
    }
}

/// A volume, and what stands before it.
pub struct Served<V> {
    /// The volume.
    pub volume: Arc<V>,
    /// Every file operation passes here before the volume sees it.
    pub coherence: Arc<Coherence>,
    /// What the volume asked back of hosts' caches, and nobody has begun to.
    recalls: RefCell<Vec<(Ino, bool)>>,
}

impl<V: Volume> Served<V> {
    pub(super) fn new(volume: Arc<V>, now: Timestamp) -> Served<V> {
        let (coherence, recalls) = (Arc::new(Coherence::begin(now)), RefCell::default());
        Served { volume, coherence, recalls }
    }

    /// What the volume has to say to attachments. What it asks back of caches is kept for
    /// [`Served::begin_recalls`].
    pub(super) fn take_events(&self) -> Vec<VolumeEvent> {
        let mut events = self.volume.take_events();
        events.retain(|event| match event {
            VolumeEvent::RecallPages { ino, keep_read } => {
                self.recalls.borrow_mut().push((*ino, *keep_read));
                false
            }
            _ => true,
        });
        events
    }

    /// Whether there is something to recall.
    pub(super) fn recalls(&self) -> bool {
        !self.recalls.borrow().is_empty()
    }

    /// Begins to take back what the volume asked for.
    pub(super) fn begin_recalls(&self, spawn: &dyn Spawn) {
        for (ino, keep_read) in self.recalls.take() {
            let (volume, coherence) = (Arc::clone(&self.volume), Arc::clone(&self.coherence));
            spawn.spawn(Box::pin(async move {
                recall(&*volume, &coherence, ino, keep_read).await;
            }));
        }
    }

    /// A session is there.
    pub(super) fn is_back(&self, session: SessionId) {
        self.coherence.is_back(session);
        self.volume.is_back(session);
    }

    /// Writes back what a session that is gone left in its cache.
    pub(super) async fn end_cache(&self, session: SessionId) {
        self.coherence.detach(&*self.volume, session).await;
    }

    /// A session will not come back.
    pub(super) fn forget(&self, session: SessionId) {
        self.coherence.is_back(session);
        self.volume.detach(session);
    }
}

/// Times that caches are asked for what they hold of a file, each as long as a host may take.
const RECALLS: usize = 3;

/// Takes back what caches hold of a file. A host that does not let go of a page is not waited for
/// for ever: its record stays frozen, so that it reads nothing there, and the volume refuses what
/// comes of it later.
async fn recall<V: Volume>(volume: &V, coherence: &Coherence, ino: Ino, keep_read: bool) {
    for _ in 0..RECALLS {
        match coherence.give_up(volume, ino, keep_read).await {
            Ok(()) => return,
            Err(errno) => tracing::warn!(%ino, %errno, "a cache does not give a file back"),
        }
    }
    volume.recalled(ino, keep_read);
}

/// What all attachments share.
pub(super) struct Core<V, S> {
    /// What [`Dispatch::Kv`] speaks of.
    pub(super) kv: Served<V>,
    /// What [`Dispatch::Shared`] speaks of.
    pub(super) shared: Served<S>,
    /// Who waits for whom to forget what is stale.
    pub(super) letting_go: LettingGo,
    /// Who collects writes, with others beside it.
    pub(super) collector: Collector,
    pub(super) stats: RefCell<Stats>,
    /// The world's clock, to say how long an operation took.
    pub(super) clock: Box<dyn Fn() -> Time>,
    /// Passes made.
    pub(super) passes: Cell<u64>,
    /// The world's time of day.
    pub(super) wall: Box<dyn Fn() -> Timestamp>,
    /// Called before each answer; does not return if there must be none.
    pub(super) before_answer: OnceCell<Box<dyn Fn()>>,
    /// Sessions that said they have handed in everything.
    pub(super) handed_in: RefCell<Vec<SessionId>>,
}

/// One host-side process, attached.
pub struct Attachment<V, S> {
    pub(super) core: Rc<Core<V, S>>,
    pub(super) id: AttachmentId,
    pub(super) caller: Caller,
    limits: Limits,
    targets: RefCell<Vec<Target>>,
    sender: RefCell<Sender>,
    /// Commands that wait for something, for aborts.
    pub(super) running: RefCell<HashMap<(u16, CommandId), Rc<Running>>>,
    pub(super) commands: Cell<usize>,
    pub(super) bytes: Cell<u64>,
    gone: Cell<bool>,
    /// Of which volume it has a cache, which must be written back before the attachment ends.
    pub(super) cached: Cell<Option<Dispatch>>,
    /// Which queue is looked at first: each comes first in its pass.
    first: Cell<usize>,
    backlog: RefCell<VecDeque<Event>>,
    progress: Progress,
    arrivals: RefCell<Vec<Arrival>>,
}

impl<V: Volume, S: Volume> Attachment<V, S> {
    pub(super) fn new(
        core: Rc<Core<V, S>>,
        (id, caller): (AttachmentId, Caller),
        limits: Limits,
        targets: Vec<Target>,
        sender: Sender,
    ) -> Rc<Attachment<V, S>> {
        Rc::new(Attachment {
            core,
            id,
            caller,
            limits,
            targets: RefCell::new(targets),
            sender: RefCell::new(sender),
            running: RefCell::default(),
            commands: Cell::new(0),
            bytes: Cell::new(0),
            gone: Cell::new(false),
            cached: Cell::new(None),
            first: Cell::new(0),
            backlog: RefCell::default(),
            progress: Progress::default(),
            arrivals: RefCell::default(),
        })
    }

    /// Whose it is.
    #[must_use]
    pub fn session(&self) -> SessionId {
        self.caller.attachment
    }

    /// Commands under way.
    #[must_use]
    pub fn in_flight(&self) -> usize {
        self.commands.get()
    }

    /// Whether its host is gone.
    #[must_use]
    pub fn is_gone(&self) -> bool {
        self.gone.get()
    }

    /// Takes commands from every queue and begins each; how many.
    pub(super) fn poll(self: &Rc<Self>, spawn: &dyn Spawn) -> usize {
        let queues = self.targets.borrow().len();
        let first = self.first.get();
        self.first.set(if first + 1 < queues { first + 1 } else { 0 });
        let mut taken = 0;
        for queue in (first..queues).chain(0..first.min(queues)) {
            if self.gone.get() || self.bytes.get() >= self.limits.bytes_max {
                break;
            }
            let mut arrivals = self.arrivals.take();
            if let Some(target) = self.targets.borrow_mut().get_mut(queue) {
                taken += target.poll(self.limits.pass_max, &mut arrivals);
            }
            let queue = u16::try_from(queue).unwrap_or(u16::MAX);
            for arrival in arrivals.drain(..) {
                match arrival {
                    Arrival::Command(command) => serve::begin(self, queue, command, spawn),
                    Arrival::Abort(id) => self.abort(queue, id),
                }
            }
            self.arrivals.replace(arrivals);
        }
        taken
    }

    /// A command that waits and changes nothing ends early; any other ends by itself.
    fn abort(&self, queue: u16, id: CommandId) {
        if let Some(running) = self.running.borrow().get(&(queue, id)) {
            running.abort();
        }
    }

    /// Answers a command.
    pub(super) fn complete(
        &self,
        queue: u16,
        command: Command,
        status: Status,
        result: u64,
        reply_header: &[u8],
    ) {
        if let Some(before) = self.core.before_answer.get() {
            before();
        }
        if let Some(target) = self.targets.borrow_mut().get_mut(usize::from(queue)) {
            target.complete(command, status, result, reply_header);
        }
    }

    /// Sends the host an event. Ends of waits and recalls are kept until there is room; what
    /// merely says that a cache is stale may be lost, and then the ring says so.
    pub(super) fn notify(&self, event: Event) {
        if !matches!(event, Event::LockGranted { .. } | Event::Recall { .. }) {
            self.sender.borrow_mut().post(&event);
            return;
        }
        let mut backlog = self.backlog.borrow_mut();
        if backlog.len() < self.limits.backlog_max {
            backlog.push_back(event);
        }
        drop(backlog);
        self.notify_backlog();
    }

    /// Whether it keeps what events end.
    pub(super) fn keeps(&self) -> bool {
        self.sender.borrow().acted().is_some()
    }

    /// Posts an event now, if there is room: its number.
    pub(super) fn post_now(&self, event: &Event) -> Option<u64> {
        let mut sender = self.sender.borrow_mut();
        sender.try_post(event).then(|| sender.posted())
    }

    /// How far it has acted upon its events, as it says.
    pub(super) fn acted(&self) -> Option<u64> {
        self.sender.borrow().acted()
    }

    /// The number of the last event it was sent.
    pub(super) fn posted(&self) -> u64 {
        self.sender.borrow().posted()
    }

    /// Whether it is worth waiting until it has acted upon event `number`.
    pub(super) fn is_behind(&self, number: u64, now: Time) -> bool {
        let sender = self.sender.borrow();
        !self.gone.get()
            && !sender.has_acted(number)
            && sender.acted().is_some_and(|acted| self.progress.is_awaited(acted, now))
    }

    fn notify_backlog(&self) {
        let mut backlog = self.backlog.borrow_mut();
        let mut sender = self.sender.borrow_mut();
        while let Some(event) = backlog.front() {
            if !sender.try_post(event) {
                return;
            }
            backlog.pop_front();
        }
    }

    /// After a batch: which queues' hosts must be interrupted (`None`: the event ring's).
    pub(super) fn flush(&self, mut interrupt: impl FnMut(Option<u16>)) {
        if self.gone.get() {
            return;
        }
        for (queue, target) in (0u16..).zip(self.targets.borrow_mut().iter_mut()) {
            if target.flush() {
                interrupt(Some(queue));
            }
        }
        if !self.backlog.borrow().is_empty() {
            self.notify_backlog();
        }
        if self.sender.borrow_mut().flush() {
            interrupt(None);
        }
    }

    /// Publishes "asleep"; false if there is work.
    pub(super) fn may_sleep(&self) -> bool {
        // Over its limit of bytes, it is woken by the end of a command, not by its doorbell.
        self.gone.get()
            || self.bytes.get() >= self.limits.bytes_max
            || self.targets.borrow_mut().iter_mut().all(DpuQueue::may_sleep)
    }

    pub(super) fn awake(&self) {
        if !self.gone.get() {
            self.targets.borrow_mut().iter_mut().for_each(DpuQueue::awake);
        }
    }

    /// What broke, if the host broke the protocol beyond help.
    #[must_use]
    pub fn fault(&self) -> Option<Fault> {
        self.targets.borrow().iter().find_map(DpuQueue::fault)
    }

    /// The host is gone: nothing more is taken from it, what can be aborted is.
    pub(super) fn leave(&self) {
        self.gone.set(true);
        for running in self.running.borrow().values() {
            running.abort();
        }
    }
}
