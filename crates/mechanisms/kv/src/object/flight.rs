//! One piece of work at a time, shared by all who ask for it: the group commit of `sync`.

use std::future::{Future, poll_fn};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::task::{Poll, Waker};

use crate::KvError;

struct State {
    /// How often the work was begun and ended. Outcomes are kept for the last end only: a failure
    /// of a sync is final, so a later outcome speaks for an earlier one.
    begun: u64,
    ended: u64,
    running: bool,
    outcome: Result<(), KvError>,
    waiting: Vec<Waker>,
}

/// Runs work such that everyone who asks is served by a run begun after they asked.
pub(super) struct Flight {
    state: Mutex<State>,
}

/// Ends a run however it ends.
struct Running<'a> {
    flight: &'a Flight,
    outcome: Option<Result<(), KvError>>,
}

impl Drop for Running<'_> {
    fn drop(&mut self) {
        let mut state = self.flight.lock();
        state.running = false;
        if let Some(outcome) = self.outcome {
            state.ended = state.begun;
            state.outcome = outcome;
        }
        for waker in state.waiting.drain(..) {
            waker.wake();
        }
    }
}

impl Flight {
    pub(super) fn new() -> Flight {
        Flight {
            state: Mutex::new(State {
                begun: 0,
                ended: 0,
                running: false,
                outcome: Ok(()),
                waiting: Vec::new(),
            }),
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the outcome of a run begun after this call, running `work` if nobody else does.
    pub(super) async fn join<F: Future<Output = Result<(), KvError>>>(
        &self,
        work: impl Fn() -> F,
    ) -> Result<(), KvError> {
        let wanted = {
            let state = self.lock();
            state.begun + 1
        };
        loop {
            let leads = poll_fn(|cx| {
                let mut state = self.lock();
                if state.ended >= wanted {
                    return Poll::Ready(Err(state.outcome));
                }
                if state.running {
                    state.waiting.push(cx.waker().clone());
                    return Poll::Pending;
                }
                state.running = true;
                state.begun += 1;
                Poll::Ready(Ok(()))
            })
            .await;
            if let Err(outcome) = leads {
                return outcome;
            }
            // If this future is dropped here, the guard lets another waiter lead.
            let mut running = Running { flight: self, outcome: None };
            let outcome = work().await;
            running.outcome = Some(outcome);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;
    use std::pin::pin;
    use std::task::Context;

    #[test]
    fn those_who_ask_during_a_run_share_the_next() {
        let flight = Flight::new();
        let (runs, open) = (Cell::new(0), Cell::new(false));
        let work = || {
            runs.set(runs.get() + 1);
            poll_fn(|_| if open.get() { Poll::Ready(Ok(())) } else { Poll::Pending })
        };
        let mut cx = Context::from_waker(Waker::noop());
        let mut first = pin!(flight.join(work));
        assert!(first.as_mut().poll(&mut cx).is_pending());
        let mut second = pin!(flight.join(work));
        let mut third = pin!(flight.join(work));
        assert!(second.as_mut().poll(&mut cx).is_pending());
        assert!(third.as_mut().poll(&mut cx).is_pending());
        open.set(true);
        assert!(first.as_mut().poll(&mut cx).is_ready());
        assert_eq!(runs.get(), 1);
        assert!(second.as_mut().poll(&mut cx).is_ready());
        assert!(third.as_mut().poll(&mut cx).is_ready());
        assert_eq!(runs.get(), 2);
    }

    #[test]
    fn a_dropped_leader_is_replaced() {
        let flight = Flight::new();
        let open = Cell::new(false);
        let work = || poll_fn(|_| if open.get() { Poll::Ready(Ok(())) } else { Poll::Pending });
        let mut cx = Context::from_waker(Waker::noop());
        let mut second = {
            let mut first = Box::pin(flight.join(work));
            assert!(first.as_mut().poll(&mut cx).is_pending());
            let mut second = Box::pin(flight.join(work));
            assert!(second.as_mut().poll(&mut cx).is_pending());
            second
        };
        open.set(true);
        assert!(second.as_mut().poll(&mut cx).is_ready());
    }
}
