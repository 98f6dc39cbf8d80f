//! A seeded hash of keys: quick, and not to be aimed at by who chooses names.

use std::hash::{BuildHasher, Hasher, RandomState};

/// Multiplies and folds eight bytes a step, under two secret numbers.
#[derive(Clone, Copy, Debug)]
pub(crate) struct KeyHash {
    start: u64,
    factor: u64,
}

fn fold(a: u64, b: u64) -> u64 {
    let (low, high) = a.carrying_mul(b, 0);
    low ^ high
}

impl KeyHash {
    /// With a secret of its own.
    pub(crate) fn new() -> KeyHash {
        let random = RandomState::new();
        KeyHash { start: random.hash_one(1), factor: random.hash_one(2) | 1 }
    }

    /// The hash of `key`.
    pub(crate) fn of(&self, key: &[u8]) -> u64 {
        let mut hash = self.start ^ key.len() as u64;
        let (words, tail) = key.as_chunks::<8>();
        for word in words {
            hash = fold(hash ^ u64::from_le_bytes(*word), self.factor);
        }
        let mut last = [0; 8];
        last.iter_mut().zip(tail).for_each(|(to, from)| *to = *from);
        // A last step even without a tail: the last word, too, reaches every bit.
        hash = fold(hash ^ u64::from_le_bytes(last), self.factor);
        fold(hash ^ self.start, self.factor)
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
