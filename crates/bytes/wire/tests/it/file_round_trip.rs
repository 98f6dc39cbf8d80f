//! Whatever can be said arrives as it was said; whatever arrives is a value or an error.

use outboard_base::limits::{REPLY_HEADER_MAX, REQUEST_HEADER_MAX};
use outboard_base::{Fh, Ino, Timestamp};
use outboard_wire::file::{
    Attr, Dirent, Dirents, DirentsWriter, FileKind, HEADER_LEN, Op, Reply, Request, Statfs,
};
use proptest::collection::vec;
use proptest::prelude::*;

use crate::any_request::{header, lock, name, parts};

fn kind() -> impl Strategy<Value = FileKind> {
    prop_oneof![
        Just(FileKind::Fifo),
        Just(FileKind::CharDevice),
        Just(FileKind::Directory),
        Just(FileKind::BlockDevice),
        Just(FileKind::Regular),
        Just(FileKind::Symlink),
        Just(FileKind::Socket),
    ]
}

fn attr() -> impl Strategy<Value = Attr> {
    let time =
        || (any::<i64>(), 0..1_000_000_000_u32).prop_map(|(sec, nsec)| Timestamp { sec, nsec });
    let times = (time(), time(), time(), time());
    (any::<[u64; 4]>(), times, kind(), any::<[u32; 7]>()).prop_map(
        |([ino, size, blocks, change], (atime, mtime, ctime, crtime), kind, words)| {
            let [mode, nlink, uid, gid, rdev, blksize, flags] = words;
            let mode = kind.mode_bits() | mode & !0o170_000;
            Attr {
                ino: Ino(ino),
                size,
                blocks,
                change,
                atime,
                mtime,
                ctime,
                crtime,
                mode,
                nlink,
                uid,
                gid,
                rdev,
                blksize,
                flags,
            }
        },
    )
}

/// Any reply `op` can have.
fn reply() -> impl Strategy<Value = (Op, Reply)> {
    let figures = any::<[u64; 8]>().prop_map(|[a, b, c, d, e, f, g, h]| Statfs {
        block_size: a,
        blocks: b,
        blocks_free: c,
        blocks_available: d,
        files: e,
        files_free: f,
        name_max: g,
        id: h,
    });
    let op = proptest::sample::select(Op::ALL);
    let longs = (any::<u64>(), any::<u32>(), any::<bool>());
    (op, attr(), figures, lock(), longs).prop_map(
        |(op, attr, figures, lock, (long, word, other))| {
            let reply = match op {
                Op::Lookup | Op::Symlink | Op::Mknod | Op::Mkdir | Op::Link => Reply::Entry(attr),
                Op::Getattr | Op::Setattr => Reply::Attr(attr),
                Op::Open | Op::Opendir => Reply::Opened(Fh(long)),
                Op::Create | Op::Tmpfile => Reply::Created(attr, Fh(long)),
                Op::Getxattr | Op::Listxattr if other => Reply::Size(word),
                Op::Read | Op::Readlink | Op::Readdir | Op::Getxattr | Op::Listxattr => {
                    Reply::Data(word)
                }
                Op::Write | Op::CopyFileRange => Reply::Written(word),
                Op::Unlink if other && word % 2 == 0 => {
                    Reply::Gone { last: attr.clone(), parent: Some(attr.into()) }
                }
                Op::Unlink | Op::Rename if other => Reply::Gone { last: attr, parent: None },
                Op::Unlink | Op::Rmdir | Op::Rename => {
                    Reply::Removed((long != 0 && long >> 62 == 0).then_some(Ino(long)))
                }
                Op::Statfs => Reply::Statfs(figures),
                Op::Getlk => Reply::Lock(lock),
                Op::Setlk if other && long == u64::MAX => Reply::Delegated,
                Op::Setlk if other && long != 0 => Reply::Waiting(long),
                Op::Lseek => Reply::Offset(long),
                _ => Reply::Empty,
            };
            (op, reply)
        },
    )
}

proptest! {
    #[test]
    fn every_request_arrives_as_it_was_sent(parts in parts(), header in header()) {
        let request = parts.request();
        let mut bytes = [0xAA; REQUEST_HEADER_MAX];
        let len = request.encode(&header, &mut bytes).unwrap();
        prop_assert_eq!(len, request.encoded_len(&header));
        prop_assert_eq!(request.op(), parts.op);
        let (back_header, back) = Request::decode(&bytes[..len]).unwrap();
        prop_assert_eq!(&back, &request);
        prop_assert_eq!(back_header, header);
        prop_assert!(bytes[len..].iter().all(|&byte| byte == 0xAA), "nothing behind its end");
    }

    #[test]
    fn a_request_cut_short_or_grown_is_refused(
        parts in parts(),
        header in header(),
        cut in any::<prop::sample::Index>(),
    ) {
        let mut bytes = [0; REQUEST_HEADER_MAX];
        let len = parts.request().encode(&header, &mut bytes).unwrap();
        prop_assert!(Request::decode(&bytes[..cut.index(len)]).is_err());
        let mut longer = bytes[..len].to_vec();
        longer.push(0);
        prop_assert!(Request::decode(&longer).is_err());
    }

    #[test]
    fn no_buffer_is_overrun(parts in parts(), header in header(), room in 0..HEADER_LEN + 64) {
        let request = parts.request();
        let mut bytes = vec![0; room];
        let fits = request.encoded_len(&header) <= room;
        prop_assert_eq!(request.encode(&header, &mut bytes).is_ok(), fits);
    }

    #[test]
    fn mutated_requests_do_not_panic(
        parts in parts(),
        header in header(),
        changes in vec((any::<prop::sample::Index>(), any::<u8>()), 1..8),
    ) {
        let mut bytes = [0; REQUEST_HEADER_MAX];
        let len = parts.request().encode(&header, &mut bytes).unwrap();
        for (at, byte) in changes {
            bytes[at.index(len)] = byte;
        }
        if let Ok((header, request)) = Request::decode(&bytes[..len]) {
            // What is accepted means the same when said again, and can be logged.
            let mut again = [0; REQUEST_HEADER_MAX];
            let len = request.encode(&header, &mut again).unwrap();
            prop_assert_eq!(Request::decode(&again[..len]), Ok((header, request.clone())));
            let line = format!("{request:?}");
            prop_assert!(line.starts_with(request.op().name()));
        }
    }

    #[test]
    fn random_bytes_do_not_panic(
        bytes in vec(any::<u8>(), 0..600),
        op in 0_u16..64,
        n in any::<u64>(),
    ) {
        let _ = Request::decode(&bytes);
        let _ = Attr::decode(&bytes);
        let _ = Statfs::decode(&bytes);
        prop_assert!(Dirents::new(&bytes).count() <= bytes.len() / 24 + 1);
        if let Ok(op) = Op::from_raw(op) {
            let _ = Reply::decode(op, n, &bytes);
        }
    }

    #[test]
    fn every_reply_arrives_as_it_was_sent((op, reply) in reply()) {
        let mut header = [0xAA; REPLY_HEADER_MAX];
        let (result, len) = reply.encode(&mut header).unwrap();
        prop_assert_eq!(Reply::decode(op, result, &header[..len]), Ok(reply));
        prop_assert!(header[len..].iter().all(|&byte| byte == 0xAA), "nothing behind its end");
        if len > 0 {
            prop_assert!(Reply::decode(op, result, &header[..len - 1]).is_err(), "cut short");
        }
    }

    #[test]
    fn directory_entries_arrive_until_the_room_is_full(
        given in vec((any::<[u64; 2]>(), kind(), name(), proptest::option::of(attr())), 0..12),
        room in 0..8192_usize,
    ) {
        let mut buffer = vec![0xAA; room];
        let mut writer = DirentsWriter::new(&mut buffer);
        let mut fit = Vec::new();
        for ([ino, cookie], kind, name, attr) in &given {
            let (kind, attr) = (*kind, attr.clone());
            let entry = Dirent { ino: Ino(*ino), cookie: *cookie, kind, name, attr };
            let before = writer.len();
            if !writer.push(&entry).unwrap() {
                prop_assert_eq!(writer.len(), before);
                prop_assert!(before + entry.encoded_len() > room);
                break;
            }
            prop_assert_eq!(writer.len(), before + entry.encoded_len());
            prop_assert_eq!(writer.is_empty(), false);
            fit.push(entry);
        }
        let used = writer.len();
        let back: Vec<_> = Dirents::new(&buffer[..used]).collect::<Result<_, _>>().unwrap();
        prop_assert_eq!(back, fit);
        prop_assert!(buffer[used..].iter().all(|&byte| byte == 0xAA), "nothing behind its end");
    }
}
