//! Calls of user code that may panic or overrun their time: then the request is the host's.
//!
//! A call that never returns cannot be ended from inside its process; that takes the application in
//! a process of its own.

use std::panic::{AssertUnwindSafe, catch_unwind};

/// Nanoseconds of a steady clock.
pub type Clock = Box<dyn Fn() -> u64 + Send>;

/// Longest a call may take, nanoseconds of the wall's clock: a call takes some hundred, but a
/// thread may be off its core for tens of milliseconds in the middle of one.
pub const CALL_MAX: u64 = 100_000_000;
/// So many calls that panicked or overran, and nothing is offloaded any more.
pub const FAULTS_MAX: u32 = 16;

/// Counts what went wrong, and decides when it was enough.
pub struct Contained {
    clock: Clock,
    panics: u32,
    overruns: u32,
}

impl Contained {
    /// Measures with `clock`.
    #[must_use]
    pub fn new(clock: Clock) -> Contained {
        Contained { clock, panics: 0, overruns: 0 }
    }

    /// Calls; `None` if the call panicked or overran its time.
    pub fn call<T>(&mut self, what: &str, call: impl FnOnce() -> T) -> Option<T> {
        let before = self.overruns;
        self.call_anyway(what, call).filter(|_| self.overruns == before)
    }

    /// Calls what there is no other answer to: `None` only if the call panicked.
    pub fn call_anyway<T>(&mut self, what: &str, call: impl FnOnce() -> T) -> Option<T> {
        let begun = (self.clock)();
        let Ok(done) = catch_unwind(AssertUnwindSafe(call)) else {
            self.panics += 1;
            tracing::warn!(
                what,
                panics = self.panics,
                "the application panicked; the host answers"
            );
            return None;
        };
        let took = (self.clock)().saturating_sub(begun);
        if took > CALL_MAX {
            self.overruns += 1;
            tracing::warn!(what, took_ns = took, "the application overran its time");
        }
        Some(done)
    }

    /// Whether it failed too often to be called again.
    #[must_use]
    pub fn is_given_up(&self) -> bool {
        self.panics + self.overruns >= FAULTS_MAX
    }

    /// Panics and overruns so far.
    #[must_use]
    pub fn faults(&self) -> (u32, u32) {
        (self.panics, self.overruns)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU64, Ordering};

    #[test]
    fn a_panic_and_an_overrun_are_contained_and_counted() {
        let time = Arc::new(AtomicU64::new(0));
        let clock = Arc::clone(&time);
        let mut contained = Contained::new(Box::new(move || clock.load(Ordering::Relaxed)));
        assert_eq!(contained.call("test", || 7), Some(7));
        assert_eq!(contained.call("test", || -> u32 { panic!("user code") }), None);
        let slow = || time.fetch_add(CALL_MAX + 1, Ordering::Relaxed);
        assert_eq!(contained.call("test", slow), None);
        assert_eq!(contained.call_anyway("test", slow), Some(CALL_MAX + 1));
        assert_eq!(contained.faults(), (1, 2));
        assert!(!contained.is_given_up());
        for _ in 3..FAULTS_MAX {
            assert_eq!(contained.call("test", || -> u32 { panic!("user code") }), None);
        }
        assert!(contained.is_given_up());
    }
}
