//! A small executor for one thread: futures in reused places, polled when woken.
//!
//! A DPU's poller thread starts a future for each request and most end at their first poll. So a
//! future is polled as it is started, in a place that is kept from request to request: that path
//! allocates nothing and touches no lock. Wakers may be used from any thread (the sync thread has
//! some); they queue the task, and ring if the owner sleeps.
//!
//! ```text
//! loop {
//!     executor.start(future for each new request);
//!     reactor.poll();                     // storage completions wake tasks
//!     executor.poll(|task, output| ...);
//!     if nothing happened for a while && executor.begin_sleep() {
//!         reactor.sleep(wakeup, timeout);
//!         executor.end_sleep();
//!     }
//! }
//! ```

use std::future::Future;
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Wake, Waker};
use std::time::{Duration, Instant};

use crate::alone;
use crate::medium::Reactor;

/// What wakers and the owner share.
struct Shared {
    woken: Mutex<Vec<usize>>,
    sleeping: AtomicBool,
    ring: Box<dyn Fn() + Send + Sync>,
}

impl Shared {
    fn woken(&self) -> MutexGuard<'_, Vec<usize>> {
        self.woken.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The waker of one place; outlives the tasks that come and go there, which costs a needless poll.
struct TaskWake {
    place: usize,
    queued: AtomicBool,
    shared: Arc<Shared>,
}

impl Wake for TaskWake {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        if !self.queued.swap(true, Ordering::AcqRel) {
            self.shared.woken().push(self.place);
        }
        // The owner says it sleeps before it looks at the queue a last time, under the same lock.
        if self.shared.sleeping.load(Ordering::SeqCst) {
            (self.shared.ring)();
        }
    }
}

struct Place<F> {
    future: Pin<Box<Option<F>>>,
    generation: u64,
    wake: Arc<TaskWake>,
    waker: Waker,
}

/// Names a running future.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct TaskId {
    place: usize,
    generation: u64,
}

/// What became of a future just started.
#[derive(Debug, PartialEq, Eq)]
pub enum Started<T> {
    /// It ended at once.
    Done(T),
    /// It goes on; [`Executor::poll`] will tell its end.
    Running(TaskId),
}

/// The executor of one thread.
pub struct Executor<F: Future> {
    places: Vec<Place<F>>,
    free: Vec<usize>,
    /// Scratch for the places woken.
    batch: Vec<usize>,
    shared: Arc<Shared>,
    capacity: usize,
}

impl<F: Future> Executor<F> {
    /// At most `capacity` futures at once; `ring` wakes the owner's sleep, from any thread.
    pub fn new(capacity: usize, ring: impl Fn() + Send + Sync + 'static) -> Executor<F> {
        let shared = Arc::new(Shared {
            woken: Mutex::new(Vec::with_capacity(capacity)),
            sleeping: AtomicBool::new(false),
            ring: Box::new(ring),
        });
        Executor { places: Vec::new(), free: Vec::new(), batch: Vec::new(), shared, capacity }
    }

    /// How many futures run.
    #[must_use]
    pub fn running(&self) -> usize {
        self.places.len() - self.free.len()
    }

    /// Whether another can be started.
    #[must_use]
    pub fn has_room(&self) -> bool {
        self.running() < self.capacity
    }

    /// Starts a future and polls it once. Gives it back if there is no room.
    pub fn start(&mut self, future: F) -> Result<Started<F::Output>, F> {
        if !self.has_room() {
            return Err(future);
        }
        let at = self.free.pop().unwrap_or_else(|| self.add_place());
        let Some(place) = self.places.get_mut(at) else { return Err(future) };
        place.future.set(Some(future));
        place.generation += 1;
        let id = TaskId { place: at, generation: place.generation };
        alone::present(self.running());
        Ok(match self.poll_place(at) {
            Some((_, output)) => Started::Done(output),
            None => Started::Running(id),
        })
    }

    fn add_place(&mut self) -> usize {
        let place = self.places.len();
        let queued = AtomicBool::new(false);
        let wake = Arc::new(TaskWake { place, queued, shared: Arc::clone(&self.shared) });
        let waker = Waker::from(Arc::clone(&wake));
        self.places.push(Place { future: Box::pin(None), generation: 0, wake, waker });
        place
    }

    fn poll_place(&mut self, at: usize) -> Option<(TaskId, F::Output)> {
        let place = self.places.get_mut(at)?;
        let future = place.future.as_mut().as_pin_mut()?;
        let Poll::Ready(output) = future.poll(&mut Context::from_waker(&place.waker)) else {
            return None;
        };
        let id = TaskId { place: at, generation: place.generation };
        self.vacate(at);
        Some((id, output))
    }

    fn vacate(&mut self, at: usize) {
        if let Some(place) = self.places.get_mut(at) {
            place.future.set(None);
            self.free.push(at);
            alone::present(self.running());
        }
    }

    /// Polls what was woken and calls `done` for each future that ended. Returns how many it
    /// polled.
    pub fn poll(&mut self, mut done: impl FnMut(TaskId, F::Output)) -> usize {
        let mut batch = std::mem::take(&mut self.batch);
        std::mem::swap(&mut *self.shared.woken(), &mut batch);
        let polled = batch.len();
        for at in batch.drain(..) {
            if let Some(place) = self.places.get(at) {
                // Before the poll: a wake during it must count.
                place.wake.queued.store(false, Ordering::Release);
            }
            if let Some((id, output)) = self.poll_place(at) {
                done(id, output);
            }
        }
        self.batch = batch;
        polled
    }

    /// Drops a running future; whether it was still running.
    pub fn cancel(&mut self, id: TaskId) -> bool {
        let running = self.places.get(id.place).is_some_and(|place| {
            place.generation == id.generation && place.future.as_ref().get_ref().is_some()
        });
        if running {
            self.vacate(id.place);
        }
        running
    }

    /// Announces that the owner is about to sleep: from now on wakers ring. False, and no sleep, if
    /// a task was woken meanwhile.
    #[must_use]
    pub fn begin_sleep(&self) -> bool {
        self.shared.sleeping.store(true, Ordering::SeqCst);
        let quiet = self.shared.woken().is_empty();
        if !quiet {
            self.end_sleep();
        }
        quiet
    }

    /// The owner is awake again.
    pub fn end_sleep(&self) {
        self.shared.sleeping.store(false, Ordering::SeqCst);
    }
}

/// While there is one, this thread serves one piece of work.
struct Alone(usize);

impl Alone {
    fn new() -> Alone {
        Alone(alone::present(1))
    }
}

impl Drop for Alone {
    fn drop(&mut self) {
        alone::present(self.0);
    }
}

/// Runs one future to its end on this thread, sleeping while it waits: for tools and tests. Polls
/// the thread's [`Reactor`] if it has one.
pub fn block_on<T>(future: impl Future<Output = T>) -> T {
    struct Unpark(std::thread::Thread);
    impl Wake for Unpark {
        fn wake(self: Arc<Self>) {
            self.0.unpark();
        }
    }
    /// A device answers within this, most times; then looking is cheaper than sleeping.
    const SPIN: Duration = Duration::from_micros(150);
    /// Between two looks at completions after that: something else may wake us too.
    const NAP: Duration = Duration::from_micros(50);
    let waker = Waker::from(Arc::new(Unpark(std::thread::current())));
    let mut cx = Context::from_waker(&waker);
    let mut future = pin!(future);
    let _alone = Alone::new();
    loop {
        if let Poll::Ready(output) = future.as_mut().poll(&mut cx) {
            return output;
        }
        let since = Instant::now();
        loop {
            match Reactor::poll_installed() {
                Some(0) if since.elapsed() < SPIN => {
                    std::hint::spin_loop();
                    continue;
                }
                Some(0) => std::thread::park_timeout(NAP),
                Some(_) => {}
                None => std::thread::park(),
            }
            break;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::future::poll_fn;
    use std::sync::atomic::AtomicUsize;
    use std::sync::mpsc;

    type Boxed = Pin<Box<dyn Future<Output = u32>>>;

    fn quiet() -> Executor<Boxed> {
        Executor::new(4, || ())
    }

    #[test]
    fn what_is_ready_ends_at_once_and_its_place_is_reused() {
        let mut executor = quiet();
        for i in 0..100 {
            let started = executor.start(Box::pin(async move { i }));
            assert!(matches!(started, Ok(Started::Done(n)) if n == i));
        }
        assert_eq!((executor.running(), executor.places.len()), (0, 1));
        assert_eq!(executor.poll(|_, _| panic!("nothing runs")), 0);
    }

    /// A future that waits for a waker handed to somebody, once.
    fn waits(sender: mpsc::Sender<Waker>, output: u32) -> Boxed {
        let mut asked = false;
        Box::pin(poll_fn(move |cx| {
            if std::mem::replace(&mut asked, true) {
                return Poll::Ready(output);
            }
            sender.send(cx.waker().clone()).unwrap();
            Poll::Pending
        }))
    }

    #[test]
    fn the_full_gives_back_and_the_woken_end() {
        let mut executor = quiet();
        let (sender, wakers) = mpsc::channel();
        let ids: Vec<TaskId> = (0..4)
            .map(|i| match executor.start(waits(sender.clone(), i)) {
                Ok(Started::Running(id)) => id,
                _ => panic!("it waits"),
            })
            .collect();
        assert!(executor.start(waits(sender.clone(), 9)).is_err());
        assert!(executor.cancel(ids[2]) && !executor.cancel(ids[2]));
        for waker in wakers.try_iter() {
            waker.wake_by_ref();
            waker.wake();
        }
        let mut ended = Vec::new();
        assert_eq!(executor.poll(|id, output| ended.push((id, output))), 4);
        assert_eq!(ended, [(ids[0], 0), (ids[1], 1), (ids[3], 3)]);
        assert_eq!(executor.running(), 0);
        assert!(!executor.cancel(ids[0]), "its place has another's future, or none");
    }

    #[test]
    fn a_wake_from_another_thread_rings_a_sleeper() {
        let wakes = Arc::new(AtomicUsize::new(0));
        let counter = Arc::clone(&wakes);
        let owner = std::thread::current();
        let mut executor: Executor<Boxed> = Executor::new(4, move || {
            counter.fetch_add(1, Ordering::SeqCst);
            owner.unpark();
        });
        for round in 0..1000 {
            let (sender, wakers) = mpsc::channel();
            let started = executor.start(waits(sender, round));
            assert!(matches!(started, Ok(Started::Running(_))));
            let waker = wakers.recv().unwrap();
            let other = std::thread::spawn(move || waker.wake());
            let mut ended = None;
            while ended.is_none() {
                if executor.begin_sleep() {
                    while executor.shared.woken().is_empty() {
                        std::thread::park();
                    }
                    executor.end_sleep();
                }
                executor.poll(|_, output| ended = Some(output));
            }
            assert_eq!(ended, Some(round));
            other.join().unwrap();
        }
        assert!(wakes.load(Ordering::SeqCst) <= 1000);
    }
}
