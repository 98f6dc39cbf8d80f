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

mod front;
mod host;
mod member;
mod model;
mod part;
mod twice;
mod walk;
mod way;
mod world;

use std::panic::{AssertUnwindSafe, catch_unwind};

use outboard_base::planted::Fault;
use outboard_sim::seeds;
use outboard_wire::shared::Strategy;
use part::Planted;
use walk::{directed, walk};
use way::{Counts, Way};
use world::{CLIENTS, NODES};

/// The usual seeds.
const SEEDS: u64 = 40;

/// What walks met, of which there is to be more than this together.
type Met = (&'static str, fn(&Counts) -> u64, u64);

const ASKED: Met = ("asked", |run| run.asked, 10_000);
const POWER: Met = ("power", |run| run.power, 3);
const PLACED: Met = ("placed", |run| run.placed, SEEDS);

/// Walks the usual seeds, or one.
fn all_end_well(way: fn(u64) -> Way, met: &[Met]) {
    let runs = seeds::run(0..SEEDS, |seed| walk(seed, way(seed)));
    if runs.is_alone {
        return;
    }
    for (what, of, least) in met {
        let count: u64 = runs.outcomes.iter().map(of).sum();
        assert!(count > *least, "{what}: {count}");
    }
}

/// Prints a seed; of the usual runs the first.
fn one(way: fn(u64) -> Way) {
    let tells = std::env::var_os("OUTBOARD_SEED").is_some();
    seeds::run(0..1, |seed| println!("{:?}", walk(seed, Way { tells, ..way(seed) })));
}

fn usual(_: u64) -> Way {
    Way::default()
}

/// The usual way with copies: a ring for two seeds, a tree for the next two.
fn copies(seed: u64) -> Way {
    let strategy = if seed % 4 < 2 { Strategy::Ring } else { Strategy::BinaryTree };
    Way { copies: Some(strategy), ..Way::default() }
}

/// Files lie as stripes: what one node lost, or two, the others have. Of two versions of a stripe
/// of the first code one is always at enough members; of the others rules see to that.
fn stripes(seed: u64) -> Way {
    let units = [(2, 1), (3, 1), (2, 2)][(seed / 2 % 3) as usize];
    let (harsh, brings) = (seed / 6 % 2 == 1, seed / 12 % 2 == 1);
    Way { copies: Some(Strategy::Parity), units, harsh, brings, ..Way::default() }
}

/// Nodes come and go, and files are moved: of one copy, and of two.
fn moving(seed: u64) -> Way {
    let copies = (!seed.is_multiple_of(3)).then(|| copies(seed).copies).flatten();
    Way { copies, moves: true, ..Way::default() }
}

/// Stripes of three units that are moved between four nodes.
fn moving_stripes(seed: u64) -> Way {
    let (harsh, brings) = (seed / 2 % 2 == 1, seed / 4 % 2 == 1);
    let copies = Some(Strategy::Parity);
    Way { copies, units: (2, 1), moves: true, harsh, brings, ..Way::default() }
}

/// With a coordinator: files of one copy, of two, and stripes.
fn coordinated(seed: u64) -> Way {
    let way = [usual, copies, stripes][(seed / 2 % 3) as usize](seed);
    Way { coordinated: true, ..way }
}

/// What a node has rots here and there, of copies and of stripes.
fn rotting(seed: u64) -> Way {
    let way = if (seed / 2).is_multiple_of(2) { copies(seed / 2) } else { stripes(seed / 2) };
    Way { rots: true, harsh: false, ..way }
}

#[test]
fn a_cluster_is_right_and_comes_to_an_end_whatever_breaks() {
    let met: [Met; 6] = [
        ("deaths", |run| run.deaths, 20),
        ("replays", |run| run.replays, 20),
        ("lost", |run| run.lost, 1000),
        ("hits", |run| run.hits, 500),
        ("proved", |run| run.proved, 3),
        ("kept", |run| run.kept, 100),
    ];
    all_end_well(usual, &[&met[..], &[ASKED, POWER]].concat());
}

/// With two copies of each file: what one node lost with its power the other has.
#[test]
fn copies_are_right_and_come_to_an_end_whatever_breaks() {
    all_end_well(copies, &[ASKED, POWER]);
}

#[test]
fn stripes_are_right_and_come_to_an_end_whatever_breaks() {
    all_end_well(stripes, &[ASKED, POWER]);
}

#[test]
fn files_are_right_and_are_moved_whatever_breaks() {
    all_end_well(moving, &[ASKED, PLACED]);
}

#[test]
fn stripes_are_right_and_are_moved_whatever_breaks() {
    all_end_well(moving_stripes, &[ASKED, PLACED]);
}

#[test]
fn parts_come_and_go_and_files_are_right_whatever_breaks() {
    let met: [Met; 3] = [
        ("moved", |run| run.moved, 10),
        ("refused", |run| run.refused, 20),
        ("alone", |run| run.alone, 10),
    ];
    all_end_well(coordinated, &[&met[..], &[ASKED]].concat());
}

#[test]
fn what_rots_is_read_from_others_and_is_mended() {
    all_end_well(rotting, &[ASKED, ("rotten", |run| run.rotten, 15)]);
}

#[test]
fn one_seed() {
    one(usual);
}

#[test]
fn one_seed_with_copies() {
    one(copies);
}

#[test]
fn one_seed_with_stripes() {
    one(stripes);
}

#[test]
fn one_seed_that_moves() {
    one(moving);
}

#[test]
fn one_seed_with_stripes_that_moves() {
    one(moving_stripes);
}

#[test]
fn one_seed_that_rots() {
    one(rotting);
}

#[test]
fn one_seed_with_a_coordinator() {
    one(coordinated);
}

#[test]
fn equal_seeds_give_equal_runs() {
    let way = Way::default();
    for seed in [3, 4, 7] {
        assert_eq!(walk(seed, way), walk(seed, way), "seed {seed}");
    }
    assert_ne!(walk(3, way).trace, walk(5, way).trace);
    for seed in [2, 3, 4] {
        let way = coordinated(seed);
        assert_eq!(walk(seed, way), walk(seed, way), "seed {seed}, with a coordinator");
    }
}

/// Seeds until a fault counts as not found.
const WITHIN: u64 = 400;

/// One of some seeds fails with this fault, and not without. The search begins at one that did, so
/// it is two walks until the walks change, and then goes on.
fn is_found(fault: Planted, way: Way, from: u64) {
    let fails = |seed: u64, planted: Option<Planted>| {
        catch_unwind(AssertUnwindSafe(|| walk(seed, Way { planted, ..way }))).is_err()
    };
    let from = std::env::var("OUTBOARD_FROM").map_or(from, |from| from.parse().unwrap());
    let mut seeds = (from..from + WITHIN).step_by(2);
    let found = seeds.find(|seed| fails(*seed, Some(fault)) && !fails(*seed, None));
    let seed = found.unwrap_or_else(|| panic!("{fault:?} is not found"));
    println!("{fault:?} is found by seed {seed}");
}

const CACHED: Way = Way {
    planted: None,
    cached: Some(true),
    harsh: false,
    apart: false,
    copies: None,
    units: (0, 0),
    brings: false,
    moves: false,
    coordinated: false,
    rots: false,
    tells: false,
};
const HARSH: Way = Way { harsh: true, ..CACHED };
/// The same without caches.
const EXPOSED: Way = Way { cached: None, ..HARSH };
const COPIED: Way = Way { copies: Some(Strategy::Ring), ..EXPOSED };
const CODED: Way = Way { copies: Some(Strategy::Parity), units: (3, 1), ..COPIED };
/// What one of two nodes has rots.
const ROTTING: Way = Way { rots: true, copies: Some(Strategy::Ring), cached: None, ..CACHED };
/// With a coordinator.
const KNOWN: Way = Way { coordinated: true, cached: None, ..CACHED };

macro_rules! canaries {
    ($($name:ident: $planted:expr, $way:expr, from $seed:literal,)*) => {
        $(#[test]
        #[cfg_attr(not(debug_assertions), ignore = "nothing is planted in such a build")]
        fn $name() {
            is_found($planted, $way, $seed);
        })*
    };
}

canaries! {
    a_server_that_forgets_what_it_is_told: Planted::Publish, Way::default(), from 2,
    clients_that_do_not_hear_recalls: Planted::Deaf, Way::default(), from 2,
    nodes_that_do_not_flush: Planted::Flush, Way::default(), from 6,
    nodes_that_do_not_say_what_they_lost: Planted::Boot, Way::default(), from 318,
    a_server_that_does_not_say_what_it_forgot: Planted::Forgets, EXPOSED, from 410,
    nodes_that_take_what_comes_again: Planted::Below(Fault::Order), Way::default(), from 48,
    a_recall_that_waits_for_nobody: Planted::Below(Fault::Recall), CACHED, from 1,
    a_file_that_is_not_marked: Planted::Below(Fault::Mark), HARSH, from 17,
    stripes_over_what_is_not_durable: Planted::Below(Fault::Volatile), CODED, from 146,
    rows_that_are_not_read: Planted::Below(Fault::Unread), CODED, from 0,
    stripes_that_too_few_have: Planted::Below(Fault::Few), CODED, from 34,
    what_rots_stays_so: Planted::Below(Fault::Rotten), ROTTING, from 74,
    a_name_that_two_have: Planted::Below(Fault::Name), KNOWN, from 2,
    a_coordinator_that_forgets: Planted::Lazy, KNOWN, from 6,
    nodes_that_are_not_looked_for: Planted::Unlooked, KNOWN, from 6,
    a_server_of_another_store: Planted::Unbound, KNOWN, from 74,
    parts_that_end_with_their_coordinator: Planted::Mortal, KNOWN, from 160,
}

/// A story ends well, whatever is planted that it is not about; and not without its rules.
fn is_shown(story: fn(Option<Fault>) -> bool, rules: &[Fault], others: &[Fault]) {
    assert!(story(None));
    for rule in others {
        assert!(story(Some(*rule)), "{rule:?} is not needed here");
    }
    for rule in rules {
        let is_well = catch_unwind(|| story(Some(*rule)));
        assert!(!is_well.unwrap_or(false), "{rule:?} is not shown");
    }
}

macro_rules! stories {
    ($($name:ident: [$($rule:ident),*], not [$($other:ident),*],)*) => {
        $(#[test]
        #[cfg_attr(not(debug_assertions), ignore = "nothing is planted in such a build")]
        fn $name() {
            is_shown(directed::$name, &[$(Fault::$rule),*], &[$(Fault::$other),*]);
        })*
    };
}

stories! {
    what_comes_after_the_seal_counts_for_nobody: [Seal, Fence], not [Order],
    what_comes_again_changes_nothing: [Order], not [Fence],
    leases_end_at_clients_before_they_do_at_the_server: [Margin], not [Leased, Late],
    a_host_reads_nothing_past_its_lease: [Leased], not [Late],
    a_read_that_comes_late_is_none: [Unfenced], not [Late, Fence],
    a_server_that_stood_still_destroys_nothing: [Buried], not [Term],
    stripes_end_where_their_writer_was_answered: [Untold], not [Order],
}

#[test]
fn a_host_sees_what_it_wrote() {
    assert!(directed::a_host_sees_what_it_wrote());
}

#[test]
fn what_a_cache_has_is_written_back_before_others_read() {
    assert!(directed::what_a_cache_has_is_written_back_before_others_read());
}

#[test]
fn what_others_did_not_find_does_not_come_back() {
    assert!(directed::what_others_did_not_find_does_not_come_back());
}

#[test]
fn what_a_cache_has_outlives_the_server() {
    assert!(directed::what_a_cache_has_outlives_the_server());
}

#[test]
fn who_is_unreached_holds_nobody_up() {
    let [first, second] = NODES;
    for (one, other) in [(first, second), (CLIENTS[0], first), (CLIENTS[0], second)] {
        assert!(directed::who_is_unreached_holds_nobody_up(one, other), "{one} and {other}");
    }
}

#[test]
fn damage_is_mended() {
    use Strategy::{BinaryTree, Parity, Ring};
    for strategy in [Ring, BinaryTree, Parity] {
        assert!(directed::damage_is_mended(strategy, None), "{strategy:?}");
        assert!(!directed::damage_is_mended(strategy, Some(Fault::Rotten)), "{strategy:?}");
        assert!(directed::damage_takes_nothing_back(strategy), "{strategy:?}");
        for (how, writer) in directed::ways_a_disk_fails() {
            let goes_on = directed::a_disk_that_fails_holds_nobody_up(strategy, how, writer);
            assert!(goes_on, "{strategy:?}, {how:?}, {writer}");
        }
    }
}

#[test]
fn an_append_is_done_once() {
    use directed::Dies::{Both, Client, ClientForLong, Server};
    let deaf: [&[usize]; 4] = [&[], &NODES[..1], &NODES[1..], &NODES];
    for deaf in deaf {
        for dies in [Client, ClientForLong, Server, Both] {
            for patterns in [[1, 2], [1, 1]] {
                let is_once = directed::an_append_is_done_once(deaf, dies, patterns);
                assert!(is_once, "{deaf:?} {dies:?} {patterns:?}");
            }
        }
    }
}
