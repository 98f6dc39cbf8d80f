//! Where the virtqueues of one attachment lie: behind everything else of its region.

use outboard_base::limits::{IO_MAX, PAGE};
use outboard_wire::virtio::{SIZE_MAX, Virtqueue};

use crate::layout::Layout;

/// The places of an attachment's virtqueues. Both sides compute them from the grid and from the
/// longest data of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rings {
    layout: Layout,
    io_max: u32,
    /// Descriptors of one slot.
    run: u16,
    size: u16,
}

impl Rings {
    /// Virtqueues for the slots of `layout`, each with data of at most `io_max` bytes either way.
    /// `None` when that takes more descriptors than a virtqueue has, or more than a slot's buffer.
    #[must_use]
    pub fn new(layout: Layout, io_max: u32) -> Option<Rings> {
        let pages = usize::try_from(io_max).ok().filter(|len| *len <= IO_MAX)?.div_ceil(PAGE);
        // Data may begin anywhere in a page; command and answer have one descriptor each.
        let run = u16::try_from(2 + 2 * (pages + 1)).ok()?;
        let descriptors = u32::from(layout.slots()) * u32::from(run);
        let size =
            u16::try_from(descriptors.next_power_of_two()).ok().filter(|n| *n <= SIZE_MAX)?;
        Some(Rings { layout, io_max, run, size })
    }

    /// The grid.
    #[must_use]
    pub fn layout(&self) -> Layout {
        self.layout
    }

    /// Most bytes of data of one request, each way.
    #[must_use]
    pub fn io_max(&self) -> u32 {
        self.io_max
    }

    /// Bytes of a region with these queues.
    #[must_use]
    pub fn region_len(&self) -> u64 {
        self.at(self.layout.queues())
    }

    /// Queue `queue`; `None` beyond the grid.
    #[must_use]
    pub fn virtqueue(&self, queue: u16) -> Option<Virtqueue> {
        let queue = (queue < self.layout.queues()).then_some(queue)?;
        Virtqueue::new(self.at(queue), self.size)
    }

    /// The first descriptor of a slot.
    #[must_use]
    pub fn head(&self, cid: u16) -> u16 {
        cid * self.run
    }

    /// The slot whose first descriptor this is.
    #[must_use]
    pub fn slot_of(&self, head: u32) -> Option<u16> {
        let run = u32::from(self.run);
        let cid = u16::try_from(head / run).ok().filter(|cid| *cid < self.layout.slots())?;
        head.is_multiple_of(run).then_some(cid)
    }

    fn at(&self, queue: u16) -> u64 {
        let start = self.layout.region_len();
        let len = Virtqueue::new(0, self.size).map_or(0, |one| one.end());
        start + u64::from(queue) * len
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn queues_lie_side_by_side_behind_the_slots() {
        let layout = Layout::new(3, 64).unwrap();
        let rings = Rings::new(layout, 1 << 20).unwrap();
        assert_eq!(rings.virtqueue(0).unwrap().size(), 32_768);
        let mut end = layout.region_len();
        for queue in 0..3 {
            let virtqueue = rings.virtqueue(queue).unwrap();
            assert_eq!(virtqueue.descriptor_at(0), end);
            end = virtqueue.end();
        }
        assert_eq!((rings.virtqueue(3), rings.region_len()), (None, end));
    }

    #[test]
    fn slots_and_heads_belong_together() {
        let rings = Rings::new(Layout::new(1, 128).unwrap(), 8192).unwrap();
        assert_eq!(rings.virtqueue(0).unwrap().size(), 1024, "8 descriptors a slot");
        for cid in 0..127 {
            assert_eq!(rings.slot_of(u32::from(rings.head(cid))), Some(cid));
        }
        for head in [1, 7, 9, 127 * 8, 128 * 8, u32::MAX] {
            assert_eq!(rings.slot_of(head), None);
        }
        let deep = Layout::new(1, 128).unwrap();
        assert_eq!(Rings::new(deep, 1 << 20), None, "65,532 descriptors");
        assert_eq!(Rings::new(deep, (1 << 20) + 1), None);
    }
}
