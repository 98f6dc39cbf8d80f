//! A bucket: four cache lines, one version.
//!
//! ```text
//! line 0     word 0     version: odd while it is written
//!            word 1     bits 0-5: place p is taken     bits 32-63: next bucket of the chain + 1
//!            words 2-7  keys of places 0-5
//! lines 1-3  items of places 0-5, four words each
//! ```
//!
//! So a miss costs one line, and a hit two.

use super::{ITEM_WORDS, Item, Key};
use crate::sync::{AtomicU64, Ordering, fence, pause};

/// Items of a bucket. Fewer under loom, which tries every order of every word.
pub(super) const PLACES: usize = if cfg!(loom) { 2 } else { 6 };
const NEXT_SHIFT: u32 = 32;
const TAKEN: u64 = (1 << NEXT_SHIFT) - 1;

#[repr(align(64))]
pub(super) struct Bucket {
    version: AtomicU64,
    meta: AtomicU64,
    keys: [AtomicU64; PLACES],
    items: [[AtomicU64; ITEM_WORDS]; PLACES],
}

#[cfg(not(loom))]
const _: () = assert!(size_of::<Bucket>() == 256);

/// What a look at a bucket found.
pub(super) enum Found {
    Item(Item),
    /// Not here; the chain goes on there.
    Next(usize),
    /// Not here, and the chain ends.
    End,
    /// It is being written all the time.
    Busy,
}

fn is_taken(meta: u64, place: usize) -> bool {
    meta >> place & 1 == 1
}

fn next_of(meta: u64) -> Option<usize> {
    usize::try_from(meta >> NEXT_SHIFT).ok()?.checked_sub(1)
}

fn words() -> [AtomicU64; ITEM_WORDS] {
    std::array::from_fn(|_| AtomicU64::new(0))
}

impl Bucket {
    pub(super) fn new() -> Bucket {
        Bucket {
            version: AtomicU64::new(0),
            meta: AtomicU64::new(0),
            keys: std::array::from_fn(|_| AtomicU64::new(0)),
            items: std::array::from_fn(|_| words()),
        }
    }

    /// A reader's look, at most `looks` times over.
    pub(super) fn look(&self, key: Key, looks: usize) -> Found {
        for _ in 0..looks {
            let version = self.version.load(Ordering::Acquire);
            if version.is_multiple_of(2) {
                let meta = self.meta();
                let item = self.place(meta, key).map(|place| self.item(place));
                // What was copied was copied before this look at the version.
                fence(Ordering::Acquire);
                if self.version.load(Ordering::Relaxed) == version {
                    return match (item, next_of(meta)) {
                        (Some(item), _) => Found::Item(item),
                        (None, Some(next)) => Found::Next(next),
                        (None, None) => Found::End,
                    };
                }
            }
            pause();
        }
        Found::Busy
    }

    fn place(&self, meta: u64, key: Key) -> Option<usize> {
        let is_it = |(place, word): (usize, &AtomicU64)| {
            word.load(Ordering::Relaxed) == key && is_taken(meta, place)
        };
        self.keys.iter().enumerate().position(is_it)
    }

    fn meta(&self) -> u64 {
        self.meta.load(Ordering::Relaxed)
    }

    pub(super) fn item(&self, place: usize) -> Item {
        let Some(words) = self.items.get(place) else { return Item::default() };
        words.each_ref().map(|word| word.load(Ordering::Relaxed))
    }

    // The rest is the writer's: it alone writes, so it reads without looking at the version.

    /// The place of `key`.
    pub(super) fn find(&self, key: Key) -> Option<usize> {
        self.place(self.meta(), key)
    }

    /// A free place.
    pub(super) fn free(&self) -> Option<usize> {
        let meta = self.meta();
        (0..PLACES).find(|&place| !is_taken(meta, place))
    }

    pub(super) fn next(&self) -> Option<usize> {
        next_of(self.meta())
    }

    /// Whether no place is taken.
    pub(super) fn is_vacant(&self) -> bool {
        self.meta() & TAKEN == 0
    }

    pub(super) fn key(&self, place: usize) -> Key {
        self.keys.get(place).map_or(0, |key| key.load(Ordering::Relaxed))
    }

    /// Stores an item in a place.
    pub(super) fn put(&self, place: usize, key: Key, item: &Item) {
        let (Some(to), Some(words)) = (self.keys.get(place), self.items.get(place)) else { return };
        self.write(|meta| {
            to.store(key, Ordering::Relaxed);
            words.iter().zip(item).for_each(|(word, value)| word.store(*value, Ordering::Relaxed));
            meta | 1 << place
        });
    }

    /// Frees a place.
    pub(super) fn take_out(&self, place: usize) {
        self.write(|meta| meta & !(1 << place));
    }

    /// Frees every place, and ends the chain here.
    pub(super) fn vacate(&self) {
        self.write(|_| 0);
    }

    /// Chains another bucket behind, or none.
    pub(super) fn set_next(&self, next: Option<usize>) {
        let link = next.map_or(0, |next| next as u64 + 1);
        self.write(|meta| meta & TAKEN | link << NEXT_SHIFT);
    }

    /// Changes the bucket under an odd version.
    fn write(&self, change: impl FnOnce(u64) -> u64) {
        let version = self.version.load(Ordering::Relaxed);
        self.version.store(version | 1, Ordering::Relaxed);
        // Nothing of the change is seen without the odd version.
        fence(Ordering::Release);
        self.meta.store(change(self.meta()), Ordering::Relaxed);
        self.version.store((version | 1).wrapping_add(1), Ordering::Release);
    }
}
