//! Signals, and descriptors by number.

use std::mem::{ManuallyDrop, MaybeUninit};
use std::os::fd::{BorrowedFd, FromRawFd, OwnedFd};

/// Does something with every signal held back; threads begun meanwhile never take one.
pub(crate) fn blocked<R>(act: impl FnOnce() -> R) -> R {
    let mut all = MaybeUninit::<libc::sigset_t>::uninit();
    let mut before = MaybeUninit::<libc::sigset_t>::uninit();
    // SAFETY: both sets are places for a set; `sigfillset` fills the one that is read.
    unsafe {
        libc::sigfillset(all.as_mut_ptr());
        libc::pthread_sigmask(libc::SIG_BLOCK, all.as_ptr(), before.as_mut_ptr());
    }
    let done = act();
    // SAFETY: the set was written by the call above, which fails for bad arguments only.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, before.as_ptr(), std::ptr::null_mut()) };
    done
}

/// Closes a descriptor this library knows by number.
pub(crate) fn close(fd: i32) {
    // SAFETY: closing a number cannot break memory; the caller owns what it names. It is closed
    // also if the call fails.
    unsafe { libc::syscall(libc::SYS_close, fd) };
}

/// A descriptor the program handed in, for one system call.
pub(crate) fn borrowed(fd: i32) -> Option<BorrowedFd<'static>> {
    // SAFETY: -1 is the one value that must not be; a number that is not open makes the call fail.
    (fd >= 0).then(|| unsafe { BorrowedFd::borrow_raw(fd) })
}

/// Has what `from` names take the place of descriptor `number`.
pub(crate) fn replace(from: &OwnedFd, number: i32, flags: rustix::io::DupFlags) {
    // SAFETY: the number is the program's, which knows it for what it is now put in place of; it
    // is not closed here.
    let mut to = ManuallyDrop::new(unsafe { OwnedFd::from_raw_fd(number) });
    // A number that is not open any more needs nothing in its place.
    let _replaced = rustix::io::dup3(from, &mut to, flags);
}

/// Closes a range of descriptors.
pub(crate) fn close_range(first: u32, last: u32) {
    // SAFETY: the caller was asked by the program to close these.
    unsafe { libc::syscall(libc::SYS_close_range, first, last, 0) };
}

/// Sleeps; true if a signal handler ran meanwhile.
pub(crate) fn sleep(time: std::time::Duration) -> bool {
    let Ok(time) = rustix::time::Timespec::try_from(time) else { return false };
    matches!(
        rustix::thread::nanosleep(&time),
        rustix::thread::NanosleepRelativeResult::Interrupted(_)
    )
}

/// The umask. Only one thread may make files meanwhile.
pub(crate) fn umask() -> u32 {
    // SAFETY: `umask` cannot fail; what it changes is put back.
    unsafe {
        let umask = libc::umask(0);
        libc::umask(umask);
        umask
    }
}

/// Drops the process's POSIX locks on what is open at `fd`.
pub(crate) fn unlock(fd: i32) {
    // SAFETY: every field is a number; the call reads it.
    unsafe {
        let mut whole: libc::flock = std::mem::zeroed();
        whole.l_type = libc::c_short::try_from(libc::F_UNLCK).unwrap_or_default();
        libc::fcntl(fd, libc::F_SETLK, &raw const whole);
    }
}

/// Random bytes, or what was there if there are none to be had.
pub(crate) fn random(bytes: &mut [u8]) {
    // SAFETY: the buffer is as long as told.
    unsafe { libc::getrandom(bytes.as_mut_ptr().cast(), bytes.len(), 0) };
}
