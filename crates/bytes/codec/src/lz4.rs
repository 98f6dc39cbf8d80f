//! LZ4 blocks: fast enough to compress on the way to a medium.
//!
//! The format is the block format of LZ4, without a frame: how long it is and what it was are the
//! caller's to know, and to prove by a checksum. The library is built in its safe mode.

use lz4_flex::block::{
    CompressTable, compress_into_with_table, decompress_into, get_maximum_output_size,
};

/// Compresses, with memory that is used again each time.
pub struct Packer {
    table: CompressTable,
    packed: Vec<u8>,
}

impl Default for Packer {
    fn default() -> Packer {
        Packer { table: CompressTable::small(), packed: Vec::new() }
    }
}

impl Packer {
    /// `plain`, compressed; it may come out longer.
    pub fn pack(&mut self, plain: &[u8]) -> &[u8] {
        let most = get_maximum_output_size(plain.len());
        if self.packed.len() < most {
            self.packed.resize(most, 0);
        }
        let packed = compress_into_with_table(plain, &mut self.packed, &mut self.table);
        // With as much room as it may need there is nothing it could fail of.
        self.packed.get(..packed.unwrap_or(0)).unwrap_or_default()
    }
}

/// Fills all of `plain` from what [`Packer::pack`] made of it; `false` if `packed` is anything
/// else, and then `plain` is not to be used. Reads and writes nothing beyond the two, whatever
/// `packed` says.
#[must_use]
pub fn unpack(packed: &[u8], plain: &mut [u8]) -> bool {
    decompress_into(packed, plain).is_ok_and(|len| len == plain.len())
}

/// The body of the fuzz target `lz4`: bytes from anywhere are unpacked, and packed and unpacked
/// again.
#[cfg(any(test, feature = "fuzz"))]
pub fn fuzz(data: &[u8]) {
    const LEN: usize = 8192;
    let _ = unpack(data, &mut [0; LEN]);
    let mut back = vec![0xEE; data.len()];
    let mut packer = Packer::default();
    for _ in 0..2 {
        let whole = unpack(packer.pack(data), &mut back);
        assert!(whole && back == data, "what was packed comes back");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn it_comes_back(
            words in proptest::collection::vec(0..20_u8, 0..20_000),
            noise in proptest::collection::vec(any::<u8>(), 0..2000),
        ) {
            fuzz(&words);
            fuzz(&noise);
        }

        /// Packed bytes with a few changed: never a panic, and never a length other than asked for.
        #[test]
        fn damage_is_an_answer(
            words in proptest::collection::vec(0..9_u8, 1..9000),
            hits in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..8),
            longer in 0..2_usize,
        ) {
            let mut packer = Packer::default();
            let mut packed = packer.pack(&words).to_vec();
            for (at, byte) in hits {
                let at = at.index(packed.len());
                packed[at] = byte;
            }
            let _ = unpack(&packed, &mut vec![0; words.len() + longer]);
        }
    }

    #[test]
    fn another_length_is_refused() {
        let mut packer = Packer::default();
        let packed = packer.pack(&[7; 8192]).to_vec();
        assert!(packed.len() < 100, "{}", packed.len());
        let mut plain = [0; 8193];
        assert!(!unpack(&packed, &mut plain[..8191]) && !unpack(&packed, &mut plain));
        assert!(unpack(&packed, &mut plain[..8192]) && plain[..8192] == [7; 8192]);
        assert!(!unpack(&packed[..packed.len() - 1], &mut plain[..8192]));
        assert!(!unpack(&[], &mut plain[..8192]));
    }
}
