//! Which pages are fetched before they are asked for.
//!
//! A policy sees only what the host asked of the DPU side: misses. Hits on what it fetched stay
//! invisible, so a sequential reader shows as misses just behind what was fetched for it.
//!
//! One state an open file and session; pages are numbered as in the cache.

mod sequential;
mod strided;

use std::ops::Range;

pub use sequential::Sequential;
pub use strided::Strided;

/// A catalogue entry.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Name {
    /// Nothing but what was asked for.
    None = 1,
    /// Read-ahead with a window that grows.
    #[default]
    Sequential = 2,
    /// The same, and reads at a constant distance.
    Strided = 3,
}

impl Name {
    /// All of them.
    pub const ALL: [Name; 3] = [Name::None, Name::Sequential, Name::Strided];

    /// As settings and figures say it.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Name::None => "none",
            Name::Sequential => "sequential",
            Name::Strided => "strided",
        }
    }

    /// Its number in a cache's header, which outlives a DPU side: it never changes. 0 is none's.
    #[must_use]
    pub fn code(self) -> u8 {
        self as u8
    }

    /// The algorithm of this name, if there is one.
    #[must_use]
    pub fn parse(name: &str) -> Option<Name> {
        Name::ALL.into_iter().find(|known| known.as_str() == name)
    }

    /// A state for one file, fetching at most `window_max` pages ahead.
    #[must_use]
    pub fn build(self, window_max: u64) -> Box<dyn Prefetch> {
        match self {
            Name::None => Box::new(Nothing),
            Name::Sequential => Box::new(Sequential::new(window_max)),
            Name::Strided => Box::new(Strided::new(window_max)),
        }
    }
}

/// Guesses what is read next.
pub trait Prefetch: Send {
    /// Pages `read` were asked for and not in the cache. Pages to fetch are put into `ahead`, in
    /// the order they will be wanted; those that directly follow `read` come first.
    fn missed(&mut self, read: Range<u64>, ahead: &mut Vec<Range<u64>>);
}

struct Nothing;

impl Prefetch for Nothing {
    fn missed(&mut self, _: Range<u64>, _: &mut Vec<Range<u64>>) {}
}

#[cfg(test)]
#[expect(clippy::cast_possible_truncation, reason = "small numbers")]
mod tests {
    use super::*;
    use outboard_base::Rng;
    use std::collections::HashSet;

    /// Misses of a trace of single pages, and pages fetched that nobody asked for.
    fn run(name: Name, trace: impl IntoIterator<Item = u64>) -> (usize, usize) {
        let mut policy = name.build(64);
        let (mut cached, mut used) = (HashSet::new(), HashSet::new());
        let mut misses = 0;
        for page in trace {
            used.insert(page);
            if cached.insert(page) {
                misses += 1;
                let mut ahead = Vec::new();
                policy.missed(page..page + 1, &mut ahead);
                assert!(ahead.iter().map(|range| range.end - range.start).sum::<u64>() <= 64);
                cached.extend(ahead.into_iter().flatten());
            }
        }
        (misses, cached.difference(&used).count())
    }

    #[test]
    fn a_sequential_reader_misses_seldom() {
        assert_eq!(run(Name::None, 0..1000).0, 1000);
        for name in [Name::Sequential, Name::Strided] {
            let (misses, wasted) = run(name, 0..1000);
            assert!(misses <= 25 && wasted <= 64, "{name:?}: {misses} misses, {wasted} in vain");
        }
        let (misses, _) = run(Name::Sequential, 5000..6000);
        assert!(misses <= 26, "beginning in the middle: {misses}");
    }

    #[test]
    fn a_strided_reader_misses_seldom_if_strides_are_looked_for() {
        let trace = || (0..500).map(|at| 7 + at * 5);
        assert_eq!(run(Name::Sequential, trace()).0, 500);
        let (misses, wasted) = run(Name::Strided, trace());
        assert!(misses <= 60 && wasted <= 64, "{misses} misses, {wasted} in vain");
        let back = (0..500).map(|at| 10_000 - at * 3);
        assert!(run(Name::Strided, back).0 <= 60, "backwards");
    }

    #[test]
    fn random_reads_fetch_nothing_in_vain() {
        for name in Name::ALL {
            let mut rng = Rng::new(5);
            let trace: Vec<u64> = (0..5000).map(|_| 1 + rng.below(1 << 30)).collect();
            let (_, wasted) = run(name, trace);
            assert!(wasted <= 50, "{name:?}: {wasted}");
        }
    }

    /// A cache of eight pages lets one page be fetched ahead, less than a window begins with: the
    /// window was once clamped between the two, which panics.
    #[test]
    fn a_window_may_be_smaller_than_it_begins() {
        for name in Name::ALL {
            for most in 0..8 {
                let (mut policy, mut ahead) = (name.build(most), Vec::new());
                (0..20).for_each(|page| policy.missed(page..page + 1, &mut ahead));
                assert!(ahead.iter().all(|range| range.end - range.start <= most), "{name:?}");
            }
        }
    }

    #[test]
    fn no_page_number_is_too_large() {
        for name in Name::ALL {
            let mut policy = name.build(64);
            let mut ahead = Vec::new();
            for page in [u64::MAX - 1, u64::MAX - 2, u64::MAX - 3, 0, u64::MAX - 1, 1 << 63] {
                policy.missed(page..page + 1, &mut ahead);
            }
            assert!(ahead.iter().all(|range| range.start <= range.end));
            let _: usize = ahead.iter().map(|range| (range.end - range.start) as usize).sum();
        }
    }
}
