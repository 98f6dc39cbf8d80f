//! The values that rest in the key-value store.
//!
//! Keys are in `key`. Every value carries a checksum over its key's inode and itself:
//! a value that was damaged, or lies under another key than it was written to, is `EUCLEAN` and
//! never returned as right. Drawn in `docs/internals/kvfs.md`.

mod bytes;
mod entry;
mod inode;
pub(crate) mod key;
mod record;
mod small;
mod spread;
mod xattr;

pub(crate) use entry::FIRST_COOKIE;
pub use entry::{Entry, Listed};
pub(crate) use inode::Dates;
pub use inode::{DataKind, Inode, marks};
pub use key::Tag;
pub use record::{ReplayRecord, Superblock};
pub(crate) use record::{decode_counter, encode_counter};
pub(crate) use small::{decode_small, encode_small};
pub(crate) use xattr::{decode_xattr, encode_xattr};

#[cfg(test)]
mod tests;
