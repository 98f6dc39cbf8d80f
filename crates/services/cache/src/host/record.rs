//! A file's record, as the data plane uses it.

use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, SeqCst};

use outboard_base::limits::FILE_SIZE_MAX;
use outboard_link::Region;
use outboard_link::region::{self, OutOfRegion};
use outboard_wire::cache::{Dirtied, Grant, GrantWord, entry_at, record_at};

use super::Plane;
use crate::geometry::Geometry;

/// Times a chain that was taken meanwhile is looked at again.
const TRIES: u32 = 4;

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

    /// The tag of the grant, if it stands afterwards.
    pub(super) fn tag(self, region: &Region) -> Option<u32> {
        let raw = region.load_u64(self.at + record_at::DIRTIED, Acquire).ok()?;
        Some(Dirtied::parse(raw).tag)
    }

    /// Takes credit for `pages` that become dirty; false where there is not as much, or the grant
    /// that has the tag is being taken back. Who has taken it writes: the DPU side counts on that.
    pub(super) fn spend(self, region: &Region, tag: u32, pages: u64) -> bool {
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
            let dirtied = Dirtied::parse(seen);
            let Some(next) = dirtied.and(pages, credit).filter(|next| next.tag == tag) else {
                return false;
            };
            match region.cas_u64(at, seen, next.emit(), SeqCst) {
                Ok(found) if found == seen => return true,
                Ok(found) => seen = found,
                Err(OutOfRegion) => return false,
            }
        }
    }

    /// Chains entries in front of those that were made for the inode before: the DPU side looks
    /// for pages there. They are locked, and their pages paid for. Only who is alone with the
    /// file's changes comes here, so no other thread puts an entry in front meanwhile.
    pub(super) fn chain(
        self,
        region: &Region,
        geometry: &Geometry,
        entries: impl Iterator<Item = u64>,
    ) {
        let (chain, mut first, mut last) = (self.at + record_at::CHAIN, None, None);
        for entry in entries {
            let at = geometry.entry_at(entry) + entry_at::NEXT;
            match last.replace(entry) {
                Some(before) => _ = region.store_u64(at, before, Relaxed),
                None => first = Some(at),
            }
        }
        let (Some(first), Some(last)) = (first, last) else { return };
        let Ok(mut seen) = region.load_u64(chain, Relaxed) else { return };
        // The DPU side takes the chain now and then. One that never stops is not followed: it
        // misses pages and looks at all entries for them.
        for _ in 0..TRIES {
            _ = region.store_u64(first, seen, Relaxed);
            match region.cas_u64(chain, seen, last, SeqCst) {
                Ok(found) if found != seen => seen = found,
                Ok(_) | Err(OutOfRegion) => return,
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
