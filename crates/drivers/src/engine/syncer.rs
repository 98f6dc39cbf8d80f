//! The thread that makes the journal durable: one sync for all who wait, beside the commits.

use std::fs::File;
use std::future::poll_fn;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::task::{Poll, Waker};
use std::thread::JoinHandle;

use outboard_base::Errno;
use outboard_kv::KvError;
use tracing::error;

#[derive(Default)]
struct State {
    /// Syncs asked for and done, as tickets: a sync begun after ticket n was given serves it.
    asked: u64,
    done: u64,
    poisoned: bool,
    stopping: bool,
    waiting: Vec<(u64, Waker)>,
}

#[derive(Default)]
struct Shared {
    state: Mutex<State>,
    asked: Condvar,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The thread's owner.
pub(super) struct Syncer {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

const DEAD: KvError = KvError::Io(Errno::EIO);

impl Syncer {
    /// Starts the thread for the journals in `dir`.
    pub(super) fn start(dir: PathBuf) -> io::Result<Syncer> {
        let shared = Arc::new(Shared::default());
        let theirs = Arc::clone(&shared);
        let thread = std::thread::Builder::new()
            .name("outboard-sync".into())
            .spawn(move || run(&theirs, &dir))?;
        Ok(Syncer { shared, thread: Some(thread) })
    }

    /// Refuses if a sync or a commit failed before.
    pub(super) fn healthy(&self) -> Result<(), KvError> {
        if self.shared.lock().poisoned { Err(DEAD) } else { Ok(()) }
    }

    /// From now on nothing works.
    pub(super) fn poison(&self) {
        self.shared.lock().poisoned = true;
    }

    /// Asks for a sync nobody waits for.
    pub(super) fn nudge(&self) {
        self.shared.lock().asked += 1;
        self.shared.asked.notify_one();
    }

    /// Ends when everything handed to the operating system before the call is durable.
    pub(super) async fn sync(&self) -> Result<(), KvError> {
        let ticket = {
            let mut state = self.shared.lock();
            state.asked += 1;
            state.asked
        };
        self.shared.asked.notify_one();
        poll_fn(|cx| {
            let mut state = self.shared.lock();
            if state.poisoned {
                return Poll::Ready(Err(DEAD));
            }
            if state.done >= ticket {
                return Poll::Ready(Ok(()));
            }
            match state.waiting.iter_mut().find(|(t, _)| *t == ticket) {
                Some((_, waker)) => waker.clone_from(cx.waker()),
                None => state.waiting.push((ticket, cx.waker().clone())),
            }
            Poll::Pending
        })
        .await
    }
}

impl Drop for Syncer {
    fn drop(&mut self) {
        self.shared.lock().stopping = true;
        self.shared.asked.notify_one();
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            error!("the sync thread panicked");
        }
    }
}

fn run(shared: &Shared, dir: &Path) {
    let mut journal = None;
    let mut state = shared.lock();
    while !state.stopping {
        if state.asked == state.done || state.poisoned {
            state = shared.asked.wait(state).unwrap_or_else(PoisonError::into_inner);
            continue;
        }
        let serves = state.asked;
        drop(state);
        let outcome = sync_last(dir, &mut journal);
        state = shared.lock();
        match outcome {
            Ok(()) => state.done = serves,
            Err(cause) => {
                error!(%cause, "cannot sync the key-value journal: every later commit is refused");
                state.poisoned = true;
            }
        }
        let all = state.poisoned;
        for (_, waker) in state.waiting.extract_if(.., |(ticket, _)| all || *ticket <= serves) {
            waker.wake();
        }
    }
}

/// Syncs the journal being written. If the engine began another meanwhile, it has synced this one,
/// and what was asked for lies in this one.
fn sync_last(dir: &Path, open: &mut Option<(u64, File)>) -> io::Result<()> {
    if let Some((number, path)) = super::journals(dir)?.pop()
        && open.as_ref().is_none_or(|(known, _)| *known != number)
    {
        *open = Some((number, File::open(path)?));
    }
    match open {
        Some((_, file)) => file.sync_data(),
        None => Err(io::ErrorKind::NotFound.into()),
    }
}
