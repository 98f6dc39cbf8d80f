//! Replies: a number in the completion's result and, for a few operations, a reply header.

use outboard_base::{Errno, Fh, Ino, Result};

use super::attr::{Attr, Statfs};
use super::op::Op;
use super::request::Lock;
use crate::cursor::{put_u64, u64_at};

/// What an operation answers when it succeeds.
///
/// ```text
/// variant    result              reply header
/// Empty      0                   -
/// Entry      0                   attributes (128)
/// Attr       0                   attributes (128)
/// Opened     file handle         -
/// Created    file handle         attributes (128)
/// Data       bytes of payload    -
/// Written    bytes taken         -
/// Size       bytes               -        (told from Data by bit 63 of the result)
/// Removed    orphaned inode or 0 -
/// Gone       bit 63              attributes (128)
///            bits 63, 62         attributes, the directory's attributes (256)
/// Statfs     0                   figures (64)
/// Lock       0                   lock (32)
/// Waiting    ticket (never 0)    -
/// Delegated  all bits set        -
/// Offset     offset              -
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reply {
    /// Done.
    Empty,
    /// A name and what it leads to.
    Entry(Attr),
    /// Attributes of the inode asked about.
    Attr(Attr),
    /// An open file or directory.
    Opened(Fh),
    /// A new (or found) file, open.
    Created(Attr, Fh),
    /// This many bytes of payload were put into the read buffer.
    Data(u32),
    /// This many bytes were taken.
    Written(u32),
    /// The size a payload would have.
    Size(u32),
    /// A name is gone, and with it the last name of this inode, which lives on while someone holds
    /// it.
    Removed(Option<Ino>),
    /// A name is gone, and with it the inode, of which only the asker knew: nobody need forget it.
    Gone {
        /// These were its attributes; whoever still refers to it is answered by them.
        last: Attr,
        /// These are the directory's, after an `Unlink` that was not answered before.
        parent: Option<Box<Attr>>,
    },
    /// Figures of the volume.
    Statfs(Statfs),
    /// The lock in the way, or one of kind `Unlock`.
    Lock(Lock),
    /// The lock must be waited for; an event will name this ticket.
    Waiting(u64),
    /// The lock is held, and the locks of the file are the asker's to decide until they are
    /// recalled.
    Delegated,
    /// A place in the file.
    Offset(u64),
}

const SIZE: u64 = 1 << 63;
const GONE: u64 = 1 << 63;
const WITH_PARENT: u64 = 1 << 62;
/// No ticket comes this far.
const DELEGATED: u64 = u64::MAX;

impl Reply {
    /// Encodes: the result number, and the reply header's length in `into`.
    pub fn encode(&self, into: &mut [u8]) -> Result<(u64, usize)> {
        Ok(match self {
            Reply::Empty => (0, 0),
            Reply::Entry(attr) | Reply::Attr(attr) => {
                attr.encode(into)?;
                (0, Attr::LEN)
            }
            Reply::Opened(fh) => (fh.0, 0),
            Reply::Created(attr, fh) => {
                attr.encode(into)?;
                (fh.0, Attr::LEN)
            }
            Reply::Data(len) | Reply::Written(len) => (u64::from(*len), 0),
            Reply::Size(len) => (u64::from(*len) | SIZE, 0),
            Reply::Removed(orphan) => (orphan.map_or(0, |ino| ino.0), 0),
            Reply::Gone { last, parent: None } => {
                last.encode(into)?;
                (GONE, Attr::LEN)
            }
            Reply::Gone { last, parent: Some(parent) } => {
                last.encode(into)?;
                parent.encode(into.get_mut(Attr::LEN..).ok_or(Errno::EPROTO)?)?;
                (GONE | WITH_PARENT, 2 * Attr::LEN)
            }
            Reply::Statfs(figures) => {
                figures.encode(into)?;
                (0, Statfs::LEN)
            }
            Reply::Lock(lock) => {
                for (i, word) in lock.encode().into_iter().enumerate() {
                    put_u64(into, 8 * i, word)?;
                }
                (0, 32)
            }
            Reply::Waiting(ticket) => (*ticket, 0),
            Reply::Delegated => (DELEGATED, 0),
            Reply::Offset(offset) => (*offset, 0),
        })
    }

    /// Decodes the answer to `op`; `EPROTO` when it is not one `op` can have.
    pub fn decode(op: Op, result: u64, header: &[u8]) -> Result<Reply> {
        let count = || u32::try_from(result).map_err(|_| Errno::EPROTO);
        Ok(match op {
            Op::Lookup | Op::Symlink | Op::Mknod | Op::Mkdir | Op::Link => {
                Reply::Entry(Attr::decode(header)?)
            }
            Op::Getattr | Op::Setattr => Reply::Attr(Attr::decode(header)?),
            Op::Open | Op::Opendir => Reply::Opened(Fh(result)),
            Op::Create | Op::Tmpfile => Reply::Created(Attr::decode(header)?, Fh(result)),
            Op::Getxattr | Op::Listxattr if result & SIZE != 0 => {
                Reply::Size(u32::try_from(result & !SIZE).map_err(|_| Errno::EPROTO)?)
            }
            Op::Read | Op::Readlink | Op::Readdir | Op::Getxattr | Op::Listxattr => {
                Reply::Data(count()?)
            }
            Op::Write | Op::CopyFileRange => Reply::Written(count()?),
            Op::Unlink | Op::Rename if result == GONE => {
                Reply::Gone { last: Attr::decode(header)?, parent: None }
            }
            Op::Unlink if result == GONE | WITH_PARENT => {
                let parent = header.get(Attr::LEN..).ok_or(Errno::EPROTO)?;
                let parent = Some(Box::new(Attr::decode(parent)?));
                Reply::Gone { last: Attr::decode(header)?, parent }
            }
            Op::Unlink | Op::Rmdir | Op::Rename => {
                Reply::Removed((result != 0).then_some(Ino(result)))
            }
            Op::Statfs => Reply::Statfs(Statfs::decode(header)?),
            Op::Getlk => {
                let mut words = [0; 4];
                for (i, word) in words.iter_mut().enumerate() {
                    *word = u64_at(header, 8 * i)?;
                }
                Reply::Lock(Lock::decode(words).map_err(|_| Errno::EPROTO)?)
            }
            Op::Setlk if result == DELEGATED => Reply::Delegated,
            Op::Setlk if result != 0 => Reply::Waiting(result),
            Op::Lseek => Reply::Offset(result),
            Op::Noop
            | Op::Forget
            | Op::Flush
            | Op::Release
            | Op::Fsync
            | Op::Releasedir
            | Op::Setxattr
            | Op::Removexattr
            | Op::Access
            | Op::Setlk
            | Op::CancelLock
            | Op::Fallocate
            | Op::Syncfs
            | Op::Reclaim
            | Op::ReturnLocks => Reply::Empty,
        })
    }
}
