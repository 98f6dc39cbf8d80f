//! The DPU side as a process: one thread that serves every link to its volumes.
//!
//! ```text
//! pass:  poll all queues ─▶ run what was woken ─▶ interrupts ─▶ now and then sockets, deadlines
//!        nothing found: spin a while, yielding; then say "asleep", look once more, sleep
//! sleep: on the wakeup (of a host, or of woken work), storage, sockets, the next deadline
//! ```
//!
//! Everything outside the queues comes over the attach socket: Hello and Detach, and control
//! requests (`{"command": "status"}`, see [`Control`]). A host is gone when its socket closes. If
//! its process lives (it gave up on a side that hung), what it holds is kept for a while;
//! if not, it goes at once.
//!
//! It serves a volume for each value of bit 10 of a submission entry, or none, and does the same
//! housekeeping for both (`managed.rs`). Which volumes they are, only who opens them knows.
//!
//! Sessions are written down beside the volume, so that a DPU side that was killed knows at its
//! next start whom to wait for before it releases files and locks ([`outboard_dpc::dpu::Grace`]).

mod admission;
mod cache;
mod control;
mod managed;
mod peers;
mod sessions;

use std::io;
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use outboard_base::ledger::{Count, Ledger};
use outboard_base::{SessionId, Time};
use outboard_cache::policy::Policies;
use outboard_dpc::dpu::{AttachmentId, Grace, Limits, Service};
use outboard_link::beat::Beat;
use outboard_link::pace::{self, Pace};
use outboard_volume::{Housekeeping, NoVolume};
use outboard_wire::nvmefs::{DEPTH_MAX, Dispatch, QUEUES_MAX};
use serde_json::Value;

use crate::link::Terms;
use managed::Managed;
use outboard_os::alone;
use outboard_os::clock;
use outboard_os::event_loop::{EventLoop, Pass, Polled};
use outboard_os::runtime::Runtime;
use outboard_os::wakeup::Wakeup;
use peers::Peers;
use sessions::Sessions;

pub use control::{Content, Control, cpu_seconds, failed, ledger_json, report_json};
pub use sessions::FORMAT as SESSIONS_FORMAT;

/// How a DPU side runs.
#[derive(Clone, Debug)]
pub struct DpuOptions {
    /// Where it listens.
    pub socket: PathBuf,
    /// Permissions of the socket file: who may attach at all.
    pub socket_mode: u32,
    /// Its group, if not that of this process.
    pub socket_group: Option<u32>,
    /// Where the sessions it serves are written down.
    pub sessions: PathBuf,
    /// Queues, depth and memory of one attachment.
    pub terms: Terms,
    /// What one attachment may use.
    pub limits: Limits,
    /// Spinning and sleeping.
    pub pace: pace::Config,
    /// How long those who held something before a restart have to come back.
    pub grace: Duration,
    /// A host whose process lives but whose socket closed has this long to come back.
    pub linger: Duration,
    /// How often a volume is tidied while volumes are used.
    pub tidy_every: Duration,
    /// The heartbeat's limit at the hosts; it steps four times as often.
    pub beat_limit: Duration,
    /// User who may speak for others, beside root: the volume's owner.
    pub owner: u32,
    /// How hosts' caches are managed.
    pub policies: Policies,
    /// Whether hosts may bring caches at all.
    pub caches: bool,
    /// How it was started, for whoever asks for its status.
    pub settings: serde_json::Map<String, Value>,
}

impl DpuOptions {
    /// The defaults, for the files named.
    #[must_use]
    pub fn new(socket: PathBuf, sessions: PathBuf) -> DpuOptions {
        DpuOptions {
            socket,
            socket_mode: 0o600,
            socket_group: None,
            sessions,
            // Whatever a host may lay out: what it uses of that is limited elsewhere.
            terms: Terms {
                queues_max: QUEUES_MAX,
                depth_max: DEPTH_MAX,
                region_max: 128 << 30,
                ..Terms::default()
            },
            limits: Limits::default(),
            pace: pace::Config::default(),
            grace: Duration::from_secs(20),
            linger: Duration::from_secs(60),
            tidy_every: Duration::from_secs(3),
            beat_limit: Duration::from_secs(20),
            owner: rustix::process::geteuid().as_raw(),
            policies: Policies::default(),
            caches: true,
            settings: serde_json::Map::new(),
        }
    }
}

/// Whether a DPU side goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wish {
    /// It does.
    GoOn,
    /// It ends in order: what is under way is answered, and everything is durable.
    End,
    /// It ends at once. Nothing more is answered, and hosts ask the next that listens here.
    Abandon,
}

/// Sockets are looked at this often while there is other work.
const LOOK: Duration = Duration::from_millis(2);
/// Looks at the doorbells in one pass that finds nothing.
const LOOKS_A_PASS: usize = 8;
/// How long an orderly end waits for what is under way.
const END_LIMIT: Duration = Duration::from_secs(10);

/// A DPU side, serving: a volume that [`Dispatch::Kv`] speaks of, one that [`Dispatch::Shared`]
/// speaks of, or [`NoVolume`].
pub struct Dpu<V, R, S = NoVolume> {
    options: DpuOptions,
    service: Service<V, S>,
    kv: Managed<V>,
    shared: Managed<S>,
    runtime: Rc<R>,
    wakeup: Arc<Wakeup>,
    peers: Peers,
    sessions: Sessions,
    grace: Grace,
    ledger: Arc<Ledger>,
    started: Time,
    next_look: Time,
    next_beat: Time,
    control: Control,
    store: Box<dyn Fn() -> Value>,
    ending: Option<Time>,
}

impl<V: Housekeeping, R: Runtime> Dpu<V, R> {
    /// Begins to listen, for one volume, which [`Dispatch::Kv`] speaks of; see [`Dpu::of_both`].
    pub fn new(
        volume: Arc<V>,
        runtime: Rc<R>,
        wakeup: Arc<Wakeup>,
        options: DpuOptions,
    ) -> io::Result<Dpu<V, R>> {
        Dpu::of_both((volume, Arc::new(NoVolume)), runtime, wakeup, options)
    }
}

impl<V: Housekeeping, S: Housekeeping, R: Runtime> Dpu<V, R, S> {
    /// Which volume hosts are told to name, and whose files their caches hold: the kv or local
    /// volume, where there is one.
    const CACHED: Dispatch = if V::EXISTS { Dispatch::Kv } else { Dispatch::Shared };

    /// Begins to listen, for a kv or local volume and a shared one. `wakeup` is what `runtime`
    /// notifies when it has work; the volumes are open.
    pub fn of_both(
        (kv, shared): (Arc<V>, Arc<S>),
        runtime: Rc<R>,
        wakeup: Arc<Wakeup>,
        mut options: DpuOptions,
    ) -> io::Result<Dpu<V, R, S>> {
        let now = clock::now();
        if options.terms.instance == 0 {
            options.terms.instance = now.0 | 1;
        }
        options.terms.volume = Self::CACHED;
        let sessions = Sessions::open(&options.sessions)?;
        let grace = Grace::new(sessions.expected(), now, options.grace);
        let allowed = (options.socket_mode, options.socket_group);
        let peers = Peers::listen(&options.socket, allowed, options.owner, Arc::clone(&wakeup))?;
        if let Some(ring) = runtime.completes() {
            peers.watch_ring(ring)?;
        }
        let (clock, wall) = (Box::new(clock::now), Box::new(clock::wall));
        let service = Service::of_both(kv, shared, options.limits, clock, wall);
        let (kv, shared) = (Managed::new(service.kv(), now), Managed::new(service.shared(), now));
        match Self::CACHED {
            Dispatch::Kv => kv.expect(sessions.with_caches()),
            Dispatch::Shared => shared.expect(sessions.with_caches()),
        }
        if let Some(session) = sessions.collector() {
            service.expect_collector(session);
        }
        Ok(Dpu {
            service,
            kv,
            shared,
            runtime,
            wakeup,
            peers,
            sessions,
            grace,
            ledger: Arc::new(Ledger::default()),
            started: now,
            next_look: now,
            next_beat: now,
            control: Control::default(),
            store: Box::new(|| Value::Null),
            ending: None,
            options,
        })
    }

    /// Has `check` called before every answer; see [`Service::before_answers`].
    pub fn before_answers(&self, check: impl Fn() + 'static) {
        self.service.before_answers(Box::new(check));
    }

    /// Has `figures` asked, at every status, how the volumes' store does.
    pub fn set_store_figures(&mut self, figures: impl Fn() -> Value + 'static) {
        self.store = Box::new(figures);
    }

    /// Has `command` asked when root or the volume's owner sends a control request of that name; on
    /// a thread of its own.
    pub fn set_command(
        &mut self,
        name: &'static str,
        command: impl Fn(&Value) -> Result<Value, String> + Send + Sync + 'static,
    ) {
        self.control.commands.insert(name, Arc::new(command));
    }

    /// Has `begin` asked when root or the volume's owner sends a control request of that name, with
    /// what was dirty in caches written back; then the content is sent as a stream. On a thread of
    /// its own, one at a time.
    pub fn set_stream(
        &mut self,
        name: &'static str,
        begin: impl Fn(&Value) -> Result<(Value, Content), String> + Send + Sync + 'static,
    ) {
        self.control.streams.insert(name, Arc::new(begin));
    }

    /// Serves until a control request asks for the end, or `wish` says so (it must notify).
    pub fn run(&mut self, wish: &dyn Fn() -> Wish) -> io::Result<()> {
        let mut events = EventLoop::new(self.options.pace);
        events.run(&mut Serving { dpu: self, wish })
    }

    /// Begins what hosts ask for. A look at the doorbells costs little beside the rest of a pass,
    /// and what it finds is answered before anything else.
    fn look_at_queues(&mut self) -> usize {
        for _ in 0..LOOKS_A_PASS {
            let mut found = self.service.poll(&*self.runtime);
            found += self.look_for_kept_waiting(found.saturating_sub(1));
            if found > 0 {
                self.flush();
                return found;
            }
            std::hint::spin_loop();
        }
        0
    }

    /// If somebody waited for the device here: whom that kept waiting is there now, before anybody
    /// is answered, or was among the `others` begun with it. How many were found.
    fn look_for_kept_waiting(&mut self, others: usize) -> usize {
        if !alone::has_waited() {
            return 0;
        }
        let late = self.service.poll(&*self.runtime);
        if others + late > 0 {
            alone::was_unwelcome();
        }
        late
    }

    fn flush(&mut self) {
        let Dpu { service, peers, .. } = self;
        service.flush(|id, queue| peers.interrupt(id, queue));
    }

    /// Sockets and deadlines; how much there was to do.
    fn look_around(&mut self, now: Time, pace: &mut Pace) -> io::Result<usize> {
        self.next_look = now.after(LOOK);
        self.peers.look_after_shortage(now)?;
        let found = self.hear()?;
        self.answer_late();
        self.sweep(now);
        for session in self.service.take_handed_in() {
            self.grace.returned(session);
        }
        if self.grace.ends(now) {
            self.end_grace();
        }
        if now >= self.next_beat {
            self.next_beat = now.after(Beat::period(self.options.beat_limit));
            self.peers.beat();
            self.kv.volume.expire_recalls();
            self.shared.volume.expire_recalls();
        }
        let (answered, every) = (self.service.stats().total(), self.options.tidy_every);
        self.kv.tidy(now, answered, every, &*self.runtime);
        self.shared.tidy(now, answered, every, &*self.runtime);
        // What the volumes notify hosts of because of any of this.
        self.flush();
        let spent = pace.take_spent();
        self.ledger.count(Count::Spins, spent.spins);
        self.ledger.count(Count::SpinNs, spent.spin_ns);
        self.ledger.count(Count::Sleeps, spent.sleeps);
        Ok(found)
    }

    fn end_grace(&mut self) {
        // Who is here may have something under way that takes longer.
        let is_away = |session: &SessionId| {
            let lingers = self.peers.lingering.iter().any(|one| one.session == *session);
            !self.service.serves(*session) && !lingers
        };
        let missing: Vec<_> = self.grace.missing().filter(is_away).collect();
        for session in missing {
            tracing::warn!(%session, "did not come back in time: its files and locks are released");
            self.sessions.remove(session);
            self.service.collects_no_more(session);
        }
        self.kv.end_grace(&*self.runtime);
        self.shared.end_grace(&*self.runtime);
    }

    fn next_deadline(&self, now: Time) -> Time {
        let mut next = self.next_beat;
        let volumes = [self.kv.deadline(), self.shared.deadline()];
        let others = [self.grace.deadline(), self.peers.deadline(), self.runtime.deadline()];
        for other in volumes.into_iter().chain(others).flatten() {
            next = next.min(other);
        }
        match self.ending {
            Some(_) => next.min(now.after(LOOK)),
            None => next,
        }
    }

    /// Whether everything under way has ended, or had its time to.
    fn has_ended(&mut self, now: Time, since: Time) -> bool {
        let busy = self.service.attachments().any(|(_, attachment)| attachment.in_flight() > 0);
        let over = now.since(since) >= END_LIMIT;
        (!busy && self.runtime.waiting() == 0) || over
    }

    /// The end: everything durable, hosts see their sockets close and wait for the next life.
    fn close(&mut self) -> io::Result<()> {
        self.flush();
        self.control.end();
        let volumes =
            [self.kv.begin_close(&*self.runtime), self.shared.begin_close(&*self.runtime)];
        let has_ended = || volumes.iter().all(|closing| closing.get().is_some());
        let deadline = clock::now().after(END_LIMIT);
        while !has_ended() && clock::now() < deadline {
            if self.runtime.pass() == 0 && self.runtime.begin_sleep() {
                self.peers.sleep(LOOK)?;
                self.runtime.end_sleep();
            }
        }
        for closing in &volumes {
            closing.get().ok_or_else(|| {
                io::Error::new(
                    io::ErrorKind::TimedOut,
                    "storage did not answer in time: what was not synced is as after a crash",
                )
            })??;
        }
        Ok(())
    }
}

/// A DPU side in its loop.
struct Serving<'a, V, R, S> {
    dpu: &'a mut Dpu<V, R, S>,
    wish: &'a dyn Fn() -> Wish,
}

impl<V: Housekeeping, S: Housekeeping, R: Runtime> Polled for Serving<'_, V, R, S> {
    fn pass(&mut self, pace: &mut Pace) -> io::Result<Pass> {
        let dpu = &mut *self.dpu;
        let mut found = dpu.look_at_queues();
        found += dpu.runtime.pass();
        found += dpu.look_for_kept_waiting(0);
        if found > 0 || dpu.service.is_awaiting() {
            dpu.flush();
        }
        let now = clock::now();
        if now >= dpu.next_look {
            found += dpu.look_around(now, pace)?;
            match (self.wish)() {
                Wish::GoOn => {}
                Wish::End => {
                    dpu.ending.get_or_insert(now);
                }
                Wish::Abandon => return Ok(Pass::Over),
            }
        }
        if dpu.ending.is_some_and(|since| dpu.has_ended(now, since)) {
            return dpu.close().map(|()| Pass::Over);
        }
        if found == 0 {
            dpu.kv.volume.idle();
            dpu.shared.volume.idle();
        }
        Ok(Pass::found(found, now))
    }

    fn begin_sleep(&mut self, now: Time) -> io::Result<Option<Time>> {
        let dpu = &mut *self.dpu;
        // What was posted or started since the last pass is taken care of before.
        dpu.flush();
        let checkpoints =
            [dpu.kv.begin_checkpoint(&*dpu.runtime), dpu.shared.begin_checkpoint(&*dpu.runtime)];
        if checkpoints.contains(&true) {
            return Ok(None);
        }
        if !dpu.runtime.begin_sleep() {
            return Ok(None);
        }
        if !dpu.service.may_sleep() {
            dpu.runtime.end_sleep();
            return Ok(None);
        }
        Ok(Some(dpu.next_deadline(now)))
    }

    fn wait(&mut self, limit: Duration) -> io::Result<()> {
        self.dpu.peers.sleep(limit)
    }

    fn end_sleep(&mut self, now: Time) -> io::Result<()> {
        self.dpu.service.awake();
        self.dpu.next_look = now;
        self.dpu.runtime.end_sleep();
        Ok(())
    }
}

/// What [`Dpu`] knows of one attachment beside its service.
pub(crate) struct Attached {
    pub(crate) id: AttachmentId,
    pub(crate) link: crate::link::DpuAttachment,
}
