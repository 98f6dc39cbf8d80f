//! Polling a future by hand, where nobody has to be woken.
//!
//! Simulations and tests poll when they choose, and the engines in memory count polls: there a
//! waker has nothing to say. Who waits for another thread needs a waker that ends its sleep, which
//! is a world's (`os::executor::block_on`).

use std::future::{Future, poll_fn};
use std::mem;
use std::pin::{Pin, pin};
use std::task::{Context, Poll, Waker};

/// A future that [`run`] has polled so often hangs.
const POLLS_MAX: u64 = 10_000_000;

/// Lets whoever polls this do something else first, once.
pub async fn yield_now() {
    let mut yielded = false;
    poll_fn(|context| {
        if mem::replace(&mut yielded, true) {
            return Poll::Ready(());
        }
        context.waker().wake_by_ref();
        Poll::Pending
    })
    .await;
}

/// Polls once, with a waker that wakes nobody.
pub fn poll_once<F: Future + ?Sized>(future: Pin<&mut F>) -> Poll<F::Output> {
    future.poll(&mut Context::from_waker(Waker::noop()))
}

/// Polls to the end, or gives the future up after `polls`.
pub fn poll_for<F: Future>(polls: u64, future: F) -> Option<F::Output> {
    let mut future = pin!(future);
    (0..polls).find_map(|_| match poll_once(future.as_mut()) {
        Poll::Ready(output) => Some(output),
        Poll::Pending => None,
    })
}

/// Polls to the end what waits for nobody but itself.
///
/// # Panics
/// If it does not end: it waits for somebody.
pub fn run<F: Future>(future: F) -> F::Output {
    match poll_for(POLLS_MAX, future) {
        Some(output) => output,
        #[expect(clippy::panic, reason = "a hang that says so")]
        None => panic!("it waits for somebody"),
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;

    use super::*;

    /// Is ready at the poll of this number.
    fn at(number: u64) -> impl Future<Output = u64> {
        let mut polls = 0;
        poll_fn(move |_| {
            polls += 1;
            if polls == number { Poll::Ready(polls) } else { Poll::Pending }
        })
    }

    #[test]
    fn a_future_is_polled_as_often_as_was_said() {
        let mut third = pin!(at(3));
        assert!(poll_once(third.as_mut()).is_pending() && poll_once(third.as_mut()).is_pending());
        assert_eq!(poll_once(third.as_mut()), Poll::Ready(3));
        assert_eq!((poll_for(3, at(3)), poll_for(2, at(3))), (Some(3), None));
        assert_eq!(run(at(1000)), 1000);
    }
}
