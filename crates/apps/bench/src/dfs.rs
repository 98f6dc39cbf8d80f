//! `bench dfs`: the first half of the DPC paper's Figure 9 (4.3), clients of a shared volume.
//!
//! | client | asks | is |
//! |---|---|---|
//! | standard | the metadata server for everything | in the mount's process: the paper's NFS |
//! | host | the server for names, nodes for bytes | in the mount's process: its optimised one |
//! | dpu | the same, by the same code | on the DPU side, a process of its own |
//!
//! All three mount one volume of one cluster, each part of which is a process of its own. At every
//! point of every round they take turns; medians over the rounds are reported, CPU time over all.
//! The volume is also reached past the kernel, by the client library, through `host` and `dpu`:
//! FUSE, which the paper has in the kernel, is not in these figures.
//!
//! What is the host's CPU: the process of the mount, which is fs-adaptor and driver with `dpu` and
//! the whole client otherwise. Past the kernel that is in the measuring process itself: what its
//! loop takes without a volume is measured beside it and left out. With `dpu` the DPU side's is
//! apart. The load's own, which is the kernel's part of FUSE too, and what server and nodes take,
//! are columns of their own.
//!
//! A client in the mount's process answers it by a queue pair of that process, as a DPU side does
//! from another. What queue and FUSE take alone is measured too: a `seek` for data behind the end
//! is answered by the client itself, under its delegation, and asks nobody.

pub(crate) mod cluster;
mod plan;
mod report;

use std::collections::BTreeMap;
use std::io;
use std::path::PathBuf;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use serde::Serialize;

use self::plan::{Contestant, Field, Job};
use crate::cpu::{CpuMoment, CpuSeconds};
use crate::fs::Rounds;
use crate::fs::reach::How;
use crate::fs::subject::{APPLICATION, DPU, HOST, Run};
use crate::stats::{Latencies, median};
use crate::workload::{Aligned, Outcome, nanos, repeat};
use crate::{machine, today};

/// In reports.
const SERVER: &str = "server";
const NODES: &str = "nodes";

/// How the figure is measured.
#[derive(Clone, Debug)]
pub struct Figure9 {
    /// Directory for cluster and mounts; emptied afterwards.
    pub dir: PathBuf,
    /// Length of each measurement.
    pub time: Duration,
    /// Interleaved rounds.
    pub rounds: u32,
    /// Numbers of threads, ascending.
    pub threads: Vec<usize>,
    /// Bytes of each client's file, in whole MiB.
    pub file_len: u64,
    /// Storage nodes.
    pub nodes: u16,
    /// What clients that read and write the nodes themselves do without, if anything: as the
    /// program's `--without` takes it.
    pub without: Option<String>,
    /// The program, started anew for all.
    pub program: PathBuf,
}

/// One client at one point.
#[derive(Clone, Debug, Serialize)]
pub struct Row {
    /// What was done.
    pub operation: &'static str,
    /// Threads, each with one operation on its way.
    pub threads: usize,
    /// Which client, and whether it is reached past the kernel.
    pub system: &'static str,
    /// Operations a second; median of the rounds.
    pub per_second: f64,
    /// Mean latency, microseconds; median of the rounds.
    pub mean_us: f64,
    /// 99th percentile, microseconds; median of the rounds.
    pub p99_us: f64,
    /// CPU microseconds an operation of the load itself.
    pub load_cpu_us: f64,
    /// The same of the host's side.
    pub host_cpu_us: f64,
    /// The same of the DPU side.
    pub dpu_cpu_us: f64,
    /// The same of the metadata server.
    pub server_cpu_us: f64,
    /// The same of all nodes.
    pub nodes_cpu_us: f64,
    /// The same of kernel threads and interrupts.
    pub kernel_cpu_us: f64,
    /// Operations of all rounds.
    pub operations: u64,
    /// CPU seconds of all rounds.
    pub cpu: CpuSeconds,
}

/// The figure.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// How, where and when it was measured.
    pub note: String,
    /// Point by point.
    pub rows: Vec<Row>,
}

/// One operation of a point, on its way through the rounds.
struct Measured {
    operation: &'static str,
    /// For each contestant.
    rounds: Vec<Rounds>,
}

/// Measures; `progress` is told what is being measured.
///
/// # Errors
/// No cluster, no mount, or an operation failed.
pub fn run(figure: &Figure9, mut progress: impl FnMut(&str)) -> io::Result<Report> {
    let field = Field::new(figure, &mut progress)?;
    let mut rows = Vec::new();
    for job in Job::ALL {
        for &threads in &figure.threads {
            let point = Point { figure, job: *job, threads };
            let measured = point.measure(&field.contestants, &mut progress)?;
            let load = loop_cpu(threads, figure.time / 5)?;
            for of in &measured {
                let systems = field.contestants.iter().zip(&of.rounds);
                rows.extend(systems.map(|(c, rounds)| row(of.operation, threads, c, rounds, load)));
            }
        }
    }
    Ok(Report { note: note(figure), rows })
}

fn note(figure: &Figure9) -> String {
    let without = figure.without.as_ref().map(|list| format!("; host and dpu without {list}"));
    format!(
        "measured {} on {}; medians of {} rounds of {} s, in turn; files of {} MiB, {} nodes{}",
        today(),
        machine(),
        figure.rounds,
        figure.time.as_secs_f64(),
        figure.file_len >> 20,
        figure.nodes,
        without.unwrap_or_default(),
    )
}

/// CPU microseconds of one turn of the measuring loop, without a volume.
fn loop_cpu(threads: usize, time: Duration) -> io::Result<f64> {
    let me = [(APPLICATION.to_owned(), std::process::id())];
    let before = CpuMoment::now(&me)?;
    let span = 1 << 30;
    let outcome = repeat(threads, time, |thread| {
        let (mut buffer, mut rng) = (Aligned::new(plan::SMALL, thread), plan::blocks(thread, span));
        Ok(move |_| {
            std::hint::black_box((buffer.slice(), rng()));
            Ok(())
        })
    })?;
    let used = CpuMoment::now(&me)?.since(&before);
    let seconds = used.by_name.get(APPLICATION).copied().unwrap_or(0.0);
    Ok(seconds * 1e6 / outcome.operations.max(1) as f64)
}

/// A number of threads at a job.
#[derive(Clone, Copy)]
struct Point<'a> {
    figure: &'a Figure9,
    job: Job,
    threads: usize,
}

impl Point<'_> {
    fn measure(
        &self,
        contestants: &[Contestant],
        progress: &mut dyn FnMut(&str),
    ) -> io::Result<Vec<Measured>> {
        let none = || contestants.iter().map(|_| Rounds::default()).collect();
        let operations = self.job.operations().iter();
        let mut measured: Vec<Measured> =
            operations.map(|operation| Measured { operation, rounds: none() }).collect();
        for round in 0..=self.figure.rounds {
            for (place, contestant) in contestants.iter().enumerate() {
                let (name, what) = (contestant.name, self.job.operations().join(", "));
                progress(&format!("{what}, {} threads, {name}, round {round}", self.threads));
                // Round 0 warms what would be warm; it is not counted.
                let time = if round == 0 { self.figure.time / 10 } else { self.figure.time };
                let runs = self.drive(contestant, time);
                let runs = runs.map_err(|error| {
                    let threads = self.threads;
                    io::Error::other(format!("{what}, {threads} threads, {name}: {error}"))
                })?;
                let counted = runs.iter().zip(&mut measured).filter(|_| round > 0);
                for (run, into) in counted {
                    if let Some(rounds) = into.rounds.get_mut(place) {
                        rounds.add(run);
                    }
                }
            }
        }
        Ok(measured)
    }

    /// Each of the job's operations once, in their order.
    fn drive(&self, contestant: &Contestant, time: Duration) -> io::Result<Vec<Run>> {
        let watch = |act: &dyn Fn() -> io::Result<Outcome>| {
            contestant.subject.watch(&self.figure.program, act)
        };
        match self.job {
            Job::Bytes { write, seeks } => {
                watch(&|| self.bytes(contestant, time, write, seeks)).map(|run| vec![run])
            }
            Job::Names => {
                let files = Files::new(contestant, self.threads);
                let create = watch(&|| files.create(time))?;
                let stat = watch(&|| files.stat(time))?;
                let unlink = watch(&|| files.unlink())?;
                Ok(vec![create, stat, unlink])
            }
        }
    }

    fn bytes(
        &self,
        contestant: &Contestant,
        time: Duration,
        write: bool,
        seeks: bool,
    ) -> io::Result<Outcome> {
        let how = How { write, direct: true, no_read_ahead: false };
        let outcome = repeat(self.threads, time, |thread| {
            let file = contestant.reach.open(how)?;
            let mut buffer = Aligned::new(plan::SMALL, thread);
            let mut next = plan::blocks(thread, self.figure.file_len);
            Ok(move |_| match (seeks, write) {
                (true, _) => file.seek_behind(self.figure.file_len),
                (_, true) => file.write(buffer.slice(), next()),
                (_, false) => file.read(buffer.slice(), next()),
            })
        })?;
        if write {
            contestant.reach.sync()?;
        }
        Ok(outcome)
    }
}

/// Empty files that are made, looked at and removed.
struct Files<'a> {
    contestant: &'a Contestant,
    /// How many each thread has made.
    made: Vec<AtomicU64>,
}

impl<'a> Files<'a> {
    fn new(contestant: &'a Contestant, threads: usize) -> Files<'a> {
        Files { contestant, made: (0..threads).map(|_| 0.into()).collect() }
    }

    fn name(&self, thread: u64, number: u64) -> String {
        format!("{}-{thread}-{number:07}", self.contestant.name.replace(' ', "-"))
    }

    /// How many `thread` has made.
    fn count(&self, thread: u64) -> &AtomicU64 {
        static NONE: AtomicU64 = AtomicU64::new(0);
        usize::try_from(thread).ok().and_then(|thread| self.made.get(thread)).unwrap_or(&NONE)
    }

    fn create(&self, time: Duration) -> io::Result<Outcome> {
        repeat(self.made.len(), time, |thread| {
            Ok(move |number| {
                self.contestant.reach.create(&self.name(thread, number))?;
                self.count(thread).store(number + 1, Relaxed);
                Ok(())
            })
        })
    }

    fn stat(&self, time: Duration) -> io::Result<Outcome> {
        repeat(self.made.len(), time, |thread| {
            let (mut rng, made) = (outboard_base::Rng::new(thread), self.count(thread));
            let made = made.load(Relaxed).max(1);
            Ok(move |_| self.contestant.reach.stat(&self.name(thread, rng.below(made))))
        })
    }

    /// All of them: each thread its own.
    fn unlink(&self) -> io::Result<Outcome> {
        let start = Instant::now();
        let results: Vec<io::Result<Latencies>> = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..self.made.len() as u64)
                .map(|thread| scope.spawn(move || self.unlink_of(thread)))
                .collect();
            let panicked = |_| Err(io::Error::other("a thread panicked"));
            threads.into_iter().map(|thread| thread.join().unwrap_or_else(panicked)).collect()
        });
        let elapsed = start.elapsed();
        let mut latencies = Latencies::default();
        for of_one in results {
            latencies.merge(&of_one?);
        }
        Ok(Outcome { operations: latencies.count(), elapsed, latencies })
    }

    fn unlink_of(&self, thread: u64) -> io::Result<Latencies> {
        let mut latencies = Latencies::default();
        let mut before = Instant::now();
        for number in 0..self.count(thread).load(Relaxed) {
            self.contestant.reach.unlink(&self.name(thread, number))?;
            let now = Instant::now();
            latencies.push(nanos(now - before));
            before = now;
        }
        Ok(latencies)
    }
}

fn row(
    operation: &'static str,
    threads: usize,
    contestant: &Contestant,
    rounds: &Rounds,
    own: f64,
) -> Row {
    let named = |name: &str| rounds.per_op(rounds.cpu.by_name.get(name).copied().unwrap_or(0.0));
    let application = named(APPLICATION);
    // Past the kernel the measuring process is a part of the host's side, but for its own loop.
    let load = if contestant.past_kernel { own.min(application) } else { application };
    Row {
        operation,
        threads,
        system: contestant.name,
        per_second: median(&rounds.ops_per_second),
        mean_us: median(&rounds.mean_us),
        p99_us: median(&rounds.p99_us),
        load_cpu_us: load,
        host_cpu_us: application - load + named(HOST),
        dpu_cpu_us: named(DPU),
        server_cpu_us: named(SERVER),
        nodes_cpu_us: named(NODES),
        kernel_cpu_us: rounds.per_op(rounds.cpu.kernel_threads + rounds.cpu.interrupts),
        operations: rounds.operations,
        cpu: rounds.cpu.clone(),
    }
}

impl Report {
    /// Whether the parts of the CPU time add up to all that was not idle, for each client.
    ///
    /// # Errors
    /// Says which client's do not, and what is missing.
    pub fn check(&self) -> Result<(), String> {
        let mut systems: BTreeMap<&str, CpuSeconds> = BTreeMap::new();
        for row in &self.rows {
            systems.entry(row.system).or_default().add(&row.cpu);
        }
        systems.iter().try_for_each(|(system, cpu)| crate::fs::adds_up(system, cpu))
    }
}
