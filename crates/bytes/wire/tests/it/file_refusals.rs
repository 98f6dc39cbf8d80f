//! What a hostile or broken other side says, and the error it gets.

use outboard_base::{Cred, Errno, Fh, Ino, limits};
use outboard_wire::file::{
    Attr, Dirent, Dirents, DirentsWriter, FileKind, Flags, HEADER_LEN, Header, Op, Reply, Request,
};

fn encoded(request: &Request<'_>) -> Vec<u8> {
    let mut bytes = vec![0; limits::REQUEST_HEADER_MAX];
    let len = request.encode(&Header::default(), &mut bytes).unwrap();
    bytes.truncate(len);
    bytes
}

/// The error of a lookup whose bytes `change` has changed.
fn refusal(change: impl FnOnce(&mut Vec<u8>)) -> Errno {
    let mut bytes = encoded(&Request::Lookup { parent: Ino(2), name: b"name" });
    change(&mut bytes);
    Request::decode(&bytes).unwrap_err()
}

#[test]
fn fields_that_do_not_add_up_are_eproto() {
    assert_eq!(refusal(|bytes| bytes.truncate(HEADER_LEN - 1)), Errno::EPROTO);
    assert_eq!(refusal(Vec::clear), Errno::EPROTO);
    assert_eq!(refusal(|bytes| bytes[2] = 8), Errno::EPROTO, "an unknown flag");
    assert_eq!(refusal(|bytes| bytes[50] = 1), Errno::EPROTO, "a group that is not there");
    assert_eq!(refusal(|bytes| bytes[51] = 0xFF), Errno::EPROTO, "65280 groups");
    assert_eq!(refusal(|bytes| bytes[52] = 5), Errno::EPROTO, "a name longer than it is");
    assert_eq!(refusal(|bytes| bytes[54] = 1), Errno::EPROTO, "a second name that is not there");
    assert_eq!(refusal(|bytes| bytes.push(0)), Errno::EPROTO, "a byte too many");
}

#[test]
fn operations_not_known_are_enosys() {
    assert_eq!(refusal(|bytes| bytes[0] = 200), Errno::ENOSYS);
    assert_eq!(refusal(|bytes| bytes[1] = 1), Errno::ENOSYS);
}

#[test]
fn names_no_directory_can_hold_are_einval() {
    for name in [&b"."[..], b"..", b"a/b", b"/", b"a\0", b"\0"] {
        let bytes = encoded(&Request::Lookup { parent: Ino(2), name });
        assert_eq!(Request::decode(&bytes), Err(Errno::EINVAL), "{}", name.escape_ascii());
        let renamed = encoded(&Request::Rename {
            parent: Ino(2),
            name: b"fine",
            to_parent: Ino(2),
            to_name: name,
            flags: 0,
        });
        assert_eq!(Request::decode(&renamed), Err(Errno::EINVAL), "{}", name.escape_ascii());
    }
    let attribute = encoded(&Request::Getxattr { ino: Ino(2), name: b"user.a/b", len: 0 });
    assert!(Request::decode(&attribute).is_ok(), "attributes may hold a slash");
}

#[test]
fn lengths_of_names_have_limits_on_both_sides() {
    let mut bytes = vec![0; 8192];
    let header = Header::default();
    let longest = vec![b'n'; limits::NAME_MAX];
    let longer = vec![b'n'; limits::NAME_MAX + 1];
    let lookup = |name| Request::Lookup { parent: Ino(2), name };
    let len = lookup(&longest).encode(&header, &mut bytes).unwrap();
    assert!(Request::decode(&bytes[..len]).is_ok());
    assert_eq!(lookup(&longer).encode(&header, &mut bytes), Err(Errno::ENAMETOOLONG));
    let long = refusal(|bytes| {
        bytes[52..54].copy_from_slice(&1025_u16.to_le_bytes());
        bytes.resize(HEADER_LEN + 1025, b'n');
    });
    assert_eq!(long, Errno::ENAMETOOLONG);
    let empty = refusal(|bytes| {
        bytes[52] = 0;
        bytes.truncate(HEADER_LEN);
    });
    assert_eq!(empty, Errno::ENOENT);
    let attribute = vec![b'n'; limits::XATTR_NAME_MAX + 1];
    let request = Request::Removexattr { ino: Ino(2), name: &attribute };
    assert_eq!(request.encode(&header, &mut bytes), Err(Errno::ENAMETOOLONG));
}

#[test]
fn a_name_where_none_belongs_is_refused() {
    let mut bytes = encoded(&Request::Getattr { ino: Ino(2), fh: Fh::NONE });
    bytes[52] = 1;
    bytes.push(b'x');
    assert_eq!(Request::decode(&bytes), Err(Errno::ENAMETOOLONG));
}

#[test]
fn too_many_groups_are_refused_on_both_sides() {
    let cred = Cred { groups: vec![1; limits::GROUPS_MAX + 1], ..Cred::root() };
    let header = Header { cred, ..Header::default() };
    let mut bytes = [0; 4096];
    assert_eq!(Request::Noop.encode(&header, &mut bytes), Err(Errno::EINVAL));
    let mut bytes = encoded(&Request::Noop);
    bytes[50] = 65;
    bytes.resize(HEADER_LEN + 4 * 65, 0);
    assert_eq!(Request::decode(&bytes), Err(Errno::EPROTO));
}

#[test]
fn flags_are_the_known_ones() {
    assert!(Flags::CHECKED.with(Flags::REPLAY).has(Flags::REPLAY));
    assert!(!Flags::CHECKED.has(Flags::REPLAY));
}

#[test]
fn arguments_out_of_range_are_refused() {
    let with = |request: &Request<'_>, at: usize, byte: u8| {
        let mut bytes = encoded(request);
        bytes[64 + at] = byte;
        Request::decode(&bytes).unwrap_err()
    };
    let (ino, fh) = (Ino(2), Fh(3));
    let fsync = Request::Fsync { ino, fh, data_only: false };
    assert_eq!(with(&fsync, 0, 2), Errno::EPROTO, "neither yes nor no");
    assert_eq!(with(&Request::Open { ino, flags: 0 }, 4, 1), Errno::EPROTO, "beyond 32 bits");
    let set = Request::Setattr { ino, fh, set: outboard_wire::file::Setattr::default() };
    assert_eq!(with(&set, 1, 4), Errno::EPROTO, "an unknown attribute");
}

#[test]
fn times_with_too_many_nanoseconds_are_einval() {
    let set = outboard_wire::file::Setattr {
        mtime: Some(outboard_wire::file::SetattrTime::At(outboard_base::Timestamp {
            sec: 0,
            nsec: 999_999_999,
        })),
        ..Default::default()
    };
    let mut bytes = encoded(&Request::Setattr { ino: Ino(2), fh: Fh::NONE, set });
    assert!(Request::decode(&bytes).is_ok());
    bytes[64 + 5 * 8 + 4..64 + 6 * 8].copy_from_slice(&1_000_000_000_u32.to_le_bytes());
    assert_eq!(Request::decode(&bytes), Err(Errno::EINVAL));
}

#[test]
fn replies_an_operation_cannot_have_are_eproto() {
    let attr = Attr { mode: 0o100_644, ..Attr::default() };
    let mut header = [0; Attr::LEN];
    attr.encode(&mut header).unwrap();
    assert_eq!(Reply::decode(Op::Read, 1 << 32, &[]), Err(Errno::EPROTO), "too much data");
    assert_eq!(Reply::decode(Op::Getxattr, 1 << 63 | 1 << 40, &[]), Err(Errno::EPROTO));
    assert_eq!(Reply::decode(Op::Lookup, 0, &header[..127]), Err(Errno::EPROTO), "cut short");
    assert_eq!(Reply::decode(Op::Statfs, 0, &header[..63]), Err(Errno::EPROTO), "cut short");
    assert_eq!(Reply::decode(Op::Getlk, 0, &[0; 31]), Err(Errno::EPROTO), "cut short");
    header[80..84].fill(0);
    assert_eq!(Reply::decode(Op::Lookup, 0, &header), Err(Errno::EPROTO), "no kind");
    attr.encode(&mut header).unwrap();
    header[68..72].copy_from_slice(&1_000_000_000_u32.to_le_bytes());
    assert_eq!(Reply::decode(Op::Lookup, 0, &header), Err(Errno::EPROTO), "nanoseconds");
}

/// One entry called `name`, as bytes.
fn listed(name: &[u8]) -> Vec<u8> {
    let mut bytes = vec![0; 2048];
    let entry = Dirent { ino: Ino(5), cookie: 9, kind: FileKind::Regular, name, attr: None };
    let mut writer = DirentsWriter::new(&mut bytes);
    assert!(writer.push(&entry).unwrap());
    let len = writer.len();
    bytes.truncate(len);
    bytes
}

#[test]
fn a_bad_directory_entry_ends_the_listing_with_an_error() {
    let good = listed(b"good");
    for (what, at, byte) in [
        ("no kind", 16, 3),
        ("half an attribute", 17, 2),
        ("attributes that are not there", 17, 1),
        ("a name longer than the entry", 18, 200),
        ("no name", 18, 0),
        ("a length of nothing", 20, 0),
        ("a length beyond the end", 20, 64),
        ("a length off by a word", 20, 24),
    ] {
        let mut bytes = [good.clone(), good.clone(), good.clone()].concat();
        bytes[good.len() + at] = byte;
        let all: Vec<_> = Dirents::new(&bytes).collect();
        assert_eq!(all.len(), 2, "{what}: one entry, then the error, then no more");
        assert!(all[0].is_ok() && all[1] == Err(Errno::EPROTO), "{what}");
    }
}

/// The reader took any name without a slash: `.`, `..` and zeros went on to the kernel, although an
/// answer of the other side is believed no further than it is checked.
#[test]
fn names_no_directory_can_hold_do_not_come_back_in_a_listing() {
    for name in [&b"."[..], b"..", b"a/b", b"a\0b"] {
        let bytes = listed(name);
        let all: Vec<_> = Dirents::new(&bytes).collect();
        assert_eq!(all, [Err(Errno::EPROTO)], "{}", name.escape_ascii());
    }
    let bytes = listed(&[b'n'; limits::NAME_MAX + 1]);
    assert_eq!(Dirents::new(&bytes).next(), Some(Err(Errno::EPROTO)), "too long");
}
