//! What a peer may do that has its key, and lies; and that nothing it makes grow grows for ever.

use outboard_base::Rng;
use outboard_wire::shared::call::CallHead;

use super::*;

/// Messages of every beginning and length, from a peer that speaks the rest correctly.
#[test]
fn messages_that_are_none_are_dropped() {
    let mut line = Line::two([false, false]);
    let mut hello = line.ask(1, SERVER, b"hello");
    assert_eq!(line.reply(0, b""), 1);
    assert_eq!(done(&mut hello), Ok(b"hello".to_vec()));
    let mut rng = Rng::new(5);
    let mut calls = 0;
    for round in 0..3000 {
        let mut message = vec![0; rng.below(100) as usize];
        if rng.chance(1, 20) {
            message.resize(rng.below(20_000) as usize, 0);
        }
        rng.fill(&mut message);
        let begins: [&[u8]; 4] = [b"OA\x01\0", b"OR\x01\x01\0\0\0\0", b"OR\x01\x02\0\0\0\0", b"O"];
        let begin = begins[rng.below(4) as usize];
        message.iter_mut().zip(begin).for_each(|(to, from)| *to = *from);
        assert!(line.ends[1].send(SERVER, message), "round {round}: the conversation lives");
        if rng.chance(1, 10) {
            line.wait(MS);
            calls += std::iter::from_fn(|| line.ends[0].take_call()).count();
        }
    }
    let dropped = line.figure(0, "messages dropped");
    assert!(dropped > 1500 && calls > 100, "{dropped} {calls}");
    let mut asked = line.ask(1, SERVER, b"still there");
    assert_eq!(line.reply(0, b"") % 2, 1);
    assert_eq!(done(&mut asked), Ok(b"still there".to_vec()));
}

/// Another peer knows the number of a call, and replies to it.
#[test]
fn a_reply_counts_from_who_was_asked() {
    let ends = vec![end(SERVER, 1, 1, false), end(NODE, 2, 2, false), end(CLIENT, 3, 3, false)];
    let mut line = Line::of(ends, &[SERVER, NODE, CLIENT]);
    let _hello = line.ask(2, NODE, b"hello");
    let mut asked = line.ask(2, SERVER, b"renew");
    line.settle();
    let call = line.ends[0].take_call().expect("a call");
    let head = CallHead { call: call.token.call, is_reply: true };
    assert!(line.ends[1].send(CLIENT, head.emit().to_vec()));
    line.settle();
    assert_eq!(line.figure(2, "messages dropped"), 1);
    assert!(poll_once(asked.as_mut()).is_pending());
    line.ends[0].reply(call.token, b"lease".to_vec());
    // A second reply is nobody's.
    line.ends[0].reply(call.token, b"again".to_vec());
    line.settle();
    assert_eq!(done(&mut asked), Ok(b"lease".to_vec()));
    assert_eq!(line.figure(2, "messages dropped"), 1);
}

/// A wish of an earlier life was sent again from another address, and who heard it tried to open a
/// conversation there, for three seconds in which nothing that it asked got anywhere.
#[test]
fn a_wish_from_elsewhere_keeps_nobody_from_who_is_there() {
    let mut line = Line::two([false, false]);
    let _asked = line.ask(1, SERVER, b"renew");
    line.settle();
    let (_, to, wish) = line.sent.iter().find(|(at, ..)| *at == 1).expect("a wish").clone();
    line.ends[0] = end(SERVER, 1, 12, false);
    line.ends[1] = end(CLIENT, 2, 23, false);
    line.ends[0].know(CLIENT, address(2));
    line.deliver(address(99), to, &wish);
    let mut asked = line.ask(0, CLIENT, b"recall");
    line.wait(100 * MS);
    assert_eq!(line.reply(1, b"!"), 1);
    assert_eq!(done(&mut asked), Ok(b"recall!".to_vec()));
}

/// Calls that nobody takes are bounded, by what stops their sender; all come once there is room.
#[test]
fn calls_that_nobody_takes_wait_at_who_asks() {
    let mut line = Line::two([false, false]);
    let mut asks: Vec<Asked> = (0..600).map(|_| line.ask(1, SERVER, &[1; 100])).collect();
    line.wait(200 * MS);
    assert!(line.figure(0, "messages not ready") > 0);
    let mut taken = 0;
    for _ in 0..100 {
        let calls = line.reply(0, b"");
        assert!(calls <= 256);
        taken += calls;
        line.wait(100 * MS);
    }
    assert_eq!(taken, 600);
    assert!(asks.iter_mut().all(|asked| done(asked).is_ok()));
    // And bytes of them.
    let mut line = Line::two([false, false]);
    let _asks: Vec<Asked> = (0..30).map(|_| line.ask(1, SERVER, &[1; 1 << 20])).collect();
    line.wait(1000 * MS);
    let calls = std::iter::from_fn(|| line.ends[0].take_call()).count();
    assert_eq!(calls, 15, "of a little more than a mebibyte each");
}

/// Openings of more peers than there may be: those above the bound get nothing, and who never
/// proves that it has its answer is forgotten.
#[test]
fn conversations_are_bounded() {
    let mut line = Line::two([false, false]);
    let node = Peer::Node(9);
    line.ends[0] = end(node, 1, 1, false);
    let open = |from: Peer| {
        let keys = rig::Pairs(from);
        Opening {
            step: Step::Open,
            cluster: 5,
            from,
            to: node,
            life: 1,
            life_seen: 0,
            queue: 1,
            first: Psn::new(1),
            payload: 1000,
            sealed: false,
            nonce: 4,
            mac: [0; 16],
        }
        .sign(&keys.of(node).expect("a key"))
        .emit()
    };
    for number in 0..5000 {
        line.ends[0].datagram(address(9), &open(Peer::Server(number)), Time(1), 0);
    }
    let mut answers = 0;
    line.ends[0].pump(Time(1), 0, &mut |_, _| answers += 1);
    assert_eq!(answers, 4096);
    assert_eq!(line.figure(0, "openings refused"), 5000 - 4096);
    // One peer has a few at most, and does not keep others out.
    let later = Time(1).after(Duration::from_secs(5));
    line.ends[0].pump(later, 0, &mut |_, _| {});
    line.ends[0].datagram(address(9), &open(Peer::Server(4999)), later, 0);
    line.ends[0].pump(later, 0, &mut |_, _| answers += 1);
    assert_eq!(answers, 4097);
    assert_eq!(line.figure(0, "conversations"), 0);
}

/// Packets to nobody are answered at a bounded rate.
#[test]
fn hints_and_refusals_are_few() {
    let mut line = Line::two([false, false]);
    let mut asked = line.ask(1, SERVER, b"hello");
    assert_eq!(line.reply(0, b""), 1);
    assert!(done(&mut asked).is_ok());
    let packet = line.sent.iter().find(|(at, _, bytes)| *at == 1 && bytes[0] != b'O');
    let (_, to, bytes) = packet.expect("a packet").clone();
    line.ends[0] = end(SERVER, 1, 12, false);
    let before = line.sent.len();
    (0..1000).for_each(|_| line.deliver(address(2), to, &bytes));
    line.settle();
    assert!(line.figure(0, "packets stray") >= 1000);
    let hints = line.sent.iter().skip(before).filter(|(at, ..)| *at == 0).count();
    assert!((1..=32).contains(&hints), "{hints}");
}

/// Every byte of every datagram is changed: what is sealed is dropped then, and what is not is
/// found by its checksum.
#[test]
fn a_changed_datagram_is_no_datagram() {
    for sealed in [false, true] {
        let mut line = Line::two([sealed, false]);
        let mut asked = line.ask(1, SERVER, b"hello");
        line.settle();
        let sent = line.sent.clone();
        for (at, to, bytes) in sent.iter().filter(|(.., bytes)| bytes[0] != b'O') {
            for changed in 0..bytes.len() {
                let mut bytes = bytes.clone();
                bytes[changed] ^= 0x10;
                line.deliver(address(*at as u8 + 1), *to, &bytes);
            }
        }
        assert_eq!(line.reply(0, b""), 1);
        assert_eq!(done(&mut asked), Ok(b"hello".to_vec()));
        assert_eq!(line.opened(), [1, 1]);
    }
}

/// Who can write a checksum but has no key gets nothing into a sealed conversation: neither a
/// packet nor an acknowledgement, of whatever number.
#[test]
fn a_sealed_conversation_believes_no_forged_packet() {
    let mut line = Line::two([true, true]);
    let mut asked = line.ask(1, SERVER, b"hello");
    line.settle();
    let sent = line.sent.clone();
    let (mut forged, before) = (0, line.figure(0, "packets received"));
    for (at, to, bytes) in sent.iter().filter(|(.., bytes)| bytes[0] != b'O') {
        let from = address(*at as u8 + 1);
        let route = Route {
            source: from.ip().octets(),
            source_port: from.port(),
            destination: to.ip().octets(),
        };
        let packet = Packet::parse(bytes, route).expect("a packet");
        for ahead in [0, 1, 2, 100, 1 << 23] {
            for opcode in [packet.opcode, Opcode::SendOnly, Opcode::WriteMiddle] {
                let psn = packet.psn.plus(ahead);
                let changed = Packet { psn, opcode, asks: !packet.asks, ..packet };
                let mut bytes = Vec::new();
                if changed.emit(route, &mut bytes).is_ok() {
                    line.deliver(from, *to, &bytes);
                    forged += 1;
                }
            }
        }
    }
    let bad = line.figure(0, "packets bad") + line.figure(1, "packets bad");
    assert_eq!((bad, line.figure(0, "packets received")), (forged, before));
    assert!(forged > 20);
    assert_eq!(line.reply(0, b""), 1);
    assert_eq!(done(&mut asked), Ok(b"hello".to_vec()));
}
