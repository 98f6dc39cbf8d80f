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

impl<'a> Raw<'a> {
    pub(super) fn of(request: &Request<'a>) -> Raw<'a> {
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

    pub(super) fn request(&self, op: Op) -> Result<Request<'a>> {
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
