//! What is done to names, and to what they lead to.

use outboard_client::{
    Attr, Errno, FileKind, Result, Setattr, SetattrTime, Spot, Statfs, Timestamp, Xattr,
};

use crate::attach::Volume;
use crate::calls::aim;
use crate::config;
use crate::sys::export::Route;

/// The attributes of what a path, or a descriptor, leads to. `flags` are those of `fstatat(2)`.
pub(crate) fn stat(dirfd: i32, path: &[u8], flags: i32) -> Route<Attr> {
    if path.is_empty() && flags & libc::AT_EMPTY_PATH != 0 {
        return aim::open(dirfd, |attached, ino| attached.volume.attr(ino));
    }
    let follow = flags & libc::AT_SYMLINK_NOFOLLOW == 0;
    aim::at(dirfd, path, follow, |attached, spot| attached.volume.attr_at(spot))
}

/// `mkdirat(2)`.
pub(crate) fn mkdir(dirfd: i32, path: &[u8], mode: u32) -> Route<i32> {
    aim::at(dirfd, path, false, |attached, spot| {
        attached.volume.mkdir_at(spot, mode & 0o7777, config::umask()).map(|()| 0)
    })
}

/// `mknodat(2)`.
pub(crate) fn mknod(dirfd: i32, path: &[u8], mode: u32, device: u64) -> Route<i32> {
    // A mode without a kind is a regular file's.
    let mode = if mode & libc::S_IFMT == 0 { mode | libc::S_IFREG } else { mode };
    let (major, minor) = (rustix::fs::major(device), rustix::fs::minor(device));
    let device = (minor & 0xff) | (major << 8) | ((minor & !0xff) << 12);
    aim::at(dirfd, path, false, |attached, spot| {
        attached.volume.mknod_at(spot, mode, config::umask(), device).map(|()| 0)
    })
}

/// `unlinkat(2)`.
pub(crate) fn unlink(dirfd: i32, path: &[u8], flags: i32) -> Route<i32> {
    let directory = flags & libc::AT_REMOVEDIR != 0;
    aim::at(dirfd, path, false, |attached, spot| {
        let volume = &attached.volume;
        if directory {
            volume.rmdir_at(spot)?
        } else {
            volume.unlink_at(spot)?
        };
        Ok(0)
    })
}

/// `remove(3)`.
pub(crate) fn remove(path: &[u8]) -> Route<i32> {
    aim::at(libc::AT_FDCWD, path, false, |attached, spot| {
        match attached.volume.unlink_at(spot) {
            Err(Errno::EISDIR) => attached.volume.rmdir_at(spot)?,
            removed => removed?,
        }
        Ok(0)
    })
}

/// `renameat2(2)`.
pub(crate) fn rename(from: (i32, &[u8]), to: (i32, &[u8]), flags: u32) -> Route<i32> {
    aim::at_both((from.0, from.1, false), to, |attached, from, to| {
        attached.volume.rename_at(from, to, flags).map(|()| 0)
    })
}

/// `linkat(2)`.
pub(crate) fn link(from: (i32, &[u8]), to: (i32, &[u8]), flags: i32) -> Route<i32> {
    if from.1.is_empty() && flags & libc::AT_EMPTY_PATH != 0 {
        return aim::open(from.0, |_, ino| Ok(ino)).then_route(|ino| {
            aim::at(to.0, to.1, false, |attached, to| attached.volume.link_at(ino, to).map(|()| 0))
        });
    }
    if let Some(fd) = of_descriptor(from.1) {
        return link((fd, b""), to, libc::AT_EMPTY_PATH);
    }
    let follow = flags & libc::AT_SYMLINK_FOLLOW != 0;
    aim::at_both((from.0, from.1, follow), to, |attached, from, to| {
        attached.volume.link_at(from.ino()?, to).map(|()| 0)
    })
}

/// The descriptor named by `/proc/self/fd/N`, if it is the volume's: how a file without a name is
/// given one.
fn of_descriptor(path: &[u8]) -> Option<i32> {
    let number = path.strip_prefix(b"/proc/self/fd/")?;
    let fd = std::str::from_utf8(number).ok()?.parse().ok()?;
    crate::sys::slots::get(fd).map(|_| fd)
}

/// `symlinkat(2)`.
pub(crate) fn symlink(target: &[u8], dirfd: i32, path: &[u8]) -> Route<i32> {
    aim::at(dirfd, path, false, |attached, spot| {
        attached.volume.symlink_at(target, spot).map(|()| 0)
    })
}

/// `readlinkat(2)`: the whole target.
pub(crate) fn readlink(dirfd: i32, path: &[u8]) -> Route<Vec<u8>> {
    aim::at(dirfd, path, false, |attached, spot| attached.volume.readlink_at(spot))
}

/// `faccessat(2)`. The effective user is meant in any case.
pub(crate) fn access(dirfd: i32, path: &[u8], mask: i32, flags: i32) -> Route<i32> {
    let Ok(mask) = u32::try_from(mask) else { return Route::Ours(Err(Errno::EINVAL)) };
    let follow = flags & libc::AT_SYMLINK_NOFOLLOW == 0;
    aim::at(dirfd, path, follow, |attached, spot| {
        attached.volume.access_at(spot, mask & 7).map(|()| 0)
    })
}

/// `truncate(2)`.
pub(crate) fn truncate(path: &[u8], size: i64) -> Route<i32> {
    aim::at(libc::AT_FDCWD, path, true, |attached, spot| {
        let size = u64::try_from(size).map_err(|_| Errno::EINVAL)?;
        attached.volume.truncate_at(spot, size).map(|()| 0)
    })
}

/// New attributes for what a path leads to, or what is open at `dirfd`.
pub(crate) fn set(dirfd: i32, path: &[u8], flags: i32, set: &Setattr) -> Route<i32> {
    let follow = flags & libc::AT_SYMLINK_NOFOLLOW == 0;
    let empty = flags & libc::AT_EMPTY_PATH != 0;
    aim::inode(dirfd, path, follow, empty, |attached, ino| {
        if set.mode.is_some() && !follow {
            // A link has no permissions to change.
            let kind = attached.volume.attr(ino)?.kind();
            if kind == Ok(FileKind::Symlink) {
                return Err(Errno::EOPNOTSUPP);
            }
        }
        attached.volume.set_attr(ino, set.clone()).map(|_| 0)
    })
}

/// New permissions.
pub(crate) fn mode(mode: u32) -> Setattr {
    Setattr { mode: Some(mode & 0o7777), ..Setattr::default() }
}

/// A new owner and group; -1 leaves one as it is.
pub(crate) fn owner(uid: u32, gid: u32) -> Setattr {
    let given = |id: u32| (id != u32::MAX).then_some(id);
    Setattr { uid: given(uid), gid: given(gid), ..Setattr::default() }
}

/// New times as seconds and nanoseconds, of access and of change; `None`: now.
pub(crate) fn times(given: Option<[(i64, i64); 2]>) -> Result<Setattr> {
    let time = |(sec, nsec): (i64, i64)| -> Result<Option<SetattrTime>> {
        Ok(match nsec {
            libc::UTIME_OMIT => None,
            libc::UTIME_NOW => Some(SetattrTime::Now),
            nsec => {
                let nsec = u32::try_from(nsec).map_err(|_| Errno::EINVAL)?;
                let at = Timestamp::new(sec, nsec).ok_or(Errno::EINVAL)?;
                Some(SetattrTime::At(at))
            }
        })
    };
    let (atime, mtime) = match given {
        None => (Some(SetattrTime::Now), Some(SetattrTime::Now)),
        Some([atime, mtime]) => (time(atime)?, time(mtime)?),
    };
    Ok(Setattr { atime, mtime, ..Setattr::default() })
}

/// Space and inodes of the volume a path leads to.
pub(crate) fn statfs(path: &[u8]) -> Route<Statfs> {
    aim::at(libc::AT_FDCWD, path, true, |attached, spot| {
        spot.ino()?;
        attached.volume.statfs()
    })
}

/// The same of what is open at `fd`.
pub(crate) fn fstatfs(fd: i32) -> Route<Statfs> {
    aim::open(fd, |attached, _| attached.volume.statfs())
}

/// What extended attribute calls work on.
pub(crate) enum Holder<'a> {
    /// What a path leads to; whether a link at its end is followed.
    Path(&'a [u8], bool),
    /// What is open.
    Fd(i32),
}

/// Does something with the attributes of a holder.
pub(crate) fn xattr<T>(
    holder: &Holder<'_>,
    act: impl Fn(&Volume, outboard_client::Ino) -> Result<T>,
) -> Route<T> {
    match *holder {
        Holder::Path(path, follow) => aim::at(libc::AT_FDCWD, path, follow, |attached, spot| {
            act(&attached.volume, spot.ino()?)
        }),
        Holder::Fd(fd) => aim::open(fd, |attached, ino| act(&attached.volume, ino)),
    }
}

/// An attribute's value, put where there is room for it; how long it is.
pub(crate) fn put(found: Xattr, room: &mut [u8]) -> Result<isize> {
    let len = match found {
        Xattr::Len(len) => len,
        Xattr::Value(value) => {
            if value.len() > room.len() {
                return Err(Errno::ERANGE);
            }
            crate::sys::export::copy_out(&value, room)
        }
    };
    isize::try_from(len).map_err(|_| Errno::E2BIG)
}

/// The path of what a path leads to, with no links in it.
pub(crate) fn real_path(path: &[u8]) -> Route<Vec<u8>> {
    aim::at(libc::AT_FDCWD, path, true, |_, spot: &Spot| {
        spot.ino()?;
        let config = config::get().ok_or(Errno::ENOENT)?;
        Ok(config.outward(&spot.path()))
    })
}
