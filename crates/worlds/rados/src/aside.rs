//! Calls of librados that block, made on a thread of their own.

use std::future::poll_fn;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Poll, Waker};

use outboard_base::Errno;
use outboard_pool::PoolError;

struct Shared<T> {
    result: Option<T>,
    waker: Option<Waker>,
}

/// Runs `job` on a thread. Such calls are rare (a takeover, space now and then, a check), so each
/// has a thread of its own. If the future is dropped the job still goes to its end.
pub(crate) async fn aside<T: Send + 'static>(
    job: impl FnOnce() -> Result<T, PoolError> + Send + 'static,
) -> Result<T, PoolError> {
    let shared = Arc::new(Mutex::new(Shared { result: None, waker: None }));
    let theirs = Arc::clone(&shared);
    let run = move || {
        let result = job();
        let waker = {
            let mut shared = theirs.lock().unwrap_or_else(PoisonError::into_inner);
            shared.result = Some(result);
            shared.waker.take()
        };
        if let Some(waker) = waker {
            waker.wake();
        }
    };
    let thread = std::thread::Builder::new().name("outboard-rados".into());
    thread.spawn(run).map_err(|error| PoolError::Io(Errno::from(&error)))?;
    poll_fn(|context| {
        let mut shared = shared.lock().unwrap_or_else(PoisonError::into_inner);
        match shared.result.take() {
            Some(result) => Poll::Ready(result),
            None => {
                shared.waker = Some(context.waker().clone());
                Poll::Pending
            }
        }
    })
    .await
}
