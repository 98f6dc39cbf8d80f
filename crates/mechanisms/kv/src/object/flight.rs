//! One piece of work at a time, shared by all who ask for it: the group commit of `sync`.

use std::future::Future;
use std::sync::{Mutex, MutexGuard, PoisonError};

use outboard_base::task;

use crate::KvError;

struct State {
    /// How often the work was begun, and the run that ended last.
    begun: u64,
    ended: u64,
    /// Kept for the last end only: a failure of a sync is final, so a later outcome speaks for an
    /// earlier one.
    outcome: Result<(), KvError>,
}

/// Runs work such that everyone who asks is served by a run begun after they asked.
pub(super) struct Flight {
    state: Mutex<State>,
    /// Held by the leader, who runs it.
    leading: task::Mutex,
}

impl Flight {
    pub(super) fn new() -> Flight {
        let state = Mutex::new(State { begun: 0, ended: 0, outcome: Ok(()) });
        Flight { state, leading: task::Mutex::default() }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the outcome of a run begun after this call, running `work` if nobody else does. A
    /// leader that is dropped on its way leaves the lead to another.
    pub(super) async fn join<F: Future<Output = Result<(), KvError>>>(
        &self,
        work: impl FnOnce() -> F,
    ) -> Result<(), KvError> {
        let wanted = self.state().begun + 1;
        let done = || {
            let state = self.state();
            (state.ended >= wanted).then_some(state.outcome)
        };
        let _leading = match self.leading.lock_unless(done).await {
            Err(outcome) => return outcome,
            Ok(guard) => guard,
        };
        let run = {
            let mut state = self.state();
            state.begun += 1;
            state.begun
        };
        let outcome = work().await;
        let mut state = self.state();
        (state.ended, state.outcome) = (run, outcome);
        outcome
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;
    use std::future::poll_fn;
    use std::pin::pin;
    use std::task::Poll;

    use outboard_base::task::poll_once;

    #[test]
    fn those_who_ask_during_a_run_share_the_next() {
        let flight = Flight::new();
        let (runs, open) = (Cell::new(0), Cell::new(false));
        let work = || {
            runs.set(runs.get() + 1);
            poll_fn(|_| if open.get() { Poll::Ready(Ok(())) } else { Poll::Pending })
        };
        let mut first = pin!(flight.join(work));
        assert!(poll_once(first.as_mut()).is_pending());
        let mut second = pin!(flight.join(work));
        let mut third = pin!(flight.join(work));
        assert!(poll_once(second.as_mut()).is_pending());
        assert!(poll_once(third.as_mut()).is_pending());
        open.set(true);
        assert!(poll_once(first.as_mut()).is_ready());
        assert_eq!(runs.get(), 1);
        assert!(poll_once(second.as_mut()).is_ready());
        assert!(poll_once(third.as_mut()).is_ready());
        assert_eq!(runs.get(), 2);
    }

    #[test]
    fn a_dropped_leader_is_replaced() {
        let flight = Flight::new();
        let open = Cell::new(false);
        let work = || poll_fn(|_| if open.get() { Poll::Ready(Ok(())) } else { Poll::Pending });
        let mut second = {
            let mut first = Box::pin(flight.join(work));
            assert!(poll_once(first.as_mut()).is_pending());
            let mut second = Box::pin(flight.join(work));
            assert!(poll_once(second.as_mut()).is_pending());
            second
        };
        open.set(true);
        assert!(poll_once(second.as_mut()).is_ready());
    }
}
