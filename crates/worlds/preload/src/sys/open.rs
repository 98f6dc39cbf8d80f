//! `open` and its like, `close`, `dup`, `fcntl`.

use std::ffi::{c_char, c_int, c_uint};

use outboard_client::Errno;

use super::export::{Next, Route, path as bytes, returned, room, stand_in};
use super::guard;
use crate::calls::{files, locks, names, open};

const CWD: c_int = libc::AT_FDCWD;
const CREATE: c_int = libc::O_CREAT | libc::O_WRONLY | libc::O_TRUNC;

stand_in! {
    fn open(path: *const c_char, flags: c_int, mode: c_uint) -> c_int {
        open::openat(CWD, bytes(path), flags, mode); else |go, p| go(p, flags, mode)
    }
    fn open64(path: *const c_char, flags: c_int, mode: c_uint) -> c_int {
        open::openat(CWD, bytes(path), flags, mode); else |go, p| go(p, flags, mode)
    }
    fn __open_2(path: *const c_char, flags: c_int) -> c_int {
        open::openat(CWD, bytes(path), flags, 0); else |go, p| go(p, flags)
    }
    fn __open64_2(path: *const c_char, flags: c_int) -> c_int {
        open::openat(CWD, bytes(path), flags, 0); else |go, p| go(p, flags)
    }
    fn openat(dir: c_int, path: *const c_char, flags: c_int, mode: c_uint) -> c_int {
        open::openat(dir, bytes(path), flags, mode); else |go, p| go(CWD, p, flags, mode)
    }
    fn openat64(dir: c_int, path: *const c_char, flags: c_int, mode: c_uint) -> c_int {
        open::openat(dir, bytes(path), flags, mode); else |go, p| go(CWD, p, flags, mode)
    }
    fn __openat_2(dir: c_int, path: *const c_char, flags: c_int) -> c_int {
        open::openat(dir, bytes(path), flags, 0); else |go, p| go(CWD, p, flags)
    }
    fn __openat64_2(dir: c_int, path: *const c_char, flags: c_int) -> c_int {
        open::openat(dir, bytes(path), flags, 0); else |go, p| go(CWD, p, flags)
    }
    fn creat(path: *const c_char, mode: c_uint) -> c_int {
        open::openat(CWD, bytes(path), CREATE, mode); else |go, p| go(p, mode)
    }
    fn creat64(path: *const c_char, mode: c_uint) -> c_int {
        open::openat(CWD, bytes(path), CREATE, mode); else |go, p| go(p, mode)
    }
    fn close(fd: c_int) -> c_int {
        if open::is_guarded(fd) {
            Route::Ours(Err(Errno::EBADF))
        } else {
            open::close(fd)
        }
    }
    fn close_range(first: c_uint, last: c_uint, flags: c_int) -> c_int {
        open::close_range(first, last, flags)
    }
    fn dup(old: c_int) -> c_int {
        use next; copied(old, next(old))
    }
    fn dup2(old: c_int, new: c_int) -> c_int {
        use next; if open::is_guarded(new) { guarded() } else { copied(old, next(old, new)) }
    }
    fn dup3(old: c_int, new: c_int, flags: c_int) -> c_int {
        use next; if open::is_guarded(new) { guarded() } else { copied(old, next(old, new, flags)) }
    }
    fn fcntl(fd: c_int, command: c_int, argument: usize) -> c_int {
        use next; control(fd, command, argument, |argument| next(fd, command, argument))
    }
    fn fcntl64(fd: c_int, command: c_int, argument: usize) -> c_int {
        use next; control(fd, command, argument, |argument| next(fd, command, argument))
    }
    fn flock(fd: c_int, operation: c_int) -> c_int {
        locks::flock(fd, operation)
    }
    fn lockf(fd: c_int, command: c_int, len: i64) -> c_int {
        lockf_asked(fd, command, len)
    }
    fn lockf64(fd: c_int, command: c_int, len: i64) -> c_int {
        lockf_asked(fd, command, len)
    }
}

stand_in! {
    fn mkstemp(template: *mut c_char) -> c_int {
        temporary_file(template, 0, 0)
    }
    fn mkstemp64(template: *mut c_char) -> c_int {
        temporary_file(template, 0, 0)
    }
    fn mkostemp(template: *mut c_char, flags: c_int) -> c_int {
        temporary_file(template, 0, flags)
    }
    fn mkostemp64(template: *mut c_char, flags: c_int) -> c_int {
        temporary_file(template, 0, flags)
    }
    fn mkstemps(template: *mut c_char, suffix: c_int) -> c_int {
        temporary_file(template, suffix, 0)
    }
    fn mkostemps(template: *mut c_char, suffix: c_int, flags: c_int) -> c_int {
        temporary_file(template, suffix, flags)
    }
    fn mkdtemp(template: *mut c_char) -> *mut c_char {
        open::temporary(letters(template), 0, |path| names::mkdir(CWD, path, 0o700))
            .then(|_| Ok(template))
    }
}

/// The bytes of a template, to be written.
///
/// # Safety
/// `template` is null or a C string that may be written.
unsafe fn letters<'a>(template: *mut c_char) -> &'a mut [u8] {
    // SAFETY: as the caller promises; the terminator is not part of it.
    unsafe { room(template.cast(), bytes(template).len()) }
}

/// # Safety
/// As for [`letters`].
unsafe fn temporary_file(template: *mut c_char, suffix: c_int, flags: c_int) -> Route<c_int> {
    let Ok(suffix) = usize::try_from(suffix) else { return Route::Ours(Err(Errno::EINVAL)) };
    let flags = (flags & !libc::O_ACCMODE) | libc::O_RDWR | libc::O_CREAT | libc::O_EXCL;
    // SAFETY: as the caller promises.
    let template = unsafe { letters(template) };
    open::temporary(template, suffix, |path| open::openat(CWD, path, flags, 0o600))
}

fn guarded() -> Route<c_int> {
    Route::Ours(Err(Errno::EBADF))
}

/// libc's answer, taken over with its errno.
fn taken_over(answer: c_int) -> Route<c_int> {
    if answer >= 0 {
        return Route::Ours(Ok(answer));
    }
    Route::Ours(Err(Errno::from_raw(guard::errno().unsigned_abs())))
}

fn copied(old: c_int, new: c_int) -> Route<c_int> {
    if new >= 0 {
        open::duplicated(old, new);
    }
    taken_over(new)
}

/// `fcntl(2)`: copies of descriptors, status flags and locks are this library's business.
///
/// # Safety
/// `argument` is what `command` takes.
unsafe fn control(
    fd: c_int,
    command: c_int,
    argument: usize,
    next: impl FnOnce(usize) -> c_int,
) -> Route<c_int> {
    match command {
        libc::F_DUPFD | libc::F_DUPFD_CLOEXEC => copied(fd, next(argument)),
        libc::F_GETFL => files::status(fd),
        libc::F_SETFL => match c_int::try_from(argument & 0xffff_ffff) {
            Ok(flags) => files::set_status(fd, flags),
            Err(_) => Route::Ours(Err(Errno::EINVAL)),
        },
        libc::F_SETLK | libc::F_SETLKW | libc::F_GETLK => {
            let lock = std::ptr::with_exposed_provenance_mut::<libc::flock>(argument);
            // SAFETY: as the caller promises, null is the one exception made here.
            match unsafe { lock.as_mut() } {
                Some(lock) => lock_control(fd, command, lock),
                None => Route::Kernel,
            }
        }
        libc::F_OFD_SETLK | libc::F_OFD_SETLKW | libc::F_OFD_GETLK => locks::of_description(fd),
        _ => Route::Kernel,
    }
}

fn lock_control(fd: c_int, command: c_int, lock: &mut libc::flock) -> Route<c_int> {
    let asked = locks::Asked {
        kind: lock.l_type.into(),
        whence: lock.l_whence.into(),
        start: lock.l_start,
        len: lock.l_len,
    };
    if command != libc::F_GETLK {
        return locks::set(fd, &asked, command == libc::F_SETLKW);
    }
    locks::test(fd, &asked).then(|found| {
        lock.l_type = libc::c_short::try_from(libc::F_UNLCK).unwrap_or_default();
        if let Some((kind, start, len, pid)) = found {
            lock.l_type = libc::c_short::try_from(kind).unwrap_or_default();
            lock.l_whence = 0;
            (lock.l_start, lock.l_len, lock.l_pid) = (start, len, pid);
        }
        Ok(0)
    })
}

fn lockf_asked(fd: c_int, command: c_int, len: i64) -> Route<c_int> {
    let asked = |kind: c_int| locks::Asked { kind, whence: libc::SEEK_CUR, start: 0, len };
    match command {
        libc::F_ULOCK => locks::set(fd, &asked(libc::F_UNLCK), false),
        libc::F_LOCK => locks::set(fd, &asked(libc::F_WRLCK), true),
        libc::F_TLOCK => locks::set(fd, &asked(libc::F_WRLCK), false),
        libc::F_TEST => locks::test(fd, &asked(libc::F_WRLCK))
            .then(|found| if found.is_some() { Err(Errno::EACCES) } else { Ok(0) }),
        _ => Route::Kernel,
    }
}
