//! When the other side counts as dead.
//!
//! Each side steps its heartbeat register now and then; the other watches it change. A closed
//! socket says the same sooner when a process is killed; the heartbeat finds the one that hangs.

use std::time::Duration;

use outboard_base::{Deadline, Time};

/// Watches one heartbeat.
#[derive(Clone, Copy, Debug)]
pub struct Beat {
    limit: Duration,
    value: u64,
    changed: Time,
}

impl Beat {
    /// Begins to watch: the other side has `limit` for its first beat, and for each one after.
    #[must_use]
    pub fn new(now: Time, value: u64, limit: Duration) -> Beat {
        Beat { limit, value, changed: now }
    }

    /// Takes a look at the register; false when it has stood still for the limit.
    pub fn observe(&mut self, now: Time, value: u64) -> bool {
        if value != self.value {
            self.value = value;
            self.changed = now;
        }
        now < self.deadline()
    }

    /// When silence becomes death.
    #[must_use]
    pub fn deadline(&self) -> Deadline {
        self.changed.after(self.limit)
    }

    /// How often the watched side should step its register, so that two lost steps do not kill it.
    #[must_use]
    pub fn period(limit: Duration) -> Duration {
        limit / 4
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn silence_kills_and_any_change_revives() {
        let at = |s: u64| Time(s * 1_000_000_000);
        let mut beat = Beat::new(at(0), 5, Duration::from_secs(4));
        assert!(beat.observe(at(3), 5));
        assert!(beat.observe(at(3), 6));
        assert!(beat.observe(at(6), 6));
        assert_eq!(beat.deadline(), at(7));
        assert!(!beat.observe(at(7), 6));
        assert!(beat.observe(at(8), 0), "a wrapped or restarted count is a beat too");
    }
}
