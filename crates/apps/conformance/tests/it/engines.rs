//! Every engine a volume can lie in, put to one set of tests: memory, the two embedded ones, and a
//! pool in memory with its journal and shards. The pool of a real cluster is put to the same where
//! its driver is (`crates/worlds/rados/tests/it/volume.rs`).

use std::sync::Arc;

use outboard_base::Time;
use outboard_conformance::engines::{Engine, answer_alike, run, volume};
use outboard_conformance::every_engine;
use outboard_fjall as fjall;
use outboard_kv::mem::MemKv;
use outboard_medium::mem::MemMedium;
use outboard_os::medium::{FileMedium, MediumOptions};
use outboard_pool::mem::{Faults, MemCluster, MemPool};
use outboard_pool::{Me, Options, PooledKv, Striped, Taken, Taking, Terms, Wanted};
use outboard_redb::RedbEngine;
use tempfile::TempDir;

every_engine! {
    memory: Memory;
    fjall_in_a_directory: Fjall;
    redb_in_a_directory: Redb;
    pool_in_memory: Pool;
}

#[test]
fn all_engines_answer_alike() {
    let (memory, fjall) = (Memory::new(3).unwrap(), Fjall::new(3).unwrap());
    let (redb, pool) = (Redb::new(3).unwrap(), Pool::new(3).unwrap());
    answer_alike(vec![
        Box::new(volume(&memory, false)),
        Box::new(volume(&fjall, false)),
        Box::new(volume(&redb, false)),
        Box::new(volume(&pool, false)),
    ]);
    pool.look_back();
}

struct Memory(Arc<MemKv>, Arc<MemMedium>);

impl Engine for Memory {
    type Kv = MemKv;
    type Medium = MemMedium;
    const NAME: &'static str = "memory";

    fn new(seed: u64) -> Option<Memory> {
        Some(Memory(Arc::new(MemKv::new(seed)), Arc::new(MemMedium::new(seed))))
    }

    fn parts(&self) -> (Arc<MemKv>, Arc<MemMedium>) {
        (Arc::clone(&self.0), Arc::clone(&self.1))
    }

    fn takes(case: &str) -> bool {
        // As long as all the others together; the front in this process does it in memory.
        !case.contains("65000")
    }
}

/// In memory, if there is a directory there: commits of the second engine wait for a flush, and how
/// long a disk takes for one is not what is asked here.
fn directory() -> TempDir {
    tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).unwrap()
}

fn data_file(directory: &TempDir) -> Arc<FileMedium> {
    let options = MediumOptions { threads: 1, ..MediumOptions::default() };
    Arc::new(FileMedium::open(&directory.path().join("blocks"), options).unwrap())
}

struct Fjall(
    Arc<fjall::Engine>,
    Arc<FileMedium>,
    #[expect(dead_code, reason = "is dropped last")] TempDir,
);

impl Engine for Fjall {
    type Kv = fjall::Engine;
    type Medium = FileMedium;
    const NAME: &'static str = "fjall";

    fn new(_: u64) -> Option<Fjall> {
        let directory = directory();
        let options = fjall::EngineOptions::default();
        let engine = fjall::Engine::open(&directory.path().join("kv"), options).unwrap();
        let medium = data_file(&directory);
        Some(Fjall(Arc::new(engine), medium, directory))
    }

    fn parts(&self) -> (Arc<fjall::Engine>, Arc<FileMedium>) {
        (Arc::clone(&self.0), Arc::clone(&self.1))
    }
}

struct Redb(
    Arc<RedbEngine>,
    Arc<FileMedium>,
    #[expect(dead_code, reason = "is dropped last")] TempDir,
);

impl Engine for Redb {
    type Kv = RedbEngine;
    type Medium = FileMedium;
    const NAME: &'static str = "redb";

    fn new(_: u64) -> Option<Redb> {
        let directory = directory();
        let options = outboard_redb::Options::default();
        let engine = RedbEngine::open(&directory.path().join("kv"), options).unwrap();
        let medium = data_file(&directory);
        Some(Redb(Arc::new(engine), medium, directory))
    }

    fn parts(&self) -> (Arc<RedbEngine>, Arc<FileMedium>) {
        (Arc::clone(&self.0), Arc::clone(&self.1))
    }
}

/// A pool whose operations overtake each other, swept and split all the time.
struct Pool(Arc<PooledKv<MemPool>>, Arc<Striped<MemPool>>);

impl Engine for Pool {
    type Kv = PooledKv<MemPool>;
    type Medium = Striped<MemPool>;
    const NAME: &'static str = "pool";

    fn new(seed: u64) -> Option<Pool> {
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
        Some(Pool(kv, medium))
    }

    fn parts(&self) -> (Arc<PooledKv<MemPool>>, Arc<Striped<MemPool>>) {
        (Arc::clone(&self.0), Arc::clone(&self.1))
    }

    fn look_back(&self) {
        assert!(self.0.counts().splits > 0, "{:?}", self.0.counts());
    }
}
