//! Extended attributes: `0 crc u32 (ino, name, value)   4 value`.

use outboard_base::{Errno, Ino, Result, limits};

use super::bytes::{sum, u32_at};

fn xattr_sum(ino: Ino, name: &[u8], value: &[u8]) -> u32 {
    sum(ino.0, value) ^ sum(name.len() as u64, name).rotate_left(13)
}

/// What rests under (`ino`, `name`).
pub(crate) fn encode_xattr(ino: Ino, name: &[u8], value: &[u8]) -> Vec<u8> {
    [&xattr_sum(ino, name, value).to_le_bytes()[..], value].concat()
}

/// The value; `EUCLEAN` for anything that was not written under this key.
pub(crate) fn decode_xattr<'a>(ino: Ino, name: &[u8], stored: &'a [u8]) -> Result<&'a [u8]> {
    let value = stored.get(4..).ok_or(Errno::EUCLEAN)?;
    let right = u32_at(stored, 0)? == xattr_sum(ino, name, value);
    if right && value.len() <= limits::XATTR_SIZE_MAX { Ok(value) } else { Err(Errno::EUCLEAN) }
}
