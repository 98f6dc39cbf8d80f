//! The allocation map: one bit a block, kept whole in memory and written by pages.

use outboard_codec::crc32c;

use crate::KvError;

/// Blocks a page of the map covers (256 MiB of medium).
pub(super) const PAGE_BLOCKS: u64 = (PAGE_BYTES * 8) as u64;
const PAGE_BYTES: usize = 4096;
const WORDS: usize = PAGE_BYTES / 8;

/// Adjacent blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Run {
    pub(super) start: u64,
    pub(super) len: u64,
}

impl Run {
    pub(super) fn has(&self, block: u64) -> bool {
        block.checked_sub(self.start).is_some_and(|nth| nth < self.len)
    }
}

/// One page: a set bit is a block in use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct MapPage {
    words: Box<[u64; WORDS]>,
    used: u64,
}

impl MapPage {
    pub(super) fn empty() -> MapPage {
        MapPage { words: Box::new([0; WORDS]), used: 0 }
    }

    /// Value of the page's pair: the bits, then their checksum. `None` if no bit is set.
    pub(super) fn encode(&self) -> Option<Vec<u8>> {
        if self.used == 0 {
            return None;
        }
        let mut value: Vec<u8> = self.words.iter().flat_map(|w| w.to_le_bytes()).collect();
        let crc = crc32c(&value);
        value.extend_from_slice(&crc.to_le_bytes());
        Some(value)
    }

    pub(super) fn decode(value: &[u8]) -> Result<MapPage, KvError> {
        let (bits, crc) = value.split_last_chunk::<4>().ok_or(KvError::Corrupt)?;
        if bits.len() != PAGE_BYTES || crc32c(bits) != u32::from_le_bytes(*crc) {
            return Err(KvError::Corrupt);
        }
        let mut page = MapPage::empty();
        for (word, bytes) in page.words.iter_mut().zip(bits.as_chunks::<8>().0) {
            *word = u64::from_le_bytes(*bytes);
        }
        page.used = page.words.iter().map(|w| u64::from(w.count_ones())).sum();
        Ok(page)
    }

    /// The blocks in use, this being page number `index`.
    pub(super) fn used_blocks(&self, index: u64) -> impl Iterator<Item = u64> {
        let mut at = 0;
        std::iter::from_fn(move || {
            let bit = self.next_used(at);
            at = bit + 1;
            (bit < PAGE_BLOCKS).then_some(index * PAGE_BLOCKS + bit)
        })
    }

    pub(super) fn is_used(&self, bit: u64) -> bool {
        usize::try_from(bit / 64)
            .ok()
            .and_then(|at| self.words.get(at))
            .is_some_and(|word| word >> (bit % 64) & 1 == 1)
    }

    /// Sets or clears the bit of a block, numbered within the page; says whether it changed.
    pub(super) fn set(&mut self, bit: u64, used: bool) -> bool {
        let Some(word) = usize::try_from(bit / 64).ok().and_then(|at| self.words.get_mut(at))
        else {
            return false;
        };
        let mask = 1 << (bit % 64);
        if (*word & mask != 0) == used {
            return false;
        }
        *word ^= mask;
        if used {
            self.used += 1
        } else {
            self.used -= 1
        }
        true
    }

    /// The first clear bit at or after `from`, or the page's end.
    fn next_free(&self, from: u64) -> u64 {
        if self.used == PAGE_BLOCKS {
            return PAGE_BLOCKS;
        }
        let first = usize::try_from(from / 64).unwrap_or(WORDS);
        for (at, word) in self.words.iter().enumerate().skip(first) {
            // Bits before `from` count as used.
            let word = if at == first { word | !(u64::MAX << (from % 64)) } else { *word };
            if word != u64::MAX {
                return at as u64 * 64 + u64::from(word.trailing_ones());
            }
        }
        PAGE_BLOCKS
    }

    /// The first set bit at or after `from`, or the page's end.
    fn next_used(&self, from: u64) -> u64 {
        let first = usize::try_from(from / 64).unwrap_or(WORDS);
        for (at, word) in self.words.iter().enumerate().skip(first) {
            let word = if at == first { word & (u64::MAX << (from % 64)) } else { *word };
            if word != 0 {
                return at as u64 * 64 + u64::from(word.trailing_zeros());
            }
        }
        PAGE_BLOCKS
    }
}

/// The whole map, as long as the medium has grown.
#[derive(Clone)]
pub(super) struct Map {
    pages: Vec<MapPage>,
    /// Blocks there are.
    len: u64,
    used: u64,
    /// Where the next search begins: blocks of one writer end up side by side.
    cursor: u64,
}

/// Free runs looked at before a request is split over several.
const RUNS_TRIED: usize = 64;

impl Map {
    /// A map of `len` blocks in which only block 0, the medium's header, is used.
    pub(super) fn new(len: u64) -> Map {
        let mut map = Map { pages: Vec::new(), len: 0, used: 0, cursor: 1 };
        map.grow(len);
        map.set(0, true);
        map
    }

    pub(super) fn grow(&mut self, len: u64) {
        self.len = self.len.max(len);
        let pages = usize::try_from(self.len.div_ceil(PAGE_BLOCKS)).unwrap_or(usize::MAX);
        self.pages.resize_with(pages.max(self.pages.len()), MapPage::empty);
    }

    pub(super) fn len(&self) -> u64 {
        self.len
    }

    pub(super) fn used(&self) -> u64 {
        self.used
    }

    pub(super) fn free(&self) -> u64 {
        self.len.saturating_sub(self.used)
    }

    /// Sets or clears a block's bit; says whether it changed. Blocks beyond the end are left alone.
    pub(super) fn set(&mut self, block: u64, used: bool) -> bool {
        let page = usize::try_from(block / PAGE_BLOCKS).ok().and_then(|at| self.pages.get_mut(at));
        let changed =
            block < self.len && page.is_some_and(|page| page.set(block % PAGE_BLOCKS, used));
        if changed {
            if used { self.used += 1 } else { self.used -= 1 }
        }
        changed
    }

    fn next(&self, from: u64, find: impl Fn(&MapPage, u64) -> u64) -> u64 {
        let mut at = from;
        while at < self.len {
            let index = at / PAGE_BLOCKS;
            let Some(page) = usize::try_from(index).ok().and_then(|i| self.pages.get(i)) else {
                break;
            };
            let bit = find(page, at % PAGE_BLOCKS);
            if bit < PAGE_BLOCKS {
                return (index * PAGE_BLOCKS + bit).min(self.len);
            }
            at = (index + 1) * PAGE_BLOCKS;
        }
        self.len
    }

    /// Whether a block is in use.
    pub(super) fn is_used(&self, block: u64) -> bool {
        let page = usize::try_from(block / PAGE_BLOCKS).ok().and_then(|at| self.pages.get(at));
        page.is_some_and(|page| page.is_used(block % PAGE_BLOCKS))
    }

    /// The first used run at or after `from`, at most `max` long.
    pub(super) fn used_run(&self, from: u64, max: u64) -> Option<Run> {
        let start = self.next(from, MapPage::next_used);
        if start >= self.len {
            return None;
        }
        let end = self.next(start, MapPage::next_free);
        Some(Run { start, len: (end - start).min(max) })
    }

    /// The first free run at or after `from`, at most `max` long.
    fn run(&self, from: u64, max: u64) -> Option<Run> {
        let start = self.next(from, MapPage::next_free);
        if start >= self.len {
            return None;
        }
        let end = self.next(start, MapPage::next_used);
        Some(Run { start, len: (end - start).min(max) })
    }

    /// Takes `count` blocks, as one run if one is near, else as few runs as come. Takes none and
    /// answers `None` if fewer are free.
    pub(super) fn take(&mut self, count: u64) -> Option<Vec<Run>> {
        if count > self.free() {
            return None;
        }
        let mut runs = Vec::new();
        let mut missing = count;
        if let Some(run) = self.whole_run(count) {
            self.mark(run);
            return Some(vec![run]);
        }
        let mut from = self.cursor;
        let mut wrapped = false;
        while missing > 0 {
            let Some(run) = self.run(from, missing) else {
                if std::mem::replace(&mut wrapped, true) {
                    break;
                }
                from = 0;
                continue;
            };
            self.mark(run);
            missing -= run.len;
            from = run.start + run.len;
            runs.push(run);
        }
        Some(runs)
    }

    /// A run of `count` free blocks among those near the cursor, wrapping once.
    fn whole_run(&self, count: u64) -> Option<Run> {
        let mut from = self.cursor;
        let mut wrapped = false;
        for _ in 0..RUNS_TRIED {
            match self.run(from, count) {
                Some(run) if run.len == count => return Some(run),
                Some(run) => from = run.start + run.len,
                None if wrapped => return None,
                None => (from, wrapped) = (0, true),
            }
        }
        None
    }

    fn mark(&mut self, run: Run) {
        for block in run.start..run.start + run.len {
            self.set(block, true);
        }
        self.cursor = run.start + run.len;
    }

    /// Puts a page read from the store in its place.
    pub(super) fn load(&mut self, index: u64, page: MapPage) -> Result<(), KvError> {
        let at = usize::try_from(index).ok().and_then(|i| self.pages.get_mut(i));
        let old = at.ok_or(KvError::Corrupt)?;
        self.used = self.used - old.used + page.used;
        *old = page;
        Ok(())
    }

    /// A page as it is now.
    pub(super) fn page(&self, index: u64) -> Option<&MapPage> {
        usize::try_from(index).ok().and_then(|i| self.pages.get(i))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use outboard_base::Rng;
    use std::collections::BTreeSet;

    #[test]
    fn it_agrees_with_a_set() {
        for seed in 0..20 {
            let mut rng = Rng::new(seed);
            let len = 1000 + rng.below(PAGE_BLOCKS * 2);
            let mut map = Map::new(len);
            let mut model: BTreeSet<u64> = [0].into();
            for _ in 0..400 {
                if rng.chance(1, 2) {
                    let count = 1 + rng.below(len / 10);
                    match map.take(count) {
                        None => assert!(count > len - model.len() as u64, "seed {seed}"),
                        Some(runs) => {
                            assert_eq!(runs.iter().map(|r| r.len).sum::<u64>(), count);
                            for block in runs.iter().flat_map(|r| r.start..r.start + r.len) {
                                assert!(block < len && model.insert(block), "seed {seed}");
                            }
                        }
                    }
                } else {
                    for _ in 0..rng.below(len / 8) {
                        let block = 1 + rng.below(len - 1);
                        assert_eq!(map.set(block, false), model.remove(&block), "seed {seed}");
                    }
                }
                assert_eq!(map.used(), model.len() as u64, "seed {seed}");
            }
            for index in 0..len.div_ceil(PAGE_BLOCKS) {
                let page = map.page(index).unwrap();
                if let Some(value) = page.encode() {
                    assert_eq!(MapPage::decode(&value).as_ref(), Ok(page));
                }
            }
        }
    }

    #[test]
    fn large_requests_get_one_run() {
        let mut map = Map::new(PAGE_BLOCKS);
        for _ in 0..10 {
            assert_eq!(map.take(128).unwrap().len(), 1);
        }
    }
}
