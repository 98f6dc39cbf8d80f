//! Keys as the map of a RADOS object holds them.
//!
//! librados takes the place at which a scan goes on, and its prefix, as C strings: a key may not
//! hold a NUL. So two bytes are written as two each, which keeps the order of keys, and what starts
//! with what:
//!
//! ```text
//! 00 -> 01 01        01 -> 01 02        any other byte -> itself
//! ```

use std::ffi::CString;

const ESCAPE: u8 = 1;

/// A key as it is stored.
pub(crate) fn encode(key: &[u8]) -> Vec<u8> {
    let mut stored = Vec::with_capacity(key.len() + key.len() / 8 + 2);
    for &byte in key {
        if byte <= ESCAPE {
            stored.push(ESCAPE);
        }
        stored.push(if byte <= ESCAPE { byte + 1 } else { byte });
    }
    stored
}

/// A key as it is stored, for librados to read to its NUL.
pub(crate) fn encode_c(key: &[u8]) -> CString {
    // An encoded key has no NUL in it.
    CString::new(encode(key)).unwrap_or_default()
}

/// The key that is stored so; `None` if none is.
pub(crate) fn decode(stored: &[u8]) -> Option<Vec<u8>> {
    let mut key = Vec::with_capacity(stored.len());
    let mut bytes = stored.iter();
    while let Some(&byte) = bytes.next() {
        key.push(match byte {
            0 => return None,
            ESCAPE => match bytes.next() {
                Some(&escaped @ 1..=2) => escaped - 1,
                _ => return None,
            },
            plain => plain,
        });
    }
    Some(key)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn key() -> impl Strategy<Value = Vec<u8>> {
        prop::collection::vec(prop_oneof![0u8..4, any::<u8>()], 0..12)
    }

    proptest! {
        #[test]
        fn what_is_stored_is_read(key in key()) {
            let stored = encode(&key);
            prop_assert!(!stored.contains(&0));
            prop_assert_eq!(decode(&stored), Some(key));
        }

        #[test]
        fn order_and_prefixes_stay(a in key(), b in key()) {
            prop_assert_eq!(a.cmp(&b), encode(&a).cmp(&encode(&b)));
            prop_assert_eq!(a.starts_with(&b), encode(&a).starts_with(&encode(&b)));
        }

        #[test]
        fn what_is_decoded_is_encoded_so(stored in key()) {
            if let Some(key) = decode(&stored) {
                prop_assert_eq!(encode(&key), stored);
            }
        }
    }
}
