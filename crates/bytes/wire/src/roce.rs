//! RoCEv2 packets: what InfiniBand's reliable connection says, in datagrams of UDP port 4791
//! (InfiniBand architecture, annex A17; NetDFS section IV, checklist row N1).
//!
//! ```text
//! datagram  BTH 12 | RETH 16 or AETH 4, by the opcode | payload | 0 to 3 of padding | ICRC 4
//! BTH       0 opcode u8 | 1 solicited 1 bit, migrated 1 (always 1), padding 2, version 4 (0) |
//!           2 partition u16 (FFFF) | 4 0 | 5 queue u24 | 8 ask for an answer 1 bit, 0 | 9 psn u24
//! RETH      0 address u64 | 8 key u32 | 12 bytes of the message u32
//! AETH      0 syndrome u8 | 1 messages answered u24
//! ICRC      CRC-32 over 8 bytes of ones, the IPv4 header, the UDP header and the datagram before
//!           it, with all that routers change as ones
//! ```
//!
//! Big-endian but for the ICRC. The IPv4 header is the one a card would send: no options, don't
//! fragment, identification 0. A kernel's socket may send another identification; both ends here
//! compute with 0, and a card would see a wrong ICRC then.

mod packet;
#[cfg(test)]
mod tests;

pub use packet::{Extension, MTU_MAX, OVERHEAD, Packet, RETH_LEN, Route};

/// The port every datagram goes to.
pub const PORT: u16 = 4791;

/// Why a datagram is no packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InvalidPacket {
    /// It ends before its headers, or is longer than any packet.
    Length,
    /// An opcode that is not of a reliable connection, or none of those in use.
    Opcode,
    /// A field that has one value has another.
    Field,
    /// Its bytes are not those that were sent, or went another way.
    Icrc,
}

impl std::fmt::Display for InvalidPacket {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            InvalidPacket::Length => "a packet has a length that does not fit",
            InvalidPacket::Opcode => "a packet has an opcode that is not in use",
            InvalidPacket::Field => "a packet has a field out of range",
            InvalidPacket::Icrc => "a packet was changed on its way",
        })
    }
}

impl std::error::Error for InvalidPacket {}

/// What a packet is, by the numbers of a reliable connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Opcode {
    /// The first of several packets of a message.
    SendFirst = 0x00,
    /// Neither the first nor the last.
    SendMiddle = 0x01,
    /// The last.
    SendLast = 0x02,
    /// A message of one packet.
    SendOnly = 0x04,
    /// The first packet of a write; [`Extension::Write`].
    WriteFirst = 0x06,
    /// Neither the first nor the last.
    WriteMiddle = 0x07,
    /// The last.
    WriteLast = 0x08,
    /// A write of one packet; [`Extension::Write`].
    WriteOnly = 0x0A,
    /// Asks for bytes; [`Extension::Write`] says how many.
    ReadRequest = 0x0C,
    /// The first packet of what was read; [`Extension::Answer`].
    ReadFirst = 0x0D,
    /// Neither the first nor the last.
    ReadMiddle = 0x0E,
    /// The last; [`Extension::Answer`].
    ReadLast = 0x0F,
    /// What was read in one packet; [`Extension::Answer`].
    ReadOnly = 0x10,
    /// Answers what asked for it, and carries nothing; [`Extension::Answer`].
    Acknowledge = 0x11,
}

impl Opcode {
    /// All of them.
    pub const ALL: [Opcode; 14] = [
        Opcode::SendFirst,
        Opcode::SendMiddle,
        Opcode::SendLast,
        Opcode::SendOnly,
        Opcode::WriteFirst,
        Opcode::WriteMiddle,
        Opcode::WriteLast,
        Opcode::WriteOnly,
        Opcode::ReadRequest,
        Opcode::ReadFirst,
        Opcode::ReadMiddle,
        Opcode::ReadLast,
        Opcode::ReadOnly,
        Opcode::Acknowledge,
    ];

    fn parse(raw: u8) -> Option<Opcode> {
        Opcode::ALL.into_iter().find(|opcode| *opcode as u8 == raw)
    }

    /// Whether a message begins with it.
    #[must_use]
    pub fn is_first(self) -> bool {
        !matches!(
            self,
            Opcode::SendMiddle
                | Opcode::SendLast
                | Opcode::WriteMiddle
                | Opcode::WriteLast
                | Opcode::ReadMiddle
                | Opcode::ReadLast
        )
    }

    /// Whether a message ends with it.
    #[must_use]
    pub fn is_last(self) -> bool {
        !matches!(
            self,
            Opcode::SendFirst
                | Opcode::SendMiddle
                | Opcode::WriteFirst
                | Opcode::WriteMiddle
                | Opcode::ReadFirst
                | Opcode::ReadMiddle
        )
    }
}

/// The number of a packet of a flow, 24 bits that go round.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Psn(u32);

impl Psn {
    const MASK: u32 = 0x00FF_FFFF;

    /// The low 24 bits of `raw`.
    #[must_use]
    pub const fn new(raw: u32) -> Psn {
        Psn(raw & Psn::MASK)
    }

    /// The number.
    #[must_use]
    pub fn raw(self) -> u32 {
        self.0
    }

    /// The one `count` behind it.
    #[must_use]
    pub fn plus(self, count: u32) -> Psn {
        Psn::new(self.0.wrapping_add(count))
    }

    /// How far it is ahead of `other`, negative if it is behind: -2^23 to 2^23 - 1.
    #[must_use]
    pub fn ahead_of(self, other: Psn) -> i32 {
        // The difference in the upper 24 bits keeps its sign when it is shifted down.
        (self.0.wrapping_sub(other.0) << 8).cast_signed() >> 8
    }
}
