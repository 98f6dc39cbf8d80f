//! MACs of packets, in a conversation whose ends asked for them.
//!
//! ```text
//! packet  payload, and 8 bytes of the tag of: number u64 | queue u32 | opcode u8 | flags u8 |
//!         what stands between header and payload | payload
//! ```
//!
//! The number is the packet's with the rounds that its 24 bits have made, so a packet of a round
//! before is none of this one. Each direction has a key. An acknowledgement carries nothing by its
//! format, so a sealed one travels as what was read in one packet (`ReadOnly`), which has the same
//! fields and may carry the tag.

use outboard_codec::mac;
use outboard_wire::roce::{Extension, InvalidPacket, Opcode, Packet, Psn, Route};

/// Bytes of a tag.
pub(super) const SEAL_LEN: usize = 8;

/// What seals one end's packets, and opens the other's.
pub(super) struct Seal {
    ours: [u8; 32],
    theirs: [u8; 32],
    /// The highest numbers of packets sent and received, with their rounds.
    sent: Rounds,
    received: Rounds,
}

/// A number of which the low 24 bits travel.
#[derive(Clone, Copy)]
struct Rounds(u64);

impl Rounds {
    /// Nothing is near round 0, so none before it is needed.
    fn new(first: Psn) -> Rounds {
        Rounds(1 << 24 | u64::from(first.raw()))
    }

    /// The whole number of `psn`, which is near.
    fn of(self, psn: Psn) -> u64 {
        let low = Psn::new(u32::try_from(self.0 & 0x00FF_FFFF).unwrap_or(0));
        self.0.saturating_add_signed(i64::from(psn.ahead_of(low)))
    }

    fn saw(&mut self, psn: Psn) {
        self.0 = self.0.max(self.of(psn));
    }
}

impl Seal {
    /// With the key of a conversation; `is_lesser` says which end this is.
    pub(super) fn new(key: &[u8; 32], is_lesser: bool, ours: Psn, theirs: Psn) -> Seal {
        let (lesser, greater) = (mac::derive(key, "lesser", &[]), mac::derive(key, "greater", &[]));
        let (sent, received) = (Rounds::new(ours), Rounds::new(theirs));
        if is_lesser {
            Seal { ours: lesser, theirs: greater, sent, received }
        } else {
            Seal { ours: greater, theirs: lesser, sent, received }
        }
    }

    /// Writes a packet behind what `into` holds, sealed; `carried` is room for what it carries.
    pub(super) fn emit(
        &mut self,
        packet: &Packet<'_>,
        route: Route,
        carried: &mut Vec<u8>,
        into: &mut Vec<u8>,
    ) -> Result<(), InvalidPacket> {
        // An acknowledgement names a number of the other end's.
        let is_answer = packet.opcode == Opcode::Acknowledge;
        let rounds = if is_answer { self.received } else { self.sent };
        let opcode = if is_answer { Opcode::ReadOnly } else { packet.opcode };
        let packet = Packet { opcode, ..*packet };
        let tag = tag(&self.ours, rounds.of(packet.psn), &packet);
        if !is_answer {
            self.sent.saw(packet.psn);
        }
        carried.clear();
        carried.extend_from_slice(packet.payload);
        carried.extend_from_slice(&tag);
        Packet { payload: carried, ..packet }.emit(route, into)
    }

    /// The packet that was sealed, if it was.
    pub(super) fn open<'a>(&mut self, packet: &Packet<'a>) -> Option<Packet<'a>> {
        let (payload, found) = packet.payload.split_last_chunk::<SEAL_LEN>()?;
        let mut inner = Packet { payload, ..*packet };
        let is_answer = match packet.opcode {
            Opcode::Acknowledge => return None,
            Opcode::ReadOnly => true,
            _ => false,
        };
        let rounds = if is_answer { self.sent } else { self.received };
        let tag = tag(&self.theirs, rounds.of(packet.psn), &inner);
        let differs =
            tag.iter().zip(found).fold(0, |differs, (one, other)| differs | (one ^ other));
        if std::hint::black_box(differs) != 0 || (is_answer && !payload.is_empty()) {
            return None;
        }
        if is_answer {
            inner.opcode = Opcode::Acknowledge;
        } else {
            self.received.saw(packet.psn);
        }
        Some(inner)
    }
}

fn tag(key: &[u8; 32], number: u64, packet: &Packet<'_>) -> [u8; SEAL_LEN] {
    let flags = u8::from(packet.asks) | u8::from(packet.solicited) << 1;
    let (address, low, bytes) = match packet.extension {
        Extension::None => (0, 0, 0),
        Extension::Write { address, key, bytes } => (address, key, bytes),
        Extension::Answer { syndrome, messages } => (0, u32::from(syndrome), messages),
    };
    // All parts but the last have one length each, and the opcode tells which extension it is.
    let whole = mac::tag(
        key,
        &[
            &number.to_le_bytes(),
            &packet.queue.to_le_bytes(),
            &[packet.opcode as u8, flags],
            &address.to_le_bytes(),
            &low.to_le_bytes(),
            &bytes.to_le_bytes(),
            packet.payload,
        ],
    );
    let mut tag = [0; SEAL_LEN];
    tag.iter_mut().zip(whole).for_each(|(to, from)| *to = from);
    tag
}

#[cfg(test)]
mod tests {
    use super::*;

    const ROUTE: Route =
        Route { source: [10, 0, 0, 1], source_port: 4791, destination: [10, 0, 0, 2] };

    fn pair(first: Psn) -> (Seal, Seal) {
        let (key, other) = ([3; 32], Psn::new(9));
        (Seal::new(&key, true, first, other), Seal::new(&key, false, other, first))
    }

    fn packet(psn: Psn, payload: &[u8]) -> Packet<'_> {
        let (opcode, extension) = (Opcode::SendOnly, Extension::None);
        Packet { opcode, solicited: false, asks: true, queue: 5, psn, extension, payload }
    }

    fn emitted(seal: &mut Seal, packet: &Packet<'_>) -> Vec<u8> {
        let (mut carried, mut out) = (Vec::new(), Vec::new());
        seal.emit(packet, ROUTE, &mut carried, &mut out).expect("it fits");
        out
    }

    /// A packet's number comes again after sixteen million others; the packet does not.
    #[test]
    fn a_packet_of_a_round_before_is_none_of_this() {
        let first = Psn::new(0x00FF_FFF0);
        let (mut sends, mut receives) = pair(first);
        let early = emitted(&mut sends, &packet(first, b"once"));
        let early = Packet::parse(&early, ROUTE).expect("a packet");
        for step in 0..8 {
            let psn = first.plus(step << 21);
            let datagram = emitted(&mut sends, &packet(psn, b"more"));
            let sealed = Packet::parse(&datagram, ROUTE).expect("a packet");
            assert_eq!(receives.open(&sealed), Some(packet(psn, b"more")), "{step}");
            assert_eq!(receives.open(&early).is_some(), step <= 4, "a number near: {step}");
        }
        let again = emitted(&mut sends, &packet(first, b"once"));
        let again = Packet::parse(&again, ROUTE).expect("a packet");
        assert_eq!(again.psn, early.psn);
        assert_eq!((receives.open(&again).is_some(), receives.open(&early)), (true, None));
    }

    #[test]
    fn a_packet_does_not_come_back_as_one_of_the_other_end() {
        let first = Psn::new(9);
        let (mut sends, mut receives) = pair(first);
        let answer = Packet {
            opcode: Opcode::Acknowledge,
            extension: Extension::Answer { syndrome: 5, messages: 77 },
            asks: false,
            ..packet(first, b"")
        };
        for packet in [packet(first, b"data"), answer] {
            let datagram = emitted(&mut sends, &packet);
            let sealed = Packet::parse(&datagram, ROUTE).expect("a packet");
            assert_eq!(sends.open(&sealed), None);
            assert_eq!(receives.open(&sealed), Some(packet));
        }
    }
}
