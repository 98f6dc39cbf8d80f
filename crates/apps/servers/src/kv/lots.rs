//! Where the pages of the log lie in its file.
//!
//! ```text
//! file   0 head | 4096 head | ... | 1 MiB lot 0 | 2 MiB lot 1 | ...
//! head   0 magic u64 | 8 begin u64 | 16 sequence u64 | 24 check u32
//! ```
//!
//! A *lot* holds one page of the log, or what nobody needs any more. Pages before *begin* are of
//! the second kind: begin is written to the head, and is durable, before their lots are used again.
//! The two heads are written in turn, so that one is always whole; the higher sequence counts.

use std::collections::{BTreeMap, BTreeSet};

use outboard_medium::Buf;

use super::record::{PAGE, check_of, put, u32_at, u64_at};

const PAGE64: u64 = PAGE as u64;
/// Bytes of a head, and from one to the other.
pub(super) const HEAD_LEN: usize = 4096;
/// Heads there are.
pub(super) const HEADS: usize = 2;
const MAGIC: u64 = 0x3230_676F_4C76_4B4F;
const CHECKED: usize = 24;

/// What the head of the file says.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Head {
    /// The first page that counts.
    pub(super) begin: u64,
    /// Of this head; the highest counts.
    pub(super) sequence: u64,
}

impl Head {
    /// The head in `bytes`; `None` if there is none, or half of one.
    pub(super) fn parse(bytes: &[u8]) -> Option<Head> {
        let sound = u64_at(bytes, 0)? == MAGIC
            && u32_at(bytes, CHECKED)? == check_of(bytes.get(..CHECKED)?);
        let head = Head { begin: u64_at(bytes, 8)?, sequence: u64_at(bytes, 16)? };
        sound.then_some(head)
    }

    /// Where it lies, and its bytes.
    pub(super) fn emit(self) -> (u64, Buf) {
        let mut bytes = Buf::zeroed(HEAD_LEN);
        put(&mut bytes, 0, &MAGIC.to_le_bytes());
        put(&mut bytes, 8, &self.begin.to_le_bytes());
        put(&mut bytes, 16, &self.sequence.to_le_bytes());
        let check = check_of(bytes.get(..CHECKED).unwrap_or_default());
        put(&mut bytes, CHECKED, &check.to_le_bytes());
        (self.sequence % HEADS as u64 * HEAD_LEN as u64, bytes)
    }

    /// The one after it.
    pub(super) fn next(self, begin: u64) -> Head {
        Head { begin, sequence: self.sequence + 1 }
    }
}

/// Where lot `lot` begins in the file.
pub(super) fn offset_of(lot: u64) -> u64 {
    (lot + 1) * PAGE64
}

/// Lots of a file of so many bytes.
pub(super) fn count_of(len: u64) -> u64 {
    (len / PAGE64).saturating_sub(1)
}

/// Free lots that stay at the end of the file: so many, or one in so many of those in use. As many
/// again are not worth giving back.
const SPARE: u64 = 8;
const SPARE_ONE_IN: u64 = 8;

struct Held {
    lot: u64,
    records: u64,
}

/// Which page has which lot.
#[derive(Default)]
pub(super) struct Lots {
    held: BTreeMap<u64, Held>,
    free: BTreeSet<u64>,
    /// Lots there ever were, but for those given back.
    end: u64,
    /// Lots that the file has for certain.
    there: u64,
    /// Records of all pages that have one.
    records: u64,
}

impl Lots {
    /// So many lots, all free.
    pub(super) fn new(count: u64) -> Lots {
        Lots { free: (0..count).collect(), end: count, there: count, ..Lots::default() }
    }

    /// A page was found in a lot.
    pub(super) fn found(&mut self, page: u64, lot: u64, records: u64) {
        self.free.remove(&lot);
        self.hold(page, lot, records);
    }

    fn hold(&mut self, page: u64, lot: u64, records: u64) {
        self.records += records;
        if let Some(before) = self.held.insert(page, Held { lot, records }) {
            self.records -= before.records;
            self.free.insert(before.lot);
        }
    }

    /// A lot for a page.
    pub(super) fn take(&mut self, page: u64, records: u64) -> u64 {
        let lot = self.free.pop_first().unwrap_or_else(|| {
            self.end += 1;
            self.end - 1
        });
        self.hold(page, lot, records);
        lot
    }

    /// Nobody needs this page, or it could not be written.
    pub(super) fn put_back(&mut self, page: u64) {
        if let Some(Held { lot, records }) = self.held.remove(&page) {
            self.records -= records;
            self.free.insert(lot);
            // Lots beyond the end of a full device are none.
            while self.end > 0 && self.free.remove(&(self.end - 1)) {
                self.end -= 1;
            }
        }
    }

    /// Nobody needs the pages before this one.
    pub(super) fn release_before(&mut self, begin: u64) {
        let rest = self.held.split_off(&begin);
        for (_, Held { lot, records }) in std::mem::replace(&mut self.held, rest) {
            self.records -= records;
            self.free.insert(lot);
        }
    }

    /// A page was written there.
    pub(super) fn written(&mut self, lot: u64) {
        self.there = self.there.max(lot + 1);
    }

    /// Gives up the free lots at the end of the file, but for some, if it is worth it: how many
    /// bytes the file is to have.
    pub(super) fn give_back(&mut self) -> Option<u64> {
        let mut used = self.end;
        while used > 0 && self.free.contains(&(used - 1)) {
            used -= 1;
        }
        let spare = SPARE.max(self.held.len() as u64 / SPARE_ONE_IN);
        let kept = used + spare;
        if self.there <= kept + spare {
            return None;
        }
        self.free.split_off(&kept);
        self.end = self.end.min(kept);
        self.there = kept;
        Some(offset_of(kept))
    }

    /// Where in the file what has this address lies; `None` if nobody needs it any more.
    pub(super) fn place(&self, address: u64) -> Option<u64> {
        Some(offset_of(self.held.get(&(address / PAGE64))?.lot) + address % PAGE64)
    }

    /// Records in the pages before this one.
    pub(super) fn records_before(&self, page: u64) -> u64 {
        let behind: u64 = self.held.range(page..).map(|(_, held)| held.records).sum();
        self.records - behind
    }

    /// Lots in use, and free ones.
    pub(super) fn len(&self) -> (usize, usize) {
        (self.held.len(), self.free.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn a_head_is_read_as_written_and_half_a_one_is_none(
            begin: u64,
            sequence: u64,
            cut in 0usize..28,
        ) {
            let head = Head { begin, sequence };
            let (at, bytes) = head.emit();
            prop_assert!(at < (HEADS * HEAD_LEN) as u64);
            prop_assert_eq!(Head::parse(&bytes), Some(head));
            let mut torn = bytes.to_vec();
            torn[cut] ^= 0x40;
            prop_assert_eq!(Head::parse(&torn), None);
            prop_assert_eq!(Head::parse(&bytes[..cut]), None);
        }

        #[test]
        fn any_bytes_are_read_without_harm(bytes: Vec<u8>) {
            let _ = Head::parse(&bytes);
        }

        /// No lot is ever of two pages, and what is given back is used again.
        #[test]
        fn every_page_has_a_lot_of_its_own(
            steps in prop::collection::vec((0u8..4, 0u64..30), 0..200),
        ) {
            let mut lots = Lots::new(3);
            let (mut model, mut next) = (BTreeMap::new(), 0u64);
            for (what, which) in steps {
                match what {
                    0 => {
                        let offset = offset_of(lots.take(next, which));
                        prop_assert!(!model.values().any(|(taken, _)| *taken == offset));
                        model.insert(next, (offset, which));
                        next += 1;
                    }
                    1 => {
                        lots.put_back(which);
                        model.remove(&which);
                    }
                    2 => {
                        lots.release_before(which);
                        model.retain(|page, _| *page >= which);
                    }
                    _ => {
                        let (lot, before) = (which * 2, lots.there);
                        lots.written(lot);
                        if let Some(len) = lots.give_back() {
                            prop_assert!(len < offset_of(before.max(lot + 1)));
                            prop_assert!(model.values().all(|(at, _)| at + PAGE64 <= len));
                        }
                    }
                }
                for page in 0..next {
                    let place = lots.place(page * PAGE64 + 100);
                    prop_assert_eq!(place, model.get(&page).map(|(offset, _)| offset + 100));
                }
                let records = model.values().map(|(_, n)| n).sum::<u64>();
                prop_assert_eq!(lots.records_before(u64::MAX), records);
                prop_assert_eq!(lots.len().0, model.len());
            }
        }
    }
}
