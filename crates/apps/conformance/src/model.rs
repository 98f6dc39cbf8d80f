//! Random work against a file system simple enough to be right.
//!
//! - `Step`: what is tried, with indices for names, inodes and handles, so that proptest can shrink
//!   a failing sequence to a few steps (`generator`);
//! - `Reference`: a file system in a few maps that tells for each `Action` what must be seen, or
//!   every error that applies: POSIX leaves open which of several is told (`reference`);
//! - [`run`]: does the same steps through a [`Front`] and compares every answer, and now and then
//!   the whole tree (`harness`).
//!
//! Three users take turns, so permissions are compared too. Times are not: the suite's cases are
//! for those.

mod generator;
mod harness;
mod reference;
mod refusals;

use std::cell::RefCell;
use std::time::{SystemTime, UNIX_EPOCH};

use proptest::test_runner::{Config, RngAlgorithm, TestCaseError, TestError, TestRng, TestRunner};

use crate::front::Front;

/// How much is tried.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Effort {
    /// Sequences.
    pub sequences: u32,
    /// Most steps in one.
    pub steps: usize,
    /// Where chance starts.
    pub seed: u64,
}

impl Default for Effort {
    fn default() -> Effort {
        Effort { sequences: 100, steps: 80, seed: 1 }
    }
}

/// Tries random sequences through `front`; the shortest failing one found, as text.
pub fn run(front: &mut dyn Front, effort: Effort) -> Result<(), String> {
    let mut seed = [0; 32];
    for (place, byte) in seed.iter_mut().zip(effort.seed.to_le_bytes()) {
        *place = byte;
    }
    let config = Config {
        cases: effort.sequences,
        failure_persistence: None,
        max_shrink_iters: 2000,
        ..Config::default()
    };
    let rng = TestRng::from_seed(RngAlgorithm::ChaCha, &seed);
    // A directory that failed stays for a look, so that names differ between runs, too.
    let started = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_millis();
    let state = RefCell::new((front, 0_u64));
    let strategy = generator::steps(effort.steps);
    let outcome = TestRunner::new_with_rng(config, rng).run(&strategy, |steps| {
        let (front, played) = &mut *state.borrow_mut();
        *played += 1;
        let name = format!("model-{started}-{played}");
        harness::play(*front, &name, &steps).map_err(TestCaseError::fail)
    });
    outcome.map_err(|error| match error {
        TestError::Fail(why, steps) => {
            format!("seed {}: {why}\nafter shrinking to {} steps", effort.seed, steps.len())
        }
        TestError::Abort(why) => format!("seed {}: gave up: {why}", effort.seed),
    })
}
