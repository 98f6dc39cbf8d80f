//! Which inodes are changed while a check runs.

use std::collections::HashSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use outboard_kv::Batch;

use crate::layout::key::{self, Tag};

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
        let pairs = Tag::Inode as u8..=Tag::Trim as u8;
        let keys = batch.writes().iter().map(|write| &write.key);
        let inos = keys.filter(|key| key.first().is_some_and(|tag| pairs.contains(tag)));
        self.inodes().extend(inos.filter_map(|key| key::number(key)));
    }
}

impl Noting<'_> {
    /// What was noted.
    pub(crate) fn end(self) -> HashSet<u64> {
        std::mem::take(&mut *self.0.inodes())
    }
}

impl Drop for Noting<'_> {
    fn drop(&mut self) {
        self.0.checking.store(false, Ordering::Release);
        self.0.inodes().clear();
    }
}
