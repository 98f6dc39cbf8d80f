//! How often the store under the objects is asked.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use outboard_base::Errno;

use super::*;
use crate::{Cached, Key, Usage, Value, Version};
use outboard_medium::Buf;

/// A store that counts how often it is asked for values: in a pool, ways there and back.
struct Counting(MemKv, AtomicU64);

impl Kv for Counting {
    async fn get(&self, key: &[u8]) -> Result<Option<Value>, KvError> {
        self.1.fetch_add(1, Ordering::Relaxed);
        self.0.get(key).await
    }

    async fn get_many(&self, keys: &[Key]) -> Result<Vec<Option<Value>>, KvError> {
        self.1.fetch_add(u64::from(!keys.is_empty()), Ordering::Relaxed);
        self.0.get_many(keys).await
    }

    async fn scan(
        &self,
        prefix: &[u8],
        after: Option<&[u8]>,
        limit: usize,
    ) -> Result<Vec<(Key, Value)>, KvError> {
        self.1.fetch_add(1, Ordering::Relaxed);
        self.0.scan(prefix, after, limit).await
    }

    async fn commit(&self, batch: Batch, durability: Durability) -> Result<(), KvError> {
        self.0.commit(batch, durability).await
    }

    async fn sync(&self) -> Result<(), KvError> {
        self.0.sync().await
    }

    fn version(&self) -> Version {
        self.0.version()
    }

    fn usage(&self) -> Usage {
        self.0.usage()
    }
}

/// Each MiB of a new file cost four gets of index pages that were not there, one after the other:
/// in a pool more than the write itself.
#[test]
fn who_writes_in_sequence_asks_once_for_four_mebibytes() {
    const MEBIBYTE: u64 = 1 << 20;
    let kv = Arc::new(Cached::new(Counting(MemKv::new(1), AtomicU64::new(0)), 1 << 20));
    let asked = || kv.inner().1.load(Ordering::Relaxed);
    let medium = Arc::new(MemMedium::new(1));
    let options = Options { capacity: 64 << 20, ..options() };
    let (store, _) = run(Objects::open(Arc::clone(&kv), medium, options)).unwrap();
    let before = asked();
    for at in 0..8 {
        let mut batch = Batch::at(kv.version());
        let data = vec![at as u8; MEBIBYTE as usize];
        let staged = run(store.write(ObjectId(9), at * MEBIBYTE, &data, &mut batch)).unwrap();
        run(kv.commit(batch, Durability::Answered)).unwrap();
        staged.committed();
    }
    assert_eq!(asked() - before, 2);
    // What was looked for too early is found once it is there.
    let mut read = vec![0; LEN];
    run(store.read(ObjectId(9), 7 * MEBIBYTE, &mut read)).unwrap();
    assert_eq!(read, [7; LEN]);
}

/// A medium that has read all of itself ahead.
struct Ahead(MemMedium);

impl Medium for Ahead {
    fn ahead(&self) -> u64 {
        1 << 20
    }

    async fn expected(&self, bytes: Range<u64>) -> Option<Buf> {
        let whole = Buf::zeroed(usize::try_from(self.0.len()).ok()?);
        let (read, whole) = self.0.read(0, whole).await;
        read.ok()?;
        Buf::part(&Arc::new(whole), bytes.start as usize..bytes.end as usize)
    }

    async fn read(&self, offset: u64, buf: Buf) -> (Result<(), Errno>, Buf) {
        self.0.read(offset, buf).await
    }

    async fn write(&self, offset: u64, buf: Buf) -> (Result<(), Errno>, Buf) {
        self.0.write(offset, buf).await
    }

    async fn flush(&self) -> Result<(), Errno> {
        self.0.flush().await
    }

    async fn grow(&self, len: u64) -> Result<(), Errno> {
        self.0.grow(len).await
    }

    fn len(&self) -> u64 {
        self.0.len()
    }
}

/// Of a block read in part the whole is kept; it was a part of what had been read ahead, 4 MiB of a
/// pool, which stayed in memory with it: for 512 blocks kept up to 2 GiB.
#[test]
fn a_block_that_is_kept_keeps_no_more_than_itself() {
    let kv = Arc::new(MemKv::new(1));
    let options = Options { capacity: 64 << 20, ..options() };
    let medium = Arc::new(Ahead(MemMedium::new(1)));
    let (store, _) = run(Objects::open(Arc::clone(&kv), medium, options)).unwrap();
    let mut batch = Batch::at(kv.version());
    let staged = run(store.write(ObjectId(9), 0, &[7; 1 << 16], &mut batch)).unwrap();
    run(kv.commit(batch, Durability::Answered)).unwrap();
    staged.committed();
    for at in 0..16 {
        let mut read = [0; 4096];
        run(store.read(ObjectId(9), at * 4096, &mut read)).unwrap();
        assert_eq!(read, [7; 4096]);
    }
    assert!(store.recent.owns_all());
}
