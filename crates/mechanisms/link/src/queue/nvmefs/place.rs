//! Where the initiator puts headers and lists, so that the DPU locates everything in one DMA.
//!
//! The request header ends where its page ends, so that page-aligned data continues its stream; an
//! unaligned span has the header right before it in the same page instead. Lists lie right before
//! the header when they fit the page, else each begins a page of its own (one more DMA each). The
//! reply header ends where its page ends, too, and data behind it begins a page.

use outboard_base::limits::PAGE;
use outboard_wire::nvmefs::Prp;
use outboard_wire::nvmefs::prp::pages_behind_first;

use super::super::{SlotError, Span};
use crate::Region;
use crate::layout::SlotPages;
use crate::region::OutOfRegion;

const PAGE_LEN: u64 = PAGE as u64;

/// Where one command's bytes lie.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Place {
    pub(super) header_at: u64,
    pub(super) reply_at: u64,
    write: Stream,
    read: Stream,
    pages: SlotPages,
}

/// A stream: a header, then data that continues it or begins a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Stream {
    head_at: u64,
    head_len: u32,
    data_at: u64,
    data_len: u32,
}

impl Place {
    pub(super) fn new(
        pages: SlotPages,
        header_len: u32,
        write: Span,
        reply_room: u32,
        read: Span,
    ) -> Result<Place, SlotError> {
        let write = stream(pages.header, pages.buffer, header_len, write)?;
        let read = stream(pages.reply, pages.buffer, reply_room, read)?;
        if read.data_len > 0 && reply_room > 0 && !read.data_at.is_multiple_of(PAGE_LEN) {
            // Its reply header would lie where the request header of an unaligned write may lie.
            return Err(SlotError::Unaligned);
        }
        Ok(Place { header_at: write.head_at, reply_at: read.head_at, write, read, pages })
    }

    /// Writes the lists that are needed; the PRP entries of both directions.
    pub(super) fn emit(&self, region: &Region) -> Result<(Prp, Prp), OutOfRegion> {
        // Lists go downwards from the header, or from the page's end when there is no header.
        let mut floor = self.header_at;
        let write = self.write.emit(region, &mut floor, self.pages.write_list)?;
        let read = self.read.emit(region, &mut floor, self.pages.read_list)?;
        Ok((write, read))
    }
}

/// Lays a header of `head_len` bytes before the data of `span`.
fn stream(page: u64, buffer: u64, head_len: u32, span: Span) -> Result<Stream, SlotError> {
    let data_at = buffer + u64::from(span.offset);
    let into_page = data_at % PAGE_LEN;
    let head_at = if span.len == 0 || into_page == 0 || head_len == 0 {
        page + PAGE_LEN - u64::from(head_len)
    } else if into_page >= u64::from(head_len) {
        data_at - u64::from(head_len)
    } else {
        return Err(SlotError::Unaligned);
    };
    Ok(Stream { head_at, head_len, data_at, data_len: span.len })
}

impl Stream {
    /// The page addresses behind the stream's first entry.
    fn entries(&self) -> (u64, impl Iterator<Item = u64> + Clone + use<>) {
        let Stream { head_at, head_len, data_at, data_len } = *self;
        // The data begins an entry of its own when the header ends a page elsewhere.
        let apart = head_len != 0 && data_len != 0 && data_at.is_multiple_of(PAGE_LEN);
        let (first, run_at, run_len) = match (head_len, data_len) {
            (0, 0) => (0, 0, 0),
            (0, _) => (data_at, data_at, data_len),
            _ if apart => (head_at, data_at, data_len),
            _ => (head_at, head_at, head_len + data_len),
        };
        let pages = pages_behind_first(run_at, run_len);
        (first, apart.then_some(data_at).into_iter().chain(pages))
    }

    fn emit(&self, region: &Region, floor: &mut u64, own: u64) -> Result<Prp, OutOfRegion> {
        let (first, entries) = self.entries();
        let count = entries.clone().count();
        if count <= 1 {
            return Ok(Prp { first, second: entries.clone().next().unwrap_or(0) });
        }
        let bytes = 8 * count as u64;
        let page = floor.saturating_sub(1) / PAGE_LEN * PAGE_LEN;
        let list = match floor.checked_sub(bytes) {
            Some(at) if at / 8 * 8 >= page => {
                *floor = at / 8 * 8;
                *floor
            }
            _ => own,
        };
        let mut raw = Vec::with_capacity(8 * count);
        entries.for_each(|entry| raw.extend(entry.to_le_bytes()));
        region.write_from(list, &raw)?;
        Ok(Prp { first, second: list })
    }
}

#[cfg(test)]
mod tests {
    use outboard_wire::nvmefs::prp::{list_of, walk};
    use proptest::prelude::*;

    use super::*;
    use crate::layout::Layout;

    proptest! {
        /// What the initiator places, the target's walker finds: header, then data, byte for byte.
        #[test]
        fn the_walker_finds_what_was_placed(
            header in 0u32..=2560, room in 0u32..=256,
            woff in 0u32..20_000, wlen in 0u32..=1 << 20,
            roff in 0u32..20_000, rlen in 0u32..=1 << 20,
            aligned: [bool; 2],
        ) {
            let layout = Layout::new(1, 2).unwrap();
            let region = Region::anonymous(layout.region_len());
            let pages = layout.slot(0, 0);
            let span = |offset: u32, len: u32, aligned: bool| {
                let offset = if aligned { offset / 4096 * 4096 } else { offset };
                Span { offset, len: len.min((1 << 20) - offset) }
            };
            let (write, read) = (span(woff, wlen, aligned[0]), span(roff, rlen, aligned[1]));
            let Ok(place) = Place::new(pages, header, write, room, read) else {
                let askew = |span: Span, room: u32| {
                    span.len > 0 && (1..room).contains(&(span.offset % 4096))
                };
                prop_assert!(askew(write, header) || room > 0 && askew(read, 4096));
                return Ok(());
            };
            let (w, r) = place.emit(&region).unwrap();
            for (prp, head_at, head_len, span) in
                [(w, place.header_at, header, write), (r, place.reply_at, room, read)]
            {
                let len = head_len + span.len;
                let mut list = Vec::new();
                if let Some(extent) = list_of(prp, len, region.len()).unwrap() {
                    list.resize(extent.len as usize, 0);
                    region.read_into(extent.at, &mut list).unwrap();
                }
                let mut extents = Vec::new();
                walk(prp, len, &list, region.len(), &mut extents).unwrap();
                let mut bytes = extents.iter().flat_map(|e| e.at..e.end());
                let head = bytes.by_ref().take(head_len as usize);
                prop_assert!(head.eq(head_at..head_at + u64::from(head_len)));
                let data = pages.buffer + u64::from(span.offset);
                prop_assert!(bytes.eq(data..data + u64::from(span.len)));
            }
        }
    }
}
