//! `bench fs`: the mounted volume against a plain directory and a plain FUSE passthrough.
//!
//! All three stand in one directory, so on one disk. Every round runs every workload on each of
//! them in turn, so that a slow minute of the machine hits all; medians over the rounds and the
//! ratios of medians are reported. CPU seconds are taken of each process apart, of kernel threads,
//! of interrupts and of everybody else; what these leave unexplained of all that was not idle is
//! printed, and [`Report::check`] fails when it is more than [`UNEXPLAINED_MAX`].

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde::Serialize;

use crate::cpu::{CpuMoment, CpuSeconds};
use crate::stats::median;
use crate::workload::{self, Workload};

/// The largest part of all CPU time that was not idle, over every workload of a system, which the
/// parts may leave unexplained or count twice. Both accounts are kept in ticks, so a run of a few
/// seconds is a few percent coarse.
pub const UNEXPLAINED_MAX: f64 = 0.05;

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
    /// The program, started anew for the volume and for the passthrough.
    pub program: PathBuf,
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
    /// `outboard`, `plain` or `fuse`.
    pub system: String,
    /// Operations a second, measured; median of the rounds.
    pub ops_per_second: f64,
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
}

/// One file system under measurement, and the processes that serve it.
struct Subject {
    name: &'static str,
    dir: PathBuf,
    processes: Vec<(String, u32)>,
    serving: Option<Serving>,
    /// Where the DPU side is asked for its ledger.
    data: Option<PathBuf>,
}

impl Subject {
    /// DMAs so far, by kind.
    fn dmas(&self, program: &Path) -> io::Result<BTreeMap<String, u64>> {
        let Some(data) = &self.data else { return Ok(BTreeMap::new()) };
        let status = status(program, data)?;
        let kinds = status.pointer("/dpu/ledger/dma").and_then(serde_json::Value::as_object);
        let kinds = kinds.ok_or_else(|| io::Error::other("`status --json` has no DMA ledger"))?;
        let count = |figures: &serde_json::Value| {
            figures.get("operations").and_then(serde_json::Value::as_u64).unwrap_or(0)
        };
        Ok(kinds.iter().map(|(kind, figures)| (kind.clone(), count(figures))).collect())
    }
}

/// A child that mounts something until it is told to stop.
struct Serving {
    child: Child,
    mountpoint: PathBuf,
}

impl Drop for Serving {
    fn drop(&mut self) {
        let pid = rustix::process::Pid::from_child(&self.child);
        // A child that has already ended is what we want.
        let _ = rustix::process::kill_process(pid, rustix::process::Signal::TERM);
        let end = Instant::now() + Duration::from_secs(20);
        while Instant::now() < end {
            if !matches!(self.child.try_wait(), Ok(None)) {
                return;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        eprintln!("bench: {} did not stop in 20 s; killing it", self.mountpoint.display());
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn device(path: &Path) -> io::Result<u64> {
    use std::os::unix::fs::MetadataExt;
    std::fs::metadata(path).map(|meta| meta.dev())
}

impl Serving {
    /// Starts `program args.. mountpoint` and waits until something is mounted there.
    fn start(program: &Path, args: &[&str], mountpoint: &Path) -> io::Result<Serving> {
        std::fs::create_dir_all(mountpoint)?;
        let before = device(mountpoint)?;
        let child = Command::new(program)
            .args(args)
            .arg(mountpoint)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .spawn()?;
        let mut serving = Serving { child, mountpoint: mountpoint.to_owned() };
        let end = Instant::now() + Duration::from_secs(30);
        while Instant::now() < end {
            if device(mountpoint).is_ok_and(|now| now != before) {
                return Ok(serving);
            }
            if let Some(status) = serving.child.try_wait()? {
                return Err(io::Error::other(format!("`{}` ended: {status}", args.join(" "))));
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        Err(io::Error::other(format!("nothing was mounted at {} in 30 s", mountpoint.display())))
    }
}

/// What the program says of both sides.
fn status(program: &Path, data: &Path) -> io::Result<serde_json::Value> {
    let output = Command::new(program).args(["status", "--json", "--data"]).arg(data).output()?;
    Ok(serde_json::from_slice(&output.stdout)?)
}

/// Pids of the two sides.
fn sides(program: &Path, data: &Path) -> io::Result<Vec<(String, u32)>> {
    let status = status(program, data)?;
    let pid = |key: &str| {
        let pid = status.get(key).and_then(|side| side.get("pid"));
        pid.and_then(serde_json::Value::as_u64).and_then(|pid| u32::try_from(pid).ok())
    };
    let missing = || io::Error::other("`status --json` names no pid of a side");
    Ok(vec![
        ("host side".to_owned(), pid("host").ok_or_else(missing)?),
        ("DPU side".to_owned(), pid("dpu").ok_or_else(missing)?),
    ])
}

fn subjects(bench: &FsBench) -> io::Result<Vec<Subject>> {
    let text = |path: PathBuf| {
        path.into_os_string().into_string().map_err(|_| io::Error::other("the path is not UTF-8"))
    };
    let me = ("application".to_owned(), std::process::id());
    let plain = bench.dir.join("plain");
    let source = text(bench.dir.join("fuse-source"))?;
    let data = bench.dir.join("data");
    let data_text = text(data.clone())?;
    std::fs::create_dir_all(&plain)?;
    std::fs::create_dir_all(&source)?;

    let mountpoint = bench.dir.join("mnt");
    let outboard =
        Serving::start(&bench.program, &["run", "--log=warn", "--data", &data_text], &mountpoint)?;
    let mut processes = sides(&bench.program, &data)?;
    processes.push(me.clone());
    let outboard = Subject {
        name: "outboard",
        dir: mountpoint,
        processes,
        serving: Some(outboard),
        data: Some(data),
    };

    let mountpoint = bench.dir.join("fuse");
    let rival = Serving::start(&bench.program, &["bench", "passthrough", &source], &mountpoint)?;
    let processes = vec![("host side".to_owned(), rival.child.id()), me.clone()];
    let fuse =
        Subject { name: "fuse", dir: mountpoint, processes, serving: Some(rival), data: None };

    let plain =
        Subject { name: "plain", dir: plain, processes: vec![me], serving: None, data: None };
    Ok(vec![outboard, plain, fuse])
}

/// What the rounds of one workload on one subject gave.
#[derive(Default)]
struct Rounds {
    ops_per_second: Vec<f64>,
    p50_us: Vec<f64>,
    p99_us: Vec<f64>,
    cpu: CpuSeconds,
    operations: u64,
    dmas: BTreeMap<String, u64>,
}

impl Rounds {
    fn add(&mut self, outcome: &workload::Outcome, cpu: &CpuSeconds) {
        self.ops_per_second.push(outcome.operations as f64 / outcome.elapsed.as_secs_f64());
        self.p50_us.push(outcome.latencies.percentile(50) as f64 / 1e3);
        self.p99_us.push(outcome.latencies.percentile(99) as f64 / 1e3);
        self.operations += outcome.operations;
        self.cpu.add(cpu);
    }

    fn row(&self, workload: &Workload, system: &str) -> Row {
        let per_op = |used: &f64| used * 1e6 / self.operations.max(1) as f64;
        Row {
            workload: workload.name.to_owned(),
            operation: workload.operation.to_owned(),
            threads: workload.threads,
            system: system.to_owned(),
            ops_per_second: median(&self.ops_per_second),
            p50_us: median(&self.p50_us),
            p99_us: median(&self.p99_us),
            cpu_us_per_op: self
                .cpu
                .by_name
                .iter()
                .map(|(n, used)| (n.clone(), per_op(used)))
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
    let chosen: Vec<&Workload> = workload::ALL
        .iter()
        .filter(|workload| bench.only.as_ref().is_none_or(|only| workload.name.contains(only)))
        .collect();
    if chosen.is_empty() {
        let names: Vec<&str> = workload::ALL.iter().map(|workload| workload.name).collect();
        return Err(io::Error::other(format!(
            "no such measurement; there are: {}",
            names.join(", ")
        )));
    }
    let subjects = subjects(bench)?;
    let mut rows = Vec::new();
    for workload in chosen {
        let mut rounds: Vec<Rounds> = subjects.iter().map(|_| Rounds::default()).collect();
        for round in 0..=bench.rounds {
            for (subject, into) in subjects.iter().zip(&mut rounds) {
                progress(&format!("{} on {}, round {round}", workload.name, subject.name));
                // Round 0 prepares files and warms what would be warm; it is not counted.
                let time = if round == 0 { bench.time / 10 } else { bench.time };
                let dmas = subject.dmas(&bench.program)?;
                let before = CpuMoment::now(&subject.processes)?;
                let outcome = workload.run(&subject.dir, time).map_err(|error| {
                    io::Error::other(format!("{} on {}: {error}", workload.name, subject.name))
                })?;
                let cpu = CpuMoment::now(&subject.processes)?.since(&before);
                if round > 0 {
                    into.add(&outcome, &cpu);
                    for (kind, count) in subject.dmas(&bench.program)? {
                        let before = dmas.get(&kind).copied().unwrap_or(0);
                        *into.dmas.entry(kind).or_insert(0) += count.saturating_sub(before);
                    }
                }
            }
        }
        rows.extend(subjects.iter().zip(&rounds).map(|(s, r)| r.row(workload, s.name)));
    }
    for subject in subjects {
        drop(subject.serving);
    }
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    Ok(Report { rows, rounds: bench.rounds, seconds: bench.time.as_secs_f64(), cores })
}

impl Report {
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
        for (system, cpu) in self.cpu_by_system() {
            if cpu.unexplained_share() > UNEXPLAINED_MAX {
                return Err(format!(
                    "CPU time does not add up for {system}: {:.2} s were not idle and {:.2} s of \
                     them are in no part (at most {:.0} % may be)",
                    cpu.not_idle,
                    cpu.unexplained,
                    UNEXPLAINED_MAX * 100.0
                ));
            }
        }
        Ok(())
    }

    /// The figures as a table for people.
    #[must_use]
    pub fn table(&self) -> String {
        let mut text = format!(
            "measured: medians of {} interleaved rounds of {} s, {} cores\n\
             CPU in us an operation, of each process, of kernel threads, of interrupts, and of \
             every other process;\n\
             what a workload prepares between its measured parts is in it\n\n\
             {:<20} {:<9} {:>9} {:>7} {:>6} {:>9} {:>9} {:>7} {:>7} {:>7} {:>7} {:>7} {:>7}\n",
            self.rounds,
            self.seconds,
            self.cores,
            "workload",
            "system",
            "ops/s",
            "x plain",
            "x fuse",
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
            text.push_str(&format!("{:<20} {sum:>6.2}  ({})\n", row.workload, kinds.join(", ")));
        }
        text
    }

    /// How many times the rate of `system` in the same workload this row's is.
    fn ratio(&self, row: &Row, system: &str) -> f64 {
        let same = |other: &&Row| other.workload == row.workload && other.system == system;
        self.rows.iter().find(same).map_or(f64::NAN, |o| row.ops_per_second / o.ops_per_second)
    }

    fn write_row(&self, text: &mut String, row: &Row) {
        let per_op = |used: f64| format!("{:.1}", used * 1e6 / row.operations.max(1) as f64);
        let process = |name: &str| {
            row.cpu.by_name.get(name).map_or_else(|| "-".to_owned(), |used| per_op(*used))
        };
        text.push_str(&format!(
            "{:<20} {:<9} {:>9.0} {:>7.2} {:>6.2} {:>9.1} {:>9.1} {:>7} {:>7} {:>7} {:>7} {:>7} \
             {:>7}\n",
            row.workload,
            row.system,
            row.ops_per_second,
            self.ratio(row, "plain"),
            self.ratio(row, "fuse"),
            row.p50_us,
            row.p99_us,
            process("application"),
            process("host side"),
            process("DPU side"),
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
        let rows = workload::ALL.iter().take(2).map(|w| rounds.row(w, "outboard")).collect();
        Report { rows, rounds: 1, seconds: 1.0, cores: 2 }
    }

    #[test]
    fn time_that_is_missing_or_counted_twice_is_refused() {
        assert!(report(0.4).check().is_ok());
        assert!(report(-0.4).check().is_ok());
        assert!(report(0.6).check().unwrap_err().contains("outboard: 20.00 s"));
        assert!(report(-0.6).check().is_err());
        assert!(report(0.4).table().contains("(+4.0 %)"));
    }
}
