//! What is measured on each file system: the same calls, by the same threads, on the same sizes.
//!
//! A workload prepares its files outside the measured time, then runs for a while (or until its
//! files are used up) and says how many operations it did and how long each took.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use outboard_base::Rng;

use crate::stats::Latencies;

pub(crate) const BLOCK: usize = 8192;
const BIG_FILE: u64 = 128 << 20;
pub(crate) const MEGABYTE: usize = 1 << 20;
pub(crate) const O_DIRECT: i32 = 0o40000;

/// What one run of a workload did.
#[derive(Clone, Debug, Default)]
pub struct Outcome {
    /// Operations completed.
    pub operations: u64,
    /// Time they took, all threads together running.
    pub elapsed: Duration,
    /// Time of each.
    pub latencies: Latencies,
}

/// What a measurement is called.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Title {
    /// In tables and in `--only`.
    pub(crate) name: &'static str,
    /// Threads at work.
    pub(crate) threads: usize,
    /// What one operation is.
    pub(crate) operation: &'static str,
}

/// A named measurement.
#[derive(Clone, Copy, Debug)]
pub struct Workload {
    /// Its name in tables and in `--only`.
    pub name: &'static str,
    /// Threads at work.
    pub threads: usize,
    /// What one operation is.
    pub operation: &'static str,
    run: fn(&Path, usize, Duration) -> io::Result<Outcome>,
}

/// All measurements, in the order they run.
pub const ALL: &[Workload] = &[
    Workload {
        name: "direct-read-8k-t1",
        threads: 1,
        operation: "8 KiB random read, O_DIRECT",
        run: direct_read,
    },
    Workload {
        name: "direct-read-8k-t8",
        threads: 8,
        operation: "8 KiB random read, O_DIRECT",
        run: direct_read,
    },
    Workload {
        name: "direct-write-8k-t8",
        threads: 8,
        operation: "8 KiB random overwrite, O_DIRECT",
        run: direct_write,
    },
    Workload {
        name: "read-1m-t1",
        threads: 1,
        operation: "1 MiB sequential read, O_DIRECT",
        run: sequential_read,
    },
    Workload {
        name: "write-1m-t1",
        threads: 1,
        operation: "1 MiB sequential write, O_DIRECT",
        run: sequential_write,
    },
    Workload {
        name: "create",
        threads: 1,
        operation: "create and close an empty file",
        run: create,
    },
    Workload { name: "stat", threads: 1, operation: "stat one of 1,000 files", run: stat },
    Workload {
        name: "readdir",
        threads: 1,
        operation: "list a directory of 1,000 files",
        run: readdir,
    },
    Workload { name: "unlink", threads: 1, operation: "unlink an empty file", run: unlink },
    Workload {
        name: "write-fsync-8k",
        threads: 1,
        operation: "8 KiB random overwrite and fsync",
        run: write_fsync,
    },
    Workload {
        name: "sqlite-wal",
        threads: 1,
        operation: "sqlite3 insert and commit, WAL, synchronous=FULL",
        run: sqlite_wal,
    },
    Workload {
        name: "sqlite-rollback",
        threads: 1,
        operation: "sqlite3 insert and commit, rollback journal, synchronous=FULL",
        run: sqlite_rollback,
    },
];

impl Workload {
    pub(crate) fn title(&self) -> Title {
        Title { name: self.name, threads: self.threads, operation: self.operation }
    }

    /// Runs in `dir`, which exists and is on the file system measured, for about `time`.
    pub fn run(&self, dir: &Path, time: Duration) -> io::Result<Outcome> {
        (self.run)(dir, self.threads, time)
    }
}

/// A buffer whose slice starts at a multiple of the page size, as O_DIRECT asks.
pub(crate) struct Aligned {
    bytes: Vec<u8>,
    at: usize,
    len: usize,
}

impl Aligned {
    pub(crate) fn new(len: usize, seed: u64) -> Aligned {
        let mut bytes = vec![0; len + 4096];
        let at = bytes.as_ptr().align_offset(4096);
        Rng::new(seed).fill(&mut bytes[at..at + len]);
        Aligned { bytes, at, len }
    }

    pub(crate) fn slice(&mut self) -> &mut [u8] {
        &mut self.bytes[self.at..self.at + self.len]
    }
}

/// The file random I/O goes to: written in full, so that no read meets a hole.
fn big_file(dir: &Path) -> io::Result<PathBuf> {
    let path = dir.join("big");
    if fs::metadata(&path).is_ok_and(|meta| meta.len() == BIG_FILE) {
        return Ok(path);
    }
    let file = File::create(&path)?;
    let mut buffer = Aligned::new(MEGABYTE, 1);
    for at in (0..BIG_FILE).step_by(MEGABYTE) {
        file.write_all_at(buffer.slice(), at)?;
    }
    file.sync_all()?;
    Ok(path)
}

fn direct(path: &Path) -> io::Result<File> {
    OpenOptions::new().read(true).write(true).custom_flags(O_DIRECT).open(path)
}

/// Runs `operation` on `threads` threads until the time is over; each gets its number and a count.
pub(crate) fn repeat<F>(
    threads: usize,
    time: Duration,
    make: impl Fn(u64) -> io::Result<F>,
) -> io::Result<Outcome>
where
    F: FnMut(u64) -> io::Result<()> + Send,
{
    let workers = (0..threads as u64).map(make).collect::<io::Result<Vec<F>>>()?;
    let start = Instant::now();
    let end = start + time;
    let results: Vec<io::Result<Latencies>> = std::thread::scope(|scope| {
        let handles: Vec<_> = workers
            .into_iter()
            .map(|mut operation| {
                scope.spawn(move || {
                    let mut latencies = Latencies::default();
                    let mut before = Instant::now();
                    for count in 0.. {
                        operation(count)?;
                        let now = Instant::now();
                        latencies.push(nanos(now - before));
                        before = now;
                        if now >= end {
                            break;
                        }
                    }
                    Ok(latencies)
                })
            })
            .collect();
        handles
            .into_iter()
            .map(|handle| {
                handle.join().unwrap_or_else(|_| Err(io::Error::other("a thread panicked")))
            })
            .collect()
    });
    let elapsed = start.elapsed();
    let mut all = Latencies::default();
    for latencies in results {
        all.merge(&latencies?);
    }
    Ok(Outcome { operations: all.count(), elapsed, latencies: all })
}

pub(crate) fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

fn random_block(rng: &mut Rng) -> u64 {
    rng.below(BIG_FILE / BLOCK as u64) * BLOCK as u64
}

fn direct_read(dir: &Path, threads: usize, time: Duration) -> io::Result<Outcome> {
    let path = big_file(dir)?;
    repeat(threads, time, |thread| {
        let file = direct(&path)?;
        let (mut rng, mut buffer) = (Rng::new(thread), Aligned::new(BLOCK, thread));
        Ok(move |_| file.read_exact_at(buffer.slice(), random_block(&mut rng)))
    })
}

fn direct_write(dir: &Path, threads: usize, time: Duration) -> io::Result<Outcome> {
    let path = big_file(dir)?;
    repeat(threads, time, |thread| {
        let file = direct(&path)?;
        let (mut rng, mut buffer) = (Rng::new(thread), Aligned::new(BLOCK, thread));
        Ok(move |_| file.write_all_at(buffer.slice(), random_block(&mut rng)))
    })
}

fn sequential_read(dir: &Path, threads: usize, time: Duration) -> io::Result<Outcome> {
    let path = big_file(dir)?;
    repeat(threads, time, |thread| {
        let file = direct(&path)?;
        let mut buffer = Aligned::new(MEGABYTE, thread);
        Ok(move |count| file.read_exact_at(buffer.slice(), count * MEGABYTE as u64 % BIG_FILE))
    })
}

fn sequential_write(dir: &Path, threads: usize, time: Duration) -> io::Result<Outcome> {
    let path = big_file(dir)?;
    repeat(threads, time, |thread| {
        let file = direct(&path)?;
        let mut buffer = Aligned::new(MEGABYTE, thread);
        Ok(move |count| file.write_all_at(buffer.slice(), count * MEGABYTE as u64 % BIG_FILE))
    })
}

fn write_fsync(dir: &Path, threads: usize, time: Duration) -> io::Result<Outcome> {
    let path = big_file(dir)?;
    repeat(threads, time, |thread| {
        let file = OpenOptions::new().write(true).open(&path)?;
        let (mut rng, mut buffer) = (Rng::new(thread), Aligned::new(BLOCK, thread));
        Ok(move |_| {
            file.write_all_at(buffer.slice(), random_block(&mut rng))?;
            file.sync_all()
        })
    })
}

/// An empty directory of this name.
pub(crate) fn fresh(dir: &Path, name: &str) -> io::Result<PathBuf> {
    let path = dir.join(name);
    if path.exists() {
        fs::remove_dir_all(&path)?;
    }
    fs::create_dir(&path)?;
    Ok(path)
}

fn new_file(path: PathBuf) -> io::Result<()> {
    OpenOptions::new().write(true).create_new(true).open(path).map(drop)
}

fn create(dir: &Path, threads: usize, time: Duration) -> io::Result<Outcome> {
    let inside = fresh(dir, "create")?;
    repeat(threads, time, |thread| {
        let inside = inside.clone();
        Ok(move |count| new_file(inside.join(format!("file-{thread}-{count:08}"))))
    })
}

const FEW: u64 = 1000;

fn thousand(dir: &Path) -> io::Result<PathBuf> {
    let inside = dir.join("thousand");
    if !inside.exists() {
        fs::create_dir(&inside)?;
        (0..FEW).try_for_each(|n| new_file(inside.join(format!("file-{n:04}"))))?;
    }
    Ok(inside)
}

fn stat(dir: &Path, threads: usize, time: Duration) -> io::Result<Outcome> {
    let inside = thousand(dir)?;
    repeat(threads, time, |thread| {
        let (inside, mut rng) = (inside.clone(), Rng::new(thread));
        Ok(move |_| fs::metadata(inside.join(format!("file-{:04}", rng.below(FEW)))).map(drop))
    })
}

fn readdir(dir: &Path, threads: usize, time: Duration) -> io::Result<Outcome> {
    let inside = thousand(dir)?;
    repeat(threads, time, |_| {
        let inside = inside.clone();
        Ok(move |_| {
            let found = fs::read_dir(&inside)?.try_fold(0, |n, entry| entry.map(|_| n + 1))?;
            if found == FEW { Ok(()) } else { Err(io::Error::other("entries are missing")) }
        })
    })
}

/// Unlinks files made outside the measured time, in rounds, until the measured time is used up or
/// making the files has taken several times as long.
fn unlink(dir: &Path, _threads: usize, time: Duration) -> io::Result<Outcome> {
    let inside = fresh(dir, "unlink")?;
    let begun = Instant::now();
    let mut outcome = Outcome::default();
    while outcome.elapsed < time && (outcome.operations == 0 || begun.elapsed() < time * 4) {
        let paths: Vec<PathBuf> = (0..2000).map(|n| inside.join(format!("file-{n:04}"))).collect();
        paths.iter().cloned().try_for_each(new_file)?;
        let start = Instant::now();
        let mut before = start;
        for path in &paths {
            fs::remove_file(path)?;
            let now = Instant::now();
            outcome.latencies.push(nanos(now - before));
            before = now;
        }
        outcome.elapsed += start.elapsed();
        outcome.operations += paths.len() as u64;
    }
    Ok(outcome)
}

fn sqlite_wal(dir: &Path, _threads: usize, time: Duration) -> io::Result<Outcome> {
    sqlite(dir, "WAL", time)
}

fn sqlite_rollback(dir: &Path, _threads: usize, time: Duration) -> io::Result<Outcome> {
    sqlite(dir, "DELETE", time)
}

/// Feeds one `sqlite3` process batches of single-row transactions and times each batch by its echo.
pub(crate) fn sqlite(dir: &Path, journal: &str, time: Duration) -> io::Result<Outcome> {
    use std::io::{BufRead, BufReader};
    const BATCH: u64 = 20;
    let database = dir.join(format!("{journal}.db"));
    for suffix in ["", "-wal", "-shm", "-journal"] {
        let path = dir.join(format!("{journal}.db{suffix}"));
        if path.exists() {
            fs::remove_file(path)?;
        }
    }
    let mut child = Command::new("sqlite3")
        .args(["-batch", "-noheader"])
        .arg(&database)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .map_err(|error| io::Error::other(format!("cannot start sqlite3 ({error}); install it")))?;
    let closed = || io::Error::other("sqlite3 ended early");
    let mut input = child.stdin.take().ok_or_else(closed)?;
    let mut output = BufReader::new(child.stdout.take().ok_or_else(closed)?).lines();
    writeln!(input, ".bail on\nPRAGMA journal_mode={journal};\nPRAGMA synchronous=FULL;")?;
    writeln!(input, "CREATE TABLE t(id INTEGER PRIMARY KEY, v TEXT);\nSELECT 'ready';")?;
    let mut until = |word: &str| -> io::Result<()> {
        loop {
            if output.next().ok_or_else(closed)?? == word {
                return Ok(());
            }
        }
    };
    until("ready")?;
    let (start, mut outcome) = (Instant::now(), Outcome::default());
    while start.elapsed() < time {
        let before = Instant::now();
        for n in 0..BATCH {
            writeln!(input, "INSERT INTO t(v) VALUES('row {n} of a batch, with some text');")?;
        }
        writeln!(input, "SELECT 'done';")?;
        until("done")?;
        outcome.latencies.push(nanos(before.elapsed()) / BATCH);
        outcome.operations += BATCH;
    }
    outcome.elapsed = start.elapsed();
    drop(input);
    let status = child.wait()?;
    if status.success() { Ok(outcome) } else { Err(io::Error::other("sqlite3 failed")) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_workload_runs_on_a_plain_directory() {
        let dir = std::env::temp_dir().join(format!("outboard-workloads-{}", std::process::id()));
        fs::create_dir_all(&dir).unwrap();
        for workload in ALL.iter().filter(|workload| !workload.name.starts_with("sqlite")) {
            match workload.run(&dir, Duration::from_millis(20)) {
                Ok(outcome) => assert!(outcome.operations > 0, "{}", workload.name),
                // Some file systems refuse O_DIRECT; the workload must then say so.
                Err(error) => {
                    assert_eq!(error.kind(), io::ErrorKind::InvalidInput, "{}", workload.name);
                }
            }
        }
        fs::remove_dir_all(&dir).unwrap();
    }
}
