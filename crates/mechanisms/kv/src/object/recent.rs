//! Blocks lately written or read in part, kept in memory with the checksum that proves them.
//!
//! A program that writes or reads less than a block comes back for the rest of it: a log grows by
//! lines, a database writes pages of 4 KiB. What is here need not be read from the medium again.
//!
//! A block's bytes are taken from here only if number *and* checksum are those of the index entry,
//! and that is the proof bytes from the medium must give, too. A block written anew is forgotten
//! all the same: other bytes with the same checksum are easily made by who wants to.

use std::sync::{Mutex, MutexGuard, PoisonError};

use super::index::Entry;
use super::map::Run;
use outboard_medium::Buf;

/// Blocks kept: 4 MiB.
const BLOCKS: usize = 512;

/// A block kept.
struct Kept {
    entry: Entry,
    bytes: Buf,
}

/// One place for each remainder of block numbers. The allocator goes round the medium, so that the
/// place a block takes is that of one written long before.
pub(super) struct Recent {
    places: Mutex<Vec<Option<Kept>>>,
}

impl Recent {
    pub(super) fn new() -> Recent {
        Recent { places: Mutex::new(std::iter::repeat_with(|| None).take(BLOCKS).collect()) }
    }

    /// Whether there are any, all in memory of their own.
    #[cfg(test)]
    pub(super) fn owns_all(&self) -> bool {
        let places = self.places();
        let mut kept = places.iter().flatten().peekable();
        kept.peek().is_some() && kept.all(|kept| !kept.bytes.is_part())
    }

    fn places(&self) -> MutexGuard<'_, Vec<Option<Kept>>> {
        self.places.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Keeps the block that `entry` names, whose bytes match its checksum. Returns the buffer it
    /// has no use for.
    pub(super) fn keep(&self, entry: Entry, bytes: Buf) -> Option<Buf> {
        let at = usize::try_from(entry.block % BLOCKS as u64).unwrap_or(0);
        match self.places().get_mut(at) {
            Some(place) => place.replace(Kept { entry, bytes }).map(|kept| kept.bytes),
            None => Some(bytes),
        }
    }

    /// The blocks of `run` are written anew.
    pub(super) fn forget(&self, run: Run) {
        let mut places = self.places();
        for block in run.start..run.start + run.len {
            let at = usize::try_from(block % BLOCKS as u64).unwrap_or(0);
            if let Some(place) = places.get_mut(at) {
                place.take_if(|kept| kept.entry.block == block);
            }
        }
    }

    /// Fills `out` from byte `skip` of the block that `entry` names, if that is here.
    pub(super) fn copy(&self, entry: Entry, skip: usize, out: &mut [u8]) -> bool {
        let at = usize::try_from(entry.block % BLOCKS as u64).unwrap_or(0);
        let places = self.places();
        let kept = places.get(at).and_then(Option::as_ref).filter(|kept| kept.entry == entry);
        let Some(bytes) = kept.and_then(|kept| kept.bytes.get(skip..skip + out.len())) else {
            return false;
        };
        out.copy_from_slice(bytes);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn block(number: u64, byte: u8) -> (Entry, Buf) {
        let mut bytes = Buf::zeroed(8192);
        bytes.fill(byte);
        (Entry::whole(number, u32::from(byte)), bytes)
    }

    #[test]
    fn only_the_very_block_is_given_out() {
        let (recent, mut out) = (Recent::new(), [0; 8192]);
        let (entry, bytes) = block(7, 1);
        assert!(recent.keep(entry, bytes).is_none());
        assert!(recent.copy(entry, 0, &mut out) && out == [1; 8192]);
        assert!(recent.copy(entry, 8000, &mut out[..192]));
        assert!(!recent.copy(entry, 8001, &mut out[..192]), "beyond its end");
        assert!(!recent.copy(Entry { crc: 9, ..entry }, 0, &mut out), "written over since");
        assert!(!recent.copy(Entry { block: 7 + BLOCKS as u64, ..entry }, 0, &mut out));
        let (other, bytes) = block(7 + BLOCKS as u64, 2);
        assert!(recent.keep(other, bytes).is_some_and(|old| *old == [1; 8192]));
        assert!(!recent.copy(entry, 0, &mut out));
        assert!(recent.copy(other, 0, &mut out) && out == [2; 8192]);
    }

    /// A block was freed and written anew, whole, with bytes of the same checksum: who read a part
    /// of it got the bytes before. Checksums of this kind are no secret, so anybody could bring it
    /// about for bytes he knew would be written.
    #[test]
    fn a_block_written_anew_is_forgotten() {
        let (recent, mut out) = (Recent::new(), [0; 8192]);
        let [(first, a), (second, b)] = [block(7, 1), block(8, 2)];
        assert!(recent.keep(first, a).is_none() && recent.keep(second, b).is_none());
        recent.forget(Run { start: 8 + BLOCKS as u64, len: 3 });
        recent.forget(Run { start: 6, len: 2 });
        assert!(!recent.copy(first, 0, &mut out));
        assert!(recent.copy(second, 0, &mut out) && out == [2; 8192]);
    }
}
