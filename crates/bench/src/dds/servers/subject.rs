//! The servers that are measured, as real processes on the loopback device.

use std::collections::HashMap;
use std::ffi::OsString;
use std::fs::File;
use std::io::{self, BufRead, BufReader, Read};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde::Serialize;

/// Memory of a server for what is updated in place.
pub(super) const MEMORY: u64 = 8 << 20;
/// Time to start, and to end.
const LIMIT: Duration = Duration::from_secs(60);
const END_LIMIT: Duration = Duration::from_secs(20);

/// A server, or a form of one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum System {
    /// The key-value server on sockets and a file of the host.
    Plain,
    /// With its files on the DPU side, but every request to the host.
    Library,
    /// With reads answered by the DPU side.
    Offload,
    /// Debian's redis-server.
    Redis,
}

impl System {
    pub(super) fn name(self) -> &'static str {
        match self {
            System::Plain => "plain",
            System::Library => "library",
            System::Offload => "offload",
            System::Redis => "redis",
        }
    }

    /// How it is started.
    fn command(self, program: &Path, dir: &Path, port: u16) -> Command {
        let flags: &[&str] = match self {
            System::Plain => &["--plain"],
            System::Library => &["--no-offload"],
            System::Offload => &[],
            System::Redis => {
                let mut command = Command::new("redis-server");
                command.args(["--bind", "127.0.0.1", "--save", "", "--appendonly", "no"]);
                command.args(["--port", &port.to_string()]).arg("--dir").arg(dir);
                return command;
            }
        };
        let mut command = Command::new(program);
        command.args(["serve", "kv"]).args(flags).arg("--data").arg(dir.join("data"));
        command.arg(format!("--listen=127.0.0.1:{port}")).arg(format!("--memory={MEMORY}"));
        command
    }
}

/// Whether Debian's server can be had.
pub(super) fn has_redis() -> bool {
    let quiet = Command::new("redis-server").arg("--version").stdout(Stdio::null()).status();
    quiet.is_ok_and(|status| status.success())
}

/// A server that runs, and is ended with this.
pub(super) struct Running {
    pub(super) system: System,
    pub(super) address: SocketAddr,
    /// The process that was started.
    child: Child,
    /// The process that it started as its DPU side, by its own word.
    dpu: Option<u32>,
}

impl Running {
    /// Starts one in `dir` and waits until it serves.
    pub(super) fn start(system: System, program: &Path, dir: &Path) -> io::Result<Running> {
        std::fs::create_dir_all(dir)?;
        // Free now, and not given to others so soon.
        let address = TcpListener::bind("127.0.0.1:0")?.local_addr()?;
        let child = system
            .command(program, dir, address.port())
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(File::create(dir.join("stderr"))?)
            .spawn()?;
        let mut running = Running { system, address, child, dpu: None };
        match running.wait_until_it_serves() {
            Ok(()) => Ok(running),
            Err(error) => {
                let said = std::fs::read_to_string(dir.join("stderr")).unwrap_or_default();
                let last = said.lines().last().unwrap_or_default();
                let name = system.name();
                Err(io::Error::other(format!("the {name} server does not start: {error} {last}")))
            }
        }
    }

    fn wait_until_it_serves(&mut self) -> io::Result<()> {
        let out = self.child.stdout.take().ok_or_else(|| io::Error::other("no output"))?;
        let mut out = BufReader::new(out);
        if self.system != System::Redis {
            let mut line = String::new();
            out.read_line(&mut line)?;
            self.dpu = dpu_of(&line);
            if self.dpu.is_some() == (self.system == System::Plain) {
                return Err(io::Error::other(format!("unexpected first line: {line}")));
            }
        }
        // What more it says is read away, so that it never waits for us.
        std::thread::Builder::new().spawn(move || out.read_to_end(&mut Vec::new()))?;
        let end = Instant::now() + LIMIT;
        while TcpStream::connect(self.address).is_err() {
            if Instant::now() > end || self.child.try_wait()?.is_some() {
                return Err(io::Error::other("nobody listens"));
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        Ok(())
    }

    /// CPU time of its processes.
    pub(super) fn cpu(&self) -> io::Result<Moment> {
        let dpu = self.dpu.map_or_else(|| Ok(Ran::default()), Ran::now)?;
        Ok(Moment { host: Ran::now(self.child.id())?, dpu })
    }

    /// Its processes, by side.
    pub(super) fn processes(&self) -> Vec<(String, u32)> {
        let mut processes = vec![("host".to_owned(), self.child.id())];
        processes.extend(self.dpu.map(|pid| ("DPU side".to_owned(), pid)));
        processes
    }

    /// Waits until it has done what it still had to: nothing ran for a while.
    pub(super) fn settle(&self) -> io::Result<()> {
        let end = Instant::now() + LIMIT;
        let mut before = self.cpu()?;
        while Instant::now() < end {
            std::thread::sleep(Duration::from_millis(30));
            let now = self.cpu()?;
            let used = now.since(&before);
            if used.host + used.dpu < Duration::from_micros(500) {
                return Ok(());
            }
            before = now;
        }
        Err(io::Error::other(format!("the {} server does not rest", self.system.name())))
    }
}

impl Drop for Running {
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
        eprintln!("outboard: the {} server does not end; it is killed", self.system.name());
        signal(self.child.id(), Signal::KILL);
        if let Some(pid) = self.dpu {
            signal(pid, Signal::KILL);
        }
        if let Err(error) = self.child.wait() {
            eprintln!("outboard: {error}");
        }
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
    host: Ran,
    dpu: Ran,
}

impl Moment {
    pub(super) fn since(&self, earlier: &Moment) -> Used {
        Used { host: self.host.since(&earlier.host), dpu: self.dpu.since(&earlier.dpu) }
    }
}

/// The process named in the line a server says when it is ready.
fn dpu_of(line: &str) -> Option<u32> {
    let rest = line.split_once("DPU side ")?.1;
    rest.split(|c: char| !c.is_ascii_digit()).next()?.parse().ok()
}

/// What each thread of a process ran, to the nanosecond: `/proc/PID/stat` has only ticks.
#[derive(Default)]
struct Ran(HashMap<OsString, u64>);

impl Ran {
    fn now(pid: u32) -> io::Result<Ran> {
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
    fn since(&self, earlier: &Ran) -> Duration {
        let before = |thread| earlier.0.get(thread).copied().unwrap_or(0);
        let used = self.0.iter().map(|(thread, now)| now.saturating_sub(before(thread)));
        Duration::from_nanos(used.sum())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_dpu_side_is_who_the_server_says() {
        let line = "serving kv at 127.0.0.1:1 from d (offload, DPU side 4711); redis-cli";
        assert_eq!(dpu_of(line), Some(4711));
        assert_eq!(dpu_of("serving kv at 127.0.0.1:1 from d (plain); redis-cli"), None);
    }

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
}
