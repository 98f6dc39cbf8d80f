//! Erasure-coded stripes, as a model (R4, R5 and R6 of `docs/internals/shared.md`): k data units
//! and m parities on as many members, writers that change some units of a stripe and die in its
//! midst, parities that add what data units send, resolvers that pause, members that die, lose
//! power alone or all together. Nothing but tests uses it: it is what the rules are tried on before
//! they are built.
//!
//! `OUTBOARD_WALKS=n` walks that many seeds, `OUTBOARD_SEED=n` one alone.

mod decide;
mod unit;
mod world;

use std::cell::Cell;

use outboard_base::Rng;

use world::World;

/// A rule that is taken away.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Canary {
    /// R4: what was replaced is not kept.
    NoRetention,
    /// R4: settled is what not all have made durable.
    SettledEarly,
    /// R4: a flush is answered before it is durable.
    FlushNotDurable,
    /// R5: a seal shuts nobody out.
    NoSeal,
    /// R5: a resolver is believed whoever sealed after it.
    LateResolver,
    /// R5: everybody has a say, whether the write touches it or not.
    NaiveAll,
    /// R6: what a data unit sends again is added again.
    AddedTwice,
    /// R6: units are decoded whatever they cover.
    AnyUnits,
    /// R2: done without the parities.
    DataIsDone,
    /// R9: a member that lost power goes on as if it had not.
    PowerIgnored,
}

thread_local! {
    static PLANTED: Cell<Option<Canary>> = const { Cell::new(None) };
}

fn is(canary: Canary) -> bool {
    PLANTED.get() == Some(canary)
}

const STEPS: usize = 900;

fn choices(seed: u64) -> Vec<u64> {
    let mut rng = Rng::new(seed);
    (0..STEPS).map(|_| rng.next_u64()).collect()
}

/// What was wrong, if anything, and what happened.
fn run(seed: u64, choices: &[u64], traced: bool) -> (World, Option<String>) {
    let mut world = World::new(seed, traced);
    for choice in choices {
        world.step(*choice);
        if world.fault().is_some() {
            break;
        }
    }
    if world.fault().is_none() {
        world.heals();
    }
    let fault = world.fault().cloned();
    (world, fault)
}

/// Fewer choices that fail, too.
fn shrink(seed: u64, mut choices: Vec<u64>) -> Vec<u64> {
    let mut piece = choices.len() / 2;
    while piece > 0 {
        let mut at = 0;
        while at < choices.len() {
            let mut fewer = choices.clone();
            fewer.drain(at..choices.len().min(at + piece));
            if run(seed, &fewer, false).1.is_some() {
                choices = fewer;
            } else {
                at += piece;
            }
        }
        piece /= 2;
    }
    choices
}

fn given(name: &str) -> Option<u64> {
    std::env::var(name).ok().and_then(|text| text.parse().ok())
}

#[test]
fn no_walk_breaks_a_coded_stripe() {
    let seeds = match given("OUTBOARD_SEED") {
        Some(seed) => seed..seed + 1,
        None => 0..given("OUTBOARD_WALKS").unwrap_or(300),
    };
    let (mut done, mut lost, mut decoded, mut forward) = (0, 0, 0, 0);
    for seed in seeds.clone() {
        let (world, fault) = run(seed, &choices(seed), false);
        if fault.is_some() {
            let (world, fault) = run(seed, &shrink(seed, choices(seed)), true);
            panic!("OUTBOARD_SEED={seed}: {}\n{}", fault.unwrap_or_default(), world.told());
        }
        let met = world.met();
        (done, lost) = (done + met.acknowledged, lost + met.all_lost);
        (decoded, forward) = (decoded + met.decoded, forward + met.forward);
    }
    println!("{done} done, power of all {lost}, {decoded} units decoded, {forward} went forward");
    if seeds.end - seeds.start >= 1000 {
        assert!(done > 1000 && lost > 100 && decoded > 100 && forward > 100);
    }
}

#[test]
fn equal_seeds_have_equal_walks_of_coded_stripes() {
    let told = || run(7, &choices(7), true).0.told();
    assert_eq!(told(), told());
}

/// Seeds until a canary counts as not noticed.
const WITHIN: u64 = 30_000;

fn is_noticed(canary: Canary, from: u64) {
    PLANTED.set(Some(canary));
    let noticed = (from..from + WITHIN).find(|seed| run(*seed, &choices(*seed), false).1.is_some());
    let seed = noticed.unwrap_or_else(|| panic!("{canary:?} is not noticed"));
    let what = run(seed, &choices(seed), false).1.unwrap_or_default();
    PLANTED.set(None);
    println!("{canary:?}: seed {seed}: {what}");
}

macro_rules! canaries {
    ($($name:ident: $canary:ident from $seed:literal,)*) => {
        $(#[test]
        fn $name() {
            is_noticed(Canary::$canary, $seed);
        })*
    };
}

canaries! {
    no_retention: NoRetention from 236,
    settled_early: SettledEarly from 32,
    flush_not_durable: FlushNotDurable from 67,
    no_seal: NoSeal from 36,
    late_resolver: LateResolver from 141,
    naive_all: NaiveAll from 3,
    added_twice: AddedTwice from 0,
    any_units: AnyUnits from 49,
    data_is_done: DataIsDone from 1,
    power_ignored: PowerIgnored from 13,
}
