use std::collections::BTreeMap;

use outboard_base::limits::{GROUPS_MAX, IO_MAX, NAME_MAX, REPLY_HEADER_MAX, REQUEST_HEADER_MAX};
use proptest::collection::{btree_map, vec};
use proptest::prelude::*;
use proptest::strategy::Strategy as Values;

use super::Strategy;
use super::examples::{calls, replies};
use super::*;
use crate::shared::{MAC_LEN, MessageKind, Rights, Role};

fn call_bytes(call: &Call) -> Vec<u8> {
    let mut out = Vec::new();
    call.encode(&mut out);
    out
}

fn reply_bytes(reply: &Reply) -> Vec<u8> {
    let mut out = Vec::new();
    reply.encode(&mut out);
    out
}

/// Every call and reply is among the examples, and has the bytes it always had.
#[test]
fn golden_bytes() {
    let (calls, replies) = (calls(), replies());
    for (call, bytes) in &calls {
        assert_eq!(&call_bytes(call), bytes, "{call:?}");
        assert_eq!(Call::decode(bytes).as_ref(), Ok(call));
    }
    for (reply, bytes) in &replies {
        assert_eq!(&reply_bytes(reply), bytes, "{reply:?}");
        assert_eq!(Reply::decode(bytes).as_ref(), Ok(reply));
    }
    let known = |number: u8| {
        let unknown = Err(InvalidMessage::Operation);
        (Call::decode(&[number]).map(|_| ()), Reply::decode(&[number]).map(|_| ()), unknown)
    };
    for number in 0..=255 {
        let (call, reply, unknown) = known(number);
        let is_call = calls.iter().any(|(_, bytes)| bytes[0] == number);
        let is_reply = replies.iter().any(|(_, bytes)| bytes[0] == number);
        assert_eq!((call != unknown, reply != unknown), (is_call, is_reply), "{number}");
    }
}

#[test]
fn what_is_cut_or_goes_on_is_refused() {
    for (call, bytes) in calls() {
        for cut in 0..bytes.len() {
            assert_eq!(Call::decode(&bytes[..cut]), Err(InvalidMessage::Length), "{call:?} {cut}");
        }
        assert_eq!(Call::decode(&[&bytes[..], &[0]].concat()), Err(InvalidMessage::Length));
    }
    for (reply, bytes) in replies() {
        for cut in 0..bytes.len() {
            assert_eq!(Reply::decode(&bytes[..cut]), Err(InvalidMessage::Length), "{reply:?}");
        }
        assert_eq!(Reply::decode(&[&bytes[..], &[0]].concat()), Err(InvalidMessage::Length));
    }
}

#[test]
fn a_message_says_what_it_is() {
    let asked = CallHead { call: 0x0807_0605_0403_0201, is_reply: false };
    let replied = CallHead { is_reply: true, ..asked };
    let golden = [b'O', b'R', 1, 1, 0, 0, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8];
    assert_eq!((asked.emit(), replied.emit()[3]), (golden, 2));
    let message = [&golden[..], b"\x04"].concat();
    assert_eq!(CallHead::parse(&message), Ok((asked, &b"\x04"[..])));
    assert_eq!(CallHead::parse(&replied.emit()), Ok((replied, &b""[..])));
    for cut in 0..CALL_HEAD_LEN {
        assert_eq!(CallHead::parse(&message[..cut]), Err(InvalidMessage::Length), "{cut}");
    }
    let refused = |at: usize, byte: u8| {
        let mut bytes = golden;
        bytes[at] = byte;
        CallHead::parse(&bytes).map(|_| ())
    };
    assert_eq!(refused(1, b'A'), Err(InvalidMessage::Version));
    assert_eq!(refused(2, 0), Err(InvalidMessage::Version));
    assert_eq!((refused(3, 2), refused(3, 0)), (Ok(()), Err(InvalidMessage::Operation)));
    assert_eq!(refused(3, 3), Err(InvalidMessage::Operation));
    for at in 4..8 {
        assert_eq!(refused(at, 1), Err(InvalidMessage::Field), "{at}");
    }
    assert_eq!(MessageKind::of(&message), Some(MessageKind::Call));
    assert_eq!(MessageKind::of(b"OD..."), Some(MessageKind::Request));
    assert_eq!(MessageKind::of(b"OA"), Some(MessageKind::Answer));
    for nothing in [&b""[..], b"O", b"OO\x01", b"RO", b"\0\0"] {
        assert_eq!(MessageKind::of(nothing), None);
    }
}

#[test]
fn a_layout_that_nobody_can_use_is_refused() {
    let good = Layout::default();
    let fields = (good.strategy, good.k, good.m, good.width, good.strip, good.group);
    assert_eq!(fields, (Strategy::Single, 1, 0, 4, 65536, 0));
    #[rustfmt::skip]
    let golden = [1, 0, 1, 0, 4, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0];
    assert_eq!((&good.encode()[..16], good.encode()[16..].iter().max()), (&golden[..], Some(&0)));
    for layout in [
        Layout { strip: 1 << 20, width: 16, ..good },
        Layout { strategy: Strategy::Parity, k: 16, m: 4, width: 1, group: u32::MAX, ..good },
    ] {
        assert_eq!(Layout::decode(&layout.encode()), Ok(layout));
    }
    for layout in [
        Layout { strip: 1 << 21, ..good },
        Layout { strip: 1 << 15, ..good },
        Layout { strip: 3 << 16, ..good },
        Layout { strip: 0, ..good },
        Layout { width: 0, ..good },
        Layout { width: 17, ..good },
        Layout { k: 2, ..good },
        Layout { strategy: Strategy::Ring, m: 1, ..good },
    ] {
        assert_eq!(Layout::decode(&layout.encode()), Err(InvalidMessage::Field), "{layout:?}");
    }
    assert_eq!(Layout::decode(&[0; LAYOUT_LEN]), Err(InvalidMessage::Version), "there is none");
    for at in (5..8).chain(16..LAYOUT_LEN) {
        let mut bytes = good.encode();
        bytes[at] = 1;
        assert_eq!(Layout::decode(&bytes), Err(InvalidMessage::Field), "{at}");
    }
    assert_eq!(Layout::decode(&[1; 63]), Err(InvalidMessage::Length));
}

/// What is just within the bounds passes, and fits a message; one more is refused.
#[test]
fn calls_are_bounded() {
    let asker = |groups: usize| {
        let peer = Cred { groups: vec![7; groups], ..Cred::root() };
        Asker { session: SessionId(1), trusted: false, keeps_times: true, peer }
    };
    let file = |groups, request, payload| Call::File {
        asker: asker(groups),
        request: vec![1; request],
        payload: vec![2; payload],
    };
    let events = |count, name| Call::Events {
        events: (0..count)
            .map(|_| Event::StaleEntry {
                session: SessionId(1),
                parent: Ino(2),
                name: vec![b'n'; name],
            })
            .collect(),
    };
    let keys = |count| Call::Keys {
        keys: vec![Key { id: 1, until: 2, key: [3; 32] }; count],
        revoked: vec![Revoked { client: 4 }; count],
    };
    let resolve = |count: u64| {
        let decided = (0..count).map(|strip| Decided { strip, version: Version::default() });
        Call::Resolve { object: 1, fence: 2, epoch: 3, decided: decided.collect() }
    };
    let put = |name, value| Call::Put {
        name: "n".repeat(name),
        value: "v".repeat(value),
        version: None,
        session: 1,
    };
    for (call, is_fit) in [
        (file(GROUPS_MAX, REQUEST_HEADER_MAX, IO_MAX), true),
        (file(GROUPS_MAX + 1, 0, 0), false),
        (file(0, REQUEST_HEADER_MAX + 1, 0), false),
        (file(0, 0, IO_MAX + 1), false),
        (events(EVENTS_MAX, NAME_MAX), true),
        (events(EVENTS_MAX + 1, 0), false),
        (events(1, NAME_MAX + 1), false),
        (keys(KEYS_MAX), true),
        (keys(KEYS_MAX + 1), false),
        (resolve(CLAIMS_MAX as u64), true),
        (resolve(CLAIMS_MAX as u64 + 1), false),
        (put(NAME_MAX, ENTRY_VALUE_MAX), true),
        (put(NAME_MAX + 1, 0), false),
        (put(0, ENTRY_VALUE_MAX + 1), false),
        (Call::RevokeKey { name: "n".repeat(NAME_MAX + 1) }, false),
        (resolve(CLAIMS_MAX as u64).in_term(u32::MAX), true),
        (Call::InTerm { term: 1, call: vec![0; IO_MAX + 1] }, false),
    ] {
        let bytes = call_bytes(&call);
        assert!(!is_fit || CALL_HEAD_LEN + bytes.len() <= MESSAGE_MAX);
        let expected = if is_fit { Ok(call) } else { Err(InvalidMessage::Field) };
        assert!(Call::decode(&bytes) == expected, "{} bytes", bytes.len());
    }
}

#[test]
fn replies_are_bounded() {
    let objects = |count: u64| {
        let object = |object| Object { object, end: 1, fence: 2, bytes: 3 };
        Reply::Objects((0..count).map(object).collect())
    };
    let claims = |count: u64| {
        let version = Version { fence: 1, sequence: 2 };
        let pending = Some(Taken { version, epoch: 3 });
        let claim = |strip| Claim { strip, stable: Version::default(), pending };
        Reply::Claims((0..count).map(claim).collect())
    };
    let file = |header, payload| Reply::File {
        result: 0,
        header: vec![1; header],
        payload: vec![2; payload],
    };
    for (reply, is_fit) in [
        (objects(OBJECTS_MAX as u64), true),
        (objects(OBJECTS_MAX as u64 + 1), false),
        (claims(CLAIMS_MAX as u64), true),
        (claims(CLAIMS_MAX as u64 + 1), false),
        (file(REPLY_HEADER_MAX, IO_MAX), true),
        (file(REPLY_HEADER_MAX + 1, 0), false),
        (file(0, IO_MAX + 1), false),
        (Reply::Text("x".repeat(TEXT_MAX)), true),
        (Reply::Text("x".repeat(TEXT_MAX + 1)), false),
    ] {
        let bytes = reply_bytes(&reply);
        assert!(!is_fit || CALL_HEAD_LEN + bytes.len() <= MESSAGE_MAX);
        let expected = if is_fit { Ok(reply) } else { Err(InvalidMessage::Field) };
        assert!(Reply::decode(&bytes) == expected, "{} bytes", bytes.len());
    }
    let longest = CallHead { call: 1, is_reply: true }.emit().into_iter();
    let mut longest: Vec<u8> =
        longest.chain(reply_bytes(&Reply::Text("x".repeat(TEXT_MAX)))).collect();
    assert_eq!((longest.len(), CallHead::parse(&longest).is_ok()), (MESSAGE_MAX, true));
    longest.push(0);
    assert_eq!(CallHead::parse(&longest), Err(InvalidMessage::Length));
}

#[test]
fn a_call_that_lies_is_refused() {
    let call = |at: usize, byte: u8, number: u8| {
        let mut bytes = calls().into_iter().find(|(_, bytes)| bytes[0] == number).unwrap().1;
        bytes[at] = byte;
        Call::decode(&bytes).map(|_| ())
    };
    let reply = |at: usize, byte: u8, number: u8| {
        let mut bytes = replies().into_iter().find(|(_, bytes)| bytes[0] == number).unwrap().1;
        bytes[at] = byte;
        Reply::decode(&bytes).map(|_| ())
    };
    let (field, length) = (Err(InvalidMessage::Field), Err(InvalidMessage::Length));
    assert_eq!(call(9, 2, 1), field, "neither trusted nor not");
    assert_eq!(call(23, 1, 1), length, "a group less: all behind it moves");
    assert_eq!(call(26, 1, 1), field, "more groups than anybody has");
    assert_eq!((call(9, 0, 5), call(9, 3, 5)), (field, field), "no such mode");
    assert_eq!(call(25, 2, 6), field, "neither there nor missing");
    assert_eq!(call(37, 0xFF, 6), field, "a second has fewer nanoseconds");
    assert_eq!(call(5, 5, 33), Err(InvalidMessage::Operation), "no such event");
    assert_eq!(call(23, 0, 33), field, "an error that is none");
    assert_eq!(reply(2, 0x10, 1), field, "an error that is none");
    assert_eq!(reply(1, 0, 4), field, "no such mode");
    assert_eq!(reply(2 + 108, 1, 4), field, "attributes nobody knows");
    assert_eq!(reply(2 + 81, 0, 4), field, "a mode without a kind");
    assert_eq!(reply(131, 2, 4), field, "neither kept nor not");
    assert_eq!(reply(132, 0, 4), Err(InvalidMessage::Version), "no layout");
    assert_eq!(reply(196, 0, 4), Err(InvalidMessage::Version), "no capability");
    assert_eq!(reply(276, 17, 4), field, "too many nodes");
    assert_eq!(reply(276, 1, 4), length, "a node less");
    let grant = &replies()[4].1;
    let nowhere = [&grant[..276], &[0; 4]].concat();
    assert_eq!(Reply::decode(&nowhere), Err(InvalidMessage::Field), "no node has its strips");
    assert_eq!(reply(5, 0x13, 10), field, "objects in no order");
    assert_eq!(reply(5, 0x12, 10), field, "an object twice");
    assert_eq!(reply(5, 0xFF, 11), field, "no text");
    assert_eq!((reply(5, 6, 14), reply(5, 7, 14)), (field, field), "a strip twice, or in no order");
    assert_eq!((call(25, 6, 74), call(25, 7, 74)), (field, field), "a strip twice, or in no order");
    assert_eq!(reply(25, 2, 14), field, "neither pending nor not");
    assert_eq!(call(1, 0, 75), Err(InvalidMessage::Version), "no capability");
    let endless = [11, 0xFF, 0xFF, 0xFF, 0xFF];
    assert_eq!(Reply::decode(&endless), Err(InvalidMessage::Field));
}

#[test]
fn a_key_is_not_shown() {
    let key = Key { id: 1, until: 2, key: [0xAB; 32] };
    assert_eq!(format!("{key:?}"), "Key { id: 1, until: 2 }");
}

fn any_mode() -> impl Values<Value = Mode> {
    prop_oneof![Just(Mode::Read), Just(Mode::Write)]
}

prop_compose! {
    fn any_asker()(
        (session, trusted, keeps_times, uid, gid, pid) in
            any::<(u64, bool, bool, u32, u32, u32)>(),
        groups in vec(any::<u32>(), 0..=GROUPS_MAX),
    ) -> Asker {
        let peer = Cred { uid, gid, pid, groups };
        Asker { session: SessionId(session), trusted, keeps_times, peer }
    }
}

prop_compose! {
    fn any_time()(sec in any::<i64>(), nsec in 0..1_000_000_000u32) -> Timestamp {
        Timestamp { sec, nsec }
    }
}

prop_compose! {
    fn any_attr()(
        (ino, size, blocks, change) in any::<(u64, u64, u64, u64)>(),
        times in [any_time(), any_time(), any_time(), any_time()],
        kind in prop::sample::select(&[1u32, 2, 4, 6, 8, 10, 12][..]),
        permissions in 0..=0o7777u32,
        words in any::<[u32; 6]>(),
    ) -> Attr {
        let [atime, mtime, ctime, crtime] = times;
        let [nlink, uid, gid, rdev, blksize, flags] = words;
        let (ino, mode) = (Ino(ino), kind << 12 | permissions);
        Attr {
            ino, size, blocks, change, atime, mtime, ctime, crtime, mode, nlink, uid, gid, rdev,
            blksize, flags,
        }
    }
}

prop_compose! {
    fn any_spread()(
        strategy in prop::sample::select(&Strategy::ALL[..]),
        (k, m) in (1..17u8, 1..5u8),
    ) -> (Strategy, u8, u8) {
        let k = if strategy == Strategy::Single { 1 } else { k };
        (strategy, k, if strategy == Strategy::Parity { m } else { 0 })
    }
}

prop_compose! {
    fn any_layout()(
        (strategy, k, m) in any_spread(),
        width in 1..=16u8,
        power in 16..=20u32,
        group in any::<u32>(),
    ) -> Layout {
        Layout { strategy, k, m, width, strip: 1 << power, group }
    }
}

prop_compose! {
    fn any_told()(
        size in any::<u64>(),
        mtime in prop::option::of(any_time()),
        blocks in prop::option::of(any::<u64>()),
    ) -> Told {
        Told { size, mtime, blocks }
    }
}

prop_compose! {
    fn any_node()(
        (address, node, unit, parity) in any::<([u8; 4], u16, u8, bool)>(),
        port in 1..=u16::MAX,
    ) -> Coordinate {
        let role = if parity { Role::Parity } else { Role::Data };
        Coordinate { address, port, node, unit, role }
    }
}

prop_compose! {
    fn any_grant()(
        mode in any_mode(),
        (attr, layout) in (any_attr(), any_layout()),
        (strategy, k, m) in any_spread(),
        (key, volume, object, client, fence, group, expires, mac, (strips, kept)) in
            any::<(u8, u32, u64, u64, u64, u32, u64, [u8; MAC_LEN], (bool, bool))>(),
        (first, length) in (0..1u64 << 60, 1..=1u64 << 60),
        nodes in vec(any_node(), 1..=FAN_MAX),
    ) -> Grant {
        let (rights, end) = (Rights::READ_WRITE, first + length);
        let capability = Capability {
            key, rights, volume, object, first, end, client, fence, group, strategy, k, m, expires,
            mac,
        };
        Grant { mode, attr, strips, kept, layout, capability, nodes }
    }
}

fn any_event() -> impl Values<Value = Event> {
    let errno = prop::option::of((1..=4095u32).prop_map(Errno::from_raw));
    let name = vec(any::<u8>(), 0..=NAME_MAX);
    (0..4, any::<(u64, u64)>(), errno, name).prop_map(|(kind, (session, number), errno, name)| {
        let (session, ino) = (SessionId(session), Ino(number));
        match kind {
            0 => Event::LockSettled { session, ticket: number, errno },
            1 => Event::RecallLocks { session, ino },
            2 => Event::StaleInode { session, ino },
            _ => Event::StaleEntry { session, parent: ino, name },
        }
    })
}

/// A call for a session.
fn any_asked() -> impl Values<Value = Call> {
    let bytes = || vec(any::<u8>(), 0..2560);
    let ids = || any::<(u64, u64, u64)>().prop_map(|(a, b, c)| (Ino(a), SessionId(b), c));
    (0..6, any_asker(), ids(), any_layout(), bytes(), bytes()).prop_map(
        |(kind, asker, (ino, ..), layout, request, payload)| match kind {
            0 => Call::File { asker, request, payload },
            1 => Call::Strip { asker, ino },
            2 => Call::MayWrite { asker, ino },
            3 => Call::Answered { asker, request },
            4 => {
                let told = Told { size: ino.0, mtime: None, blocks: None };
                Call::Wrote { asker, request, count: 7, fence: ino.0, told }
            }
            _ => Call::SetLayout { asker, ino, layout },
        },
    )
}

fn any_version() -> impl Values<Value = Version> {
    any::<(u64, u32)>().prop_map(|(fence, sequence)| Version { fence, sequence })
}

/// Strips, by their numbers.
fn any_strips() -> impl Values<Value = BTreeMap<u64, (Version, Option<Taken>)>> {
    let taken = (any_version(), any::<u32>());
    let taken = taken.prop_map(|(version, epoch)| Taken { version, epoch });
    btree_map(any::<u64>(), (any_version(), prop::option::of(taken)), 0..40)
}

/// A call about copies.
fn any_of_copies() -> impl Values<Value = Call> {
    let settle = (any_grant(), any::<u32>())
        .prop_map(|(grant, sequence)| Acknowledged { capability: grant.capability, sequence });
    let settle = vec(settle, 1..=SETTLES_MAX).prop_map(|settles| match settles[..] {
        [of] => Call::Settle { of },
        _ => Call::Flush { settles },
    });
    let numbers = any::<(u64, u64, u32)>();
    let resolve = (numbers, any_strips()).prop_map(|((object, fence, epoch), all)| {
        let decided = |(strip, (version, _)): (u64, _)| Decided { strip, version };
        let decided = all.into_iter().map(decided).collect();
        Call::Resolve { object, fence, epoch, decided }
    });
    let few = any::<(u64, u64)>().prop_flat_map(|(object, fence)| {
        let ino = Ino(object);
        prop_oneof![
            Just(Call::Regrant { ino, fence, unreached: (fence % 2 == 0).then_some(7) }),
            Just(Call::Undone { ino, fence }),
            Just(Call::Doubts { object }),
            Just(Call::Trust { object, boot: fence }),
            Just(Call::Damaged { object, from: fence }),
            Just(Call::Seal { object, fence }.in_term(7)),
        ]
    });
    prop_oneof![settle, resolve, few]
}

fn any_call() -> impl Values<Value = Call> {
    let keep = || prop::option::of(any_mode());
    let ids = || any::<(u64, u64, u64)>().prop_map(|(a, b, c)| (Ino(a), SessionId(b), c));
    let key = any::<(u8, u64, [u8; 32])>().prop_map(|(id, until, key)| Key { id, until, key });
    let few = (0..23, ids(), keep()).prop_map(|(kind, (ino, session, number), keep)| match kind {
        0 => Call::Detach { session },
        1 => Call::Back { session },
        2 => Call::Renew,
        3 => Call::Delegate { ino, mode: keep.unwrap_or(Mode::Read) },
        4 => Call::Opened { session, ino, fh: Fh(number) },
        5 => Call::Layout { ino },
        6 => Call::Check { contents: keep.is_some() },
        7 => Call::Recall { ino, keep },
        8 => Call::Seal { object: number, fence: ino.0 },
        9 => Call::Purge { object: number, fence: ino.0, until: session.0 },
        10 => Call::Objects { from: number },
        11 => Call::Verify { object: number },
        12 => Call::FLUSH,
        13 => Call::Begin { nonce: number },
        14 => Call::Install { policy: Policy::Steered },
        15 => Call::Beat { session: number },
        18 => Call::HandedIn,
        16 => Call::Newest,
        19 => Call::Claims { object: number, epoch: 7, from: ino.0 },
        17 => Call::Holed { ino: Ino(number), fence: number },
        _ => Call::Status,
    });
    let telling = (0..3, ids(), prop::option::of(any_told()), keep()).prop_map(
        |(kind, (ino, _, fence), told, keep)| match (kind, told) {
            (0, Some(told)) => Call::Publish { ino, fence, told },
            (1, Some(told)) => Call::Tells { ino, fence, told },
            _ => Call::Release { ino, fence, told, keep },
        },
    );
    let place = (any_grant(), vec(any::<u16>(), 0..=FAN_MAX), any::<u64>());
    let place = place.prop_map(|(grant, leaves, rate)| match rate {
        0 => Call::Leaves { node: 7 },
        _ => Call::Place { joins: grant.nodes, leaves, rate },
    });
    prop_oneof![
        3 => few,
        1 => place,
        2 => any_asked(),
        2 => telling,
        1 => vec(any_event(), 0..20).prop_map(|events| Call::Events { events }),
        1 => (vec(key, 0..=KEYS_MAX), vec(any::<u32>(), 0..9)).prop_map(|(keys, revoked)| {
            let revoked = revoked.into_iter().map(|client| Revoked { client }).collect();
            Call::Keys { keys, revoked }
        }),
        1 => any_of_copies(),
        1 => (0..5, ".{0,40}", ".{0,40}", prop::option::of(any::<u64>()), any::<u64>()).prop_map(
            |(kind, name, value, version, session)| match kind {
                0 => Call::AddKey { name },
                1 => Call::RevokeKey { name },
                2 => Call::List { prefix: name },
                3 => Call::Remove { name, version: session },
                _ => Call::Put { name, value, version, session },
            },
        ),
    ]
}

fn any_reply() -> impl Values<Value = Reply> {
    let bytes = |most| vec(any::<u8>(), 0..=most);
    let object = || {
        let fields = any::<(u64, u64, u64, u64)>();
        fields.prop_map(|(object, end, fence, bytes)| Object { object, end, fence, bytes })
    };
    let few = (0..5, any::<(u64, u32, u64, u64)>()).prop_map(|(kind, (a, b, c, d))| match kind {
        0 => Reply::Done,
        1 => Reply::Lease { life: a, term_ms: b, free: c, capacity: d },
        2 => Reply::Flag(a % 2 == 0),
        3 => Reply::Later { term: b },
        _ => Reply::Number(a),
    });
    prop_oneof![
        3 => few,
        1 => (1..=4095u32).prop_map(|raw| Reply::Failed(Errno::from_raw(raw))),
        1 => (any::<u64>(), bytes(REPLY_HEADER_MAX), bytes(3000))
            .prop_map(|(result, header, payload)| Reply::File { result, header, payload }),
        2 => any_grant().prop_map(|grant| Reply::Grant(Box::new(grant))),
        1 => any_attr().prop_map(|attr| Reply::Attr(Box::new(attr))),
        1 => any_layout().prop_map(Reply::Layout),
        1 => object().prop_map(Reply::Object),
        1 => vec(object(), 0..40).prop_map(|mut objects| {
            objects.sort_by_key(|object| object.object);
            objects.dedup_by_key(|object| object.object);
            Reply::Objects(objects)
        }),
        1 => any::<String>().prop_map(Reply::Text),
        1 => any_strips().prop_map(|all| {
            let claim = |(strip, (stable, pending))| Claim { strip, stable, pending };
            Reply::Claims(all.into_iter().map(claim).collect())
        }),
        1 => vec((".{0,40}", ".{0,40}", any::<u64>(), any::<u64>()), 0..9).prop_map(|all| {
            let all = all.into_iter();
            let entries = all.map(|(name, value, version, session)| {
                Entry { name, value, version, session }
            });
            Reply::Entries(entries.collect())
        }),
    ]
}

proptest! {
    #[test]
    fn a_call_is_read_as_it_was_written(call in any_call()) {
        prop_assert_eq!(Call::decode(&call_bytes(&call)), Ok(call));
    }

    #[test]
    fn a_reply_is_read_as_it_was_written(reply in any_reply()) {
        prop_assert_eq!(Reply::decode(&reply_bytes(&reply)), Ok(reply));
    }

    #[test]
    fn any_bytes_are_what_they_are_or_nothing(
        number in 0..100u8,
        bytes in vec(prop_oneof![Just(0u8), Just(1), any::<u8>()], 0..400),
    ) {
        let bytes = [&[number][..], &bytes].concat();
        if let Ok(call) = Call::decode(&bytes) {
            prop_assert_eq!(&call_bytes(&call), &bytes);
        }
        if let Ok(reply) = Reply::decode(&bytes) {
            prop_assert_eq!(&reply_bytes(&reply), &bytes);
        }
    }
}
