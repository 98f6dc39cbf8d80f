//! Every interleaving and every legal reordering of the cache table's writer and a reader, up to a
//! number of preemptions: what a reader finds is whole and was stored under its key, and after a
//! removal that it knows of it finds nothing.
//!
//! `RUSTFLAGS="--cfg loom" cargo test --release -p outboard-dds --test loom`
#![allow(unexpected_cfgs, reason = "`--cfg loom` is set by hand")]
#![cfg(loom)]
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test may panic")]

use loom::sync::Arc;
use loom::sync::atomic::AtomicBool;
use loom::sync::atomic::Ordering::{Acquire, Release};
use loom::thread;
use outboard_dds::table::{Item, Key, with_capacity};

fn explore(preemptions: usize, model: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(preemptions);
    builder.max_branches = 50_000;
    builder.check(model);
}

/// Words that name their key and belong together.
fn item(key: Key, generation: u64) -> Item {
    [key, generation, key ^ generation, generation]
}

fn is_whole(key: Key, [name, generation, mixed, again]: Item) -> bool {
    name == key && mixed == key ^ generation && again == generation
}

#[test]
fn a_hit_is_whole_while_the_item_changes() {
    explore(3, || {
        let (mut writer, reader) = with_capacity(1, 1).unwrap();
        writer.insert(7, item(7, 1)).unwrap();
        let other = thread::spawn(move || {
            if let Some(found) = reader.get(7) {
                assert!(is_whole(7, found));
            }
            assert!(reader.get(8).is_none());
        });
        writer.insert(7, item(7, 2)).unwrap();
        other.join().unwrap();
    });
}

/// A place that is freed and given to another key.
#[test]
fn a_hit_is_of_its_own_key_while_the_place_changes_hands() {
    explore(2, || {
        let (mut writer, reader) = with_capacity(1, 1).unwrap();
        writer.insert(7, item(7, 1)).unwrap();
        let other = thread::spawn(move || {
            for key in [7, 8] {
                assert!(reader.get(key).is_none_or(|found| is_whole(key, found)));
            }
        });
        writer.remove(7);
        writer.insert(8, item(8, 2)).unwrap();
        other.join().unwrap();
    });
}

/// Whoever was told of a removal, by whatever means orders the two, does not find the item.
#[test]
fn what_is_removed_is_not_found_by_who_knows() {
    explore(3, || {
        let (mut writer, reader) = with_capacity(1, 1).unwrap();
        writer.insert(7, item(7, 1)).unwrap();
        let told = Arc::new(AtomicBool::new(false));
        let seen = Arc::clone(&told);
        let other = thread::spawn(move || {
            let knows = seen.load(Acquire);
            let found = reader.get(7);
            assert!(!knows || found.is_none());
        });
        writer.remove(7);
        told.store(true, Release);
        other.join().unwrap();
    });
}

/// Full buckets: items move and buckets are chained, and are given back.
#[test]
fn moves_and_chains_show_nothing_wrong() {
    explore(1, || {
        let (mut writer, reader) = with_capacity(4, 3).unwrap();
        for key in 0..3 {
            writer.insert(key, item(key, 1)).unwrap();
        }
        let other = thread::spawn(move || {
            for key in [0, 3] {
                assert!(reader.get(key).is_none_or(|found| is_whole(key, found)));
            }
        });
        writer.insert(3, item(3, 2)).unwrap();
        writer.remove(0);
        other.join().unwrap();
        assert!((1..4).all(|key| writer.get(key).is_some_and(|found| is_whole(key, found))));
    });
}
