//! Watches threads that call user code, and leaves those behind that never come back.
//!
//! A thread that calls says what it is at ([`Progress`]). Who is seen in one call for longer than
//! may be ([`Patience`]) is taken for lost: what it had set down before is given to others, and the
//! thread itself, which nothing can end, goes to the end of the system's queue: it may use what
//! nobody else wants. Should it come back, it finds nothing left to touch.
//!
//! ```text
//!  nobody calls ── parked ◀───────────── no call since the look before
//!                    │ begins to call         │
//!                    ▼                        │
//!                 a pause ──▶ look at all ────┴──▶ one call for too long: relieve
//! ```
//!
//! While nobody calls, nothing wakes. Pauses between looks are counted, and not time: what keeps
//! all threads of a computer from running keeps this one, too. And of a pause only what the thread
//! did not spend waiting for a processor: on a crowded computer that may be most of it.

use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{JoinHandle, Thread};
use std::time::Duration;

use outboard_dds::dpu::offload::health::{Lost, Progress, Seen};

/// How long one call may last.
#[derive(Clone, Copy)]
pub(super) struct Patience {
    /// Between two looks.
    pause: Duration,
    /// Whoever has been in one call for so many pauses is lost.
    pauses: u32,
}

/// Of a call that a worker waits for, and all its connections: 80 ms, seen 20 ms later at most. It
/// takes some hundred nanoseconds.
pub(super) const CALL: Patience = Patience { pause: Duration::from_millis(10), pauses: 8 };
/// Of one that only a host's write or read waits for: two seconds. It may look at a megabyte.
pub(super) const HOOK: Patience = Patience { pause: Duration::from_millis(250), pauses: 8 };

/// Takes over from a thread that is lost; false if it had just come back.
type Relieve = Box<dyn FnMut(Lost) -> bool + Send>;

struct Post {
    id: u64,
    thread: u32,
    progress: Arc<Progress>,
    relieve: Relieve,
    seen: Seen,
    /// For how long that was seen, and what the thread had used when it was last.
    lasts: Duration,
    used: Option<Used>,
}

struct Shared {
    patience: Patience,
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
            let Some(call) = seen.call().filter(|_| seen == before) else {
                (post.lasts, post.used) = (Duration::ZERO, None);
                return true;
            };
            let used = Used::by(post.thread);
            let before = std::mem::replace(&mut post.used, used);
            post.lasts += Used::ran(before, used, self.patience.pause);
            post.lasts < self.patience.pause * self.patience.pauses
                || !post.leave_behind(Lost { call, thread: post.thread })
        });
        busy
    }

    fn run(&self) {
        while !self.is_stopped.load(Ordering::SeqCst) {
            if self.look() {
                std::thread::park_timeout(self.patience.pause);
                continue;
            }
            self.is_parked.store(true, Ordering::SeqCst);
            // Who began before it could see that is seen here.
            if !self.look() && !self.is_stopped.load(Ordering::SeqCst) {
                std::thread::park();
            }
            self.is_parked.store(false, Ordering::SeqCst);
            // Whoever woke this is not to do so again at its next call.
            std::thread::park_timeout(self.patience.pause);
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
             the host answers; what processor time nobody else wants, that thread uses until it \
             comes back, or this process ends"
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
    pub(super) fn new(patience: Patience) -> io::Result<Watchdog> {
        let shared = Arc::new(Shared {
            patience,
            posts: Mutex::default(),
            next: AtomicU64::new(0),
            is_parked: AtomicBool::new(false),
            is_stopped: AtomicBool::new(false),
        });
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
        let (lasts, used) = (Duration::ZERO, None);
        self.shared.posts().push(Post { id, thread, progress, relieve, seen, lasts, used });
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

/// What a thread has had of the processors so far.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Used {
    ran: Duration,
    /// Waited to run; known when it does.
    waited: Duration,
    /// It runs, or waits to.
    is_runnable: bool,
}

impl Used {
    /// Of a thread of this process, where the kernel says so.
    fn by(thread: u32) -> Option<Used> {
        let read = |file: &str| std::fs::read_to_string(format!("/proc/self/task/{thread}/{file}"));
        let times = read("schedstat").ok()?;
        let mut times = times.split_whitespace().map(|time| time.parse().map(Duration::from_nanos));
        let (ran, waited) = (times.next()?.ok()?, times.next()?.ok()?);
        // The state follows the name, which may hold anything.
        let stat = read("stat").ok()?;
        let is_runnable = stat.rsplit_once(") ")?.1.starts_with('R');
        Some(Used { ran, waited, is_runnable })
    }

    /// How much of a pause between two looks the thread did not wait for a processor. Where nothing
    /// is known, all of it.
    fn ran(before: Option<Used>, now: Option<Used>, pause: Duration) -> Duration {
        let (Some(before), Some(now)) = (before, now) else { return pause };
        if now.is_runnable && now.ran == before.ran {
            return Duration::ZERO;
        }
        pause.saturating_sub(now.waited.saturating_sub(before.waited))
    }
}

/// Processor time a thread of this process has used, where the kernel says so.
pub(super) fn processor_time(thread: u32) -> Option<Duration> {
    Used::by(thread).map(|used| used.ran)
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use outboard_dds::dpu::offload::health::Call;

    use super::*;

    #[test]
    fn waiting_for_a_processor_is_not_counted() {
        let pause = Duration::from_millis(10);
        let used = |ran: u64, waited: u64, is_runnable: bool| {
            let [ran, waited] = [ran, waited].map(Duration::from_millis);
            Some(Used { ran, waited, is_runnable })
        };
        let ran = |now| Used::ran(used(5, 5, true), now, pause).as_millis();
        assert_eq!(ran(used(15, 5, true)), 10, "it loops");
        assert_eq!(ran(used(5, 5, false)), 10, "it sleeps");
        assert_eq!(ran(used(8, 12, true)), 3, "others ran as well");
        assert_eq!(ran(used(5, 5, true)), 0, "only others ran");
        assert_eq!(ran(used(6, 105, true)), 0, "for long");
        assert_eq!(ran(None), 10, "nobody knows");
    }

    /// Whoever is lost is found, one that only works on is not; the watch sleeps when nobody calls,
    /// and is woken.
    #[test]
    fn who_does_not_come_back_is_left_behind() {
        let watch = Watchdog::new(CALL).unwrap();
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
