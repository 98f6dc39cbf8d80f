//! Time as values: the worlds read clocks and pass what they read.

use std::time::Duration;

/// Monotonic time in nanoseconds since an arbitrary start, as a world passes it in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct Time(pub u64);

/// A moment at which something gives up or comes back.
pub type Deadline = Time;

impl Time {
    /// This moment plus `duration`, saturating.
    #[must_use]
    pub fn after(self, duration: Duration) -> Time {
        Time(self.0.saturating_add(u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)))
    }

    /// How long after `earlier` this is; zero if it is not after.
    #[must_use]
    pub fn since(self, earlier: Time) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }
}

/// Wall-clock time of a file, to the nanosecond: seconds since 1970 (may be negative) and 0..1e9
/// ns.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct Timestamp {
    /// Seconds since 1970-01-01 00:00 UTC.
    pub sec: i64,
    /// Nanoseconds, below 1,000,000,000.
    pub nsec: u32,
}

impl Timestamp {
    /// Nanoseconds in a second.
    pub const NSEC_PER_SEC: u32 = 1_000_000_000;

    /// Builds a timestamp; nanoseconds out of range are refused.
    #[must_use]
    pub fn new(sec: i64, nsec: u32) -> Option<Timestamp> {
        (nsec < Self::NSEC_PER_SEC).then_some(Timestamp { sec, nsec })
    }
}
