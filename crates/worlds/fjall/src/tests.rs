use outboard_base::task::poll_once;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};

use outboard_kv::conformance;
use outboard_os::room::disk_room;

use super::*;

/// Polls on this thread, sleeping until woken.
fn run<T>(future: impl Future<Output = T>) -> T {
    struct Unpark(std::thread::Thread);
    impl Wake for Unpark {
        fn wake(self: Arc<Self>) {
            self.0.unpark();
        }
    }
    let waker = Waker::from(Arc::new(Unpark(std::thread::current())));
    let mut cx = Context::from_waker(&waker);
    let mut future = pin!(future);
    loop {
        if let Poll::Ready(out) = future.as_mut().poll(&mut cx) {
            return out;
        }
        std::thread::park();
    }
}

fn open(dir: &Path) -> Engine {
    Engine::open(dir, EngineOptions::default()).unwrap()
}

#[test]
fn it_passes_the_suite() {
    let dir = tempfile::tempdir().unwrap();
    run(conformance::rules(&open(dir.path())));
    for seed in 0..5 {
        // The next opening goes on from what the last one left.
        let engine = open(dir.path());
        let model = run(conformance::agrees_with_a_map(&engine, seed, 2000));
        drop(engine);
        let found = run(open(dir.path()).scan(b"m", None, usize::MAX >> 1)).unwrap();
        let found = found.into_iter().map(|(k, v)| (k.to_vec(), v.to_vec()));
        assert!(found.eq(model), "seed {seed}");
    }
}

/// Old versions are kept for a snapshot while memory is written out and files are compacted.
#[test]
fn snapshots_are_of_one_instant() {
    let dir = tempfile::tempdir().unwrap();
    let engine =
        Engine::open(dir.path(), EngineOptions { memtable: 16 << 10, ..Default::default() });
    run(conformance::snapshots(&engine.unwrap(), 1, 20));
}

#[test]
fn syncs_from_many_threads_are_shared() {
    let dir = tempfile::tempdir().unwrap();
    let engine = open(dir.path());
    std::thread::scope(|scope| {
        for thread in 0..4u8 {
            let engine = &engine;
            scope.spawn(move || {
                for i in 0..50u8 {
                    let mut batch = Batch::new();
                    batch.put([thread, i], b"x");
                    run(engine.commit(batch, Durability::Durable)).unwrap();
                }
            });
        }
    });
    assert_eq!(run(engine.scan(b"", None, 1000)).unwrap().len(), 200);
}

/// The engine made a journal and failed before it used it; then power failed, too. The tail of the
/// journal before was taken for damage.
#[test]
fn a_torn_tail_before_an_empty_journal_opens() {
    let dir = tempfile::tempdir().unwrap();
    let engine = open(dir.path());
    for i in 0..10u8 {
        let mut batch = Batch::new();
        batch.put([i], [i; 700]);
        run(engine.commit(batch, Durability::Answered)).unwrap();
    }
    let after = tempfile::tempdir().unwrap();
    copy(dir.path(), after.path());
    let (number, path) = journals(after.path()).unwrap().pop().unwrap();
    let mut bytes = std::fs::read(&path).unwrap();
    let whole = journal::whole_batches(&bytes);
    bytes[whole - 900..whole - 800].fill(0);
    std::fs::write(&path, bytes).unwrap();
    std::fs::write(path.with_file_name(format!("{}.jnl", number + 1)), b"").unwrap();
    let found = run(open(after.path()).scan(b"", None, 100)).unwrap();
    assert!((7..10).contains(&found.len()), "{}", found.len());
}

/// A journal whose unsynced tail lost pages in the middle made the engine refuse to open
/// ("checksum mismatch"): power loss then cost the whole volume, not the tail.
#[test]
fn a_journal_with_a_hole_in_its_unsynced_tail_opens() {
    for (hole, len) in [(200, 300), (4096, 4096), (9000, 50), (20_000, 4096)] {
        let dir = tempfile::tempdir().unwrap();
        let engine = open(dir.path());
        let put = |i: u32, durability| {
            let mut batch = Batch::new();
            batch.put(i.to_be_bytes(), vec![7; 700]);
            batch.put([&i.to_be_bytes()[..], b"b"].concat(), vec![9; 700]);
            run(engine.commit(batch, durability)).unwrap();
        };
        for i in 0..10 {
            put(i, Durability::Durable);
        }
        let (_, path) = journals(dir.path()).unwrap().pop().unwrap();
        let synced = journal::whole_batches(&std::fs::read(&path).unwrap());
        for i in 10..50 {
            put(i, Durability::Answered);
        }
        // The state of the disk after power loss: a copy, taken while the engine lives.
        let after = tempfile::tempdir().unwrap();
        copy(dir.path(), after.path());
        let (_, path) = journals(after.path()).unwrap().pop().unwrap();
        let mut bytes = std::fs::read(&path).unwrap();
        bytes[synced + hole..][..len].fill(0);
        std::fs::write(&path, bytes).unwrap();
        let found = run(open(after.path()).scan(b"", None, 1000)).unwrap();
        assert!(found.len() >= 20 && found.len().is_multiple_of(2), "synced, and whole batches");
        for (at, (key, _)) in found.iter().enumerate() {
            assert_eq!(key[..4], u32::try_from(at / 2).unwrap().to_be_bytes(), "a prefix");
        }
    }
}

/// The engine's worker died of an I/O error while memtables waited for it, and a commit that was in
/// the engine then waited for ever.
#[test]
fn commits_end_when_the_engine_s_worker_has_died() {
    let dir = tempfile::tempdir().unwrap();
    let options = EngineOptions { memtable: 8 << 20, ..EngineOptions::default() };
    let engine = std::sync::Arc::new(Engine::open(dir.path(), options).unwrap());
    let put = |i: u32| {
        let mut batch = Batch::new();
        batch.put(i.to_be_bytes(), vec![7; 100_000]);
        run(engine.commit(batch, Durability::Answered))
    };
    put(0).unwrap();
    // Tables cannot be written any more: where they go is a file.
    let keyspaces = dir.path().join("keyspaces");
    for keyspace in std::fs::read_dir(&keyspaces).unwrap() {
        let tables = keyspace.unwrap().path().join("tables");
        std::fs::rename(&tables, tables.with_extension("away")).unwrap();
        std::fs::write(&tables, b"").unwrap();
    }
    let begun = std::time::Instant::now();
    let failed = (1..2_000).find(|i| put(*i).is_err());
    assert!(failed.is_some(), "200 MB went into memtables nobody can write");
    assert_eq!(put(1_000_000), Err(KvError::Io(outboard_base::Errno::EIO)));
    assert_eq!(run(engine.sync()), Err(KvError::Io(outboard_base::Errno::EIO)));
    assert!(begun.elapsed().as_secs() < 60);
    assert!(run(engine.get(&0u32.to_be_bytes())).unwrap().is_some(), "it can be read");
}

/// Copies a directory tree.
fn copy(from: &Path, to: &Path) {
    for entry in std::fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let to = to.join(entry.file_name());
        if entry.file_type().unwrap().is_dir() {
            std::fs::create_dir(&to).unwrap();
            copy(&entry.path(), &to);
        } else {
            std::fs::copy(entry.path(), &to).unwrap();
        }
    }
}

#[test]
fn it_refuses_to_fill_the_disk_but_still_deletes() {
    let dir = tempfile::tempdir().unwrap();
    let (free, _) = disk_room(dir.path(), Reserve::default()).unwrap();
    // A reserve just above what is free: the disk is full, as far as we are concerned.
    let reserve = Reserve { most: free + (1 << 30), one_in: 1 };
    drop(open(dir.path()));
    let options = EngineOptions { reserve, ..EngineOptions::default() };
    let engine = Engine::open(dir.path(), options).unwrap();
    let put = || {
        let mut batch = Batch::new();
        batch.put(b"k", b"v");
        batch
    };
    assert_eq!(run(engine.commit(put(), Durability::Answered)), Err(KvError::NoSpace));
    let mut delete = Batch::new();
    delete.delete(b"k");
    assert_eq!(run(engine.commit(delete, Durability::Answered)), Ok(()));
    let mut essential = put();
    essential.essential();
    assert_eq!(run(engine.commit(essential, Durability::Answered)), Ok(()));
}

/// How far the journal being written is not a hole, and how far it is written.
fn prepared(dir: &Path) -> (u64, u64) {
    let (_, path) = journals(dir).unwrap().pop().unwrap();
    let bytes = journal::journal_bytes(&path).unwrap();
    let file = std::fs::File::open(&path).unwrap();
    let hole = rustix::fs::seek(&file, rustix::fs::SeekFrom::Hole(0)).unwrap();
    (hole, journal::whole_batches(&bytes) as u64)
}

/// A sync was two commits of the device when it met a hole of the journal. Zeros are written ahead;
/// they must never land on what the engine wrote: whatever the sizes of batches, over changes of
/// the journal, and where a journal is taken up again, a copy of the living files has everything.
#[test]
fn the_journal_is_prepared_and_never_damaged() {
    let mut rng = outboard_base::Rng::new(7);
    let mut dir = tempfile::tempdir().unwrap();
    let mut number = 0u32;
    let sum = |number: u32| u8::try_from(number.wrapping_mul(2_654_435_761) >> 24).unwrap();
    for life in 0..4 {
        // The third life is long enough for the engine to change journals.
        let memtable = if life == 2 { 8 << 20 } else { 32 << 20 };
        let options = EngineOptions { memtable, ..EngineOptions::default() };
        let engine = Engine::open(dir.path(), options).unwrap();
        let mut left: u64 = if life == 2 { 90 << 20 } else { 5 << 20 };
        while left > 0 {
            let mut batch = Batch::new();
            // Mostly small, some larger than what is prepared at a time.
            let pairs = if rng.chance(1, 20) { 1 + rng.below(12) } else { 1 };
            for _ in 0..pairs {
                let len = if pairs > 1 { 100_000 } else { 1 + rng.below(9000) };
                batch.put(number.to_be_bytes(), vec![sum(number); usize::try_from(len).unwrap()]);
                number += 1;
            }
            left = left.saturating_sub(batch.bytes() as u64);
            let durability =
                if rng.chance(1, 50) { Durability::Durable } else { Durability::Answered };
            let last = || journals(dir.path()).unwrap().last().unwrap().0;
            let before = last();
            run(engine.commit(batch, durability)).unwrap();
            if durability == Durability::Durable && last() == before {
                assert_eq!(engine.syncer.journal_number(), before, "another was synced");
            }
        }
        if life != 2 {
            let (hole, written) = prepared(dir.path());
            assert!(hole >= written + (64 << 10), "life {life}: {written} written of {hole}");
        } else {
            assert!(journals(dir.path()).unwrap().last().unwrap().0 > 0, "it changed journals");
        }
        // As kill -9 leaves it; the engine's threads may be changing files.
        let after = loop {
            let after = tempfile::tempdir().unwrap();
            let before = journals(dir.path()).unwrap();
            std::thread::sleep(std::time::Duration::from_millis(300));
            if std::panic::catch_unwind(|| copy(dir.path(), after.path())).is_ok()
                && journals(dir.path()).unwrap() == before
            {
                break after;
            }
        };
        drop(engine);
        dir = after;
        let engine = open(dir.path());
        for at in 0..number {
            let value = run(engine.get(&at.to_be_bytes())).unwrap();
            let value = value.unwrap_or_else(|| panic!("life {life}: pair {at} of {number}"));
            assert!(value.iter().all(|byte| *byte == sum(at)), "life {life}: pair {at}");
        }
        drop(engine);
    }
}

/// A sync of what is durable already asked the device for another flush: each `O_DSYNC` write was
/// two, since the kernel sends an fsync after it.
#[test]
fn what_is_durable_is_known_to_be() {
    let dir = tempfile::tempdir().unwrap();
    let engine = open(dir.path());
    let put = |durability| {
        let mut batch = Batch::new();
        batch.put(b"k", b"v");
        run(engine.commit(batch, durability)).unwrap();
    };
    put(Durability::Answered);
    assert!(!engine.is_synced());
    run(engine.sync()).unwrap();
    assert!(engine.is_synced());
    put(Durability::Answered);
    assert!(!engine.is_synced());
    put(Durability::Durable);
    assert!(engine.is_synced());
}

/// The same, by the thread that asks. Each time another, which knows nothing of the device: one
/// that waited for a slow one asks the sync thread the next times, and on a busy machine any is
/// slow.
#[test]
fn who_is_alone_syncs_by_itself() {
    let dir = tempfile::tempdir().unwrap();
    let engine = open(dir.path());
    let commit = |i: u8| {
        outboard_os::alone::present(1);
        let mut batch = Batch::new();
        batch.put([i], [i; 3000]);
        let mut commit = pin!(engine.commit(batch, Durability::Durable));
        let outcome = poll_once(commit.as_mut());
        assert_eq!(outcome, Poll::Ready(Ok(())), "it waits for nobody");
        assert!(engine.is_synced() && outboard_os::alone::has_waited());
    };
    for i in 0..20 {
        std::thread::scope(|scope| scope.spawn(|| commit(i)).join().unwrap());
    }
}
