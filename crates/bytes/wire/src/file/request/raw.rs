//! One form behind every variant: inode, handle, eight argument words, two names.

use outboard_base::{Errno, Fh, Ino, Result};

use super::setattr::{decode_setattr, encode_setattr};
use super::{Lock, Request};
use crate::cursor::{pack, unpack};
use crate::file::Op;

/// The uniform form behind every variant: what the header's places hold.
#[derive(Default)]
pub(super) struct Raw<'a> {
    pub(super) ino: Ino,
    pub(super) fh: Fh,
    pub(super) args: [u64; 8],
    pub(super) name: &'a [u8],
    pub(super) second: &'a [u8],
}

pub(super) fn args<const N: usize>(given: [u64; N]) -> [u64; 8] {
    let mut all = [0; 8];
    for (place, value) in all.iter_mut().zip(given) {
        *place = value;
    }
    all
}

fn on<'a, const N: usize>(ino: Ino, given: [u64; N]) -> Raw<'a> {
    Raw { ino, args: args(given), ..Raw::default() }
}

fn opened<'a, const N: usize>(ino: Ino, fh: Fh, given: [u64; N]) -> Raw<'a> {
    Raw { fh, ..on(ino, given) }
}

fn named<const N: usize>(ino: Ino, name: &[u8], given: [u64; N]) -> Raw<'_> {
    Raw { name, ..on(ino, given) }
}

fn setlk<'a>(ino: Ino, fh: Fh, lock: &Lock, wait: bool, reclaim: bool) -> Raw<'a> {
    let [a, b, c, d] = lock.encode();
    opened(ino, fh, [a, b, c, d, pack(wait.into(), reclaim.into())])
}

impl<'a> Raw<'a> {
    pub(super) fn of(request: &Request<'a>) -> Raw<'a> {
        match *request {
            Request::Noop | Request::Syncfs => Raw::default(),
            Request::Lookup { parent: ino, name }
            | Request::Symlink { parent: ino, name }
            | Request::Unlink { parent: ino, name }
            | Request::Rmdir { parent: ino, name }
            | Request::Removexattr { ino, name } => named(ino, name, []),
            Request::Forget { ino }
            | Request::Readlink { ino }
            | Request::Opendir { ino }
            | Request::Statfs { ino }
            | Request::ReturnLocks { ino } => on(ino, []),
            Request::Getattr { ino, fh } | Request::Releasedir { ino, fh } => opened(ino, fh, []),
            Request::Setattr { ino, fh, ref set } => opened(ino, fh, encode_setattr(set)),
            Request::Mknod { parent, name, mode, umask, rdev } => {
                named(parent, name, [pack(mode, umask), rdev.into()])
            }
            Request::Mkdir { parent, name, mode, umask } => {
                named(parent, name, [pack(mode, umask)])
            }
            Request::Rename { parent, name, to_parent, to_name, flags } => {
                Raw { second: to_name, ..named(parent, name, [to_parent.0, flags.into()]) }
            }
            Request::Link { ino, to_parent, to_name } => named(ino, to_name, [to_parent.0]),
            Request::Open { ino, flags } => on(ino, [flags.into()]),
            Request::Create { parent, name, mode, umask, flags } => {
                named(parent, name, [pack(mode, umask), flags.into()])
            }
            Request::Tmpfile { parent, mode, umask, flags } => {
                on(parent, [pack(mode, umask), flags.into()])
            }
            Request::Read { ino, fh, offset, len, flags } => {
                opened(ino, fh, [offset, pack(len, flags)])
            }
            Request::Write { ino, fh, offset, flags } => opened(ino, fh, [offset, pack(0, flags)]),
            Request::Flush { ino, fh, owner } => opened(ino, fh, [owner]),
            Request::Release { ino, fh, owner } => opened(ino, fh, [owner]),
            Request::Fsync { ino, fh, data_only } => opened(ino, fh, [data_only.into()]),
            Request::Readdir { ino, fh, cookie, len, with_attributes } => {
                opened(ino, fh, [cookie, pack(len, with_attributes.into())])
            }
            Request::Getxattr { ino, name, len } => named(ino, name, [len.into()]),
            Request::Setxattr { ino, name, flags } => named(ino, name, [flags.into()]),
            Request::Listxattr { ino, len } => on(ino, [len.into()]),
            Request::Access { ino, mask } => on(ino, [mask.into()]),
            Request::Getlk { ino, fh, lock } => opened(ino, fh, lock.encode()),
            Request::Setlk { ino, fh, lock, wait, reclaim } => setlk(ino, fh, &lock, wait, reclaim),
            Request::CancelLock { ticket } => on(Ino::default(), [ticket]),
            Request::Fallocate { ino, fh, offset, len, mode } => {
                opened(ino, fh, [offset, len, mode.into()])
            }
            Request::Lseek { ino, fh, offset, whence } => opened(ino, fh, [offset, whence.into()]),
            Request::CopyFileRange { from, from_fh, from_offset, to, to_fh, to_offset, len } => {
                opened(from, from_fh, [from_offset, to.0, to_fh.0, to_offset, len])
            }
            Request::Reclaim { ino, fh, flags, directory } => {
                opened(ino, fh, [pack(flags, directory.into())])
            }
        }
    }

    /// The operation `op`. `EPROTO` for words that mean nothing there.
    pub(super) fn request(&self, op: Op) -> Result<Request<'a>> {
        let Raw { ino, fh, name, second, args: [a, b, c, ..] } = *self;
        let parent = ino;
        // By far most words that hold two values hold these.
        let ((mode, umask), (len, flags)) = (unpack(a), unpack(b));
        Ok(match op {
            Op::Noop => Request::Noop,
            Op::Lookup => Request::Lookup { parent, name },
            Op::Forget => Request::Forget { ino },
            Op::Getattr => Request::Getattr { ino, fh },
            Op::Setattr => Request::Setattr { ino, fh, set: decode_setattr(&self.args)? },
            Op::Readlink => Request::Readlink { ino },
            Op::Symlink => Request::Symlink { parent, name },
            Op::Mknod => Request::Mknod { parent, name, mode, umask, rdev: word(b)? },
            Op::Mkdir => Request::Mkdir { parent, name, mode, umask },
            Op::Unlink => Request::Unlink { parent, name },
            Op::Rmdir => Request::Rmdir { parent, name },
            Op::Rename => {
                let (to_parent, to_name) = (Ino(a), second);
                Request::Rename { parent, name, to_parent, to_name, flags: word(b)? }
            }
            Op::Link => Request::Link { ino, to_parent: Ino(a), to_name: name },
            Op::Open => Request::Open { ino, flags: word(a)? },
            Op::Create => Request::Create { parent, name, mode, umask, flags: word(b)? },
            Op::Tmpfile => Request::Tmpfile { parent, mode, umask, flags: word(b)? },
            Op::Read => Request::Read { ino, fh, offset: a, len, flags },
            Op::Write => Request::Write { ino, fh, offset: a, flags },
            Op::Flush => Request::Flush { ino, fh, owner: a },
            Op::Release => Request::Release { ino, fh, owner: a },
            Op::Fsync => Request::Fsync { ino, fh, data_only: flag(word(a)?)? },
            Op::Opendir => Request::Opendir { ino },
            Op::Readdir => {
                Request::Readdir { ino, fh, cookie: a, len, with_attributes: flag(flags)? }
            }
            Op::Releasedir => Request::Releasedir { ino, fh },
            Op::Statfs => Request::Statfs { ino },
            Op::Getxattr => Request::Getxattr { ino, name, len: word(a)? },
            Op::Setxattr => Request::Setxattr { ino, name, flags: word(a)? },
            Op::Listxattr => Request::Listxattr { ino, len: word(a)? },
            Op::Removexattr => Request::Removexattr { ino, name },
            Op::Access => Request::Access { ino, mask: word(a)? },
            Op::Getlk => Request::Getlk { ino, fh, lock: self.lock()? },
            Op::Setlk => self.setlk()?,
            Op::CancelLock => Request::CancelLock { ticket: a },
            Op::Fallocate => Request::Fallocate { ino, fh, offset: a, len: b, mode: word(c)? },
            Op::Lseek => Request::Lseek { ino, fh, offset: a, whence: word(b)? },
            Op::CopyFileRange => self.copy_file_range(),
            Op::Syncfs => Request::Syncfs,
            Op::Reclaim => {
                let (flags, directory) = unpack(a);
                Request::Reclaim { ino, fh, flags, directory: flag(directory)? }
            }
            Op::ReturnLocks => Request::ReturnLocks { ino },
        })
    }

    fn lock(&self) -> Result<Lock> {
        let [a, b, c, d, ..] = self.args;
        Lock::decode([a, b, c, d])
    }

    fn setlk(&self) -> Result<Request<'static>> {
        let [.., e, _, _, _] = self.args;
        let (wait, reclaim) = unpack(e);
        let (wait, reclaim) = (flag(wait)?, flag(reclaim)?);
        Ok(Request::Setlk { ino: self.ino, fh: self.fh, lock: self.lock()?, wait, reclaim })
    }

    fn copy_file_range(&self) -> Request<'static> {
        let [from_offset, to, to_fh, to_offset, len, ..] = self.args;
        Request::CopyFileRange {
            from: self.ino,
            from_fh: self.fh,
            from_offset,
            to: Ino(to),
            to_fh: Fh(to_fh),
            to_offset,
            len,
        }
    }
}

fn word(value: u64) -> Result<u32> {
    u32::try_from(value).map_err(|_| Errno::EPROTO)
}

fn flag(value: u32) -> Result<bool> {
    match value {
        0 => Ok(false),
        1 => Ok(true),
        _ => Err(Errno::EPROTO),
    }
}
