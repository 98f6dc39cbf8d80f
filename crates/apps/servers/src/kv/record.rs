//! A record of the log, and the page it lies in.
//!
//! ```text
//! page    0 magic u64 | 8 number u64 | 16 life u64 | 24 used u32 | 28 check u32 | 32 0 ... |
//!         64 records
//! record  0 check u32 | 4 flags u8 | 5 0 | 6 key length u16 | 8 bulk length u32 |
//!         12 room u32 | 16 earlier u64 | 24 key | bulk | to the next multiple of 8
//! ```
//!
//! Little-endian. The **bulk** is the value as RESP sends it (`$5\r\nhello\r\n`), so an answer is
//! sent from where the record lies. `earlier` is the address of the record that the index named
//! before, 0 for none. Checks are made when a page is sealed; before, the page changes in memory.

use xxhash_rust::xxh3::xxh3_64;

/// Bytes of a page.
pub(super) const PAGE: usize = 1 << 20;
/// Bytes before the first record of a page.
pub(super) const PAGE_HEAD: usize = 64;
/// Bytes before a record's key.
pub(super) const HEAD: usize = 24;
/// Longest key, bytes.
pub(super) const KEY_MAX: usize = 32 << 10;
/// Longest value, bytes: a record lies in one page.
pub(super) const VALUE_MAX: usize = 512 << 10;

const MAGIC: u64 = 0x3230_676F_4C76_4B50;
/// Bytes of a page's head that are checked.
const CHECKED: usize = 28;
/// The key was deleted.
pub(super) const DELETED: u8 = 1;
/// The index named another record of the key when the page was sealed.
pub(super) const SUPERSEDED: u8 = 2;

const _: () = assert!(HEAD + KEY_MAX + VALUE_MAX + 64 < PAGE - PAGE_HEAD);

fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    bytes.get(at..)?.first_chunk().map(|bytes| u16::from_le_bytes(*bytes))
}

pub(super) fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    bytes.get(at..)?.first_chunk().map(|bytes| u32::from_le_bytes(*bytes))
}

pub(super) fn u64_at(bytes: &[u8], at: usize) -> Option<u64> {
    bytes.get(at..)?.first_chunk().map(|bytes| u64::from_le_bytes(*bytes))
}

pub(super) fn put(bytes: &mut [u8], at: usize, value: &[u8]) {
    if let Some(to) = bytes.get_mut(at..at + value.len()) {
        to.copy_from_slice(value);
    }
}

pub(super) fn check_of(bytes: &[u8]) -> u32 {
    u32::try_from(xxh3_64(bytes) & u64::from(u32::MAX)).unwrap_or(0)
}

/// A checked view of a record.
#[derive(Clone, Copy, Debug)]
pub(super) struct Record<'a> {
    bytes: &'a [u8],
    key_len: usize,
    bulk_len: usize,
    room: usize,
}

impl<'a> Record<'a> {
    /// The record at the start of `bytes`, if its lengths fit there. Its check is not looked at.
    #[must_use]
    pub(super) fn parse(bytes: &'a [u8]) -> Option<Record<'a>> {
        let key_len = usize::from(u16_at(bytes, 6)?);
        let bulk_len = usize::try_from(u32_at(bytes, 8)?).ok()?;
        let room = usize::try_from(u32_at(bytes, 12)?).ok()?;
        let fits = bulk_len <= room && room < PAGE && key_len <= KEY_MAX;
        let len = Record::len_of(key_len, if fits { room } else { return None });
        Some(Record { bytes: bytes.get(..len)?, key_len, bulk_len, room })
    }

    /// Bytes of a record, padded.
    #[must_use]
    pub(super) fn len_of(key_len: usize, room: usize) -> usize {
        (HEAD + key_len + room).next_multiple_of(8)
    }

    /// How long the record at the start of `bytes` is, of which only the head may be there.
    #[must_use]
    pub(super) fn len_from_head(bytes: &[u8]) -> Option<usize> {
        let key_len = usize::from(u16_at(bytes, 6)?);
        let room = usize::try_from(u32_at(bytes, 12)?).ok()?;
        (room < PAGE).then(|| Record::len_of(key_len, room))
    }

    /// Its length in the page.
    #[must_use]
    pub(super) fn len(&self) -> usize {
        self.bytes.len()
    }

    /// Its key.
    #[must_use]
    pub(super) fn key(&self) -> &'a [u8] {
        self.bytes.get(HEAD..HEAD + self.key_len).unwrap_or_default()
    }

    /// Where its bulk lies in it.
    #[must_use]
    pub(super) fn bulk_range(&self) -> std::ops::Range<usize> {
        HEAD + self.key_len..HEAD + self.key_len + self.bulk_len
    }

    /// Its value, as RESP sends it.
    #[must_use]
    pub(super) fn bulk(&self) -> &'a [u8] {
        self.bytes.get(self.bulk_range()).unwrap_or_default()
    }

    /// Its value.
    #[must_use]
    pub(super) fn value(&self) -> &'a [u8] {
        let bulk = self.bulk();
        let start = bulk.iter().position(|byte| *byte == b'\n').map_or(bulk.len(), |at| at + 1);
        bulk.get(start..bulk.len().saturating_sub(2)).unwrap_or_default()
    }

    /// Room for another bulk in its place.
    #[must_use]
    pub(super) fn room(&self) -> usize {
        self.room
    }

    /// [`DELETED`] and [`SUPERSEDED`].
    #[must_use]
    pub(super) fn flags(&self) -> u8 {
        self.bytes.get(4).copied().unwrap_or(0)
    }

    /// Whether it says that its key is not there.
    #[must_use]
    pub(super) fn is_deleted(&self) -> bool {
        self.flags() & DELETED != 0
    }

    /// Address of the record before it.
    #[must_use]
    pub(super) fn earlier(&self) -> u64 {
        u64_at(self.bytes, 16).unwrap_or(0)
    }

    /// Whether its check fits its bytes.
    #[must_use]
    pub(super) fn is_sound(&self) -> bool {
        let rest = self.bytes.get(4..).unwrap_or_default();
        u32_at(self.bytes, 0) == Some(check_of(rest))
    }

    /// Its check.
    #[must_use]
    pub(super) fn check(&self) -> u32 {
        u32_at(self.bytes, 0).unwrap_or(0)
    }
}

/// Writes a record over the start of `bytes`, which has room for it; its length.
pub(super) fn emit(
    bytes: &mut [u8],
    key: &[u8],
    bulk: &[u8],
    room: usize,
    earlier: u64,
    flags: u8,
) -> usize {
    let len = Record::len_of(key.len(), room);
    put(bytes, 0, &[0, 0, 0, 0, flags, 0]);
    put(bytes, 6, &u16::try_from(key.len()).unwrap_or(u16::MAX).to_le_bytes());
    put(bytes, 8, &u32::try_from(bulk.len()).unwrap_or(u32::MAX).to_le_bytes());
    put(bytes, 12, &u32::try_from(room).unwrap_or(u32::MAX).to_le_bytes());
    put(bytes, 16, &earlier.to_le_bytes());
    put(bytes, HEAD, key);
    put(bytes, HEAD + key.len(), bulk);
    len
}

/// Puts another bulk in the place of the one in the record at the start of `bytes`.
pub(super) fn replace(bytes: &mut [u8], key_len: usize, bulk: &[u8], flags: u8) {
    put(bytes, 4, &[flags]);
    put(bytes, 8, &u32::try_from(bulk.len()).unwrap_or(u32::MAX).to_le_bytes());
    put(bytes, HEAD + key_len, bulk);
}

/// Marks the record at the start of `bytes`.
pub(super) fn mark(bytes: &mut [u8], flag: u8) {
    if let Some(flags) = bytes.get_mut(4) {
        *flags |= flag;
    }
}

/// Makes the check of the record of `len` bytes at the start of `bytes`.
pub(super) fn seal(bytes: &mut [u8], len: usize) {
    let check = check_of(bytes.get(4..len).unwrap_or_default());
    put(bytes, 0, &check.to_le_bytes());
}

/// What the head of a page says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct PageHead {
    pub(super) number: u64,
    /// Of the store that wrote it. A page that a later one wrote again may lie elsewhere: only the
    /// last one's counts.
    pub(super) life: u64,
    /// Bytes in use.
    pub(super) used: usize,
}

/// Makes the head of a page.
pub(super) fn seal_page(page: &mut [u8], head: PageHead) {
    put(page, 0, &MAGIC.to_le_bytes());
    put(page, 8, &head.number.to_le_bytes());
    put(page, 16, &head.life.to_le_bytes());
    put(page, 24, &u32::try_from(head.used).unwrap_or(0).to_le_bytes());
    let check = check_of(page.get(..CHECKED).unwrap_or_default());
    put(page, CHECKED, &check.to_le_bytes());
}

/// The head of a sealed page; `None` if these are no page's bytes.
#[must_use]
pub(super) fn page_head(page: &[u8]) -> Option<PageHead> {
    let check = check_of(page.get(..CHECKED)?);
    if u64_at(page, 0)? != MAGIC || u32_at(page, CHECKED)? != check {
        return None;
    }
    let used = usize::try_from(u32_at(page, 24)?).ok()?;
    (PAGE_HEAD..=PAGE).contains(&used).then_some(())?;
    Some(PageHead { number: u64_at(page, 8)?, life: u64_at(page, 16)?, used })
}

/// The records of a page in use up to `used`, each with its offset. Ends at the first that does not
/// fit.
pub(super) fn records(page: &[u8], used: usize) -> impl Iterator<Item = (usize, Record<'_>)> {
    let mut at = PAGE_HEAD;
    std::iter::from_fn(move || {
        let record = Record::parse(page.get(at..used)?)?;
        let offset = at;
        at += record.len();
        Some((offset, record))
    })
}

/// Where the records of a sealed page in use up to `used` stop being what was sealed; `None` if all
/// of them are there.
pub(super) fn damage(page: &[u8], used: usize) -> Option<usize> {
    let mut end = PAGE_HEAD;
    for (at, record) in records(page, used) {
        if !record.is_sound() {
            return Some(at);
        }
        end = at + record.len();
    }
    (end != used).then_some(end)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn what_is_written_is_read(
            key in prop::collection::vec(any::<u8>(), 0..50),
            value in prop::collection::vec(any::<u8>(), 0..200),
            slack in 0usize..20,
            earlier: u64,
        ) {
            let bulk = [format!("${}\r\n", value.len()).as_bytes(), &value, b"\r\n"].concat();
            let mut page = vec![0; 1024];
            let room = bulk.len() + slack;
            let len = emit(&mut page[PAGE_HEAD..], &key, &bulk, room, earlier, 0);
            seal(&mut page[PAGE_HEAD..], len);
            let head = PageHead { number: 7, life: earlier, used: PAGE_HEAD + len };
            seal_page(&mut page, head);
            prop_assert_eq!(page_head(&page), Some(head));
            let all: Vec<_> = records(&page, PAGE_HEAD + len).collect();
            prop_assert_eq!(all.len(), 1);
            let record = all[0].1;
            prop_assert!(record.is_sound() && !record.is_deleted());
            prop_assert_eq!((record.key(), record.value()), (&key[..], &value[..]));
            prop_assert_eq!((record.earlier(), record.room()), (earlier, room));
            prop_assert_eq!(Record::len_from_head(&page[PAGE_HEAD..PAGE_HEAD + HEAD]), Some(len));
        }

        /// A length that was damaged ended the page there, and what lay behind it was taken for
        /// nothing: opening and compaction went on without it.
        #[test]
        fn whatever_is_damaged_is_found(
            values in prop::collection::vec(0usize..60, 1..20),
            at: prop::sample::Index,
            bit in 0u8..8,
        ) {
            let (mut page, mut used) = (vec![0; 4096], PAGE_HEAD);
            for n in values {
                let len = emit(&mut page[used..], b"key", &vec![b'v'; n], n, 7, 0);
                seal(&mut page[used..], len);
                used += len;
            }
            prop_assert_eq!(damage(&page, used), None);
            let at = PAGE_HEAD + at.index(used - PAGE_HEAD);
            page[at] ^= 1 << bit;
            prop_assert!(damage(&page, used).is_some_and(|found| found <= at));
        }

        #[test]
        fn any_bytes_are_read_without_harm(bytes: Vec<u8>, used: usize) {
            let _ = page_head(&bytes);
            for (at, record) in records(&bytes, used) {
                prop_assert!(at + record.len() <= bytes.len());
                let _ = (record.key(), record.value(), record.is_sound());
            }
        }
    }
}
