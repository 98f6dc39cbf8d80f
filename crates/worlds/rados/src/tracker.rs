//! Operations that nobody waits for any more: whether they are over, and how they ended.

use std::collections::HashMap;
use std::future::poll_fn;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Poll, Waker};

use outboard_pool::PoolError;

/// What is known of an operation whose end nobody has taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Known {
    /// Its future lives.
    Awaited,
    /// Its future lives; the operation is over.
    Over(Result<(), PoolError>),
    /// Its future was dropped, and it is under way.
    Dropped,
}

#[derive(Default)]
struct State {
    next: u64,
    operations: HashMap<u64, Known>,
    dropped: usize,
    /// The last error of a dropped operation that nobody was told.
    failed: Option<PoolError>,
    wakers: Vec<Waker>,
}

/// The operations of one client.
#[derive(Default)]
pub(crate) struct Tracker {
    state: Mutex<State>,
}

impl Tracker {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// An operation begins: what its future keeps, and what its callback keeps.
    pub(crate) fn begin(self: &Arc<Self>) -> (Awaiting, Ending) {
        let mut state = self.state();
        let id = state.next;
        state.next += 1;
        state.operations.insert(id, Known::Awaited);
        (Awaiting { tracker: Arc::clone(self), id }, Ending { tracker: Arc::clone(self), id })
    }

    /// Waits until no dropped operation is under way; the error of one that failed, once.
    pub(crate) async fn settle(&self) -> Result<(), PoolError> {
        poll_fn(|context| {
            let mut state = self.state();
            if state.dropped > 0 {
                state.wakers.push(context.waker().clone());
                return Poll::Pending;
            }
            Poll::Ready(state.failed.take().map_or(Ok(()), Err))
        })
        .await
    }
}

/// Held while somebody waits for an operation's end.
pub(crate) struct Awaiting {
    tracker: Arc<Tracker>,
    id: u64,
}

impl Awaiting {
    /// The end was taken, or the operation never began.
    pub(crate) fn done(self) {
        self.tracker.state().operations.remove(&self.id);
    }
}

impl Drop for Awaiting {
    fn drop(&mut self) {
        let mut state = self.tracker.state();
        match state.operations.remove(&self.id) {
            Some(Known::Awaited) => {
                state.dropped += 1;
                state.operations.insert(self.id, Known::Dropped);
            }
            Some(Known::Over(Err(error))) => state.failed = Some(error),
            Some(Known::Over(Ok(())) | Known::Dropped) | None => {}
        }
    }
}

/// What the callback keeps.
pub(crate) struct Ending {
    tracker: Arc<Tracker>,
    id: u64,
}

impl Ending {
    /// The operation is over.
    pub(crate) fn over(&self, result: Result<(), PoolError>) {
        let wakers = {
            let mut state = self.tracker.state();
            match state.operations.remove(&self.id) {
                Some(Known::Dropped) => {
                    state.dropped -= 1;
                    if let Err(error) = result {
                        state.failed = Some(error);
                    }
                }
                Some(_) => {
                    state.operations.insert(self.id, Known::Over(result));
                }
                None => {}
            }
            if state.dropped > 0 { Vec::new() } else { std::mem::take(&mut state.wakers) }
        };
        wakers.into_iter().for_each(Waker::wake);
    }
}

#[cfg(test)]
mod tests {
    use outboard_base::task::poll_once;
    use std::pin::pin;

    use super::*;

    fn settled(tracker: &Tracker) -> Option<Result<(), PoolError>> {
        match poll_once(pin!(tracker.settle())) {
            Poll::Ready(result) => Some(result),
            Poll::Pending => None,
        }
    }

    #[test]
    fn only_dropped_operations_are_waited_for_and_told() {
        let tracker = Arc::new(Tracker::default());
        let (kept, kept_end) = tracker.begin();
        let (dropped, end) = tracker.begin();
        let (early, early_end) = tracker.begin();
        assert_eq!(settled(&tracker), Some(Ok(())));
        drop(dropped);
        assert_eq!(settled(&tracker), None);
        early_end.over(Err(PoolError::TimedOut));
        end.over(Ok(()));
        assert_eq!(settled(&tracker), Some(Ok(())));
        drop(early);
        assert_eq!(settled(&tracker), Some(Err(PoolError::TimedOut)));
        assert_eq!(settled(&tracker), Some(Ok(())), "told once");
        kept_end.over(Err(PoolError::NoSpace));
        kept.done();
        assert_eq!(settled(&tracker), Some(Ok(())));
        assert!(tracker.state().operations.is_empty());
    }
}
