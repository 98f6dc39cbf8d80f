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

use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use outboard_base::Rng;
use serde::Serialize;

use super::part::{HOST, Kind};
use super::process::{Process, Sides, free_address, is_installed};
use super::requests::{Batch, Op, READ_UNIT};
use super::sample::{Asked, Got, Load, load, one, window};
use crate::{machine, today};

mod report;

/// How one of the figures is measured.
#[derive(Clone, Debug)]
pub struct DirectorFigure {
    /// Which.
    pub number: Number,
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
            System::ZeroCopy => "zero-copy",
            System::Copies => "copies",
        }
    }

    fn op(self) -> Op {
        match self {
            System::Plain | System::Haproxy | System::Forwarded => Op::EchoHost,
            System::Offloaded => Op::EchoHere,
            System::ZeroCopy | System::Copies => Op::Read,
        }
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
    fn new(number: Number, is_short: bool) -> Plan {
        let echo = [System::Plain, System::Haproxy, System::Forwarded, System::Offloaded];
        let loads = [load(1, 1), load(8, 1), load(8, 16)];
        let some = |all: &[Load], few: &[Load]| if is_short { few.to_vec() } else { all.to_vec() };
        match number {
            Number::Figure19 => Plan {
                systems: echo.to_vec(),
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

/// The processes of one system, ended with this.
struct Running {
    system: System,
    threads: usize,
    address: std::net::SocketAddr,
    sides: Sides,
    _processes: Vec<Process>,
}

impl Running {
    fn start(
        system: System,
        threads: usize,
        figure: &DirectorFigure,
        file: u64,
    ) -> io::Result<Running> {
        let name = format!("{}-{threads}", system.name());
        let dir = figure.dir.join(&name);
        std::fs::create_dir_all(&dir)?;
        let address = free_address()?;
        let at = address.to_string();
        let part = |kind: Kind, listen: &str, more: &[&str]| {
            let mut command = Command::new(&figure.program);
            command.args(["dds-part", kind.name(), "--listen", listen]);
            command.arg("--dir").arg(&dir).args(["--workers", &threads.to_string()]).args(more);
            command
        };
        let host = dir.join(HOST);
        let bytes = file.to_string();
        let (mut processes, mut sides) = (Vec::new(), Sides::default());
        if matches!(system, System::Haproxy | System::Forwarded) {
            let command = part(Kind::Host, &host.display().to_string(), &[]);
            let process = Process::start("host", command, &dir)?;
            process.wait_for_path(&host)?;
            sides.host.push(process.pid());
            processes.push(process);
        }
        let command = match system {
            System::Plain => part(Kind::Host, &at, &[]),
            System::Haproxy => rival(&dir, &host, &at, threads)?,
            System::Forwarded | System::Offloaded => part(Kind::Director, &at, &[]),
            System::ZeroCopy => part(Kind::Reads, &at, &["--bytes", &bytes]),
            System::Copies => part(Kind::Reads, &at, &["--bytes", &bytes, "--copies"]),
        };
        let mut process = Process::start(&name, command, &dir)?;
        process.wait(false, address).map_err(|error| {
            let last = process.last_words(&dir);
            io::Error::other(format!("{name} does not start: {error} {last}"))
        })?;
        let side = if system == System::Plain { &mut sides.host } else { &mut sides.dpu };
        side.push(process.pid());
        processes.push(process);
        Ok(Running { system, threads, address, sides, _processes: processes })
    }
}

/// haproxy in its TCP mode, with as many threads, before the same host.
fn rival(dir: &Path, host: &Path, listen: &str, threads: usize) -> io::Result<Command> {
    let program = haproxy().ok_or_else(|| io::Error::other("haproxy is not installed"))?;
    let config = dir.join("haproxy.cfg");
    let text = format!(
        "global\n  nbthread {threads}\n  maxconn 4096\ndefaults\n  mode tcp\n  \
         timeout connect 10s\n  timeout client 1h\n  timeout server 1h\nlisten echo\n  \
         bind {listen}\n  server host unix@{}\n",
        host.display()
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
    let mut plan = Plan::new(figure.number, figure.is_short);
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
            let asked = Asked { batch, connections: load.connections, settles: false };
            // Reads begin at whole units and lie in the file.
            let places = (plan.file.saturating_sub(*bytes as u64) / READ_UNIT).max(1 << 10);
            let mut next = || rng.below(places);
            samples.push(one(server.address, &server.sides, asked, figure.time, &mut next)?);
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
    let note = format!(
        "{}, {}; one client thread over loopback, closed loop; load window of every side, \
         connections x messages on each: {}; medians of {} rounds of {:?}{left_out}",
        machine(),
        today(),
        window(&plan.loads),
        figure.rounds,
        figure.time
    );
    Ok(Report { number: figure.number, note, rows: rows.collect() })
}
