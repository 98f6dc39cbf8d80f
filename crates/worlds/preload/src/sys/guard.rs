//! Whose call it is: the program's, or one this library makes itself.

use std::cell::Cell;
use std::sync::atomic::{AtomicBool, Ordering};

static ACTIVE: AtomicBool = AtomicBool::new(false);

thread_local! {
    static INSIDE: Cell<bool> = const { Cell::new(false) };
    /// What errno is to be after the call; 0: what it was before.
    static FAILURE: Cell<i32> = const { Cell::new(0) };
}

/// From here on the calls of this thread are the library's own. A call that comes while there is
/// one (the library's, or a signal handler's that interrupted it) goes to libc.
pub(crate) struct Inside {
    errno: i32,
}

/// Enters, unless the library is inactive or entered already.
pub(crate) fn enter() -> Option<Inside> {
    if !ACTIVE.load(Ordering::Relaxed) || INSIDE.replace(true) {
        return None;
    }
    Some(Inside { errno: errno() })
}

impl Drop for Inside {
    fn drop(&mut self) {
        INSIDE.set(false);
        set_errno(match FAILURE.replace(0) {
            0 => self.errno,
            failure => failure,
        });
    }
}

/// The calls of this thread stay the library's own until [`leave`].
pub(crate) fn stay(inside: Inside) {
    std::mem::forget(inside);
}

/// The calls of this thread are the program's again.
pub(crate) fn leave() {
    INSIDE.set(false);
}

/// The errno of a call that fails though it returns a value.
pub(crate) fn fail_with(errno: i32) {
    FAILURE.set(errno);
}

/// Every call of this thread is the library's own, for ever.
pub(crate) fn mine() {
    INSIDE.set(true);
}

/// The library takes part from now on.
pub(crate) fn activate() {
    ACTIVE.store(true, Ordering::Release);
}

pub(crate) fn errno() -> i32 {
    // SAFETY: libc gives each thread a valid place for its errno.
    unsafe { *libc::__errno_location() }
}

pub(crate) fn set_errno(errno: i32) {
    // SAFETY: as above.
    unsafe { *libc::__errno_location() = errno }
}
