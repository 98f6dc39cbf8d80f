//! Listing the objects of a pool: a blocking walk over its placement groups.

use std::ptr;

use super::cluster::Handle;
use super::{Code, ffi};

/// The names of a pool's objects, in no order. Each step may block, within the time limit.
pub(crate) struct Listing<'a> {
    raw: ffi::ListCtx,
    ended: bool,
    _pool: &'a Handle,
}

impl Handle {
    /// Begins a listing of the namespace's objects.
    pub(crate) fn list(&self) -> Result<Listing<'_>, Code> {
        let mut raw = ptr::null_mut();
        // SAFETY: the pool is open; a place for the handle.
        Code::check(unsafe { ffi::rados_nobjects_list_open(self.io, &mut raw) })?;
        Ok(Listing { raw, ended: false, _pool: self })
    }
}

impl Iterator for Listing<'_> {
    type Item = Result<String, Code>;

    fn next(&mut self) -> Option<Result<String, Code>> {
        if self.ended {
            return None;
        }
        let (mut name, mut locator, mut space) = (ptr::null(), ptr::null(), ptr::null());
        let (mut len, mut locator_len, mut space_len) = (0, 0, 0);
        // SAFETY: the listing is open; six places.
        let found = unsafe {
            ffi::rados_nobjects_list_next2(
                self.raw,
                &mut name,
                &mut locator,
                &mut space,
                &mut len,
                &mut locator_len,
                &mut space_len,
            )
        };
        if found < 0 || name.is_null() {
            self.ended = true;
            return (found < 0 && found != ffi::NO_MORE).then_some(Err(Code(found)));
        }
        // SAFETY: the name lives until the next step; it is copied here.
        let name = unsafe { std::slice::from_raw_parts(name.cast::<u8>(), len) };
        Some(Ok(String::from_utf8_lossy(name).into_owned()))
    }
}

impl Drop for Listing<'_> {
    fn drop(&mut self) {
        // SAFETY: opened in `list`, and closed nowhere else.
        unsafe { ffi::rados_nobjects_list_close(self.raw) };
    }
}
