//! When a DPU side that died is started again, by `run` and by `serve`.
//!
//! At once, so to speak: its clients wait. Only one that dies soon after each start is waited for
//! longer each time.

use std::time::{Duration, Instant};

/// The first pause; it doubles up to the longest.
const PAUSE_FIRST: Duration = Duration::from_millis(50);
const PAUSE_LONGEST: Duration = Duration::from_secs(5);
/// One that served this long does not die at its start: it was killed, or met a rare fault.
/// Starting one every two seconds is no load.
const STABLE: Duration = Duration::from_secs(2);

/// The pauses of one DPU side.
#[derive(Debug, Default)]
pub(crate) struct Restarts {
    serves_since: Option<Instant>,
    /// That of the last one that died.
    pause: Option<Duration>,
}

impl Restarts {
    /// It serves, from now on or still.
    pub(crate) fn serves(&mut self) {
        self.serves_since.get_or_insert_with(Instant::now);
    }

    /// It is not there any more: how long to wait before another is started.
    pub(crate) fn died(&mut self) -> Duration {
        let served = self.serves_since.take().map_or(Duration::ZERO, |since| since.elapsed());
        self.after(served)
    }

    fn after(&mut self, served: Duration) -> Duration {
        let pause = match self.pause {
            Some(last) if served < STABLE => (last * 2).min(PAUSE_LONGEST),
            _ => PAUSE_FIRST,
        };
        self.pause = Some(pause);
        pause
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The pause grew with every death within half a minute of the start, and went back only after
    /// the next: clients of one that was killed now and then waited five seconds each time.
    #[test]
    fn who_served_for_a_while_is_back_at_once_and_who_dies_at_its_start_later_each_time() {
        let mut restarts = Restarts::default();
        let soon = Duration::from_millis(100);
        let pauses: Vec<u128> = (0..9).map(|_| restarts.after(soon).as_millis()).collect();
        assert_eq!(pauses, [50, 100, 200, 400, 800, 1600, 3200, 5000, 5000]);
        assert_eq!(restarts.after(STABLE), PAUSE_FIRST, "it need not wait for those before it");
        assert_eq!(restarts.after(Duration::from_secs(9)), PAUSE_FIRST);
        assert_eq!(restarts.died(), PAUSE_FIRST * 2, "it never served");
        restarts.serves();
        let since = restarts.serves_since;
        restarts.serves();
        assert_eq!(restarts.serves_since, since, "it is asked often whether it serves");
    }
}
