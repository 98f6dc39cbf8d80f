//! Figures 19, 21 and 23 of DDS: what stands between clients and host, by itself.
//!
//! * Figure 19: an echo by the size of its messages. The host answers, reached directly, through
//!   Debian's haproxy, or through the director; or the director answers.
//! * Figure 21: the same at one size, by the threads of the director and of haproxy: what one core
//!   of either carries.
//! * Figure 23: reads of a file that the director answers, where a read ends in the buffer that is
//!   sent, and where it is copied there.
//!
//! Each server is a process ([`super::part`]), all take turns in every round, and the client is the
//! one of the other figures. Both ways to the host use a Unix socket from the process in between.
//!
//! Figure 19 between devices has the host and the client on computers of their own ([`super::net`])
//! with a third between, the same for all: the plain host through its bridge, haproxy and the
//! director with kernel sockets listening on it, and the director over the user-space stack, which
//! ends the connections of clients in the host's name. A frame's way through a kernel is charged to
//! whoever runs when it comes, often its sender; the stack pays for all of its own. So the CPU of
//! the whole machine is told, too.

use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use outboard_base::Rng;
use serde::Serialize;

use super::client::Client;
use super::net::{self, Computer, Networks};
use super::part::Kind;
use super::process::{Process, Sides, free_address, is_installed, listens};
use super::requests::{Batch, Op, READ_UNIT};
use super::sample::{Asked, Got, Load, load, one, window};
use crate::{machine, today};

mod report;

/// How one of the figures is measured.
#[derive(Clone, Debug)]
pub struct DirectorFigure {
    /// Which.
    pub number: Number,
    /// Figure 19 between two network devices, with the user-space stack.
    pub net: bool,
    /// `outboard-bench`, whose command `dds-part` every server is but haproxy.
    pub program: PathBuf,
    /// Where sockets and data lie.
    pub dir: PathBuf,
    /// Length of each measurement.
    pub time: Duration,
    /// Interleaved rounds.
    pub rounds: u32,
    /// Fewer points: for a look at everything.
    pub is_short: bool,
}

/// One of the figures.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub enum Number {
    /// An echo by size.
    Figure19,
    /// An echo by threads.
    Figure21,
    /// Reads with and without a copy.
    Figure23,
}

impl Number {
    /// By the number of the figure.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Number> {
        match name {
            "19" => Some(Number::Figure19),
            "21" => Some(Number::Figure21),
            "23" => Some(Number::Figure23),
            _ => None,
        }
    }

    /// As the paper counts.
    #[must_use]
    pub fn number(self) -> u8 {
        match self {
            Number::Figure19 => 19,
            Number::Figure21 => 21,
            Number::Figure23 => 23,
        }
    }
}

/// Who answers, and through whom.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum System {
    /// The host, reached directly.
    Plain,
    /// The host, through Debian's haproxy.
    Haproxy,
    /// The host, through the director.
    Forwarded,
    /// The director.
    Offloaded,
    /// The host, through the director over the user-space stack.
    Stack,
    /// The director over the user-space stack.
    StackOffloaded,
    /// The director reads into the buffer it sends.
    ZeroCopy,
    /// The director reads, and copies into the buffer it sends.
    Copies,
}

impl System {
    /// In tables and legends.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            System::Plain => "plain",
            System::Haproxy => "haproxy",
            System::Forwarded => "forwarded",
            System::Offloaded => "offloaded",
            System::Stack => "stack",
            System::StackOffloaded => "stack off",
            System::ZeroCopy => "zero-copy",
            System::Copies => "copies",
        }
    }

    fn op(self) -> Op {
        match self {
            System::Plain | System::Haproxy | System::Forwarded | System::Stack => Op::EchoHost,
            System::Offloaded | System::StackOffloaded => Op::EchoHere,
            System::ZeroCopy | System::Copies => Op::Read,
        }
    }

    fn is_stack(self) -> bool {
        matches!(self, System::Stack | System::StackOffloaded)
    }

    /// Whether a host serves behind what stands between; the stack connects to one for each client.
    fn has_host(self) -> bool {
        matches!(self, System::Haproxy | System::Forwarded) || self.is_stack()
    }
}

/// One system at one point.
#[derive(Clone, Debug, Serialize)]
pub struct Row {
    /// Who answered.
    pub system: System,
    /// Threads of the process in between.
    pub threads: usize,
    /// Bytes of a message and of its answer; of the answer alone for a read.
    pub bytes: usize,
    /// Under which load.
    pub load: Load,
    /// What came of it; the CPU of haproxy counts as the DPU side's.
    #[serde(flatten)]
    pub got: Got,
}

impl Row {
    /// Gigabits a second, both ways together for an echo.
    #[must_use]
    pub fn gigabits(&self) -> f64 {
        let ways = if self.system.op() == Op::Read { 1.0 } else { 2.0 };
        self.got.per_second * self.bytes as f64 * 8.0 * ways / 1e9
    }
}

/// What a whole run found.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// Which figure.
    pub number: Number,
    /// Whether between two network devices.
    pub net: bool,
    /// How it was measured, where and when.
    pub note: String,
    /// The figures.
    pub rows: Vec<Row>,
}

/// What is measured.
struct Plan {
    systems: Vec<System>,
    threads: Vec<usize>,
    sizes: Vec<usize>,
    loads: Vec<Load>,
    /// Bytes of the file that is read.
    file: u64,
}

impl Plan {
    fn new(number: Number, net: bool, is_short: bool) -> Plan {
        let mut echo = vec![System::Plain, System::Haproxy, System::Forwarded, System::Offloaded];
        if net {
            echo.extend([System::Stack, System::StackOffloaded]);
        }
        let loads = [load(1, 1), load(8, 1), load(8, 16)];
        let some = |all: &[Load], few: &[Load]| if is_short { few.to_vec() } else { all.to_vec() };
        match number {
            Number::Figure19 => Plan {
                systems: echo,
                threads: vec![1],
                sizes: if is_short { vec![1 << 10, 8 << 10] } else { vec![64, 1 << 10, 8 << 10] },
                loads: some(&loads, &[load(8, 1), load(8, 16)]),
                file: 0,
            },
            Number::Figure21 => Plan {
                systems: vec![System::Haproxy, System::Forwarded, System::Offloaded],
                threads: if is_short { vec![1, 2] } else { vec![1, 2, 4] },
                sizes: vec![8 << 10],
                loads: vec![load(16, 4)],
                file: 0,
            },
            Number::Figure23 => Plan {
                systems: vec![System::ZeroCopy, System::Copies],
                threads: vec![1],
                sizes: vec![1 << 10, 8 << 10, 64 << 10],
                loads: some(&[load(1, 1), load(8, 1), load(32, 1), load(8, 16)], &[load(32, 1)]),
                file: 128 << 20,
            },
        }
    }
}

/// The program of a Debian package, which may not be in everybody's path.
fn haproxy() -> Option<&'static str> {
    ["haproxy", "/usr/sbin/haproxy"].into_iter().find(|name| is_installed(name, "-v"))
}

/// The name of a host behind something.
const BEHIND: &str = "host";

/// Where the servers of one system are, as their command lines say it.
struct Places {
    /// Of the host behind what stands between.
    host: String,
    /// Of who is asked.
    front: SocketAddr,
    networks: Option<Networks>,
}

impl Places {
    fn new(system: System, net: bool, dir: &Path) -> io::Result<Places> {
        if !net {
            let host = dir.join("host.sock").display().to_string();
            return Ok(Places { host, front: free_address()?, networks: None });
        }
        // Who is asked for the host is answered by it, or by the stack in its name.
        let is_host = system == System::Plain || system.is_stack();
        let front = if is_host { net::HOST } else { net::BETWEEN };
        let front = front.parse().map_err(io::Error::other)?;
        let networks = Some(Networks::new(system.is_stack())?);
        Ok(Places { host: net::HOST.to_owned(), front, networks })
    }

    /// Does something on one of the computers, if there are several.
    fn on<T: Send>(
        &self,
        computer: Computer,
        work: impl FnOnce() -> io::Result<T> + Send,
    ) -> io::Result<T> {
        match &self.networks {
            Some(networks) => networks.on(computer, work),
            None => work(),
        }
    }
}

/// The processes of one system, ended with this.
struct Running {
    system: System,
    threads: usize,
    sides: Sides,
    // Before what they run in.
    _processes: Vec<Process>,
    places: Places,
}

impl Running {
    fn start(
        system: System,
        threads: usize,
        figure: &DirectorFigure,
        file: u64,
    ) -> io::Result<Running> {
        let name = format!("{}-{threads}", system.name().replace(' ', "-"));
        let dir = figure.dir.join(&name);
        std::fs::create_dir_all(&dir)?;
        let places = Places::new(system, figure.net, &dir)?;
        let (mut processes, mut sides) = (Vec::new(), Sides::default());
        let asked = places.front.to_string();
        let mut start = |name: &str, command: Command, runs: Computer| {
            let mut process = places.on(runs, || Process::start(name, command, &dir))?;
            let side = if runs == Computer::Host { &mut sides.host } else { &mut sides.dpu };
            side.push(process.pid());
            let (from, at) = match name {
                BEHIND => (runs, &places.host),
                _ => (Computer::Clients, &asked),
            };
            let is_up = || places.on(from, || Ok(listens(at))).unwrap_or(false);
            process.wait(false, is_up).map_err(|error| {
                let last = process.last_words(&dir);
                io::Error::other(format!("{name} does not start: {error} {last}"))
            })?;
            processes.push(process);
            io::Result::Ok(())
        };
        if system.has_host() {
            start(BEHIND, figure.part(Kind::Host, &places.host, &dir, threads), Computer::Host)?;
        }
        let runs = if system == System::Plain { Computer::Host } else { Computer::Between };
        start(&name, figure.command(system, &places, &dir, (threads, file))?, runs)?;
        Ok(Running { system, threads, sides, _processes: processes, places })
    }

    fn connect(&self, connections: usize) -> io::Result<Client> {
        let connect = || Client::connect(self.places.front, connections);
        self.places.on(Computer::Clients, connect)
    }
}

impl DirectorFigure {
    /// A server of this program's.
    fn part(&self, kind: Kind, listen: &str, dir: &Path, threads: usize) -> Command {
        let mut command = Command::new(&self.program);
        command.args(["dds-part", kind.name(), "--listen", listen]);
        command.arg("--dir").arg(dir).args(["--workers", &threads.to_string()]);
        command
    }

    /// What clients ask, of one system.
    fn command(
        &self,
        system: System,
        places: &Places,
        dir: &Path,
        (threads, file): (usize, u64),
    ) -> io::Result<Command> {
        let listen = places.front.to_string();
        let kind = match system {
            System::Plain => Kind::Host,
            System::Haproxy => return rival(dir, &places.host, &listen, threads),
            System::ZeroCopy | System::Copies => Kind::Reads,
            _ => Kind::Director,
        };
        let mut command = self.part(kind, &listen, dir, threads);
        command.args(["--host", &places.host]);
        match system {
            System::Stack | System::StackOffloaded => command.args(["--net", net::DEVICES]),
            System::ZeroCopy => command.args(["--bytes", &file.to_string()]),
            System::Copies => command.args(["--bytes", &file.to_string(), "--copies"]),
            _ => &mut command,
        };
        Ok(command)
    }
}

/// haproxy in its TCP mode, with as many threads, before the same host.
fn rival(dir: &Path, host: &str, listen: &str, threads: usize) -> io::Result<Command> {
    let program = haproxy().ok_or_else(|| io::Error::other("haproxy is not installed"))?;
    let config = dir.join("haproxy.cfg");
    let unix = if host.starts_with('/') { "unix@" } else { "" };
    let text = format!(
        "global\n  nbthread {threads}\n  maxconn 4096\ndefaults\n  mode tcp\n  \
         timeout connect 10s\n  timeout client 1h\n  timeout server 1h\nlisten echo\n  \
         bind {listen}\n  server host {unix}{host}\n"
    );
    std::fs::write(&config, text)?;
    let mut command = Command::new(program);
    command.arg("-db").arg("-f").arg(&config);
    Ok(command)
}

/// Measures; `progress` is told what comes next.
///
/// # Errors
/// A server that does not start, does not answer, or answers wrongly; the disk's.
pub fn run(figure: &DirectorFigure, mut progress: impl FnMut(&str)) -> io::Result<Report> {
    let mut plan = Plan::new(figure.number, figure.net, figure.is_short);
    let missing = plan.systems.contains(&System::Haproxy) && haproxy().is_none();
    plan.systems.retain(|system| *system != System::Haproxy || !missing);
    let mut servers = Vec::new();
    for &threads in &plan.threads {
        for system in &plan.systems {
            progress(&format!("{} with {threads} threads is started", system.name()));
            servers.push(Running::start(*system, threads, figure, plan.file)?);
        }
    }
    let mut points = Vec::new();
    for &bytes in &plan.sizes {
        for &load in &plan.loads {
            points.extend(servers.iter().map(|server| (bytes, load, server, Vec::new())));
        }
    }
    let mut rng = Rng::new(1);
    for round in 1..=figure.rounds {
        for (bytes, load, server, samples) in &mut points {
            let (system, threads) = (server.system, server.threads);
            progress(&format!(
                "round {round}: {bytes} bytes, {load:?}, {} with {threads} threads",
                system.name()
            ));
            let batch = Batch { op: system.op(), value: *bytes, pipeline: load.pipeline };
            let asked = Asked { batch, settles: false };
            let client = server.connect(load.connections)?;
            // Reads begin at whole units and lie in the file.
            let places = (plan.file.saturating_sub(*bytes as u64) / READ_UNIT).max(1 << 10);
            let mut next = || rng.below(places);
            samples.push(one(client, &server.sides, asked, figure.time, &mut next)?);
        }
    }
    let rows = points.iter().map(|(bytes, load, server, samples)| Row {
        system: server.system,
        threads: server.threads,
        bytes: *bytes,
        load: *load,
        got: Got::of(samples),
    });
    let left_out = if missing { "; haproxy is not installed and left out" } else { "" };
    let over = if figure.net { "veth, through a third network namespace" } else { "loopback" };
    let note = format!(
        "{}, {}; one client thread over {over}, closed loop; load window of every side, \
         connections x messages on each: {}; medians of {} rounds of {:?}{left_out}",
        machine(),
        today(),
        window(&plan.loads),
        figure.rounds,
        figure.time
    );
    Ok(Report { number: figure.number, net: figure.net, note, rows: rows.collect() })
}
