//! The redo journal: what was committed and may not have reached its shard yet.
//!
//! ```text
//! object  journal.N  | group | group | ... |        at most one batch longer than `OBJECT`
//!         its map: "o" = the claim epoch that made it (8), "x" = that which sealed it (8), if any
//! group   | "OBJG" (4) | length of the writes (4) | offset in the object (8) | object N (8) |
//!         | writes | crc32c of all before (4) |
//! write   | key length (2) | value length (4), all ones deletes | key | value |  little-endian
//! ```
//!
//! A group is written whole at an offset of its own, so doing it twice is doing it once. Its object
//! is never written under another claim epoch: who takes over seals it, and an append asks for "not
//! sealed".

use outboard_codec::crc32c;

use outboard_kv::{Bytes, Key, KvError, Value, Write};

/// Key of the claim epoch that made the object.
pub(crate) const OWNER: &[u8] = b"o";
/// Key of the claim epoch that sealed the object.
pub(crate) const SEALED: &[u8] = b"x";

const MAGIC: [u8; 4] = *b"OBJG";
const HEADER: usize = 24;
const DELETED: u32 = u32::MAX;

/// The name of a journal object.
pub(crate) fn name(object: u64) -> String {
    format!("journal.{object:012}")
}

/// Bytes a write takes in a group.
pub(crate) fn cost(write: &Write) -> usize {
    6 + write.key.len() + write.value.as_ref().map_or(0, |value| value.len())
}

/// The bytes of a group at its place.
pub(crate) fn encode<'a>(
    object: u64,
    offset: u64,
    writes: impl Iterator<Item = &'a Write>,
) -> Result<Bytes, KvError> {
    let mut out = vec![0; HEADER];
    for Write { key, value } in writes {
        let key_len = u16::try_from(key.len()).map_err(|_| KvError::TooLarge)?;
        let len = match value {
            Some(value) => u32::try_from(value.len()).map_err(|_| KvError::TooLarge)?,
            None => DELETED,
        };
        out.extend(key_len.to_le_bytes());
        out.extend(len.to_le_bytes());
        out.extend_from_slice(key);
        out.extend_from_slice(value.as_deref().unwrap_or_default());
    }
    let len = u32::try_from(out.len() - HEADER).map_err(|_| KvError::TooLarge)?;
    let header = [&MAGIC[..], &len.to_le_bytes(), &offset.to_le_bytes(), &object.to_le_bytes()];
    if let Some(place) = out.get_mut(..HEADER) {
        place.copy_from_slice(&header.concat());
    }
    out.extend(crc32c(&out).to_le_bytes());
    Ok(out.into())
}

fn take<'a>(bytes: &mut &'a [u8], len: usize) -> Result<&'a [u8], KvError> {
    let (taken, rest) = bytes.split_at_checked(len).ok_or(KvError::Corrupt)?;
    *bytes = rest;
    Ok(taken)
}

fn number<const N: usize>(bytes: &mut &[u8]) -> Result<[u8; N], KvError> {
    take(bytes, N)?.try_into().map_err(|_| KvError::Corrupt)
}

fn write(bytes: &mut &[u8]) -> Result<Write, KvError> {
    let key_len = u16::from_le_bytes(number(bytes)?);
    let len = u32::from_le_bytes(number(bytes)?);
    let key = Key::from(take(bytes, key_len.into())?);
    if len == DELETED {
        return Ok(Write { key, value: None });
    }
    let len = usize::try_from(len).map_err(|_| KvError::Corrupt)?;
    Ok(Write { key, value: Some(Value::from(take(bytes, len)?)) })
}

/// All writes of a journal object, in order. Every group in it was acknowledged or is the last one
/// sent: whole, both, so whatever else is found is damage.
pub(crate) fn decode(object: u64, bytes: &[u8]) -> Result<Vec<Write>, KvError> {
    let mut writes = Vec::new();
    let mut rest = bytes;
    while !rest.is_empty() {
        let (group, offset) = (rest, bytes.len() - rest.len());
        let magic: [u8; 4] = number(&mut rest)?;
        let len = usize::try_from(u32::from_le_bytes(number(&mut rest)?));
        let len = len.map_err(|_| KvError::Corrupt)?;
        let at = (u64::from_le_bytes(number(&mut rest)?), u64::from_le_bytes(number(&mut rest)?));
        if magic != MAGIC || at != (offset as u64, object) {
            return Err(KvError::Corrupt);
        }
        let mut body = take(&mut rest, len)?;
        let sum = u32::from_le_bytes(number(&mut rest)?);
        if group.get(..HEADER + len).is_none_or(|summed| crc32c(summed) != sum) {
            return Err(KvError::Corrupt);
        }
        while !body.is_empty() {
            writes.push(write(&mut body)?);
        }
    }
    Ok(writes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn writes() -> impl Strategy<Value = Vec<Write>> {
        let bytes = || prop::collection::vec(any::<u8>(), 0..40);
        let one = (bytes(), prop::option::of(bytes()));
        prop::collection::vec(
            one.prop_map(|(key, value)| Write { key: key.into(), value: value.map(Into::into) }),
            0..20,
        )
    }

    proptest! {
        #[test]
        fn groups_come_back_in_order(object: u64, a in writes(), b in writes()) {
            let mut bytes = encode(object, 0, a.iter()).unwrap().to_vec();
            let second = encode(object, bytes.len() as u64, b.iter()).unwrap();
            bytes.extend_from_slice(&second);
            prop_assert_eq!(decode(object, &bytes).unwrap(), [a, b].concat());
            prop_assert_eq!(decode(object ^ 1, &bytes), Err(KvError::Corrupt));
        }

        #[test]
        fn damage_is_found(a in writes(), at: usize, bit in 0..8u8, cut: usize) {
            let bytes = encode(3, 0, a.iter()).unwrap();
            let mut flipped = bytes.to_vec();
            let at = at % flipped.len();
            flipped[at] ^= 1 << bit;
            prop_assert_eq!(decode(3, &flipped), Err(KvError::Corrupt));
            let cut = 1 + cut % (bytes.len() - 1);
            prop_assert_eq!(decode(3, &bytes[..cut]), Err(KvError::Corrupt));
        }

        #[test]
        fn nothing_makes_it_panic(bytes: Vec<u8>) {
            prop_assert_eq!(decode(0, &bytes).is_ok(), bytes.is_empty());
        }
    }

    #[test]
    fn the_bytes_are_pinned() {
        let writes = [
            Write { key: b"k".into(), value: Some(b"vw".into()) },
            Write { key: b"gone".into(), value: None },
        ];
        let bytes = encode(2, 5, writes.iter()).unwrap();
        let expected = b"OBJG\x13\0\0\0\x05\0\0\0\0\0\0\0\x02\0\0\0\0\0\0\0\
            \x01\0\x02\0\0\0kvw\x04\0\xFF\xFF\xFF\xFFgone";
        assert_eq!(bytes[..bytes.len() - 4], expected[..]);
        assert_eq!(name(7), "journal.000000000007");
    }
}
