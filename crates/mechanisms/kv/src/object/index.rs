//! The index of a file object: one key-value pair for each 32 blocks (256 KiB) of file.
//!
//! ```text
//! key    | F0 | object id (8, BE) | page number (4, BE) |
//! value  | entry 0 | entry 1 | ... up to the last that is not a hole | crc32c (4) |
//! entry  | block number (6) | flags (2) | crc32c of the block of file (4) |           12 bytes, LE
//! flags  | bit 0: unwritten | bits 1-4: at | bits 5-8: saved |                     the rest: zero
//! ```
//! A block of file lies in the sectors (512 bytes) from number `at` of its block of the medium on:
//! 16 of them less those `saved`, which is 0 unless it is packed. It may reach into the next block.
//! Several entries of one page, and of no other, may lie in one block so.
//!
//! The page's checksum covers its key's object id and page number too, so that a page found under
//! another key fails it. A page of holes only has no pair.

use std::ops::Range;

use outboard_codec::crc32c;

use super::{BLOCK, ObjectId};
use crate::{Batch, KvError, Value};

/// First byte of the keys of index pages; the store owns tags from here to 0xFF.
pub(super) const TAG_INDEX: u8 = 0xF0;
/// Allocation map pages.
pub(super) const TAG_MAP: u8 = 0xF1;
/// Records of moves.
pub(super) const TAG_MOVES: u8 = 0xF2;
/// The store's header.
pub(super) const TAG_HEAD: u8 = 0xF3;

/// Entries of a page.
pub(super) const SLOTS: usize = 32;
/// Bytes of file a page covers.
pub(super) const PAGE_SPAN: u64 = SLOTS as u64 * BLOCK;
/// Bytes of an entry.
pub(super) const ENTRY: usize = 12;
/// Bytes of a sector, in which places within a block are counted.
pub(super) const SECTOR: usize = 512;
/// Sectors of a block.
pub(super) const SECTORS: u8 = 16;
const _: () = assert!(SECTORS as u64 * SECTOR as u64 == BLOCK);
const UNWRITTEN: u16 = 1;
const AT_SHIFT: u16 = 1;
const SAVED_SHIFT: u16 = 5;
/// What `at` and `saved` may be at most.
const SECTOR_MAX: u16 = SECTORS as u16 - 1;
const FLAGS: u16 = UNWRITTEN | SECTOR_MAX << AT_SHIFT | SECTOR_MAX << SAVED_SHIFT;

/// Where one block of file lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub(super) struct Entry {
    /// Block number on the medium; 0 is a hole (block 0 is the medium's header).
    pub(super) block: u64,
    /// Given a block that was never written: reads zero.
    pub(super) unwritten: bool,
    /// The sector of the block at which it begins.
    pub(super) at: u8,
    /// How many sectors less than a block it takes: 0 unless it is packed.
    pub(super) saved: u8,
    /// Checksum of the block of file as it is read; 0 if there is nothing to check.
    pub(super) crc: u32,
}

impl Entry {
    pub(super) const HOLE: Entry = Entry { block: 0, unwritten: false, at: 0, saved: 0, crc: 0 };

    /// All of a block of the medium.
    pub(super) fn whole(block: u64, crc: u32) -> Entry {
        Entry { block, crc, ..Entry::HOLE }
    }

    /// A block that was never written.
    pub(super) fn unwritten(block: u64) -> Entry {
        Entry { block, unwritten: true, ..Entry::HOLE }
    }

    /// Whether it has a block of the medium to itself.
    pub(super) fn is_whole(self) -> bool {
        self.block != 0 && self.at == 0 && self.saved == 0
    }

    /// The sectors of the medium it lies in.
    pub(super) fn sectors(self) -> Range<u64> {
        let start = self.block * u64::from(SECTORS) + u64::from(self.at);
        start..start + u64::from(SECTORS - self.saved.min(SECTORS))
    }

    /// The blocks of the medium it lies in: one or two; none if it is a hole.
    pub(super) fn blocks(self) -> Range<u64> {
        if self.block == 0 {
            return 0..0;
        }
        self.block..self.sectors().end.div_ceil(u64::from(SECTORS))
    }

    /// Whether it has bytes on the medium that mean something.
    pub(super) fn is_data(self) -> bool {
        self.block != 0 && !self.unwritten
    }

    pub(super) fn encode(self) -> [u8; ENTRY] {
        let flags = u16::from(self.unwritten)
            | u16::from(self.at) << AT_SHIFT
            | u16::from(self.saved) << SAVED_SHIFT;
        let [b0, b1, b2, b3, b4, b5, ..] = self.block.to_le_bytes();
        let [f0, f1] = flags.to_le_bytes();
        let [c0, c1, c2, c3] = self.crc.to_le_bytes();
        [b0, b1, b2, b3, b4, b5, f0, f1, c0, c1, c2, c3]
    }

    pub(super) fn decode(bytes: &[u8; ENTRY]) -> Result<Entry, KvError> {
        let &[b0, b1, b2, b3, b4, b5, f0, f1, c0, c1, c2, c3] = bytes;
        let flags = u16::from_le_bytes([f0, f1]);
        let sectors = |shift: u16| u8::try_from(flags >> shift & SECTOR_MAX).unwrap_or(0);
        let entry = Entry {
            block: u64::from_le_bytes([b0, b1, b2, b3, b4, b5, 0, 0]),
            unwritten: flags & UNWRITTEN != 0,
            at: sectors(AT_SHIFT),
            saved: sectors(SAVED_SHIFT),
            crc: u32::from_le_bytes([c0, c1, c2, c3]),
        };
        // One meaning, one encoding: anything else was not written by us.
        let sound = flags & !FLAGS == 0
            && (entry.is_data() || entry.crc == 0 && entry.at == 0 && entry.saved == 0)
            && (entry.block != 0 || !entry.unwritten);
        if sound { Ok(entry) } else { Err(KvError::Corrupt) }
    }
}

/// One page of an index.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub(super) struct Page {
    pub(super) entries: [Entry; SLOTS],
}

impl Page {
    pub(super) fn get(&self, slot: usize) -> Entry {
        self.entries.get(slot).copied().unwrap_or(Entry::HOLE)
    }

    pub(super) fn set(&mut self, slot: usize, entry: Entry) {
        if let Some(at) = self.entries.get_mut(slot) {
            *at = entry;
        }
    }

    /// Whether an entry lies in a block of the medium.
    pub(super) fn names(&self, block: u64) -> bool {
        self.entries.iter().any(|entry| entry.blocks().contains(&block))
    }

    fn checksum(id: ObjectId, number: u32, entries: &[u8]) -> u32 {
        let mut covered = Vec::with_capacity(12 + entries.len());
        covered.extend_from_slice(&id.0.to_be_bytes());
        covered.extend_from_slice(&number.to_be_bytes());
        covered.extend_from_slice(entries);
        crc32c(&covered)
    }

    pub(super) fn decode(id: ObjectId, number: u32, value: &[u8]) -> Result<Page, KvError> {
        let (entries, crc) = value.split_last_chunk::<4>().ok_or(KvError::Corrupt)?;
        let (chunks, rest) = entries.as_chunks::<ENTRY>();
        if !rest.is_empty()
            || chunks.len() > SLOTS
            || Self::checksum(id, number, entries) != u32::from_le_bytes(*crc)
        {
            return Err(KvError::Corrupt);
        }
        let mut page = Page::default();
        for (entry, bytes) in page.entries.iter_mut().zip(chunks) {
            *entry = Entry::decode(bytes)?;
        }
        Ok(page)
    }

    /// The page a pair holds; all holes if there is no pair.
    pub(super) fn of(id: ObjectId, number: u32, value: Option<&Value>) -> Result<Page, KvError> {
        match value {
            Some(value) => Page::decode(id, number, value),
            None => Ok(Page::default()),
        }
    }

    /// The value of the page's pair; `None` if it holds nothing but holes.
    pub(super) fn encode(&self, id: ObjectId, number: u32) -> Option<Vec<u8>> {
        let used = self.entries.iter().rposition(|e| *e != Entry::HOLE)? + 1;
        let mut value = Vec::with_capacity(used * ENTRY + 4);
        for entry in self.entries.iter().take(used) {
            value.extend_from_slice(&entry.encode());
        }
        let crc = Self::checksum(id, number, &value);
        value.extend_from_slice(&crc.to_le_bytes());
        Some(value)
    }

    /// Puts the page, or deletes it when empty.
    pub(super) fn stage(&self, id: ObjectId, number: u32, batch: &mut Batch) {
        match self.encode(id, number) {
            Some(value) => batch.put(page_key(id, number), value),
            None => batch.delete(page_key(id, number)),
        }
    }
}

/// Key of a page.
pub(super) fn page_key(id: ObjectId, number: u32) -> [u8; 13] {
    let mut key = [TAG_INDEX; 13];
    let (_, rest) = key.split_at_mut(1);
    let (object, page) = rest.split_at_mut(8);
    object.copy_from_slice(&id.0.to_be_bytes());
    page.copy_from_slice(&number.to_be_bytes());
    key
}

/// Prefix of the keys of all pages of an object.
pub(super) fn object_prefix(id: ObjectId) -> [u8; 9] {
    let mut prefix = [TAG_INDEX; 9];
    if let Some((_, object)) = prefix.split_first_mut() {
        object.copy_from_slice(&id.0.to_be_bytes());
    }
    prefix
}

/// What a page's key says.
pub(super) fn parse_page_key(key: &[u8]) -> Result<(ObjectId, u32), KvError> {
    let [TAG_INDEX, rest @ ..] = key else { return Err(KvError::Corrupt) };
    let (object, page) = rest.split_first_chunk::<8>().ok_or(KvError::Corrupt)?;
    let page = <[u8; 4]>::try_from(page).map_err(|_| KvError::Corrupt)?;
    Ok((ObjectId(u64::from_be_bytes(*object)), u32::from_be_bytes(page)))
}

/// Key made of a tag and a number.
pub(super) fn number_key(tag: u8, number: u64) -> [u8; 9] {
    let mut key = [tag; 9];
    if let Some((_, rest)) = key.split_first_mut() {
        rest.copy_from_slice(&number.to_be_bytes());
    }
    key
}

/// What such a key says.
pub(super) fn parse_number_key(tag: u8, key: &[u8]) -> Result<u64, KvError> {
    match key.split_first() {
        Some((t, number)) if *t == tag => {
            <[u8; 8]>::try_from(number).map(u64::from_be_bytes).map_err(|_| KvError::Corrupt)
        }
        _ => Err(KvError::Corrupt),
    }
}

/// Page and slot of a block of file.
pub(super) fn locate(file_block: u64) -> (u32, usize) {
    let slots = SLOTS as u64;
    (
        u32::try_from(file_block / slots).unwrap_or(u32::MAX),
        usize::try_from(file_block % slots).unwrap_or(0),
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn entry() -> impl Strategy<Value = Entry> {
        prop_oneof![
            Just(Entry::HOLE),
            (1..1u64 << 48, any::<u32>()).prop_map(|(block, crc)| Entry::whole(block, crc)),
            (1..1u64 << 48, 0..SECTORS, 0..SECTORS, any::<u32>()).prop_map(
                |(block, at, saved, crc)| Entry { at, saved, ..Entry::whole(block, crc) }
            ),
            (1..1u64 << 48).prop_map(Entry::unwritten),
        ]
    }

    proptest! {
        #[test]
        fn a_page_comes_back(
            entries in proptest::array::uniform32(entry()),
            id in any::<u64>(),
            number in any::<u32>(),
        ) {
            let page = Page { entries };
            match page.encode(ObjectId(id), number) {
                None => prop_assert_eq!(page, Page::default()),
                Some(value) => {
                    prop_assert_eq!(Page::decode(ObjectId(id), number, &value), Ok(page));
                    // Under any other key it is not a page.
                    prop_assert!(Page::decode(ObjectId(id ^ 1), number, &value).is_err());
                    prop_assert!(Page::decode(ObjectId(id), number ^ 1, &value).is_err());
                }
            }
            let key = page_key(ObjectId(id), number);
            prop_assert_eq!(parse_page_key(&key), Ok((ObjectId(id), number)));
        }

        #[test]
        fn no_bytes_panic(bytes in proptest::collection::vec(any::<u8>(), 0..500)) {
            let _ = Page::decode(ObjectId(1), 0, &bytes);
            let _ = parse_page_key(&bytes);
        }

        #[test]
        fn one_flipped_bit_is_seen(
            entries in proptest::array::uniform32(entry()),
            at in any::<prop::sample::Index>(),
            bit in 0..8u32,
        ) {
            if let Some(mut value) = (Page { entries }).encode(ObjectId(7), 3) {
                let at = at.index(value.len());
                value[at] ^= 1u8 << bit;
                prop_assert!(Page::decode(ObjectId(7), 3, &value).is_err());
            }
        }
    }

    #[test]
    fn an_entry_lies_in_one_block_or_two() {
        let whole = Entry::whole(5, 1);
        assert_eq!((whole.blocks(), whole.sectors()), (5..6, 80..96));
        assert_eq!(Entry { at: 1, ..whole }.blocks(), 5..7);
        let packed = Entry { at: 10, saved: 10, ..whole };
        assert_eq!((packed.blocks(), packed.sectors()), (5..6, 90..96));
        assert_eq!(Entry { at: 11, ..packed }.blocks(), 5..7);
        assert_eq!(Entry::HOLE.blocks(), 0..0);
        assert!(whole.is_whole() && !packed.is_whole() && !Entry::HOLE.is_whole());
    }

    /// The bytes are a format on disk: a change here needs a new version of the data directory.
    #[test]
    fn the_bytes_are_pinned() {
        let mut page = Page::default();
        let whole = Entry::whole(0x0102_0304_0506, 0xA1B2_C3D4);
        page.set(1, whole);
        page.set(2, Entry { at: 13, saved: 9, ..whole });
        page.set(3, Entry::unwritten(7));
        let value = page.encode(ObjectId(2), 1).unwrap();
        assert_eq!(value[..12], [0; 12]);
        assert_eq!(value[12..24], [6, 5, 4, 3, 2, 1, 0, 0, 0xD4, 0xC3, 0xB2, 0xA1]);
        assert_eq!(value[24..36], [6, 5, 4, 3, 2, 1, 0x3A, 1, 0xD4, 0xC3, 0xB2, 0xA1]);
        assert_eq!(value[36..48], [7, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0]);
        assert_eq!(value.len(), 52);
        assert_eq!(page_key(ObjectId(2), 1), [0xF0, 0, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0, 1]);
    }
}
