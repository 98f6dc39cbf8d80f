//! What the attribute pair says of where a file's bytes lie.

use outboard_kv::object::BLOCK;

use crate::layout::{DataKind, Inode, marks};

/// Unit of `st_blocks`, bytes.
pub(crate) const SECTOR: u64 = 512;
/// Units of `st_blocks` in a block.
pub(crate) const SECTORS_PER_BLOCK: u64 = BLOCK / SECTOR;

/// Size and form of a regular file: the part of its [`Inode`] that its data decides.
///
/// ```text
///            write up to 8,192            write, truncate, fallocate beyond
///   None  ----------------------> Small  ---------------------------------> Big
///    | ^                            |                                        ^ |
///    | '---------- truncate to 0 ---'     write, fallocate beyond            | |
///    |------------------------------------------------------------------------' |
///    '<------------------------------ truncate to 0 ---------------------------'
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub(crate) struct Shape {
    /// Length, bytes.
    pub(crate) size: u64,
    /// Allocated, in units of [`SECTOR`].
    pub(crate) sectors: u64,
    /// Where the bytes lie.
    pub(crate) data: DataKind,
    /// The object may still hold blocks that a truncation is to give back: all that begin at or
    /// after the size. They must be gone before the file grows.
    pub(crate) trimming: bool,
}

impl Shape {
    /// The shape of `inode`.
    pub(crate) fn of(inode: &Inode) -> Shape {
        Shape {
            size: inode.attr.size,
            sectors: inode.attr.blocks,
            data: inode.data,
            trimming: inode.has(marks::TRIMMING),
        }
    }

    /// Gives `inode` this shape.
    pub(crate) fn put(&self, inode: &mut Inode) {
        inode.attr.size = self.size;
        inode.attr.blocks = self.sectors;
        inode.data = self.data;
        inode.marks &= !marks::TRIMMING;
        if self.trimming {
            inode.marks |= marks::TRIMMING;
        }
    }

    /// Counts `delta` blocks of the object in.
    pub(crate) fn add_blocks(&mut self, delta: i64) {
        let sectors = delta.saturating_mul(SECTORS_PER_BLOCK.cast_signed());
        self.sectors = self.sectors.saturating_add_signed(sectors);
    }

    /// Where trimming goes on: the first block that lies wholly beyond the size.
    pub(crate) fn trim_from(&self) -> u64 {
        self.size.next_multiple_of(BLOCK)
    }
}
