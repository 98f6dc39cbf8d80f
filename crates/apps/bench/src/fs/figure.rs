//! The paper's figures of a standalone volume (DPC 4.2): Figure 7, Figure 8 and Table 2.
//!
//! Every point is a number of threads that read or write blocks of one file, each with one
//! operation on its way. The systems take turns at every point of every round; medians over the
//! rounds are reported, CPU time over all of them. A measurement of writes ends with a sync: the
//! rate is that of the writes, the CPU time is of everything until they are durable, and no system
//! writes back in another's turn. What each figure compares is `plan`; the report is drawn and
//! tabled by `report`.

mod plan;
mod report;

use std::io;
use std::path::PathBuf;
use std::time::Duration;

use serde::Serialize;

use self::plan::{Contestant, Field, Job};
use super::Rounds;
use super::reach::How;
use super::subject::{APPLICATION, DPU, HOST};
use crate::cpu::CpuSeconds;
use crate::stats::median;
use crate::workload::{Aligned, Outcome, repeat};
use crate::{machine, today};

/// Which figure.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Figure {
    /// Direct 8 KiB reads and writes, by threads: the mount and the user-space path against a plain
    /// directory and plain FUSE.
    Figure7,
    /// The same buffered, by cache mode, and sequential reads with and without read-ahead.
    Figure8,
    /// Sequential reads and writes of 1 MiB.
    Table2,
}

impl Figure {
    /// All of them, by the names a user gives.
    pub const NAMES: [(&'static str, Figure); 3] =
        [("7", Figure::Figure7), ("8", Figure::Figure8), ("table2", Figure::Table2)];

    /// The figure of this name, if there is one.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Figure> {
        Figure::NAMES.into_iter().find(|(known, _)| *known == name).map(|(_, figure)| figure)
    }

    /// Numbers of threads, unless others are asked for.
    #[must_use]
    pub fn threads(self) -> &'static [usize] {
        match self {
            Figure::Figure7 => &[1, 2, 4, 8, 16, 32, 64, 128, 256],
            Figure::Figure8 => &[1, 8, 32],
            Figure::Table2 => &[1, 32],
        }
    }
}

/// How a figure is measured.
#[derive(Clone, Debug)]
pub struct FsFigure {
    /// Which.
    pub figure: Figure,
    /// Directory for the data of all systems; emptied afterwards.
    pub dir: PathBuf,
    /// Length of each measurement.
    pub time: Duration,
    /// Interleaved rounds.
    pub rounds: u32,
    /// Numbers of threads, ascending.
    pub threads: Vec<usize>,
    /// Bytes of the file, in whole MiB.
    pub file_len: u64,
    /// What each read of a volume's data file takes longer.
    pub read_delay: Duration,
    /// The program, started anew for each volume.
    pub program: PathBuf,
}

/// One system at one point.
#[derive(Clone, Debug, Serialize)]
pub struct Row {
    /// What was done.
    pub operation: &'static str,
    /// Bytes of each operation.
    pub size: usize,
    /// Threads, each with one operation on its way.
    pub threads: usize,
    /// Which system, and with which cache.
    pub system: &'static str,
    /// Operations a second; median of the rounds.
    pub per_second: f64,
    /// Mean latency, microseconds; median of the rounds.
    pub mean_us: f64,
    /// Median latency, microseconds; median of the rounds.
    pub p50_us: f64,
    /// 99th percentile, microseconds; median of the rounds.
    pub p99_us: f64,
    /// CPU microseconds an operation of the application and of what serves its mount.
    pub host_cpu_us: f64,
    /// CPU microseconds an operation of the DPU side.
    pub dpu_cpu_us: f64,
    /// CPU microseconds an operation of kernel threads and interrupts.
    pub kernel_cpu_us: f64,
    /// The part of all cores' time that application and mount used, 0 to 1 (Figure 7(c)).
    pub host_share: f64,
    /// DMAs an operation, counted; none where there is no DPU side.
    pub dmas: Option<f64>,
    /// Operations of all rounds.
    pub operations: u64,
    /// CPU seconds of all rounds.
    pub cpu: CpuSeconds,
}

/// What a whole run found.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// Which figure.
    pub figure: Figure,
    /// How it was measured, where and when.
    pub note: String,
    /// Microseconds that each read of a volume's medium took longer.
    pub read_delay_us: u128,
    /// Point by point, the systems of each together.
    pub rows: Vec<Row>,
}

/// Measures; `progress` is told what is being measured.
///
/// # Errors
/// Something could not be mounted, or an operation failed.
pub fn run(figure: &FsFigure, mut progress: impl FnMut(&str)) -> io::Result<Report> {
    let field = Field::new(figure, &mut progress)?;
    let mut rows = Vec::new();
    for job in plan::jobs(figure) {
        let contestants: Vec<&Contestant> = field.of(&job).collect();
        let mut rounds: Vec<Rounds> = contestants.iter().map(|_| Rounds::default()).collect();
        for round in 0..=figure.rounds {
            for (contestant, into) in contestants.iter().zip(&mut rounds) {
                let (name, what) = (contestant.subject.name, job.operation);
                progress(&format!("{what}, {} threads on {name}, round {round}", job.threads));
                let failed = |error| io::Error::other(format!("{what} on {name}: {error}"));
                // Round 0 warms what would be warm; it is not counted.
                if round == 0 {
                    warm_up(contestant, &job, figure.time / 10).map_err(failed)?;
                    continue;
                }
                let act = || drive(contestant, &job, figure.time);
                into.add(&contestant.subject.watch(&figure.program, act).map_err(failed)?);
            }
        }
        rows.extend(contestants.iter().zip(&rounds).map(|(c, r)| row(&job, c, r)));
    }
    let read_delay_us = figure.read_delay.as_micros();
    Ok(Report { figure: figure.figure, note: note(figure), read_delay_us, rows })
}

fn note(figure: &FsFigure) -> String {
    let mut note = format!(
        "measured {} on {}; medians of {} rounds of {} s, in turn; {} MiB each",
        today(),
        machine(),
        figure.rounds,
        figure.time.as_secs_f64(),
        figure.file_len >> 20,
    );
    if !figure.read_delay.is_zero() {
        note += &format!("; volumes' media +{} us", figure.read_delay.as_micros());
    }
    note
}

fn warm_up(contestant: &Contestant, job: &Job, time: Duration) -> io::Result<()> {
    if !job.direct && !job.sequential {
        contestant.reach.warm(job.span)?;
    }
    drive(contestant, job, time).map(drop)
}

/// Runs the threads for `time`; writes are synced in the end.
fn drive(contestant: &Contestant, job: &Job, time: Duration) -> io::Result<Outcome> {
    let how =
        How { write: job.write, direct: job.direct, no_read_ahead: job.read_ahead == Some(false) };
    let outcome = repeat(job.threads, time, |thread| {
        let file = contestant.reach.open(how)?;
        let (mut buffer, mut blocks) = (Aligned::new(job.size, thread), job.blocks(thread));
        Ok(move |_| {
            let block = blocks.next_block();
            if let Some((at, len)) = block.forget {
                file.forget(at, len)?;
            }
            if job.write {
                file.write(buffer.slice(), block.at)
            } else {
                file.read(buffer.slice(), block.at)
            }
        })
    })?;
    if job.write {
        contestant.reach.sync()?;
    }
    Ok(outcome)
}

fn row(job: &Job, contestant: &Contestant, rounds: &Rounds) -> Row {
    let named = |name: &str| rounds.cpu.by_name.get(name).copied().unwrap_or(0.0);
    let host = named(APPLICATION) + named(HOST);
    let cores = std::thread::available_parallelism().map_or(1, usize::from) as f64;
    let all = cores * rounds.wall.as_secs_f64().max(f64::MIN_POSITIVE);
    let dmas = rounds.dmas.values().sum::<u64>() as f64 / rounds.operations.max(1) as f64;
    Row {
        operation: job.operation,
        size: job.size,
        threads: job.threads,
        system: contestant.subject.name,
        per_second: median(&rounds.ops_per_second),
        mean_us: median(&rounds.mean_us),
        p50_us: median(&rounds.p50_us),
        p99_us: median(&rounds.p99_us),
        host_cpu_us: rounds.per_op(host),
        dpu_cpu_us: rounds.per_op(named(DPU)),
        kernel_cpu_us: rounds.per_op(rounds.cpu.kernel_threads + rounds.cpu.interrupts),
        host_share: host / all,
        dmas: contestant.subject.data.is_some().then_some(dmas),
        operations: rounds.operations,
        cpu: rounds.cpu.clone(),
    }
}
