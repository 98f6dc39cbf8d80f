//! The cases, one file a group.

use crate::case::Case;

mod names;

/// Every case, group by group.
#[must_use]
pub fn cases() -> Vec<Case> {
    [names::CASES].concat()
}
