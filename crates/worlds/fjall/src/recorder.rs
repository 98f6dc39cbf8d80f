//! Records what the real storage drivers write and flush, and makes from it the disks that power
//! loss could have left at any moment.
//!
//! - [`Recorder`] stands before a [`Medium`]: it keeps every write with its bytes, and when it and
//!   every flush began and ended. [`Recorder::replay`] writes the medium as it could be found: what
//!   a flush begun after the write's answer had ended is there; of the rest, any subset by 512-byte
//!   sectors. A flush of the whole device by somebody else ([`OnDevice`]) makes durable only what
//!   had been handed over to the device before it began.
//! - [`JournalWatch`] stands before an [`Engine`](crate::Engine) and notes how much of its
//!   journal each sync covered. [`JournalWatch::replay`] copies the engine's files and takes away
//!   any subset, by 4 KiB pages, of what no sync covered. The engine's sorted files are taken at
//!   their word here.
//! - [`disk::RecordedDisk`] is a disk for a real file system, recorded below everything.
//!
//! They are what the power-loss tests replay; see `docs/internals/objects.md`.

pub mod disk;

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use outboard_base::{Errno, Rng};
use outboard_kv::{Batch, Durability, Key, Kv, KvError, Usage, Value, Version};
use outboard_medium::{Buf, Medium};

use crate::JournalMark;
use crate::journal_bytes;

/// What a device writes whole, bytes.
const SECTOR: usize = 512;
/// What the page cache writes back whole, bytes.
const PAGE: usize = 4096;

struct Written {
    offset: u64,
    bytes: Box<[u8]>,
    /// When it was answered; none while under way, or if it failed.
    answered: Option<u64>,
    /// When a handing over that began after the answer had ended.
    handed_over: Option<u64>,
}

/// When a flush that succeeded began and ended, and whether it was one of the device.
struct Flushed {
    begun: u64,
    ended: u64,
    of_device: bool,
}

/// What lies on a device that somebody else flushes.
pub trait OnDevice: Send + Sync {
    /// A flush of the device begins; when.
    fn flush_begins(&self) -> u64;

    /// The one that began then has succeeded.
    fn flush_ended(&self, begun: u64);
}

#[derive(Default)]
struct Log {
    now: u64,
    writes: Vec<Written>,
    flushes: Vec<Flushed>,
}

impl Log {
    fn tick(&mut self) -> u64 {
        self.now += 1;
        self.now
    }
}

/// A medium that remembers.
pub struct Recorder<M> {
    inner: M,
    log: Mutex<Log>,
}

impl<M: Medium> Recorder<M> {
    /// Records everything done to `inner` from now on.
    pub fn new(inner: M) -> Recorder<M> {
        Recorder { inner, log: Mutex::new(Log::default()) }
    }

    fn log(&self) -> MutexGuard<'_, Log> {
        self.log.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Writes to `path` what power loss now could leave of a medium recorded since it was new.
    /// `rng` chooses among the legal subsets.
    pub fn replay(&self, path: &Path, rng: &mut Rng) -> io::Result<()> {
        let log = self.log();
        let file = OpenOptions::new().write(true).create(true).truncate(true).open(path)?;
        file.set_len(self.inner.len())?;
        for write in &log.writes {
            let kept = |flush: &Flushed| {
                let there = if flush.of_device { write.handed_over } else { write.answered };
                there.is_some_and(|at| at < flush.begun)
            };
            let durable = log.flushes.iter().any(|flush| kept(flush) && flush.ended <= log.now);
            // All of it, none of it, or a mixture: the ends are likelier than they were by sector.
            let fate = rng.below(3);
            for (at, sector) in write.bytes.chunks(SECTOR).enumerate() {
                if durable || fate == 0 || (fate == 1 && rng.chance(1, 2)) {
                    file.write_all_at(sector, write.offset + (at * SECTOR) as u64)?;
                }
            }
        }
        Ok(())
    }
}

impl<M: Medium> OnDevice for Recorder<M> {
    fn flush_begins(&self) -> u64 {
        self.log().tick()
    }

    fn flush_ended(&self, begun: u64) {
        let mut log = self.log();
        let ended = log.tick();
        log.flushes.push(Flushed { begun, ended, of_device: true });
    }
}

impl<M: Medium> Medium for Recorder<M> {
    fn read(&self, offset: u64, buf: Buf) -> impl Future<Output = (Result<(), Errno>, Buf)> {
        self.inner.read(offset, buf)
    }

    async fn write(&self, offset: u64, buf: Buf) -> (Result<(), Errno>, Buf) {
        let at = {
            let mut log = self.log();
            log.tick();
            let bytes = buf.to_vec().into();
            log.writes.push(Written { offset, bytes, answered: None, handed_over: None });
            log.writes.len() - 1
        };
        let (result, buf) = self.inner.write(offset, buf).await;
        let mut log = self.log();
        let now = log.tick();
        if let (Ok(()), Some(write)) = (result, log.writes.get_mut(at)) {
            write.answered = Some(now);
        }
        (result, buf)
    }

    async fn flush(&self) -> Result<(), Errno> {
        let begun = self.log().tick();
        self.inner.flush().await?;
        let mut log = self.log();
        let ended = log.tick();
        log.flushes.push(Flushed { begun, ended, of_device: false });
        Ok(())
    }

    fn is_flushed_by_store(&self) -> bool {
        self.inner.is_flushed_by_store()
    }

    async fn hand_over(&self) -> Result<(), Errno> {
        let begun = self.log().tick();
        self.inner.hand_over().await?;
        let mut log = self.log();
        let ended = log.tick();
        for write in log.writes.iter_mut().filter(|w| w.answered.is_some_and(|at| at < begun)) {
            write.handed_over.get_or_insert(ended);
        }
        Ok(())
    }

    fn grow(&self, len: u64) -> impl Future<Output = Result<(), Errno>> {
        self.inner.grow(len)
    }

    fn len(&self) -> u64 {
        self.inner.len()
    }
}

/// An engine whose syncs are noted.
pub struct JournalWatch<K> {
    inner: K,
    dir: PathBuf,
    synced: Mutex<JournalMark>,
    /// What lies on the same device.
    flushes: Option<Arc<dyn OnDevice>>,
}

impl<K: Kv> JournalWatch<K> {
    /// Watches `inner`, an engine whose files lie in `dir` and all of whose commits are synced.
    pub fn new(inner: K, dir: &Path) -> io::Result<JournalWatch<K>> {
        let synced = JournalMark::of(dir, JournalMark::default())?;
        let synced = Mutex::new(synced);
        Ok(JournalWatch { inner, dir: dir.to_path_buf(), synced, flushes: None })
    }

    /// Each sync flushes the device `other` lies on.
    #[must_use]
    pub fn flushing(mut self, other: Arc<dyn OnDevice>) -> JournalWatch<K> {
        self.flushes = Some(other);
        self
    }

    fn synced(&self) -> MutexGuard<'_, JournalMark> {
        self.synced.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn noting<T>(
        &self,
        work: impl Future<Output = Result<T, KvError>>,
    ) -> Result<T, KvError> {
        let before = JournalMark::of(&self.dir, *self.synced()).map_err(|e| Errno::from(&e))?;
        let begun = self.flushes.as_ref().map(|other| other.flush_begins());
        let done = work.await?;
        if let (Some(other), Some(begun)) = (&self.flushes, begun) {
            other.flush_ended(begun);
        }
        let mut synced = self.synced();
        *synced = (*synced).max(before);
        Ok(done)
    }

    /// Copies to `to` what power loss now could leave of the engine's files. Nothing may be
    /// committed meanwhile; what the engine's own threads change meanwhile makes it begin again.
    pub fn replay(&self, to: &Path, rng: &mut Rng) -> io::Result<()> {
        loop {
            let before = listing(&self.dir)?;
            let copied = copy(&self.dir, to);
            if listing(&self.dir)? == before {
                copied?;
                break;
            }
            std::fs::remove_dir_all(to)?;
        }
        let synced = *self.synced();
        let Some((number, path)) = JournalMark::last(to)? else { return Ok(()) };
        let kept = if number == synced.journal { synced.len } else { 0 };
        let file = OpenOptions::new().read(true).write(true).open(path)?;
        let mut page = vec![0; PAGE];
        let mut at = kept;
        let fate = rng.below(4);
        loop {
            // The first piece shares its page with what is synced, and may still be lost.
            let len = PAGE - usize::try_from(at % PAGE as u64).unwrap_or(0);
            let piece = page.get_mut(..len).unwrap_or_default();
            if !read_up_to(&file, piece, at)? {
                return Ok(());
            }
            if fate == 0 || fate < 3 && rng.chance(1, 2) {
                file.write_all_at(&vec![0; len], at)?;
            }
            at += len as u64;
        }
    }
}

/// Fills `piece` from `at`, zeros beyond the end; whether anything but zeros was there.
fn read_up_to(file: &File, piece: &mut [u8], at: u64) -> io::Result<bool> {
    piece.fill(0);
    let len = file.read_at(piece, at)?;
    Ok(piece.iter().take(len).any(|byte| *byte != 0))
}

/// Every file of a directory tree, with its size and time of change.
fn listing(dir: &Path) -> io::Result<Vec<(PathBuf, u64, std::time::SystemTime)>> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(dir)? {
        let entry = entry?;
        let meta = match entry.metadata() {
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            other => other?,
        };
        if meta.is_dir() {
            found.extend(listing(&entry.path())?);
        } else {
            found.push((entry.path(), meta.len(), meta.modified()?));
        }
    }
    found.sort_unstable();
    Ok(found)
}

fn copy(from: &Path, to: &Path) -> io::Result<()> {
    std::fs::create_dir_all(to)?;
    for entry in std::fs::read_dir(from)? {
        let entry = entry?;
        let target = to.join(entry.file_name());
        if entry.file_type()?.is_dir() {
            copy(&entry.path(), &target)?;
        } else if target.extension().is_some_and(|e| e == "jnl") {
            // Mostly zeros not yet written: as sparse as the original.
            std::fs::write(&target, journal_bytes(&entry.path())?)?;
            OpenOptions::new().write(true).open(&target)?.set_len(entry.metadata()?.len())?;
        } else {
            std::fs::copy(entry.path(), target)?;
        }
    }
    Ok(())
}

impl<K: Kv> Kv for JournalWatch<K> {
    const KEY_MAX: usize = K::KEY_MAX;
    const VALUE_MAX: usize = K::VALUE_MAX;
    const BATCH_MAX: usize = K::BATCH_MAX;

    fn get(&self, key: &[u8]) -> impl Future<Output = Result<Option<Value>, KvError>> {
        self.inner.get(key)
    }

    fn scan(
        &self,
        prefix: &[u8],
        after: Option<&[u8]>,
        limit: usize,
    ) -> impl Future<Output = Result<Vec<(Key, Value)>, KvError>> {
        self.inner.scan(prefix, after, limit)
    }

    async fn commit(&self, batch: Batch, durability: Durability) -> Result<(), KvError> {
        self.inner.commit(batch, Durability::Answered).await?;
        match durability {
            Durability::Answered => Ok(()),
            Durability::Durable => self.sync().await,
        }
    }

    fn sync(&self) -> impl Future<Output = Result<(), KvError>> {
        self.noting(self.inner.sync())
    }

    fn version(&self) -> Version {
        self.inner.version()
    }

    fn usage(&self) -> Usage {
        self.inner.usage()
    }
}
