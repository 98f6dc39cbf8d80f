//! The block port: where file data rests.
//!
//! Buffers are owned and aligned ([`Buf`]), because a device may still be using one after the
//! future that asked was dropped: the medium keeps it until the device is done.

#![forbid(unsafe_code)]

pub mod hold;
mod lent;
pub mod mem;

use std::any::Any;
use std::future::Future;
use std::ops::{Deref, DerefMut, Range};
use std::sync::Arc;

use outboard_base::Errno;

pub use lent::{Lender, Lent};

/// Alignment of every [`Buf`], offset and length, bytes: what O_DIRECT asks of any device.
pub const ALIGN: usize = 4096;

/// An owned buffer whose start and length are multiples of [`ALIGN`].
///
/// It may be a part of one that others read too ([`Buf::part`]): then it is written to the medium
/// from where it lies, and copied before it changes.
#[derive(Debug)]
pub struct Buf {
    bytes: Bytes,
    start: usize,
    len: usize,
    mark: Option<Mark>,
}

/// What a medium keeps with a buffer's memory: it goes where that goes, and ends with it.
pub type Mark = Arc<dyn Any + Send + Sync>;

#[derive(Debug)]
enum Bytes {
    // Over-allocated so that an aligned range fits; never resized, so never moved.
    Own(Vec<u8>),
    Shared(Arc<Buf>),
}

impl Buf {
    /// A buffer of zeros, at least `len` bytes, rounded up to [`ALIGN`].
    #[must_use]
    pub fn zeroed(len: usize) -> Buf {
        let len = len.next_multiple_of(ALIGN);
        let bytes = vec![0; len + ALIGN];
        let start = bytes.as_ptr().addr().next_multiple_of(ALIGN) - bytes.as_ptr().addr();
        Buf { bytes: Bytes::Own(bytes), start, len, mark: None }
    }

    /// A copy of `from`, and zeros behind it up to a multiple of [`ALIGN`].
    #[must_use]
    pub fn copied(from: &[u8]) -> Buf {
        let len = from.len().next_multiple_of(ALIGN);
        let mut bytes: Vec<u8> = Vec::with_capacity(len + ALIGN);
        let start = bytes.as_ptr().addr().next_multiple_of(ALIGN) - bytes.as_ptr().addr();
        bytes.resize(start, 0);
        bytes.extend_from_slice(from);
        bytes.resize(len + ALIGN, 0);
        Buf { bytes: Bytes::Own(bytes), start, len, mark: None }
    }

    /// What the medium put here, on this memory or on what it is a part of.
    #[must_use]
    pub fn mark(&self) -> Option<&Mark> {
        self.mark.as_ref()
    }

    /// Puts it there. Not on a part, whose memory is another's: false.
    pub fn set_mark(&mut self, mark: Mark) -> bool {
        let is_own = matches!(self.bytes, Bytes::Own(_));
        if is_own {
            self.mark = Some(mark);
        }
        is_own
    }

    /// The bytes `range` of a buffer that stays where it is as long as anybody has a part of it.
    /// `None` unless they lie within, at multiples of [`ALIGN`].
    #[must_use]
    pub fn part(whole: &Arc<Buf>, range: Range<usize>) -> Option<Buf> {
        let len = whole.get(range.clone())?.len();
        let is_aligned = range.start.is_multiple_of(ALIGN) && len.is_multiple_of(ALIGN);
        let mark = whole.mark.clone();
        let bytes = Bytes::Shared(Arc::clone(whole));
        is_aligned.then(|| Buf { bytes, start: range.start, len, mark })
    }

    /// Most bytes it can hold without moving.
    #[must_use]
    pub fn capacity(&self) -> usize {
        match &self.bytes {
            Bytes::Own(bytes) => bytes.len().saturating_sub(ALIGN),
            Bytes::Shared(_) => self.len,
        }
    }

    /// Whether its memory is another's too.
    #[must_use]
    pub fn is_part(&self) -> bool {
        matches!(self.bytes, Bytes::Shared(_))
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
        let bytes = match &self.bytes {
            Bytes::Own(bytes) => bytes,
            Bytes::Shared(whole) => &whole[..],
        };
        bytes.get(self.start..self.start + self.len).unwrap_or_default()
    }
}

impl DerefMut for Buf {
    fn deref_mut(&mut self) -> &mut [u8] {
        if let Bytes::Shared(_) = self.bytes {
            *self = Buf::copied(self);
        }
        match &mut self.bytes {
            Bytes::Own(bytes) => bytes.get_mut(self.start..self.start + self.len),
            Bytes::Shared(_) => None,
        }
        .unwrap_or_default()
    }
}

/// A growing range of bytes on a device.
///
/// A write is *answered* once the operating system has it, *durable* once a flush begun after its
/// answer has succeeded. Writes not flushed may be lost, whole or by 512-byte sector, in any
/// subset. A flush also waits for writes begun before it whose futures were dropped. A failed flush
/// is final: what it should have written may be gone, and every later flush fails too.
pub trait Medium: Send + Sync + 'static {
    /// Gives back a buffer that will be used here again and again: whatever can be prepared for
    /// that is. Once is enough, more is cheap.
    fn keep(&self, buf: Buf) -> Buf {
        buf
    }

    /// How many bytes behind a reader it pays to have on their way before they are asked for; 0
    /// where the medium is near.
    fn ahead(&self) -> u64 {
        0
    }

    /// These bytes are likely to be read soon. What comes of that is the medium's to choose; a read
    /// gives what was written last, as ever.
    fn expect(&self, _bytes: Range<u64>) {}

    /// What was expected, if it has come or is on its way: memory the medium has anyway. `None`:
    /// a read is needed, for whatever reason.
    fn expected(&self, _bytes: Range<u64>) -> impl Future<Output = Option<Buf>> {
        async { None }
    }

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
    fn keep(&self, buf: Buf) -> Buf {
        (**self).keep(buf)
    }

    fn ahead(&self) -> u64 {
        (**self).ahead()
    }

    fn expect(&self, bytes: Range<u64>) {
        (**self).expect(bytes);
    }

    fn expected(&self, bytes: Range<u64>) -> impl Future<Output = Option<Buf>> {
        (**self).expected(bytes)
    }

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

#[cfg(test)]
mod tests {
    use super::*;

    /// A mark is of memory: a part has its whole's until it is copied, and nobody else's ends it.
    #[test]
    fn a_mark_goes_where_the_memory_goes() {
        let mut whole = Buf::zeroed(2 * ALIGN);
        let mark: Mark = Arc::new(7u32);
        let watch = Arc::downgrade(&mark);
        assert!(whole.mark().is_none() && whole.set_mark(mark));
        whole.resize(ALIGN);
        let whole = Arc::new(whole);
        let mut part = Buf::part(&whole, 0..ALIGN).unwrap();
        assert_eq!(part.mark().and_then(|mark| mark.downcast_ref()), Some(&7u32));
        assert!(!part.set_mark(Arc::new(8u32)));
        drop(whole);
        assert!(watch.upgrade().is_some(), "the part has the memory");
        part[0] = 1;
        assert!(part.mark().is_none() && watch.upgrade().is_none());
    }

    #[test]
    fn a_copy_is_aligned_and_zeros_behind_what_was_copied() {
        for len in [0, 1, ALIGN - 1, ALIGN, 2 * ALIGN + 7] {
            let copy = Buf::copied(&vec![7; len]);
            assert!(copy.as_ptr().addr().is_multiple_of(ALIGN));
            assert_eq!((copy.len(), copy.capacity()), (len.next_multiple_of(ALIGN), copy.len()));
            let (bytes, rest) = copy.split_at(len);
            assert!(bytes.iter().all(|byte| *byte == 7) && rest.iter().all(|byte| *byte == 0));
        }
    }

    #[test]
    fn a_part_lies_where_the_whole_does_and_is_copied_before_it_changes() {
        let mut whole = Buf::zeroed(3 * ALIGN);
        whole[ALIGN..].fill(7);
        let whole = Arc::new(whole);
        let mut part = Buf::part(&whole, ALIGN..2 * ALIGN).unwrap();
        assert_eq!((part.as_ptr(), part.capacity()), (whole[ALIGN..].as_ptr(), ALIGN));
        assert!(part.iter().all(|byte| *byte == 7));
        part[0] = 9;
        assert_eq!((part[0], part[1], part.len(), whole[ALIGN]), (9, 7, ALIGN, 7));
        assert!(part.as_ptr().addr().is_multiple_of(ALIGN));
        for odd in [1..ALIGN, 0..1, ALIGN..4 * ALIGN] {
            assert!(Buf::part(&whole, odd).is_none());
        }
    }
}
