//! `bench fs`: the mounted volume against a plain directory and a plain FUSE passthrough.
//!
//! All three stand in one directory, so on one disk. Every round runs every workload on each of
//! them in turn, so that a slow minute of the machine hits all; medians over the rounds and the
//! ratios of medians are reported. CPU seconds are taken of each process apart, of kernel threads,
//! of interrupts and of everybody else; what these leave unexplained of all that was not idle is
//! printed, and [`Report::check`] fails when it is too much ([`UNEXPLAINED_MAX`]).
//!
//! [`figure`] measures the paper's figures of a standalone volume (DPC 4.2) on the same subjects
//! and on more: each cache mode, and the path past the kernel. [`engine`] measures a volume in a
//! pool against the pool's own tool, [`compress`] what compression gains and costs, [`apps`] whole
//! applications.

pub mod apps;
pub mod compress;
pub mod engine;
pub mod figure;
pub(crate) mod reach;
pub(crate) mod subject;

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::Serialize;

use self::subject::{APPLICATION, Ask, DPU, HOST, Run, Subject};
use crate::cpu::CpuSeconds;
use crate::stats::median;
use crate::verdict::Verdict;
use crate::workload::{self, Outcome, Title};

/// The largest part of all CPU time that was not idle, over every workload of a system, which the
/// parts may leave unexplained or count twice.
pub const UNEXPLAINED_MAX: f64 = 0.05;
/// Seconds beside it: the accounts are kept in hundredths of a second, for each process apart.
const GRAIN: f64 = 0.2;

/// The volume with its default settings, in reports.
const OURS: &str = "outboard";
/// What is asked: of what, how many times the rate of whom, in which workloads.
type Asked = (&'static str, &'static str, f64, &'static [&'static str]);

/// What the reports of a command have in common.
#[derive(Debug)]
pub(crate) struct Suite {
    name: &'static str,
    /// Of whom it is asked.
    ours: &'static [&'static str],
    /// Whose rate a row is shown as a multiple of.
    rivals: &'static [&'static str],
    /// What is to be known of the columns besides.
    note: &'static str,
    asked: &'static [Asked],
}

const SUITE: Suite = Suite {
    name: "fs",
    ours: &[OURS],
    rivals: &["plain", "fuse"],
    note: "what a workload prepares between its measured parts is in it",
    asked: &[
        ("8 KiB direct random reads", "plain", 0.4, &["direct-read-8k-t8"]),
        ("metadata", "fuse", 0.8, &["create", "stat", "readdir", "unlink"]),
        ("fsync and commits", "plain", 0.7, &["write-fsync-8k", "sqlite-wal", "sqlite-rollback"]),
    ],
};

/// How `bench fs` runs.
#[derive(Clone, Debug)]
pub struct FsBench {
    /// Directory for the data of all three; emptied afterwards.
    pub dir: PathBuf,
    /// Length of each measurement.
    pub time: Duration,
    /// Interleaved rounds.
    pub rounds: u32,
    /// Only workloads whose name contains this.
    pub only: Option<String>,
    /// The program, started anew for each volume.
    pub program: PathBuf,
    /// Stores for one more volume each, of different kinds: measured as `fjall`, `redb` or `rados`.
    pub stores: Vec<String>,
}

/// Medians of one workload on one file system.
#[derive(Clone, Debug, Serialize)]
pub struct Row {
    /// Workload.
    pub workload: String,
    /// What one operation is.
    pub operation: String,
    /// Threads at work.
    pub threads: usize,
    /// `outboard`, `plain`, `fuse`, or the kind of a store.
    pub system: String,
    /// Operations a second, measured; median of the rounds.
    pub ops_per_second: f64,
    /// Mean latency, microseconds; median of the rounds.
    pub mean_us: f64,
    /// Median latency, microseconds; median of the rounds.
    pub p50_us: f64,
    /// 99th percentile of latency, microseconds; median of the rounds.
    pub p99_us: f64,
    /// CPU microseconds an operation, by process, measured over all rounds.
    pub cpu_us_per_op: BTreeMap<String, f64>,
    /// CPU seconds over all rounds.
    pub cpu: CpuSeconds,
    /// Operations over all rounds.
    pub operations: u64,
    /// DMAs an operation by kind, counted by the DPU side over all rounds; empty for the rivals.
    pub dma_per_op: BTreeMap<String, f64>,
}

/// What a whole run found.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// The figures, workload by workload.
    pub rows: Vec<Row>,
    /// Rounds whose medians were taken.
    pub rounds: u32,
    /// Seconds of one measurement.
    pub seconds: f64,
    /// Processors of this machine.
    pub cores: usize,
    /// Measurements that cannot be had here, and why.
    pub left_out: Vec<(String, String)>,
    #[serde(skip)]
    suite: &'static Suite,
}

/// What the rounds of one workload on one subject gave.
#[derive(Default)]
pub(crate) struct Rounds {
    pub(crate) ops_per_second: Vec<f64>,
    pub(crate) mean_us: Vec<f64>,
    p50_us: Vec<f64>,
    pub(crate) p99_us: Vec<f64>,
    pub(crate) cpu: CpuSeconds,
    /// The time in which that CPU time was used.
    wall: Duration,
    pub(crate) operations: u64,
    dmas: BTreeMap<String, u64>,
}

impl Rounds {
    pub(crate) fn add(&mut self, run: &Run) {
        let Run { outcome, cpu, wall, dmas } = run;
        self.ops_per_second.push(outcome.operations as f64 / outcome.elapsed.as_secs_f64());
        self.mean_us.push(outcome.latencies.mean() / 1e3);
        self.p50_us.push(outcome.latencies.percentile(50) as f64 / 1e3);
        self.p99_us.push(outcome.latencies.percentile(99) as f64 / 1e3);
        self.operations += outcome.operations;
        self.cpu.add(cpu);
        self.wall += *wall;
        for (kind, count) in dmas {
            *self.dmas.entry(kind.clone()).or_insert(0) += count;
        }
    }

    /// CPU microseconds an operation.
    pub(crate) fn per_op(&self, seconds: f64) -> f64 {
        seconds * 1e6 / self.operations.max(1) as f64
    }

    fn row(&self, title: Title, system: &str) -> Row {
        Row {
            workload: title.name.to_owned(),
            operation: title.operation.to_owned(),
            threads: title.threads,
            system: system.to_owned(),
            ops_per_second: median(&self.ops_per_second),
            mean_us: median(&self.mean_us),
            p50_us: median(&self.p50_us),
            p99_us: median(&self.p99_us),
            cpu_us_per_op: self
                .cpu
                .by_name
                .iter()
                .map(|(n, used)| (n.clone(), self.per_op(*used)))
                .collect(),
            cpu: self.cpu.clone(),
            operations: self.operations,
            dma_per_op: self
                .dmas
                .iter()
                .filter(|(_, count)| **count > 0)
                .map(|(kind, count)| (kind.clone(), *count as f64 / self.operations.max(1) as f64))
                .collect(),
        }
    }
}

/// Runs everything; `progress` is told what is being measured.
pub fn run(bench: &FsBench, mut progress: impl FnMut(&str)) -> io::Result<Report> {
    let chosen = chosen(workload::ALL, |workload| workload.name, bench.only.as_deref())?;
    let stores = kinds(&bench.stores)?;
    let ask = Ask { dir: &bench.dir, program: &bench.program, flags: &[], apart: false };
    let mut subjects = vec![
        Subject::outboard(&ask, OURS, &[])?,
        Subject::plain(&ask)?,
        Subject::fuse(&ask, "fuse", &[])?,
    ];
    for (name, store) in stores {
        subjects.push(Subject::outboard(&ask, name, &["--store", store])?);
    }
    let turns = Turns { subjects, program: &bench.program, rounds: bench.rounds };
    let mut rows = Vec::new();
    for workload in chosen {
        let run = |subject: &Subject, round| {
            // Round 0 prepares files and warms what would be warm.
            let time = if round == 0 { bench.time / 10 } else { bench.time };
            workload.run(&subject.dir, time)
        };
        rows.extend(turns.take(workload.title(), &mut progress, |_| Ok(()), run)?);
    }
    drop(turns);
    Ok(Report::new(&SUITE, rows, bench.rounds, bench.time))
}

/// Whether the parts of a system's CPU time add up to all that was not idle.
pub(crate) fn adds_up(system: &str, cpu: &CpuSeconds) -> Result<(), String> {
    let most = cpu.not_idle * UNEXPLAINED_MAX + GRAIN;
    if cpu.unexplained.abs() <= most {
        return Ok(());
    }
    Err(format!(
        "CPU time does not add up for {system}: {:.2} s were not idle and {:.2} s of them are in \
         no part (at most {most:.2} s may be)",
        cpu.not_idle, cpu.unexplained,
    ))
}

/// Those whose name contains `only`.
fn chosen<'a, T>(
    all: &'a [T],
    name: impl Fn(&T) -> &'static str,
    only: Option<&str>,
) -> io::Result<Vec<&'a T>> {
    let is_meant = |one: &&T| only.is_none_or(|only| name(one).contains(only));
    let chosen: Vec<&T> = all.iter().filter(is_meant).collect();
    if chosen.is_empty() {
        let names: Vec<&str> = all.iter().map(name).collect();
        let names = names.join(", ");
        return Err(io::Error::other(format!("no such measurement; there are: {names}")));
    }
    Ok(chosen)
}

/// File systems that take turns.
struct Turns<'a> {
    subjects: Vec<Subject>,
    program: &'a Path,
    rounds: u32,
}

impl Turns<'_> {
    /// Does `act` on each in turn, in every round, after `prepare`, which is no part of it; round 0
    /// is not counted.
    fn take(
        &self,
        title: Title,
        progress: &mut dyn FnMut(&str),
        prepare: impl Fn(&Subject) -> io::Result<()>,
        act: impl Fn(&Subject, u32) -> io::Result<Outcome>,
    ) -> io::Result<Vec<Row>> {
        let mut rounds: Vec<Rounds> = self.subjects.iter().map(|_| Rounds::default()).collect();
        for round in 0..=self.rounds {
            for (subject, into) in self.subjects.iter().zip(&mut rounds) {
                progress(&format!("{} on {}, round {round}", title.name, subject.name));
                let run = prepare(subject)
                    .and_then(|()| subject.watch(self.program, || act(subject, round)));
                let run = run.map_err(|error| {
                    io::Error::new(
                        error.kind(),
                        format!("{} on {}: {error}", title.name, subject.name),
                    )
                })?;
                if round > 0 {
                    into.add(&run);
                }
            }
        }
        Ok(self.subjects.iter().zip(&rounds).map(|(s, r)| r.row(title, s.name)).collect())
    }
}

/// Does `act` in a directory of a volume that is mounted for it alone, its data in `dir`.
///
/// # Errors
/// What `act` says, or the volume cannot be mounted.
pub fn in_a_volume<T>(
    dir: &Path,
    program: &Path,
    act: impl FnOnce(&Path) -> io::Result<T>,
) -> io::Result<T> {
    let volume = Subject::outboard(&Ask { dir, program, flags: &[], apart: false }, OURS, &[])?;
    act(&volume.dir.join("files"))
}

/// What a volume is measured as in each of these stores: known before anything is started.
fn kinds(stores: &[String]) -> io::Result<Vec<(&'static str, &str)>> {
    let mut kinds: Vec<(&str, &str)> = Vec::new();
    for store in stores {
        let name = kind_of(store)?;
        if kinds.iter().any(|(other, _)| *other == name) {
            let twice =
                format!("two stores are of the kind {name}: measure one of a kind in a run");
            return Err(io::Error::other(twice));
        }
        kinds.push((name, store));
    }
    Ok(kinds)
}

/// What a volume is measured as that lies in this store.
fn kind_of(store: &str) -> io::Result<&'static str> {
    match store {
        "fjall" => Ok("fjall"),
        "redb" => Ok("redb"),
        _ if store.starts_with("rados://") => Ok("rados"),
        _ => Err(io::Error::other(format!(
            "there is no store {store}; write fjall, redb or rados://POOL?conf=PATH"
        ))),
    }
}

impl Report {
    fn new(suite: &'static Suite, rows: Vec<Row>, rounds: u32, time: Duration) -> Report {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let seconds = time.as_secs_f64();
        Report { rows, rounds, seconds, cores, left_out: Vec::new(), suite }
    }

    /// CPU seconds of each system over all workloads and rounds.
    fn cpu_by_system(&self) -> BTreeMap<&str, CpuSeconds> {
        let mut systems: BTreeMap<&str, CpuSeconds> = BTreeMap::new();
        for row in &self.rows {
            systems.entry(&row.system).or_default().add(&row.cpu);
        }
        systems
    }

    /// Whether the parts of the CPU time add up to all that was not idle, for each system.
    ///
    /// # Errors
    /// Says which system's do not, and what is missing.
    pub fn check(&self) -> Result<(), String> {
        self.cpu_by_system().iter().try_for_each(|(system, cpu)| adds_up(system, cpu))
    }

    /// The figures as a table for people.
    #[must_use]
    pub fn table(&self) -> String {
        let mut text = format!(
            "measured: medians of {} interleaved rounds of {} s, {} cores\n\
             CPU in us an operation, of each process, of kernel threads, of interrupts, and of \
             every other process;\n\
             {}\n\n\
             {:<20} {:<9} {:>9}{} {:>9} {:>9} {:>7} {:>7} {:>7} {:>7} {:>7} {:>7}\n",
            self.rounds,
            self.seconds,
            self.cores,
            self.suite.note,
            "workload",
            "system",
            "ops/s",
            self.by_rival(|rival| format!("x {rival}")),
            "p50 us",
            "p99 us",
            "app",
            "host",
            "DPU",
            "kernel",
            "irq",
            "others"
        );
        for row in &self.rows {
            self.write_row(&mut text, row);
        }
        for (name, why) in &self.left_out {
            text.push_str(&format!("{name:<20} left out: {why}\n"));
        }
        text.push_str("\nCPU seconds that were not idle, and what the parts leave unexplained\n");
        for (system, cpu) in self.cpu_by_system() {
            text.push_str(&format!(
                "{system:<20} {:>8.2}  {:>+7.2} ({:+.1} %)  stolen by the hypervisor {:.2}\n",
                cpu.not_idle,
                cpu.unexplained,
                cpu.unexplained * 100.0 / cpu.not_idle.max(f64::MIN_POSITIVE),
                cpu.stolen,
            ));
        }
        text.push_str("\nDMAs an operation, counted by the DPU side\n");
        for row in self.rows.iter().filter(|row| !row.dma_per_op.is_empty()) {
            let kinds: Vec<String> =
                row.dma_per_op.iter().map(|(kind, count)| format!("{kind} {count:.2}")).collect();
            let sum: f64 = row.dma_per_op.values().sum();
            let (workload, system) = (&row.workload, &row.system);
            let kinds = kinds.join(", ");
            text.push_str(&format!("{workload:<20} {system:<9} {sum:>6.2}  ({kinds})\n"));
        }
        text
    }

    /// How it stands with what is asked, as far as it was measured.
    #[must_use]
    pub fn verdicts(&self) -> Vec<Verdict> {
        let is_left_out = |workload: &&str| self.left_out.iter().any(|(name, _)| name == workload);
        let mut verdicts = Vec::new();
        for ours in self.suite.ours {
            for (what, rival, asked, workloads) in self.suite.asked {
                let is_meant =
                    |row: &&Row| row.system == *ours && workloads.contains(&row.workload.as_str());
                let rows = self.rows.iter().filter(is_meant);
                let points =
                    rows.map(|row| (row.workload.clone(), self.ratio(row, rival))).collect();
                let whose = if *ours == OURS { String::new() } else { format!(" of {ours}") };
                let what = format!("{what}, operations a second{whose} over {rival}");
                let verdict = Verdict::at_least(self.suite.name, &what, *asked, points);
                if !verdict.points.is_empty() || workloads.iter().any(is_left_out) {
                    verdicts.push(verdict);
                }
            }
        }
        verdicts
    }

    /// How many times the rate of `system` in the same workload this row's is.
    fn ratio(&self, row: &Row, system: &str) -> f64 {
        let same = |other: &&Row| other.workload == row.workload && other.system == system;
        self.rows.iter().find(same).map_or(f64::NAN, |o| row.ops_per_second / o.ops_per_second)
    }

    /// A column for each rival.
    fn by_rival(&self, cell: impl Fn(&str) -> String) -> String {
        self.suite.rivals.iter().map(|rival| format!(" {:>9}", cell(rival))).collect()
    }

    fn write_row(&self, text: &mut String, row: &Row) {
        let per_op = |used: f64| format!("{:.1}", used * 1e6 / row.operations.max(1) as f64);
        let process = |name: &str| {
            row.cpu.by_name.get(name).map_or_else(|| "-".to_owned(), |used| per_op(*used))
        };
        text.push_str(&format!(
            "{:<20} {:<9} {:>9.0}{} {:>9.1} {:>9.1} {:>7} {:>7} {:>7} {:>7} {:>7} {:>7}\n",
            row.workload,
            row.system,
            row.ops_per_second,
            self.by_rival(|rival| format!("{:.2}", self.ratio(row, rival))),
            row.p50_us,
            row.p99_us,
            process(APPLICATION),
            process(HOST),
            process(DPU),
            per_op(row.cpu.kernel_threads),
            per_op(row.cpu.interrupts),
            per_op(row.cpu.other),
        ));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(unexplained: f64) -> Report {
        let cpu = CpuSeconds { not_idle: 10.0, unexplained, ..CpuSeconds::default() };
        let rounds = Rounds { cpu, operations: 1, ..Rounds::default() };
        let rows = workload::ALL.iter().take(2).map(|w| rounds.row(w.title(), OURS)).collect();
        Report::new(&SUITE, rows, 1, Duration::from_secs(1))
    }

    #[test]
    fn stores_are_measured_by_kind() {
        for (store, kind) in [("redb", "redb"), ("rados://a?conf=/b", "rados"), ("fjall", "fjall")]
        {
            assert_eq!(kind_of(store).unwrap(), kind);
        }
        assert!(kind_of("rocks").unwrap_err().to_string().contains("fjall, redb or rados://"));
        let stores = ["rados://a", "redb", "rados://b"].map(str::to_owned);
        assert!(kinds(&stores).unwrap_err().to_string().contains("one of a kind"));
        assert_eq!(kinds(&stores[..2]).unwrap(), [("rados", "rados://a"), ("redb", "redb")]);
    }

    /// A row that is renamed must not take its target away in silence.
    #[test]
    fn every_target_is_held_against_workloads_that_there_are() {
        let rows = |system| {
            let rounds = Rounds { ops_per_second: vec![7.0], ..Rounds::default() };
            workload::ALL.iter().map(move |workload| rounds.row(workload.title(), system))
        };
        let all = rows(OURS).chain(rows("plain")).chain(rows("fuse")).collect();
        let report = Report::new(&SUITE, all, 1, Duration::from_secs(1));
        let verdicts = report.verdicts();
        let points: Vec<usize> = verdicts.iter().map(|verdict| verdict.points.len()).collect();
        assert_eq!(points, [1, 4, 3]);
        assert!(verdicts.iter().all(|verdict| verdict.met() == verdict.points.len()));
    }

    #[test]
    fn time_that_is_missing_or_counted_twice_is_refused() {
        assert!(report(0.5).check().is_ok());
        assert!(report(-0.5).check().is_ok());
        assert!(report(0.7).check().unwrap_err().contains("outboard: 20.00 s"));
        assert!(report(-0.7).check().is_err());
        assert!(report(0.4).table().contains("(+4.0 %)"));
    }
}
