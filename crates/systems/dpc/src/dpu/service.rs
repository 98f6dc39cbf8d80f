//! All attachments of one volume, turn by turn.

use std::cell::{Cell, OnceCell, Ref, RefCell};
use std::rc::Rc;
use std::sync::Arc;

use outboard_base::task::{Spawn, Work};
use outboard_base::{SessionId, Time, Timestamp};
use outboard_link::events::Sender;
use outboard_link::queue::nvmefs::Target;
use outboard_volume::{Caller, Event as VolumeEvent};
use outboard_wire::event::Event;

use super::attachment::{Attachment, Core, Limits};
use super::stats::Stats;
use outboard_cache::coherence::{CacheSetup, Coherence};
use outboard_volume::Volume;

/// Names an attachment of a service; never used twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct AttachmentId(pub u64);

/// An attachment that is gone, and nothing runs for it any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Gone {
    /// Which.
    pub id: AttachmentId,
    /// Its session, still in the volume's books: [`Service::forget`] ends that.
    pub session: SessionId,
}

/// The DPU side of all links to one volume.
pub struct Service<V> {
    core: Rc<Core<V>>,
    limits: Limits,
    attachments: Vec<(AttachmentId, Rc<Attachment<V>>)>,
    next: u64,
    /// Which attachment is looked at first: each gets its turn.
    first: usize,
}

impl<V: Volume> Service<V> {
    /// A service without attachments. `clock` says how long operations take, `wall` is
    /// the time of day files are stamped with.
    #[must_use]
    pub fn new(
        volume: Arc<V>,
        limits: Limits,
        clock: Box<dyn Fn() -> Time>,
        wall: Box<dyn Fn() -> Timestamp>,
    ) -> Service<V> {
        let coherence = Arc::new(Coherence::begin(wall()));
        let core = Core {
            volume,
            stats: RefCell::default(),
            clock,
            turn: Cell::new(0),
            wall,
            before_answer: OnceCell::new(),
            handed_in: RefCell::default(),
            coherence,
        };
        Service { core: Rc::new(core), limits, attachments: Vec::new(), next: 1, first: 0 }
    }

    /// Has `check` called before every answer from now on; once. It does not return if the volume
    /// may be another's by now: answers from memory would be of the past.
    pub fn before_answers(&self, check: Box<dyn Fn()>) {
        // A second one changes nothing.
        let _ = self.core.before_answer.set(check);
    }

    /// The volume.
    #[must_use]
    pub fn volume(&self) -> &Arc<V> {
        &self.core.volume
    }

    /// What was counted.
    #[must_use]
    pub fn stats(&self) -> Ref<'_, Stats> {
        self.core.stats.borrow()
    }

    /// Serves a new attachment. `None` if its session is being served: until what runs for it has
    /// ended, sending a request again could do it twice.
    pub fn attach(
        &mut self,
        caller: Caller,
        targets: Vec<Target>,
        sender: Sender,
    ) -> Option<AttachmentId> {
        if self.serves(caller.attachment) {
            return None;
        }
        let id = AttachmentId(self.next);
        self.next += 1;
        self.core.coherence.is_back(caller.attachment);
        self.core.volume.is_back(caller.attachment);
        let attachment =
            Attachment::new(Rc::clone(&self.core), caller, self.limits, targets, sender);
        self.attachments.push((id, attachment));
        Some(id)
    }

    /// The coherence: what it holds of whom, and what is to be done for the caches now and then.
    #[must_use]
    pub fn coherence(&self) -> &Arc<Coherence> {
        &self.core.coherence
    }

    /// An attachment brings a cache. The work writes back what an earlier life of the DPU side left
    /// in it; until it has ended, requests wait.
    pub fn attach_cache(&self, id: AttachmentId, setup: CacheSetup) -> Option<Work> {
        let (_, attachment) = self.attachments.iter().find(|(other, _)| *other == id)?;
        let attachment = Rc::clone(attachment);
        let cache = self.core.coherence.attach(attachment.caller.clone(), setup);
        attachment.cached.set(true);
        // Like a command under way: it is not let go before.
        attachment.commands.set(attachment.commands.get() + 1);
        Some(Box::pin(async move {
            let core = &attachment.core;
            core.coherence.recover(&*core.volume, cache).await;
            attachment.commands.set(attachment.commands.get().saturating_sub(1));
        }))
    }

    /// Writes back what an attachment that is gone left in its cache.
    fn part(attachment: &Rc<Attachment<V>>, spawn: &dyn Spawn) {
        if !attachment.is_gone() || attachment.in_flight() > 0 || !attachment.cached.get() {
            return;
        }
        attachment.cached.set(false);
        attachment.commands.set(attachment.commands.get() + 1);
        let attachment = Rc::clone(attachment);
        spawn.spawn(Box::pin(async move {
            let core = &attachment.core;
            core.coherence.detach(&*core.volume, attachment.session()).await;
            attachment.commands.set(attachment.commands.get().saturating_sub(1));
        }));
    }

    /// Whether a session is attached, or something still runs for it.
    #[must_use]
    pub fn serves(&self, session: SessionId) -> bool {
        self.attachments.iter().any(|(_, attachment)| attachment.session() == session)
    }

    /// All attachments.
    pub fn attachments(&self) -> impl Iterator<Item = (AttachmentId, &Attachment<V>)> {
        self.attachments.iter().map(|(id, attachment)| (*id, &**attachment))
    }

    /// The host of an attachment is gone: nothing more is taken from it.
    pub fn leave(&mut self, id: AttachmentId) {
        if let Some((_, attachment)) = self.attachments.iter().find(|(other, _)| *other == id) {
            attachment.leave();
        }
    }

    /// Lets go of attachments that are gone, for which nothing runs any more and whose caches are
    /// written back.
    pub fn sweep(&mut self) -> Vec<Gone> {
        let mut gone = Vec::new();
        self.attachments.retain(|(id, attachment)| {
            let idle = attachment.in_flight() == 0 && !attachment.cached.get();
            let over = attachment.is_gone() && idle;
            if over {
                gone.push(Gone { id: *id, session: attachment.session() });
            }
            !over
        });
        gone
    }

    /// A session will not come back: its handles, locks and records go.
    pub fn forget(&self, session: SessionId) {
        self.core.coherence.is_back(session);
        self.core.volume.detach(session);
    }

    /// One turn: takes a bounded number of commands from every queue and begins each; how many.
    pub fn poll(&mut self, spawn: &dyn Spawn) -> usize {
        self.core.turn.set(self.core.turn.get() + 1);
        let len = self.attachments.len();
        self.first = if self.first + 1 < len { self.first + 1 } else { 0 };
        let (before, from) = self.attachments.split_at(self.first.min(len));
        let mut taken = 0;
        for (_, attachment) in from.iter().chain(before) {
            taken += attachment.poll(spawn);
            Self::part(attachment, spawn);
        }
        taken
    }

    /// After the work of a turn: passes on what the volume tells, and names the interrupts to raise
    /// (`None`: the event ring's).
    pub fn flush(&mut self, mut interrupt: impl FnMut(AttachmentId, Option<u16>)) {
        for event in self.core.volume.take_events() {
            self.pass_on(event);
        }
        for (id, attachment) in &self.attachments {
            attachment.flush(|queue| interrupt(*id, queue));
        }
    }

    fn pass_on(&self, event: VolumeEvent) {
        let (session, event) = match event {
            VolumeEvent::LockSettled { attachment, ticket, result } => {
                (attachment, Event::LockGranted { ticket, errno: result.err() })
            }
            VolumeEvent::RecallLocks { attachment, ino } => {
                (attachment, Event::Recall { ino, offset: 0, len: u64::MAX })
            }
            VolumeEvent::StaleInode { attachment, ino } => {
                (attachment, Event::InvalidateInode { ino, offset: 0, len: u64::MAX })
            }
            VolumeEvent::StaleEntry { attachment, parent, name } => {
                (attachment, Event::invalidate_entry(parent, &name))
            }
        };
        // Nobody to tell if it left meanwhile.
        let mut all = self.attachments.iter();
        if let Some((_, attachment)) = all.find(|(_, a)| a.session() == session && !a.is_gone()) {
            attachment.tell(event);
        }
    }

    /// Publishes "asleep" everywhere and looks again; false (and awake) if there is work.
    pub fn may_sleep(&mut self) -> bool {
        let asleep = self.attachments.iter().all(|(_, attachment)| attachment.may_sleep());
        if !asleep {
            self.awake();
        }
        asleep
    }

    /// Says that it looks again.
    pub fn awake(&mut self) {
        for (_, attachment) in &self.attachments {
            attachment.awake();
        }
    }

    /// Sessions that handed in everything since the last call.
    pub fn take_handed_in(&mut self) -> Vec<SessionId> {
        self.core.handed_in.take()
    }
}
