//! Splitting a shard that has grown too large.
//!
//! ```text
//! 1  root: a number is taken, and noted as tentative      crash: the new object is removed
//! 2  the upper half is copied into the new object         crash: the same
//! 3  root: the new shard begins at the middle, no longer  from here on it is read there
//!    tentative; the old one has remains
//! 4  the upper half is removed from the old one           crash: goes on
//! 5  root: no remains
//! ```
//!
//! The worker does it, so that the shard does not change meanwhile. Reads go on: one that asked the
//! old shard and finds, with the answer in hand, that ranges have changed asks again.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::super::port::{Pool, Step};
use super::super::root::{Shard, pair_key, plain_key, remains, set, start_key};
use super::super::stamped::Refused;
use super::PooledKv;
use super::work::{BYTES, PAIRS};
use outboard_kv::{Key, Value};

/// What a pair takes beside its bytes, about, for finding the middle.
const OVERHEAD: u64 = 64;

impl<P: Pool> PooledKv<P> {
    /// Splits the shards that may be too large.
    pub(super) async fn split_large(&self) -> Result<(), Refused> {
        let large: Vec<(Arc<Shard>, Option<Key>)> = {
            let state = self.lock();
            let shards = state.root.shards.iter().filter(|(_, shard)| {
                shard.map.size().is_some_and(|(pairs, bytes)| {
                    pairs > self.options.split_pairs || bytes > self.options.split_bytes
                })
            });
            shards.filter_map(|(start, _)| state.root.locate(start)).collect()
        };
        for (shard, end) in large {
            self.split(&shard, end).await?;
        }
        Ok(())
    }

    async fn split(&self, shard: &Arc<Shard>, end: Option<Key>) -> Result<(), Refused> {
        let keys = self.weigh(shard, end.as_ref()).await?;
        let (pairs, bytes) = count(&keys);
        if pairs <= self.options.split_pairs / 2 && bytes <= self.options.split_bytes / 2 {
            // The counts were at most; now they are right.
            return self.note(shard, (pairs, bytes)).await;
        }
        let Some((before, middle)) = middle(&keys) else {
            // One pair only: nothing can be split.
            return Ok(());
        };
        let id = self.lock().root.next;
        self.change_root(vec![set(b"n", id + 1), set(b"t", id)]).await?;
        {
            let mut state = self.lock();
            state.root.next = id + 1;
            state.root.tentative = Some(id);
        }
        let new = Shard::new(id);
        new.map.make(&*self.pool, &self.owner, Vec::new()).await?;
        self.copy(shard, &new, Some(before), end.as_ref()).await?;
        self.change_root(vec![
            Step::MapSet(start_key(&middle), id.to_be_bytes().into()),
            Step::MapRemove(b"t".into()),
            Step::MapSet(b"d".into(), remains(shard.id, &middle)),
        ])
        .await?;
        {
            let mut state = self.lock();
            state.root.tentative = None;
            state.root.remains = Some((shard.id, middle.clone()));
            state.root.shards.insert(middle.clone(), new);
            state.ranges += 1;
            state.counts.splits += 1;
        }
        self.clean(shard.id, &middle).await
    }

    /// Notes how much a shard holds, now that it was counted.
    pub(super) async fn note(&self, shard: &Shard, exact: (u64, u64)) -> Result<(), Refused> {
        shard.removed.store(0, Ordering::Relaxed);
        shard.counted.store(true, Ordering::Relaxed);
        shard.map.change(&*self.pool, &self.owner, Vec::new(), |_, _| exact).await
    }

    /// The keys of a shard, with the bytes of each pair.
    pub(super) async fn weigh(
        &self,
        shard: &Shard,
        end: Option<&Key>,
    ) -> Result<Vec<(Key, u64)>, Refused> {
        let mut keys = Vec::new();
        let mut after: Option<Key> = None;
        loop {
            let pairs = self.chunk(shard, after.as_ref(), end).await?;
            let Some((last, _)) = pairs.last() else { return Ok(keys) };
            after = Some(last.clone());
            keys.extend(pairs.into_iter().map(|(key, value)| {
                let bytes = (key.len() + value.len()) as u64;
                (key, bytes)
            }));
        }
    }

    /// Some pairs of a shard after a key and below another; none if there are no more.
    async fn chunk(
        &self,
        shard: &Shard,
        after: Option<&Key>,
        end: Option<&Key>,
    ) -> Result<Vec<(Key, Value)>, Refused> {
        let after = after.map(|key| pair_key(key));
        let object = shard.map.object();
        let scan = self.pool.map_scan(object, b"p", after.as_deref(), PAIRS).await?;
        let pairs = scan.pairs.into_iter().filter_map(|(k, v)| plain_key(&k).map(|k| (k, v)));
        Ok(pairs.take_while(|(key, _)| end.is_none_or(|end| key < end)).collect())
    }

    /// Copies what comes after a key, or everything, into another shard.
    pub(super) async fn copy(
        &self,
        old: &Shard,
        new: &Shard,
        mut after: Option<Key>,
        end: Option<&Key>,
    ) -> Result<(), Refused> {
        loop {
            let pairs = self.chunk(old, after.as_ref(), end).await?;
            let Some((last, _)) = pairs.last() else { return Ok(()) };
            after = Some(last.clone());
            let mut pairs = pairs.into_iter().peekable();
            while pairs.peek().is_some() {
                let (mut steps, mut bytes) = (Vec::new(), 0);
                while let Some((key, value)) = pairs.next_if(|_| bytes < BYTES) {
                    bytes += key.len() + value.len();
                    steps.push(Step::MapSet(pair_key(&key), value));
                }
                let (count, bytes) = (steps.len() as u64, bytes as u64);
                let size = |p, b| (p + count, b + bytes);
                new.map.change(&*self.pool, &self.owner, steps, size).await?;
            }
        }
    }

    /// Removes what a shard still has of another's range.
    pub(super) async fn clean(&self, id: u64, from: &Key) -> Result<(), Refused> {
        let shard = {
            let state = self.lock();
            state.root.shards.values().find(|shard| shard.id == id).map(Arc::clone)
        };
        let shard = shard.ok_or(Refused::Corrupt)?;
        let first = vec![Step::MapRemove(pair_key(from))];
        shard.map.change(&*self.pool, &self.owner, first, |p, b| (p, b)).await?;
        loop {
            let pairs = self.chunk(&shard, Some(from), None).await?;
            if pairs.is_empty() {
                break;
            }
            let bytes: usize = pairs.iter().map(|(key, value)| key.len() + value.len()).sum();
            let (count, bytes) = (pairs.len() as u64, bytes as u64);
            let steps = pairs.into_iter().map(|(key, _)| Step::MapRemove(pair_key(&key))).collect();
            let size = |p: u64, b: u64| (p.saturating_sub(count), b.saturating_sub(bytes));
            shard.map.change(&*self.pool, &self.owner, steps, size).await?;
        }
        self.change_root(vec![Step::MapRemove(b"d".into())]).await?;
        self.lock().root.remains = None;
        Ok(())
    }
}

/// Pairs and bytes.
pub(super) fn count(keys: &[(Key, u64)]) -> (u64, u64) {
    (keys.len() as u64, keys.iter().map(|(_, bytes)| bytes).sum())
}

/// The key after which the upper half begins, and its first key.
fn middle(keys: &[(Key, u64)]) -> Option<(Key, Key)> {
    let all: u64 = keys.iter().map(|(_, bytes)| bytes + OVERHEAD).sum();
    let mut passed = 0;
    for (at, (key, bytes)) in keys.iter().enumerate() {
        passed += bytes + OVERHEAD;
        let Some((next, _)) = keys.get(at + 1) else { break };
        if passed >= all / 2 || at + 2 == keys.len() {
            return Some((key.clone(), next.clone()));
        }
    }
    None
}
