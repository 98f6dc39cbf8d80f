//! Extracts of the pages in the log's file: what opening needs to know of their records, so that
//! it need not read them.
//!
//! ```text
//! file `extracts.<number>`: extracts, one behind the other, each made when its page was written
//! extract  0 magic u32 | 4 check of the rest u32 | 8 entries u32 | 12 0 u32 | 16 page u64 |
//!          24 life u64 | 32 lot u64 | 40 seed u64 | 48 entries
//! entry    0 name u64 | 8 offset in the page u32 | 12 length u32 | 16 check u32 | 20 flags u32
//! ```
//!
//! The log says what counts: an extract is used only if the head of the page in its lot names the
//! same page and life. One that is missing, half written or of a page that was written again only
//! means that the page is read. So nothing here is synced, and no failure here is anybody else's.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use super::record::{PAGE, Record, check_of, u32_at, u64_at};

const MAGIC: u32 = 0x7478_764B;
const HEAD: usize = 48;
const ENTRY: usize = 24;
/// Most entries of a page: a record has at least a head.
const ENTRIES_MAX: usize = PAGE / super::record::HEAD;
/// A file longer than this is followed by another.
const FILE_MAX: u64 = 4 << 20;
/// What counts is written anew at opening if there are so many times as many bytes and files, and
/// so many files besides.
const WASTE: u64 = 2;
const FILES_SPARE: u64 = 64;

/// The key was deleted.
const DELETED: u32 = 1;
/// There never was another record of its hash.
const FIRST: u32 = 2;

/// A record of a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Entry {
    /// The hash of its key.
    pub(super) name: u64,
    /// Where it begins in the page, and its bytes.
    pub(super) offset: u32,
    pub(super) len: u32,
    /// Its check.
    pub(super) check: u32,
    /// It says that its key was deleted.
    pub(super) deleted: bool,
    /// No record of its hash lies before it.
    pub(super) first: bool,
}

impl Entry {
    /// Of a record as it is written.
    pub(super) fn of(name: u64, offset: usize, record: &Record<'_>) -> Entry {
        let small = |n: usize| u32::try_from(n).unwrap_or(u32::MAX);
        Entry {
            name,
            offset: small(offset),
            len: small(record.len()),
            check: record.check(),
            deleted: record.is_deleted(),
            first: record.earlier() == 0,
        }
    }
}

/// Which page an extract is of: as it lies in one lot.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Whose {
    pub(super) page: u64,
    pub(super) life: u64,
    pub(super) lot: u64,
}

/// The records of one page, in order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Extract {
    pub(super) whose: Whose,
    pub(super) entries: Vec<Entry>,
}

impl Extract {
    fn emit(&self, seed: u64, out: &mut Vec<u8>) {
        let Whose { page, life, lot } = self.whose;
        let start = out.len();
        let count = u32::try_from(self.entries.len()).unwrap_or(u32::MAX);
        out.extend([MAGIC, 0, count, 0].iter().flat_map(|word| word.to_le_bytes()));
        out.extend([page, life, lot, seed].iter().flat_map(|word| word.to_le_bytes()));
        for entry in &self.entries {
            let flags =
                if entry.deleted { DELETED } else { 0 } | if entry.first { FIRST } else { 0 };
            out.extend(entry.name.to_le_bytes());
            let words = [entry.offset, entry.len, entry.check, flags];
            out.extend(words.iter().flat_map(|word| word.to_le_bytes()));
        }
        let check = check_of(out.get(start + 8..).unwrap_or_default());
        if let Some(place) = out.get_mut(start + 4..start + 8) {
            place.copy_from_slice(&check.to_le_bytes());
        }
    }

    /// The extract at the start of `bytes` and its length; `None` if there is no whole one.
    fn parse(bytes: &[u8], seed: u64) -> Option<(Extract, usize)> {
        let count = usize::try_from(u32_at(bytes, 8)?).ok()?;
        if u32_at(bytes, 0)? != MAGIC || count > ENTRIES_MAX {
            return None;
        }
        let len = HEAD + count * ENTRY;
        let body = bytes.get(HEAD..len)?;
        if u32_at(bytes, 4)? != check_of(bytes.get(8..len)?) || u64_at(bytes, 40)? != seed {
            return None;
        }
        let (page, life, lot) = (u64_at(bytes, 16)?, u64_at(bytes, 24)?, u64_at(bytes, 32)?);
        let entries: Option<Vec<Entry>> = body.chunks_exact(ENTRY).map(entry).collect();
        Some((Extract { whose: Whose { page, life, lot }, entries: entries? }, len))
    }

    fn len(&self) -> u64 {
        (HEAD + self.entries.len() * ENTRY) as u64
    }
}

fn entry(bytes: &[u8]) -> Option<Entry> {
    let (offset, len) = (u32_at(bytes, 8)?, u32_at(bytes, 12)?);
    let flags = u32_at(bytes, 20)?;
    (u64::from(offset) + u64::from(len) <= PAGE as u64).then_some(Entry {
        name: u64_at(bytes, 0)?,
        offset,
        len,
        check: u32_at(bytes, 16)?,
        deleted: flags & DELETED != 0,
        first: flags & FIRST != 0,
    })
}

/// The extracts of one log.
pub(super) struct Extracts {
    dir: PathBuf,
    seed: u64,
    /// Files there are, by number, with the last page each speaks of.
    files: BTreeMap<u64, u64>,
    /// The one in use, its number and bytes. None yet, or it could not be written: no more are
    /// made in this life.
    file: Option<(File, u64, u64)>,
    failed: bool,
}

fn path_of(dir: &Path, number: u64) -> PathBuf {
    dir.join(format!("extracts.{number:012}"))
}

fn numbers_in(dir: &Path) -> io::Result<BTreeSet<u64>> {
    let mut numbers = BTreeSet::new();
    for entry in std::fs::read_dir(dir)? {
        let name = entry?.file_name();
        let number = name.to_str().and_then(|name| name.strip_prefix("extracts."));
        numbers.extend(number.and_then(|number| number.parse::<u64>().ok()));
    }
    Ok(numbers)
}

impl Extracts {
    /// Reads those that `counts` lets pass, by page. Files that hold little else are made one.
    pub(super) fn load(
        dir: &Path,
        seed: u64,
        counts: impl Fn(Whose) -> bool,
    ) -> io::Result<(Extracts, BTreeMap<u64, Extract>)> {
        let mut own = Extracts {
            dir: dir.to_owned(),
            seed,
            files: BTreeMap::new(),
            file: None,
            failed: false,
        };
        let (mut found, mut bytes_there) = (BTreeMap::new(), 0);
        for number in numbers_in(dir)? {
            let mut last = 0;
            // One that cannot be read says nothing.
            let bytes = std::fs::read(path_of(dir, number)).unwrap_or_else(|error| {
                tracing::warn!(%error, number, "extracts of pages cannot be read; the pages are");
                Vec::new()
            });
            bytes_there += bytes.len() as u64;
            let mut rest = bytes.as_slice();
            while let Some((extract, len)) = Extract::parse(rest, seed) {
                if counts(extract.whose) {
                    last = last.max(extract.whose.page);
                    found.insert(extract.whose.page, extract);
                }
                rest = rest.get(len..).unwrap_or_default();
            }
            own.files.insert(number, last);
        }
        let counted: u64 = found.values().map(Extract::len).sum();
        let files_there = own.files.len() as u64;
        if files_there > WASTE * counted / FILE_MAX + FILES_SPARE
            || bytes_there > WASTE * counted + FILE_MAX
        {
            own.write_anew(&found);
        }
        Ok((own, found))
    }

    /// Puts what counts into files of its own; the others go.
    fn write_anew(&mut self, found: &BTreeMap<u64, Extract>) {
        let old: Vec<u64> = self.files.keys().copied().collect();
        for extract in found.values() {
            self.add(extract);
        }
        if !self.failed {
            self.remove(&old);
        }
    }

    /// Adds one, of a page that was just written.
    pub(super) fn add(&mut self, extract: &Extract) {
        if self.failed {
            return;
        }
        if let Err(error) = self.try_add(extract) {
            tracing::warn!(%error, "extracts of pages are not written; the next opening is slow");
            self.failed = true;
        }
    }

    fn try_add(&mut self, extract: &Extract) -> io::Result<()> {
        let mut bytes = Vec::new();
        extract.emit(self.seed, &mut bytes);
        let (mut file, number, written) = match self.file.take().filter(|file| file.2 < FILE_MAX) {
            Some(file) => file,
            None => {
                let number = self.files.last_key_value().map_or(0, |(last, _)| last + 1);
                let mut options = OpenOptions::new();
                let options = options.create_new(true).append(true).mode(0o600);
                (options.open(path_of(&self.dir, number))?, number, 0)
            }
        };
        let last = self.files.entry(number).or_default();
        *last = (*last).max(extract.whose.page);
        file.write_all(&bytes)?;
        self.file = Some((file, number, written + bytes.len() as u64));
        Ok(())
    }

    /// Pages before `begin` do not count any more: files that speak of nothing else go.
    pub(super) fn release_before(&mut self, begin: u64) {
        let in_use = self.file.as_ref().map(|file| file.1);
        let over =
            self.files.iter().filter(|(number, last)| **last < begin && Some(**number) != in_use);
        let over: Vec<u64> = over.map(|(number, _)| *number).collect();
        self.remove(&over);
    }

    fn remove(&mut self, numbers: &[u64]) {
        for number in numbers {
            if let Err(error) = std::fs::remove_file(path_of(&self.dir, *number)) {
                tracing::warn!(%error, number, "old extracts of pages cannot be removed");
            }
            self.files.remove(number);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn extract(page: u64, life: u64, records: u32) -> Extract {
        let entry = |n: u32| Entry {
            name: u64::from(n) << 40 | page,
            offset: 64 + n * 8,
            len: 32,
            check: n ^ 0x5555,
            deleted: n.is_multiple_of(3),
            first: n.is_multiple_of(2),
        };
        let whose = Whose { page, life, lot: page * 3 };
        Extract { whose, entries: (0..records).map(entry).collect() }
    }

    fn load(dir: &Path) -> (Extracts, BTreeMap<u64, Extract>) {
        Extracts::load(dir, 7, |_| true).unwrap()
    }

    fn all(pages: std::ops::Range<u64>) -> BTreeMap<u64, Extract> {
        pages.map(|page| (page, extract(page, 1, 100))).collect()
    }

    #[test]
    fn what_was_added_is_there_in_the_next_life_until_its_pages_do_not_count() {
        let dir = tempfile::tempdir().unwrap();
        for life in 0..3 {
            let (mut own, found) = load(dir.path());
            assert_eq!(found, all(0..life * 10));
            (life * 10..life * 10 + 10).for_each(|page| own.add(&extract(page, 1, 100)));
        }
        let (mut own, found) = load(dir.path());
        assert_eq!(found, all(0..30));
        own.release_before(10);
        assert_eq!(load(dir.path()).1, all(10..30), "a file of a life");
        own.release_before(25);
        assert_eq!(load(dir.path()).1, all(20..30), "a file goes whole");
        assert_eq!(Extracts::load(dir.path(), 8, |_| true).unwrap().1, BTreeMap::new());
        let (_, found) = Extracts::load(dir.path(), 7, |whose| whose.page == 22).unwrap();
        assert_eq!(found, all(22..23));
    }

    #[test]
    fn half_an_extract_and_a_damaged_one_are_none() {
        let dir = tempfile::tempdir().unwrap();
        let (mut own, _) = load(dir.path());
        (0..2).for_each(|page| own.add(&extract(page, 1, 100)));
        let path = path_of(dir.path(), 0);
        let bytes = std::fs::read(&path).unwrap();
        for at in (bytes.len() / 2..bytes.len()).step_by(7) {
            std::fs::write(&path, &bytes[..at]).unwrap();
            assert_eq!(load(dir.path()).1, all(0..1), "cut at {at}");
            let mut damaged = bytes.clone();
            damaged[at] ^= 16;
            std::fs::write(&path, &damaged).unwrap();
            assert_eq!(load(dir.path()).1, all(0..1), "damaged at {at}");
        }
        // The next life does not write behind it.
        let (mut own, _) = load(dir.path());
        own.add(&extract(1, 1, 100));
        assert_eq!(load(dir.path()).1, all(0..2));
    }

    /// Lives that wrote the same pages again leave files in which nothing counts.
    #[test]
    fn files_in_which_little_counts_are_made_one() {
        let dir = tempfile::tempdir().unwrap();
        for life in 0..200 {
            let last = |whose: Whose| whose.life + 1 == life || whose.page == 0;
            let (mut own, found) = Extracts::load(dir.path(), 7, last).unwrap();
            assert_eq!(found.len(), if life == 0 { 0 } else { 2 }, "{life}");
            own.add(&extract(1, life, 10));
            if life == 0 {
                own.add(&extract(0, 0, 10));
            }
        }
        let files = std::fs::read_dir(dir.path()).unwrap().count();
        assert!(files as u64 <= FILES_SPARE + 2, "{files}");
    }

    #[test]
    fn who_cannot_write_them_goes_on_without() {
        let dir = tempfile::tempdir().unwrap();
        let (mut own, _) = load(dir.path());
        std::fs::create_dir(path_of(dir.path(), 0)).unwrap();
        own.add(&extract(0, 1, 10));
        own.add(&extract(1, 1, 10));
        own.release_before(9);
        assert_eq!(load(dir.path()).1, BTreeMap::new());
    }

    proptest! {
        #[test]
        fn extracts_are_read_as_written(page: u64, life: u64, lot: u64, seed: u64, n in 0u32..50) {
            let mut written = extract(page % 1000, life, n);
            written.whose.lot = lot;
            let mut bytes = Vec::new();
            written.emit(seed, &mut bytes);
            let len = bytes.len();
            prop_assert_eq!(Extract::parse(&bytes, seed), Some((written, len)));
            prop_assert_eq!(Extract::parse(&bytes, seed ^ 1), None);
            prop_assert_eq!(Extract::parse(&bytes[..len - 1], seed), None);
        }

        #[test]
        fn any_bytes_are_read_without_harm(mut bytes: Vec<u8>, seed: u64) {
            let _ = Extract::parse(&bytes, seed);
            bytes.splice(0..0, MAGIC.to_le_bytes());
            let _ = Extract::parse(&bytes, seed);
        }
    }
}
