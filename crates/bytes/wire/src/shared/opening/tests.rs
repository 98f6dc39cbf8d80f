use proptest::prelude::*;

use super::*;
use crate::roce::{InvalidPacket, Opcode, Packet, Route};

const KEY: &[u8; 32] = b"whats the Elvish word for friend";

fn opening() -> Opening {
    Opening {
        step: Step::Opened,
        cluster: 0x0807_0605_0403_0201,
        from: Peer::Node(3),
        to: Peer::Client(0x1F),
        life: 9,
        life_seen: 10,
        queue: 0x0003_0201,
        first: Psn::new(0x0006_0504),
        payload: 1440,
        sealed: true,
        nonce: 11,
        mac: [0xAA; MAC_LEN],
    }
}

/// The layout is a contract between programs: this test is its golden copy.
#[test]
fn golden_bytes() {
    #[rustfmt::skip]
    let golden = [
        b'O', b'O', 1, 2, 0xA0, 5, 1, 0, 1, 2, 3, 4, 5, 6, 7, 8,
        3, 0, 0, 0, 0, 0, 0, 2, 0x1F, 0, 0, 0, 0, 0, 0, 3,
        9, 0, 0, 0, 0, 0, 0, 0, 10, 0, 0, 0, 0, 0, 0, 0,
        1, 2, 3, 0, 4, 5, 6, 0, 11, 0, 0, 0, 0, 0, 0, 0,
        0xAA, 0xAA, 0xAA, 0xAA, 0xAA, 0xAA, 0xAA, 0xAA,
        0xAA, 0xAA, 0xAA, 0xAA, 0xAA, 0xAA, 0xAA, 0xAA,
    ];
    assert_eq!(opening().emit(), golden);
    assert_eq!(Opening::parse(&golden), Ok(opening()));
}

#[test]
fn an_opening_that_lies_is_refused() {
    let refused = |at: usize, byte: u8| {
        let mut bytes = opening().emit();
        bytes[at] = byte;
        Opening::parse(&bytes).map(|_| ())
    };
    assert_eq!(refused(1, b'D'), Err(InvalidMessage::Version), "a request");
    assert_eq!(refused(2, 2), Err(InvalidMessage::Version));
    assert_eq!((refused(3, 1), refused(3, 3)), (Ok(()), Ok(())));
    for step in [0, 4, 255] {
        assert_eq!(refused(3, step), Err(InvalidMessage::Operation), "{step}");
    }
    assert_eq!(refused(4, 0xA1), Err(InvalidMessage::Field), "a payload that has padding");
    let long = Opening { payload: 65_480, ..opening() }.emit();
    assert_eq!(Opening::parse(&long), Err(InvalidMessage::Field), "more than a datagram has");
    assert_eq!(refused(6, 2), Err(InvalidMessage::Field));
    assert_eq!(refused(7, 1), Err(InvalidMessage::Field));
    for (role, at) in [(0, 23), (5, 23), (255, 31), (0, 31)] {
        assert_eq!(refused(at, role), Err(InvalidMessage::Field), "role {role}");
    }
    assert_eq!(refused(18, 1), Err(InvalidMessage::Field), "a number no node has");
    assert_eq!(refused(32, 0), Err(InvalidMessage::Field), "no life");
    assert_eq!((refused(51, 1), refused(55, 1)), (refused(6, 2), refused(6, 2)), "25 bits");
    let refusal = |step| Opening { step, payload: 0, ..opening() }.emit();
    assert!(Opening::parse(&refusal(Step::Refused)).is_ok());
    for step in [Step::Open, Step::Opened] {
        assert_eq!(Opening::parse(&refusal(step)), Err(InvalidMessage::Field), "carries nothing");
    }
    let good = opening().emit();
    for cut in 0..good.len() {
        assert_eq!(Opening::parse(&good[..cut]), Err(InvalidMessage::Length), "cut at {cut}");
    }
    assert_eq!(Opening::parse(&[&good[..], b"x"].concat()), Err(InvalidMessage::Length));
}

/// A receiver tells the two apart by one byte, and neither parser takes the other's.
#[test]
fn an_opening_is_no_packet_and_no_packet_an_opening() {
    let route = Route { source: [10, 0, 0, 1], source_port: 4791, destination: [10, 0, 0, 2] };
    assert_eq!(Packet::parse(&opening().emit(), route), Err(InvalidPacket::Opcode));
    assert!(Opcode::ALL.iter().all(|opcode| *opcode as u8 != MAGIC[0]));
    for opcode in 0..=255 {
        let mut bytes = opening().emit();
        bytes[0] = opcode;
        let is_opening = Opening::parse(&bytes).is_ok();
        let is_packet = !matches!(Packet::parse(&bytes, route), Err(InvalidPacket::Opcode));
        assert!(!(is_opening && is_packet), "{opcode}");
        assert_eq!(is_opening, opcode == b'O');
    }
}

/// Whoever changes a bit of it on its way is found out, if it is still an opening then.
#[test]
fn it_is_signed_as_a_whole() {
    let signed = opening().sign(KEY);
    assert!(signed.is_signed_by(KEY) && !opening().is_signed_by(KEY));
    assert_eq!(Opening { mac: [0xAA; MAC_LEN], ..signed }, opening());
    assert!(!signed.is_signed_by(&[7; 32]));
    let mut parsed = 0;
    for bit in 0..8 * OPENING_LEN {
        let mut bytes = signed.emit();
        bytes[bit / 8] ^= 1 << (bit % 8);
        if let Ok(other) = Opening::parse(&bytes) {
            parsed += 1;
            assert!(!other.is_signed_by(KEY), "bit {bit}");
        }
    }
    assert!(parsed > 400, "most bits are of fields that may have any value: {parsed}");
}

#[test]
fn peers_have_names_and_numbers() {
    for (peer, number, name) in [
        (Peer::Server(0), 1 << 56, "server 0"),
        (Peer::Node(3), 2 << 56 | 3, "node 3"),
        (Peer::Node(u16::MAX), 2 << 56 | 0xFFFF, "node 65535"),
        (Peer::Client(0x1F), 3 << 56 | 0x1F, "client 1f"),
        (Peer::Coordinator(2), 4 << 56 | 2, "coordinator 2"),
        (Peer::Client((1 << 56) - 1), (4 << 56) - 1, "client ffffffffffffff"),
    ] {
        assert_eq!((peer.encode(), peer.to_string().as_str()), (number, name));
        assert_eq!(Peer::decode(number), Ok(peer));
    }
    assert_eq!(Peer::Client(1 << 56 | 5).encode(), Peer::Client(5).encode());
    for nobody in [0, 5, 5 << 56, u64::MAX, 1 << 56 | 1 << 16, 2 << 56 | 1 << 55] {
        assert_eq!(Peer::decode(nobody), Err(InvalidMessage::Field), "{nobody:x}");
    }
}

fn any_peer() -> impl Strategy<Value = Peer> {
    prop_oneof![
        any::<u16>().prop_map(Peer::Server),
        any::<u16>().prop_map(Peer::Node),
        any::<u16>().prop_map(Peer::Coordinator),
        (0..1u64 << 56).prop_map(Peer::Client),
    ]
}

proptest! {
    #[test]
    fn what_is_written_is_read(
        step in prop::sample::select(&[Step::Open, Step::Opened, Step::Refused][..]),
        (from, to) in (any_peer(), any_peer()),
        (cluster, life_seen, nonce) in any::<(u64, u64, u64)>(),
        life in 1..=u64::MAX,
        (queue, first, words, sealed) in (0..1u32 << 24, any::<u32>(), 1..=2235u16, any::<bool>()),
    ) {
        let (first, payload, mac) = (Psn::new(first), 4 * words, [0; MAC_LEN]);
        let opening = Opening {
            step, cluster, from, to, life, life_seen, queue, first, payload, sealed, nonce, mac,
        };
        let signed = opening.sign(KEY);
        let read = Opening::parse(&signed.emit());
        prop_assert_eq!(read, Ok(signed));
        prop_assert!(read.is_ok_and(|read| read.is_signed_by(KEY)));
        prop_assert_eq!(&signed.emit()[..SIGNED_LEN], &opening.signed()[..]);
    }

    #[test]
    fn a_peer_is_its_number(peer in any_peer(), raw in any::<u64>()) {
        prop_assert_eq!(Peer::decode(peer.encode()), Ok(peer));
        if let Ok(peer) = Peer::decode(raw) {
            prop_assert_eq!(peer.encode(), raw);
        }
    }
}
