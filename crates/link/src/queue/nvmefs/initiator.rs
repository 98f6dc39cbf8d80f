//! The host's end of a queue pair.

use std::sync::Arc;
use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::{Acquire, Relaxed};

use outboard_base::limits::{IO_MAX, REPLY_HEADER_MAX, REQUEST_HEADER_MAX};
use outboard_wire::nvmefs::{Cqe, Sqe};
use outboard_wire::regs::queue::{DELETE, DELETED, RUN, RUNNING};

use super::place::Place;
use super::{NoSuchQueue, next};
use crate::Region;
use crate::dma::{Count, Ledger};
use crate::layout::{Layout, SlotPages};
use crate::queue::{Cid, CommandId, Completion, HostQueue, SlotError, Span, Submission};
use crate::region::{OutOfRegion, fence};
use crate::registers::{QueueRegisters, Registers};

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
struct Slot {
    state: State,
    /// Which use this is.
    tag: u32,
    /// When it was submitted, among all of this queue.
    order: u64,
    /// What was submitted, kept here so that the DPU's side of memory is never read back.
    sqe: Option<Sqe>,
    reply_at: u64,
    reply_room: u16,
}

/// The host's end of one nvme-fs queue pair. For one thread at a time; [`Aborter`] is for the
/// others.
pub struct Initiator {
    region: Arc<Region>,
    layout: Layout,
    queue: u16,
    registers: QueueRegisters,
    ledger: Arc<Ledger>,
    slots: Vec<Slot>,
    free: Vec<u16>,
    submitted: u64,
    in_flight: usize,
    /// Next submission entry; what the doorbell says is `rung`.
    tail: u16,
    rung: u16,
    /// Next completion entry and the phase it will have.
    head: u16,
    phase: bool,
    bell: Arc<AtomicU32>,
    deleting: bool,
}

/// Asks for aborts from any thread. Good for the attachment it was made in.
#[derive(Clone, Debug)]
pub struct Aborter {
    registers: QueueRegisters,
    bell: Arc<AtomicU32>,
}

impl Aborter {
    pub(in crate::queue) fn new(registers: QueueRegisters, bell: Arc<AtomicU32>) -> Aborter {
        Aborter { registers, bell }
    }

    /// Asks the DPU to give up on a command. True when its bell must be rung.
    #[must_use]
    pub fn abort(&self, id: CommandId) -> bool {
        self.registers.set_abort(id.cid.0, id.tag);
        // Each value is stored once, so the DPU sees a change whichever of two racing stores is
        // last.
        let value = self.bell.fetch_add(1, Relaxed).wrapping_add(1);
        self.registers.set_abort_bell(value);
        fence();
        self.registers.take_asleep()
    }
}

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
        let block = registers.queue(queue).ok_or(NoSuchQueue)?;
        if region.len() < layout.region_len() {
            return Err(NoSuchQueue);
        }
        let slot =
            Slot { state: State::Free, tag: 0, order: 0, sqe: None, reply_at: 0, reply_room: 0 };
        let mut initiator = Initiator {
            region,
            layout,
            queue,
            registers: block,
            ledger,
            slots: vec![slot; usize::from(layout.slots())],
            free: (0..layout.slots()).rev().collect(),
            submitted: 0,
            in_flight: 0,
            tail: 0,
            rung: 0,
            head: 0,
            phase: true,
            bell: Arc::new(AtomicU32::new(0)),
            deleting: false,
        };
        initiator.clear_rings().map_err(|_| NoSuchQueue)?;
        Ok(initiator)
    }

    /// Which queue of the attachment this is.
    #[must_use]
    pub fn queue(&self) -> u16 {
        self.queue
    }

    /// The registers of this queue, for the futex of its interrupt word.
    #[must_use]
    pub fn registers(&self) -> &QueueRegisters {
        &self.registers
    }

    /// A handle for aborts from other threads.
    #[must_use]
    pub fn aborter(&self) -> Aborter {
        Aborter { registers: self.registers.clone(), bell: Arc::clone(&self.bell) }
    }

    /// The DPU is lost: what is in flight waits for [`Self::reattach`] and [`Self::resubmit`], or
    /// is given up by [`Self::abandon`].
    pub fn lose(&mut self) {
        for slot in self.slots.iter_mut().filter(|slot| slot.state == State::InFlight) {
            slot.state = State::Orphaned;
        }
    }

    /// After the loss of the DPU: goes on with the next one's registers, of the same layout. Rings
    /// are empty; slots and their bytes are as they were; what was in flight waits for
    /// [`Self::resubmit`], and other commands may go before it.
    pub fn reattach(&mut self, registers: &Registers) -> Result<(), NoSuchQueue> {
        if registers.layout() != self.layout {
            return Err(NoSuchQueue);
        }
        self.registers = registers.queue(self.queue).ok_or(NoSuchQueue)?;
        self.lose();
        self.bell = Arc::new(AtomicU32::new(0));
        self.deleting = false;
        self.clear_rings().map_err(|_| NoSuchQueue)
    }

    /// Submits what the last DPU never answered, in the order it was first submitted; returns how
    /// many commands that was. [`HostQueue::ring`] shows them.
    pub fn resubmit(&mut self) -> usize {
        let mut orphans: Vec<(u64, Sqe)> = self
            .slots
            .iter()
            .filter(|slot| slot.state == State::Orphaned)
            .filter_map(|slot| Some((slot.order, slot.sqe?)))
            .collect();
        orphans.sort_unstable_by_key(|(order, _)| *order);
        let mut count = 0;
        for (_, sqe) in orphans {
            if self.enqueue(&sqe).is_err() {
                break;
            }
            if let Some(slot) = self.slots.get_mut(usize::from(sqe.cid)) {
                slot.state = State::InFlight;
            }
            count += 1;
        }
        count
    }

    /// Gives up on what the last DPU never answered: the slots are their callers' again.
    pub fn abandon(&mut self) -> Vec<Cid> {
        let mut cids = Vec::new();
        for (cid, slot) in (0u16..).zip(&mut self.slots) {
            if slot.state == State::Orphaned {
                slot.state = State::Owned;
                self.in_flight -= 1;
                cids.push(Cid(cid));
            }
        }
        cids
    }

    /// Asks for the end of this queue: what is in flight completes (aborted, unless it is done
    /// first). True when the DPU's bell must be rung.
    #[must_use]
    pub fn delete(&mut self) -> bool {
        self.deleting = true;
        self.tail = self.rung;
        self.registers.set_control(DELETE);
        fence();
        self.registers.take_asleep()
    }

    /// Whether the DPU has ended the queue. Poll its last completions after this says true.
    #[must_use]
    pub fn is_deleted(&self) -> bool {
        self.deleting && self.registers.state() == DELETED
    }

    /// Starts a deleted queue afresh. True when the bell must be rung; the queue can be used once
    /// [`Self::is_running`].
    #[must_use]
    pub fn recreate(&mut self) -> bool {
        if !self.is_deleted() || self.in_flight > 0 || self.clear_rings().is_err() {
            return false;
        }
        self.registers.set_tail(0);
        self.registers.set_head(0);
        self.registers.set_control(RUN);
        fence();
        self.registers.take_asleep()
    }

    /// Whether the queue runs (again).
    #[must_use]
    pub fn is_running(&mut self) -> bool {
        if self.registers.state() == RUNNING && self.registers.control() == RUN {
            self.deleting = false;
        }
        !self.deleting
    }

    fn clear_rings(&mut self) -> Result<(), OutOfRegion> {
        let depth = usize::from(self.layout.depth());
        self.region.zero(self.layout.sqe_at(self.queue, 0), depth * 64)?;
        self.region.zero(self.layout.cqe_at(self.queue, 0), depth * 16)?;
        (self.tail, self.rung, self.head, self.phase) = (0, 0, 0, true);
        Ok(())
    }

    fn slot(&self, cid: Cid) -> Result<&Slot, SlotError> {
        self.slots.get(usize::from(cid.0)).ok_or(SlotError::State)
    }

    fn owned(&self, cid: Cid) -> Result<&Slot, SlotError> {
        self.slot(cid).and_then(|slot| match slot.state {
            State::Owned => Ok(slot),
            _ => Err(SlotError::State),
        })
    }

    fn pages(&self, cid: Cid) -> SlotPages {
        self.layout.slot(self.queue, cid.0)
    }

    fn enqueue(&mut self, sqe: &Sqe) -> Result<(), SlotError> {
        let at = self.layout.sqe_at(self.queue, self.tail);
        self.region.write_from(at, &sqe.emit()).map_err(|_| SlotError::State)?;
        self.tail = next(self.tail, self.layout.depth());
        Ok(())
    }

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
    fn settle(&mut self, cqe: &Cqe) -> Option<Completion> {
        let slot = self.slots.get_mut(usize::from(cqe.cid))?;
        if slot.state != State::InFlight || cqe.queue != self.queue {
            return None;
        }
        slot.state = State::Owned;
        self.in_flight -= 1;
        Some(Completion { cid: Cid(cqe.cid), status: cqe.status, result: cqe.result })
    }
}

impl HostQueue for Initiator {
    fn acquire(&mut self) -> Option<Cid> {
        let cid = self.free.pop()?;
        let slot = self.slots.get_mut(usize::from(cid))?;
        slot.state = State::Owned;
        (slot.sqe, slot.reply_room) = (None, 0);
        Some(Cid(cid))
    }

    fn write_buffer(&mut self, cid: Cid, offset: u32, data: &[u8]) -> Result<(), SlotError> {
        self.owned(cid)?;
        check_span(u64::from(offset), data.len() as u64)?;
        let at = self.pages(cid).buffer + u64::from(offset);
        self.region.write_from(at, data).map_err(|_| SlotError::TooLong)
    }

    fn read_buffer(&self, cid: Cid, offset: u32, out: &mut [u8]) -> Result<(), SlotError> {
        self.owned(cid)?;
        check_span(u64::from(offset), out.len() as u64)?;
        let at = self.pages(cid).buffer + u64::from(offset);
        self.region.read_into(at, out).map_err(|_| SlotError::TooLong)
    }

    fn buffer(&self, cid: Cid, span: Span) -> Result<*mut u8, SlotError> {
        self.owned(cid)?;
        check_span(u64::from(span.offset), u64::from(span.len))?;
        let at = self.pages(cid).buffer + u64::from(span.offset);
        let len = usize::try_from(span.len).map_err(|_| SlotError::TooLong)?;
        self.region.pointer(at, len).map_err(|_| SlotError::TooLong)
    }

    fn submit(&mut self, cid: Cid, submission: &Submission<'_>) -> Result<CommandId, SlotError> {
        if self.deleting {
            return Err(SlotError::Deleted);
        }
        let Submission { dispatch, header, write, read, reply_header } = *submission;
        if header.len() > REQUEST_HEADER_MAX || usize::from(reply_header) > REPLY_HEADER_MAX {
            return Err(SlotError::TooLong);
        }
        check_span(u64::from(write.offset), u64::from(write.len))?;
        check_span(u64::from(read.offset), u64::from(read.len))?;
        let wh_len = u16::try_from(header.len()).map_err(|_| SlotError::TooLong)?;
        let tag = self.owned(cid)?.tag.wrapping_add(1).max(1);
        let (wh, rh) = (u32::from(wh_len), u32::from(reply_header));
        let place = Place::new(self.pages(cid), wh, write, rh, read)?;
        let out_of_region = |_| SlotError::TooLong;
        self.region.write_from(place.header_at, header).map_err(out_of_region)?;
        if reply_header > 0 {
            self.region.zero(place.reply_at, usize::from(reply_header)).map_err(out_of_region)?;
        }
        let (prp_write, prp_read) = place.emit(&self.region).map_err(out_of_region)?;
        let sqe = Sqe {
            cid: cid.0,
            tag,
            dispatch,
            write: prp_write,
            read: prp_read,
            write_len: wh + write.len,
            read_len: rh + read.len,
            wh_len,
            rh_len: reply_header,
        };
        self.enqueue(&sqe)?;
        if let Some(slot) = self.slots.get_mut(usize::from(cid.0)) {
            *slot = Slot {
                state: State::InFlight,
                tag,
                order: self.submitted,
                sqe: Some(sqe),
                reply_at: place.reply_at,
                reply_room: reply_header,
            };
        }
        self.submitted += 1;
        self.in_flight += 1;
        Ok(CommandId { cid, tag })
    }

    fn ring(&mut self) -> bool {
        if self.rung == self.tail {
            return false;
        }
        self.rung = self.tail;
        self.registers.set_tail(u32::from(self.tail));
        self.ledger.count(Count::Doorbells, 1);
        fence();
        let asleep = self.registers.take_asleep();
        if asleep {
            self.ledger.count(Count::Wakes, 1);
        }
        asleep
    }

    fn poll(&mut self, budget: usize, out: &mut Vec<Completion>) -> usize {
        let mut taken = 0;
        let mut found = 0;
        while taken < budget {
            let Some(cqe) = self.ready() else { break };
            taken += 1;
            self.head = next(self.head, self.layout.depth());
            self.phase ^= self.head == 0;
            match self.settle(&cqe) {
                Some(completion) => {
                    out.push(completion);
                    found += 1;
                }
                None => self.ledger.count(Count::Violations, 1),
            }
        }
        if taken > 0 {
            self.registers.set_head(u32::from(self.head));
        }
        found
    }

    fn reply_header(&self, cid: Cid, out: &mut [u8]) -> Result<usize, SlotError> {
        let slot = self.owned(cid)?;
        let len = out.len().min(usize::from(slot.reply_room));
        let part = out.get_mut(..len).unwrap_or_default();
        self.region.read_into(slot.reply_at, part).map_err(|_| SlotError::TooLong)?;
        Ok(len)
    }

    fn release(&mut self, cid: Cid) -> Result<(), SlotError> {
        self.owned(cid)?;
        if let Some(slot) = self.slots.get_mut(usize::from(cid.0)) {
            slot.state = State::Free;
            self.free.push(cid.0);
        }
        Ok(())
    }

    fn abort(&mut self, id: CommandId) -> bool {
        self.aborter().abort(id)
    }

    fn may_sleep(&mut self) -> Option<u32> {
        let interrupt = self.registers.interrupt();
        self.registers.set_arm(1);
        fence();
        if self.ready().is_some() {
            self.awake();
            return None;
        }
        Some(interrupt)
    }

    fn awake(&mut self) {
        self.registers.set_arm(0);
    }

    fn in_flight(&self) -> usize {
        self.in_flight
    }
}

fn check_span(offset: u64, len: u64) -> Result<(), SlotError> {
    let fits = offset.checked_add(len).is_some_and(|end| end <= IO_MAX as u64);
    if fits { Ok(()) } else { Err(SlotError::TooLong) }
}
