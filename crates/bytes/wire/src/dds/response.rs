//! Responses: what the file service answers.

use super::{ALIGN_MAX, DATA_MAX, InvalidMessage};
use crate::nvmefs::{put, u16_at, u32_at, u64_at};
use outboard_base::Errno;

/// Bytes of a response before its data.
pub const RESPONSE_HEAD: usize = 32;
/// The status of a response whose operation is still going on (section 4.3). It never leaves the
/// DPU side.
pub const PENDING: u32 = u32::MAX;
/// Greatest errno.
const ERRNO_MAX: u32 = 4095;

/// The first bytes of a response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ResponseHead {
    /// Of the request.
    pub id: u64,
    /// 0: done; 1 to 4095: an errno; [`PENDING`].
    pub status: u32,
    /// Where its data begins in the message.
    pub data_at: u16,
    /// Bytes of data that are there.
    pub data_len: u32,
    /// Bytes kept for data: the message ends behind them.
    pub room: u32,
    /// An id, a size, or where to go on, as the request has it.
    pub value: u64,
}

impl ResponseHead {
    /// One that is not answered yet, with `room` bytes for data from `data_at` on
    /// ([`super::data_at`] of [`RESPONSE_HEAD`]).
    #[must_use]
    pub fn pending(id: u64, data_at: usize, room: u32) -> ResponseHead {
        let data_at = u16::try_from(data_at).unwrap_or(u16::MAX);
        ResponseHead { id, status: PENDING, data_at, data_len: 0, room, value: 0 }
    }

    /// Bytes of the whole message.
    #[must_use]
    pub fn message_len(&self) -> usize {
        usize::from(self.data_at) + self.room as usize
    }

    /// The bytes.
    #[must_use]
    pub fn emit(&self) -> [u8; RESPONSE_HEAD] {
        let mut out = [0; RESPONSE_HEAD];
        put(&mut out, 0, &self.status.to_le_bytes());
        put(&mut out, 4, &self.data_at.to_le_bytes());
        put(&mut out, 8, &self.id.to_le_bytes());
        put(&mut out, 16, &self.data_len.to_le_bytes());
        put(&mut out, 20, &self.room.to_le_bytes());
        put(&mut out, 24, &self.value.to_le_bytes());
        out
    }

    /// Reads the head of a message of `len` bytes.
    ///
    /// # Errors
    /// Lengths that do not fit each other, or fields out of range.
    pub fn parse(head: &[u8; RESPONSE_HEAD], len: usize) -> Result<ResponseHead, InvalidMessage> {
        let head_read = ResponseHead {
            id: u64_at(head, 8),
            status: u32_at(head, 0),
            data_at: u16_at(head, 4),
            data_len: u32_at(head, 16),
            room: u32_at(head, 20),
            value: u64_at(head, 24),
        };
        let data_at = usize::from(head_read.data_at);
        let inside = (RESPONSE_HEAD..=RESPONSE_HEAD + ALIGN_MAX).contains(&data_at);
        let known = head_read.status <= ERRNO_MAX || head_read.status == PENDING;
        if !inside || !known || u16_at(head, 6) != 0 || head_read.room as usize > DATA_MAX {
            return Err(InvalidMessage::Field);
        }
        if head_read.message_len() != len || head_read.data_len > head_read.room {
            return Err(InvalidMessage::Length);
        }
        Ok(head_read)
    }

    /// The value, or why not.
    ///
    /// # Errors
    /// [`InvalidMessage::Field`] while it is pending.
    pub fn result(&self) -> Result<Result<u64, Errno>, InvalidMessage> {
        match self.status {
            0 => Ok(Ok(self.value)),
            PENDING => Err(InvalidMessage::Field),
            errno => Ok(Err(Errno::from_raw(errno))),
        }
    }
}

/// An answer as the host reads it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Response<'a> {
    /// Of the request.
    pub id: u64,
    /// The value, or why not.
    pub result: Result<u64, Errno>,
    /// What was read; may be less than was asked for.
    pub data: &'a [u8],
}

impl<'a> Response<'a> {
    /// Reads a message.
    ///
    /// # Errors
    /// As [`ResponseHead::parse`]; a pending status is a [`InvalidMessage::Field`] here.
    pub fn parse(message: &'a [u8]) -> Result<Response<'a>, InvalidMessage> {
        let head = message.first_chunk().ok_or(InvalidMessage::Length)?;
        let head = ResponseHead::parse(head, message.len())?;
        let from = usize::from(head.data_at);
        let data = message.get(from..from + head.data_len as usize);
        let data = data.ok_or(InvalidMessage::Length)?;
        Ok(Response { id: head.id, result: head.result()?, data })
    }
}
