//! Reads that come later than they could: what a store far away or on slow media would be like.
//!
//! For measuring (read-ahead hides just that time). One thread; as all wait equally long, they are
//! due in the order they came, however many there are.

use std::future::poll_fn;
use std::io;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Poll, Waker};
use std::time::{Duration, Instant};

/// One wait.
#[derive(Default)]
struct Wait(Mutex<(bool, Option<Waker>)>);

impl Wait {
    /// Whether it is over, and who is to be told.
    fn lock(&self) -> MutexGuard<'_, (bool, Option<Waker>)> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Makes who passes wait.
pub(super) struct Late {
    delay: Duration,
    waits: Sender<(Instant, Arc<Wait>)>,
}

impl Late {
    pub(super) fn start(delay: Duration) -> io::Result<Late> {
        let (waits, due) = channel();
        std::thread::Builder::new().name("outboard-late".into()).spawn(move || end_waits(&due))?;
        Ok(Late { delay, waits })
    }

    /// Returns after the delay.
    pub(super) async fn pass(&self) {
        let wait = Arc::new(Wait::default());
        if self.waits.send((Instant::now() + self.delay, Arc::clone(&wait))).is_err() {
            // The thread is gone, and nobody would end this wait.
            return;
        }
        poll_fn(|cx| {
            let mut state = wait.lock();
            if state.0 {
                return Poll::Ready(());
            }
            state.1 = Some(cx.waker().clone());
            Poll::Pending
        })
        .await;
    }
}

/// Until the medium is closed.
fn end_waits(due: &Receiver<(Instant, Arc<Wait>)>) {
    while let Ok((end, wait)) = due.recv() {
        std::thread::sleep(end.saturating_duration_since(Instant::now()));
        let mut state = wait.lock();
        state.0 = true;
        if let Some(waker) = state.1.take() {
            waker.wake();
        }
    }
}
