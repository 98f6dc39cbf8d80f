//! A key-value engine in memory that fails, delays and forgets on command, by seed.

use std::collections::BTreeMap;
use std::future::poll_fn;
use std::ops::Bound;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::task::Poll;

use outboard_base::{Errno, Rng};

use crate::{Batch, Durability, Key, KeyVersions, Kv, KvError, Snapshot, Usage, Value, Version};

/// What goes wrong from now on. All off by default.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Faults {
    /// One read or scan in this many fails with `EIO`; 0 for none.
    pub read_fails: u64,
    /// One commit in this many fails with `EIO`, unapplied, the engine unharmed; 0 for none.
    pub commit_fails: u64,
    /// One commit in this many of those that carry conditions reports `Conflict` though they hold;
    /// 0 for none.
    pub commit_conflicts: u64,
    /// The next sync or durable commit fails and poisons the engine.
    pub sync_fails: bool,
    /// Each operation is pending for up to this many polls.
    pub delay_polls: u64,
    /// Capacity in bytes of keys and values, a 16th of it reserve; 0 for no limit.
    pub capacity: u64,
}

/// The engine.
pub struct MemKv {
    state: Mutex<State>,
}

struct State {
    pairs: BTreeMap<Key, Value>,
    versions: KeyVersions,
    bytes: u64,
    /// What undoes each commit since the last sync, oldest first.
    undo: Vec<Vec<(Key, Option<Value>)>>,
    faults: Faults,
    rng: Rng,
    poisoned: bool,
}

impl State {
    fn fails(&mut self, one_in: u64) -> bool {
        one_in != 0 && self.rng.chance(1, one_in)
    }

    fn readable(&mut self) -> Result<(), KvError> {
        let one_in = self.faults.read_fails;
        if self.fails(one_in) { Err(KvError::Io(Errno::EIO)) } else { Ok(()) }
    }

    fn set(&mut self, key: &Key, value: Option<Value>) -> Option<Value> {
        let cost = |v: &Value| (key.len() + v.len()) as u64;
        self.bytes += value.as_ref().map_or(0, cost);
        let before = match value {
            Some(value) => self.pairs.insert(key.clone(), value),
            None => self.pairs.remove(key),
        };
        self.bytes -= before.as_ref().map_or(0, cost);
        before
    }

    /// Whether the conditions hold, looking up only what the batch's version leaves in doubt. What
    /// is skipped must hold by the batch's own promise, and that is asserted here.
    fn judge(&self, batch: &Batch) -> Result<(), KvError> {
        for condition in batch.conditions() {
            let holds = condition.holds(self.pairs.get(condition.key()).map(|v| &v[..]));
            let skipped =
                batch.version().is_some_and(|v| !self.versions.written_since(condition.key(), v));
            assert!(holds || !skipped, "a condition never read under its version: {condition:?}");
            if !holds {
                return Err(KvError::Conflict);
            }
        }
        Ok(())
    }

    fn room(&self, batch: &Batch) -> Result<(), KvError> {
        let Usage { capacity, reserve, used } = self.usage();
        let limit = if batch.is_essential() { capacity } else { capacity - reserve };
        // Deletes alone always fit: they store nothing.
        let grows = batch.writes().iter().any(|w| w.value.is_some());
        if grows && used.saturating_add(batch.bytes() as u64) > limit {
            return Err(KvError::NoSpace);
        }
        Ok(())
    }

    fn usage(&self) -> Usage {
        match self.faults.capacity {
            0 => Usage { capacity: u64::MAX, used: self.bytes, reserve: 0 },
            capacity => Usage { capacity, used: self.bytes, reserve: capacity / 16 },
        }
    }

    fn commit(&mut self, batch: &Batch, durability: Durability) -> Result<(), KvError> {
        if self.poisoned {
            return Err(KvError::Io(Errno::EIO));
        }
        batch.check_limits::<MemKv>()?;
        self.judge(batch)?;
        self.room(batch)?;
        let Faults { commit_fails, commit_conflicts, .. } = self.faults;
        if !batch.conditions().is_empty() && self.fails(commit_conflicts) {
            return Err(KvError::Conflict);
        }
        if self.fails(commit_fails) {
            return Err(KvError::Io(Errno::EIO));
        }
        let undo =
            batch.writes().iter().map(|w| (w.key.clone(), self.set(&w.key, w.value.clone())));
        let undo: Vec<_> = undo.collect();
        self.undo.push(undo);
        self.versions.record(batch);
        if durability == Durability::Durable { self.sync() } else { Ok(()) }
    }

    fn sync(&mut self) -> Result<(), KvError> {
        if self.poisoned || self.faults.sync_fails {
            self.poisoned = true;
            return Err(KvError::Io(Errno::EIO));
        }
        self.undo.clear();
        Ok(())
    }
}

impl MemKv {
    /// An empty engine whose faults follow `seed`.
    #[must_use]
    pub fn new(seed: u64) -> MemKv {
        MemKv {
            state: Mutex::new(State {
                pairs: BTreeMap::new(),
                versions: KeyVersions::new(),
                bytes: 0,
                undo: Vec::new(),
                faults: Faults::default(),
                rng: Rng::new(seed),
                poisoned: false,
            }),
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sets what goes wrong from now on.
    pub fn set_faults(&self, faults: Faults) {
        self.lock().faults = faults;
    }

    /// Power loss: of the commits since the last sync a random prefix is kept. Faults and poison
    /// are forgotten, as by a new start.
    pub fn crash(&self) {
        let mut guard = self.lock();
        let state = &mut *guard;
        let kept = state.rng.below(state.undo.len() as u64 + 1);
        let kept = usize::try_from(kept).unwrap_or(0);
        for commit in state.undo.split_off(kept).into_iter().rev() {
            for (key, before) in commit.into_iter().rev() {
                state.set(&key, before);
            }
        }
        state.undo.clear();
        state.faults = Faults::default();
        state.poisoned = false;
        state.versions = KeyVersions::new();
    }

    /// Flips one bit of the value of `key`, if it has one with a byte in it.
    pub fn corrupt(&self, key: &[u8]) {
        let mut state = self.lock();
        if let Some(value) = state.pairs.get_mut(key) {
            let mut bytes = value.to_vec();
            if let Some(byte) = bytes.first_mut() {
                *byte ^= 1;
            }
            *value = bytes.into();
        }
    }

    async fn delay(&self) {
        let mut polls = {
            let mut state = self.lock();
            let max = state.faults.delay_polls;
            if max == 0 { 0 } else { state.rng.below(max + 1) }
        };
        poll_fn(move |cx| {
            if polls == 0 {
                return Poll::Ready(());
            }
            polls -= 1;
            cx.waker().wake_by_ref();
            Poll::Pending
        })
        .await;
    }
}

/// The first key after every key that starts with `prefix`, if there is one.
fn prefix_end(prefix: &[u8]) -> Option<Vec<u8>> {
    let mut end = prefix.to_vec();
    while let Some(last) = end.pop() {
        if let Some(next) = last.checked_add(1) {
            end.push(next);
            return Some(end);
        }
    }
    None
}

/// All pairs, copied.
struct Frozen(BTreeMap<Key, Value>);

impl Snapshot for Frozen {
    fn scan(&self, after: Option<&[u8]>, limit: usize) -> Result<Vec<(Key, Value)>, KvError> {
        let start = after.map_or(Bound::Unbounded, Bound::Excluded);
        let pairs = self.0.range::<[u8], _>((start, Bound::Unbounded));
        Ok(pairs.take(limit).map(|(k, v)| (k.clone(), v.clone())).collect())
    }
}

impl Kv for MemKv {
    async fn get(&self, key: &[u8]) -> Result<Option<Value>, KvError> {
        self.delay().await;
        let mut state = self.lock();
        state.readable()?;
        Ok(state.pairs.get(key).cloned())
    }

    async fn scan(
        &self,
        prefix: &[u8],
        after: Option<&[u8]>,
        limit: usize,
    ) -> Result<Vec<(Key, Value)>, KvError> {
        self.delay().await;
        let mut state = self.lock();
        state.readable()?;
        let start = match after {
            Some(after) if after >= prefix => Bound::Excluded(after),
            _ => Bound::Included(prefix),
        };
        let end = prefix_end(prefix);
        if let (Some(end), Bound::Excluded(after)) = (&end, start)
            && after >= &end[..]
        {
            return Ok(Vec::new());
        }
        let end = end.as_deref().map_or(Bound::Unbounded, Bound::Excluded);
        let pairs = state.pairs.range::<[u8], _>((start, end));
        Ok(pairs.take(limit).map(|(k, v)| (k.clone(), v.clone())).collect())
    }

    async fn commit(&self, batch: Batch, durability: Durability) -> Result<(), KvError> {
        self.delay().await;
        self.lock().commit(&batch, durability)
    }

    async fn sync(&self) -> Result<(), KvError> {
        self.delay().await;
        self.lock().sync()
    }

    fn version(&self) -> Version {
        self.lock().versions.now()
    }

    fn snapshot(&self) -> Result<Box<dyn Snapshot>, KvError> {
        let mut state = self.lock();
        state.readable()?;
        Ok(Box::new(Frozen(state.pairs.clone())))
    }

    fn usage(&self) -> Usage {
        self.lock().usage()
    }
}
