//! Calls of user code that may panic, overrun their time, or never return.
//!
//! The first two are found out here: the request is the host's. Who does not return cannot be ended
//! from inside its process; but it can be left behind, if nothing waits for its thread. So calls
//! are made by a thread that holds nothing of what others need, and says what it is at
//! ([`Progress`]); who watches it finds a call that lasts, and another thread goes on.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use outboard_base::Time;

use super::health::{Call, Health, Progress};

/// Nanoseconds of a steady clock.
pub type Clock = Box<dyn Fn() -> u64 + Send>;

/// Longest a call may take, nanoseconds of the wall's clock: a call takes some hundred, but a
/// thread may be off its core for tens of milliseconds in the middle of one.
pub const CALL_MAX: u64 = 100_000_000;

/// One thread's calls of an application.
pub struct Contained {
    clock: Clock,
    health: Arc<Health>,
    progress: Arc<Progress>,
    /// When the call before ended.
    since: u64,
}

impl Contained {
    /// Measures with `clock`; what fails is told to `health`.
    #[must_use]
    pub fn new(clock: Clock, health: Arc<Health>) -> Contained {
        Contained { clock, health, progress: Arc::default(), since: 0 }
    }

    /// What this thread is at.
    #[must_use]
    pub fn progress(&self) -> &Arc<Progress> {
        &self.progress
    }

    /// What is thought of the application.
    #[must_use]
    pub fn health(&self) -> &Arc<Health> {
        &self.health
    }

    /// Calls follow, up to [`Contained::end`]. Whoever looks at the progress after this sees it.
    pub fn begin(&mut self) {
        self.progress.begin_first();
        self.since = (self.clock)();
    }

    /// That was all.
    pub fn end(&mut self) {
        self.progress.end();
    }

    /// Calls; `None` if the call panicked or overran its time, or nobody is to be asked now.
    pub fn call<T>(&mut self, what: Call, call: impl FnOnce() -> T) -> Option<T> {
        if !self.health.may_ask(Time(self.since)) {
            return None;
        }
        self.measure(what, CALL_MAX, call).and_then(|(done, overran)| (!overran).then_some(done))
    }

    /// Calls what there is no other answer to: `None` only if the call panicked.
    pub fn call_anyway<T>(&mut self, what: Call, call: impl FnOnce() -> T) -> Option<T> {
        self.measure(what, CALL_MAX, call).map(|(done, _)| done)
    }

    /// The same for one that may take its time: it looks at as much as the host wrote.
    pub fn call_patiently<T>(&mut self, what: Call, call: impl FnOnce() -> T) -> Option<T> {
        self.measure(what, u64::MAX, call).map(|(done, _)| done)
    }

    /// What it returned, and whether too late.
    fn measure<T>(&mut self, what: Call, most: u64, call: impl FnOnce() -> T) -> Option<(T, bool)> {
        self.progress.begin(what);
        let done = catch_unwind(AssertUnwindSafe(call));
        let now = (self.clock)();
        let took = now.saturating_sub(std::mem::replace(&mut self.since, now));
        let (now, call) = (Time(now), what.name());
        // What a panic carries is the application's, too: dropping it might be one more call.
        let Ok(done) = done.map_err(std::mem::forget) else {
            let faults = self.health.fault(what, now);
            tracing::warn!(call, faults, "the application panicked; the host answers");
            return None;
        };
        let overran = took > most;
        if overran {
            let faults = self.health.fault(what, now);
            tracing::warn!(call, faults, took_ns = took, "the application overran its time");
        }
        Some((done, overran))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering};

    use super::*;

    /// It went through the thread of a worker, with all its connections.
    #[test]
    fn what_a_panic_carries_is_not_dropped() {
        struct Carried;
        impl Drop for Carried {
            fn drop(&mut self) {
                panic!("user code");
            }
        }
        let mut contained = Contained::new(Box::new(|| 0), Arc::default());
        let call = || std::panic::panic_any(Carried);
        assert_eq!(contained.call(Call::OffPred, call), None::<()>);
        assert_eq!(contained.health().faults(), 1);
    }

    #[test]
    fn a_panic_and_an_overrun_are_contained_and_counted() {
        let time = Arc::new(AtomicU64::new(0));
        let clock = Arc::clone(&time);
        let health = Arc::new(Health::default());
        let clock = Box::new(move || clock.load(Ordering::Relaxed));
        let mut contained = Contained::new(clock, Arc::clone(&health));
        contained.begin();
        assert_eq!(contained.call(Call::Answer, || 7), Some(7));
        assert_eq!(contained.progress().look().call(), Some(Call::Answer));
        assert_eq!(contained.call(Call::Answer, || -> u32 { panic!("user code") }), None);
        let slow = || time.fetch_add(CALL_MAX + 1, Ordering::Relaxed);
        assert_eq!(contained.call(Call::Answer, slow), None);
        assert_eq!(contained.call_anyway(Call::Frame, slow), Some(CALL_MAX + 1));
        assert!(contained.call_patiently(Call::Cache, slow).is_some());
        assert_eq!((health.faults(), health.is_off()), (3, false));
        contained.end();
        assert_eq!(contained.progress().look().call(), None);
        // What passes between calls is not theirs.
        slow();
        contained.begin();
        assert_eq!(contained.call(Call::Answer, || 8), Some(8));
    }
}
