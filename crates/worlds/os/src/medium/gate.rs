//! Waiting without a runtime: for a turn, and for stray writes to end.

use std::future::poll_fn;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::task::{Poll, Waker};

/// Lets one in at a time.
#[derive(Default)]
pub(super) struct Gate {
    state: Mutex<GateState>,
}

#[derive(Default)]
struct GateState {
    taken: bool,
    waiting: Vec<Waker>,
}

/// A turn, until dropped.
pub(super) struct Turn<'a>(&'a Gate);

impl Gate {
    fn lock(&self) -> MutexGuard<'_, GateState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) async fn enter(&self) -> Turn<'_> {
        poll_fn(|cx| {
            let mut state = self.lock();
            if std::mem::replace(&mut state.taken, true) {
                state.waiting.push(cx.waker().clone());
                return Poll::Pending;
            }
            Poll::Ready(Turn(self))
        })
        .await
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        let mut state = self.0.lock();
        state.taken = false;
        state.waiting.drain(..).for_each(Waker::wake);
    }
}

/// Counts writes under way that nobody waits for any more.
#[derive(Default)]
pub(super) struct Orphans {
    state: Mutex<OrphanState>,
}

#[derive(Default)]
struct OrphanState {
    count: usize,
    waiting: Vec<Waker>,
}

impl Orphans {
    fn lock(&self) -> MutexGuard<'_, OrphanState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn add(&self) {
        self.lock().count += 1;
    }

    pub(super) fn remove(&self) {
        let mut state = self.lock();
        state.count = state.count.saturating_sub(1);
        if state.count == 0 {
            state.waiting.drain(..).for_each(Waker::wake);
        }
    }

    /// Ends when there are none.
    pub(super) async fn none(&self) {
        poll_fn(|cx| {
            let mut state = self.lock();
            if state.count == 0 {
                return Poll::Ready(());
            }
            state.waiting.push(cx.waker().clone());
            Poll::Pending
        })
        .await;
    }
}
