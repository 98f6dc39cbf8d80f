//! Locks that a closed file still seems to hold.
//!
//! `close(2)` does not wait for FUSE_RELEASE, which drops the locks of an open file (`flock(2)`,
//! `F_OFD_SETLK`). The kernel queues it before the close returns, so a lock asked for afterwards is
//! read after it, but perhaps by another worker, and may overtake it: a lock that would not wait
//! is then refused for a holder that is gone. No local file system does that.
//!
//! So such a lock is asked for only when, if somebody locked the inode through another handle,
//!
//! 1. no other worker may have a message in its hands that it has not looked at yet, and
//! 2. no release of a handle that locked the inode is without an answer.
//!
//! Both last microseconds, and the wait is bounded: while the DPU side is lost a release is not
//! answered, and neither is the lock. One gap is the kernel's: with so many requests in the
//! background that it holds some back (a dozen), a release may be queued behind the lock.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use outboard_base::{Fh, Ino};

use crate::table::Table;

/// Longest wait for releases before a lock is asked for.
const WAIT_MAX: Duration = Duration::from_millis(20);
/// Between two looks.
const PAUSE: Duration = Duration::from_micros(20);

/// A handle through which its inode was locked.
#[derive(Debug)]
struct Locker {
    fh: Fh,
    /// Its release was read, and is not answered.
    going: bool,
}

/// What one worker has in its hands.
#[derive(Debug, Default)]
struct Hands {
    /// It reads, or has read what it has not looked at.
    reading: AtomicBool,
    /// `/proc/PID/task/TID/stat` of its thread.
    stat: OnceLock<File>,
}

impl Hands {
    /// Whether it has no message that it has not looked at.
    fn are_empty(&self) -> bool {
        !self.reading.load(Ordering::Acquire) || self.sleeps()
    }

    /// Whether the thread sleeps; while it reads it does so only in the kernel, for want of a
    /// message. Yes when the kernel does not tell.
    fn sleeps(&self) -> bool {
        let Some(stat) = self.stat.get() else { return true };
        let mut line = [0; 64];
        let Ok(len) = stat.read_at(&mut line, 0) else { return true };
        let line = line.get(..len).unwrap_or(&[]);
        // The state stands behind the name, which is ours and holds no bracket.
        let state = line.iter().position(|byte| *byte == b')').and_then(|at| line.get(at + 2));
        state.is_none_or(|state| *state == b'S')
    }
}

/// Who locked what, and what the workers have read.
#[derive(Debug)]
pub(crate) struct Releases {
    lockers: Table<Vec<Locker>>,
    workers: Vec<Hands>,
}

impl Releases {
    /// For a mount served by this many workers.
    pub(crate) fn new(workers: usize) -> Releases {
        let workers = (0..workers).map(|_| Hands::default()).collect();
        Releases { lockers: Table::default(), workers }
    }

    /// The calling thread is this worker.
    pub(crate) fn enter(&self, worker: usize) {
        if let (Some(hands), Ok(stat)) =
            (self.workers.get(worker), File::open("/proc/thread-self/stat"))
        {
            // A worker that enters again keeps its thread.
            _ = hands.stat.set(stat);
        }
    }

    /// A worker is about to read.
    pub(crate) fn reads(&self, worker: usize) {
        self.set_reading(worker, true);
    }

    /// A worker knows what it read; if it is a release, [`Releases::going`] was told.
    pub(crate) fn has_looked(&self, worker: usize) {
        self.set_reading(worker, false);
    }

    fn set_reading(&self, worker: usize, reading: bool) {
        if let Some(hands) = self.workers.get(worker) {
            hands.reading.store(reading, Ordering::Release);
        }
    }

    /// A lock of `ino` is being asked for through `fh`. True if other handles locked it too.
    pub(crate) fn locks(&self, ino: Ino, fh: Fh) -> bool {
        let mut shard = self.lockers.shard(ino.0);
        let lockers = shard.entry(ino.0).or_default();
        if lockers.iter().all(|locker| locker.fh != fh) {
            lockers.push(Locker { fh, going: false });
        }
        lockers.len() > 1
    }

    /// The release of `fh` was read. True if it locked: [`Releases::gone`] is to follow.
    pub(crate) fn going(&self, ino: Ino, fh: Fh) -> bool {
        let mut shard = self.lockers.shard(ino.0);
        let mut lockers = shard.get_mut(&ino.0).into_iter().flatten();
        match lockers.find(|locker| locker.fh == fh) {
            Some(locker) => locker.going = true,
            None => return false,
        }
        true
    }

    /// The release of `fh` is answered.
    pub(crate) fn gone(&self, ino: Ino, fh: Fh) {
        let mut shard = self.lockers.shard(ino.0);
        if let Some(lockers) = shard.get_mut(&ino.0) {
            lockers.retain(|locker| locker.fh != fh);
            if lockers.is_empty() {
                shard.remove(&ino.0);
            }
        }
    }

    /// Waits, in worker `me`, until every release that was read before is answered, or long enough.
    pub(crate) fn wait(&self, me: usize, ino: Ino) {
        let end = Instant::now() + WAIT_MAX;
        // The hands first: whoever has looked since has said what it saw.
        while !(self.others_are_empty(me) && self.none_goes(ino)) && Instant::now() < end {
            std::thread::sleep(PAUSE);
        }
    }

    fn others_are_empty(&self, me: usize) -> bool {
        self.workers.iter().enumerate().all(|(worker, hands)| worker == me || hands.are_empty())
    }

    fn none_goes(&self, ino: Ino) -> bool {
        let shard = self.lockers.shard(ino.0);
        shard.get(&ino.0).is_none_or(|lockers| lockers.iter().all(|locker| !locker.going))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_releases_of_who_locked_are_waited_for() {
        let releases = Releases::new(2);
        let ino = Ino(7);
        assert!(!releases.locks(ino, Fh(1)), "nobody else");
        assert!(!releases.locks(ino, Fh(1)), "still nobody else");
        assert!(releases.locks(ino, Fh(2)));
        assert!(!releases.going(ino, Fh(3)), "it never locked");
        assert!(!releases.going(Ino(8), Fh(1)));
        assert!(releases.none_goes(ino));
        assert!(releases.going(ino, Fh(1)));
        assert!(!releases.none_goes(ino));
        releases.gone(ino, Fh(1));
        assert!(releases.none_goes(ino));
        assert!(!releases.locks(ino, Fh(2)), "alone again");
        releases.gone(ino, Fh(2));
        assert!(releases.lockers.shards().all(|shard| shard.is_empty()), "nothing is kept");
    }

    #[test]
    fn a_worker_at_work_is_waited_for_until_it_has_looked() {
        let releases = Releases::new(2);
        releases.reads(0);
        assert!(releases.others_are_empty(1), "a worker that never entered has read nothing");
        // This thread runs, so as worker 0 it may have just read something.
        releases.enter(0);
        assert!(!releases.others_are_empty(1));
        let start = Instant::now();
        releases.wait(1, Ino(7));
        assert!(start.elapsed() >= WAIT_MAX, "the wait is bounded");
        releases.has_looked(0);
        assert!(releases.others_are_empty(1));
    }

    #[test]
    fn a_worker_that_sleeps_in_its_read_has_nothing() {
        let releases = Releases::new(2);
        let (wake, read) = std::sync::mpsc::channel::<()>();
        let releases = &releases;
        std::thread::scope(|scope| {
            scope.spawn(move || {
                releases.enter(0);
                releases.reads(0);
                assert!(read.recv().is_err(), "the other end is dropped");
            });
            let end = Instant::now() + Duration::from_secs(10);
            let reads = || releases.workers[0].reading.load(Ordering::Acquire);
            while !(reads() && releases.others_are_empty(1)) {
                assert!(Instant::now() < end, "it sleeps");
            }
            drop(wake);
        });
    }
}
