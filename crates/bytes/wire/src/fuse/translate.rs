//! From the kernel's calls to the file operations of [`crate::file`].
//!
//! The kernel calls the root 1, the volume calls it 0 and never gives out 1 ([`Ino`]): the two
//! swap. What the kernel decides by itself (references, interrupts, the handshake) has no request.

use outboard_base::{Errno, Fh, Ino, Result, Timestamp, limits};

use super::ROOT_ID;
use super::call::{Call, LockIn, SetattrIn, fattr, lock_flags, setxattr_flags, write_in_flags};
use crate::file::{
    Lock, LockKind, LockStyle, Request, Setattr, SetattrTime, open_flags, write_flags, xattr_flags,
};

/// The kernel's number of an inode.
#[must_use]
pub fn node_of(ino: Ino) -> u64 {
    if ino == Ino::ROOT { ROOT_ID } else { ino.0 }
}

/// The volume's number of a node.
#[must_use]
pub fn ino_of(node: u64) -> Ino {
    if node == ROOT_ID { Ino::ROOT } else { Ino(node) }
}

/// A call as a file operation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Translated<'a> {
    /// The operation.
    pub request: Request<'a>,
    /// Payload that lies in the call itself: a link target, an attribute value.
    pub payload: &'a [u8],
}

/// Open flags that travel. `O_APPEND` does not: `fcntl(F_SETFL)` may set or clear it at any time,
/// and each write says what it is by then. The rest are the kernel's business.
const OPEN_FLAGS: u32 = open_flags::ACCMODE
    | open_flags::EXCL
    | open_flags::TRUNC
    | open_flags::SYNC
    | open_flags::DIRECT
    | open_flags::NOATIME
    | open_flags::EXEC;

/// Translates a call about `node`; `Ok(None)` for calls that ask nothing of the volume. `O_DSYNC`
/// and `O_APPEND` are taken from each write, so that `fcntl(F_SETFL)` has its effect.
/// `ENAMETOOLONG` for names beyond what the kernel's front-ends carry, `EINVAL` for fields without
/// meaning.
pub fn request<'a>(node: u64, call: &Call<'a>) -> Result<Option<Translated<'a>>> {
    let ino = ino_of(node);
    let request = match of_name(ino, call)? {
        Some(request) => Some(request),
        None => match of_inode(ino, call)? {
            Some(request) => Some(request),
            None => of_handle(ino, call)?,
        },
    };
    Ok(request.map(|request| Translated { request, payload: payload(call) }))
}

fn payload<'a>(call: &Call<'a>) -> &'a [u8] {
    match *call {
        Call::Symlink { target, .. } => target,
        Call::Setxattr { value, .. } => value,
        _ => &[],
    }
}

/// Calls about a name in the directory `parent`.
fn of_name<'a>(parent: Ino, call: &Call<'a>) -> Result<Option<Request<'a>>> {
    Ok(Some(match *call {
        Call::Lookup { name } => Request::Lookup { parent, name: entry_name(name)? },
        Call::Symlink { name, target } => {
            if target.len() > limits::SYMLINK_MAX {
                return Err(Errno::ENAMETOOLONG);
            }
            Request::Symlink { parent, name: entry_name(name)? }
        }
        Call::Mknod { name, mode, rdev, umask } => {
            Request::Mknod { parent, name: entry_name(name)?, mode, umask, rdev }
        }
        Call::Mkdir { name, mode, umask } => {
            Request::Mkdir { parent, name: entry_name(name)?, mode, umask }
        }
        Call::Unlink { name } => Request::Unlink { parent, name: entry_name(name)? },
        Call::Rmdir { name } => Request::Rmdir { parent, name: entry_name(name)? },
        Call::Rename { name, to_node, to_name, flags } => Request::Rename {
            parent,
            name: entry_name(name)?,
            to_parent: ino_of(to_node),
            to_name: entry_name(to_name)?,
            flags,
        },
        Call::Link { node, name } => {
            Request::Link { ino: ino_of(node), to_parent: parent, to_name: entry_name(name)? }
        }
        Call::Create { name, flags, mode, umask, .. } => Request::Create {
            parent,
            name: entry_name(name)?,
            mode,
            umask,
            flags: flags & OPEN_FLAGS,
        },
        Call::Tmpfile { flags, mode, umask, .. } => {
            Request::Tmpfile { parent, mode, umask, flags: flags & OPEN_FLAGS }
        }
        _ => return Ok(None),
    }))
}

/// Calls about an inode, opened or not, and the volume as a whole.
fn of_inode<'a>(ino: Ino, call: &Call<'a>) -> Result<Option<Request<'a>>> {
    Ok(Some(match *call {
        Call::Getattr { fh } | Call::Statx { fh } => {
            Request::Getattr { ino, fh: fh.map_or(Fh::NONE, Fh) }
        }
        Call::Setattr(ref set) => {
            let fh = if set.valid & fattr::FH != 0 { Fh(set.fh) } else { Fh::NONE };
            Request::Setattr { ino, fh, set: setattr(set)? }
        }
        Call::Readlink => Request::Readlink { ino },
        Call::Open { flags, .. } => Request::Open { ino, flags: flags & OPEN_FLAGS },
        Call::Opendir { .. } => Request::Opendir { ino },
        Call::Access { mask } => Request::Access { ino, mask },
        Call::Setxattr { name, value, flags, setxattr_flags } => {
            xattr_name(name)?;
            if value.len() > limits::XATTR_SIZE_MAX {
                return Err(Errno::E2BIG);
            }
            Request::Setxattr { ino, name, flags: setxattr(flags, setxattr_flags) }
        }
        Call::Getxattr { name, len } => {
            xattr_name(name)?;
            Request::Getxattr { ino, name, len: len.min(IO_MAX) }
        }
        Call::Listxattr { len } => Request::Listxattr { ino, len: len.min(IO_MAX) },
        Call::Removexattr { name } => {
            xattr_name(name)?;
            Request::Removexattr { ino, name }
        }
        Call::Statfs => Request::Statfs { ino },
        Call::Syncfs => Request::Syncfs,
        _ => return Ok(None),
    }))
}

/// Calls about the open file `ino`. Not listings, which need their own entries' room taken off
/// first: see `answer::Listing`.
fn of_handle(ino: Ino, call: &Call<'_>) -> Result<Option<Request<'static>>> {
    Ok(Some(match *call {
        Call::Read { fh, offset, len, flags } => {
            let len = len.min(IO_MAX);
            Request::Read { ino, fh: Fh(fh), offset, len, flags: flags & OPEN_FLAGS }
        }
        Call::Write { fh, offset, len, write_flags, flags } => {
            if len > IO_MAX {
                return Err(Errno::EINVAL);
            }
            Request::Write { ino, fh: Fh(fh), offset, flags: write(write_flags, flags) }
        }
        Call::Release { fh, .. } => Request::Release { ino, fh: Fh(fh), owner: fh },
        Call::Releasedir { fh } => Request::Releasedir { ino, fh: Fh(fh) },
        Call::Flush { fh, owner } => Request::Flush { ino, fh: Fh(fh), owner },
        Call::Fsync { fh, data_only } | Call::Fsyncdir { fh, data_only } => {
            Request::Fsync { ino, fh: Fh(fh), data_only }
        }
        Call::Getlk(lock) => Request::Getlk { ino, fh: Fh(lock.fh), lock: lock_of(&lock)? },
        Call::Setlk(lock) => setlk(ino, &lock, false)?,
        Call::Setlkw(lock) => setlk(ino, &lock, true)?,
        Call::Fallocate { fh, offset, len, mode } => {
            Request::Fallocate { ino, fh: Fh(fh), offset, len, mode }
        }
        Call::Lseek { fh, offset, whence } => Request::Lseek { ino, fh: Fh(fh), offset, whence },
        Call::CopyFileRange { fh, offset, to_node, to_fh, to_offset, len }
        | Call::CopyFileRange64 { fh, offset, to_node, to_fh, to_offset, len } => {
            Request::CopyFileRange {
                from: ino,
                from_fh: Fh(fh),
                from_offset: offset,
                to: ino_of(to_node),
                to_fh: Fh(to_fh),
                to_offset,
                // The count of the answer has 32 bits; a shorter copy is legal.
                len: len.min(COPY_MAX),
            }
        }
        _ => return Ok(None),
    }))
}

#[expect(clippy::cast_possible_truncation, reason = "1 MiB")]
const IO_MAX: u32 = limits::IO_MAX as u32;
/// Most bytes one copy is asked for: a multiple of the block below 4 GiB.
const COPY_MAX: u64 = 1 << 30;

/// A name of a directory entry as the kernel's front-ends allow it.
fn entry_name(name: &[u8]) -> Result<&[u8]> {
    match name {
        _ if name.len() > limits::NAME_MAX_KERNEL => Err(Errno::ENAMETOOLONG),
        // Only file handles of other machines ask for these, which are refused in the handshake.
        b"" | b"." | b".." => Err(Errno::ESTALE),
        _ => Ok(name),
    }
}

fn xattr_name(name: &[u8]) -> Result<()> {
    match name.len() {
        0 => Err(Errno::EINVAL),
        len if len > limits::XATTR_NAME_MAX => Err(Errno::ERANGE),
        _ => Ok(()),
    }
}

fn write(write_in: u32, file_flags: u32) -> u32 {
    let cached = write_in & write_in_flags::CACHE != 0;
    let bit = |set: bool, bit: u32| if set { bit } else { 0 };
    bit(!cached && file_flags & open_flags::APPEND != 0, write_flags::APPEND)
        | bit(write_in & write_in_flags::KILL_SUIDGID != 0, write_flags::KILL_SUIDGID)
        | bit(file_flags & open_flags::DSYNC != 0, write_flags::DSYNC)
        | bit(file_flags & open_flags::SYNC == open_flags::SYNC, write_flags::SYNC)
        | bit(cached, write_flags::WRITEBACK)
}

fn setxattr(flags: u32, setxattr_in: u32) -> u32 {
    let kill = setxattr_in & setxattr_flags::ACL_KILL_SGID != 0;
    flags & (xattr_flags::CREATE | xattr_flags::REPLACE)
        | if kill { xattr_flags::KILL_SGID } else { 0 }
}

fn setattr(from: &SetattrIn) -> Result<Setattr> {
    let has = |bit: u32| from.valid & bit != 0;
    let time = |given: u32, now: u32, sec: u64, nsec: u32| -> Result<Option<SetattrTime>> {
        Ok(match (has(given), has(now)) {
            (false, _) => None,
            (true, true) => Some(SetattrTime::Now),
            (true, false) => {
                let at = Timestamp::new(sec.cast_signed(), nsec).ok_or(Errno::EINVAL)?;
                Some(SetattrTime::At(at))
            }
        })
    };
    let ctime = has(fattr::CTIME)
        .then(|| Timestamp::new(from.ctime.cast_signed(), from.ctime_nsec).ok_or(Errno::EINVAL));
    Ok(Setattr {
        mode: has(fattr::MODE).then_some(from.mode & crate::file::mode::PERMISSIONS),
        uid: has(fattr::UID).then_some(from.uid),
        gid: has(fattr::GID).then_some(from.gid),
        size: has(fattr::SIZE).then_some(from.size),
        atime: time(fattr::ATIME, fattr::ATIME_NOW, from.atime, from.atime_nsec)?,
        mtime: time(fattr::MTIME, fattr::MTIME_NOW, from.mtime, from.mtime_nsec)?,
        ctime: ctime.transpose()?,
        kill_suidgid: has(fattr::KILL_SUIDGID),
    })
}

fn lock_of(from: &LockIn) -> Result<Lock> {
    let kind = match from.kind {
        0 => LockKind::Read,
        1 => LockKind::Write,
        2 => LockKind::Unlock,
        _ => return Err(Errno::EINVAL),
    };
    let flock = from.flags & lock_flags::FLOCK != 0;
    // The kernel says "to the end" with the largest signed offset.
    let end = if from.end >= i64::MAX.cast_unsigned() { u64::MAX } else { from.end };
    if end < from.start {
        return Err(Errno::EINVAL);
    }
    // The kernel's name of a flock's owner is another open file's once this one is closed, and its
    // release may come after that one's lock. A handle is never another's.
    let owner = if flock { from.fh } else { from.owner };
    Ok(Lock {
        owner,
        start: from.start,
        end,
        kind,
        style: if flock { LockStyle::Flock } else { LockStyle::Posix },
        pid: from.pid,
    })
}

fn setlk(ino: Ino, from: &LockIn, wait: bool) -> Result<Request<'static>> {
    let lock = lock_of(from)?;
    let wait = wait && lock.kind != LockKind::Unlock;
    Ok(Request::Setlk { ino, fh: Fh(from.fh), lock, wait, reclaim: false })
}
