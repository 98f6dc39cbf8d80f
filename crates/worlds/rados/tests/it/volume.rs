//! What every key-value store and every volume must do, on those of a pool.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::JoinHandle;

use outboard_base::Time;
use outboard_conformance::engines::{Engine, answer_alike, volume};
use outboard_conformance::front::in_process::InProcessFront;
use outboard_conformance::{every_engine, runner};
use outboard_kv::{Kv, conformance};
use outboard_pool::{Claim, Me, Options, PooledKv, Striped, Taken, Taking, Terms, Wanted};
use outboard_rados::{Location, Rados};

use crate::{block_on, clear, location};

/// A store in a namespace of its own, with its worker, until it is ended.
struct Store {
    pool: Arc<Rados>,
    claim: Claim,
    kv: Arc<PooledKv<Rados>>,
    medium: Arc<Striped<Rados>>,
    worker: JoinHandle<()>,
}

impl Store {
    fn open(location: &Location, options: Options) -> Store {
        let pool = Arc::new(Rados::connect(location).unwrap());
        let me = Me { name: "a test".into(), place: 1 };
        let mut taking = Taking::new(me, Wanted::OrNew(7), Terms::default());
        let claim = loop {
            // One place has one owner at most: an earlier one is dead, and nothing is waited for.
            if let Taken::Mine(claim) = block_on(taking.step(&*pool, Time(1))).unwrap() {
                break claim;
            }
        };
        let kv = block_on(PooledKv::open(Arc::clone(&pool), &claim, options)).unwrap();
        let medium = Arc::new(block_on(Striped::open(Arc::clone(&pool), &claim)).unwrap());
        let kv = Arc::new(kv);
        let working = Arc::clone(&kv);
        let worker = std::thread::spawn(move || {
            while block_on(working.work()).is_err() {
                if working.is_poisoned() {
                    return;
                }
                std::thread::sleep(std::time::Duration::from_millis(50));
            }
        });
        Store { pool, claim, kv, medium, worker }
    }

    /// Ends it without a word to the pool: the next owner reads the journal.
    fn die(self) {
        self.kv.stop();
        self.worker.join().unwrap();
    }

    /// Forgets it: its worker goes on until the next owner has fenced it off.
    fn vanish(self) {
        drop(self.worker);
    }

    fn end(self) {
        block_on(self.kv.drain()).unwrap();
        self.kv.stop();
        self.worker.join().unwrap();
        block_on(self.claim.release(&*self.pool)).unwrap();
        clear(&self.pool);
    }
}

/// Shards so small that they split all the time, and a journal that is always near its end.
fn narrow() -> Options {
    Options {
        sweep_at: 64 << 10,
        journal_max: 512 << 10,
        journal_object: 32 << 10,
        split_pairs: 64,
        split_bytes: 64 << 10,
    }
}

every_engine! {
    cluster: Cluster;
}

/// A store as an engine like every other.
struct Cluster(Store);

impl Engine for Cluster {
    type Kv = PooledKv<Rados>;
    type Medium = Striped<Rados>;
    const NAME: &'static str = "rados";

    fn new(seed: u64) -> Option<Cluster> {
        static NUMBER: AtomicU64 = AtomicU64::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let location = location(&format!("engine.{number}"))?;
        // As it is for users, and as it is near its bounds.
        let options = if seed == 1 { Options::default() } else { narrow() };
        Some(Cluster(Store::open(&location, options)))
    }

    fn parts(&self) -> (Arc<PooledKv<Rados>>, Arc<Striped<Rados>>) {
        (Arc::clone(&self.0.kv), Arc::clone(&self.0.medium))
    }

    fn takes(case: &str) -> bool {
        // 130,000 commits one after the other take minutes.
        !case.contains("65000") || std::env::var_os("OUTBOARD_WHOLE_SUITE").is_some()
    }

    fn end(self) {
        self.0.end();
    }
}

#[test]
fn the_key_value_store_agrees_with_a_map_over_many_lives() {
    let Some(location) = location("lives") else { return };
    let mut store = Store::open(&location, narrow());
    for seed in 1..=6 {
        let model = block_on(conformance::agrees_with_a_map(&store.kv, seed, 400));
        // As a killed process ends; every other one's operations are shut out by the fence alone.
        if seed % 2 == 0 {
            store.die()
        } else {
            store.vanish()
        };
        store = Store::open(&location, narrow());
        let found = block_on(store.kv.scan(b"m", None, usize::MAX >> 1)).unwrap();
        let found: BTreeMap<Vec<u8>, Vec<u8>> =
            found.into_iter().map(|(key, value)| (key.to_vec(), value.to_vec())).collect();
        assert_eq!(found, model, "seed {seed}");
    }
    store.end();
}

#[test]
fn renames_asked_for_twice_are_done_once() {
    let Some(cluster) = Cluster::new(2) else { return };
    let (mut front, mut told) = (volume(&cluster, true), Vec::new());
    let report = runner::run(&mut front, "rename", false, &mut told).unwrap();
    let told = String::from_utf8_lossy(&told);
    assert!(report.failed.is_empty(), "{told}");
    assert!(report.passed >= 10, "the suite has lost its cases: {told}");
    drop(front);
    cluster.end();
}

#[test]
fn a_volume_on_a_cluster_answers_as_one_in_memory() {
    let Some(cluster) = Cluster::new(2) else { return };
    let memory = InProcessFront::new(false).unwrap();
    answer_alike(vec![Box::new(memory), Box::new(volume(&cluster, false))]);
    cluster.end();
}
