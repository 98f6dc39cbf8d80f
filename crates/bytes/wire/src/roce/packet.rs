//! One packet, read and written.

use outboard_codec::crc32;

use super::{InvalidPacket, Opcode, PORT, Psn};

const BTH_LEN: usize = 12;
/// Bytes of what a write's or a read's first packet has behind the transport header.
pub const RETH_LEN: usize = 16;
const AETH_LEN: usize = 4;
const ICRC_LEN: usize = 4;
/// Bytes a packet has at most beside its payload.
pub const OVERHEAD: usize = BTH_LEN + RETH_LEN + ICRC_LEN;
/// The largest datagram: what IPv4 can carry behind UDP's header, as the loopback does.
pub const MTU_MAX: usize = 65_535 - 28;
const PARTITION: [u8; 2] = [0xFF, 0xFF];
const MIGRATED: u8 = 0x40;
const ASK: u8 = 0x80;

/// Which way a datagram goes: the checksum is over it, too.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Route {
    /// Address of who sends, IPv4.
    pub source: [u8; 4],
    /// Its port.
    pub source_port: u16,
    /// Address of who receives.
    pub destination: [u8; 4],
}

/// What stands between the transport header and the payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Extension {
    /// Nothing: the opcode has none.
    None,
    /// RETH, of a write's first packet and of what asks for bytes.
    Write {
        /// Where, as the receiver counts.
        address: u64,
        /// For which of its regions.
        key: u32,
        /// Bytes of the whole message.
        bytes: u32,
    },
    /// AETH, of an answer.
    Answer {
        /// Kind of the answer, and credits.
        syndrome: u8,
        /// Messages answered so far, 24 bits.
        messages: u32,
    },
}

impl Extension {
    fn len_of(opcode: Opcode) -> usize {
        match opcode {
            Opcode::WriteFirst | Opcode::WriteOnly | Opcode::ReadRequest => RETH_LEN,
            Opcode::ReadFirst | Opcode::ReadLast | Opcode::ReadOnly | Opcode::Acknowledge => {
                AETH_LEN
            }
            _ => 0,
        }
    }

    fn parse(bytes: &[u8]) -> Extension {
        if let Some(&[a @ .., k0, k1, k2, k3, b0, b1, b2, b3]) = bytes.first_chunk::<RETH_LEN>() {
            Extension::Write {
                address: u64::from_be_bytes(a),
                key: u32::from_be_bytes([k0, k1, k2, k3]),
                bytes: u32::from_be_bytes([b0, b1, b2, b3]),
            }
        } else if let Some(&[syndrome, m0, m1, m2]) = bytes.first_chunk::<AETH_LEN>() {
            Extension::Answer { syndrome, messages: u32::from_be_bytes([0, m0, m1, m2]) }
        } else {
            Extension::None
        }
    }

    fn emit(self, into: &mut Vec<u8>) {
        match self {
            Extension::None => {}
            Extension::Write { address, key, bytes } => {
                into.extend_from_slice(&address.to_be_bytes());
                into.extend_from_slice(&key.to_be_bytes());
                into.extend_from_slice(&bytes.to_be_bytes());
            }
            Extension::Answer { syndrome, messages } => {
                let [_, m0, m1, m2] = messages.to_be_bytes();
                into.extend_from_slice(&[syndrome, m0, m1, m2]);
            }
        }
    }

    fn len(self) -> usize {
        match self {
            Extension::None => 0,
            Extension::Write { .. } => RETH_LEN,
            Extension::Answer { .. } => AETH_LEN,
        }
    }
}

/// One packet of a flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Packet<'a> {
    /// What it is.
    pub opcode: Opcode,
    /// The receiver is to be interrupted for it.
    pub solicited: bool,
    /// The receiver is to answer it.
    pub asks: bool,
    /// The receiver's end of the flow, 24 bits.
    pub queue: u32,
    /// Its number.
    pub psn: Psn,
    /// What its opcode has behind the transport header.
    pub extension: Extension,
    /// The bytes it carries, without padding.
    pub payload: &'a [u8],
}

impl<'a> Packet<'a> {
    /// Reads a datagram that came by `route`.
    ///
    /// # Errors
    /// [`InvalidPacket`], by the first thing that is wrong; the checksum is looked at last.
    pub fn parse(datagram: &'a [u8], route: Route) -> Result<Packet<'a>, InvalidPacket> {
        if datagram.len() > MTU_MAX {
            return Err(InvalidPacket::Length);
        }
        let (body, icrc) = datagram.split_last_chunk::<ICRC_LEN>().ok_or(InvalidPacket::Length)?;
        let (bth, rest) = body.split_first_chunk::<BTH_LEN>().ok_or(InvalidPacket::Length)?;
        let &[opcode, flags, p0, p1, reserved, q0, q1, q2, asks, n0, n1, n2] = bth;
        let opcode = Opcode::parse(opcode).ok_or(InvalidPacket::Opcode)?;
        let is_known = flags & 0x4F == MIGRATED && [p0, p1] == PARTITION;
        if !is_known || reserved != 0 || asks & !ASK != 0 {
            return Err(InvalidPacket::Field);
        }
        let behind = Extension::len_of(opcode);
        let (extension, padded) = rest.split_at_checked(behind).ok_or(InvalidPacket::Length)?;
        let padding = usize::from(flags >> 4 & 3);
        let bytes = padded.len().checked_sub(padding).ok_or(InvalidPacket::Length)?;
        let (payload, padding) = padded.split_at_checked(bytes).ok_or(InvalidPacket::Length)?;
        if opcode == Opcode::Acknowledge && !padded.is_empty() {
            return Err(InvalidPacket::Length);
        }
        // One way to write each packet, and so one to read it.
        if !padded.len().is_multiple_of(4) || padding.iter().any(|byte| *byte != 0) {
            return Err(InvalidPacket::Field);
        }
        if u32::from_le_bytes(*icrc) != self::icrc(body, route) {
            return Err(InvalidPacket::Icrc);
        }
        Ok(Packet {
            opcode,
            solicited: flags & 0x80 != 0,
            asks: asks != 0,
            queue: u32::from_be_bytes([0, q0, q1, q2]),
            psn: Psn(u32::from_be_bytes([0, n0, n1, n2])),
            extension: Extension::parse(extension),
            payload,
        })
    }

    /// Writes it behind what `into` holds, as it goes by `route`.
    ///
    /// # Errors
    /// [`InvalidPacket::Field`] if its extension is not its opcode's or a number has more than 24
    /// bits, [`InvalidPacket::Length`] if it is longer than [`MTU_MAX`] or an acknowledgement that
    /// carries something; then nothing is written.
    pub fn emit(&self, route: Route, into: &mut Vec<u8>) -> Result<(), InvalidPacket> {
        let messages = match self.extension {
            Extension::Answer { messages, .. } => messages,
            Extension::None | Extension::Write { .. } => 0,
        };
        let is_fit = self.extension.len() == Extension::len_of(self.opcode);
        if !is_fit || self.queue > Psn::MASK || messages > Psn::MASK {
            return Err(InvalidPacket::Field);
        }
        let padded = self.payload.len().next_multiple_of(4);
        let is_bare = self.opcode != Opcode::Acknowledge || padded == 0;
        if !is_bare || BTH_LEN + self.extension.len() + padded + ICRC_LEN > MTU_MAX {
            return Err(InvalidPacket::Length);
        }
        let padding = padded - self.payload.len();
        let begin = into.len();
        let solicited = if self.solicited { 0x80 } else { 0 };
        let flags = solicited | MIGRATED | u8::try_from(padding).unwrap_or(0) << 4;
        let [_, q0, q1, q2] = self.queue.to_be_bytes();
        let [_, n0, n1, n2] = self.psn.0.to_be_bytes();
        let asks = if self.asks { ASK } else { 0 };
        let [p0, p1] = PARTITION;
        into.extend([self.opcode as u8, flags, p0, p1, 0, q0, q1, q2, asks, n0, n1, n2]);
        self.extension.emit(into);
        into.extend_from_slice(self.payload);
        into.resize(into.len() + padding, 0);
        let icrc = icrc(into.get(begin..).unwrap_or_default(), route);
        into.extend_from_slice(&icrc.to_le_bytes());
        Ok(())
    }
}

/// The invariant CRC of a datagram whose bytes before it are `body`: with ones where something
/// changes on the way.
fn icrc(body: &[u8], route: Route) -> u32 {
    // Lengths fit: nothing longer than `MTU_MAX` comes here.
    let udp = u16::try_from(8 + body.len() + ICRC_LEN).unwrap_or(u16::MAX);
    let [l0, l1] = udp.saturating_add(20).to_be_bytes();
    // Of the IPv4 header: type of service, time to live and checksum.
    let ip = [0x45, 0xFF, l0, l1, 0, 0, 0x40, 0, 0xFF, 17, 0xFF, 0xFF];
    let ([s0, s1], [d0, d1]) = (route.source_port.to_be_bytes(), PORT.to_be_bytes());
    let [u0, u1] = udp.to_be_bytes();
    let ports = [s0, s1, d0, d1, u0, u1, 0xFF, 0xFF];
    // Of the transport header: congestion marks.
    let (before, after) = body.split_at_checked(4).unwrap_or_default();
    let after = after.get(1..).unwrap_or_default();
    // Where InfiniBand's local route header would be.
    let local = [0xFF; 8];
    let all = [&local[..], &ip, &route.source, &route.destination, &ports, before, &[0xFF]];
    // Together: to begin anew with each costs more than what most packets carry.
    let mut head = [0; 41];
    head.iter_mut().zip(all.into_iter().flatten()).for_each(|(to, byte)| *to = *byte);
    crc32(&[&head, after])
}
