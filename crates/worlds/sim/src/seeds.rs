//! Seeds of a run: which ones, what a failure says, and a random source for each part.
//!
//! A seed is a bug report. A failing run prints `OUTBOARD_SEED=n`, and that variable runs it alone;
//! `OUTBOARD_SEEDS=n` runs the first n instead of the usual few.
//!
//! ```
//! use outboard_base::Rng;
//! use outboard_sim::seeds;
//!
//! fn simulate(seed: u64) -> u64 {
//!     let mut rng = Rng::new(seed);
//!     // Play, assert what must hold, and count what the run met.
//!     1 + rng.below(3)
//! }
//!
//! let runs = seeds::run(0..20, simulate);
//! let met: u64 = runs.outcomes.iter().sum();
//! assert!(runs.is_alone || met > 10, "the rig meets nothing: {met}");
//! ```

use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

use outboard_base::Rng;

/// What came of the runs of several seeds.
pub struct Runs<T> {
    /// What each returned, by seed.
    pub outcomes: Vec<T>,
    /// One seed was asked for: nothing is to be concluded from how much was met.
    pub is_alone: bool,
}

/// Runs each seed of `usual`, or those the environment asks for. A run that panics is named, and
/// the panic goes on.
pub fn run<T>(usual: Range<u64>, simulate: impl FnMut(u64) -> T) -> Runs<T> {
    let asked = |name| std::env::var(name).ok().and_then(|text| text.parse().ok());
    run_asked(usual, asked("OUTBOARD_SEED"), asked("OUTBOARD_SEEDS"), simulate)
}

fn run_asked<T>(
    usual: Range<u64>,
    alone: Option<u64>,
    many: Option<u64>,
    mut simulate: impl FnMut(u64) -> T,
) -> Runs<T> {
    let end = many.map_or(usual.end, |many: u64| usual.start.saturating_add(many));
    let many = usual.start..end;
    let seeds = alone.map_or(many, |seed| seed..seed.saturating_add(1));
    let named = |seed| {
        catch_unwind(AssertUnwindSafe(|| simulate(seed))).unwrap_or_else(|panic| {
            eprintln!("OUTBOARD_SEED={seed} runs this again");
            resume_unwind(panic)
        })
    };
    Runs { outcomes: seeds.map(named).collect(), is_alone: alone.is_some() }
}

/// The random source of one part of a world: what one part draws does not move what another does.
#[must_use]
pub fn rng(seed: u64, part: &str) -> Rng {
    let mut trace = crate::Trace::default();
    trace.note_text(format_args!("{part}"));
    Rng::new(seed ^ trace.hash())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_usual_seeds_run_unless_others_are_asked_for() {
        let ran = |alone, many| run_asked(2..5, alone, many, |seed| seed).outcomes;
        assert_eq!(ran(None, None), [2, 3, 4]);
        assert_eq!(ran(None, Some(4)), [2, 3, 4, 5]);
        assert_eq!(ran(Some(9), Some(7)), [9]);
        assert!(run_asked(2..5, Some(9), None, |_| ()).is_alone);
        assert!(!run_asked(2..5, None, None, |_| ()).is_alone);
    }

    #[test]
    fn a_run_that_fails_ends_the_others_with_its_own_panic() {
        let mut ran = Vec::new();
        let outcome = catch_unwind(AssertUnwindSafe(|| {
            run_asked(0..9, None, None, |seed| {
                ran.push(seed);
                assert_ne!(seed, 3, "the third");
            })
        }));
        let panic = outcome.err().and_then(|panic| panic.downcast::<String>().ok());
        assert!(panic.is_some_and(|text| text.contains("the third")));
        assert_eq!(ran, [0, 1, 2, 3]);
    }

    #[test]
    fn parts_draw_for_themselves() {
        let drawn = |seed, part| rng(seed, part).next_u64();
        assert_eq!(drawn(1, "network"), drawn(1, "network"));
        assert_ne!(drawn(1, "network"), drawn(1, "disk"));
        assert_ne!(drawn(1, "network"), drawn(2, "network"));
    }
}
