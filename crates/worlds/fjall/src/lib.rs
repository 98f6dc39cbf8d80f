//! The embedded key-value engine: `fjall` behind the [`Kv`] port.
//!
//! What is done here that the engine does not do by itself:
//! - *conditions*: commits pass one lock, under which a batch's conditions are judged;
//! - *answered means flushed to the OS*: every batch is pushed through the engine's journal buffer
//!   to the operating system before its commit ends;
//! - *group commit beside commits*: the journal is synced through a descriptor of our own, one sync
//!   for all who wait, while commits go on (the engine's own sync holds its writer lock). Its
//!   leader is a thread, or who asks if it is alone;
//! - *one write and one flush a sync*: the journal's space is written ahead of the engine, so that
//!   a sync makes the file system change nothing of its own;
//! - *power loss*: the engine refuses to open on a journal whose unsynced tail was lost in pieces;
//!   `journal` cuts such a tail at the last whole batch first;
//! - *room*: commits are refused with `NoSpace` while there is still space to delete and compact
//!   in.
//!
//! See `docs/internals/kv.md`.

#![forbid(unsafe_code)]

mod current;
mod journal;
mod pressure;
mod reclaim;
pub mod recorder;
mod room;
mod syncer;
#[cfg(test)]
mod tests;

use std::collections::HashSet;
use std::io;
use std::ops::Bound;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use fjall::{Database, Keyspace, KeyspaceCreateOptions, PersistMode, Readable, Slice};
use outboard_base::Errno;
use outboard_kv::{
    Batch, Durability, Key, KeyVersions, Kv, KvError, Snapshot, Usage, Value, Version,
};

use current::Current;
pub use journal::JournalMark;
pub(crate) use journal::journal_bytes;
use outboard_os::room::Reserve;
use pressure::Pressure;
use reclaim::Reclaim;
use room::Room;
use syncer::Syncer;

/// How the engine is opened.
#[derive(Clone, Copy, Debug)]
pub struct EngineOptions {
    /// Bytes of stored blocks kept in memory, below whatever cache stands before the engine.
    pub cache: u64,
    /// Bytes of recent writes kept in memory before they are sorted into files.
    pub memtable: u64,
    /// Bytes of journal kept before memory is written out; bounds the replay at the next opening.
    pub journal: u64,
    /// Space of the disk that stays free.
    pub reserve: Reserve,
}

impl Default for EngineOptions {
    fn default() -> EngineOptions {
        EngineOptions {
            cache: 32 << 20,
            memtable: 32 << 20,
            journal: 256 << 20,
            reserve: Reserve::default(),
        }
    }
}

/// What is in the engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EngineCounts {
    /// Pairs, about: what was written twice or deleted is counted until a compaction meets it.
    pub pairs: u64,
    /// Journals.
    pub journals: u64,
    /// Their bytes on the disk.
    pub journal_bytes: u64,
}

/// The engine.
pub struct Engine {
    // Dropped before the database: its thread reads the database's journals.
    syncer: Syncer,
    reclaim: Reclaim,
    pairs: Keyspace,
    database: Database,
    commits: Mutex<Commits>,
    pressure: Pressure,
    room: Room,
}

/// What the lock that orders commits guards.
struct Commits {
    versions: KeyVersions,
    /// Bytes committed since a sync was last asked for here.
    unsynced: usize,
}

/// Bytes committed before the journal is synced unasked: when the engine begins another journal it
/// syncs this one under its writer lock, and then little must be left to write.
const UNSYNCED_MAX: usize = 4 << 20;
/// What must be free beside a compaction of everything, bytes.
const MARGIN: u64 = 16 << 20;
/// One more than keyspaces: a worker that begins another memtable waits for room in the queue of
/// all workers, and one of them must be there to take from it.
const WORKERS: usize = 2;
/// The one keyspace there is.
const KEYSPACE: &str = "outboard";

impl Engine {
    /// Opens the engine's files in `dir`, making them if there are none. The caller holds the data
    /// directory's lock.
    pub fn open(dir: &Path, options: EngineOptions) -> io::Result<Engine> {
        std::fs::DirBuilder::new().recursive(true).mode(0o700).create(dir)?;
        journal::repair(dir)?;
        let before = journals(dir)?.pop().map(|(number, _)| number);
        let database = Database::builder(dir)
            .cache_size(options.cache)
            .max_journaling_size(options.journal.max(64 << 20))
            .journal_compression(fjall::CompressionType::None)
            .worker_threads(WORKERS)
            .open()
            .map_err(|error| open_failed(dir, error))?;
        let shape = || KeyspaceCreateOptions::default().max_memtable_size(options.memtable);
        let pairs = database.keyspace(KEYSPACE, shape).map_err(|e| open_failed(dir, e))?;
        Ok(Engine {
            syncer: Syncer::start(Current::find(dir, before)?)?,
            reclaim: Reclaim::default(),
            pairs,
            database,
            commits: Mutex::new(Commits { versions: KeyVersions::new(), unsynced: 0 }),
            pressure: Pressure::default(),
            room: Room::new(dir.to_path_buf(), options.reserve),
        })
    }

    /// What is in it.
    #[must_use]
    pub fn counts(&self) -> EngineCounts {
        EngineCounts {
            pairs: self.pairs.approximate_len() as u64,
            journals: self.database.journal_count() as u64,
            journal_bytes: self.database.journal_disk_space().unwrap_or(0),
        }
    }

    fn commits(&self) -> MutexGuard<'_, Commits> {
        self.commits.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn look(&self, key: &[u8]) -> Result<Option<Slice>, KvError> {
        self.pairs.get(key).map_err(|e| failed(&e))
    }

    /// Waits until the engine takes a commit without holding it.
    async fn has_room_in_memory(&self) -> Result<(), KvError> {
        // Refused by an engine whose worker has died.
        let works = || self.database.persist(PersistMode::Buffer).map_err(|e| failed(&e));
        let subsided = self.pressure.subsides(&self.pairs, works).await;
        if subsided.is_err() {
            self.syncer.poison();
        }
        subsided
    }

    /// Judges and applies a batch. Answered when it returns.
    fn apply(&self, batch: &Batch) -> Result<(), KvError> {
        self.syncer.healthy()?;
        batch.check_limits::<Self>()?;
        let mut commits = self.commits();
        for condition in batch.conditions() {
            let key = condition.key();
            if batch.version().is_none_or(|since| commits.versions.written_since(key, since))
                && !condition.holds(self.look(key)?.as_deref())
            {
                return Err(KvError::Conflict);
            }
        }
        if batch.is_empty() {
            return Ok(());
        }
        if let Err(full) = self.room.admit(batch, || self.pairs.disk_space()) {
            let sorted = self.pairs.disk_space();
            self.reclaim.begin(&self.pairs, self.room.now(0).0 > sorted + MARGIN);
            return Err(full);
        }
        let writes = batch.writes();
        let mut stored = self.database.batch().durability(Some(PersistMode::Buffer));
        // One sequence number serves the batch: a key must not occur twice in it. The last wins.
        let mut seen = HashSet::with_capacity(writes.len());
        for write in writes.iter().rev().filter(|w| seen.insert(&w.key)) {
            match &write.value {
                Some(value) => stored.insert(&self.pairs, &write.key[..], &value[..]),
                None => stored.remove(&self.pairs, &write.key[..]),
            }
        }
        if let Err(error) = stored.commit() {
            // The journal may or may not hold it: nothing may be built upon either answer.
            self.syncer.poison();
            return Err(failed(&error));
        }
        self.syncer.committed(journal::encoded_len(batch));
        commits.versions.record(batch);
        self.reclaim.deleted(writes.iter().filter(|write| write.value.is_none()).count());
        commits.unsynced += batch.bytes();
        self.pressure.committed(batch.bytes());
        if commits.unsynced > UNSYNCED_MAX {
            commits.unsynced = 0;
            self.syncer.nudge();
        }
        Ok(())
    }

    /// The directory's size on disk, bytes; walks the engine's own accounts, not the files.
    fn used(&self) -> u64 {
        self.database.disk_space().unwrap_or(0)
    }
}

fn failed(error: &fjall::Error) -> KvError {
    match error {
        fjall::Error::Io(error) | fjall::Error::Storage(fjall::LsmError::Io(error)) => {
            Errno::from(error).into()
        }
        fjall::Error::Storage(_) | fjall::Error::Decompress(_) => KvError::Corrupt,
        _ => KvError::Io(Errno::EIO),
    }
}

fn open_failed(dir: &Path, error: fjall::Error) -> io::Error {
    let dir = dir.display();
    match error {
        fjall::Error::Io(error) => error,
        fjall::Error::InvalidVersion(_) => io::Error::new(
            io::ErrorKind::Unsupported,
            format!("the key-value files in {dir} are of another version"),
        ),
        fjall::Error::Locked => io::Error::new(
            io::ErrorKind::ResourceBusy,
            format!("the key-value files in {dir} are in use by another process"),
        ),
        other => io::Error::new(
            io::ErrorKind::InvalidData,
            format!("the key-value files in {dir} cannot be opened: {other}"),
        ),
    }
}

/// The first key after all that start with `prefix`.
fn prefix_end(prefix: &[u8]) -> Option<Vec<u8>> {
    let kept = prefix.iter().rposition(|byte| *byte != u8::MAX)?;
    let mut end = prefix.get(..=kept)?.to_vec();
    if let Some(last) = end.last_mut() {
        *last += 1;
    }
    Some(end)
}

fn pair(guard: fjall::Guard) -> Result<(Key, Value), KvError> {
    let (key, value) = guard.into_inner().map_err(|e| failed(&e))?;
    Ok((Key::from(&key[..]), Value::from(&value[..])))
}

/// The engine's own snapshot: compactions keep what it sees.
struct Frozen {
    snapshot: fjall::Snapshot,
    pairs: Keyspace,
}

impl Snapshot for Frozen {
    fn scan(&self, after: Option<&[u8]>, limit: usize) -> Result<Vec<(Key, Value)>, KvError> {
        let start = after.map_or(Bound::Unbounded, |after| Bound::Excluded(after.to_vec()));
        let range = (start, Bound::Unbounded);
        let found = self.snapshot.range::<Vec<u8>, _>(&self.pairs, range);
        found.take(limit).map(pair).collect()
    }
}

impl Kv for Engine {
    async fn get(&self, key: &[u8]) -> Result<Option<Value>, KvError> {
        Ok(self.look(key)?.map(|value| Value::from(&value[..])))
    }

    async fn scan(
        &self,
        prefix: &[u8],
        after: Option<&[u8]>,
        limit: usize,
    ) -> Result<Vec<(Key, Value)>, KvError> {
        let start = match after {
            Some(after) if after >= prefix => Bound::Excluded(after.to_vec()),
            _ => Bound::Included(prefix.to_vec()),
        };
        let end = prefix_end(prefix);
        if let (Some(end), Bound::Excluded(after)) = (&end, &start)
            && after >= end
        {
            return Ok(Vec::new());
        }
        let end = end.map_or(Bound::Unbounded, Bound::Excluded);
        let mut found = Vec::new();
        for guard in self.pairs.range::<Vec<u8>, _>((start, end)).take(limit) {
            found.push(pair(guard)?);
        }
        Ok(found)
    }

    async fn commit(&self, batch: Batch, durability: Durability) -> Result<(), KvError> {
        self.has_room_in_memory().await?;
        self.apply(&batch)?;
        match durability {
            Durability::Answered => Ok(()),
            Durability::Durable => self.syncer.sync().await,
        }
    }

    async fn sync(&self) -> Result<(), KvError> {
        self.syncer.sync().await
    }

    fn is_synced(&self) -> bool {
        self.syncer.is_synced()
    }

    fn idle(&self) {
        self.syncer.idle();
    }

    fn version(&self) -> Version {
        self.commits().versions.now()
    }

    fn snapshot(&self) -> Result<Box<dyn Snapshot>, KvError> {
        // Under the lock of commits: none is half visible.
        let _commits = self.commits();
        Ok(Box::new(Frozen { snapshot: self.database.snapshot(), pairs: self.pairs.clone() }))
    }

    fn usage(&self) -> Usage {
        let used = self.used();
        let (free, reserve) = self.room.now(self.pairs.disk_space());
        Usage { capacity: used.saturating_add(free), used, reserve }
    }
}

/// The files of journals in `dir`, by rising number.
fn journals(dir: &Path) -> io::Result<Vec<(u64, PathBuf)>> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(dir)? {
        let path = entry?.path();
        if path.extension().is_some_and(|e| e == "jnl")
            && let Some(stem) = path.file_stem().and_then(|s| s.to_str())
            && let Ok(number) = stem.parse()
        {
            found.push((number, path));
        }
    }
    found.sort_unstable();
    Ok(found)
}
