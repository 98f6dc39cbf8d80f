//! The host's end of a queue pair, whatever its transport: the slots, and the life of the queue.
//! A transport adds its rings.

#![expect(private_bounds, reason = "transports are made here only")]

use std::sync::Arc;
use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::Relaxed;

use outboard_wire::regs::queue::{DELETE, DELETED, RUN, RUNNING};

use super::nvmefs::NoSuchQueue;
use super::slots::Slots;
use super::{Cid, CommandId, Completion, HostQueue, SlotError, Span, Submission};
use crate::Region;
use crate::layout::{Layout, SlotPages};
use crate::region::{OutOfRegion, fence};
use crate::registers::{QueueRegisters, Registers};
use outboard_base::ledger::{Count, Ledger};

/// The rings of a transport, as its host sees them.
pub(super) trait HostRings {
    /// What is remembered of a submission; its default stands for none.
    type Sent: Copy + Default;

    /// The grid they are laid out for.
    fn layout(&self) -> Layout;

    /// Empties them: nothing may be in them.
    fn clear(&mut self) -> Result<(), OutOfRegion>;

    /// Writes a command into the pages of its slot.
    fn write(
        &mut self,
        pages: SlotPages,
        id: CommandId,
        submission: &Submission<'_>,
    ) -> Result<Self::Sent, SlotError>;

    /// Appends a command whose slot is written. The DPU sees it after [`HostRings::show`].
    fn enqueue(&mut self, cid: Cid, sent: &Self::Sent) -> Result<(), SlotError>;

    /// Takes back what was appended and not shown.
    fn retract(&mut self);

    /// Shows what was appended, if there is any: what the doorbell is to say.
    fn show(&mut self) -> Option<u32>;

    /// Whether the DPU has answered anything more.
    fn has_answers(&mut self) -> bool;

    /// Takes up to `budget` answers and appends those that answer something; the others are
    /// counted as violations. Returns how many it appended.
    fn poll(
        &mut self,
        slots: &mut Slots<Self::Sent>,
        registers: &QueueRegisters,
        budget: usize,
        out: &mut Vec<Completion>,
    ) -> usize;

    /// Where a slot's reply header lies, and how much room it has.
    fn reply_at(&self, pages: SlotPages, sent: &Self::Sent) -> (u64, u16);
}

/// The host's end of one queue pair. For one thread at a time; [`Aborter`] is for the others.
pub struct Initiator<R: HostRings> {
    rings: R,
    slots: Slots<R::Sent>,
    region: Arc<Region>,
    queue: u16,
    registers: QueueRegisters,
    ledger: Arc<Ledger>,
    doorbell: Arc<AtomicU32>,
    deleting: bool,
}

/// Asks for aborts from any thread. Good for the attachment it was made in.
#[derive(Clone, Debug)]
pub struct Aborter {
    registers: QueueRegisters,
    doorbell: Arc<AtomicU32>,
}

impl Aborter {
    /// Asks the DPU to give up on a command. True when it must be notified.
    #[must_use]
    pub fn abort(&self, id: CommandId) -> bool {
        self.registers.set_abort(id.cid.0, id.tag);
        // Each value is stored once, so the DPU sees a change whichever of two racing stores is
        // last.
        let value = self.doorbell.fetch_add(1, Relaxed).wrapping_add(1);
        self.registers.set_abort_doorbell(value);
        fence();
        self.registers.take_asleep()
    }
}

impl<R: HostRings> Initiator<R> {
    /// The host end of queue `queue` of these registers, over a region laid out as `rings` are.
    /// Clears the rings.
    pub(super) fn over(
        region: Arc<Region>,
        registers: &Registers,
        queue: u16,
        ledger: Arc<Ledger>,
        mut rings: R,
    ) -> Result<Initiator<R>, NoSuchQueue> {
        let block = registers.queue(queue).ok_or(NoSuchQueue)?;
        if registers.layout() != rings.layout() {
            return Err(NoSuchQueue);
        }
        rings.clear().map_err(|_| NoSuchQueue)?;
        Ok(Initiator {
            slots: Slots::new(Arc::clone(&region), rings.layout(), queue),
            rings,
            region,
            queue,
            registers: block,
            ledger,
            doorbell: Arc::new(AtomicU32::new(0)),
            deleting: false,
        })
    }

    /// Which queue of the attachment this is.
    #[must_use]
    pub fn queue(&self) -> u16 {
        self.queue
    }

    /// The region its slots lie in.
    #[must_use]
    pub fn region(&self) -> &Arc<Region> {
        &self.region
    }

    /// The registers of this queue, for the futex of its interrupt word.
    #[must_use]
    pub fn registers(&self) -> &QueueRegisters {
        &self.registers
    }

    /// A handle for aborts from other threads.
    #[must_use]
    pub fn aborter(&self) -> Aborter {
        Aborter { registers: self.registers.clone(), doorbell: Arc::clone(&self.doorbell) }
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
        if registers.layout() != self.rings.layout() {
            return Err(NoSuchQueue);
        }
        self.registers = registers.queue(self.queue).ok_or(NoSuchQueue)?;
        self.lose();
        self.doorbell = Arc::new(AtomicU32::new(0));
        self.deleting = false;
        self.rings.clear().map_err(|_| NoSuchQueue)
    }

    /// Submits what the last DPU never answered, in the order it was first submitted; returns how
    /// many commands that was. [`HostQueue::ring`] shows them.
    pub fn resubmit(&mut self) -> usize {
        let mut count = 0;
        for (cid, sent) in self.slots.orphans() {
            if self.rings.enqueue(cid, &sent).is_err() {
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
    /// first). True when the DPU must be notified.
    #[must_use]
    pub fn delete(&mut self) -> bool {
        self.deleting = true;
        self.rings.retract();
        self.registers.set_control(DELETE);
        fence();
        self.registers.take_asleep()
    }

    /// Whether the DPU has ended the queue. Poll its last completions after this says true.
    #[must_use]
    pub fn is_deleted(&self) -> bool {
        self.deleting && self.registers.state() == DELETED
    }

    /// Starts a deleted queue afresh. True when it must be notified; the queue can be used once
    /// [`Self::is_running`].
    #[must_use]
    pub fn recreate(&mut self) -> bool {
        if !self.is_deleted() || self.slots.in_flight() > 0 || self.rings.clear().is_err() {
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

    /// Writes a command into a slot of the caller's, remembers it and appends it.
    pub(super) fn send(
        &mut self,
        cid: Cid,
        write: impl FnOnce(&mut R, SlotPages, CommandId) -> Result<R::Sent, SlotError>,
    ) -> Result<CommandId, SlotError> {
        if self.deleting {
            return Err(SlotError::Deleted);
        }
        let id = CommandId { cid, tag: self.slots.next_tag(cid)? };
        let sent = write(&mut self.rings, self.slots.pages(cid), id)?;
        self.rings.enqueue(cid, &sent)?;
        self.slots.begin(cid, id.tag, sent);
        Ok(id)
    }
}

impl<R: HostRings> HostQueue for Initiator<R> {
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
        self.send(cid, |rings, pages, id| rings.write(pages, id, submission))
    }

    fn ring(&mut self) -> bool {
        let Some(tail) = self.rings.show() else { return false };
        self.registers.set_tail(tail);
        self.ledger.count(Count::Doorbells, 1);
        fence();
        let asleep = self.registers.take_asleep();
        if asleep {
            self.ledger.count(Count::Wakes, 1);
        }
        asleep
    }

    fn poll(&mut self, budget: usize, out: &mut Vec<Completion>) -> usize {
        self.rings.poll(&mut self.slots, &self.registers, budget, out)
    }

    fn reply_header(&self, cid: Cid, out: &mut [u8]) -> Result<usize, SlotError> {
        let sent = self.slots.sent(cid)?;
        let (at, room) = self.rings.reply_at(self.slots.pages(cid), sent);
        let len = out.len().min(usize::from(room));
        let part = out.get_mut(..len).unwrap_or_default();
        self.region.read_into(at, part).map_err(|_| SlotError::TooLong)?;
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
        if self.rings.has_answers() {
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
