//! Making the journal durable: a group commit beside the commits. One sync serves all who wait. Its
//! leader is a thread of ours, or who asks, where nobody else is there to be served meanwhile
//! ([`alone`]).

use std::future::poll_fn;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::task::{Poll, Waker};
use std::thread::JoinHandle;

use outboard_base::Errno;
use outboard_kv::KvError;
use tracing::error;

use super::current::Current;
use outboard_os::alone;

#[derive(Default)]
struct State {
    /// Syncs asked for and done, as tickets: a sync begun after ticket n was given serves it.
    asked: u64,
    done: u64,
    /// Batches committed, and those among them that are durable.
    committed: u64,
    durable: u64,
    rhythm: Rhythm,
    /// There is a leader, who syncs. One at a time: the kernel reports a failure to one of those
    /// who wait for it.
    is_led: bool,
    poisoned: bool,
    stopping: bool,
    waiting: Vec<(u64, Waker)>,
}

/// How many batches come between two syncs. Where it is the same number each time, the next sync is
/// foreseen: the journal's way to the device begins when the last batch before it was answered.
#[derive(Default)]
struct Rhythm {
    /// Batches committed when the last sync began.
    last: u64,
    beat: u64,
    steady: bool,
}

impl Rhythm {
    fn sync(&mut self, committed: u64) {
        let beat = committed - self.last;
        self.steady = beat > 0 && beat == self.beat;
        (self.last, self.beat) = (committed, beat);
    }

    fn foresees_a_sync(&self, committed: u64) -> bool {
        self.steady && committed - self.last == self.beat
    }
}

impl State {
    /// Nothing works from now on, and who waits hears it.
    fn poison(&mut self) {
        self.poisoned = true;
        self.waiting.drain(..).for_each(|(_, waker)| waker.wake());
    }
}

struct Shared {
    state: Mutex<State>,
    asked: Condvar,
    journal: Mutex<Current>,
    /// The last batch before a sync was committed, as it seems.
    foreseen: AtomicBool,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn journal(&self) -> MutexGuard<'_, Current> {
        self.journal.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Leads: syncs for all who have asked, `state` being locked and nobody leading; locks it
    /// again.
    fn lead<'a>(&'a self, mut state: MutexGuard<'a, State>) -> MutexGuard<'a, State> {
        let (serves, durable) = (state.asked, state.committed);
        state.rhythm.sync(durable);
        state.is_led = true;
        self.foreseen.store(false, Ordering::Relaxed);
        drop(state);
        let files = self.journal().files();
        let outcome = files.and_then(|files| files.sync());
        let mut state = self.lock();
        state.is_led = false;
        match outcome {
            Ok(()) => {
                state.done = state.done.max(serves);
                state.durable = state.durable.max(durable);
            }
            Err(cause) => {
                error!(%cause, "cannot sync the key-value journal: every later commit is refused");
                state.poison();
            }
        }
        let done = state.done;
        for (_, waker) in state.waiting.extract_if(.., |(ticket, _)| *ticket <= done) {
            waker.wake();
        }
        if state.asked != done {
            self.asked.notify_one();
        }
        state
    }
}

/// The thread's owner.
pub(super) struct Syncer {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

const DEAD: KvError = KvError::Io(Errno::EIO);

impl Syncer {
    /// Starts the thread for the journal being written.
    pub(super) fn start(journal: Current) -> io::Result<Syncer> {
        let shared = Arc::new(Shared {
            state: Mutex::default(),
            asked: Condvar::new(),
            journal: Mutex::new(journal),
            foreseen: AtomicBool::new(false),
        });
        let theirs = Arc::clone(&shared);
        let thread =
            std::thread::Builder::new().name("outboard-sync".into()).spawn(move || run(&theirs))?;
        Ok(Syncer { shared, thread: Some(thread) })
    }

    /// Refuses if a sync or a commit failed before.
    pub(super) fn healthy(&self) -> Result<(), KvError> {
        if self.shared.lock().poisoned { Err(DEAD) } else { Ok(()) }
    }

    /// From now on nothing works.
    pub(super) fn poison(&self) {
        self.shared.lock().poison();
    }

    /// A batch was flushed to the OS, so many bytes of journal; the lock of commits is held.
    pub(super) fn committed(&self, bytes: u64) {
        let mut state = self.shared.lock();
        state.committed += 1;
        if alone::is_alone() && state.rhythm.foresees_a_sync(state.committed) {
            self.shared.foreseen.store(true, Ordering::Relaxed);
        }
        drop(state);
        self.shared.journal().committed(bytes);
    }

    /// The journal's way to the device begins, if a sync is foreseen.
    pub(super) fn idle(&self) {
        if self.shared.foreseen.load(Ordering::Relaxed)
            && self.shared.foreseen.swap(false, Ordering::Relaxed)
            && let Err(cause) = self.shared.journal().begin_writing()
        {
            error!(%cause, "cannot write the key-value journal: every later commit is refused");
            self.poison();
        }
    }

    /// Whether everything flushed to the OS is durable.
    pub(super) fn is_synced(&self) -> bool {
        let state = self.shared.lock();
        !state.poisoned && state.durable == state.committed
    }

    /// The number of the journal the last sync synced.
    #[cfg(test)]
    pub(super) fn journal_number(&self) -> u64 {
        self.shared.journal().number()
    }

    /// Asks for a sync nobody waits for.
    pub(super) fn nudge(&self) {
        self.shared.lock().asked += 1;
        self.shared.asked.notify_one();
    }

    /// Ends when everything flushed to the OS before the call is durable.
    pub(super) async fn sync(&self) -> Result<(), KvError> {
        let ticket = {
            let mut state = self.shared.lock();
            state.asked += 1;
            let ticket = state.asked;
            if !state.poisoned && !state.is_led && alone::may_wait() {
                drop(alone::wait(|| self.shared.lead(state)));
            } else {
                drop(state);
                self.shared.asked.notify_one();
            }
            ticket
        };
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

fn run(shared: &Shared) {
    let mut state = shared.lock();
    while !state.stopping {
        if state.asked == state.done || state.is_led || state.poisoned {
            state = shared.asked.wait(state).unwrap_or_else(PoisonError::into_inner);
        } else {
            state = shared.lead(state);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::pin::pin;
    use std::sync::atomic::AtomicUsize;
    use std::task::{Context, Wake};

    use outboard_base::task::poll_once;

    use super::*;

    #[derive(Default)]
    struct Count(AtomicUsize);

    impl Wake for Count {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn shared(dir: &std::path::Path) -> Arc<Shared> {
        std::fs::write(dir.join("0.jnl"), [0; 4096]).unwrap();
        Arc::new(Shared {
            state: Mutex::default(),
            asked: Condvar::new(),
            journal: Mutex::new(Current::find(dir, None).unwrap()),
            foreseen: AtomicBool::new(false),
        })
    }

    /// A commit that failed poisoned the engine while somebody waited for the sync thread. The
    /// thread does nothing for a poisoned engine, and nobody woke who waited: an fsync hung.
    #[test]
    fn who_waits_for_a_sync_hears_of_the_poison() {
        let dir = tempfile::tempdir().unwrap();
        let syncer = Syncer { shared: shared(dir.path()), thread: None };
        let wakes = Arc::new(Count::default());
        let waker = Waker::from(Arc::clone(&wakes));
        let mut cx = Context::from_waker(&waker);
        let mut sync = pin!(syncer.sync());
        assert!(sync.as_mut().poll(&mut cx).is_pending(), "the thread is busy elsewhere");
        syncer.poison();
        assert_eq!(wakes.0.load(Ordering::Relaxed), 1, "it was woken");
        assert_eq!(sync.as_mut().poll(&mut cx), Poll::Ready(Err(DEAD)));
    }

    /// Who was alone synced beside the thread. The kernel reports a failed write to one of two who
    /// sync one descriptor: the other said that all was durable.
    #[test]
    fn one_at_a_time_syncs() {
        let dir = tempfile::tempdir().unwrap();
        let syncer = Syncer { shared: shared(dir.path()), thread: None };
        let before = alone::present(1);
        syncer.shared.lock().is_led = true;
        let mut second = pin!(syncer.sync());
        assert!(poll_once(second.as_mut()).is_pending(), "it syncs beside another");
        drop(syncer.shared.lead(syncer.shared.lock()));
        assert_eq!(poll_once(second.as_mut()), Poll::Ready(Ok(())));
        assert_eq!(poll_once(pin!(syncer.sync())), Poll::Ready(Ok(())), "alone again");
        alone::present(before);
    }

    #[test]
    fn a_steady_rhythm_foresees_the_sync() {
        let mut rhythm = Rhythm::default();
        let mut committed = 0;
        let mut round = |rhythm: &mut Rhythm, batches: u64| {
            let foreseen = (0..batches)
                .filter(|_| {
                    committed += 1;
                    rhythm.foresees_a_sync(committed)
                })
                .count();
            let last = rhythm.foresees_a_sync(committed);
            rhythm.sync(committed);
            (foreseen, last)
        };
        assert_eq!(round(&mut rhythm, 2), (0, false));
        assert_eq!(round(&mut rhythm, 2), (0, false));
        for _ in 0..3 {
            assert_eq!(round(&mut rhythm, 2), (1, true), "with the second, not the first");
        }
        assert_eq!(round(&mut rhythm, 5), (1, false), "wrong once");
        assert_eq!(round(&mut rhythm, 0), (0, false));
        assert_eq!(round(&mut rhythm, 0), (0, false), "nothing to foresee");
    }
}
