//! The whole way: 8 KiB direct writes and reads of eight threads, on a mounted volume of a cluster
//! of this machine, with one copy. Clusters of one process and of one for each part take turns.
//!
//! CPU time is that of every process but the one that asks: the mount, the DPU side, and the
//! cluster's, until what was written is durable. What a write sends is counted, as all parts say of
//! themselves.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use outboard_base::Rng;
use serde::Serialize;
use serde_json::Value;

use super::NetdfsBench;
use super::load::Op;
use crate::dds::process::Ran;
use crate::fs::subject::{APPLICATION, Ask, Subject};
use crate::stats::median;
use crate::workload::{Aligned, BLOCK, MEGABYTE, O_DIRECT, Outcome, repeat};

/// Threads that write.
const THREADS: usize = 8;
/// Bytes of the file.
const FILE: u64 = 64 << 20;
/// What the cluster's processes are called.
const CLUSTER: &str = "cluster";
/// The shortest measurement: a server hears of a file and of a client now and then, too.
const SHORTEST: Duration = Duration::from_millis(200);
/// Storage nodes.
const NODES: &str = "--nodes=3";

/// One cluster under one load: medians of the rounds.
#[derive(Clone, Debug, Serialize)]
pub struct VolumeRow {
    /// All parts of the cluster in one process.
    pub packed: bool,
    /// What was done, 8 KiB at a time.
    pub op: Op,
    /// Operations of a round.
    pub operations: f64,
    /// Operations a second.
    pub per_second: f64,
    /// Latency that half of them stay below, microseconds.
    pub p50_us: f64,
    /// CPU microseconds of an operation, by side.
    pub cpu_us: BTreeMap<String, f64>,
    /// What was counted of an operation: requests at nodes, packets at the server, datagrams and
    /// the system calls that move them at all parts of the cluster.
    pub counted: BTreeMap<String, f64>,
}

impl VolumeRow {
    /// CPU microseconds of all sides.
    #[must_use]
    pub fn total_us(&self) -> f64 {
        self.cpu_us.values().sum()
    }
}

/// A cluster, ended when it is dropped.
struct Cluster {
    program: PathBuf,
    dir: PathBuf,
}

impl Cluster {
    fn up(program: &Path, dir: PathBuf, packed: bool) -> io::Result<Cluster> {
        let mut command = Command::new(program);
        command.args(["cluster", "up"]).arg(&dir).args(["--port=0", "--detach", NODES]);
        if packed {
            command.arg("--packed");
        }
        let cluster = Cluster { program: program.to_owned(), dir };
        let status = command.stdin(Stdio::null()).stdout(Stdio::null()).status()?;
        if status.success() { Ok(cluster) } else { Err(io::Error::other("no cluster started")) }
    }

    fn status(&self) -> io::Result<Value> {
        let mut command = Command::new(&self.program);
        let output = command.args(["cluster", "status", "--json"]).arg(&self.dir).output()?;
        Ok(serde_json::from_slice(&output.stdout)?)
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        let mut command = Command::new(&self.program);
        // What does not end is said by the command itself.
        let _ended = command.args(["cluster", "down"]).arg(&self.dir).status();
    }
}

/// A mounted volume, and whose CPU time is told.
struct Mounted {
    packed: bool,
    file: PathBuf,
    sides: Vec<(String, u32)>,
    // Unmounted before the cluster ends.
    _mount: Subject,
    cluster: Cluster,
}

impl Mounted {
    fn new(bench: &NetdfsBench, packed: bool) -> io::Result<Mounted> {
        let name = if packed { "packed" } else { "apart" };
        let cluster = Cluster::up(&bench.program, bench.dir.join(name), packed)?;
        let status = cluster.status()?;
        let missing = || io::Error::other("`cluster status --json` says less than it should");
        let store = status.get("store").and_then(Value::as_str).ok_or_else(missing)?;
        let ask = Ask { dir: &bench.dir, program: &bench.program, flags: &[], apart: false };
        let mount_name = if packed { "packed-mount" } else { "apart-mount" };
        let mount = Subject::outboard(&ask, mount_name, &[store])?;
        let mut sides = mount.processes.clone();
        sides.retain(|(side, _)| side != APPLICATION);
        let parts = status.get("parts").and_then(Value::as_object).ok_or_else(missing)?;
        let pids = parts.values().filter_map(|part| part.get("pid").and_then(Value::as_u64));
        let pids: BTreeSet<u32> = pids.filter_map(|pid| u32::try_from(pid).ok()).collect();
        sides.extend(pids.into_iter().map(|pid| (CLUSTER.to_owned(), pid)));
        let file = mount.dir.join("file");
        let mounted = Mounted { packed, file, sides, _mount: mount, cluster };
        mounted.fill()?;
        Ok(mounted)
    }

    fn fill(&self) -> io::Result<()> {
        let file = File::create(&self.file)?;
        let mut buffer = Aligned::new(MEGABYTE, 1);
        for at in (0..FILE).step_by(MEGABYTE) {
            file.write_all_at(buffer.slice(), at)?;
        }
        file.sync_all()
    }

    fn go(&self, op: Op, time: Duration) -> io::Result<Outcome> {
        repeat(THREADS, time, |thread| {
            let mut options = OpenOptions::new();
            let file = options.read(true).write(true).custom_flags(O_DIRECT).open(&self.file)?;
            let (mut rng, mut buffer) = (Rng::new(thread), Aligned::new(BLOCK, thread));
            Ok(move |_| {
                let at = rng.below(FILE / BLOCK as u64) * BLOCK as u64;
                match op {
                    Op::Write => file.write_all_at(buffer.slice(), at),
                    Op::Read => file.read_exact_at(buffer.slice(), at),
                }
            })
        })
    }

    fn cpu(&self) -> io::Result<Vec<Ran>> {
        self.sides.iter().map(|(_, pid)| Ran::now(*pid)).collect()
    }

    fn sample(&self, op: Op, time: Duration) -> io::Result<Sample> {
        self.go(op, time / 5)?;
        let (status, before) = (self.cluster.status()?, self.cpu()?);
        let outcome = self.go(op, time)?;
        if op == Op::Write {
            // What is left over is of these writes, too.
            OpenOptions::new().write(true).open(&self.file)?.sync_all()?;
        }
        let (after, later) = (self.cpu()?, self.cluster.status()?);
        let operations = outcome.operations.max(1) as f64;
        let mut cpu_us = BTreeMap::new();
        for ((side, _), (now, then)) in self.sides.iter().zip(after.iter().zip(&before)) {
            let used = now.since(then).as_secs_f64() * 1e6 / operations;
            *cpu_us.entry(side.clone()).or_insert(0.0) += used;
        }
        let earlier = counts(&status);
        let counted = counts(&later).into_iter().map(|(name, count)| {
            let before = earlier.get(name).copied().unwrap_or(0.0);
            (name.to_owned(), (count - before) / operations)
        });
        Ok(Sample { outcome, cpu_us, counted: counted.collect() })
    }
}

/// Sums over the parts of a cluster.
fn counts(status: &Value) -> BTreeMap<&'static str, f64> {
    let mut all = BTreeMap::new();
    let parts = status.get("parts").and_then(Value::as_object);
    for (name, part) in parts.into_iter().flatten() {
        let of = |path: &str| part.pointer(path).and_then(Value::as_f64).unwrap_or(0.0);
        let mut add = |what, count| *all.entry(what).or_insert(0.0) += count;
        let (sent, received) = (of("/network/datagrams_sent"), of("/network/datagrams_received"));
        add("datagrams", sent + received);
        add("socket calls", of("/network/socket_calls"));
        add("requests at nodes", of("/part/runtime/messages"));
        if name == "meta" {
            add("packets at the server", of("/network/packets received"));
        }
    }
    all
}

struct Sample {
    outcome: Outcome,
    cpu_us: BTreeMap<String, f64>,
    counted: BTreeMap<String, f64>,
}

/// Measures clusters in turn.
///
/// # Errors
/// A cluster or a mount that does not start, or fails an operation.
pub fn run(bench: &NetdfsBench, progress: &mut dyn FnMut(&str)) -> io::Result<Vec<VolumeRow>> {
    let kinds: &[bool] = if bench.is_short { &[true] } else { &[true, false] };
    progress("clusters start");
    let all = kinds.iter().map(|packed| Mounted::new(bench, *packed));
    let all = all.collect::<io::Result<Vec<Mounted>>>()?;
    let mut points: Vec<(Op, &Mounted, Vec<Sample>)> = [Op::Write, Op::Read]
        .into_iter()
        .flat_map(|op| all.iter().map(move |mounted| (op, mounted, Vec::new())))
        .collect();
    for round in 1..=bench.rounds {
        for (op, mounted, samples) in &mut points {
            progress(&format!("round {round}: {op:?}, 8 KiB direct, packed: {}", mounted.packed));
            samples.push(mounted.sample(*op, bench.time.max(SHORTEST))?);
        }
    }
    Ok(points.iter().map(|(op, mounted, samples)| row(*op, mounted.packed, samples)).collect())
}

fn row(op: Op, packed: bool, samples: &[Sample]) -> VolumeRow {
    let middle = |of: &dyn Fn(&Sample) -> f64| median(&samples.iter().map(of).collect::<Vec<_>>());
    let each = |of: fn(&Sample) -> &BTreeMap<String, f64>| {
        let names: BTreeSet<&String> = samples.iter().flat_map(|one| of(one).keys()).collect();
        let figure = |name: &String| middle(&|one| of(one).get(name).copied().unwrap_or(0.0));
        names.into_iter().map(|name| (name.clone(), figure(name))).collect()
    };
    VolumeRow {
        packed,
        op,
        operations: middle(&|one| one.outcome.operations as f64),
        per_second: middle(&|one| {
            one.outcome.operations as f64 / one.outcome.elapsed.as_secs_f64()
        }),
        p50_us: middle(&|one| one.outcome.latencies.percentile(50) as f64 / 1e3),
        cpu_us: each(|one| &one.cpu_us),
        counted: each(|one| &one.counted),
    }
}
