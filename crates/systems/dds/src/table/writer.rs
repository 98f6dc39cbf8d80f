//! The one writer: stores, moves, chains, removes.

use std::sync::Arc;

use super::bucket::{Bucket, PLACES};
use super::{CHAIN_MAX, Item, Key, Places, Reader, Shared, TableError};
use crate::sync::Ordering;

/// Buckets looked at for a free place to move items to. At nine tenths full a way of two moves is
/// found among these nearly always.
const SEARCH_MAX: usize = 256;

/// A bucket reached by a search, and from where: the item in `place` of the one before could move
/// here.
#[derive(Clone, Copy)]
struct Step {
    bucket: usize,
    from: usize,
    place: usize,
}

/// Stores and removes items. There is one for each table.
pub struct Writer {
    shared: Arc<Shared>,
    /// Buckets to chain, none of them in use.
    pool: Vec<usize>,
    /// Scratch of a search.
    steps: Vec<Step>,
}

impl Writer {
    pub(super) fn new(shared: Arc<Shared>) -> Writer {
        let pool = (shared.primary..shared.buckets.len()).rev().collect();
        Writer { shared, pool, steps: Vec::with_capacity(SEARCH_MAX + PLACES) }
    }

    /// A reader of this table.
    #[must_use]
    pub fn reader(&self) -> Reader {
        Reader(Arc::clone(&self.shared))
    }

    /// The item of `key`.
    #[must_use]
    pub fn get(&self, key: Key) -> Option<Item> {
        let (bucket, place) = self.find(self.shared.places(key), key)?;
        Some(self.shared.bucket(bucket)?.item(place))
    }

    /// Stores `item` under `key`; what was there before.
    ///
    /// # Errors
    /// [`TableError::Full`]: nothing was changed.
    pub fn insert(&mut self, key: Key, item: Item) -> Result<Option<Item>, TableError> {
        let places = self.shared.places(key);
        if let Some((at, place)) = self.find(places, key) {
            let bucket = self.shared.bucket(at).ok_or(TableError::Full)?;
            let before = bucket.item(place);
            bucket.put(place, key, &item);
            return Ok(Some(before));
        }
        let len = self.shared.len.load(Ordering::Relaxed);
        let is_full = len >= self.shared.capacity as u64;
        let room = if is_full { None } else { self.room(places) };
        let Some((at, place)) = room else {
            let refused = self.shared.refused.load(Ordering::Relaxed);
            self.shared.refused.store(refused + 1, Ordering::Relaxed);
            return Err(TableError::Full);
        };
        self.shared.bucket(at).ok_or(TableError::Full)?.put(place, key, &item);
        self.shared.len.store(len + 1, Ordering::Relaxed);
        Ok(None)
    }

    /// Removes the item of `key`; what it was. Who looks after this has returned does not find it.
    pub fn remove(&mut self, key: Key) -> Option<Item> {
        let places = self.shared.places(key);
        let (at, place) = self.find(places, key)?;
        let bucket = self.shared.bucket(at)?;
        let item = bucket.item(place);
        bucket.take_out(place);
        let len = self.shared.len.load(Ordering::Relaxed);
        self.shared.len.store(len.saturating_sub(1), Ordering::Relaxed);
        if at >= self.shared.primary && bucket.is_vacant() {
            self.unchain(places, at);
        }
        Some(item)
    }

    /// Removes every item: what is true of them is no longer known.
    pub fn clear(&mut self) {
        for bucket in &self.shared.buckets {
            bucket.vacate();
        }
        self.pool.clear();
        self.pool.extend((self.shared.primary..self.shared.buckets.len()).rev());
        self.shared.len.store(0, Ordering::Relaxed);
    }

    fn chain(&self, first: usize) -> impl Iterator<Item = (usize, &Bucket)> {
        let numbered = move |at: usize| self.shared.bucket(at).map(|bucket| (at, bucket));
        std::iter::successors(numbered(first), move |(_, bucket)| numbered(bucket.next()?))
            .take(CHAIN_MAX + 1)
    }

    fn find(&self, places: Places, key: Key) -> Option<(usize, usize)> {
        self.chain(places.first)
            .chain(self.chain(places.second))
            .find_map(|(at, bucket)| Some((at, bucket.find(key)?)))
    }

    /// A free place for a new key: in its buckets, or by moving others, or in a chain.
    fn room(&mut self, places: Places) -> Option<(usize, usize)> {
        let free = |(at, bucket): (usize, &Bucket)| Some((at, bucket.free()?));
        let near = self.chain(places.first).chain(self.chain(places.second)).find_map(free);
        near.or_else(|| self.move_others(places)).or_else(|| self.lengthen(places))
    }

    /// The nearest bucket with a free place, breadth first; then the items on the way move, the
    /// last one first, each written to its new place before its old one is freed.
    fn move_others(&mut self, places: Places) -> Option<(usize, usize)> {
        self.steps.clear();
        self.steps.extend([places.first, places.second].map(|bucket| Step {
            bucket,
            from: usize::MAX,
            place: 0,
        }));
        let mut looked = 0;
        while let Some(&step) = self.steps.get(looked).filter(|_| looked < SEARCH_MAX) {
            let bucket = self.shared.bucket(step.bucket)?;
            for place in 0..PLACES {
                let other = self.shared.places(bucket.key(place)).but(step.bucket);
                if self.steps.iter().take(2).any(|first| first.bucket == other) {
                    continue;
                }
                self.steps.push(Step { bucket: other, from: looked, place });
                if let Some(free) = self.shared.bucket(other)?.free() {
                    return self.shift(self.steps.len() - 1, free);
                }
            }
            looked += 1;
        }
        None
    }

    /// Moves the items along the way that ends in the free place of step `last`; the place that is
    /// free then. A way that crosses itself is given up where it no longer holds.
    fn shift(&self, last: usize, free: usize) -> Option<(usize, usize)> {
        let (mut at, mut free) = (last, free);
        loop {
            let step = *self.steps.get(at)?;
            let Some(before) = self.steps.get(step.from) else { return Some((step.bucket, free)) };
            let (from, to) = (self.shared.bucket(before.bucket)?, self.shared.bucket(step.bucket)?);
            let key = from.key(step.place);
            if self.shared.places(key).but(before.bucket) != step.bucket || to.free() != Some(free)
            {
                return None;
            }
            to.put(free, key, &from.item(step.place));
            from.take_out(step.place);
            (at, free) = (step.from, step.place);
        }
    }

    /// Chains a bucket of the pool behind the shorter chain.
    fn lengthen(&mut self, places: Places) -> Option<(usize, usize)> {
        let (first, second) = (self.chain(places.first).count(), self.chain(places.second).count());
        let (start, len) =
            if first <= second { (places.first, first) } else { (places.second, second) };
        if len > CHAIN_MAX {
            return None;
        }
        let (last, _) = self.chain(start).last()?;
        let new = self.pool.pop()?;
        self.shared.bucket(last)?.set_next(Some(new));
        Some((new, 0))
    }

    /// Takes the empty bucket `at` out of its chain.
    fn unchain(&mut self, places: Places, at: usize) {
        let Some(bucket) = self.shared.bucket(at) else { return };
        let before = self
            .chain(places.first)
            .chain(self.chain(places.second))
            .find(|(_, bucket)| bucket.next() == Some(at));
        if let Some((_, before)) = before {
            // A reader inside the bucket goes on along its link, which stays until it is reused:
            // there it finds other keys than its own, or its own.
            before.set_next(bucket.next());
            bucket.set_next(None);
            self.pool.push(at);
        }
    }
}
