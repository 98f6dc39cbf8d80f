//! A shared volume with three copies of each file beside another distributed file system with as
//! many, each mounted on this computer, in turn under the same load.
//!
//! | | a direct write is answered when | with `O_DSYNC`, and after `fsync` |
//! |---|---|---|
//! | outboard | each of three nodes' systems has it | each node's disk has it |
//! | GlusterFS | each of three bricks' systems has it | each brick's disk has it |
//! | CephFS | each of three storage daemons' disks has it | as before |
//!
//! So CephFS promises more of a direct write, and as much with `O_DSYNC`. To the mounts of both the
//! kernel passes one direct write of a file at a time; so there is a file for each thread, too.
//!
//! Nodes, bricks and storage daemons lie on one file system of one disk. All nodes, the server and
//! the coordinator are one process (`--packed`); the others' are one each, as they have them, and
//! they have daemons beside them. What the load itself uses, system calls of its threads with it,
//! counts for neither.
//!
//! Others are started by scripts that are in this program, and end when their standard input does:
//! whatever becomes of this program.

mod served;

use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use outboard_base::Rng;
use serde::Serialize;

use super::NetdfsBench;
use crate::cpu::{CpuMoment, CpuSeconds};
use crate::dfs::cluster::Cluster;
use crate::fs::subject::{APPLICATION, Ask, Subject};
use crate::stats::median;
use crate::verdict::Verdict;
use crate::workload::{Aligned, BLOCK, MEGABYTE, O_DIRECT, Outcome, nanos, repeat};

use served::Served;
pub use served::{CEPHFS, GLUSTER, Rival};

/// A write is answered when disks have it.
const O_DSYNC: i32 = 0o10000;
/// Threads that write directly.
const THREADS: usize = 8;
/// Bytes of the files they write to, together.
const FILE: u64 = 64 << 20;
/// The shortest measurement: CPU time is read in hundredths of a second.
const SHORTEST: Duration = Duration::from_secs(1);
/// MiB that are written in sequence at least.
const SEQUENCE: u64 = 64;
const OURS: &str = "outboard";

/// What is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Work {
    /// 8 KiB at random places of one file by eight threads, `O_DIRECT`; `fsync` behind them.
    Direct,
    /// The same, each thread to a file of its own.
    DirectApart,
    /// 8 KiB at random places of one file by eight threads, `O_DIRECT` and `O_DSYNC`.
    Stable,
    /// The same, each thread to a file of its own.
    StableApart,
    /// 1 MiB after the other into a new file by one thread, and `fsync`, which is in the time.
    Sequence,
}

impl Work {
    const ALL: [Work; 5] =
        [Work::Direct, Work::DirectApart, Work::Stable, Work::StableApart, Work::Sequence];

    fn name(self) -> &'static str {
        match self {
            Work::Direct => "8 KiB direct, one file",
            Work::DirectApart => "8 KiB direct, a file each",
            Work::Stable => "8 KiB O_DSYNC, one file",
            Work::StableApart => "8 KiB O_DSYNC, a file each",
            Work::Sequence => "1 MiB in sequence, fsync",
        }
    }

    fn bytes(self) -> usize {
        if self == Work::Sequence { MEGABYTE } else { BLOCK }
    }

    fn flags(self) -> i32 {
        match self {
            Work::Direct | Work::DirectApart => O_DIRECT,
            Work::Stable | Work::StableApart => O_DIRECT | O_DSYNC,
            Work::Sequence => 0,
        }
    }

    /// Files that are there before, and are written to.
    fn files(self) -> u64 {
        match self {
            Work::Direct | Work::Stable => 1,
            Work::DirectApart | Work::StableApart => THREADS as u64,
            Work::Sequence => 0,
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
    /// Beside whom.
    #[serde(skip)]
    pub rival: &'static Rival,
    /// How it was measured, where and when.
    pub note: String,
    /// By load and system.
    pub rows: Vec<RivalRow>,
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

    fn theirs(rival: &Rival, served: &Served) -> Contender {
        let mut sides = vec![(APPLICATION.to_owned(), std::process::id())];
        sides.extend(served.processes.iter().cloned());
        Contender { name: rival.name, dir: served.mount.clone(), sides }
    }

    /// One of the files that `work` writes to.
    fn file(&self, work: Work, number: u64) -> PathBuf {
        let files = work.files();
        self.dir.join(format!("file-{}-of-{files}", number % files))
    }

    fn fill(&self) -> io::Result<()> {
        let mut buffer = Aligned::new(MEGABYTE, 1);
        for work in [Work::Direct, Work::DirectApart] {
            for number in 0..work.files() {
                let file = File::create(self.file(work, number))?;
                for at in (0..FILE / work.files()).step_by(MEGABYTE) {
                    file.write_all_at(buffer.slice(), at)?;
                }
                file.sync_all()?;
            }
        }
        Ok(())
    }

    fn direct(&self, work: Work, time: Duration) -> io::Result<Outcome> {
        let blocks = FILE / work.files() / BLOCK as u64;
        repeat(THREADS, time, |thread| {
            let mut options = OpenOptions::new();
            let options = options.write(true).custom_flags(work.flags());
            let file = options.open(self.file(work, thread))?;
            let (mut rng, mut buffer) = (Rng::new(thread), Aligned::new(BLOCK, thread));
            Ok(move |_| file.write_all_at(buffer.slice(), rng.below(blocks) * BLOCK as u64))
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
            Work::Sequence => self.sequence(time),
            _ => self.direct(work, time),
        };
        go(time / 5)?;
        // What earlier writes left over is not of these.
        rustix::fs::syncfs(File::open(&self.dir)?)?;
        let before = CpuMoment::now(&self.sides)?;
        let outcome = go(time)?;
        for number in 0..work.files() {
            OpenOptions::new().write(true).open(self.file(work, number))?.sync_all()?;
        }
        Ok(Sample { outcome, cpu: CpuMoment::now(&self.sides)?.since(&before) })
    }
}

/// Measures both in turn, until it is told to stop.
///
/// # Errors
/// The rival is not installed; a system that does not start, or fails a write; `stop`.
pub fn run(
    bench: &NetdfsBench,
    rival: &'static Rival,
    stop: &Arc<AtomicBool>,
    mut progress: impl FnMut(&str),
) -> io::Result<Rivals> {
    rival.can_serve()?;
    progress(&format!("a cluster and {} start", rival.name));
    let flags = ["--nodes=3", "--packed", "--layout=strategy=ring,k=3"];
    let cluster = Cluster::up(&bench.program, &bench.dir.join("cluster"), &flags, true)?;
    let ask = Ask { dir: &bench.dir, program: &bench.program, flags: &[], apart: true };
    let mount = Subject::outboard(&ask, "mount", &[&cluster.store])?;
    let served = Served::start(rival, &bench.dir.join(rival.flag))?;
    let both = [Contender::ours(&mount, &cluster), Contender::theirs(rival, &served)];
    both.iter().try_for_each(Contender::fill)?;
    let mut points: Vec<(Work, &Contender, Vec<Sample>)> = Work::ALL
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
        rival.version(),
        bench.rounds,
        bench.time.max(SHORTEST),
    );
    Ok(Rivals { rival, note, rows })
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
            "{}\n{}; 8 KiB are written by {THREADS} threads; latency in us; CPU in ms a MiB, of \
             the system's processes; what the load and the kernel's threads use is beside it; \
             measured\n\n\
             {:<26} {:<10} {:>9} {:>8} {:>9} {:>9} {:>8}\n",
            self.note, self.rival.promise, "", "system", "per sec", "MiB/s", "p50", "p99", "CPU"
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
        let Rival { flag, name, .. } = *self.rival;
        let find = |work: Work, system: &str| {
            self.rows.iter().find(|row| row.work == work && row.system == system)
        };
        let points = |works: &[Work], of: fn(&RivalRow) -> f64| -> Vec<(String, f64)> {
            let each = works.iter().filter_map(|work| {
                let (ours, theirs) = find(*work, OURS).zip(find(*work, name))?;
                Some((work.name().to_owned(), of(ours) / of(theirs)))
            });
            each.collect()
        };
        let at_least = |what: &str, points| {
            Verdict::at_least(flag, &format!("{what} over {name}'s"), 3.0, points)
        };
        vec![
            at_least(
                "direct writes a second of 8 threads, packed,",
                points(&[Work::Direct, Work::DirectApart], |row| row.per_second),
            ),
            at_least(
                "direct writes with O_DSYNC a second of 8 threads, packed,",
                points(&[Work::Stable, Work::StableApart], |row| row.per_second),
            ),
            at_least(
                "bandwidth of writing in sequence",
                points(&[Work::Sequence], |row| row.mebibytes),
            ),
            Verdict::at_most(
                flag,
                &format!("CPU of a MiB written in sequence over {name}'s"),
                0.333,
                points(&[Work::Sequence], RivalRow::total_ms),
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
            row(Work::Sequence, CEPHFS.name, &[sample(100, 1.0, 0.6, 9.0)]),
        ];
        assert!((rows[0].total_ms() - 1.0).abs() < 1e-9);
        assert!((rows[0].beside_ms[APPLICATION] - 30.0).abs() < 1e-9);
        let rivals = Rivals { rival: &CEPHFS, note: String::new(), rows };
        let lines: Vec<String> = rivals.verdicts().iter().map(Verdict::line).collect();
        assert!(lines[0].ends_with("NOT MEASURED, the rival is not installed"));
        assert!(lines[2].ends_with("is 3.000 (1 MiB in sequence, fsync): MET"));
        assert!(lines[3].ends_with("is 0.167 (1 MiB in sequence, fsync): MET"));
        assert!(rivals.table().contains("1 MiB in sequence, fsync"));
    }
}
