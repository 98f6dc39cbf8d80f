//! A seeded hash of keys: quick, and not to be aimed at by who chooses names.

use std::hash::{BuildHasher, Hasher, RandomState};

use xxhash_rust::xxh3::xxh3_64_with_seed;

/// XXH3 under a secret seed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct KeyHash(u64);

impl KeyHash {
    /// With a secret of its own.
    pub(crate) fn new() -> KeyHash {
        KeyHash(RandomState::new().hash_one(0))
    }

    /// The hash of `key`.
    pub(crate) fn of(&self, key: &[u8]) -> u64 {
        xxh3_64_with_seed(key, self.0)
    }
}

/// What is a hash already.
#[derive(Default)]
pub(crate) struct Plain(u64);

impl Hasher for Plain {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            self.0 = self.0.rotate_left(8) ^ u64::from(byte);
        }
    }

    fn write_u64(&mut self, hash: u64) {
        self.0 = hash;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    /// Keys as they are: a tag, numbers that rise, names of a pattern. Low bits choose a place in a
    /// map, high bits a shard: both must spread.
    #[test]
    fn similar_keys_spread() {
        let hash = KeyHash::new();
        let mut keys: Vec<Vec<u8>> = vec![vec![], vec![0], vec![0, 0]];
        for n in 0..20_000_u64 {
            keys.push([&[0x10][..], &n.to_be_bytes()].concat());
            keys.push([&[0x11][..], &2_u64.to_be_bytes(), format!("file-{n}").as_bytes()].concat());
        }
        let hashes: HashSet<u64> = keys.iter().map(|key| hash.of(key)).collect();
        assert_eq!(hashes.len(), keys.len());
        for shift in [0, 48, 57] {
            let mut buckets = [0_usize; 16];
            for hash in &hashes {
                buckets[usize::try_from((hash >> shift) % 16).unwrap()] += 1;
            }
            let even = keys.len() / 16;
            assert!(buckets.iter().all(|n| n.abs_diff(even) < even / 4), "{shift}: {buckets:?}");
        }
        assert_ne!(KeyHash::new().of(b"a"), KeyHash::new().of(b"a"), "each has its secret");
    }
}
