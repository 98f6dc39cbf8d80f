//! The table against a map, at its limits, and under readers that never stop.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};

use outboard_base::Rng;
use proptest::prelude::*;

use super::{Item, Key, TableError, with_capacity};

fn item(n: u64) -> Item {
    [n, n.wrapping_mul(3), !n, n ^ 0x55]
}

#[test]
fn a_stated_number_of_items_fits_and_one_more_does_not() {
    for seed in 0..20 {
        for items in [1, 2, 5, 7, 10, 100, 1000, 20_000] {
            let (mut writer, reader) = with_capacity(items, seed).unwrap();
            let key = |n: usize| n as u64;
            for n in 0..items {
                let stored = writer.insert(key(n), item(n as u64));
                assert_eq!(stored, Ok(None), "seed {seed}, item {n} of {items}");
            }
            assert_eq!(reader.refused(), 0);
            assert_eq!(writer.insert(key(items), item(0)), Err(TableError::Full));
            assert_eq!(reader.refused(), 1);
            assert_eq!(reader.get(key(items)), None);
            // Nothing was lost by what moved, and what is there can still change.
            for n in 0..items {
                assert_eq!(reader.get(key(n)), Some(item(n as u64)), "seed {seed}");
                assert_eq!(writer.insert(key(n), item(7)), Ok(Some(item(n as u64))));
            }
            assert_eq!(writer.remove(key(0)), Some(item(7)));
            assert_eq!(writer.insert(key(items), item(9)), Ok(None));
            assert_eq!(reader.len(), items);
            writer.clear();
            assert!(reader.is_empty() && reader.get(key(items)).is_none());
        }
    }
    assert!(matches!(with_capacity(0, 0), Err(TableError::Capacity)));
    assert!(matches!(with_capacity(usize::MAX, 0), Err(TableError::Capacity)));
}

/// Keys that share both buckets: all there are in a table of two. Chains take them, and give their
/// buckets back.
#[test]
fn chains_grow_are_given_back_and_end() {
    let (mut writer, reader) = with_capacity(10, 1).unwrap();
    let room = reader.0.buckets.len() * super::bucket::PLACES;
    for round in 0..100 {
        let keys: Vec<Key> = (0..10).map(|n| (n << 32) | round).collect();
        keys.iter().for_each(|key| assert_eq!(writer.insert(*key, item(round)), Ok(None)));
        assert!(reader.load_factor() > 0.0 && room >= 10);
        keys.iter().for_each(|key| assert_eq!(writer.remove(*key), Some(item(round))));
        assert!(reader.is_empty());
    }
}

proptest! {
    /// Against a map: few keys, zero among them, so that each is stored, changed and removed often.
    #[test]
    fn it_is_a_map(
        capacity in 1usize..40,
        seed: u64,
        steps in prop::collection::vec((0u64..48, 0u8..4, any::<u64>()), 1..400),
    ) {
        let (mut writer, reader) = with_capacity(capacity, seed).unwrap();
        let mut model = BTreeMap::new();
        for (key, what, value) in steps {
            let key = ((key % 7) << 40) | (key / 7);
            match what {
                0 | 1 => match writer.insert(key, item(value)) {
                    Ok(before) => prop_assert_eq!(before, model.insert(key, item(value))),
                    // Before its stated number it refuses only if chains ran out, which a seed
                    // that fits so few keys badly can bring about.
                    Err(error) => {
                        prop_assert_eq!(error, TableError::Full);
                        prop_assert!(!model.contains_key(&key));
                        prop_assert!(model.len() == capacity);
                    }
                },
                2 => prop_assert_eq!(writer.remove(key), model.remove(&key)),
                _ => prop_assert_eq!(reader.get(key), model.get(&key).copied()),
            }
            prop_assert_eq!(reader.len(), model.len());
        }
        for (key, item) in &model {
            prop_assert_eq!(reader.get(*key), Some(*item));
            prop_assert_eq!(writer.get(*key), Some(*item));
        }
    }
}

/// Readers look without pause while the writer stores, moves and removes at nine tenths full. Each
/// item names its key, so that a wrong or torn hit shows.
#[test]
fn readers_never_see_a_wrong_item() {
    const ITEMS: u64 = 2000;
    let (mut writer, reader) = with_capacity(usize::try_from(ITEMS).unwrap(), 5).unwrap();
    let stop = AtomicBool::new(false);
    let key = |n: u64| n.rotate_left(20);
    std::thread::scope(|scope| {
        let readers: Vec<_> = (0..2)
            .map(|seed| {
                let (reader, stop) = (reader.clone(), &stop);
                scope.spawn(move || {
                    let (mut rng, mut hits) = (Rng::new(seed), 0u64);
                    while !stop.load(Ordering::Relaxed) {
                        let n = rng.below(2 * ITEMS);
                        if let Some([name, generation, ..]) = reader.get(key(n)) {
                            assert_eq!((name, generation % ITEMS), (n, n % ITEMS));
                            hits += 1;
                        }
                    }
                    hits
                })
            })
            .collect();
        let mut rng = Rng::new(9);
        for round in 0..200_000 {
            let n = rng.below(2 * ITEMS);
            if rng.chance(1, 2) {
                writer.remove(key(n));
            } else {
                let generation = round * ITEMS + n % ITEMS;
                let _full = writer.insert(key(n), [n, generation, 0, 0]);
            }
        }
        stop.store(true, Ordering::Relaxed);
        for reader in readers {
            assert!(reader.join().unwrap() > 0);
        }
    });
}
