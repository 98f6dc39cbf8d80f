//! Taking turns, without a runtime.

use std::future::poll_fn;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::task::{Poll, Waker};

#[derive(Debug, Default)]
struct State {
    taken: bool,
    waiting: Vec<Waker>,
}

impl State {
    fn wait(&mut self, waker: &Waker) {
        if !self.waiting.iter().any(|other| other.will_wake(waker)) {
            self.waiting.push(waker.clone());
        }
    }
}

/// Something one does at a time.
#[derive(Debug, Default)]
pub(crate) struct Turn(Mutex<State>);

/// It is one's turn until this is dropped.
#[derive(Debug)]
pub(crate) struct Taken<'a>(&'a Turn);

impl Drop for Taken<'_> {
    fn drop(&mut self) {
        let waiting = {
            let mut state = self.0.lock();
            state.taken = false;
            std::mem::take(&mut state.waiting)
        };
        waiting.into_iter().for_each(Waker::wake);
    }
}

impl Turn {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for one's turn, unless `done` says, at any end of another's, what came of it.
    pub(crate) async fn take<T>(&self, done: impl Fn() -> Option<T>) -> Result<Taken<'_>, T> {
        poll_fn(|cx| {
            let mut state = self.lock();
            if let Some(out) = done() {
                return Poll::Ready(Err(out));
            }
            if state.taken {
                state.wait(cx.waker());
                return Poll::Pending;
            }
            state.taken = true;
            Poll::Ready(Ok(Taken(self)))
        })
        .await
    }

    /// Waits until `ready` says so: it is asked at every [`Turn::ring`] and end of a turn.
    pub(crate) async fn wait(&self, ready: impl Fn() -> bool) {
        poll_fn(|cx| {
            let mut state = self.lock();
            if ready() {
                return Poll::Ready(());
            }
            state.wait(cx.waker());
            Poll::Pending
        })
        .await;
    }

    /// Asks those who wait once more.
    pub(crate) fn ring(&self) {
        let waiting = std::mem::take(&mut self.lock().waiting);
        waiting.into_iter().for_each(Waker::wake);
    }
}
