//! Requests: the fixed header, then one variant per operation.

use std::fmt;

use outboard_base::{Cred, Errno, Fh, Ino, Result, SessionId, Timestamp, limits};

use super::op::Op;
use crate::cursor::{bytes, pack, put_u16, put_u32, put_u64, u16_at, u32_at, u64_at, unpack};

/// Length of the fixed part of a request header, bytes.
pub const HEADER_LEN: usize = 128;
const ARGUMENTS: usize = 64;

/// Flags of a request header.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Flags(pub u16);

impl Flags {
    /// The front-end has checked permissions (the kernel, under `default_permissions`). Honoured
    /// only from an attachment of root or of the volume's owner.
    pub const CHECKED: Flags = Flags(1);
    /// An earlier DPU instance may have executed this request.
    pub const REPLAY: Flags = Flags(2);
    /// With `Setlk`: the asker can take over the locks of the file (see [`Request::ReturnLocks`]).
    pub const DELEGABLE: Flags = Flags(4);
    const KNOWN: u16 = 7;

    /// Whether every flag of `other` is set.
    #[must_use]
    pub fn has(self, other: Flags) -> bool {
        self.0 & other.0 == other.0
    }

    /// These but those of `other`.
    #[must_use]
    pub fn without(self, other: Flags) -> Flags {
        Flags(self.0 & !other.0)
    }

    /// Both.
    #[must_use]
    pub fn with(self, other: Flags) -> Flags {
        Flags(self.0 | other.0)
    }
}

/// What every request says about itself.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Header {
    /// Who asks.
    pub cred: Cred,
    /// CHECKED, REPLAY, DELEGABLE.
    pub flags: Flags,
    /// Which attachment, across losses of the DPU side.
    pub session: SessionId,
    /// Names a request that changes something; 0 for one that does not.
    pub sequence: u64,
    /// Reused by the host only once the lane's earlier request is answered.
    pub lane: u16,
}

/// `open(2)` flags that travel, with Linux's numbers (x86-64 and asm-generic agree on these).
pub mod open_flags {
    /// Mask of the access mode: 0 read, 1 write, 2 both.
    pub const ACCMODE: u32 = 3;
    /// Write only.
    pub const WRONLY: u32 = 1;
    /// Read and write.
    pub const RDWR: u32 = 2;
    /// Fail if the name exists.
    pub const EXCL: u32 = 0o200;
    /// Truncate.
    pub const TRUNC: u32 = 0o1000;
    /// Every write goes to the end.
    pub const APPEND: u32 = 0o2000;
    /// Each write is durable with the metadata needed to read it back.
    pub const DSYNC: u32 = 0o10000;
    /// Bypass caches.
    pub const DIRECT: u32 = 0o40000;
    /// Reads do not change the access time.
    pub const NOATIME: u32 = 0o1_000_000;
    /// Each write is durable with all metadata (includes DSYNC).
    pub const SYNC: u32 = 0o4_010_000;
    /// Opened for execution.
    pub const EXEC: u32 = 0o40;
}

/// Flags of one write.
pub mod write_flags {
    /// At the end of the file, whatever the offset says.
    pub const APPEND: u32 = 1;
    /// Clear set-id bits (the writer is not privileged).
    pub const KILL_SUIDGID: u32 = 2;
    /// Durable before the answer.
    pub const DSYNC: u32 = 4;
    /// Write-back of cached pages: permissions were checked at open, times come by Setattr.
    pub const WRITEBACK: u32 = 8;
}

/// Flags of `renameat2(2)`.
pub mod rename_flags {
    /// Fail if the new name exists.
    pub const NOREPLACE: u32 = 1;
    /// Swap the two names.
    pub const EXCHANGE: u32 = 2;
    /// Leave a whiteout (refused with EINVAL: only overlays ask for it).
    pub const WHITEOUT: u32 = 4;
}

/// Flags of `setxattr(2)`.
pub mod xattr_flags {
    /// Fail if the attribute exists.
    pub const CREATE: u32 = 1;
    /// Fail if it does not.
    pub const REPLACE: u32 = 2;
    /// Clear the set-group-id bit with an access ACL set by someone outside the group.
    pub const KILL_SGID: u32 = 0x100;
}

/// `whence` of `lseek(2)` where the file system must answer.
pub mod seek {
    /// Next data.
    pub const DATA: u32 = 3;
    /// Next hole.
    pub const HOLE: u32 = 4;
}

/// A new access or modification time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SetattrTime {
    /// The DPU side's present time.
    Now,
    /// This one.
    At(Timestamp),
}

/// Which attributes change, and to what.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Setattr {
    /// Permissions with set-id and sticky bits.
    pub mode: Option<u32>,
    /// Owner.
    pub uid: Option<u32>,
    /// Group.
    pub gid: Option<u32>,
    /// Length, bytes.
    pub size: Option<u64>,
    /// Access time.
    pub atime: Option<SetattrTime>,
    /// Modification time.
    pub mtime: Option<SetattrTime>,
    /// Clear set-id bits, as a write by an unprivileged process does.
    pub kill_suidgid: bool,
}

/// What `Mknod` makes. Regular files are made by `Create` or `Mknod`.
pub type NodeKind = super::FileKind;

/// Which family a lock belongs to; the two do not see each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum LockStyle {
    /// `fcntl(2)` byte ranges.
    Posix,
    /// `flock(2)`, the whole file.
    Flock,
}

/// What a lock allows others.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum LockKind {
    /// Shared.
    Read,
    /// Exclusive.
    Write,
    /// None: drops what the range holds.
    Unlock,
}

/// A lock, asked for or found in the way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lock {
    /// Whom it belongs to, as the front-end names owners.
    pub owner: u64,
    /// First byte.
    pub start: u64,
    /// Last byte, inclusive; `u64::MAX`: to the end of the file, wherever that will be.
    pub end: u64,
    /// Shared, exclusive or none.
    pub kind: LockKind,
    /// Byte range or whole file.
    pub style: LockStyle,
    /// Process reported by F_GETLK.
    pub pid: u32,
}

impl Lock {
    /// Four argument words.
    pub(crate) fn encode(&self) -> [u64; 4] {
        let kind = match self.kind {
            LockKind::Read => 0,
            LockKind::Write => 1,
            LockKind::Unlock => 2,
        };
        let style = u32::from(self.style == LockStyle::Flock);
        [self.owner, self.start, self.end, pack(kind | style << 8, self.pid)]
    }

    /// The reverse of [`Lock::encode`]; refuses unknown kinds and ranges that end before they
    /// start.
    pub(crate) fn decode(words: [u64; 4]) -> Result<Lock> {
        let [owner, start, end, last] = words;
        let (tags, pid) = unpack(last);
        let kind = match tags & 0xff {
            0 => LockKind::Read,
            1 => LockKind::Write,
            2 => LockKind::Unlock,
            _ => return Err(Errno::EPROTO),
        };
        let style = match tags >> 8 {
            0 => LockStyle::Posix,
            1 => LockStyle::Flock,
            _ => return Err(Errno::EPROTO),
        };
        if end < start {
            return Err(Errno::EINVAL);
        }
        Ok(Lock { owner, start, end, kind, style, pid })
    }
}

/// One lock of those a `ReturnLocks` brings: 40 bytes, little-endian.
///
/// ```text
///   0 handle u64   8 owner u64   16 start u64   24 end u64 (inclusive)
///  32 kind u8 (0 shared, 1 exclusive), style u8 (0 POSIX, 1 flock), zero u16, pid u32
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HeldLock {
    /// The handle it was taken through.
    pub fh: Fh,
    /// The lock; never of kind `Unlock`.
    pub lock: Lock,
}

impl HeldLock {
    /// Bytes of one.
    pub const LEN: usize = 40;

    /// Appends the bytes.
    pub fn emit(&self, into: &mut Vec<u8>) {
        into.extend(self.fh.0.to_le_bytes());
        self.lock.encode().iter().for_each(|word| into.extend(word.to_le_bytes()));
    }

    /// Reads a payload; `EPROTO` if it is not whole records, `EPROTO` or `EINVAL` for one that
    /// means nothing.
    pub fn parse(payload: &[u8]) -> Result<Vec<HeldLock>> {
        let (records, rest) = payload.as_chunks::<{ HeldLock::LEN }>();
        if !rest.is_empty() {
            return Err(Errno::EPROTO);
        }
        let record = |bytes: &[u8; HeldLock::LEN]| {
            let mut words = bytes.as_chunks::<8>().0.iter().map(|word| u64::from_le_bytes(*word));
            let mut word = || words.next().ok_or(Errno::EPROTO);
            let fh = Fh(word()?);
            let lock = Lock::decode([word()?, word()?, word()?, word()?])?;
            if lock.kind == LockKind::Unlock {
                return Err(Errno::EPROTO);
            }
            Ok(HeldLock { fh, lock })
        };
        records.iter().map(record).collect()
    }
}

/// A file operation, names borrowed from the request header. Payload travels beside it.
#[derive(Clone, PartialEq, Eq)]
#[expect(missing_docs, reason = "the fields are those of the system call each variant answers")]
pub enum Request<'a> {
    /// Nothing. Reply: `Empty`.
    Noop,
    /// Reply: `Entry`; a name that does not exist is `ENOENT`.
    Lookup { parent: Ino, name: &'a [u8] },
    /// The front-end no longer refers to `ino`; an unlinked inode may go. Reply: `Empty`.
    Forget { ino: Ino },
    /// Reply: `Attr`.
    Getattr { ino: Ino, fh: Fh },
    /// Reply: `Attr`.
    Setattr { ino: Ino, fh: Fh, set: Setattr },
    /// Reply: `Data`, the target as payload.
    Readlink { ino: Ino },
    /// The target is the payload. Reply: `Entry`.
    Symlink { parent: Ino, name: &'a [u8] },
    /// `mode` holds the kind. Reply: `Entry`.
    Mknod { parent: Ino, name: &'a [u8], mode: u32, umask: u32, rdev: u32 },
    /// Reply: `Entry`.
    Mkdir { parent: Ino, name: &'a [u8], mode: u32, umask: u32 },
    /// Reply: `Removed` or `Gone`.
    Unlink { parent: Ino, name: &'a [u8] },
    /// Reply: `Removed`.
    Rmdir { parent: Ino, name: &'a [u8] },
    /// Reply: `Removed` or `Gone` (what the new name had pointed to).
    Rename { parent: Ino, name: &'a [u8], to_parent: Ino, to_name: &'a [u8], flags: u32 },
    /// Reply: `Entry`.
    Link { ino: Ino, to_parent: Ino, to_name: &'a [u8] },
    /// Reply: `Opened`.
    Open { ino: Ino, flags: u32 },
    /// Opens the file if it exists and `EXCL` is not set. Reply: `Created`.
    Create { parent: Ino, name: &'a [u8], mode: u32, umask: u32, flags: u32 },
    /// Reply: `Created`.
    Tmpfile { parent: Ino, mode: u32, umask: u32, flags: u32 },
    /// Reply: `Data`; shorter than asked only at the end of the file.
    Read { ino: Ino, fh: Fh, offset: u64, len: u32, flags: u32 },
    /// The data is the payload. Reply: `Written`.
    Write { ino: Ino, fh: Fh, offset: u64, flags: u32 },
    /// Drops the POSIX locks of `owner`. Reply: `Empty`.
    Flush { ino: Ino, fh: Fh, owner: u64 },
    /// Closes `fh`; drops the flock of `owner`. Reply: `Empty`.
    Release { ino: Ino, fh: Fh, owner: u64 },
    /// Reply: `Empty`, once durable.
    Fsync { ino: Ino, fh: Fh, data_only: bool },
    /// Reply: `Opened`.
    Opendir { ino: Ino },
    /// Entries after `cookie` (0: from the start), at most `len` bytes. With [`Fh::NONE`] whoever
    /// asks must have read permission now, not when something was opened. Reply: `Data`.
    Readdir { ino: Ino, fh: Fh, cookie: u64, len: u32, with_attributes: bool },
    /// Reply: `Empty`.
    Releasedir { ino: Ino, fh: Fh },
    /// Reply: `Statfs`.
    Statfs { ino: Ino },
    /// `len` 0 asks for the size. Reply: `Size` or `Data`.
    Getxattr { ino: Ino, name: &'a [u8], len: u32 },
    /// The value is the payload. Reply: `Empty`.
    Setxattr { ino: Ino, name: &'a [u8], flags: u32 },
    /// Names, each with a terminating zero; `len` 0 asks for the size. Reply: `Size` or `Data`.
    Listxattr { ino: Ino, len: u32 },
    /// Reply: `Empty`.
    Removexattr { ino: Ino, name: &'a [u8] },
    /// Reply: `Empty` or `EACCES`.
    Access { ino: Ino, mask: u32 },
    /// Reply: `Lock`, of kind `Unlock` when nothing stands in the way.
    Getlk { ino: Ino, fh: Fh, lock: Lock },
    /// Reply: `Empty`; `Waiting` when it must wait and `wait` is set, `EAGAIN` when it is not. Soon
    /// after a restart, and while another attachment decides the locks of the file, a lock that
    /// would not wait can be `Waiting`, too: until it is known whether it would have to.
    /// `Delegated`, if the header's flags said [`Flags::DELEGABLE`]: the lock is held, and all
    /// locks of the file are the asker's to decide from here on. `reclaim` hands in a lock held
    /// before a loss of the DPU side.
    Setlk { ino: Ino, fh: Fh, lock: Lock, wait: bool, reclaim: bool },
    /// Reply: `Empty`, or `ENOENT` when the lock was granted meanwhile.
    CancelLock { ticket: u64 },
    /// `mode` as in `fallocate(2)`. Reply: `Empty`.
    Fallocate { ino: Ino, fh: Fh, offset: u64, len: u64, mode: u32 },
    /// `whence` DATA or HOLE. Reply: `Offset`.
    Lseek { ino: Ino, fh: Fh, offset: u64, whence: u32 },
    /// Reply: `Written`.
    CopyFileRange {
        from: Ino,
        from_fh: Fh,
        from_offset: u64,
        to: Ino,
        to_fh: Fh,
        to_offset: u64,
        len: u64,
    },
    /// Reply: `Empty`, once everything answered is durable.
    Syncfs,
    /// Hands in `fh`, open before a loss of the DPU side. Reply: `Empty`; `ESTALE` if the inode is
    /// gone.
    Reclaim { ino: Ino, fh: Fh, flags: u32, directory: bool },
    /// The payload has every lock the attachment holds on the file ([`HeldLock`]); from here on the
    /// DPU side decides. Reply: `Empty`, also when there was nothing to hand back.
    ReturnLocks { ino: Ino },
}

impl Request<'_> {
    /// Which operation.
    #[must_use]
    pub fn op(&self) -> Op {
        match self {
            Request::Noop => Op::Noop,
            Request::Lookup { .. } => Op::Lookup,
            Request::Forget { .. } => Op::Forget,
            Request::Getattr { .. } => Op::Getattr,
            Request::Setattr { .. } => Op::Setattr,
            Request::Readlink { .. } => Op::Readlink,
            Request::Symlink { .. } => Op::Symlink,
            Request::Mknod { .. } => Op::Mknod,
            Request::Mkdir { .. } => Op::Mkdir,
            Request::Unlink { .. } => Op::Unlink,
            Request::Rmdir { .. } => Op::Rmdir,
            Request::Rename { .. } => Op::Rename,
            Request::Link { .. } => Op::Link,
            Request::Open { .. } => Op::Open,
            Request::Create { .. } => Op::Create,
            Request::Tmpfile { .. } => Op::Tmpfile,
            Request::Read { .. } => Op::Read,
            Request::Write { .. } => Op::Write,
            Request::Flush { .. } => Op::Flush,
            Request::Release { .. } => Op::Release,
            Request::Fsync { .. } => Op::Fsync,
            Request::Opendir { .. } => Op::Opendir,
            Request::Readdir { .. } => Op::Readdir,
            Request::Releasedir { .. } => Op::Releasedir,
            Request::Statfs { .. } => Op::Statfs,
            Request::Getxattr { .. } => Op::Getxattr,
            Request::Setxattr { .. } => Op::Setxattr,
            Request::Listxattr { .. } => Op::Listxattr,
            Request::Removexattr { .. } => Op::Removexattr,
            Request::Access { .. } => Op::Access,
            Request::Getlk { .. } => Op::Getlk,
            Request::Setlk { .. } => Op::Setlk,
            Request::CancelLock { .. } => Op::CancelLock,
            Request::Fallocate { .. } => Op::Fallocate,
            Request::Lseek { .. } => Op::Lseek,
            Request::CopyFileRange { .. } => Op::CopyFileRange,
            Request::Syncfs => Op::Syncfs,
            Request::Reclaim { .. } => Op::Reclaim,
            Request::ReturnLocks { .. } => Op::ReturnLocks,
        }
    }
}

impl fmt::Debug for Request<'_> {
    /// Operation, inode and names: what a log line needs.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let raw = Raw::of(self);
        write!(f, "{}(ino {}", self.op().name(), raw.ino)?;
        if raw.fh != Fh::NONE {
            write!(f, ", fh {}", raw.fh)?;
        }
        for name in [raw.name, raw.second].into_iter().filter(|name| !name.is_empty()) {
            write!(f, ", \"{}\"", name.escape_ascii())?;
        }
        write!(f, ", args {:?})", raw.args)
    }
}

/// The uniform form behind every variant: what the header's places hold.
#[derive(Default)]
struct Raw<'a> {
    ino: Ino,
    fh: Fh,
    args: [u64; 8],
    name: &'a [u8],
    second: &'a [u8],
}

fn args<const N: usize>(given: [u64; N]) -> [u64; 8] {
    let mut all = [0; 8];
    for (place, value) in all.iter_mut().zip(given) {
        *place = value;
    }
    all
}

impl<'a> Raw<'a> {
    fn of(request: &Request<'a>) -> Raw<'a> {
        let on = |ino: Ino| Raw { ino, ..Raw::default() };
        let named = |ino: Ino, name: &'a [u8]| Raw { ino, name, ..Raw::default() };
        match *request {
            Request::Noop | Request::Syncfs => Raw::default(),
            Request::Lookup { parent, name }
            | Request::Symlink { parent, name }
            | Request::Unlink { parent, name }
            | Request::Rmdir { parent, name } => named(parent, name),
            Request::Forget { ino }
            | Request::Readlink { ino }
            | Request::Opendir { ino }
            | Request::Statfs { ino }
            | Request::ReturnLocks { ino } => on(ino),
            Request::Getattr { ino, fh } | Request::Releasedir { ino, fh } => Raw { fh, ..on(ino) },
            Request::Setattr { ino, fh, ref set } => {
                Raw { fh, args: encode_setattr(set), ..on(ino) }
            }
            Request::Mknod { parent, name, mode, umask, rdev } => {
                Raw { args: args([pack(mode, umask), rdev.into()]), ..named(parent, name) }
            }
            Request::Mkdir { parent, name, mode, umask } => {
                Raw { args: args([pack(mode, umask)]), ..named(parent, name) }
            }
            Request::Rename { parent, name, to_parent, to_name, flags } => Raw {
                args: args([to_parent.0, flags.into()]),
                second: to_name,
                ..named(parent, name)
            },
            Request::Link { ino, to_parent, to_name } => {
                Raw { args: args([to_parent.0]), name: to_name, ..on(ino) }
            }
            Request::Open { ino, flags } => Raw { args: args([flags.into()]), ..on(ino) },
            Request::Create { parent, name, mode, umask, flags } => {
                Raw { args: args([pack(mode, umask), flags.into()]), ..named(parent, name) }
            }
            Request::Tmpfile { parent, mode, umask, flags } => {
                Raw { args: args([pack(mode, umask), flags.into()]), ..on(parent) }
            }
            Request::Read { ino, fh, offset, len, flags } => {
                Raw { fh, args: args([offset, pack(len, flags)]), ..on(ino) }
            }
            Request::Write { ino, fh, offset, flags } => {
                Raw { fh, args: args([offset, pack(0, flags)]), ..on(ino) }
            }
            Request::Flush { ino, fh, owner } | Request::Release { ino, fh, owner } => {
                Raw { fh, args: args([owner]), ..on(ino) }
            }
            Request::Fsync { ino, fh, data_only } => {
                Raw { fh, args: args([data_only.into()]), ..on(ino) }
            }
            Request::Readdir { ino, fh, cookie, len, with_attributes } => {
                Raw { fh, args: args([cookie, pack(len, with_attributes.into())]), ..on(ino) }
            }
            Request::Getxattr { ino, name, len } => {
                Raw { args: args([len.into()]), ..named(ino, name) }
            }
            Request::Setxattr { ino, name, flags } => {
                Raw { args: args([flags.into()]), ..named(ino, name) }
            }
            Request::Listxattr { ino, len } => Raw { args: args([len.into()]), ..on(ino) },
            Request::Removexattr { ino, name } => named(ino, name),
            Request::Access { ino, mask } => Raw { args: args([mask.into()]), ..on(ino) },
            Request::Getlk { ino, fh, lock } => Raw { fh, args: args(lock.encode()), ..on(ino) },
            Request::Setlk { ino, fh, lock, wait, reclaim } => {
                let [a, b, c, d] = lock.encode();
                Raw { fh, args: args([a, b, c, d, pack(wait.into(), reclaim.into())]), ..on(ino) }
            }
            Request::CancelLock { ticket } => Raw { args: args([ticket]), ..Raw::default() },
            Request::Fallocate { ino, fh, offset, len, mode } => {
                Raw { fh, args: args([offset, len, mode.into()]), ..on(ino) }
            }
            Request::Lseek { ino, fh, offset, whence } => {
                Raw { fh, args: args([offset, whence.into()]), ..on(ino) }
            }
            Request::CopyFileRange { from, from_fh, from_offset, to, to_fh, to_offset, len } => {
                Raw {
                    fh: from_fh,
                    args: args([from_offset, to.0, to_fh.0, to_offset, len]),
                    ..on(from)
                }
            }
            Request::Reclaim { ino, fh, flags, directory } => {
                Raw { fh, args: args([pack(flags, directory.into())]), ..on(ino) }
            }
        }
    }

    fn request(&self, op: Op) -> Result<Request<'a>> {
        let Raw { ino, fh, name, second, .. } = *self;
        let [a, b, c, d, e, ..] = self.args;
        let word = |value: u64| u32::try_from(value).map_err(|_| Errno::EPROTO);
        let lock = || Lock::decode([a, b, c, d]);
        let flag = |value: u32| match value {
            0 => Ok(false),
            1 => Ok(true),
            _ => Err(Errno::EPROTO),
        };
        Ok(match op {
            Op::Noop => Request::Noop,
            Op::Lookup => Request::Lookup { parent: ino, name },
            Op::Forget => Request::Forget { ino },
            Op::Getattr => Request::Getattr { ino, fh },
            Op::Setattr => Request::Setattr { ino, fh, set: decode_setattr(&self.args)? },
            Op::Readlink => Request::Readlink { ino },
            Op::Symlink => Request::Symlink { parent: ino, name },
            Op::Mknod => {
                let (mode, umask) = unpack(a);
                Request::Mknod { parent: ino, name, mode, umask, rdev: word(b)? }
            }
            Op::Mkdir => {
                let (mode, umask) = unpack(a);
                Request::Mkdir { parent: ino, name, mode, umask }
            }
            Op::Unlink => Request::Unlink { parent: ino, name },
            Op::Rmdir => Request::Rmdir { parent: ino, name },
            Op::Rename => Request::Rename {
                parent: ino,
                name,
                to_parent: Ino(a),
                to_name: second,
                flags: word(b)?,
            },
            Op::Link => Request::Link { ino, to_parent: Ino(a), to_name: name },
            Op::Open => Request::Open { ino, flags: word(a)? },
            Op::Create => {
                let (mode, umask) = unpack(a);
                Request::Create { parent: ino, name, mode, umask, flags: word(b)? }
            }
            Op::Tmpfile => {
                let (mode, umask) = unpack(a);
                Request::Tmpfile { parent: ino, mode, umask, flags: word(b)? }
            }
            Op::Read => {
                let (len, flags) = unpack(b);
                Request::Read { ino, fh, offset: a, len, flags }
            }
            Op::Write => Request::Write { ino, fh, offset: a, flags: unpack(b).1 },
            Op::Flush => Request::Flush { ino, fh, owner: a },
            Op::Release => Request::Release { ino, fh, owner: a },
            Op::Fsync => Request::Fsync { ino, fh, data_only: flag(word(a)?)? },
            Op::Opendir => Request::Opendir { ino },
            Op::Readdir => {
                let (len, with) = unpack(b);
                Request::Readdir { ino, fh, cookie: a, len, with_attributes: flag(with)? }
            }
            Op::Releasedir => Request::Releasedir { ino, fh },
            Op::Statfs => Request::Statfs { ino },
            Op::Getxattr => Request::Getxattr { ino, name, len: word(a)? },
            Op::Setxattr => Request::Setxattr { ino, name, flags: word(a)? },
            Op::Listxattr => Request::Listxattr { ino, len: word(a)? },
            Op::Removexattr => Request::Removexattr { ino, name },
            Op::Access => Request::Access { ino, mask: word(a)? },
            Op::Getlk => Request::Getlk { ino, fh, lock: lock()? },
            Op::Setlk => {
                let (wait, reclaim) = unpack(e);
                let (wait, reclaim) = (flag(wait)?, flag(reclaim)?);
                Request::Setlk { ino, fh, lock: lock()?, wait, reclaim }
            }
            Op::CancelLock => Request::CancelLock { ticket: a },
            Op::Fallocate => Request::Fallocate { ino, fh, offset: a, len: b, mode: word(c)? },
            Op::Lseek => Request::Lseek { ino, fh, offset: a, whence: word(b)? },
            Op::CopyFileRange => Request::CopyFileRange {
                from: ino,
                from_fh: fh,
                from_offset: a,
                to: Ino(b),
                to_fh: Fh(c),
                to_offset: d,
                len: e,
            },
            Op::Syncfs => Request::Syncfs,
            Op::Reclaim => {
                let (flags, directory) = unpack(a);
                Request::Reclaim { ino, fh, flags, directory: flag(directory)? }
            }
            Op::ReturnLocks => Request::ReturnLocks { ino },
        })
    }
}

const SET_MODE: u32 = 1;
const SET_UID: u32 = 2;
const SET_GID: u32 = 4;
const SET_SIZE: u32 = 8;
const SET_ATIME: u32 = 16;
const SET_ATIME_NOW: u32 = 32;
const SET_MTIME: u32 = 64;
const SET_MTIME_NOW: u32 = 128;
const KILL_SUIDGID: u32 = 256;
const SET_KNOWN: u32 = 511;

fn encode_setattr(set: &Setattr) -> [u64; 8] {
    let time = |time: Option<SetattrTime>, given: u32, now: u32| match time {
        None => (0, Timestamp::default()),
        Some(SetattrTime::Now) => (given | now, Timestamp::default()),
        Some(SetattrTime::At(at)) => (given, at),
    };
    let (atime_bits, atime) = time(set.atime, SET_ATIME, SET_ATIME_NOW);
    let (mtime_bits, mtime) = time(set.mtime, SET_MTIME, SET_MTIME_NOW);
    let bit = |given: bool, bit: u32| if given { bit } else { 0 };
    let valid = bit(set.mode.is_some(), SET_MODE)
        | bit(set.uid.is_some(), SET_UID)
        | bit(set.gid.is_some(), SET_GID)
        | bit(set.size.is_some(), SET_SIZE)
        | bit(set.kill_suidgid, KILL_SUIDGID)
        | atime_bits
        | mtime_bits;
    args([
        pack(valid, set.mode.unwrap_or_default()),
        pack(set.uid.unwrap_or_default(), set.gid.unwrap_or_default()),
        set.size.unwrap_or_default(),
        atime.sec.cast_unsigned(),
        mtime.sec.cast_unsigned(),
        pack(atime.nsec, mtime.nsec),
    ])
}

fn decode_setattr(args: &[u64; 8]) -> Result<Setattr> {
    let [modes, owners, size, atime, mtime, nsecs, ..] = *args;
    let (valid, mode) = unpack(modes);
    let (uid, gid) = unpack(owners);
    let (atime_nsec, mtime_nsec) = unpack(nsecs);
    if valid & !SET_KNOWN != 0 {
        return Err(Errno::EPROTO);
    }
    let has = |bit: u32| valid & bit != 0;
    let time = |given: u32, now: u32, sec: u64, nsec: u32| -> Result<Option<SetattrTime>> {
        Ok(match (has(given), has(now)) {
            (false, _) => None,
            (true, true) => Some(SetattrTime::Now),
            (true, false) => {
                Some(SetattrTime::At(Timestamp::new(sec.cast_signed(), nsec).ok_or(Errno::EINVAL)?))
            }
        })
    };
    Ok(Setattr {
        mode: has(SET_MODE).then_some(mode),
        uid: has(SET_UID).then_some(uid),
        gid: has(SET_GID).then_some(gid),
        size: has(SET_SIZE).then_some(size),
        atime: time(SET_ATIME, SET_ATIME_NOW, atime, atime_nsec)?,
        mtime: time(SET_MTIME, SET_MTIME_NOW, mtime, mtime_nsec)?,
        kill_suidgid: has(KILL_SUIDGID),
    })
}

/// Which lengths of names an operation takes: (first, second), inclusive ranges.
fn name_limits(op: Op) -> (std::ops::RangeInclusive<usize>, std::ops::RangeInclusive<usize>) {
    let names = 1..=limits::NAME_MAX;
    match op {
        Op::Rename => (names.clone(), names),
        Op::Lookup
        | Op::Symlink
        | Op::Mknod
        | Op::Mkdir
        | Op::Unlink
        | Op::Rmdir
        | Op::Link
        | Op::Create => (names, 0..=0),
        Op::Getxattr | Op::Setxattr | Op::Removexattr => (1..=limits::XATTR_NAME_MAX, 0..=0),
        _ => (0..=0, 0..=0),
    }
}

/// Names of directory entries are bytes without `/` and zero; `.` and `..` are the front-end's.
/// Extended attribute names may hold a slash.
fn check_name(op: Op, name: &[u8]) -> Result<()> {
    let is_xattr = matches!(op, Op::Getxattr | Op::Setxattr | Op::Removexattr);
    let forbidden = name.contains(&0) || (!is_xattr && name.contains(&b'/'));
    if forbidden || name == b"." || name == b".." {
        return Err(Errno::EINVAL);
    }
    Ok(())
}

impl<'a> Request<'a> {
    /// Length of the encoded header, bytes.
    #[must_use]
    pub fn encoded_len(&self, header: &Header) -> usize {
        let raw = Raw::of(self);
        HEADER_LEN + 4 * header.cred.groups.len() + raw.name.len() + raw.second.len()
    }

    /// Encodes into the start of `into` and returns the length. `ENAMETOOLONG` for a name beyond
    /// the limits, `EINVAL` for too many groups, `EPROTO` when `into` is too short.
    pub fn encode(&self, header: &Header, into: &mut [u8]) -> Result<usize> {
        let raw = Raw::of(self);
        let (first, second) = name_limits(self.op());
        if raw.name.len() > *first.end() || raw.second.len() > *second.end() {
            return Err(Errno::ENAMETOOLONG);
        }
        if header.cred.groups.len() > limits::GROUPS_MAX {
            return Err(Errno::EINVAL);
        }
        let short = |len: usize| u16::try_from(len).map_err(|_| Errno::EINVAL);
        put_u16(into, 0, self.op() as u16)?;
        put_u16(into, 2, header.flags.0)?;
        put_u32(into, 4, header.cred.uid)?;
        put_u32(into, 8, header.cred.gid)?;
        put_u32(into, 12, header.cred.pid)?;
        put_u64(into, 16, header.session.0)?;
        put_u64(into, 24, header.sequence)?;
        put_u64(into, 32, raw.ino.0)?;
        put_u64(into, 40, raw.fh.0)?;
        put_u16(into, 48, header.lane)?;
        put_u16(into, 50, short(header.cred.groups.len())?)?;
        put_u16(into, 52, short(raw.name.len())?)?;
        put_u16(into, 54, short(raw.second.len())?)?;
        put_u64(into, 56, 0)?;
        for (i, arg) in raw.args.into_iter().enumerate() {
            put_u64(into, ARGUMENTS + 8 * i, arg)?;
        }
        let mut at = HEADER_LEN;
        for &group in &header.cred.groups {
            put_u32(into, at, group)?;
            at += 4;
        }
        for name in [raw.name, raw.second] {
            into.get_mut(at..at + name.len()).ok_or(Errno::EPROTO)?.copy_from_slice(name);
            at += name.len();
        }
        Ok(at)
    }

    /// Decodes a header that ends with its bytes. Nothing is trusted: `EPROTO` for lengths and
    /// fields that do not add up, `ENOSYS` for an unknown operation, `ENAMETOOLONG` and `EINVAL`
    /// for names.
    pub fn decode(from: &'a [u8]) -> Result<(Header, Request<'a>)> {
        let op = Op::from_raw(u16_at(from, 0)?)?;
        let flags = Flags(u16_at(from, 2)?);
        let groups = usize::from(u16_at(from, 50)?);
        let name_len = usize::from(u16_at(from, 52)?);
        let second_len = usize::from(u16_at(from, 54)?);
        if flags.0 & !Flags::KNOWN != 0 || groups > limits::GROUPS_MAX {
            return Err(Errno::EPROTO);
        }
        let names = HEADER_LEN + 4 * groups;
        if from.len() != names + name_len + second_len {
            return Err(Errno::EPROTO);
        }
        let (first_limits, second_limits) = name_limits(op);
        for (len, limits) in [(name_len, first_limits), (second_len, second_limits)] {
            if len > *limits.end() {
                return Err(Errno::ENAMETOOLONG);
            }
            if len < *limits.start() {
                return Err(Errno::ENOENT);
            }
        }
        let mut raw = Raw {
            ino: Ino(u64_at(from, 32)?),
            fh: Fh(u64_at(from, 40)?),
            args: [0; 8],
            name: bytes(from, names, name_len)?,
            second: bytes(from, names + name_len, second_len)?,
        };
        for name in [raw.name, raw.second] {
            check_name(op, name)?;
        }
        for (i, arg) in raw.args.iter_mut().enumerate() {
            *arg = u64_at(from, ARGUMENTS + 8 * i)?;
        }
        let cred = Cred {
            uid: u32_at(from, 4)?,
            gid: u32_at(from, 8)?,
            pid: u32_at(from, 12)?,
            groups: (0..groups)
                .map(|i| u32_at(from, HEADER_LEN + 4 * i))
                .collect::<Result<Vec<u32>>>()?,
        };
        let header = Header {
            cred,
            flags,
            session: SessionId(u64_at(from, 16)?),
            sequence: u64_at(from, 24)?,
            lane: u16_at(from, 48)?,
        };
        Ok((header, raw.request(op)?))
    }
}
