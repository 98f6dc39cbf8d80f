//! What a block holds.

use outboard_base::Rng;
use outboard_codec::crc32c;

use super::BLOCK;

const MAGIC: u64 = 0x4548_4F43_4B4C_4221;
const SUM_AT: usize = BLOCK - 4;

/// What was found in a block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Found {
    /// Nothing was ever written there.
    Nothing,
    /// A whole record of that block, by its owner: for which time it was written.
    Whole(u64),
    /// Anything else: a torn write, or somebody else's bytes.
    Torn,
}

/// The record of a block, written for the `seq`th time.
pub fn make(file: u64, block: u64, seq: u64, out: &mut [u8]) {
    let mut rng = Rng::new(file << 48 ^ block << 32 ^ seq);
    rng.fill(out);
    for (at, word) in [MAGIC, file, block, seq].into_iter().enumerate() {
        if let Some(place) = out.get_mut(at * 8..at * 8 + 8) {
            place.copy_from_slice(&word.to_le_bytes());
        }
    }
    if let Some((bytes, sum)) = out.split_at_mut_checked(SUM_AT) {
        sum.copy_from_slice(&crc32c(bytes).to_le_bytes());
    }
}

/// Reads a block back.
pub fn read(file: u64, block: u64, bytes: &[u8]) -> Found {
    if bytes.iter().all(|byte| *byte == 0) {
        return Found::Nothing;
    }
    let word = |at: usize| {
        let bytes = bytes.get(at * 8..at * 8 + 8).and_then(|word| word.first_chunk::<8>());
        bytes.map_or(0, |word| u64::from_le_bytes(*word))
    };
    let whole = bytes.split_at_checked(SUM_AT).is_some_and(|(bytes, sum)| {
        sum.first_chunk::<4>().is_some_and(|sum| u32::from_le_bytes(*sum) == crc32c(bytes))
    });
    if whole && [word(0), word(1), word(2)] == [MAGIC, file, block] {
        Found::Whole(word(3))
    } else {
        Found::Torn
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_is_of_its_block_and_whole() {
        let mut bytes = vec![0; BLOCK];
        assert_eq!(read(1, 2, &bytes), Found::Nothing);
        make(1, 2, 3, &mut bytes);
        assert_eq!(read(1, 2, &bytes), Found::Whole(3));
        assert_eq!(read(1, 3, &bytes), Found::Torn);
        let mut newer = vec![0; BLOCK];
        make(1, 2, 4, &mut newer);
        for cut in [32, 512, 4000, 4092] {
            let torn = [&newer[..cut], &bytes[cut..]].concat();
            assert_eq!(read(1, 2, &torn), Found::Torn, "{cut}");
        }
    }
}
