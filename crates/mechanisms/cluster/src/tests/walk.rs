//! Random walks. A walk is a list of choices, made from its seed; one that fails is cut down to the
//! choices that are needed, and what happened is printed.
//!
//! `OUTBOARD_WALKS=n` walks that many seeds, `OUTBOARD_SEED=n` one alone.

use outboard_base::Rng;

use super::world::{Slow, World};
use crate::fault::{Fault, PLANTED};

/// Choices of a walk.
const STEPS: usize = 700;

/// What was wrong, if anything.
fn run(slow: Slow, choices: &[u64], traced: bool) -> (Option<String>, Vec<String>) {
    let mut world = World::new(slow, traced);
    for choice in choices {
        world.step(*choice);
        if world.oracle.fault.is_some() {
            break;
        }
    }
    if world.oracle.fault.is_none() {
        world.heals();
    }
    (world.oracle.fault.take(), world.trace.take().unwrap_or_default())
}

fn choices(seed: u64) -> Vec<u64> {
    let mut rng = Rng::new(seed);
    (0..STEPS).map(|_| rng.next_u64()).collect()
}

/// Fewer choices that fail, too.
fn shrink(slow: Slow, mut choices: Vec<u64>) -> Vec<u64> {
    let mut piece = choices.len() / 2;
    while piece > 0 {
        let mut at = 0;
        while at < choices.len() {
            let mut fewer = choices.clone();
            fewer.drain(at..choices.len().min(at + piece));
            if run(slow, &fewer, false).0.is_some() {
                choices = fewer;
            } else {
                at += piece;
            }
        }
        piece /= 2;
    }
    choices
}

/// A failing walk: what was wrong, and the steps that lead there.
pub(super) struct Failure {
    pub(super) seed: u64,
    pub(super) what: String,
    pub(super) trace: Vec<String>,
}

/// Walks these seeds with this fault planted, to the first failure.
pub(super) fn walk(
    fault: Option<Fault>,
    slow: impl Fn(u64) -> Slow,
    seeds: std::ops::Range<u64>,
) -> Option<Failure> {
    PLANTED.set(fault);
    let fails = |seed: &u64| run(slow(*seed), &choices(*seed), false).0.is_some();
    let failed = seeds.into_iter().find(fails);
    let failure = failed.map(|seed| {
        let slow = slow(seed);
        let (what, trace) = run(slow, &shrink(slow, choices(seed)), true);
        Failure { seed, what: what.unwrap_or_default(), trace }
    });
    PLANTED.set(None);
    failure
}

fn given(name: &str) -> Option<u64> {
    std::env::var(name).ok().and_then(|text| text.parse().ok())
}

/// Nothing that was acknowledged, synced or promised is missed, whatever happens.
#[test]
fn no_walk_breaks_the_protocol() {
    let seeds = match given("OUTBOARD_SEED") {
        Some(seed) => seed..seed + 1,
        None => 0..given("OUTBOARD_WALKS").unwrap_or(3000),
    };
    if let Some(failure) = walk(None, Slow::of, seeds) {
        let Failure { seed, what, trace } = failure;
        panic!("OUTBOARD_SEED={seed}: {what}\n{}", trace.join("\n"));
    }
}

/// A member that was filling had all strips complete, took a SEAL and said that it was filled; then
/// the RESOLVE made it forget one, as it lacked what was decided. What it had said counted, for it
/// knew the seal: it became ACTIVE without that strip, the other members went, and nothing was ever
/// decided of the strip again. The walk is the first that met it; `directed` has the plan.
#[test]
fn who_is_filled_between_seal_and_resolve_is_not_active() {
    assert!(walk(None, |_| Slow::None, 434_104..434_105).is_none());
    let without = walk(Some(Fault::FilledWhileSealed), |_| Slow::None, 434_104..434_105);
    assert!(without.is_some_and(|failure| failure.what.starts_with("no end")));
}

#[test]
fn equal_seeds_have_equal_walks() {
    let trace = || run(Slow::None, &choices(7), true).1;
    assert_eq!(trace(), trace());
    assert!(trace().len() > STEPS / 2);
}
