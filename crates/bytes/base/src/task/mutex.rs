//! One at a time, without a thread that waits.
//!
//! A guard may be held across awaits. First come, first served: a release passes the mutex to who
//! waits longest, so nobody starves and nobody wakes for nothing. Dropping a future that waits
//! gives its place up, and what was passed to it on. Nothing is allocated where nobody waits.
//!
//! Why not a crate: `async-lock` is fair by reading a clock, which nothing below the worlds may;
//! `futures-util` promises no order; `tokio`'s is fair, but is one file of a runtime. None lets who
//! waits leave because another has done its work ([`Mutex::lock_unless`]), which is what a group
//! commit needs. So the mutex guards no value: it is code that is done one at a time.

use std::collections::VecDeque;
use std::future::{Future, poll_fn};
use std::sync::{self, PoisonError};
use std::task::{Context, Poll, Waker};

/// An asynchronous mutex.
#[derive(Debug, Default)]
pub struct Mutex(sync::Mutex<State>);

#[derive(Debug, Default)]
struct State {
    /// By a guard, or by the first of those who wait, if it was passed to it.
    held: bool,
    /// The place it was passed to, until that finds out.
    passed_to: Option<u64>,
    waiting: VecDeque<Waiting>,
    next_place: u64,
}

#[derive(Debug)]
struct Waiting {
    place: u64,
    /// Until it is woken.
    waker: Option<Waker>,
    /// May leave when another releases the mutex.
    conditional: bool,
}

impl State {
    /// Passes it to who waits longest, and lets those look again who may be done; whom to wake.
    fn release(&mut self) -> Vec<Waker> {
        let first = self.waiting.pop_front();
        self.held = first.is_some();
        self.passed_to = first.as_ref().map(|first| first.place);
        let others = self.waiting.iter_mut().filter(|waiting| waiting.conditional);
        let others = others.filter_map(|waiting| waiting.waker.take());
        first.and_then(|first| first.waker).into_iter().chain(others).collect()
    }
}

/// The mutex is held until this is dropped.
#[derive(Debug)]
#[must_use = "the mutex is released when its guard is dropped"]
pub struct MutexGuard<'a>(&'a Mutex);

impl Drop for MutexGuard<'_> {
    fn drop(&mut self) {
        let woken = self.0.state().release();
        woken.into_iter().for_each(Waker::wake);
    }
}

impl Mutex {
    fn state(&self) -> sync::MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until nobody holds it who came before.
    pub fn lock(&self) -> impl Future<Output = MutexGuard<'_>> {
        let mut place = Place { mutex: self, number: None, conditional: false };
        poll_fn(move |cx| place.poll(cx))
    }

    /// Waits like [`Mutex::lock`], unless `done` says, at once or after any release, what became of
    /// that for which it is wanted: those who wait to do the same leave together when one has done
    /// it for all. `done` must not call the mutex.
    ///
    /// # Errors
    /// What `done` gave.
    pub async fn lock_unless<T>(&self, done: impl Fn() -> Option<T>) -> Result<MutexGuard<'_>, T> {
        let mut place = Place { mutex: self, number: None, conditional: true };
        poll_fn(|cx| {
            // Looked at once there is a place, so that no release comes between; and with the
            // mutex, since it may have been done just before.
            let guard = place.poll(cx);
            match done() {
                Some(out) => Poll::Ready(Err(out)),
                None => guard.map(Ok),
            }
        })
        .await
    }

    /// Lets those look again who wait in [`Mutex::lock_unless`].
    pub fn notify(&self) {
        let mut state = self.state();
        let all = state.waiting.iter_mut().filter(|waiting| waiting.conditional);
        let woken: Vec<Waker> = all.filter_map(|waiting| waiting.waker.take()).collect();
        drop(state); // Who is woken may come back at once.
        woken.into_iter().for_each(Waker::wake);
    }
}

/// A place in the queue, from the first poll to the guard.
struct Place<'a> {
    mutex: &'a Mutex,
    number: Option<u64>,
    conditional: bool,
}

impl<'a> Place<'a> {
    fn poll(&mut self, cx: &Context<'_>) -> Poll<MutexGuard<'a>> {
        let mut state = self.mutex.state();
        match self.number {
            None if !state.held => state.held = true,
            None => {
                let place = state.next_place;
                state.next_place += 1;
                let (waker, conditional) = (Some(cx.waker().clone()), self.conditional);
                state.waiting.push_back(Waiting { place, waker, conditional });
                self.number = Some(place);
                return Poll::Pending;
            }
            number if state.passed_to == number => {
                state.passed_to = None;
                self.number = None;
            }
            Some(number) => {
                let mut all = state.waiting.iter_mut();
                if let Some(mine) = all.find(|waiting| waiting.place == number) {
                    mine.waker = Some(cx.waker().clone());
                }
                return Poll::Pending;
            }
        }
        Poll::Ready(MutexGuard(self.mutex))
    }
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        if self.number.is_none() {
            return;
        }
        let mut state = self.mutex.state();
        let woken = if state.passed_to == self.number {
            state.release()
        } else {
            state.waiting.retain(|waiting| Some(waiting.place) != self.number);
            Vec::new()
        };
        drop(state);
        woken.into_iter().for_each(Waker::wake);
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::pin::{Pin, pin};
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::task::Wake;

    use super::super::poll_once;
    use super::*;
    use crate::Rng;

    #[derive(Default)]
    struct Wakes(AtomicUsize);

    impl Wake for Wakes {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    #[test]
    fn who_waits_longest_is_next_and_nobody_else_is_woken() {
        let mutex = Mutex::default();
        let wakes = [(); 2].map(|()| Arc::new(Wakes::default()));
        let wakers = wakes.clone().map(Waker::from);
        let held = poll_once(pin!(mutex.lock()));
        let (mut first, mut second) = (pin!(mutex.lock()), pin!(mutex.lock()));
        assert!(first.as_mut().poll(&mut Context::from_waker(&wakers[0])).is_pending());
        assert!(second.as_mut().poll(&mut Context::from_waker(&wakers[1])).is_pending());
        drop(held);
        assert_eq!(wakes.each_ref().map(|wakes| wakes.0.load(Ordering::Relaxed)), [1, 0]);
        assert!(poll_once(pin!(mutex.lock())).is_pending(), "it passed those who wait");
        assert!(poll_once(second.as_mut()).is_pending());
        drop(poll_once(first.as_mut()));
        assert!(poll_once(second.as_mut()).is_ready());
        assert!(poll_once(pin!(mutex.lock())).is_ready());
    }

    #[test]
    fn a_dropped_future_passes_on_what_it_was_given() {
        let mutex = Mutex::default();
        let held = poll_once(pin!(mutex.lock()));
        let mut last = pin!(mutex.lock());
        {
            let mut given_up = Box::pin(mutex.lock());
            let mut first = Box::pin(mutex.lock());
            assert!(poll_once(first.as_mut()).is_pending());
            assert!(poll_once(given_up.as_mut()).is_pending());
            assert!(poll_once(last.as_mut()).is_pending());
            drop(given_up);
            drop(held); // To the first, which is never polled again.
        }
        assert!(poll_once(last.as_mut()).is_ready());
        assert!(poll_once(pin!(mutex.lock())).is_ready());
    }

    #[test]
    fn those_whose_work_was_done_leave_together() {
        let (mutex, done) = (Mutex::default(), Cell::new(None));
        let leader = poll_once(pin!(mutex.lock_unless(|| done.get())));
        let mut followers = [(); 3].map(|()| Box::pin(mutex.lock_unless(|| done.get())));
        let mut another = pin!(mutex.lock());
        for follower in &mut followers {
            assert!(poll_once(follower.as_mut()).is_pending());
        }
        assert!(poll_once(another.as_mut()).is_pending());
        done.set(Some(7));
        drop(leader);
        for follower in followers.iter_mut().rev() {
            assert!(matches!(poll_once(follower.as_mut()), Poll::Ready(Err(7))));
        }
        drop(followers);
        assert!(poll_once(another.as_mut()).is_ready(), "what was passed to a follower was lost");
    }

    #[test]
    fn who_is_notified_looks_again_while_another_holds_it() {
        let (mutex, done) = (Mutex::default(), Cell::new(None));
        let wakes = Arc::new(Wakes::default());
        let waker = Waker::from(Arc::clone(&wakes));
        let _held = poll_once(pin!(mutex.lock()));
        let mut waiting = pin!(mutex.lock_unless(|| done.get()));
        assert!(waiting.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
        mutex.notify();
        assert_eq!(wakes.0.load(Ordering::Relaxed), 1);
        assert!(waiting.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
        done.set(Some(()));
        mutex.notify();
        assert_eq!(wakes.0.load(Ordering::Relaxed), 2);
        assert!(waiting.as_mut().poll(&mut Context::from_waker(&waker)).is_ready());
    }

    /// Who holds it, and who waits, in the order they came.
    type Waits<'m> = (u64, Pin<Box<dyn Future<Output = MutexGuard<'m>> + 'm>>);

    /// Random comings, goings and givings-up against a queue: the first of it holds the mutex.
    #[test]
    fn it_is_a_queue() {
        for seed in 0..200 {
            let (mut rng, mutex) = (Rng::new(seed), Mutex::default());
            let mut held: Option<MutexGuard<'_>> = None;
            let mut waiting: VecDeque<Waits<'_>> = VecDeque::new();
            for number in 0..200 {
                match rng.below(4) {
                    0 | 1 => {
                        let mut lock: Pin<Box<dyn Future<Output = _>>> = Box::pin(mutex.lock());
                        match poll_once(lock.as_mut()) {
                            Poll::Ready(guard) => {
                                assert!(waiting.is_empty(), "seed {seed}: it passed others");
                                assert!(held.replace(guard).is_none(), "seed {seed}: two at once");
                            }
                            Poll::Pending => waiting.push_back((number, lock)),
                        }
                    }
                    2 => held = None,
                    _ => {
                        let at = usize::try_from(rng.below(8)).unwrap();
                        drop(waiting.remove(at));
                    }
                }
                if held.is_none() && rng.chance(1, 2) && !waiting.is_empty() {
                    for (_, late) in waiting.iter_mut().skip(1) {
                        assert!(poll_once(late.as_mut()).is_pending(), "seed {seed}");
                    }
                    let (_, mut first) = waiting.pop_front().unwrap();
                    let Poll::Ready(guard) = poll_once(first.as_mut()) else {
                        panic!("seed {seed}: nobody holds it, and the first waits");
                    };
                    held = Some(guard);
                }
            }
        }
    }
}
