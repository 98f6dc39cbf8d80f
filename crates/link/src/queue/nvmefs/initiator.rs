//! The host's end of a queue pair.

use std::sync::Arc;
use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::{Acquire, Relaxed};

use outboard_base::limits::{REPLY_HEADER_MAX, REQUEST_HEADER_MAX};
use outboard_wire::nvmefs::{Cqe, Sqe};
use outboard_wire::regs::queue::{DELETE, DELETED, RUN, RUNNING};

use super::place::Place;
use super::{NoSuchQueue, next};
use crate::Region;
use crate::dma::{Count, Ledger};
use crate::layout::Layout;
use crate::queue::slots::{Slots, check};
use crate::queue::{Cid, CommandId, Completion, HostQueue, SlotError, Span, Submission};
use crate::region::{OutOfRegion, fence};
use crate::registers::{QueueRegisters, Registers};

/// What is remembered of a submission.
#[derive(Clone, Copy, Debug, Default)]
struct Sent {
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
    slots: Slots<Sent>,
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
        let mut initiator = Initiator {
            slots: Slots::new(Arc::clone(&region), layout, queue),
            region,
            layout,
            queue,
            registers: block,
            ledger,
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
        self.slots.lose();
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
        let mut count = 0;
        for (cid, sent) in self.slots.orphans() {
            let Some(sqe) = sent.sqe else { continue };
            if self.enqueue(&sqe).is_err() {
                break;
            }
            self.slots.resume(cid);
            count += 1;
        }
        count
    }

    /// Gives up on what the last DPU never answered: the slots are their callers' again.
    pub fn abandon(&mut self) -> Vec<Cid> {
        self.slots.abandon()
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
        if !self.is_deleted() || self.slots.in_flight() > 0 || self.clear_rings().is_err() {
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
        if cqe.queue != self.queue {
            return None;
        }
        self.slots.settle(Cid(cqe.cid))?;
        Some(Completion { cid: Cid(cqe.cid), status: cqe.status, result: cqe.result })
    }
}

impl HostQueue for Initiator {
    fn acquire(&mut self) -> Option<Cid> {
        self.slots.acquire()
    }

    fn write_buffer(&mut self, cid: Cid, offset: u32, data: &[u8]) -> Result<(), SlotError> {
        self.slots.write_buffer(cid, offset, data)
    }

    fn read_buffer(&self, cid: Cid, offset: u32, out: &mut [u8]) -> Result<(), SlotError> {
        self.slots.read_buffer(cid, offset, out)
    }

    fn buffer(&self, cid: Cid, span: Span) -> Result<*mut u8, SlotError> {
        self.slots.buffer(cid, span)
    }

    fn submit(&mut self, cid: Cid, submission: &Submission<'_>) -> Result<CommandId, SlotError> {
        if self.deleting {
            return Err(SlotError::Deleted);
        }
        let Submission { dispatch, header, write, read, reply_header } = *submission;
        if header.len() > REQUEST_HEADER_MAX || usize::from(reply_header) > REPLY_HEADER_MAX {
            return Err(SlotError::TooLong);
        }
        check(write)?;
        check(read)?;
        let wh_len = u16::try_from(header.len()).map_err(|_| SlotError::TooLong)?;
        let tag = self.slots.next_tag(cid)?;
        let (wh, rh) = (u32::from(wh_len), u32::from(reply_header));
        let place = Place::new(self.slots.pages(cid), wh, write, rh, read)?;
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
        let sent = Sent { sqe: Some(sqe), reply_at: place.reply_at, reply_room: reply_header };
        self.slots.begin(cid, tag, sent);
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
        let sent = self.slots.sent(cid)?;
        let len = out.len().min(usize::from(sent.reply_room));
        let part = out.get_mut(..len).unwrap_or_default();
        self.region.read_into(sent.reply_at, part).map_err(|_| SlotError::TooLong)?;
        Ok(len)
    }

    fn release(&mut self, cid: Cid) -> Result<(), SlotError> {
        self.slots.release(cid)
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
        self.slots.in_flight()
    }
}
