//! Bytes that clone for the price of a counter, or of a few words if they are few.
//!
//! Most keys, and the values of directory entries with short names, lie in the value itself: a scan
//! hands over thousands of pairs, and an allocation for each was half of what a listing cost.

use std::borrow::Borrow;
use std::cmp::Ordering;
use std::fmt;
use std::hash::{Hash, Hasher};
use std::ops::Deref;
use std::sync::Arc;

/// A key: at most [`Kv::KEY_MAX`](crate::Kv::KEY_MAX) bytes, ordered as bytes.
pub type Key = Bytes;
/// A value: at most [`Kv::VALUE_MAX`](crate::Kv::VALUE_MAX) bytes.
pub type Value = Bytes;

/// So many bytes are not allocated: then all of it has 32.
const FEW: usize = 30;

/// Immutable shared bytes; cloning allocates nothing.
#[derive(Clone)]
pub struct Bytes(Repr);

#[derive(Clone)]
enum Repr {
    /// The length, and bytes of which that many count.
    Few(u8, [u8; FEW]),
    Many(Arc<[u8]>),
}

impl Deref for Bytes {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        match &self.0 {
            Repr::Few(len, bytes) => bytes.get(..usize::from(*len)).unwrap_or(bytes),
            Repr::Many(bytes) => bytes,
        }
    }
}

impl AsRef<[u8]> for Bytes {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

impl Borrow<[u8]> for Bytes {
    fn borrow(&self) -> &[u8] {
        self
    }
}

impl Default for Bytes {
    fn default() -> Bytes {
        Bytes(Repr::Few(0, [0; FEW]))
    }
}

impl PartialEq for Bytes {
    fn eq(&self, other: &Bytes) -> bool {
        **self == **other
    }
}

impl Eq for Bytes {}

impl PartialOrd for Bytes {
    fn partial_cmp(&self, other: &Bytes) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Bytes {
    fn cmp(&self, other: &Bytes) -> Ordering {
        (**self).cmp(&**other)
    }
}

/// As the slice does, which [`Borrow`] asks for.
impl Hash for Bytes {
    fn hash<H: Hasher>(&self, state: &mut H) {
        (**self).hash(state);
    }
}

impl From<&[u8]> for Bytes {
    fn from(bytes: &[u8]) -> Bytes {
        let mut few = [0; FEW];
        match (u8::try_from(bytes.len()), few.get_mut(..bytes.len())) {
            (Ok(len), Some(room)) => {
                room.copy_from_slice(bytes);
                Bytes(Repr::Few(len, few))
            }
            _ => Bytes(Repr::Many(bytes.into())),
        }
    }
}

impl<const N: usize> From<&[u8; N]> for Bytes {
    fn from(bytes: &[u8; N]) -> Bytes {
        bytes.as_slice().into()
    }
}

impl<const N: usize> From<[u8; N]> for Bytes {
    fn from(bytes: [u8; N]) -> Bytes {
        bytes.as_slice().into()
    }
}

impl From<Vec<u8>> for Bytes {
    fn from(bytes: Vec<u8>) -> Bytes {
        match bytes.len() {
            ..=FEW => bytes.as_slice().into(),
            _ => Bytes(Repr::Many(bytes.into())),
        }
    }
}

impl fmt::Debug for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "b\"{}\"", self.escape_ascii())
    }
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, HashMap};

    use super::*;

    /// Few or many, they are equal, ordered, hashed and found as slices are.
    #[test]
    fn bytes_are_what_their_slice_is() {
        let lengths = [0, 1, FEW - 1, FEW, FEW + 1, 255, 256, 70_000];
        let all: Vec<Vec<u8>> =
            lengths.iter().flat_map(|&len| [vec![0; len], vec![7; len], vec![0xFF; len]]).collect();
        let (mut hashed, mut ordered) = (HashMap::new(), BTreeMap::new());
        for a in &all {
            let bytes = Bytes::from(a.as_slice());
            assert_eq!((&*bytes, &bytes), (a.as_slice(), &Bytes::from(a.clone())));
            assert_eq!(bytes.clone(), bytes);
            for b in &all {
                let other = Bytes::from(b.as_slice());
                assert_eq!((bytes.cmp(&other), bytes == other), (a.cmp(b), a == b));
            }
            hashed.insert(bytes.clone(), a.len());
            ordered.insert(bytes, a.len());
        }
        for a in &all {
            assert_eq!((hashed.get(&a[..]), ordered.get(&a[..])), (Some(&a.len()), Some(&a.len())));
        }
        assert_eq!(&*Bytes::default(), b"");
        assert_eq!(size_of::<Bytes>(), 32);
    }
}
