//! The block port: where file data rests.
//!
//! Buffers are owned and aligned ([`Buf`]), because a device may still be using one after the
//! future that asked was dropped: the medium keeps it until the device is done.

pub mod mem;

use std::future::Future;
use std::ops::{Deref, DerefMut};
use std::sync::Arc;

use outboard_base::Errno;

/// Alignment of every [`Buf`], offset and length, bytes: what O_DIRECT asks of any device.
pub const ALIGN: usize = 4096;

/// An owned buffer whose start and length are multiples of [`ALIGN`].
#[derive(Debug)]
pub struct Buf {
    // Over-allocated so that an aligned range fits; never resized, so never moved.
    bytes: Vec<u8>,
    start: usize,
    len: usize,
}

impl Buf {
    /// A buffer of zeros, at least `len` bytes, rounded up to [`ALIGN`].
    #[must_use]
    pub fn zeroed(len: usize) -> Buf {
        let len = len.next_multiple_of(ALIGN);
        let bytes = vec![0; len + ALIGN];
        let start = bytes.as_ptr().addr().next_multiple_of(ALIGN) - bytes.as_ptr().addr();
        Buf { bytes, start, len }
    }
}

impl Buf {
    /// Most bytes it can hold without moving.
    #[must_use]
    pub fn capacity(&self) -> usize {
        self.bytes.len().saturating_sub(ALIGN)
    }

    /// Makes it `len` bytes long, rounded up to [`ALIGN`] and down to its capacity. Keeps the
    /// bytes.
    pub fn resize(&mut self, len: usize) {
        self.len = len.next_multiple_of(ALIGN).min(self.capacity());
    }
}

impl Deref for Buf {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        self.bytes.get(self.start..self.start + self.len).unwrap_or_default()
    }
}

impl DerefMut for Buf {
    fn deref_mut(&mut self) -> &mut [u8] {
        self.bytes.get_mut(self.start..self.start + self.len).unwrap_or_default()
    }
}

/// A growing range of bytes on a device.
///
/// A write is *answered* once the operating system has it, *durable* once a flush begun after its
/// answer has succeeded. Writes not flushed may be lost, whole or by 512-byte sector, in any
/// subset. A flush also waits for writes begun before it whose futures were dropped. A failed flush
/// is final: what it should have written may be gone, and every later flush fails too.
pub trait Medium: Send + Sync + 'static {
    /// Fills `buf` from `offset`; beyond the end it fails with `EIO`.
    fn read(&self, offset: u64, buf: Buf) -> impl Future<Output = (Result<(), Errno>, Buf)>;

    /// Writes all of `buf` at `offset`, within [`Medium::len`].
    fn write(&self, offset: u64, buf: Buf) -> impl Future<Output = (Result<(), Errno>, Buf)>;

    /// Makes every write answered before the call durable.
    fn flush(&self) -> impl Future<Output = Result<(), Errno>>;

    /// Whether every sync of the key-value store beside it flushes the device this lies on. Then
    /// [`Medium::hand_over`] and a sync of the store begun after it are as good as a flush.
    fn is_flushed_by_store(&self) -> bool {
        false
    }

    /// Hands every write answered before the call to the device: one that a flush of the device
    /// begun later makes durable. A failure is final, as that of a flush.
    fn hand_over(&self) -> impl Future<Output = Result<(), Errno>> {
        self.flush()
    }

    /// Makes the medium at least `len` bytes long, its space really there; `ENOSPC` if it is not.
    fn grow(&self, len: u64) -> impl Future<Output = Result<(), Errno>>;

    /// Its length, bytes.
    fn len(&self) -> u64;

    /// Whether it is new.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl<M: Medium> Medium for Arc<M> {
    fn read(&self, offset: u64, buf: Buf) -> impl Future<Output = (Result<(), Errno>, Buf)> {
        (**self).read(offset, buf)
    }

    fn write(&self, offset: u64, buf: Buf) -> impl Future<Output = (Result<(), Errno>, Buf)> {
        (**self).write(offset, buf)
    }

    fn flush(&self) -> impl Future<Output = Result<(), Errno>> {
        (**self).flush()
    }

    fn is_flushed_by_store(&self) -> bool {
        (**self).is_flushed_by_store()
    }

    fn hand_over(&self) -> impl Future<Output = Result<(), Errno>> {
        (**self).hand_over()
    }

    fn grow(&self, len: u64) -> impl Future<Output = Result<(), Errno>> {
        (**self).grow(len)
    }

    fn len(&self) -> u64 {
        (**self).len()
    }
}
