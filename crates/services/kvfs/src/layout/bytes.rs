//! Fields at fixed places of a value, and the checksum that binds a value to its key.

use outboard_base::{Errno, Result};
use outboard_codec::crc32c;

/// The bytes `at..at + N`; `EUCLEAN` when the value ends before.
pub(super) fn array<const N: usize>(from: &[u8], at: usize) -> Result<[u8; N]> {
    from.get(at..at.saturating_add(N)).and_then(|b| b.try_into().ok()).ok_or(Errno::EUCLEAN)
}

pub(super) fn u64_at(from: &[u8], at: usize) -> Result<u64> {
    array(from, at).map(u64::from_le_bytes)
}

pub(super) fn u32_at(from: &[u8], at: usize) -> Result<u32> {
    array(from, at).map(u32::from_le_bytes)
}

pub(super) fn u16_at(from: &[u8], at: usize) -> Result<u16> {
    array(from, at).map(u16::from_le_bytes)
}

/// Puts `bytes` at `at`; a place outside the value is a fault of this crate, answered with `EIO`.
pub(super) fn put(into: &mut [u8], at: usize, bytes: &[u8]) -> Result<()> {
    into.get_mut(at..at.saturating_add(bytes.len())).ok_or(Errno::EIO)?.copy_from_slice(bytes);
    Ok(())
}

/// CRC-32C of `value`, bound to `key`: the checksum field itself must be left out or zero.
pub(super) fn sum(key: u64, value: &[u8]) -> u32 {
    // Two checksums joined cost less than a copy of the value behind its key.
    crc32c(value) ^ crc32c(&key.to_le_bytes()).rotate_left(7)
}
