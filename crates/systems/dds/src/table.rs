//! The cache table: what the DPU side knows about objects in files, so that it can answer for them
//! (the paper's section 6; row D21).
//!
//! A cuckoo hash table with chained buckets in memory fixed when it is made, from a stated number
//! of items. A key has two buckets of six places; when both are full, items are moved to
//! their other buckets along the shortest way to a free place, and when there is none near, a
//! bucket from a small pool is chained behind. Beyond the stated number of items it refuses.
//!
//! One [`Writer`], any number of [`Reader`]s, no locks. Each bucket has a version: odd while it is
//! written. A reader copies what it finds and looks at the version again. While an item moves it is
//! in both places or in the new one only, so a reader that passed the new place before may miss it:
//! a false miss is allowed, since the host answers then. A wrong hit is not: what a reader gets is
//! an item the writer stored under that very key, and after [`Writer::remove`] has returned nobody
//! who looks later finds it.
//!
//! ```
//! use outboard_dds::table;
//! let (mut writer, reader) = table::with_capacity(1000, 42).unwrap();
//! writer.insert(12, [7, 8, 9, 10]).unwrap();
//! assert_eq!(reader.get(12), Some([7, 8, 9, 10]));
//! assert_eq!(writer.remove(12), Some([7, 8, 9, 10]));
//! assert_eq!(reader.get(12), None);
//! ```

mod bucket;
mod changes;
#[cfg(all(test, not(loom)))]
mod tests;
mod writer;

use std::sync::Arc;

use bucket::{Bucket, Found};
pub use changes::{Changes, NoChanges};
pub use writer::Writer;

use crate::sync::{AtomicU64, Ordering};

/// Words of an item.
pub const ITEM_WORDS: usize = 4;
/// What is stored under a key; what the words mean is the application's.
pub type Item = [u64; ITEM_WORDS];

/// What an item is stored under: any number, zero too.
///
/// Longer keys are hashed by the application; who does so compares the whole key with what it
/// reads, since two keys may hash alike.
pub type Key = u64;

/// Why a table was not made, or an item not stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TableError {
    /// No items, or more than [`ITEMS_MAX`].
    Capacity,
    /// The table holds as many items as it was made for, or the key's buckets are full and so are
    /// all near them.
    Full,
}

impl std::fmt::Display for TableError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            TableError::Capacity => write!(f, "a cache table holds 1 to {ITEMS_MAX} items"),
            TableError::Full => f.write_str("the cache table is full"),
        }
    }
}

impl std::error::Error for TableError {}

/// Most items of one table: about 48 GiB.
pub const ITEMS_MAX: usize = 1 << 30;

/// Longest chain behind a bucket.
const CHAIN_MAX: usize = 16;
/// Looks at a bucket that is being written before a reader calls it a miss.
const LOOKS: usize = if cfg!(loom) { 2 } else { 64 };

/// What readers and the writer share.
struct Shared {
    /// The primary buckets, then the pool of those to chain.
    buckets: Box<[Bucket]>,
    primary: usize,
    seed: u64,
    len: AtomicU64,
    /// New items that found no room.
    refused: AtomicU64,
    capacity: usize,
}

fn fold(a: u64, b: u64) -> u64 {
    let (low, high) = a.carrying_mul(b, 0);
    low ^ high
}

impl Shared {
    fn bucket(&self, at: usize) -> Option<&Bucket> {
        self.buckets.get(at)
    }

    /// Where a key may be.
    fn places(&self, key: Key) -> Places {
        const A: u64 = 0x9E37_79B9_7F4A_7C15;
        const B: u64 = 0xD6E8_FEB8_6659_FD93;
        let hash = fold(fold(key ^ self.seed, A) ^ self.seed.rotate_left(32), B);
        let scale = |half: u64| usize::try_from((half * self.primary as u64) >> 32).unwrap_or(0);
        let (first, second) = (scale(hash >> 32), scale(hash & 0xFFFF_FFFF));
        let second = if first == second { (second + 1) % self.primary } else { second };
        Places { first, second }
    }

    fn get(&self, key: Key) -> Option<Item> {
        let places = self.places(key);
        self.get_chained(places.first, key).or_else(|| self.get_chained(places.second, key))
    }

    fn get_chained(&self, first: usize, key: Key) -> Option<Item> {
        let mut at = first;
        for _ in 0..=CHAIN_MAX {
            let bucket = self.bucket(at)?;
            match bucket.look(key, LOOKS) {
                Found::Item(item) => return Some(item),
                Found::Next(next) => at = next,
                Found::End | Found::Busy => return None,
            }
        }
        None
    }
}

/// Where a key may be.
#[derive(Clone, Copy, Debug)]
struct Places {
    first: usize,
    second: usize,
}

impl Places {
    /// The other one.
    fn but(self, bucket: usize) -> usize {
        if bucket == self.first { self.second } else { self.first }
    }
}

/// A table for `items` items whose hash follows `seed`: its one writer, and a reader to clone.
///
/// # Errors
/// [`TableError::Capacity`].
pub fn with_capacity(items: usize, seed: u64) -> Result<(Writer, Reader), TableError> {
    if items == 0 || items > ITEMS_MAX {
        return Err(TableError::Capacity);
    }
    // Nine tenths full at the stated number: there moves are short. The pool takes what they fail.
    let primary = (items * 10).div_ceil(bucket::PLACES * 9).max(2);
    let pool = (primary / 64).max(2);
    let buckets: Box<[Bucket]> = (0..primary + pool).map(|_| Bucket::new()).collect();
    let len = AtomicU64::new(0);
    let refused = AtomicU64::new(0);
    let shared = Arc::new(Shared { buckets, primary, seed, len, refused, capacity: items });
    Ok((Writer::new(Arc::clone(&shared)), Reader(shared)))
}

/// Looks items up, from any thread.
#[derive(Clone)]
pub struct Reader(Arc<Shared>);

impl Reader {
    /// The item of `key`; `None` if there is none, or now and then if it is being moved.
    #[inline]
    #[must_use]
    pub fn get(&self, key: Key) -> Option<Item> {
        self.0.get(key)
    }

    /// Items stored.
    #[must_use]
    pub fn len(&self) -> usize {
        usize::try_from(self.0.len.load(Ordering::Relaxed)).unwrap_or(usize::MAX)
    }

    /// Whether nothing is stored.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// How often a new item found no room, since the table was made.
    #[must_use]
    pub fn refused(&self) -> u64 {
        self.0.refused.load(Ordering::Relaxed)
    }

    /// Items it was made for.
    #[must_use]
    pub fn capacity(&self) -> usize {
        self.0.capacity
    }

    /// Memory of the table, bytes: fixed.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.0.buckets.len() * size_of::<Bucket>()
    }

    /// Places in use, of those of all buckets, chained ones too.
    #[must_use]
    pub fn load_factor(&self) -> f64 {
        self.len() as f64 / (self.0.buckets.len() * bucket::PLACES) as f64
    }
}
