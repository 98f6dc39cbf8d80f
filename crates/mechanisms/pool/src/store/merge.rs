//! Merging neighbours of which little is left, so that a volume that has shrunk has as few objects
//! as one that never grew.
//!
//! ```text
//! 1  root: the left one has remains, from where the right  crash: what was copied is removed
//!    one begins
//! 2  the right one's pairs are copied into the left one    crash: the same
//! 3  root: the right one's range is the left one's, which  from here on it is read there
//!    has no remains; the right one is tentative
//! 4  the right one is removed                              crash: goes on
//! 5  root: nothing is tentative
//! ```
//!
//! The states between are those of a [split](super::split), so what finishes one finishes the
//! other, and an owner that knows of splits only does, too. Deletions do not lower the counts of a
//! stamp, which are at most: a shard is counted when half of what it may hold was removed.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::super::port::{Pool, Step};
use super::super::root::{Shard, remains, set, start_key};
use super::super::stamped::Refused;
use super::PooledKv;
use super::split::count;
use outboard_kv::Key;

/// Neighbours are merged when they hold together this part of what a shard may: so far from a
/// split that a volume about as large as it was is not merged and split in turn.
const PART: u64 = 4;

/// A shard, where it begins, and where the next one does.
struct Place {
    shard: Arc<Shard>,
    start: Key,
    end: Option<Key>,
}

impl<P: Pool> PooledKv<P> {
    /// Counts shards that have lost much, and merges those of which little is left.
    pub(super) async fn merge_small(&self) -> Result<(), Refused> {
        let thin: Vec<Key> = {
            let state = self.lock();
            if state.root.shards.len() < 2 {
                return Ok(());
            }
            let thin = state.root.shards.iter().filter(|(_, shard)| {
                let removed = shard.removed.load(Ordering::Relaxed);
                removed > 0 && shard.map.size().is_none_or(|(pairs, _)| removed >= pairs / 2)
            });
            thin.map(|(start, _)| start.clone()).collect()
        };
        for start in thin {
            // Those before may have taken it in.
            let Some(place) = self.place(&start) else { continue };
            self.count(&place).await?;
            while self.merge_one(&start).await? {}
        }
        Ok(())
    }

    /// Merges the shard of a key with a neighbour; whether it did.
    async fn merge_one(&self, key: &Key) -> Result<bool, Refused> {
        let Some(place) = self.place(key) else { return Ok(false) };
        if !self.is_little(self.size(&place).await?) {
            return Ok(false);
        }
        let before = {
            let state = self.lock();
            state.root.shards.range::<Key, _>(..&place.start).next_back().map(|(k, _)| k.clone())
        };
        if let Some(left) = before.and_then(|start| self.place(&start))
            && self.fit(&left, &place).await?
        {
            return self.merge(&left, &place).await.map(|()| true);
        }
        if let Some(right) = place.end.as_ref().and_then(|start| self.place(start))
            && self.fit(&right, &place).await?
        {
            return self.merge(&place, &right).await.map(|()| true);
        }
        Ok(false)
    }

    /// Whether a shard and the little there is in its neighbour may be one.
    async fn fit(&self, shard: &Place, little: &Place) -> Result<bool, Refused> {
        let (pairs, bytes) = self.size(little).await?;
        let with = |(p, b): (u64, u64)| self.is_little((p + pairs, b + bytes));
        if with(self.size(shard).await?) {
            return Ok(true);
        }
        // What is known of it may be much more than it holds, from a life before this one.
        if shard.shard.counted.load(Ordering::Relaxed) {
            return Ok(false);
        }
        self.count(shard).await?;
        Ok(with(self.size(shard).await?))
    }

    fn is_little(&self, (pairs, bytes): (u64, u64)) -> bool {
        pairs <= self.options.split_pairs / PART && bytes <= self.options.split_bytes / PART
    }

    /// The shard of a key.
    fn place(&self, key: &Key) -> Option<Place> {
        let state = self.lock();
        let (start, shard) = state.root.shards.range::<Key, _>(..=key).next_back()?;
        let (_, end) = state.root.locate(key)?;
        Some(Place { shard: Arc::clone(shard), start: start.clone(), end })
    }

    /// What it holds at most.
    async fn size(&self, place: &Place) -> Result<(u64, u64), Refused> {
        let stamp = place.shard.map.stamp(&*self.pool).await?;
        Ok((stamp.pairs, stamp.bytes))
    }

    async fn count(&self, place: &Place) -> Result<(), Refused> {
        let keys = self.weigh(&place.shard, place.end.as_ref()).await?;
        self.note(&place.shard, count(&keys)).await
    }

    /// The steps of the module, for two neighbours.
    async fn merge(&self, left: &Place, right: &Place) -> Result<(), Refused> {
        let (into, from) = (left.shard.id, &right.start);
        self.change_root(vec![Step::MapSet(b"d".into(), remains(into, from))]).await?;
        self.lock().root.remains = Some((into, from.clone()));
        self.copy(&right.shard, &left.shard, None, right.end.as_ref()).await?;
        self.change_root(vec![
            Step::MapRemove(start_key(from)),
            Step::MapRemove(b"d".into()),
            set(b"t", right.shard.id),
        ])
        .await?;
        {
            let mut state = self.lock();
            state.root.shards.remove(from);
            state.root.remains = None;
            state.root.tentative = Some(right.shard.id);
            state.ranges += 1;
            state.counts.merges += 1;
        }
        self.finish_split().await
    }
}
