//! The medium's own threads, where there is no io_uring.

use std::collections::VecDeque;
use std::fs::File;
use std::future::poll_fn;
use std::io;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::task::{Poll, Waker};
use std::thread::JoinHandle;

use outboard_base::Errno;
use outboard_medium::Buf;
use tracing::error;

use super::act_here;
use super::orphans::Orphans;
use super::ring::Action;

type Outcome = (Result<usize, Errno>, Option<Buf>);

/// One job's way back.
#[derive(Default)]
struct Ticket {
    state: Mutex<TicketState>,
}

#[derive(Default)]
struct TicketState {
    outcome: Option<Outcome>,
    waker: Option<Waker>,
    /// Nobody waits any more.
    dropped: bool,
}

impl Ticket {
    fn lock(&self) -> MutexGuard<'_, TicketState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

struct Job {
    file: Arc<File>,
    action: Action,
    buf: Option<Buf>,
    ticket: Arc<Ticket>,
    orphans: Option<Arc<Orphans>>,
}

#[derive(Default)]
struct Queue {
    jobs: VecDeque<Job>,
    stopping: bool,
}

#[derive(Default)]
struct Shared {
    queue: Mutex<Queue>,
    more: Condvar,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The threads' owner.
pub(super) struct Threads {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
}

/// A job somebody waits for.
struct Waiting {
    ticket: Arc<Ticket>,
    orphans: Option<Arc<Orphans>>,
}

impl Drop for Waiting {
    fn drop(&mut self) {
        let mut state = self.ticket.lock();
        if state.outcome.is_none() && !std::mem::replace(&mut state.dropped, true) {
            // Counted under the ticket's lock, so that the worker takes it off only afterwards.
            if let Some(orphans) = &self.orphans {
                orphans.add();
            }
        }
    }
}

impl Threads {
    pub(super) fn start(count: usize) -> io::Result<Threads> {
        let mut threads = Threads { shared: Arc::new(Shared::default()), threads: Vec::new() };
        for _ in 0..count {
            let shared = Arc::clone(&threads.shared);
            let builder = std::thread::Builder::new().name("outboard-io".into());
            threads.threads.push(builder.spawn(move || work(&shared))?);
        }
        Ok(threads)
    }

    pub(super) async fn act(
        &self,
        file: Arc<File>,
        action: Action,
        buf: Option<Buf>,
        orphans: Option<Arc<Orphans>>,
    ) -> Outcome {
        let ticket = Arc::new(Ticket::default());
        let waiting = Waiting { ticket: Arc::clone(&ticket), orphans: orphans.clone() };
        self.shared.lock().jobs.push_back(Job { file, action, buf, ticket, orphans });
        self.shared.more.notify_one();
        poll_fn(|cx| {
            let mut state = waiting.ticket.lock();
            match state.outcome.take() {
                Some(outcome) => {
                    // Taken: dropping this now orphans nothing.
                    state.dropped = true;
                    Poll::Ready(outcome)
                }
                None => {
                    state.waker = Some(cx.waker().clone());
                    Poll::Pending
                }
            }
        })
        .await
    }
}

impl Drop for Threads {
    fn drop(&mut self) {
        self.shared.lock().stopping = true;
        self.shared.more.notify_all();
        for thread in self.threads.drain(..) {
            if thread.join().is_err() {
                error!("a storage thread panicked");
            }
        }
    }
}

/// Works until told to stop, and then until nothing is left: what was begun is finished.
fn work(shared: &Shared) {
    loop {
        let job = {
            let mut queue = shared.lock();
            loop {
                if let Some(job) = queue.jobs.pop_front() {
                    break job;
                }
                if queue.stopping {
                    return;
                }
                queue = shared.more.wait(queue).unwrap_or_else(PoisonError::into_inner);
            }
        };
        let outcome = act_here(&job.file, job.action, job.buf);
        let mut state = job.ticket.lock();
        if state.dropped {
            if let Some(orphans) = &job.orphans {
                orphans.remove();
            }
            continue;
        }
        state.outcome = Some(outcome);
        if let Some(waker) = state.waker.take() {
            waker.wake();
        }
    }
}
