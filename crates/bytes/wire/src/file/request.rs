//! Requests: the fixed header, then one variant per operation.

use std::fmt;

use outboard_base::{Cred, Fh, Ino, SessionId};

use super::op::Op;

mod flags;
mod header;
mod lock;
mod raw;
mod setattr;

pub use flags::{open_flags, rename_flags, seek, write_flags, xattr_flags};
pub use header::HEADER_LEN;
pub use lock::{HeldLock, Lock, LockKind, LockStyle};
use raw::Raw;
pub use setattr::{Setattr, SetattrTime};

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
