//! Writes under way that nobody waits for any more.

use std::sync::atomic::{AtomicUsize, Ordering};

use outboard_base::task::WaitList;

/// Counts them, for who must know that they are over.
#[derive(Default)]
pub(super) struct Orphans {
    count: AtomicUsize,
    gone: WaitList,
}

impl Orphans {
    pub(super) fn add(&self) {
        self.count.fetch_add(1, Ordering::AcqRel);
    }

    pub(super) fn remove(&self) {
        if self.count.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.gone.notify();
        }
    }

    /// Ends when there are none.
    pub(super) async fn none(&self) {
        self.gone.until(|| (self.count.load(Ordering::Acquire) == 0).then_some(())).await;
    }
}
