//! The device: the DPU's end of a virtqueue.

use std::sync::Arc;

use outboard_wire::fuse::OUT_HEADER_LEN;
use outboard_wire::nvmefs::{QueueError, Status};
use outboard_wire::virtio::message::{Answer, Frame, HEAD_MAX, frame, unique};
use outboard_wire::virtio::{
    AVAIL_LEN, Chain, DESC_LEN, Descriptor, Used, Virtqueue, ring_index, ring_word,
};

use super::{BATCH, FIRST_RUN, NEXT_RUN, NoSuchQueue, Rings, Variant};
use crate::dma::{Dma, DmaError};
use crate::queue::running::Running;
use crate::queue::{Arrival, Cid, Command, CommandId, DpuQueue, Fault, Parts, each_range, recycle};
use crate::region::fence;
use crate::registers::{QueueRegisters, Registers};
use outboard_base::ledger::{Count, Kind, Ledger};

/// What the answer to a command in flight needs to know.
#[derive(Clone, Copy, Debug, Default)]
struct Issued {
    /// First descriptor of its chain.
    head: u16,
    envelope: bool,
}

/// The DPU's end of one virtio-fs queue.
pub struct Target {
    dma: Arc<dyn Dma>,
    queue: Virtqueue,
    variant: Variant,
    registers: QueueRegisters,
    ledger: Arc<Ledger>,
    /// Next avail entry to take and next used element to write; both run freely.
    avail: u16,
    used: u16,
    running: Running,
    /// By command id.
    issued: Vec<Issued>,
    /// Answered, and not in the used ring yet. At most [`BATCH`].
    held: Vec<Used>,
    posted: bool,
    fault: Option<Fault>,
    chain: Chain,
    scratch: Vec<u8>,
    spare: Vec<Parts>,
}

impl Target {
    /// The DPU end of queue `queue` of an attachment whose region is laid out as `rings` say.
    pub fn new(
        dma: Arc<dyn Dma>,
        registers: &Registers,
        rings: &Rings,
        queue: u16,
        variant: Variant,
        ledger: Arc<Ledger>,
    ) -> Result<Target, NoSuchQueue> {
        let depth = registers.layout().depth();
        let block = registers.queue(queue).ok_or(NoSuchQueue)?;
        let virtqueue = rings.virtqueue(queue).ok_or(NoSuchQueue)?;
        if registers.layout() != rings.layout() || dma.region_len() < virtqueue.end() {
            return Err(NoSuchQueue);
        }
        Ok(Target {
            dma,
            queue: virtqueue,
            variant,
            registers: block,
            ledger,
            avail: 0,
            used: 0,
            running: Running::new(depth),
            issued: vec![Issued::default(); usize::from(depth)],
            held: Vec::with_capacity(usize::from(BATCH)),
            posted: false,
            fault: None,
            chain: Chain::default(),
            scratch: Vec::new(),
            spare: Vec::new(),
        })
    }

    /// The registers of this queue, for the futex of its interrupt word.
    #[must_use]
    pub fn registers(&self) -> &QueueRegisters {
        &self.registers
    }

    fn break_down(&mut self, fault: Fault) {
        self.ledger.count(Count::Violations, 1);
        self.fault.get_or_insert(fault);
    }

    /// Reads the doorbell; more than a ring ahead is the end of this queue.
    fn tail(&mut self) -> Option<u16> {
        let tail = u16::try_from(self.registers.tail()).ok();
        let tail = tail.filter(|tail| tail.wrapping_sub(self.avail) <= self.queue.size());
        if tail.is_none() {
            self.break_down(Fault::Doorbell);
        }
        tail
    }

    /// Takes avail entries up to `tail`.
    fn fetch(&mut self, tail: u16, budget: usize, out: &mut Vec<Arrival>) -> usize {
        let mut taken = 0;
        while taken < budget && self.avail != tail && self.fault.is_none() {
            let mut heads = [0; BATCH as usize * AVAIL_LEN];
            let run = self.run(tail, budget - taken);
            let into = heads.get_mut(..usize::from(run) * AVAIL_LEN).unwrap_or_default();
            if let Err(fault) = self.fetch_heads(tail, into) {
                self.break_down(fault);
                return taken;
            }
            for head in into.as_chunks::<AVAIL_LEN>().0 {
                self.avail = self.avail.wrapping_add(1);
                taken += 1;
                self.take(u16::from_le_bytes(*head), out);
                if self.fault.is_some() {
                    return taken;
                }
            }
        }
        taken
    }

    /// How many avail entries the next DMA takes.
    fn run(&self, tail: u16, budget: usize) -> u16 {
        let most = match self.variant {
            Variant::Dpfs => 1,
            Variant::Tuned => BATCH,
        };
        let before_wrap = self.queue.size() - self.avail % self.queue.size();
        let shown = tail.wrapping_sub(self.avail);
        let most = most.min(before_wrap).min(shown);
        u16::try_from(budget).map_or(most, |budget| most.min(budget))
    }

    fn fetch_heads(&self, tail: u16, into: &mut [u8]) -> Result<(), Fault> {
        if self.variant == Variant::Dpfs {
            let mut word = [0; 4];
            self.dma.read(Kind::Sqe, self.queue.avail_at(), &mut word).map_err(|_| Fault::Dma)?;
            // The driver stores idx before the doorbell: it is as far or further, by less than a
            // ring. What is beyond the doorbell is left for the next one.
            let there = ring_index(u32::from_le_bytes(word)).wrapping_sub(self.avail);
            if there < tail.wrapping_sub(self.avail) || there > self.queue.size() {
                return Err(Fault::Doorbell);
            }
        }
        let at = self.queue.avail_entry_at(self.avail);
        self.dma.read(Kind::Sqe, at, into).map_err(|_| Fault::Dma)
    }

    /// Admits the request of one chain, answers it with what is wrong, or finds that no answer can
    /// be written.
    fn take(&mut self, head: u16, out: &mut Vec<Arrival>) {
        let mut chain = std::mem::take(&mut self.chain);
        chain.clear();
        let walked = self.walk(head, &mut chain);
        match walked.and_then(|()| self.fetch_command(&chain)) {
            Ok(()) => match self.admit(head, &mut chain) {
                Ok(command) => self.give_out(command, out),
                Err(error) => self.refuse(head, &chain, error),
            },
            Err(fault) => self.break_down(fault),
        }
        self.chain = chain;
    }

    /// Follows a chain to its end. Each run of descriptors is copied once.
    fn walk(&mut self, head: u16, chain: &mut Chain) -> Result<(), Fault> {
        let size = self.queue.size();
        let mut next = (head < size).then_some(head).ok_or(Fault::Chain).map(Some)?;
        let mut run = match self.variant {
            Variant::Dpfs => 1,
            Variant::Tuned => FIRST_RUN,
        };
        while let Some(first) = next {
            let count = run.min(size - first);
            self.scratch.resize(usize::from(count) * DESC_LEN, 0);
            let at = self.queue.descriptor_at(first);
            self.dma.read(Kind::Locate, at, &mut self.scratch).map_err(|_| Fault::Dma)?;
            let fetched = self.scratch.as_chunks::<DESC_LEN>().0;
            while let Some(index) = next.and_then(|next| next.checked_sub(first))
                && let Some(raw) = fetched.get(usize::from(index))
            {
                let descriptor = Descriptor::parse(raw).map_err(|_| Fault::Chain)?;
                next = chain
                    .push(&descriptor, size, self.dma.region_len())
                    .map_err(|_| Fault::Chain)?;
            }
            if self.variant == Variant::Tuned {
                run = NEXT_RUN;
            }
        }
        // Without room for an out header nothing can be said to the host.
        if chain.writable_len() < OUT_HEADER_LEN as u64 { Err(Fault::Chain) } else { Ok(()) }
    }

    /// Copies the command into the scratch bytes: the first buffer, in one DMA.
    fn fetch_command(&mut self, chain: &Chain) -> Result<(), Fault> {
        let len = usize::try_from(chain.first_len).unwrap_or(HEAD_MAX).min(HEAD_MAX);
        self.scratch.clear();
        self.scratch.resize(len, 0);
        match chain.readable.first() {
            Some(first) => {
                self.dma.read(Kind::Locate, first.at, &mut self.scratch).map_err(|_| Fault::Dma)
            }
            None => Ok(()),
        }
    }

    fn admit(&mut self, head: u16, chain: &mut Chain) -> Result<Command, QueueError> {
        let found = frame(&self.scratch, chain.readable_len(), chain.writable_len())?;
        if !self.running.is_free(found.cid) {
            return Err(QueueError::InvalidCid);
        }
        if !self.running.is_running() {
            return Err(QueueError::Aborted);
        }
        let mut parts = self.spare.pop().unwrap_or_default();
        let end = found.header_at + found.header_len;
        let here = self.scratch.get(found.header_at..end.min(self.scratch.len()));
        parts.header.extend_from_slice(here.unwrap_or_default());
        if self.fetch_rest(&mut parts.header, &found, chain).is_err() {
            return Err(QueueError::TransferFailed);
        }
        std::mem::swap(&mut parts.write, &mut chain.readable);
        std::mem::swap(&mut parts.read, &mut chain.writable);
        if let Some(issued) = self.issued.get_mut(usize::from(found.cid)) {
            *issued = Issued { head, envelope: found.envelope };
        }
        Ok(Command {
            id: CommandId { cid: Cid(found.cid), tag: found.tag },
            dispatch: found.dispatch,
            parts,
            header_len: u32::try_from(end).map_err(|_| QueueError::InvalidLength)?,
            write_len: found.data_len,
            answer_len: u32::try_from(found.answer_len).map_err(|_| QueueError::InvalidLength)?,
            reply_room: found.reply_room,
            read_len: found.data_room,
            dma: Arc::clone(&self.dma),
        })
    }

    /// The part of the header that lies behind the first buffer.
    fn fetch_rest(
        &self,
        header: &mut Vec<u8>,
        found: &Frame,
        chain: &Chain,
    ) -> Result<(), DmaError> {
        let have = header.len();
        header.resize(found.header_len, 0);
        let mut rest = header.get_mut(have..).unwrap_or_default();
        let skip = (found.header_at + have) as u64;
        each_range(&chain.readable, skip, rest.len(), |at, len| {
            let (now, behind) =
                std::mem::take(&mut rest).split_at_mut_checked(len).unwrap_or_default();
            rest = behind;
            self.dma.read(Kind::Locate, at, now)
        })
    }

    fn give_out(&mut self, command: Command, out: &mut Vec<Arrival>) {
        let abort = self.running.begin(command.id);
        self.ledger.count(Count::Commands, 1);
        out.push(Arrival::Command(command));
        if let Some(abort) = abort {
            self.ledger.count(Count::Aborts, 1);
            out.push(abort);
        }
    }

    /// Answers a message that does not add up with an out header alone.
    fn refuse(&mut self, head: u16, chain: &Chain, error: QueueError) {
        self.ledger.count(Count::Refused, 1);
        let unique = self.scratch.get(8..16).and_then(|raw| <[u8; 8]>::try_from(raw).ok());
        let answer = Answer {
            len: u32::try_from(OUT_HEADER_LEN).unwrap_or(u32::MAX),
            status: Status::Queue(error),
            unique: unique.map_or(0, u64::from_le_bytes),
        };
        let raw = answer.emit();
        let mut rest = &raw[..];
        let written = each_range(&chain.writable, 0, rest.len(), |at, len| {
            let (now, behind) = rest.split_at_checked(len).unwrap_or_default();
            rest = behind;
            self.dma.write(Kind::ReplyHeader, at, now)
        });
        self.give_back(head, answer.len, written);
    }

    /// Puts a chain into the used ring, its answer being written. An answer that could not be
    /// written leaves nothing to say anything with.
    fn give_back(&mut self, head: u16, len: u32, written: Result<(), DmaError>) {
        if written.is_err() {
            return self.break_down(Fault::Dma);
        }
        self.held.push(Used { id: u32::from(head), len });
        if self.variant == Variant::Dpfs || self.held.len() >= usize::from(BATCH) {
            self.post();
        }
    }

    /// Writes what is held into the used ring, in runs, and then its idx.
    fn post(&mut self) {
        if self.held.is_empty() || self.fault.is_some() {
            return;
        }
        let held = std::mem::take(&mut self.held);
        if self.write_used(&held).is_err() {
            self.break_down(Fault::Dma);
        }
        self.held = held;
        self.held.clear();
        self.posted = true;
    }

    fn write_used(&mut self, held: &[Used]) -> Result<(), DmaError> {
        let before_wrap = usize::from(self.queue.size() - self.used % self.queue.size());
        let (first, second) = held.split_at(before_wrap.min(held.len()));
        for run in [first, second].into_iter().filter(|run| !run.is_empty()) {
            self.scratch.clear();
            run.iter().for_each(|used| self.scratch.extend(used.emit()));
            self.dma.write(Kind::Cqe, self.queue.used_entry_at(self.used), &self.scratch)?;
            self.used = self.used.wrapping_add(u16::try_from(run.len()).unwrap_or(0));
        }
        let word = ring_word(self.used).to_le_bytes();
        self.dma.write(Kind::Cqe, self.queue.used_at(), &word)
    }

    /// Writes one answer: out header, an envelope's result, reply header, in one DMA. How many
    /// bytes it has.
    fn write_answer(
        &mut self,
        command: &Command,
        envelope: bool,
        mut status: Status,
        result: u64,
        reply_header: &[u8],
    ) -> (u32, Result<(), DmaError>) {
        let data = if envelope { 0 } else { result };
        let data = u32::try_from(data).ok().filter(|len| *len <= command.read_len);
        let fits = reply_header.len() <= usize::from(command.reply_room);
        if status == Status::Ok && !(fits && data.is_some()) {
            status = Status::Queue(QueueError::InvalidLength);
        }
        let (reply_header, data) =
            if status == Status::Ok { (reply_header, data.unwrap_or(0)) } else { (&[][..], 0) };
        let result = result.to_le_bytes();
        let body = [if envelope { &result[..] } else { &[] }, reply_header];
        let bytes = OUT_HEADER_LEN + body.iter().map(|part| part.len()).sum::<usize>();
        let len = u32::try_from(bytes).unwrap_or(u32::MAX).saturating_add(data);
        let unique = unique(command.id.cid.0, command.id.tag);
        self.scratch.clear();
        self.scratch.extend(Answer { len, status, unique }.emit());
        body.iter().for_each(|part| self.scratch.extend_from_slice(part));
        (len, command.put(Kind::ReplyHeader, 0, &self.scratch))
    }
}

impl DpuQueue for Target {
    fn poll(&mut self, budget: usize, out: &mut Vec<Arrival>) -> usize {
        if self.fault.is_some() {
            return 0;
        }
        self.post();
        if self.running.follow_control(&self.registers, &self.ledger, out) {
            (self.avail, self.used) = (0, 0);
        }
        if self.running.is_deleted() {
            return 0;
        }
        let Some(tail) = self.tail() else { return 0 };
        self.running.follow_aborts(&self.registers, &self.ledger, out);
        let taken = self.fetch(tail, budget, out);
        self.post();
        let drained = self.avail == tail && self.held.is_empty() && self.fault.is_none();
        self.running.end_if(drained, &self.registers);
        taken
    }

    fn complete(&mut self, command: Command, status: Status, result: u64, reply_header: &[u8]) {
        if !self.running.end(command.id) {
            debug_assert!(false, "a command of another queue");
            return;
        }
        let at = usize::from(command.id.cid.0);
        let Issued { head, envelope } = self.issued.get(at).copied().unwrap_or_default();
        let (len, written) = self.write_answer(&command, envelope, status, result, reply_header);
        self.give_back(head, len, written);
        if self.spare.len() < self.issued.len() {
            self.spare.push(recycle(command.parts));
        }
    }

    fn flush(&mut self) -> bool {
        self.post();
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
        let behind =
            !self.running.is_deleted() && self.registers.tail_hint() != u32::from(self.avail);
        if behind || !self.held.is_empty() || self.running.has_work(&self.registers) {
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
