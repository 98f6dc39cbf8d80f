//! The index, and the part of the log that is in memory.
//!
//! ```text
//!  cold: in the file         sealed: being written    open: updated in place
//! |--------------------------|------------------------|----------------------------| tail
//! 0                          first page in memory                                  next record
//! ```
//!
//! An address is the place of a record in the log: page times [`PAGE`] plus the offset there. The
//! index maps the hash of a key to the address of its last record; records of one hash are chained
//! by `earlier`, so that keys that hash alike are told apart by reading.

use std::collections::{HashMap, VecDeque};
use std::hash::{BuildHasherDefault, Hasher};

use outboard_medium::Buf;

use super::app::hash;
use super::extracts::Entry;
use super::record::{self, DELETED, PAGE, PAGE_HEAD, PageHead, Record, SUPERSEDED};

/// Hashes are hashes already.
#[derive(Default)]
pub(super) struct Same(u64);

impl Hasher for Same {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|byte| self.0 = self.0.rotate_left(8) ^ u64::from(*byte));
    }

    fn write_u64(&mut self, word: u64) {
        self.0 = word;
    }
}

type Index = HashMap<u64, u64, BuildHasherDefault<Same>>;

/// Records of one hash looked through in memory; more are taken for a miss of all of them.
const CHAIN_MAX: usize = 1000;
/// Pages over the budget before no more values are appended.
const OVER_MAX: usize = 8;

/// Whom the tail has to have room for, beyond the budget. Deletions and copies of what is compacted
/// make room in the end, so they get some when values get none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum For {
    Values,
    Deletions,
    Copies,
}

impl For {
    fn over(self) -> usize {
        match self {
            For::Values => OVER_MAX,
            For::Deletions => OVER_MAX + 2,
            For::Copies => OVER_MAX + 5,
        }
    }
}

struct Page {
    bytes: Vec<u8>,
    used: usize,
    records: u64,
    sealed: bool,
    flushed: bool,
}

/// A page as it is written.
pub(super) struct Sealed {
    pub(super) number: u64,
    pub(super) bytes: Buf,
    /// Its records.
    pub(super) entries: Vec<Entry>,
}

/// Where a key's record is.
#[derive(Debug)]
pub(super) enum Found<'a> {
    /// The key is not there.
    Nothing,
    /// In memory.
    Here(Record<'a>),
    /// In the file, at this address, or there is none.
    Cold(u64),
}

/// What the cache table may know of a key that was just written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Retire {
    /// Nothing.
    Nothing,
    /// Its record in the file.
    Now(u64),
    /// Its record in this page, once the page is written.
    After(u64, u64),
}

/// Memory is full of pages that could not be written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Full;

/// The index and the tail.
pub(super) struct Log {
    seed: u64,
    /// Of the store; every later one has a higher number.
    life: u64,
    index: Index,
    pages: VecDeque<Page>,
    /// Number of the first page in memory.
    first: u64,
    /// The first page that counts: what lies before is none of anybody's.
    begin: u64,
    /// Pages kept in memory.
    budget: usize,
    /// Records in the pages in memory.
    records: u64,
    /// Bytes of the longest record there ever was.
    longest: usize,
}

const PAGE64: u64 = PAGE as u64;

impl Log {
    /// A log whose tail begins at page `first`, before which all is in the file.
    pub(super) fn new(seed: u64, life: u64, first: u64, budget: usize) -> Log {
        let (index, pages) = (Index::default(), VecDeque::new());
        let [begin, records] = [0; 2];
        let mut log = Log { seed, life, index, pages, first, begin, budget, records, longest: 0 };
        log.add_page();
        log
    }

    fn add_page(&mut self) {
        let (bytes, used, records) = (vec![0; PAGE], PAGE_HEAD, 0);
        self.pages.push_back(Page { bytes, used, records, sealed: false, flushed: false });
    }

    /// The life it is in.
    pub(super) fn life(&self) -> u64 {
        self.life
    }

    /// Number of the page new records go to.
    pub(super) fn tail_page(&self) -> u64 {
        self.first + self.pages.len() as u64 - 1
    }

    /// Number of the first page that is not only in the file.
    pub(super) fn first_page(&self) -> u64 {
        self.first
    }

    /// A record of so many bytes lies in the file.
    pub(super) fn met(&mut self, len: u32) {
        self.longest = self.longest.max(usize::try_from(len).unwrap_or(usize::MAX));
    }

    /// No record is longer than so many bytes.
    pub(super) fn longest(&self) -> usize {
        self.longest
    }

    /// Keys there are, and those that were deleted and are still remembered.
    pub(super) fn len(&self) -> usize {
        self.index.len()
    }

    /// From now on so many pages are kept.
    pub(super) fn set_budget(&mut self, pages: usize) {
        self.budget = pages;
    }

    /// Bytes of memory in pages.
    pub(super) fn memory(&self) -> usize {
        self.pages.len() * PAGE
    }

    /// Records in the pages in memory.
    pub(super) fn records(&self) -> u64 {
        self.records
    }

    /// From now on what lies before page `begin` is none of anybody's.
    pub(super) fn set_begin(&mut self, begin: u64) {
        self.begin = begin;
    }

    fn is_before_begin(&self, address: u64) -> bool {
        address / PAGE64 < self.begin
    }

    /// Whether nothing may be appended for them until pages were written.
    pub(super) fn is_choked(&self, whom: For) -> bool {
        self.pages.len() >= self.budget.saturating_add(whom.over())
    }

    /// Whether all that lives of one page can be appended: two pages, as records are not divided.
    pub(super) fn has_room_for_copies(&self) -> bool {
        self.pages.len() + 2 <= self.budget.saturating_add(For::Copies.over())
    }

    fn place(&self, address: u64) -> Option<(usize, usize)> {
        let page = usize::try_from((address / PAGE64).checked_sub(self.first)?).ok()?;
        Some((page, usize::try_from(address % PAGE64).ok()?))
    }

    fn record(&self, address: u64) -> Option<Record<'_>> {
        let (page, at) = self.place(address)?;
        Record::parse(self.pages.get(page)?.bytes.get(at..)?)
    }

    /// Looks a key up.
    pub(super) fn find(&self, key: &[u8]) -> Found<'_> {
        let Some(mut address) = self.index.get(&hash(key, self.seed)).copied() else {
            return Found::Nothing;
        };
        for _ in 0..CHAIN_MAX {
            if address == 0 {
                return Found::Nothing;
            }
            match self.record(address) {
                None if self.is_before_begin(address) => return Found::Nothing,
                None => return Found::Cold(address),
                Some(record) if record.key() == key => {
                    return if record.is_deleted() { Found::Nothing } else { Found::Here(record) };
                }
                Some(record) => address = record.earlier(),
            }
        }
        Found::Nothing
    }

    /// Takes in a record that lies in the file; `gone` if it says that there never was another.
    pub(super) fn recover(&mut self, name: u64, address: u64, gone: bool) {
        if gone {
            self.index.remove(&name);
        } else {
            self.index.insert(name, address);
        }
    }

    /// Whether a record in the file is the last of its hash.
    pub(super) fn is_last(&self, name: u64, address: u64) -> bool {
        self.index.get(&name) == Some(&address)
    }

    /// Forgets a key whose last record says that it was deleted, as nothing lies before that.
    pub(super) fn forget(&mut self, name: u64, address: u64) {
        if self.is_last(name, address) {
            self.index.remove(&name);
        }
    }

    /// Stores a value, as RESP sends it; with `deleted` that there is none.
    pub(super) fn put(
        &mut self,
        key: &[u8],
        bulk: &[u8],
        deleted: bool,
        whom: For,
    ) -> Result<Retire, Full> {
        let name = hash(key, self.seed);
        let last = self.index.get(&name).copied().unwrap_or(0);
        let flags = if deleted { DELETED } else { 0 };
        let mut retire = Retire::Nothing;
        if last != 0 {
            match self.place(last) {
                None => retire = Retire::Now(name),
                Some((page, at)) => {
                    let place = self.pages.get_mut(page);
                    if let Some(page) = place.filter(|page| !page.sealed) {
                        let bytes = page.bytes.get_mut(at..).unwrap_or_default();
                        let fits = Record::parse(bytes)
                            .is_some_and(|own| own.key() == key && own.room() >= bulk.len());
                        if fits {
                            record::replace(bytes, key.len(), bulk, flags);
                            return Ok(Retire::Nothing);
                        }
                    } else {
                        retire = Retire::After(self.first + page as u64, name);
                    }
                }
            }
        }
        let address = self.append(key, bulk, last, flags, whom)?;
        self.index.insert(name, address);
        Ok(retire)
    }

    fn append(
        &mut self,
        key: &[u8],
        bulk: &[u8],
        last: u64,
        flags: u8,
        whom: For,
    ) -> Result<u64, Full> {
        let len = Record::len_of(key.len(), bulk.len());
        let room = bulk.len() + (len - record::HEAD - key.len() - bulk.len());
        if self.pages.back().is_none_or(|page| page.used + len > PAGE) {
            if self.is_choked(whom) {
                return Err(Full);
            }
            self.add_page();
        }
        let number = self.tail_page();
        let page = self.pages.back_mut().ok_or(Full)?;
        let at = page.used;
        let bytes = page.bytes.get_mut(at..at + len).ok_or(Full)?;
        record::emit(bytes, key, bulk, room, last, flags);
        page.used += len;
        page.records += 1;
        self.records += 1;
        self.longest = self.longest.max(len);
        Ok(number * PAGE64 + at as u64)
    }

    /// Begins a new page, so that the one before can be written; false if there is no room.
    pub(super) fn roll(&mut self, whom: For) -> bool {
        let room = !self.is_choked(whom);
        if room {
            self.add_page();
        }
        room
    }

    /// Whether nothing lies in the page new records go to.
    pub(super) fn tail_is_empty(&self) -> bool {
        self.pages.back().is_some_and(|page| page.used == PAGE_HEAD)
    }

    /// The last page that is sealed and in memory.
    pub(super) fn last_sealed(&self) -> Option<u64> {
        let at = self.pages.iter().rposition(|page| page.sealed)?;
        Some(self.first + at as u64)
    }

    /// Forgets every key. What lies in pages stays there, unnamed.
    pub(super) fn clear(&mut self) {
        self.index.clear();
    }

    /// Seals the oldest open page if there are more than the budget; `oldest` is the first page
    /// that is being written.
    ///
    /// What takes the place of a record there lies in a page that was the tail then, or a later
    /// one. Such a page waits: written first, it would show the table the newer record first and
    /// the older one last.
    pub(super) fn next_to_write(&mut self, oldest: Option<u64>) -> Option<Sealed> {
        let at = self.pages.iter().position(|page| !page.sealed)?;
        let tail = oldest.map(|oldest| oldest + self.budget.max(2) as u64 - 1);
        if tail.is_some_and(|tail| self.first + at as u64 >= tail) {
            return None;
        }
        // One page is kept open behind what is sealed: the tail.
        if self.pages.len() - at < self.budget.max(2) {
            return None;
        }
        let page = self.pages.get_mut(at)?;
        page.sealed = true;
        let number = self.first + at as u64;
        self.seal(at, number)
    }

    /// A page as it is written: records marked and checked.
    fn seal(&self, at: usize, number: u64) -> Option<Sealed> {
        let page = self.pages.get(at)?;
        let mut buf = Buf::zeroed(PAGE);
        buf.copy_from_slice(&page.bytes);
        let mut entries = Vec::new();
        for (offset, record) in record::records(&page.bytes, page.used) {
            let (name, len) = (hash(record.key(), self.seed), record.len());
            let bytes = buf.get_mut(offset..offset + len)?;
            if !self.is_last(name, number * PAGE64 + offset as u64) {
                record::mark(bytes, SUPERSEDED);
            }
            record::seal(bytes, len);
            entries.push(Entry::of(name, offset, &Record::parse(bytes)?));
        }
        let head = PageHead { number, life: self.life, used: page.used };
        record::seal_page(&mut buf, head);
        Some(Sealed { number, bytes: buf, entries })
    }

    /// A page that could not be written, once more.
    pub(super) fn again(&self, number: u64) -> Option<Sealed> {
        let at = usize::try_from(number.checked_sub(self.first)?).ok()?;
        self.seal(at, number)
    }

    /// A page is in the file: it leaves memory when all before it have.
    pub(super) fn written(&mut self, number: u64) {
        let at = number.checked_sub(self.first).and_then(|at| usize::try_from(at).ok());
        if let Some(page) = at.and_then(|at| self.pages.get_mut(at)) {
            page.flushed = true;
        }
        while self.pages.front().is_some_and(|page| page.flushed) {
            if let Some(page) = self.pages.pop_front() {
                self.records -= page.records;
                self.forget_deleted(self.first, &page);
            }
            self.first += 1;
        }
    }

    /// What was deleted and has nothing before it need not be remembered.
    fn forget_deleted(&mut self, number: u64, page: &Page) {
        for (offset, record) in record::records(&page.bytes, page.used) {
            let earlier = record.earlier();
            if record.is_deleted() && (earlier == 0 || self.is_before_begin(earlier)) {
                self.forget(hash(record.key(), self.seed), number * PAGE64 + offset as u64);
            }
        }
    }
}
