//! The host's rings: submissions written, completions found by their phase.

use std::sync::Arc;
use std::sync::atomic::Ordering::{Acquire, Relaxed};

use outboard_base::limits::{REPLY_HEADER_MAX, REQUEST_HEADER_MAX};
use outboard_wire::nvmefs::{Cqe, Sqe};

use super::place::Place;
use super::{NoSuchQueue, next};
use crate::Region;
use crate::layout::{Layout, SlotPages};
use crate::queue::initiator::{HostRings, Initiator as Host};
use crate::queue::slots::{Slots, check};
use crate::queue::{Cid, CommandId, Completion, SlotError, Submission};
use crate::region::OutOfRegion;
use crate::registers::{QueueRegisters, Registers};
use outboard_base::ledger::{Count, Ledger};

/// What is remembered of a submission.
#[derive(Clone, Copy, Debug, Default)]
pub(in crate::queue) struct Sent {
    sqe: Option<Sqe>,
    reply_at: u64,
    reply_room: u16,
}

/// The two rings of a queue pair.
pub struct Pair {
    region: Arc<Region>,
    layout: Layout,
    queue: u16,
    ledger: Arc<Ledger>,
    /// Next submission entry; what the doorbell says is `rung`.
    tail: u16,
    rung: u16,
    /// Next completion entry and the phase it will have.
    head: u16,
    phase: bool,
}

/// The host's end of one nvme-fs queue pair.
pub type Initiator = Host<Pair>;

impl Initiator {
    /// The host end of queue `queue`, over a region of the registers' layout. Clears the rings:
    /// nothing may be in them.
    pub fn new(
        region: Arc<Region>,
        registers: &Registers,
        queue: u16,
        ledger: Arc<Ledger>,
    ) -> Result<Initiator, NoSuchQueue> {
        let layout = registers.layout();
        if registers.queue(queue).is_none() || region.len() < layout.region_len() {
            return Err(NoSuchQueue);
        }
        let (of_rings, counts) = (Arc::clone(&region), Arc::clone(&ledger));
        let pair = Pair {
            region: of_rings,
            layout,
            queue,
            ledger: counts,
            tail: 0,
            rung: 0,
            head: 0,
            phase: true,
        };
        Host::over(region, registers, queue, ledger, pair)
    }
}

impl Pair {
    /// The entry at the head, if the DPU has written it.
    fn ready(&self) -> Option<Cqe> {
        let at = self.layout.cqe_at(self.queue, self.head);
        let second = self.region.load_u64(at + 8, Acquire).ok()?;
        if Cqe::phase_of(second) != self.phase {
            return None;
        }
        let first = self.region.load_u64(at, Relaxed).ok()?;
        let mut raw = [0; 16];
        for (to, from) in
            raw.iter_mut().zip(first.to_le_bytes().into_iter().chain(second.to_le_bytes()))
        {
            *to = from;
        }
        Some(Cqe::parse(&raw))
    }

    /// Believes a completion only when it answers something.
    fn settle(&self, slots: &mut Slots<Sent>, cqe: &Cqe) -> Option<Completion> {
        if cqe.queue != self.queue {
            return None;
        }
        slots.settle(Cid(cqe.cid))?;
        Some(Completion { cid: Cid(cqe.cid), status: cqe.status, result: cqe.result })
    }
}

impl HostRings for Pair {
    type Sent = Sent;

    fn layout(&self) -> Layout {
        self.layout
    }

    fn clear(&mut self) -> Result<(), OutOfRegion> {
        let depth = usize::from(self.layout.depth());
        self.region.zero(self.layout.sqe_at(self.queue, 0), depth * 64)?;
        self.region.zero(self.layout.cqe_at(self.queue, 0), depth * 16)?;
        (self.tail, self.rung, self.head, self.phase) = (0, 0, 0, true);
        Ok(())
    }

    fn write(
        &mut self,
        pages: SlotPages,
        id: CommandId,
        submission: &Submission<'_>,
    ) -> Result<Sent, SlotError> {
        let Submission { dispatch, header, write, read, reply_header } = *submission;
        if header.len() > REQUEST_HEADER_MAX || usize::from(reply_header) > REPLY_HEADER_MAX {
            return Err(SlotError::TooLong);
        }
        check(write)?;
        check(read)?;
        let wh_len = u16::try_from(header.len()).map_err(|_| SlotError::TooLong)?;
        let (wh, rh) = (u32::from(wh_len), u32::from(reply_header));
        let place = Place::new(pages, wh, write, rh, read)?;
        let out_of_region = |_| SlotError::TooLong;
        self.region.write_from(place.header_at, header).map_err(out_of_region)?;
        if reply_header > 0 {
            self.region.zero(place.reply_at, usize::from(reply_header)).map_err(out_of_region)?;
        }
        let (prp_write, prp_read) = place.emit(&self.region).map_err(out_of_region)?;
        let sqe = Sqe {
            cid: id.cid.0,
            tag: id.tag,
            dispatch,
            write: prp_write,
            read: prp_read,
            write_len: wh + write.len,
            read_len: rh + read.len,
            wh_len,
            rh_len: reply_header,
        };
        Ok(Sent { sqe: Some(sqe), reply_at: place.reply_at, reply_room: reply_header })
    }

    fn enqueue(&mut self, _cid: Cid, sent: &Sent) -> Result<(), SlotError> {
        let sqe = sent.sqe.ok_or(SlotError::State)?;
        let at = self.layout.sqe_at(self.queue, self.tail);
        self.region.write_from(at, &sqe.emit()).map_err(|_| SlotError::State)?;
        self.tail = next(self.tail, self.layout.depth());
        Ok(())
    }

    fn retract(&mut self) {
        self.tail = self.rung;
    }

    fn show(&mut self) -> Option<u32> {
        let unseen = self.rung != self.tail;
        self.rung = self.tail;
        unseen.then_some(u32::from(self.tail))
    }

    fn has_answers(&mut self) -> bool {
        self.ready().is_some()
    }

    fn poll(
        &mut self,
        slots: &mut Slots<Sent>,
        registers: &QueueRegisters,
        budget: usize,
        out: &mut Vec<Completion>,
    ) -> usize {
        let mut taken = 0;
        let mut found = 0;
        while taken < budget {
            let Some(cqe) = self.ready() else { break };
            taken += 1;
            self.head = next(self.head, self.layout.depth());
            self.phase ^= self.head == 0;
            match self.settle(slots, &cqe) {
                Some(completion) => {
                    out.push(completion);
                    found += 1;
                }
                None => self.ledger.count(Count::Violations, 1),
            }
        }
        if taken > 0 {
            registers.set_head(u32::from(self.head));
        }
        found
    }

    fn reply_at(&self, _pages: SlotPages, sent: &Sent) -> (u64, u16) {
        (sent.reply_at, sent.reply_room)
    }
}
