//! Keyed MACs (BLAKE3): keys made from a key, and tags of messages and packets.
//!
//! ```text
//! derive   hash of: bytes of the context u64 | context | bytes of more u64 | more
//! tag      the first 16 bytes of the hash of all parts, one behind the other
//! ```
//!
//! Numbers are little-endian. The parts of a tag are not told apart: who tags has a fixed length
//! for each part but the last. What is hashed for different purposes begins differently, so not
//! even one key for two of them makes one pass for the other.

/// Bytes of a key.
const KEY_LEN: usize = blake3::KEY_LEN;
/// Bytes of a tag.
const TAG_LEN: usize = 16;

/// The key for one purpose, made of another: who has one of them learns nothing of the others.
#[must_use]
pub fn derive(key: &[u8; KEY_LEN], context: &str, more: &[u8]) -> [u8; KEY_LEN] {
    let mut hasher = blake3::Hasher::new_keyed(key);
    for part in [context.as_bytes(), more] {
        hasher.update(&(part.len() as u64).to_le_bytes());
        hasher.update(part);
    }
    *hasher.finalize().as_bytes()
}

/// The tag of `parts`.
#[must_use]
pub fn tag(key: &[u8; KEY_LEN], parts: &[&[u8]]) -> [u8; TAG_LEN] {
    first(&hash(key, parts))
}

/// Whether `tag` is that of `parts`, in a time that does not tell how much of it is right.
#[must_use]
pub fn is_tag(key: &[u8; KEY_LEN], parts: &[&[u8]], tag: &[u8; TAG_LEN]) -> bool {
    is_same(&self::tag(key, parts), tag)
}

fn hash(key: &[u8; KEY_LEN], parts: &[&[u8]]) -> blake3::Hash {
    let mut hasher = blake3::Hasher::new_keyed(key);
    for part in parts {
        hasher.update(part);
    }
    hasher.finalize()
}

fn first(hash: &blake3::Hash) -> [u8; TAG_LEN] {
    let mut out = [0; TAG_LEN];
    out.iter_mut().zip(hash.as_bytes()).for_each(|(to, from)| *to = *from);
    out
}

/// The library compares its hashes in constant time; shorter tags are compared as such.
fn is_same(one: &[u8; TAG_LEN], other: &[u8; TAG_LEN]) -> bool {
    let whole = |tag: &[u8; TAG_LEN]| {
        let mut out = [0; blake3::OUT_LEN];
        out.iter_mut().zip(tag).for_each(|(to, from)| *to = *from);
        blake3::Hash::from_bytes(out)
    };
    whole(one) == whole(other)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// The key of BLAKE3's published vectors; their inputs count to 250, again and again.
    const KEY: &[u8; KEY_LEN] = b"whats the Elvish word for friend";

    fn hex(bytes: &[u8]) -> String {
        bytes.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    /// The first bytes of `keyed_hash` of BLAKE3's `test_vectors.json`.
    #[test]
    fn it_is_the_published_keyed_hash() {
        for (len, expected) in [
            (0, "92b2b75604ed3c761f9d6f62392c8a92"),
            (1, "6d7878dfff2f485635d39013278ae14f"),
            (1023, "c951ecdf03288d0fcc96ee3413563d8a"),
            (1024, "75c46f6f3d9eb4f55ecaaee480db732e"),
            (1025, "357dc55de0c7e382c900fd6e320acc04"),
            (4097, "00df940cd36bb9fa7cbbc3556744e0db"),
        ] {
            let input: Vec<u8> = (0..=250).cycle().take(len).collect();
            let (begin, end) = input.split_at(len / 3);
            let tag = tag(KEY, &[begin, b"", end]);
            assert_eq!(hex(&tag), expected, "{len}");
            assert!(is_tag(KEY, &[&input], &tag));
        }
    }

    /// Keys are contracts between programs: they are hashes of just these bytes.
    #[test]
    fn what_is_hashed_stands_in_the_drawing() {
        let bytes = b"\x0e\0\0\0\0\0\0\0outboard parts\x02\0\0\0\0\0\0\0ab";
        let derived = derive(KEY, "outboard parts", b"ab");
        assert_eq!(derived[..TAG_LEN], tag(KEY, &[bytes]));
    }

    #[test]
    fn each_purpose_has_a_key_of_its_own() {
        let of = [("ab", "c"), ("a", "bc"), ("", "abc"), ("abc", ""), ("ab", "d"), ("", "")];
        let keys = of.map(|(context, more)| derive(KEY, context, more.as_bytes()));
        for (i, key) in keys.iter().enumerate() {
            assert!(!keys[i + 1..].contains(key), "{:?}", of[i]);
            assert_ne!(key, KEY);
        }
    }

    #[test]
    fn whatever_is_changed_is_seen() {
        let good = tag(KEY, &[b"of", b"all"]);
        for bit in 0..8 * TAG_LEN {
            let mut other = good;
            other[bit / 8] ^= 1 << (bit % 8);
            assert!(!is_tag(KEY, &[b"of", b"all"], &other), "{bit}");
        }
        let mut key = *KEY;
        key[31] ^= 1;
        assert!(!is_tag(&key, &[b"ofall"], &good) && !is_tag(KEY, &[b"of all"], &good));
        assert!(is_tag(KEY, &[b"ofall"], &good), "parts are not told apart");
    }

    proptest! {
        #[test]
        fn how_it_is_cut_into_parts_is_the_same(
            bytes in proptest::collection::vec(any::<u8>(), 0..5000),
            cut in any::<prop::sample::Index>(),
            key in any::<[u8; KEY_LEN]>(),
        ) {
            let (begin, end) = bytes.split_at(cut.index(bytes.len() + 1));
            prop_assert_eq!(tag(&key, &[begin, end]), tag(&key, &[&bytes]));
            prop_assert_eq!(derive(&key, "", &bytes), derive(&key, "", &bytes));
            prop_assert!(derive(&key, "", &bytes) != derive(&key, "x", &bytes));
        }
    }
}
