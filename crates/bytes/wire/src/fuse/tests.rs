//! The formats against bytes written out by hand from the kernel's header, calls against an encoder
//! of the kernel's side, and everything against mutated bytes.

use std::time::Duration;

use outboard_base::{Cred, Errno, Fh, Ino, Timestamp};
use proptest::prelude::*;

use super::answer::{Listing, Valid};
use super::init::{InitIn, InitOut, flags};
use super::translate::{ino_of, node_of, request};
use super::*;
use crate::file::{
    Attr, Dirent, DirentsWriter, FileKind, Lock, LockKind, LockStyle, Request, Setattr,
    SetattrTime, Statfs, open_flags, write_flags, xattr_flags,
};

const EXT: Dialect = Dialect { setxattr_ext: true };

/// Fields of a record, each of its width.
#[derive(Default)]
struct Bytes(Vec<u8>);

impl Bytes {
    fn u16(mut self, value: u16) -> Self {
        self.0.extend_from_slice(&value.to_le_bytes());
        self
    }

    fn u32(mut self, value: u32) -> Self {
        self.0.extend_from_slice(&value.to_le_bytes());
        self
    }

    fn u64(mut self, value: u64) -> Self {
        self.0.extend_from_slice(&value.to_le_bytes());
        self
    }

    fn raw(mut self, bytes: &[u8]) -> Self {
        self.0.extend_from_slice(bytes);
        self
    }

    fn name(self, name: &[u8]) -> Self {
        self.raw(name).raw(&[0])
    }
}

fn b() -> Bytes {
    Bytes::default()
}

fn parse(opcode: Opcode, body: &Bytes) -> outboard_base::Result<Call<'_>> {
    Call::parse(opcode, &body.0, EXT)
}

/// An opcode, a body the kernel could send with it, and what that means.
type Sample = (Opcode, Bytes, Call<'static>);

/// Samples of every opcode.
fn samples() -> Vec<Sample> {
    let parts = [about_names(), about_inodes(), about_handles(), about_ranges(), of_the_kernel()];
    parts.into_iter().flatten().collect()
}

fn about_names() -> Vec<Sample> {
    vec![
        (Opcode::Lookup, b().name(b"n"), Call::Lookup { name: b"n" }),
        (
            Opcode::Symlink,
            b().name(b"n").name(b"/to/it"),
            Call::Symlink { name: b"n", target: b"/to/it" },
        ),
        (
            Opcode::Mknod,
            b().u32(0o10644).u32(2).u32(0o22).u32(0).name(b"n"),
            Call::Mknod { name: b"n", mode: 0o10644, rdev: 2, umask: 0o22 },
        ),
        (
            Opcode::Mkdir,
            b().u32(0o755).u32(0o22).name(b"n"),
            Call::Mkdir { name: b"n", mode: 0o755, umask: 0o22 },
        ),
        (Opcode::Unlink, b().name(b"n"), Call::Unlink { name: b"n" }),
        (Opcode::Rmdir, b().name(b"n"), Call::Rmdir { name: b"n" }),
        (
            Opcode::Rename,
            b().u64(9).name(b"n").name(b"m"),
            Call::Rename { name: b"n", to_node: 9, to_name: b"m", flags: 0 },
        ),
        (
            Opcode::Rename2,
            b().u64(9).u32(2).u32(0).name(b"n").name(b"m"),
            Call::Rename { name: b"n", to_node: 9, to_name: b"m", flags: 2 },
        ),
        (Opcode::Link, b().u64(9).name(b"n"), Call::Link { node: 9, name: b"n" }),
        (
            Opcode::Create,
            b().u32(0o102).u32(0o100_644).u32(0o22).u32(0).name(b"n"),
            Call::Create { name: b"n", flags: 0o102, mode: 0o100_644, umask: 0o22, open_flags: 0 },
        ),
        (
            Opcode::Tmpfile,
            b().u32(2).u32(0o100_600).u32(0o77).u32(0).name(b""),
            Call::Tmpfile { flags: 2, mode: 0o100_600, umask: 0o77, open_flags: 0 },
        ),
    ]
}

fn about_inodes() -> Vec<Sample> {
    let setattr = b().u32(0x6f).u32(0).u64(5).u64(6).u64(7).u64(8).u64(9).u64(10);
    let setattr = setattr.u32(11).u32(12).u32(13).u32(0o644).u32(0).u32(14).u32(15).u32(0);
    vec![
        (Opcode::Getattr, b().u32(1).u32(0).u64(5), Call::Getattr { fh: Some(5) }),
        (Opcode::Getattr, b().u32(0).u32(0).u64(5), Call::Getattr { fh: None }),
        (Opcode::Statx, b().u32(1).u32(0).u64(5).u32(0).u32(0xfff), Call::Statx { fh: Some(5) }),
        (
            Opcode::Setattr,
            setattr,
            Call::Setattr(SetattrIn {
                valid: 0x6f,
                fh: 5,
                size: 6,
                atime: 8,
                mtime: 9,
                ctime: 10,
                atime_nsec: 11,
                mtime_nsec: 12,
                ctime_nsec: 13,
                mode: 0o644,
                uid: 14,
                gid: 15,
            }),
        ),
        (Opcode::Readlink, b(), Call::Readlink),
        (Opcode::Open, b().u32(2).u32(1), Call::Open { flags: 2, open_flags: 1 }),
        (Opcode::Opendir, b().u32(0).u32(0), Call::Opendir { flags: 0 }),
        (Opcode::Access, b().u32(4).u32(0), Call::Access { mask: 4 }),
        (
            Opcode::Setxattr,
            b().u32(3).u32(1).u32(1).u32(0).name(b"user.a").raw(b"\0v\0"),
            Call::Setxattr { name: b"user.a", value: b"\0v\0", flags: 1, setxattr_flags: 1 },
        ),
        (
            Opcode::Getxattr,
            b().u32(9).u32(0).name(b"user.a"),
            Call::Getxattr { name: b"user.a", len: 9 },
        ),
        (Opcode::Listxattr, b().u32(9).u32(0), Call::Listxattr { len: 9 }),
        (Opcode::Removexattr, b().name(b"user.a"), Call::Removexattr { name: b"user.a" }),
        (Opcode::Statfs, b(), Call::Statfs),
        (Opcode::Syncfs, b().u64(0), Call::Syncfs),
    ]
}

/// The body of READ, READDIR and READDIRPLUS.
fn part() -> Bytes {
    b().u64(3).u64(4).u32(5).u32(0).u64(6).u32(0o40000).u32(0)
}

fn about_handles() -> Vec<Sample> {
    vec![
        (Opcode::Read, part(), Call::Read { fh: 3, offset: 4, len: 5, flags: 0o40000 }),
        (
            Opcode::Write,
            b().u64(3).u64(4).u32(5).u32(4).u64(6).u32(0o2001).u32(0).raw(b"12345"),
            Call::Write { fh: 3, offset: 4, len: 5, write_flags: 4, flags: 0o2001 },
        ),
        (
            Opcode::Release,
            b().u64(3).u32(2).u32(2).u64(6),
            Call::Release { fh: 3, release_flags: 2 },
        ),
        (Opcode::Flush, b().u64(3).u32(0).u32(0).u64(6), Call::Flush { fh: 3, owner: 6 }),
        (Opcode::Fsync, b().u64(3).u32(1).u32(0), Call::Fsync { fh: 3, data_only: true }),
        (Opcode::Readdir, part(), Call::Readdir { fh: 3, offset: 4, len: 5 }),
        (Opcode::Readdirplus, part(), Call::Readdirplus { fh: 3, offset: 4, len: 5 }),
        (Opcode::Releasedir, b().u64(3).u32(0).u32(0).u64(0), Call::Releasedir { fh: 3 }),
        (Opcode::Fsyncdir, b().u64(3).u32(0).u32(0), Call::Fsyncdir { fh: 3, data_only: false }),
    ]
}

fn about_ranges() -> Vec<Sample> {
    let lock = || b().u64(1).u64(2).u64(3).u64(4).u32(1).u32(99).u32(1).u32(0);
    let copy = || b().u64(1).u64(2).u64(3).u64(4).u64(5).u64(6).u64(0);
    let lock_in = LockIn { fh: 1, owner: 2, start: 3, end: 4, kind: 1, pid: 99, flags: 1 };
    vec![
        (Opcode::Getlk, lock(), Call::Getlk(lock_in)),
        (Opcode::Setlk, lock(), Call::Setlk(lock_in)),
        (Opcode::Setlkw, lock(), Call::Setlkw(lock_in)),
        (
            Opcode::Fallocate,
            b().u64(1).u64(2).u64(3).u32(3).u32(0),
            Call::Fallocate { fh: 1, offset: 2, len: 3, mode: 3 },
        ),
        (
            Opcode::Lseek,
            b().u64(1).u64(2).u32(4).u32(0),
            Call::Lseek { fh: 1, offset: 2, whence: 4 },
        ),
        (
            Opcode::CopyFileRange,
            copy(),
            Call::CopyFileRange { fh: 1, offset: 2, to_node: 3, to_fh: 4, to_offset: 5, len: 6 },
        ),
        (
            Opcode::CopyFileRange64,
            copy(),
            Call::CopyFileRange64 { fh: 1, offset: 2, to_node: 3, to_fh: 4, to_offset: 5, len: 6 },
        ),
    ]
}

/// What the kernel says about its own affairs. BATCH_FORGET is the last.
fn of_the_kernel() -> Vec<Sample> {
    let forgets: &'static [u8] = Vec::leak(b().u32(2).u32(0).u64(7).u64(8).u64(9).u64(10).0);
    let batch = Call::parse(Opcode::BatchForget, forgets, EXT).unwrap();
    vec![
        (Opcode::Forget, b().u64(3), Call::Forget { count: 3 }),
        (Opcode::Init, b().u32(7).u32(45), Call::Init),
        (Opcode::Interrupt, b().u64(77), Call::Interrupt { unique: 77 }),
        (Opcode::Destroy, b(), Call::Destroy),
        (Opcode::Bmap, b().u64(0).u64(0), Call::Bmap),
        (Opcode::Ioctl, b().u64(0).u64(0).u64(0).u64(0), Call::Ioctl),
        (Opcode::Poll, b().u64(0).u64(0).u64(0), Call::Poll),
        (Opcode::NotifyReply, b(), Call::NotifyReply),
        (Opcode::SetupMapping, b(), Call::Mapping),
        (Opcode::RemoveMapping, b(), Call::Mapping),
        (Opcode::BatchForget, b().raw(forgets), batch),
    ]
}

#[test]
fn every_opcode_is_parsed_as_the_kernel_writes_it() {
    let samples = samples();
    for (opcode, body, call) in &samples {
        assert_eq!(parse(*opcode, body).as_ref(), Ok(call), "{opcode:?}");
    }
    for &opcode in Opcode::ALL {
        assert!(samples.iter().any(|(sample, ..)| *sample == opcode), "{opcode:?} has no sample");
        assert_eq!(Opcode::from_raw(opcode as u32), Ok(opcode));
    }
    for unknown in [0, 7, 19, 54, 4096, 436_207_616] {
        assert_eq!(Opcode::from_raw(unknown), Err(Errno::ENOSYS));
    }
    let Call::BatchForget(pairs) = samples.last().unwrap().2 else { panic!() };
    assert_eq!(pairs.collect::<Vec<_>>(), [(7, 8), (9, 10)]);
}

#[test]
fn bodies_that_end_too_early_are_refused() {
    let whole = [
        Opcode::Readlink,
        Opcode::Statfs,
        Opcode::Syncfs,
        Opcode::Init,
        Opcode::Destroy,
        Opcode::Bmap,
        Opcode::Ioctl,
        Opcode::Poll,
        Opcode::NotifyReply,
        Opcode::SetupMapping,
        Opcode::RemoveMapping,
    ];
    for (opcode, body, call) in samples().iter().filter(|(opcode, ..)| !whole.contains(opcode)) {
        // A write's data is beside its body; other trailing bytes of these are padding.
        let needed = (0..=body.0.len())
            .find(|&len| Call::parse(*opcode, &body.0[..len], EXT).as_ref() == Ok(call))
            .unwrap();
        assert!(needed >= 2, "{opcode:?} is content with {needed} bytes");
        for len in 0..needed {
            let outcome = Call::parse(*opcode, &body.0[..len], EXT);
            assert!(outcome.is_err() || outcome != Ok(*call), "{opcode:?} cut to {len}");
        }
    }
    // A name without its end, a value longer than the message, a count beyond it.
    assert_eq!(parse(Opcode::Lookup, &b().raw(b"name")), Err(Errno::EPROTO));
    let value = b().u32(9).u32(0).u32(0).u32(0).name(b"user.a").raw(b"short");
    assert_eq!(parse(Opcode::Setxattr, &value), Err(Errno::EPROTO));
    let forgets = b().u32(u32::MAX).u32(0).u64(7).u64(8);
    assert_eq!(parse(Opcode::BatchForget, &forgets), Err(Errno::EPROTO));
}

#[test]
fn setxattr_has_a_short_form_too() {
    let body = b().u32(1).u32(2).name(b"user.a").raw(b"v");
    let call = Call::parse(Opcode::Setxattr, &body.0, Dialect::default());
    let wanted = Call::Setxattr { name: b"user.a", value: b"v", flags: 2, setxattr_flags: 0 };
    assert_eq!(call, Ok(wanted));
}

#[test]
fn the_header_and_its_extensions() {
    let bytes = b().u32(96).u32(9).u64(12).u64(1).u32(1000).u32(100).u32(4242).u16(2).u16(0);
    let header = InHeader::parse(&bytes.0).unwrap();
    let wanted = InHeader {
        len: 96,
        opcode: 9,
        unique: 12,
        node: 1,
        uid: 1000,
        gid: 100,
        pid: 4242,
        extensions: 2,
    };
    assert_eq!(header, wanted);
    assert_eq!(wanted.emit(), bytes.0[..]);
    assert_eq!(InHeader::parse(&bytes.0[..39]), Err(Errno::EPROTO));
    let rest = b().name(b"1234567").u32(16).u32(32).u32(1).u32(27);
    let (body, extensions) = header.split(&rest.0).unwrap();
    assert_eq!(body, b"1234567\0");
    let cred = Cred { uid: 1000, gid: 100, pid: 4242, groups: vec![27] };
    assert_eq!(header.cred(extensions), Ok(cred));
    assert_eq!(header.split(&rest.0[..15]), Err(Errno::EPROTO));
    // Other extensions are passed over; lengths that do not add up are refused.
    let other = b().u32(12).u32(1).u32(5).u32(0).u32(16).u32(32).u32(1).u32(28);
    assert_eq!(header.cred(&other.0).unwrap().groups, [28]);
    for bad in [b().u32(0).u32(32), b().u32(24).u32(32), b().u32(12).u32(32).u32(70)] {
        assert_eq!(header.cred(&bad.0), Err(Errno::EPROTO));
    }
}

#[test]
fn the_handshake_takes_what_is_offered() {
    let low = u32::try_from(flags::INIT_EXT | flags::POSIX_ACL | flags::ASYNC_READ).unwrap();
    let body = b().u32(7).u32(45).u32(131_072).u32(low).u32(1 << 2).raw(&[0; 44]);
    let offer = InitIn::parse(&body.0).unwrap();
    assert_eq!(offer.flags, u64::from(low) | flags::CREATE_SUPP_GROUP);
    let wanted = flags::POSIX_ACL | flags::CREATE_SUPP_GROUP | flags::DONT_MASK;
    let out = InitOut::negotiate(&offer, wanted).unwrap();
    assert_eq!(out.flags, flags::POSIX_ACL | flags::CREATE_SUPP_GROUP | flags::INIT_EXT);
    let bytes = b().u32(7).u32(45).u32(131_072).u32((1 << 20) | (1 << 30)).u16(64).u16(48);
    let bytes = bytes.u32(1 << 20).u32(1).u16(256).u16(0).u32(1 << 2).raw(&[0; 28]);
    assert_eq!(out.emit(), bytes.0[..]);
    // An old kernel sends 16 bytes, and no high flags.
    let old = b().u32(7).u32(31).u32(4096).u32(1);
    let offer = InitIn::parse(&old.0).unwrap();
    assert_eq!(offer.flags, 1);
    assert!(InitOut::negotiate(&offer, wanted).is_ok());
    for (major, minor) in [(7, 30), (8, 0), (6, 99)] {
        let offer = InitIn { major, minor, ..offer };
        assert_eq!(InitOut::negotiate(&offer, wanted), Err(Errno::EPROTO));
    }
}

fn attr() -> Attr {
    let time = |sec| Timestamp { sec, nsec: 7 };
    Attr {
        ino: Ino(2),
        size: 3,
        blocks: 4,
        change: 5,
        atime: time(-6),
        mtime: time(7),
        ctime: time(8),
        crtime: time(9),
        mode: 0o100_644,
        nlink: 10,
        uid: 11,
        gid: 12,
        rdev: 0x0abc_dd2c,
        blksize: 14,
        flags: 0,
    }
}

fn attr_bytes(bytes: Bytes) -> Bytes {
    let bytes = bytes.u64(2).u64(3).u64(4).u64(u64::MAX - 5).u64(7).u64(8);
    bytes
        .u32(7)
        .u32(7)
        .u32(7)
        .u32(0o100_644)
        .u32(10)
        .u32(11)
        .u32(12)
        .u32(0x0abc_dd2c)
        .u32(14)
        .u32(0)
}

#[test]
fn answers_are_written_as_the_kernel_reads_them() {
    let valid = Valid { entry: Duration::new(1, 2), attr: Duration::new(3, 4) };
    let entry = attr_bytes(b().u64(2).u64(0).u64(1).u64(3).u32(2).u32(4));
    assert_eq!(answer::entry(&attr(), valid), entry.0[..]);
    let created = entry.u64(9).u32(2).u32(0);
    assert_eq!(answer::created(&attr(), valid, 9, 2), created.0[..]);
    let bytes = attr_bytes(b().u64(3).u32(4).u32(0));
    assert_eq!(answer::attr(&attr(), valid.attr), bytes.0[..]);
    let negative = b().u64(0).u64(0).u64(1).u64(0).u32(2).u32(0).raw(&[0; 88]);
    assert_eq!(answer::negative_entry(valid.entry), negative.0[..]);
    assert_eq!(answer::opened(9, 2), b().u64(9).u32(2).u32(0).0[..]);
    assert_eq!(answer::size(9), b().u32(9).u32(0).0[..]);
    let lock = Lock {
        owner: 1,
        start: 2,
        end: u64::MAX,
        kind: LockKind::Write,
        style: LockStyle::Posix,
        pid: 3,
    };
    assert_eq!(answer::lock(&lock), b().u64(2).u64(i64::MAX as u64).u32(1).u32(3).0[..]);
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
    let bytes = b().u64(2).u64(3).u64(4).u64(5).u64(6).u32(1).u32(7).u32(1).raw(&[0; 28]);
    assert_eq!(answer::statfs(&figures), bytes.0[..]);
    assert_eq!(out_header(5, None, 8), b().u32(24).u32(0).u64(5).0[..]);
    let error = b().u32(16).u32((-2i32).cast_unsigned()).u64(5);
    assert_eq!(out_header(5, Some(Errno::ENOENT), 0), error.0[..]);
}

#[test]
fn statx_answers_with_creation_time_and_device() {
    let bytes = answer::statx(&attr(), Duration::new(3, 4));
    let head = b().u64(3).u32(4).u32(0).u64(0).u64(0).u32(0xfff).u32(14).u64(0);
    let head = head.u32(10).u32(11).u32(12).u16(0o100_644).u16(0).u64(2).u64(3).u64(4).u64(0);
    let times = head.u64(u64::MAX - 5).u32(7).u32(0).u64(9).u32(7).u32(0);
    let times = times.u64(8).u32(7).u32(0).u64(7).u32(7).u32(0);
    // 0x0abcdd2c: major 0xcdd, minor 0x0ab2c -> low byte 0x2c, high bits 0x0ab << 8.
    let all = times.u32(0xcdd).u32(0xab2c).raw(&[0; 8 + 14 * 8]);
    assert_eq!(bytes, all.0[..]);
}

#[test]
fn notifications_are_whole_messages() {
    let inode = b().u32(40).u32(2).u64(0).u64(9).u64(4096).u64(0);
    assert_eq!(inval_inode(9, 4096, 0), inode.0);
    let entry = b().u32(35).u32(3).u64(0).u64(1).u32(2).u32(0).name(b"ab");
    assert_eq!(inval_entry(1, b"ab"), entry.0);
    assert_eq!(inc_epoch(), b().u32(16).u32(8).u64(0).0);
    assert_eq!(resend(), b().u32(16).u32(7).u64(0).0);
}

fn translated<'a>(node: u64, call: &Call<'a>) -> Request<'a> {
    request(node, call).unwrap().unwrap().request
}

#[test]
fn every_call_asks_the_volume_but_listings_and_the_kernels_own() {
    let listings = [Opcode::Readdir, Opcode::Readdirplus];
    let own: Vec<_> = of_the_kernel().iter().map(|(opcode, ..)| *opcode).collect();
    for (opcode, _, call) in samples() {
        let asks = request(2, &call).unwrap().is_some();
        assert_eq!(asks, !listings.contains(&opcode) && !own.contains(&opcode), "{opcode:?}");
    }
}

#[test]
fn root_and_zero_swap() {
    assert_eq!((node_of(Ino::ROOT), ino_of(ROOT_ID)), (1, Ino::ROOT));
    assert_eq!((node_of(Ino(2)), ino_of(2)), (2, Ino(2)));
    let call = Call::Rename { name: b"a", to_node: 1, to_name: b"b", flags: 1 };
    let wanted = Request::Rename {
        parent: Ino(5),
        name: b"a",
        to_parent: Ino::ROOT,
        to_name: b"b",
        flags: 1,
    };
    assert_eq!(translated(5, &call), wanted);
}

#[test]
fn flags_travel_where_they_mean_something() {
    let write = |write_flags, flags| {
        let call = Call::Write { fh: 1, offset: 2, len: 3, write_flags, flags };
        let Request::Write { flags, .. } = translated(2, &call) else { panic!() };
        flags
    };
    assert_eq!(write(0, open_flags::APPEND), write_flags::APPEND);
    // Write-back of a mapped page goes where the page is, whoever opened the file.
    assert_eq!(write(1, open_flags::APPEND), write_flags::WRITEBACK);
    assert_eq!(write(4, open_flags::DSYNC), write_flags::KILL_SUIDGID | write_flags::DSYNC);
    assert_eq!(write(0, open_flags::SYNC), write_flags::DSYNC | write_flags::SYNC);
    assert_eq!(write(0, open_flags::DSYNC), write_flags::DSYNC);
    let call = Call::Open { flags: 0o102_002 | open_flags::TRUNC, open_flags: 0 };
    // O_APPEND stays behind: F_SETFL may clear it, and a handle that appends always would not hear.
    let flags = 2 | open_flags::TRUNC;
    assert_eq!(translated(2, &call), Request::Open { ino: Ino(2), flags });
    let call = Call::Setxattr {
        name: b"system.posix_acl_access",
        value: b"v",
        flags: xattr_flags::REPLACE,
        setxattr_flags: 1,
    };
    let found = request(2, &call).unwrap().unwrap();
    assert_eq!(found.payload, b"v");
    let Request::Setxattr { flags, .. } = found.request else { panic!() };
    assert_eq!(flags, xattr_flags::REPLACE | xattr_flags::KILL_SGID);
}

#[test]
fn attributes_change_as_the_kernel_says() {
    use fattr::*;
    let set = SetattrIn {
        valid: MODE | SIZE | ATIME | ATIME_NOW | MTIME | CTIME | FH | KILL_SUIDGID,
        fh: 4,
        size: 5,
        mtime: 6,
        mtime_nsec: 7,
        ctime: 8,
        ctime_nsec: 9,
        mode: 0o107_777,
        ..SetattrIn::default()
    };
    let wanted = Setattr {
        mode: Some(0o7777),
        size: Some(5),
        atime: Some(SetattrTime::Now),
        mtime: Some(SetattrTime::At(Timestamp { sec: 6, nsec: 7 })),
        ctime: Some(Timestamp { sec: 8, nsec: 9 }),
        kill_suidgid: true,
        ..Setattr::default()
    };
    let request_for = |set| request(2, &Call::Setattr(set));
    let found = request_for(set).unwrap().unwrap().request;
    assert_eq!(found, Request::Setattr { ino: Ino(2), fh: Fh(4), set: wanted });
    let bad = [
        SetattrIn { mtime_nsec: 1_000_000_000, ..set },
        SetattrIn { ctime_nsec: 1_000_000_000, ..set },
    ];
    for bad in bad {
        assert_eq!(request_for(bad), Err(Errno::EINVAL));
    }
}

#[test]
fn locks_reach_to_the_end_and_tell_their_style() {
    let lock = LockIn {
        fh: 1,
        owner: 2,
        start: 3,
        end: i64::MAX as u64,
        kind: 1,
        pid: 4,
        flags: lock_flags::FLOCK,
    };
    // A flock is its handle's: the kernel gives the owner's name to another as soon as it can.
    let wanted = Lock {
        owner: 1,
        start: 3,
        end: u64::MAX,
        kind: LockKind::Write,
        style: LockStyle::Flock,
        pid: 4,
    };
    let found = translated(2, &Call::Setlkw(lock));
    let (ino, fh) = (Ino(2), Fh(1));
    assert_eq!(found, Request::Setlk { ino, fh, lock: wanted, wait: true, reclaim: false });
    // Dropping a lock never waits.
    let unlock = translated(2, &Call::Setlkw(LockIn { kind: 2, ..lock }));
    assert!(matches!(unlock, Request::Setlk { wait: false, .. }));
    for bad in [LockIn { kind: 3, ..lock }, LockIn { end: 2, ..lock }] {
        assert_eq!(request(2, &Call::Setlk(bad)), Err(Errno::EINVAL));
    }
}

/// A counter under `flock` lost increments: the kernel names a flock's owner by its open file,
/// gives that name to the next one opened, and the late release of the first dropped the lock of
/// the second.
#[test]
fn the_release_of_a_file_drops_no_later_ones_flock() {
    let flags = lock_flags::FLOCK;
    let flock = |fh| LockIn { fh, owner: 7, start: 0, end: 0, kind: 1, pid: 4, flags };
    let owner_through = |fh| match translated(2, &Call::Setlkw(flock(fh))) {
        Request::Setlk { lock, .. } => lock.owner,
        other => panic!("{other:?}"),
    };
    let released = match translated(2, &Call::Release { fh: 1, release_flags: 2 }) {
        Request::Release { owner, .. } => owner,
        other => panic!("{other:?}"),
    };
    assert_eq!(owner_through(1), released);
    assert_ne!(owner_through(3), released);
}

#[test]
fn names_beyond_the_kernels_limits_are_refused() {
    let long = [b'n'; 256];
    let outcome = |name| request(1, &Call::Lookup { name }).map(|_| ());
    assert_eq!(outcome(&long[..255]), Ok(()));
    assert_eq!(outcome(&long), Err(Errno::ENAMETOOLONG));
    assert_eq!(outcome(b".."), Err(Errno::ESTALE));
    let target = Call::Symlink { name: b"n", target: &[b't'; 4096] };
    assert_eq!(request(1, &target), Err(Errno::ENAMETOOLONG));
    let name = Call::Getxattr { name: &long, len: 0 };
    assert_eq!(request(1, &name), Err(Errno::ERANGE));
    let value = Call::Setxattr { name: b"n", value: &[0; 65_537], flags: 0, setxattr_flags: 0 };
    assert_eq!(request(1, &value), Err(Errno::E2BIG));
}

/// Reads a listing as the kernel does: (node told, d_ino, offset, type, name).
fn kernel_reads(mut bytes: &[u8], plus: bool) -> Vec<(u64, u64, u64, u32, Vec<u8>)> {
    let mut found = Vec::new();
    while !bytes.is_empty() {
        let node = u64::from_le_bytes(bytes[..8].try_into().unwrap());
        let fixed = if plus { &bytes[128..] } else { bytes };
        let u64_at = |at: usize| u64::from_le_bytes(fixed[at..at + 8].try_into().unwrap());
        let len = u32::from_le_bytes(fixed[16..20].try_into().unwrap()) as usize;
        let kind = u32::from_le_bytes(fixed[20..24].try_into().unwrap());
        let node = if plus { node } else { 0 };
        found.push((node, u64_at(0), u64_at(8), kind, fixed[24..24 + len].to_vec()));
        let size = (24 + len).next_multiple_of(8) + if plus { 128 } else { 0 };
        bytes = &bytes[size..];
    }
    found
}

#[test]
fn a_listing_has_its_own_two_entries_and_fits() {
    for plus in [false, true] {
        let mut payload = [0; 4096];
        let mut writer = DirentsWriter::new(&mut payload);
        for (cookie, name) in [(5, &b"a"[..]), (6, b"exactly8"), (9, b"quite-a-long-name")] {
            let found = Attr { ino: Ino(cookie * 10), ..attr() };
            let kind = FileKind::Regular;
            let attr = plus.then_some(found);
            let entry = Dirent { ino: Ino(cookie * 10), cookie, kind, name, attr };
            assert!(writer.push(&entry).unwrap());
        }
        let len = writer.len();
        for offset in [0, 1, 2, 5] {
            let valid = Valid::default();
            let listing = Listing { plus, offset, ino: Ino::ROOT, parent: Ino(8), valid };
            assert_eq!(listing.cookie(), if offset < 3 { 0 } else { offset });
            let (mut out, mut told) = (Vec::new(), Vec::new());
            listing.encode(&payload[..len], &mut out, |attr| told.push(attr.ino.0)).unwrap();
            // What the volume was allowed plus what we add is what the kernel has room for.
            assert_eq!(out.len(), len + listing.own_len());
            let found = kernel_reads(&out, plus);
            let own = usize::try_from(2u64.saturating_sub(offset)).unwrap();
            assert_eq!(found.len(), own + 3);
            if offset == 0 {
                assert_eq!(found[0], (0, 1, 1, 4, b".".to_vec()));
                assert_eq!(found[1], (0, 8, 2, 4, b"..".to_vec()));
            }
            let last = (if plus { 90 } else { 0 }, 90, 9, 8, b"quite-a-long-name".to_vec());
            assert_eq!(found.last(), Some(&last));
            assert_eq!(told, if plus { vec![50, 60, 90] } else { vec![] });
        }
    }
}

proptest! {
    /// Whatever the bytes, nothing panics, and what parses can be translated or is refused.
    #[test]
    fn mutated_messages_are_survived(
        at: prop::sample::Index,
        mutations in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..8),
        cut: prop::sample::Index,
        ext: bool,
        node: u64,
    ) {
        let samples = samples();
        let (opcode, body, _) = &samples[at.index(samples.len())];
        let mut body = body.0.clone();
        if !body.is_empty() {
            for (place, byte) in mutations {
                let place = place.index(body.len());
                body[place] = byte;
            }
            body.truncate(cut.index(body.len() + 1));
        }
        if let Ok(call) = Call::parse(*opcode, &body, Dialect { setxattr_ext: ext }) {
            let _ = request(node, &call);
            if let Call::BatchForget(pairs) = call {
                prop_assert!(pairs.count() * 16 <= body.len());
            }
        }
    }

    #[test]
    fn arbitrary_bytes_are_survived(opcode in 0u32..60, bytes: Vec<u8>) {
        if let Ok(header) = InHeader::parse(&bytes)
            && let Ok((body, extensions)) = header.split(&bytes[IN_HEADER_LEN..])
        {
            prop_assert_eq!(body.len() + extensions.len() + IN_HEADER_LEN, bytes.len());
            let _ = header.cred(extensions);
        }
        let _ = InitIn::parse(&bytes);
        if let Ok(opcode) = Opcode::from_raw(opcode) {
            let _ = Call::parse(opcode, &bytes, EXT);
        }
        let listing = Listing {
            plus: opcode % 2 == 0,
            offset: 0,
            ino: Ino(2),
            parent: Ino(3),
            valid: Valid::default(),
        };
        let _ = listing.encode(&bytes, &mut Vec::new(), |_| {});
    }

    #[test]
    fn headers_round_trip(words: [u64; 2], halves: [u32; 5], extensions: u16) {
        let [unique, node] = words;
        let [len, opcode, uid, gid, pid] = halves;
        let header = InHeader { len, opcode, unique, node, uid, gid, pid, extensions };
        prop_assert_eq!(InHeader::parse(&header.emit()), Ok(header));
    }
}
