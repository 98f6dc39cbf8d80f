//! The DPU's end of a queue pair.

use std::collections::VecDeque;
use std::sync::Arc;

use outboard_wire::nvmefs::{Cqe, QueueError, SQE_LEN, Sqe, Status, cid_of};

use super::admit::admit;
use super::{NoSuchQueue, SQE_BATCH, next};
use crate::dma::Dma;
use crate::layout::Layout;
use crate::queue::running::Running;
use crate::queue::{Arrival, Command, DpuQueue, Fault, Parts, recycle};
use crate::region::fence;
use crate::registers::{QueueRegisters, Registers};
use outboard_base::ledger::{Count, Kind, Ledger};

/// The DPU's end of one nvme-fs queue pair.
pub struct Target {
    dma: Arc<dyn Dma>,
    layout: Layout,
    queue: u16,
    registers: QueueRegisters,
    ledger: Arc<Ledger>,
    /// Next entry to fetch.
    sq_head: u16,
    /// Next completion to write, and its phase.
    cq_tail: u16,
    phase: bool,
    /// The host's completion doorbell as last read.
    cq_head: u16,
    running: Running,
    /// Completions that found the ring full. At most one for each command in flight and one batch.
    held: VecDeque<Cqe>,
    posted: bool,
    fault: Option<Fault>,
    scratch: Vec<u8>,
    batch: Box<[[u8; SQE_LEN]; SQE_BATCH]>,
    spare: Vec<Parts>,
}

impl Target {
    /// The DPU end of queue `queue` of an attachment.
    pub fn new(
        dma: Arc<dyn Dma>,
        registers: &Registers,
        queue: u16,
        ledger: Arc<Ledger>,
    ) -> Result<Target, NoSuchQueue> {
        let layout = registers.layout();
        let block = registers.queue(queue).ok_or(NoSuchQueue)?;
        if dma.region_len() < layout.rings_len() {
            return Err(NoSuchQueue);
        }
        Ok(Target {
            dma,
            layout,
            queue,
            registers: block,
            ledger,
            sq_head: 0,
            cq_tail: 0,
            phase: true,
            cq_head: 0,
            running: Running::new(layout.depth()),
            held: VecDeque::new(),
            posted: false,
            fault: None,
            scratch: Vec::new(),
            batch: Box::new([[0; SQE_LEN]; SQE_BATCH]),
            spare: Vec::new(),
        })
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

    /// Reads the submission doorbell; out of range is the end of this queue.
    fn tail(&mut self) -> Option<u16> {
        let tail = u16::try_from(self.registers.tail()).ok().filter(|t| *t < self.layout.depth());
        if tail.is_none() {
            self.break_down(Fault::Doorbell);
        }
        tail
    }

    fn break_down(&mut self, fault: Fault) {
        self.ledger.count(Count::Violations, 1);
        self.fault.get_or_insert(fault);
    }

    /// Fetches entries up to `tail`, one DMA for each run.
    fn fetch(&mut self, tail: u16, budget: usize, out: &mut Vec<Arrival>) -> usize {
        let mut taken = 0;
        while taken < budget && self.sq_head != tail && self.held.is_empty() {
            let end = if tail > self.sq_head { tail } else { self.layout.depth() };
            let run = usize::from(end - self.sq_head).min(budget - taken).min(SQE_BATCH);
            let at = self.layout.sqe_at(self.queue, self.sq_head);
            let into = self.batch.get_mut(..run).unwrap_or_default();
            if self.dma.read(Kind::Sqe, at, into.as_flattened_mut()).is_err() {
                self.break_down(Fault::Dma);
                return taken;
            }
            for i in 0..run {
                let Some(entry) = self.batch.get(i).copied() else { break };
                self.sq_head = next(self.sq_head, self.layout.depth());
                self.take(&entry, out);
            }
            taken += run;
        }
        taken
    }

    /// Admits one entry or answers it with what is wrong.
    fn take(&mut self, entry: &[u8; SQE_LEN], out: &mut Vec<Arrival>) {
        match self.admit(entry) {
            Ok(command) => {
                let abort = self.running.begin(command.id);
                self.ledger.count(Count::Commands, 1);
                out.push(Arrival::Command(command));
                if let Some(abort) = abort {
                    self.ledger.count(Count::Aborts, 1);
                    out.push(abort);
                }
            }
            Err(error) => {
                self.ledger.count(Count::Refused, 1);
                self.answer(cid_of(entry), Status::Queue(error), 0);
            }
        }
    }

    fn admit(&mut self, entry: &[u8; SQE_LEN]) -> Result<Command, QueueError> {
        let sqe = Sqe::parse(entry)?;
        if !self.running.is_free(sqe.cid) {
            return Err(QueueError::InvalidCid);
        }
        if !self.running.is_running() {
            return Err(QueueError::Aborted);
        }
        let parts = self.spare.pop().unwrap_or_default();
        admit(&self.dma, &sqe, parts, &mut self.scratch)
    }

    fn answer(&mut self, cid: u16, status: Status, result: u64) {
        let cqe =
            Cqe { result, sq_head: self.sq_head, queue: self.queue, cid, phase: false, status };
        self.held.push_back(cqe);
        self.post_held();
    }

    /// Writes completions while the ring has room.
    fn post_held(&mut self) {
        while let Some(cqe) = self.held.front().copied() {
            if self.fault.is_some() || !self.has_room() {
                return;
            }
            let at = self.layout.cqe_at(self.queue, self.cq_tail);
            let entry = Cqe { phase: self.phase, sq_head: self.sq_head, ..cqe }.emit();
            if self.dma.write(Kind::Cqe, at, &entry).is_err() {
                return self.break_down(Fault::Dma);
            }
            self.held.pop_front();
            self.posted = true;
            self.cq_tail = next(self.cq_tail, self.layout.depth());
            self.phase ^= self.cq_tail == 0;
        }
    }

    /// Full is tail + 1 == head. The doorbell is read again only when the last value says full.
    fn has_room(&mut self) -> bool {
        let behind = next(self.cq_tail, self.layout.depth());
        if behind != self.cq_head {
            return true;
        }
        match u16::try_from(self.registers.head()).ok().filter(|h| *h < self.layout.depth()) {
            Some(head) => self.cq_head = head,
            None => self.break_down(Fault::Doorbell),
        }
        self.fault.is_none() && behind != self.cq_head
    }

    fn has_work(&mut self) -> bool {
        let behind =
            !self.running.is_deleted() && self.registers.tail_hint() != u32::from(self.sq_head);
        behind
            || self.running.has_work(&self.registers)
            || (!self.held.is_empty() && self.has_room())
    }
}

impl DpuQueue for Target {
    fn poll(&mut self, budget: usize, out: &mut Vec<Arrival>) -> usize {
        if self.fault.is_some() {
            return 0;
        }
        self.post_held();
        if self.running.follow_control(&self.registers, &self.ledger, out) {
            (self.sq_head, self.cq_tail, self.cq_head, self.phase) = (0, 0, 0, true);
        }
        if self.running.is_deleted() {
            return 0;
        }
        let Some(tail) = self.tail() else { return 0 };
        self.running.follow_aborts(&self.registers, &self.ledger, out);
        let taken = self.fetch(tail, budget, out);
        let drained = self.sq_head == tail && self.held.is_empty();
        self.running.end_if(drained, &self.registers);
        taken
    }

    fn complete(&mut self, command: Command, status: Status, result: u64, reply_header: &[u8]) {
        if !self.running.end(command.id) {
            debug_assert!(false, "a command of another queue");
            return;
        }
        let mut status = status;
        if status == Status::Ok && !reply_header.is_empty() {
            if reply_header.len() > usize::from(command.reply_room) {
                status = Status::Queue(QueueError::InvalidLength);
            } else if command.put(Kind::ReplyHeader, 0, reply_header).is_err() {
                status = Status::Queue(QueueError::TransferFailed);
            }
        }
        self.answer(command.id.cid.0, status, result);
        if self.spare.len() < usize::from(self.layout.depth()) {
            self.spare.push(recycle(command.parts));
        }
    }

    fn flush(&mut self) -> bool {
        if !std::mem::take(&mut self.posted) {
            return false;
        }
        fence();
        let wanted = self.registers.take_arm();
        if wanted {
            self.registers.raise_interrupt();
            self.ledger.count(Count::Interrupts, 1);
        }
        wanted
    }

    fn may_sleep(&mut self) -> bool {
        if self.fault.is_some() {
            return true;
        }
        self.registers.set_asleep(1);
        fence();
        if self.has_work() {
            self.awake();
            return false;
        }
        true
    }

    fn awake(&mut self) {
        self.registers.set_asleep(0);
    }

    fn in_flight(&self) -> usize {
        self.running.in_flight()
    }

    fn fault(&self) -> Option<Fault> {
        self.fault
    }
}
