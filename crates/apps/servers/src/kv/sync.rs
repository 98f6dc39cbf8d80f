//! Syncing files without waiting for it.

use std::future::poll_fn;
use std::io;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Poll, Waker};

use super::journal::Taken;

#[derive(Default)]
struct Outcome {
    result: Option<io::Result<()>>,
    waker: Option<Waker>,
}

/// Makes what was written to `files` survive power loss: on a thread of its own, as it takes
/// milliseconds in which clients want to be served.
pub(super) async fn synced(files: Vec<Taken>) -> io::Result<()> {
    let outcome = Arc::new(Mutex::new(Outcome::default()));
    let there = Arc::clone(&outcome);
    std::thread::Builder::new().name("kv-sync".to_owned()).spawn(move || {
        let result = files.iter().try_for_each(|file| file.sync_data());
        let mut outcome = there.lock().unwrap_or_else(PoisonError::into_inner);
        outcome.result = Some(result);
        if let Some(waker) = outcome.waker.take() {
            waker.wake();
        }
    })?;
    poll_fn(|cx| {
        let mut outcome = outcome.lock().unwrap_or_else(PoisonError::into_inner);
        outcome.waker = Some(cx.waker().clone());
        outcome.result.take().map_or(Poll::Pending, Poll::Ready)
    })
    .await
}
