//! Messages of the page server's rings (DDS, sections 4.1 and 4.2; rows D1-D7).
//!
//! ```text
//! frame     0 length u32 | 4 stamp u32 | 8 message: `length` bytes | 0 to the next multiple of 8
//! request   0 opcode u8 | 1 0 | 2 data_at u16 | 4 data_len u32 | 8 id | 16 file or directory u32 |
//!           20 bytes u32 | 24 offset | 32 unused | data_at: data, data_len bytes, the end
//! response  0 status u32 | 4 data_at u16 | 6 0 | 8 id | 16 data_len u32 | 20 room u32 | 24 value |
//!           32 unused | data_at: data, then unused up to `room` bytes, the end
//! listed    0 id u32 | 4 0 u16 | 6 name length u16 | 8 size | 16 name | 0 to a multiple of 8
//! stamp     0 always 1 | 1-30 position / 8 | 31 nothing here: pass over it
//! ```
//!
//! Little-endian. Every frame begins at a multiple of 8 and is whole: one that would reach beyond
//! the end of a ring's bytes is preceded by a frame of nothing up to that end. The stamp says for
//! which position a frame was written, so that bytes of an earlier lap are not taken for it. Data
//! begins where its alignment asks for, so that it can go to a device, or come from it, where it
//! lies; `data_at` counts from the message's first byte.

mod frame;
mod listed;
mod request;
mod response;
#[cfg(test)]
mod tests;

pub use frame::{FRAME_HEAD, Frame, Stamp, frame_len, frames};
pub use listed::{Listed, Listing, put_listed};
pub use request::{Opcode, REQUEST_HEAD, Refused, Request};
pub use response::{PENDING, RESPONSE_HEAD, Response, ResponseHead};

/// A file of the page server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct FileId(pub u32);

/// A directory of the page server. Directories are flat: they hold files and nothing else.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct DirectoryId(pub u32);

impl DirectoryId {
    /// What all directories are listed under; it holds no files.
    pub const ROOT: DirectoryId = DirectoryId(0);
}

/// Longest name of a file or directory, bytes.
pub const NAME_MAX: usize = 255;
/// Most bytes of one read or write.
pub const DATA_MAX: usize = 1 << 20;
/// Largest alignment of data, bytes.
pub const ALIGN_MAX: usize = 4096;
/// Fewest notification groups of an attachment: one for the library's own requests, one for the
/// application's.
pub const GROUPS_MIN: u16 = 2;
/// Most.
pub const GROUPS_MAX: u16 = 64;
/// Shortest ring of requests or responses, bytes: a page.
pub const RING_MIN: u64 = 4096;
/// Longest.
pub const RING_MAX: u64 = 1 << 30;

/// Why bytes are no message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InvalidMessage {
    /// It ends before its fields, or its data does not lie where it says.
    Length,
    /// There is no such operation.
    Opcode,
    /// A field that is zero in this version is not, or a value is out of its range.
    Field,
    /// The frame was written for another place of the ring.
    Stamp,
}

impl std::fmt::Display for InvalidMessage {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            InvalidMessage::Length => "a ring message has a length that does not fit",
            InvalidMessage::Opcode => "a ring message asks for an unknown operation",
            InvalidMessage::Field => "a ring message has a field out of range",
            InvalidMessage::Stamp => "a ring message was written for another place",
        })
    }
}

impl std::error::Error for InvalidMessage {}

/// Where data of alignment `align` begins in a message whose first byte lies at `position` of its
/// ring, if its head takes `head` bytes. An `align` that is no power of two counts as 8.
#[must_use]
pub fn data_at(position: u64, head: usize, align: usize) -> usize {
    let align = if align.is_power_of_two() && align <= ALIGN_MAX { align } else { 8 } as u64;
    let begins = (position + head as u64).next_multiple_of(align);
    usize::try_from(begins - position).unwrap_or(head)
}
