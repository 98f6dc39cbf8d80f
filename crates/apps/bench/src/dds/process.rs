//! Servers that are measured, as real processes on the loopback device, and what their threads ran.

use std::collections::HashMap;
use std::ffi::OsString;
use std::fs::File;
use std::io::{self, BufRead, BufReader, Read};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

/// Time to start, and to end.
const LIMIT: Duration = Duration::from_secs(60);
const END_LIMIT: Duration = Duration::from_secs(20);
/// CPU of a server that rests, in a [`NAP`].
const RESTING: Duration = Duration::from_micros(500);
const NAP: Duration = Duration::from_millis(30);

/// Whether a program can be had. Rivals are told by `--version` or `-V`.
pub(crate) fn is_installed(program: &str, version: &str) -> bool {
    let mut command = Command::new(program);
    let quiet = command.arg(version).stdin(Stdio::null()).stdout(Stdio::null());
    quiet.stderr(Stdio::null()).status().is_ok_and(|status| status.success())
}

/// An address of this computer that is free now, and not given to others so soon.
pub(super) fn free_address() -> io::Result<SocketAddr> {
    TcpListener::bind("127.0.0.1:0")?.local_addr()
}

/// Whether somebody listens there: an address and port, or a path.
pub(super) fn listens(at: &str) -> bool {
    match at.parse::<SocketAddr>() {
        Ok(address) => TcpStream::connect(address).is_ok(),
        Err(_) => UnixStream::connect(at).is_ok(),
    }
}

/// One process, ended with this.
pub(crate) struct Process {
    name: String,
    child: Child,
    /// Another process that it started, by its own word; it is to end with it.
    pub(super) second: Option<u32>,
}

impl Process {
    /// Starts `command`; what it says of errors goes to a file in `dir`.
    pub(crate) fn start(name: &str, mut command: Command, dir: &Path) -> io::Result<Process> {
        std::fs::create_dir_all(dir)?;
        let child = command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(File::create(dir.join(format!("{name}.stderr")))?)
            .spawn()?;
        Ok(Process { name: name.to_owned(), child, second: None })
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Reads its first line, if `wanted`, and what more it says away, so that it never waits for
    /// us; then waits until it `listens`.
    pub(crate) fn wait(&mut self, wanted: bool, listens: impl Fn() -> bool) -> io::Result<String> {
        let out = self.child.stdout.take().ok_or_else(|| io::Error::other("no output"))?;
        let (mut out, mut line) = (BufReader::new(out), String::new());
        if wanted {
            out.read_line(&mut line)?;
        }
        std::thread::Builder::new().spawn(move || out.read_to_end(&mut Vec::new()))?;
        let end = Instant::now() + LIMIT;
        while !listens() {
            if Instant::now() > end || self.child.try_wait()?.is_some() {
                return Err(io::Error::other(format!("the {} server does not listen", self.name)));
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        Ok(line)
    }

    /// Why it may have ended: its last words.
    pub(crate) fn last_words(&self, dir: &Path) -> String {
        let said = std::fs::read_to_string(dir.join(format!("{}.stderr", self.name)));
        said.unwrap_or_default().lines().last().unwrap_or_default().to_owned()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let signal = |pid: u32, signal| {
            // One that ended by itself is no loss.
            let pid = i32::try_from(pid).ok().and_then(Pid::from_raw);
            pid.is_some_and(|pid| kill_process(pid, signal).is_ok())
        };
        signal(self.child.id(), Signal::TERM);
        let end = Instant::now() + END_LIMIT;
        while Instant::now() < end {
            if !matches!(self.child.try_wait(), Ok(None)) {
                return;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        eprintln!("outboard: the {} server does not end; it is killed", self.name);
        signal(self.child.id(), Signal::KILL);
        if let Some(pid) = self.second {
            signal(pid, Signal::KILL);
        }
        if let Err(error) = self.child.wait() {
            eprintln!("outboard: {error}");
        }
    }
}

/// The processes of one server, by side. What stands between clients and host counts as the DPU
/// side, also where it is a rival's.
#[derive(Clone, Debug, Default)]
pub(super) struct Sides {
    pub(super) host: Vec<u32>,
    pub(super) dpu: Vec<u32>,
}

impl Sides {
    /// What they ran until now.
    pub(super) fn cpu(&self) -> io::Result<Moment> {
        let ran = |pids: &[u32]| pids.iter().map(|pid| Ran::now(*pid)).collect::<io::Result<_>>();
        Ok(Moment { host: ran(&self.host)?, dpu: ran(&self.dpu)? })
    }

    /// All, with a name.
    pub(super) fn named(&self) -> Vec<(String, u32)> {
        let name = |name: &str, pid: &u32| (name.to_owned(), *pid);
        let host = self.host.iter().map(|pid| name("host", pid));
        host.chain(self.dpu.iter().map(|pid| name("DPU side", pid))).collect()
    }

    /// Waits until they have done what they still had to: nothing ran for a while.
    pub(super) fn settle(&self) -> io::Result<()> {
        let end = Instant::now() + LIMIT;
        let mut before = self.cpu()?;
        while Instant::now() < end {
            std::thread::sleep(NAP);
            let now = self.cpu()?;
            let used = now.since(&before);
            if used.host + used.dpu < RESTING {
                return Ok(());
            }
            before = now;
        }
        Err(io::Error::other("a server does not rest"))
    }
}

/// CPU time of the two sides of a server between two moments.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Used {
    pub(super) host: Duration,
    pub(super) dpu: Duration,
}

/// CPU time of the two sides of a server, at a moment.
pub(super) struct Moment {
    host: Vec<Ran>,
    dpu: Vec<Ran>,
}

impl Moment {
    pub(super) fn since(&self, earlier: &Moment) -> Used {
        let used = |now: &[Ran], before: &[Ran]| {
            now.iter().zip(before).map(|(now, before)| now.since(before)).sum()
        };
        Used { host: used(&self.host, &earlier.host), dpu: used(&self.dpu, &earlier.dpu) }
    }
}

/// What each thread of a process ran, to the nanosecond: `/proc/PID/stat` has only ticks.
#[derive(Default)]
pub(crate) struct Ran(HashMap<OsString, u64>);

impl Ran {
    pub(crate) fn now(pid: u32) -> io::Result<Ran> {
        let mut threads = HashMap::new();
        for task in std::fs::read_dir(format!("/proc/{pid}/task"))? {
            let task = task?;
            // A thread may end between the listing and the read.
            let Ok(stat) = std::fs::read_to_string(task.path().join("schedstat")) else { continue };
            let nanos = stat.split_whitespace().next().and_then(|text| text.parse().ok());
            let nanos = nanos.ok_or_else(|| io::Error::other("schedstat makes no sense"))?;
            threads.insert(task.file_name(), nanos);
        }
        Ok(Ran(threads))
    }

    /// Thread by thread: one that ended meanwhile must not take its whole life off the sum.
    pub(crate) fn since(&self, earlier: &Ran) -> Duration {
        let before = |thread| earlier.0.get(thread).copied().unwrap_or(0);
        let used = self.0.iter().map(|(thread, now)| now.saturating_sub(before(thread)));
        Duration::from_nanos(used.sum())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_threads_ran_is_counted_one_by_one() {
        let before = Ran::now(std::process::id()).unwrap();
        let from = Instant::now();
        while from.elapsed() < Duration::from_millis(30) {
            std::hint::black_box(0);
        }
        assert!(Ran::now(std::process::id()).unwrap().since(&before) > Duration::ZERO);
        let of = |threads: &[(&str, u64)]| {
            Ran(threads.iter().map(|(name, nanos)| (OsString::from(name), *nanos)).collect())
        };
        let used = of(&[("1", 7), ("3", 2)]).since(&of(&[("1", 4), ("2", 100)]));
        assert_eq!(used, Duration::from_nanos(5));
    }

    #[test]
    fn a_program_that_is_not_there_is_not_installed() {
        assert!(!is_installed("outboard-no-such-program", "--version"));
        assert!(is_installed("true", "--version"));
    }
}
