//! Reading, writing, and what else is done to an open file.

use std::ffi::{c_int, c_long, c_uint, c_void};

use outboard_client::Errno;

use super::export::{Next, Route, given, returned, room, stand_in};
use super::guard;
use crate::calls::files;

stand_in! {
    fn read(fd: c_int, to: *mut c_void, len: usize) -> isize {
        files::read(fd, room(to, len))
    }
    fn __read_chk(fd: c_int, to: *mut c_void, len: usize, most: usize) -> isize {
        files::read(fd, room(to, len.min(most)))
    }
    fn write(fd: c_int, from: *const c_void, len: usize) -> isize {
        files::write(fd, given(from, len))
    }
    fn pread(fd: c_int, to: *mut c_void, len: usize, at: i64) -> isize {
        files::pread(fd, room(to, len), at)
    }
    fn pread64(fd: c_int, to: *mut c_void, len: usize, at: i64) -> isize {
        files::pread(fd, room(to, len), at)
    }
    fn __pread_chk(fd: c_int, to: *mut c_void, len: usize, at: i64, most: usize) -> isize {
        files::pread(fd, room(to, len.min(most)), at)
    }
    fn __pread64_chk(fd: c_int, to: *mut c_void, len: usize, at: i64, most: usize) -> isize {
        files::pread(fd, room(to, len.min(most)), at)
    }
    fn pwrite(fd: c_int, from: *const c_void, len: usize, at: i64) -> isize {
        files::pwrite(fd, given(from, len), at)
    }
    fn pwrite64(fd: c_int, from: *const c_void, len: usize, at: i64) -> isize {
        files::pwrite(fd, given(from, len), at)
    }
    fn readv(fd: c_int, parts: *const libc::iovec, count: c_int) -> isize {
        scattered(fd, parts, count, None)
    }
    fn preadv(fd: c_int, parts: *const libc::iovec, count: c_int, at: i64) -> isize {
        scattered(fd, parts, count, Some(at))
    }
    fn preadv64(fd: c_int, parts: *const libc::iovec, count: c_int, at: i64) -> isize {
        scattered(fd, parts, count, Some(at))
    }
    fn preadv2(
        fd: c_int, parts: *const libc::iovec, count: c_int, at: i64, _flags: c_int,
    ) -> isize {
        scattered(fd, parts, count, (at != -1).then_some(at))
    }
    fn preadv64v2(
        fd: c_int, parts: *const libc::iovec, count: c_int, at: i64, _flags: c_int,
    ) -> isize {
        scattered(fd, parts, count, (at != -1).then_some(at))
    }
    fn writev(fd: c_int, parts: *const libc::iovec, count: c_int) -> isize {
        gathered(fd, parts, count, None)
    }
    fn pwritev(fd: c_int, parts: *const libc::iovec, count: c_int, at: i64) -> isize {
        gathered(fd, parts, count, Some(at))
    }
    fn pwritev64(fd: c_int, parts: *const libc::iovec, count: c_int, at: i64) -> isize {
        gathered(fd, parts, count, Some(at))
    }
    fn pwritev2(
        fd: c_int, parts: *const libc::iovec, count: c_int, at: i64, flags: c_int,
    ) -> isize {
        with_flags(fd, parts, count, at, flags)
    }
    fn pwritev64v2(
        fd: c_int, parts: *const libc::iovec, count: c_int, at: i64, flags: c_int,
    ) -> isize {
        with_flags(fd, parts, count, at, flags)
    }
    fn lseek(fd: c_int, by: i64, whence: c_int) -> i64 {
        files::lseek(fd, by, whence)
    }
    fn lseek64(fd: c_int, by: i64, whence: c_int) -> i64 {
        files::lseek(fd, by, whence)
    }
    fn fsync(fd: c_int) -> c_int {
        files::sync(fd, false)
    }
    fn fdatasync(fd: c_int) -> c_int {
        files::sync(fd, true)
    }
    fn syncfs(fd: c_int) -> c_int {
        crate::calls::aim::open(fd, |attached, _| attached.volume.sync().map(|()| 0))
    }
    fn sync_file_range(fd: c_int, _at: i64, _len: i64, _flags: c_uint) -> c_int {
        files::sync(fd, true)
    }
    fn ftruncate(fd: c_int, size: i64) -> c_int {
        files::truncate(fd, size)
    }
    fn ftruncate64(fd: c_int, size: i64) -> c_int {
        files::truncate(fd, size)
    }
    fn fallocate(fd: c_int, mode: c_int, at: i64, len: i64) -> c_int {
        files::allocate(fd, mode, at, len)
    }
    fn fallocate64(fd: c_int, mode: c_int, at: i64, len: i64) -> c_int {
        files::allocate(fd, mode, at, len)
    }
    fn posix_fallocate(fd: c_int, at: i64, len: i64) -> c_int {
        number(files::allocate(fd, 0, at, len))
    }
    fn posix_fallocate64(fd: c_int, at: i64, len: i64) -> c_int {
        number(files::allocate(fd, 0, at, len))
    }
    fn posix_fadvise(fd: c_int, _at: i64, _len: i64, _advice: c_int) -> c_int {
        advised(fd)
    }
    fn posix_fadvise64(fd: c_int, _at: i64, _len: i64, _advice: c_int) -> c_int {
        advised(fd)
    }
    fn readahead(fd: c_int, _at: i64, _len: usize) -> isize {
        crate::calls::aim::open(fd, |_, _| Ok(0))
    }
    fn copy_file_range(
        from: c_int, from_at: *mut i64, to: c_int, to_at: *mut i64, len: usize, _flags: c_uint,
    ) -> isize {
        files::copy((from, from_at.as_mut()), (to, to_at.as_mut()), len)
    }
    fn sendfile(to: c_int, from: c_int, _at: *mut i64, _len: usize) -> isize {
        files::move_bytes([to, from])
    }
    fn sendfile64(to: c_int, from: c_int, _at: *mut i64, _len: usize) -> isize {
        files::move_bytes([to, from])
    }
    fn splice(
        from: c_int, _from_at: *mut i64, to: c_int, _to_at: *mut i64, _len: usize, _flags: c_uint,
    ) -> isize {
        files::move_bytes([to, from])
    }
    fn io_submit(context: *mut c_void, count: c_long, blocks: *mut *mut IoBlock) -> c_int {
        { announced(count, blocks); Route::Kernel }
    }
    fn mmap(
        at: *mut c_void, len: usize, protection: c_int, flags: c_int, fd: c_int, from: i64,
    ) -> *mut c_void {
        mapping(fd, flags)
    }
    fn mmap64(
        at: *mut c_void, len: usize, protection: c_int, flags: c_int, fd: c_int, from: i64,
    ) -> *mut c_void {
        mapping(fd, flags)
    }
}

/// The beginning of a control block of libaio.
#[repr(C)]
pub struct IoBlock {
    data: *mut c_void,
    key: u32,
    flags: u32,
    opcode: i16,
    priority: i16,
    fd: c_int,
}

/// The kernel works on these files by itself.
///
/// # Safety
/// As `io_submit(2)` has it.
unsafe fn announced(count: c_long, blocks: *mut *mut IoBlock) {
    for at in 0..usize::try_from(count).unwrap_or(0) {
        // SAFETY: as the caller promises.
        if let Some(block) = unsafe { blocks.add(at).read().as_ref() } {
            files::left_to_kernel(block.fd);
        }
    }
}

fn mapping(fd: c_int, flags: c_int) -> Route<*mut c_void> {
    if flags & libc::MAP_ANONYMOUS != 0 {
        return Route::Kernel;
    }
    match files::mapping(fd) {
        Route::Ours(Err(errno)) => {
            // `MAP_FAILED` is not null.
            guard::fail_with(errno.raw().into());
            Route::Ours(Ok(libc::MAP_FAILED))
        }
        route => route,
    }
}

/// Calls that return their error instead of setting errno.
fn number(route: Route<c_int>) -> Route<c_int> {
    match route {
        Route::Ours(Err(errno)) => Route::Ours(Ok(errno.raw().into())),
        route => route,
    }
}

/// Advice about the kernel's cache, which holds nothing of this.
fn advised(fd: c_int) -> Route<c_int> {
    crate::calls::aim::open(fd, |_, _| Ok(0))
}

/// The parts of a scattered read or a gathered write.
///
/// # Safety
/// As `readv(2)` has it.
unsafe fn parts<'a>(parts: *const libc::iovec, count: c_int) -> Result<&'a [libc::iovec], Errno> {
    let count = usize::try_from(count).ok().filter(|count| *count <= 1024).ok_or(Errno::EINVAL)?;
    if count == 0 || parts.is_null() {
        return Ok(&[]);
    }
    // SAFETY: as the caller promises.
    Ok(unsafe { std::slice::from_raw_parts(parts, count) })
}

/// # Safety
/// As `preadv(2)` has it.
unsafe fn scattered(
    fd: c_int,
    list: *const libc::iovec,
    count: c_int,
    at: Option<i64>,
) -> Route<isize> {
    if super::slots::get(fd).is_none() {
        return Route::Kernel;
    }
    // SAFETY: as the caller promises.
    let list = match unsafe { parts(list, count) } {
        Ok(list) => list,
        Err(errno) => return Route::Ours(Err(errno)),
    };
    let mut done = 0isize;
    for part in list.iter().filter(|part| part.iov_len > 0) {
        // SAFETY: as the caller promises.
        let to = unsafe { room(part.iov_base, part.iov_len) };
        let read = match at {
            Some(at) => files::pread(fd, to, at.saturating_add(done as i64)),
            None => files::read(fd, to),
        };
        match read {
            Route::Ours(Ok(len)) => {
                done += len;
                if len.unsigned_abs() < part.iov_len {
                    break;
                }
            }
            Route::Ours(Err(_)) if done > 0 => break,
            other => return other,
        }
    }
    Route::Ours(Ok(done))
}

/// # Safety
/// As `pwritev(2)` has it.
unsafe fn gathered(
    fd: c_int,
    list: *const libc::iovec,
    count: c_int,
    at: Option<i64>,
) -> Route<isize> {
    if super::slots::get(fd).is_none() {
        return Route::Kernel;
    }
    // SAFETY: as the caller promises.
    let list = match unsafe { parts(list, count) } {
        Ok(list) => list,
        Err(errno) => return Route::Ours(Err(errno)),
    };
    // One write, so that an append is whole.
    let whole = list.iter().try_fold(0usize, |len, part| len.checked_add(part.iov_len));
    let Some(whole) = whole.filter(|len| isize::try_from(*len).is_ok()) else {
        return Route::Ours(Err(Errno::EINVAL));
    };
    let mut bytes = Vec::new();
    if bytes.try_reserve_exact(whole).is_err() {
        return Route::Ours(Err(Errno::ENOMEM));
    }
    for part in list {
        // SAFETY: as the caller promises.
        bytes.extend_from_slice(unsafe { given(part.iov_base, part.iov_len) });
    }
    match at {
        Some(at) => files::pwrite(fd, &bytes, at),
        None => files::write(fd, &bytes),
    }
}

/// # Safety
/// As `pwritev2(2)` has it.
unsafe fn with_flags(
    fd: c_int,
    list: *const libc::iovec,
    count: c_int,
    at: i64,
    flags: c_int,
) -> Route<isize> {
    // SAFETY: as the caller promises.
    let written = unsafe { gathered(fd, list, count, (at != -1).then_some(at)) };
    written.then(|len| {
        if flags & (libc::RWF_DSYNC | libc::RWF_SYNC) != 0
            && let Route::Ours(synced) = files::sync(fd, false)
        {
            synced?;
        }
        Ok(len)
    })
}
