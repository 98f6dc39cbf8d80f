//! What a request means to the caches.

use outboard_base::{Fh, Ino};
use outboard_volume::Payload;
use outboard_wire::file::{Request, open_flags};

use super::grant_table::Concern;

/// What becomes of the pages of an inode that changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Drops {
    /// They stay: the bytes do not change.
    Nothing,
    /// All go.
    Pages,
}

/// What is done with a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RequestClass {
    /// No file's bytes, size or times are in it.
    Plain,
    /// Reads bytes.
    Read { ino: Ino, fh: Fh, offset: u64, len: u32, flags: u32 },
    /// Writes bytes.
    Write { ino: Ino, fh: Fh, offset: u64, len: u64, flags: u32 },
    /// Changes one inode, or reads one (the lower stands first) and changes another.
    Change { ino: Ino, other: Option<Ino>, drops: Drops },
    /// Asks for attributes, or what follows from size and bytes.
    Attributes { ino: Ino },
    /// Opens a file.
    Open { ino: Ino, flags: u32 },
    /// Answers with attributes of what a name leads to, and may cut that.
    Names { cuts: bool },
    /// Answers with attributes of many.
    Listing,
    /// Makes a file durable.
    Sync { ino: Ino },
    /// Makes everything durable.
    SyncAll,
    /// Closes a file.
    Release { ino: Ino, fh: Fh },
    /// Takes a name away, and with it perhaps an inode.
    Removal,
}

impl RequestClass {
    /// Of which inodes it is to be known beforehand what caches held before a start. Which one a
    /// name leads to its answer says.
    pub(super) fn concern(&self) -> Concern {
        match *self {
            RequestClass::Read { ino, .. }
            | RequestClass::Write { ino, .. }
            | RequestClass::Attributes { ino }
            | RequestClass::Open { ino, .. }
            | RequestClass::Sync { ino }
            | RequestClass::Release { ino, .. } => Concern::Inodes(ino, ino),
            RequestClass::Change { ino, other, .. } => Concern::Inodes(ino, other.unwrap_or(ino)),
            RequestClass::Names { cuts: true } | RequestClass::SyncAll => Concern::Anything,
            RequestClass::Names { cuts: false }
            | RequestClass::Listing
            | RequestClass::Removal
            | RequestClass::Plain => Concern::Nothing,
        }
    }
}

pub(super) fn of(request: &Request<'_>, payload: &Payload) -> RequestClass {
    let change = |ino, drops| RequestClass::Change { ino, other: None, drops };
    match *request {
        Request::Read { ino, fh, offset, len, flags } => {
            RequestClass::Read { ino, fh, offset, len, flags }
        }
        Request::Write { ino, fh, offset, flags } => {
            RequestClass::Write { ino, fh, offset, len: payload.bytes().len() as u64, flags }
        }
        Request::Setattr { ino, ref set, .. } => {
            change(ino, if set.size.is_some() { Drops::Pages } else { Drops::Nothing })
        }
        Request::Setxattr { ino, .. } | Request::Removexattr { ino, .. } => {
            change(ino, Drops::Nothing)
        }
        Request::Fallocate { ino, .. } => change(ino, Drops::Pages),
        Request::CopyFileRange { from, to, .. } => RequestClass::Change {
            ino: to,
            other: (from != to).then_some(from),
            drops: Drops::Pages,
        },
        Request::Getattr { ino, .. } => RequestClass::Attributes { ino },
        // What is not in the volume yet would count as a hole.
        Request::Lseek { ino, .. } => change(ino, Drops::Nothing),
        Request::Open { ino, flags } => RequestClass::Open { ino, flags },
        Request::Create { flags, .. } => {
            RequestClass::Names { cuts: flags & open_flags::TRUNC != 0 }
        }
        Request::Lookup { .. } | Request::Tmpfile { .. } | Request::Link { .. } => {
            RequestClass::Names { cuts: false }
        }
        Request::Readdir { with_attributes: true, .. } => RequestClass::Listing,
        Request::Fsync { ino, .. } => RequestClass::Sync { ino },
        Request::Syncfs => RequestClass::SyncAll,
        Request::Release { ino, fh, .. } => RequestClass::Release { ino, fh },
        Request::Unlink { .. } | Request::Rename { .. } => RequestClass::Removal,
        Request::Noop
        | Request::Forget { .. }
        | Request::Readlink { .. }
        | Request::Symlink { .. }
        | Request::Mknod { .. }
        | Request::Mkdir { .. }
        | Request::Rmdir { .. }
        | Request::Flush { .. }
        | Request::Opendir { .. }
        | Request::Readdir { with_attributes: false, .. }
        | Request::Releasedir { .. }
        | Request::Statfs { .. }
        | Request::Getxattr { .. }
        | Request::Listxattr { .. }
        | Request::Access { .. }
        | Request::Getlk { .. }
        | Request::Setlk { .. }
        | Request::CancelLock { .. }
        | Request::Reclaim { .. }
        | Request::ReturnLocks { .. } => RequestClass::Plain,
    }
}

/// Whether a file opened so is written to.
pub(super) fn writes(flags: u32) -> bool {
    matches!(flags & open_flags::ACCMODE, open_flags::WRONLY | open_flags::RDWR)
}
