//! The process of a mount that outlives it: started, and another started when it dies.
//!
//! The connection to the kernel and the session's memory are held here; a process that serves them
//! is given them. What it had under way when it died the kernel sends again to the next, which
//! answers each request once (`docs/internals/outlive.md`).

use std::cell::RefCell;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, ExitStatus, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use outboard_attach::host::{HostOptions, Inherited};
use outboard_base::SessionId;
use outboard_fuse::{Connection, is_dead};
use outboard_link::records::take_mark;
use outboard_os::shm::Shared;
use rustix::process::{Pid, PidfdFlags, Signal};

use crate::exit::Failure;
use crate::handover::{End, Terms, Word};
use crate::program;
use crate::restarts::Restarts;
use crate::service::{self, Manager, has_ended};
use crate::settings::Settings;
use crate::successor::form;

/// Room for what a mount's process writes down of inodes the kernel knows: 4 million of them. Taken
/// as it is used.
pub(crate) const INODES: u64 = 256 << 20;
/// Between two looks whether a process has ended.
const PAUSE: Duration = Duration::from_millis(2);
/// So many processes in a row that answered nothing are enough: the mount is given up.
const STRIKES: u32 = 8;

/// With this a process ends that was told to, and whose mount another is to serve.
pub(crate) const LEFT: i32 = 75;
/// So long a process has for that before it is killed, which is no worse than a kill at any time.
const LEAVE_LIMIT: Duration = Duration::from_secs(5);
/// Between two signals: one that comes before the process listens for it kills it.
const LEAVE_LOOK: Duration = Duration::from_millis(20);

/// The thread that has a mount served.
pub(crate) type Served = JoinHandle<Result<(), Failure>>;

/// What came of it.
pub(crate) fn end_of(served: Served) -> Result<(), Failure> {
    let panicked = "the thread of the mount's process panicked";
    served.join().map_err(|_| Failure::internal(panicked.to_owned()))?
}

fn pidfd_of(child: &Child) -> Option<OwnedFd> {
    let pid = i32::try_from(child.id()).ok().and_then(Pid::from_raw)?;
    rustix::process::pidfd_open(pid, PidfdFlags::empty()).ok()
}

/// Waits until it has ended, or [`is_dead`].
fn wait(child: &mut Child) -> io::Result<Option<ExitStatus>> {
    loop {
        match child.try_wait()? {
            Some(status) => return Ok(Some(status)),
            None if is_dead(child.id()) => {
                // The last threads of one that ends in order may be seen so for a moment.
                std::thread::sleep(PAUSE);
                return child.try_wait();
            }
            None => std::thread::sleep(PAUSE),
        }
    }
}

/// What a mount consists of beside its process.
pub(crate) struct Kept {
    settings: Settings,
    connection: Connection,
    session: Inherited,
    inodes: Shared,
    /// A service manager keeps it, too.
    stored: bool,
    /// Its process is to end, and no other to start.
    leaves: AtomicBool,
    /// A process has served it: the kernel may have what would be lost.
    was_served: AtomicBool,
    /// The process that serves it.
    process: Mutex<Option<OwnedFd>>,
}

impl Kept {
    /// Of a mount that nobody has served.
    pub(crate) fn new(
        settings: Settings,
        options: &HostOptions,
        connection: Connection,
    ) -> io::Result<Kept> {
        let session = Inherited::fresh(options)?;
        let inodes = Shared::create("outboard-inodes", INODES)?;
        Ok(Kept::of(settings, connection, session, inodes))
    }

    /// What another program held, and gave to `end`.
    pub(crate) fn taken(settings: Settings, end: &End) -> Result<Kept, Failure> {
        let cannot =
            |error: io::Error| Failure::usage(format!("cannot take a mount over: {error}"));
        let (terms, [region, notes, inodes], devices) = end.take().map_err(cannot)?;
        let connection = Connection::inherit(terms.place, terms.kernel, devices)
            .map_err(|error| Failure::usage(format!("cannot take a mount over: {error}")))?;
        let session = Inherited { session: SessionId(terms.session), region, notes };
        let inodes = Shared::open(inodes, INODES).map_err(io::Error::other).map_err(cannot)?;
        let mut kept = Kept::of(settings, connection, session, inodes);
        kept.stored = terms.stored;
        kept.was_served.store(true, Ordering::Release);
        Ok(kept)
    }

    /// What a service manager kept for the process before this, if it kept a mount.
    pub(crate) fn stored(settings: &Settings) -> Result<Option<Kept>, Failure> {
        let Some(stored) = service::Stored::take()? else { return Ok(None) };
        let cannot = |error: io::Error| service::refused(&error.to_string());
        let service::Stored { terms, flags, memory: [region, notes, inodes], devices } = stored;
        if devices.iter().any(has_ended) {
            tracing::warn!("the mount that the service manager kept was ended; mounting anew");
            return Ok(None);
        }
        if flags != settings.to_flags()? {
            return Err(service::refused("it was mounted with other settings"));
        }
        let connection = Connection::inherit(terms.place, terms.kernel, devices)
            .map_err(|error| service::refused(&error.to_string()))?;
        let session = Inherited { session: SessionId(terms.session), region, notes };
        let inodes = Shared::open(inodes, INODES).map_err(io::Error::other).map_err(cannot)?;
        let mut kept = Kept::of(settings.clone(), connection, session, inodes);
        kept.stored = true;
        kept.was_served.store(true, Ordering::Release);
        Ok(Some(kept))
    }

    /// Has the service manager keep it, if there is one, so that it outlives this process.
    pub(crate) fn store(&mut self) -> Result<(), Failure> {
        let Some(manager) = Manager::of_environment() else { return Ok(()) };
        let flags = self.settings.to_flags()?;
        self.stored = true;
        let (terms, fds) = self.all();
        match manager.store(&terms, &flags, &fds) {
            Ok(()) => tracing::info!("the service manager keeps the mount"),
            Err(error) => {
                tracing::warn!(%error, "the service manager does not keep the mount");
                self.stored = false;
            }
        }
        Ok(())
    }

    fn of(settings: Settings, connection: Connection, session: Inherited, inodes: Shared) -> Kept {
        let (leaves, process) = (AtomicBool::new(false), Mutex::default());
        let (was_served, stored) = (AtomicBool::new(false), false);
        Kept { settings, connection, session, inodes, stored, leaves, was_served, process }
    }

    /// Has it served until it is unmounted, nothing helps, or [`Kept::leave`]. If nothing helps the
    /// mount is dead for its users. What is received says that it is served; nothing, that it is
    /// not and will not be.
    pub(crate) fn serve(self: &Arc<Self>) -> Result<(Served, Receiver<()>), Failure> {
        self.leaves.store(false, Ordering::Release);
        let kept = Arc::clone(self);
        let (ready, is_ready) = channel();
        let serve = move || kept.keep_served(ready);
        let thread = std::thread::Builder::new().name("mount-process".to_owned()).spawn(serve);
        let thread =
            thread.map_err(|error| Failure::internal(format!("cannot start a thread: {error}")))?;
        Ok((thread, is_ready))
    }

    /// Whether a process has served it.
    pub(crate) fn was_served(&self) -> bool {
        self.was_served.load(Ordering::Acquire)
    }

    /// How many ways into the kernel it has.
    pub(crate) fn devices(&self) -> usize {
        self.connection.devices().count()
    }

    /// Where it is mounted.
    pub(crate) fn place(&self) -> &Path {
        self.connection.place()
    }

    /// Ends its process, which answers what it has read; the mount waits for another.
    pub(crate) fn leave(&self, served: Served) -> Result<(), Failure> {
        self.leaves.store(true, Ordering::Release);
        let end = Instant::now() + LEAVE_LIMIT;
        let mut signal = Signal::TERM;
        while !served.is_finished() {
            if let Some(process) = &*self.process() {
                // One that is gone needs no signal.
                let _gone = rustix::process::pidfd_send_signal(process, signal);
            }
            std::thread::sleep(LEAVE_LOOK);
            if Instant::now() > end {
                signal = Signal::KILL;
            }
        }
        end_of(served)
    }

    /// Ends its process whatever that does, and starts no other.
    pub(crate) fn kill(&self) {
        self.leaves.store(true, Ordering::Release);
        if let Some(process) = &*self.process() {
            // One that is gone needs no signal.
            let _gone = rustix::process::pidfd_send_signal(process, Signal::KILL);
        }
    }

    fn process(&self) -> MutexGuard<'_, Option<OwnedFd>> {
        self.process.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn keep_served(&self, ready: Sender<()>) -> Result<(), Failure> {
        let mut ready = Some(ready);
        let mut restarts = Restarts::default();
        let mut strikes = 0;
        let mut stuck: Vec<Child> = Vec::new();
        loop {
            if self.leaves.load(Ordering::Acquire) {
                return Ok(());
            }
            let cannot = |error| Failure::internal(format!("the mount cannot be served: {error}"));
            let (mut child, end) = self.spawn()?;
            restarts.serves();
            *self.process() = pidfd_of(&child);
            let dialled = RefCell::new(None);
            let attended = self.attend(&end, child.id(), &mut ready, &dialled);
            let why = attended.or_else(|error| {
                tracing::warn!(%error, "the mount's process does not talk sense: it is ended");
                child.kill().map(|()| None).map_err(cannot)
            })?;
            let ended = wait(&mut child).map_err(cannot)?;
            self.process().take();
            if ended.is_some_and(|status| status.success()) {
                return Ok(());
            }
            let status = ended.map_or_else(
                || "killed, and a thread of it waits in the kernel".to_owned(),
                |status| status.to_string(),
            );
            if ended.is_none() {
                // It holds the connection to the DPU side, which takes it for attached.
                if let Some(dialled) = dialled.take() {
                    let _gone = rustix::net::shutdown(&dialled, rustix::net::Shutdown::Both);
                }
                stuck.push(child);
            }
            stuck.retain_mut(|child| matches!(child.try_wait(), Ok(None)));
            if let Some(failure) = why {
                if !self.was_served() {
                    return Err(failure);
                }
                tracing::error!(%failure, "the mount's process does not serve it");
            }
            let left = ended.is_some_and(|status| status.code() == Some(LEFT));
            let well = take_mark(self.inodes.region(), 0) || left;
            strikes = if well { 0 } else { strikes + 1 };
            if strikes >= STRIKES {
                return Err(Failure::internal(format!(
                    "the mount is given up: {STRIKES} processes in a row ended before they had \
                     answered anything, the last with {status}"
                )));
            }
            if left || self.leaves.load(Ordering::Acquire) {
                continue;
            }
            let pause = restarts.died();
            tracing::warn!(status, ?pause, "the mount's process ended; another takes over");
            std::thread::sleep(pause);
        }
    }

    /// Gives it to the process behind `end`, and does what that asks for until it is gone: why it
    /// does not serve, if it said so.
    fn attend(
        &self,
        end: &End,
        pid: u32,
        ready: &mut Option<Sender<()>>,
        dialled: &RefCell<Option<OwnedFd>>,
    ) -> io::Result<Option<Failure>> {
        self.give(end)?;
        let mut why = None;
        let dial = || {
            let made = outboard_attach::link::connect(&self.settings.socket())?;
            let made = OwnedFd::from(made);
            dialled.replace(Some(made.try_clone()?));
            Ok(made)
        };
        let said = |word| match word {
            Word::Serves => {
                self.was_served.store(true, Ordering::Release);
                // Nobody waits for it if this one is not the first.
                let _waits = ready.take().map(|ready| ready.send(()));
            }
            Word::Fails(failure) => why = Some(failure),
            Word::Connect => {}
        };
        end.serve(dial, said, || is_dead(pid))?;
        Ok(why)
    }

    /// Starts this program again, in a process group of its own, so that Ctrl-C at the terminal
    /// reaches only `run`, which then unmounts.
    fn spawn(&self) -> Result<(Child, End), Failure> {
        let cannot =
            |error| Failure::internal(format!("cannot start the process of the mount: {error}"));
        let (ours, theirs) = End::pair().map_err(cannot)?;
        let child = program::this()
            .map_err(cannot)?
            .arg("mounted")
            .args(self.settings.to_flags()?)
            .stdin(Stdio::from(theirs))
            .stdout(Stdio::null())
            .process_group(0)
            .spawn()
            .map_err(cannot)?;
        tracing::info!(pid = child.id(), "started the process of the mount");
        Ok((child, ours))
    }

    /// All of it, to a process that serves it or a program that holds it.
    pub(crate) fn give(&self, end: &End) -> io::Result<()> {
        let (terms, fds) = self.all();
        end.give(&terms, &fds)
    }

    fn all(&self) -> (Terms, Vec<BorrowedFd<'_>>) {
        let mut fds = vec![self.session.region.as_fd(), self.session.notes.as_fd()];
        fds.push(self.inodes.fd());
        fds.extend(self.connection.devices());
        let terms = Terms {
            form: form(),
            place: self.connection.place().to_owned(),
            kernel: self.connection.terms(),
            session: self.session.session.0,
            devices: fds.len() - 3,
            stored: self.stored,
        };
        (terms, fds)
    }
}
