//! The suite of the port, across openings; many at once, some dropped; a process that is killed.

mod disk;
mod losses;

use outboard_base::task::poll_once;
use std::collections::BTreeMap;
use std::pin::pin;
use std::sync::mpsc;
use std::task::{Context, Wake, Waker};
use std::time::Duration;

use outboard_base::task::join_all;
use outboard_kv::conformance;

use super::*;

struct Wakeup(mpsc::Sender<()>);

impl Wake for Wakeup {
    fn wake(self: Arc<Self>) {
        let _ = self.0.send(());
    }
}

fn run<T>(future: impl Future<Output = T>) -> T {
    let (sender, wakeup) = mpsc::channel();
    let waker = Waker::from(Arc::new(Wakeup(sender)));
    let mut future = pin!(future);
    loop {
        if let Poll::Ready(out) = future.as_mut().poll(&mut Context::from_waker(&waker)) {
            return out;
        }
        wakeup.recv_timeout(Duration::from_secs(60)).expect("it wakes");
    }
}

fn open(dir: &Path) -> RedbEngine {
    RedbEngine::open(dir, Options { reserve: 1 << 20, ..Options::default() }).unwrap()
}

fn put(key: &[u8], value: &[u8]) -> Batch {
    let mut batch = Batch::new();
    batch.put(key, value);
    batch
}

#[test]
fn snapshots_are_of_one_instant() {
    let dir = tempfile::tempdir().unwrap();
    run(conformance::snapshots(&open(dir.path()), 1, 4));
}

#[test]
fn the_suite() {
    let dir = tempfile::tempdir().unwrap();
    run(conformance::rules(&open(dir.path())));
    for seed in 0..2 {
        let dir = tempfile::tempdir().unwrap();
        let engine = open(dir.path());
        let model = run(conformance::agrees_with_a_map(&engine, seed, 300));
        drop(engine);
        let again = open(dir.path());
        let left: BTreeMap<Vec<u8>, Vec<u8>> = run(again.scan(b"", None, usize::MAX))
            .unwrap()
            .into_iter()
            .map(|(key, value)| (key.to_vec(), value.to_vec()))
            .collect();
        assert_eq!(left, model, "seed {seed}: all of it is there after opening again");
    }
}

/// Commits at the same time share transactions; of those that exclude each other one is done.
#[test]
fn many_at_once() {
    let dir = tempfile::tempdir().unwrap();
    let engine = open(dir.path());
    let commits = (0..200u8).map(|i| {
        let mut batch = put(&[b'n', i], &[i]);
        if i % 2 == 0 {
            batch.absent(b"taken");
            batch.put(b"taken", [i]);
        }
        engine.commit(batch, Durability::Answered)
    });
    let outcomes = run(join_all(commits.collect()));
    assert_eq!(outcomes.iter().filter(|outcome| outcome.is_ok()).count(), 101);
    let left = run(engine.scan(b"n", None, 1000)).unwrap();
    assert_eq!(left.len(), 101, "and what was refused left nothing");
    assert!(engine.version().0 < 150, "{} transactions", engine.version().0);
}

/// A commit that was dropped is there or will never be, as soon as a read has been answered.
#[test]
fn a_dropped_commit_is_decided() {
    let dir = tempfile::tempdir().unwrap();
    let engine = open(dir.path());
    for i in 0..100u8 {
        {
            let mut commit = pin!(engine.commit(put(&[i], b"1"), Durability::Answered));
            let _ = poll_once(commit.as_mut());
            if i % 3 == 0 {
                std::thread::yield_now();
            }
        }
        let seen = run(engine.get(&[i])).unwrap();
        run(engine.commit(put(b"other", &[i]), Durability::Answered)).unwrap();
        assert_eq!(run(engine.get(&[i])).unwrap(), seen, "commit {i}");
    }
}

#[test]
fn a_second_opening_is_refused_and_names_the_file() {
    let dir = tempfile::tempdir().unwrap();
    let _engine = open(dir.path());
    let error = RedbEngine::open(dir.path(), Options::default()).err().unwrap();
    assert!(error.to_string().contains("pairs.redb"), "{error}");
}

#[test]
fn a_disk_that_is_nearly_full_takes_deletes_only() {
    let dir = tempfile::tempdir().unwrap();
    let engine = open(dir.path());
    run(engine.commit(put(b"k", b"v"), Durability::Answered)).unwrap();
    drop(engine);
    let (free, _) = open(dir.path()).room().unwrap();
    let fs = rustix::fs::statvfs(dir.path()).unwrap();
    let sixteenth = fs.f_blocks * fs.f_frsize / 16;
    // All that is free is reserve, as far as a 16th of the disk goes.
    if free < sixteenth {
        let full = Options { reserve: u64::MAX, ..Options::default() };
        let engine = RedbEngine::open(dir.path(), full).unwrap();
        let refused = run(engine.commit(put(b"l", b"v"), Durability::Answered));
        assert_eq!(refused, Err(KvError::NoSpace));
    }
    let engine = open(dir.path());
    let mut delete = Batch::new();
    delete.delete(b"k");
    assert_eq!(run(engine.commit(delete, Durability::Answered)), Ok(()));
    let usage = engine.usage();
    assert!(usage.used > 0 && usage.used < usage.capacity);
}
