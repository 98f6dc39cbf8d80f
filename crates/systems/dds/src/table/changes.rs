//! Changes of a table as the host says them, in the data of a request.
//!
//! ```text
//! 0 flags u32 (1: empty the table first) | 4 removals u32 | 8 items u32 | 12 0
//! 16 removals: key u64 each | items: key u64, item 4 * u64 each
//! ```
//!
//! Done in this order, so that a key may be removed and stored anew.

use super::{Item, Key, Writer};

const HEAD: usize = 16;
const CLEAR: u32 = 1;
const KEY: usize = 8;
const STORED: usize = 40;

/// What a host wants changed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Changes {
    /// Forget everything first.
    pub clear: bool,
    /// Then these.
    pub removals: Vec<Key>,
    /// Then store these.
    pub items: Vec<(Key, Item)>,
}

/// The bytes are no changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NoChanges;

fn number(bytes: &[u8]) -> u64 {
    bytes.iter().rev().fold(0, |number, byte| number << 8 | u64::from(*byte))
}

impl Changes {
    /// The bytes.
    #[must_use]
    pub fn emit(&self) -> Vec<u8> {
        let count = |len: usize| u32::try_from(len).unwrap_or(u32::MAX).to_le_bytes();
        let mut out =
            Vec::with_capacity(HEAD + KEY * self.removals.len() + STORED * self.items.len());
        out.extend((if self.clear { CLEAR } else { 0 }).to_le_bytes());
        out.extend(count(self.removals.len()));
        out.extend(count(self.items.len()));
        out.extend([0; 4]);
        self.removals.iter().for_each(|key| out.extend(key.to_le_bytes()));
        for (key, item) in &self.items {
            out.extend(key.to_le_bytes());
            item.iter().for_each(|word| out.extend(word.to_le_bytes()));
        }
        out
    }

    /// Reads them.
    ///
    /// # Errors
    /// [`NoChanges`].
    pub fn parse(bytes: &[u8]) -> Result<Changes, NoChanges> {
        let (head, rest) = bytes.split_first_chunk::<HEAD>().ok_or(NoChanges)?;
        let field = |at: usize| number(head.get(at..at + 4).unwrap_or_default());
        let count = |at: usize| usize::try_from(field(at)).map_err(|_| NoChanges);
        let (removals, items) = (count(4)?, count(8)?);
        let wanted = removals
            .checked_mul(KEY)
            .zip(items.checked_mul(STORED))
            .and_then(|(removals, items)| removals.checked_add(items));
        if field(0) > u64::from(CLEAR) || field(12) != 0 || wanted != Some(rest.len()) {
            return Err(NoChanges);
        }
        let (removals, items) = rest.split_at(removals * KEY);
        let stored = |bytes: &[u8]| {
            let word = |at: usize| number(bytes.get(at * 8..at * 8 + 8).unwrap_or_default());
            (word(0), std::array::from_fn(|at| word(at + 1)))
        };
        Ok(Changes {
            clear: field(0) == u64::from(CLEAR),
            removals: removals.chunks_exact(KEY).map(number).collect(),
            items: items.chunks_exact(STORED).map(stored).collect(),
        })
    }

    /// Makes them; how many items found no room. Those are not there under an older value either.
    pub fn apply(&self, writer: &mut Writer) -> usize {
        if self.clear {
            writer.clear();
        }
        for key in &self.removals {
            writer.remove(*key);
        }
        self.items.iter().filter(|(key, item)| writer.insert(*key, *item).is_err()).count()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::table::with_capacity;

    #[test]
    fn they_are_done_in_order_and_what_is_no_change_is_refused() {
        let (mut writer, reader) = with_capacity(2, 1).unwrap();
        writer.insert(5, [1; 4]).unwrap();
        writer.insert(6, [1; 4]).unwrap();
        let changes =
            Changes { clear: false, removals: vec![5], items: vec![(5, [2; 4]), (7, [2; 4])] };
        assert_eq!(changes.apply(&mut writer), 1, "7 finds no room");
        assert_eq!((reader.get(5), reader.get(7)), (Some([2; 4]), None));
        let all = Changes { clear: true, removals: vec![], items: vec![(7, [3; 4])] };
        assert_eq!(all.apply(&mut writer), 0);
        assert_eq!((reader.get(6), reader.get(7)), (None, Some([3; 4])));
        let bytes = changes.emit();
        assert_eq!(bytes.len(), 16 + 8 + 2 * 40);
        for wrong in [&bytes[..15], &bytes[..bytes.len() - 1], &[bytes.clone(), vec![0]].concat()] {
            assert_eq!(Changes::parse(wrong), Err(NoChanges));
        }
        let mut huge = bytes.clone();
        huge[4..12].fill(0xFF);
        assert_eq!(Changes::parse(&huge), Err(NoChanges));
        let mut odd = bytes;
        odd[0] = 2;
        assert_eq!(Changes::parse(&odd), Err(NoChanges));
    }

    proptest! {
        #[test]
        fn parse_undoes_emit(
            clear: bool,
            removals: Vec<u64>,
            items in prop::collection::vec(any::<(u64, [u64; 4])>(), 0..20),
        ) {
            let changes = Changes { clear, removals, items };
            prop_assert_eq!(Changes::parse(&changes.emit()), Ok(changes));
        }

        #[test]
        fn any_bytes_are_read_without_harm(bytes: Vec<u8>) {
            if let Ok(changes) = Changes::parse(&bytes) {
                prop_assert_eq!(changes.emit(), bytes);
            }
        }
    }
}
