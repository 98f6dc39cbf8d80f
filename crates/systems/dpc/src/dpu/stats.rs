//! What the DPU side counts: operations, errors and time, by kind.

use std::time::Duration;

use outboard_wire::file::Op;

const BUCKETS: usize = 40;

/// Times in powers of two of nanoseconds.
#[derive(Clone, Debug)]
pub struct Histogram {
    buckets: [u64; BUCKETS],
}

impl Default for Histogram {
    fn default() -> Histogram {
        Histogram { buckets: [0; BUCKETS] }
    }
}

impl Histogram {
    /// Counts one.
    pub fn add(&mut self, took: Duration) {
        let ns = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX);
        let bucket = (u64::BITS - ns.leading_zeros()) as usize;
        if let Some(count) = self.buckets.get_mut(bucket.min(BUCKETS - 1)) {
            *count += 1;
        }
    }

    /// How many were counted.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.buckets.iter().sum()
    }

    /// The time below which `percent` of them lie, to a power of two; zero if there is none.
    #[must_use]
    pub fn percentile(&self, percent: u64) -> Duration {
        let wanted = (self.count() * percent).div_ceil(100).max(1);
        let mut seen = 0;
        for (shift, count) in (0u32..).zip(&self.buckets) {
            seen += count;
            if seen >= wanted {
                return Duration::from_nanos(1u64.checked_shl(shift).unwrap_or(u64::MAX));
            }
        }
        Duration::ZERO
    }
}

/// What was counted of one operation.
#[derive(Clone, Debug, Default)]
pub struct OpStats {
    /// Answered, with whatever outcome.
    pub count: u64,
    /// Of these, with an errno.
    pub errors: u64,
    /// Of these, how many had to wait for something (storage, a lock on an inode).
    pub waited: u64,
    /// Payload bytes, either way.
    pub bytes: u64,
    /// From arrival to completion.
    pub time: Histogram,
}

/// What a service has counted since its start.
#[derive(Clone, Debug)]
pub struct Stats {
    ops: Vec<OpStats>,
    /// Requests whose header did not decode.
    pub malformed: u64,
    /// Requests for a volume that is not served (bit 10), or with payload where none belongs.
    pub misrouted: u64,
    /// Requests aborted at their host's wish.
    pub aborted: u64,
}

impl Default for Stats {
    fn default() -> Stats {
        let len = Op::ALL.iter().map(|&op| op as usize + 1).max().unwrap_or(0);
        Stats { ops: vec![OpStats::default(); len], malformed: 0, misrouted: 0, aborted: 0 }
    }
}

impl Stats {
    /// What was counted of `op`.
    #[must_use]
    pub fn op(&self, op: Op) -> Option<&OpStats> {
        self.ops.get(op as usize)
    }

    pub(super) fn op_mut(&mut self, op: Op) -> Option<&mut OpStats> {
        self.ops.get_mut(op as usize)
    }

    /// Operations answered.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.ops.iter().map(|op| op.count).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_lie_within_a_power_of_two() {
        let mut histogram = Histogram::default();
        assert_eq!(histogram.percentile(99), Duration::ZERO);
        for us in 1..=100 {
            histogram.add(Duration::from_micros(us));
        }
        assert_eq!(histogram.count(), 100);
        let (p50, p99) = (histogram.percentile(50), histogram.percentile(99));
        assert!((50_000..=100_000).contains(&p50.as_nanos()), "{p50:?}");
        assert!((99_000..=198_000).contains(&p99.as_nanos()), "{p99:?}");
        histogram.add(Duration::MAX);
        assert!(histogram.percentile(100) > Duration::from_secs(100));
    }

    #[test]
    fn every_operation_has_its_place() {
        let mut stats = Stats::default();
        for &op in Op::ALL {
            stats.op_mut(op).unwrap().count += 1;
        }
        assert_eq!(stats.total(), Op::ALL.len() as u64);
    }
}
