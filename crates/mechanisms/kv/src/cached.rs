//! An exact point-get cache before any [`Kv`].
//!
//! Exact: a get never returns a value older than a commit that ended before it began. What could
//! break that, and what prevents it:
//! - *a slow fill*: a reader fetches the old value, a commit passes, the reader stores the old
//!   value. A fill is stored only if its ticket still stands in the entry; a commit takes it out.
//! - *two commits at once*: whose value is newer is known to the store behind only. Entries under
//!   more than one writer end up empty, not guessed.
//! - *two keys of one hash*: entries lie under a seeded hash of their key. The second key is not
//!   cached while the first is; a commit that could not mark its key empties what it finds there.
//!
//! `many` answers many gets at once, with one scan where what is missing lies close together.

mod many;

use std::collections::{HashMap, VecDeque};
use std::hash::BuildHasherDefault;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::hash::{KeyHash, Plain};
use crate::{Batch, Durability, Key, Kv, KvError, Snapshot, Usage, Value, Version};

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
    key: Key,
    held: Held,
    /// New, or used since the hand last passed.
    referenced: bool,
}

/// Bookkeeping per entry, about, bytes: its place in the map and in the ring, two allocations.
const OVERHEAD: usize = 160;
/// Entries the hand looks at for one insertion.
const HAND_STEPS: usize = 64;
const SHARDS: usize = 16;

/// Whether entries that a look-up makes are to outlive those that others will use again.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Use {
    /// It was asked for by itself.
    Own,
    /// It passes by with many others.
    Passing,
}

/// One part of the cache. The ring holds each hash of the map once: entries leave by the hand only.
#[derive(Default)]
struct Shard {
    entries: HashMap<u64, Entry, BuildHasherDefault<Plain>>,
    ring: VecDeque<u64>,
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

    /// The entry of `key`, if that is what lies under its hash.
    fn entry(&mut self, hash: u64, key: &[u8]) -> Option<&mut Entry> {
        self.entries.get_mut(&hash).filter(|entry| &entry.key[..] == key)
    }

    /// Changes what is held for `key`, which has an entry.
    fn change(&mut self, hash: u64, key: &[u8], change: impl FnOnce(&Held) -> Option<Held>) {
        let Some(entry) = self.entry(hash, key) else { return };
        let Some(held) = change(&entry.held) else { return };
        let before = Self::weight(&entry.held);
        let after = Self::weight(&held);
        entry.held = held;
        self.bytes = self.bytes + after - before;
    }

    /// Makes an entry for `key`, unless its hash is taken.
    fn insert(&mut self, hash: u64, key: Key, held: Held, referenced: bool) {
        let added = key.len() + OVERHEAD + Self::weight(&held);
        if let std::collections::hash_map::Entry::Vacant(vacant) = self.entries.entry(hash) {
            vacant.insert(Entry { key, held, referenced });
            self.bytes += added;
            self.ring.push_back(hash);
        }
    }

    /// Second chance: passes over what was used, keeps what is being written.
    fn evict(&mut self, limit: usize) {
        for _ in 0..HAND_STEPS {
            if self.bytes <= limit {
                return;
            }
            let Some(hash) = self.ring.pop_front() else { return };
            let Some(entry) = self.entries.get_mut(&hash) else { continue };
            let busy = matches!(entry.held, Held::Writing { .. });
            if std::mem::take(&mut entry.referenced) || busy {
                self.ring.push_back(hash);
            } else {
                self.bytes -= Self::weight(&entry.held) + entry.key.len() + OVERHEAD;
                self.entries.remove(&hash);
            }
        }
    }

    fn begin_write(&mut self, hash: u64, key: &Key) {
        if self.entry(hash, key).is_none() {
            let held = Held::Writing { writers: 1, alone: true };
            return self.insert(hash, key.clone(), held, true);
        }
        self.change(hash, key, |held| {
            let writers = if let Held::Writing { writers, .. } = held { writers + 1 } else { 1 };
            Some(Held::Writing { writers, alone: writers == 1 })
        });
    }

    fn end_write(&mut self, hash: u64, key: &Key, value: Option<Option<Value>>) {
        self.change(hash, key, |held| {
            let Held::Writing { writers, alone } = *held else {
                // Its hash was taken when the commit began: what came since may be old.
                return Some(Held::Empty);
            };
            Some(match (writers, alone, value) {
                (1, true, Some(value)) => Held::Known(value),
                (1, ..) => Held::Empty,
                (writers, ..) => Held::Writing { writers: writers - 1, alone: false },
            })
        });
    }

    /// The value a reader with this ticket has fetched.
    fn fill(&mut self, hash: u64, key: &[u8], ticket: u64, value: Option<Value>) {
        self.change(hash, key, |held| {
            matches!(held, Held::Filling(at) if *at == ticket).then_some(Held::Known(value))
        });
    }
}

/// A bounded write-through cache of point gets, absent keys included. A hit ends at its first poll
/// and costs a hash, an uncontended lock and a reference count.
pub struct Cached<K> {
    inner: K,
    hash: KeyHash,
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
            let (hash, mut shard) = self.cache.shard(&write.key);
            shard.end_write(hash, &write.key, self.applied.then_some(write.value));
            shard.evict(self.cache.limit);
        }
    }
}

impl<K: Kv> Cached<K> {
    /// Caches up to about `bytes` of keys, values and bookkeeping before `inner`.
    pub fn new(inner: K, bytes: usize) -> Cached<K> {
        Cached {
            inner,
            hash: KeyHash::new(),
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

    /// The hash of a key and the shard it lies in.
    fn shard(&self, key: &[u8]) -> (u64, MutexGuard<'_, Shard>) {
        let hash = self.hash.of(key);
        // The high bits: the map below takes the low ones. The index is below the length by the
        // remainder, so the first is never taken instead.
        let [first, ..] = &self.shards;
        let at = usize::try_from((hash >> 48) % SHARDS as u64).unwrap_or(0);
        let shard = self.shards.get(at).unwrap_or(first);
        (hash, shard.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// The cached answer, or the ticket to fill with.
    fn look(&self, key: &[u8], use_: Use) -> Result<Option<Value>, Option<u64>> {
        let (hash, mut shard) = self.shard(key);
        shard.tickets += 1;
        let ticket = shard.tickets;
        let Some(entry) = shard.entries.get_mut(&hash) else {
            shard.insert(hash, key.into(), Held::Filling(ticket), use_ == Use::Own);
            shard.evict(self.limit);
            return Err(Some(ticket));
        };
        if &entry.key[..] != key {
            return Err(None);
        }
        match &entry.held {
            Held::Known(value) => {
                entry.referenced |= use_ == Use::Own;
                Ok(value.clone())
            }
            Held::Writing { .. } => Err(None),
            Held::Empty | Held::Filling(_) => {
                entry.held = Held::Filling(ticket);
                Err(Some(ticket))
            }
        }
    }

    /// Keeps what was fetched, if the ticket still stands.
    fn keep(&self, key: &[u8], ticket: Option<u64>, value: &Option<Value>) {
        let Some(ticket) = ticket else { return };
        let (hash, mut shard) = self.shard(key);
        shard.fill(hash, key, ticket, value.clone());
        shard.evict(self.limit);
    }

    fn count(&self, hits: u64, misses: u64) {
        self.hits.fetch_add(hits, Ordering::Relaxed);
        self.misses.fetch_add(misses, Ordering::Relaxed);
    }
}

impl<K: Kv> Kv for Cached<K> {
    const KEY_MAX: usize = K::KEY_MAX;
    const VALUE_MAX: usize = K::VALUE_MAX;
    const BATCH_MAX: usize = K::BATCH_MAX;

    async fn get(&self, key: &[u8]) -> Result<Option<Value>, KvError> {
        let ticket = match self.look(key, Use::Own) {
            Ok(value) => {
                self.count(1, 0);
                return Ok(value);
            }
            Err(ticket) => ticket,
        };
        self.count(0, 1);
        let value = self.inner.get(key).await?;
        self.keep(key, ticket, &value);
        Ok(value)
    }

    fn get_many(&self, keys: &[Key]) -> impl Future<Output = Result<Vec<Option<Value>>, KvError>> {
        self.look_many(keys)
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
            let (hash, mut shard) = self.shard(&write.key);
            shard.begin_write(hash, &write.key);
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

    fn idle(&self) {
        self.inner.idle();
    }

    fn version(&self) -> Version {
        self.inner.version()
    }

    fn snapshot(&self) -> Result<Box<dyn Snapshot>, KvError> {
        self.inner.snapshot()
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
    use outboard_base::task::{poll_once, run};
    use std::collections::BTreeMap;
    use std::pin::Pin;
    use std::task::Poll;

    type Values = Vec<Option<Value>>;

    /// What a task is doing: a get of keys that had seen so many writes when it began, or a commit.
    enum Task<'a> {
        Get(Vec<(u8, usize)>, Pin<Box<dyn Future<Output = Result<Values, KvError>> + 'a>>),
        Put(u8, u64, Pin<Box<dyn Future<Output = Result<(), KvError>> + 'a>>),
    }

    const KEYS: u8 = 14;

    /// Per key, the numbers written by commits that ended well, in the order they ended.
    type Ended = BTreeMap<u8, Vec<u64>>;

    impl<'a> Task<'a> {
        fn begin(
            cache: &'a Cached<MemKv>,
            key: u8,
            rng: &mut Rng,
            ended: &Ended,
            last: &mut u64,
        ) -> Task<'a> {
            let known = |key| (key, ended.get(&key).map_or(0, Vec::len));
            if rng.chance(1, 8) {
                // All of them, one twice.
                let keys: Vec<u8> = (0..KEYS).chain([key]).collect();
                let asked: Vec<Key> = keys.iter().map(|&key| [key].into()).collect();
                let get = Box::pin(async move { cache.get_many(&asked).await });
                Task::Get(keys.into_iter().map(known).collect(), get)
            } else if rng.chance(1, 2) {
                let get = Box::pin(async move { Ok(vec![cache.get(&[key]).await?]) });
                Task::Get(vec![known(key)], get)
            } else {
                *last += 1;
                let mut batch = Batch::new();
                batch.put([key], last.to_be_bytes());
                Task::Put(key, *last, Box::pin(cache.commit(batch, Durability::Answered)))
            }
        }

        /// Polls it once; whether it has ended. What a get found is judged.
        fn poll(&mut self, ended: &mut Ended, seed: u64) -> bool {
            match self {
                Task::Get(keys, get) => {
                    let Poll::Ready(values) = poll_once(get.as_mut()) else { return false };
                    for ((key, known), value) in keys.iter().zip(values.unwrap()) {
                        let ended = ended.get(key).map_or(&[][..], |v| &v[..]);
                        let Some(value) = value else {
                            assert_eq!(*known, 0, "seed {seed}");
                            continue;
                        };
                        let number = u64::from_be_bytes(value[..].try_into().unwrap());
                        // Older only if it ended before the last one known at the start.
                        let at = ended.iter().position(|n| *n == number);
                        assert!(at.is_none_or(|at| at + 1 >= *known), "seed {seed}");
                    }
                }
                Task::Put(key, number, put) => {
                    let Poll::Ready(outcome) = poll_once(put.as_mut()) else { return false };
                    if outcome.is_ok() {
                        ended.entry(*key).or_default().push(*number);
                    }
                }
            }
            true
        }
    }

    /// Many gets and commits at once, polled in random order, some dropped half way: a get never
    /// returns a value overwritten by a commit that had ended before the get began. Nor does a get
    /// of many keys, which may scan.
    #[test]
    fn a_get_is_never_older_than_what_was_committed_before_it() {
        for seed in 0..150 {
            let mut rng = Rng::new(seed);
            let inner = MemKv::new(seed);
            inner.set_faults(Faults { delay_polls: 3, commit_fails: 9, ..Faults::default() });
            // Room for few of the keys, so that the hand works.
            let cache = Cached::new(inner, if seed % 2 == 0 { 1 << 20 } else { SHARDS * 200 });
            let mut ended = Ended::new();
            let mut tasks: Vec<Task<'_>> = Vec::new();
            let mut last = 0u64;
            for _ in 0..2000 {
                let key = u8::try_from(rng.below(KEYS.into())).unwrap();
                if tasks.len() < 8 && rng.chance(1, 2) {
                    tasks.push(Task::begin(&cache, key, &mut rng, &ended, &mut last));
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
                        let about = |keys: &[(u8, usize)]| keys.iter().any(|(k, _)| *k == key);
                        tasks.retain(|t| !matches!(t, Task::Get(keys, _) if about(keys)));
                    }
                    continue;
                }
                if tasks[at].poll(&mut ended, seed) {
                    drop(tasks.swap_remove(at));
                }
            }
            drop(tasks);
            // At rest the cache says what the store says.
            cache.inner().set_faults(Faults::default());
            for key in 0..KEYS {
                assert_eq!(run(cache.get(&[key])), run(cache.inner().get(&[key])), "seed {seed}");
            }
        }
    }

    /// Keys in any order, some twice, some absent, dense and thinly sown, before a cache that has
    /// some of them.
    #[test]
    fn many_gets_answer_what_each_would() {
        for seed in 0..200 {
            let mut rng = Rng::new(seed);
            let cache = Cached::new(MemKv::new(seed), 64 << 10);
            let span = [30_u64, 300, 3000][usize::try_from(seed % 3).unwrap()];
            let mut batch = Batch::new();
            for n in 0..span {
                if rng.chance(2, 3) {
                    batch.put([&b"k"[..], &n.to_be_bytes()].concat(), n.to_le_bytes());
                }
                if rng.chance(1, 20) {
                    batch.put([&b"k"[..], &n.to_be_bytes(), b"tail"].concat(), *b"longer");
                }
            }
            run(cache.inner().commit(batch, Durability::Answered)).unwrap();
            let key =
                |rng: &mut Rng| Key::from([&b"k"[..], &rng.below(span).to_be_bytes()].concat());
            for _ in 0..rng.below(20) {
                run(cache.get(&key(&mut rng))).unwrap();
            }
            let keys: Vec<Key> = (0..rng.below(120)).map(|_| key(&mut rng)).collect();
            let wanted: Values = keys.iter().map(|k| run(cache.inner().get(k)).unwrap()).collect();
            assert_eq!(run(cache.get_many(&keys)), Ok(wanted.clone()), "seed {seed}");
            let before = cache.counts();
            assert_eq!(run(cache.get_many(&keys)), Ok(wanted), "seed {seed}");
            assert_eq!(cache.counts().misses, before.misses, "seed {seed}: all of it was kept");
        }
    }

    /// Two keys under one hash: the first is cached, the second never wrongly.
    #[test]
    fn keys_of_one_hash_do_not_answer_for_each_other() {
        let mut shard = Shard::default();
        let (one, two) = (Key::from(b"one"), Key::from(b"two"));
        shard.begin_write(7, &one);
        shard.begin_write(7, &two);
        shard.end_write(7, &two, Some(Some(Value::from(b"2"))));
        shard.end_write(7, &one, Some(Some(Value::from(b"1"))));
        let held = shard.entry(7, b"one").map(|entry| matches!(&entry.held, Held::Known(Some(_))));
        assert_eq!(held, Some(true));
        assert!(shard.entry(7, b"two").is_none());
        // The first leaves while the second is written; a reader comes with what was before.
        shard.begin_write(7, &two);
        shard.entries.get_mut(&7).unwrap().referenced = false;
        shard.evict(0);
        assert!(shard.entries.is_empty() && shard.bytes == 0);
        shard.insert(7, two.clone(), Held::Filling(1), true);
        shard.fill(7, b"two", 1, Some(Value::from(b"old")));
        shard.end_write(7, &two, Some(Some(Value::from(b"new"))));
        let held = shard.entry(7, b"two").map(|entry| matches!(entry.held, Held::Empty));
        assert_eq!(held, Some(true));
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
