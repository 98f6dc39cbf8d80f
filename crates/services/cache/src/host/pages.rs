//! Finding pages and locking them.

use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, SeqCst};

use outboard_link::region::{self, OutOfRegion};
use outboard_wire::cache::{Lock, Status, Word, entry_at};

use super::Plane;
use crate::sync::{LOOKS, pause};

/// One page of a request.
#[derive(Clone, Copy, Default)]
pub(super) struct Spot {
    /// Its entry.
    pub(super) entry: u64,
    /// Which page of the file.
    pub(super) lpn: u64,
    /// It was made for this request: nothing of it is the file's yet.
    pub(super) fresh: bool,
    /// It is in the volume as it is here.
    pub(super) clean: bool,
}

/// The pages of a request, at most `N`. Kept on the stack: a hit allocates nothing.
pub(super) struct Spots<const N: usize> {
    spots: [Spot; N],
    len: usize,
}

impl<const N: usize> Spots<N> {
    pub(super) fn new() -> Spots<N> {
        Spots { spots: [Spot::default(); N], len: 0 }
    }

    /// False when it is full.
    pub(super) fn push(&mut self, spot: Spot) -> bool {
        let Some(place) = self.spots.get_mut(self.len) else { return false };
        *place = spot;
        self.len += 1;
        true
    }

    pub(super) fn all(&self) -> &[Spot] {
        self.spots.get(..self.len).unwrap_or_default()
    }

    fn all_mut(&mut self) -> &mut [Spot] {
        self.spots.get_mut(..self.len).unwrap_or_default()
    }

    fn pop(&mut self) -> Option<Spot> {
        self.len = self.len.checked_sub(1)?;
        self.spots.get(self.len).copied()
    }
}

/// How a page is to be locked.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Want {
    Read,
    Write,
}

impl Plane {
    /// The entry of a file's page, if one claims to be it. Whose it is must be looked at again once
    /// it is locked.
    #[inline]
    pub(super) fn find(&self, ino: u64, lpn: u64) -> Option<u64> {
        self.others(ino, lpn, None)
    }

    /// The same, other than `own`.
    fn others(&self, ino: u64, lpn: u64, own: Option<u64>) -> Option<u64> {
        self.geometry.bucket(ino, lpn).find(|index| {
            let at = self.geometry.entry_at(*index);
            Some(*index) != own
                && self.is_of(at, ino, lpn)
                && self.word(*index).is_some_and(|(_, word)| !word.is_free())
        })
    }

    #[inline]
    fn is_of(&self, at: u64, ino: u64, lpn: u64) -> bool {
        self.region.load_u64(at + entry_at::LPN, Acquire) == Ok(lpn)
            && self.region.load_u64(at + entry_at::INO, Acquire) == Ok(ino)
    }

    /// An entry's word, raw and read; `None` for what nobody writes.
    #[inline]
    fn word(&self, entry: u64) -> Option<(u64, Word)> {
        let at = self.geometry.entry_at(entry) + entry_at::WORD;
        let raw = self.region.load_u64(at, Acquire).ok()?;
        Some((raw, Word::parse(raw).ok()?))
    }

    #[inline]
    fn swap(&self, entry: u64, seen: u64, new: Word) -> bool {
        let at = self.geometry.entry_at(entry) + entry_at::WORD;
        self.region.cas_u64(at, seen, new.emit(), SeqCst) == Ok(seen)
    }

    /// Locks every spot, lowest entry first, and says of each whether it is clean; nothing is
    /// locked when false comes back. Spots stay in that order.
    pub(super) fn lock_all<const N: usize>(
        &self,
        ino: u64,
        spots: &mut Spots<N>,
        want: Want,
    ) -> bool {
        spots.all_mut().sort_unstable_by_key(|spot| spot.entry);
        for at in 0..spots.len {
            let Some(spot) = spots.spots.get_mut(at) else { return false };
            let status = self.lock_one(ino, *spot, want);
            spot.clean = status == Some(Status::Clean);
            if status.is_none() {
                let locked = spots.spots.get(..at).unwrap_or_default();
                self.unlock_all(locked, want, Unlock::AsItWas);
                return false;
            }
        }
        true
    }

    /// Locks one page of the file; its status, or `None` if it is not that page any more, or busy
    /// for too long.
    fn lock_one(&self, ino: u64, spot: Spot, want: Want) -> Option<Status> {
        for _ in 0..LOOKS {
            let (raw, word) = self.word(spot.entry)?;
            if word.is_free() {
                return None;
            }
            let next = match want {
                Want::Read => word.share(),
                Want::Write => word.lock(false).filter(|_| word.status != Status::Free),
            };
            if let Some(next) = next
                && self.swap(spot.entry, raw, next)
            {
                if self.is_of(self.geometry.entry_at(spot.entry), ino, spot.lpn) {
                    return Some(word.status);
                }
                self.unlock_all(&[spot], want, Unlock::AsItWas);
                return None;
            }
            if next.is_none() {
                pause();
            }
        }
        None
    }

    /// Releases spots that are locked.
    pub(super) fn unlock_all(&self, spots: &[Spot], want: Want, how: Unlock) {
        for spot in spots {
            match want {
                Want::Read => self.unshare(spot.entry),
                Want::Write => self.unlock(*spot, how),
            }
        }
    }

    fn unshare(&self, entry: u64) {
        // Ends: each round another reader came or went. A word that is no reader's any more was
        // torn by the DPU side, and is its to mend.
        while let Some((raw, word)) = self.word(entry) {
            let Some(next) = word.unshare() else { return };
            if self.swap(entry, raw, next) {
                return;
            }
        }
    }

    fn unlock(&self, spot: Spot, how: Unlock) {
        let Some((_, word)) = self.word(spot.entry) else { return };
        if word.lock != Lock::Write || word.by_dpu {
            return;
        }
        let next = match how {
            Unlock::Dirty => word.unlock(Status::Dirty, true),
            Unlock::AsItWas if spot.fresh => word.unlock(Status::Free, true),
            Unlock::AsItWas => word.unlock(word.status, false),
        };
        let at = self.geometry.entry_at(spot.entry) + entry_at::WORD;
        // Nobody else changes the word of a write-locked page; one that lies outside the region was
        // never locked.
        let stored = self.region.store_u64(at, next.emit(), std::sync::atomic::Ordering::Release);
        debug_assert_eq!(stored, Ok(()));
    }

    /// Claims a free entry for a new page, write-locked; never waits. It is the file's page only
    /// after [`Plane::is_alone`].
    pub(super) fn claim(&self, ino: u64, lpn: u64) -> Option<Spot> {
        for entry in self.geometry.bucket(ino, lpn) {
            let Some((raw, word)) = self.word(entry) else { continue };
            let Some(next) = word.lock(false).filter(|_| word.is_free()) else { continue };
            if !self.swap(entry, raw, next) {
                continue;
            }
            let at = self.geometry.entry_at(entry);
            let named = self
                .region
                .store_u64(at + entry_at::LPN, lpn, Relaxed)
                .and_then(|()| self.region.store_u64(at + entry_at::INO, ino, Relaxed));
            debug_assert_eq!(named, Ok(()));
            return Some(Spot { entry, lpn, fresh: true, clean: false });
        }
        None
    }

    /// Whether no other entry is the page of a fresh spot. The DPU side, too, names its entry first
    /// and looks for others then; so at least one of two sees the other, and the DPU side's gives
    /// way.
    pub(super) fn is_alone(&self, ino: u64, spots: &[Spot]) -> bool {
        region::fence();
        let mut fresh = spots.iter().filter(|spot| spot.fresh);
        fresh.all(|spot| self.others(ino, spot.lpn, Some(spot.entry)).is_none())
    }

    /// Adds claimed entries to locked ones; gives all of the claims back where one is not to be
    /// had.
    pub(super) fn claim_all<const N: usize>(
        &self,
        ino: u64,
        spots: &mut Spots<N>,
        new: &[u64],
    ) -> bool {
        let before = spots.len;
        for lpn in new {
            let claimed = self.claim(ino, *lpn).is_some_and(|spot| spots.push(spot));
            if !claimed {
                while spots.len > before {
                    let Some(spot) = spots.pop() else { break };
                    self.unlock(spot, Unlock::AsItWas);
                }
                return false;
            }
        }
        true
    }

    /// Fewer pages are free: a hint to the DPU side.
    pub(super) fn fewer_free(&self, pages: u64) {
        let at = self.geometry.header_at(outboard_wire::cache::header_at::FREE);
        let counted: Result<u64, OutOfRegion> =
            self.region.add_u64(at, 0u64.wrapping_sub(pages), AcqRel);
        debug_assert!(counted.is_ok());
    }
}

/// What a page is left as.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Unlock {
    /// Nothing was changed; a fresh page is free again.
    AsItWas,
    /// Its bytes were changed.
    Dirty,
}
