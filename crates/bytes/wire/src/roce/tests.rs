use proptest::prelude::*;

use super::*;

const ROUTE: Route =
    Route { source: [192, 168, 2, 1], source_port: 500, destination: [192, 168, 2, 2] };

fn written(packet: &Packet<'_>) -> Vec<u8> {
    let mut out = Vec::new();
    packet.emit(ROUTE, &mut out).unwrap();
    out
}

fn write_of(payload: &[u8]) -> Packet<'_> {
    Packet {
        opcode: Opcode::WriteOnly,
        solicited: false,
        asks: false,
        queue: 2,
        psn: Psn::new(0),
        extension: Extension::Write { address: 0x1230, key: 0, bytes: 16 },
        payload,
    }
}

/// The checksum by another program, which has that of a packet a card sent right, too.
#[test]
fn golden_bytes() {
    let payload: Vec<u8> = (0..16).collect();
    #[rustfmt::skip]
    let golden = [
        0x0A, 0x40, 0xFF, 0xFF, 0, 0, 0, 2, 0, 0, 0, 0,
        0, 0, 0, 0, 0, 0, 0x12, 0x30, 0, 0, 0, 0, 0, 0, 0, 16,
        0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15,
        0x10, 0x56, 0x72, 0x8B,
    ];
    assert_eq!(written(&write_of(&payload)), golden);
    let answer = Packet {
        opcode: Opcode::ReadOnly,
        solicited: true,
        asks: true,
        queue: 0x01_0203,
        psn: Psn::new(0xFF0A_0B0C),
        extension: Extension::Answer { syndrome: 0x1F, messages: 0x04_0506 },
        payload: &[7],
    };
    let bytes = written(&answer);
    #[rustfmt::skip]
    let golden = [
        0x10, 0xF0, 0xFF, 0xFF, 0, 1, 2, 3, 0x80, 0x0A, 0x0B, 0x0C, 0x1F, 4, 5, 6, 7, 0, 0, 0,
    ];
    assert_eq!(bytes[..20], golden);
    assert_eq!(Packet::parse(&bytes, ROUTE), Ok(answer));
}

#[test]
fn what_was_changed_or_went_astray_is_no_packet() {
    let bytes = written(&write_of(b"some bytes"));
    for bit in 0..bytes.len() * 8 {
        let mut changed = bytes.clone();
        changed[bit / 8] ^= 1 << (bit % 8);
        assert!(Packet::parse(&changed, ROUTE).is_err(), "bit {bit}");
    }
    for cut in 0..bytes.len() {
        assert!(Packet::parse(&bytes[..cut], ROUTE).is_err(), "cut at {cut}");
    }
    for route in [
        Route { source: [192, 168, 2, 3], ..ROUTE },
        Route { source_port: 501, ..ROUTE },
        Route { destination: [192, 168, 2, 1], ..ROUTE },
    ] {
        assert_eq!(Packet::parse(&bytes, route), Err(InvalidPacket::Icrc));
    }
    assert_eq!(Packet::parse(&[0; MTU_MAX + 1], ROUTE), Err(InvalidPacket::Length));
}

#[test]
fn what_no_packet_can_say_is_not_written() {
    let refused = |packet: Packet<'_>| {
        let mut out = vec![1];
        let result = packet.emit(ROUTE, &mut out);
        assert_eq!(out, [1]);
        result
    };
    let good = write_of(b"");
    let long = vec![0; MTU_MAX - OVERHEAD + 1];
    assert_eq!(refused(Packet { payload: &long, ..good }), Err(InvalidPacket::Length));
    let longest = write_of(&long[..(MTU_MAX - OVERHEAD) & !3]);
    assert_eq!(Packet::parse(&written(&longest), ROUTE), Ok(longest));
    assert_eq!(refused(Packet { queue: 1 << 24, ..good }), Err(InvalidPacket::Field));
    assert_eq!(refused(Packet { extension: Extension::None, ..good }), Err(InvalidPacket::Field));
    let extension = Extension::Answer { syndrome: 0, messages: 1 << 24 };
    let answer = Packet { opcode: Opcode::Acknowledge, extension, ..good };
    assert_eq!(refused(answer), Err(InvalidPacket::Field));
    let extension = Extension::Answer { syndrome: 0, messages: 0 };
    let answer = Packet { opcode: Opcode::Acknowledge, extension, payload: &[1], ..good };
    assert_eq!(refused(answer), Err(InvalidPacket::Length));
}

#[test]
fn numbers_go_round() {
    let last = Psn::new(0x00FF_FFFF);
    assert_eq!(last.plus(1), Psn::new(0));
    assert_eq!((Psn::new(3).ahead_of(last), last.ahead_of(Psn::new(3))), (4, -4));
    assert_eq!(Psn::new(1 << 23).ahead_of(Psn::new(0)), -(1 << 23));
    assert_eq!(Psn::new((1 << 23) - 1).ahead_of(Psn::new(0)), (1 << 23) - 1);
}

#[test]
fn messages_begin_and_end() {
    let only = |opcode: &&Opcode| opcode.is_first() && opcode.is_last();
    let only: Vec<_> = Opcode::ALL.iter().filter(only).collect();
    let expected = [
        Opcode::SendOnly,
        Opcode::WriteOnly,
        Opcode::ReadRequest,
        Opcode::ReadOnly,
        Opcode::Acknowledge,
    ];
    assert_eq!(only, expected.iter().collect::<Vec<_>>());
    assert!(Opcode::WriteFirst.is_first() && !Opcode::WriteFirst.is_last());
    assert!(Opcode::ReadLast.is_last() && !Opcode::ReadLast.is_first());
    assert!(!Opcode::SendMiddle.is_first() && !Opcode::SendMiddle.is_last());
}

proptest! {
    #[test]
    fn what_is_written_is_read(
        opcode in proptest::sample::select(&Opcode::ALL[..]),
        (solicited, asks) in any::<(bool, bool)>(),
        (queue, psn, messages) in (0u32..1 << 24, any::<u32>(), 0u32..1 << 24),
        (address, key, bytes, syndrome) in any::<(u64, u32, u32, u8)>(),
        payload in proptest::collection::vec(any::<u8>(), 0..600),
    ) {
        let extension = match opcode {
            Opcode::WriteFirst | Opcode::WriteOnly | Opcode::ReadRequest => {
                Extension::Write { address, key, bytes }
            }
            Opcode::ReadFirst | Opcode::ReadLast | Opcode::ReadOnly | Opcode::Acknowledge => {
                Extension::Answer { syndrome, messages }
            }
            _ => Extension::None,
        };
        let psn = Psn::new(psn);
        let payload = if opcode == Opcode::Acknowledge { &[] } else { &payload[..] };
        let packet = Packet { opcode, solicited, asks, queue, psn, extension, payload };
        let bytes = written(&packet);
        prop_assert_eq!(Packet::parse(&bytes, ROUTE), Ok(packet));
    }
}
