//! A disk that is really full, under the engine and under the medium: commits and writes are
//! refused with `NoSpace`, nothing breaks, deleting works, and once space is freed so does
//! everything.
//!
//! Needs root for a small file system of its own; says so and passes where it has none.

#![forbid(unsafe_code)]
#![expect(clippy::unwrap_used, reason = "tests say so when they fail")]

#[path = "../../os/tests/skips/mod.rs"]
mod skips;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use outboard_base::Rng;
use outboard_fjall::{Engine, EngineOptions};
use outboard_kv::object::{ObjectId, Objects, Options, Progress};
use outboard_kv::{Batch, Cached, Durability, Kv, KvError};
use outboard_os::executor::block_on;
use outboard_os::medium::{FileMedium, MediumOptions, Reactor};
use outboard_os::room::Reserve;
use skips::note_skip;

type Store = Objects<Cached<Engine>, FileMedium>;

/// A tmpfs of so many bytes, until dropped.
struct SmallDisk(PathBuf);

impl SmallDisk {
    fn new(dir: &Path, size: u64) -> Result<SmallDisk, String> {
        let options = std::ffi::CString::new(format!("size={size}")).unwrap();
        let flags = rustix::mount::MountFlags::empty();
        rustix::mount::mount("outboard-test", dir, "tmpfs", flags, &*options)
            .map_err(|error| error.to_string())?;
        Ok(SmallDisk(dir.to_path_buf()))
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let flags = rustix::mount::UnmountFlags::DETACH;
        if let Err(error) = rustix::mount::unmount(&self.0, flags) {
            eprintln!("cannot unmount {}: {error}", self.0.display());
        }
    }
}

fn put(kv: &Cached<Engine>, number: u64, rng: &mut Rng) -> Result<(), KvError> {
    let mut value = vec![0; 8192];
    rng.fill(&mut value);
    let mut batch = Batch::new();
    batch.put([&b"k"[..], &number.to_be_bytes()].concat(), value);
    block_on(kv.commit(batch, Durability::Answered))
}

fn write(kv: &Cached<Engine>, store: &Store, offset: u64, data: &[u8]) -> Result<(), KvError> {
    block_on(async {
        let mut batch = Batch::at(kv.version());
        let staged = store.write(ObjectId(1), offset, data, &mut batch).await?;
        kv.commit(batch, Durability::Answered).await?;
        staged.committed();
        Ok(())
    })
}

fn delete(kv: &Cached<Engine>, store: &Store) -> Result<(), KvError> {
    block_on(async {
        let mut from = 0;
        loop {
            let mut batch = Batch::at(kv.version());
            batch.essential();
            let (staged, progress) = store.punch(ObjectId(1), from, u64::MAX, &mut batch).await?;
            kv.commit(batch, Durability::Answered).await?;
            staged.committed();
            match progress {
                Progress::Done => return store.tidy().await,
                Progress::More { from: next } => from = next,
            }
        }
    })
}

fn scenario(dir: &Path) {
    let reserve = Reserve { most: 256 << 20, one_in: 4 };
    let options = EngineOptions { reserve, memtable: 2 << 20, ..EngineOptions::default() };
    let engine = Engine::open(&dir.join("kv"), options).unwrap();
    let kv = Arc::new(Cached::new(engine, 1 << 20));
    let options = MediumOptions { reserve, ..MediumOptions::default() };
    let medium = FileMedium::open(&dir.join("blocks"), options).unwrap();
    let _reactor = Reactor::install(32).unwrap();
    let options = Options { segment: 4 << 20, ..Options::default() };
    let (store, _) = block_on(Objects::open(kv.clone(), medium, options)).unwrap();
    let mut rng = Rng::new(1);
    let big = vec![5; 1 << 20];

    // Files fill half of it, pairs the rest, and then neither grows.
    let mut offset = 0;
    while offset < 48 << 20 {
        write(&kv, &store, offset, &big).unwrap();
        offset += 1 << 20;
    }
    let pairs = (0..).find(|number| put(&kv, *number, &mut rng).is_err()).unwrap();
    assert_eq!(put(&kv, pairs, &mut rng), Err(KvError::NoSpace));
    assert!(pairs > 1000, "{pairs} pairs");
    while write(&kv, &store, offset, &big).is_ok() {
        offset += 1 << 20;
    }
    assert_eq!(write(&kv, &store, offset, &big), Err(KvError::NoSpace));

    // What is there is there, can be synced, and can be deleted.
    assert_eq!(block_on(store.sync()), Ok(()));
    let mut out = vec![0; 1 << 20];
    block_on(store.read(ObjectId(1), 0, &mut out)).unwrap();
    assert!(out == big);
    delete(&kv, &store).unwrap();
    for first in (0..pairs).step_by(100) {
        let mut batch = Batch::new();
        for number in first..(first + 100).min(pairs) {
            batch.delete([&b"k"[..], &number.to_be_bytes()].concat());
        }
        block_on(kv.commit(batch, Durability::Answered)).unwrap();
    }

    // File space is free at once; the pairs' when the engine has compacted, in its own time.
    let end = Instant::now() + Duration::from_secs(240);
    write(&kv, &store, 0, &[7; 100]).or_else(|error| wait(&kv, end, error)).unwrap();
    let mut number = 0;
    while number < pairs / 2 {
        match put(&kv, number, &mut rng) {
            Ok(()) => number += 1,
            Err(error) => wait(&kv, end, error).unwrap(),
        }
    }
    let report = block_on(store.check(true, |_| ())).unwrap();
    assert_eq!(report.faults, []);
}

/// Gives the engine time to compact, which deletes hurry along.
fn wait(kv: &Cached<Engine>, end: Instant, error: KvError) -> Result<(), KvError> {
    if error != KvError::NoSpace || Instant::now() > end {
        return Err(error);
    }
    std::thread::sleep(Duration::from_millis(20));
    let mut batch = Batch::new();
    for number in 0..100u64 {
        batch.delete([&b"gone"[..], &number.to_be_bytes()].concat());
    }
    block_on(kv.commit(batch, Durability::Answered))
}

#[test]
fn a_full_disk_works_again_once_space_is_freed() {
    let dir = tempfile::tempdir().unwrap();
    match SmallDisk::new(dir.path(), 192 << 20) {
        Ok(disk) => scenario(&disk.0),
        Err(error) => note_skip("full-disk", &format!("no small file system here: {error}")),
    }
}
