//! Directories, files and the segments they own, in memory.

use std::collections::BTreeMap;
use std::task::Waker;

use outboard_base::task::RangeQueue;

use super::FileError;
use super::format::{Bad, Head, RUNS_MAX, Record, runs};

/// One directory.
#[derive(Debug, Default)]
pub(super) struct Directory {
    pub(super) name: Vec<u8>,
    pub(super) files: BTreeMap<Vec<u8>, u32>,
}

/// One file.
#[derive(Debug, Default)]
pub(super) struct File {
    pub(super) directory: u32,
    pub(super) name: Vec<u8>,
    /// Bytes, as the metadata on the medium says.
    pub(super) size: u64,
    /// The file mapping: which segment holds which part. Behind those on record come those put
    /// aside for writes that are under way.
    pub(super) segments: Vec<u32>,
    /// How many of them are on record.
    pub(super) recorded: usize,
    /// Up to here the file's segments may hold something else than zeros beyond its size.
    pub(super) junk: u64,
    /// Blocks locked by those who read and write it.
    pub(super) locks: RangeQueue<Waker>,
}

/// Which segments are taken.
#[derive(Debug)]
pub(super) struct Bitmap {
    words: Vec<u64>,
    free: u32,
    segments: u32,
    /// Where the next search begins.
    hint: u32,
}

impl Bitmap {
    /// All free but segment 0, which holds the metadata.
    pub(super) fn new(segments: u32) -> Bitmap {
        let words = vec![0; usize::try_from(segments.div_ceil(64)).unwrap_or(0)];
        let mut bitmap = Bitmap { words, free: segments, segments, hint: 0 };
        bitmap.take(0);
        bitmap
    }

    fn place(segment: u32) -> (usize, u64) {
        (usize::try_from(segment / 64).unwrap_or(usize::MAX), 1 << (segment % 64))
    }

    /// Takes one; whether it was free.
    pub(super) fn take(&mut self, segment: u32) -> bool {
        let (word, bit) = Bitmap::place(segment);
        let Some(word) = self.words.get_mut(word).filter(|_| segment < self.segments) else {
            return false;
        };
        let was_free = *word & bit == 0;
        *word |= bit;
        self.free -= u32::from(was_free);
        was_free
    }

    pub(super) fn give_back(&mut self, segment: u32) {
        let (word, bit) = Bitmap::place(segment);
        if let Some(word) = self.words.get_mut(word).filter(|word| **word & bit != 0) {
            *word &= !bit;
            self.free += 1;
            self.hint = self.hint.min(segment);
        }
    }

    pub(super) fn free(&self) -> u32 {
        self.free
    }

    /// A free one: below `fresh` only if there is none from there on, since those were used before
    /// and must be cleaned first.
    pub(super) fn find(&mut self, fresh: u32) -> Option<u32> {
        let found = self.search(fresh).or_else(|| self.search(self.hint))?;
        if found < fresh {
            self.hint = found;
        }
        Some(found)
    }

    fn search(&self, from: u32) -> Option<u32> {
        let (first, _) = Bitmap::place(from);
        let below = (1u64 << (from % 64)) - 1;
        for (at, word) in self.words.iter().enumerate().skip(first) {
            let taken = if at == first { word | below } else { *word };
            if taken != u64::MAX {
                let segment = u32::try_from(at).ok()? * 64 + taken.trailing_ones();
                return (segment < self.segments).then_some(segment);
            }
        }
        None
    }
}

/// All metadata.
#[derive(Debug)]
pub(super) struct State {
    /// Bytes of a segment.
    pub(super) segment: u64,
    pub(super) directories: BTreeMap<u32, Directory>,
    pub(super) names: BTreeMap<Vec<u8>, u32>,
    pub(super) files: BTreeMap<u32, File>,
    pub(super) bitmap: Bitmap,
    /// Segments from here on were never used, in this life or before.
    pub(super) fresh: u32,
    /// Those from here on are not on record as used: before one is, this goes up.
    pub(super) marked: u32,
    pub(super) next_directory: u32,
    pub(super) next_file: u32,
    /// Files with writes that wait for their size to be put on record, and the size.
    pub(super) growing: BTreeMap<u32, u64>,
}

impl State {
    pub(super) fn new(segment: u64, segments: u32, head: &Head) -> State {
        State {
            segment,
            directories: BTreeMap::new(),
            names: BTreeMap::new(),
            files: BTreeMap::new(),
            bitmap: Bitmap::new(segments),
            fresh: head.fresh.clamp(1, segments.max(1)),
            marked: head.fresh.clamp(1, segments.max(1)),
            next_directory: head.next_directory.max(1),
            next_file: head.next_file.max(1),
            growing: BTreeMap::new(),
        }
    }

    /// Segments a file of `size` bytes needs.
    pub(super) fn needs(&self, size: u64) -> usize {
        usize::try_from(size.div_ceil(self.segment)).unwrap_or(usize::MAX)
    }

    pub(super) fn file(&self, id: u32) -> Result<&File, FileError> {
        self.files.get(&id).ok_or(FileError::NoFile)
    }

    pub(super) fn file_mut(&mut self, id: u32) -> Result<&mut File, FileError> {
        self.files.get_mut(&id).ok_or(FileError::NoFile)
    }

    /// Does what a record says: one read from the medium, or one just written there.
    pub(super) fn apply(&mut self, record: &Record) -> Result<(), Bad> {
        match record {
            Record::Directory { id, name } => {
                let taken = self.names.insert(name.clone(), *id).is_some();
                let directory = Directory { name: name.clone(), files: BTreeMap::new() };
                let known = self.directories.insert(*id, directory).is_some();
                self.next_directory = self.next_directory.max(id.saturating_add(1));
                possible(!taken && !known && *id != 0)
            }
            Record::Gone { id } => {
                let directory = self.directories.remove(id).ok_or(Bad::Impossible)?;
                self.names.remove(&directory.name);
                possible(directory.files.is_empty())
            }
            Record::File { id, directory, name } => {
                let within = self.directories.get_mut(directory).ok_or(Bad::Impossible)?;
                let taken = within.files.insert(name.clone(), *id).is_some();
                let file = File {
                    directory: *directory,
                    name: name.clone(),
                    locks: RangeQueue::looking_at_all(),
                    ..File::default()
                };
                let known = self.files.insert(*id, file).is_some();
                self.next_file = self.next_file.max(id.saturating_add(1));
                possible(!taken && !known && *id != 0)
            }
            Record::Deleted { id } => {
                let file = self.files.remove(id).ok_or(Bad::Impossible)?;
                if let Some(directory) = self.directories.get_mut(&file.directory) {
                    directory.files.remove(&file.name);
                }
                file.segments.iter().for_each(|segment| self.bitmap.give_back(*segment));
                self.growing.remove(id);
                file.locks.into_waiting().for_each(Waker::wake);
                Ok(())
            }
            Record::Grown { id, size, runs } => self.grow(*id, *size, runs),
            Record::Cut { id, size } => self.cut(*id, *size),
            Record::Used { upto } => {
                self.marked = self.marked.max(*upto).min(self.bitmap.segments);
                Ok(())
            }
        }
    }

    fn grow(&mut self, id: u32, size: u64, runs: &[super::format::Run]) -> Result<(), Bad> {
        let file = self.files.get_mut(&id).ok_or(Bad::Impossible)?;
        for run in runs {
            let end = run.first.checked_add(run.count).ok_or(Bad::Impossible)?;
            for segment in run.first..end {
                // One that was put aside for this file already, or a free one.
                match file.segments.get(file.recorded) {
                    Some(aside) => possible(*aside == segment)?,
                    None => {
                        possible(self.bitmap.take(segment))?;
                        file.segments.push(segment);
                    }
                }
                file.recorded += 1;
            }
        }
        let room = (file.recorded as u64).checked_mul(self.segment).ok_or(Bad::Impossible)?;
        file.size = file.size.max(size);
        possible(size <= room)
    }

    fn cut(&mut self, id: u32, size: u64) -> Result<(), Bad> {
        let keep = self.needs(size);
        let file = self.files.get_mut(&id).ok_or(Bad::Impossible)?;
        possible(size <= file.size)?;
        file.size = size;
        let let_go = file.segments.split_off(keep.min(file.segments.len()));
        file.recorded = file.segments.len().min(file.recorded);
        file.junk = (file.recorded as u64).saturating_mul(self.segment);
        let_go.into_iter().for_each(|segment| self.bitmap.give_back(segment));
        Ok(())
    }

    /// After replay: a file's last segment may hold what was written and not put on record, and
    /// every segment marked may have been written.
    pub(super) fn settle(&mut self) {
        self.fresh = self.marked;
        for file in self.files.values_mut() {
            file.junk = (file.recorded as u64).saturating_mul(self.segment);
        }
    }

    /// The records that put the growth of these files on record, as far as it is not. A file's new
    /// size comes with the last of its segments.
    pub(super) fn growth(&mut self) -> Vec<Record> {
        let mut records = Vec::new();
        for (id, size) in std::mem::take(&mut self.growing) {
            let needs = self.needs(size);
            let Some(file) = self.files.get(&id).filter(|file| file.size < size) else { continue };
            let new = file.segments.get(file.recorded..needs).unwrap_or_default();
            records.extend(grown(id, file.size, size, new));
        }
        records
    }

    /// The records that make all this from nothing.
    pub(super) fn records(&self) -> impl Iterator<Item = Record> {
        let directories = self.directories.iter();
        let directories = directories
            .map(|(id, directory)| Record::Directory { id: *id, name: directory.name.clone() });
        directories.chain(self.files.iter().flat_map(|(&id, file)| {
            let name = file.name.clone();
            let made = Record::File { id, directory: file.directory, name };
            let segments = file.segments.get(..file.recorded).unwrap_or_default();
            let grown =
                if segments.is_empty() { vec![] } else { grown(id, 0, file.size, segments) };
            std::iter::once(made).chain(grown)
        }))
    }

    /// The segments that have an owner; `None` if one has two.
    fn owned(&self) -> Option<Bitmap> {
        let mut owned = Bitmap::new(self.bitmap.segments);
        let mut all = self.files.values().flat_map(|file| &file.segments);
        all.all(|segment| owned.take(*segment)).then_some(owned)
    }

    /// Whether no segment has two owners and each that has one is taken. Some that are taken may
    /// have none yet.
    pub(super) fn is_sound(&self) -> bool {
        let taken = |(own, all): (&u64, &u64)| own & !all == 0;
        self.owned().is_some_and(|own| own.words.iter().zip(&self.bitmap.words).all(taken))
    }

    /// The same, while nobody takes any: for tests.
    #[cfg(test)]
    pub(super) fn is_consistent(&self) -> bool {
        let Bitmap { words, free, .. } = &self.bitmap;
        self.owned().is_some_and(|own| own.words == *words && own.free == *free)
    }
}

fn possible(is: bool) -> Result<(), Bad> {
    if is { Ok(()) } else { Err(Bad::Impossible) }
}

/// Records of `segments` added to a file, the last of them with its new size.
fn grown(id: u32, before: u64, size: u64, segments: &[u32]) -> Vec<Record> {
    let all = runs(segments);
    let parts: Vec<_> =
        if all.is_empty() { vec![&all[..]] } else { all.chunks(RUNS_MAX).collect() };
    let last = parts.len() - 1;
    let record = |(at, part): (usize, &[_])| Record::Grown {
        id,
        size: if at == last { size } else { before },
        runs: part.to_vec(),
    };
    parts.into_iter().enumerate().map(record).collect()
}
