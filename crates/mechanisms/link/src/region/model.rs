//! A region for loom: the same surface over atomics whose every interleaving and reordering is
//! tried.
//!
//! Eight bytes are one 64-bit word or two 32-bit words, whichever they were first touched as; see
//! [`Region::touch_wide`]. Words begin as zero. Bytes are copied word by word with relaxed order,
//! because that is all a copy promises.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use loom::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use outboard_base::limits::PAGE;

use super::OutOfRegion;

/// Shared memory under loom.
pub struct Region {
    len: usize,
    words: Mutex<BTreeMap<u64, Word>>,
}

/// Eight bytes.
#[derive(Clone)]
enum Word {
    Wide(Arc<AtomicU64>),
    Pair(Arc<[AtomicU32; 2]>),
}

impl Word {
    fn wide() -> Word {
        Word::Wide(Arc::new(AtomicU64::new(0)))
    }

    fn pair() -> Word {
        Word::Pair(Arc::new([AtomicU32::new(0), AtomicU32::new(0)]))
    }

    fn load(&self) -> [u8; 8] {
        match self {
            Word::Wide(word) => word.load(Ordering::Relaxed).to_le_bytes(),
            Word::Pair(pair) => {
                let [low, high] = pair.each_ref().map(|half| half.load(Ordering::Relaxed));
                (u64::from(low) | u64::from(high) << 32).to_le_bytes()
            }
        }
    }

    fn store(&self, bytes: [u8; 8]) {
        match self {
            Word::Wide(word) => word.store(u64::from_le_bytes(bytes), Ordering::Relaxed),
            Word::Pair(pair) => {
                let [a, b, c, d, e, f, g, h] = bytes;
                let halves = [[a, b, c, d], [e, f, g, h]].map(u32::from_le_bytes);
                for (half, value) in pair.iter().zip(halves) {
                    half.store(value, Ordering::Relaxed);
                }
            }
        }
    }
}

impl Region {
    /// Zeroed memory, rounded up to whole pages.
    #[must_use]
    pub fn anonymous(len: u64) -> Arc<Region> {
        let len = usize::try_from(len).unwrap_or(usize::MAX).max(1).div_ceil(PAGE) * PAGE;
        Arc::new(Region { len, words: Mutex::default() })
    }

    /// Makes a range of 64-bit words. Loom wants every word that more than one thread uses to be
    /// made before threads begin.
    pub fn touch_wide(&self, at: u64, len: u64) {
        (at..at + len).step_by(8).for_each(|place| drop(self.word(place, Word::wide)));
    }

    /// Makes a range of 32-bit words.
    pub fn touch_pairs(&self, at: u64, len: u64) {
        (at..at + len).step_by(8).for_each(|place| drop(self.word(place, Word::pair)));
    }

    /// Bytes.
    #[must_use]
    pub fn len(&self) -> u64 {
        self.len as u64
    }

    /// Whether there is nothing in it.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    fn check(&self, at: u64, len: usize, align: u64) -> Result<(), OutOfRegion> {
        let end = at.checked_add(len as u64).ok_or(OutOfRegion)?;
        let ok = end <= self.len as u64 && at.is_multiple_of(align);
        if ok { Ok(()) } else { Err(OutOfRegion) }
    }

    fn word(&self, at: u64, new: fn() -> Word) -> Word {
        let mut words = self.words.lock().unwrap_or_else(PoisonError::into_inner);
        words.entry(at / 8 * 8).or_insert_with(new).clone()
    }

    fn wide(&self, at: u64) -> Result<Arc<AtomicU64>, OutOfRegion> {
        self.check(at, 8, 8)?;
        match self.word(at, Word::wide) {
            Word::Wide(word) => Ok(word),
            Word::Pair(_) => Err(OutOfRegion),
        }
    }

    fn half<T>(&self, at: u64, with: impl FnOnce(&AtomicU32) -> T) -> Result<T, OutOfRegion> {
        self.check(at, 4, 4)?;
        let Word::Pair(pair) = self.word(at, Word::pair) else { return Err(OutOfRegion) };
        let [low, high] = &*pair;
        Ok(with(if at.is_multiple_of(8) { low } else { high }))
    }

    /// Copies bytes out.
    pub fn read_into(&self, at: u64, out: &mut [u8]) -> Result<(), OutOfRegion> {
        self.check(at, out.len(), 1)?;
        for place in (at / 8 * 8..at + out.len() as u64).step_by(8) {
            let bytes = self.word(place, Word::wide).load();
            for (address, byte) in (place..).zip(bytes) {
                if let Some(to) = address.checked_sub(at).and_then(|i| out.get_mut(i as usize)) {
                    *to = byte;
                }
            }
        }
        Ok(())
    }

    /// Copies bytes in. The words at both ends belong to one writer: they are read and written
    /// back.
    pub fn write_from(&self, at: u64, data: &[u8]) -> Result<(), OutOfRegion> {
        self.check(at, data.len(), 1)?;
        for place in (at / 8 * 8..at + data.len() as u64).step_by(8) {
            let word = self.word(place, Word::wide);
            let whole = place >= at && place + 8 <= at + data.len() as u64;
            let mut bytes = if whole { [0; 8] } else { word.load() };
            for (address, byte) in (place..).zip(bytes.iter_mut()) {
                if let Some(from) = address.checked_sub(at).and_then(|i| data.get(i as usize)) {
                    *byte = *from;
                }
            }
            word.store(bytes);
        }
        Ok(())
    }

    /// Copies bytes from one place to another.
    pub fn copy(&self, from: u64, to: u64, len: usize) -> Result<(), OutOfRegion> {
        self.check(to, len, 1)?;
        let mut bytes = vec![0; len];
        self.read_into(from, &mut bytes)?;
        self.write_from(to, &bytes)
    }

    /// Copies an entry in ascending order, its last word with release.
    pub fn publish(&self, at: u64, entry: &[u8]) -> Result<(), OutOfRegion> {
        let (words, _) = entry.as_chunks::<8>();
        for (i, word) in words.iter().enumerate() {
            let last = i + 1 == words.len();
            let order = if last { Ordering::Release } else { Ordering::Relaxed };
            self.store_u64(at + 8 * i as u64, u64::from_le_bytes(*word), order)?;
        }
        Ok(())
    }

    /// Fills a range with zeroes; words nobody touched are zero already.
    pub fn zero(&self, at: u64, len: usize) -> Result<(), OutOfRegion> {
        self.check(at, len, 8)?;
        let words: Vec<Word> = {
            let words = self.words.lock().unwrap_or_else(PoisonError::into_inner);
            words.range(at..at + len as u64).map(|(_, word)| word.clone()).collect()
        };
        words.iter().for_each(|word| word.store([0; 8]));
        Ok(())
    }

    /// There is no address to give.
    pub fn pointer(&self, _: u64, _: usize) -> Result<*mut u8, OutOfRegion> {
        Err(OutOfRegion)
    }

    /// There are no bytes to give.
    pub fn bytes(&self, _: u64, _: usize) -> Result<&[std::sync::atomic::AtomicU8], OutOfRegion> {
        Err(OutOfRegion)
    }

    /// Reads a word.
    pub fn load_u32(&self, at: u64, order: Ordering) -> Result<u32, OutOfRegion> {
        self.half(at, |word| word.load(order))
    }

    /// Writes a word.
    pub fn store_u32(&self, at: u64, value: u32, order: Ordering) -> Result<(), OutOfRegion> {
        self.half(at, |word| word.store(value, order))
    }

    /// Replaces a word.
    pub fn swap_u32(&self, at: u64, value: u32, order: Ordering) -> Result<u32, OutOfRegion> {
        self.half(at, |word| word.swap(value, order))
    }

    /// Writes `new` where `expected` stands.
    pub fn cas_u32(
        &self,
        at: u64,
        expected: u32,
        new: u32,
        order: Ordering,
    ) -> Result<u32, OutOfRegion> {
        let swap =
            |word: &AtomicU32| word.compare_exchange(expected, new, order, Ordering::Relaxed);
        self.half(at, |word| swap(word).unwrap_or_else(|found| found))
    }

    /// Adds to a word.
    pub fn add_u32(&self, at: u64, by: u32, order: Ordering) -> Result<u32, OutOfRegion> {
        self.half(at, |word| word.fetch_add(by, order))
    }

    /// Reads a word.
    pub fn load_u64(&self, at: u64, order: Ordering) -> Result<u64, OutOfRegion> {
        Ok(self.wide(at)?.load(order))
    }

    /// Writes a word.
    pub fn store_u64(&self, at: u64, value: u64, order: Ordering) -> Result<(), OutOfRegion> {
        self.wide(at)?.store(value, order);
        Ok(())
    }

    /// Replaces a word.
    pub fn swap_u64(&self, at: u64, value: u64, order: Ordering) -> Result<u64, OutOfRegion> {
        Ok(self.wide(at)?.swap(value, order))
    }

    /// Adds to a word.
    pub fn add_u64(&self, at: u64, by: u64, order: Ordering) -> Result<u64, OutOfRegion> {
        Ok(self.wide(at)?.fetch_add(by, order))
    }

    /// Writes `new` where `expected` stands.
    pub fn cas_u64(
        &self,
        at: u64,
        expected: u64,
        new: u64,
        order: Ordering,
    ) -> Result<u64, OutOfRegion> {
        let found = self.wide(at)?.compare_exchange(expected, new, order, Ordering::Relaxed);
        Ok(found.unwrap_or_else(|found| found))
    }
}

impl std::fmt::Debug for Region {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Region").field("len", &self.len).finish_non_exhaustive()
    }
}
