//! Which page of a full bucket makes room.
//!
//! The control plane cannot see hits: the host only leaves the `referenced` bit of an entry set.
//! So every algorithm here works on samples: whenever the control plane reads a bucket, it tells
//! [`Replace::looked`] which entries had the bit, and clears it.
//!
//! | name | rule | good at | bad at |
//! |---|---|---|---|
//! | `clock` | first entry without the bit | one bit a page | scans push out what is used |
//! | `lru` | bit seen set longest ago | recent use repeats | scans, loops beyond the cache |
//! | `s3fifo` | a small queue to prove oneself | scans, pages used once | use again late |

mod clock;
mod lru;
mod s3fifo;

pub use clock::Clock;
pub use lru::Lru;
pub use s3fifo::S3Fifo;

/// A catalogue entry.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Name {
    /// Second chance.
    Clock = 1,
    /// Least recently used, by samples.
    Lru = 2,
    /// Small, main and ghost queues.
    #[default]
    S3Fifo = 3,
}

impl Name {
    /// All of them.
    pub const ALL: [Name; 3] = [Name::Clock, Name::Lru, Name::S3Fifo];

    /// As settings and figures say it.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Name::Clock => "clock",
            Name::Lru => "lru",
            Name::S3Fifo => "s3fifo",
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

    /// A state for a cache of `total` entries in buckets of `ways`.
    #[must_use]
    pub fn build(self, total: u32, ways: u32) -> Box<dyn Replace> {
        match self {
            Name::Clock => Box::new(Clock::new(total, ways)),
            Name::Lru => Box::new(Lru::new(total)),
            Name::S3Fifo => Box::new(S3Fifo::new(total, ways)),
        }
    }
}

/// Chooses victims. Entries are named by their index; those of a bucket are adjacent.
pub trait Replace: Send {
    /// A page, known by `page` (a hash of inode and number), is now in entry `at`.
    fn filled(&mut self, at: u32, page: u32);

    /// Entry `at` was read; whether its bit was set, which is cleared now.
    fn looked(&mut self, at: u32, referenced: bool);

    /// Which of `candidates`, entries of one bucket that may go, goes; `None` if there is none.
    fn victim(&mut self, candidates: &[u32]) -> Option<u32>;

    /// Entry `at` is free.
    fn removed(&mut self, at: u32);
}

#[cfg(test)]
#[expect(clippy::cast_possible_truncation, clippy::cast_precision_loss, reason = "small numbers")]
#[expect(clippy::cast_sign_loss, reason = "small numbers")]
mod tests {
    use super::*;
    use outboard_base::Rng;

    const WAYS: u32 = 8;
    const TOTAL: u32 = 1024;

    /// Hits of a trace of page numbers in a set-associative cache, per mille.
    fn hits(name: Name, trace: &[u64]) -> u64 {
        let mut policy = name.build(TOTAL, WAYS);
        let mut pages: Vec<Option<(u64, bool)>> = vec![None; TOTAL as usize];
        let mut hits = 0;
        for &page in trace {
            let bucket = (page % u64::from(TOTAL / WAYS)) as u32;
            let ways = (bucket * WAYS)..((bucket + 1) * WAYS);
            let found = ways.clone().find(|&at| pages[at as usize].is_some_and(|p| p.0 == page));
            if let Some(at) = found {
                pages[at as usize] = Some((page, true));
                hits += 1;
                continue;
            }
            let free = ways.clone().find(|&at| pages[at as usize].is_none());
            let at = free.unwrap_or_else(|| {
                for at in ways.clone() {
                    let (page, referenced) = pages[at as usize].unwrap();
                    policy.looked(at, referenced);
                    pages[at as usize] = Some((page, false));
                }
                let candidates: Vec<u32> = ways.clone().collect();
                let at = policy.victim(&candidates).unwrap();
                assert!(ways.contains(&at));
                policy.removed(at);
                at
            });
            pages[at as usize] = Some((page, false));
            policy.filled(at, (page ^ (page >> 32)) as u32);
        }
        hits * 1000 / trace.len() as u64
    }

    /// Page numbers with few that are asked for often, spread over the buckets.
    fn zipf(rng: &mut Rng, pages: u64) -> u64 {
        // The inverse of a distribution whose density falls as 1/x.
        let exponent = rng.below(1 << 20) as f64 / f64::from(1 << 20);
        let rank = (pages as f64).powf(exponent) as u64;
        rank.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 20
    }

    fn all(trace: &[u64]) -> [u64; 3] {
        Name::ALL.map(|name| hits(name, trace))
    }

    #[test]
    fn all_keep_what_is_asked_for_often() {
        let mut rng = Rng::new(1);
        let trace: Vec<u64> = (0..60_000).map(|_| zipf(&mut rng, 20_000)).collect();
        let ratios = all(&trace);
        assert!(ratios.iter().all(|&ratio| ratio > 550), "{ratios:?}");
        let [clock, lru, s3fifo] = ratios;
        assert!(s3fifo > clock.max(lru), "{ratios:?}");
    }

    #[test]
    fn a_scan_does_not_push_out_what_s3fifo_knows() {
        let mut rng = Rng::new(2);
        let mut next = 1 << 50;
        let mut trace = Vec::new();
        for _ in 0..100 {
            trace.extend((0..400).map(|_| zipf(&mut rng, 2_000)));
            trace.extend(next..next + 600);
            next += 600;
        }
        let [clock, lru, s3fifo] = all(&trace);
        assert!(s3fifo > clock + 15 && s3fifo > lru + 15, "{clock} {lru} {s3fifo}");
    }

    #[test]
    fn recent_use_is_what_lru_knows() {
        // Each page is used a few times soon after one another, never again.
        let mut rng = Rng::new(3);
        let trace: Vec<u64> = (0..60_000u64).map(|at| at / 8 + 600 - rng.below(600)).collect();
        let [clock, lru, s3fifo] = all(&trace);
        assert!(lru > 850 && lru + 5 > clock && lru > s3fifo + 5, "{clock} {lru} {s3fifo}");
    }

    #[test]
    fn a_loop_larger_than_the_cache_defeats_lru() {
        let trace: Vec<u64> = (0..60_000u64).map(|at| at % 1536).collect();
        let [clock, lru, s3fifo] = all(&trace);
        assert!(lru < 20 && clock < 20, "{clock} {lru}");
        assert!(s3fifo > 300, "{s3fifo}");
    }

    /// The table of `docs/internals/cache.md`: hits of 1000, clock, lru, s3fifo, in a cache of 1024
    /// pages. `-- --nocapture` prints it.
    #[test]
    fn hit_ratios_of_the_catalogue() {
        let mut rng = Rng::new(7);
        let hot: Vec<u64> = (0..60_000).map(|_| zipf(&mut rng, 20_000)).collect();
        let scan: Vec<u64> = (0..60_000).collect();
        let mut mixed = Vec::new();
        for round in 0..100u64 {
            mixed.extend((0..400).map(|_| zipf(&mut rng, 2_000)));
            mixed.extend((0..600).map(|at| (1 << 50) + round * 600 + at));
        }
        let near: Vec<u64> = (0..60_000u64).map(|at| at / 8 + 600 - rng.below(600)).collect();
        let round = |pages: u64| (0..60_000).map(move |at| at % pages).collect::<Vec<u64>>();
        let rows = [
            ("zipf, 20,000 pages", hot, [575, 591, 655]),
            ("scan, once", scan, [0, 0, 0]),
            ("zipf beside scans", mixed, [232, 249, 328]),
            ("recent use", near, [867, 867, 788]),
            ("loop of 900 pages", round(900), [985, 985, 985]),
            ("loop of 1,536 pages", round(1536), [0, 0, 332]),
        ];
        for (name, trace, expected) in rows {
            let found = all(&trace);
            println!("| {name} | {} | {} | {} |", found[0], found[1], found[2]);
            let close = found.iter().zip(expected).all(|(found, it)| found.abs_diff(it) <= 3);
            assert!(close, "{name}: {found:?}, not {expected:?}");
        }
    }

    #[test]
    fn victims_are_candidates_whatever_was_said_before() {
        let mut rng = Rng::new(4);
        for name in Name::ALL {
            let mut policy = name.build(TOTAL, WAYS);
            for _ in 0..20_000 {
                let at = rng.below(u64::from(TOTAL) * 2) as u32;
                match rng.below(4) {
                    0 => policy.filled(at, rng.next_u64() as u32),
                    1 => policy.looked(at, rng.chance(1, 2)),
                    2 => policy.removed(at),
                    _ => {
                        let first = at / WAYS * WAYS;
                        let some = |_: &u32| rng.chance(1, 2);
                        let candidates: Vec<u32> = (first..first + WAYS).filter(some).collect();
                        let victim = policy.victim(&candidates);
                        assert_eq!(victim.is_none(), candidates.is_empty(), "{name:?}");
                        assert!(victim.is_none_or(|victim| candidates.contains(&victim)));
                    }
                }
            }
        }
    }

    #[test]
    fn names_are_found() {
        for name in Name::ALL {
            assert_eq!(Name::parse(name.as_str()), Some(name));
        }
        assert_eq!(Name::parse("magic"), None);
    }
}
