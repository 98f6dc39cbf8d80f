//! One of each call, reply and event, with the bytes that it has: a contract between programs, of
//! which this is the golden copy.

use outboard_base::{Cred, Errno, Fh, Ino, SessionId, Timestamp};

use super::*;
use crate::shared::{MAC_LEN, Rights, Role};

const S: SessionId = SessionId(0x0807_0605_0403_0201);
const S_BYTES: &str = "0102030405060708 ";
const INO: Ino = Ino(0x11);
const INO_BYTES: &str = "1100000000000000 ";
const ASKER_BYTES: &str = "0102030405060708 01 00 e8030000 64000000 2a000000 \
                           02000000 05000000 06000000 ";
const LAYOUT_BYTES: &str = "0101 0300 0400 0000 00000200 07000000 \
    00000000 00000000 00000000 00000000 00000000 00000000 \
    00000000 00000000 00000000 00000000 00000000 00000000 ";
const ATTR_BYTES: &str = "1100000000000000 0500000000000000 0800000000000000 0900000000000000 \
    ffffffffffffffff 0200000000000000 0300000000000000 0400000000000000 \
    ffc99a3b 01000000 02000000 03000000 a4810000 01000000 e8030000 64000000 \
    00000000 00200000 00000000 00000000 00000000 00000000 00000000 00000000 ";
const CAPABILITY_BYTES: &str = "01020300 01000000 1100000000000000 0000000000000000 \
    ffffffffffffffff 0800000000000000 0100000001000000 07000000 01030000 0b00000000000000 \
    aaaaaaaaaaaaaaaa aaaaaaaaaaaaaaaa ";
const NODES_BYTES: &str = "02000000 \
    0a000001 b712 0100 00 00 000000000000 \
    0a000002 b712 0200 01 01 000000000000";

fn hex(text: &str) -> Vec<u8> {
    let digits: Vec<u8> = text.bytes().filter(u8::is_ascii_hexdigit).collect();
    let pairs = digits.chunks(2).map(|pair| std::str::from_utf8(pair).unwrap());
    pairs.map(|pair| u8::from_str_radix(pair, 16).unwrap()).collect()
}

fn asker() -> Asker {
    let peer = Cred { uid: 1000, gid: 100, pid: 42, groups: vec![5, 6] };
    Asker { session: S, trusted: true, keeps_times: false, peer }
}

fn layout() -> Layout {
    Layout { strategy: Strategy::Ring, k: 3, m: 0, width: 4, strip: 128 << 10, group: 7 }
}

fn attr() -> Attr {
    let at = |sec, nsec| Timestamp { sec, nsec };
    Attr {
        ino: INO,
        size: 5,
        blocks: 8,
        change: 9,
        atime: at(-1, 999_999_999),
        mtime: at(2, 1),
        ctime: at(3, 2),
        crtime: at(4, 3),
        mode: 0o100_644,
        nlink: 1,
        uid: 1000,
        gid: 100,
        rdev: 0,
        blksize: 8192,
        flags: 0,
    }
}

fn grant() -> Grant {
    let capability = Capability {
        key: 2,
        rights: Rights::READ_WRITE,
        volume: 1,
        object: INO.0,
        first: 0,
        end: u64::MAX,
        client: 8,
        fence: 1 << 32 | 1,
        group: 7,
        strategy: Strategy::Ring,
        k: 3,
        m: 0,
        expires: 11,
        mac: [0xAA; MAC_LEN],
    };
    let node = |node: u8, role| {
        let address = [10, 0, 0, node];
        Coordinate { address, port: 4791, node: node.into(), unit: node - 1, role }
    };
    let nodes = vec![node(1, Role::Data), node(2, Role::Parity)];
    let (attr, layout) = (attr(), layout());
    Grant { mode: Mode::Write, attr, strips: true, kept: false, layout, capability, nodes }
}

fn events() -> (Call, Vec<u8>) {
    let bytes = [
        "21 05000000 01 ",
        S_BYTES,
        "0500000000000000 01 2300 01 ",
        S_BYTES,
        "0600000000000000 00 02 ",
        S_BYTES,
        INO_BYTES,
        "03 ",
        S_BYTES,
        INO_BYTES,
        "04 ",
        S_BYTES,
        INO_BYTES,
        "02000000 6162",
    ];
    let events = vec![
        Event::LockSettled { session: S, ticket: 5, errno: Some(Errno::EDEADLK) },
        Event::LockSettled { session: S, ticket: 6, errno: None },
        Event::RecallLocks { session: S, ino: INO },
        Event::StaleInode { session: S, ino: INO },
        Event::StaleEntry { session: S, parent: INO, name: b"ab".to_vec() },
    ];
    (Call::Events { events }, hex(&bytes.concat()))
}

/// Calls, and the bytes of each.
pub(crate) fn calls() -> Vec<(Call, Vec<u8>)> {
    [server_calls(), node_calls(), managing()].concat()
}

const FENCE: u64 = 0x0102;
const FENCE_BYTES: &str = "0201000000000000 ";

/// Calls between clients and the server.
fn server_calls() -> Vec<(Call, Vec<u8>)> {
    let told = Told { size: 5, mtime: Some(Timestamp { sec: -2, nsec: 3 }), blocks: None };
    let quiet = Told { size: 6, mtime: None, blocks: Some(7) };
    let (ino, session, asker) = (INO, S, asker());
    let (fence, fence_bytes) = (FENCE, FENCE_BYTES);
    let (request, payload) = (vec![1, 2, 3], vec![4, 5]);
    let contents = true;
    let file = Call::File { asker: asker.clone(), request: request.clone(), payload };
    let answered = Call::Answered { asker: asker.clone(), request: request.clone() };
    let wrote = Call::Wrote { asker: asker.clone(), request, count: 9, fence, told };
    let (told_bytes, quiet_bytes) = (
        "0500000000000000 01 feffffffffffffff 03000000 00 ",
        "0600000000000000 00 01 0700000000000000 ",
    );
    let with = |parts: &[&str]| hex(&parts.concat());
    vec![
        (file, with(&["01 ", ASKER_BYTES, "03000000 010203 02000000 0405"])),
        (Call::Detach { session }, with(&["02", S_BYTES])),
        (Call::Back { session }, with(&["03", S_BYTES])),
        (Call::Renew, hex("04")),
        (Call::Delegate { ino, mode: Mode::Read }, with(&["05", INO_BYTES, "01"])),
        (Call::Delegate { ino, mode: Mode::Write }, with(&["05", INO_BYTES, "02"])),
        (Call::Publish { ino, fence, told }, with(&["06", INO_BYTES, fence_bytes, told_bytes])),
        (
            Call::Release { ino, fence, told: Some(quiet), keep: Some(Mode::Read) },
            with(&["07", INO_BYTES, fence_bytes, "01", quiet_bytes, "01 01"]),
        ),
        (
            Call::Release { ino, fence, told: None, keep: None },
            with(&["07", INO_BYTES, fence_bytes, "00 00"]),
        ),
        (Call::Strip { asker: asker.clone(), ino }, with(&["08", ASKER_BYTES, INO_BYTES])),
        (Call::MayWrite { asker: asker.clone(), ino }, with(&["09", ASKER_BYTES, INO_BYTES])),
        (
            Call::Opened { session, ino, fh: Fh(6) },
            with(&["0a", S_BYTES, INO_BYTES, "0600000000000000"]),
        ),
        (Call::Layout { ino }, with(&["0b", INO_BYTES])),
        (
            Call::SetLayout { asker, ino, layout: layout() },
            with(&["0c", ASKER_BYTES, INO_BYTES, LAYOUT_BYTES]),
        ),
        (Call::Check { contents }, hex("0d 01")),
        (Call::HandedIn, hex("14")),
        (Call::Tells { ino, fence, told }, with(&["15", INO_BYTES, fence_bytes, told_bytes])),
        (wrote, with(&["16", ASKER_BYTES, "03000000 010203 09000000", fence_bytes, told_bytes])),
        (answered, with(&["17", ASKER_BYTES, "03000000 010203"])),
        (Call::Holed { ino: INO, fence: 0x0102 }, with(&["13", INO_BYTES, fence_bytes])),
        (Call::Begin { nonce: 0x0102 }, with(&["0e", fence_bytes])),
        (Call::Recall { ino, keep: Some(Mode::Write) }, with(&["20", INO_BYTES, "01 02"])),
        (Call::Recall { ino, keep: None }, with(&["20", INO_BYTES, "00"])),
        (Call::Leaves { node: 0x0102 }, hex("22 0201")),
        events(),
    ]
}

/// Calls of nodes.
fn node_calls() -> Vec<(Call, Vec<u8>)> {
    let key = Key { id: 2, until: 3, key: [7; 32] };
    let key_bytes =
        format!("44 01000000 02 0300000000000000 {} 01000000 09000000", "07".repeat(32));
    let revoked = vec![Revoked { client: 9 }];
    let (object, fence, fence_bytes) = (0x11, FENCE, FENCE_BYTES);
    let with = |parts: &[&str]| hex(&parts.concat());
    vec![
        (Call::Seal { object, fence }, with(&["40", INO_BYTES, fence_bytes])),
        (
            Call::Purge { object, fence: 0x0102, until: 0x0102 },
            with(&["41", INO_BYTES, fence_bytes, fence_bytes]),
        ),
        (Call::Objects { from: object }, with(&["42", INO_BYTES])),
        (Call::Verify { object }, with(&["43", INO_BYTES])),
        (Call::Keys { keys: vec![key], revoked }, hex(&key_bytes)),
        (Call::Newest, hex("48")),
        (
            Call::Claims { object, epoch: 3, from: FENCE },
            with(&["49", INO_BYTES, "03000000", fence_bytes]),
        ),
        resolve(),
        (
            Call::Settle { of: Acknowledged { capability: grant().capability, sequence: 4 } },
            with(&["4b", CAPABILITY_BYTES, "04000000"]),
        ),
        (
            Call::Regrant { ino: Ino(0x11), fence: 2, unreached: Some(3) },
            hex("18 1100000000000000 0200000000000000 01 0300"),
        ),
        (Call::Doubts { object: 0x11 }, hex("4c 1100000000000000")),
        (Call::Undone { ino: Ino(0x11), fence: 2 }, hex("19 1100000000000000 0200000000000000")),
        (Call::Trust { object: 0x11, boot: 3 }, hex("4d 1100000000000000 0300000000000000")),
        (Call::Damaged { object: 0x11, from: 3 }, hex("4e 1100000000000000 0300000000000000")),
        (Call::FLUSH, hex("45 00000000")),
        (
            Call::Flush {
                settles: vec![Acknowledged { capability: grant().capability, sequence: 4 }],
            },
            with(&["45 01000000", CAPABILITY_BYTES, "04000000"]),
        ),
        (
            Call::Doubts { object: 0x11 }.in_term(0x0201),
            hex("4f 01020000 09000000 4c 1100000000000000"),
        ),
        (Call::Space, hex("46")),
        (Call::Install { policy: Policy::ReadOnly }, hex("47 01")),
        (Call::Status, hex("60")),
    ]
}

const VERSION: Version = Version { fence: FENCE, sequence: 4 };
const VERSION_BYTES: &str = "0201000000000000 04000000 ";

fn resolve() -> (Call, Vec<u8>) {
    let decided = vec![
        Decided { strip: 5, version: VERSION },
        Decided { strip: 6, version: Version::default() },
    ];
    let bytes = [
        "4a",
        INO_BYTES,
        FENCE_BYTES,
        "03000000 02000000 0500000000000000 ",
        VERSION_BYTES,
        "0600000000000000 0000000000000000 00000000",
    ];
    (Call::Resolve { object: 0x11, fence: FENCE, epoch: 3, decided }, hex(&bytes.concat()))
}

fn claims() -> (Reply, Vec<u8>) {
    let pending = Some(Taken { version: VERSION, epoch: 3 });
    let claims = vec![
        Claim { strip: 5, stable: Version::default(), pending },
        Claim { strip: 6, stable: VERSION, pending: None },
    ];
    let bytes = [
        "0e 02000000 0500000000000000 0000000000000000 00000000 01 ",
        VERSION_BYTES,
        "03000000 0600000000000000 ",
        VERSION_BYTES,
        "00",
    ];
    (Reply::Claims(claims), hex(&bytes.concat()))
}

/// Calls of who manages a cluster, and of parts to a coordinator.
fn managing() -> Vec<(Call, Vec<u8>)> {
    let name = String::from("ab");
    let (name_bytes, number) = ("02000000 6162 ", "0201000000000000 ");
    let with = |parts: &[&str]| hex(&parts.concat());
    vec![
        (Call::AddKey { name: name.clone() }, with(&["0f", name_bytes])),
        (Call::ListKeys, hex("10")),
        (Call::RevokeKey { name: name.clone() }, with(&["11", name_bytes])),
        (Call::RotateKey, hex("12")),
        (
            Call::Place { joins: grant().nodes[..1].to_vec(), leaves: vec![2, 3], rate: 0x0102 },
            with(&[
                "1a 01000000 0a000001 b712 0100 00 00 000000000000 ",
                "02000000 0200 0300 ",
                number,
            ]),
        ),
        (Call::Beat { session: 0x0102 }, with(&["50", number])),
        (Call::List { prefix: name.clone() }, with(&["51", name_bytes])),
        (
            Call::Put { name: name.clone(), value: "c".into(), version: Some(0x0102), session: 0 },
            with(&["52", name_bytes, "01000000 63 01", number, "0000000000000000"]),
        ),
        (Call::Remove { name, version: 0x0102 }, with(&["53", name_bytes, number])),
    ]
}

/// Replies, and the bytes of each.
pub(crate) fn replies() -> Vec<(Reply, Vec<u8>)> {
    let object = Object { object: 0x11, end: 5, fence: 0x0102, bytes: 8192 };
    let other = Object { object: 0x12, end: 0, fence: 0, bytes: 0 };
    let object_bytes = "1100000000000000 0500000000000000 0201000000000000 0020000000000000 ";
    let other_bytes = "1200000000000000 0000000000000000 0000000000000000 0000000000000000 ";
    let entry = Entry { name: "ab".into(), value: "c".into(), version: 3, session: 4 };
    let file = Reply::File { result: 0x0102, header: vec![1], payload: vec![2, 3] };
    let with = |parts: &[&str]| hex(&parts.concat());
    vec![
        (Reply::Done, hex("00")),
        (Reply::Failed(Errno::ESTALE), hex("01 7400")),
        (file, hex("02 0201000000000000 01000000 01 02000000 0203")),
        (
            Reply::Lease { life: 1, term_ms: 10_000, free: 2, capacity: 3 },
            hex("03 0100000000000000 10270000 0200000000000000 0300000000000000"),
        ),
        (
            Reply::Grant(Box::new(grant())),
            with(&["04 02", ATTR_BYTES, "01 00", LAYOUT_BYTES, CAPABILITY_BYTES, NODES_BYTES]),
        ),
        (Reply::Attr(Box::new(attr())), with(&["05", ATTR_BYTES])),
        (Reply::Flag(true), hex("06 01")),
        (Reply::Flag(false), hex("06 00")),
        (Reply::Number(u64::MAX), hex("07 ffffffffffffffff")),
        (Reply::Layout(layout()), with(&["08", LAYOUT_BYTES])),
        (Reply::Object(object), with(&["09", object_bytes])),
        (Reply::Objects(vec![object, other]), with(&["0a 02000000", object_bytes, other_bytes])),
        (Reply::Text("\u{e9}{}".into()), hex("0b 04000000 c3a97b7d")),
        (Reply::Space { free: 2, capacity: 3 }, hex("0c 0200000000000000 0300000000000000")),
        (
            Reply::Entries(vec![entry]),
            hex("0d 01000000 02000000 6162 01000000 63 0300000000000000 0400000000000000"),
        ),
        claims(),
        (Reply::Later { term: 0x0201 }, hex("0f 01020000")),
    ]
}
