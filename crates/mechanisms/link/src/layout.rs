//! Where things lie in a host region.
//!
//! ```text
//! page 0                  never addressed: a zero PRP entry means "none"
//! rings, for each queue   submissions, depth x 64 bytes, completions, depth x 16; whole pages
//! event ring              256 x 64 bytes
//! slots                   (depth - 1) for each queue, SLOT_LEN each, touched lazily
//!
//! slot:  | write list page | read list page | header page | reply page | buffer, IO_MAX |
//!                                 [list|WH] -^ end         RH -^ end    ^ data
//! ```
//!
//! Both sides compute the rings' places from (queues, depth); the slots are the host's own
//! business, the DPU learns of them from PRP entries only.

use outboard_base::limits::{IO_MAX, PAGE};
use outboard_wire::event::{EVENT_LEN, EVENTS};
use outboard_wire::nvmefs::{CQE_LEN, DEPTH_MAX, DEPTH_MIN, QUEUES_MAX, SQE_LEN};

const PAGE_LEN: u64 = PAGE as u64;
const SQE: u64 = SQE_LEN as u64;
const CQE: u64 = CQE_LEN as u64;
const EVENT: u64 = EVENT_LEN as u64;

/// Bytes of a slot: four pages of its own and the buffer.
pub const SLOT_LEN: u64 = 4 * PAGE_LEN + IO_MAX as u64;

/// The places of one attachment's rings and slots.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layout {
    queues: u16,
    depth: u16,
}

/// The pages of one slot, as bus addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SlotPages {
    /// Write list, when it does not fit before the header.
    pub write_list: u64,
    /// Read list, when it does not fit before the header.
    pub read_list: u64,
    /// Page whose end the request header touches.
    pub header: u64,
    /// Page whose end the reply header touches.
    pub reply: u64,
    /// The data.
    pub buffer: u64,
}

impl Layout {
    /// A layout; `None` when queues or depth are out of range or depth is not a power of two.
    #[must_use]
    pub fn new(queues: u16, depth: u16) -> Option<Layout> {
        let ok = (1..=QUEUES_MAX).contains(&queues)
            && (DEPTH_MIN..=DEPTH_MAX).contains(&depth)
            && depth.is_power_of_two();
        ok.then_some(Layout { queues, depth })
    }

    /// Queue pairs.
    #[must_use]
    pub fn queues(&self) -> u16 {
        self.queues
    }

    /// Entries of each ring.
    #[must_use]
    pub fn depth(&self) -> u16 {
        self.depth
    }

    /// Slots of each queue: one less than the depth, because a full ring has one free entry.
    #[must_use]
    pub fn slots(&self) -> u16 {
        self.depth - 1
    }

    fn pair_len(&self) -> u64 {
        (u64::from(self.depth) * (SQE + CQE)).next_multiple_of(PAGE_LEN)
    }

    fn pair_at(&self, queue: u16) -> u64 {
        PAGE_LEN + u64::from(queue) * self.pair_len()
    }

    /// A submission entry's address.
    #[must_use]
    pub fn sqe_at(&self, queue: u16, index: u16) -> u64 {
        self.pair_at(queue) + u64::from(index) * SQE
    }

    /// A completion entry's address.
    #[must_use]
    pub fn cqe_at(&self, queue: u16, index: u16) -> u64 {
        self.pair_at(queue) + u64::from(self.depth) * SQE + u64::from(index) * CQE
    }

    /// The address of the event entry with this sequence number (from 1).
    #[must_use]
    pub fn event_at(&self, sequence: u64) -> u64 {
        self.pair_at(self.queues) + (sequence.wrapping_sub(1) % EVENTS) * EVENT
    }

    /// Bytes up to the slots: what the DPU insists on.
    #[must_use]
    pub fn rings_len(&self) -> u64 {
        self.pair_at(self.queues) + EVENTS * EVENT
    }

    /// Bytes of the region.
    #[must_use]
    pub fn region_len(&self) -> u64 {
        self.rings_len() + u64::from(self.queues) * u64::from(self.slots()) * SLOT_LEN
    }

    /// The pages of a slot.
    #[must_use]
    pub fn slot(&self, queue: u16, cid: u16) -> SlotPages {
        let index = u64::from(queue) * u64::from(self.slots()) + u64::from(cid);
        let at = self.rings_len() + index * SLOT_LEN;
        SlotPages {
            write_list: at,
            read_list: at + PAGE_LEN,
            header: at + 2 * PAGE_LEN,
            reply: at + 3 * PAGE_LEN,
            buffer: at + 4 * PAGE_LEN,
        }
    }
}

const _: () = assert!((EVENTS * EVENT).is_multiple_of(PAGE_LEN));

#[cfg(test)]
mod tests {
    use super::*;

    /// Nothing overlaps and all lies inside, page-aligned where PRP entries point.
    #[test]
    fn things_lie_side_by_side() {
        for (queues, depth) in [(1, 2), (3, 8), (2, 128), (64, 1024)] {
            let layout = Layout::new(queues, depth).unwrap();
            let mut end = PAGE_LEN;
            for queue in 0..queues {
                assert!(
                    layout.sqe_at(queue, 0) >= end
                        && layout.sqe_at(queue, 0).is_multiple_of(PAGE_LEN)
                );
                assert_eq!(layout.cqe_at(queue, 0), layout.sqe_at(queue, depth - 1) + 64);
                end = layout.cqe_at(queue, depth - 1) + 16;
            }
            assert!(layout.event_at(1) >= end);
            assert_eq!(layout.event_at(EVENTS + 1), layout.event_at(1));
            assert_eq!(layout.event_at(EVENTS) + 64, layout.rings_len());
            let last = layout.slot(queues - 1, layout.slots() - 1);
            assert_eq!(layout.slot(0, 0).write_list, layout.rings_len());
            assert_eq!(last.buffer + IO_MAX as u64, layout.region_len());
            assert_eq!(last.header % PAGE_LEN, 0);
        }
        for (queues, depth) in [(0, 2), (65, 2), (1, 1), (1, 12), (1, 2048)] {
            assert_eq!(Layout::new(queues, depth), None);
        }
    }
}
