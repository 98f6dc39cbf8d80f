//! The driver's rings: chains offered, used elements found.

use std::sync::Arc;
use std::sync::atomic::Ordering::{Acquire, Release};

use outboard_base::limits::{PAGE, REPLY_HEADER_MAX, REQUEST_HEADER_MAX};
use outboard_wire::fuse::{IN_HEADER_LEN, InHeader, OUT_HEADER_LEN};
use outboard_wire::nvmefs::{QueueError, Status};
use outboard_wire::virtio::message::{
    Answer, ENVELOPE, ENVELOPE_ANSWER_LEN, HEAD_MAX, Lengths, unique,
};
use outboard_wire::virtio::{Descriptor, USED_LEN, Used, Virtqueue, ring_index, ring_word};

use super::{NoSuchQueue, Rings};
use crate::Region;
use crate::layout::{Layout, SlotPages};
use crate::queue::initiator::{HostRings, Initiator as Host};
use crate::queue::slots::{Slots, check};
use crate::queue::{Cid, CommandId, Completion, SlotError, Span, Submission};
use crate::region::OutOfRegion;
use crate::registers::{QueueRegisters, Registers};
use outboard_base::ledger::{Count, Ledger};

/// What is remembered of a submission.
#[derive(Clone, Copy, Debug, Default)]
pub(in crate::queue) struct Sent {
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

/// The two rings of a virtqueue, and its descriptors.
pub struct Driver {
    region: Arc<Region>,
    rings: Rings,
    virtqueue: Virtqueue,
    ledger: Arc<Ledger>,
    /// Next avail entry, and what the doorbell says; both run freely.
    tail: u16,
    rung: u16,
    /// Next used element.
    head: u16,
    scratch: Vec<u8>,
}

/// The host's end of one virtio-fs queue.
pub type Initiator = Host<Driver>;

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
        let virtqueue = rings.virtqueue(queue).ok_or(NoSuchQueue)?;
        if region.len() < rings.region_len() {
            return Err(NoSuchQueue);
        }
        let (of_rings, counts) = (Arc::clone(&region), Arc::clone(&ledger));
        let driver = Driver {
            region: of_rings,
            rings,
            virtqueue,
            ledger: counts,
            tail: 0,
            rung: 0,
            head: 0,
            scratch: Vec::new(),
        };
        Host::over(region, registers, queue, ledger, driver)
    }

    /// Puts a FUSE request in the queue, as [`HostQueue::submit`] does with a file operation. Its
    /// completion's result is the length of the data read; `reply_header` gives the answer's body.
    ///
    /// [`HostQueue::submit`]: crate::queue::HostQueue::submit
    pub fn submit_call(&mut self, cid: Cid, call: &FuseCall<'_>) -> Result<CommandId, SlotError> {
        let FuseCall { header, body, write, read, reply } = *call;
        let message = Outgoing { header, lengths: None, body, write, read, reply };
        self.send(cid, |driver, pages, id| driver.write_message(pages, id, &message))
    }
}

impl Driver {
    /// Writes a message into a slot's pages, and the chain that leads through them.
    fn write_message(
        &mut self,
        pages: SlotPages,
        id: CommandId,
        message: &Outgoing<'_>,
    ) -> Result<Sent, SlotError> {
        message.check(self.rings.io_max())?;
        let out_of_region = |_| SlotError::TooLong;
        self.scratch.clear();
        message.emit(unique(id.cid.0, id.tag), &mut self.scratch)?;
        self.region.write_from(pages.header, &self.scratch).map_err(out_of_region)?;
        let answer = message.answer_len() + usize::from(message.reply);
        self.region.zero(pages.reply, answer).map_err(out_of_region)?;
        let head_len = u32::try_from(self.scratch.len()).map_err(|_| SlotError::TooLong)?;
        let head = self.rings.head(id.cid.0);
        self.scratch.clear();
        message.chain(pages, head, head_len, &mut self.scratch);
        let table = self.virtqueue.descriptor_at(head);
        self.region.write_from(table, &self.scratch).map_err(out_of_region)?;
        Ok(Sent {
            envelope: message.lengths.is_some(),
            reply_room: message.reply,
            read_len: message.read.len,
        })
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
    fn settle(&self, slots: &mut Slots<Sent>) -> Option<Completion> {
        let mut raw = [0; USED_LEN];
        self.region.read_into(self.virtqueue.used_entry_at(self.head), &mut raw).ok()?;
        let cid = Cid(self.rings.slot_of(Used::parse(&raw).id)?);
        let (tag, sent) = slots.settle(cid)?;
        let protocol = (Status::Queue(QueueError::Protocol), 0);
        let id = CommandId { cid, tag };
        let (status, result) = self.answer(slots.pages(cid), id, sent).unwrap_or(protocol);
        Some(Completion { cid, status, result })
    }

    /// Reads a slot's out header; `None` when it is not the answer to what was asked.
    fn answer(&self, pages: SlotPages, id: CommandId, sent: Sent) -> Option<(Status, u64)> {
        let mut raw = [0; ENVELOPE_ANSWER_LEN];
        self.region.read_into(pages.reply, &mut raw).ok()?;
        let (header, result) = raw.split_first_chunk::<OUT_HEADER_LEN>()?;
        let answer = Answer::parse(header);
        let behind = answer.len.checked_sub(u32::try_from(OUT_HEADER_LEN).ok()?)?;
        let most = u32::from(sent.reply_room) + if sent.envelope { 8 } else { sent.read_len };
        if answer.unique != unique(id.cid.0, id.tag) || behind > most {
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

impl HostRings for Driver {
    type Sent = Sent;

    fn layout(&self) -> Layout {
        self.rings.layout()
    }

    fn clear(&mut self) -> Result<(), OutOfRegion> {
        self.region.store_u32(self.virtqueue.avail_at(), 0, Release)?;
        self.region.store_u32(self.virtqueue.used_at(), 0, Release)?;
        (self.tail, self.rung, self.head) = (0, 0, 0);
        Ok(())
    }

    fn write(
        &mut self,
        pages: SlotPages,
        id: CommandId,
        submission: &Submission<'_>,
    ) -> Result<Sent, SlotError> {
        let Submission { dispatch, header, write, read, reply_header } = *submission;
        let header_len = u16::try_from(header.len()).map_err(|_| SlotError::TooLong)?;
        let lengths = Lengths { header: header_len, reply_room: reply_header, dispatch };
        let message = Outgoing {
            header: InHeader { opcode: ENVELOPE, ..InHeader::default() },
            lengths: Some(lengths),
            body: header,
            write,
            read,
            reply: reply_header,
        };
        self.write_message(pages, id, &message)
    }

    /// Puts a slot's chain into the avail ring; idx follows with the doorbell.
    fn enqueue(&mut self, cid: Cid, _sent: &Sent) -> Result<(), SlotError> {
        let at = self.virtqueue.avail_entry_at(self.tail);
        let head = self.rings.head(cid.0).to_le_bytes();
        self.region.write_from(at, &head).map_err(|_| SlotError::TooLong)?;
        self.tail = self.tail.wrapping_add(1);
        Ok(())
    }

    fn retract(&mut self) {
        self.tail = self.rung;
    }

    fn show(&mut self) -> Option<u32> {
        if self.rung == self.tail {
            return None;
        }
        self.rung = self.tail;
        let idx = ring_word(self.tail);
        let _in_range = self.region.store_u32(self.virtqueue.avail_at(), idx, Release);
        Some(u32::from(self.tail))
    }

    fn has_answers(&mut self) -> bool {
        self.used() != self.head
    }

    fn poll(
        &mut self,
        slots: &mut Slots<Sent>,
        _registers: &QueueRegisters,
        budget: usize,
        out: &mut Vec<Completion>,
    ) -> usize {
        let used = self.used();
        let (mut taken, mut found) = (0, 0);
        while taken < budget && self.head != used {
            taken += 1;
            let completion = self.settle(slots);
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

    fn reply_at(&self, pages: SlotPages, sent: &Sent) -> (u64, u16) {
        (pages.reply + Self::front_of(sent), sent.reply_room)
    }
}

const _: () = assert!(HEAD_MAX <= PAGE && ENVELOPE_ANSWER_LEN + REPLY_HEADER_MAX <= PAGE);
