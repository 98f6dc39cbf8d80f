//! The DPU side of a page server, as far as files go: a thread that owns the device, and pumps the
//! rings of every attached host.
//!
//! ```text
//! pass:  pump every group ─▶ run what was woken, take in what the device completed ─▶ wake hosts
//!        nothing found: spin a while, yielding; then say "asleep", look once more, sleep
//! sleep: on the wakeup (of a host, or of woken work), the device, sockets, the next deadline
//! ```
//!
//! A host is gone when its socket closes: its groups go at once, what they had begun ends by itself
//! and is answered to nobody. What the cache table knows is forgotten then, since nobody says any
//! more what becomes wrong.

mod attached;
mod control;
mod sockets;
#[cfg(test)]
mod tests;

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::thread::JoinHandle;
use std::time::Duration;

use outboard_base::Time;
use outboard_base::ledger::{Count, Ledger};
use outboard_dds::dpu::files::{FileService, Layout, OpenError};
use outboard_dds::dpu::offload::Application;
use outboard_dds::dpu::offload::health::Health;
use outboard_dds::dpu::offload::plugin::Maintainer;
use outboard_dds::dpu::pump;
use outboard_dds::dpu::pump::summary::Summary;
use outboard_dds::table;
use outboard_link::pace::{self, Pace};
use outboard_medium::Medium;
use outboard_medium::hold::Holding;

use super::backup;
use super::maintainer::AppMaintainer;
use control::Control;
use outboard_os::alone;
use outboard_os::clock;
use outboard_os::event_loop::{EventLoop, Pass, Polled};
use outboard_os::executor::block_on;
use outboard_os::medium::{FileMedium, MediumOptions, Reactor};
use outboard_os::room::Reserve;
use outboard_os::runtime::{Poller, Runtime};
use outboard_os::wakeup::Wakeup;
use serde_json::Value;
use sockets::Sockets;

/// The file service over a file or device.
pub type Files = FileService<Arc<Holding<FileMedium>>>;

/// Operations of the device under way at once.
const DEPTH: u32 = 256;
/// Sockets are looked at this often while there is other work.
const LOOK: Duration = Duration::from_millis(2);
/// Longest sleep.
const NAP: Duration = Duration::from_secs(1);
/// How long an orderly end waits for what is under way.
const END_LIMIT: Duration = Duration::from_secs(10);

/// Bytes of a new volume of which nothing is said.
pub const NEW_CAPACITY: u64 = 64 << 30;

/// How a server is set up.
pub struct ServerOptions {
    /// The file or block device.
    pub device: PathBuf,
    /// Bytes of a new volume, where the device is a file that is not there yet; one that is there
    /// and smaller grows to so many. `None`: [`NEW_CAPACITY`], and none grows.
    pub capacity: Option<u64>,
    /// Space of the disk that growth leaves free.
    pub reserve: Reserve,
    /// Every read takes this much longer; for measuring.
    pub read_delay: Duration,
    /// Where hosts attach.
    pub socket: PathBuf,
    /// Permissions of the socket file.
    pub socket_mode: u32,
    /// Items of the cache table.
    pub items: usize,
    /// What says which of them there are.
    pub application: Option<Arc<dyn Application>>,
    /// What is thought of it; the same for all who ask it.
    pub health: Arc<Health>,
    /// Or who does so in another process.
    pub maintainer: Option<Arc<dyn Maintainer>>,
    /// Spinning and sleeping.
    pub pace: pace::Config,
    /// Batches of responses.
    pub pump: pump::Config,
}

impl ServerOptions {
    /// The defaults, for the files named.
    #[must_use]
    pub fn new(device: PathBuf, socket: PathBuf) -> ServerOptions {
        ServerOptions {
            device,
            capacity: None,
            reserve: Reserve::default(),
            read_delay: Duration::ZERO,
            socket,
            socket_mode: 0o600,
            items: 1 << 20,
            application: None,
            health: Arc::default(),
            maintainer: None,
            pace: pace::Config::default(),
            pump: pump::Config::default(),
        }
    }
}

/// A server that runs.
pub struct Server {
    files: Arc<Files>,
    table: table::Reader,
    ledger: Arc<Ledger>,
    control: Control,
    stop: Arc<AtomicBool>,
    wakeup: Arc<Wakeup>,
    thread: Option<JoinHandle<io::Result<()>>>,
}

/// What the thread hands out once it is ready.
type Ready = (Arc<Files>, table::Reader, Arc<Ledger>, Control, Arc<Wakeup>);

impl Server {
    /// Opens the device, making a volume on one that is empty, and serves on a thread of its own.
    ///
    /// # Errors
    /// The device cannot be opened or holds something else; the socket is in use.
    pub fn start(options: ServerOptions) -> io::Result<Server> {
        let stop = Arc::new(AtomicBool::new(false));
        let (ready, wait) = mpsc::channel();
        let told = Arc::clone(&stop);
        let thread = std::thread::Builder::new().name("dds-files".to_owned()).spawn(move || {
            // The reactor belongs to its thread, and so does everything that lives with it.
            let mut events = EventLoop::new(options.pace);
            let mut serving = Serving::open(options, told)?;
            // Who waited for this may have given up: then the stop flag says so too.
            let _given_up = ready.send(serving.ready());
            drop(ready);
            events.run(&mut serving)
        })?;
        match wait.recv() {
            Ok((files, table, ledger, control, wakeup)) => {
                Ok(Server { files, table, ledger, control, stop, wakeup, thread: Some(thread) })
            }
            Err(_) => Err(ended(thread)),
        }
    }

    /// The files. Any thread may ask; one with a [`Reactor`] does its I/O there.
    #[must_use]
    pub fn files(&self) -> &Arc<Files> {
        &self.files
    }

    /// The cache table.
    #[must_use]
    pub fn table(&self) -> &table::Reader {
        &self.table
    }

    /// What is counted.
    #[must_use]
    pub fn ledger(&self) -> &Arc<Ledger> {
        &self.ledger
    }

    /// From now on a status says under `name` what `tell` says.
    pub fn tell(&self, name: &'static str, tell: impl Fn() -> Value + Send + 'static) {
        self.control.add(name, Box::new(tell));
    }

    /// Whether it still serves.
    #[must_use]
    pub fn is_serving(&self) -> bool {
        self.thread.as_ref().is_some_and(|thread| !thread.is_finished())
    }

    /// Ends it in order: what is under way ends, and everything answered is made durable.
    ///
    /// # Errors
    /// What ended it before, or the last flush's.
    pub fn stop(mut self) -> io::Result<()> {
        self.tell_to_stop();
        self.thread.take().map_or(Ok(()), |thread| match thread.join() {
            Ok(outcome) => outcome,
            Err(_) => Err(io::Error::other("the file service panicked")),
        })
    }

    fn tell_to_stop(&self) {
        self.stop.store(true, Ordering::SeqCst);
        self.wakeup.notify();
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.tell_to_stop();
        if let Some(thread) = self.thread.take() {
            // Who wants to know how it ended calls `stop`.
            let _outcome = thread.join();
        }
    }
}

fn ended(thread: JoinHandle<io::Result<()>>) -> io::Error {
    match thread.join() {
        Ok(Err(error)) => error,
        _ => io::Error::other("the file service ended before it began"),
    }
}

/// Opens the volume on a device, makes one where nothing is, or one larger that is to be.
fn open_files(medium: backup::Held, capacity: Option<u64>) -> Result<Files, OpenError> {
    // Of a device the space is what it has.
    let is_device = medium.inner().is_device();
    let wanted = capacity.map(|wanted| if is_device { medium.len() } else { wanted });
    let grown = wanted.map(|wanted| block_on(FileService::grow(&medium, wanted))).transpose();
    if let Ok(Some((before, now))) = grown
        && before < now
    {
        tracing::info!(before, now, "the volume has grown");
    }
    match grown.and_then(|_| block_on(FileService::open(Arc::clone(&medium)))) {
        Err(OpenError::Empty) => {
            // A file that is there already may be what is left of a volume half made.
            let asked = if is_device { 0 } else { wanted.unwrap_or(NEW_CAPACITY) };
            let space = asked.max(medium.len());
            let layout = Layout::for_capacity(space);
            block_on(FileService::format(&medium, layout, clock::now().0 | 1, false))?;
            tracing::info!(segments = layout.segments, bytes = layout.segment, "volume made");
            block_on(FileService::open(medium))
        }
        other => other,
    }
}

/// The thread's own.
struct Serving {
    files: Arc<Files>,
    table: table::Reader,
    summary: Arc<Summary>,
    health: Arc<Health>,
    runtime: Poller,
    wakeup: Arc<Wakeup>,
    sockets: Sockets,
    pump: pump::Config,
    ledger: Arc<Ledger>,
    control: Control,
    backup: backup::Source,
    stop: Arc<AtomicBool>,
    started: Time,
    next_look: Time,
}

impl Serving {
    fn open(options: ServerOptions, stop: Arc<AtomicBool>) -> io::Result<Serving> {
        let control = Control::default();
        let sockets = Sockets::listen(&options.socket, options.socket_mode, control.clone())?;
        let wakeup = Arc::new(Wakeup::new()?);
        sockets.watch(&wakeup)?;
        // Without io_uring the medium does its I/O on threads.
        let reactor = Reactor::install_registering(DEPTH).ok();
        let medium_options = MediumOptions {
            threads: 2,
            reserve: options.reserve,
            read_delay: options.read_delay,
            ..MediumOptions::default()
        };
        let medium = FileMedium::open(&options.device, medium_options)
            .map_err(|error| named(&options.device, &error, error.kind()))?;
        let device = Arc::new(Holding::new(medium));
        let (held, reserve) = (Arc::clone(&device), options.reserve);
        let backup = backup::Source::new(held, &options.device, reserve, Arc::clone(&stop));
        let files = open_files(device, options.capacity)
            .map_err(|error| named(&options.device, &error, io::ErrorKind::InvalidData))?;
        let seed = clock::wall();
        let seed = seed.sec.unsigned_abs() << 30 ^ u64::from(seed.nsec) ^ files.name();
        let (writer, table) =
            table::with_capacity(options.items, seed).map_err(io::Error::other)?;
        let health = options.health;
        let maintainer = match (options.maintainer, options.application) {
            (None, Some(app)) => {
                let maintainer = AppMaintainer::new(app, Arc::clone(&health))?;
                Some(Arc::new(maintainer) as Arc<dyn Maintainer>)
            }
            (maintainer, _) => maintainer,
        };
        Ok(Serving {
            files: Arc::new(files),
            table,
            summary: Arc::new(Summary::new(maintainer, Arc::clone(&health), writer)),
            health,
            runtime: Poller::new(Arc::clone(&wakeup), reactor),
            wakeup,
            sockets,
            pump: options.pump,
            ledger: Arc::new(Ledger::default()),
            control,
            backup,
            stop,
            started: clock::now(),
            next_look: clock::now(),
        })
    }

    fn ready(&self) -> Ready {
        let (files, ledger, wakeup) = (&self.files, &self.ledger, &self.wakeup);
        let (table, control) = (self.table.clone(), self.control.clone());
        (Arc::clone(files), table, Arc::clone(ledger), control, Arc::clone(wakeup))
    }

    /// One pass over every group; how much was found.
    fn pump_all(&mut self, now: Time) -> usize {
        let Serving { sockets, runtime, ledger, .. } = self;
        sockets.attached().map(|attached| attached.pass(now, runtime, ledger)).sum()
    }

    fn look_around(&mut self, now: Time, pace: &mut Pace) -> io::Result<usize> {
        self.next_look = now.after(LOOK);
        while self.wakeup.drain()? {}
        let heard = self.sockets.hear(&attached::Terms {
            files: &self.files,
            summary: &self.summary,
            health: &self.health,
            config: self.pump,
            ledger: &self.ledger,
            wakeup: &self.wakeup,
            table: &self.table,
            backup: &self.backup,
            started: self.started,
        })?;
        let spent = pace.take_spent();
        self.ledger.count(Count::Spins, spent.spins);
        self.ledger.count(Count::SpinNs, spent.spin_ns);
        self.ledger.count(Count::Sleeps, spent.sleeps);
        Ok(heard)
    }

    fn set_asleep(&mut self, asleep: bool) {
        self.sockets.attached().for_each(|attached| attached.set_asleep(asleep));
    }

    /// The end: what is under way, then everything durable. Hosts see their sockets close.
    fn close(&mut self) -> io::Result<()> {
        let deadline = clock::now().after(END_LIMIT);
        while self.runtime.waiting() > 0 && clock::now() < deadline {
            if self.runtime.pass() == 0 {
                self.runtime.sleep(self.sockets.fd(), LOOK)?;
            }
            self.pump_delivered();
        }
        Ok(block_on(self.files.flush_all())?)
    }

    fn pump_delivered(&mut self) {
        let now = clock::now();
        self.pump_all(now);
    }
}

impl Polled for Serving {
    fn pass(&mut self, pace: &mut Pace) -> io::Result<Pass> {
        let now = clock::now();
        let mut found = self.pump_all(now);
        found += self.runtime.pass();
        if alone::has_waited() && self.pump_all(clock::now()) > 0 {
            // Somebody waited for the device here, and kept others waiting.
            alone::was_unwelcome();
            found += 1;
        }
        if now >= self.next_look {
            found += self.look_around(now, pace)?;
            if self.stop.load(Ordering::SeqCst) {
                return self.close().map(|()| Pass::Over);
            }
        }
        Ok(Pass::found(found, now))
    }

    fn begin_sleep(&mut self, now: Time) -> io::Result<Option<Time>> {
        if !self.runtime.begin_sleep() {
            return Ok(None);
        }
        self.set_asleep(true);
        outboard_link::region::fence();
        if self.pump_all(now) > 0 || self.stop.load(Ordering::SeqCst) {
            self.set_asleep(false);
            self.runtime.end_sleep();
            return Ok(None);
        }
        let next = self.sockets.attached().filter_map(|attached| attached.next_deadline(now));
        Ok(Some(next.fold(now.after(NAP), Time::min)))
    }

    fn wait(&mut self, limit: Duration) -> io::Result<()> {
        self.runtime.sleep(self.sockets.fd(), limit)
    }

    fn end_sleep(&mut self, now: Time) -> io::Result<()> {
        self.next_look = now;
        self.set_asleep(false);
        self.runtime.end_sleep();
        Ok(())
    }
}

fn named(device: &Path, error: &dyn std::fmt::Display, kind: io::ErrorKind) -> io::Error {
    io::Error::new(kind, format!("{}: {error}", device.display()))
}
