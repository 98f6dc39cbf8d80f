//! The bytes are a format on disk: pinned, and hostile ones refused.

use outboard_base::{Errno, Ino, SessionId, Timestamp};
use outboard_wire::file::{Attr, FileKind, Op, Reply};
use outboard_wire::shared::call::Layout;
use proptest::prelude::*;

use super::key::{self, Counter, Tag};
use super::*;

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[test]
fn keys_are_pinned() {
    let ino = Ino(0x0102_0304_0506_0708);
    assert_eq!(hex(&key::SUPERBLOCK), "01");
    assert_eq!(hex(&key::counter(Counter::Ino)), "0201");
    assert_eq!(hex(&key::counter(Counter::Opened)), "0202");
    assert_eq!(hex(&key::counter(Counter::Marked)), "0203");
    assert_eq!(hex(&key::inode(ino)), "100102030405060708");
    assert_eq!(hex(&key::entry(ino, b"ab")), "1101020304050607086162");
    assert_eq!(hex(&key::listed(ino, 3)), "1201020304050607080000000000000003");
    assert_eq!(hex(&key::of(Tag::Small, ino)), "130102030405060708");
    assert_eq!(hex(&key::xattr(ino, b"user.a")), "140102030405060708757365722e61");
    assert_eq!(hex(&key::of(Tag::Orphan, ino)), "150102030405060708");
    assert_eq!(hex(&key::of(Tag::Trim, ino)), "160102030405060708");
    assert_eq!(hex(&key::of(Tag::Writing, ino)), "180102030405060708");
    assert_eq!(hex(&key::of(Tag::Purge, ino)), "190102030405060708");
    assert_eq!(hex(&key::note(b"ab")), "1a6162");
    assert_eq!(hex(&key::of(Tag::Lacking, ino)), "1b0102030405060708");
    assert_eq!(hex(&key::replay(SessionId(ino.0), 0x090a)), "170102030405060708090a");
    assert_eq!(key::number(&key::entry(ino, b"ab")), Some(ino.0));
    assert_eq!(key::rest(&key::entry(ino, b"ab")), b"ab");
    assert_eq!(key::cookie(&key::listed(ino, 9)), Ok(9));
    assert_eq!(key::cookie(&key::inode(ino)), Err(Errno::EUCLEAN));
}

#[test]
fn values_are_pinned() {
    let entry = Entry { ino: Ino(5), cookie: 3, kind: FileKind::Regular };
    assert_eq!(
        hex(&entry.encode(Ino(2), b"name")),
        "0500000000000000030000000000000008000000bf231d95"
    );
    let listed = Listed { ino: Ino(5), kind: FileKind::Regular, name: b"name" };
    assert_eq!(hex(&listed.encode(Ino(2), 3).unwrap()), "050000000000000008000000bf231d956e616d65");
    let created = Timestamp { sec: 1, nsec: 2 };
    let superblock = Superblock { format: 1, id: 7, created };
    assert_eq!(
        hex(&superblock.encode().unwrap()),
        "4f5554424b56465301000000000000000700000000000000010000000000000002000000f9309b88"
    );
    assert_eq!(hex(&encode_counter(258).unwrap()), "02010000000000003b06b229");
    assert_eq!(hex(&encode_small(Ino(2), b"abc")), "b85d6f1e616263");
    assert_eq!(hex(&encode_xattr(Ino(2), b"user.a", b"v")), "46b82f5176");
    let record = ReplayRecord { sequence: 9, op: Op::Mkdir, reply: Reply::Entry(attr(7)) };
    let value = record.encode().unwrap();
    assert_eq!(value.len(), 24 + Attr::LEN);
    assert_eq!(hex(&value[..24]), "0900000000000000000000000000000008000000a53ace9d");
    let mut inode = Inode::new(Ino(7), Ino(2), 0o040_755, Timestamp { sec: 1, nsec: 2 });
    inode.marks = marks::DEFAULT_ACL;
    let value = inode.encode().unwrap();
    assert_eq!(hex(&value[..8]), "01000000f92a4982");
    assert_eq!(
        hex(&value[136..168]),
        "0200000000000000030000000000000000000000000000000200000000000000"
    );
}

/// Files and directories of volumes without nodes read as they did before there were layouts, and
/// what is no layout is no inode.
#[test]
fn a_layout_stands_where_there_were_zeros() {
    let now = Timestamp { sec: 1, nsec: 2 };
    let mut inode = Inode::new(Ino(71), Ino(2), 0o100_644, now);
    assert_eq!(inode.encode().unwrap()[160..], [0; 96]);
    inode.data = DataKind::Spread;
    inode.layout = Some(Layout { width: 3, group: 7, ..Layout::default() });
    let value = inode.encode().unwrap();
    assert_eq!(hex(&value[..4]), "01000300");
    assert_eq!(hex(&value[160..184]), "000000000100010003000000000001000700000000000000");
    assert_eq!(value[184..], [0; 72]);
    assert_eq!(Inode::decode(Ino(71), &value), Ok(inode));
    for (at, byte) in [(164, 2), (165, 9), (168, 0), (168, 17), (169, 1), (174, 3), (227, 1)] {
        let mut strange = value;
        strange[at] = byte;
        strange[4..8].fill(0);
        let crc = super::bytes::sum(71, &strange);
        strange[4..8].copy_from_slice(&crc.to_le_bytes());
        assert_eq!(Inode::decode(Ino(71), &strange), Err(Errno::EUCLEAN), "{byte} at {at}");
    }
}

fn attr(ino: u64) -> Attr {
    Attr { ino: Ino(ino), mode: 0o100_644, nlink: 1, ..Attr::default() }
}

fn kinds() -> impl Strategy<Value = FileKind> {
    prop::sample::select(vec![
        FileKind::Fifo,
        FileKind::CharDevice,
        FileKind::Directory,
        FileKind::BlockDevice,
        FileKind::Regular,
        FileKind::Symlink,
        FileKind::Socket,
    ])
}

fn layouts() -> impl Strategy<Value = Option<Layout>> {
    let fields = (1..=16_u8, 16..=20_u32, any::<u32>());
    let layout = fields.prop_map(|(width, strip, group)| Layout {
        width,
        strip: 1 << strip,
        group,
        ..Layout::default()
    });
    prop::option::of(layout)
}

fn inodes() -> impl Strategy<Value = Inode> {
    let numbers = (any::<u64>(), any::<u64>(), any::<u64>(), any::<u64>(), any::<u64>());
    let times = prop::collection::vec((any::<i64>(), 0..1_000_000_000u32), 4);
    let data = prop::sample::select(vec![
        DataKind::None,
        DataKind::Small,
        DataKind::Big,
        DataKind::Spread,
    ]);
    let marks = 0..=marks::KNOWN;
    (numbers, times, kinds(), 0..0o10_000u32, data, marks, layouts()).prop_map(
        |((ino, size, parent, next_cookie, entries), times, kind, mode, data, marks, layout)| {
            let time = |at: usize| Timestamp { sec: times[at].0, nsec: times[at].1 };
            let attr = Attr {
                ino: Ino(ino),
                size,
                blocks: size / 512,
                change: entries,
                atime: time(0),
                mtime: time(1),
                ctime: time(2),
                crtime: time(3),
                mode: kind.mode_bits() | mode,
                nlink: 3,
                uid: 4,
                gid: 5,
                rdev: 6,
                blksize: 8192,
                flags: 0,
            };
            let count = if layout.is_some() { entries % 17 } else { 0 };
            let members = (0..count).map(|at| (ino >> at & 0xFFFF).try_into().unwrap()).collect();
            Inode { attr, parent: Ino(parent), next_cookie, entries, data, marks, layout, members }
        },
    )
}

/// One bit changed, anywhere.
fn flipped(value: &[u8], at: prop::sample::Index, bit: u32) -> Vec<u8> {
    let mut damaged = value.to_vec();
    damaged[at.index(value.len())] ^= 1 << bit;
    damaged
}

/// A listed entry's checksum is over the kind it decodes to. The kind byte went through a mode,
/// which keeps four bits: a flip above them was neither summed nor refused.
#[test]
fn bits_above_the_kind_are_damage() {
    let listed = Listed { ino: Ino(5), kind: FileKind::Regular, name: b"name" };
    let mut value = listed.encode(Ino(2), 3).unwrap();
    value[8] |= 0x10;
    assert_eq!(Listed::decode(Ino(2), 3, &value), Err(Errno::EUCLEAN));
}

proptest! {
    #[test]
    fn an_inode_comes_back_and_one_flipped_bit_is_seen(
        inode in inodes(),
        at in any::<prop::sample::Index>(),
        bit in 0..8u32,
    ) {
        let value = inode.encode().unwrap();
        let ino = inode.ino();
        prop_assert_eq!(Inode::decode(ino, &value), Ok(inode));
        prop_assert_eq!(Inode::decode(Ino(ino.0 ^ 1), &value), Err(Errno::EUCLEAN));
        prop_assert_eq!(Inode::decode(ino, &flipped(&value, at, bit)), Err(Errno::EUCLEAN));
        prop_assert_eq!(Inode::decode(ino, &value[1..]), Err(Errno::EUCLEAN));
    }

    #[test]
    fn an_entry_comes_back_and_one_flipped_bit_is_seen(
        (parent, ino, cookie) in (any::<u64>(), 1..u64::MAX, 3..u64::MAX),
        kind in kinds(),
        name in prop::collection::vec(any::<u8>(), 1..1024),
        at in any::<prop::sample::Index>(),
        bit in 0..8u32,
    ) {
        let parent = Ino(parent);
        let entry = Entry { ino: Ino(ino), cookie, kind };
        let value = entry.encode(parent, &name);
        prop_assert_eq!(Entry::decode(parent, &name, &value), Ok(entry));
        prop_assert!(Entry::decode(Ino(parent.0 ^ 1), &name, &value).is_err());
        prop_assert!(Entry::decode(parent, &flipped(&name, at, bit), &value).is_err());
        prop_assert!(Entry::decode(parent, &name, &flipped(&value, at, bit)).is_err());
        let listed = Listed { ino: Ino(ino), kind, name: &name };
        let value = listed.encode(parent, cookie).unwrap();
        prop_assert_eq!(Listed::decode(parent, cookie, &value), Ok(listed));
        prop_assert!(Listed::decode(parent, cookie ^ 1, &value).is_err());
        prop_assert!(Listed::decode(parent, cookie, &flipped(&value, at, bit)).is_err());
    }

    #[test]
    fn bytes_of_files_and_attributes_come_back_and_one_flipped_bit_is_seen(
        ino in any::<u64>(),
        name in prop::collection::vec(any::<u8>(), 1..255),
        data in prop::collection::vec(any::<u8>(), 0..=8192),
        at in any::<prop::sample::Index>(),
        bit in 0..8u32,
    ) {
        let ino = Ino(ino);
        let value = encode_small(ino, &data);
        prop_assert_eq!(decode_small(ino, &value), Ok(&data[..]));
        prop_assert!(decode_small(Ino(ino.0 ^ 1), &value).is_err());
        prop_assert!(decode_small(ino, &flipped(&value, at, bit)).is_err());
        let value = encode_xattr(ino, &name, &data);
        prop_assert_eq!(decode_xattr(ino, &name, &value), Ok(&data[..]));
        prop_assert!(decode_xattr(ino, &flipped(&name, at, bit), &value).is_err());
        prop_assert!(decode_xattr(ino, &name, &flipped(&value, at, bit)).is_err());
    }

    #[test]
    fn records_come_back_and_one_flipped_bit_is_seen(
        (sequence, number, id) in (any::<u64>(), any::<u64>(), any::<u64>()),
        at in any::<prop::sample::Index>(),
        bit in 0..8u32,
    ) {
        let replies = [
            (Op::Mkdir, Reply::Entry(attr(number))),
            (Op::Unlink, Reply::Removed((number != 0).then_some(Ino(number)))),
            (Op::Unlink, Reply::Gone { last: attr(number), parent: None }),
            (Op::Setxattr, Reply::Empty),
        ];
        for (op, reply) in replies {
            let record = ReplayRecord { sequence, op, reply };
            let value = record.encode().unwrap();
            prop_assert_eq!(ReplayRecord::decode(&value), Ok(record));
            prop_assert_eq!(
                ReplayRecord::decode(&flipped(&value, at, bit)),
                Err(Errno::EUCLEAN)
            );
        }
        let value = encode_counter(number).unwrap();
        prop_assert_eq!(decode_counter(&value), Ok(number));
        prop_assert_eq!(decode_counter(&flipped(&value, at, bit)), Err(Errno::EUCLEAN));
        let superblock =
            Superblock { format: 1, id, created: Timestamp { sec: number.cast_signed(), nsec: 9 } };
        let value = superblock.encode().unwrap();
        prop_assert_eq!(Superblock::decode(&value), Ok(superblock));
        prop_assert_eq!(Superblock::decode(&flipped(&value, at, bit)), Err(Errno::EUCLEAN));
    }

    #[test]
    fn no_bytes_make_a_decoder_panic(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
        let ino = Ino(7);
        let refused = [
            Inode::decode(ino, &bytes).is_err(),
            Entry::decode(ino, b"n", &bytes).is_err(),
            Listed::decode(ino, 3, &bytes).is_err(),
            Superblock::decode(&bytes).is_err(),
            ReplayRecord::decode(&bytes).is_err(),
            decode_counter(&bytes).is_err(),
        ];
        prop_assert_eq!(refused, [true; 6]);
    }
}
