//! Who is who: names of the parts of a cluster, and the datagrams that open a conversation.
//!
//! ```text
//! opening  0 "OO" | 2 version u8 | 3 step u8 (1 open, 2 opened, 3 refused) | 4 payload u16 |
//!          6 sealed u8 (0, 1) | 7 0 | 8 cluster u64 | 16 from u64 | 24 to u64 | 32 life u64 |
//!          40 life seen u64 | 48 queue u32 | 52 first number u32 | 56 nonce u64 |
//!          64 MAC, 16 bytes, of all before it
//! peer     u64: role in the top byte (1 server, 2 node, 3 client, 4 coordinator), its number below
//! ```
//!
//! Little-endian. An opening goes to the port of packets, alone in its datagram, and cannot be
//! taken for one: a packet begins with its opcode, and `O` (0x4F) is that of no reliable
//! connection, so [`Packet::parse`](crate::roce::Packet::parse) refuses it by its first byte, as
//! [`Opening::parse`] refuses every packet.

#[cfg(test)]
mod tests;

use outboard_codec::mac;

use super::{InvalidMessage, MAC_LEN, VERSION, zeros};
use crate::cursor::{bytes, u16_at, u32_at, u64_at};
use crate::roce::{MTU_MAX, OVERHEAD, Psn};

/// Bytes of an opening.
pub const OPENING_LEN: usize = SIGNED_LEN + MAC_LEN;
const SIGNED_LEN: usize = 64;
const MAGIC: [u8; 2] = *b"OO";
/// Numbers of queues and packets have 24 bits.
const MOST_24: u32 = 0x00FF_FFFF;
const NUMBER_BITS: u32 = 56;

/// A part of a cluster, by its role and number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Peer {
    /// The metadata server of a slice.
    Server(u16),
    /// A storage node.
    Node(u16),
    /// A client: a DPU side, a process of its own, or somebody who looks. Chosen at random, of 56
    /// bits: those above them do not travel.
    Client(u64),
    /// Who keeps which parts there are.
    Coordinator(u16),
}

impl Peer {
    /// It as a number.
    #[must_use]
    pub fn encode(self) -> u64 {
        let (role, number) = match self {
            Peer::Server(number) => (1, u64::from(number)),
            Peer::Node(number) => (2, u64::from(number)),
            Peer::Client(number) => (3, number & (u64::MAX >> (u64::BITS - NUMBER_BITS))),
            Peer::Coordinator(number) => (4, u64::from(number)),
        };
        role << NUMBER_BITS | number
    }

    /// Whose number it is.
    ///
    /// # Errors
    /// [`InvalidMessage::Field`] if it is nobody's.
    pub fn decode(raw: u64) -> Result<Peer, InvalidMessage> {
        let number = raw & (u64::MAX >> (u64::BITS - NUMBER_BITS));
        let short = || u16::try_from(number).map_err(|_| InvalidMessage::Field);
        match raw >> NUMBER_BITS {
            1 => short().map(Peer::Server),
            2 => short().map(Peer::Node),
            3 => Ok(Peer::Client(number)),
            4 => short().map(Peer::Coordinator),
            _ => Err(InvalidMessage::Field),
        }
    }
}

impl std::fmt::Display for Peer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Peer::Server(number) => write!(f, "server {number}"),
            Peer::Node(number) => write!(f, "node {number}"),
            Peer::Client(number) => write!(f, "client {number:x}"),
            Peer::Coordinator(number) => write!(f, "coordinator {number}"),
        }
    }
}

/// What an opening is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Step {
    /// A conversation is wished.
    Open = 1,
    /// It is open.
    Opened = 2,
    /// It is not.
    Refused = 3,
}

/// One datagram of the opening of a conversation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Opening {
    /// What it is for.
    pub step: Step,
    /// In which cluster.
    pub cluster: u64,
    /// Who sends it.
    pub from: Peer,
    /// Whom it is meant for.
    pub to: Peer,
    /// The life of who sends it; never 0.
    pub life: u64,
    /// The life of the other end that it knows, 0 if it knows none.
    pub life_seen: u64,
    /// The queue its packets are to come to, 24 bits, chosen by who sends this.
    pub queue: u32,
    /// The first number it will use.
    pub first: Psn,
    /// Bytes of payload of a full packet, a multiple of 4; 0 in a refusal only.
    pub payload: u16,
    /// Packets carry a MAC.
    pub sealed: bool,
    /// Chosen by who opens; who answers repeats it.
    pub nonce: u64,
    /// Over all of the above.
    pub mac: [u8; MAC_LEN],
}

impl Opening {
    /// Reads a datagram. Whether its MAC is right is asked of [`Opening::is_signed_by`].
    ///
    /// # Errors
    /// [`InvalidMessage`].
    pub fn parse(datagram: &[u8]) -> Result<Opening, InvalidMessage> {
        let whole: &[u8; OPENING_LEN] = datagram.try_into().map_err(|_| InvalidMessage::Length)?;
        let &[m0, m1, version, step, _, _, sealed, zero, ..] = whole;
        if [m0, m1] != MAGIC || version != VERSION {
            return Err(InvalidMessage::Version);
        }
        zeros(&[zero])?;
        let step = match step {
            1 => Step::Open,
            2 => Step::Opened,
            3 => Step::Refused,
            _ => return Err(InvalidMessage::Operation),
        };
        let (life, payload) = (u64_at(whole, 32)?, u16_at(whole, 4)?);
        let (queue, first) = (u32_at(whole, 48)?, u32_at(whole, 52)?);
        let is_carrying = payload > 0 || step == Step::Refused;
        // A full packet has no padding.
        let is_whole = payload.is_multiple_of(4) && usize::from(payload) <= MTU_MAX - OVERHEAD;
        if !is_carrying
            || !is_whole
            || sealed > 1
            || life == 0
            || queue > MOST_24
            || first > MOST_24
        {
            return Err(InvalidMessage::Field);
        }
        let mac = bytes(whole, SIGNED_LEN, MAC_LEN)?;
        Ok(Opening {
            step,
            cluster: u64_at(whole, 8)?,
            from: Peer::decode(u64_at(whole, 16)?)?,
            to: Peer::decode(u64_at(whole, 24)?)?,
            life,
            life_seen: u64_at(whole, 40)?,
            queue,
            first: Psn::new(first),
            payload,
            sealed: sealed == 1,
            nonce: u64_at(whole, 56)?,
            mac: mac.try_into().map_err(|_| InvalidMessage::Length)?,
        })
    }

    /// The bytes its MAC is over.
    #[must_use]
    pub fn signed(&self) -> [u8; SIGNED_LEN] {
        let ([m0, m1], [p0, p1]) = (MAGIC, self.payload.to_le_bytes());
        let fields: [&[u8]; 9] = [
            &[m0, m1, VERSION, self.step as u8, p0, p1, u8::from(self.sealed), 0],
            &self.cluster.to_le_bytes(),
            &self.from.encode().to_le_bytes(),
            &self.to.encode().to_le_bytes(),
            &self.life.to_le_bytes(),
            &self.life_seen.to_le_bytes(),
            &self.queue.to_le_bytes(),
            &self.first.raw().to_le_bytes(),
            &self.nonce.to_le_bytes(),
        ];
        let mut out = [0; SIGNED_LEN];
        for (to, from) in out.iter_mut().zip(fields.into_iter().flatten()) {
            *to = *from;
        }
        out
    }

    /// The same, with the MAC of `key`.
    #[must_use]
    pub fn sign(self, key: &[u8; 32]) -> Opening {
        Opening { mac: mac::tag(key, &[&self.signed()]), ..self }
    }

    /// Whether its MAC is that of `key`.
    #[must_use]
    pub fn is_signed_by(&self, key: &[u8; 32]) -> bool {
        mac::is_tag(key, &[&self.signed()], &self.mac)
    }

    /// Its bytes.
    #[must_use]
    pub fn emit(&self) -> [u8; OPENING_LEN] {
        let mut out = [0; OPENING_LEN];
        let all = self.signed().into_iter().chain(self.mac);
        out.iter_mut().zip(all).for_each(|(to, from)| *to = from);
        out
    }
}
