//! The second embedded engine: `redb` behind the [`Kv`] port.
//!
//! redb is a copy-on-write B-tree in one file, and knows two kinds of commit: one that is on the
//! device, and one that is nowhere until the next of the first kind. Nothing in between survives
//! the death of a process, so here every commit is durable, and `sync` has nothing to do. What
//! makes that bearable is group commit: a thread puts everything that waits into one transaction,
//! judges each batch in it, in order, and answers all after one flush.
//!
//! A volume lies in it where that is asked for (`--store redb`); and the port's promises are
//! checked against it beside the engine volumes use by default: another design (a tree in place of
//! sorted files, one writer) under the same suites.

#![forbid(unsafe_code)]

mod writer;

use std::future::poll_fn;
use std::io;
use std::ops::Bound;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::task::Poll;
use std::thread::JoinHandle;

use outboard_base::Errno;
use outboard_kv::{Batch, Durability, Key, Kv, KvError, Snapshot, Usage, Value, Version};
use redb::{
    Database, ReadOnlyTable, ReadableDatabase, ReadableTableMetadata, StorageError,
    TableDefinition, TableError,
};

pub use writer::Counts;
use writer::Queue;

/// The one table there is.
const PAIRS: TableDefinition<'_, &[u8], &[u8]> = TableDefinition::new("outboard");

/// How the engine is opened.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Bytes of pages kept in memory.
    pub cache: usize,
    /// Space of the disk that only essential batches and deletes may use: at most so much, and one
    /// part in 16.
    pub reserve: u64,
}

impl Default for Options {
    fn default() -> Options {
        Options { cache: 32 << 20, reserve: 256 << 20 }
    }
}

/// The engine.
pub struct RedbEngine {
    database: Arc<Database>,
    queue: Arc<Queue>,
    thread: Option<JoinHandle<()>>,
    dir: PathBuf,
    options: Options,
}

/// The error of the engine as one of the port.
fn failed(error: &redb::Error) -> KvError {
    match error {
        redb::Error::Corrupted(_) => KvError::Corrupt,
        redb::Error::Io(error) => {
            let code = error.raw_os_error().and_then(|code| u32::try_from(code).ok());
            KvError::from(code.map_or(Errno::EIO, Errno::from_raw))
        }
        _ => KvError::Io(Errno::EIO),
    }
}

fn read_failed(error: StorageError) -> KvError {
    failed(&error.into())
}

impl RedbEngine {
    /// Opens the engine's file in `dir`, making both if there are none. One process at a time.
    ///
    /// # Errors
    ///
    /// It is in use, damaged, or cannot be read or written.
    pub fn open(dir: &Path, options: Options) -> io::Result<RedbEngine> {
        std::fs::DirBuilder::new().recursive(true).mode(0o700).create(dir)?;
        let path = dir.join("pairs.redb");
        let named = |error: redb::Error| {
            io::Error::other(format!("cannot open the store {}: {error}", path.display()))
        };
        let database = Database::builder().set_cache_size(options.cache).create(&path);
        let database = database.map_err(|error| named(error.into()))?;
        RedbEngine::over(database, dir, options).map_err(|error| match error {
            Failed::Engine(error) => named(error),
            Failed::Thread(error) => error,
        })
    }

    /// The same over a database; its disk is that of `dir`.
    fn over(database: Database, dir: &Path, options: Options) -> Result<RedbEngine, Failed> {
        let database = Arc::new(database);
        // The table is there from now on, so that reads find it.
        make_table(&database).map_err(Failed::Engine)?;
        let queue = Arc::new(Queue::default());
        let thread = {
            let (database, queue) = (Arc::clone(&database), Arc::clone(&queue));
            let thread = std::thread::Builder::new().name("outboard-redb".into());
            thread
                .spawn(move || queue.serve(|group| writer::write(&database, group)))
                .map_err(Failed::Thread)?
        };
        Ok(RedbEngine { database, queue, thread: Some(thread), dir: dir.into(), options })
    }

    /// Whether it has failed for good: what became of a batch is not known, or nobody writes any
    /// more. Another opening finds out.
    #[must_use]
    pub fn is_poisoned(&self) -> bool {
        self.queue.health().is_err()
    }

    /// What it did so far, and has before it.
    #[must_use]
    pub fn counts(&self) -> Counts {
        self.queue.counts()
    }

    /// How many pairs there are.
    ///
    /// # Errors
    ///
    /// The file cannot be read.
    pub fn count_pairs(&self) -> Result<u64, KvError> {
        self.table()?.len().map_err(read_failed)
    }

    fn table(&self) -> Result<ReadOnlyTable<&'static [u8], &'static [u8]>, KvError> {
        let read = self.database.begin_read().map_err(|error| failed(&error.into()))?;
        read.open_table(PAIRS).map_err(|error| failed(&error.into()))
    }

    /// Waits for batches that are being written though nobody waits for them any more: who dropped
    /// one must learn what became of it.
    async fn orphans(&self) {
        poll_fn(
            |cx| if self.queue.has_orphans(cx.waker()) { Poll::Pending } else { Poll::Ready(()) },
        )
        .await;
    }

    /// Bytes free on the disk, and bytes to keep back of them.
    fn room(&self) -> Option<(u64, u64)> {
        let fs = rustix::fs::statvfs(&self.dir).ok()?;
        let total = fs.f_blocks.saturating_mul(fs.f_frsize);
        let free = fs.f_bavail.saturating_mul(fs.f_frsize);
        Some((free, (total / 16).min(self.options.reserve)))
    }

    /// Refuses what would take the space that deleting needs: pages are copied before they are
    /// freed, and a transaction that finds no space ends the engine's life.
    fn admit(&self, batch: &Batch) -> Result<(), KvError> {
        let Some((free, kept)) = self.room() else { return Ok(()) };
        let shrinks = batch.is_essential() || batch.writes().iter().all(|w| w.value.is_none());
        let kept = if shrinks { kept / 4 } else { kept };
        // Twice: the page that is copied, and the one that splits; and so for what waits.
        let cost = 2 * (self.queue.bytes() + batch.bytes()) as u64;
        if free < kept.saturating_add(cost) { Err(KvError::NoSpace) } else { Ok(()) }
    }
}

/// Why an engine cannot be made over a database.
#[derive(Debug)]
enum Failed {
    Engine(redb::Error),
    Thread(io::Error),
}

fn make_table(database: &Database) -> Result<(), redb::Error> {
    match database.begin_read()?.open_table(PAIRS) {
        // Nothing is to be written, for which a full disk may have no room.
        Ok(_) => return Ok(()),
        Err(TableError::TableDoesNotExist(_)) => {}
        Err(error) => return Err(error.into()),
    }
    let write = database.begin_write()?;
    write.open_table(PAIRS)?;
    write.commit()?;
    Ok(())
}

impl Drop for RedbEngine {
    fn drop(&mut self) {
        self.queue.stop();
        if let Some(thread) = self.thread.take() {
            // A panic there has poisoned the queue, and every batch has its outcome.
            let _ = thread.join();
        }
    }
}

/// A read transaction: its pages are not used again while it lasts.
struct Frozen(ReadOnlyTable<&'static [u8], &'static [u8]>);

impl Snapshot for Frozen {
    fn scan(&self, after: Option<&[u8]>, limit: usize) -> Result<Vec<(Key, Value)>, KvError> {
        let start = after.map_or(Bound::Unbounded, Bound::Excluded);
        let range = self.0.range::<&[u8]>((start, Bound::Unbounded)).map_err(read_failed)?;
        let mut pairs = Vec::new();
        for pair in range.take(limit) {
            let (key, value) = pair.map_err(read_failed)?;
            pairs.push((key.value().into(), value.value().into()));
        }
        Ok(pairs)
    }
}

impl Kv for RedbEngine {
    async fn get(&self, key: &[u8]) -> Result<Option<Value>, KvError> {
        self.orphans().await;
        let found = self.table()?.get(key).map_err(read_failed)?;
        Ok(found.map(|value| value.value().into()))
    }

    async fn get_many(&self, keys: &[Key]) -> Result<Vec<Option<Value>>, KvError> {
        self.orphans().await;
        let table = self.table()?;
        let get = |key: &Key| -> Result<Option<Value>, KvError> {
            let found = table.get(&key[..]).map_err(read_failed)?;
            Ok(found.map(|value| value.value().into()))
        };
        keys.iter().map(get).collect()
    }

    async fn scan(
        &self,
        prefix: &[u8],
        after: Option<&[u8]>,
        limit: usize,
    ) -> Result<Vec<(Key, Value)>, KvError> {
        self.orphans().await;
        let start = match after {
            Some(after) if after >= prefix => Bound::Excluded(after),
            _ => Bound::Included(prefix),
        };
        let table = self.table()?;
        let range = table.range::<&[u8]>((start, Bound::Unbounded)).map_err(read_failed)?;
        let mut pairs = Vec::new();
        for pair in range.take(limit) {
            let (key, value) = pair.map_err(read_failed)?;
            if !key.value().starts_with(prefix) {
                break;
            }
            pairs.push((key.value().into(), value.value().into()));
        }
        Ok(pairs)
    }

    async fn commit(&self, batch: Batch, _: Durability) -> Result<(), KvError> {
        batch.check_limits::<Self>()?;
        self.admit(&batch)?;
        let asked = self.queue.ask(batch)?;
        poll_fn(|cx| asked.poll(cx.waker())).await
    }

    async fn sync(&self) -> Result<(), KvError> {
        // What was answered is on the device.
        self.queue.health()
    }

    fn is_synced(&self) -> bool {
        self.queue.health().is_ok()
    }

    fn version(&self) -> Version {
        Version(self.queue.version())
    }

    fn snapshot(&self) -> Result<Box<dyn Snapshot>, KvError> {
        Ok(Box::new(Frozen(self.table()?)))
    }

    fn usage(&self) -> Usage {
        let used = std::fs::metadata(self.dir.join("pairs.redb")).map_or(0, |file| file.len());
        match self.room() {
            Some((free, reserve)) => Usage { capacity: used.saturating_add(free), used, reserve },
            None => Usage { capacity: u64::MAX, used, reserve: 0 },
        }
    }
}

#[cfg(test)]
mod tests;
