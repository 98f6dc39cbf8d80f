//! Which small files have no synced bytes.
//!
//! Growing beyond 8 KiB trades a pair for a block. The pair is part of the key-value store's
//! ordered history, the block is not: a power loss may keep the batch and lose the block, and then
//! neither is there. For bytes that were never synced that is allowed; bytes that were must not be
//! lost, so their new block is flushed *before* the batch that drops the pair. This set spares that
//! flush to the many files that grow beyond 8 KiB before anyone syncs.

use std::collections::HashSet;
use std::sync::{Mutex, MutexGuard, PoisonError};

use outboard_base::Ino;

/// Most files remembered; when there are more, all are forgotten, which costs a flush each.
const FILES_MAX: usize = 1 << 16;

/// Files whose first bytes were written after the last sync began.
#[derive(Default)]
pub(crate) struct Fresh(Mutex<HashSet<Ino>>);

impl Fresh {
    fn set(&self) -> MutexGuard<'_, HashSet<Ino>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// `ino`, which had no bytes, is being given its first.
    pub(crate) fn begins(&self, ino: Ino) {
        let mut set = self.set();
        if set.len() >= FILES_MAX {
            set.clear();
        }
        set.insert(ino);
    }

    /// Whether no byte of `ino` can have been synced.
    pub(crate) fn is(&self, ino: Ino) -> bool {
        self.set().contains(&ino)
    }

    /// A sync begins: what is there may be synced by it.
    pub(crate) fn sync_begins(&self) {
        self.set().clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_forgotten_counts_as_synced() {
        let fresh = Fresh::default();
        fresh.begins(Ino(2));
        assert!(fresh.is(Ino(2)) && !fresh.is(Ino(3)));
        fresh.sync_begins();
        assert!(!fresh.is(Ino(2)));
        (0..=FILES_MAX as u64).for_each(|n| fresh.begins(Ino(n)));
        assert!(!fresh.is(Ino(0)) && fresh.is(Ino(FILES_MAX as u64)));
    }
}
