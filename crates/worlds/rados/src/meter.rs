//! What operations of a client took, and how many failed: for whoever asks how the store does.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use outboard_pool::PoolError;

/// What an operation is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Subject {
    /// The journal: what a commit waits for.
    Journal,
    /// Bytes of files.
    Data,
    /// Pairs, and what says where they are.
    Pairs,
}

impl Subject {
    /// All of them, as [`Figures`] lists them.
    pub const ALL: [Subject; 3] = [Subject::Journal, Subject::Data, Subject::Pairs];

    /// Of an object, by its name.
    fn of(object: &str) -> Subject {
        match object.split('.').next() {
            Some("journal") => Subject::Journal,
            Some("data") => Subject::Data,
            _ => Subject::Pairs,
        }
    }

    /// Its name for people and programs.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Subject::Journal => "journal",
            Subject::Data => "data",
            Subject::Pairs => "pairs",
        }
    }
}

/// Operations of one kind: whether they change something is told apart, too.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// Ended, however they ended.
    pub ended: u64,
    /// Ended without what was asked for: time-outs, no space, refusals, not what is not there or is
    /// not as it was.
    pub failed: u64,
    /// Half of them took at most this, within a factor of two.
    pub p50: Duration,
    /// 99 of a hundred took at most this, within a factor of two.
    pub p99: Duration,
}

/// How a client does.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Figures {
    /// Changes, by [`Subject::ALL`].
    pub writes: [Tally; 3],
    /// Reads, by [`Subject::ALL`].
    pub reads: [Tally; 3],
    /// Operations somebody waits for.
    pub in_flight: u64,
    /// Operations that got no answer in time.
    pub timed_out: u64,
    /// How often the cluster stopped answering: a time-out after an answer.
    pub lost: u64,
    /// How often it answered again.
    pub found_again: u64,
}

/// Powers of two of microseconds: up to half an hour.
const STEPS: usize = 32;

#[derive(Debug)]
struct Kind {
    /// By the power of two below which they ended.
    took: [AtomicU64; STEPS],
    failed: AtomicU64,
}

impl Default for Kind {
    fn default() -> Kind {
        Kind { took: std::array::from_fn(|_| AtomicU64::new(0)), failed: AtomicU64::new(0) }
    }
}

impl Kind {
    fn count(&self, took: Duration, failed: bool) {
        let micros = u64::try_from(took.as_micros()).unwrap_or(u64::MAX);
        let step = usize::try_from(u64::BITS - micros.leading_zeros()).unwrap_or(STEPS);
        if let Some(count) = self.took.get(step.min(STEPS - 1)) {
            count.fetch_add(1, Ordering::Relaxed);
        }
        if failed {
            self.failed.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn tally(&self) -> Tally {
        let counts: Vec<u64> = self.took.iter().map(|c| c.load(Ordering::Relaxed)).collect();
        let ended: u64 = counts.iter().sum();
        let below = |part: u64| {
            let wanted = (ended * part).div_ceil(100).max(1);
            let mut sum = 0;
            let step = counts.iter().position(|count| {
                sum += count;
                sum >= wanted
            });
            step.map_or(Duration::ZERO, |step| Duration::from_micros(1 << step))
        };
        let failed = self.failed.load(Ordering::Relaxed);
        Tally { ended, failed, p50: below(50), p99: below(99) }
    }
}

/// The meter of one client.
#[derive(Debug, Default)]
pub(crate) struct Meter {
    writes: [Kind; 3],
    reads: [Kind; 3],
    in_flight: AtomicU64,
    timed_out: AtomicU64,
    lost: AtomicU64,
    found_again: AtomicU64,
    /// The last operation that ended timed out.
    is_lost: AtomicBool,
}

impl Meter {
    /// An operation begins.
    pub(crate) fn begin(&self, object: &str, writes: bool) -> Timing<'_> {
        let kinds = if writes { &self.writes } else { &self.reads };
        let [journal, data, pairs] = kinds;
        let kind = match Subject::of(object) {
            Subject::Journal => journal,
            Subject::Data => data,
            Subject::Pairs => pairs,
        };
        self.in_flight.fetch_add(1, Ordering::Relaxed);
        Timing { meter: self, kind, begun: Instant::now() }
    }

    fn heard(&self, answered: bool) {
        if answered {
            // Looked at first: who only answers shares the line.
            if self.is_lost.load(Ordering::Relaxed) && self.is_lost.swap(false, Ordering::Relaxed) {
                self.found_again.fetch_add(1, Ordering::Relaxed);
            }
            return;
        }
        self.timed_out.fetch_add(1, Ordering::Relaxed);
        if !self.is_lost.swap(true, Ordering::Relaxed) {
            self.lost.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// How things stand.
    pub(crate) fn figures(&self) -> Figures {
        Figures {
            writes: self.writes.each_ref().map(Kind::tally),
            reads: self.reads.each_ref().map(Kind::tally),
            in_flight: self.in_flight.load(Ordering::Relaxed),
            timed_out: self.timed_out.load(Ordering::Relaxed),
            lost: self.lost.load(Ordering::Relaxed),
            found_again: self.found_again.load(Ordering::Relaxed),
        }
    }
}

/// An operation under way; dropped before its end it is not counted.
pub(crate) struct Timing<'a> {
    meter: &'a Meter,
    kind: &'a Kind,
    begun: Instant,
}

impl Timing<'_> {
    /// It ended so.
    pub(crate) fn end<T>(self, result: Result<T, PoolError>) -> Result<T, PoolError> {
        let expected = matches!(result, Ok(_) | Err(PoolError::NotFound | PoolError::Guard));
        self.kind.count(self.begun.elapsed(), !expected);
        self.meter.heard(!matches!(result, Err(PoolError::TimedOut)));
        result
    }
}

impl Drop for Timing<'_> {
    fn drop(&mut self) {
        self.meter.in_flight.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn operations_are_told_apart_and_timed_within_a_factor_of_two() {
        let kind = Kind::default();
        for micros in [0, 1, 3, 700, 900, 1000, 1000, 1000, 5000, u64::MAX] {
            kind.count(Duration::from_micros(micros), micros > 1000);
        }
        let Tally { ended, failed, p50, p99 } = kind.tally();
        assert_eq!((ended, failed), (10, 2));
        assert_eq!(p50, Duration::from_micros(1024));
        assert_eq!(p99, Duration::from_micros(1 << 31));
        assert_eq!(Kind::default().tally(), Tally::default());
        for (object, subject) in [
            ("journal.000000000001", Subject::Journal),
            ("data.000000000001", Subject::Data),
            ("map.000000000001", Subject::Pairs),
            ("root", Subject::Pairs),
        ] {
            assert_eq!(Subject::of(object), subject);
        }
    }

    #[test]
    fn a_cluster_that_goes_and_comes_is_counted_once() {
        let meter = Meter::default();
        let end = |outcome| meter.begin("root", true).end::<()>(outcome);
        let lost = Err(PoolError::TimedOut);
        for outcome in [Ok(()), lost, lost, Err(PoolError::Guard), Ok(()), lost] {
            assert_eq!(end(outcome), outcome);
        }
        drop(meter.begin("data.1", false));
        let open = meter.begin("data.1", false);
        let figures = meter.figures();
        assert_eq!((figures.timed_out, figures.lost, figures.found_again), (3, 2, 1));
        assert_eq!((figures.writes[2].ended, figures.writes[2].failed), (6, 3));
        assert_eq!((figures.in_flight, figures.reads[1].ended), (1, 0));
        drop(open);
        assert_eq!(meter.figures().in_flight, 0);
    }
}
