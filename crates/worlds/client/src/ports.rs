//! Queue pairs, shared by more threads than there are.
//!
//! A thread returns to the queue it had, while nobody has to wait for one. When all are taken, who
//! comes waits in line, and who is done hands its queue to the first in line before it may take one
//! again: so no call waits longer than those before it take.

use std::cell::Cell;
use std::collections::VecDeque;
use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicUsize, Ordering, fence};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, TryLockError};

use outboard_base::{Errno, Result};

thread_local! {
    /// The queue this thread used last.
    static HOME: Cell<usize> = const { Cell::new(usize::MAX) };
}
static NEXT_HOME: AtomicUsize = AtomicUsize::new(0);

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// One in line.
#[derive(Default)]
struct Waiter {
    given: Mutex<Option<usize>>,
    came: Condvar,
}

impl Waiter {
    fn give(&self, place: usize) {
        *lock(&self.given) = Some(place);
        self.came.notify_one();
    }

    fn wait(&self) -> usize {
        let mut given = lock(&self.given);
        loop {
            match *given {
                Some(place) => return place,
                None => given = self.came.wait(given).unwrap_or_else(PoisonError::into_inner),
            }
        }
    }
}

/// The queues of one attachment.
pub(crate) struct Ports<P> {
    all: Vec<Mutex<P>>,
    line: Mutex<VecDeque<Arc<Waiter>>>,
    /// Those in line, and those called up who do not have their queue yet.
    waiting: AtomicUsize,
}

/// A queue, in use by one thread. Dropped, it goes to the first in line.
pub(crate) struct Lease<'a, P> {
    port: MutexGuard<'a, P>,
    /// Dropped last: the queue is free then.
    on: HandOn<'a, P>,
}

struct HandOn<'a, P> {
    ports: &'a Ports<P>,
    place: usize,
}

impl<P> Ports<P> {
    pub(crate) fn new(all: impl Iterator<Item = P>) -> Ports<P> {
        Ports {
            all: all.map(Mutex::new).collect(),
            line: Mutex::default(),
            waiting: AtomicUsize::new(0),
        }
    }

    /// A queue for the calling thread; fails if there are none at all.
    pub(crate) fn take(&self) -> Result<Lease<'_, P>> {
        let count = self.all.len();
        if count == 0 {
            return Err(Errno::EIO);
        }
        let home = match HOME.get() {
            usize::MAX => NEXT_HOME.fetch_add(1, Ordering::Relaxed),
            home => home,
        };
        let lease = match self.waiting.load(Ordering::SeqCst) {
            0 => self.free(home % count),
            _ => None,
        };
        let lease = match lease {
            Some(lease) => lease,
            None => self.in_line(home % count).ok_or(Errno::EIO)?,
        };
        HOME.set(lease.on.place);
        Ok(lease)
    }

    /// A queue nobody uses, looked for from `home` on.
    fn free(&self, home: usize) -> Option<Lease<'_, P>> {
        let (before, from) = self.all.split_at_checked(home)?;
        let places = (home..).zip(from).chain((0..).zip(before));
        for (place, port) in places {
            match port.try_lock() {
                Ok(port) => return Some(self.lease(place, port)),
                Err(TryLockError::Poisoned(poisoned)) => {
                    return Some(self.lease(place, poisoned.into_inner()));
                }
                Err(TryLockError::WouldBlock) => {}
            }
        }
        None
    }

    fn lease<'a>(&'a self, place: usize, port: MutexGuard<'a, P>) -> Lease<'a, P> {
        Lease { port, on: HandOn { ports: self, place } }
    }

    fn in_line(&self, home: usize) -> Option<Lease<'_, P>> {
        let waiter = Arc::new(Waiter::default());
        {
            let mut line = lock(&self.line);
            self.waiting.fetch_add(1, Ordering::SeqCst);
            // Whoever lets go of a queue after this fence sees that somebody waits; what was let
            // go before is seen free here.
            fence(Ordering::SeqCst);
            if line.is_empty()
                && let Some(lease) = self.free(home)
            {
                self.waiting.fetch_sub(1, Ordering::SeqCst);
                return Some(lease);
            }
            line.push_back(Arc::clone(&waiter));
        }
        let place = waiter.wait();
        // One who came before anybody waited may have it for a call.
        let lease = self.all.get(place).map(|port| self.lease(place, lock(port)));
        self.waiting.fetch_sub(1, Ordering::SeqCst);
        lease
    }
}

impl<P> Drop for HandOn<'_, P> {
    fn drop(&mut self) {
        fence(Ordering::SeqCst);
        if self.ports.waiting.load(Ordering::SeqCst) > 0 {
            let next = lock(&self.ports.line).pop_front();
            if let Some(next) = next {
                next.give(self.place);
            }
        }
    }
}

impl<P> Deref for Lease<'_, P> {
    type Target = P;

    fn deref(&self) -> &P {
        &self.port
    }
}

impl<P> DerefMut for Lease<'_, P> {
    fn deref_mut(&mut self) -> &mut P {
        &mut self.port
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn none_is_no_queue() {
        let ports: Ports<u32> = Ports::new(std::iter::empty());
        assert!(matches!(ports.take(), Err(Errno::EIO)));
    }

    #[test]
    fn a_thread_keeps_its_queue_while_nobody_waits() {
        let ports = Ports::new(0..4);
        let mine = *ports.take().unwrap();
        let other = std::thread::scope(|scope| {
            let _held = ports.take().unwrap();
            scope.spawn(|| *ports.take().unwrap()).join().unwrap()
        });
        assert_ne!(mine, other);
        assert!((0..9).all(|_| *ports.take().unwrap() == mine));
    }

    /// Threads beyond the queues waited at one mutex each, and who had a queue took it again before
    /// any of them: with 128 threads a call in a hundred took a hundred times the mean. Now nobody
    /// gets a queue a second time before all who wait got one.
    #[test]
    fn who_waits_is_served_in_order() {
        const THREADS: usize = 12;
        let ports = Ports::new(0..2);
        let served = Mutex::new(Vec::new());
        std::thread::scope(|scope| {
            let held = [ports.take().unwrap(), ports.take().unwrap()];
            for thread in 0..THREADS {
                let (ports, served) = (&ports, &served);
                scope.spawn(move || {
                    for _ in 0..20 {
                        let port = ports.take().unwrap();
                        lock(served).push(thread);
                        std::thread::sleep(Duration::from_micros(200));
                        drop(port);
                    }
                });
            }
            while ports.waiting.load(Ordering::SeqCst) < THREADS {
                std::thread::yield_now();
            }
            drop(held);
        });
        let served = served.into_inner().unwrap();
        assert_eq!(served.len(), THREADS * 20);
        // While all of them still have calls to make, two calls of one are a round of the others
        // apart, but for those under way and those not in line again yet.
        for (at, thread) in served.iter().enumerate().take(THREADS * 15) {
            let next = served.iter().skip(at + 1).position(|other| other == thread).unwrap();
            assert!(next <= THREADS * 2, "{thread} waited for {next} calls of others");
        }
        assert_eq!(ports.waiting.load(Ordering::SeqCst), 0);
        assert!(lock(&ports.line).is_empty());
    }

    #[test]
    fn no_wake_up_is_lost() {
        let ports = Ports::new([0u64; 3].into_iter());
        std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| (0..20_000).for_each(|_| *ports.take().unwrap() += 1));
            }
        });
        assert_eq!(ports.all.iter().map(|port| *lock(port)).sum::<u64>(), 160_000);
    }
}
