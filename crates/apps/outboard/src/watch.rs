//! What the main thread of `run` waits for: signals, and the end of the DPU side's process.

use std::io::Read;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use outboard_os::sys::signals::have_wait;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

use crate::exit::Failure;

/// Why the wait ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Happened {
    /// A signal asks for the end.
    Told,
    /// The followed process ended.
    ProcessEnded,
    /// Somebody is at the door.
    Asked,
    /// The time ran out.
    Nothing,
}

/// They ask for the end.
const SIGNALS: [i32; 3] = [SIGINT, SIGTERM, SIGHUP];

/// Waits without polling in circles.
#[derive(Debug)]
pub(crate) struct Watch {
    signals: UnixStream,
    process: Option<OwnedFd>,
    door: Option<OwnedFd>,
}

impl Watch {
    /// From now on SIGINT, SIGTERM and SIGHUP are told here and do not kill.
    pub(crate) fn new() -> Result<Watch, Failure> {
        let cannot = |error| Failure::internal(format!("cannot watch for signals: {error}"));
        let (signals, handler) = UnixStream::pair().map_err(cannot)?;
        signals.set_nonblocking(true).map_err(cannot)?;
        for signal in SIGNALS {
            let handler = handler.try_clone().map_err(cannot)?;
            signal_hook::low_level::pipe::register(signal, handler).map_err(cannot)?;
        }
        // They wait since the program before this, if this one took its place.
        have_wait(&SIGNALS, false).map_err(cannot)?;
        Ok(Watch { signals, process: None, door: None })
    }

    /// Has signals wait for the [`Watch`] of the program that is executed in this one's place.
    /// False if one has come already: it is told next.
    pub(crate) fn hold(&self) -> bool {
        self.have_signals_wait(true);
        let mut fds = [PollFd::new(&self.signals, PollFlags::IN)];
        matches!(poll(&mut fds, Some(&Timespec::default())), Ok(0))
    }

    /// They are told here again.
    pub(crate) fn release(&self) {
        self.have_signals_wait(false);
    }

    fn have_signals_wait(&self, wait: bool) {
        if let Err(error) = have_wait(&SIGNALS, wait) {
            tracing::warn!(%error, "a signal that comes now may be lost");
        }
    }

    /// Follows a process, child or not.
    pub(crate) fn follow(&mut self, pid: u32) -> std::io::Result<()> {
        let pid = i32::try_from(pid).ok().and_then(Pid::from_raw);
        let pid = pid.ok_or(std::io::ErrorKind::InvalidInput)?;
        self.process = Some(pidfd_open(pid, PidfdFlags::empty())?);
        Ok(())
    }

    /// Looks after a door, too.
    pub(crate) fn listen(&mut self, door: BorrowedFd<'_>) -> std::io::Result<()> {
        self.door = Some(door.try_clone_to_owned()?);
        Ok(())
    }

    /// Waits at most `limit`.
    pub(crate) fn next(&mut self, limit: Duration) -> Result<Happened, Failure> {
        let cannot = |error: String| Failure::internal(format!("cannot wait: {error}"));
        let limit = Timespec::try_from(limit).map_err(|error| cannot(error.to_string()))?;
        // A descriptor that is watched twice is no harm.
        let signals = self.signals.as_fd();
        let [process, door] =
            [&self.process, &self.door].map(|fd| fd.as_ref().map_or(signals, AsFd::as_fd));
        let mut fds = [self.signals.as_fd(), process, door]
            .map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN));
        match poll(&mut fds, Some(&limit)) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(cannot(error.to_string())),
        }
        let [_, ended, asked] = fds.map(|fd| !fd.revents().is_empty());
        let mut byte = [0; 64];
        if matches!(self.signals.read(&mut byte), Ok(n) if n > 0) {
            return Ok(Happened::Told);
        }
        if ended && self.process.take().is_some() {
            return Ok(Happened::ProcessEnded);
        }
        if asked && self.door.is_some() {
            return Ok(Happened::Asked);
        }
        Ok(Happened::Nothing)
    }
}
