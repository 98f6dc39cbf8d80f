//! Bytes where `file.rs` and `attr.rs` draw them. A change here is a change of the format.

use outboard_base::{Cred, Fh, Ino, SessionId, Timestamp};
use outboard_wire::file::{
    Attr, Dirent, DirentsWriter, FileKind, Flags, Header, Lock, LockKind, LockStyle, Op, Reply,
    Request, Setattr, SetattrTime, Statfs,
};

fn header() -> Header {
    Header {
        cred: Cred { uid: 0x0101_0101, gid: 0x0202_0202, pid: 0x0303_0303, groups: vec![7, 8] },
        flags: Flags::REPLAY,
        session: SessionId(0x1112_1314_1516_1718),
        sequence: 0x2122_2324_2526_2728,
        lane: 0x4142,
    }
}

/// The bytes of `request` under [`header`], in rows of eight.
fn rows(request: &Request<'_>) -> Vec<[u8; 8]> {
    let mut bytes = [0; 2560];
    let len = request.encode(&header(), &mut bytes).unwrap();
    let mut padded = bytes[..len].to_vec();
    padded.resize(len.next_multiple_of(8), 0xEE);
    padded.as_chunks::<8>().0.to_vec()
}

fn number(row: &[u8; 8]) -> u64 {
    u64::from_le_bytes(*row)
}

#[test]
fn a_rename_fills_every_place_of_the_header() {
    let request = Request::Rename {
        parent: Ino(0x3132_3334_3536_3738),
        name: b"old",
        to_parent: Ino(0x5152_5354_5556_5758),
        to_name: b"newer",
        flags: 1,
    };
    let rows = rows(&request);
    assert_eq!(rows[0], [11, 0, 2, 0, 1, 1, 1, 1], "op, flags, uid");
    assert_eq!(rows[1], [2, 2, 2, 2, 3, 3, 3, 3], "gid, pid");
    assert_eq!(number(&rows[2]), 0x1112_1314_1516_1718, "session");
    assert_eq!(number(&rows[3]), 0x2122_2324_2526_2728, "sequence");
    assert_eq!(number(&rows[4]), 0x3132_3334_3536_3738, "inode");
    assert_eq!(number(&rows[5]), 0, "open file");
    assert_eq!(rows[6], [0x42, 0x41, 2, 0, 3, 0, 5, 0], "lane, groups, lengths of names");
    assert_eq!(number(&rows[7]), 0, "reserved");
    assert_eq!(number(&rows[8]), 0x5152_5354_5556_5758, "first argument");
    assert_eq!(number(&rows[9]), 1, "second argument");
    assert!(rows[10..16].iter().all(|row| number(row) == 0), "other arguments");
    assert_eq!(rows[16], [7, 0, 0, 0, 8, 0, 0, 0], "groups");
    assert_eq!(rows[17], *b"oldnewer", "names");
    assert_eq!(rows.len(), 18);
}

#[test]
fn a_write_names_its_file_and_place() {
    let request = Request::Write { ino: Ino(5), fh: Fh(6), offset: 0x1234_5678_9ABC, flags: 3 };
    let rows = rows(&request);
    assert_eq!(rows[0][0], 17);
    assert_eq!((number(&rows[4]), number(&rows[5])), (5, 6));
    assert_eq!(number(&rows[8]), 0x1234_5678_9ABC);
    assert_eq!(rows[9], [0, 0, 0, 0, 3, 0, 0, 0], "flags in the high half");
}

#[test]
fn a_read_packs_length_and_flags() {
    let request = Request::Read { ino: Ino(5), fh: Fh(6), offset: 4096, len: 8192, flags: 9 };
    let rows = rows(&request);
    assert_eq!(number(&rows[8]), 4096);
    assert_eq!(rows[9], [0, 0x20, 0, 0, 9, 0, 0, 0]);
}

#[test]
fn a_setattr_says_which_of_its_places_count() {
    let set = Setattr {
        mode: Some(0o644),
        uid: Some(1),
        gid: Some(2),
        size: Some(3),
        atime: Some(SetattrTime::Now),
        mtime: Some(SetattrTime::At(Timestamp { sec: -4, nsec: 5 })),
        ctime: Some(Timestamp { sec: 6, nsec: 7 }),
        kill_suidgid: true,
    };
    let rows = rows(&Request::Setattr { ino: Ino(9), fh: Fh(0), set });
    assert_eq!(rows[8], [0x7F, 0x03, 0, 0, 0xA4, 0x01, 0, 0], "all but mtime-now; mode");
    assert_eq!(rows[9], [1, 0, 0, 0, 2, 0, 0, 0], "owner, group");
    assert_eq!(number(&rows[10]), 3, "size");
    assert_eq!(number(&rows[11]), 0, "atime seconds: now");
    assert_eq!(number(&rows[12]), (-4_i64).cast_unsigned(), "mtime seconds");
    assert_eq!(rows[13], [0, 0, 0, 0, 5, 0, 0, 0], "nanoseconds");
    assert_eq!([14, 15].map(|row| number(&rows[row])), [6, 7], "ctime");
}

#[test]
fn a_lock_is_four_words_here_and_in_its_reply() {
    let lock = Lock {
        owner: 1,
        start: 2,
        end: u64::MAX,
        kind: LockKind::Write,
        style: LockStyle::Flock,
        pid: 77,
    };
    let request = Request::Setlk { ino: Ino(9), fh: Fh(3), lock, wait: true, reclaim: false };
    let rows = rows(&request);
    let words = [1, 2, u64::MAX, 0x0101 | 77 << 32];
    assert_eq!([8, 9, 10, 11].map(|row| number(&rows[row])), words);
    assert_eq!(number(&rows[12]), 1, "waits");
    let mut bytes = [0; 32];
    assert_eq!(Reply::Lock(lock).encode(&mut bytes), Ok((0, 32)));
    assert_eq!([0, 1, 2, 3].map(|n| number(&bytes.as_chunks::<8>().0[n])), words);
}

#[test]
fn attributes_stand_where_they_are_drawn() {
    let time = |n: u32| Timestamp { sec: i64::from(n), nsec: n + 100 };
    let attr = Attr {
        ino: Ino(1),
        size: 2,
        blocks: 3,
        change: 4,
        atime: time(5),
        mtime: time(6),
        ctime: time(7),
        crtime: time(8),
        mode: 0o100_644,
        nlink: 9,
        uid: 10,
        gid: 11,
        rdev: 12,
        blksize: 13,
        flags: 14,
    };
    let mut bytes = [0xAA; Attr::LEN];
    attr.encode(&mut bytes).unwrap();
    let longs: Vec<u64> = bytes[..64].as_chunks::<8>().0.iter().map(number).collect();
    assert_eq!(longs, [1, 2, 3, 4, 5, 6, 7, 8]);
    let words: Vec<u32> =
        bytes[64..].as_chunks::<4>().0.iter().map(|word| u32::from_le_bytes(*word)).collect();
    let wanted = [105, 106, 107, 108, 0o100_644, 9, 10, 11, 12, 13, 14, 0, 0, 0, 0, 0];
    assert_eq!(words, wanted);
}

#[test]
fn figures_are_eight_numbers_in_order() {
    let figures = Statfs {
        block_size: 1,
        blocks: 2,
        blocks_free: 3,
        blocks_available: 4,
        files: 5,
        files_free: 6,
        name_max: 7,
        id: 8,
    };
    let mut bytes = [0; Statfs::LEN];
    figures.encode(&mut bytes).unwrap();
    let longs: Vec<u64> = bytes.as_chunks::<8>().0.iter().map(number).collect();
    assert_eq!(longs, [1, 2, 3, 4, 5, 6, 7, 8]);
}

#[test]
fn a_directory_entry_is_padded_to_eight() {
    let entry =
        Dirent { ino: Ino(5), cookie: 9, kind: FileKind::Regular, name: b"abc", attr: None };
    let mut bytes = [0xAA; 40];
    let mut writer = DirentsWriter::new(&mut bytes);
    assert_eq!(writer.push(&entry), Ok(true));
    assert_eq!(writer.len(), 32);
    #[rustfmt::skip]
    let wanted = [
        5, 0, 0, 0, 0, 0, 0, 0,
        9, 0, 0, 0, 0, 0, 0, 0,
        8, 0, 3, 0, 32, 0, 0, 0,
        b'a', b'b', b'c', 0, 0, 0, 0, 0,
    ];
    assert_eq!(bytes[..32], wanted);
}

#[test]
fn results_are_numbers() {
    let mut none = [0; 0];
    for (reply, result) in [
        (Reply::Empty, 0),
        (Reply::Opened(Fh(7)), 7),
        (Reply::Data(8), 8),
        (Reply::Written(9), 9),
        (Reply::Size(10), 1 << 63 | 10),
        (Reply::Removed(None), 0),
        (Reply::Removed(Some(Ino(11))), 11),
        (Reply::Waiting(12), 12),
        (Reply::Delegated, u64::MAX),
        (Reply::Offset(13), 13),
    ] {
        assert_eq!(reply.encode(&mut none), Ok((result, 0)), "{reply:?}");
    }
    let last = Attr { mode: 0o100_644, ..Attr::default() };
    let gone = |parent| Reply::Gone { last: last.clone(), parent };
    assert_eq!(gone(None).encode(&mut [0; 128]), Ok((1 << 63, 128)));
    assert_eq!(gone(Some(last.clone().into())).encode(&mut [0; 256]), Ok((3 << 62, 256)));
}

/// Numbers are never reused: each operation keeps its own for ever.
#[test]
fn operations_keep_their_numbers() {
    let names: Vec<&str> = Op::ALL.iter().map(|op| op.name()).collect();
    let wanted = "Noop Lookup Forget Getattr Setattr Readlink Symlink Mknod Mkdir Unlink Rmdir \
                  Rename Link Open Create Tmpfile Read Write Flush Release Fsync Opendir \
                  Readdir Releasedir Statfs Getxattr Setxattr Listxattr Removexattr Access \
                  Getlk Setlk CancelLock Fallocate Lseek CopyFileRange Syncfs Reclaim \
                  ReturnLocks";
    assert_eq!(names.join(" "), wanted);
    for (number, &op) in Op::ALL.iter().enumerate() {
        assert_eq!(op as usize, number, "{}", op.name());
    }
}
