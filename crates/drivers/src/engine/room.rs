//! Refusing to grow while there is still room to shrink.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::PoisonError;

use outboard_kv::{Batch, KvError};

/// Space of the disk under a data directory that only deleting, compacting and logging may use.
#[derive(Clone, Copy, Debug)]
pub struct Reserve {
    /// At most this many bytes.
    pub most: u64,
    /// This part of the disk: one in so many.
    pub one_in: u64,
}

/// Bytes of sorted files one compaction may write before it deletes what it read, about.
const COMPACTION_MAX: u64 = 512 << 20;

impl Default for Reserve {
    fn default() -> Reserve {
        Reserve { most: 256 << 20, one_in: 16 }
    }
}

/// Of the reserve, what even essential batches leave: compaction writes before it deletes.
const UNTOUCHED: u64 = 4;
/// Bytes committed between two looks at the disk, at most.
const LOOK_EVERY: u64 = 4 << 20;

/// Bytes free under `dir` for us, and bytes to keep back of them.
pub fn disk_room(dir: &Path, reserve: Reserve) -> io::Result<(u64, u64)> {
    let fs = rustix::fs::statvfs(dir)?;
    let total = fs.f_blocks.saturating_mul(fs.f_frsize);
    let free = fs.f_bavail.saturating_mul(fs.f_frsize);
    Ok((free, (total / reserve.one_in.max(1)).min(reserve.most)))
}

/// The room of one disk.
pub(super) struct Room {
    dir: PathBuf,
    reserve: Reserve,
    /// Bytes that may be committed before the disk is looked at again.
    credit: Mutex<u64>,
}

impl Room {
    pub(super) fn new(dir: PathBuf, reserve: Reserve) -> Room {
        Room { dir, reserve, credit: Mutex::new(0) }
    }

    /// Bytes free and kept back, with so many bytes of sorted files. Unknown is plenty: the write
    /// will tell.
    pub(super) fn now(&self, sorted: u64) -> (u64, u64) {
        let (free, kept) = disk_room(&self.dir, self.reserve).unwrap_or((u64::MAX, 0));
        (free, kept.saturating_add(sorted.min(COMPACTION_MAX)))
    }

    /// Whether `batch` may be committed. Deletes go into the reserve like [`Batch::essential`]
    /// ones: they leave a quarter of it, and may be overtaken by one compaction.
    pub(super) fn admit(&self, batch: &Batch, sorted: impl Fn() -> u64) -> Result<(), KvError> {
        let mut credit = self.credit.lock().unwrap_or_else(PoisonError::into_inner);
        // Once in the journal, once sorted.
        let cost = 2 * batch.bytes() as u64 + 4096;
        if let Some(left) = credit.checked_sub(cost) {
            *credit = left;
            return Ok(());
        }
        let shrinks = batch.is_essential() || batch.writes().iter().all(|w| w.value.is_none());
        let (free, kept) = if shrinks {
            let (free, kept) = self.now(0);
            (free, kept / UNTOUCHED)
        } else {
            self.now(sorted())
        };
        if free < kept.saturating_add(cost) {
            return Err(KvError::NoSpace);
        }
        if !shrinks {
            *credit = ((free - kept - cost) / 4).min(LOOK_EVERY);
        }
        Ok(())
    }
}
