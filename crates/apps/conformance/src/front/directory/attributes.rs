//! Attributes, figures, access, extended attributes.

use std::os::fd::OwnedFd;

use outboard_base::{Errno, Fh, Ino, Result, Timestamp};
use outboard_wire::file::{Attr, Reply, Request, Setattr, SetattrTime, Statfs, xattr_flags};
use rustix::fs::{Access, AtFlags, Mode, StatxFlags, Timespec, Timestamps, XattrFlags};

use super::{DirectoryFront, SELF, errno};

/// The kernel's 32-bit form of a device number.
fn rdev(major: u32, minor: u32) -> u32 {
    (minor & 0xff) | (major << 8) | ((minor & !0xff) << 12)
}

/// `statx(2)` of a descriptor.
pub(super) fn of(fd: &OwnedFd, root_ino: u64) -> Result<Attr> {
    let wanted = StatxFlags::BASIC_STATS | StatxFlags::BTIME;
    let found = rustix::fs::statx(fd, "", SELF | AtFlags::STATX_SYNC_AS_STAT, wanted);
    let stat = found.map_err(errno)?;
    let time = |at: rustix::fs::StatxTimestamp| Timestamp { sec: at.tv_sec, nsec: at.tv_nsec };
    let ino = if stat.stx_ino == root_ino { Ino::ROOT } else { Ino(stat.stx_ino) };
    Ok(Attr {
        ino,
        size: stat.stx_size,
        blocks: stat.stx_blocks,
        change: 0,
        atime: time(stat.stx_atime),
        mtime: time(stat.stx_mtime),
        ctime: time(stat.stx_ctime),
        crtime: time(stat.stx_btime),
        mode: u32::from(stat.stx_mode),
        nlink: stat.stx_nlink,
        uid: stat.stx_uid,
        gid: stat.stx_gid,
        rdev: rdev(stat.stx_rdev_major, stat.stx_rdev_minor),
        blksize: stat.stx_blksize,
        flags: 0,
    })
}

fn timespec(time: Option<SetattrTime>) -> Timespec {
    match time {
        None => Timespec { tv_sec: 0, tv_nsec: rustix::fs::UTIME_OMIT },
        Some(SetattrTime::Now) => Timespec { tv_sec: 0, tv_nsec: rustix::fs::UTIME_NOW },
        Some(SetattrTime::At(at)) => Timespec { tv_sec: at.sec, tv_nsec: i64::from(at.nsec) },
    }
}

impl DirectoryFront {
    pub(super) fn on_attributes(
        &mut self,
        request: &Request<'_>,
        payload: &[u8],
        out: &mut Vec<u8>,
    ) -> Result<Reply> {
        match *request {
            Request::Getattr { ino, .. } => Ok(Reply::Attr(of(self.inode(ino)?, self.root_ino)?)),
            Request::Setattr { ino, fh, ref set } => {
                self.setattr(ino, fh, set)?;
                Ok(Reply::Attr(of(self.inode(ino)?, self.root_ino)?))
            }
            Request::Access { ino, mask } => {
                let access = Access::from_bits_retain(mask);
                rustix::fs::access(self.path(ino)?, access).map_err(errno)?;
                Ok(Reply::Empty)
            }
            Request::Statfs { ino } => self.statfs(ino),
            Request::Getxattr { ino, name, len } => self.getxattr(ino, name, len, out),
            Request::Setxattr { ino, name, flags } => {
                // The kernel decides itself when to clear the set-group-id bit.
                let flags = XattrFlags::from_bits_retain(flags & !xattr_flags::KILL_SGID);
                rustix::fs::setxattr(self.path(ino)?, name, payload, flags).map_err(errno)?;
                Ok(Reply::Empty)
            }
            Request::Listxattr { ino, len } => self.listxattr(ino, len, out),
            Request::Removexattr { ino, name } => {
                rustix::fs::removexattr(self.path(ino)?, name).map_err(errno)?;
                Ok(Reply::Empty)
            }
            _ => Err(Errno::ENOSYS),
        }
    }

    /// Several system calls where a front-end over the kernel would send one request.
    fn setattr(&mut self, ino: Ino, fh: Fh, set: &Setattr) -> Result<()> {
        if let Some(size) = set.size {
            let path = self.path(ino)?;
            let size = i64::try_from(size).map_err(|_| Errno::EFBIG)?;
            if fh == Fh::NONE {
                nix::unistd::truncate(path.as_str(), size)
                    .map_err(|error| Errno::from_raw((error as i32).unsigned_abs()))?;
            } else {
                rustix::fs::ftruncate(self.handle(fh)?, size.unsigned_abs()).map_err(errno)?;
            }
        }
        if let Some(mode) = set.mode {
            let mode = Mode::from_raw_mode(mode & 0o7777);
            rustix::fs::chmod(self.path(ino)?, mode).map_err(errno)?;
        }
        if set.uid.is_some() || set.gid.is_some() {
            let uid = set.uid.map(rustix::process::Uid::from_raw);
            let gid = set.gid.map(rustix::process::Gid::from_raw);
            rustix::fs::chownat(self.inode(ino)?, "", uid, gid, SELF).map_err(errno)?;
        }
        if set.atime.is_some() || set.mtime.is_some() {
            let times = Timestamps {
                last_access: timespec(set.atime),
                last_modification: timespec(set.mtime),
            };
            rustix::fs::utimensat(self.inode(ino)?, "", &times, SELF).map_err(errno)?;
        }
        Ok(())
    }

    fn statfs(&mut self, ino: Ino) -> Result<Reply> {
        let found = rustix::fs::fstatvfs(self.inode(ino)?).map_err(errno)?;
        Ok(Reply::Statfs(Statfs {
            block_size: found.f_frsize,
            blocks: found.f_blocks,
            blocks_free: found.f_bfree,
            blocks_available: found.f_bavail,
            files: found.f_files,
            files_free: found.f_ffree,
            name_max: found.f_namemax,
            id: found.f_fsid,
        }))
    }

    fn getxattr(&mut self, ino: Ino, name: &[u8], len: u32, out: &mut Vec<u8>) -> Result<Reply> {
        let path = self.path(ino)?;
        if len == 0 {
            let size = rustix::fs::getxattr_query(path, name).map_err(errno)?;
            return size_reply(size);
        }
        out.resize(len as usize, 0);
        let got = rustix::fs::getxattr(path, name, out.as_mut_slice()).map_err(errno)?;
        data_reply(out, got)
    }

    fn listxattr(&mut self, ino: Ino, len: u32, out: &mut Vec<u8>) -> Result<Reply> {
        let path = self.path(ino)?;
        if len == 0 {
            let size = rustix::fs::listxattr_query(path).map_err(errno)?;
            return size_reply(size);
        }
        out.resize(len as usize, 0);
        let got = rustix::fs::listxattr(path, out.as_mut_slice()).map_err(errno)?;
        data_reply(out, got)
    }
}

fn size_reply(size: usize) -> Result<Reply> {
    u32::try_from(size).map(Reply::Size).map_err(|_| Errno::EOVERFLOW)
}

/// Cuts `out` to what was read and says so.
pub(super) fn data_reply(out: &mut Vec<u8>, len: usize) -> Result<Reply> {
    out.truncate(len);
    u32::try_from(len).map(Reply::Data).map_err(|_| Errno::EOVERFLOW)
}
