//! What belongs to the thread a worker runs on: its ring, the reads under way there, its calls of
//! the application.
//!
//! A call may never return. So whoever sits here sets the worker down before ([`Parked`]), with
//! every connection it has, and takes it up again after; meanwhile the thread holds nothing but the
//! jobs. A worker that lies there too long is given to another thread by the watch, and the one
//! that comes back finds nothing parked, and ends.
//!
//! ```text
//!  read all legs ─▶ jobs? ── set down ─▶ user code ─▶ take up ─▶ begin reads ─▶ send
//!                                  │                        │
//!                                  └── lost: a fresh context   └── nothing there: end
//!                                      takes it over
//! ```

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use outboard_base::Time;
use outboard_dds::dpu::director::{Job, ToRead};
use outboard_dds::dpu::offload::contained::Contained;
use outboard_dds::dpu::offload::engine::{Filled, Ticket};
use outboard_dds::dpu::offload::health::Lost;
use outboard_link::pace::{self, Pace};

use super::port::{News, Port};
use super::worker::{Files, Setup, Worker};
use crate::plugin::{Asking, Plugin};
use crate::watchdog::{WatchdogHandle, WatchedThread};
use outboard_os::clock;
use outboard_os::event_loop::{EventLoop, Pass, Polled, look_for};
use outboard_os::executor::{Executor, Started};
use outboard_os::medium::Reactor;

type Reading = Pin<Box<dyn Future<Output = (Ticket, Filled)>>>;

/// Longest sleep: nothing waits for it, it only bounds what a lost wake-up could cost.
const SLEEP_MAX: Duration = Duration::from_secs(60);
/// A worker looks for the ends of few reads as long as a quick device takes. A slower one is slept
/// for.
const FEW: pace::Config = pace::Config {
    spin: Duration::from_micros(20),
    yield_after: Duration::from_micros(4),
    near: Duration::from_micros(40),
};
/// From so many reads under way on, one ends soon on a slow device, too: sooner than a sleeping
/// core is woken.
const SEVERAL: usize = 4;
/// How long it looks then.
const MANY: pace::Config = pace::Config {
    spin: Duration::from_micros(100),
    yield_after: Duration::from_micros(4),
    near: Duration::from_micros(200),
};

/// The thread that runs a worker now.
#[derive(Default)]
pub(super) struct WorkerThread(Mutex<Option<JoinHandle<()>>>);

impl WorkerThread {
    pub(super) fn lock(&self) -> MutexGuard<'_, Option<JoinHandle<()>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Where a worker lies while user code runs.
struct Parked<F: Files, P: Port>(Mutex<Option<Box<Worker<F, P>>>>);

impl<F: Files, P: Port> Parked<F, P> {
    fn place(&self) -> MutexGuard<'_, Option<Box<Worker<F, P>>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Where a worker's threads come from.
pub(super) struct ThreadSource {
    pub(super) name: String,
    pub(super) thread: Arc<WorkerThread>,
    pub(super) watchdog: WatchdogHandle,
}

/// One thread's own. `W` is not to be kept by it.
pub(super) struct ExecutorContext<F: Files, P: Port> {
    setup: Setup<F>,
    calls: Contained,
    watched: WatchedThread,
    parked: Arc<Parked<F, P>>,
    jobs: Vec<Job>,
    /// Who divides the messages, if that is not the application here.
    plugin: Option<Asking>,
    executor: Executor<Reading>,
    reactor: Option<Reactor>,
    /// The application was off when this began: nothing is read yet.
    is_dormant: bool,
    /// While few reads are under way, and while several are.
    paces: [Pace; 2],
}

impl<F: Files, P: Port> ExecutorContext<F, P> {
    /// For the thread it is called on, and `worker`.
    pub(super) fn new(
        source: &Arc<ThreadSource>,
        worker: &Worker<F, P>,
        plugin: Option<Plugin>,
    ) -> io::Result<Self> {
        let setup = worker.setup();
        let is_dormant = setup.health.is_off();
        let reactor = if is_dormant { None } else { reactor() };
        let wakeup = &worker.call().wakeup;
        let notifier = wakeup.notifier()?;
        let plugin = plugin.map(|plugin| Asking::new(plugin, wakeup)).transpose()?;
        // Read after each call of user code, of which a message takes three or more.
        let clock = || clock::coarse().0;
        let calls = Contained::new(Box::new(clock), Arc::clone(&setup.health));
        let parked = Arc::new(Parked(Mutex::new(None)));
        let (left, source) = (Arc::clone(&parked), Arc::clone(source));
        let watchdog = source.watchdog.clone();
        let relieve = move |lost| relieve(&source, &left, lost);
        let watched = watchdog.watch_me(calls.progress(), relieve);
        Ok(ExecutorContext {
            setup: setup.clone(),
            calls,
            watched,
            parked,
            jobs: Vec::new(),
            plugin,
            executor: Executor::new(setup.contexts, move || notifier.notify()),
            reactor,
            is_dormant,
            paces: [Pace::new(FEW), Pace::new(MANY)],
        })
    }

    /// Serves until told to stop, or until another has taken over.
    pub(super) fn serve(&mut self, worker: Box<Worker<F, P>>) {
        let mut serving = Serving { context: self, worker: Some(worker), news: Vec::new() };
        if let Err(error) = EventLoop::without_spinning().run(&mut serving) {
            ended(&error);
        }
    }

    /// One pass over everything the worker has; `None` if it is another's now.
    fn pass(
        &mut self,
        mut worker: Box<Worker<F, P>>,
        news: &mut Vec<News>,
    ) -> io::Result<Option<Box<Worker<F, P>>>> {
        if self.is_dormant && !self.setup.health.is_off() {
            self.is_dormant = false;
            self.reactor = reactor();
            worker.revive();
        }
        // Who is idle has slept, and was told there what is new.
        if !worker.is_idle() {
            self.glance(&mut worker, news)?;
        }
        worker.hear(news)?;
        worker.end_idle();
        worker.receive_all();
        if let Some(plugin) = &mut self.plugin {
            worker.divide(plugin);
        }
        let Some(mut worker) = self.run_jobs(worker) else { return Ok(None) };
        self.begin_reads(&mut worker);
        self.reap(&mut worker);
        let Some(mut worker) = self.run_jobs(worker) else { return Ok(None) };
        worker.send_all(news);
        worker.hear(news)?;
        Ok(Some(worker))
    }

    /// Asks the application what there is to ask; `None` if that took so long that the worker is
    /// another's now.
    fn run_jobs(&mut self, mut worker: Box<Worker<F, P>>) -> Option<Box<Worker<F, P>>> {
        if !worker.take_jobs(&mut self.jobs) {
            return Some(worker);
        }
        *self.parked.place() = Some(worker);
        let Setup { app, table, .. } = &self.setup;
        self.calls.begin();
        self.watched.attend();
        for job in &mut self.jobs {
            job.run(&**app, &**table, &mut self.calls);
        }
        self.calls.end();
        let Some(mut worker) = self.parked.place().take() else {
            self.setup.health.came_back(self.watched.thread, clock::coarse());
            return None;
        };
        worker.bring(&mut self.jobs);
        Some(worker)
    }

    /// Waits for the port, the wakeup, the ends of reads, or the plug-in.
    fn sleep(
        &mut self,
        worker: &mut Worker<F, P>,
        limit: Duration,
        news: &mut Vec<News>,
    ) -> io::Result<()> {
        let Some(plugin) = &mut self.plugin else {
            return self.sleep_for(worker, limit, news);
        };
        if plugin.spin() {
            return worker.port().look(Duration::ZERO, news);
        }
        let limit = plugin.begin_sleep().unwrap_or(limit).min(limit);
        let slept = self.sleep_for(worker, limit, news);
        if let Some(plugin) = &mut self.plugin {
            plugin.end_sleep();
        }
        slept
    }

    fn sleep_for(
        &mut self,
        worker: &mut Worker<F, P>,
        limit: Duration,
        news: &mut Vec<News>,
    ) -> io::Result<()> {
        if self.executor.running() == 0 {
            return worker.port().look(limit, news);
        }
        if self.find_ended(worker) {
            // The port is looked at when what was read has been sent.
            return Ok(());
        }
        if self.executor.begin_sleep() {
            let from = clock::now();
            let port = worker.port();
            let slept = match &self.reactor {
                Some(reactor) => reactor.wait(port.fd(), limit.min(port.patience())),
                None => port.look(limit, news),
            };
            self.executor.end_sleep();
            slept?;
            // Who was woken by a socket does not know how long it would have slept.
            let under_way = self.executor.running();
            if self.reap(worker) > 0 {
                self.pace(under_way).slept(from, clock::now());
            }
        }
        self.reap(worker);
        self.glance(worker, news)
    }

    /// Looks at the port without waiting, unless nothing can be new there.
    fn glance(&mut self, worker: &mut Worker<F, P>, news: &mut Vec<News>) -> io::Result<()> {
        let silent = self.reactor.as_ref().is_some_and(|reactor| {
            reactor.poll();
            !reactor.take_notified()
        });
        let port = worker.port();
        if silent && port.patience() >= SLEEP_MAX {
            return Ok(());
        }
        port.look(Duration::ZERO, news)
    }

    /// Looks for a read that ends, while that pays; whether there was one.
    fn find_ended(&mut self, worker: &mut Worker<F, P>) -> bool {
        let under_way = self.executor.running();
        let mut pace = *self.pace(under_way);
        let found = look_for(&mut pace, || {
            if self.reap(worker) > 0 {
                return Some(true);
            }
            // A socket came first: the sleep that follows ends at once.
            self.reactor.as_ref().is_some_and(Reactor::was_notified).then_some(false)
        });
        *self.pace(under_way) = pace;
        found.unwrap_or(false)
    }

    fn pace(&mut self, under_way: usize) -> &mut Pace {
        let [few, many] = &mut self.paces;
        if under_way < SEVERAL { few } else { many }
    }

    /// Takes ended reads to the director; how many.
    fn reap(&mut self, worker: &mut Worker<F, P>) -> usize {
        if self.executor.running() == 0 {
            return 0;
        }
        if let Some(reactor) = &self.reactor {
            reactor.poll();
        }
        let mut ended = 0;
        self.executor.poll(|_, (ticket, filled)| {
            ended += 1;
            worker.read_ended(ticket, filled);
        });
        ended
    }

    fn begin_reads(&mut self, worker: &mut Worker<F, P>) {
        while let Some(ToRead { ticket, read, buffer }) = worker.next_read() {
            let (files, thread) = (Arc::clone(&self.setup.files), self.watched.thread);
            let reading: Reading =
                Box::pin(async move { (ticket, files.read(thread, read, buffer).await) });
            // The ring of contexts is as long as the executor: there is room.
            if let Ok(Started::Done((ticket, filled))) = self.executor.start(reading) {
                worker.read_ended(ticket, filled);
            }
        }
        // Who looks for ends for long hears of its sockets meanwhile.
        if let Some(reactor) = self.reactor.as_ref().filter(|_| self.executor.running() >= SEVERAL)
        {
            reactor.watch(worker.port().fd());
        }
    }
}

/// The ring of the thread that calls this.
fn reactor() -> Option<Reactor> {
    let reactor = Reactor::install_waiting(256);
    reactor
        .map_err(|error| {
            tracing::warn!(%error, "no io_uring for offloaded reads; threads serve them");
        })
        .ok()
}

/// A worker in its thread's loop. It sleeps as soon as nothing is left to do: what pays to be
/// looked for, the end of a read, is looked for in [`ExecutorContext::find_ended`].
struct Serving<'a, F: Files, P: Port> {
    context: &'a mut ExecutorContext<F, P>,
    /// Gone if another thread has taken it over.
    worker: Option<Box<Worker<F, P>>>,
    news: Vec<News>,
}

impl<F: Files, P: Port> Polled for Serving<'_, F, P> {
    fn pass(&mut self, _: &mut Pace) -> io::Result<Pass> {
        let Some(worker) = self.worker.take() else { return Ok(Pass::Over) };
        if worker.call().is_stopped() {
            return Ok(Pass::Over);
        }
        let Some(worker) = self.context.pass(worker, &mut self.news)? else {
            return Ok(Pass::Over);
        };
        let busy = usize::from(!worker.is_idle());
        self.worker = Some(worker);
        Ok(Pass::found(busy, clock::now()))
    }

    fn begin_sleep(&mut self, now: Time) -> io::Result<Option<Time>> {
        let Some(worker) = self.worker.as_ref().filter(|worker| !worker.call().is_stopped()) else {
            return Ok(None);
        };
        let latest = now.after(SLEEP_MAX);
        Ok(Some(worker.next_sweep().map_or(latest, |sweep| sweep.min(latest))))
    }

    fn wait(&mut self, limit: Duration) -> io::Result<()> {
        let Serving { context, worker, news } = self;
        worker.as_mut().map_or(Ok(()), |worker| context.sleep(worker, limit, news))
    }

    fn end_sleep(&mut self, _: Time) -> io::Result<()> {
        Ok(())
    }
}

/// Gives the worker that a lost thread has set down to a fresh one; false if it was taken up again,
/// or there is no thread to be had now.
fn relieve<F: Files, P: Port>(
    source: &Arc<ThreadSource>,
    parked: &Parked<F, P>,
    lost: Lost,
) -> bool {
    // Whoever waits for the end of the worker's thread waits for the new one.
    let mut running = source.thread.lock();
    // Whoever comes back now finds what became of it.
    let mut place = parked.place();
    let Some(worker) = place.take() else { return false };
    worker.setup().health.lose(lost, clock::coarse());
    let (given, name) = (Arc::new(Mutex::new(Some(worker))), source.name.clone());
    let (taken, at) = (Arc::clone(&given), Arc::clone(source));
    let serve = move || {
        let worker = taken.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(mut worker) = worker {
            worker.take_over(lost);
            match ExecutorContext::new(&at, &worker, None) {
                Ok(mut context) => context.serve(worker),
                Err(error) => ended(&error),
            }
        }
    };
    match std::thread::Builder::new().name(name).spawn(serve) {
        Ok(thread) => {
            *running = Some(thread);
            true
        }
        Err(error) => {
            tracing::warn!(%error, "no thread to take over a worker of the director; tried again");
            *place = given.lock().unwrap_or_else(PoisonError::into_inner).take();
            false
        }
    }
}

fn ended(error: &io::Error) {
    tracing::error!(%error, "a worker of the director ended; its flows are closed");
}
