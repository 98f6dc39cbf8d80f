//! All attachments of the volumes served, pass by pass.

use std::cell::{Cell, OnceCell, Ref, RefCell};
use std::rc::Rc;
use std::sync::Arc;

use outboard_base::task::{Spawn, Work};
use outboard_base::{SessionId, Time, Timestamp};
use outboard_link::events::Sender;
use outboard_link::queue::nvmefs::Target;
use outboard_volume::{Caller, VolumeEvent};
use outboard_wire::event::Event;
use outboard_wire::nvmefs::Dispatch;

use super::attachment::{Attachment, Core, Limits, Served};
use super::collector::Collector;
use super::letting_go::LettingGo;
use super::stats::Stats;
use outboard_cache::coherence::CacheSetup;
use outboard_volume::{NoVolume, Volume};

/// Names an attachment of a service; never used twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct AttachmentId(pub u64);

/// An attachment that is gone, and nothing runs for it any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Gone {
    /// Which.
    pub id: AttachmentId,
    /// Its session, still held by the volumes: [`Service::forget`] ends that.
    pub session: SessionId,
}

/// The DPU side of all links to its volumes: one for each value of bit 10 of a submission entry, or
/// [`NoVolume`], whose commands are refused.
pub struct Service<V, S = NoVolume> {
    core: Rc<Core<V, S>>,
    limits: Limits,
    attachments: Vec<(AttachmentId, Rc<Attachment<V, S>>)>,
    next: u64,
    /// Which attachment is looked at first: each comes first in its pass.
    first: usize,
}

impl<V: Volume> Service<V> {
    /// A service of one volume, which [`Dispatch::Kv`] speaks of; see [`Service::of_both`].
    #[must_use]
    pub fn new(
        volume: Arc<V>,
        limits: Limits,
        clock: Box<dyn Fn() -> Time>,
        wall: Box<dyn Fn() -> Timestamp>,
    ) -> Service<V> {
        Service::of_both(volume, Arc::new(NoVolume), limits, clock, wall)
    }
}

impl<V: Volume, S: Volume> Service<V, S> {
    /// A service without attachments, of a kv or local volume and a shared one. `clock` says how
    /// long operations take, `wall` is the time of day files are stamped with.
    #[must_use]
    pub fn of_both(
        kv: Arc<V>,
        shared: Arc<S>,
        limits: Limits,
        clock: Box<dyn Fn() -> Time>,
        wall: Box<dyn Fn() -> Timestamp>,
    ) -> Service<V, S> {
        let now = wall();
        let core = Core {
            kv: Served::new(kv, now),
            shared: Served::new(shared, now),
            letting_go: LettingGo::default(),
            collector: Collector::default(),
            stats: RefCell::default(),
            clock,
            passes: Cell::new(0),
            wall,
            before_answer: OnceCell::new(),
            handed_in: RefCell::default(),
        };
        Service { core: Rc::new(core), limits, attachments: Vec::new(), next: 1, first: 0 }
    }

    /// Has `check` called before every answer from now on; once. It does not return if the volume
    /// may be another's by now: answers from memory would be of the past.
    pub fn before_answers(&self, check: Box<dyn Fn()>) {
        // A second one changes nothing.
        let _ = self.core.before_answer.set(check);
    }

    /// The volume that [`Dispatch::Kv`] speaks of.
    #[must_use]
    pub fn kv(&self) -> &Served<V> {
        &self.core.kv
    }

    /// The volume that [`Dispatch::Shared`] speaks of.
    #[must_use]
    pub fn shared(&self) -> &Served<S> {
        &self.core.shared
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
        self.core.kv.is_back(caller.attachment);
        self.core.shared.is_back(caller.attachment);
        let attachment =
            Attachment::new(Rc::clone(&self.core), (id, caller), self.limits, targets, sender);
        self.attachments.push((id, attachment));
        Some(id)
    }

    /// An attachment brings a cache of files of one volume. The work writes back what an earlier
    /// life of the DPU side left in it; until it has ended, requests wait.
    pub fn attach_cache(
        &self,
        id: AttachmentId,
        dispatch: Dispatch,
        setup: CacheSetup,
    ) -> Option<Work> {
        let (_, attachment) = self.attachments.iter().find(|(other, _)| *other == id)?;
        match dispatch {
            Dispatch::Kv => Self::recover(attachment, &self.core.kv, setup),
            Dispatch::Shared => Self::recover(attachment, &self.core.shared, setup),
        }
        .inspect(|_| attachment.cached.set(Some(dispatch)))
    }

    fn recover<W: Volume>(
        attachment: &Rc<Attachment<V, S>>,
        served: &Served<W>,
        setup: CacheSetup,
    ) -> Option<Work> {
        if !W::EXISTS {
            return None;
        }
        let (volume, coherence) = (Arc::clone(&served.volume), Arc::clone(&served.coherence));
        let cache = coherence.attach(attachment.caller.clone(), setup);
        let held = Busy::new(attachment);
        Some(Box::pin(async move {
            coherence.recover(&*volume, cache).await;
            drop(held);
        }))
    }

    /// Writes back what an attachment that is gone left in its cache.
    fn end_cache(attachment: &Rc<Attachment<V, S>>, spawn: &dyn Spawn) {
        if !attachment.is_gone() || attachment.in_flight() > 0 {
            return;
        }
        let Some(dispatch) = attachment.cached.take() else { return };
        let held = Busy::new(attachment);
        spawn.spawn(Box::pin(async move {
            let (core, session) = (&held.0.core, held.0.session());
            match dispatch {
                Dispatch::Kv => core.kv.end_cache(session).await,
                Dispatch::Shared => core.shared.end_cache(session).await,
            }
        }));
    }

    /// Whether a session is attached, or something still runs for it.
    #[must_use]
    pub fn serves(&self, session: SessionId) -> bool {
        self.attachments.iter().any(|(_, attachment)| attachment.session() == session)
    }

    /// All attachments.
    pub fn attachments(&self) -> impl Iterator<Item = (AttachmentId, &Attachment<V, S>)> {
        self.attachments.iter().map(|(id, attachment)| (*id, &**attachment))
    }

    /// The host of an attachment is gone: nothing more is taken from it.
    pub fn leave(&mut self, id: AttachmentId) {
        if let Some((_, attachment)) = self.attachments.iter().find(|(other, _)| *other == id) {
            attachment.leave();
        }
    }

    /// Releases attachments that are gone, for which nothing runs any more and whose caches are
    /// written back.
    pub fn sweep(&mut self) -> Vec<Gone> {
        let mut gone = Vec::new();
        self.attachments.retain(|(id, attachment)| {
            let idle = attachment.in_flight() == 0 && attachment.cached.get().is_none();
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
        self.core.kv.forget(session);
        self.core.shared.forget(session);
        self.core.collector.forget(session);
    }

    /// The kernel collects writes for a session that is attached, with others beside it.
    pub fn collects(&self, session: SessionId) {
        self.core.collector.attach(session);
    }

    /// One did in an earlier life of this side: who asks for a file waits until it is back.
    pub fn expect_collector(&self, session: SessionId) {
        self.core.collector.expect(session);
    }

    /// It did not come back.
    pub fn collects_no_more(&self, session: SessionId) {
        self.core.collector.forget(session);
    }

    /// One pass: takes a bounded number of commands from every queue and begins each; how many.
    pub fn poll(&mut self, spawn: &dyn Spawn) -> usize {
        self.core.passes.set(self.core.passes.get() + 1);
        let len = self.attachments.len();
        self.first = if self.first + 1 < len { self.first + 1 } else { 0 };
        let (before, from) = self.attachments.split_at(self.first.min(len));
        let mut taken = 0;
        self.core.kv.begin_recalls(spawn);
        self.core.shared.begin_recalls(spawn);
        for (_, attachment) in from.iter().chain(before) {
            taken += attachment.poll(spawn);
            Self::end_cache(attachment, spawn);
        }
        taken
    }

    /// After the work of a pass: passes on the volumes' events, and names the interrupts to raise
    /// (`None`: the event ring's).
    pub fn flush(&mut self, mut interrupt: impl FnMut(AttachmentId, Option<u16>)) {
        let (kv, shared) = (&self.core.kv, &self.core.shared);
        let untold = self.core.letting_go.take_untold().into_iter();
        for event in untold.chain(kv.take_events()).chain(shared.take_events()) {
            self.pass_on(event);
        }
        self.settle();
        for (id, attachment) in &self.attachments {
            attachment.flush(|queue| interrupt(*id, queue));
        }
    }

    /// Answers changes of which everybody has heard.
    fn settle(&self) {
        let now = (self.core.clock)();
        let behind = || {
            let all = self
                .attachments
                .iter()
                .map(|(id, attachment)| (id, attachment.posted(), attachment));
            all.filter(|(_, posted, attachment)| attachment.is_behind(*posted, now))
                .map(|(id, posted, _)| (*id, posted))
                .collect()
        };
        let is_behind = |id, number| {
            let found = self.attachments.iter().find(|(other, _)| *other == id);
            found.is_some_and(|(_, attachment)| attachment.is_behind(number, now))
        };
        self.core.letting_go.settle(behind, is_behind);
        self.ask_collector(now);
    }

    /// Has who collects writes do what others wait for, and takes note of what it did.
    fn ask_collector(&self, now: Time) {
        let collector = &self.core.collector;
        if !collector.is_awaited() {
            return;
        }
        let found = |session: SessionId| {
            let mut all = self.attachments.iter();
            all.find(|(_, a)| a.session() == session && !a.is_gone())
        };
        let tell = |session, event: &Event| {
            let (id, attachment) = found(session)?;
            Some((*id, attachment.post_now(event)?))
        };
        let acted = |id| {
            let mut all = self.attachments.iter();
            let (_, attachment) = all.find(|(other, a)| *other == id && !a.is_gone())?;
            Some(attachment.acted().unwrap_or(0))
        };
        collector.settle(now, tell, acted);
    }

    /// Whether changes wait until others have let go: then [`Service::flush`] is to be called
    /// often.
    #[must_use]
    pub fn is_awaiting(&self) -> bool {
        self.core.letting_go.is_awaited() || self.core.collector.is_awaited()
    }

    fn pass_on(&self, event: VolumeEvent) {
        let stale = event.is_stale();
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
            // Nobody's: kept back where events are taken.
            VolumeEvent::RecallPages { .. } => return,
        };
        // Nobody hears it if it left meanwhile.
        let mut all = self.attachments.iter();
        if let Some((_, attachment)) = all.find(|(_, a)| a.session() == session && !a.is_gone()) {
            attachment.notify(event);
            if stale && attachment.keeps() {
                self.core.letting_go.told();
            }
        }
    }

    /// Publishes "asleep" everywhere and looks again; false (and awake) if there is work.
    pub fn may_sleep(&mut self) -> bool {
        let recalls = self.core.kv.recalls() || self.core.shared.recalls();
        let asleep = !self.is_awaiting()
            && !recalls
            && self.attachments.iter().all(|(_, attachment)| attachment.may_sleep());
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

/// Work for an attachment that counts like a command under way: the attachment does not end before.
struct Busy<V, S>(Rc<Attachment<V, S>>);

impl<V, S> Busy<V, S> {
    fn new(attachment: &Rc<Attachment<V, S>>) -> Busy<V, S> {
        attachment.commands.set(attachment.commands.get() + 1);
        Busy(Rc::clone(attachment))
    }
}

impl<V, S> Drop for Busy<V, S> {
    fn drop(&mut self) {
        self.0.commands.set(self.0.commands.get().saturating_sub(1));
    }
}
