//! Figures 14, 15, 24, 25 and 26 of DDS: the key-value and the page server in their forms, under
//! clients.
//!
//! * Figures 14 and 15: GETs of cold records and SETs of records that are cold, by their size, in
//!   the plain, the library and the offload form; throughput against the CPU of the host (14) and
//!   against latency (15).
//! * Figure 24: `GetPage` of cold pages of 8 KiB, in the same forms; throughput against latency.
//! * Figures 25 and 26: GETs after YCSB, uniform and zipf, of hot and cold records, with Debian's
//!   redis-server and memcached (all in memory) in the same rounds where they are installed.
//!
//! Every server is a process of its own, started through `outboard serve`, with its DPU side
//! another; all are there during the whole run and idle but in their turn. The client is one
//! thread of this process, in a closed loop: so many connections, so many commands under way on
//! each. A server's keys are written in this order before it is measured:
//!
//! ```text
//! cold: read, in the file | middle: in the file and behind it; SETs go here | hot: in memory
//! ```
//!
//! The middle is as large as everything a server can hold in memory besides the hot, so that cold
//! records are in the file for certain.

use std::io;
use std::path::PathBuf;
use std::time::Duration;

use outboard_base::Rng;
use serde::Serialize;

use super::client::Client;
use super::requests::{Batch, Op};
use super::sample::{Asked, Got, Load, load, one, window};
use crate::{machine, today};

mod report;
mod subject;

use subject::{App, MEMORY, Running};

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
    /// Fewer loads, and half of the data: for a look at everything.
    pub is_short: bool,
}

/// One of the figures. 14 and 15 draw one measurement, 25 and 26 another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub enum Number {
    /// Cold GETs and SETs: throughput and CPU of the host.
    Figure14,
    /// The same: throughput and latency.
    Figure15,
    /// Pages: throughput, latency and CPU of the host.
    Figure24,
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
            "24" => Number::Figure24,
            "25" => Number::Figure25,
            "26" => Number::Figure26,
            _ => return None,
        })
    }

    /// As the paper counts.
    #[must_use]
    pub fn number(self) -> u8 {
        match self {
            Number::Figure14 => 14,
            Number::Figure15 => 15,
            Number::Figure24 => 24,
            Number::Figure25 => 25,
            Number::Figure26 => 26,
        }
    }

    fn plan(self, is_short: bool) -> Plan {
        let forms = [System::Plain, System::Library, System::Offload];
        let (app, systems, workloads, values) = match self {
            Number::Figure14 | Number::Figure15 => {
                let workloads = vec![Workload::ColdGet, Workload::ColdSet];
                (App::Kv, forms.to_vec(), workloads, vec![1 << 10, 8 << 10])
            }
            Number::Figure24 => (App::Pages, forms.to_vec(), vec![Workload::GetPage], vec![8192]),
            Number::Figure25 | Number::Figure26 => {
                let (all, hot) = (vec![Workload::AllZipf], vec![Workload::HotZipf]);
                let both = [vec![Workload::ColdGet, Workload::HotGet], hot, all].concat();
                let (workloads, values) = if is_short {
                    (vec![Workload::HotGet], vec![1 << 10])
                } else {
                    (both, vec![1 << 10, 8 << 10])
                };
                (App::Kv, System::ALL.to_vec(), workloads, values)
            }
        };
        let (loads, cold) =
            if is_short { (SHORT.to_vec(), COLD / 2) } else { (LOADS.to_vec(), COLD) };
        Plan { app, systems, workloads, values, loads, cold }
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
    /// Reads pages in the file, all alike.
    GetPage,
}

impl Workload {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Workload::ColdGet => "cold GET",
            Workload::ColdSet => "cold SET",
            Workload::HotGet => "hot GET",
            Workload::HotZipf => "hot zipf",
            Workload::AllZipf => "all zipf",
            Workload::GetPage => "GetPage",
        }
    }

    fn op(self) -> Op {
        match self {
            Workload::ColdSet => Op::Set,
            Workload::GetPage => Op::GetPage,
            _ => Op::Get,
        }
    }
}

const LOADS: [Load; 4] = [load(1, 1), load(8, 1), load(32, 1), load(8, 16)];
/// Batches of 1 and of 16, and one client by itself.
const SHORT: [Load; 3] = [load(1, 1), load(8, 1), load(8, 16)];
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
    app: App,
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
            Workload::ColdGet | Workload::GetPage => self.rng.below(cold),
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
    /// What came of it.
    #[serde(flatten)]
    pub got: Got,
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

/// Measures; `progress` is told what comes next.
///
/// # Errors
/// A server that does not start, does not answer, or answers wrongly; the disk's.
pub fn run(figure: &ServersFigure, mut progress: impl FnMut(&str)) -> io::Result<Report> {
    measure(figure, figure.number.plan(figure.is_short), &mut progress)
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
        ..figure.number.plan(false)
    };
    measure(figure, plan, &mut |_| ())
}

fn measure(
    figure: &ServersFigure,
    mut plan: Plan,
    progress: &mut dyn FnMut(&str),
) -> io::Result<Report> {
    let missing: Vec<System> =
        plan.systems.iter().copied().filter(|system| !system.is_here()).collect();
    plan.systems.retain(|system| !missing.contains(system));
    let mut rows = Vec::new();
    for &value in &plan.values {
        let keys = Keys::new(plan.cold, value);
        let mut servers = Vec::with_capacity(plan.systems.len());
        for system in &plan.systems {
            progress(&format!("{} with values of {value} bytes is filled", system.name()));
            let dir = figure.dir.join(format!("{}-{value}", system.name()));
            let server = Running::start(*system, plan.app, &figure.program, &dir)?;
            fill(&server, plan.app, keys, value)?;
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
                let op = workload.op();
                let batch = Batch { op: server.system.says(op), value, pipeline: load.pipeline };
                let settles = op != Op::Set;
                let asked = Asked { batch, settles };
                let client = Client::connect(server.address, load.connections)?;
                let mut next = || draw.next(*workload);
                samples.push(one(client, &server.sides, asked, figure.time, &mut next)?);
            }
        }
        rows.extend(points.iter().map(|(workload, load, server, samples)| {
            let (system, workload, load) = (server.system, *workload, *load);
            Row { system, workload, bytes: value, load, got: Got::of(samples) }
        }));
    }
    Ok(Report { number: figure.number, note: note(figure, &plan, &missing), rows })
}

fn note(figure: &ServersFigure, plan: &Plan, missing: &[System]) -> String {
    let missing: String = missing
        .iter()
        .map(|system| format!("; {} is not installed and left out", system.name()))
        .collect();
    format!(
        "{}, {}; one client thread over loopback, closed loop; load window of every side, \
         connections x commands on each: {}; {} MiB of cold values in files by O_DIRECT, {} MiB of \
         memory (rivals: all), nobody syncs; one worker of the DPU side; medians of {} rounds of \
         {:?}{missing}",
        machine(),
        today(),
        window(&plan.loads),
        plan.cold >> 20,
        MEMORY >> 20,
        figure.rounds,
        figure.time,
    )
}

/// Writes every record once, in order.
fn fill(server: &Running, app: App, keys: Keys, value: usize) -> io::Result<()> {
    let mut keys = 0..keys.all();
    let op = if app == App::Kv { server.system.says(Op::Set) } else { Op::Apply };
    let batch = Batch { op, value, pipeline: FILL.pipeline };
    Client::connect(server.address, FILL.connections)?.run(batch, &mut || keys.next())?;
    server.sides.settle()
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
