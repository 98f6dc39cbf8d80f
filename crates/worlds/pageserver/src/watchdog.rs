//! Watches threads that call user code, and leaves those behind that never come back.
//!
//! A thread that calls says what it is at ([`Progress`]). Who is seen in one call at several looks
//! is taken for lost: what it had set down before is given to others, and the thread itself, which
//! nothing can end, goes to the end of the system's queue: it may use what nobody else wants.
//! Should it come back, it finds nothing left to touch.
//!
//! ```text
//!  nobody calls ── parked ◀───────────── no call since the look before
//!                    │ begins to call         │
//!                    ▼                        │
//!                 a pause ──▶ look at all ────┴──▶ one call at LOOKS looks: relieve
//! ```
//!
//! While nobody calls, nothing wakes. Looks are counted, and not time: what keeps all threads of a
//! computer from running keeps this one, too.

use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{JoinHandle, Thread};
use std::time::Duration;

use outboard_dds::dpu::offload::health::{Lost, Progress, Seen};

/// Between two looks.
const PAUSE: Duration = Duration::from_millis(250);
/// Whoever is in one call at so many looks, one after the other, is lost: two seconds. A call that
/// is only slow loses its request long before.
const LOOKS: u32 = 8;

/// Takes over from a thread that is lost; false if it had just come back.
type Relieve = Box<dyn FnMut(Lost) -> bool + Send>;

struct Post {
    id: u64,
    thread: u32,
    progress: Arc<Progress>,
    relieve: Relieve,
    seen: Seen,
    /// How often that was seen before.
    times: u32,
}

#[derive(Default)]
struct Shared {
    posts: Mutex<Vec<Post>>,
    next: AtomicU64,
    is_parked: AtomicBool,
    is_stopped: AtomicBool,
}

impl Shared {
    fn posts(&self) -> MutexGuard<'_, Vec<Post>> {
        self.posts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Looks at all once; whether anybody called since the look before.
    fn look(&self) -> bool {
        let mut busy = false;
        self.posts().retain_mut(|post| {
            let seen = post.progress.look();
            let before = std::mem::replace(&mut post.seen, seen);
            busy |= seen.call().is_some() || seen != before;
            post.times = if seen == before { post.times + 1 } else { 0 };
            let Some(call) = seen.call().filter(|_| post.times >= LOOKS) else { return true };
            !post.leave_behind(Lost { call, thread: post.thread })
        });
        busy
    }

    fn run(&self) {
        while !self.is_stopped.load(Ordering::SeqCst) {
            if self.look() {
                std::thread::park_timeout(PAUSE);
                continue;
            }
            self.is_parked.store(true, Ordering::SeqCst);
            // Who began before it could see that is seen here.
            if !self.look() && !self.is_stopped.load(Ordering::SeqCst) {
                std::thread::park();
            }
            self.is_parked.store(false, Ordering::SeqCst);
            // Whoever woke this is not to do so again at its next call.
            std::thread::park_timeout(PAUSE);
        }
    }
}

impl Post {
    /// Whether it was.
    fn leave_behind(&mut self, lost: Lost) -> bool {
        if !(self.relieve)(lost) {
            return false;
        }
        let call = lost.call.name();
        tracing::error!(
            call,
            thread = lost.thread,
            "the application does not return: its thread is left behind, offloading is off, and \
             the host answers; what processor time nobody else wants, that thread uses until this \
             process ends"
        );
        // What is not allowed leaves it as quick as others.
        let _left_as_it_is = i32::try_from(lost.thread)
            .ok()
            .and_then(rustix::process::Pid::from_raw)
            .map(|thread| rustix::process::setpriority_process(Some(thread), 19));
        true
    }
}

/// Who watches. Stopped when dropped; [`WatchdogHandle`]s may live on.
pub(super) struct Watchdog {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
    wakes: Thread,
}

impl Watchdog {
    pub(super) fn new() -> io::Result<Watchdog> {
        let shared = Arc::new(Shared::default());
        let watching = Arc::clone(&shared);
        let name = "dds-watchdog".to_owned();
        let thread = std::thread::Builder::new().name(name).spawn(move || watching.run())?;
        let wakes = thread.thread().clone();
        Ok(Watchdog { shared, thread: Some(thread), wakes })
    }

    /// For threads that are to be watched.
    pub(super) fn handle(&self) -> WatchdogHandle {
        WatchdogHandle { shared: Arc::clone(&self.shared), wakes: self.wakes.clone() }
    }
}

impl Drop for Watchdog {
    fn drop(&mut self) {
        self.shared.is_stopped.store(true, Ordering::SeqCst);
        self.wakes.unpark();
        if let Some(thread) = self.thread.take() {
            // A panic was printed by the thread itself.
            let _ended = thread.join();
        }
        self.shared.posts().clear();
    }
}

/// The way to a [`Watchdog`].
#[derive(Clone)]
pub(super) struct WatchdogHandle {
    shared: Arc<Shared>,
    wakes: Thread,
}

impl WatchdogHandle {
    /// Watches the calling thread until what is returned goes; `relieve` is called by the watching
    /// one.
    pub(super) fn watch_me(
        &self,
        progress: &Arc<Progress>,
        relieve: impl FnMut(Lost) -> bool + Send + 'static,
    ) -> WatchedThread {
        let id = self.shared.next.fetch_add(1, Ordering::Relaxed);
        let thread = rustix::thread::gettid().as_raw_nonzero().get().unsigned_abs();
        let (progress, seen) = (Arc::clone(progress), progress.look());
        let relieve = Box::new(relieve);
        self.shared.posts().push(Post { id, thread, progress, relieve, seen, times: 0 });
        WatchedThread { watchdog: self.clone(), id, thread }
    }
}

/// A thread that is watched.
pub(super) struct WatchedThread {
    watchdog: WatchdogHandle,
    id: u64,
    /// Its number.
    pub(super) thread: u32,
}

impl WatchedThread {
    /// To be called when the first of several calls has begun ([`Progress::begin_first`]).
    pub(super) fn attend(&self) {
        if self.watchdog.shared.is_parked.load(Ordering::SeqCst) {
            self.watchdog.wakes.unpark();
        }
    }
}

impl Drop for WatchedThread {
    fn drop(&mut self) {
        self.watchdog.shared.posts().retain(|post| post.id != self.id);
    }
}

/// Processor time a thread of this process has used, where the kernel says so.
pub(super) fn processor_time(thread: u32) -> Option<Duration> {
    let stat = std::fs::read_to_string(format!("/proc/self/task/{thread}/schedstat")).ok()?;
    let nanoseconds = stat.split_whitespace().next()?.parse().ok()?;
    Some(Duration::from_nanos(nanoseconds))
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use outboard_dds::dpu::offload::health::Call;

    use super::*;

    /// Whoever is lost is found, one that only works on is not; the watch sleeps when nobody calls,
    /// and is woken.
    #[test]
    fn who_does_not_come_back_is_left_behind() {
        let watch = Watchdog::new().unwrap();
        let progress = Arc::new(Progress::default());
        let (found, wait) = mpsc::channel();
        let (end, ended) = mpsc::channel::<()>();
        let (begin, begun) = mpsc::channel();
        let (watchdog, at) = (watch.handle(), Arc::clone(&progress));
        let lost = std::thread::spawn(move || {
            let relieve = move |lost| found.send(lost).is_ok();
            let watched = watchdog.watch_me(&at, relieve);
            while !watchdog.shared.is_parked.load(Ordering::SeqCst) {
                std::thread::yield_now();
            }
            at.begin_first();
            watched.attend();
            at.begin(Call::OffFunc);
            begin.send(()).unwrap();
            let _never = ended.recv();
        });
        // Until then nobody keeps the watch awake.
        begun.recv().unwrap();
        let busy = Arc::new(Progress::default());
        let watched = watch.handle().watch_me(&busy, |_| panic!("it goes on"));
        let lost_thread = loop {
            busy.begin_first();
            watched.attend();
            busy.end();
            match wait.recv_timeout(Duration::from_millis(20)) {
                Ok(lost) => break lost,
                Err(error) => assert_eq!(error, mpsc::RecvTimeoutError::Timeout),
            }
        };
        assert_eq!(lost_thread.call, Call::OffFunc);
        assert!(processor_time(lost_thread.thread).is_some());
        drop(end);
        lost.join().unwrap();
    }
}
