//! Clocks, read here and passed to everything else as values.

use outboard_base::{Time, Timestamp};
use rustix::time::{ClockId, clock_gettime};

/// Monotonic time since the computer started.
#[must_use]
pub fn now() -> Time {
    time(ClockId::Monotonic)
}

/// As [`now`], but time goes on while the computer is suspended: for what others wait for.
#[must_use]
pub fn awake_or_not() -> Time {
    time(ClockId::Boottime)
}

/// As [`now`], up to a few milliseconds late and much cheaper: for bounds of a tenth of a second.
#[must_use]
pub fn coarse() -> Time {
    time(ClockId::MonotonicCoarse)
}

fn time(clock: ClockId) -> Time {
    let t = clock_gettime(clock);
    let sec = u64::try_from(t.tv_sec).unwrap_or(0);
    let nsec = u64::try_from(t.tv_nsec).unwrap_or(0);
    Time(sec.saturating_mul(1_000_000_000).saturating_add(nsec))
}

/// The time of day.
#[must_use]
pub fn wall() -> Timestamp {
    let t = clock_gettime(ClockId::Realtime);
    Timestamp { sec: t.tv_sec, nsec: u32::try_from(t.tv_nsec).unwrap_or(0) }
}

/// Keeps the core busy for a while: how a delayed DMA engine passes its time.
pub fn spin(duration: std::time::Duration) {
    let end = now().after(duration);
    while now() < end {
        std::hint::spin_loop();
    }
}
