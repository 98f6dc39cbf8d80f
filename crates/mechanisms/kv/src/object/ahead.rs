//! Read-ahead from a medium that is far: who reads an object in sequence finds the next bytes on
//! their way already.
//!
//! An object's readers are told apart by where they are. One that went on from where it was, twice
//! at least, is expected to go on for as far again as it has come, at most what the medium says is
//! worth having on its way. The blocks behind it are looked up in the index, so nothing beyond the
//! object's end is fetched, and holes are not; the medium is told where they lie
//! ([`Medium::expect`]). Whatever comes of that, a read checks what it gets against the index.

use std::ops::Range;
use std::sync::{Mutex, PoisonError};

use super::read::stretches;
use super::{BLOCK, ObjectId, Objects, pack};
use crate::Kv;
use outboard_medium::Medium;

/// Readers remembered; the one that was idle the longest makes room.
const READERS: usize = 32;
/// A reader's requests may overtake each other, as those of the kernel's read-ahead do: so many
/// blocks (8 MiB) and so many requests.
const EARLY_BLOCKS: u64 = 1024;
const EARLY_MAX: usize = 16;
/// Fewer blocks (256 KiB) in sequence say nothing.
const RUN_MIN: u64 = 32;
/// Once it is far enough ahead, so many blocks (4 MiB) are asked for at a time.
const STEP: u64 = 512;

/// Somebody who reads an object in sequence, perhaps.
struct Reader {
    id: ObjectId,
    /// Where it began.
    start: u64,
    /// Everything from there to here was read.
    next: u64,
    /// What was read beyond.
    early: Vec<Range<u64>>,
    /// Everything up to here was read or is expected.
    reached: u64,
}

impl Reader {
    fn new(id: ObjectId, read: &Range<u64>) -> Reader {
        let Range { start, end } = *read;
        Reader { id, start, next: end, early: Vec::new(), reached: end }
    }

    /// Takes in a read, if it is this reader's.
    fn goes_on(&mut self, id: ObjectId, read: &Range<u64>) -> bool {
        let reach = self.next..self.next.saturating_add(EARLY_BLOCKS);
        // A short read ends within a block, and the next one begins there.
        let within = read.start + 1 == self.next && read.end >= self.next;
        if id != self.id || !(reach.contains(&read.start) || within) {
            return false;
        }
        self.early.push(read.clone());
        while let Some(at) = self.early.iter().position(|early| early.start <= self.next) {
            self.next = self.next.max(self.early.swap_remove(at).end);
        }
        if self.early.len() > EARLY_MAX {
            *self = Reader::new(id, read);
        }
        true
    }

    /// What it is expected to read and was not yet, of a window of at most `most` blocks.
    fn expected(&mut self, most: u64) -> Option<Range<u64>> {
        let run = self.next - self.start;
        if run < RUN_MIN {
            return None;
        }
        let window = run.min(most);
        let from = self.reached.max(self.next);
        let to = self.next.saturating_add(window);
        // Whole steps, once there are such; before, whatever is worth an operation.
        let least = if window < STEP { window / 2 + 1 } else { STEP };
        if to < from.saturating_add(least) {
            return None;
        }
        let to = to.min(from.saturating_add(STEP));
        self.reached = to;
        Some(from..to)
    }
}

/// Those who read in sequence, perhaps; the one heard of last comes last.
#[derive(Default)]
pub(super) struct Readers(Mutex<Vec<Reader>>);

impl Readers {
    /// Blocks `read` of an object are read: those to expect next, of at most `most` ahead.
    fn note(&self, id: ObjectId, read: &Range<u64>, most: u64) -> Option<Range<u64>> {
        let mut readers = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let known = readers.iter_mut().position(|reader| reader.goes_on(id, read));
        let Some(at) = known else {
            if readers.len() == READERS {
                readers.remove(0);
            }
            readers.push(Reader::new(id, read));
            return None;
        };
        let mut reader = readers.remove(at);
        let expected = reader.expected(most);
        readers.push(reader);
        expected
    }
}

impl<K: Kv, M: Medium> Objects<K, M> {
    /// Blocks `read` of an object are being read: tells the medium where what is likely to be read
    /// next lies.
    pub(super) async fn look_ahead(&self, id: ObjectId, read: Range<u64>) {
        let most = self.medium.ahead() / BLOCK;
        if most == 0 {
            return;
        }
        let Some(expected) = self.readers.note(id, &read, most) else { return };
        // What cannot be looked up now is told to who reads it.
        let Ok(entries) = self.entries(id, expected).await else { return };
        for stretch in stretches(&entries) {
            if stretch.entries.first().is_some_and(|entry| entry.is_data()) {
                let (offset, len) = pack::extent(stretch.entries);
                self.medium.expect(offset..offset.saturating_add(len as u64));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MOST: u64 = 2048;
    const ID: ObjectId = ObjectId(7);

    /// What is expected after each read.
    fn expected(reads: impl IntoIterator<Item = Range<u64>>) -> Vec<Option<Range<u64>>> {
        let readers = Readers::default();
        reads.into_iter().map(|read| readers.note(ID, &read, MOST)).collect()
    }

    fn megabytes(numbers: impl IntoIterator<Item = u64>) -> impl Iterator<Item = Range<u64>> {
        numbers.into_iter().map(|at| at * 128..(at + 1) * 128)
    }

    /// Every block once, in order, never further than the window.
    fn check(reads: &[Range<u64>], expected: &[Option<Range<u64>>]) {
        let (mut last, mut far) = (0, 0);
        for (read, expected) in reads.iter().zip(expected) {
            far = far.max(read.end);
            let Some(range) = expected else { continue };
            assert!(range.start >= last && range.start < range.end, "{range:?} after {last}");
            assert!(range.end <= far + MOST && range.end - range.start <= STEP, "{range:?}");
            last = range.end;
        }
    }

    #[test]
    fn one_who_reads_on_is_expected_to_come_as_far_again() {
        let reads: Vec<_> = megabytes(0..64).collect();
        let told = expected(reads.clone());
        check(&reads, &told);
        assert_eq!(told[0], None, "one read says nothing");
        assert_eq!(told[1], Some(256..512));
        let ends: Vec<u64> = told.iter().flatten().map(|range| range.end).collect();
        let last = *ends.last().unwrap();
        assert!(last > 64 * 128 + MOST - STEP, "{ends:?}");
        assert!(ends.windows(2).skip(1).all(|ends| ends[1] - ends[0] == STEP), "{ends:?}");
        let asked: u64 = told.iter().flatten().map(|range| range.end - range.start).sum();
        assert_eq!(asked, last - 2 * 128, "all of it, once");
    }

    #[test]
    fn requests_may_overtake_each_other() {
        let order = [0, 2, 1, 3, 5, 4, 7, 6, 11, 10, 9, 8];
        let reads: Vec<_> = megabytes(order).collect();
        let told = expected(reads.clone());
        check(&reads, &told);
        assert!(told.iter().flatten().map(|range| range.end).max() >= Some(16 * 128));
    }

    #[test]
    fn small_reads_count_too_also_within_blocks() {
        // 4 KiB a read: each block twice.
        let told = expected((0..200).map(|at| at / 2..at / 2 + 1));
        assert!(told[..62].iter().all(Option::is_none) && told.iter().any(Option::is_some));
    }

    #[test]
    fn who_jumps_is_not_expected_anywhere() {
        let mut rng = outboard_base::Rng::new(3);
        let jumps = (0..2000).map(|_| rng.below(1 << 20)).map(|at| at..at + 16);
        assert!(expected(jumps).iter().all(Option::is_none));
        // Nor who reads backwards, or over and over.
        assert!(expected(megabytes((0..64).rev())).iter().all(Option::is_none));
        assert!(expected(megabytes([5; 64])).iter().all(Option::is_none));
    }

    #[test]
    fn many_readers_of_one_object_are_told_apart() {
        let readers = Readers::default();
        for step in 0..8u64 {
            for reader in 0..READERS as u64 {
                let start = reader * 100_000 + step * 128;
                let told = readers.note(ID, &(start..start + 128), MOST);
                match step {
                    0 => assert_eq!(told, None, "reader {reader}"),
                    1 => assert_eq!(told, Some(start + 128..start + 384), "reader {reader}"),
                    _ => {}
                }
            }
        }
        assert_eq!(readers.0.lock().unwrap().len(), READERS);
    }

    #[test]
    fn no_block_is_too_far() {
        let readers = Readers::default();
        for end in [u64::MAX, 1, u64::MAX, u64::MAX - 5] {
            readers.note(ID, &(end.saturating_sub(64)..end), MOST);
        }
    }
}
