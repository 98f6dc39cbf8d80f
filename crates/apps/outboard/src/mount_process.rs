//! The process of a mount that outlives it: started, and another started when it dies.
//!
//! The connection to the kernel and the session's memory are held here; a process that serves them
//! is given them. What it had under way when it died the kernel sends again to the next, which
//! answers each request once (`docs/internals/outlive.md`).

use std::cell::RefCell;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread::JoinHandle;
use std::time::Duration;

use outboard_attach::host::{HostOptions, Inherited};
use outboard_fuse::{Connection, is_dead};
use outboard_link::records::take_mark;
use outboard_os::shm::Shared;

use crate::exit::Failure;
use crate::handover::{End, Terms};
use crate::restarts::Restarts;
use crate::settings::Settings;

/// Room for what a mount's process writes down of inodes the kernel knows: 4 million of them. Taken
/// as it is used.
pub(crate) const INODES: u64 = 256 << 20;
/// Between two looks whether a process has ended.
const PAUSE: Duration = Duration::from_millis(2);
/// So many processes in a row that answered nothing are enough: the mount is given up.
const STRIKES: u32 = 8;

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
        Ok(Kept { settings, connection, session, inodes })
    }

    /// Has it served until it is unmounted, or nothing helps; then the mount is dead for its users.
    pub(crate) fn serve(self) -> Result<JoinHandle<Result<(), Failure>>, Failure> {
        let serve = move || self.keep_served();
        let thread = std::thread::Builder::new().name("mount-process".to_owned()).spawn(serve);
        thread.map_err(|error| Failure::internal(format!("cannot start a thread: {error}")))
    }

    fn keep_served(&self) -> Result<(), Failure> {
        let mut restarts = Restarts::default();
        let mut strikes = 0;
        let mut stuck: Vec<Child> = Vec::new();
        loop {
            let cannot = |error| Failure::internal(format!("the mount cannot be served: {error}"));
            let (mut child, end) = self.spawn()?;
            restarts.serves();
            let dialled = RefCell::new(None);
            let served = self.give(&end).and_then(|()| {
                let dial = || {
                    let made = outboard_attach::link::connect(&self.settings.socket())?;
                    let made = OwnedFd::from(made);
                    dialled.replace(Some(made.try_clone()?));
                    Ok(made)
                };
                end.serve(dial, || is_dead(child.id()))
            });
            if let Err(error) = served {
                tracing::warn!(%error, "the mount's process does not talk sense: it is ended");
                child.kill().map_err(cannot)?;
            }
            let ended = wait(&mut child).map_err(cannot)?;
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
            strikes = if take_mark(self.inodes.region(), 0) { 0 } else { strikes + 1 };
            if strikes >= STRIKES {
                return Err(Failure::internal(format!(
                    "the mount is given up: {STRIKES} processes in a row ended before they had \
                     answered anything, the last with {status}"
                )));
            }
            let pause = restarts.died();
            tracing::warn!(status, ?pause, "the mount's process ended; another takes over");
            std::thread::sleep(pause);
        }
    }

    /// Starts this program again, in a process group of its own, so that Ctrl-C at the terminal
    /// reaches only `run`, which then unmounts.
    fn spawn(&self) -> Result<(Child, End), Failure> {
        let cannot =
            |error| Failure::internal(format!("cannot start the process of the mount: {error}"));
        let (ours, theirs) = End::pair().map_err(cannot)?;
        let program = std::env::current_exe().map_err(cannot)?;
        let child = Command::new(program)
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

    fn give(&self, end: &End) -> io::Result<()> {
        let mut fds = vec![self.session.region.as_fd(), self.session.notes.as_fd()];
        fds.push(self.inodes.fd());
        fds.extend(self.connection.devices());
        let terms = Terms {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            place: self.connection.place().to_owned(),
            kernel: self.connection.terms(),
            session: self.session.session.0,
            devices: fds.len() - 3,
        };
        end.give(&terms, &fds)
    }
}
