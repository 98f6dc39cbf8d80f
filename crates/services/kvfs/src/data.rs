//! A file's bytes: reading, writing, changing the size, holes, syncing (DPC 3.4; rows C18 to C20).
//!
//! A file of up to 8,192 bytes is one pair, rewritten whole; a bigger one is a file object, written
//! at 8 KiB granularity ([`store`], [`shape`]). Size and form stand in the attribute pair and
//! change in the same batch as the bytes.
//!
//! - Who changes a file's bytes locks their blocks alone, who reads them shares the lock
//!   ([`RangeLocks`](outboard_base::task::RangeLocks)), so a read never sees half a write, and
//!   writes to other blocks of a big file go on side by side.
//! - An operation is one batch, or part of one ([`group_commit`]). Two are not, when the file is
//!   large: a truncation shows its new size at once and gives blocks back step by step, and is
//!   finished before the file grows, or after a restart ([`size`]); `fallocate` fills a range step
//!   by step, and its size shows at the end.
//! - Bytes that were synced are never traded for bytes that were not: see [`fresh`].
//!
//! See `docs/internals/kvfs-data.md`.

mod copy;
mod fallocate;
pub(crate) mod fresh;
pub(crate) mod group_commit;
mod read;
pub(crate) mod shape;
mod size;
mod store;
mod sync;
pub(crate) mod write;

use outboard_base::{Errno, Fh, Ino, Result};
use outboard_kv::{Cached, Kv};
use outboard_medium::Medium;
use outboard_wire::file::FileKind;

use crate::Kvfs;
use crate::context::Context;
use crate::handles::Handle;
use crate::layout::Inode;
use store::Store;

/// A place in an open file: inode, handle, offset.
pub(crate) type Place = (Ino, Fh, u64);

impl<K: Kv, M: Medium> Kvfs<K, M> {
    pub(crate) fn store(&self) -> Store<'_, Cached<K>, M> {
        Store::new(&self.objects)
    }

    /// The handle, open for reading; `EBADF` otherwise, `EISDIR` for a directory.
    fn readable(&self, cx: &Context<'_>, ino: Ino, fh: Fh) -> Result<Handle> {
        let handle = self.handles.get(cx.attachment, fh, ino)?;
        match handle {
            Handle { directory: true, .. } => Err(Errno::EISDIR),
            handle if handle.reads() => Ok(handle),
            _ => Err(Errno::EBADF),
        }
    }

    /// The handle, open for writing; `EBADF` otherwise.
    fn writable(&self, cx: &Context<'_>, ino: Ino, fh: Fh) -> Result<Handle> {
        let handle = self.handles.get(cx.attachment, fh, ino)?;
        if !handle.directory && handle.writes() { Ok(handle) } else { Err(Errno::EBADF) }
    }
}

/// A regular file; `EINVAL` for anything else but a directory, which is `EISDIR`.
pub(crate) fn regular(inode: &Inode) -> Result<()> {
    match inode.kind() {
        FileKind::Regular => Ok(()),
        FileKind::Directory => Err(Errno::EISDIR),
        _ => Err(Errno::EINVAL),
    }
}
