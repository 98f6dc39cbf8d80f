//! Medians and percentiles. Runs are never averaged: a mean hides the one that was disturbed. The
//! mean latency of one run is there because the paper's figures show it.

use hdrhistogram::Histogram;

/// The middle value (lower middle of an even count); 0 for none.
#[must_use]
pub fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted.get(sorted.len().saturating_sub(1) / 2).copied().unwrap_or(0.0)
}

/// The longest latency that is told from longer ones, nanoseconds: an hour.
const LONGEST: u64 = 3_600_000_000_000;
/// A latency is known to one part in a thousand.
const DIGITS: u8 = 3;

/// Latencies in nanoseconds: how many there were of each, so that every one that was measured has
/// the same weight, whichever thread measured it. Adding one takes no memory.
#[derive(Clone, Debug)]
pub struct Latencies {
    counts: Histogram<u64>,
    sum: u128,
}

impl Default for Latencies {
    fn default() -> Self {
        #[expect(clippy::expect_used, reason = "the bounds are constants, and in order")]
        let counts = Histogram::new_with_max(LONGEST, DIGITS).expect("bounds are in order");
        Latencies { counts, sum: 0 }
    }
}

impl Latencies {
    /// Adds one.
    pub fn push(&mut self, nanos: u64) {
        self.counts.saturating_record(nanos);
        self.sum += u128::from(nanos);
    }

    /// Adds what another thread measured.
    pub fn merge(&mut self, other: &Latencies) {
        #[expect(clippy::expect_used, reason = "all have the same bounds")]
        self.counts.add(&other.counts).expect("bounds are the same");
        self.sum += other.sum;
    }

    /// How many were measured.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.counts.len()
    }

    /// Their mean, nanoseconds; 0 for none.
    #[must_use]
    pub fn mean(&self) -> f64 {
        self.sum as f64 / self.count().max(1) as f64
    }

    /// The latency that `percent` of them do not exceed, nanoseconds; 0 for none.
    #[must_use]
    pub fn percentile(&self, percent: usize) -> u64 {
        self.counts.value_at_quantile(percent as f64 / 100.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_middle_is_the_middle() {
        assert!((median(&[3.0, 1.0, 2.0]) - 2.0).abs() < f64::EPSILON);
        assert!((median(&[]) - 0.0).abs() < f64::EPSILON);
        let mut latencies = Latencies::default();
        (0..1_000_000).for_each(|n| latencies.push(n));
        assert_eq!(latencies.count(), 1_000_000);
        let p50 = latencies.percentile(50);
        assert!((480_000..520_000).contains(&p50), "{p50}");
        assert!(latencies.percentile(99) > 980_000);
        let mut more = Latencies::default();
        more.push(2_000_000);
        latencies.merge(&more);
        assert!((latencies.mean() - 500_001.0).abs() < 1.0, "{}", latencies.mean());
        assert!(Latencies::default().mean().abs() < f64::EPSILON);
    }

    /// Each thread kept a share of its samples, one of them in every so many, and the merge took
    /// each for one: half a million of 1 us, thinned to an eighth, weighed less than 60,000 of
    /// 10 us that were kept whole.
    #[test]
    fn a_thread_that_measured_more_weighs_more() {
        let of = |count: u32, nanos: u64| {
            let mut latencies = Latencies::default();
            (0..count).for_each(|_| latencies.push(nanos));
            latencies
        };
        for (mut all, other) in
            [(of(60_000, 10_000), of(500_000, 1_000)), (of(500_000, 1_000), of(60_000, 10_000))]
        {
            all.merge(&other);
            assert_eq!(all.count(), 560_000);
            let p60 = all.percentile(60);
            assert!((990..1_010).contains(&p60), "{p60} ns");
            assert!((9_900..10_100).contains(&all.percentile(95)));
        }
    }
}
