//! The store of a node against a simple reference, under crashes, losses of power and faults.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test may panic")]

#[path = "store/copies.rs"]
mod copies;
#[path = "store/directed.rs"]
mod directed;
#[path = "store/headers.rs"]
mod headers;
#[path = "store/model.rs"]
mod model;
#[path = "store/protocol.rs"]
mod protocol;

use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};

use model::Walk;
use outboard_base::planted::{Fault, plant};

/// `OUTBOARD_SEED=n` runs one seed alone, `OUTBOARD_SEEDS=n` so many.
fn seeds(count: u64) -> Range<u64> {
    let given = |name| std::env::var(name).ok().and_then(|text| text.parse::<u64>().ok());
    match given("OUTBOARD_SEED") {
        Some(seed) => seed..seed + 1,
        None => 0..given("OUTBOARD_SEEDS").unwrap_or(count),
    }
}

#[test]
fn walks() {
    let seeds = seeds(100);
    let is_all = seeds.end - seeds.start > 1000;
    let (mut crashes, mut full, mut failed, mut dropped) = (0, 0, 0, 0);
    for seed in seeds {
        let mut walk = Walk::new(seed);
        walk.run();
        crashes += walk.crashes;
        full += walk.full;
        failed += walk.failed;
        dropped += walk.dropped;
    }
    println!("{crashes} crashes, {full} full, {failed} failed, {dropped} dropped");
    assert!(!is_all || full > 100 && failed > 100 && dropped > 100);
}

/// Seeds until a fault counts as not found.
const WITHIN: u64 = 2000;

/// Each rule that is taken away is missed by a walk. The search begins at a seed that misses it.
#[test]
#[cfg_attr(not(debug_assertions), ignore = "nothing is planted in such a build")]
fn rules_that_are_taken_away_are_missed() {
    let faults = [
        (Fault::Chain, 235),
        (Fault::Unchecked, 14),
        (Fault::Reused, 5),
        (Fault::Freed, 1367),
        (Fault::Noted, 23),
        (Fault::Alone, 0),
        (Fault::Unkept, 0),
        (Fault::Unordered, 0),
        (Fault::Gap, 0),
        (Fault::Settled, 0),
        (Fault::Omitted, 0),
        (Fault::Undecided, 8),
        (Fault::Eager, 8),
    ];
    for (fault, from) in faults {
        plant(Some(fault));
        let fails = |seed: &u64| catch_unwind(AssertUnwindSafe(|| Walk::new(*seed).run())).is_err();
        let found = (from..from + WITHIN).find(fails);
        plant(None);
        println!("{fault:?}: {found:?}");
        assert!(found.is_some(), "{fault:?} is not missed");
    }
}
