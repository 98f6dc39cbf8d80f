//! Queue pairs: the two ports every transport implements, and what crosses them.
//!
//! A *slot* is a command id with its pages in host memory. The host acquires one, fills header and
//! data, submits, rings, and later finds a completion; the slot stays as it is until released, so
//! that a command nobody answered can be submitted again to the DPU's next life. The DPU polls
//! commands, moves their data by DMA and completes each exactly once, in any order.
//!
//! [`nvmefs`] is the transport of DPC 3.2, [`virtiofs`] its rival of DPC 2.3. The suite in
//! `tests/it/conformance.rs` holds for each transport.

mod initiator;
pub mod nvmefs;
mod running;
mod slots;
pub mod virtiofs;

use std::sync::Arc;

use outboard_wire::nvmefs::{Dispatch, Extent, Status};

use crate::dma::{Dma, DmaError};
use outboard_base::ledger::Kind;

/// Names a slot of one queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Cid(pub u16);

/// Names one use of a slot: what an abort speaks of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct CommandId {
    /// The slot.
    pub cid: Cid,
    /// Which use of it; never 0.
    pub tag: u32,
}

/// Bytes of a slot's own buffer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Span {
    /// First byte.
    pub offset: u32,
    /// Bytes.
    pub len: u32,
}

impl Span {
    /// No bytes.
    pub const NONE: Span = Span { offset: 0, len: 0 };

    /// The first `len` bytes of the buffer.
    #[must_use]
    pub fn first(len: u32) -> Span {
        Span { offset: 0, len }
    }
}

/// What the host asks for.
#[derive(Clone, Copy, Debug)]
pub struct Submission<'a> {
    /// The stack that is to answer.
    pub dispatch: Dispatch,
    /// Request header, at most `limits::REQUEST_HEADER_MAX` bytes.
    pub header: &'a [u8],
    /// Data for the DPU. When it begins in the middle of a page, the header goes before it in that
    /// page, and the bytes of the buffer there are overwritten.
    pub write: Span,
    /// Room for data from the DPU. Apart from `write`, if the command is ever to be submitted again
    /// after a loss: the last DPU may have answered into it.
    pub read: Span,
    /// Room for a reply header, at most `limits::REPLY_HEADER_MAX` bytes.
    pub reply_header: u16,
}

/// The answer to one submission.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Completion {
    /// The slot, which is the host's again.
    pub cid: Cid,
    /// How it ended.
    pub status: Status,
    /// A number whose meaning the operation defines. From the other side: check it before use.
    pub result: u64,
}

/// The caller's mistake with a slot; nothing was done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SlotError {
    /// No such slot, or not in the state this call needs.
    State,
    /// A header or span is longer than the slot allows.
    TooLong,
    /// An unaligned write span leaves no room for the header before it in its page, or an unaligned
    /// read span comes with a reply header.
    Unaligned,
    /// The queue is deleted.
    Deleted,
}

/// The host's end of one queue pair.
pub trait HostQueue {
    /// Takes a free slot; `None` when all are taken.
    fn acquire(&mut self) -> Option<Cid>;

    /// Copies into the buffer of an acquired slot.
    fn write_buffer(&mut self, cid: Cid, offset: u32, data: &[u8]) -> Result<(), SlotError>;

    /// Copies out of the buffer of a slot that is not in flight.
    fn read_buffer(&self, cid: Cid, offset: u32, out: &mut [u8]) -> Result<(), SlotError>;

    /// The address of a part of a slot's buffer in this process, for system calls that fill or
    /// drain it.
    fn buffer(&self, cid: Cid, span: Span) -> Result<*mut u8, SlotError>;

    /// Puts a command in the queue. The DPU sees it after [`HostQueue::ring`].
    fn submit(&mut self, cid: Cid, submission: &Submission<'_>) -> Result<CommandId, SlotError>;

    /// Shows the DPU everything submitted. True when the DPU sleeps and it must be notified.
    #[must_use]
    fn ring(&mut self) -> bool;

    /// Appends at most `budget` completions; returns how many.
    fn poll(&mut self, budget: usize, out: &mut Vec<Completion>) -> usize;

    /// Copies a completed slot's reply header out: as many bytes as there was room for (at most
    /// `out.len()`), zero where the DPU wrote nothing.
    fn reply_header(&self, cid: Cid, out: &mut [u8]) -> Result<usize, SlotError>;

    /// Gives an acquired or completed slot back.
    fn release(&mut self, cid: Cid) -> Result<(), SlotError>;

    /// Asks the DPU to give up on a command; it completes once, as ever, perhaps with success. True
    /// when it must be notified.
    #[must_use]
    fn abort(&mut self, id: CommandId) -> bool;

    /// Asks for an interrupt and looks again: the value to sleep on, or `None` when there is a
    /// completion.
    fn may_sleep(&mut self) -> Option<u32>;

    /// Takes the wish for an interrupt back.
    fn awake(&mut self);

    /// Commands submitted and not yet completed.
    fn in_flight(&self) -> usize;
}

/// What a poll of the DPU's end finds.
#[derive(Debug)]
pub enum Arrival {
    /// A command, checked.
    Command(Command),
    /// The host wants this running command to end early.
    Abort(CommandId),
}

/// Why a queue is beyond help: drop the attachment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// A doorbell out of range.
    Doorbell,
    /// The rings cannot be read or written.
    Dma,
    /// A chain of descriptors that cannot be followed.
    Chain,
}

/// The DPU's end of one queue pair.
pub trait DpuQueue {
    /// Takes at most `budget` commands, and any number of aborts of commands in flight. Entries
    /// that are not valid are answered here and never seen. Returns how many entries were taken
    /// from the queue.
    fn poll(&mut self, budget: usize, out: &mut Vec<Arrival>) -> usize;

    /// Answers a command. With [`Status::Ok`] the reply header goes first, if there is one. The
    /// host may see the answer only after [`DpuQueue::flush`].
    fn complete(&mut self, command: Command, status: Status, result: u64, reply_header: &[u8]);

    /// After a batch of completions: shows the host what it does not see yet. True when the host
    /// must be interrupted.
    #[must_use]
    fn flush(&mut self) -> bool;

    /// Publishes "asleep" and looks again; false (and awake) when there is work.
    fn may_sleep(&mut self) -> bool;

    /// Says that it looks again.
    fn awake(&mut self);

    /// Commands polled and not completed.
    fn in_flight(&self) -> usize;

    /// What broke, if something did; nothing more is polled then.
    fn fault(&self) -> Option<Fault>;
}

/// Buffers of a command, used again by the next one.
#[derive(Debug, Default)]
struct Parts {
    header: Vec<u8>,
    write: Vec<Extent>,
    read: Vec<Extent>,
}

/// A command as the DPU works on it. It owns what it needs, so it may be worked on anywhere; the
/// target that gave it out takes it back with [`DpuQueue::complete`].
#[must_use = "a command never completed is never answered"]
pub struct Command {
    id: CommandId,
    dispatch: Dispatch,
    parts: Parts,
    /// Bytes of the write stream before the data: the header and what else the queue puts there.
    header_len: u32,
    /// Data bytes behind them.
    write_len: u32,
    /// Bytes at the front of the read stream that the queue itself writes.
    answer_len: u32,
    /// Reply header room behind them.
    reply_room: u16,
    /// Data room behind it.
    read_len: u32,
    dma: Arc<dyn Dma>,
}

impl Command {
    /// Its name, as an abort would give it.
    #[must_use]
    pub fn id(&self) -> CommandId {
        self.id
    }

    /// The stack that is to answer.
    #[must_use]
    pub fn dispatch(&self) -> Dispatch {
        self.dispatch
    }

    /// The request header, already in DPU memory.
    #[must_use]
    pub fn header(&self) -> &[u8] {
        &self.parts.header
    }

    /// Bytes of data the host gave.
    #[must_use]
    pub fn write_len(&self) -> u32 {
        self.write_len
    }

    /// Room for data at the host, bytes.
    #[must_use]
    pub fn read_len(&self) -> u32 {
        self.read_len
    }

    /// Room for a reply header, bytes.
    #[must_use]
    pub fn reply_header_room(&self) -> u16 {
        self.reply_room
    }

    /// Fetches the host's data from `offset`. One DMA for each contiguous range.
    ///
    /// # Errors
    /// The range is longer than the data, or a DMA failed.
    pub fn read_data(&self, offset: u32, out: &mut [u8]) -> Result<(), DmaError> {
        let start = within(offset, out.len(), self.write_len)?;
        let skip = u64::from(self.header_len) + start;
        let mut rest = out;
        each_range(&self.parts.write, skip, rest.len(), |at, len| {
            let (part, behind) =
                std::mem::take(&mut rest).split_at_mut_checked(len).unwrap_or_default();
            rest = behind;
            self.dma.read(Kind::DataIn, at, part)
        })
    }

    /// Stores data for the host at `offset`. One DMA for each contiguous range.
    ///
    /// # Errors
    /// The range is longer than the room, or a DMA failed.
    pub fn write_data(&self, offset: u32, data: &[u8]) -> Result<(), DmaError> {
        let start = within(offset, data.len(), self.read_len)?;
        let front = u64::from(self.answer_len) + u64::from(self.reply_room);
        self.put(Kind::DataOut, front + start, data)
    }

    /// Writes into the read stream.
    fn put(&self, kind: Kind, skip: u64, data: &[u8]) -> Result<(), DmaError> {
        let mut rest = data;
        each_range(&self.parts.read, skip, rest.len(), |at, len| {
            let (part, behind) = rest.split_at_checked(len).unwrap_or_default();
            rest = behind;
            self.dma.write(kind, at, part)
        })
    }
}

impl std::fmt::Debug for Command {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Command")
            .field("id", &self.id)
            .field("header", &self.parts.header.len())
            .field("write", &self.write_len)
            .field("read", &self.read_len)
            .finish_non_exhaustive()
    }
}

fn within(offset: u32, len: usize, room: u32) -> Result<u64, DmaError> {
    let end = u64::from(offset).checked_add(len as u64).ok_or(DmaError::OutOfRegion)?;
    if end <= u64::from(room) { Ok(u64::from(offset)) } else { Err(DmaError::OutOfRegion) }
}

/// Calls `each` for the contiguous ranges of a stream from byte `skip`, `len` bytes in all.
fn each_range(
    extents: &[Extent],
    mut skip: u64,
    mut len: usize,
    mut each: impl FnMut(u64, usize) -> Result<(), DmaError>,
) -> Result<(), DmaError> {
    for extent in extents {
        if len == 0 {
            return Ok(());
        }
        let whole = u64::from(extent.len);
        if skip >= whole {
            skip -= whole;
            continue;
        }
        let part = usize::try_from(whole - skip).unwrap_or(usize::MAX).min(len);
        each(extent.at + skip, part)?;
        len -= part;
        skip = 0;
    }
    if len == 0 { Ok(()) } else { Err(DmaError::OutOfRegion) }
}

/// Takes the parts out of a finished command.
fn recycle(mut parts: Parts) -> Parts {
    parts.header.clear();
    parts.write.clear();
    parts.read.clear();
    parts
}
