//! Memory that C lends, and what C's handles stand for.

use std::ffi::{CStr, c_char, c_int};
use std::sync::Arc;

use libc::iovec;
use outboard_base::{Errno, Result};
use outboard_dds::host;
use outboard_pageserver::host::Attachment;

/// The library behind a `dds_library`.
pub type Library = host::Library<Attachment, Lent>;

/// Pieces of one operation at most (`IOV_MAX`).
const PIECES_MAX: usize = 1024;

/// Memory C lends until an operation completes.
#[derive(Debug)]
pub struct Lent {
    at: *mut u8,
    len: usize,
}

// SAFETY: C lends it to the library, whose threads are all of the process; nobody else touches it
// meanwhile, as the header asks.
unsafe impl Send for Lent {}

impl AsMut<[u8]> for Lent {
    fn as_mut(&mut self) -> &mut [u8] {
        if self.len == 0 {
            return &mut [];
        }
        // SAFETY: not null (checked in `new`), lent for as long as this value lives and used by
        // nobody else, as the header asks; the value is borrowed alone.
        unsafe { std::slice::from_raw_parts_mut(self.at, self.len) }
    }
}

impl Lent {
    pub(super) fn new(at: *mut u8, len: usize) -> Result<Lent> {
        let sound = len == 0 || (!at.is_null() && isize::try_from(len).is_ok());
        if sound { Ok(Lent { at, len }) } else { Err(Errno::EINVAL) }
    }
}

/// What a `dds_library` points to.
pub struct DdsLibrary(pub(super) Arc<Library>);

/// What a `dds_file` points to.
pub struct DdsFile {
    pub(super) library: Arc<Library>,
    pub(super) file: host::File,
}

/// What a handle of C's points to.
///
/// # Safety
/// `handle` is null or was handed out by this library and not ended.
pub(super) unsafe fn of<'a, T>(handle: *mut T) -> Result<&'a T> {
    // SAFETY: as the caller promises.
    unsafe { handle.as_ref() }.ok_or(Errno::EBADF)
}

/// A handle for C, or null and the reason.
///
/// # Safety
/// `error` is null or writable.
pub(super) unsafe fn handed_out<T>(made: Result<T>, error: *mut c_int) -> *mut T {
    let (made, errno) = match made {
        Ok(made) => (Box::into_raw(Box::new(made)), 0),
        Err(errno) => (std::ptr::null_mut(), c_int::from(errno.raw())),
    };
    // SAFETY: as the caller promises.
    if let Some(error) = unsafe { error.as_mut() } {
        *error = errno;
    }
    made
}

/// Ends a handle.
///
/// # Safety
/// As for [`of`]; C uses it no more.
pub(super) unsafe fn ended<T>(handle: *mut T) {
    if !handle.is_null() {
        // SAFETY: as the caller promises, it came from `handed_out` and is given back once.
        drop(unsafe { Box::from_raw(handle) });
    }
}

/// Where C wants a result: asked for before anything is done, so that a call that cannot say what
/// came of it does nothing.
///
/// # Safety
/// `into` is null or writable for the length of the call.
pub(super) unsafe fn place<'a, T>(into: *mut T) -> Result<&'a mut T> {
    if !into.is_aligned() {
        return Err(Errno::EINVAL);
    }
    // SAFETY: as the caller promises; it is aligned.
    unsafe { into.as_mut() }.ok_or(Errno::EINVAL)
}

/// A string of C's, without its end.
///
/// # Safety
/// `text` is null or a C string that outlives the call.
pub(super) unsafe fn bytes_of<'a>(text: *const c_char) -> &'a [u8] {
    if text.is_null() {
        return &[];
    }
    // SAFETY: as the caller promises.
    unsafe { CStr::from_ptr(text) }.to_bytes()
}

/// Memory C has written.
///
/// # Safety
/// `count` bytes at `at` are readable for the length of the call.
pub(super) unsafe fn given<'a>(at: *const u8, count: usize) -> Result<&'a [u8]> {
    if count == 0 {
        return Ok(&[]);
    }
    if at.is_null() || isize::try_from(count).is_err() {
        return Err(Errno::EINVAL);
    }
    // SAFETY: not null, of a length a slice may have, and readable as the caller promises.
    Ok(unsafe { std::slice::from_raw_parts(at, count) })
}

/// The pieces of a scattered or gathered operation.
///
/// # Safety
/// `count` vectors at `pieces` are readable.
pub(super) unsafe fn pieces_of<'a>(pieces: *const iovec, count: c_int) -> Result<&'a [iovec]> {
    let fits = usize::try_from(count).ok().filter(|count| *count <= PIECES_MAX);
    let count = fits.ok_or(Errno::EINVAL)?;
    if count == 0 {
        return Ok(&[]);
    }
    if pieces.is_null() || !pieces.is_aligned() {
        return Err(Errno::EINVAL);
    }
    // SAFETY: not null, aligned, at most PIECES_MAX of them, and readable as the caller promises.
    Ok(unsafe { std::slice::from_raw_parts(pieces, count) })
}
