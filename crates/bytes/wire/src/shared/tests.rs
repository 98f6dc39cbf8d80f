use proptest::prelude::*;

use super::Strategy;
use super::*;

fn capability() -> Capability {
    Capability {
        key: 2,
        rights: Rights::READ_WRITE,
        volume: 0x0403_0201,
        object: 7,
        first: 0,
        end: 1 << 30,
        client: 8,
        fence: 9,
        group: 10,
        strategy: Strategy::Ring,
        k: 3,
        m: 0,
        expires: 11,
        mac: [0xAA; MAC_LEN],
    }
}

fn node(node: u16) -> Coordinate {
    Coordinate { address: [10, 0, 0, 1], port: 4791, node, unit: 0, role: Role::Data }
}

/// One of `count` members; of a stripe at most half of them, and four, have parities.
fn write_head(strategy: Strategy, count: u16) -> WriteHead {
    let is_coded = strategy == Strategy::Parity;
    let m = if is_coded { (count / 2).clamp(1, 4) } else { 0 };
    let k = count.max(1) - m;
    let unit = |at: u16| {
        let role = if at < k { Role::Data } else { Role::Parity };
        Coordinate { unit: u8::try_from(at).unwrap(), role, ..node(at) }
    };
    let coordinates: Vec<_> =
        (0..count).map(|at| if is_coded { unit(at) } else { node(at) }).collect();
    WriteHead {
        strategy,
        rank: 0,
        k: u8::try_from(k).unwrap(),
        unit: 0,
        role: Role::Data,
        brings: Brings::Bytes,
        offset: 8192,
        bytes: 5,
        sequence: 4,
        previous: 3,
        crc: 0x0102_0304,
        session: 5,
        number: 6,
        lane: 7,
        coordinates: Coordinates::new(&coordinates).unwrap(),
    }
}

fn hole(offset: u64, end: u64) -> HoleHead {
    HoleHead { offset, end, sequence: 4, previous: 3, session: 5, number: 6, lane: 7, share: None }
}

fn heads(target: Target) -> Heads {
    let data = match &target {
        Target::Write(write) => write.bytes,
        Target::Read(_) | Target::Hole(_) => 0,
    };
    let head = Head { request: 0x0807_0605_0403_0201, data, epoch: 1, settled: 2, hop: 0 };
    Heads { head, capability: capability(), target }
}

fn written(heads: &Heads, data: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    heads.emit(&mut out).unwrap();
    out.extend_from_slice(data);
    out
}

/// The layout is a contract between programs: this test is its golden copy.
#[test]
fn golden_bytes() {
    let write = heads(Target::Write(write_head(Strategy::Ring, 3)));
    let bytes = written(&write, b"hello");
    #[rustfmt::skip]
    let head = [
        b'O', b'D', 1, 1, 0, 0, 216, 0, 1, 2, 3, 4, 5, 6, 7, 8,
        5, 0, 0, 0, 1, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0,
    ];
    #[rustfmt::skip]
    let capability = [
        1, 2, 3, 0, 1, 2, 3, 4, 7, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0,
        0, 0, 0, 0x40, 0, 0, 0, 0, 8, 0, 0, 0, 0, 0, 0, 0, 9, 0, 0, 0, 0, 0, 0, 0,
        10, 0, 0, 0, 1, 3, 0, 0, 11, 0, 0, 0, 0, 0, 0, 0,
        0xAA, 0xAA, 0xAA, 0xAA, 0xAA, 0xAA, 0xAA, 0xAA,
        0xAA, 0xAA, 0xAA, 0xAA, 0xAA, 0xAA, 0xAA, 0xAA,
    ];
    #[rustfmt::skip]
    let target = [
        1, 0, 3, 3, 0, 0, 0, 0, 0, 32, 0, 0, 0, 0, 0, 0, 5, 0, 0, 0, 4, 0, 0, 0, 3, 0, 0, 0,
        4, 3, 2, 1, 5, 0, 0, 0, 0, 0, 0, 0, 6, 0, 0, 0, 0, 0, 0, 0, 7, 0, 0, 0, 0, 0, 0, 0,
        10, 0, 0, 1, 0xB7, 0x12, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0,
    ];
    assert_eq!(bytes[..32], head);
    assert_eq!(bytes[32..112], capability);
    assert_eq!(bytes[112..184], target);
    assert_eq!((bytes.len(), &bytes[216..]), (221, &b"hello"[..]));
    let read = heads(Target::Read(ReadHead { offset: 0x0102, bytes: 0x0304, unit: 5, map: true }));
    let bytes = written(&read, b"");
    assert_eq!((bytes.len(), bytes[3], bytes[6]), (144, 2, 144));
    assert_eq!(bytes[112..129], [2, 1, 0, 0, 0, 0, 0, 0, 4, 3, 0, 0, 5, 0, 1, 0, 0]);
    let to_the_end = heads(Target::Hole(hole(0x0102, u64::MAX)));
    let bytes = written(&to_the_end, b"");
    #[rustfmt::skip]
    let target = [
        2, 1, 0, 0, 0, 0, 0, 0, 255, 255, 255, 255, 255, 255, 255, 255, 4, 0, 0, 0, 3, 0, 0, 0,
        5, 0, 0, 0, 0, 0, 0, 0, 6, 0, 0, 0, 0, 0, 0, 0, 7, 0, 0, 0, 0, 0, 0, 0,
    ];
    assert_eq!((bytes.len(), bytes[3], bytes[6], &bytes[112..]), (160, 3, 160, &target[..]));
    let share = Some(Share { count: 4, place: 3, strip: 1 << 17 });
    let aside = heads(Target::Hole(HoleHead { share, ..hole(1, 2) }));
    assert_eq!(written(&aside, b"")[154..], [4, 3, 17, 0, 0, 0]);
    let answer = Answer {
        data: 0,
        request: 1,
        rank: 2,
        outcome: Err(Reason::Order),
        sequence: 3,
        epoch: 4,
        credit: 5,
        fence: 6,
        held: 7,
        boot: 8,
    };
    #[rustfmt::skip]
    let golden = [
        b'O', b'A', 1, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 2, 1, 9, 0, 3, 0, 0, 0,
        4, 0, 0, 0, 5, 0, 0, 0, 6, 0, 0, 0, 0, 0, 0, 0, 7, 0, 0, 0, 0, 0, 0, 0,
        8, 0, 0, 0, 0, 0, 0, 0,
    ];
    assert_eq!(answer.emit(), golden);
}

/// Row N1: a first packet that had no room for its heads would have to be refused by every node.
#[test]
fn the_largest_heads_fit_the_smallest_packet() {
    let largest = heads(Target::Write(write_head(Strategy::Parity, 20)));
    let bytes = written(&largest, b"");
    assert_eq!(bytes.len(), HEADS_MAX);
    const { assert!(HEADS_MAX + crate::roce::OVERHEAD <= 1500 - 28) };
    assert_eq!(Request::parse(&bytes).map(|request| request.heads), Ok(largest));
    let many: Vec<_> = (0..21).map(node).collect();
    assert_eq!(Coordinates::new(&many), Err(InvalidMessage::Field));
    assert_eq!(write_head(Strategy::Ring, 17).check(), Err(InvalidMessage::Field));
}

#[test]
fn a_request_that_is_cut_is_refused_at_every_byte() {
    for target in [
        Target::Write(write_head(Strategy::BinaryTree, 5)),
        Target::Write(write_head(Strategy::Parity, 5)),
        Target::Read(ReadHead { offset: 1, bytes: 2, unit: 0, map: false }),
        Target::Hole(hole(1, 2)),
    ] {
        let heads = heads(target);
        let bytes = written(&heads, b"");
        for cut in 0..bytes.len() {
            let refused = Request::parse(&bytes[..cut]);
            assert_eq!(refused, Err(InvalidMessage::Length), "cut at {cut}");
        }
        assert_eq!(Request::parse(&bytes).map(|request| request.heads), Ok(heads));
    }
}

#[test]
fn what_lies_is_refused() {
    let good = written(&heads(Target::Write(write_head(Strategy::Ring, 3))), b"hel");
    let refused = |at: usize, byte: u8| {
        let mut bytes = good.clone();
        bytes[at] = byte;
        Request::parse(&bytes).map(|_| ())
    };
    assert_eq!(refused(6, 216), Ok(()));
    assert_eq!(refused(0, b'X'), Err(InvalidMessage::Version));
    assert_eq!(refused(2, 2), Err(InvalidMessage::Version));
    assert_eq!(refused(32, 2), Err(InvalidMessage::Version), "of the capability");
    for operation in [0, 4, 255] {
        assert_eq!(refused(3, operation), Err(InvalidMessage::Operation));
    }
    assert_eq!(refused(4, 1), Err(InvalidMessage::Field), "flags");
    for length in [0, 31, 112, 215, 217, 255] {
        assert_eq!(refused(6, length), Err(InvalidMessage::Length), "{length}");
    }
    assert_eq!(refused(7, 1), Err(InvalidMessage::Length), "longer than all");
    assert_eq!(refused(16, 2), Err(InvalidMessage::Length), "more data than it says");
    assert_eq!(refused(19, 1), Err(InvalidMessage::Field), "more than a message has");
    assert_eq!(refused(34, 0), Err(InvalidMessage::Field), "no rights");
    assert_eq!(refused(34, 4), Err(InvalidMessage::Field), "unknown rights");
    assert_eq!(refused(55, 1), Err(InvalidMessage::Range), "it begins behind its end");
    assert_eq!(refused(112, 4), Err(InvalidMessage::Field), "no such strategy");
    assert_eq!(refused(112, 0), Err(InvalidMessage::Field), "one copy has nobody to forward to");
    assert_eq!(refused(113, 3), Err(InvalidMessage::Field), "a rank that nobody has");
    assert_eq!(refused(114, 2), Err(InvalidMessage::Length), "fewer nodes than there are");
    assert_eq!(refused(115, 0), Err(InvalidMessage::Field), "no copies");
    assert_eq!(refused(118, 1), Err(InvalidMessage::Field));
    assert_eq!(refused(128, 6), Err(InvalidMessage::Length), "writes more than it brings");
    assert_eq!(refused(132, 3), Err(InvalidMessage::Field), "a sequence that is not new");
    assert_eq!(refused(162, 1), Err(InvalidMessage::Field));
    assert_eq!((refused(172, 0), refused(173, 0)), (Ok(()), Ok(())), "a port with a zero byte");
    assert_eq!(refused(174 + 16, 2), Err(InvalidMessage::Loop), "a node stands there twice");
    assert_eq!(refused(177, 2), Err(InvalidMessage::Field), "no such role");
    assert_eq!(refused(178, 1), Err(InvalidMessage::Field));
}

#[test]
fn a_hole_that_lies_is_refused() {
    let good = written(&heads(Target::Hole(hole(3, 5))), b"");
    let refused = |at: usize, byte: u8| {
        let mut bytes = good.clone();
        bytes[at] = byte;
        Request::parse(&bytes).map(|_| ())
    };
    assert_eq!((refused(112, 4), refused(127, 0xFF)), (Ok(()), Ok(())));
    assert_eq!(refused(112, 5), Err(InvalidMessage::Range), "of no byte");
    assert_eq!(refused(119, 1), Err(InvalidMessage::Range), "it begins behind its end");
    assert_eq!(refused(128, 3), Err(InvalidMessage::Field), "a sequence that is not new");
    for at in 154..160 {
        assert_eq!(refused(at, 1), Err(InvalidMessage::Field), "{at}");
    }
    assert_eq!(refused(16, 1), Err(InvalidMessage::Length), "it brings data");
    assert_eq!(refused(3, 2), Err(InvalidMessage::Length), "no read is so long");
    let share = Share { count: 4, place: 3, strip: 1 << 16 };
    let aside = |share| HoleHead { share: Some(share), ..hole(3, 5) };
    assert_eq!(aside(share).check(), Ok(()));
    for bad in [
        aside(Share { count: 3, ..share }),
        aside(Share { count: 17, ..share }),
        aside(Share { strip: 1 << 15, ..share }),
        aside(Share { strip: 1 << 21, ..share }),
        HoleHead { end: 4 + RESERVE_MAX, ..aside(share) },
    ] {
        assert!(bad.check().is_err(), "{bad:?}");
    }
    for bad in [hole(5, 5), hole(6, 5), HoleHead { sequence: 3, ..hole(3, 5) }] {
        let mut out = Vec::new();
        assert!(heads(Target::Hole(bad)).emit(&mut out).is_err() && out.is_empty(), "{bad:?}");
    }
}

/// What a node compares with the capability.
#[test]
fn heads_say_what_they_need() {
    let read = ReadHead { offset: 7, bytes: 2, unit: 0, map: false };
    for (target, rights, range) in [
        (Target::Write(write_head(Strategy::Ring, 3)), Rights::WRITE, 8192..8197),
        (Target::Read(read), Rights::READ, 7..9),
        (Target::Hole(hole(3, 5)), Rights::WRITE, 3..5),
        (Target::Hole(hole(3, u64::MAX)), Rights::WRITE, 3..u64::MAX),
    ] {
        let heads = heads(target);
        assert_eq!((heads.rights_needed(), heads.range()), (rights, range));
    }
    let beyond = Target::Read(ReadHead { offset: u64::MAX, ..read });
    assert_eq!(heads(beyond).range(), u64::MAX..u64::MAX, "which cannot be written");
    let all = Capability { end: u64::MAX, ..capability() };
    let to_the_end = heads(Target::Hole(hole(3, u64::MAX))).range();
    assert!(all.covers(&to_the_end) && !capability().covers(&to_the_end));
}

/// A capability is good for what was signed, and for no bit more.
#[test]
fn a_capability_is_signed_as_a_whole() {
    let (key, other) = ([1; 32], [2; 32]);
    let signed = capability().sign(&key);
    assert!(signed.is_signed_by(&key) && !signed.is_signed_by(&other));
    assert!(!capability().is_signed_by(&key));
    assert_eq!(Capability { mac: capability().mac, ..signed }, capability());
    let mut parsed = 0;
    for bit in 0..8 * CAPABILITY_LEN {
        let mut bytes = signed.emit();
        bytes[bit / 8] ^= 1 << (bit % 8);
        if let Ok(changed) = Capability::parse(&bytes) {
            parsed += 1;
            assert!(!changed.is_signed_by(&key), "bit {bit}");
        }
    }
    assert!(parsed > 500, "most bits are of fields that may have any value: {parsed}");
}

#[test]
fn ranges_do_not_wrap_around() {
    let parse = |offset: u64, bytes: u32| {
        let heads = heads(Target::Read(ReadHead { offset: 0, bytes: 1, unit: 0, map: false }));
        let mut out = written(&heads, b"");
        out[112..120].copy_from_slice(&offset.to_le_bytes());
        out[120..124].copy_from_slice(&bytes.to_le_bytes());
        Request::parse(&out).map(|_| ())
    };
    assert_eq!(parse(u64::MAX - 4096, 4096), Ok(()));
    assert_eq!(parse(u64::MAX - 4095, 4096), Err(InvalidMessage::Range));
    assert_eq!(parse(u64::MAX, 1), Err(InvalidMessage::Range));
    assert_eq!(parse(0, 0), Err(InvalidMessage::Field));
    assert_eq!(parse(0, DATA_MAX + 1), Err(InvalidMessage::Field));
    let mut capability = capability();
    assert!(capability.covers(&(0..1 << 30)) && !capability.covers(&(0..(1 << 30) + 1)));
    assert!(!capability.covers(&std::ops::Range { start: 5, end: 4 }));
    (capability.first, capability.end) = (9, 9);
    assert_eq!(Capability::parse(&capability.emit()), Err(InvalidMessage::Range));
    assert!(Rights::READ_WRITE.allow(Rights::WRITE) && !Rights::READ.allow(Rights::WRITE));
}

#[test]
fn spreads_that_no_object_has_are_refused() {
    let parse = |strategy, k, m| {
        let capability = Capability { strategy, k, m, ..capability() };
        Capability::parse(&capability.emit()).map(|_| ())
    };
    for (strategy, k, m) in [
        (Strategy::Single, 1, 0),
        (Strategy::Ring, 16, 0),
        (Strategy::BinaryTree, 1, 0),
        (Strategy::Parity, 16, 4),
    ] {
        assert_eq!(parse(strategy, k, m), Ok(()));
    }
    for (strategy, k, m) in [
        (Strategy::Single, 0, 0),
        (Strategy::Single, 2, 0),
        (Strategy::Ring, 0, 0),
        (Strategy::Ring, 17, 0),
        (Strategy::Ring, 3, 1),
        (Strategy::Parity, 0, 2),
        (Strategy::Parity, 2, 0),
        (Strategy::Parity, 2, 5),
        (Strategy::Parity, 17, 2),
    ] {
        assert_eq!(parse(strategy, k, m), Err(InvalidMessage::Field), "{strategy:?} {k} {m}");
    }
}

prop_compose! {
    fn any_capability()(
        (key, volume, object) in any::<(u8, u32, u64)>(),
        rights in proptest::sample::select(&[Rights::READ, Rights::WRITE, Rights::READ_WRITE][..]),
        (first, length) in (0..1u64 << 60, 1..1u64 << 60),
        (client, fence, group, expires) in any::<(u64, u64, u32, u64)>(),
        (strategy, k, m) in (proptest::sample::select(&Strategy::ALL[..]), 1..17u8, 1..5u8),
        mac in any::<[u8; MAC_LEN]>(),
    ) -> Capability {
        let end = first + length;
        let k = if strategy == Strategy::Single { 1 } else { k };
        let m = if strategy == Strategy::Parity { m } else { 0 };
        Capability {
            key, rights, volume, object, first, end, client, fence, group, strategy, k, m, expires,
            mac,
        }
    }
}

prop_compose! {
    fn any_target()(
        strategy in proptest::sample::select(&Strategy::ALL[..]),
        count in 1..20u16,
        (unit, parity, crc, session, number, lane) in any::<(u8, bool, u32, u64, u64, u16)>(),
        (offset, bytes) in (0..1u64 << 60, 1..=DATA_MAX),
        (previous, step) in (0..1u32 << 31, 1..1u32 << 31),
        (rank, kind, read_unit) in any::<(u8, u8, u16)>(),
    ) -> Target {
        let sequence = previous + step;
        match kind % 3 {
            0 => return Target::Read(ReadHead { offset, bytes, unit: read_unit, map: parity }),
            1 => {
                let end = offset + u64::from(bytes);
                let place = rank % 16;
                let share = Share { count: place + 1, place, strip: 1 << 16 };
                let share = parity.then_some(share);
                #[rustfmt::skip]
                let hole = HoleHead {
                    offset, end, sequence, previous, session, number, lane, share,
                };
                return Target::Hole(hole);
            }
            _ => {}
        }
        let count = match strategy {
            Strategy::Single => 0,
            Strategy::Ring | Strategy::BinaryTree => count.min(16),
            Strategy::Parity => count + 1,
        };
        let write = write_head(strategy, count);
        let all = write.coordinates.as_slice();
        let rank = rank % u8::try_from(all.len().max(1)).unwrap();
        let (unit, role) = match strategy {
            Strategy::Parity if rank < write.k => (rank, Role::Data),
            Strategy::Parity => (unit % write.k, Role::Parity),
            _ => (unit, if parity { Role::Parity } else { Role::Data }),
        };
        let all = [Brings::Bytes, Brings::Delta, Brings::Nothing];
        let any = all[usize::from(lane) % all.len()];
        let brings = if strategy == Strategy::Single { any } else { Brings::Bytes };
        Target::Write(WriteHead {
            rank, unit, role, brings, offset, bytes, sequence, previous, crc, session, number,
            lane, ..write
        })
    }
}

proptest! {
    #[test]
    fn what_is_written_is_read(
        capability in any_capability(),
        target in any_target(),
        (request, epoch, settled, hop) in any::<(u64, u32, u32, u32)>(),
        data in proptest::collection::vec(any::<u8>(), 0..64),
    ) {
        let bytes = match &target {
            Target::Write(write) => write.data(),
            Target::Read(_) | Target::Hole(_) => 0,
        };
        let head = Head { request, data: bytes, epoch, settled, hop };
        let heads = Heads { head, capability, target };
        let data = &data[..data.len().min(bytes as usize)];
        let out = written(&heads, data);
        prop_assert_eq!(Request::parse(&out), Ok(Request { heads, data }));
        prop_assert_eq!(&capability.emit()[..64], &capability.signed()[..]);
    }

    #[test]
    fn an_answer_is_read_as_it_was_written(
        (request, rank, sequence, epoch, credit) in any::<(u64, u8, u32, u32, u32)>(),
        (fence, held, boot) in any::<(u64, u64, u64)>(),
        reason in proptest::option::of(proptest::sample::select(&Reason::ALL[..])),
        data in proptest::collection::vec(any::<u8>(), 0..64),
    ) {
        let outcome = reason.map_or(Ok(()), Err);
        let bytes = if outcome.is_ok() { &data[..] } else { &[] };
        let data = u32::try_from(bytes.len()).unwrap();
        let answer =
            Answer { data, request, rank, outcome, sequence, epoch, credit, fence, held, boot };
        prop_assert_eq!(Answer::parse(&answer.emit()), Ok(answer));
        let message = [&answer.emit()[..], bytes].concat();
        prop_assert_eq!(Answer::split(&message), Ok((answer, bytes)));
    }
}

#[test]
fn an_answer_that_lies_is_refused() {
    #[rustfmt::skip]
    let good = Answer {
        data: 0, request: 1, rank: 0, outcome: Ok(()), sequence: 0, epoch: 0, credit: 0, fence: 0,
        held: 0,
        boot: 0,
    };
    let refused = |at: usize, byte: u8| {
        let mut bytes = good.emit();
        bytes[at] = byte;
        Answer::parse(&bytes)
    };
    assert_eq!(refused(1, b'D'), Err(InvalidMessage::Version), "a request");
    assert_eq!(refused(2, 2), Err(InvalidMessage::Version));
    assert_eq!(refused(3, 1), Err(InvalidMessage::Field));
    assert_eq!(refused(17, 2), Err(InvalidMessage::Field));
    assert_eq!(refused(17, 1), Err(InvalidMessage::Field), "refused for no reason");
    assert_eq!(refused(18, 1), Err(InvalidMessage::Field), "done for a reason");
    assert_eq!(refused(7, 1), Err(InvalidMessage::Field), "more data than a message has");
    let with_data = Answer { data: 3, ..good };
    assert_eq!(Answer::parse(&with_data.emit()), Ok(with_data));
    let refusal = Answer { outcome: Err(Reason::Busy), ..with_data };
    assert_eq!(Answer::parse(&refusal.emit()), Err(InvalidMessage::Field), "it has data");
    let message = [&with_data.emit()[..], b"abcd"].concat();
    for cut in 0..=message.len() {
        let split = Answer::split(&message[..cut]);
        let expected = Ok((with_data, &b"abc"[..]));
        assert_eq!(split, if cut == 59 { expected } else { Err(InvalidMessage::Length) }, "{cut}");
    }
    assert_eq!(Answer::parse(&message), Err(InvalidMessage::Length));
}
