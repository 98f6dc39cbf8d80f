//! The driver: the host's end of a virtqueue.

use std::sync::Arc;
use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::{Acquire, Release};

use outboard_base::limits::{PAGE, REPLY_HEADER_MAX, REQUEST_HEADER_MAX};
use outboard_wire::fuse::{IN_HEADER_LEN, InHeader, OUT_HEADER_LEN};
use outboard_wire::nvmefs::{QueueError, Status};
use outboard_wire::regs::queue::{DELETE, DELETED, RUN, RUNNING};
use outboard_wire::virtio::message::{
    Answer, ENVELOPE, ENVELOPE_ANSWER_LEN, HEAD_MAX, Lengths, unique,
};
use outboard_wire::virtio::{Descriptor, USED_LEN, Used, Virtqueue, ring_index, ring_word};

use super::{NoSuchQueue, Rings};
use crate::Region;
use crate::dma::{Count, Ledger};
use crate::layout::SlotPages;
use crate::queue::nvmefs::Aborter;
use crate::queue::slots::{Slots, check};
use crate::queue::{Cid, CommandId, Completion, HostQueue, SlotError, Span, Submission};
use crate::region::{OutOfRegion, fence};
use crate::registers::{QueueRegisters, Registers};

/// What is remembered of a submission.
#[derive(Clone, Copy, Debug, Default)]
struct Sent {
    envelope: bool,
    reply_room: u16,
    read_len: u32,
}

/// A request of the FUSE kernel interface, as a guest's kernel puts it into its queue.
#[derive(Clone, Copy, Debug)]
pub struct FuseCall<'a> {
    /// Opcode, node and caller; the lengths and `unique` are filled in here.
    pub header: InHeader,
    /// What follows the header, without a WRITE's data.
    pub body: &'a [u8],
    /// A WRITE's data.
    pub write: Span,
    /// Room for the data of what is read.
    pub read: Span,
    /// Length of the answer's body.
    pub reply: u16,
}

/// The host's end of one virtio-fs queue.
pub struct Initiator {
    region: Arc<Region>,
    rings: Rings,
    queue: u16,
    virtqueue: Virtqueue,
    registers: QueueRegisters,
    ledger: Arc<Ledger>,
    slots: Slots<Sent>,
    /// Next avail entry, and what the doorbell says; both run freely.
    tail: u16,
    rung: u16,
    /// Next used element.
    head: u16,
    bell: Arc<AtomicU32>,
    deleting: bool,
    scratch: Vec<u8>,
}

impl Initiator {
    /// The host end of queue `queue`, over a region laid out as `rings` say. Clears the rings:
    /// nothing may be in them.
    pub fn new(
        region: Arc<Region>,
        registers: &Registers,
        rings: Rings,
        queue: u16,
        ledger: Arc<Ledger>,
    ) -> Result<Initiator, NoSuchQueue> {
        let block = registers.queue(queue).ok_or(NoSuchQueue)?;
        let virtqueue = rings.virtqueue(queue).ok_or(NoSuchQueue)?;
        if registers.layout() != rings.layout() || region.len() < rings.region_len() {
            return Err(NoSuchQueue);
        }
        let mut initiator = Initiator {
            slots: Slots::new(Arc::clone(&region), rings.layout(), queue),
            region,
            rings,
            queue,
            virtqueue,
            registers: block,
            ledger,
            tail: 0,
            rung: 0,
            head: 0,
            bell: Arc::new(AtomicU32::new(0)),
            deleting: false,
            scratch: Vec::new(),
        };
        initiator.clear_rings().map_err(|_| NoSuchQueue)?;
        Ok(initiator)
    }

    /// The registers of this queue, for the futex of its interrupt word.
    #[must_use]
    pub fn registers(&self) -> &QueueRegisters {
        &self.registers
    }

    /// A handle for aborts from other threads.
    #[must_use]
    pub fn aborter(&self) -> Aborter {
        Aborter::new(self.registers.clone(), Arc::clone(&self.bell))
    }

    /// Puts a FUSE request in the queue, as [`HostQueue::submit`] does with a file operation. Its
    /// completion's result is the length of the data read; `reply_header` gives the answer's body.
    pub fn submit_call(&mut self, cid: Cid, call: &FuseCall<'_>) -> Result<CommandId, SlotError> {
        let FuseCall { header, body, write, read, reply } = *call;
        self.send(cid, &Outgoing { header, lengths: None, body, write, read, reply })
    }

    /// The DPU is lost: what is in flight waits for [`Self::reattach`] and [`Self::resubmit`], or
    /// is given up by [`Self::abandon`].
    pub fn lose(&mut self) {
        self.slots.lose();
    }

    /// After the loss of the DPU: goes on with the next one's registers, of the same layout. Rings
    /// are empty; slots, descriptors and their bytes are as they were.
    pub fn reattach(&mut self, registers: &Registers) -> Result<(), NoSuchQueue> {
        if registers.layout() != self.rings.layout() {
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
        for (cid, _) in self.slots.orphans() {
            if self.enqueue(cid).is_err() {
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
        self.region.store_u32(self.virtqueue.avail_at(), 0, Release)?;
        self.region.store_u32(self.virtqueue.used_at(), 0, Release)?;
        (self.tail, self.rung, self.head) = (0, 0, 0);
        Ok(())
    }

    /// Puts a slot's chain into the avail ring; idx follows with the doorbell.
    fn enqueue(&mut self, cid: Cid) -> Result<(), OutOfRegion> {
        let at = self.virtqueue.avail_entry_at(self.tail);
        self.region.write_from(at, &self.rings.head(cid.0).to_le_bytes())?;
        self.tail = self.tail.wrapping_add(1);
        Ok(())
    }

    fn send(&mut self, cid: Cid, message: &Outgoing<'_>) -> Result<CommandId, SlotError> {
        if self.deleting {
            return Err(SlotError::Deleted);
        }
        let tag = self.slots.next_tag(cid)?;
        message.check(self.rings.io_max())?;
        let out_of_region = |_| SlotError::TooLong;
        let pages = self.slots.pages(cid);
        self.scratch.clear();
        message.emit(unique(cid.0, tag), &mut self.scratch)?;
        self.region.write_from(pages.header, &self.scratch).map_err(out_of_region)?;
        let answer = message.answer_len() + usize::from(message.reply);
        self.region.zero(pages.reply, answer).map_err(out_of_region)?;
        let head_len = u32::try_from(self.scratch.len()).map_err(|_| SlotError::TooLong)?;
        self.scratch.clear();
        message.chain(pages, self.rings.head(cid.0), head_len, &mut self.scratch);
        let table = self.virtqueue.descriptor_at(self.rings.head(cid.0));
        self.region.write_from(table, &self.scratch).map_err(out_of_region)?;
        self.enqueue(cid).map_err(out_of_region)?;
        let sent = Sent {
            envelope: message.lengths.is_some(),
            reply_room: message.reply,
            read_len: message.read.len,
        };
        self.slots.begin(cid, tag, sent);
        Ok(CommandId { cid, tag })
    }

    /// Where the used ring's idx stands. One that jumped is a violation, and read as nothing new.
    fn used(&mut self) -> u16 {
        let word = self.region.load_u32(self.virtqueue.used_at(), Acquire).unwrap_or(0);
        let index = ring_index(word);
        if index.wrapping_sub(self.head) > self.virtqueue.size() {
            self.ledger.count(Count::Violations, 1);
            return self.head;
        }
        index
    }

    /// Believes a used element only when it answers something.
    fn settle(&mut self) -> Option<Completion> {
        let mut raw = [0; USED_LEN];
        self.region.read_into(self.virtqueue.used_entry_at(self.head), &mut raw).ok()?;
        let cid = Cid(self.rings.slot_of(Used::parse(&raw).id)?);
        let (tag, sent) = self.slots.settle(cid)?;
        let protocol = (Status::Queue(QueueError::Protocol), 0);
        let (status, result) = self.answer(cid, tag, sent).unwrap_or(protocol);
        Some(Completion { cid, status, result })
    }

    /// Reads a slot's out header; `None` when it is not the answer to what was asked.
    fn answer(&self, cid: Cid, tag: u32, sent: Sent) -> Option<(Status, u64)> {
        let mut raw = [0; ENVELOPE_ANSWER_LEN];
        self.region.read_into(self.slots.pages(cid).reply, &mut raw).ok()?;
        let (header, result) = raw.split_first_chunk::<OUT_HEADER_LEN>()?;
        let answer = Answer::parse(header);
        let behind = answer.len.checked_sub(u32::try_from(OUT_HEADER_LEN).ok()?)?;
        let most = u32::from(sent.reply_room) + if sent.envelope { 8 } else { sent.read_len };
        if answer.unique != unique(cid.0, tag) || behind > most {
            return None;
        }
        let result = if sent.envelope {
            u64::from_le_bytes(result.try_into().ok()?)
        } else {
            u64::from(behind.saturating_sub(u32::from(sent.reply_room)))
        };
        Some((answer.status, result))
    }

    fn front_of(sent: &Sent) -> u64 {
        (if sent.envelope { ENVELOPE_ANSWER_LEN } else { OUT_HEADER_LEN }) as u64
    }
}

/// One message on its way into a chain.
struct Outgoing<'a> {
    header: InHeader,
    /// `Some` for an envelope.
    lengths: Option<Lengths>,
    body: &'a [u8],
    write: Span,
    read: Span,
    reply: u16,
}

impl Outgoing<'_> {
    fn check(&self, io_max: u32) -> Result<(), SlotError> {
        let too_long = self.body.len() > REQUEST_HEADER_MAX
            || usize::from(self.reply) > REPLY_HEADER_MAX
            || self.write.len.max(self.read.len) > io_max;
        check(self.write)?;
        check(self.read)?;
        if too_long { Err(SlotError::TooLong) } else { Ok(()) }
    }

    fn answer_len(&self) -> usize {
        if self.lengths.is_some() { ENVELOPE_ANSWER_LEN } else { OUT_HEADER_LEN }
    }

    /// Appends the command: in header, an envelope's lengths, body.
    fn emit(&self, unique: u64, out: &mut Vec<u8>) -> Result<(), SlotError> {
        let lengths = self.lengths.map(|lengths| lengths.emit());
        let lengths = lengths.as_ref().map_or(&[][..], |raw| &raw[..]);
        let head = IN_HEADER_LEN + lengths.len() + self.body.len();
        let len = u32::try_from(head).map_err(|_| SlotError::TooLong)? + self.write.len;
        out.extend(InHeader { len, unique, ..self.header }.emit());
        out.extend_from_slice(lengths);
        out.extend_from_slice(self.body);
        Ok(())
    }

    /// Appends the chain: command, a descriptor a page of data; answer, a descriptor a page of
    /// room. The descriptors are in order from `head` on.
    fn chain(&self, pages: SlotPages, head: u16, head_len: u32, out: &mut Vec<u8>) {
        let answer_len = u32::try_from(self.answer_len()).unwrap_or(0) + u32::from(self.reply);
        let command = std::iter::once((pages.header, head_len, false));
        let data = pieces(pages.buffer, self.write).map(|(at, len)| (at, len, false));
        let answer = std::iter::once((pages.reply, answer_len, true));
        let room = pieces(pages.buffer, self.read).map(|(at, len)| (at, len, true));
        let mut parts = command.chain(data).chain(answer).chain(room).peekable();
        let mut index = head;
        while let Some((at, len, writable)) = parts.next() {
            index = index.wrapping_add(1);
            let next = parts.peek().is_some().then_some(index);
            out.extend(Descriptor { at, len, writable, next }.emit());
        }
    }
}

/// The pages of a span, the first and last perhaps in part.
fn pieces(buffer: u64, span: Span) -> impl Iterator<Item = (u64, u32)> {
    let (start, end) =
        (buffer + u64::from(span.offset), buffer + u64::from(span.offset) + u64::from(span.len));
    let mut at = start;
    std::iter::from_fn(move || {
        let piece = at;
        let behind = (at / PAGE as u64 + 1) * PAGE as u64;
        at = behind.min(end);
        (piece < end).then(|| (piece, u32::try_from(at - piece).unwrap_or(0)))
    })
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
        let Submission { dispatch, header, write, read, reply_header } = *submission;
        let header_len = u16::try_from(header.len()).map_err(|_| SlotError::TooLong)?;
        let lengths = Lengths { header: header_len, reply_room: reply_header, dispatch };
        let outer = InHeader { opcode: ENVELOPE, ..InHeader::default() };
        let message = Outgoing {
            header: outer,
            lengths: Some(lengths),
            body: header,
            write,
            read,
            reply: reply_header,
        };
        self.send(cid, &message)
    }

    fn ring(&mut self) -> bool {
        if self.rung == self.tail {
            return false;
        }
        self.rung = self.tail;
        let idx = ring_word(self.tail);
        let _in_range = self.region.store_u32(self.virtqueue.avail_at(), idx, Release);
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
        let used = self.used();
        let (mut taken, mut found) = (0, 0);
        while taken < budget && self.head != used {
            taken += 1;
            let completion = self.settle();
            self.head = self.head.wrapping_add(1);
            match completion {
                Some(completion) => {
                    out.push(completion);
                    found += 1;
                }
                None => self.ledger.count(Count::Violations, 1),
            }
        }
        found
    }

    fn reply_header(&self, cid: Cid, out: &mut [u8]) -> Result<usize, SlotError> {
        let sent = self.slots.sent(cid)?;
        let len = out.len().min(usize::from(sent.reply_room));
        let part = out.get_mut(..len).unwrap_or_default();
        let at = self.slots.pages(cid).reply + Self::front_of(sent);
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
        if self.used() != self.head {
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

const _: () = assert!(HEAD_MAX <= PAGE && ENVELOPE_ANSWER_LEN + REPLY_HEADER_MAX <= PAGE);
