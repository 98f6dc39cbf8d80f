//! Reading and writing little-endian fields at fixed places, with every bound checked.

use outboard_base::{Errno, Result};

/// The bytes `at..at + len`, or `EPROTO` when the buffer ends before.
#[inline]
pub(crate) fn bytes(from: &[u8], at: usize, len: usize) -> Result<&[u8]> {
    let end = at.checked_add(len).ok_or(Errno::EPROTO)?;
    from.get(at..end).ok_or(Errno::EPROTO)
}

macro_rules! field {
    ($get:ident, $put:ident, $type:ty) => {
        /// Reads a little-endian field; `EPROTO` when the buffer ends before it.
        #[inline]
        pub(crate) fn $get(from: &[u8], at: usize) -> Result<$type> {
            let bytes = bytes(from, at, size_of::<$type>())?;
            bytes.try_into().map(<$type>::from_le_bytes).map_err(|_| Errno::EPROTO)
        }

        /// Writes a little-endian field; `EPROTO` when the buffer ends before it.
        #[inline]
        pub(crate) fn $put(into: &mut [u8], at: usize, value: $type) -> Result<()> {
            let end = at.checked_add(size_of::<$type>()).ok_or(Errno::EPROTO)?;
            into.get_mut(at..end).ok_or(Errno::EPROTO)?.copy_from_slice(&value.to_le_bytes());
            Ok(())
        }
    };
}

field!(u16_at, put_u16, u16);
field!(u32_at, put_u32, u32);
field!(u64_at, put_u64, u64);

/// Packs two 32-bit halves, low half first.
#[inline]
pub(crate) fn pack(low: u32, high: u32) -> u64 {
    u64::from(low) | u64::from(high) << 32
}

/// The two halves of [`pack`].
#[expect(clippy::cast_possible_truncation, reason = "taking halves is the point")]
#[inline]
pub(crate) fn unpack(both: u64) -> (u32, u32) {
    (both as u32, (both >> 32) as u32)
}
