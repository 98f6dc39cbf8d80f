//! Whole clusters of shared volumes in one thread: two nodes, the metadata server and two clients,
//! each with a clock of its own, over a network that loses, doubles and delays. Processes die, lose
//! power, stop and come back; two hosts work on a few files and names meanwhile, and everything
//! they read is judged. In the end all is healed: everything must come to an end, both clients read
//! the same, and the server's check finds nothing.
//!
//! `OUTBOARD_SEED=n cargo test -p outboard-sim --test shared one_seed` repeats a seed and prints
//! what happened; `OUTBOARD_SEEDS=n` walks more. `docs/internals/sim.md`, "A cluster".

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::cast_possible_truncation,
    reason = "a test may panic"
)]

mod host;
mod model;
mod part;
mod walk;
mod world;

use std::panic::{AssertUnwindSafe, catch_unwind};

use outboard_sim::seeds;
use part::Planted;
use walk::{Counts, walk};

/// The usual seeds.
const SEEDS: u64 = 60;

fn sum(counts: &[Counts], of: impl Fn(&Counts) -> u64) -> u64 {
    counts.iter().map(of).sum()
}

#[test]
fn a_cluster_is_right_and_comes_to_an_end_whatever_breaks() {
    let runs = seeds::run(0..SEEDS, |seed| walk(seed, None, false));
    if runs.is_alone {
        return;
    }
    let met = |of: fn(&Counts) -> u64| sum(&runs.outcomes, of);
    assert!(met(|run| run.asked) > 10_000, "{}", met(|run| run.asked));
    assert!(met(|run| run.deaths) > 20, "{}", met(|run| run.deaths));
    assert!(met(|run| run.power) > 3, "{}", met(|run| run.power));
    assert!(met(|run| run.replays) > 20, "{}", met(|run| run.replays));
    assert!(met(|run| run.lost) > 1000, "{}", met(|run| run.lost));
}

/// Prints a seed; of the usual runs the first.
#[test]
fn one_seed() {
    let tells = std::env::var_os("OUTBOARD_SEED").is_some();
    seeds::run(0..1, |seed| println!("{:?}", walk(seed, None, tells)));
}

#[test]
fn equal_seeds_give_equal_runs() {
    for seed in [3, 4, 7] {
        assert_eq!(walk(seed, None, false), walk(seed, None, false), "seed {seed}");
    }
    assert_ne!(walk(3, None, false).trace, walk(4, None, false).trace);
}

/// Whether one of some seeds fails with this fault in the wiring.
fn is_found(planted: Planted, seeds: u64) -> bool {
    (1..=seeds)
        .any(|seed| catch_unwind(AssertUnwindSafe(|| walk(seed, Some(planted), false))).is_err())
}

#[test]
fn a_server_that_forgets_what_it_is_told_is_found() {
    assert!(is_found(Planted::Publish, 100));
}

#[test]
fn clients_that_do_not_hear_recalls_are_found() {
    assert!(is_found(Planted::Recall, 100));
}

#[test]
fn nodes_that_do_not_flush_are_found() {
    assert!(is_found(Planted::Flush, 100));
}
