//! A host-side process: its session on a DPU side, attached, watched and attached again.
//!
//! Two threads stand behind a [`Host`]. The *watcher* sleeps on the interrupt words of all watched
//! queues and of the event ring, takes in answers nobody spun for, and passes events on. The
//! *reconnect* thread sleeps on the attach socket, steps the heartbeat, notices a loss, and
//! attaches again (`outboard_dpc::host::reconnect`).

mod backend;
mod connect;
mod inherit;
mod reconnect;
mod watch;
mod world;

use std::fmt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

pub use connect::Connect;
pub use inherit::{Dial, Inherited};
use outboard_base::SessionId;
use outboard_base::ledger::Ledger;
pub use outboard_cache::geometry::Shape;
pub use outboard_cache::policy::Choice;
pub use outboard_dpc::host::LossPolicy;
use outboard_dpc::host::{Front, QueuePort, QueueSlot, Session, SessionWorld, Settings};

use crate::link::{AttachFailure, HostLink, HostMemory};
use outboard_os::clock;
use outboard_wire::attach::{Company, Reason};
use world::HostWorld;

/// How a host attaches.
#[derive(Clone, Debug)]
pub struct HostOptions {
    /// Where the DPU side listens.
    pub socket: PathBuf,
    /// Queues, depth, spinning.
    pub settings: Settings,
    /// What happens to calls while the DPU side is lost.
    pub on_loss: LossPolicy,
    /// How long the first attachment may take; the DPU side may still be opening its volume.
    pub connect_timeout: Duration,
    /// A DPU side whose heartbeat stands still for this long is lost.
    pub beat_limit: Duration,
    /// The hybrid cache: pages of file data in this process's memory; `None` for none.
    pub cache: Option<Shape>,
    /// Beside whom it may be attached.
    pub company: Company,
    /// The session's memory is kept by somebody else, too: another process may take the session up
    /// when this has died.
    pub outlives: bool,
    /// Called first on each thread behind the host: a library that shares its process with a
    /// program knows its own threads from the program's.
    pub on_thread: Option<fn()>,
    /// Who connects to the DPU side; `None`: this process itself.
    pub dial: Option<Dial>,
}

impl HostOptions {
    /// The defaults, for a DPU side listening at `socket`.
    #[must_use]
    pub fn new(socket: PathBuf) -> HostOptions {
        HostOptions {
            socket,
            settings: Settings {
                owner: (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw()),
                ..Settings::default()
            },
            on_loss: LossPolicy::default(),
            connect_timeout: Duration::from_secs(30),
            // Longer than a disk may keep a DPU side busy, shorter than a user waits.
            beat_limit: Duration::from_secs(20),
            cache: None,
            company: Company::default(),
            outlives: false,
            on_thread: None,
            dial: None,
        }
    }
}

/// Why there is no [`Host`].
#[derive(Debug)]
pub enum ConnectError {
    /// The DPU side did not let it attach.
    Attach(AttachFailure),
    /// Memory, threads or random numbers could not be had.
    Io(std::io::Error),
}

impl fmt::Display for ConnectError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ConnectError::Attach(failure) => failure.fmt(f),
            ConnectError::Io(error) => write!(f, "no memory or threads for a link: {error}"),
        }
    }
}

impl std::error::Error for ConnectError {}

impl From<std::io::Error> for ConnectError {
    fn from(error: std::io::Error) -> ConnectError {
        ConnectError::Io(error)
    }
}

/// A session and the threads behind it. Dropping it leaves the DPU side as a killed process would.
pub struct Host {
    session: Arc<Session>,
    world: Arc<HostWorld>,
    ledger: Arc<Ledger>,
    stop: Arc<Stop>,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

/// Ends the threads.
struct Stop {
    asked: AtomicBool,
    wakeup: outboard_os::wakeup::Wakeup,
}

impl Stop {
    fn is_asked(&self) -> bool {
        self.asked.load(Ordering::Acquire)
    }
}

/// Whether the DPU side behind a socket will take huge pages from this process: it runs as the user
/// whose file that is.
fn takes_huge_pages(socket: &Path) -> bool {
    let own = rustix::process::geteuid().as_raw();
    own == 0 || std::fs::metadata(socket).is_ok_and(|found| found.uid() == own)
}

impl Host {
    /// Attaches to a DPU side, waiting until it is there.
    pub fn connect(
        options: HostOptions,
        front: Arc<dyn Front<QueueSlot>>,
    ) -> Result<Host, ConnectError> {
        let id = random_session()?;
        let settings = options.settings;
        let queues = settings.queues.saturating_add(1);
        let (cache, large) = (options.cache.as_ref(), takes_huge_pages(&options.socket));
        let memory = HostMemory::create_with(id, queues, settings.depth, cache, large)?;
        let memory = Arc::new(memory.wishing(options.company, options.outlives));
        let plane = memory.format_cache()?;
        let link = Arc::new(first_link(&options, &memory)?);
        let ledger = Arc::new(Ledger::default());
        let no_queues = |text: &str| ConnectError::Io(std::io::Error::other(text.to_owned()));
        let initiators = link
            .initiators(&memory, &ledger)
            .map_err(|_| no_queues("the link's queues do not fit its memory"))?;
        let world = Arc::new(HostWorld::new(Arc::clone(&link), usize::from(queues)));
        let as_world: Arc<dyn SessionWorld> = Arc::clone(&world) as Arc<dyn SessionWorld>;
        let settings = Settings { dispatch: link.volume(), ..settings };
        let session = Session::with_cache(id, settings, initiators, as_world, front, plane)
            .map_err(|errno| no_queues(&format!("queues and depth do not go together: {errno}")))?;
        Host::begin(options, memory, session, world, ledger)
    }

    fn begin(
        options: HostOptions,
        memory: Arc<HostMemory>,
        session: Arc<Session>,
        world: Arc<HostWorld>,
        ledger: Arc<Ledger>,
    ) -> Result<Host, ConnectError> {
        let stop = Arc::new(Stop {
            asked: AtomicBool::new(false),
            wakeup: outboard_os::wakeup::Wakeup::new()?,
        });
        let host = Host { session, world, ledger, stop, threads: Mutex::default() };
        host.start(options, memory)?;
        Ok(host)
    }

    fn start(&self, options: HostOptions, memory: Arc<HostMemory>) -> std::io::Result<()> {
        let (session, world, stop) =
            (Arc::clone(&self.session), Arc::clone(&self.world), Arc::clone(&self.stop));
        let (watched, on_thread) = (Arc::clone(&memory), options.on_thread);
        let watcher = move || {
            on_thread.into_iter().for_each(|begin| begin());
            watch::run(&session, &world, &watched, &stop);
        };
        self.spawn("link-watch", watcher)?;
        let (session, world, stop) =
            (Arc::clone(&self.session), Arc::clone(&self.world), Arc::clone(&self.stop));
        let reconnect = move || {
            on_thread.into_iter().for_each(|begin| begin());
            reconnect::run(&options, &session, &world, &memory, &stop);
        };
        self.spawn("link-reconnect", reconnect)
    }

    fn spawn(&self, name: &str, body: impl FnOnce() + Send + 'static) -> std::io::Result<()> {
        let thread = std::thread::Builder::new().name(name.to_owned()).spawn(body)?;
        self.threads.lock().unwrap_or_else(PoisonError::into_inner).push(thread);
        Ok(())
    }

    /// The session: ports, aborts, figures.
    #[must_use]
    pub fn session(&self) -> &Arc<Session> {
        &self.session
    }

    /// The world the session runs in.
    #[must_use]
    pub fn world(&self) -> Arc<dyn SessionWorld> {
        Arc::clone(&self.world) as Arc<dyn SessionWorld>
    }

    /// What this side has counted: doorbells, wake-ups.
    #[must_use]
    pub fn ledger(&self) -> &Arc<Ledger> {
        &self.ledger
    }

    /// Whether the DPU side is there.
    #[must_use]
    pub fn is_attached(&self) -> bool {
        !self.world.link().is_lost()
    }

    /// Leaves in order: nothing may be in flight, and calls made later never come back. The DPU
    /// side releases everything this process held. Done once; nothing happens the second time.
    pub fn detach(&self, timeout: Duration) -> std::io::Result<()> {
        if self.stop.is_asked() {
            return Ok(());
        }
        self.end_threads();
        self.world.link().detach(timeout)
    }

    fn end_threads(&self) {
        self.stop.asked.store(true, Ordering::Release);
        self.stop.wakeup.notify();
        self.world.disturb();
        let threads =
            std::mem::take(&mut *self.threads.lock().unwrap_or_else(PoisonError::into_inner));
        for thread in threads {
            if thread.join().is_err() {
                tracing::error!("a thread of the link panicked");
            }
        }
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        self.end_threads();
    }
}

fn random_session() -> std::io::Result<SessionId> {
    use std::io::Read;
    let mut bytes = [0; 8];
    std::fs::File::open("/dev/urandom")?.read_exact(&mut bytes)?;
    Ok(SessionId(u64::from_le_bytes(bytes) | 1))
}

/// Attaches, trying again while nobody listens.
fn first_link(options: &HostOptions, memory: &HostMemory) -> Result<HostLink, ConnectError> {
    let deadline = clock::now().after(options.connect_timeout);
    let mut pause = Duration::from_millis(2);
    loop {
        match attach(options, memory, options.connect_timeout) {
            Ok(link) => return Ok(link),
            Err(failure) if clock::now() < deadline && may_come(&failure) => {
                std::thread::sleep(pause);
                pause = (pause * 2).min(Duration::from_millis(100));
            }
            Err(failure) => return Err(ConnectError::Attach(failure)),
        }
    }
}

/// One attempt to attach.
fn attach(
    options: &HostOptions,
    memory: &HostMemory,
    timeout: Duration,
) -> Result<HostLink, AttachFailure> {
    match &options.dial {
        Some(dial) => HostLink::attach_over(dial.connect()?, memory, timeout),
        None => HostLink::attach(&options.socket, memory, timeout),
    }
}

/// Whether waiting may help: nobody listens yet, or the last requests of a predecessor still run.
fn may_come(failure: &AttachFailure) -> bool {
    use std::io::ErrorKind::{ConnectionRefused, ConnectionReset, NotFound, WouldBlock};
    match failure {
        AttachFailure::Io(error) => {
            matches!(error.kind(), NotFound | ConnectionRefused | ConnectionReset | WouldBlock)
        }
        AttachFailure::Refused(reason, _) => matches!(reason, Reason::Busy | Reason::Closing),
        AttachFailure::Smaller(_) | AttachFailure::Protocol(_) => false,
    }
}
