//! Where pages lie in the file: a pair of places for each page that exists, so that power loss amid
//! a write of a page leaves the version before it.
//!
//! ```text
//! file   head | dense pages, of an older release | group 0 | group 1 | ...
//! group  directory, 16 KiB | slot 0: place 0, place 1 | slot 1 | ... slot 511
//!
//! head       0 "OBPAGES3" | 8 bytes of a page u32 | 12 slots of a group u32 |
//!            16 where group 0 begins u64 | 24 check u32 of 0..24         in the first two blocks
//! directory  entry of slot 0 | of slot 1 | ...  4096 bytes, then zeros
//! entry      0 page + 1 u32 | 4 check u32 of the slot's number and the page
//! ```
//!
//! A page takes a slot before its first record is answered, and keeps it. Of its two places the
//! newer whole version counts; a page is written over its older version, and only when the newer
//! one has been flushed ([`super::store`]). Directories are written before each flush that slots
//! were taken since. Pages say their numbers themselves, too: what no directory names is looked at
//! when the file is opened. So a directory that cannot be written, or read, loses nobody's page.
//!
//! A release before had "OBPAGES2": page `n` lay at `(n + 1) * 16 KiB`, and the file was as long as
//! its greatest page wanted it. Such pages stay where they are ([`Layout::is_dense`]).

use xxhash_rust::xxh3::xxh3_64;

use super::wire::{self, PAGE, PAGE_MAX};

/// Bytes of a page.
pub(super) const PAGE64: u64 = PAGE as u64;
/// Bytes of both places of a page.
pub(super) const PAIR: usize = 2 * PAGE;
pub(super) const PAIR64: u64 = PAIR as u64;
/// Bytes of a head in the file, and of a directory's entries.
pub(super) const BLOCK: usize = 4096;
/// Bytes from which the heads are read.
pub(super) const HEADS: usize = 2 * BLOCK;
/// Slots of a group: as many entries as fit a block.
pub(super) const SLOTS: u32 = 512;
/// Bytes of a group.
const GROUP: u64 = PAIR64 * (1 + SLOTS as u64);
/// Most slots: a file of 16 TiB.
const SLOTS_MAX: u64 = 1 << 30;
const MAGIC: &[u8; 8] = b"OBPAGES3";
/// Of the release before.
const DENSE: &[u8; 8] = b"OBPAGES2";

/// One of a page's two places.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Place {
    First,
    Second,
}

impl Place {
    pub(super) fn other(self) -> Place {
        match self {
            Place::First => Place::Second,
            Place::Second => Place::First,
        }
    }

    /// Where it begins in a pair.
    pub(super) fn within(self) -> u64 {
        match self {
            Place::First => 0,
            Place::Second => PAGE64,
        }
    }
}

/// Where groups and slots of a file lie.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Layout {
    /// Where group 0 begins.
    pub(super) base: u64,
}

impl Layout {
    /// Of a file that is begun.
    pub(super) const NEW: Layout = Layout { base: PAIR64 };

    /// Of a file of the release before that is `size` bytes long: groups begin behind it.
    pub(super) fn behind(size: u64) -> Layout {
        Layout { base: size.next_multiple_of(PAIR64).max(PAIR64) }
    }

    /// Whether this page has had its place from an older release.
    pub(super) fn is_dense(self, page: u64) -> bool {
        (page + 2).saturating_mul(PAIR64) <= self.base
    }

    /// Where the pair of a dense page begins.
    pub(super) fn dense(page: u64) -> u64 {
        (page + 1) * PAIR64
    }

    /// Where a group's directory is.
    pub(super) fn directory(self, group: u32) -> u64 {
        self.base + u64::from(group) * GROUP
    }

    /// Where a slot begins.
    pub(super) fn slot(self, slot: u32) -> u64 {
        self.directory(slot / SLOTS) + PAIR64 * (1 + u64::from(slot % SLOTS))
    }

    /// Bytes of a file with `slots` slots.
    pub(super) fn bytes(self, slots: u32) -> u64 {
        slots.checked_sub(1).map_or(self.base, |last| self.slot(last) + PAIR64)
    }

    /// Slots of a file of `size` bytes.
    pub(super) fn slots(self, size: u64) -> u32 {
        let groups = size.saturating_sub(self.base);
        let more = (groups % GROUP / PAIR64).saturating_sub(1);
        let slots = groups / GROUP * u64::from(SLOTS) + more;
        u32::try_from(slots.min(SLOTS_MAX)).unwrap_or(0)
    }
}

/// The newest version of a page.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Newest {
    /// It lies here, and is of this LSN.
    Whole(Place, u64),
    /// It was never written; or its first write was cut short.
    None,
    /// Both places hold something that is none, or one of them cannot be read.
    Damaged,
}

/// What stands for bytes that could not be read. No page, entry or head is made of it.
pub(super) const LOST: u8 = 0xFF;

/// Whether one of the places of a pair could not be read.
pub(super) fn is_lost(pair: &[u8]) -> bool {
    pair.chunks(PAGE).any(|place| place.iter().all(|byte| *byte == LOST))
}

/// Of both places of `page`, and whether one of them is damaged.
pub(super) fn newest(pair: &[u8], page: u64) -> (Newest, bool) {
    let (first, second) = pair.split_at_checked(PAGE).unwrap_or_default();
    let lsns = [wire::lsn_of(first, page), wire::lsn_of(second, page)];
    let damaged =
        [(lsns[0], first), (lsns[1], second)].map(|(lsn, bytes)| lsn.is_none() && !is_zero(bytes));
    let newest = match lsns {
        [Some(first), second] if second.is_none_or(|second| second <= first) => {
            Newest::Whole(Place::First, first)
        }
        [_, Some(second)] => Newest::Whole(Place::Second, second),
        // A first version may have been flushed where nothing can be read.
        _ if damaged == [true, true] || is_lost(pair) => Newest::Damaged,
        _ => Newest::None,
    };
    (newest, damaged != [false, false])
}

/// Whose pair this is, as far as what lies there says.
pub(super) fn owner(pair: &[u8]) -> Option<u32> {
    let (first, second) = pair.split_at_checked(PAGE)?;
    let (page, _) = wire::whole(first).or_else(|| wire::whole(second))?;
    u32::try_from(page).ok()
}

fn is_zero(bytes: &[u8]) -> bool {
    bytes.iter().all(|byte| *byte == 0)
}

fn low(hash: u64) -> u32 {
    u32::try_from(hash & u64::from(u32::MAX)).unwrap_or(0)
}

/// The page of a slot that nobody has.
pub(super) const NOBODY: u32 = u32::MAX;

fn entry(slot: u32, page: u32) -> [u8; 8] {
    let both = u64::from(slot) << 32 | u64::from(page);
    let mut entry = [0; 8];
    if page == NOBODY {
        return entry;
    }
    entry[..4].copy_from_slice(&(page + 1).to_le_bytes());
    entry[4..].copy_from_slice(&low(xxh3_64(&both.to_le_bytes())).to_le_bytes());
    entry
}

/// The directory of a group whose slots are of these pages.
pub(super) fn directory(group: u32, pages: &[u32]) -> Vec<u8> {
    (group * SLOTS..).zip(pages).flat_map(|(slot, page)| entry(slot, *page)).collect()
}

/// What a directory says of the slots of its group, one after the other.
pub(super) fn entries(group: u32, block: &[u8]) -> impl Iterator<Item = (u32, Option<u32>)> {
    let slots = group * SLOTS..(group + 1) * SLOTS;
    slots.zip(block.as_chunks::<8>().0).map(|(slot, bytes)| {
        let [a, b, c, d, ..] = *bytes;
        let page = u32::from_le_bytes([a, b, c, d]).checked_sub(1);
        (slot, page.filter(|page| u64::from(*page) <= PAGE_MAX && *bytes == entry(slot, *page)))
    })
}

/// The head of a file.
pub(super) fn head(layout: Layout) -> [u8; BLOCK] {
    let mut block = [0; BLOCK];
    let bytes = u32::try_from(PAGE).unwrap_or(0).to_le_bytes();
    block[..8].copy_from_slice(MAGIC);
    block[8..12].copy_from_slice(&bytes);
    block[12..16].copy_from_slice(&SLOTS.to_le_bytes());
    block[16..24].copy_from_slice(&layout.base.to_le_bytes());
    let check = low(xxh3_64(&block[..24]));
    block[24..28].copy_from_slice(&check.to_le_bytes());
    block
}

/// The head of a file of the release before.
fn dense_head() -> [u8; BLOCK] {
    let mut block = [0; BLOCK];
    let bytes = u32::try_from(PAGE).unwrap_or(0).to_le_bytes();
    block[..8].copy_from_slice(DENSE);
    block[8..12].copy_from_slice(&bytes);
    let check = low(xxh3_64(&block[..12]));
    block[12..16].copy_from_slice(&check.to_le_bytes());
    block
}

/// What the head of a file says.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Headed {
    /// Pages of this format follow.
    Pages(Layout),
    /// Pages of the release before.
    Dense,
    /// Nothing was ever written.
    Nothing,
    /// It is something else's.
    Foreign,
}

fn headed_by(block: &[u8]) -> Headed {
    let base = block.get(16..).and_then(|rest| rest.first_chunk());
    let layout = Layout { base: base.map_or(0, |base| u64::from_le_bytes(*base)) };
    let can_be = layout.base >= PAIR64 && layout.base.is_multiple_of(PAIR64);
    if can_be && block == head(layout) {
        Headed::Pages(layout)
    } else if block == dense_head() {
        Headed::Dense
    } else if is_zero(block) {
        Headed::Nothing
    } else {
        Headed::Foreign
    }
}

/// Looks at the first two blocks of a file: the second counts where the first is lost.
pub(super) fn headed(blocks: &[u8]) -> Headed {
    let (first, second) = blocks.split_at_checked(BLOCK).unwrap_or_default();
    match (headed_by(first), headed_by(second)) {
        (Headed::Foreign | Headed::Nothing, Headed::Pages(layout)) => Headed::Pages(layout),
        (Headed::Nothing, Headed::Foreign) => Headed::Foreign,
        (first, _) => first,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn version(page: u64, lsn: u64) -> Vec<u8> {
        let mut bytes = vec![u8::try_from(lsn).unwrap(); PAGE];
        wire::seal(&mut bytes, page, lsn);
        bytes
    }

    #[test]
    fn slots_lie_behind_one_another_and_are_counted() {
        for layout in [Layout::NEW, Layout::behind(64 << 20)] {
            let mut end = layout.base;
            for slot in 0..3 * SLOTS {
                if slot % SLOTS == 0 {
                    assert_eq!(layout.directory(slot / SLOTS), end);
                    end += PAIR64;
                }
                assert_eq!(layout.slot(slot), end);
                end += PAIR64;
                assert_eq!(layout.bytes(slot + 1), end);
                assert_eq!((layout.slots(end), layout.slots(end - 1)), (slot + 1, slot));
            }
            assert_eq!((layout.slots(0), layout.bytes(0)), (0, layout.base));
        }
        assert_eq!(Layout::NEW.slots(u64::MAX), 1 << 30);
    }

    #[test]
    fn pages_of_the_release_before_stay_where_they_are() {
        let layout = Layout::behind(3 * PAIR64);
        assert!(layout.is_dense(0) && layout.is_dense(1) && !layout.is_dense(2));
        assert_eq!(Layout::dense(1) + PAIR64, layout.base);
        assert!(!Layout::NEW.is_dense(0), "the head is no page");
    }

    /// Every pair of what a place can hold.
    #[test]
    fn the_newer_whole_version_counts() {
        let (zeros, torn) = (vec![0; PAGE], [version(3, 9), version(3, 8)].concat());
        let torn = torn[4096..][..PAGE].to_vec();
        let of = |first: &[u8], second: &[u8]| newest(&[first, second].concat(), 3);
        let (old, new) = (version(3, 5), version(3, 6));
        assert_eq!(of(&old, &new), (Newest::Whole(Place::Second, 6), false));
        assert_eq!(of(&new, &old), (Newest::Whole(Place::First, 6), false));
        assert_eq!(of(&new, &zeros), (Newest::Whole(Place::First, 6), false));
        assert_eq!(of(&zeros, &new), (Newest::Whole(Place::Second, 6), false));
        assert_eq!(of(&torn, &old), (Newest::Whole(Place::Second, 5), true));
        assert_eq!(of(&old, &torn), (Newest::Whole(Place::First, 5), true));
        assert_eq!(of(&zeros, &zeros), (Newest::None, false));
        assert_eq!(of(&torn, &zeros), (Newest::None, true));
        assert_eq!(of(&zeros, &torn), (Newest::None, true));
        assert_eq!(of(&torn, &torn), (Newest::Damaged, true));
        let lost = vec![LOST; PAGE];
        assert_eq!(of(&lost, &old), (Newest::Whole(Place::Second, 5), true));
        assert_eq!(of(&lost, &zeros), (Newest::Damaged, true));
        assert!(
            is_lost(&[lost, old.clone()].concat())
                && !is_lost(&[zeros.clone(), old.clone()].concat())
        );
        let others = version(4, 6);
        assert_eq!(of(&others, &others), (Newest::Damaged, true), "another page's");
        assert_eq!(owner(&[torn.clone(), old].concat()), Some(3));
        assert_eq!(owner(&[torn, zeros].concat()), None);
    }

    #[test]
    fn a_head_is_known_and_nothing_else_is() {
        let layout = Layout { base: 5 * PAIR64 };
        let (head, zeros) = (head(layout), [0; BLOCK]);
        let of = |first: &[u8], second: &[u8]| headed(&[first, second].concat());
        assert_eq!(of(&head, &zeros), Headed::Pages(layout), "the second is not written yet");
        assert_eq!(of(&zeros, &head), Headed::Pages(layout));
        assert_eq!(of(&zeros, &zeros), Headed::Nothing);
        assert_eq!(of(&dense_head(), &zeros), Headed::Dense);
        assert_eq!(of(&dense_head(), &head), Headed::Dense, "it is converted again");
        for at in 0..28 {
            let mut other = head;
            other[at] ^= 1;
            assert_eq!(of(&other, &zeros), Headed::Foreign, "byte {at}");
            assert_eq!(of(&zeros, &other), Headed::Foreign, "byte {at}");
            assert_eq!(of(&other, &head), Headed::Pages(layout), "byte {at}");
        }
        assert_eq!(of(&[], &[]), Headed::Nothing);
    }

    /// A directory is written over itself when more is known, and power may fail amid it.
    #[test]
    fn entries_are_read_as_written_and_each_by_itself() {
        let pages: Vec<u32> = (0..SLOTS).map(|n| n * 7919).collect();
        let mut block = directory(3, &pages);
        assert_eq!(block.len(), BLOCK);
        let expected = (3 * SLOTS..).zip(pages.iter().map(|page| Some(*page)));
        assert!(entries(3, &block).eq(expected));
        assert!(entries(4, &block).all(|(_, page)| page.is_none()), "another group's");
        assert_eq!(directory(3, &[NOBODY]), [0; 8]);
        block[512..].fill(0);
        assert_eq!(entries(3, &block).filter(|(_, page)| page.is_some()).count(), 64);
        block[8] ^= 1;
        assert_eq!(entries(3, &block).filter(|(_, page)| page.is_some()).count(), 63);
        assert_eq!(entries(3, &[]).count(), 0);
    }
}
