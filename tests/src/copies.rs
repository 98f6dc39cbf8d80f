//! A file with copies while nodes are away: a writer whose every answered write is known goes on,
//! what it wrote is read wherever copies are left, and nodes that come back get what they lack
//! (NetDFS V; `docs/internals/replication.md`).

use std::fs::{File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use outboard_base::Rng;
use rustix::process::{Pid, Signal, kill_process};

use crate::cluster::Cluster;
use crate::command::wait_until;
use crate::{Result, context, program};

/// Bytes of a record, and records of the file.
const LEN: usize = 8192;
const RECORDS: usize = 512;
/// How long copies may take to have all again.
const FILLED: Duration = Duration::from_secs(120);

/// Files made in this directory from now on have so many copies.
///
/// # Errors
/// What `outboard layout` says.
pub fn spread(dir: &Path, strategy: &str, copies: usize) -> Result<()> {
    lay_out(dir, &format!("strategy={strategy},k={copies}"))
}

/// Files made in this directory from now on lie so.
///
/// # Errors
/// What `outboard layout` says.
pub fn lay_out(dir: &Path, layout: &str) -> Result<()> {
    let mut command = Command::new(program()?);
    command.arg("layout").arg(dir).arg("--set").arg(layout);
    let output = context(command.output(), || "outboard layout".to_owned())?;
    match output.status.success() {
        true => Ok(()),
        false => Err(format!("outboard layout: {}", String::from_utf8_lossy(&output.stderr))),
    }
}

/// A record: its number and which write of it this is, all over.
fn record(number: u64, write: u64) -> Vec<u8> {
    let word = (number << 32) | write;
    word.to_le_bytes().into_iter().cycle().take(LEN).collect()
}

/// Writes records of a file, in an order that a seed draws, until it is told to end.
pub struct Writer {
    thread: JoinHandle<Result<Vec<u64>>>,
    stop: Arc<AtomicBool>,
    answered: Arc<AtomicU64>,
    /// The longest that a write took since this was asked, microseconds.
    longest: Arc<AtomicU64>,
    /// Why it ended before it was told to.
    failed: Arc<Mutex<Option<String>>>,
}

impl Writer {
    /// Begins on a file of its own.
    ///
    /// # Errors
    /// It cannot be made.
    pub fn begin(path: &Path, seed: u64) -> Result<Writer> {
        let file = OpenOptions::new().create(true).truncate(true).write(true).open(path);
        let file = context(file, || format!("cannot make {}", path.display()))?;
        let (stop, answered, longest) =
            <(Arc<AtomicBool>, Arc<AtomicU64>, Arc<AtomicU64>)>::default();
        let (stops, counts, times) =
            (Arc::clone(&stop), Arc::clone(&answered), Arc::clone(&longest));
        let failed: Arc<Mutex<Option<String>>> = Arc::default();
        let fails = Arc::clone(&failed);
        let work = move || {
            let (mut written, mut rng) = (vec![0; RECORDS], Rng::new(seed));
            while !stops.load(Ordering::Acquire) {
                let number = rng.below(RECORDS as u64);
                let write = counts.load(Ordering::Relaxed) + 1;
                let begun = Instant::now();
                let wrote = file.write_all_at(&record(number, write), number * LEN as u64);
                context(wrote, || format!("write {write}, of record {number}"))?;
                if write % 64 == 0 {
                    context(file.sync_data(), || format!("the sync after write {write}"))?;
                }
                let took = u64::try_from(begun.elapsed().as_micros()).unwrap_or(u64::MAX);
                times.fetch_max(took, Ordering::Relaxed);
                if let Some(known) = written.get_mut(usize::try_from(number).unwrap_or(0)) {
                    *known = write;
                }
                counts.store(write, Ordering::Release);
            }
            Ok(written)
        };
        let says = move || {
            let ended = work();
            *fails.lock().unwrap_or_else(PoisonError::into_inner) = ended.as_ref().err().cloned();
            ended
        };
        Ok(Writer { thread: thread::spawn(says), stop, answered, longest, failed })
    }

    /// It gets something done while `what` is so.
    ///
    /// # Errors
    /// It does not, in so long; or a write, or a sync, failed.
    pub fn goes_on(&self, limit: Duration, what: &str) -> Result<()> {
        let before = self.answered.load(Ordering::Acquire);
        let enough = || self.answered.load(Ordering::Acquire) > before + 20;
        if wait_until(limit, || enough() || self.thread.is_finished()) && enough() {
            return Ok(());
        }
        let failed = self.failed.lock().unwrap_or_else(PoisonError::into_inner).clone();
        Err(match failed {
            Some(failed) => format!("{failed}, while {what}"),
            None => format!("no writes are answered within {limit:?} while {what}"),
        })
    }

    /// The longest that a write took since this was asked last.
    #[must_use]
    pub fn longest(&self) -> Duration {
        Duration::from_micros(self.longest.swap(0, Ordering::Relaxed))
    }

    /// Ends it: of each record the last write that was answered, and how many were.
    ///
    /// # Errors
    /// A write failed.
    pub fn end(self) -> Result<(Vec<u64>, u64)> {
        self.stop.store(true, Ordering::Release);
        let written = self.thread.join().map_err(|_| "the writer panicked".to_owned())??;
        Ok((written, self.answered.load(Ordering::Acquire)))
    }
}

/// All that was answered is in a file.
///
/// # Errors
/// Something else is, or it cannot be read.
pub fn holds(path: &Path, written: &[u64]) -> Result<()> {
    let file = context(File::open(path), || format!("cannot open {}", path.display()))?;
    let mut found = vec![0; LEN];
    for (number, write) in written.iter().enumerate().filter(|(_, write)| **write > 0) {
        let number = number as u64;
        let read = file.read_exact_at(&mut found, number * LEN as u64);
        context(read, || format!("cannot read record {number}"))?;
        if found != record(number, *write) {
            let word = found.first_chunk().map_or(0, |raw| u64::from_le_bytes(*raw));
            return Err(format!("record {number} is {word:#x}, and write {write} was answered"));
        }
    }
    Ok(())
}

/// A node that is stopped, as one that is cut off, until this is dropped.
pub struct Away(Pid);

impl Away {
    /// Stops some.
    ///
    /// # Errors
    /// Nobody knows their processes, as when one of the nodes is stopped.
    pub fn stop(cluster: &Cluster, nodes: &[&str]) -> Result<Vec<Away>> {
        let pid = |node: &str| {
            let (pid, _) = cluster.address(node)?;
            let pid = i32::try_from(pid).ok().and_then(Pid::from_raw);
            pid.ok_or_else(|| format!("{node} has no process"))
        };
        let pids = nodes.iter().map(|node| pid(node)).collect::<Result<Vec<_>>>()?;
        let stop = |pid: Pid| {
            context(kill_process(pid, Signal::STOP), || format!("cannot stop {pid:?}"))?;
            Ok(Away(pid))
        };
        pids.into_iter().map(stop).collect()
    }
}

impl Drop for Away {
    fn drop(&mut self) {
        // One that is gone need not go on.
        _ = kill_process(self.0, Signal::CONT);
    }
}

/// What a check finds once no copy lacks anything, or after two minutes.
///
/// # Errors
/// What it finds then.
pub fn mended(mut check: impl FnMut() -> Result<()>) -> Result<()> {
    let mut last = Ok(());
    wait_until(FILLED, || {
        last = check();
        !matches!(&last, Err(found) if found.contains("are to be filled"))
    });
    last
}

/// All copies have all again: the check finds nothing.
///
/// # Errors
/// What it finds, after two minutes.
pub fn filled(cluster: &Cluster) -> Result<()> {
    let mut last = Ok(());
    wait_until(FILLED, || {
        last = cluster.wait().and_then(|()| cluster.check());
        last.is_ok()
    });
    last
}
