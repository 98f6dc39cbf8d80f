//! The small file KV: `0 crc u32 (ino, data)   4 data`.

use outboard_base::{Errno, Ino, Result, limits};

use super::bytes::{sum, u32_at};

/// The value that holds `data`.
pub(crate) fn encode_small(ino: Ino, data: &[u8]) -> Vec<u8> {
    [&sum(ino.0, data).to_le_bytes()[..], data].concat()
}

/// The data; `EUCLEAN` for anything that was not written under this key.
pub(crate) fn decode_small(ino: Ino, value: &[u8]) -> Result<&[u8]> {
    let data = value.get(4..).ok_or(Errno::EUCLEAN)?;
    if data.len() > limits::SMALL_FILE_MAX || u32_at(value, 0)? != sum(ino.0, data) {
        return Err(Errno::EUCLEAN);
    }
    Ok(data)
}
