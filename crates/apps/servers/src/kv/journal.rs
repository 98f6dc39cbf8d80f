//! What was done to pages that are only in memory: handed to the operating system before it is
//! answered, so that the death of this process loses nothing.
//!
//! ```text
//! file `journal.<page>`, while the tail was in that page
//! entry  0 length of the rest u32 | 4 check u32 | 8 key length u32 | 12 kind u8 | 13 key | bulk
//! ```
//!
//! A file can go once every page before the next file's is in the file of the log: each entry there
//! speaks of one of them. What is read back is replayed in order over pages that begin empty, each
//! file from a page of its own on. It may need more pages than were there when it was written:
//! values that took another's place in a page that is in the log's file by now are appended. Then
//! the files behind it are named anew ([`Journal::rename`]).

use std::collections::{BTreeSet, VecDeque};
use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Weak};

use xxhash_rust::xxh3::xxh3_64;

use super::record::{KEY_MAX, VALUE_MAX};
use super::sync::sync;

/// What an entry says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Put = 0,
    Delete = 1,
    Clear = 2,
}

/// A file longer than this is followed by another, with a page of its own.
const FILE_MAX: u64 = 4 << 20;
const HEAD: usize = 13;

/// Files open at once at most, but for the directory. Descriptors are the clients', too.
const OPEN_MAX: usize = 8;
/// Those of them that are neither in use nor the one before, which somebody may be syncing.
const SPARE: usize = OPEN_MAX - 2;

/// A file that is to be synced.
#[derive(Debug)]
pub(super) enum Unsynced {
    Open(Arc<File>),
    /// Opened for it. What the kernel could not write meanwhile it says to who syncs next.
    Named(PathBuf),
}

/// One that somebody took to sync it. It is the journal's, too; the handle goes when that is done.
pub(super) type Taken = Arc<Unsynced>;

impl Unsynced {
    /// Does something with it. One that was let go of meanwhile says nothing that is not in the
    /// log's file for good.
    pub(super) fn with(&self, act: impl FnOnce(&File) -> io::Result<()>) -> io::Result<()> {
        match self {
            Unsynced::Open(file) => act(file),
            Unsynced::Named(path) => match File::open(path) {
                Ok(file) => act(&file),
                Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
                Err(error) => Err(error),
            },
        }
    }

    fn is_open(&self) -> bool {
        matches!(self, Unsynced::Open(_))
    }
}

/// The journal of one log.
pub(super) struct Journal {
    dir: PathBuf,
    /// The directory, which names the files. Open all the time: clients may have taken every other
    /// descriptor when it is to be synced.
    names: Arc<File>,
    file: Arc<File>,
    page: u64,
    /// All files there are, by page.
    pages: BTreeSet<u64>,
    pending: Vec<u8>,
    written: u64,
    /// Files that were rolled over, with what was not synced; those that are open come last.
    unsynced: VecDeque<(u64, Unsynced)>,
    /// Those that somebody took and may be syncing still.
    taken: Vec<Weak<Unsynced>>,
    /// Whether something was written to the one in use since it was synced.
    is_dirty: bool,
}

fn path_of(dir: &Path, page: u64) -> PathBuf {
    dir.join(format!("journal.{page:012}"))
}

fn open(dir: &Path, page: u64) -> io::Result<File> {
    OpenOptions::new().create(true).append(true).mode(0o600).open(path_of(dir, page))
}

fn pages_in(dir: &Path) -> io::Result<BTreeSet<u64>> {
    let mut pages = BTreeSet::new();
    for entry in std::fs::read_dir(dir)? {
        let name = entry?.file_name();
        let page = name.to_str().and_then(|name| name.strip_prefix("journal."));
        pages.extend(page.and_then(|page| page.parse::<u64>().ok()));
    }
    Ok(pages)
}

fn check_of(rest: &[u8]) -> u32 {
    u32::try_from(xxh3_64(rest) & u64::from(u32::MAX)).unwrap_or(0)
}

/// What a replay meets.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Met<'a> {
    /// The file of this page begins.
    File(u64),
    /// An entry, with its key and its bulk.
    Entry(Kind, &'a [u8], &'a [u8]),
}

impl Journal {
    /// The first page whose entries are there: all before it are in the log's file. `None` if there
    /// is no journal.
    pub(super) fn first_page(dir: &Path) -> io::Result<Option<u64>> {
        Ok(pages_in(dir)?.first().copied())
    }

    /// How many files there are.
    pub(super) fn count(dir: &Path) -> io::Result<usize> {
        Ok(pages_in(dir)?.len())
    }

    /// Reads every entry in order. A torn one ends its file: it was never answered.
    pub(super) fn replay(
        dir: &Path,
        mut meet: impl FnMut(Met<'_>) -> io::Result<()>,
    ) -> io::Result<u64> {
        let mut count = 0;
        for page in pages_in(dir)? {
            let bytes = std::fs::read(path_of(dir, page))?;
            meet(Met::File(page))?;
            let mut rest = bytes.as_slice();
            while let Some((kind, key, bulk, len)) = parse(rest) {
                meet(Met::Entry(kind, key, bulk))?;
                count += 1;
                rest = rest.get(len..).unwrap_or_default();
            }
            if !rest.is_empty() {
                let (page, bytes) = (page, rest.len());
                tracing::info!(page, bytes, "the journal ends amid an entry; it was not answered");
            }
        }
        Ok(count)
    }

    /// Gives files the pages they were replayed from on: pairs of the old and the new, in order.
    /// The last first, so that their order is never another.
    pub(super) fn rename(dir: &Path, pages: &[(u64, u64)]) -> io::Result<()> {
        for (old, new) in pages.iter().rev().filter(|(old, new)| old != new) {
            std::fs::rename(path_of(dir, *old), path_of(dir, *new))?;
        }
        Ok(())
    }

    /// Begins at `page`, behind what is whole there. Files of earlier lives stay until their pages
    /// are written.
    pub(super) fn begin(dir: &Path, page: u64) -> io::Result<Journal> {
        let mut pages = pages_in(dir)?;
        pages.insert(page);
        let file = open(dir, page)?;
        // What stood behind a torn entry would never be read.
        let written = whole(&std::fs::read(path_of(dir, page))?);
        file.set_len(written)?;
        // What a life that was killed had not synced is answered, and compacted, from now on.
        pages.iter().try_for_each(|page| sync(&File::open(path_of(dir, *page))?))?;
        let names = Arc::new(File::open(dir)?);
        sync(&names)?;
        Ok(Journal {
            dir: dir.to_owned(),
            names,
            file: Arc::new(file),
            page,
            pages,
            pending: Vec::new(),
            written,
            unsynced: VecDeque::new(),
            taken: Vec::new(),
            is_dirty: true,
        })
    }

    /// The page its entries are for.
    pub(super) fn page(&self) -> u64 {
        self.page
    }

    /// Whether its file is so long that the tail should go to another page.
    pub(super) fn is_long(&self) -> bool {
        self.written + self.pending.len() as u64 > FILE_MAX
    }

    /// From now on entries are for `page`.
    pub(super) fn roll(&mut self, page: u64) -> io::Result<()> {
        self.commit()?;
        let before = std::mem::replace(&mut self.file, Arc::new(open(&self.dir, page)?));
        if std::mem::replace(&mut self.is_dirty, true) {
            self.unsynced.push_back((self.page, Unsynced::Open(before)));
            self.close_some();
        }
        self.page = page;
        self.pages.insert(page);
        self.written = 0;
        Ok(())
    }

    /// Files that are open because somebody took them.
    fn count_taken(&self) -> usize {
        let taken = self.taken.iter().filter_map(Weak::upgrade);
        taken.filter(|taken| taken.is_open()).count()
    }

    /// Closes files that wait to be synced, if too many are open.
    fn close_some(&mut self) {
        let closed = self.unsynced.iter().take_while(|(_, file)| !file.is_open()).count();
        let too_many = (self.unsynced.len() - closed + self.count_taken()).saturating_sub(SPARE);
        for (page, file) in self.unsynced.iter_mut().skip(closed).take(too_many) {
            *file = Unsynced::Named(path_of(&self.dir, *page));
        }
    }

    /// Notes what was done; [`Journal::commit`] hands it over.
    pub(super) fn note(&mut self, kind: Kind, key: &[u8], bulk: &[u8]) {
        let rest = 5 + key.len() + bulk.len();
        let start = self.pending.len();
        self.pending.extend_from_slice(&u32::try_from(rest).unwrap_or(u32::MAX).to_le_bytes());
        self.pending.extend_from_slice(&[0; 4]);
        self.pending.extend_from_slice(&u32::try_from(key.len()).unwrap_or(0).to_le_bytes());
        self.pending.push(kind as u8);
        self.pending.extend_from_slice(key);
        self.pending.extend_from_slice(bulk);
        let check = check_of(self.pending.get(start + 8..).unwrap_or_default());
        if let Some(place) = self.pending.get_mut(start + 4..start + 8) {
            place.copy_from_slice(&check.to_le_bytes());
        }
    }

    /// Whether something was noted, or handed over, that nobody took to sync.
    pub(super) fn is_unsynced(&self) -> bool {
        self.is_dirty || !self.pending.is_empty()
    }

    /// Hands what was noted to the operating system.
    pub(super) fn commit(&mut self) -> io::Result<()> {
        if !self.pending.is_empty() {
            (&*self.file).write_all(&self.pending)?;
            self.written += self.pending.len() as u64;
            self.pending.clear();
            self.is_dirty = true;
        }
        Ok(())
    }

    /// The files that must be synced for all that was handed over to survive power loss, and the
    /// directory that names them. Whoever takes them syncs them.
    pub(super) fn take_unsynced(&mut self) -> Vec<Taken> {
        let files = std::mem::take(&mut self.unsynced).into_iter().map(|(_, file)| file);
        let mut files: Vec<Taken> = files.map(Arc::new).collect();
        if std::mem::take(&mut self.is_dirty) {
            let in_use = if self.count_taken() < SPARE {
                Unsynced::Open(Arc::clone(&self.file))
            } else {
                Unsynced::Named(path_of(&self.dir, self.page))
            };
            let names = Unsynced::Open(Arc::clone(&self.names));
            files.extend([in_use, names].map(Arc::new));
        }
        self.taken.retain(|taken| taken.strong_count() > 0);
        self.taken.extend(files.iter().map(Arc::downgrade));
        files
    }

    /// The same, with those that others are syncing: when all are synced, everything that was
    /// handed over survives power loss.
    pub(super) fn take_all(&mut self) -> Vec<Taken> {
        let others: Vec<_> = self.taken.iter().filter_map(Weak::upgrade).collect();
        let mut files = self.take_unsynced();
        files.extend(others);
        files
    }

    /// How many files [`Journal::release`] would let go of.
    pub(super) fn count_before(&self, first: u64) -> usize {
        self.pages.iter().skip(1).take_while(|next| **next <= first).count()
    }

    /// All before page `first` is in the log's file for good: files that speak of nothing else go.
    pub(super) fn release(&mut self, first: u64) -> io::Result<()> {
        while let [oldest, next] = self.pages.iter().take(2).copied().collect::<Vec<_>>()[..]
            && next <= first
        {
            std::fs::remove_file(path_of(&self.dir, oldest))?;
            self.pages.remove(&oldest);
        }
        Ok(())
    }
}

/// Bytes of the entries at the start of a file that are whole.
fn whole(bytes: &[u8]) -> u64 {
    let mut at = 0;
    while let Some((.., len)) = parse(bytes.get(at..).unwrap_or_default()) {
        at += len;
    }
    at as u64
}

fn parse(bytes: &[u8]) -> Option<(Kind, &[u8], &[u8], usize)> {
    let word = |at: usize| Some(u32::from_le_bytes(*bytes.get(at..)?.first_chunk()?));
    let len = usize::try_from(word(0)?).ok()?;
    if len > KEY_MAX + VALUE_MAX + 64 {
        return None;
    }
    let rest = bytes.get(8..8 + len)?;
    let key_len = usize::try_from(word(8)?).ok()?;
    let kind = match bytes.get(12)? {
        0 => Kind::Put,
        1 => Kind::Delete,
        2 => Kind::Clear,
        _ => return None,
    };
    if check_of(rest) != word(4)? {
        return None;
    }
    let key = bytes.get(HEAD..HEAD + key_len)?;
    let bulk = bytes.get(HEAD + key_len..8 + len)?;
    Some((kind, key, bulk, 8 + len))
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsRawFd;

    use super::*;

    fn all(dir: &Path) -> Vec<(Kind, Vec<u8>, Vec<u8>)> {
        let mut all = Vec::new();
        Journal::replay(dir, |met| {
            if let Met::Entry(kind, key, bulk) = met {
                all.push((kind, key.to_vec(), bulk.to_vec()));
            }
            Ok(())
        })
        .unwrap();
        all
    }

    #[test]
    fn what_was_handed_over_is_replayed_until_its_pages_are_written() {
        let dir = tempfile::tempdir().unwrap();
        let mut journal = Journal::begin(dir.path(), 3).unwrap();
        journal.note(Kind::Put, b"a", b"$1\r\n1\r\n");
        journal.roll(4).unwrap();
        journal.note(Kind::Delete, b"a", b"");
        journal.commit().unwrap();
        journal.note(Kind::Clear, b"", b"");
        let expected = [
            (Kind::Put, b"a".to_vec(), b"$1\r\n1\r\n".to_vec()),
            (Kind::Delete, b"a".to_vec(), vec![]),
        ];
        assert_eq!(all(dir.path()), expected, "what was only noted is not there");
        assert_eq!(Journal::first_page(dir.path()).unwrap(), Some(3));
        journal.release(3).unwrap();
        assert_eq!(all(dir.path()), expected, "page 3 is not in the file");
        journal.release(4).unwrap();
        assert_eq!(all(dir.path()), expected[1..]);
        journal.release(9).unwrap();
        assert_eq!(Journal::first_page(dir.path()).unwrap(), Some(4), "the one in use stays");
    }

    /// A page was not counted any more as soon as the journal had nothing unsynced, which it also
    /// has not while somebody else is syncing: power loss then took the old value and the new one.
    #[test]
    fn what_others_are_syncing_is_taken_with_all() {
        let dir = tempfile::tempdir().unwrap();
        let mut journal = Journal::begin(dir.path(), 0).unwrap();
        journal.note(Kind::Put, b"a", b"1");
        journal.commit().unwrap();
        assert!(journal.is_unsynced());
        let syncing = journal.take_unsynced();
        assert!(!journal.is_unsynced() && journal.take_unsynced().is_empty());
        assert_eq!(journal.take_all().len(), syncing.len());
        drop(syncing);
        assert!(journal.take_all().is_empty(), "they are synced");
    }

    /// Files of this process that lie in `dir`.
    fn open_in(dir: &Path) -> usize {
        let all = std::fs::read_dir("/proc/self/fd").unwrap();
        let paths = all.filter_map(|entry| std::fs::read_link(entry.ok()?.path()).ok());
        paths.filter(|path| path.starts_with(dir) && path != dir).count()
    }

    /// Each file that was rolled over unsynced stayed open: with `--fsync no`, or a disk slower
    /// than its clients, a descriptor for each megabyte written, until clients found none.
    #[test]
    fn few_files_are_open_however_many_are_unsynced() {
        let dir = tempfile::tempdir().unwrap();
        let mut journal = Journal::begin(dir.path(), 0).unwrap();
        let (mut taken, mut all) = (Vec::new(), 0);
        for page in 1..200u64 {
            journal.note(Kind::Put, &page.to_le_bytes(), b"");
            journal.roll(page).unwrap();
            assert!(open_in(dir.path()) <= OPEN_MAX, "{}", open_in(dir.path()));
            if page % 60 == 0 {
                // Somebody is long at it.
                taken.push(journal.take_unsynced());
            }
        }
        journal.release(100).unwrap();
        taken.push(journal.take_all());
        let mut synced = BTreeSet::new();
        for file in taken.iter().flatten() {
            let note = |file: &File| {
                all += 1;
                synced.insert(std::fs::read_link(format!("/proc/self/fd/{}", file.as_raw_fd()))?);
                file.sync_data()
            };
            file.with(note).unwrap();
            assert!(open_in(dir.path()) <= OPEN_MAX);
        }
        for page in 100..200 {
            assert!(synced.contains(&path_of(dir.path(), page)), "{page}");
        }
        assert!(all >= 101, "{all}");
        drop(taken);
        assert_eq!(open_in(dir.path()), 1, "the one in use");
        assert!(journal.take_all().is_empty());
    }

    #[test]
    fn a_torn_entry_ends_its_file() {
        let dir = tempfile::tempdir().unwrap();
        let mut journal = Journal::begin(dir.path(), 0).unwrap();
        journal.note(Kind::Put, b"a", b"1");
        journal.commit().unwrap();
        journal.note(Kind::Put, b"b", b"2");
        journal.commit().unwrap();
        let path = path_of(dir.path(), 0);
        let len = std::fs::metadata(&path).unwrap().len();
        for cut in 1..14 {
            File::options().write(true).open(&path).unwrap().set_len(len - cut).unwrap();
            assert_eq!(all(dir.path()), [(Kind::Put, b"a".to_vec(), b"1".to_vec())]);
        }
        let mut journal = Journal::begin(dir.path(), 0).unwrap();
        journal.note(Kind::Put, b"c", b"3");
        journal.commit().unwrap();
        assert_eq!(all(dir.path()).len(), 2, "what comes behind it is read");
    }

    #[test]
    fn files_named_anew_keep_their_order() {
        let dir = tempfile::tempdir().unwrap();
        let mut journal = Journal::begin(dir.path(), 0).unwrap();
        for page in 1..4u64 {
            journal.roll(page).unwrap();
            journal.note(Kind::Put, &page.to_le_bytes(), b"");
        }
        journal.commit().unwrap();
        let before = all(dir.path());
        Journal::rename(dir.path(), &[(0, 0), (1, 2), (2, 3), (3, 7)]).unwrap();
        assert_eq!(all(dir.path()), before);
        assert_eq!(pages_in(dir.path()).unwrap(), BTreeSet::from([0, 2, 3, 7]));
    }
}
