//! `fork`, `exec`, and ends of processes.

use std::cell::Cell;
use std::ffi::{c_char, c_int, c_void};

use super::export::{Next, Route, returned, stand_in};
use super::guard;
use crate::{attach, config, shadow};
use outboard_client::Errno;

/// This process is about to become another program: descriptors it passes on become the mount's,
/// and the attachment ends in order, since nobody would use it any more.
fn leaving() {
    shadow::all_become_real();
    attach::detach();
}

/// Another process is about to get copies of this one's descriptors.
fn sharing() {
    shadow::all_become_real();
}

type Arguments = *const *const c_char;

stand_in! {
    fn execve(path: *const c_char, arguments: Arguments, environment: Arguments) -> c_int {
        { leaving(); Route::Kernel }
    }
    fn execv(path: *const c_char, arguments: Arguments) -> c_int {
        { leaving(); Route::Kernel }
    }
    fn execvp(path: *const c_char, arguments: Arguments) -> c_int {
        { leaving(); Route::Kernel }
    }
    fn execvpe(path: *const c_char, arguments: Arguments, environment: Arguments) -> c_int {
        { leaving(); Route::Kernel }
    }
    fn fexecve(fd: c_int, arguments: Arguments, environment: Arguments) -> c_int {
        { leaving(); Route::Kernel }
    }
    fn posix_spawn(
        pid: *mut c_int, path: *const c_char, actions: *const c_void, attributes: *const c_void,
        arguments: Arguments, environment: Arguments,
    ) -> c_int {
        { sharing(); Route::Kernel }
    }
    fn posix_spawnp(
        pid: *mut c_int, path: *const c_char, actions: *const c_void, attributes: *const c_void,
        arguments: Arguments, environment: Arguments,
    ) -> c_int {
        { sharing(); Route::Kernel }
    }
}

/// `vfork(2)` as `fork(2)`: a child that borrows its parent's memory must not touch what this
/// library keeps there, and would.
#[unsafe(no_mangle)]
pub extern "C" fn vfork() -> c_int {
    // SAFETY: `fork` takes nothing.
    unsafe { libc::fork() }
}

macro_rules! ends {
    ($($name:ident)*) => {$(
        #[doc = concat!("`", stringify!($name), "` of libc; the attachment ends in order first.")]
        #[unsafe(no_mangle)]
        pub extern "C" fn $name(code: c_int) -> ! {
            if let Some(_inside) = guard::enter() {
                attach::detach();
            }
            loop {
                // SAFETY: ends the process.
                unsafe { libc::syscall(libc::SYS_exit_group, code) };
            }
        }
    )*};
}

ends! { _exit _Exit }

thread_local! {
    /// This thread forks, and [`before`] took the locks.
    static FORKING: Cell<bool> = const { Cell::new(false) };
}

/// Before a fork. Until it is over this thread's calls go to libc: one by a signal handler, or by
/// what others have done before a fork, would wait for the locks for ever.
extern "C" fn before() {
    let Some(inside) = guard::enter() else { return };
    let errno = guard::errno();
    sharing();
    attach::ATTACHING.hold();
    attach::CURRENT.hold();
    FORKING.set(true);
    guard::stay(inside);
    guard::set_errno(errno);
}

/// After it, in the parent.
extern "C" fn parent() {
    if !FORKING.replace(false) {
        return;
    }
    // SAFETY: `before` took both, on this thread.
    unsafe {
        attach::CURRENT.free();
        attach::ATTACHING.free();
    }
    guard::leave();
}

/// After it, in the child.
extern "C" fn child() {
    if !FORKING.replace(false) {
        return;
    }
    let errno = guard::errno();
    // SAFETY: `before` took the first two, and the child's only thread is this one.
    unsafe {
        attach::CURRENT.free();
        attach::ATTACHING.free();
        super::slots::free();
    }
    attach::abandon();
    guard::leave();
    guard::set_errno(errno);
}

/// Has forks announced.
pub(super) fn watch_forks() {
    // SAFETY: the three are functions of this library, which is never unloaded.
    if unsafe { libc::pthread_atfork(Some(before), Some(parent), Some(child)) } != 0 {
        crate::say("forks cannot be watched; a forked process must not use the volume");
    }
}

/// The process ends.
pub(super) extern "C" fn ending() {
    if config::get().is_none() {
        return;
    }
    super::stdio::flush();
    if let Some(_inside) = guard::enter() {
        attach::detach();
    }
}
