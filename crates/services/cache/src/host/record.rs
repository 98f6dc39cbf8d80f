//! A file's record, as the data plane uses it.

use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed};

use outboard_base::limits::FILE_SIZE_MAX;
use outboard_link::Region;
use outboard_link::region::{self, OutOfRegion};
use outboard_wire::cache::{Grant, GrantWord, record_at};

use super::Plane;

/// A record found in force: where it lies, and the word that was seen. While the word stands, so
/// does the grant.
#[derive(Clone, Copy)]
pub(super) struct Found {
    at: u64,
    word: u64,
    pub(super) grant: Grant,
}

impl Plane {
    /// The inode's record, if it has one.
    #[inline]
    pub(super) fn record(&self, ino: u64) -> Option<Found> {
        for index in self.geometry.record_set(ino) {
            let at = self.geometry.record_at(index);
            let word = self.region.load_u64(at + record_at::WORD, Acquire).ok()?;
            if self.region.load_u64(at + record_at::INO, Acquire).ok()? != ino {
                continue;
            }
            match GrantWord::parse(word).ok()?.grant {
                // What is left of an earlier file.
                Grant::Free => {}
                grant => return Some(Found { at, word, grant }),
            }
        }
        None
    }
}

impl Found {
    /// Whether the grant is still what it was. Asked after pages were locked, with everything
    /// before it in order: who takes a grant back changes the word first and looks at pages then.
    #[inline]
    pub(super) fn stands(self, region: &Region) -> bool {
        region::fence();
        region.load_u64(self.at + record_at::WORD, Acquire) == Ok(self.word)
    }

    /// The file's size; `None` if it is beyond the largest file.
    #[inline]
    pub(super) fn size(self, region: &Region) -> Option<u64> {
        let size = region.load_u64(self.at + record_at::SIZE, Acquire).ok()?;
        (size <= FILE_SIZE_MAX).then_some(size)
    }

    /// Takes credit for `pages` that become dirty; false where there is not as much.
    pub(super) fn spend(self, region: &Region, pages: u64) -> bool {
        if pages == 0 {
            return true;
        }
        let at = self.at + record_at::DIRTIED;
        let (Ok(credit), Ok(mut seen)) =
            (region.load_u64(self.at + record_at::CREDIT, Acquire), region.load_u64(at, Relaxed))
        else {
            return false;
        };
        loop {
            let Some(next) = seen.checked_add(pages).filter(|next| *next <= credit) else {
                return false;
            };
            match region.cas_u64(at, seen, next, AcqRel) {
                Ok(found) if found == seen => return true,
                Ok(found) => seen = found,
                Err(OutOfRegion) => return false,
            }
        }
    }

    /// Raises size and time of the file to those of a write. The pages are locked meanwhile.
    pub(super) fn raise(self, region: &Region, end: u64, now: i64) {
        raise(region, self.at + record_at::SIZE, |size| size < end, end);
        let time = now.cast_unsigned();
        raise(region, self.at + record_at::MTIME, |mtime| mtime.cast_signed() < now, time);
    }
}

/// Replaces a word by `to` as long as it is `below` it.
fn raise(region: &Region, at: u64, below: impl Fn(u64) -> bool, to: u64) {
    let Ok(mut seen) = region.load_u64(at, Acquire) else { return };
    while below(seen) {
        match region.cas_u64(at, seen, to, AcqRel) {
            Ok(found) if found != seen => seen = found,
            Ok(_) | Err(OutOfRegion) => return,
        }
    }
}
