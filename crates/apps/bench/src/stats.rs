//! Medians and percentiles. Runs are never averaged: a mean hides the one that was disturbed. The
//! mean latency of one run is there because the paper's figures show it.

/// The middle value (lower middle of an even count); 0 for none.
#[must_use]
pub fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted.get(sorted.len().saturating_sub(1) / 2).copied().unwrap_or(0.0)
}

/// Latencies in nanoseconds, kept whole up to a bound and thinned evenly beyond it.
#[derive(Clone, Debug)]
pub struct Latencies {
    samples: Vec<u64>,
    every: u64,
    seen: u64,
    sum: u128,
}

impl Default for Latencies {
    fn default() -> Self {
        Latencies { samples: Vec::with_capacity(Self::KEPT), every: 1, seen: 0, sum: 0 }
    }
}

impl Latencies {
    const KEPT: usize = 1 << 16;

    /// Adds one.
    pub fn push(&mut self, nanos: u64) {
        if self.seen.is_multiple_of(self.every) {
            if self.samples.len() == Self::KEPT {
                let mut keep = false;
                self.samples.retain(|_| {
                    keep = !keep;
                    keep
                });
                self.every *= 2;
            }
            self.samples.push(nanos);
        }
        self.seen += 1;
        self.sum += u128::from(nanos);
    }

    /// Adds what another thread measured.
    pub fn merge(&mut self, other: &Latencies) {
        self.seen += other.seen;
        self.sum += other.sum;
        self.samples.extend_from_slice(&other.samples);
    }

    /// How many were measured.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.seen
    }

    /// Their mean, nanoseconds, of all that were measured; 0 for none.
    #[must_use]
    pub fn mean(&self) -> f64 {
        self.sum as f64 / self.seen.max(1) as f64
    }

    /// The latency below which `percent` of the samples lie, nanoseconds; 0 for none.
    #[must_use]
    pub fn percentile(&self, percent: usize) -> u64 {
        let mut sorted = self.samples.clone();
        sorted.sort_unstable();
        sorted.get(sorted.len().saturating_sub(1) * percent / 100).copied().unwrap_or(0)
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
}
