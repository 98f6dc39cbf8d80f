//! The event loop of every thread that polls: pass after pass while there is something to do; then
//! it spins a while, yields, and at last sleeps until something wakes it.
//!
//! ```text
//! pass ── worked ─▶ pass
//!      ── idle ──▶ spin, yield ([`Pace`] says how long) ─▶ pass
//!                  its time is over: begin_sleep ─▶ wait ─▶ end_sleep ─▶ pass
//!                                        └── there is something after all ─▶ pass
//! ```
//!
//! No wake-up is lost if [`Polled::begin_sleep`] keeps its order: say "asleep" where the other side
//! looks, pass a fence, look once more. Whoever puts something in the queue afterwards sees the
//! word and wakes; what was put there before is seen by that last look.

use std::io;
use std::time::Duration;

use outboard_base::Time;
use outboard_link::pace::{Config, Step};

use crate::clock;

pub use outboard_link::pace::Pace;

/// What one pass came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pass {
    /// Something was done: more may be there by now.
    Worked,
    /// There was nothing to do at this time.
    Idle(Time),
    /// The loop ends.
    Over,
}

impl Pass {
    /// Of a pass at `now` that found so many things.
    #[must_use]
    pub fn found(found: usize, now: Time) -> Pass {
        if found > 0 { Pass::Worked } else { Pass::Idle(now) }
    }
}

/// What an [`EventLoop`] drives.
pub trait Polled {
    /// Does what there is to do, without waiting. `pace` is the loop's, to be charged for.
    fn pass(&mut self, pace: &mut Pace) -> io::Result<Pass>;

    /// Says that it sleeps, to all who may wake it, and looks once more: until when it may sleep.
    /// `None` if there is something to do; then nothing says any more that it sleeps.
    fn begin_sleep(&mut self, now: Time) -> io::Result<Option<Time>>;

    /// Sleeps until something wakes it, at most so long.
    fn wait(&mut self, limit: Duration) -> io::Result<()>;

    /// It is awake since `now`.
    fn end_sleep(&mut self, now: Time) -> io::Result<()>;
}

/// One thread's loop.
#[derive(Debug)]
pub struct EventLoop {
    pace: Pace,
}

impl EventLoop {
    /// A loop that spins and sleeps as `config` says.
    #[must_use]
    pub fn new(config: Config) -> EventLoop {
        EventLoop { pace: Pace::new(config) }
    }

    /// A loop that never looks twice: it sleeps as soon as a pass found nothing.
    #[must_use]
    pub fn without_spinning() -> EventLoop {
        EventLoop::new(Config { spin: Duration::ZERO, ..Config::default() })
    }

    /// Runs `polled` until a pass says that it is over.
    ///
    /// # Errors
    /// What `polled` fails with.
    pub fn run(&mut self, polled: &mut impl Polled) -> io::Result<()> {
        loop {
            match polled.pass(&mut self.pace)? {
                Pass::Over => return Ok(()),
                Pass::Worked => {
                    if self.pace.is_idle() {
                        self.pace.work(clock::now());
                    }
                }
                Pass::Idle(now) => {
                    if rest(&mut self.pace, now) {
                        self.sleep(polled, now)?;
                    }
                }
            }
        }
    }

    fn sleep(&mut self, polled: &mut impl Polled, now: Time) -> io::Result<()> {
        let Some(until) = polled.begin_sleep(now)? else { return Ok(()) };
        // The pass and the last look took time too: they are no sleep.
        let from = clock::now();
        polled.wait(until.since(from))?;
        let to = clock::now();
        self.pace.slept(from, to);
        polled.end_sleep(to)
    }
}

/// Looks with `look` until it finds something, as long as `pace` says that this pays.
pub fn look_for<T>(pace: &mut Pace, mut look: impl FnMut() -> Option<T>) -> Option<T> {
    loop {
        let now = clock::now();
        if let Some(found) = look() {
            pace.work(now);
            return Some(found);
        }
        if rest(pace, now) {
            return None;
        }
    }
}

/// Nothing was found at `now`: spins or yields once; true if it is time to sleep.
pub fn rest(pace: &mut Pace, now: Time) -> bool {
    match pace.idle(now) {
        Step::Spin => std::hint::spin_loop(),
        Step::Yield => {
            let from = clock::now();
            rustix::thread::sched_yield();
            pace.yielded(from, clock::now());
        }
        Step::Sleep => return true,
    }
    false
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU64, Ordering};

    use super::*;
    use crate::wakeup::Wakeup;

    /// A side that is given numbers through one word, and told by another that somebody sleeps.
    struct Counter {
        wakeup: Wakeup,
        there: Arc<(AtomicU64, AtomicU64)>,
        seen: u64,
        end: u64,
        idle: u64,
        begun: u64,
    }

    impl Counter {
        fn look(&mut self) -> usize {
            let there = self.there.0.load(Ordering::SeqCst);
            usize::from(std::mem::replace(&mut self.seen, there) != there)
        }
    }

    impl Polled for Counter {
        fn pass(&mut self, _: &mut Pace) -> io::Result<Pass> {
            let found = self.look();
            self.idle += u64::from(found == 0 && self.seen != self.end);
            Ok(if self.seen == self.end { Pass::Over } else { Pass::found(found, clock::now()) })
        }

        fn begin_sleep(&mut self, now: Time) -> io::Result<Option<Time>> {
            self.begun += 1;
            self.there.1.store(1, Ordering::SeqCst);
            if self.look() > 0 {
                self.there.1.store(0, Ordering::SeqCst);
                return Ok(None);
            }
            Ok(Some(now.after(Duration::from_secs(60))))
        }

        fn wait(&mut self, limit: Duration) -> io::Result<()> {
            assert!(self.wakeup.wait(limit)?, "a wake-up was lost");
            Ok(())
        }

        fn end_sleep(&mut self, _: Time) -> io::Result<()> {
            self.there.1.store(0, Ordering::SeqCst);
            while self.wakeup.drain()? {}
            Ok(())
        }
    }

    /// Thousands of numbers, each after a pause of another length: every one is seen, whether the
    /// loop spun, yielded, was going to sleep or slept.
    #[test]
    fn no_wake_up_is_lost_whatever_the_loop_does() {
        const END: u64 = 3_000;
        let there = Arc::new((AtomicU64::new(0), AtomicU64::new(0)));
        let wakeup = Wakeup::new().unwrap();
        let (notifier, other) = (wakeup.notifier().unwrap(), Arc::clone(&there));
        let giver = std::thread::spawn(move || {
            for number in 1..=END {
                other.0.store(number, Ordering::SeqCst);
                if other.1.swap(0, Ordering::SeqCst) == 1 {
                    notifier.notify();
                }
                for _ in 0..(number * 7919) % 9000 {
                    std::hint::spin_loop();
                }
            }
            // One that is closed takes with it what nobody has heard yet.
            notifier
        });
        let mut counter = Counter { wakeup, there, seen: 0, end: END, idle: 0, begun: 0 };
        let spin = Duration::from_micros(20);
        EventLoop::new(Config { spin, ..Config::default() }).run(&mut counter).unwrap();
        drop(giver.join().unwrap());
    }

    #[test]
    fn a_loop_without_spinning_sleeps_after_one_idle_pass() {
        let there = Arc::new((AtomicU64::new(0), AtomicU64::new(0)));
        let wakeup = Wakeup::new().unwrap();
        let (notifier, other) = (wakeup.notifier().unwrap(), Arc::clone(&there));
        let giver = std::thread::spawn(move || {
            for number in 1..=3 {
                while other.1.swap(0, Ordering::SeqCst) == 0 {
                    std::thread::yield_now();
                }
                other.0.store(number, Ordering::SeqCst);
                notifier.notify();
            }
            notifier
        });
        let mut counter = Counter { wakeup, there, seen: 0, end: 3, idle: 0, begun: 0 };
        EventLoop::without_spinning().run(&mut counter).unwrap();
        drop(giver.join().unwrap());
        assert!(counter.begun > 0);
        assert_eq!(counter.begun, counter.idle);
    }

    #[test]
    fn a_look_ends_with_what_it_finds_or_when_it_pays_no_longer() {
        let mut pace = Pace::new(Config { spin: Duration::from_micros(50), ..Config::default() });
        let mut looks = 0;
        let found = look_for(&mut pace, || {
            looks += 1;
            (looks == 3).then_some(looks)
        });
        assert_eq!(found, Some(3));
        assert_eq!(look_for(&mut pace, || None::<()>), None);
    }
}
