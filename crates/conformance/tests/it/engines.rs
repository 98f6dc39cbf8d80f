//! KVFS over every engine there is beside the one of the other tests: a pool in memory, with its
//! journal and shards, and the second embedded engine. The pool of a real cluster has the same
//! tests where its driver is.

use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use outboard_base::Time;
use outboard_conformance::front::in_process::InProcessFront;
use outboard_conformance::model::{self, Effort};
use outboard_conformance::{Front, runner};
use outboard_kv::medium::mem::MemMedium;
use outboard_kv::pool::mem::{Faults, MemCluster, MemPool};
use outboard_kv::pool::{Me, Options, PooledKv, Striped, Taken, Taking, Terms, Wanted};
use outboard_redb::RedbEngine;

fn run<T>(future: impl Future<Output = T>) -> T {
    let mut future = pin!(future);
    let mut cx = Context::from_waker(Waker::noop());
    loop {
        if let Poll::Ready(out) = future.as_mut().poll(&mut cx) {
            return out;
        }
    }
}

type Pooled = InProcessFront<Arc<PooledKv<MemPool>>, Arc<Striped<MemPool>>>;

/// A volume in a pool whose operations overtake each other, swept and split all the time.
fn pooled(seed: u64) -> (Arc<PooledKv<MemPool>>, Pooled) {
    let cluster = MemCluster::new(seed);
    let pool = Arc::new(cluster.client());
    let me = Me { name: "a test".into(), place: 0 };
    let taken = run(Taking::new(me, Wanted::OrNew(1), Terms::default()).step(&pool, Time(0)));
    let Ok(Taken::Mine(claim)) = taken else { panic!("{taken:?}") };
    let narrow = Options {
        sweep_at: 32 << 10,
        journal_max: 256 << 10,
        journal_object: 16 << 10,
        split_pairs: 64,
        split_bytes: 64 << 10,
    };
    let kv = Arc::new(run(PooledKv::open(Arc::clone(&pool), &claim, narrow)).unwrap());
    let medium = Arc::new(run(Striped::open(pool, &claim)).unwrap());
    cluster.set_faults(Faults { delay_polls: 2, ..Faults::default() });
    (Arc::clone(&kv), InProcessFront::over(kv, medium, false).unwrap())
}

fn passes(front: &mut dyn Front) {
    let mut told = Vec::new();
    let report = runner::run(front, "", false, &mut told).unwrap();
    let told = String::from_utf8_lossy(&told);
    assert!(report.failed.is_empty(), "{told}");
    assert!(report.passed > 250, "the suite has lost its cases: {told}");
}

#[test]
fn a_volume_in_a_pool_passes_the_suite() {
    let (kv, mut front) = pooled(1);
    passes(&mut front);
    assert!(kv.counts().splits > 0, "{:?}", kv.counts());
}

#[test]
fn a_volume_in_a_pool_agrees_with_the_reference() {
    let (kv, mut front) = pooled(2);
    model::run(&mut front, Effort::default()).unwrap();
    assert!(kv.counts().splits > 0, "{:?}", kv.counts());
}

/// In memory, if there is a directory there: each commit of the second engine waits for a flush,
/// and how long a disk takes for one is not what is asked here.
fn directory() -> tempfile::TempDir {
    tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).unwrap()
}

fn second(directory: &std::path::Path) -> InProcessFront<RedbEngine, MemMedium> {
    let engine = RedbEngine::open(directory, outboard_redb::Options::default()).unwrap();
    InProcessFront::over(engine, MemMedium::new(2), false).unwrap()
}

#[test]
fn a_volume_in_the_second_engine_passes_the_suite() {
    let directory = directory();
    passes(&mut second(directory.path()));
}

#[test]
fn a_volume_in_the_second_engine_agrees_with_the_reference() {
    let directory = directory();
    model::run(&mut second(directory.path()), Effort::default()).unwrap();
}
