//! FUSE messages in a chain: where a command's header and data lie, and what its answer says.
//!
//! What the device reads is a FUSE in header, a body and data; what it writes is a FUSE out header,
//! a body and data. `unique` names the slot and its use. Two kinds of message cross:
//!
//! * a *call*: a request of the FUSE kernel interface as a guest's kernel sends it. The header the
//!   volume sees is the message itself, in header included (`fuse::translate` reads it);
//! * an *envelope*: a file operation of [`crate::file`], which has more of them than FUSE. The
//!   opcode is one FUSE does not use; the body begins with the lengths that FUSE implies:
//!
//! ```text
//! device reads  | in header 40 | header length, reply room, dispatch, 0: u16 | header | data
//! device writes | out header 16 | result u64 | reply header | data
//! ```
//!
//! The error of an out header is 0, or -errno, or for a refusal by the queue -(4096 + code), which
//! no errno reaches.

use outboard_base::Errno;
use outboard_base::limits::{IO_MAX, REPLY_HEADER_MAX, REQUEST_HEADER_MAX};

use crate::fuse::{IN_HEADER_LEN, InHeader, OUT_HEADER_LEN, Opcode, WRITE_HEAD_LEN};
use crate::nvmefs::{Dispatch, QueueError, Status, put, u16_at, u32_at, u64_at};

/// The opcode of an envelope; FUSE's own end far below.
pub const ENVELOPE: u32 = 0x4F42;
/// Bytes of an envelope's lengths.
pub const LENGTHS_LEN: usize = 8;
/// Most bytes before the data of a message: an envelope with the longest header.
pub const HEAD_MAX: usize = IN_HEADER_LEN + LENGTHS_LEN + REQUEST_HEADER_MAX;
/// Bytes before an envelope's reply header: out header and result.
pub const ENVELOPE_ANSWER_LEN: usize = OUT_HEADER_LEN + 8;

const QUEUE_ERRORS: u32 = 4096;

/// What an envelope says before its header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lengths {
    /// Bytes of the request header.
    pub header: u16,
    /// Room for a reply header.
    pub reply_room: u16,
    /// The stack that is to answer.
    pub dispatch: Dispatch,
}

impl Lengths {
    /// Decodes.
    ///
    /// # Errors
    /// Headers longer than the limits, or a field without meaning.
    pub fn parse(from: &[u8; LENGTHS_LEN]) -> Result<Lengths, QueueError> {
        let (header, reply_room) = (u16_at(from, 0), u16_at(from, 2));
        let dispatch = match (u16_at(from, 4), u16_at(from, 6)) {
            (0, 0) => Dispatch::Kv,
            (1, 0) => Dispatch::Shared,
            _ => return Err(QueueError::InvalidField),
        };
        if usize::from(header) > REQUEST_HEADER_MAX || usize::from(reply_room) > REPLY_HEADER_MAX {
            return Err(QueueError::InvalidLength);
        }
        Ok(Lengths { header, reply_room, dispatch })
    }

    /// Encodes.
    #[must_use]
    pub fn emit(&self) -> [u8; LENGTHS_LEN] {
        let mut out = [0; LENGTHS_LEN];
        put(&mut out, 0, &self.header.to_le_bytes());
        put(&mut out, 2, &self.reply_room.to_le_bytes());
        put(&mut out, 4, &u16::from(self.dispatch == Dispatch::Shared).to_le_bytes());
        out
    }
}

/// The `unique` of a slot's use.
#[must_use]
pub fn unique(cid: u16, tag: u32) -> u64 {
    u64::from(cid) | u64::from(tag) << 16
}

/// Slot and tag of a `unique`; `None` for one that [`unique`] does not make.
#[must_use]
pub fn split_unique(unique: u64) -> Option<(u16, u32)> {
    let cid = u16::try_from(unique & 0xFFFF).ok()?;
    let tag = u32::try_from(unique >> 16).ok().filter(|tag| *tag != 0)?;
    Some((cid, tag))
}

/// Where the parts of one message lie in what the device reads and writes. Lengths are bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Frame {
    /// The slot.
    pub cid: u16,
    /// Which use of it; never 0.
    pub tag: u32,
    /// The stack that is to answer.
    pub dispatch: Dispatch,
    /// Whether it is an envelope.
    pub envelope: bool,
    /// Where the header the volume sees begins.
    pub header_at: usize,
    /// Its length. Data follows to the end of what the device reads.
    pub header_len: usize,
    /// Length of the data.
    pub data_len: u32,
    /// What the device writes before a reply header.
    pub answer_len: usize,
    /// Room for a reply header.
    pub reply_room: u16,
    /// Room for data behind it.
    pub data_room: u32,
}

/// Finds the parts of a message of which the device can read `readable` bytes, `head` the first of
/// them, and write `writable`.
///
/// # Errors
/// What the answer must say.
pub fn frame(head: &[u8], readable: u64, writable: u64) -> Result<Frame, QueueError> {
    let header = InHeader::parse(head).map_err(|_| QueueError::InvalidLength)?;
    let (cid, tag) = split_unique(header.unique).ok_or(QueueError::InvalidCid)?;
    if u64::from(header.len) != readable {
        return Err(QueueError::InvalidLength);
    }
    let mut frame = Frame {
        cid,
        tag,
        dispatch: Dispatch::Kv,
        envelope: header.opcode == ENVELOPE,
        header_at: 0,
        header_len: 0,
        data_len: 0,
        answer_len: OUT_HEADER_LEN,
        reply_room: 0,
        data_room: 0,
    };
    if frame.envelope {
        let lengths = head.get(IN_HEADER_LEN..).and_then(<[u8]>::first_chunk);
        let lengths = Lengths::parse(lengths.ok_or(QueueError::InvalidLength)?)?;
        frame.dispatch = lengths.dispatch;
        frame.header_at = IN_HEADER_LEN + LENGTHS_LEN;
        frame.header_len = usize::from(lengths.header);
        frame.answer_len = ENVELOPE_ANSWER_LEN;
        frame.reply_room = lengths.reply_room;
        frame.data_room = rest(writable, ENVELOPE_ANSWER_LEN + usize::from(lengths.reply_room))?;
    } else {
        frame_call(&mut frame, header.opcode, readable, writable)?;
    }
    frame.data_len = rest(readable, frame.header_at + frame.header_len)?;
    Ok(frame)
}

/// What an opcode of FUSE implies.
fn frame_call(
    frame: &mut Frame,
    opcode: u32,
    readable: u64,
    writable: u64,
) -> Result<(), QueueError> {
    let opcode = Opcode::from_raw(opcode).map_err(|_| QueueError::InvalidOpcode)?;
    let whole = usize::try_from(readable).ok().filter(|len| *len <= HEAD_MAX);
    frame.header_len = match opcode {
        // These have no answer and go through a queue of their own.
        Opcode::Forget | Opcode::BatchForget | Opcode::Interrupt => {
            return Err(QueueError::InvalidOpcode);
        }
        Opcode::Write => WRITE_HEAD_LEN,
        _ => whole.ok_or(QueueError::InvalidLength)?,
    };
    let room = rest(writable, OUT_HEADER_LEN)?;
    match opcode {
        Opcode::Read
        | Opcode::Readdir
        | Opcode::Readdirplus
        | Opcode::Readlink
        | Opcode::Getxattr
        | Opcode::Listxattr => frame.data_room = room,
        _ => {
            let body = u16::try_from(room).ok().filter(|len| usize::from(*len) <= REPLY_HEADER_MAX);
            frame.reply_room = body.ok_or(QueueError::InvalidLength)?;
        }
    }
    Ok(())
}

/// The data behind `head` bytes of `whole`.
fn rest(whole: u64, head: usize) -> Result<u32, QueueError> {
    whole
        .checked_sub(head as u64)
        .filter(|rest| *rest <= IO_MAX as u64)
        .and_then(|rest| u32::try_from(rest).ok())
        .ok_or(QueueError::InvalidLength)
}

/// A FUSE out header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Answer {
    /// Bytes of the whole answer, this header included.
    pub len: u32,
    /// How the command ended.
    pub status: Status,
    /// The `unique` of the command.
    pub unique: u64,
}

impl Answer {
    /// Decodes. What is not known is a protocol error, never success.
    #[must_use]
    pub fn parse(from: &[u8; OUT_HEADER_LEN]) -> Answer {
        let error = u32_at(from, 4).wrapping_neg();
        let status = match error {
            0 => Status::Ok,
            1..QUEUE_ERRORS => Status::Errno(Errno::from_raw(error)),
            _ => QueueError::ALL
                .into_iter()
                .find(|known| QUEUE_ERRORS + u32::from(*known as u8) == error)
                .map_or(Status::Queue(QueueError::Protocol), Status::Queue),
        };
        Answer { len: u32_at(from, 0), status, unique: u64_at(from, 8) }
    }

    /// Encodes.
    #[must_use]
    pub fn emit(&self) -> [u8; OUT_HEADER_LEN] {
        let error = match self.status {
            Status::Ok => 0,
            Status::Errno(errno) => u32::from(errno.raw()),
            Status::Queue(error) => QUEUE_ERRORS + u32::from(error as u8),
        };
        let mut out = [0; OUT_HEADER_LEN];
        put(&mut out, 0, &self.len.to_le_bytes());
        put(&mut out, 4, &error.wrapping_neg().to_le_bytes());
        put(&mut out, 8, &self.unique.to_le_bytes());
        out
    }
}

#[cfg(test)]
mod tests;
