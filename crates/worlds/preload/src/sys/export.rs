//! How a function of libc is stood in for.

use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::sync::atomic::{AtomicPtr, Ordering};

use outboard_client::{Errno, Result};

use super::guard;

/// Where a call goes.
pub(crate) enum Route<T> {
    /// To libc, as it came.
    Kernel,
    /// To libc, with this path: a symbolic link or `..` led out of the volume.
    Elsewhere(CString),
    /// It was answered here.
    Ours(Result<T>),
}

impl<T> Route<T> {
    /// The same with another answer.
    pub(crate) fn then<U>(self, act: impl FnOnce(T) -> Result<U>) -> Route<U> {
        match self {
            Route::Kernel => Route::Kernel,
            Route::Elsewhere(path) => Route::Elsewhere(path),
            Route::Ours(answer) => Route::Ours(answer.and_then(act)),
        }
    }
}

impl<T> Route<T> {
    /// Goes on where an answer leads.
    pub(crate) fn then_route<U>(self, act: impl FnOnce(T) -> Route<U>) -> Route<U> {
        match self {
            Route::Kernel => Route::Kernel,
            Route::Elsewhere(path) => Route::Elsewhere(path),
            Route::Ours(Ok(answer)) => act(answer),
            Route::Ours(Err(errno)) => Route::Ours(Err(errno)),
        }
    }
}

/// What a function of libc returns.
pub(crate) trait Returned {
    /// What it says when errno says why.
    const FAILED: Self;
}

impl Returned for c_int {
    const FAILED: c_int = -1;
}

impl Returned for u32 {
    const FAILED: u32 = u32::MAX;
}

impl Returned for i64 {
    const FAILED: i64 = -1;
}

impl Returned for isize {
    const FAILED: isize = -1;
}

impl<T> Returned for *mut T {
    const FAILED: *mut T = std::ptr::null_mut();
}

/// The answer as libc would give it; sets errno.
pub(crate) fn returned<T: Returned>(answer: Result<T>) -> T {
    answer.unwrap_or_else(|errno| {
        guard::set_errno(i32::from(errno.raw()));
        T::FAILED
    })
}

/// A function of libc, found when first needed.
pub(crate) struct Next {
    name: &'static CStr,
    found: AtomicPtr<c_void>,
}

impl Next {
    pub(crate) const fn new(name: &'static str) -> Next {
        let name = match CStr::from_bytes_with_nul(name.as_bytes()) {
            Ok(name) => name,
            Err(_) => c"",
        };
        Next { name, found: AtomicPtr::new(std::ptr::null_mut()) }
    }

    /// Its address. A libc that has no such function ends the process: somebody called it.
    pub(crate) fn get(&self) -> *mut c_void {
        let found = self.found.load(Ordering::Acquire);
        if !found.is_null() {
            return found;
        }
        // SAFETY: the name is a C string; RTLD_NEXT looks behind this library.
        let found = unsafe { libc::dlsym(libc::RTLD_NEXT, self.name.as_ptr()) };
        if found.is_null() {
            crate::say(&format!("libc has no {}", self.name.to_string_lossy()));
            std::process::abort();
        }
        self.found.store(found, Ordering::Release);
        found
    }
}

/// Most bytes Linux moves in one call. It also keeps lengths that cannot be true from becoming
/// slices.
const MOST: usize = 0x7fff_f000;

/// The bytes of a path.
///
/// # Safety
/// `path` is null or a C string that outlives the call.
pub(crate) unsafe fn path<'a>(path: *const c_char) -> &'a [u8] {
    if path.is_null() {
        return &[];
    }
    // SAFETY: as the caller promises.
    unsafe { CStr::from_ptr(path) }.to_bytes()
}

/// Memory the caller of a libc function lends for bytes; empty where that is null.
///
/// # Safety
/// `at` is null or `len` bytes are writable there, by nobody else meanwhile.
pub(crate) unsafe fn room<'a>(at: *mut c_void, len: usize) -> &'a mut [u8] {
    if at.is_null() {
        return &mut [];
    }
    // SAFETY: as the caller promises; bytes of any value are valid.
    unsafe { std::slice::from_raw_parts_mut(at.cast(), len.min(MOST)) }
}

/// Bytes the caller of a libc function hands in.
///
/// # Safety
/// `at` is null or `len` bytes are readable there.
pub(crate) unsafe fn given<'a>(at: *const c_void, len: usize) -> &'a [u8] {
    if at.is_null() {
        return &[];
    }
    // SAFETY: as the caller promises.
    unsafe { std::slice::from_raw_parts(at.cast(), len.min(MOST)) }
}

/// Copies bytes to where a C program wants them, no more than there is room for; how many.
pub(crate) fn copy_out(bytes: &[u8], room: &mut [u8]) -> usize {
    let len = bytes.len().min(room.len());
    if let (Some(to), Some(from)) = (room.get_mut(..len), bytes.get(..len)) {
        to.copy_from_slice(from);
    }
    len
}

/// Says that something is not offered.
pub(crate) fn refuse<T>(what: &str, errno: Errno) -> Result<T> {
    crate::say_once(what);
    Err(errno)
}

/// Exports a function in libc's place. The body gives a [`Route`]; `else` is what goes to libc when
/// a path led out of the volume. Inside, calls of this thread go to libc.
macro_rules! stand_in {
    ($(fn $name:ident($($arg:ident: $kind:ty),* $(,)?) -> $ret:ty {
        $(use $next:ident;)? $body:expr $(; else |$go:ident, $path:ident| $call:expr)?
    })*) => {$(
        #[doc = concat!("`", stringify!($name), "` of libc, for what lies on the volume.")]
        ///
        /// # Safety
        /// As its man page says.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name($($arg: $kind),*) -> $ret {
            static NEXT: Next = Next::new(concat!(stringify!($name), "\0"));
            // SAFETY: libc's function of this name has this signature (for one that takes `...`,
            // its one further argument travels like a named one); pointers are used as its man
            // page allows, for as long as the call lasts.
            unsafe {
                let next: unsafe extern "C" fn($($kind),*) -> $ret =
                    std::mem::transmute(NEXT.get());
                let Some(inside) = guard::enter() else { return next($($arg),*) };
                $(let $next = next;)?
                let route: Route<$ret> = $body;
                match route {
                    Route::Kernel => {
                        drop(inside);
                        next($($arg),*)
                    }
                    $(Route::Elsewhere(to) => {
                        drop(inside);
                        let ($go, $path) = (next, to.as_ptr());
                        $call
                    })?
                    #[allow(unreachable_patterns, reason = "for calls without a path")]
                    Route::Elsewhere(_) => {
                        drop(inside);
                        returned(Err(Errno::EXDEV))
                    }
                    Route::Ours(answer) => {
                        drop(inside);
                        returned(answer)
                    }
                }
            }
        }
    )*};
}
pub(crate) use stand_in;
