//! The slots of an initiator: whose each is, what was submitted with it, and its buffer. The rules
//! are the same for every transport.

use std::sync::Arc;

use outboard_base::limits::IO_MAX;

use super::{Cid, SlotError, Span};
use crate::Region;
use crate::layout::{Layout, SlotPages};

/// What a slot is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// Nobody's.
    Free,
    /// The caller's, before submission or after completion.
    Owned,
    /// Submitted to the DPU of these registers.
    InFlight,
    /// Submitted to a DPU that is gone.
    Orphaned,
}

#[derive(Clone, Copy, Debug)]
struct Slot<T> {
    state: State,
    /// Which use this is.
    tag: u32,
    /// When it was submitted, among all of this queue.
    order: u64,
    /// What was submitted, kept here so that the DPU's side of memory is never read back.
    sent: T,
}

/// The slots of one queue. `T` is what a transport remembers of a submission; its default stands
/// for none.
pub(super) struct Slots<T> {
    region: Arc<Region>,
    layout: Layout,
    queue: u16,
    slots: Vec<Slot<T>>,
    free: Vec<u16>,
    submitted: u64,
    in_flight: usize,
}

impl<T: Copy + Default> Slots<T> {
    pub(super) fn new(region: Arc<Region>, layout: Layout, queue: u16) -> Slots<T> {
        let slot = Slot { state: State::Free, tag: 0, order: 0, sent: T::default() };
        Slots {
            region,
            layout,
            queue,
            slots: vec![slot; usize::from(layout.slots())],
            free: (0..layout.slots()).rev().collect(),
            submitted: 0,
            in_flight: 0,
        }
    }

    pub(super) fn in_flight(&self) -> usize {
        self.in_flight
    }

    pub(super) fn pages(&self, cid: Cid) -> SlotPages {
        self.layout.slot(self.queue, cid.0)
    }

    fn owned(&self, cid: Cid) -> Result<&Slot<T>, SlotError> {
        let slot = self.slots.get(usize::from(cid.0));
        slot.filter(|slot| slot.state == State::Owned).ok_or(SlotError::State)
    }

    fn change(&mut self, cid: Cid, from: State, to: State) -> Option<&mut Slot<T>> {
        let slot = self.slots.get_mut(usize::from(cid.0)).filter(|slot| slot.state == from)?;
        slot.state = to;
        Some(slot)
    }

    /// Takes a free slot.
    pub(super) fn acquire(&mut self) -> Option<Cid> {
        let cid = Cid(self.free.pop()?);
        self.change(cid, State::Free, State::Owned)?.sent = T::default();
        Some(cid)
    }

    /// Gives a slot of the caller's back.
    pub(super) fn release(&mut self, cid: Cid) -> Result<(), SlotError> {
        self.change(cid, State::Owned, State::Free).ok_or(SlotError::State)?;
        self.free.push(cid.0);
        Ok(())
    }

    /// What was last submitted with a slot of the caller's.
    pub(super) fn sent(&self, cid: Cid) -> Result<&T, SlotError> {
        self.owned(cid).map(|slot| &slot.sent)
    }

    /// The tag the next submission of a slot has.
    pub(super) fn next_tag(&self, cid: Cid) -> Result<u32, SlotError> {
        Ok(self.owned(cid)?.tag.wrapping_add(1).max(1))
    }

    /// A slot of the caller's is submitted.
    pub(super) fn begin(&mut self, cid: Cid, tag: u32, sent: T) {
        let order = self.submitted;
        if let Some(slot) = self.change(cid, State::Owned, State::InFlight) {
            (slot.tag, slot.order, slot.sent) = (tag, order, sent);
            self.submitted += 1;
            self.in_flight += 1;
        }
    }

    /// A slot in flight is answered: its tag and what was submitted; `None` when it was not in
    /// flight.
    pub(super) fn settle(&mut self, cid: Cid) -> Option<(u32, T)> {
        let slot = self.change(cid, State::InFlight, State::Owned)?;
        let answered = (slot.tag, slot.sent);
        self.in_flight -= 1;
        Some(answered)
    }

    /// What is in flight has no DPU any more.
    pub(super) fn lose(&mut self) {
        for slot in self.slots.iter_mut().filter(|slot| slot.state == State::InFlight) {
            slot.state = State::Orphaned;
        }
    }

    /// What no DPU answered, in the order it was first submitted.
    pub(super) fn orphans(&self) -> Vec<(Cid, T)> {
        let all = (0u16..).zip(&self.slots).filter(|(_, slot)| slot.state == State::Orphaned);
        let mut all: Vec<(u64, Cid, T)> =
            all.map(|(cid, slot)| (slot.order, Cid(cid), slot.sent)).collect();
        all.sort_unstable_by_key(|(order, ..)| *order);
        all.into_iter().map(|(_, cid, sent)| (cid, sent)).collect()
    }

    /// An orphan is submitted again.
    pub(super) fn resume(&mut self, cid: Cid) {
        self.change(cid, State::Orphaned, State::InFlight);
    }

    /// All orphans are their callers' again.
    pub(super) fn abandon(&mut self) -> Vec<Cid> {
        let cids: Vec<Cid> = self.orphans().into_iter().map(|(cid, _)| cid).collect();
        for cid in &cids {
            self.change(*cid, State::Orphaned, State::Owned);
        }
        self.in_flight -= cids.len();
        cids
    }

    pub(super) fn write_buffer(&self, cid: Cid, offset: u32, data: &[u8]) -> Result<(), SlotError> {
        let at = self.place(cid, offset, data.len())?;
        self.region.write_from(at, data).map_err(|_| SlotError::TooLong)
    }

    pub(super) fn read_buffer(
        &self,
        cid: Cid,
        offset: u32,
        out: &mut [u8],
    ) -> Result<(), SlotError> {
        let at = self.place(cid, offset, out.len())?;
        self.region.read_into(at, out).map_err(|_| SlotError::TooLong)
    }

    pub(super) fn buffer(&self, cid: Cid, span: Span) -> Result<*mut u8, SlotError> {
        let len = usize::try_from(span.len).map_err(|_| SlotError::TooLong)?;
        let at = self.place(cid, span.offset, len)?;
        self.region.pointer(at, len).map_err(|_| SlotError::TooLong)
    }

    /// Where bytes of the buffer of a slot of the caller's lie.
    fn place(&self, cid: Cid, offset: u32, len: usize) -> Result<u64, SlotError> {
        self.owned(cid)?;
        check_span(u64::from(offset), len as u64)?;
        Ok(self.pages(cid).buffer + u64::from(offset))
    }
}

/// Whether a span lies in a slot's buffer.
pub(super) fn check(span: Span) -> Result<(), SlotError> {
    check_span(u64::from(span.offset), u64::from(span.len))
}

fn check_span(offset: u64, len: u64) -> Result<(), SlotError> {
    let fits = offset.checked_add(len).is_some_and(|end| end <= IO_MAX as u64);
    if fits { Ok(()) } else { Err(SlotError::TooLong) }
}
