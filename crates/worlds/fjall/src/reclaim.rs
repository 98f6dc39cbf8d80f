//! Getting space back for a full disk: deleted pairs lie in the sorted files until compaction meets
//! them, and a store that refuses to grow does nothing that would bring compaction about.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use fjall::Keyspace;
use tracing::{error, info};

/// With fewer pairs deleted there is little to gain, and housekeeping deletes a few all the time:
/// then a compaction waits until the last is some time ago.
const WORTH_IT: usize = 512;
const PAUSE: Duration = Duration::from_secs(10);

/// Runs at most one reclaiming compaction at a time, on a thread of its own.
#[derive(Default)]
pub(super) struct Reclaim {
    /// Pairs deleted since the last began.
    deleted: AtomicUsize,
    running: Arc<AtomicBool>,
    last: Mutex<Option<(Instant, JoinHandle<()>)>>,
}

impl Reclaim {
    /// So many pairs were deleted.
    pub(super) fn deleted(&self, count: usize) {
        self.deleted.fetch_add(count, Ordering::Relaxed);
    }

    /// Begins to compact if that gains something and nobody does so already. `room` says whether a
    /// compaction of everything fits; if not, recent writes are sorted, and the engine does the
    /// rest.
    pub(super) fn begin(&self, pairs: &Keyspace, room: bool) {
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        let recent = last.as_ref().is_some_and(|(begun, _)| begun.elapsed() < PAUSE);
        let few = self.deleted.load(Ordering::Relaxed) < if recent { WORTH_IT } else { 1 };
        if few || self.running.swap(true, Ordering::AcqRel) {
            return;
        }
        self.deleted.store(0, Ordering::Relaxed);
        let (pairs, running) = (pairs.clone(), Arc::clone(&self.running));
        let work = move || {
            info!("the disk is full: compacting what was deleted");
            if let Err(cause) = compact(&pairs, room) {
                error!(%cause, "cannot compact");
            }
            running.store(false, Ordering::Release);
        };
        let started = std::thread::Builder::new().name("outboard-compact".into()).spawn(work);
        match started {
            Ok(thread) => *last = Some((Instant::now(), thread)),
            Err(cause) => {
                error!(%cause, "cannot start a thread to compact");
                self.running.store(false, Ordering::Release);
            }
        }
    }
}

fn compact(pairs: &Keyspace, room: bool) -> fjall::Result<()> {
    pairs.rotate_memtable_and_wait()?;
    if room { pairs.major_compact() } else { Ok(()) }
}

impl Drop for Reclaim {
    /// The thread holds the engine's files open.
    fn drop(&mut self) {
        let last = self.last.get_mut().unwrap_or_else(PoisonError::into_inner).take();
        if last.is_some_and(|(_, thread)| thread.join().is_err()) {
            error!("the compacting thread panicked");
        }
    }
}
