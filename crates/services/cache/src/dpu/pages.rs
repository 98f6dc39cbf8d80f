//! Entries and pages: finding, pulling, filling, making room.

use std::ops::Range;

use outboard_base::Ino;
use outboard_base::ledger::Kind;
use outboard_link::dma::DmaError;
use outboard_wire::cache::{
    ENTRY_LEN, Entry, Lock, NEXT_NONE, Status, Word, entry_at, header_at, page_fits, spread,
};

use super::{Control, count};

/// Bytes of entries read by one DMA, at most.
pub(super) const PIECE: usize = 64 << 10;
/// Steps on one word that others change meanwhile before it counts as busy.
const TRIES: usize = 8;

/// An entry and what stood in it when it was read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Found {
    /// Which entry.
    pub index: u64,
    /// What it said.
    pub entry: Entry,
}

impl Found {
    /// Whether its page is one the volume does not hold yet.
    #[must_use]
    pub fn is_dirty(&self) -> bool {
        self.entry.word.status == Status::Dirty
    }

    /// Whether it is this page's, or is to be.
    fn is_of(&self, ino: Ino, page: u64) -> bool {
        let Entry { word, lpn, ino: owner, .. } = self.entry;
        let used = word.status != Status::Free || word.lock == Lock::Write;
        used && owner == ino.0 && lpn == page
    }

    /// Whether somebody is changing it.
    #[must_use]
    pub fn is_being_written(&self) -> bool {
        self.entry.word.lock == Lock::Write
    }
}

/// What came of pulling a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pulled {
    /// Its bytes, of this version, with this status.
    Bytes {
        /// For [`Control::cleaned`].
        version: u32,
        /// Whether the volume does not hold them.
        dirty: bool,
    },
    /// Somebody changes it now: look again.
    Busy,
    /// It is another page's, or none's.
    Gone,
}

/// What came of taking a page out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TakenOut {
    /// Its entry is free.
    Free,
    /// Somebody uses it now: look again.
    Busy,
    /// It is dirty: flush it first.
    Dirty,
}

/// What came of filling a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Filled {
    /// It is in the cache.
    Done,
    /// It was there, or the host is putting it there.
    Present,
    /// Its bucket has no room.
    Full,
    /// It is no longer what the volume holds.
    Stale,
}

impl Control {
    /// Entries of pages `pages` of `ino`, those being inserted included, in the order of pages:
    /// by the buckets they may lie in, whatever is known of them. One DMA for each 64 KiB of
    /// entries; all entries are read at most once.
    ///
    /// # Errors
    /// [`DmaError`].
    pub fn find(&self, ino: Ino, pages: Range<u64>) -> Result<Vec<Found>, DmaError> {
        let mut found = Vec::new();
        let buckets = self.geometry.buckets();
        let count = pages.end.saturating_sub(pages.start).min(buckets);
        if count == 0 {
            return Ok(found);
        }
        let ways = u64::from(self.geometry.ways());
        let all = count == buckets;
        let first = if all { 0 } else { self.geometry.bucket(ino.0, pages.start).start };
        // Round the end of the table, at most once.
        let tail = (count * ways).min(self.geometry.total() - first);
        for range in [first..first + tail, 0..count * ways - tail] {
            self.each(range, |at| {
                let wanted = at.entry.ino == ino.0 && pages.contains(&at.entry.lpn);
                let empty =
                    at.entry.word.status == Status::Free && at.entry.word.lock == Lock::None;
                if wanted && !empty {
                    found.push(at);
                }
            })?;
        }
        found.sort_unstable_by_key(|at| at.entry.lpn);
        Ok(found)
    }

    /// Every entry that holds something, or is being changed.
    ///
    /// # Errors
    /// [`DmaError`].
    pub fn find_all(&self) -> Result<Vec<Found>, DmaError> {
        let mut found = Vec::new();
        let mut ahead = self.ahead();
        self.each(0..self.geometry.total(), |at| {
            ahead.looked(at.index, at.entry.word.referenced);
            if at.entry.word.status != Status::Free || at.entry.word.lock != Lock::None {
                found.push(at);
            }
        })?;
        drop(ahead);
        found.sort_unstable_by_key(|at| (at.entry.ino, at.entry.lpn));
        Ok(found)
    }

    /// Reads entries in pieces. What nobody writes is set free.
    pub(super) fn each(
        &self,
        range: Range<u64>,
        mut visit: impl FnMut(Found),
    ) -> Result<(), DmaError> {
        let mut bytes =
            vec![0; PIECE.min(usize::try_from(range.end - range.start).unwrap_or(0) * ENTRY_LEN)];
        let mut index = range.start;
        while index < range.end {
            let left = usize::try_from(range.end - index).unwrap_or(usize::MAX);
            let len = left.saturating_mul(ENTRY_LEN).min(PIECE);
            let piece = bytes.get_mut(..len).ok_or(DmaError::OutOfRegion)?;
            self.dma.read(Kind::Cache, self.geometry.entry_at(index), piece)?;
            let (entries, _) = piece.as_chunks::<ENTRY_LEN>();
            for raw in entries {
                match Entry::parse(raw).ok().filter(|entry| self.makes_sense(entry)) {
                    Some(entry) => visit(Found { index, entry }),
                    None => self.repair(index)?,
                }
                index += 1;
            }
        }
        Ok(())
    }

    pub(super) fn makes_sense(&self, entry: &Entry) -> bool {
        let empty = entry.word.status == Status::Free;
        empty || page_fits(entry.lpn, self.geometry.page_size())
    }

    fn repair(&self, index: u64) -> Result<(), DmaError> {
        count(&self.counters.repaired);
        let entry = Entry { word: Word::FREE, next: NEXT_NONE, lpn: 0, ino: 0 };
        self.dma.write(Kind::Cache, self.geometry.entry_at(index), &entry.emit())
    }

    fn word_at(&self, index: u64) -> u64 {
        self.geometry.entry_at(index) + entry_at::WORD
    }

    /// Replaces `from` by `to`; what stood there instead, if it was another.
    fn swap(&self, index: u64, from: Word, to: Word) -> Result<Result<(), u64>, DmaError> {
        let raw = self.dma.compare_and_swap(self.word_at(index), from.emit(), to.emit())?;
        Ok(if raw == from.emit() { Ok(()) } else { Err(raw) })
    }

    /// Takes a step on a word, over and over while others change it: the word before it, or `None`
    /// if the step is not to be had.
    fn step(
        &self,
        index: u64,
        mut word: Word,
        step: impl Fn(Word) -> Option<Word>,
    ) -> Result<Option<Word>, DmaError> {
        for _ in 0..TRIES {
            let Some(next) = step(word) else { return Ok(None) };
            match self.swap(index, word, next)? {
                Ok(()) => return Ok(Some(word)),
                Err(raw) => match Word::parse(raw) {
                    Ok(found) => word = found,
                    Err(_) => {
                        self.repair(index)?;
                        return Ok(None);
                    }
                },
            }
        }
        Ok(None)
    }

    /// Whose page an entry is now.
    fn identity(&self, index: u64) -> Result<(u64, u64), DmaError> {
        let mut bytes = [0; 16];
        let at = self.geometry.entry_at(index) + entry_at::LPN;
        self.dma.read(Kind::Cache, at, &mut bytes)?;
        let [lpn, ino] = [0, 8].map(|from| {
            let word = bytes.get(from..from + 8).and_then(|bytes| bytes.first_chunk::<8>());
            word.map_or(0, |bytes| u64::from_le_bytes(*bytes))
        });
        Ok((ino, lpn))
    }

    /// Copies a page's bytes out under a shared lock. `out` is a page long.
    ///
    /// # Errors
    /// [`DmaError`].
    pub fn pull(&self, found: &Found, out: &mut [u8]) -> Result<Pulled, DmaError> {
        let Found { index, entry } = *found;
        let Some(word) = self.step(index, entry.word, Word::share_by_dpu)? else {
            let mut bytes = [0; 8];
            self.dma.read(Kind::Cache, self.word_at(index), &mut bytes)?;
            let word = Word::parse(u64::from_le_bytes(bytes)).unwrap_or(Word::FREE);
            let free = word.status == Status::Free && word.lock == Lock::None;
            return Ok(if free { Pulled::Gone } else { Pulled::Busy });
        };
        let outcome = self.identity(index).and_then(|identity| {
            if identity != (entry.ino, entry.lpn) {
                return Ok(Pulled::Gone);
            }
            self.dma.read(Kind::CacheIn, self.geometry.page_at(index), out)?;
            count(&self.counters.pulled);
            Ok(Pulled::Bytes { version: word.version, dirty: word.status == Status::Dirty })
        });
        let shared = word.share_by_dpu().unwrap_or(word);
        // An honest host's steps keep our reader; of a hostile one nothing is left to undo.
        self.step_fully(index, shared, Word::unshare_by_dpu)?;
        outcome
    }

    /// A step that must be taken in the end: others can only delay it by steps of their own.
    fn step_fully(
        &self,
        index: u64,
        word: Word,
        step: impl Fn(Word) -> Option<Word> + Copy,
    ) -> Result<bool, DmaError> {
        let mut word = word;
        for _ in 0..TRIES * TRIES {
            if self.step(index, word, step)?.is_some() {
                return Ok(true);
            }
            let mut bytes = [0; 8];
            self.dma.read(Kind::Cache, self.word_at(index), &mut bytes)?;
            match Word::parse(u64::from_le_bytes(bytes)) {
                Ok(found) if step(found).is_some() => word = found,
                _ => return Ok(false),
            }
        }
        Ok(false)
    }

    /// The bytes pulled with `version` are in the volume: the page is clean, unless it was changed
    /// meanwhile. Whether it is.
    ///
    /// # Errors
    /// [`DmaError`].
    pub fn cleaned(&self, found: &Found, version: u32) -> Result<bool, DmaError> {
        let word = Word { version, ..found.entry.word };
        let word = Word { lock: Lock::None, readers: 0, by_dpu: false, ..word };
        let clean = self.step(found.index, word, |word| word.clean(version))?.is_some();
        if !clean {
            count(&self.counters.dirty_again);
        }
        Ok(clean)
    }

    /// Sets an entry free. A dirty page is left unless `even_dirty`.
    ///
    /// # Errors
    /// [`DmaError`].
    pub fn take_out(&self, found: &Found, even_dirty: bool) -> Result<TakenOut, DmaError> {
        let Found { index, entry } = *found;
        let Some(word) = self.step(index, entry.word, |word| word.lock(true))? else {
            return Ok(TakenOut::Busy);
        };
        let same = self.identity(index)? == (entry.ino, entry.lpn);
        let stays = !same || (word.status == Status::Dirty && !even_dirty);
        if !stays {
            self.leaves(Ino(entry.ino), index)?;
        }
        let status = if stays { word.status } else { Status::Free };
        let after = word.unlock(status, !stays);
        self.dma.write(Kind::Cache, self.word_at(index), &after.emit().to_le_bytes())?;
        Ok(match (same, stays) {
            (false, _) => TakenOut::Free,
            (true, true) => TakenOut::Dirty,
            (true, false) => {
                self.now_free(index, word)?;
                count(&self.counters.taken_out);
                TakenOut::Free
            }
        })
    }

    fn now_free(&self, index: u64, before: Word) -> Result<(), DmaError> {
        self.ahead().looked(index, before.referenced);
        if before.status != Status::Free {
            self.dma.fetch_add(self.geometry.header_at(header_at::FREE), 1)?;
        }
        self.replace().removed(u32::try_from(index).unwrap_or(u32::MAX));
        Ok(())
    }

    fn bucket(&self, ino: Ino, page: u64) -> Result<Vec<Found>, DmaError> {
        let mut bucket = Vec::with_capacity(usize::try_from(self.geometry.ways()).unwrap_or(0));
        self.each(self.geometry.bucket(ino.0, page), |found| bucket.push(found))?;
        Ok(bucket)
    }

    /// Puts pages in a row that the volume holds into the cache: `bytes` are theirs, from page
    /// `first` on, and end where the file ends; what came of each. `valid` is asked once their
    /// entries are claimed: whoever changes the file from then on finds them. `ahead`: whether
    /// nobody asked for a page yet.
    ///
    /// Three DMAs for all, and four for each page that is put in, where there is room.
    ///
    /// # Errors
    /// [`DmaError`].
    pub fn fill(
        &self,
        ino: Ino,
        first: u64,
        bytes: &[u8],
        ahead: impl Fn(u64) -> bool,
        valid: impl Fn() -> bool,
    ) -> Result<Vec<Filled>, DmaError> {
        let page_size = usize::try_from(self.geometry.page_size()).unwrap_or(usize::MAX);
        // So many that no two of a run share a bucket, and that one DMA reads their entries.
        let ways = usize::try_from(self.geometry.ways()).unwrap_or(1).max(1);
        let buckets = usize::try_from(self.geometry.buckets()).unwrap_or(usize::MAX);
        let run = (PIECE / ENTRY_LEN / ways).clamp(1, buckets.max(1));
        let mut filled = Vec::with_capacity(bytes.len().div_ceil(page_size));
        for pages in bytes.chunks(run.saturating_mul(page_size)) {
            let first = first.saturating_add(filled.len() as u64);
            self.fill_run(ino, first, pages.chunks(page_size), &ahead, &valid, &mut filled)?;
        }
        Ok(filled)
    }

    /// As [`Control::fill`], of pages of which no two share a bucket.
    fn fill_run<'b>(
        &self,
        ino: Ino,
        first: u64,
        pages: impl ExactSizeIterator<Item = &'b [u8]>,
        ahead: &impl Fn(u64) -> bool,
        valid: &impl Fn() -> bool,
        filled: &mut Vec<Filled>,
    ) -> Result<(), DmaError> {
        let pages: Vec<(u64, &[u8])> = (first..).zip(pages).collect();
        let run = first..first.saturating_add(pages.len() as u64);
        let buckets = self.buckets(ino, &run)?;
        let mut claims = Vec::with_capacity(pages.len());
        for ((page, _), bucket) in pages.iter().zip(&buckets) {
            claims.push(self.claim(ino, *page, bucket)?);
        }
        let count = claims.iter().filter(|claim| claim.is_ok()).count() as u64;
        if count == 0 {
            filled.extend(claims.into_iter().filter_map(Result::err));
            return Ok(());
        }
        // The count is also the fence between what was written and what is looked for: of two who
        // insert the same page, at least one sees the other.
        let free = self.geometry.header_at(header_at::FREE);
        self.dma.fetch_add(free, count.wrapping_neg())?;
        let buckets = self.buckets(ino, &run)?;
        let is_valid = valid();
        let mut given_back = 0;
        for (((page, bytes), bucket), claim) in pages.into_iter().zip(&buckets).zip(claims) {
            let outcome = match claim {
                Err(outcome) => outcome,
                Ok((index, locked)) => {
                    let mut others = bucket.iter().filter(|at| at.index != index);
                    let other = others.any(|found| found.is_of(ino, page));
                    let outcome = match (other, is_valid) {
                        (true, _) => Filled::Present,
                        (false, false) => Filled::Stale,
                        (false, true) => Filled::Done,
                    };
                    let bytes = (outcome == Filled::Done).then_some(bytes);
                    if bytes.is_none() {
                        given_back += 1;
                        self.members().remove(ino, index);
                    }
                    self.put(index, locked, bytes)?;
                    if bytes.is_some() {
                        count_filled(self, ino, page, index, ahead(page));
                    }
                    outcome
                }
            };
            filled.push(outcome);
        }
        if given_back > 0 {
            self.dma.fetch_add(free, given_back)?;
        }
        Ok(())
    }

    /// Claims an entry of a bucket for a page: which, and its word, locked.
    fn claim(
        &self,
        ino: Ino,
        page: u64,
        bucket: &[Found],
    ) -> Result<Result<(u64, Word), Filled>, DmaError> {
        if bucket.iter().any(|found| found.is_of(ino, page)) {
            return Ok(Err(Filled::Present));
        }
        let is_free = |found: &&Found| {
            found.entry.word.status == Status::Free && found.entry.word.lock == Lock::None
        };
        let mut places: Vec<Found> = bucket.iter().filter(is_free).copied().collect();
        if places.is_empty() {
            places.extend(self.make_room(bucket)?);
        }
        for found in places {
            let word = found.entry.word;
            let Some(locked) = word.lock(true) else { continue };
            if self.swap(found.index, word, locked)?.is_err() {
                continue;
            }
            let mut identity = [0; 16];
            let (lpn, inode) = identity.split_at_mut(8);
            lpn.copy_from_slice(&page.to_le_bytes());
            inode.copy_from_slice(&ino.0.to_le_bytes());
            let at = self.geometry.entry_at(found.index) + entry_at::LPN;
            self.dma.write(Kind::Cache, at, &identity)?;
            // Before anybody asks whether the fill is still valid: who changes the file looks here.
            self.members().insert(ino, found.index);
            return Ok(Ok((found.index, locked)));
        }
        Ok(Err(Filled::Full))
    }

    /// Ends a claim: with a page's bytes, what is missing of them zero, or as free as it was.
    fn put(&self, index: u64, locked: Word, bytes: Option<&[u8]>) -> Result<(), DmaError> {
        if let Some(bytes) = bytes {
            let page_size = usize::try_from(self.geometry.page_size()).unwrap_or(usize::MAX);
            let at = self.geometry.page_at(index);
            if bytes.len() < page_size {
                let mut whole = bytes.to_vec();
                whole.resize(page_size, 0);
                self.dma.write(Kind::CacheOut, at, &whole)?;
            } else {
                self.dma.write(Kind::CacheOut, at, bytes)?;
            }
        }
        let status = if bytes.is_some() { Status::Clean } else { Status::Free };
        let after = locked.unlock(status, true);
        self.dma.write(Kind::Cache, self.word_at(index), &after.emit().to_le_bytes())
    }

    /// The buckets of pages in a row, no more of them than there are.
    fn buckets(&self, ino: Ino, pages: &Range<u64>) -> Result<Vec<Vec<Found>>, DmaError> {
        let ways = u64::from(self.geometry.ways());
        let count = pages.end - pages.start;
        let first = self.geometry.bucket(ino.0, pages.start).start;
        // Round the end of the table, at most once.
        let tail = (count * ways).min(self.geometry.total() - first);
        let mut buckets: Vec<Vec<Found>> = (0..count).map(|_| Vec::new()).collect();
        let total = self.geometry.total();
        for range in [first..first + tail, 0..count * ways - tail] {
            self.each(range, |found| {
                // By its place: an entry that makes no sense is not among those seen.
                let nth = (found.index + total - first) % total / ways;
                if let Some(bucket) = usize::try_from(nth).ok().and_then(|at| buckets.get_mut(at)) {
                    bucket.push(found);
                }
            })?;
        }
        Ok(buckets)
    }

    /// Makes room in the bucket of a page, if it has none: whether it has now.
    ///
    /// # Errors
    /// [`DmaError`].
    pub fn make_room_for(&self, ino: Ino, page: u64) -> Result<bool, DmaError> {
        let bucket = self.bucket(ino, page)?;
        let free = bucket.iter().any(|found| found.entry.word.status == Status::Free);
        Ok(free || self.make_room(&bucket)?.is_some())
    }

    /// Takes the policy's choice of a full bucket's clean pages out: its entry, free now.
    fn make_room(&self, bucket: &[Found]) -> Result<Option<Found>, DmaError> {
        let mut candidates: Vec<u32> = Vec::new();
        for found in bucket {
            let Found { index, entry } = found;
            let at = u32::try_from(*index).unwrap_or(u32::MAX);
            let referenced = entry.word.referenced;
            self.replace().looked(at, referenced);
            self.ahead().looked(*index, referenced);
            // What is write-locked is in use, and its word its holder's to store.
            if referenced && entry.word.lock != Lock::Write {
                // Somebody came between: it is used, and keeps its bit.
                let _used =
                    self.swap(*index, entry.word, Word { referenced: false, ..entry.word })?;
            }
            if entry.word.status == Status::Clean && entry.word.lock == Lock::None {
                candidates.push(at);
            }
        }
        for _ in 0..candidates.len() {
            let Some(victim) = self.replace().victim(&candidates) else { break };
            candidates.retain(|candidate| *candidate != victim);
            let Some(found) = bucket.iter().find(|found| found.index == u64::from(victim)) else {
                continue;
            };
            let cold = Word { referenced: false, ..found.entry.word };
            let Some(locked) = cold.lock(true) else { continue };
            if self.swap(found.index, cold, locked)?.is_err() {
                continue;
            }
            self.leaves(Ino(found.entry.ino), found.index)?;
            let word = locked.unlock(Status::Free, true);
            self.dma.write(Kind::Cache, self.word_at(found.index), &word.emit().to_le_bytes())?;
            self.now_free(found.index, cold)?;
            count(&self.counters.replaced);
            return Ok(Some(Found { entry: Entry { word, ..found.entry }, ..*found }));
        }
        Ok(None)
    }

    /// One side is proved dead: no lock of its counts any more. A page whose writer died keeps its
    /// status; one that was being inserted is free.
    ///
    /// # Errors
    /// [`DmaError`].
    pub fn void_locks(&self, of_dpu: bool) -> Result<(), DmaError> {
        let mut locked = Vec::new();
        self.each(0..self.geometry.total(), |found| {
            if found.entry.word.void(of_dpu) != found.entry.word {
                locked.push(found);
            }
        })?;
        for found in locked {
            self.step_fully(found.index, found.entry.word, |word| {
                Some(word.void(of_dpu)).filter(|void| *void != word)
            })?;
        }
        Ok(())
    }
}

fn count_filled(control: &Control, ino: Ino, page: u64, index: u64, ahead: bool) {
    count(&control.counters.filled);
    let at = u32::try_from(index).unwrap_or(u32::MAX);
    control.replace().filled(at, fingerprint(ino, page));
    control.ahead().filled(index, ahead);
}

fn fingerprint(ino: Ino, page: u64) -> u32 {
    let [low @ .., _, _, _, _] = spread(ino.0.rotate_left(32) ^ page).to_le_bytes();
    u32::from_le_bytes(low)
}
