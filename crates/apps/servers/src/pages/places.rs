//! Where pages lie in the file: two places for each, so that power loss amid a write of a page
//! leaves the version before it.
//!
//! ```text
//! 0                16 KiB                            32 KiB
//! head             page 0: place 0 | place 1         page 1: place 0 | place 1         ...
//!
//! head   0 "OBPAGES2" | 8 bytes of a page u32 | 12 check u32 of 0..12 | 16 zeros
//! ```
//!
//! The newer of two whole versions counts. A page is written over its older version, and only when
//! the newer one has been flushed ([`super::store`]).

use xxhash_rust::xxh3::xxh3_64;

use super::wire::{self, PAGE};

/// Bytes of a page.
pub(super) const PAGE64: u64 = PAGE as u64;
/// Bytes of both places of a page.
pub(super) const PAIR: usize = 2 * PAGE;
const PAIR64: u64 = PAIR as u64;
/// Bytes of a head in the file.
pub(super) const HEAD_BLOCK: usize = 4096;
const MAGIC: &[u8; 8] = b"OBPAGES2";

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
}

/// Where both places of `page` begin.
pub(super) fn pair(page: u64) -> u64 {
    (page + 1) * PAIR64
}

/// Where one of them begins.
pub(super) fn offset(page: u64, place: Place) -> u64 {
    match place {
        Place::First => pair(page),
        Place::Second => pair(page) + PAGE64,
    }
}

/// The page of which one place begins at `offset`.
pub(super) fn page_at(offset: u64) -> Option<u64> {
    let is_place = offset.is_multiple_of(PAGE64);
    (offset / PAIR64).checked_sub(1).filter(|_| is_place)
}

/// The newest version of a page.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Newest {
    /// It lies here, and is of this LSN.
    Whole(Place, u64),
    /// It was never written; or its first write was cut short.
    None,
    /// Both places hold something that is none.
    Damaged,
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
        _ if damaged == [true, true] => Newest::Damaged,
        _ => Newest::None,
    };
    (newest, damaged != [false, false])
}

fn is_zero(bytes: &[u8]) -> bool {
    bytes.iter().all(|byte| *byte == 0)
}

/// The head of a file of pages.
pub(super) fn head() -> [u8; HEAD_BLOCK] {
    let mut block = [0; HEAD_BLOCK];
    let bytes = u32::try_from(PAGE).unwrap_or(0).to_le_bytes();
    block[..8].copy_from_slice(MAGIC);
    block[8..12].copy_from_slice(&bytes);
    let check = u32::try_from(xxh3_64(&block[..12]) & u64::from(u32::MAX)).unwrap_or(0);
    block[12..16].copy_from_slice(&check.to_le_bytes());
    block
}

/// What the head of a file says.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Headed {
    /// Pages of this format follow.
    Pages,
    /// Nothing was ever written.
    Nothing,
    /// It is something else's.
    Foreign,
}

/// Looks at the first block of a file.
pub(super) fn headed(block: &[u8]) -> Headed {
    if block == head() {
        Headed::Pages
    } else if is_zero(block) {
        Headed::Nothing
    } else {
        Headed::Foreign
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
    fn places_are_found_again() {
        for page in [0, 1, 77, wire::PAGE_MAX] {
            for place in [Place::First, Place::Second] {
                assert_eq!(page_at(offset(page, place)), Some(page));
                assert_eq!(page_at(offset(page, place) + 4096), None);
            }
        }
        assert_eq!((page_at(0), page_at(PAGE64)), (None, None), "the head is no page");
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
        let others = version(4, 6);
        assert_eq!(of(&others, &others), (Newest::Damaged, true), "another page's");
    }

    #[test]
    fn a_head_is_known_and_nothing_else_is() {
        assert_eq!(headed(&head()), Headed::Pages);
        assert_eq!(headed(&[0; HEAD_BLOCK]), Headed::Nothing);
        for at in 0..16 {
            let mut other = head();
            other[at] ^= 1;
            assert_eq!(headed(&other), Headed::Foreign);
        }
    }
}
