//! One at a time, without a thread that waits.

use std::future::poll_fn;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::task::{Poll, Waker};

#[derive(Default)]
struct Inside {
    taken: bool,
    waiting: Vec<Waker>,
}

/// What one future passes at a time.
#[derive(Default)]
pub(super) struct Gate(Mutex<Inside>);

impl Gate {
    fn inside(&self) -> MutexGuard<'_, Inside> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// In, when nobody else is.
    pub(super) async fn enter(&self) -> Entered<'_> {
        poll_fn(|cx| {
            let mut inside = self.inside();
            if !std::mem::replace(&mut inside.taken, true) {
                return Poll::Ready(());
            }
            inside.waiting.push(cx.waker().clone());
            Poll::Pending
        })
        .await;
        Entered(self)
    }
}

/// In, until dropped.
pub(super) struct Entered<'a>(&'a Gate);

impl Drop for Entered<'_> {
    fn drop(&mut self) {
        let waiting = {
            let mut inside = self.0.inside();
            inside.taken = false;
            std::mem::take(&mut inside.waiting)
        };
        waiting.into_iter().for_each(Waker::wake);
    }
}
