//! Writing.

use outboard_base::limits::FILE_SIZE_MAX;

use super::pages::{Spot, Spots, Unlock, Want};
use super::plane::Event;
use super::read::Range;
use super::record::Found;
use super::{PAGES_MAX, Plane};
use crate::sync::{alone, shared};

/// Times a write looks for its pages again when the DPU side filled one it was about to make.
const TRIES: u32 = 3;

/// Where bytes that are written come from.
#[derive(Clone, Copy, Debug)]
pub enum Source<'a> {
    /// Memory of this process.
    Memory(&'a [u8]),
    /// A place of the region (a slot's buffer).
    Region {
        /// Offset in the region.
        at: u64,
        /// Bytes.
        len: u32,
    },
}

impl Source<'_> {
    fn len(&self) -> u32 {
        match self {
            Source::Memory(bytes) => u32::try_from(bytes.len()).unwrap_or(u32::MAX),
            Source::Region { len, .. } => *len,
        }
    }

    fn lies_within(&self, plane: &Plane) -> bool {
        match self {
            Source::Memory(bytes) => u32::try_from(bytes.len()).is_ok(),
            Source::Region { at, len } => {
                at.checked_add(u64::from(*len)).is_some_and(|end| end <= plane.region.len())
            }
        }
    }
}

/// Where in the file bytes go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// From this byte on.
    At(u64),
    /// To the end, wherever it is.
    End,
}

/// Why a write did not happen here.
enum No {
    /// It is to go through.
    Through,
    /// The DPU side was filling a page of it: look again.
    Again,
    /// A page of it is not there, or the file is shorter.
    Missing,
}

/// A write under way.
#[derive(Clone, Copy)]
struct Write<'a> {
    ino: u64,
    source: Source<'a>,
    now: i64,
    record: Found,
}

impl Plane {
    /// Writes all of `source`; `now` is the wall clock in nanoseconds since 1970. `None`: the
    /// request is to go through, and nothing was changed.
    pub fn write(&self, ino: u64, place: Place, source: Source<'_>, now: i64) -> Option<u32> {
        let record = self.record(ino).filter(|record| record.grant.writes())?;
        let len = source.len();
        let write = Write { ino, source, now, record };
        let lpn = match place {
            Place::At(offset) => offset / u64::from(self.geometry.page_size()),
            Place::End => 0,
        };
        let done = source.lies_within(self) && (len == 0 || self.write_some(&write, place, len));
        self.count(lpn, if done { Event::Write } else { Event::Through });
        done.then_some(len)
    }

    fn write_some(&self, write: &Write<'_>, place: Place, len: u32) -> bool {
        match self.overwrite(write, place, len) {
            Err(No::Missing) => self.extend(write, place, len).is_ok(),
            done => done.is_ok(),
        }
    }

    /// Pages that are there, of a file that stays as long: beside others of their kind.
    fn overwrite(&self, write: &Write<'_>, place: Place, len: u32) -> Result<(), No> {
        let Place::At(offset) = place else { return Err(No::Missing) };
        let beside = self.changes(write.ino).map(shared).filter(|changes| **changes == 0);
        let _beside = beside.ok_or(No::Through)?;
        let range = self.range(offset, len).ok_or(No::Through)?;
        if write.record.size(&self.region).is_none_or(|size| range.end > size) {
            return Err(No::Missing);
        }
        self.sized(write, range, None)
    }

    /// Pages that are made, or a file that grows: alone with the file's changes.
    fn extend(&self, write: &Write<'_>, place: Place, len: u32) -> Result<(), No> {
        let alone = self.changes(write.ino).map(alone).filter(|changes| **changes == 0);
        let _alone = alone.ok_or(No::Through)?;
        for _ in 0..TRIES {
            let size = write.record.size(&self.region).ok_or(No::Through)?;
            let offset = match place {
                Place::At(offset) => offset,
                Place::End => size,
            };
            let range = self.range(offset, len).ok_or(No::Through)?;
            match self.sized(write, range, Some(size)) {
                Err(No::Again) => {}
                done => return done,
            }
        }
        Err(No::Through)
    }

    fn range(&self, offset: u64, len: u32) -> Option<Range> {
        let end = offset.checked_add(u64::from(len)).filter(|end| *end <= FILE_SIZE_MAX)?;
        let page = u64::from(self.geometry.page_size());
        Some(Range { offset, end, first: offset / page, last: end.checked_sub(1)? / page })
    }

    /// One page or two are what most writes take: no more of the stack is cleared for them.
    fn sized(&self, write: &Write<'_>, range: Range, size: Option<u64>) -> Result<(), No> {
        match usize::try_from(range.last - range.first) {
            Ok(0) => self.write_pages::<1>(write, range, size),
            Ok(1) => self.write_pages::<2>(write, range, size),
            Ok(n) if n < PAGES_MAX => self.write_pages::<PAGES_MAX>(write, range, size),
            _ => Err(No::Through),
        }
    }

    /// `size` is there when pages may be made.
    fn write_pages<const N: usize>(
        &self,
        write: &Write<'_>,
        range: Range,
        size: Option<u64>,
    ) -> Result<(), No> {
        let mut spots = Spots::<N>::new();
        let (mut new, mut count) = ([0; N], 0);
        for lpn in range.first..=range.last {
            if let Some(entry) = self.find(write.ino, lpn) {
                spots.push(Spot { entry, lpn, ..Spot::default() });
            } else if size.is_some_and(|size| self.is_whole(range, lpn, size)) {
                *new.get_mut(count).ok_or(No::Through)? = lpn;
                count += 1;
            } else {
                return Err(No::Missing);
            }
        }
        // Claims never wait, so nobody waits for who waits.
        if !self.lock_all(write.ino, &mut spots, Want::Write) {
            return Err(No::Through);
        }
        let done = if self.claim_all(write.ino, &mut spots, new.get(..count).unwrap_or_default()) {
            self.fill(write, range, spots.all())
        } else {
            Err(No::Through)
        };
        let how = if done.is_ok() { Unlock::Dirty } else { Unlock::AsItWas };
        self.unlock_all(spots.all(), Want::Write, how);
        if done.is_ok() && count > 0 {
            self.fewer_free(count as u64);
        }
        done
    }

    /// Whether a page needs nothing of what the volume holds: the write covers all of it that is,
    /// or will be, below the end of the file.
    fn is_whole(&self, range: Range, lpn: u64, size: u64) -> bool {
        let page = u64::from(self.geometry.page_size());
        let (start, stop) = (lpn * page, (lpn + 1) * page);
        (range.offset <= start || start >= size) && (range.end >= stop || range.end >= size)
    }

    /// Everything is locked: the second look, the credit, the bytes.
    fn fill(&self, write: &Write<'_>, range: Range, spots: &[Spot]) -> Result<(), No> {
        if !self.is_alone(write.ino, spots) {
            return Err(No::Again);
        }
        let dirtied = spots.iter().filter(|spot| spot.fresh || spot.clean).count() as u64;
        // The tag was this grant's if the record still stands, and is no other's.
        let tag = write.record.tag(&self.region).ok_or(No::Through)?;
        if !write.record.stands(&self.region) || !write.record.spend(&self.region, tag, dirtied) {
            return Err(No::Through);
        }
        let made = spots.iter().filter(|spot| spot.fresh).map(|spot| spot.entry);
        write.record.chain(&self.region, &self.geometry, made);
        for spot in spots {
            self.copy_in(*spot, range, write.source);
        }
        write.record.raise(&self.region, range.end, write.now);
        Ok(())
    }

    fn copy_in(&self, spot: Spot, range: Range, source: Source<'_>) {
        let (at, from, len) = range.part(spot, self);
        let page = self.geometry.page_size() as usize;
        if spot.fresh && len < page {
            let cleared = self.region.zero(self.geometry.page_at(spot.entry), page);
            debug_assert_eq!(cleared, Ok(()));
        }
        let copied = match source {
            Source::Memory(bytes) => {
                let bytes = bytes.get(from..).and_then(|rest| rest.get(..len)).unwrap_or_default();
                self.region.write_from(at, bytes)
            }
            Source::Region { at: slot, .. } => self.region.copy(slot + from as u64, at, len),
        };
        // Page and slot were checked against the region when they were laid out.
        debug_assert_eq!(copied, Ok(()));
    }
}
