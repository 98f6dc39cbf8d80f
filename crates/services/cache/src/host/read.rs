//! Reading.

use super::pages::{Spot, Spots, Unlock, Want};
use super::plane::Event;
use super::{PAGES_MAX, Plane};

/// Where bytes that are read go.
#[derive(Debug)]
pub enum Sink<'a> {
    /// To memory of this process.
    Memory(&'a mut [u8]),
    /// To a place of the region (a slot's buffer), at most so many bytes.
    Region {
        /// Offset in the region.
        at: u64,
        /// Bytes.
        len: u32,
    },
}

impl Sink<'_> {
    fn len(&self) -> u64 {
        match self {
            Sink::Memory(bytes) => bytes.len() as u64,
            Sink::Region { len, .. } => u64::from(*len),
        }
    }
}

impl Plane {
    /// Reads the file from `offset` on: as many bytes as `sink` takes, or as there are. `None`: the
    /// request is to go through; the sink may hold anything then.
    pub fn read(&self, ino: u64, offset: u64, mut sink: Sink<'_>) -> Option<u32> {
        let record = self.record(ino).filter(|record| record.grant.reads())?;
        let lpn = offset / u64::from(self.geometry.page_size());
        let read = record
            .size(&self.region)
            .and_then(|size| self.read_to(ino, offset, &mut sink, size, record));
        self.count(lpn, if read.is_some() { Event::Hit } else { Event::Miss });
        read
    }

    fn read_to(
        &self,
        ino: u64,
        offset: u64,
        sink: &mut Sink<'_>,
        size: u64,
        record: super::record::Found,
    ) -> Option<u32> {
        let end = offset.saturating_add(sink.len()).min(size);
        if end <= offset {
            return record.stands(&self.region).then_some(0);
        }
        let len = u32::try_from(end - offset).ok()?;
        let page = u64::from(self.geometry.page_size());
        let last = (end - 1) / page;
        let range = Range { offset, end, first: offset / page, last };
        // One page or two are what most reads take: no more of the stack is cleared for them.
        let done = match usize::try_from(last - range.first).ok()? {
            0 => self.read_pages::<1>(ino, range, sink, record),
            1 => self.read_pages::<2>(ino, range, sink, record),
            n if n < PAGES_MAX => self.read_pages::<PAGES_MAX>(ino, range, sink, record),
            _ => false,
        };
        done.then_some(len)
    }

    fn read_pages<const N: usize>(
        &self,
        ino: u64,
        range: Range,
        sink: &mut Sink<'_>,
        record: super::record::Found,
    ) -> bool {
        let mut spots = Spots::<N>::new();
        for lpn in range.first..=range.last {
            let Some(entry) = self.find(ino, lpn) else { return false };
            if !spots.push(Spot { entry, lpn, ..Spot::default() }) {
                return false;
            }
        }
        if !self.lock_all(ino, &mut spots, Want::Read) {
            return false;
        }
        let done = record.stands(&self.region)
            && spots.all().iter().all(|spot| self.copy_out(*spot, range, sink));
        self.unlock_all(spots.all(), Want::Read, Unlock::AsItWas);
        done
    }

    fn copy_out(&self, spot: Spot, range: Range, sink: &mut Sink<'_>) -> bool {
        let (at, into, len) = range.part(spot, self);
        match sink {
            Sink::Memory(bytes) => {
                let to = into.checked_add(len).and_then(|end| bytes.get_mut(into..end));
                to.is_some_and(|to| self.region.read_into(at, to).is_ok())
            }
            Sink::Region { at: to, .. } => self.region.copy(at, *to + into as u64, len).is_ok(),
        }
    }
}

/// Bytes of a file, and the pages they lie in.
#[derive(Clone, Copy)]
pub(super) struct Range {
    pub(super) offset: u64,
    pub(super) end: u64,
    pub(super) first: u64,
    pub(super) last: u64,
}

impl Range {
    /// The part of the range that lies in a page: where in the region, from which byte of the
    /// request, how many.
    pub(super) fn part(&self, spot: Spot, plane: &Plane) -> (u64, usize, usize) {
        let page = u64::from(plane.geometry.page_size());
        let start = spot.lpn * page;
        let (from, to) = (self.offset.max(start), self.end.min(start + page));
        let at = plane.geometry.page_at(spot.entry) + (from - start);
        let narrow = |n: u64| usize::try_from(n).unwrap_or(0);
        (at, narrow(from - self.offset), narrow(to.saturating_sub(from)))
    }
}
