//! Pairs of a key-value store in the body of a record.
//!
//! ```text
//! pair      key's length u16 | value's length u32 | key, not empty | value
//! ```
//!
//! Whole pairs stand in one record. That keys rise from record to record, and what they may hold,
//! is looked at by who keeps them.

use super::MOST_BODY;

/// Pairs that are known to be whole.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pairs<'b> {
    rest: &'b [u8],
}

/// Key and value.
type Pair<'b> = (&'b [u8], &'b [u8]);

/// The next pair, and what follows it.
fn split(bytes: &[u8]) -> Option<(Pair<'_>, &[u8])> {
    let (key, rest) = bytes.split_first_chunk()?;
    let (value, rest) = rest.split_first_chunk()?;
    let (key, rest) = rest.split_at_checked(usize::from(u16::from_le_bytes(*key)))?;
    let value = usize::try_from(u32::from_le_bytes(*value)).ok()?;
    let (value, rest) = rest.split_at_checked(value)?;
    (!key.is_empty()).then_some(((key, value), rest))
}

impl<'b> Pairs<'b> {
    /// Those of a body; `None` if it is not made of whole pairs, one at least.
    pub(super) fn of(body: &'b [u8]) -> Option<Pairs<'b>> {
        let mut rest = body;
        while !rest.is_empty() {
            (_, rest) = split(rest)?;
        }
        (!body.is_empty()).then_some(Pairs { rest: body })
    }
}

impl<'b> Iterator for Pairs<'b> {
    type Item = Pair<'b>;

    fn next(&mut self) -> Option<Self::Item> {
        let (pair, rest) = split(self.rest)?;
        self.rest = rest;
        Some(pair)
    }
}

/// Appends a pair to a body that is being gathered; `false`, and nothing is appended, if it does
/// not fit any more, or nowhere.
#[must_use]
pub fn append_pair(key: &[u8], value: &[u8], body: &mut Vec<u8>) -> bool {
    let (Ok(of_key), Ok(of_value)) = (u16::try_from(key.len()), u32::try_from(value.len())) else {
        return false;
    };
    if key.is_empty() || body.len() + 6 + key.len() + value.len() > MOST_BODY {
        return false;
    }
    body.extend_from_slice(&of_key.to_le_bytes());
    body.extend_from_slice(&of_value.to_le_bytes());
    body.extend_from_slice(key);
    body.extend_from_slice(value);
    true
}
