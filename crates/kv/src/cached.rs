//! An exact point-get cache before any [`Kv`].
//!
//! Exact: a get never returns a value older than a commit that ended before it began. What could
//! break that, and what prevents it:
//! - *a slow fill*: a reader fetches the old value, a commit passes, the reader stores the old
//!   value. A fill is stored only if its ticket still stands in the entry; a commit takes it out.
//! - *two commits at once*: whose value is newer is known to the store behind only. Entries under
//!   more than one writer end up empty, not guessed.

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::{Batch, Durability, Key, Kv, KvError, Usage, Value, Version};

/// How often the cache answered.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CacheCounts {
    /// Gets answered by the cache.
    pub hits: u64,
    /// Gets passed on.
    pub misses: u64,
}

/// What an entry holds.
enum Held {
    /// Nothing known.
    Empty,
    /// The value, or that there is none.
    Known(Option<Value>),
    /// The reader with this ticket is fetching.
    Filling(u64),
    /// So many commits that write the key are under way; `alone` if there was never more than one.
    Writing { writers: u32, alone: bool },
}

struct Entry {
    held: Held,
    /// New, or used since the hand last passed.
    referenced: bool,
}

/// Bookkeeping per entry, about, bytes.
const OVERHEAD: usize = 128;
/// Entries the hand looks at for one insertion.
const HAND_STEPS: usize = 64;
const SHARDS: usize = 16;

/// One part of the cache. The ring holds each key of the map once: entries leave by the hand only.
#[derive(Default)]
struct Shard {
    entries: HashMap<Key, Entry>,
    ring: VecDeque<Key>,
    bytes: usize,
    tickets: u64,
}

impl Shard {
    fn weight(held: &Held) -> usize {
        match held {
            Held::Known(Some(value)) => value.len(),
            _ => 0,
        }
    }

    fn hold(&mut self, key: &Key, held: Held) {
        self.bytes += Self::weight(&held);
        match self.entries.get_mut(key) {
            Some(entry) => {
                self.bytes -= Self::weight(&entry.held);
                entry.held = held;
            }
            None => {
                self.bytes += key.len() + OVERHEAD;
                self.ring.push_back(key.clone());
                self.entries.insert(key.clone(), Entry { held, referenced: true });
            }
        }
    }

    /// Second chance: passes over what was used, keeps what is being written.
    fn evict(&mut self, limit: usize) {
        for _ in 0..HAND_STEPS {
            if self.bytes <= limit {
                return;
            }
            let Some(key) = self.ring.pop_front() else { return };
            let Some(entry) = self.entries.get_mut(&key) else { continue };
            let busy = matches!(entry.held, Held::Writing { .. });
            if std::mem::take(&mut entry.referenced) || busy {
                self.ring.push_back(key);
            } else {
                self.bytes -= Self::weight(&entry.held) + key.len() + OVERHEAD;
                self.entries.remove(&key);
            }
        }
    }

    fn begin_write(&mut self, key: &Key) {
        let writers = match self.entries.get(key) {
            Some(Entry { held: Held::Writing { writers, .. }, .. }) => *writers + 1,
            _ => 1,
        };
        self.hold(key, Held::Writing { writers, alone: writers == 1 });
    }

    fn end_write(&mut self, key: &Key, value: Option<Option<Value>>) {
        if let Some(Entry { held: Held::Writing { writers, alone }, .. }) = self.entries.get(key) {
            let held = match (writers, alone, value) {
                (1, true, Some(value)) => Held::Known(value),
                (1, ..) => Held::Empty,
                (writers, ..) => Held::Writing { writers: writers - 1, alone: false },
            };
            self.hold(key, held);
        }
    }
}

/// A bounded write-through cache of point gets, absent keys included. A hit ends at its first poll
/// and costs a hash, an uncontended lock and a reference count.
pub struct Cached<K> {
    inner: K,
    shards: [Mutex<Shard>; SHARDS],
    /// Bytes a shard may hold.
    limit: usize,
    hits: AtomicU64,
    misses: AtomicU64,
}

/// Keys a commit writes; until it is told the outcome, none of them is cached.
struct Writing<'a, K: Kv> {
    cache: &'a Cached<K>,
    writes: Vec<crate::Write>,
    applied: bool,
}

impl<K: Kv> Drop for Writing<'_, K> {
    fn drop(&mut self) {
        for write in self.writes.drain(..) {
            let mut shard = self.cache.shard(&write.key);
            shard.end_write(&write.key, self.applied.then_some(write.value));
            shard.evict(self.cache.limit);
        }
    }
}

impl<K: Kv> Cached<K> {
    /// Caches up to about `bytes` of keys, values and bookkeeping before `inner`.
    pub fn new(inner: K, bytes: usize) -> Cached<K> {
        Cached {
            inner,
            shards: std::array::from_fn(|_| Mutex::new(Shard::default())),
            limit: bytes / SHARDS,
            hits: AtomicU64::new(0),
            misses: AtomicU64::new(0),
        }
    }

    /// The store behind.
    pub fn inner(&self) -> &K {
        &self.inner
    }

    /// How often it answered.
    pub fn counts(&self) -> CacheCounts {
        CacheCounts {
            hits: self.hits.load(Ordering::Relaxed),
            misses: self.misses.load(Ordering::Relaxed),
        }
    }

    /// The shard of a key: by its last bytes, where neighbours differ.
    fn shard(&self, key: &[u8]) -> MutexGuard<'_, Shard> {
        let tail = key.iter().rev().take(8);
        let mixed = tail.fold(key.len(), |hash, byte| {
            (hash ^ usize::from(*byte)).wrapping_mul(0x9E37_79B9).rotate_right(13)
        });
        // The index is below the length by the remainder, so the first is never taken instead.
        let [first, ..] = &self.shards;
        let shard = self.shards.get(mixed % SHARDS).unwrap_or(first);
        shard.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The cached answer, or the ticket to fill with.
    fn look(&self, key: &[u8]) -> Result<Option<Value>, Option<u64>> {
        let mut shard = self.shard(key);
        shard.tickets += 1;
        let ticket = shard.tickets;
        match shard.entries.get_mut(key) {
            Some(Entry { held: Held::Known(value), referenced }) => {
                *referenced = true;
                Ok(value.clone())
            }
            Some(Entry { held: Held::Writing { .. }, .. }) => Err(None),
            Some(entry) => {
                entry.held = Held::Filling(ticket);
                Err(Some(ticket))
            }
            None => {
                shard.hold(&Key::from(key), Held::Filling(ticket));
                shard.evict(self.limit);
                Err(Some(ticket))
            }
        }
    }
}

impl<K: Kv> Kv for Cached<K> {
    const KEY_MAX: usize = K::KEY_MAX;
    const VALUE_MAX: usize = K::VALUE_MAX;
    const BATCH_MAX: usize = K::BATCH_MAX;

    async fn get(&self, key: &[u8]) -> Result<Option<Value>, KvError> {
        let ticket = match self.look(key) {
            Ok(value) => {
                self.hits.fetch_add(1, Ordering::Relaxed);
                return Ok(value);
            }
            Err(ticket) => ticket,
        };
        self.misses.fetch_add(1, Ordering::Relaxed);
        let value = self.inner.get(key).await?;
        if let Some(ticket) = ticket {
            let mut shard = self.shard(key);
            if let Some((key, entry)) = shard.entries.get_key_value(key)
                && matches!(entry.held, Held::Filling(t) if t == ticket)
            {
                let key = key.clone();
                shard.hold(&key, Held::Known(value.clone()));
                shard.evict(self.limit);
            }
        }
        Ok(value)
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
        let writes = batch.writes().to_vec();
        for write in &writes {
            self.shard(&write.key).begin_write(&write.key);
        }
        let mut writing = Writing { cache: self, writes, applied: false };
        let outcome = self.inner.commit(batch, durability).await;
        writing.applied = outcome.is_ok();
        outcome
    }

    fn sync(&self) -> impl Future<Output = Result<(), KvError>> {
        self.inner.sync()
    }

    fn is_synced(&self) -> bool {
        self.inner.is_synced()
    }

    fn version(&self) -> Version {
        self.inner.version()
    }

    fn usage(&self) -> Usage {
        self.inner.usage()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mem::{Faults, MemKv};
    use outboard_base::Rng;
    use std::collections::BTreeMap;
    use std::pin::Pin;
    use std::task::{Context, Poll, Waker};

    fn run<T>(future: impl Future<Output = T>) -> T {
        let mut future = std::pin::pin!(future);
        let mut cx = Context::from_waker(Waker::noop());
        loop {
            if let Poll::Ready(out) = future.as_mut().poll(&mut cx) {
                return out;
            }
        }
    }

    /// What a task is doing: a get that began when the key had seen so many writes, or a commit.
    enum Task<'a> {
        Get(u8, usize, Pin<Box<dyn Future<Output = Result<Option<Value>, KvError>> + 'a>>),
        Put(u8, u64, Pin<Box<dyn Future<Output = Result<(), KvError>> + 'a>>),
    }

    /// Many gets and commits at once, polled in random order, some dropped half way: a get never
    /// returns a value overwritten by a commit that had ended before the get began.
    #[test]
    fn a_get_is_never_older_than_what_was_committed_before_it() {
        for seed in 0..150 {
            let mut rng = Rng::new(seed);
            let inner = MemKv::new(seed);
            inner.set_faults(Faults { delay_polls: 3, commit_fails: 9, ..Faults::default() });
            // Room for few of the keys, so that the hand works.
            let cache = Cached::new(inner, if seed % 2 == 0 { 1 << 20 } else { SHARDS * 200 });
            // Per key, the numbers written by commits that ended well, in the order they ended.
            let mut ended: BTreeMap<u8, Vec<u64>> = BTreeMap::new();
            let mut tasks: Vec<Task<'_>> = Vec::new();
            let mut next = 0u64;
            let mut cx = Context::from_waker(Waker::noop());
            for _ in 0..2000 {
                let key = u8::try_from(rng.below(6)).unwrap();
                if tasks.len() < 8 && rng.chance(1, 2) {
                    if rng.chance(1, 2) {
                        let known = ended.get(&key).map_or(0, Vec::len);
                        let cache = &cache;
                        let get = Box::pin(async move { cache.get(&[key]).await });
                        tasks.push(Task::Get(key, known, get));
                    } else {
                        next += 1;
                        let mut batch = Batch::new();
                        batch.put([key], next.to_be_bytes());
                        let put = Box::pin(cache.commit(batch, Durability::Answered));
                        tasks.push(Task::Put(key, next, put));
                    }
                    continue;
                }
                if tasks.is_empty() {
                    continue;
                }
                let at = usize::try_from(rng.below(tasks.len() as u64)).unwrap();
                if rng.chance(1, 40) {
                    // Dropped commits may or may not have been applied: forget what is known.
                    if let Task::Put(key, ..) = tasks.swap_remove(at) {
                        ended.remove(&key);
                        tasks.retain(|t| !matches!(t, Task::Get(k, ..) if *k == key));
                    }
                    continue;
                }
                let done = match &mut tasks[at] {
                    Task::Get(key, known, get) => match get.as_mut().poll(&mut cx) {
                        Poll::Pending => false,
                        Poll::Ready(value) => {
                            let value = value.unwrap();
                            let ended = ended.get(key).map_or(&[][..], |v| &v[..]);
                            if let Some(value) = value {
                                let number = u64::from_be_bytes(value[..].try_into().unwrap());
                                // Older only if it ended before the last one known at the start.
                                let at = ended.iter().position(|n| *n == number);
                                assert!(at.is_none_or(|at| at + 1 >= *known), "seed {seed}");
                            } else {
                                assert_eq!(*known, 0, "seed {seed}");
                            }
                            true
                        }
                    },
                    Task::Put(key, number, put) => match put.as_mut().poll(&mut cx) {
                        Poll::Pending => false,
                        Poll::Ready(outcome) => {
                            if outcome.is_ok() {
                                ended.entry(*key).or_default().push(*number);
                            }
                            true
                        }
                    },
                };
                if done {
                    drop(tasks.swap_remove(at));
                }
            }
            drop(tasks);
            // At rest the cache says what the store says.
            cache.inner().set_faults(Faults::default());
            for key in 0..6 {
                assert_eq!(run(cache.get(&[key])), run(cache.inner().get(&[key])), "seed {seed}");
            }
        }
    }

    #[test]
    fn it_answers_again_without_asking_and_stays_in_bounds() {
        let cache = Cached::new(MemKv::new(1), 64 << 10);
        assert_eq!(run(cache.get(b"absent")), Ok(None));
        cache.inner().set_faults(Faults { read_fails: 1, ..Faults::default() });
        assert_eq!(run(cache.get(b"absent")), Ok(None));
        assert_eq!(cache.counts(), CacheCounts { hits: 1, misses: 1 });
        for i in 0..10_000u32 {
            let mut batch = Batch::new();
            batch.put(i.to_be_bytes(), [7; 100]);
            run(cache.commit(batch, Durability::Answered)).unwrap();
            assert_eq!(run(cache.get(&i.to_be_bytes())), Ok(Some([7; 100].into())));
        }
        let bytes: usize = cache.shards.iter().map(|s| s.lock().unwrap().bytes).sum();
        assert!(bytes <= 64 << 10);
    }
}
