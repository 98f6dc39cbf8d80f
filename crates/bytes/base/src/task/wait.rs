//! Waiting until something is so.

use std::future::poll_fn;
use std::sync::{Mutex, PoisonError};
use std::task::{Poll, Waker};

/// Futures that wait for a change: an asynchronous condition variable.
#[derive(Debug, Default)]
pub struct WaitList {
    waiting: Mutex<Vec<Waker>>,
}

impl WaitList {
    /// Waits until `ready` gives something. It is asked at every poll, with the list locked, so a
    /// [`WaitList::notify`] that follows the change is never missed; it must not call the list.
    pub async fn until<T>(&self, mut ready: impl FnMut() -> Option<T>) -> T {
        poll_fn(|cx| {
            let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
            if let Some(out) = ready() {
                return Poll::Ready(out);
            }
            if !waiting.iter().any(|other| other.will_wake(cx.waker())) {
                waiting.push(cx.waker().clone());
            }
            Poll::Pending
        })
        .await
    }

    /// Lets all who wait look again.
    pub fn notify(&self) {
        let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        let woken = std::mem::take(&mut *waiting);
        drop(waiting); // Who is woken may come back at once.
        woken.into_iter().for_each(Waker::wake);
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::pin::pin;
    use std::sync::Arc;
    use std::task::{Context, Wake};

    use super::*;

    struct Nobody;

    impl Wake for Nobody {
        fn wake(self: Arc<Self>) {}
    }

    #[test]
    fn who_waits_looks_again_when_notified() {
        let (list, so) = (WaitList::default(), Cell::new(None));
        let mut waiting = pin!(list.until(|| so.get()));
        let waker = Waker::from(Arc::new(Nobody));
        let mut cx = Context::from_waker(&waker);
        assert!(waiting.as_mut().poll(&mut cx).is_pending());
        assert!(waiting.as_mut().poll(&mut cx).is_pending());
        assert_eq!(list.waiting.lock().unwrap().len(), 1, "one waker each");
        so.set(Some(7));
        list.notify();
        assert!(list.waiting.lock().unwrap().is_empty());
        assert_eq!(waiting.as_mut().poll(&mut cx), Poll::Ready(7));
    }
}
