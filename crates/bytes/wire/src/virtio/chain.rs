//! One request's chain of descriptors, walked one descriptor at a time.

use outboard_base::limits::{IO_MAX, PAGE};

use super::Descriptor;
use crate::nvmefs::Extent;

/// Most descriptors of a chain: a command, an answer, and data of [`IO_MAX`] bytes each way, one
/// descriptor a page, beginning anywhere in a page. A loop ends here at the latest.
pub const CHAIN_MAX: usize = 2 + 2 * (IO_MAX / PAGE + 1);

const PAGE_LEN: u64 = PAGE as u64;

/// A chain no device can follow: a buffer outside the region or of no bytes, a readable descriptor
/// behind a writable one, a `next` beyond the table, or more than [`CHAIN_MAX`] descriptors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InvalidChain;

/// The walk so far. What it holds lies inside the region.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Chain {
    /// What the device may read, in order, adjacent buffers joined.
    pub readable: Vec<Extent>,
    /// What the device may write, likewise.
    pub writable: Vec<Extent>,
    /// Bytes of the first readable buffer: where the command lies.
    pub first_len: u32,
    count: usize,
}

impl Chain {
    /// Forgets the walk, keeps the memory.
    pub fn clear(&mut self) {
        self.readable.clear();
        self.writable.clear();
        (self.first_len, self.count) = (0, 0);
    }

    /// Takes the next descriptor of a table of `size`; says which comes next, if one does.
    ///
    /// # Errors
    /// The chain cannot be followed.
    pub fn push(
        &mut self,
        descriptor: &Descriptor,
        size: u16,
        region_len: u64,
    ) -> Result<Option<u16>, InvalidChain> {
        let Descriptor { at, len, writable, next } = *descriptor;
        let inside = at >= PAGE_LEN
            && len > 0
            && at.checked_add(u64::from(len)).is_some_and(|end| end <= region_len);
        let in_order = writable || self.writable.is_empty();
        let ends = next.is_none_or(|next| next < size);
        if !inside || !in_order || !ends || self.count == CHAIN_MAX {
            return Err(InvalidChain);
        }
        if self.count == 0 && !writable {
            self.first_len = len;
        }
        self.count += 1;
        let extents = if writable { &mut self.writable } else { &mut self.readable };
        match extents.last_mut() {
            Some(last) if last.end() == at && last.len.checked_add(len).is_some() => {
                last.len += len;
            }
            _ => extents.push(Extent { at, len }),
        }
        Ok(next)
    }

    /// Descriptors taken.
    #[must_use]
    pub fn count(&self) -> usize {
        self.count
    }

    /// Bytes the device may read.
    #[must_use]
    pub fn readable_len(&self) -> u64 {
        self.readable.iter().map(|extent| u64::from(extent.len)).sum()
    }

    /// Bytes the device may write.
    #[must_use]
    pub fn writable_len(&self) -> u64 {
        self.writable.iter().map(|extent| u64::from(extent.len)).sum()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const REGION: u64 = 16 << 20;

    fn read(at: u64, len: u32, next: Option<u16>) -> Descriptor {
        Descriptor { at, len, writable: false, next }
    }

    fn write(at: u64, len: u32, next: Option<u16>) -> Descriptor {
        Descriptor { at, len, writable: true, next }
    }

    /// Walks a table as a device does.
    fn walk(table: &[Descriptor], head: u16) -> Result<Chain, InvalidChain> {
        let (mut chain, mut at) = (Chain::default(), Some(head));
        while let Some(index) = at {
            let descriptor = table.get(usize::from(index)).ok_or(InvalidChain)?;
            at = chain.push(descriptor, u16::try_from(table.len()).unwrap(), REGION)?;
        }
        Ok(chain)
    }

    #[test]
    fn an_8_kib_write_is_four_descriptors_and_three_ranges() {
        let table = [
            read(0x2000, 128, Some(1)),
            read(0x10000, 4096, Some(2)),
            read(0x11000, 4096, Some(3)),
            write(0x3000, 24, None),
        ];
        let chain = walk(&table, 0).unwrap();
        assert_eq!(
            chain.readable,
            [Extent { at: 0x2000, len: 128 }, Extent { at: 0x10000, len: 8192 }]
        );
        assert_eq!(chain.writable, [Extent { at: 0x3000, len: 24 }]);
        assert_eq!((chain.count(), chain.first_len), (4, 128));
        assert_eq!((chain.readable_len(), chain.writable_len()), (8320, 24));
    }

    #[test]
    fn chains_that_cannot_be_followed_are_refused() {
        let bad = [
            vec![read(0x2000, 64, Some(0))],
            vec![read(0x2000, 64, Some(1)), write(0x3000, 16, Some(0))],
            vec![read(0x2000, 64, Some(2)), write(0x3000, 16, None)],
            vec![write(0x3000, 16, Some(1)), read(0x2000, 64, None)],
            vec![read(0x2000, 0, None)],
            vec![read(0, 64, None)],
            vec![read(4095, 64, None)],
            vec![read(REGION - 63, 64, None)],
            vec![read(u64::MAX, 64, None)],
            vec![read(0x2000, u32::MAX, None)],
        ];
        for table in bad {
            assert_eq!(walk(&table, 0), Err(InvalidChain), "{table:?}");
        }
    }

    #[test]
    fn the_longest_chain_is_followed_and_one_more_is_not() {
        let long = |count: usize| -> Vec<Descriptor> {
            let next = |i| (i < count).then(|| u16::try_from(i).unwrap());
            (1..=count).map(|i| read(0x2000, 1, next(i))).collect()
        };
        assert_eq!(walk(&long(CHAIN_MAX), 0).unwrap().count(), CHAIN_MAX);
        assert_eq!(walk(&long(CHAIN_MAX + 1), 0), Err(InvalidChain));
    }

    proptest! {
        /// Whatever the table says, the walk ends, and what it found lies inside the region.
        #[test]
        fn any_table_ends(
            raw in proptest::collection::vec((0..2 * REGION, 0u32..1 << 16, any::<bool>(),
                proptest::option::of(0u16..40)), 1..32),
            head in 0u16..32,
        ) {
            let table: Vec<_> = raw
                .into_iter()
                .map(|(at, len, writable, next)| Descriptor { at, len, writable, next })
                .collect();
            if let Ok(chain) = walk(&table, head) {
                prop_assert!(chain.count() <= CHAIN_MAX);
                for extent in chain.readable.iter().chain(&chain.writable) {
                    prop_assert!(extent.at >= 4096 && extent.end() <= REGION && extent.len > 0);
                }
            }
        }
    }
}
