//! Records of moves: the log of allocation changes since the allocation map was last written.
//!
//! ```text
//! key    | F2 | sequence (8, BE) |
//! value  | flushed (8) | group | group | ... | crc32c (4) |
//! group  | object id (8) | page (4) | count (1) |
//!        | count x { slot (1) | old entry (12) | new entry (12) } |
//! ```
//! All little-endian. `flushed` says: every record with a lower sequence number was durable, blocks
//! and all, when this one was written. Record 0, the mark, has no moves: a sync writes it to say
//! what it proved.

use outboard_codec::crc32c;

use super::ObjectId;
use super::index::{ENTRY, Entry, SLOTS};
use crate::KvError;

/// The number of the mark; records of moves are numbered from 1.
pub(super) const MARK: u64 = 0;

/// One index entry changing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Move {
    pub(super) id: ObjectId,
    pub(super) page: u32,
    pub(super) slot: u8,
    pub(super) old: Entry,
    pub(super) new: Entry,
}

/// The value of a record. Moves of one page must be adjacent to share a group.
pub(super) fn encode(flushed: u64, moves: &[Move]) -> Vec<u8> {
    let mut value = Vec::with_capacity(32 + moves.len() * (2 * ENTRY + 1));
    value.extend_from_slice(&flushed.to_le_bytes());
    for group in moves.chunk_by(|a, b| (a.id, a.page) == (b.id, b.page)) {
        for part in group.chunks(SLOTS) {
            if let Some(first) = part.first() {
                value.extend_from_slice(&first.id.0.to_le_bytes());
                value.extend_from_slice(&first.page.to_le_bytes());
                value.push(u8::try_from(part.len()).unwrap_or(u8::MAX));
            }
            for m in part {
                value.push(m.slot);
                value.extend_from_slice(&m.old.encode());
                value.extend_from_slice(&m.new.encode());
            }
        }
    }
    let crc = crc32c(&value);
    value.extend_from_slice(&crc.to_le_bytes());
    value
}

/// Takes the first `N` bytes off `bytes`.
fn cut<const N: usize>(bytes: &mut &[u8]) -> Result<[u8; N], KvError> {
    let (head, rest) = bytes.split_first_chunk::<N>().ok_or(KvError::Corrupt)?;
    *bytes = rest;
    Ok(*head)
}

/// What a record says.
pub(super) fn decode(value: &[u8]) -> Result<(u64, Vec<Move>), KvError> {
    let (mut body, crc) = value.split_last_chunk::<4>().ok_or(KvError::Corrupt)?;
    if crc32c(body) != u32::from_le_bytes(*crc) {
        return Err(KvError::Corrupt);
    }
    let flushed = u64::from_le_bytes(cut(&mut body)?);
    let mut moves = Vec::new();
    while !body.is_empty() {
        let id = ObjectId(u64::from_le_bytes(cut(&mut body)?));
        let page = u32::from_le_bytes(cut(&mut body)?);
        let [count] = cut(&mut body)?;
        for _ in 0..count {
            let [slot] = cut(&mut body)?;
            let old = Entry::decode(&cut(&mut body)?)?;
            let new = Entry::decode(&cut(&mut body)?)?;
            if usize::from(slot) >= SLOTS {
                return Err(KvError::Corrupt);
            }
            moves.push(Move { id, page, slot, old, new });
        }
    }
    Ok((flushed, moves))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn one() -> impl Strategy<Value = Move> {
        (0..4u64, 0..4u32, 0..32u8, 1..1000u64, any::<u32>(), any::<bool>()).prop_map(
            |(id, page, slot, block, crc, hole)| Move {
                id: ObjectId(id),
                page,
                slot,
                old: if hole { Entry::HOLE } else { Entry::unwritten(block) },
                new: Entry::whole(block + 1, crc),
            },
        )
    }

    proptest! {
        #[test]
        fn a_record_comes_back(
            moves in proptest::collection::vec(one(), 0..100), flushed in any::<u64>(),
        ) {
            let value = encode(flushed, &moves);
            prop_assert_eq!(decode(&value), Ok((flushed, moves)));
        }

        #[test]
        fn no_bytes_panic(
            mut bytes in proptest::collection::vec(any::<u8>(), 0..300),
            fix in any::<bool>(),
        ) {
            if fix && bytes.len() > 4 {
                let at = bytes.len() - 4;
                let crc = crc32c(&bytes[..at]);
                bytes[at..].copy_from_slice(&crc.to_le_bytes());
            }
            let _ = decode(&bytes);
        }
    }
}
