//! Files of frames, as libpcap writes them: nanoseconds, Ethernet, the order of bytes of the
//! computer that writes.
//!
//! ```text
//! file  | a1b23c4d (4) | 2 (2) | 4 (2) | 0 (8) | longest (4) | 1 (4) | frame | frame | ...
//! frame | seconds (4) | nanoseconds (4) | bytes kept (4) | bytes it had (4) | those kept
//! ```

use outboard_base::Timestamp;

/// How a file begins: times are in nanoseconds.
pub const MAGIC: u32 = 0xA1B2_3C4D;
const VERSION: [u16; 2] = [2, 4];
/// What frames are of.
pub const ETHERNET: u32 = 1;
const LONGEST: u32 = 256 << 10;
/// Bytes of one frame that are kept, at most: more, analysers do not read.
pub const KEPT_MAX: usize = LONGEST as usize;
/// Bytes of a file's head.
pub const HEAD: u64 = 24;
/// Bytes before a frame.
pub const BEFORE: u64 = 16;

/// The head of a file.
#[must_use]
pub fn head() -> Vec<u8> {
    let mut head = MAGIC.to_ne_bytes().to_vec();
    head.extend_from_slice(VERSION.map(u16::to_ne_bytes).as_flattened());
    head.extend_from_slice([0, 0, LONGEST, ETHERNET].map(u32::to_ne_bytes).as_flattened());
    head
}

/// What stands before a frame that passed at `at` and had `len` bytes, of which `kept` follow;
/// word by word.
#[must_use]
pub fn before(at: Timestamp, kept: u32, len: u32) -> [[u8; 4]; 4] {
    let sec = u32::try_from(at.sec).unwrap_or(u32::MAX);
    [sec, at.nsec, kept, len].map(u32::to_ne_bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_bytes_are_those_that_analysers_read() {
        let words = |bytes: &[u8]| -> Vec<u32> {
            bytes.as_chunks().0.iter().map(|word| u32::from_ne_bytes(*word)).collect()
        };
        let head = head();
        assert_eq!(head.len() as u64, HEAD);
        assert_eq!(
            (head[4..6].to_vec(), head[6..8].to_vec()),
            (2u16.to_ne_bytes().to_vec(), 4u16.to_ne_bytes().to_vec())
        );
        assert_eq!(
            [&words(&head)[..1], &words(&head)[2..]].concat(),
            [0xA1B2_3C4D, 0, 0, 262_144, 1]
        );
        let before = before(Timestamp { sec: 7, nsec: 8 }, 9, 10);
        assert_eq!(before.as_flattened().len() as u64, BEFORE);
        assert_eq!(words(before.as_flattened()), [7, 8, 9, 10]);
    }
}
