//! Reads: the overlay before the shards.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::Arc;

use outboard_base::Errno;

use super::super::port::Pool;
use super::super::root::{Shard, pair_key, plain_key};
use super::{PooledKv, State, kv_error};
use outboard_base::task::join_all;
use outboard_kv::{Key, KvError, Value};

/// Most pairs asked for at once.
const CHUNK: usize = 1000;

/// Ends a scan however it ends.
struct Scanning<'a, P: Pool> {
    store: &'a PooledKv<P>,
    ticket: u64,
}

impl<P: Pool> Drop for Scanning<'_, P> {
    fn drop(&mut self) {
        self.store.lock().overlay.end_scan(self.ticket);
    }
}

/// What a scan has read from the shards so far.
struct Reading<'a> {
    prefix: &'a [u8],
    /// Where it began.
    from: Bound<&'a [u8]>,
    pairs: Vec<(Key, Value)>,
    /// Everything below is read.
    covered: Bound<Key>,
    /// Everything is.
    exhausted: bool,
}

impl Reading<'_> {
    fn covers(&self, key: &Key) -> bool {
        self.exhausted
            || match &self.covered {
                Bound::Included(covered) => key <= covered,
                Bound::Excluded(covered) => key < covered,
                Bound::Unbounded => false,
            }
    }

    /// The pairs there are at this moment, as far as it has read. No write of the range has left
    /// the overlay since the scan began, so what the overlay does not know has not changed.
    fn merge(&self, state: &State) -> Vec<(Key, Value)> {
        let mut merged: BTreeMap<Key, Value> = self.pairs.iter().cloned().collect();
        for (key, value) in state.overlay.range(self.prefix, self.from) {
            if !self.covers(key) {
                break;
            }
            match value {
                Some(value) => drop(merged.insert(key.clone(), value.clone())),
                None => drop(merged.remove(key)),
            }
        }
        merged.into_iter().collect()
    }

    /// Takes in what a shard, whose range ends where it says, answered.
    fn take(&mut self, scan: super::super::Scan, end: Option<&Key>) {
        let mut last = None;
        let mut whole = !scan.more;
        for (key, value) in scan.pairs {
            let Some(key) = plain_key(&key) else { continue };
            if end.is_some_and(|end| key >= *end) {
                whole = true;
                break;
            }
            last = Some(key.clone());
            self.pairs.push((key, value));
        }
        if !whole {
            if let Some(last) = last {
                self.covered = Bound::Included(last);
            }
            return;
        }
        match end.filter(|end| end.starts_with(self.prefix)) {
            Some(end) => self.covered = Bound::Excluded(end.clone()),
            None => self.exhausted = true,
        }
    }
}

impl<P: Pool> PooledKv<P> {
    /// Sends commits on their way whose futures are gone, if the read is about what they write: who
    /// has dropped one must learn what became of it.
    async fn adopt_orphans(&self, about: impl Fn(&State) -> bool) -> Result<(), KvError> {
        let orphan = {
            let state = self.lock();
            (state.orphan > state.ended && about(&state)).then_some(state.orphan)
        };
        match orphan {
            Some(seq) => self.journaled(seq).await,
            None => Ok(()),
        }
    }

    pub(super) async fn read_one(&self, key: &[u8]) -> Result<Option<Value>, KvError> {
        self.adopt_orphans(|state| state.overlay.pending(key).is_some()).await?;
        if let Some(value) = self.lock().look(key)? {
            return Ok(value);
        }
        let values = self.base_many(&[key.into()]).await?;
        Ok(values.into_iter().next().flatten())
    }

    pub(super) async fn read_many(&self, keys: &[Key]) -> Result<Vec<Option<Value>>, KvError> {
        self.adopt_orphans(|state| keys.iter().any(|key| state.overlay.pending(key).is_some()))
            .await?;
        let known: Vec<_> = {
            let state = self.lock();
            keys.iter().map(|key| state.look(key)).collect::<Result<_, _>>()?
        };
        let missing = keys.iter().zip(&known).filter(|(_, known)| known.is_none());
        let missing: Vec<Key> = missing.map(|(key, _)| key.clone()).collect();
        let mut read = self.base_many(&missing).await?.into_iter();
        Ok(known.into_iter().map(|known| known.or_else(|| read.next()).flatten()).collect())
    }

    /// The values of keys as the shards have them.
    pub(super) async fn base_many(&self, keys: &[Key]) -> Result<Vec<Option<Value>>, KvError> {
        loop {
            let (shards, ranges) = {
                let state = self.lock();
                let mut shards: BTreeMap<u64, (Arc<Shard>, Vec<usize>)> = BTreeMap::new();
                for (at, key) in keys.iter().enumerate() {
                    let (shard, _) = state.root.locate(key).ok_or(KvError::Corrupt)?;
                    shards.entry(shard.id).or_insert_with(|| (shard, Vec::new())).1.push(at);
                }
                (shards, state.ranges)
            };
            let asked = shards.into_values().map(async |(shard, places)| {
                let keys: Vec<Key> =
                    places.iter().filter_map(|&at| keys.get(at)).map(|key| pair_key(key)).collect();
                let object = shard.map.object();
                let values = self.pool.map_get(object, &keys).await.map_err(kv_error);
                values.map(|values| (places, values))
            });
            let mut values = vec![None; keys.len()];
            let answers: Result<Vec<_>, _> = join_all(asked.collect()).await.into_iter().collect();
            if self.lock().ranges != ranges {
                // A shard that was asked may be there no more.
                continue;
            }
            for (places, found) in answers? {
                for (at, value) in places.into_iter().zip(found) {
                    if let Some(place) = values.get_mut(at) {
                        *place = value;
                    }
                }
            }
            return Ok(values);
        }
    }

    pub(super) async fn read_range(
        &self,
        prefix: &[u8],
        after: Option<&[u8]>,
        limit: usize,
    ) -> Result<Vec<(Key, Value)>, KvError> {
        let from = match after {
            Some(after) if after >= prefix => {
                if !after.starts_with(prefix) {
                    return Ok(Vec::new());
                }
                Bound::Excluded(after)
            }
            _ => Bound::Included(prefix),
        };
        if limit == 0 {
            return Ok(Vec::new());
        }
        self.adopt_orphans(|state| state.overlay.pends(prefix)).await?;
        let scanning = Scanning { store: self, ticket: self.lock().overlay.begin_scan() };
        let covered = match from {
            Bound::Excluded(after) => Bound::Included(after.into()),
            _ => Bound::Excluded(prefix.into()),
        };
        let pairs = Vec::new();
        let mut reading = Reading { prefix, from, pairs, covered, exhausted: false };
        let mut chunk = limit.saturating_add(1).min(CHUNK);
        loop {
            let (place, after) = match &reading.covered {
                Bound::Included(last) => (last.clone(), Some(pair_key(last))),
                Bound::Excluded(next) => (next.clone(), None),
                Bound::Unbounded => (Key::default(), None),
            };
            let (shard, end, ranges) = {
                let state = self.lock();
                let (shard, end) = state.root.locate(&place).ok_or(KvError::Corrupt)?;
                (shard, end, state.ranges)
            };
            let object = shard.map.object();
            let scan = self.pool.map_scan(object, &pair_key(prefix), after.as_deref(), chunk).await;
            let state = self.lock();
            if state.ranges != ranges {
                // Also if it failed: the shard may be there no more.
                continue;
            }
            reading.take(scan.map_err(kv_error)?, end.as_ref());
            if state.failed.is_some() && state.overlay.pends(prefix) {
                return Err(KvError::Io(Errno::EIO));
            }
            let mut merged = reading.merge(&state);
            drop(state);
            if merged.len() >= limit || reading.exhausted {
                drop(scanning);
                merged.truncate(limit);
                return Ok(merged);
            }
            chunk = (limit - merged.len()).saturating_add(1).min(CHUNK);
        }
    }
}

impl State {
    /// What the overlay knows of a key; an error if a commit in doubt may have written it.
    fn look(&self, key: &[u8]) -> Result<Option<Option<Value>>, KvError> {
        if self.failed.is_some() && self.overlay.pending(key).is_some() {
            return Err(KvError::Io(Errno::EIO));
        }
        Ok(self.overlay.visible(key))
    }
}
