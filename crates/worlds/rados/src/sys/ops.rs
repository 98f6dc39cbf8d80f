//! Operations on one object: guards and steps that are applied together, and reads.

use std::ffi::{CStr, c_char, c_int};
use std::ops::DerefMut;
use std::ptr;

use super::call::{Call, Out};
use super::cluster::{Handle, c_string};
use super::{Code, ffi};

fn chars(bytes: &[u8]) -> *const c_char {
    bytes.as_ptr().cast()
}

/// Starts and lengths of several strings, as librados wants them.
fn lists<'a>(items: impl Iterator<Item = &'a [u8]>) -> (Vec<*const c_char>, Vec<usize>) {
    items.map(|item| (chars(item), item.len())).unzip()
}

/// Guards and steps of one object, applied in order, all or none. librados copies what it is given.
#[derive(Debug)]
pub(crate) struct WriteOp {
    raw: ffi::WriteOpT,
}

// SAFETY: an operation that is being built belongs to who builds it, on whatever thread.
unsafe impl Send for WriteOp {}

impl WriteOp {
    pub(crate) fn new() -> WriteOp {
        // SAFETY: no demands; released in `drop`.
        WriteOp { raw: unsafe { ffi::rados_create_write_op() } }
    }

    /// Fails with ENOENT unless the object exists.
    pub(crate) fn assert_exists(&mut self) {
        // SAFETY: the operation is open.
        unsafe { ffi::rados_write_op_assert_exists(self.raw) };
    }

    /// Fails with a code at or below -4095 unless the object starts with `bytes`; what is beyond
    /// its end counts as zeros.
    pub(crate) fn assert_start(&mut self, bytes: &[u8]) {
        // SAFETY: the bytes are copied before the call returns; no result is asked for.
        unsafe {
            let (at, len) = (chars(bytes), bytes.len());
            ffi::rados_write_op_cmpext(self.raw, at, len, 0, ptr::null_mut());
        }
    }

    /// Fails with ECANCELED unless the map has `value` at `key`; a key that is not there has the
    /// empty value. An object that is not there: ENOENT.
    pub(crate) fn assert_pair(&mut self, key: &[u8], value: &[u8]) {
        // SAFETY: key and value are copied before the call returns; no result is asked for.
        unsafe {
            ffi::rados_write_op_omap_cmp2(
                self.raw,
                chars(key),
                ffi::EQUAL,
                chars(value),
                key.len(),
                value.len(),
                ptr::null_mut(),
            );
        }
    }

    /// Makes the object; if `exclusive` it must not exist (EEXIST).
    pub(crate) fn create(&mut self, exclusive: bool) {
        let exclusive = if exclusive { ffi::CREATE_EXCLUSIVE } else { ffi::CREATE_IDEMPOTENT };
        // SAFETY: the operation is open; a category is not given.
        unsafe { ffi::rados_write_op_create(self.raw, exclusive, ptr::null()) };
    }

    pub(crate) fn remove(&mut self) {
        // SAFETY: the operation is open.
        unsafe { ffi::rados_write_op_remove(self.raw) };
    }

    pub(crate) fn write(&mut self, offset: u64, bytes: &[u8]) {
        // SAFETY: the bytes are copied before the call returns.
        unsafe { ffi::rados_write_op_write(self.raw, chars(bytes), bytes.len(), offset) };
    }

    /// Makes these all its bytes.
    pub(crate) fn replace(&mut self, bytes: &[u8]) {
        // SAFETY: the bytes are copied before the call returns.
        unsafe { ffi::rados_write_op_write_full(self.raw, chars(bytes), bytes.len()) };
    }

    pub(crate) fn set_pairs(&mut self, pairs: &[(Vec<u8>, Vec<u8>)]) {
        let (keys, key_lens) = lists(pairs.iter().map(|(key, _)| &key[..]));
        let (values, value_lens) = lists(pairs.iter().map(|(_, value)| &value[..]));
        // SAFETY: four arrays of that many places; all is copied before the call returns.
        unsafe {
            ffi::rados_write_op_omap_set2(
                self.raw,
                keys.as_ptr(),
                values.as_ptr(),
                key_lens.as_ptr(),
                value_lens.as_ptr(),
                pairs.len(),
            );
        }
    }

    pub(crate) fn remove_keys(&mut self, keys: &[Vec<u8>]) {
        let (starts, lens) = lists(keys.iter().map(|key| &key[..]));
        // SAFETY: two arrays of that many places; all is copied before the call returns.
        unsafe {
            ffi::rados_write_op_omap_rm_keys2(self.raw, starts.as_ptr(), lens.as_ptr(), keys.len());
        }
    }
}

impl Drop for WriteOp {
    fn drop(&mut self) {
        // SAFETY: made in `new`, and released nowhere else.
        unsafe { ffi::rados_release_write_op(self.raw) };
    }
}

/// A read being built.
struct ReadOp {
    raw: ffi::ReadOpT,
}

impl ReadOp {
    fn new() -> ReadOp {
        // SAFETY: no demands; released in `drop`.
        ReadOp { raw: unsafe { ffi::rados_create_read_op() } }
    }

    fn submit(&self, pool: &Handle, completion: ffi::Completion, object: *const c_char) -> c_int {
        // SAFETY: operation, pool and completion are open; the name outlives the call.
        unsafe { ffi::rados_aio_read_op_operate(self.raw, pool.io, completion, object, 0) }
    }
}

impl Drop for ReadOp {
    fn drop(&mut self) {
        // SAFETY: made in `new`, and released nowhere else.
        unsafe { ffi::rados_release_read_op(self.raw) };
    }
}

/// What a read of bytes fills.
#[derive(Debug)]
pub(crate) struct Filled<B> {
    pub(crate) buffer: B,
    pub(crate) len: usize,
}

impl<B: Send + 'static> Out for Filled<B> {}

/// Pairs of an object's map, by rising key.
#[derive(Debug)]
pub(crate) struct Page {
    iter: ffi::OmapIter,
    more: u8,
}

// SAFETY: the list belongs to this value alone once the call has ended.
unsafe impl Send for Page {}

impl Page {
    fn new() -> Page {
        Page { iter: ptr::null_mut(), more: 0 }
    }

    /// Whether the object has more pairs than were given.
    pub(crate) fn has_more(&self) -> bool {
        self.more != 0
    }

    /// Takes the next pair, copied.
    fn next(&mut self) -> Option<(Vec<u8>, Vec<u8>)> {
        let (mut key, mut value) = (ptr::null_mut(), ptr::null_mut());
        let (mut key_len, mut value_len) = (0, 0);
        if self.iter.is_null() {
            return None;
        }
        // SAFETY: the call has ended, so the list is filled; what it returns lives as long as it,
        // and is copied here. At the end there is no key.
        unsafe {
            ffi::rados_omap_get_next2(
                self.iter,
                &mut key,
                &mut value,
                &mut key_len,
                &mut value_len,
            );
            if key.is_null() {
                return None;
            }
            Some((copied(key, key_len), copied(value, value_len)))
        }
    }

    /// The pairs, once.
    pub(crate) fn take(&mut self) -> Vec<(Vec<u8>, Vec<u8>)> {
        if self.iter.is_null() {
            return Vec::new();
        }
        // SAFETY: the list is open.
        let count = unsafe { ffi::rados_omap_iter_size(self.iter) };
        let mut pairs = Vec::with_capacity(usize::try_from(count).unwrap_or(0));
        while let Some(pair) = self.next() {
            pairs.push(pair);
        }
        pairs
    }
}

/// # Safety
///
/// `start` is null, or there are `len` bytes there.
unsafe fn copied(start: *const c_char, len: usize) -> Vec<u8> {
    if start.is_null() || len == 0 {
        return Vec::new();
    }
    // SAFETY: what this function demands.
    unsafe { std::slice::from_raw_parts(start.cast::<u8>(), len) }.to_vec()
}

impl Out for Page {}

impl Drop for Page {
    fn drop(&mut self) {
        if !self.iter.is_null() {
            // SAFETY: librados made it for this call, which has ended; freed nowhere else.
            unsafe { ffi::rados_omap_get_end(self.iter) };
        }
    }
}

impl Handle {
    /// Applies an operation; `out` goes with it. A full pool is an error at once, and no matter to
    /// an `essential` operation.
    pub(crate) fn apply<T: Out>(
        &self,
        object: &str,
        op: &WriteOp,
        essential: bool,
        out: T,
    ) -> Result<Call<T>, Code> {
        let object = c_string(object)?;
        Call::start(out, |completion, _| {
            let at = object.as_ptr();
            let flags = if essential { ffi::FULL_FORCE } else { ffi::FULL_TRY };
            // SAFETY: operation, pool and completion are open; the name outlives the call; the time
            // is the daemon's.
            unsafe {
                let now = ptr::null_mut();
                ffi::rados_aio_write_op_operate(op.raw, self.io, completion, at, now, flags)
            }
        })
    }

    /// Reads from `offset` as much as there is, at most `buffer`.
    pub(crate) fn read<B>(
        &self,
        object: &str,
        offset: u64,
        buffer: B,
    ) -> Result<Call<Filled<B>>, Code>
    where
        B: DerefMut<Target = [u8]> + Send + 'static,
    {
        let object = c_string(object)?;
        let op = ReadOp::new();
        Call::start(Filled { buffer, len: 0 }, |completion, out| {
            // SAFETY: `out` is the call's until it has ended, and the buffer does not move in it.
            unsafe {
                let buffer: &mut [u8] = &mut (*out).buffer;
                let (at, len) = (buffer.as_mut_ptr().cast(), buffer.len());
                let filled = &raw mut (*out).len;
                ffi::rados_read_op_read(op.raw, offset, len, at, filled, ptr::null_mut());
            }
            op.submit(self, completion, object.as_ptr())
        })
    }

    /// Size of an object, bytes.
    pub(crate) fn stat(&self, object: &str) -> Result<Call<u64>, Code> {
        let object = c_string(object)?;
        let op = ReadOp::new();
        Call::start(0, |completion, out| {
            // SAFETY: `out` is the call's until it has ended.
            unsafe { ffi::rados_read_op_stat(op.raw, out, ptr::null_mut(), ptr::null_mut()) };
            op.submit(self, completion, object.as_ptr())
        })
    }

    /// The pairs of those keys that are there.
    pub(crate) fn pairs(&self, object: &str, keys: &[Vec<u8>]) -> Result<Call<Page>, Code> {
        let object = c_string(object)?;
        let op = ReadOp::new();
        let (starts, lens) = lists(keys.iter().map(|key| &key[..]));
        Call::start(Page::new(), |completion, out| {
            // SAFETY: two arrays of that many places, copied before the call returns; `out` is the
            // call's until it has ended.
            unsafe {
                ffi::rados_read_op_omap_get_vals_by_keys2(
                    op.raw,
                    starts.as_ptr(),
                    keys.len(),
                    lens.as_ptr(),
                    &raw mut (*out).iter,
                    ptr::null_mut(),
                );
            }
            op.submit(self, completion, object.as_ptr())
        })
    }

    /// At most `limit` pairs whose keys start with `prefix` and come after `after`; neither may
    /// hold a NUL. The daemon may return fewer, and then says that there is more.
    pub(crate) fn scan(
        &self,
        object: &str,
        after: &CStr,
        prefix: &CStr,
        limit: u64,
    ) -> Result<Call<Page>, Code> {
        let object = c_string(object)?;
        let op = ReadOp::new();
        Call::start(Page::new(), |completion, out| {
            // SAFETY: two strings, copied before the call returns; `out` is the call's until it has
            // ended.
            unsafe {
                ffi::rados_read_op_omap_get_vals2(
                    op.raw,
                    after.as_ptr(),
                    prefix.as_ptr(),
                    limit,
                    &raw mut (*out).iter,
                    &raw mut (*out).more,
                    ptr::null_mut(),
                );
            }
            op.submit(self, completion, object.as_ptr())
        })
    }
}
