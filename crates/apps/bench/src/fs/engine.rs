//! `bench rados`: a mounted volume in a pool against the pool itself, one thread, in sequence.
//!
//! The rival is the engine's own tool, `rados bench`, as it comes: objects of 4 MiB, 16 operations
//! in flight, as many bytes as the volume's file has. On the mount one thread writes a file, 1 MiB
//! a call, and ends with fsync, inside the time: what either reports as written is on every copy.
//! Then it is read through a mount made anew, so that no cache has any of it. Rounds are
//! interleaved; medians and their ratios are reported, with the CPU time of everybody.

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

use outboard_rados::Location;
use serde::Serialize;

use super::subject::{APPLICATION, Ask, DPU, HOST, Subject};
use crate::cpu::{CpuMoment, CpuSeconds};
use crate::stats::median;
use crate::workload::{Aligned, MEGABYTE, O_DIRECT};

/// What the engine's CPU time is called in reports.
const DAEMONS: &str = "daemons";
/// Of a process of the engine, what its name starts with.
const DAEMON: &str = "ceph-osd";
/// Longest that the engine's tool may write, seconds; it stops earlier at the last object.
const LIMIT: &str = "60";
/// Bytes of the tool's objects, MiB.
const OBJECT: u64 = 4;

/// How `bench rados` runs.
#[derive(Clone, Debug)]
pub struct EngineBench {
    /// Directory for mount points; emptied afterwards.
    pub dir: PathBuf,
    /// Interleaved rounds.
    pub rounds: u32,
    /// Size of the file, MiB.
    pub mebibytes: u64,
    /// The program, started anew for each mount.
    pub program: PathBuf,
    /// The volume's store.
    pub store: Location,
}

/// How a volume is mounted and its file opened.
struct Way {
    name: &'static str,
    flags: &'static [&'static str],
    direct: bool,
}

const WAYS: [Way; 3] = [
    Way { name: "mount", flags: &[], direct: false },
    Way { name: "mount, hybrid cache", flags: &["--cache=hybrid"], direct: false },
    Way { name: "mount, direct", flags: &[], direct: true },
];
const ENGINE: &str = "rados bench";

/// One way to move the bytes, in one direction.
#[derive(Clone, Debug, Serialize)]
pub struct EngineRow {
    /// `write` or `read`.
    pub direction: &'static str,
    /// `rados bench`, or how the volume was mounted.
    pub subject: &'static str,
    /// MiB a second; median of the rounds.
    pub mebibytes_per_second: f64,
    /// Times the engine's; of medians.
    pub ratio: f64,
    /// CPU milliseconds a MiB, by process, over all rounds.
    pub cpu_ms: BTreeMap<String, f64>,
    /// The same, of all that was not idle.
    pub not_idle_ms: f64,
}

/// What a run found.
#[derive(Clone, Debug, Serialize)]
pub struct EngineReport {
    /// Direction by direction, the engine first.
    pub rows: Vec<EngineRow>,
    /// Rounds whose medians were taken.
    pub rounds: u32,
    /// Size of the file, MiB.
    pub mebibytes: u64,
}

/// What one subject gave in one direction.
#[derive(Default)]
struct Sum {
    rates: Vec<f64>,
    cpu: CpuSeconds,
}

type Key = (&'static str, &'static str);
const WRITE: &str = "write";
const READ: &str = "read";

/// Runs everything; `progress` is told what is being measured.
///
/// # Errors
/// The engine's tool or a mount failed. A program built without librados is found out before
/// anything is measured.
pub fn run(bench: &EngineBench, mut progress: impl FnMut(&str)) -> io::Result<EngineReport> {
    // The engine alone takes minutes, at whose end the program said that it cannot use a pool.
    drop(bench.mount(&WAYS[0])?);
    let mut sums: BTreeMap<Key, Sum> = BTreeMap::new();
    for round in 0..bench.rounds {
        progress(&format!("{ENGINE}, round {round}"));
        let outcome = bench.engine(&mut sums);
        // Its objects go whatever happened: they would be in the way of the next.
        bench.tool(&["cleanup"])?;
        outcome?;
        for way in &WAYS {
            progress(&format!("{}, round {round}", way.name));
            bench.mounted(way, &mut sums)?;
        }
    }
    Ok(bench.report(&sums))
}

/// The pool, as Ceph's own tools want it told; its objects are kept apart from the volume's.
fn place(store: &Location) -> Vec<String> {
    let Location { pool, conf, namespace, user, .. } = store;
    let namespace = format!("{namespace}.bench");
    let options = [("-c", conf), ("-n", user), ("-p", pool), ("-N", &namespace)];
    options.into_iter().flat_map(|(option, value)| [option.to_owned(), value.clone()]).collect()
}

impl EngineBench {
    /// Runs the engine's tool; what it printed.
    fn tool(&self, args: &[&str]) -> io::Result<String> {
        let output = Command::new("rados").args(place(&self.store)).args(args).output();
        let output = output.map_err(|error| {
            io::Error::other(format!("cannot run `rados` (Debian: ceph-common): {error}"))
        })?;
        if !output.status.success() {
            let said = String::from_utf8_lossy(&output.stderr);
            return Err(io::Error::other(format!("`rados {}`: {said}", args.join(" "))));
        }
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    }

    fn engine(&self, sums: &mut BTreeMap<Key, Sum>) -> io::Result<()> {
        let objects = (self.mebibytes / OBJECT).to_string();
        let write = ["bench", LIMIT, "write", "--no-cleanup", "--max-objects", &objects];
        for (direction, args) in [(WRITE, &write[..]), (READ, &["bench", LIMIT, "seq"])] {
            let processes = with_daemons(vec![(APPLICATION.to_owned(), std::process::id())])?;
            let before = CpuMoment::now(&processes)?;
            let said = self.tool(args)?;
            let cpu = CpuMoment::now(&processes)?.since(&before);
            let rate = bandwidth(&said)
                .ok_or_else(|| io::Error::other(format!("`rados bench` says no rate: {said}")))?;
            note(sums, (direction, ENGINE), rate, &cpu);
        }
        Ok(())
    }

    fn mount(&self, way: &Way) -> io::Result<Subject> {
        let ask = Ask { dir: &self.dir, program: &self.program, flags: way.flags, apart: false };
        Subject::outboard(&ask, "pool", &["--store", &self.store.to_string()])
    }

    fn mounted(&self, way: &Way, sums: &mut BTreeMap<Key, Sum>) -> io::Result<()> {
        for direction in [WRITE, READ] {
            let subject = self.mount(way)?;
            let path = subject.dir.join("sequence");
            let processes = with_daemons(subject.processes.clone())?;
            let mut buffer = Aligned::new(MEGABYTE, 1);
            let (start, before) = (Instant::now(), CpuMoment::now(&processes)?);
            if direction == WRITE {
                self.write(&path, way.direct, &mut buffer)?;
            } else {
                self.read(&path, way.direct, &mut buffer)?;
            }
            let took = start.elapsed();
            let cpu = CpuMoment::now(&processes)?.since(&before);
            note(sums, (direction, way.name), self.mebibytes as f64 / took.as_secs_f64(), &cpu);
            if direction == READ {
                fs::remove_file(&path)?;
            }
        }
        Ok(())
    }

    fn write(&self, path: &Path, direct: bool, buffer: &mut Aligned) -> io::Result<()> {
        let flags = if direct { O_DIRECT } else { 0 };
        let mut options = OpenOptions::new();
        let file = options.write(true).create_new(true).custom_flags(flags).open(path)?;
        for at in 0..self.mebibytes {
            file.write_all_at(buffer.slice(), at * MEGABYTE as u64)?;
        }
        file.sync_all()
    }

    fn read(&self, path: &Path, direct: bool, buffer: &mut Aligned) -> io::Result<()> {
        let flags = if direct { O_DIRECT } else { 0 };
        let file: File = OpenOptions::new().read(true).custom_flags(flags).open(path)?;
        (0..self.mebibytes)
            .try_for_each(|at| file.read_exact_at(buffer.slice(), at * MEGABYTE as u64))
    }

    fn report(&self, sums: &BTreeMap<Key, Sum>) -> EngineReport {
        let moved = (self.mebibytes * u64::from(self.rounds)).max(1) as f64;
        let subjects = || [ENGINE].into_iter().chain(WAYS.iter().map(|way| way.name));
        let rate = |key: &Key| sums.get(key).map_or(f64::NAN, |sum| median(&sum.rates));
        let row = |key: Key| {
            let sum = sums.get(&key)?;
            let per = |seconds: f64| seconds * 1e3 / moved;
            let cpu = sum.cpu.by_name.iter();
            Some(EngineRow {
                direction: key.0,
                subject: key.1,
                mebibytes_per_second: rate(&key),
                ratio: rate(&key) / rate(&(key.0, ENGINE)),
                cpu_ms: cpu.map(|(name, used)| (name.clone(), per(*used))).collect(),
                not_idle_ms: per(sum.cpu.not_idle),
            })
        };
        let keys = [WRITE, READ].into_iter().flat_map(|d| subjects().map(move |s| (d, s)));
        let rows = keys.filter_map(row).collect();
        EngineReport { rows, rounds: self.rounds, mebibytes: self.mebibytes }
    }
}

fn note(sums: &mut BTreeMap<Key, Sum>, key: Key, rate: f64, cpu: &CpuSeconds) {
    let sum = sums.entry(key).or_default();
    sum.rates.push(rate);
    sum.cpu.add(cpu);
}

/// The engine's daemons on this machine beside the processes given.
fn with_daemons(mut processes: Vec<(String, u32)>) -> io::Result<Vec<(String, u32)>> {
    for entry in fs::read_dir("/proc")? {
        let Some(pid) = entry?.file_name().to_str().and_then(|name| name.parse().ok()) else {
            continue;
        };
        // A process may end between the listing and the read.
        let Ok(name) = fs::read_to_string(format!("/proc/{pid}/comm")) else { continue };
        if name.starts_with(DAEMON) {
            processes.push((DAEMONS.to_owned(), pid));
        }
    }
    Ok(processes)
}

/// MiB a second, of what `rados bench` prints at its end (it writes MB and means MiB).
fn bandwidth(said: &str) -> Option<f64> {
    let line = said.lines().find(|line| line.starts_with("Bandwidth (MB/sec):"))?;
    line.split_whitespace().last()?.parse().ok()
}

impl EngineReport {
    /// The figures as a table for people.
    #[must_use]
    pub fn table(&self) -> String {
        let mut text = format!(
            "measured: medians of {} interleaved rounds, {} MiB in sequence; on the mount one \
             thread, 1 MiB a call, fsync inside the time, read by a mount made anew;\n\
             `{ENGINE}`: 16 operations of 4 MiB in flight\n\
             CPU in ms a MiB\n\n\
             {:<6} {:<20} {:>7} {:>6} {:>7} {:>7} {:>7} {:>8} {:>9}\n",
            self.rounds,
            self.mebibytes,
            "",
            "subject",
            "MiB/s",
            "x",
            "app",
            "host",
            "DPU",
            "daemons",
            "not idle"
        );
        for row in &self.rows {
            let cpu = |name: &str| {
                row.cpu_ms.get(name).map_or_else(|| "-".to_owned(), |used| format!("{used:.2}"))
            };
            text.push_str(&format!(
                "{:<6} {:<20} {:>7.0} {:>6.2} {:>7} {:>7} {:>7} {:>8} {:>9.2}\n",
                row.direction,
                row.subject,
                row.mebibytes_per_second,
                row.ratio,
                cpu(APPLICATION),
                cpu(HOST),
                cpu(DPU),
                cpu(DAEMONS),
                row.not_idle_ms,
            ));
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rate_is_found_in_what_the_tool_says() {
        let said = "Total writes made:      64\nBandwidth (MB/sec):     252.772\n\
                    Stddev Bandwidth:       144.322\nMax bandwidth (MB/sec): 400\n";
        assert_eq!(bandwidth(said), Some(252.772));
        assert_eq!(bandwidth("Max bandwidth (MB/sec): 400\n"), None);
    }

    /// `bench rados` ran `rados bench` for minutes before it found out that the program to be
    /// measured was built without librados.
    #[test]
    fn a_program_that_cannot_use_a_pool_is_found_out_before_anything_is_measured() {
        use std::os::unix::fs::PermissionsExt;
        let dir = tempfile::tempdir().unwrap();
        let program = dir.path().join("program");
        fs::write(&program, "#!/bin/sh\nexit 2\n").unwrap();
        fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
        let store = "rados://pool".parse().unwrap();
        let dir = dir.path().to_owned();
        let bench = EngineBench { dir, rounds: 1, mebibytes: 4, program, store };
        let mut measured = Vec::new();
        let error = run(&bench, |what| measured.push(what.to_owned())).unwrap_err().to_string();
        assert!(error.contains("exit status: 2"), "{error}");
        assert!(measured.is_empty(), "{measured:?}");
    }

    #[test]
    fn ratios_are_of_medians_to_the_engine_in_the_same_direction() {
        let bench = EngineBench {
            dir: PathBuf::new(),
            rounds: 3,
            mebibytes: 100,
            program: PathBuf::new(),
            store: "rados://pool".parse().unwrap(),
        };
        let mut sums = BTreeMap::new();
        let used = CpuSeconds { not_idle: 0.1, ..CpuSeconds::default() };
        for (engine, mount) in [(100.0, 90.0), (400.0, 60.0), (200.0, 10.0)] {
            note(&mut sums, (WRITE, ENGINE), engine, &used);
            note(&mut sums, (WRITE, "mount"), mount, &used);
        }
        let report = bench.report(&sums);
        let [engine, mount] = &report.rows[..] else { panic!("{report:?}") };
        assert_eq!((engine.subject, mount.subject), (ENGINE, "mount"));
        assert!((mount.ratio - 0.3).abs() < 1e-9 && (engine.ratio - 1.0).abs() < 1e-9);
        assert!((mount.not_idle_ms - 1.0).abs() < 1e-9, "{report:?}");
        assert!(report.table().contains("0.30"));
    }
}
