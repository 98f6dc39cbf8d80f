//! Pure byte functions: the checksums of what rests on a medium and of RoCEv2's packets, keyed
//! MACs, compression, the erasure code of shared volumes, and the format of a backup.

#![deny(unsafe_code)]

pub mod archive;
pub mod erasure;
pub mod lz4;
pub mod mac;

use crc_fast::{CrcAlgorithm, Digest, checksum};

/// CRC-32C (Castagnoli: reflected, initial value and final XOR of all ones), as in iSCSI and ext4.
#[must_use]
pub fn crc32c(bytes: &[u8]) -> u32 {
    // The library answers every width in 64 bits; the upper half of a 32-bit CRC is zero.
    u32::try_from(checksum(CrcAlgorithm::Crc32Iscsi, bytes)).unwrap_or(0)
}

/// CRC-32 of Ethernet's frames (reflected, initial value and final XOR of all ones), which
/// RoCEv2's invariant CRC is, too, of these parts one behind the other.
#[must_use]
pub fn crc32(parts: &[&[u8]]) -> u32 {
    let mut digest = Digest::new(CrcAlgorithm::Crc32IsoHdlc);
    parts.iter().for_each(|part| digest.update(part));
    u32::try_from(digest.finalize()).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The check value of the catalogue of CRCs, and two of RFC 3720, B.4.
    #[test]
    fn it_is_castagnoli() {
        assert_eq!(crc32c(b"123456789"), 0xE306_9283);
        assert_eq!(crc32c(&[0; 32]), 0x8A91_36AA);
        assert_eq!(crc32c(&[0xFF; 32]), 0x62A8_AB43);
        assert_eq!(crc32c(b""), 0);
    }

    /// The check value of the catalogue.
    #[test]
    fn the_other_is_that_of_ethernet() {
        assert_eq!(crc32(&[b"123456789"]), 0xCBF4_3926);
        assert_eq!(crc32(&[b"1", b"", b"2345678", b"9"]), 0xCBF4_3926);
        assert_eq!(crc32(&[]), 0);
    }
}
