//! Figures 14, 15, 25 and 26 of DDS: the key-value server in its forms, under clients.
//!
//! * Figures 14 and 15: GETs of cold records and SETs of records that are cold, by their size, in
//!   the plain, the library and the offload form; throughput against the CPU of the host (14) and
//!   against latency (15).
//! * Figures 25 and 26: GETs after YCSB, uniform and zipf, of hot and cold records, with Debian's
//!   redis-server (all in memory) in the same rounds where it is installed.
//!
//! Every server is a process of its own, started through `outboard serve kv`, with its DPU side
//! another; all are there during the whole run and idle but in their turn. The client is one
//! thread of this process (`client`), in a closed loop: so many connections, so many commands
//! under way on each. A server's keys are written in this order before it is measured:
//!
//! ```text
//! cold: read, in the file | middle: in the file and behind it; SETs go here | hot: in memory
//! ```
//!
//! The middle is as large as everything a server can hold in memory besides the hot, so that cold
//! records are in the file for certain.

use std::io;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use outboard_base::Rng;
use serde::Serialize;

use crate::cpu::{CpuMoment, CpuSeconds};
use crate::stats::median;
use crate::{machine, today};

mod client;
mod report;
mod subject;

use client::{Batch, Client, Done, Op};
use subject::{MEMORY, Running, Used, has_redis};

pub use subject::System;

/// How one of the figures is measured.
#[derive(Clone, Debug)]
pub struct ServersFigure {
    /// Which.
    pub number: Number,
    /// The program, started for every server.
    pub program: PathBuf,
    /// Where data lies.
    pub dir: PathBuf,
    /// Length of each measurement.
    pub time: Duration,
    /// Interleaved rounds.
    pub rounds: u32,
}

/// One of the figures. 14 and 15 draw one measurement, 25 and 26 another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub enum Number {
    /// Cold GETs and SETs: throughput and CPU of the host.
    Figure14,
    /// The same: throughput and latency.
    Figure15,
    /// GETs by distribution: throughput and CPU of the host.
    Figure25,
    /// The same: throughput and latency.
    Figure26,
}

impl Number {
    /// By the number of the figure.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Number> {
        Some(match name {
            "14" => Number::Figure14,
            "15" => Number::Figure15,
            "25" => Number::Figure25,
            "26" => Number::Figure26,
            _ => return None,
        })
    }

    fn plan(self) -> Plan {
        match self {
            Number::Figure14 | Number::Figure15 => Plan {
                systems: vec![System::Plain, System::Library, System::Offload],
                workloads: vec![Workload::ColdGet, Workload::ColdSet],
                values: vec![1 << 10, 8 << 10],
                loads: LOADS.to_vec(),
                cold: COLD,
            },
            Number::Figure25 | Number::Figure26 => Plan {
                systems: vec![System::Plain, System::Library, System::Offload, System::Redis],
                workloads: vec![
                    Workload::ColdGet,
                    Workload::HotGet,
                    Workload::HotZipf,
                    Workload::AllZipf,
                ],
                values: vec![1 << 10],
                loads: LOADS.to_vec(),
                cold: COLD,
            },
        }
    }
}

/// What a client does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Workload {
    /// Reads records in the file, all alike.
    ColdGet,
    /// Writes records most of which are in the file, all alike.
    ColdSet,
    /// Reads records in memory, all alike.
    HotGet,
    /// Reads records in memory, zipf.
    HotZipf,
    /// Reads all records, zipf; popular ones lie anywhere.
    AllZipf,
}

impl Workload {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Workload::ColdGet => "cold GET",
            Workload::ColdSet => "cold SET",
            Workload::HotGet => "hot GET",
            Workload::HotZipf => "hot zipf",
            Workload::AllZipf => "all zipf",
        }
    }

    fn op(self) -> Op {
        if self == Workload::ColdSet { Op::Set } else { Op::Get }
    }
}

/// Connections of a client and commands under way on each: its load window.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Load {
    /// Connections.
    pub connections: usize,
    /// Commands sent at once on each.
    pub pipeline: usize,
}

const fn load(connections: usize, pipeline: usize) -> Load {
    Load { connections, pipeline }
}

const LOADS: [Load; 4] = [load(1, 1), load(8, 1), load(32, 1), load(8, 16)];
/// Bytes of the cold values of a server.
const COLD: u64 = 64 << 20;
/// Bytes of the hot ones, less than the part of memory that stays open.
const HOT: u64 = MEMORY / 4;
/// Bytes between them: a server holds [`MEMORY`], and as much again while it waits for its disk.
const MIDDLE: u64 = 3 * MEMORY;
/// The load under which records are first written.
const FILL: Load = load(4, 16);

/// A prime above every number of keys: times it, modulo the number, every key comes once.
const SPREAD: u64 = 2_654_435_761;

/// What is measured.
struct Plan {
    systems: Vec<System>,
    workloads: Vec<Workload>,
    values: Vec<usize>,
    loads: Vec<Load>,
    cold: u64,
}

/// The keys of a server.
#[derive(Clone, Copy)]
struct Keys {
    cold: u64,
    middle: u64,
    hot: u64,
}

impl Keys {
    fn new(cold: u64, value: usize) -> Keys {
        let of = |bytes: u64| bytes.div_ceil(value as u64);
        Keys { cold: of(cold), middle: of(MIDDLE), hot: of(HOT) }
    }

    fn all(self) -> u64 {
        self.cold + self.middle + self.hot
    }
}

/// Numbers below a bound, the n-th most popular in proportion to 1 / n^0.99, as YCSB has it; which
/// of them are popular is spread over all.
struct Zipf {
    /// Sums of the weights up to each.
    sums: Vec<f64>,
}

impl Zipf {
    fn new(bound: u64) -> Zipf {
        let mut sum = 0.0;
        let weights = (1..=bound).map(|n| {
            sum += (n as f64).powf(-0.99);
            sum
        });
        Zipf { sums: weights.collect() }
    }

    fn next(&self, rng: &mut Rng) -> u64 {
        let point = rng.below(1 << 53) as f64 / (1u64 << 53) as f64;
        let whole = self.sums.last().copied().unwrap_or(0.0);
        let rank = self.sums.partition_point(|sum| *sum <= point * whole);
        (rank as u64).wrapping_mul(SPREAD) % (self.sums.len() as u64).max(1)
    }
}

/// Draws keys for a workload.
struct Draw {
    keys: Keys,
    hot: Zipf,
    all: Zipf,
    rng: Rng,
}

impl Draw {
    fn new(keys: Keys) -> Draw {
        Draw { keys, hot: Zipf::new(keys.hot), all: Zipf::new(keys.all()), rng: Rng::new(1) }
    }

    fn next(&mut self, workload: Workload) -> u64 {
        let Keys { cold, middle, hot } = self.keys;
        match workload {
            Workload::ColdGet => self.rng.below(cold),
            Workload::ColdSet => cold + self.rng.below(middle),
            Workload::HotGet => cold + middle + self.rng.below(hot),
            Workload::HotZipf => cold + middle + self.hot.next(&mut self.rng),
            Workload::AllZipf => self.all.next(&mut self.rng),
        }
    }
}

/// One system at one point: medians of the rounds, CPU of all of them.
#[derive(Clone, Debug, Serialize)]
pub struct Row {
    /// Which server.
    pub system: System,
    /// What its client did.
    pub workload: Workload,
    /// Bytes of a value.
    pub bytes: usize,
    /// Under which load.
    pub load: Load,
    /// Commands a second.
    pub per_second: f64,
    /// Latency that half of the commands stay below, microseconds.
    pub p50_us: f64,
    /// Latency that 99 of 100 stay below, microseconds.
    pub p99_us: f64,
    /// Commands answered, of all rounds.
    pub commands: u64,
    /// Length of all rounds, seconds.
    pub seconds: f64,
    /// CPU seconds of the host's process in that time, to the nanosecond.
    pub host_cpu: f64,
    /// CPU seconds of the DPU side's process, likewise.
    pub dpu_cpu: f64,
    /// Where all CPU time went, in ticks.
    pub cpu: CpuSeconds,
}

impl Row {
    /// Cores that the host used.
    #[must_use]
    pub fn host_cores(&self) -> f64 {
        self.host_cpu / self.seconds
    }

    /// Cores that the DPU side used.
    #[must_use]
    pub fn dpu_cores(&self) -> f64 {
        self.dpu_cpu / self.seconds
    }

    /// Commands a second of CPU time of both sides.
    #[must_use]
    pub fn per_core(&self) -> f64 {
        self.commands as f64 / (self.host_cpu + self.dpu_cpu)
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

/// One measurement.
struct Sample {
    done: Done,
    used: Used,
    cpu: CpuSeconds,
}

/// Measures; `progress` is told what comes next.
///
/// # Errors
/// A server that does not start, does not answer, or answers wrongly; the disk's.
pub fn run(figure: &ServersFigure, mut progress: impl FnMut(&str)) -> io::Result<Report> {
    measure(figure, figure.number.plan(), &mut progress)
}

/// One measurement each of a few workloads at a small size, for a test of the whole program.
///
/// # Errors
/// As [`run`].
pub fn run_small(figure: &ServersFigure) -> io::Result<Report> {
    let plan = Plan {
        loads: vec![load(2, 1), load(4, 16)],
        cold: 8 << 20,
        values: vec![1 << 10],
        ..figure.number.plan()
    };
    measure(figure, plan, &mut |_| ())
}

fn measure(
    figure: &ServersFigure,
    mut plan: Plan,
    progress: &mut dyn FnMut(&str),
) -> io::Result<Report> {
    let missing = plan.systems.contains(&System::Redis) && !has_redis();
    plan.systems.retain(|system| *system != System::Redis || !missing);
    let mut rows = Vec::new();
    for &value in &plan.values {
        let keys = Keys::new(plan.cold, value);
        let mut servers = Vec::with_capacity(plan.systems.len());
        for system in &plan.systems {
            progress(&format!("{} with values of {value} bytes is filled", system.name()));
            let dir = figure.dir.join(format!("{}-{value}", system.name()));
            let server = Running::start(*system, &figure.program, &dir)?;
            fill(&server, keys, value)?;
            servers.push(server);
        }
        let mut draw = Draw::new(keys);
        let mut points = Vec::new();
        for &workload in &plan.workloads {
            for &load in &plan.loads {
                points.extend(servers.iter().map(|server| (workload, load, server, Vec::new())));
            }
        }
        for round in 1..=figure.rounds {
            for (workload, load, server, samples) in &mut points {
                let (system, what) = (server.system.name(), workload.name());
                progress(&format!("round {round}: {what}, {value} bytes, {load:?}, {system}"));
                let batch = Batch { op: workload.op(), value, pipeline: load.pipeline };
                let mut next = || draw.next(*workload);
                samples.push(one(server, batch, load.connections, figure.time, &mut next)?);
            }
        }
        rows.extend(points.iter().map(|(workload, load, server, samples)| {
            row((server.system, *workload, value, *load), samples)
        }));
    }
    Ok(Report { number: figure.number, note: note(figure, &plan, missing), rows })
}

fn note(figure: &ServersFigure, plan: &Plan, missing: bool) -> String {
    let window: Vec<String> =
        plan.loads.iter().map(|load| format!("{}x{}", load.connections, load.pipeline)).collect();
    format!(
        "{}, {}; one client thread over loopback, closed loop; load window of every side, \
         connections x commands on each: {}; {} MiB of cold values in files by O_DIRECT, {} MiB of \
         memory (redis-server: all); one worker of the DPU side; medians of {} rounds of {:?}{}",
        machine(),
        today(),
        window.join(", "),
        plan.cold >> 20,
        MEMORY >> 20,
        figure.rounds,
        figure.time,
        if missing { "; redis-server is not installed and left out" } else { "" }
    )
}

/// Writes every record once, in order.
fn fill(server: &Running, keys: Keys, value: usize) -> io::Result<()> {
    let mut keys = 0..keys.all();
    let batch = Batch { op: Op::Set, value, pipeline: FILL.pipeline };
    Client::connect(server.address, FILL.connections)?.run(batch, &mut || keys.next())?;
    server.settle()
}

/// Measures one server once.
fn one(
    server: &Running,
    batch: Batch,
    connections: usize,
    time: Duration,
    next: &mut dyn FnMut() -> u64,
) -> io::Result<Sample> {
    let mut client = Client::connect(server.address, connections)?;
    let mut run = |time: Duration| {
        let from = Instant::now();
        client.run(batch, &mut || (from.elapsed() < time).then(&mut *next))
    };
    // What a first command brings about, and what was left to do from before, is not measured.
    run(time / 5)?;
    if batch.op == Op::Get {
        server.settle()?;
    }
    let mut processes = server.processes();
    processes.push(("client".to_owned(), std::process::id()));
    let machine = CpuMoment::now(&processes)?;
    let before = server.cpu()?;
    let done = run(time)?;
    let used = server.cpu()?.since(&before);
    let cpu = CpuMoment::now(&processes)?.since(&machine);
    Ok(Sample { done, used, cpu })
}

fn row(
    (system, workload, bytes, load): (System, Workload, usize, Load),
    samples: &[Sample],
) -> Row {
    let middle = |of: fn(&Sample) -> f64| median(&samples.iter().map(of).collect::<Vec<_>>());
    let sum = |of: fn(&Sample) -> f64| samples.iter().map(of).sum::<f64>();
    let mut cpu = CpuSeconds::default();
    samples.iter().for_each(|sample| cpu.add(&sample.cpu));
    Row {
        system,
        workload,
        bytes,
        load,
        per_second: middle(|s| s.done.count as f64 / s.done.time.as_secs_f64()),
        p50_us: middle(|s| s.done.latencies.percentile(50) as f64 / 1e3),
        p99_us: middle(|s| s.done.latencies.percentile(99) as f64 / 1e3),
        commands: samples.iter().map(|sample| sample.done.count).sum(),
        seconds: sum(|s| s.done.time.as_secs_f64()),
        host_cpu: sum(|s| s.used.host.as_secs_f64()),
        dpu_cpu: sum(|s| s.used.dpu.as_secs_f64()),
        cpu,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn zipf_prefers_few_and_reaches_many() {
        let (zipf, mut rng) = (Zipf::new(1000), Rng::new(7));
        let mut counts = vec![0u32; 1000];
        for _ in 0..100_000 {
            counts[usize::try_from(zipf.next(&mut rng)).unwrap()] += 1;
        }
        counts.sort_unstable_by(|a, b| b.cmp(a));
        // The most popular of a thousand gets 1 in 7.5.
        assert!((12_000..15_000).contains(&counts[0]), "{}", counts[0]);
        assert!(counts.iter().filter(|count| **count > 0).count() > 500);
    }

    #[test]
    fn keys_are_drawn_from_their_part() {
        let keys = Keys { cold: 10, middle: 20, hot: 5 };
        let mut draw = Draw::new(keys);
        for _ in 0..1000 {
            assert!((0..10).contains(&draw.next(Workload::ColdGet)));
            assert!((10..30).contains(&draw.next(Workload::ColdSet)));
            assert!((30..35).contains(&draw.next(Workload::HotGet)));
            assert!((30..35).contains(&draw.next(Workload::HotZipf)));
            assert!((0..35).contains(&draw.next(Workload::AllZipf)));
        }
    }
}
