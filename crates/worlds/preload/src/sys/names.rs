//! Calls about names: `stat`, `mkdir`, `rename`, permissions, times, extended attributes.

use std::ffi::{c_char, c_int, c_uint, c_void};

use outboard_client::{Attr, Errno, Result, Statfs};
use outboard_wire::fuse::translate::node_of;

use super::export::{Next, Route, copy_out, given, path as bytes, returned, room, stand_in};
use super::guard;
use crate::calls::names::{self, Holder};
use crate::config;

const CWD: c_int = libc::AT_FDCWD;
const NOFOLLOW: c_int = libc::AT_SYMLINK_NOFOLLOW;
const EMPTY: c_int = libc::AT_EMPTY_PATH;
/// What `statfs` calls the file system: what the mount calls it.
const FUSE_MAGIC: libc::c_long = 0x6573_5546;
/// The device number of a volume that is not mounted.
const UNMOUNTED: u64 = 0x6f62;

fn device() -> u64 {
    config::get().and_then(config::Config::device).unwrap_or(UNMOUNTED)
}

fn rdev(attr: &Attr) -> u64 {
    let device = attr.rdev;
    let (major, minor) = ((device & 0xf_ff00) >> 8, (device & 0xff) | ((device >> 12) & 0xf_ff00));
    rustix::fs::makedev(major, minor)
}

/// Attributes as `stat(2)` tells them.
///
/// # Safety
/// `to` is writable or null.
pub(super) unsafe fn put_stat(attr: &Attr, to: *mut libc::stat) -> Result<c_int> {
    // SAFETY: as the caller promises.
    let to = unsafe { to.as_mut() }.ok_or_else(|| Errno::from_raw(libc::EFAULT.unsigned_abs()))?;
    // SAFETY: every field is a number.
    *to = unsafe { std::mem::zeroed() };
    to.st_dev = device();
    to.st_ino = node_of(attr.ino);
    to.st_mode = attr.mode;
    to.st_nlink = attr.nlink.into();
    (to.st_uid, to.st_gid) = (attr.uid, attr.gid);
    to.st_rdev = rdev(attr);
    to.st_size = attr.size.cast_signed();
    to.st_blksize = attr.blksize.into();
    to.st_blocks = attr.blocks.cast_signed();
    (to.st_atime, to.st_atime_nsec) = (attr.atime.sec, attr.atime.nsec.into());
    (to.st_mtime, to.st_mtime_nsec) = (attr.mtime.sec, attr.mtime.nsec.into());
    (to.st_ctime, to.st_ctime_nsec) = (attr.ctime.sec, attr.ctime.nsec.into());
    Ok(0)
}

/// # Safety
/// `to` is writable or null.
unsafe fn stat_to(route: Route<Attr>, to: *mut c_void) -> Route<c_int> {
    // `struct stat` and `struct stat64` are one on 64-bit machines.
    // SAFETY: as the caller promises.
    route.then(|attr| unsafe { put_stat(&attr, to.cast()) })
}

/// # Safety
/// `to` is writable or null.
unsafe fn statx_to(route: Route<Attr>, to: *mut libc::statx) -> Route<c_int> {
    route.then(|attr| {
        // SAFETY: as the caller promises.
        let to = unsafe { to.as_mut() };
        let to = to.ok_or_else(|| Errno::from_raw(libc::EFAULT.unsigned_abs()))?;
        // SAFETY: every field is a number.
        *to = unsafe { std::mem::zeroed() };
        let time = |at: outboard_client::Timestamp| {
            // SAFETY: every field is a number.
            let mut stamp: libc::statx_timestamp = unsafe { std::mem::zeroed() };
            (stamp.tv_sec, stamp.tv_nsec) = (at.sec, at.nsec);
            stamp
        };
        to.stx_mask = libc::STATX_BASIC_STATS | libc::STATX_BTIME;
        to.stx_blksize = attr.blksize;
        to.stx_nlink = attr.nlink;
        (to.stx_uid, to.stx_gid) = (attr.uid, attr.gid);
        to.stx_mode = u16::try_from(attr.mode).map_err(|_| Errno::EPROTO)?;
        to.stx_ino = node_of(attr.ino);
        to.stx_size = attr.size;
        to.stx_blocks = attr.blocks;
        (to.stx_atime, to.stx_btime) = (time(attr.atime), time(attr.crtime));
        (to.stx_ctime, to.stx_mtime) = (time(attr.ctime), time(attr.mtime));
        let (dev, rdev) = (device(), rdev(&attr));
        (to.stx_rdev_major, to.stx_rdev_minor) = (rustix::fs::major(rdev), rustix::fs::minor(rdev));
        (to.stx_dev_major, to.stx_dev_minor) = (rustix::fs::major(dev), rustix::fs::minor(dev));
        Ok(0)
    })
}

stand_in! {
    fn stat(path: *const c_char, to: *mut c_void) -> c_int {
        stat_to(names::stat(CWD, bytes(path), 0), to); else |go, p| go(p, to)
    }
    fn stat64(path: *const c_char, to: *mut c_void) -> c_int {
        stat_to(names::stat(CWD, bytes(path), 0), to); else |go, p| go(p, to)
    }
    fn lstat(path: *const c_char, to: *mut c_void) -> c_int {
        stat_to(names::stat(CWD, bytes(path), NOFOLLOW), to); else |go, p| go(p, to)
    }
    fn lstat64(path: *const c_char, to: *mut c_void) -> c_int {
        stat_to(names::stat(CWD, bytes(path), NOFOLLOW), to); else |go, p| go(p, to)
    }
    fn fstat(fd: c_int, to: *mut c_void) -> c_int {
        stat_to(names::stat(fd, b"", EMPTY), to)
    }
    fn fstat64(fd: c_int, to: *mut c_void) -> c_int {
        stat_to(names::stat(fd, b"", EMPTY), to)
    }
    fn fstatat(dir: c_int, path: *const c_char, to: *mut c_void, flags: c_int) -> c_int {
        stat_to(names::stat(dir, bytes(path), flags), to); else |go, p| go(CWD, p, to, flags)
    }
    fn fstatat64(dir: c_int, path: *const c_char, to: *mut c_void, flags: c_int) -> c_int {
        stat_to(names::stat(dir, bytes(path), flags), to); else |go, p| go(CWD, p, to, flags)
    }
    fn __xstat(version: c_int, path: *const c_char, to: *mut c_void) -> c_int {
        stat_to(names::stat(CWD, bytes(path), 0), to); else |go, p| go(version, p, to)
    }
    fn __xstat64(version: c_int, path: *const c_char, to: *mut c_void) -> c_int {
        stat_to(names::stat(CWD, bytes(path), 0), to); else |go, p| go(version, p, to)
    }
    fn __lxstat(version: c_int, path: *const c_char, to: *mut c_void) -> c_int {
        stat_to(names::stat(CWD, bytes(path), NOFOLLOW), to); else |go, p| go(version, p, to)
    }
    fn __lxstat64(version: c_int, path: *const c_char, to: *mut c_void) -> c_int {
        stat_to(names::stat(CWD, bytes(path), NOFOLLOW), to); else |go, p| go(version, p, to)
    }
    fn __fxstat(version: c_int, fd: c_int, to: *mut c_void) -> c_int {
        stat_to(names::stat(fd, b"", EMPTY), to)
    }
    fn __fxstat64(version: c_int, fd: c_int, to: *mut c_void) -> c_int {
        stat_to(names::stat(fd, b"", EMPTY), to)
    }
    fn __fxstatat(
        version: c_int, dir: c_int, path: *const c_char, to: *mut c_void, flags: c_int,
    ) -> c_int {
        stat_to(names::stat(dir, bytes(path), flags), to);
        else |go, p| go(version, CWD, p, to, flags)
    }
    fn __fxstatat64(
        version: c_int, dir: c_int, path: *const c_char, to: *mut c_void, flags: c_int,
    ) -> c_int {
        stat_to(names::stat(dir, bytes(path), flags), to);
        else |go, p| go(version, CWD, p, to, flags)
    }
    fn statx(
        dir: c_int, path: *const c_char, flags: c_int, mask: c_uint, to: *mut libc::statx,
    ) -> c_int {
        statx_to(names::stat(dir, bytes(path), flags), to);
        else |go, p| go(CWD, p, flags, mask, to)
    }
    fn access(path: *const c_char, mask: c_int) -> c_int {
        names::access(CWD, bytes(path), mask, 0); else |go, p| go(p, mask)
    }
    fn eaccess(path: *const c_char, mask: c_int) -> c_int {
        names::access(CWD, bytes(path), mask, 0); else |go, p| go(p, mask)
    }
    fn euidaccess(path: *const c_char, mask: c_int) -> c_int {
        names::access(CWD, bytes(path), mask, 0); else |go, p| go(p, mask)
    }
    fn faccessat(dir: c_int, path: *const c_char, mask: c_int, flags: c_int) -> c_int {
        names::access(dir, bytes(path), mask, flags); else |go, p| go(CWD, p, mask, flags)
    }
    fn mkdir(path: *const c_char, mode: c_uint) -> c_int {
        names::mkdir(CWD, bytes(path), mode); else |go, p| go(p, mode)
    }
    fn mkdirat(dir: c_int, path: *const c_char, mode: c_uint) -> c_int {
        names::mkdir(dir, bytes(path), mode); else |go, p| go(CWD, p, mode)
    }
    fn mknod(path: *const c_char, mode: c_uint, device: u64) -> c_int {
        names::mknod(CWD, bytes(path), mode, device); else |go, p| go(p, mode, device)
    }
    fn mknodat(dir: c_int, path: *const c_char, mode: c_uint, device: u64) -> c_int {
        names::mknod(dir, bytes(path), mode, device); else |go, p| go(CWD, p, mode, device)
    }
    fn mkfifo(path: *const c_char, mode: c_uint) -> c_int {
        names::mknod(CWD, bytes(path), mode | libc::S_IFIFO, 0); else |go, p| go(p, mode)
    }
    fn mkfifoat(dir: c_int, path: *const c_char, mode: c_uint) -> c_int {
        names::mknod(dir, bytes(path), mode | libc::S_IFIFO, 0); else |go, p| go(CWD, p, mode)
    }
    fn unlink(path: *const c_char) -> c_int {
        names::unlink(CWD, bytes(path), 0); else |go, p| go(p)
    }
    fn unlinkat(dir: c_int, path: *const c_char, flags: c_int) -> c_int {
        names::unlink(dir, bytes(path), flags); else |go, p| go(CWD, p, flags)
    }
    fn rmdir(path: *const c_char) -> c_int {
        names::unlink(CWD, bytes(path), libc::AT_REMOVEDIR); else |go, p| go(p)
    }
    fn remove(path: *const c_char) -> c_int {
        names::remove(bytes(path)); else |go, p| go(p)
    }
    fn rename(from: *const c_char, to: *const c_char) -> c_int {
        names::rename((CWD, bytes(from)), (CWD, bytes(to)), 0)
    }
    fn renameat(
        from_dir: c_int, from: *const c_char, to_dir: c_int, to: *const c_char,
    ) -> c_int {
        names::rename((from_dir, bytes(from)), (to_dir, bytes(to)), 0)
    }
    fn renameat2(
        from_dir: c_int, from: *const c_char, to_dir: c_int, to: *const c_char, flags: c_uint,
    ) -> c_int {
        names::rename((from_dir, bytes(from)), (to_dir, bytes(to)), flags)
    }
    fn link(from: *const c_char, to: *const c_char) -> c_int {
        names::link((CWD, bytes(from)), (CWD, bytes(to)), 0)
    }
    fn linkat(
        from_dir: c_int, from: *const c_char, to_dir: c_int, to: *const c_char, flags: c_int,
    ) -> c_int {
        names::link((from_dir, bytes(from)), (to_dir, bytes(to)), flags)
    }
    fn symlink(target: *const c_char, path: *const c_char) -> c_int {
        names::symlink(bytes(target), CWD, bytes(path)); else |go, p| go(target, p)
    }
    fn symlinkat(target: *const c_char, dir: c_int, path: *const c_char) -> c_int {
        names::symlink(bytes(target), dir, bytes(path)); else |go, p| go(target, CWD, p)
    }
    fn readlink(path: *const c_char, to: *mut c_char, len: usize) -> isize {
        link_to(names::readlink(CWD, bytes(path)), room(to.cast(), len));
        else |go, p| go(p, to, len)
    }
    fn readlinkat(dir: c_int, path: *const c_char, to: *mut c_char, len: usize) -> isize {
        link_to(names::readlink(dir, bytes(path)), room(to.cast(), len));
        else |go, p| go(CWD, p, to, len)
    }
    fn __readlink_chk(path: *const c_char, to: *mut c_char, len: usize, most: usize) -> isize {
        link_to(names::readlink(CWD, bytes(path)), room(to.cast(), len.min(most)));
        else |go, p| go(p, to, len, most)
    }
    fn __readlinkat_chk(
        dir: c_int, path: *const c_char, to: *mut c_char, len: usize, most: usize,
    ) -> isize {
        link_to(names::readlink(dir, bytes(path)), room(to.cast(), len.min(most)));
        else |go, p| go(CWD, p, to, len, most)
    }
    fn truncate(path: *const c_char, size: i64) -> c_int {
        names::truncate(bytes(path), size); else |go, p| go(p, size)
    }
    fn truncate64(path: *const c_char, size: i64) -> c_int {
        names::truncate(bytes(path), size); else |go, p| go(p, size)
    }
    fn chmod(path: *const c_char, mode: c_uint) -> c_int {
        names::set(CWD, bytes(path), 0, &names::mode(mode)); else |go, p| go(p, mode)
    }
    fn lchmod(path: *const c_char, mode: c_uint) -> c_int {
        names::set(CWD, bytes(path), NOFOLLOW, &names::mode(mode)); else |go, p| go(p, mode)
    }
    fn fchmod(fd: c_int, mode: c_uint) -> c_int {
        names::set(fd, b"", EMPTY, &names::mode(mode))
    }
    fn fchmodat(dir: c_int, path: *const c_char, mode: c_uint, flags: c_int) -> c_int {
        names::set(dir, bytes(path), flags, &names::mode(mode));
        else |go, p| go(CWD, p, mode, flags)
    }
    fn chown(path: *const c_char, uid: c_uint, gid: c_uint) -> c_int {
        names::set(CWD, bytes(path), 0, &names::owner(uid, gid)); else |go, p| go(p, uid, gid)
    }
    fn lchown(path: *const c_char, uid: c_uint, gid: c_uint) -> c_int {
        names::set(CWD, bytes(path), NOFOLLOW, &names::owner(uid, gid));
        else |go, p| go(p, uid, gid)
    }
    fn fchown(fd: c_int, uid: c_uint, gid: c_uint) -> c_int {
        names::set(fd, b"", EMPTY, &names::owner(uid, gid))
    }
    fn fchownat(
        dir: c_int, path: *const c_char, uid: c_uint, gid: c_uint, flags: c_int,
    ) -> c_int {
        names::set(dir, bytes(path), flags, &names::owner(uid, gid));
        else |go, p| go(CWD, p, uid, gid, flags)
    }
    fn utimensat(
        dir: c_int, path: *const c_char, times: *const libc::timespec, flags: c_int,
    ) -> c_int {
        if path.is_null() {
            set_times(dir, b"", EMPTY, nanos(times))
        } else {
            set_times(dir, bytes(path), flags, nanos(times))
        };
        else |go, p| go(CWD, p, times, flags)
    }
    fn futimens(fd: c_int, times: *const libc::timespec) -> c_int {
        set_times(fd, b"", EMPTY, nanos(times))
    }
    fn utimes(path: *const c_char, times: *const libc::timeval) -> c_int {
        set_times(CWD, bytes(path), 0, micros(times)); else |go, p| go(p, times)
    }
    fn lutimes(path: *const c_char, times: *const libc::timeval) -> c_int {
        set_times(CWD, bytes(path), NOFOLLOW, micros(times)); else |go, p| go(p, times)
    }
    fn futimes(fd: c_int, times: *const libc::timeval) -> c_int {
        set_times(fd, b"", EMPTY, micros(times))
    }
    fn futimesat(dir: c_int, path: *const c_char, times: *const libc::timeval) -> c_int {
        set_times(dir, bytes(path), 0, micros(times)); else |go, p| go(CWD, p, times)
    }
    fn utime(path: *const c_char, times: *const libc::utimbuf) -> c_int {
        set_times(CWD, bytes(path), 0, seconds(times)); else |go, p| go(p, times)
    }
    fn statfs(path: *const c_char, to: *mut libc::statfs) -> c_int {
        statfs_to(names::statfs(bytes(path)), to); else |go, p| go(p, to)
    }
    fn statfs64(path: *const c_char, to: *mut libc::statfs) -> c_int {
        statfs_to(names::statfs(bytes(path)), to); else |go, p| go(p, to)
    }
    fn fstatfs(fd: c_int, to: *mut libc::statfs) -> c_int {
        statfs_to(names::fstatfs(fd), to)
    }
    fn fstatfs64(fd: c_int, to: *mut libc::statfs) -> c_int {
        statfs_to(names::fstatfs(fd), to)
    }
    fn statvfs(path: *const c_char, to: *mut libc::statvfs) -> c_int {
        statvfs_to(names::statfs(bytes(path)), to); else |go, p| go(p, to)
    }
    fn statvfs64(path: *const c_char, to: *mut libc::statvfs) -> c_int {
        statvfs_to(names::statfs(bytes(path)), to); else |go, p| go(p, to)
    }
    fn fstatvfs(fd: c_int, to: *mut libc::statvfs) -> c_int {
        statvfs_to(names::fstatfs(fd), to)
    }
    fn fstatvfs64(fd: c_int, to: *mut libc::statvfs) -> c_int {
        statvfs_to(names::fstatfs(fd), to)
    }
    fn getxattr(path: *const c_char, name: *const c_char, to: *mut c_void, len: usize) -> isize {
        get(&Holder::Path(bytes(path), true), bytes(name), room(to, len), len);
        else |go, p| go(p, name, to, len)
    }
    fn lgetxattr(path: *const c_char, name: *const c_char, to: *mut c_void, len: usize) -> isize {
        get(&Holder::Path(bytes(path), false), bytes(name), room(to, len), len);
        else |go, p| go(p, name, to, len)
    }
    fn fgetxattr(fd: c_int, name: *const c_char, to: *mut c_void, len: usize) -> isize {
        get(&Holder::Fd(fd), bytes(name), room(to, len), len)
    }
    fn setxattr(
        path: *const c_char, name: *const c_char, from: *const c_void, len: usize, flags: c_int,
    ) -> c_int {
        set(&Holder::Path(bytes(path), true), bytes(name), given(from, len), flags);
        else |go, p| go(p, name, from, len, flags)
    }
    fn lsetxattr(
        path: *const c_char, name: *const c_char, from: *const c_void, len: usize, flags: c_int,
    ) -> c_int {
        set(&Holder::Path(bytes(path), false), bytes(name), given(from, len), flags);
        else |go, p| go(p, name, from, len, flags)
    }
    fn fsetxattr(
        fd: c_int, name: *const c_char, from: *const c_void, len: usize, flags: c_int,
    ) -> c_int {
        set(&Holder::Fd(fd), bytes(name), given(from, len), flags)
    }
    fn listxattr(path: *const c_char, to: *mut c_char, len: usize) -> isize {
        list(&Holder::Path(bytes(path), true), room(to.cast(), len), len);
        else |go, p| go(p, to, len)
    }
    fn llistxattr(path: *const c_char, to: *mut c_char, len: usize) -> isize {
        list(&Holder::Path(bytes(path), false), room(to.cast(), len), len);
        else |go, p| go(p, to, len)
    }
    fn flistxattr(fd: c_int, to: *mut c_char, len: usize) -> isize {
        list(&Holder::Fd(fd), room(to.cast(), len), len)
    }
    fn removexattr(path: *const c_char, name: *const c_char) -> c_int {
        unset(&Holder::Path(bytes(path), true), bytes(name)); else |go, p| go(p, name)
    }
    fn lremovexattr(path: *const c_char, name: *const c_char) -> c_int {
        unset(&Holder::Path(bytes(path), false), bytes(name)); else |go, p| go(p, name)
    }
    fn fremovexattr(fd: c_int, name: *const c_char) -> c_int {
        unset(&Holder::Fd(fd), bytes(name))
    }
    fn umask(mask: c_uint) -> c_uint {
        { config::set_umask(mask); Route::Kernel }
    }
}

fn link_to(route: Route<Vec<u8>>, to: &mut [u8]) -> Route<isize> {
    route.then(|target| {
        if to.is_empty() {
            return Err(Errno::EINVAL);
        }
        isize::try_from(copy_out(&target, to)).map_err(|_| Errno::EINVAL)
    })
}

type Times = Option<[(i64, i64); 2]>;

fn set_times(dir: c_int, path: &[u8], flags: c_int, times: Times) -> Route<c_int> {
    match names::times(times) {
        Ok(set) => names::set(dir, path, flags, &set),
        // The kernel says the same of what is not the volume's.
        Err(_) => Route::Kernel,
    }
}

/// # Safety
/// Null, or two of them are readable.
unsafe fn pair<T: Copy>(times: *const T) -> Option<[T; 2]> {
    // SAFETY: as the caller promises.
    (!times.is_null()).then(|| unsafe { [times.read(), times.add(1).read()] })
}

/// # Safety
/// As for [`pair`].
unsafe fn nanos(times: *const libc::timespec) -> Times {
    // SAFETY: as the caller promises.
    unsafe { pair(times) }.map(|pair| pair.map(|time| (time.tv_sec, time.tv_nsec)))
}

/// # Safety
/// As for [`pair`].
unsafe fn micros(times: *const libc::timeval) -> Times {
    // SAFETY: as the caller promises.
    unsafe { pair(times) }.map(|pair| pair.map(|time| (time.tv_sec, time.tv_usec * 1000)))
}

/// # Safety
/// Null, or readable.
unsafe fn seconds(times: *const libc::utimbuf) -> Times {
    // SAFETY: as the caller promises.
    unsafe { times.as_ref() }.map(|times| [(times.actime, 0), (times.modtime, 0)])
}

/// # Safety
/// `to` is writable or null.
unsafe fn statfs_to(route: Route<Statfs>, to: *mut libc::statfs) -> Route<c_int> {
    route.then(|figures| {
        // SAFETY: as the caller promises.
        let to = unsafe { to.as_mut() };
        let to = to.ok_or_else(|| Errno::from_raw(libc::EFAULT.unsigned_abs()))?;
        // SAFETY: every field is a number.
        *to = unsafe { std::mem::zeroed() };
        to.f_type = FUSE_MAGIC;
        to.f_bsize = figures.block_size.cast_signed();
        to.f_frsize = to.f_bsize;
        (to.f_blocks, to.f_bfree) = (figures.blocks, figures.blocks_free);
        to.f_bavail = figures.blocks_available;
        (to.f_files, to.f_ffree) = (figures.files, figures.files_free);
        to.f_namelen = 255;
        Ok(0)
    })
}

/// # Safety
/// `to` is writable or null.
unsafe fn statvfs_to(route: Route<Statfs>, to: *mut libc::statvfs) -> Route<c_int> {
    route.then(|figures| {
        // SAFETY: as the caller promises.
        let to = unsafe { to.as_mut() };
        let to = to.ok_or_else(|| Errno::from_raw(libc::EFAULT.unsigned_abs()))?;
        // SAFETY: every field is a number.
        *to = unsafe { std::mem::zeroed() };
        (to.f_bsize, to.f_frsize) = (figures.block_size, figures.block_size);
        (to.f_blocks, to.f_bfree) = (figures.blocks, figures.blocks_free);
        to.f_bavail = figures.blocks_available;
        (to.f_files, to.f_ffree) = (figures.files, figures.files_free);
        to.f_favail = figures.files_free;
        to.f_namemax = 255;
        Ok(0)
    })
}

fn get(holder: &Holder<'_>, name: &[u8], to: &mut [u8], len: usize) -> Route<isize> {
    names::xattr(holder, |volume, ino| volume.xattr(ino, name, len))
        .then(|found| names::put(found, to))
}

fn list(holder: &Holder<'_>, to: &mut [u8], len: usize) -> Route<isize> {
    names::xattr(holder, |volume, ino| volume.xattr_names(ino, len))
        .then(|found| names::put(found, to))
}

fn set(holder: &Holder<'_>, name: &[u8], value: &[u8], flags: c_int) -> Route<c_int> {
    names::xattr(holder, |volume, ino| {
        let flags = u32::try_from(flags).map_err(|_| Errno::EINVAL)?;
        volume.set_xattr(ino, name, value, flags).map(|()| 0)
    })
}

fn unset(holder: &Holder<'_>, name: &[u8]) -> Route<c_int> {
    names::xattr(holder, |volume, ino| volume.remove_xattr(ino, name).map(|()| 0))
}
