//! A key-value store over a pool: many objects changed as one, by one owner, through a redo
//! journal.
//!
//! A commit is judged in memory, put into the journal with whatever else waits, and answered: it is
//! durable then. Its writes stay in the [overlay](super::overlay), where reads find them, until a
//! *sweep* has carried them, coalesced, into their shards; then the journal is trimmed. Opening
//! seals the journal of the owner before and puts what it holds into the overlay: that is all of
//! recovery, and doing it twice changes nothing.
//!
//! Invariants:
//! - What an answered commit wrote is in an unsealed journal object at that moment. Who takes over
//!   seals every one before reading it, so either the commit is not answered, or it is read.
//! - A journal object is removed only after a sweep begun when no more could be added to it.
//! - A shard is changed by the worker alone, one change at a time, each a compare-and-swap.
//! - A write leaves the overlay when its shard has it and no scan is left that began before.
//!
//! `commit` judges and appends, `read` merges overlay and shards, `work` sweeps and trims, `split`
//! and `merge` keep shards from growing too large and becoming too many, `open` takes over.

mod commit;
mod merge;
mod open;
mod read;
mod split;
mod work;

use std::collections::VecDeque;
use std::sync::atomic::AtomicU8;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use outboard_base::Errno;
use outboard_base::task::{self, WaitList};

use super::overlay::Overlay;
use super::port::{Pool, PoolError, PoolUsage};
use super::root::Root;
use super::stamped::{Owner, Refused, Stamped};
use outboard_kv::{Bytes, KeyVersions, Kv, KvError, Usage, Value, Version, Write};

/// What bounds the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Options {
    /// A sweep begins when the journal holds so many bytes.
    pub sweep_at: u64,
    /// Commits wait when it holds so many: what an opening reads, and about what the overlay takes
    /// of memory. One batch may be longer.
    pub journal_max: u64,
    /// A journal object is left when it is so long, bytes.
    pub journal_object: u64,
    /// A shard is split when it may hold more pairs.
    pub split_pairs: u64,
    /// A shard is split when it may hold more bytes.
    pub split_bytes: u64,
}

impl Default for Options {
    /// Half of the pairs that Ceph warns of in one map, and few enough bytes for a split to take
    /// about a second.
    fn default() -> Options {
        Options {
            sweep_at: 16 << 20,
            journal_max: 64 << 20,
            journal_object: 4 << 20,
            split_pairs: 100_000,
            split_bytes: 64 << 20,
        }
    }
}

/// Most bytes of batches in one append, if more than one.
const GROUP_BYTES_MAX: usize = 4 << 20;
/// A sweep begins when there are so many journal objects, though each life that ended early has
/// left an empty one only.
const OBJECTS: usize = 32;
/// Kept back for essential batches: a 16th of the pool, at most.
const RESERVE: u64 = 256 << 20;

/// What the store is about, in numbers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Shards.
    pub shards: u64,
    /// Journal objects that may hold something not applied.
    pub journal_objects: u64,
    /// Their bytes.
    pub journal_bytes: u64,
    /// Writes that wait to be applied.
    pub unapplied: u64,
    /// Appends to the journal so far.
    pub appends: u64,
    /// Commits in them.
    pub commits: u64,
    /// Shards split so far.
    pub splits: u64,
    /// Shards merged into their neighbours so far.
    pub merges: u64,
    /// Pairs in the shards whose stamp is known, at most: what was replaced is counted again until
    /// the shard is split.
    pub pairs: u64,
    /// Bytes of their keys and values, at most.
    pub pair_bytes: u64,
    /// Shards whose stamp is known: all, after [`PooledKv::survey`].
    pub known: u64,
}

/// What became of a commit: nothing yet or done, or one of these.
type Ticket = Arc<AtomicU8>;
/// The pool has no space for it.
const REFUSED: u8 = 1;
/// It was not tried, since there was no space for those before it.
const AGAIN: u8 = 2;

/// A commit on its way into the journal.
struct Queued {
    seq: u64,
    writes: Vec<Write>,
    bytes: usize,
    essential: bool,
    ticket: Ticket,
}

/// Commits that go into the journal together, until it is known that they have.
struct CommitGroup {
    object: u64,
    offset: u64,
    bytes: Bytes,
    essential: bool,
    batches: Vec<Queued>,
    sent: bool,
}

/// Where the journal is.
#[derive(Default)]
struct Journal {
    /// The object appended to, its length, and whether it was made.
    object: u64,
    len: u64,
    made: bool,
    /// Those before it, oldest first, and their lengths.
    old: VecDeque<(u64, u64)>,
    /// Bytes in all of them.
    bytes: u64,
    /// Bytes waiting to be appended.
    queued: u64,
}

impl Journal {
    /// Leaves the object for the next.
    fn rotate(&mut self) {
        self.old.push_back((self.object, self.len));
        self.object += 1;
        self.len = 0;
        self.made = false;
    }
}

struct State {
    /// Numbers commits as they are judged.
    versions: KeyVersions,
    overlay: Overlay,
    queue: VecDeque<Queued>,
    group: Option<CommitGroup>,
    /// Commits up to this one are in the journal, or refused.
    ended: u64,
    /// The last commit whose future was dropped on the way.
    orphan: u64,
    failed: Option<KvError>,
    stopping: bool,
    journal: Journal,
    root: Root,
    /// The root object may not say what `root` does.
    doubt: bool,
    /// Rises with every change of the shards' ranges.
    ranges: u64,
    usage: PoolUsage,
    /// Bytes committed since `usage` was asked for.
    since: u64,
    counts: Counts,
}

/// The store. See the module.
///
/// Nothing runs by itself: [`PooledKv::work`] is to be polled beside, for as long as the store is
/// used. Without it all goes on, but commits do its work when the journal is full.
pub struct PooledKv<P> {
    pool: Arc<P>,
    owner: Owner,
    options: Options,
    root: Stamped,
    state: Mutex<State>,
    /// Held by the leader of a group commit: who appends to the journal for all who wait.
    appending: task::Mutex,
    /// Held by who changes shards.
    working: task::Mutex,
    /// Notified when there is work, or no more.
    due: WaitList,
}

/// The error of a pool as one of a store.
pub(crate) fn kv_error(error: PoolError) -> KvError {
    match error {
        PoolError::NoSpace => KvError::NoSpace,
        PoolError::NotFound | PoolError::Guard => KvError::Corrupt,
        PoolError::TimedOut | PoolError::Fenced | PoolError::Denied => KvError::Io(Errno::EIO),
        PoolError::Io(errno) => KvError::Io(errno),
    }
}

impl<P: Pool> PooledKv<P> {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Fails for good: every commit, and every sync.
    fn fail(&self, error: KvError) {
        self.lock().failed.get_or_insert(error);
        self.appending.notify();
        self.working.notify();
        self.due.notify();
    }

    /// An error of a stamped map; one that will not pass is for good.
    fn refused(&self, refused: Refused) -> KvError {
        let error = match refused {
            Refused::Pool(error) => return kv_error(error),
            Refused::Lost => KvError::Io(Errno::EIO),
            Refused::Corrupt | Refused::Exists => KvError::Corrupt,
        };
        self.fail(error);
        error
    }

    /// The pool it lies in.
    pub fn pool(&self) -> &Arc<P> {
        &self.pool
    }

    /// Whether it has failed for good: a commit is in doubt, or the claim is lost. A new life of
    /// the store, under a new claim, finds out.
    pub fn is_poisoned(&self) -> bool {
        self.lock().failed.is_some()
    }

    /// Ends it: the claim is lost, or to be released. Commits fail from now on, and
    /// [`PooledKv::work`] returns.
    pub fn stop(&self) {
        self.lock().stopping = true;
        self.fail(KvError::Io(Errno::EIO));
    }

    /// How things stand.
    pub fn counts(&self) -> Counts {
        let state = self.lock();
        let sizes = state.root.shards.values().filter_map(|shard| shard.map.size());
        let (known, pairs, pair_bytes) =
            sizes.fold((0, 0, 0), |(n, p, b), (pairs, bytes)| (n + 1, p + pairs, b + bytes));
        Counts {
            shards: state.root.shards.len() as u64,
            pairs,
            pair_bytes,
            known,
            journal_objects: state.journal.old.len() as u64 + u64::from(state.journal.made),
            journal_bytes: state.journal.bytes,
            unapplied: state.overlay.unapplied() as u64,
            ..state.counts
        }
    }
}

impl<P: Pool> Kv for PooledKv<P> {
    async fn get(&self, key: &[u8]) -> Result<Option<Value>, KvError> {
        self.read_one(key).await
    }

    async fn get_many(&self, keys: &[outboard_kv::Key]) -> Result<Vec<Option<Value>>, KvError> {
        self.read_many(keys).await
    }

    async fn scan(
        &self,
        prefix: &[u8],
        after: Option<&[u8]>,
        limit: usize,
    ) -> Result<Vec<(outboard_kv::Key, Value)>, KvError> {
        self.read_range(prefix, after, limit).await
    }

    async fn commit(
        &self,
        batch: outboard_kv::Batch,
        _: outboard_kv::Durability,
    ) -> Result<(), KvError> {
        // What is in the journal is durable.
        self.submit(batch).await
    }

    async fn sync(&self) -> Result<(), KvError> {
        let now = self.lock().versions.now();
        self.journaled(now.0).await?;
        self.lock().failed.map_or(Ok(()), Err)
    }

    fn is_synced(&self) -> bool {
        let state = self.lock();
        state.failed.is_none() && state.ended == state.versions.now().0
    }

    fn version(&self) -> Version {
        Version(self.lock().ended)
    }

    fn usage(&self) -> Usage {
        self.lock().usage()
    }
}

impl State {
    fn usage(&self) -> Usage {
        let PoolUsage { capacity, used } = self.usage;
        let reserve = if capacity == u64::MAX { 0 } else { (capacity / 16).min(RESERVE) };
        Usage { capacity, used: used.saturating_add(self.since), reserve }
    }

    /// Whether a sweep is due.
    fn is_due(&self, options: &Options) -> bool {
        let Journal { old, bytes, .. } = &self.journal;
        !old.is_empty() && (*bytes >= options.sweep_at || old.len() >= OBJECTS)
    }
}

#[cfg(test)]
mod tests;
