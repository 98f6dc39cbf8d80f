//! Names in a backup: where a file lies below the directory, and never beside it.

use std::fmt;

/// The longest name, with its directories.
pub const MOST_NAME: usize = 255;
/// The most directories above a file, and itself.
const MOST_PARTS: usize = 8;

/// A relative name of plain parts: letters, digits, `.`, `_`, `-`; none empty, none beginning with
/// `.`, so neither `..` nor an absolute name nor a hidden file is one.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Name(String);

impl Name {
    /// `None` if it is not plain.
    #[must_use]
    pub fn new(name: &str) -> Option<Name> {
        let plain = |part: &str| {
            !part.is_empty()
                && !part.starts_with('.')
                && part.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"._-".contains(&byte))
        };
        let is_name = name.len() <= MOST_NAME
            && name.split('/').count() <= MOST_PARTS
            && name.split('/').all(plain);
        is_name.then(|| Name(name.to_owned()))
    }

    /// The same of bytes.
    pub(super) fn of(bytes: &[u8]) -> Option<Name> {
        Name::new(std::str::from_utf8(bytes).ok()?)
    }

    /// It.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}
