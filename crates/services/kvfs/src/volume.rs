//! The volume's own life: made, opened, recovered, kept in order.

use std::ops::Range;
use std::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use outboard_base::task::{self, RangeLocks};
use outboard_base::{Errno, Ino, Result, SessionId, Timestamp};
use outboard_kv::object::{self, Objects, Recovered};
use outboard_kv::{Batch, Cached, Durability, Kv, KvError};
use outboard_medium::Medium;
use outboard_wire::file::mode;
use outboard_wire::shared::call::Layout;

use crate::check::touched::Touched;
use crate::data::fresh::Fresh;
use crate::data::group_commit::GroupCommit;
use crate::handles::Handles;
use crate::layout::key::{self, Counter};
use crate::layout::{Inode, Superblock, decode_counter, encode_counter};
use crate::lock::Locks;
use crate::session::Sessions;
use crate::shares::Shares;
use crate::txn::Fail;
use crate::{Kvfs, OpenError, Options, VolumeEvent};

/// Inode numbers taken from the counter at a time: few enough to lose at a restart, enough that a
/// create seldom writes the counter.
const NUMBERS: u64 = 1024;
/// The same where nodes know files by them: what was lost is purged at the next opening.
const NUMBERS_SPREAD: u64 = 128;

/// Inode numbers not given out yet. None is given out twice: the counter is past them before.
pub(crate) struct Numbers(Mutex<Range<u64>>);

impl Numbers {
    fn take(&self) -> Option<Ino> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).next().map(Ino)
    }

    /// Those to be given out are not below it; none: that is not known.
    pub(crate) fn next(&self) -> Option<u64> {
        let range = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        (range.end > 0).then_some(range.start)
    }

    fn refill(&self, more: Range<u64>) {
        let mut range = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        // Two may have come for more: the later range serves, the rest of the earlier is lost.
        if range.end < more.end {
            *range = more;
        }
    }
}

impl<K: Kv, M: Medium> Kvfs<K, M> {
    /// Opens the volume in `kv` and `medium`, or makes one if both are empty. Locks and orphans
    /// wait until [`Kvfs::end_grace`] for those who held them before a restart.
    pub async fn open(
        kv: K,
        medium: M,
        options: Options,
        now: Timestamp,
    ) -> std::result::Result<Kvfs<K, M>, OpenError> {
        let kv = Arc::new(Cached::new(kv, options.cache_bytes));
        let superblock = match kv.get(&key::SUPERBLOCK).await? {
            Some(value) => Superblock::decode(&value)?,
            None => make(&*kv, &options, now).await?,
        };
        if superblock.format != Superblock::FORMAT {
            let (found, known) = (superblock.format, Superblock::FORMAT);
            return Err(OpenError::Format { found, known });
        }
        let object_options = object::Options {
            capacity: options.capacity.min(object::Options::default().capacity),
            segment: options.segment,
            identity: superblock.id,
            compression: options.compression,
            ..object::Options::default()
        };
        let (objects, recovered) = Objects::open(Arc::clone(&kv), medium, object_options).await?;
        let opened = raise(&*kv, Counter::Opened, 1, counting(options.spread)).await?.start;
        // 2^40 handles an instance; numbers of an earlier one stay apart.
        let first_handle = (opened << 40) | 1;
        let mut locks = Locks::new(first_handle);
        locks.begin_grace();
        let volume = Kvfs {
            kv,
            objects,
            recovered,
            superblock,
            spread: options.spread,
            nodes_max: AtomicU8::new(1),
            map: AtomicU32::new(0),
            opened: AtomicU64::new(opened),
            range_locks: RangeLocks::default(),
            tree: task::Mutex::default(),
            writes: GroupCommit::default(),
            fresh: Fresh::default(),
            touched: Touched::default(),
            numbers: Numbers(Mutex::new(0..0)),
            marked: AtomicU64::new(u64::MAX),
            handles: Handles::new(first_handle, Shares::new(&options)),
            sessions: Sessions::default(),
            locks: Mutex::new(locks),
            events: Mutex::default(),
        };
        volume.inode(Ino::ROOT).await?;
        volume.find_orphans().await.map_err(Fail::errno)?;
        volume.recount(&volume.recovered.changed).await?;
        if volume.spread.is_some() {
            volume.mark_the_last().await?;
        }
        Ok(volume)
    }

    /// Openings and inodes are numbered above these from now on: nodes know of them, and this
    /// volume does not, as it was restored from a backup. Before anything is made. False if it
    /// knew.
    pub async fn count_on(&self, opening: u64, ino: u64) -> Result<bool> {
        let count = async |which, above: u64| {
            let next = raise(&*self.kv, which, 0, Durability::Answered).await?.start;
            let by = above.checked_add(1).ok_or(OpenError::Damaged)?.saturating_sub(next);
            if by > 0 {
                raise(&*self.kv, which, by, Durability::Durable).await?;
            }
            Ok::<bool, OpenError>(by > 0)
        };
        let is_later = count(Counter::Ino, ino).await.map_err(|_| Errno::EIO)?;
        if is_later {
            // None of those between was made here: nodes keep what they have of them.
            self.marked.store(ino.saturating_add(1), Ordering::SeqCst);
            self.put_marked(ino.saturating_add(1)).await?;
        }
        if opening < self.opening() && !is_later {
            return Ok(false);
        }
        count(Counter::Opened, opening).await.map_err(|_| Errno::EIO)?;
        let opened = raise(&*self.kv, Counter::Opened, 1, Durability::Durable).await;
        self.opened.store(opened.map_err(|_| Errno::EIO)?.start, Ordering::Relaxed);
        Ok(true)
    }

    /// A number never given out before.
    pub(crate) async fn new_ino(&self) -> Result<Ino> {
        loop {
            if let Some(ino) = self.numbers.take() {
                return Ok(ino);
            }
            let count = if self.spread.is_some() { NUMBERS_SPREAD } else { NUMBERS };
            let more = raise(&*self.kv, Counter::Ino, count, counting(self.spread)).await;
            let more = more.map_err(|_| Errno::EIO)?;
            self.numbers.refill(more);
        }
    }

    /// What attachments must be notified of; empties the list.
    pub fn take_events(&self) -> Vec<VolumeEvent> {
        std::mem::take(&mut *self.events.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Adds to what [`Kvfs::take_events`] gives.
    pub(crate) fn push_events(&self, events: impl IntoIterator<Item = VolumeEvent>) {
        self.events.lock().unwrap_or_else(PoisonError::into_inner).extend(events);
    }

    /// The attachment is gone for good: drops its handles, holds and locks. [`Kvfs::tidy`] does
    /// what follows from that in the store.
    pub fn detach(&self, attachment: SessionId) {
        self.handles.detach(attachment);
        self.drop_locks(attachment);
        self.sessions.ended(attachment);
    }

    /// Whoever held something before the opening has handed it in, or had the time to: what nobody
    /// holds goes, locks are granted, and replay records of sessions that did not come back are
    /// dropped.
    pub async fn end_grace(&self) -> Result<()> {
        self.handles.end_grace();
        self.end_lock_grace();
        self.find_ended_sessions().await
    }

    /// Housekeeping, to be called every few seconds: a bounded part of what is left to do. True if
    /// there is more to do at once. What fails stays to be done; the first error is returned.
    pub async fn tidy(&self) -> Result<bool> {
        let doubts = self.settle_doubts().await;
        let orphans = self.reclaim_some().await;
        let trims = self.trim_some().await;
        let sessions = self.drop_records().await;
        let marked = self.raise_marked().await;
        self.objects.tidy().await.map_err(KvError::errno)?;
        doubts?;
        marked?;
        Ok(orphans | trims? | sessions?)
    }

    /// What opening found and did about a crash, for the log.
    pub fn recovered(&self) -> &Recovered {
        &self.recovered
    }

    /// The object store: for the file system check and for tests.
    pub fn objects(&self) -> &Objects<Cached<K>, M> {
        &self.objects
    }
}

/// Makes an empty volume: superblock, counter and root in one batch.
async fn make<K: Kv>(
    kv: &K,
    options: &Options,
    now: Timestamp,
) -> std::result::Result<Superblock, OpenError> {
    let root = key::inode(Ino::ROOT);
    if kv.get(&root).await?.is_some() || !kv.scan(&[], None, 1).await?.is_empty() {
        return Err(OpenError::NotAVolume);
    }
    let superblock = Superblock { format: Superblock::FORMAT, id: options.id, created: now };
    let permissions = options.mode & mode::PERMISSIONS;
    let mut inode = Inode::new(Ino::ROOT, Ino::ROOT, 0o040_000 | permissions, now);
    (inode.attr.uid, inode.attr.gid) = options.owner;
    let mut batch = Batch::new();
    batch.absent(key::SUPERBLOCK);
    batch.put(key::SUPERBLOCK, superblock.encode()?);
    batch.put(key::counter(Counter::Ino), encode_counter(Ino::FIRST.0)?);
    batch.put(key::counter(Counter::Opened), encode_counter(1)?);
    batch.put(key::counter(Counter::Marked), encode_counter(Ino::FIRST.0)?);
    batch.put(root, inode.encode()?);
    kv.commit(batch, Durability::Durable).await?;
    Ok(superblock)
}

/// How numbers are counted. Where nodes know files and openings by them, no power loss may give one
/// out again.
fn counting(spread: Option<Layout>) -> Durability {
    if spread.is_some() { Durability::Durable } else { Durability::Answered }
}

/// Raises a counter: the numbers it passed are the caller's.
async fn raise<K: Kv>(
    kv: &K,
    which: Counter,
    by: u64,
    durability: Durability,
) -> std::result::Result<Range<u64>, OpenError> {
    let key = key::counter(which);
    loop {
        let mut batch = Batch::at(kv.version());
        // Nothing grows by it, and a full volume is opened by it.
        batch.essential();
        let value = kv.get(&key).await?.ok_or(OpenError::Damaged)?;
        let start = decode_counter(&value)?;
        let end = start.checked_add(by).ok_or(OpenError::Damaged)?;
        batch.equals(key, value);
        batch.put(key, encode_counter(end)?);
        match kv.commit(batch, durability).await {
            Ok(()) => return Ok(start..end),
            Err(KvError::Conflict) => {}
            Err(error) => return Err(error.into()),
        }
    }
}
