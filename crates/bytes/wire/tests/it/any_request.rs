//! Any request there can be, for property tests.

use outboard_base::{Cred, Fh, Ino, SessionId, Timestamp, limits};
use outboard_wire::file::{
    Flags, Header, Lock, LockKind, LockStyle, Op, Request, Setattr, SetattrTime,
};
use proptest::collection::vec;
use proptest::prelude::*;

/// What variants borrow or share: everything a request can be made of.
#[derive(Clone, Debug)]
pub(crate) struct Parts {
    pub(crate) op: Op,
    pub(crate) name: Vec<u8>,
    pub(crate) second: Vec<u8>,
    pub(crate) longs: [u64; 6],
    pub(crate) words: [u32; 4],
    pub(crate) flags: [bool; 2],
    pub(crate) set: Setattr,
    pub(crate) lock: Lock,
}

/// A name of a directory entry.
pub(crate) fn name() -> impl Strategy<Value = Vec<u8>> {
    let byte = (1_u8..=255).prop_map(|byte| if byte == b'/' { b'_' } else { byte });
    vec(byte, 1..=limits::NAME_MAX)
        .prop_filter("the front-end's own", |name| name != b"." && name != b"..")
}

fn time() -> impl Strategy<Value = Option<SetattrTime>> {
    let at = (any::<i64>(), 0..1_000_000_000_u32)
        .prop_map(|(sec, nsec)| SetattrTime::At(Timestamp { sec, nsec }));
    prop_oneof![Just(None), Just(Some(SetattrTime::Now)), at.prop_map(Some)]
}

fn setattr() -> impl Strategy<Value = Setattr> {
    let word = any::<Option<u32>>;
    let ctime = any::<Option<(i64, u32)>>()
        .prop_map(|at| at.map(|(sec, nsec)| Timestamp { sec, nsec: nsec % 1_000_000_000 }));
    (word(), word(), word(), any::<Option<u64>>(), time(), time(), ctime, any::<bool>()).prop_map(
        |(mode, uid, gid, size, atime, mtime, ctime, kill_suidgid)| Setattr {
            mode,
            uid,
            gid,
            size,
            atime,
            mtime,
            ctime,
            kill_suidgid,
        },
    )
}

/// A lock.
pub(crate) fn lock() -> impl Strategy<Value = Lock> {
    let kind = prop_oneof![Just(LockKind::Read), Just(LockKind::Write), Just(LockKind::Unlock)];
    let style = prop_oneof![Just(LockStyle::Posix), Just(LockStyle::Flock)];
    (any::<u64>(), any::<[u64; 2]>(), kind, style, any::<u32>()).prop_map(
        |(owner, [a, b], kind, style, pid)| {
            let (start, end) = (a.min(b), a.max(b));
            Lock { owner, start, end, kind, style, pid }
        },
    )
}

pub(crate) fn parts() -> impl Strategy<Value = Parts> {
    let op = proptest::sample::select(Op::ALL);
    (
        op,
        name(),
        name(),
        any::<[u64; 6]>(),
        any::<[u32; 4]>(),
        any::<[bool; 2]>(),
        setattr(),
        lock(),
    )
        .prop_map(|(op, mut name, second, longs, words, flags, set, lock)| {
            if matches!(op, Op::Getxattr | Op::Setxattr | Op::Removexattr) {
                name.truncate(limits::XATTR_NAME_MAX);
                if name == b"." || name == b".." {
                    name = b"user.x".to_vec();
                }
            }
            Parts { op, name, second, longs, words, flags, set, lock }
        })
}

pub(crate) fn header() -> impl Strategy<Value = Header> {
    let groups = vec(any::<u32>(), 0..=limits::GROUPS_MAX);
    (any::<[u32; 3]>(), groups, 0_u16..4, any::<[u64; 2]>(), any::<u16>()).prop_map(
        |([uid, gid, pid], groups, flags, [session, sequence], lane)| Header {
            cred: Cred { uid, gid, pid, groups },
            flags: Flags(flags),
            session: SessionId(session),
            sequence,
            lane,
        },
    )
}

impl Parts {
    /// The request of `self.op`.
    pub(crate) fn request(&self) -> Request<'_> {
        let Parts { name, second, set, lock, .. } = self;
        let [a, b, c, d, e, f] = self.longs;
        let [w, x, y, _] = self.words;
        let [yes, also] = self.flags;
        let (ino, parent, fh) = (Ino(a), Ino(a), Fh(b));
        match self.op {
            Op::Noop => Request::Noop,
            Op::Lookup => Request::Lookup { parent, name },
            Op::Forget => Request::Forget { ino },
            Op::Getattr => Request::Getattr { ino, fh },
            Op::Setattr => Request::Setattr { ino, fh, set: set.clone() },
            Op::Readlink => Request::Readlink { ino },
            Op::Symlink => Request::Symlink { parent, name },
            Op::Mknod => Request::Mknod { parent, name, mode: w, umask: x, rdev: y },
            Op::Mkdir => Request::Mkdir { parent, name, mode: w, umask: x },
            Op::Unlink => Request::Unlink { parent, name },
            Op::Rmdir => Request::Rmdir { parent, name },
            Op::Rename => {
                let (to_parent, to_name) = (Ino(c), second);
                Request::Rename { parent, name, to_parent, to_name, flags: w }
            }
            Op::Link => Request::Link { ino, to_parent: Ino(c), to_name: name },
            Op::Open => Request::Open { ino, flags: w },
            Op::Create => Request::Create { parent, name, mode: w, umask: x, flags: y },
            Op::Tmpfile => Request::Tmpfile { parent, mode: w, umask: x, flags: y },
            Op::Read => Request::Read { ino, fh, offset: c, len: w, flags: x },
            Op::Write => Request::Write { ino, fh, offset: c, flags: w },
            Op::Flush => Request::Flush { ino, fh, owner: c },
            Op::Release => Request::Release { ino, fh, owner: c },
            Op::Fsync => Request::Fsync { ino, fh, data_only: yes },
            Op::Opendir => Request::Opendir { ino },
            Op::Readdir => Request::Readdir { ino, fh, cookie: c, len: w, with_attributes: yes },
            Op::Releasedir => Request::Releasedir { ino, fh },
            Op::Statfs => Request::Statfs { ino },
            Op::Getxattr => Request::Getxattr { ino, name, len: w },
            Op::Setxattr => Request::Setxattr { ino, name, flags: w },
            Op::Listxattr => Request::Listxattr { ino, len: w },
            Op::Removexattr => Request::Removexattr { ino, name },
            Op::Access => Request::Access { ino, mask: w },
            Op::Getlk => Request::Getlk { ino, fh, lock: *lock },
            Op::Setlk => Request::Setlk { ino, fh, lock: *lock, wait: yes, reclaim: also },
            Op::CancelLock => Request::CancelLock { ticket: c },
            Op::Fallocate => Request::Fallocate { ino, fh, offset: c, len: d, mode: w },
            Op::Lseek => Request::Lseek { ino, fh, offset: c, whence: w },
            Op::CopyFileRange => {
                let (from, from_fh, from_offset) = (ino, fh, c);
                let (to, to_fh, to_offset, len) = (Ino(d), Fh(e), f, a ^ b);
                Request::CopyFileRange { from, from_fh, from_offset, to, to_fh, to_offset, len }
            }
            Op::Syncfs => Request::Syncfs,
            Op::Reclaim => Request::Reclaim { ino, fh, flags: w, directory: yes },
            Op::ReturnLocks => Request::ReturnLocks { ino },
        }
    }
}
