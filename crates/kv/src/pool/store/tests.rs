//! The store against a map: in peace, with everything in doubt, and across owners that die or are
//! thought dead.

use std::collections::BTreeMap;
use std::pin::{Pin, pin};
use std::task::{Context, Poll, Waker};

use outboard_base::{Rng, Time};

use super::super::claim::{Me, Taken, Taking, Terms, Wanted};
use super::super::mem::{Faults, MemCluster, MemPool};
use super::*;
use crate::{Batch, Durability, Key, conformance};

mod simulation;

pub(super) type Store = PooledKv<MemPool>;

/// Small enough for everything to happen often.
pub(super) const SMALL: Options = Options {
    sweep_at: 1000,
    journal_max: 4000,
    journal_object: 400,
    split_pairs: 24,
    split_bytes: 2000,
};

/// The seeds of a test: a few, or as many as asked for (`OUTBOARD_SEEDS`).
pub(super) fn seeds(few: u64) -> std::ops::Range<u64> {
    0..std::env::var("OUTBOARD_SEEDS").ok().and_then(|s| s.parse().ok()).unwrap_or(few)
}

pub(super) fn run<T>(future: impl Future<Output = T>) -> T {
    let mut future = pin!(future);
    let mut cx = Context::from_waker(Waker::noop());
    for _ in 0..10_000_000 {
        if let Poll::Ready(out) = future.as_mut().poll(&mut cx) {
            return out;
        }
    }
    panic!("it does not end");
}

/// Takes the claim, whoever has it, waiting as long as it takes.
pub(super) async fn take(pool: &MemPool) -> super::super::Claim {
    let me = Me { name: pool.instance(), place: 0 };
    let mut taking = Taking::new(me, Wanted::OrNew(1), Terms::default());
    for second in 0..10_000 {
        if let Ok(Taken::Mine(claim)) = taking.step(pool, Time(second * 1_000_000_000)).await {
            return claim;
        }
    }
    panic!("the claim cannot be had");
}

/// Opens the store, again and again where the pool fails.
pub(super) async fn open(pool: &Arc<MemPool>, options: Options) -> Store {
    let claim = take(pool).await;
    for _ in 0..10_000 {
        match PooledKv::open(Arc::clone(pool), &claim, options).await {
            Ok(store) => return store,
            Err(error) => assert_eq!(error, KvError::Io(Errno::EIO)),
        }
    }
    panic!("it does not open");
}

fn new_store(cluster: &MemCluster, options: Options) -> Store {
    run(open(&Arc::new(cluster.client()), options))
}

pub(super) fn everything(store: &Store) -> BTreeMap<Key, Value> {
    run(store.scan(b"", None, usize::MAX)).unwrap().into_iter().collect()
}

#[test]
fn the_suite() {
    for (seed, options) in [(1, Options::default()), (2, SMALL)] {
        run(conformance::rules(&new_store(&MemCluster::new(seed), options)));
    }
    for seed in seeds(12) {
        let cluster = MemCluster::new(seed);
        let options = if seed % 4 == 0 { Options::default() } else { SMALL };
        let store = new_store(&cluster, options);
        cluster.set_faults(Faults { delay_polls: seed % 3, repeats: 5, ..Faults::default() });
        run(conformance::agrees_with_a_map(&store, seed, 1500));
        let counts = store.counts();
        assert!(options != SMALL || counts.splits > 0, "seed {seed}: {counts:?}");
    }
}
