//! What is done to an open file.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use outboard_client::{Errno, Result};
use rustix::fs::SeekFrom;

use crate::attach::File;
use crate::shadow::{self, errno};
use crate::sys::export::{Route, refuse};
use crate::sys::signals::borrowed;
use crate::sys::slots;
use crate::table::{Description, Kind};

/// Does something with the file open at `fd`.
fn with<T>(fd: i32, act: impl FnOnce(&Arc<Description>, &File) -> Result<T>) -> Route<T> {
    let Some(description) = slots::get(fd) else { return Route::Kernel };
    if shadow::is_mapped(&description) {
        return Route::Kernel;
    }
    match description.file() {
        Ok(file) => Route::Ours(act(&description, &file)),
        Err(Errno::EISDIR | Errno::EBADF) if description.kind != Kind::File => {
            let errno = if description.kind == Kind::Dir { Errno::EISDIR } else { Errno::EBADF };
            Route::Ours(Err(errno))
        }
        // Inherited, and not to be had for oneself: the mount still has it.
        Err(_) if description.is_real() => Route::Kernel,
        Err(errno) => Route::Ours(Err(errno)),
    }
}

/// A place in a file, or `EINVAL`.
fn place(offset: i64) -> Result<u64> {
    u64::try_from(offset).map_err(|_| Errno::EINVAL)
}

fn count(len: usize) -> Result<isize> {
    isize::try_from(len).map_err(|_| Errno::EINVAL)
}

/// The file offset.
fn offset(fd: i32) -> Result<u64> {
    let fd = borrowed(fd).ok_or(Errno::EBADF)?;
    rustix::fs::seek(fd, SeekFrom::Current(0)).map_err(errno)
}

fn set_offset(fd: i32, offset: u64) -> Result<u64> {
    let fd = borrowed(fd).ok_or(Errno::EBADF)?;
    rustix::fs::seek(fd, SeekFrom::Start(offset)).map_err(errno)
}

/// The file offset, put right after appending.
fn right_offset(fd: i32, description: &Description, file: &File) -> Result<u64> {
    if description.appended.swap(false, Ordering::AcqRel) {
        return set_offset(fd, file.attr()?.size);
    }
    offset(fd)
}

/// `pread(2)`.
pub(crate) fn pread(fd: i32, out: &mut [u8], offset: i64) -> Route<isize> {
    with(fd, |_, file| count(file.read_at(out, place(offset)?)?))
}

/// `pwrite(2)`; appends if the file was opened to append, as on Linux.
pub(crate) fn pwrite(fd: i32, bytes: &[u8], offset: i64) -> Route<isize> {
    with(fd, |_, file| count(file.write_at(bytes, place(offset)?)?))
}

/// `read(2)`.
pub(crate) fn read(fd: i32, out: &mut [u8]) -> Route<isize> {
    with(fd, |description, file| {
        description.place_lock.with(|()| {
            let from = right_offset(fd, description, file)?;
            let len = file.read_at(out, from)?;
            set_offset(fd, from + len as u64)?;
            count(len)
        })
    })
}

/// `write(2)`.
pub(crate) fn write(fd: i32, bytes: &[u8]) -> Route<isize> {
    with(fd, |description, file| {
        description.place_lock.with(|()| {
            let appends = description.flags() & libc::O_APPEND != 0;
            let from = if appends { 0 } else { right_offset(fd, description, file)? };
            let len = file.write_at(bytes, from)?;
            if appends {
                description.appended.store(true, Ordering::Release);
            } else {
                set_offset(fd, from + len as u64)?;
            }
            count(len)
        })
    })
}

/// `lseek(2)`.
pub(crate) fn lseek(fd: i32, by: i64, whence: i32) -> Route<i64> {
    let to = with(fd, |description, file| {
        let to = match whence {
            libc::SEEK_SET => by,
            libc::SEEK_CUR => {
                let at = right_offset(fd, description, file)?.cast_signed();
                at.checked_add(by).ok_or(Errno::EOVERFLOW)?
            }
            libc::SEEK_END => {
                let size = file.attr()?.size.cast_signed();
                size.checked_add(by).ok_or(Errno::EOVERFLOW)?
            }
            libc::SEEK_DATA | libc::SEEK_HOLE => {
                let from = u64::try_from(by).map_err(|_| Errno::ENXIO)?;
                file.seek(from, whence == libc::SEEK_HOLE)?.cast_signed()
            }
            _ => return Err(Errno::EINVAL),
        };
        description.appended.store(false, Ordering::Release);
        set_offset(fd, place(to)?).map(u64::cast_signed)
    });
    match to {
        // A directory's offset means something to `readdir` only, which keeps its own.
        Route::Ours(Err(Errno::EISDIR)) => Route::Kernel,
        to => to,
    }
}

/// `fsync(2)`, `fdatasync(2)`.
pub(crate) fn sync(fd: i32, data_only: bool) -> Route<i32> {
    let Some(description) = slots::get(fd) else { return Route::Kernel };
    if description.kind == Kind::Dir {
        return Route::Ours(description.dir().and_then(|dir| dir.sync()).map(|()| 0));
    }
    // What was written through a mapping is the kernel's to bring here first.
    with(fd, |_, file| file.sync(data_only).map(|()| 0))
}

/// `ftruncate(2)`.
pub(crate) fn truncate(fd: i32, size: i64) -> Route<i32> {
    let done = with(fd, |_, file| file.truncate(place(size)?).map(|()| 0));
    not_a_file(done, Errno::EINVAL)
}

/// `fallocate(2)`.
pub(crate) fn allocate(fd: i32, mode: i32, offset: i64, len: i64) -> Route<i32> {
    let done = with(fd, |_, file| {
        if len <= 0 {
            return Err(Errno::EINVAL);
        }
        let mode = u32::try_from(mode).map_err(|_| Errno::EOPNOTSUPP)?;
        file.allocate(mode, place(offset)?, place(len)?).map(|()| 0)
    });
    not_a_file(done, Errno::ENODEV)
}

fn not_a_file<T>(done: Route<T>, errno: Errno) -> Route<T> {
    match done {
        Route::Ours(Err(Errno::EISDIR)) => Route::Ours(Err(errno)),
        done => done,
    }
}

/// `copy_file_range(2)`. Between the volume and elsewhere the program must copy for itself.
pub(crate) fn copy(
    (from, from_at): (i32, Option<&mut i64>),
    (to, to_at): (i32, Option<&mut i64>),
    len: usize,
) -> Route<isize> {
    match (slots::get(from), slots::get(to)) {
        (None, None) => return Route::Kernel,
        (Some(_), Some(_)) => {}
        _ => return Route::Ours(Err(Errno::EXDEV)),
    }
    with(from, |_, source| {
        let copied = with(to, |_, target| {
            let place_of = |fd: i32, at: &Option<&mut i64>| match at {
                Some(at) => place(**at),
                None => offset(fd),
            };
            let (start, end) = (place_of(from, &from_at)?, place_of(to, &to_at)?);
            let copied = source.copy_to(start, target, end, len as u64)?;
            for (fd, at, begun) in [(from, from_at, start), (to, to_at, end)] {
                let now = begun + copied as u64;
                match at {
                    Some(at) => *at = now.cast_signed(),
                    None => drop(set_offset(fd, now)?),
                }
            }
            count(copied)
        });
        match copied {
            Route::Ours(copied) => copied,
            _ => Err(Errno::EXDEV),
        }
    })
}

/// Calls by which the kernel would move bytes between descriptors by itself: the program is to
/// read and write instead, as it must for a pipe or a socket.
pub(crate) fn move_bytes(fds: [i32; 2]) -> Route<isize> {
    if fds.into_iter().any(|fd| slots::get(fd).is_some()) {
        return Route::Ours(Err(Errno::EINVAL));
    }
    Route::Kernel
}

/// Before the kernel is asked to read or write at `fd` in a way that is not stood in for.
pub(crate) fn left_to_kernel(fd: i32) {
    if let Some(description) = slots::get(fd)
        && !shadow::become_real(&description)
    {
        crate::say_once("asynchronous reads and writes need the volume to be mounted");
    }
}

/// Before `mmap(2)`: the mount's descriptor takes the place, and has fresh bytes.
pub(crate) fn mapping(fd: i32) -> Route<*mut libc::c_void> {
    let Some(description) = slots::get(fd) else { return Route::Kernel };
    if !shadow::become_real(&description) {
        let what = "a file can be mapped only where the volume is mounted, while it has its name";
        return Route::Ours(refuse(what, Errno::ENODEV));
    }
    shadow::mapped(description.ino);
    if let Some(fd) = borrowed(fd) {
        shadow::refresh(fd);
    }
    Route::Kernel
}

/// `F_GETFL`.
pub(crate) fn status(fd: i32) -> Route<i32> {
    match slots::get(fd) {
        // What the kernel tells on this architecture for every file.
        Some(description) if description.kind == Kind::Path => Route::Ours(Ok(description.flags())),
        Some(description) => Route::Ours(Ok(description.flags() | O_LARGEFILE)),
        None => Route::Kernel,
    }
}

const O_LARGEFILE: i32 = 0o100_000;
/// What `F_SETFL` can change.
const CHANGEABLE: i32 = libc::O_APPEND | libc::O_NONBLOCK | libc::O_DIRECT | libc::O_NOATIME;

/// `F_SETFL`.
pub(crate) fn set_status(fd: i32, flags: i32) -> Route<i32> {
    let Some(description) = slots::get(fd) else { return Route::Kernel };
    let old = description.flags();
    let new = old & !CHANGEABLE | flags & CHANGEABLE;
    description.flags.store(new, Ordering::Relaxed);
    if (old ^ new) & libc::O_APPEND != 0 {
        // How it writes is said at open: it is opened anew.
        if let Err(errno) = description.open_anew() {
            description.flags.store(old, Ordering::Relaxed);
            return Route::Ours(Err(errno));
        }
    }
    if description.is_real() { Route::Kernel } else { Route::Ours(Ok(0)) }
}
