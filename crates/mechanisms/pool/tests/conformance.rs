//! The suite, on the engine in memory, bare and behind the cache; and what a crash leaves of it.

use outboard_base::task::run;

use outboard_kv::mem::{Faults, MemKv};
use outboard_kv::{Batch, Cached, Durability, Kv, KvError, conformance};
use outboard_pool as pool;
use outboard_pool::mem::MemCluster;

#[test]
fn the_engine_in_memory() {
    run(conformance::rules(&MemKv::new(1)));
    for seed in 0..20 {
        let kv = MemKv::new(seed);
        kv.set_faults(Faults { delay_polls: seed % 3, ..Faults::default() });
        run(conformance::agrees_with_a_map(&kv, seed, 1500));
    }
}

#[test]
fn the_pool_in_memory() {
    for delay_polls in [0, 5] {
        let cluster = MemCluster::new(delay_polls);
        cluster.set_faults(pool::mem::Faults { delay_polls, ..Default::default() });
        let (one, other) = (cluster.client(), cluster.client());
        run(pool::conformance::rules(&one));
        run(pool::conformance::fencing(&one, &other));
    }
}

#[test]
fn the_cache_before_it() {
    for (seed, bytes) in [(1, 0), (2, 4 << 10), (3, 64 << 20)] {
        let kv = Cached::new(MemKv::new(seed), bytes);
        run(conformance::rules(&kv));
        run(conformance::agrees_with_a_map(&kv, seed, 5000));
        run(conformance::snapshots(&kv, seed, 20));
    }
}

/// Commits, one key each, then power loss: a prefix is left, and all that was synced.
#[test]
fn a_crash_keeps_a_prefix() {
    for seed in 0..200 {
        let kv = MemKv::new(seed);
        let synced = seed % 40;
        for i in 0..40u64 {
            let mut batch = Batch::new();
            batch.put(i.to_be_bytes(), b"");
            run(kv.commit(batch, Durability::Answered)).unwrap();
            if i + 1 == synced {
                run(kv.sync()).unwrap();
            }
        }
        kv.crash();
        let left = run(kv.scan(b"", None, 100)).unwrap();
        assert!(left.len() as u64 >= synced, "seed {seed}");
        for (i, (key, _)) in (0u64..).zip(left) {
            assert_eq!(key[..], i.to_be_bytes(), "seed {seed}");
        }
    }
}

#[test]
fn a_full_store_still_deletes() {
    let kv = MemKv::new(1);
    kv.set_faults(Faults { capacity: 16 << 10, ..Faults::default() });
    let fill = |i: u64| {
        let mut batch = Batch::new();
        batch.put(i.to_be_bytes(), [0; 1000]);
        run(kv.commit(batch, Durability::Answered))
    };
    let full = (0..100).find(|i| fill(*i).is_err()).unwrap();
    assert_eq!(fill(full), Err(KvError::NoSpace));
    let mut essential = Batch::new();
    essential.essential();
    essential.delete(0u64.to_be_bytes());
    essential.put(b"log of it", [0; 100]);
    assert_eq!(run(kv.commit(essential, Durability::Answered)), Ok(()));
    assert_eq!(fill(full), Ok(()));
}

#[test]
fn a_failed_sync_is_final_until_reopened() {
    let kv = MemKv::new(1);
    kv.set_faults(Faults { sync_fails: true, ..Faults::default() });
    assert!(run(kv.sync()).is_err());
    kv.set_faults(Faults::default());
    assert!(run(kv.sync()).is_err());
    assert!(run(kv.commit(Batch::new(), Durability::Answered)).is_err());
    kv.crash();
    assert_eq!(run(kv.sync()), Ok(()));
}
