//! Which inodes are changed while a check runs.

use std::collections::HashSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use outboard_kv::Batch;

use crate::layout::key::{self, Tag};

/// Most inodes noted; beyond it nobody knows which.
const NOTED_MAX: usize = 1 << 20;

/// Notes taken while a check runs; costs one load for each commit while none does.
#[derive(Default)]
pub(crate) struct Touched {
    checking: AtomicBool,
    inodes: Mutex<HashSet<u64>>,
}

/// Notes are being taken; ends when dropped.
pub(crate) struct Noting<'t>(&'t Touched);

impl Touched {
    fn inodes(&self) -> MutexGuard<'_, HashSet<u64>> {
        self.inodes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Begins to note, unless somebody does.
    pub(crate) fn begin(&self) -> Option<Noting<'_>> {
        let taken = self.checking.swap(true, Ordering::AcqRel);
        (!taken).then(|| Noting(self))
    }

    /// A batch is about to be committed. Whatever changes what belongs to an inode writes a pair
    /// that names it.
    pub(crate) fn note(&self, batch: &Batch) {
        if !self.checking.load(Ordering::Acquire) {
            return;
        }
        let pairs = |tag: &u8| {
            (Tag::Inode as u8..=Tag::Trim as u8).contains(tag)
                || [Tag::Writing as u8, Tag::Purge as u8, Tag::Lacking as u8].contains(tag)
        };
        let keys = batch.writes().iter().map(|write| &write.key);
        let inos = keys.filter(|key| key.first().is_some_and(pairs));
        let mut noted = self.inodes();
        if noted.len() < NOTED_MAX {
            noted.extend(inos.filter_map(|key| key::number(key)));
        }
    }
}

impl Noting<'_> {
    /// What was noted; `None` if it was too much.
    pub(crate) fn end(self) -> Option<HashSet<u64>> {
        let noted = std::mem::take(&mut *self.0.inodes());
        (noted.len() < NOTED_MAX).then_some(noted)
    }
}

impl Drop for Noting<'_> {
    fn drop(&mut self) {
        self.0.checking.store(false, Ordering::Release);
        self.0.inodes().clear();
    }
}
