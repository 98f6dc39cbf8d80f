//! Refusing to grow while there is still room to shrink.

use std::path::PathBuf;
use std::sync::Mutex;
use std::sync::PoisonError;

use outboard_kv::{Batch, KvError};
use outboard_os::room::{Reserve, disk_room};

/// Bytes of sorted files one compaction may write before it deletes what it read, about.
const COMPACTION_MAX: u64 = 512 << 20;

/// Of the reserve, what even essential batches leave: compaction writes before it deletes.
const UNTOUCHED: u64 = 4;
/// Bytes committed between two looks at the disk, at most.
const LOOK_EVERY: u64 = 4 << 20;

/// Bytes that may be committed before the disk is looked at again.
#[derive(Debug, Default)]
struct Credit {
    any: u64,
    /// By batches that shrink, or are essential, only: where the others may have none.
    shrinking: u64,
}

/// The room of one disk.
pub(super) struct Room {
    dir: PathBuf,
    reserve: Reserve,
    credit: Mutex<Credit>,
}

impl Room {
    pub(super) fn new(dir: PathBuf, reserve: Reserve) -> Room {
        Room { dir, reserve, credit: Mutex::default() }
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
        if let Some(left) = credit.any.checked_sub(cost) {
            credit.any = left;
            return Ok(());
        }
        let shrinks = batch.is_essential() || batch.writes().iter().all(|w| w.value.is_none());
        if shrinks && let Some(left) = credit.shrinking.checked_sub(cost) {
            credit.shrinking = left;
            return Ok(());
        }
        let (free, kept) = if shrinks {
            let (free, kept) = self.now(0);
            (free, kept / UNTOUCHED)
        } else {
            self.now(sorted())
        };
        if free < kept.saturating_add(cost) {
            return Err(KvError::NoSpace);
        }
        let more = ((free - kept - cost) / 4).min(LOOK_EVERY);
        *if shrinks { &mut credit.shrinking } else { &mut credit.any } = more;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn credit(room: &Room) -> (u64, u64) {
        let credit = room.credit.lock().unwrap();
        (credit.any, credit.shrinking)
    }

    /// Only batches that grow were given credit: once it was spent each unlink looked at the disk.
    #[test]
    fn what_shrinks_looks_at_the_disk_now_and_then_and_lends_nobody() {
        let dir = tempfile::tempdir().unwrap();
        let (free, _) = disk_room(dir.path(), Reserve::default()).unwrap();
        let mut delete = Batch::new();
        delete.delete([1; 100]);
        let cost = 2 * delete.bytes() as u64 + 4096;
        let mut put = Batch::new();
        put.put([1; 100], [2; 100]);
        // Full, as far as batches that grow are concerned.
        let reserve = Reserve { most: free + (1 << 30), one_in: 1 };
        let room = Room::new(dir.path().to_path_buf(), reserve);
        assert_eq!(room.admit(&delete, || 0), Ok(()));
        let (_, given) = credit(&room);
        assert!(given > cost);
        for spent in 1..10 {
            assert_eq!(room.admit(&delete, || 0), Ok(()));
            assert_eq!(credit(&room), (0, given - spent * cost), "it looked again");
        }
        assert_eq!(room.admit(&put, || 0), Err(KvError::NoSpace), "that credit is not its");
    }
}
