//! Messages of shared volumes: what the first packet of a request to a node has before its data,
//! and what a node answers (NetDFS sections III and IV; checklist rows N1, N4 and N10).
//!
//! ```text
//! request   head 32 | capability 80 | write head 56 + 16 n, read head 32 or
//!           hole head 48 | data
//! head      0 "OD" | 2 version u8 | 3 operation u8 | 4 0 u16 | 6 bytes of all heads u16 |
//!           8 request u64 | 16 bytes of data u32 | 20 group epoch u32 | 24 settled u32 |
//!           28 hop u32
//! capability 0 version u8 | 1 key u8 | 2 rights u16 | 4 volume u32 | 8 object u64 | 16 first u64 |
//!           24 end u64 | 32 client u64 | 40 fence u64 | 48 group u32 | 52 strategy, k, m, 0 u8 |
//!           56 expires u64, ms of Unix time | 64 MAC, 16 bytes
//! write     0 strategy, rank, n, k u8 | 4 unit u8 | 5 role u8 | 6 0 | 8 offset u64 |
//!           16 bytes u32 | 20 sequence u32 | 24 previous u32 | 28 CRC-32C of the data u32 |
//!           32 session u64 | 40 request's sequence u64 | 48 lane u16 | 50 0 | 56 n coordinates
//! coordinate 0 address, IPv4 | 4 port u16 | 6 node u16 | 8 unit u8 | 9 role u8 | 10 0
//! read      0 offset u64 | 8 bytes u32 | 12 unit u16 | 14 flags u16 (1: map) | 16 0
//! hole      0 offset u64 | 8 end u64 | 16 sequence u32 | 20 previous u32 | 24 session u64 |
//!           32 request's sequence u64 | 40 lane u16 | 42 n u8 (0: a hole) | 43 place u8 |
//!           44 log2 of a strip u8 | 45 0
//! answer    0 "OA" | 2 version u8 | 3 0 | 4 bytes of data u32 | 8 request u64 | 16 rank u8 |
//!           17 status u8 | 18 reason u16 | 20 sequence u32 | 24 group epoch u32 | 28 credit u32 |
//!           32 fence u64 | 40 bytes of the object u64 | 48 the data of a read
//! map       of each run of data: first byte u64, one behind its last u64
//! ```
//!
//! Little-endian. Operations are 1 write, 2 read, 3 hole. The version of a write or a hole is the
//! fence of its capability and its sequence. A hole with a share puts space aside instead: for
//! strips `i` of its bytes with `i mod n` the place. Any message is a SEND if it fits a packet,
//! else a WRITE; its first two bytes say what it is ([`MessageKind`]). An answer is a message of
//! its own, since an acknowledgement of a reliable connection carries nothing.
//! All heads of a request stand in its first packet, so `n` is at most 20 and they at most
//! [`HEADS_MAX`] bytes. *n* counts who shares the write: the receivers a node forwards to are
//! found in the coordinates by strategy and rank. With parities (strategy 3) the coordinates are
//! those of the `k` data units and then of the `n - k` parities, each with its number as its unit
//! and with its role; the head has the role of its receiver, and as its unit the data unit whose
//! bytes, or whose parts, it brings. The MAC is over the 64 bytes before it; who makes
//! and checks it has the key. What a decoder accepts is whole, in range and without overflow;
//! whether it is allowed is the node's to say.

mod answer;
pub mod call;
mod capability;
mod heads;
mod opening;
mod request;
mod spread;
#[cfg(test)]
mod tests;

pub use answer::{ANSWER_LEN, Answer, Reason};
pub use capability::{CAPABILITY_LEN, Capability, MAC_LEN, Rights};
pub use heads::{
    Brings, COORDINATE_LEN, Coordinate, Coordinates, HEAD_LEN, Head, READ_LEN, ReadHead,
};
pub use heads::{HOLE_LEN, HoleHead, RESERVE_MAX, RUN_LEN, Share, WRITE_LEN, WriteHead};
pub use opening::{OPENING_LEN, Opening, Peer, Step};
pub use request::{Heads, Request, Target};
pub use spread::SUCCESSORS_MAX;

/// Version of every format here.
pub const VERSION: u8 = 1;
/// Most copies, and most data units of a stripe.
pub const FAN_MAX: usize = 16;
/// Most parity units of a stripe.
pub const PARITY_MAX: usize = 4;
/// Most coordinates of a write.
pub const MEMBERS_MAX: usize = FAN_MAX + PARITY_MAX;
/// Most bytes of all heads of a request.
pub const HEADS_MAX: usize = HEAD_LEN + CAPABILITY_LEN + WRITE_LEN + MEMBERS_MAX * COORDINATE_LEN;
/// Most bytes of data of one message: a strip.
pub const DATA_MAX: u32 = 1 << 20;

/// Why bytes are no message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InvalidMessage {
    /// It ends before its heads, or they are not as long as they say.
    Length,
    /// It is of another protocol or version.
    Version,
    /// There is no such operation.
    Operation,
    /// A field is out of range, or not zero where it must be.
    Field,
    /// A range goes on behind the last byte there can be, or ends before it begins.
    Range,
    /// A node stands twice among the coordinates.
    Loop,
}

impl std::fmt::Display for InvalidMessage {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            InvalidMessage::Length => "a message has a length that does not fit",
            InvalidMessage::Version => "a message is of another version",
            InvalidMessage::Operation => "a message asks for an unknown operation",
            InvalidMessage::Field => "a message has a field out of range",
            InvalidMessage::Range => "a message names a range that cannot be",
            InvalidMessage::Loop => "a message would come to one node twice",
        })
    }
}

impl std::error::Error for InvalidMessage {}

impl From<outboard_base::Errno> for InvalidMessage {
    /// Reading a field fails for one reason only.
    fn from(_: outboard_base::Errno) -> Self {
        InvalidMessage::Length
    }
}

/// What a message is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MessageKind {
    /// A request to a node: [`Request`].
    Request,
    /// A node's answer to one: [`Answer`].
    Answer,
    /// A call, or a reply to one: [`call::CallHead`].
    Call,
}

impl MessageKind {
    /// What a message that begins with these bytes is.
    #[must_use]
    pub fn of(first_bytes: &[u8]) -> Option<MessageKind> {
        match *first_bytes.first_chunk()? {
            heads::MAGIC => Some(MessageKind::Request),
            answer::MAGIC => Some(MessageKind::Answer),
            call::MAGIC => Some(MessageKind::Call),
            _ => None,
        }
    }
}

/// How a write spreads over nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Strategy {
    /// One copy.
    Single = 0,
    /// Each node forwards to the next one.
    Ring = 1,
    /// Node `r` forwards to `2r + 1` and `2r + 2`.
    BinaryTree = 2,
    /// Data nodes send intermediate parities to the parity nodes (streaming TriEC).
    Parity = 3,
}

impl Strategy {
    /// All of them.
    pub const ALL: [Strategy; 4] =
        [Strategy::Single, Strategy::Ring, Strategy::BinaryTree, Strategy::Parity];

    fn parse(raw: u8) -> Result<Strategy, InvalidMessage> {
        let all = Strategy::ALL.into_iter();
        all.into_iter().find(|known| *known as u8 == raw).ok_or(InvalidMessage::Field)
    }
}

/// What a unit of a stripe is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Role {
    /// Data.
    Data = 0,
    /// Parity.
    Parity = 1,
}

impl Role {
    fn parse(raw: u8) -> Result<Role, InvalidMessage> {
        match raw {
            0 => Ok(Role::Data),
            1 => Ok(Role::Parity),
            _ => Err(InvalidMessage::Field),
        }
    }
}

/// The bytes `offset..offset + bytes`, 1 to [`DATA_MAX`] of them.
fn range(offset: u64, bytes: u32) -> Result<std::ops::Range<u64>, InvalidMessage> {
    if bytes == 0 || bytes > DATA_MAX {
        return Err(InvalidMessage::Field);
    }
    let end = offset.checked_add(u64::from(bytes)).ok_or(InvalidMessage::Range)?;
    Ok(offset..end)
}

/// Zero bytes where nothing is in this version.
fn zeros(bytes: &[u8]) -> Result<(), InvalidMessage> {
    if bytes.iter().all(|byte| *byte == 0) { Ok(()) } else { Err(InvalidMessage::Field) }
}
