//! Streams of libc. They read and write their descriptors without asking anybody, so one on the
//! volume either has the mount's descriptor, or is a stream of our own making (`fopencookie`).

use std::ffi::{c_char, c_int, c_uint, c_void};
use std::sync::atomic::{AtomicPtr, Ordering};

use outboard_client::{Errno, Result};

use super::export::{Next, Route, given, path as bytes, returned, room, stand_in};
use super::{guard, signals, slots};
use crate::calls::{files, open};
use crate::shadow;

type Stream = *mut libc::FILE;

/// What a stream of our own does (`cookie_io_functions_t`).
#[repr(C)]
struct Functions {
    read: unsafe extern "C" fn(*mut c_void, *mut c_char, usize) -> isize,
    write: unsafe extern "C" fn(*mut c_void, *const c_char, usize) -> isize,
    seek: unsafe extern "C" fn(*mut c_void, *mut i64, c_int) -> c_int,
    close: unsafe extern "C" fn(*mut c_void) -> c_int,
}

unsafe extern "C" {
    fn fopencookie(cookie: *mut c_void, mode: *const c_char, does: Functions) -> Stream;
    static mut stdin: Stream;
    static mut stdout: Stream;
    static mut stderr: Stream;
}

/// A descriptor as a cookie.
fn number(cookie: *mut c_void) -> c_int {
    c_int::try_from(cookie.addr()).unwrap_or(-1)
}

/// An answer for libc's streams: a failure sets errno.
fn to_libc<T: super::export::Returned>(act: impl FnOnce() -> Route<T>) -> T {
    let Some(inside) = guard::enter() else {
        return returned(Err(Errno::EBUSY));
    };
    let route = act();
    drop(inside);
    match route {
        Route::Ours(answer) => returned(answer),
        _ => returned(Err(Errno::EBADF)),
    }
}

unsafe extern "C" fn cookie_read(cookie: *mut c_void, to: *mut c_char, len: usize) -> isize {
    // SAFETY: libc gives its buffer and the buffer's length.
    to_libc(|| files::read(number(cookie), unsafe { room(to.cast(), len) }))
}

unsafe extern "C" fn cookie_write(cookie: *mut c_void, from: *const c_char, len: usize) -> isize {
    // SAFETY: as above. A write that fails says 0, as libc wants it.
    to_libc(|| files::write(number(cookie), unsafe { given(from.cast(), len) })).max(0)
}

unsafe extern "C" fn cookie_seek(cookie: *mut c_void, at: *mut i64, whence: c_int) -> c_int {
    // SAFETY: libc gives a place to read and write.
    let by = unsafe { at.read() };
    let to = to_libc(|| files::lseek(number(cookie), by, whence));
    if to < 0 {
        return -1;
    }
    // SAFETY: as above.
    unsafe { at.write(to) };
    0
}

unsafe extern "C" fn cookie_close(cookie: *mut c_void) -> c_int {
    let fd = number(cookie);
    if let Some(_inside) = guard::enter() {
        open::closing(fd);
        signals::close(fd);
    }
    0
}

/// Where glibc keeps a stream's descriptor number, in words of an `int`.
const FILENO_AT: usize = 28;

/// A stream of our own over a descriptor of the volume.
///
/// # Safety
/// `mode` is a C string.
unsafe fn stream(fd: c_int, mode: *const c_char) -> Result<Stream> {
    let does = Functions {
        read: cookie_read,
        write: cookie_write,
        seek: cookie_seek,
        close: cookie_close,
    };
    let cookie = std::ptr::without_provenance_mut(usize::try_from(fd).map_err(|_| Errno::EBADF)?);
    // SAFETY: as the caller promises; the functions take such a cookie.
    let stream = unsafe { fopencookie(cookie, mode, does) };
    if stream.is_null() {
        return Err(Errno::ENOMEM);
    }
    // SAFETY: the stream is glibc's, whose public header tells this layout. `fileno` is told by it.
    unsafe { stream.cast::<c_int>().add(FILENO_AT).write(fd) };
    Ok(stream)
}

/// What a mode of `fopen(3)` opens.
fn flags(mode: &[u8]) -> Result<c_int> {
    let both = mode.contains(&b'+');
    let access = |only| if both { libc::O_RDWR } else { only };
    let mut flags = match mode.first() {
        Some(b'r') => access(libc::O_RDONLY),
        Some(b'w') => access(libc::O_WRONLY) | libc::O_CREAT | libc::O_TRUNC,
        Some(b'a') => access(libc::O_WRONLY) | libc::O_CREAT | libc::O_APPEND,
        _ => return Err(Errno::EINVAL),
    };
    for (letter, flag) in [(b'x', libc::O_EXCL), (b'e', libc::O_CLOEXEC)] {
        if mode.contains(&letter) {
            flags |= flag;
        }
    }
    Ok(flags)
}

/// Opens a path as a stream.
///
/// # Safety
/// Both are C strings.
unsafe fn open_stream(path: *const c_char, mode: *const c_char) -> Route<Stream> {
    // SAFETY: as the caller promises.
    let (path, letters) = unsafe { (bytes(path), bytes(mode)) };
    let Ok(flags) = flags(letters) else { return Route::Kernel };
    open::openat(libc::AT_FDCWD, path, flags, 0o666).then(|fd| {
        // SAFETY: as the caller promises.
        let opened = unsafe { over(fd, mode) };
        if opened.is_err() {
            open::closing(fd);
            signals::close(fd);
        }
        opened
    })
}

/// A stream over a descriptor of the volume: libc's own if the mount's descriptor can take its
/// place.
///
/// # Safety
/// `mode` is a C string.
unsafe fn over(fd: c_int, mode: *const c_char) -> Result<Stream> {
    let description = slots::get(fd).ok_or(Errno::EBADF)?;
    if !shadow::become_real(&description) {
        // SAFETY: as the caller promises.
        return unsafe { stream(fd, mode) };
    }
    // SAFETY: as the caller promises; this thread is inside, so libc serves it.
    let stream = unsafe { libc::fdopen(fd, mode) };
    if stream.is_null() {
        return Err(Errno::from_raw(guard::errno().unsigned_abs()));
    }
    Ok(stream)
}

stand_in! {
    fn fopen(path: *const c_char, mode: *const c_char) -> Stream {
        open_stream(path, mode); else |go, p| go(p, mode)
    }
    fn fopen64(path: *const c_char, mode: *const c_char) -> Stream {
        open_stream(path, mode); else |go, p| go(p, mode)
    }
    fn fdopen(fd: c_int, mode: *const c_char) -> Stream {
        if slots::get(fd).is_some() { Route::Ours(over(fd, mode)) } else { Route::Kernel }
    }
    fn freopen(path: *const c_char, mode: *const c_char, stream: Stream) -> Stream {
        reopened(stream)
    }
    fn freopen64(path: *const c_char, mode: *const c_char, stream: Stream) -> Stream {
        reopened(stream)
    }
    fn fclose(stream: Stream) -> c_int {
        { closing(stream); Route::Kernel }
    }
}

/// libc closes the stream's descriptor by itself, after writing what it holds.
fn closing(stream: Stream) {
    if stream.is_null() {
        return;
    }
    // SAFETY: the program closes a stream that is open.
    let fd = unsafe { libc::fileno(stream) };
    if slots::get(fd).is_some_and(|description| description.is_real()) {
        // SAFETY: as above.
        unsafe { libc::fflush(stream) };
        open::closing(fd);
    }
}

fn reopened(stream: Stream) -> Route<Stream> {
    closing(stream);
    Route::Kernel
}

/// The standard streams as libc made them.
static MADE: [AtomicPtr<libc::FILE>; 3] = [const { AtomicPtr::new(std::ptr::null_mut()) }; 3];

/// Descriptor `fd`, 0 to 2, stands for something else now. If that is a placeholder, libc's own
/// stream cannot reach the file: ours takes its place. Nothing is written out here: what a stream
/// holds may be a copy that a fork made.
pub(crate) fn standard(fd: c_int, on_volume: bool) {
    let Some(made) = usize::try_from(fd).ok().and_then(|fd| MADE.get(fd)) else { return };
    // SAFETY: libc's variables, which a program may set; `fd` is 0, 1 or 2. A stream that is
    // replaced is kept, since somebody may still use it.
    unsafe {
        let (place, mode) = match fd {
            0 => (&raw mut stdin, c"r"),
            1 => (&raw mut stdout, c"w"),
            _ => (&raw mut stderr, c"w"),
        };
        if on_volume {
            let Ok(new) = stream(fd, mode.as_ptr()) else { return };
            if fd == 2 {
                libc::setvbuf(new, std::ptr::null_mut(), libc::_IONBF, 0);
            }
            if made.load(Ordering::Relaxed).is_null() {
                made.store(place.read(), Ordering::Relaxed);
            }
            place.write(new);
        } else {
            let old = made.swap(std::ptr::null_mut(), Ordering::Relaxed);
            if !old.is_null() {
                place.write(old);
            }
        }
    }
}

/// Writes out what streams hold, while there is an attachment to write it through.
pub(super) fn flush() {
    if slots::all().is_empty() {
        return;
    }
    // SAFETY: null means all of them.
    unsafe { libc::fflush(std::ptr::null_mut()) };
}

/// `closefrom(3)`, which returns nothing.
///
/// # Safety
/// As its man page says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn closefrom(first: c_int) {
    let first = c_uint::try_from(first.max(0)).unwrap_or(0);
    // SAFETY: as the caller promises.
    unsafe { super::open::close_range(first, c_uint::MAX, 0) };
}
