//! A shared volume with three copies of each file beside GlusterFS with replica 3, each mounted on
//! this computer, in turn under the same load.
//!
//! | | a direct write is answered when | after `fsync` |
//! |---|---|---|
//! | outboard | each of three nodes' systems has it | each node's disk has it |
//! | GlusterFS | each of three bricks' systems has it | each brick's disk has it |
//!
//! Nodes and bricks lie on one file system of one disk. All nodes, the server and the coordinator
//! are one process (`--packed`); bricks are one each, as GlusterFS has them, and it has daemons
//! beside them. What the load itself uses, system calls of its threads with it, counts for neither.
//!
//! GlusterFS is started by `scripts/gluster`, which is in this program, and ends when its standard
//! input does: whatever becomes of this program.

use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::io::{self, BufRead, BufReader};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use outboard_base::Rng;
use serde::Serialize;

use super::NetdfsBench;
use crate::cpu::{CpuMoment, CpuSeconds};
use crate::dds::process::is_installed;
use crate::dfs::cluster::Cluster;
use crate::fs::subject::{APPLICATION, Ask, Subject};
use crate::stats::median;
use crate::verdict::Verdict;
use crate::workload::{Aligned, BLOCK, MEGABYTE, O_DIRECT, Outcome, nanos, repeat};

/// What starts GlusterFS.
const SCRIPT: &str = include_str!("../../../../../scripts/gluster");
/// Threads that write directly.
const THREADS: usize = 8;
/// Bytes of the file they write to.
const FILE: u64 = 64 << 20;
/// The shortest measurement: CPU time is read in hundredths of a second.
const SHORTEST: Duration = Duration::from_secs(1);
/// MiB that are written in sequence at least.
const SEQUENCE: u64 = 64;
const OURS: &str = "outboard";
const THEIRS: &str = "GlusterFS";

/// What is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Work {
    /// 8 KiB at random places by eight threads, `O_DIRECT`; `fsync` behind them.
    Direct,
    /// 1 MiB after the other into a new file by one thread, and `fsync`, which is in the time.
    Sequence,
}

impl Work {
    fn name(self) -> &'static str {
        match self {
            Work::Direct => "8 KiB direct, 8 threads",
            Work::Sequence => "1 MiB in sequence, fsync",
        }
    }

    fn bytes(self) -> usize {
        match self {
            Work::Direct => BLOCK,
            Work::Sequence => MEGABYTE,
        }
    }
}

/// One system under one load: medians of the rounds.
#[derive(Clone, Debug, Serialize)]
pub struct RivalRow {
    /// Whose volume it is.
    pub system: String,
    /// The load.
    pub work: Work,
    /// Writes a second.
    pub per_second: f64,
    /// MiB a second.
    pub mebibytes: f64,
    /// Latency that half of the writes stay below, microseconds.
    pub p50_us: f64,
    /// Latency that 99 of 100 stay below.
    pub p99_us: f64,
    /// CPU milliseconds of a MiB, of every process of the system by what it is.
    pub cpu_ms: BTreeMap<String, f64>,
    /// The same of the load, and of the kernel's threads; of neither system.
    pub beside_ms: BTreeMap<String, f64>,
}

impl RivalRow {
    /// CPU milliseconds of a MiB of all of its processes.
    #[must_use]
    pub fn total_ms(&self) -> f64 {
        self.cpu_ms.values().sum()
    }
}

/// What was found.
#[derive(Clone, Debug, Serialize)]
pub struct Rivals {
    /// How it was measured, where and when.
    pub note: String,
    /// By load and system.
    pub rows: Vec<RivalRow>,
}

/// A GlusterFS that is served; it ends with this.
struct Gluster {
    child: Child,
}

impl Gluster {
    /// Starts one in `dir`: where its volume is mounted, and its processes.
    fn start(dir: &Path) -> io::Result<(Gluster, Contender)> {
        let mut command = Command::new("sh");
        command.args(["-c", SCRIPT, "gluster", "serve"]).arg(dir);
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
        let output = child.stdout.take().ok_or_else(|| io::Error::other("no output"))?;
        let gluster = Gluster { child };
        let mut sides = vec![(APPLICATION.to_owned(), std::process::id())];
        for line in BufReader::new(output).lines() {
            let line = line?;
            if line == "ready" {
                return Ok((gluster, Contender { name: THEIRS, dir: dir.join("mnt"), sides }));
            }
            let words: Vec<&str> = line.split(' ').collect();
            if let ["pid", side, pid] = words[..] {
                sides.push((side.to_owned(), pid.parse().map_err(io::Error::other)?));
            }
        }
        Err(io::Error::other("GlusterFS did not start"))
    }
}

impl Drop for Gluster {
    fn drop(&mut self) {
        drop(self.child.stdin.take());
        // It bounds what it waits for itself.
        if let Err(error) = self.child.wait() {
            eprintln!("outboard: {error}");
        }
    }
}

/// A mounted volume, and whose CPU time is told.
struct Contender {
    name: &'static str,
    dir: PathBuf,
    sides: Vec<(String, u32)>,
}

struct Sample {
    outcome: Outcome,
    cpu: CpuSeconds,
}

impl Contender {
    fn ours(mount: &Subject, cluster: &Cluster) -> Contender {
        let mut sides = mount.processes.clone();
        // Packed: all parts are one process.
        let parts = cluster.processes.first().map(|(_, pid)| ("cluster".to_owned(), *pid));
        sides.extend(parts);
        Contender { name: OURS, dir: mount.dir.clone(), sides }
    }

    fn fill(&self) -> io::Result<()> {
        let file = File::create(self.dir.join("file"))?;
        let mut buffer = Aligned::new(MEGABYTE, 1);
        for at in (0..FILE).step_by(MEGABYTE) {
            file.write_all_at(buffer.slice(), at)?;
        }
        file.sync_all()
    }

    fn direct(&self, time: Duration) -> io::Result<Outcome> {
        let path = self.dir.join("file");
        repeat(THREADS, time, |thread| {
            let mut options = OpenOptions::new();
            let file = options.write(true).custom_flags(O_DIRECT).open(&path)?;
            let (mut rng, mut buffer) = (Rng::new(thread), Aligned::new(BLOCK, thread));
            Ok(move |_| {
                let at = rng.below(FILE / BLOCK as u64) * BLOCK as u64;
                file.write_all_at(buffer.slice(), at)
            })
        })
    }

    fn sequence(&self, time: Duration) -> io::Result<Outcome> {
        let path = self.dir.join("sequence");
        let file = File::create(&path)?;
        let (start, mut outcome) = (Instant::now(), Outcome::default());
        let mut buffer = Aligned::new(MEGABYTE, 1);
        while start.elapsed() < time || outcome.operations < SEQUENCE {
            let before = Instant::now();
            file.write_all_at(buffer.slice(), outcome.operations * MEGABYTE as u64)?;
            outcome.latencies.push(nanos(before.elapsed()));
            outcome.operations += 1;
        }
        file.sync_all()?;
        outcome.elapsed = start.elapsed();
        drop(file);
        std::fs::remove_file(path)?;
        Ok(outcome)
    }

    fn sample(&self, work: Work, time: Duration) -> io::Result<Sample> {
        let go = |time| match work {
            Work::Direct => self.direct(time),
            Work::Sequence => self.sequence(time),
        };
        go(time / 5)?;
        // What earlier writes left over is not of these.
        rustix::fs::syncfs(File::open(&self.dir)?)?;
        let before = CpuMoment::now(&self.sides)?;
        let outcome = go(time)?;
        if work == Work::Direct {
            OpenOptions::new().write(true).open(self.dir.join("file"))?.sync_all()?;
        }
        Ok(Sample { outcome, cpu: CpuMoment::now(&self.sides)?.since(&before) })
    }
}

/// Measures both in turn, until it is told to stop.
///
/// # Errors
/// GlusterFS is not installed; a system that does not start, or fails a write; `stop`.
pub fn run(
    bench: &NetdfsBench,
    stop: &Arc<AtomicBool>,
    mut progress: impl FnMut(&str),
) -> io::Result<Rivals> {
    if !is_installed("glusterd", "--version") {
        return Err(io::Error::other(
            "GlusterFS is not installed; `scripts/gluster install`, as root, installs Debian's",
        ));
    }
    progress("a cluster and GlusterFS start");
    let flags = ["--nodes=3", "--packed", "--layout=strategy=ring,k=3"];
    let cluster = Cluster::up(&bench.program, &bench.dir.join("cluster"), &flags, true)?;
    let ask = Ask { dir: &bench.dir, program: &bench.program, flags: &[], apart: true };
    let mount = Subject::outboard(&ask, "mount", &[&cluster.store])?;
    let (_gluster, theirs) = Gluster::start(&bench.dir.join("gluster"))?;
    let both = [Contender::ours(&mount, &cluster), theirs];
    both.iter().try_for_each(Contender::fill)?;
    let mut points: Vec<(Work, &Contender, Vec<Sample>)> = [Work::Direct, Work::Sequence]
        .into_iter()
        .flat_map(|work| both.iter().map(move |one| (work, one, Vec::new())))
        .collect();
    for round in 1..=bench.rounds {
        for (work, one, samples) in &mut points {
            progress(&format!("round {round}: {}, {}", work.name(), one.name));
            let sample = one.sample(*work, bench.time.max(SHORTEST));
            if stop.load(Ordering::Relaxed) {
                return Err(io::ErrorKind::Interrupted.into());
            }
            samples.push(sample?);
        }
    }
    let rows = points.iter().map(|(work, one, samples)| row(*work, one.name, samples)).collect();
    let note = format!(
        "{}, {}; three copies of each file, of a packed cluster (ring) and of {}, all on one disk; \
         both mounted; medians of {} rounds of {:?}, in turn",
        crate::machine(),
        crate::today(),
        version(),
        bench.rounds,
        bench.time.max(SHORTEST),
    );
    Ok(Rivals { note, rows })
}

fn version() -> String {
    let output = Command::new("glusterd").arg("--version").output();
    let text = output.map(|output| String::from_utf8_lossy(&output.stdout).into_owned());
    let text = text.unwrap_or_default();
    format!("Debian's {}", text.lines().next().unwrap_or(THEIRS))
}

fn row(work: Work, system: &str, samples: &[Sample]) -> RivalRow {
    let middle = |of: &dyn Fn(&Sample) -> f64| median(&samples.iter().map(of).collect::<Vec<_>>());
    let mebibytes =
        |one: &Sample| one.outcome.operations as f64 * work.bytes() as f64 / MEGABYTE as f64;
    let seconds = |one: &Sample| one.outcome.elapsed.as_secs_f64();
    let of = |side: &str| {
        middle(&|one| {
            let used = one.cpu.by_name.get(side).copied().unwrap_or(0.0);
            used * 1e3 / mebibytes(one)
        })
    };
    let names = samples.first().into_iter().flat_map(|one| one.cpu.by_name.keys());
    let (load, own): (Vec<&String>, Vec<&String>) = names.partition(|name| *name == APPLICATION);
    let all = |names: Vec<&String>| -> BTreeMap<String, f64> {
        names.into_iter().map(|name| (name.clone(), of(name))).collect()
    };
    let mut beside_ms = all(load);
    let kernel = middle(&|one| one.cpu.kernel_threads * 1e3 / mebibytes(one));
    beside_ms.insert("kernel threads".to_owned(), kernel);
    RivalRow {
        system: system.to_owned(),
        work,
        per_second: middle(&|one| one.outcome.operations as f64 / seconds(one)),
        mebibytes: middle(&|one| mebibytes(one) / seconds(one)),
        p50_us: middle(&|one| one.outcome.latencies.percentile(50) as f64 / 1e3),
        p99_us: middle(&|one| one.outcome.latencies.percentile(99) as f64 / 1e3),
        cpu_ms: all(own),
        beside_ms,
    }
}

impl Rivals {
    /// The figures as a table for people.
    #[must_use]
    pub fn table(&self) -> String {
        use std::fmt::Write;
        let mut text = format!(
            "{}\na direct write is answered when the systems of all three have it, fsync when \
             their disks have it; latency in us; CPU in ms a MiB, of the system's processes; what \
             the load and the kernel's threads use is beside it; measured\n\n\
             {:<26} {:<10} {:>9} {:>8} {:>9} {:>9} {:>8}\n",
            self.note, "", "system", "per sec", "MiB/s", "p50", "p99", "CPU"
        );
        for row in &self.rows {
            let sides = |sides: &BTreeMap<String, f64>| {
                let each = sides.iter().map(|(name, ms)| format!("{name} {ms:.2}"));
                each.collect::<Vec<_>>().join(", ")
            };
            // Writing to a String cannot fail.
            let _ = writeln!(
                text,
                "{:<26} {:<10} {:>9.0} {:>8.1} {:>9.1} {:>9.1} {:>8.2}  {}; beside: {}",
                row.work.name(),
                row.system,
                row.per_second,
                row.mebibytes,
                row.p50_us,
                row.p99_us,
                row.total_ms(),
                sides(&row.cpu_ms),
                sides(&row.beside_ms),
            );
        }
        text
    }

    /// How it stands with what is asked.
    #[must_use]
    pub fn verdicts(&self) -> Vec<Verdict> {
        let ratio = |work: Work, of: fn(&RivalRow) -> f64| {
            let find = |name: &str| {
                self.rows.iter().find(|row| row.work == work && row.system == name).map(of)
            };
            let ratio = find(OURS).zip(find(THEIRS)).map(|(ours, theirs)| ours / theirs);
            ratio.map(|ratio| ("replica 3".to_owned(), ratio)).into_iter().collect()
        };
        let of = "gluster";
        vec![
            Verdict::at_least(
                of,
                "8 KiB direct writes a second of 8 threads, packed, over GlusterFS's",
                3.0,
                ratio(Work::Direct, |row| row.per_second),
            ),
            Verdict::at_least(
                of,
                "bandwidth of writing in sequence over GlusterFS's",
                3.0,
                ratio(Work::Sequence, |row| row.mebibytes),
            ),
            Verdict::at_most(
                of,
                "CPU of a MiB written in sequence over GlusterFS's",
                0.333,
                ratio(Work::Sequence, RivalRow::total_ms),
            ),
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(operations: u64, seconds: f64, mount: f64, load: f64) -> Sample {
        let elapsed = Duration::from_secs_f64(seconds);
        let by_name = [("mount", mount), (APPLICATION, load)];
        let by_name = by_name.map(|(name, used)| (name.to_owned(), used)).into();
        Sample {
            outcome: Outcome { operations, elapsed, ..Outcome::default() },
            cpu: CpuSeconds { by_name, ..CpuSeconds::default() },
        }
    }

    /// Whose CPU time it is, and against what it is held.
    #[test]
    fn the_load_is_of_neither_system() {
        let rows = vec![
            row(Work::Sequence, OURS, &[sample(300, 1.0, 0.3, 9.0)]),
            row(Work::Sequence, THEIRS, &[sample(100, 1.0, 0.6, 9.0)]),
        ];
        assert!((rows[0].total_ms() - 1.0).abs() < 1e-9);
        assert!((rows[0].beside_ms[APPLICATION] - 30.0).abs() < 1e-9);
        let rivals = Rivals { note: String::new(), rows };
        let lines: Vec<String> = rivals.verdicts().iter().map(Verdict::line).collect();
        assert!(lines[0].ends_with("NOT MEASURED, the rival is not installed"));
        assert!(lines[1].ends_with("is 3.000 (replica 3): MET"));
        assert!(lines[2].ends_with("is 0.167 (replica 3): MET"));
        assert!(rivals.table().contains("1 MiB in sequence, fsync"));
    }
}
