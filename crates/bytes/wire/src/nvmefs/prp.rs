//! Physical region page entries: where the bytes of one stream lie.
//!
//! A stream of `len` bytes is described by two entries, by NVMe's rules:
//!
//! * entry 1 may point into the middle of a page and covers to that page's end at most;
//! * when the rest fits one page, entry 2 is that page; otherwise entry 2 points at a *list* of
//!   entries, one a page, as many as the rest needs;
//! * every entry but the first is page aligned; a list is 8-byte aligned and lies within one page.
//!
//! Lists are not chained: a page holds 512 entries, the longest stream needs [`LIST_MAX`]. Offsets
//! count bytes (NVMe: dwords), because a request header ends where its page ends, whatever its
//! length.

use outboard_base::limits::{IO_MAX, PAGE, REQUEST_HEADER_MAX};

/// Most list entries a stream may need: header and data each begin anywhere in a page.
pub const LIST_MAX: usize = (IO_MAX + REQUEST_HEADER_MAX).div_ceil(PAGE) + 1;
/// Bytes of a list entry.
pub const ENTRY_LEN: usize = 8;

const _: () = assert!(LIST_MAX * ENTRY_LEN <= PAGE);

/// Bytes of a page, as the lengths of a command count them.
const PAGE_U32: u32 = 4096;
const PAGE_U64: u64 = 4096;
const _: () = assert!(PAGE == 4096);

/// The two entries of one direction.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Prp {
    /// First entry: any byte of a page.
    pub first: u64,
    /// Second entry: a page, or a list, or unused.
    pub second: u64,
}

/// A contiguous range of host memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    /// Bus address: offset in the region.
    pub at: u64,
    /// Bytes.
    pub len: u32,
}

impl Extent {
    /// The address behind the last byte.
    #[must_use]
    pub fn end(&self) -> u64 {
        self.at.saturating_add(u64::from(self.len))
    }
}

/// An entry or list breaks the rules, or points outside the region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InvalidPrp;

impl From<InvalidPrp> for super::QueueError {
    fn from(_: InvalidPrp) -> Self {
        super::QueueError::InvalidPrp
    }
}

/// Where the list of a stream lies: `None` when two entries are enough.
///
/// # Errors
/// The list is misaligned, crosses a page, lies outside the region, or is longer than [`LIST_MAX`].
pub fn list_of(prp: Prp, len: u32, region_len: u64) -> Result<Option<Extent>, InvalidPrp> {
    let rest = len.saturating_sub(first_len(prp, len));
    if rest <= PAGE_U32 {
        return Ok(None);
    }
    let entries = rest.div_ceil(PAGE_U32);
    let bytes = entries.saturating_mul(8);
    let list = Extent { at: prp.second, len: bytes };
    let in_page = list.at % PAGE_U64 + u64::from(bytes) <= PAGE_U64;
    if !list.at.is_multiple_of(8) || !in_page || !inside(list, region_len) {
        return Err(InvalidPrp);
    }
    Ok(Some(list))
}

/// Appends to `out` the contiguous ranges of a stream, adjacent pages joined. `list` is the
/// copied-out list, empty when [`list_of`] says there is none. Pushes at most `LIST_MAX + 1`
/// ranges.
///
/// # Errors
/// An entry is misaligned or outside the region, or the list is too short.
pub fn walk(
    prp: Prp,
    len: u32,
    list: &[u8],
    region_len: u64,
    out: &mut Vec<Extent>,
) -> Result<(), InvalidPrp> {
    let first = first_len(prp, len);
    if len == 0 {
        return Ok(());
    }
    push(Extent { at: prp.first, len: first }, region_len, out)?;
    let mut rest = len.saturating_sub(first);
    if rest == 0 {
        return Ok(());
    }
    if rest <= PAGE_U32 {
        return push_page(prp.second, rest, region_len, out);
    }
    for entry in list.as_chunks::<ENTRY_LEN>().0 {
        let part = rest.min(PAGE_U32);
        push_page(u64::from_le_bytes(*entry), part, region_len, out)?;
        rest = rest.saturating_sub(part);
        if rest == 0 {
            return Ok(());
        }
    }
    Err(InvalidPrp)
}

/// The part of the first `len` bytes of a stream that lies in its first page; `None` for no bytes.
///
/// # Errors
/// It lies outside the region.
pub fn first_extent(prp: Prp, len: u32, region_len: u64) -> Result<Option<Extent>, InvalidPrp> {
    let extent = Extent { at: prp.first, len: first_len(prp, len) };
    if len == 0 {
        return Ok(None);
    }
    if inside(extent, region_len) { Ok(Some(extent)) } else { Err(InvalidPrp) }
}

/// The entries behind the first that a stream of `len` bytes contiguous from `at` needs, in order.
pub fn pages_behind_first(at: u64, len: u32) -> impl Iterator<Item = u64> + Clone {
    let rest = len.saturating_sub(first_len(Prp { first: at, second: 0 }, len));
    let next = at - at % PAGE_U64 + PAGE_U64;
    (0..rest.div_ceil(PAGE_U32)).map(move |page| next + u64::from(page) * PAGE_U64)
}

fn first_len(prp: Prp, len: u32) -> u32 {
    let room = PAGE_U64 - prp.first % PAGE_U64;
    len.min(u32::try_from(room).unwrap_or(PAGE_U32))
}

fn inside(extent: Extent, region_len: u64) -> bool {
    extent.at >= PAGE_U64
        && extent.at.checked_add(u64::from(extent.len)).is_some_and(|end| end <= region_len)
}

fn push_page(at: u64, len: u32, region_len: u64, out: &mut Vec<Extent>) -> Result<(), InvalidPrp> {
    if !at.is_multiple_of(PAGE_U64) {
        return Err(InvalidPrp);
    }
    push(Extent { at, len }, region_len, out)
}

fn push(extent: Extent, region_len: u64, out: &mut Vec<Extent>) -> Result<(), InvalidPrp> {
    if !inside(extent, region_len) {
        return Err(InvalidPrp);
    }
    match out.last_mut() {
        Some(last) if last.end() == extent.at => last.len += extent.len,
        _ => out.push(extent),
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const REGION: u64 = 64 << 20;

    fn bytes(list: &[u64]) -> Vec<u8> {
        list.iter().flat_map(|e| e.to_le_bytes()).collect()
    }

    #[test]
    fn c3_two_entries_reach_two_pages_and_a_list_the_rest() {
        let aligned = Prp { first: 0x4000, second: 0x9000 };
        assert_eq!(list_of(aligned, 8192, REGION), Ok(None));
        let unaligned = Prp { first: 0x4010, second: 0x9000 };
        assert_eq!(list_of(unaligned, 8192, REGION), Ok(Some(Extent { at: 0x9000, len: 16 })));
        let mut out = Vec::new();
        walk(unaligned, 8192, &bytes(&[0x5000, 0x8000]), REGION, &mut out).unwrap();
        assert_eq!(
            out,
            [Extent { at: 0x4010, len: 8176 }, Extent { at: 0x8000, len: 16 }],
            "adjacent pages are one range"
        );
    }

    #[test]
    fn bad_entries_are_refused() {
        let cases: [(Prp, u32, &[u64]); 7] = [
            (Prp { first: 0, second: 0 }, 1, &[]),
            (Prp { first: REGION, second: 0 }, 1, &[]),
            (Prp { first: u64::MAX, second: 0 }, 1, &[]),
            (Prp { first: 0x1FFF, second: 0x2001 }, 2, &[]),
            (Prp { first: 0x1000, second: 0x2000 }, 8193, &[0x3000]),
            (Prp { first: 0x1000, second: 0x2000 }, 8193, &[0x3008, 0x4000]),
            (Prp { first: 0x1000, second: 0x2000 }, 8193, &[0x3000, REGION]),
        ];
        for (prp, len, list) in cases {
            assert_eq!(walk(prp, len, &bytes(list), REGION, &mut Vec::new()), Err(InvalidPrp));
        }
        for second in [0x2004, 0x2FF8, 0, 8, REGION, u64::MAX - 7] {
            assert_eq!(list_of(Prp { first: 0x1000, second }, 8193, REGION), Err(InvalidPrp));
        }
        let long = Prp { first: 0x1000, second: 0x2000 };
        assert_eq!(list_of(long, u32::MAX, REGION), Err(InvalidPrp));
    }

    proptest! {
        #[test]
        fn a_contiguous_stream_is_one_extent(at in 4096u64..1 << 20, len in 1u32..=1 << 20) {
            let behind: Vec<u64> = pages_behind_first(at, len).collect();
            let second = match behind.as_slice() { [] => 0, [one] => *one, _ => 0x10_0000 };
            let prp = Prp { first: at, second };
            let list = list_of(prp, len, REGION).unwrap();
            let listed = if behind.len() > 1 { behind.len() } else { 0 };
            prop_assert_eq!(list.map_or(0, |l| l.len as usize / 8), listed);
            let mut out = Vec::new();
            walk(prp, len, &bytes(&behind), REGION, &mut out).unwrap();
            prop_assert_eq!(out, vec![Extent { at, len }]);
        }

        #[test]
        fn what_is_walked_lies_inside(
            first: u64, second: u64, len in 0u32..1 << 21,
            list in proptest::collection::vec((0u64..1 << 16).prop_map(|p| p << 12), 0..600),
        ) {
            let prp = Prp { first: first % (2 * REGION), second: (second % (2 * REGION)) & !4095 };
            let mut out = Vec::new();
            if walk(prp, len, &bytes(&list), REGION, &mut out).is_ok() {
                prop_assert_eq!(out.iter().map(|e| u64::from(e.len)).sum::<u64>(), u64::from(len));
                for extent in out {
                    prop_assert!(extent.at >= 4096 && extent.end() <= REGION);
                }
            }
        }
    }
}
