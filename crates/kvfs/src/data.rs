//! A file's bytes.

pub(crate) mod shape;
mod store;
pub(crate) mod turns;

use outboard_base::{Errno, Fh, Ino, Result};
use outboard_kv::Kv;
use outboard_kv::medium::Medium;
use outboard_wire::file::{Reply, Statfs};

use crate::context::Context;
use crate::layout::Inode;
use crate::txn::{Tried, Txn};
use crate::{Answer, Kvfs};

/// A place in an open file: inode, handle, offset.
pub(crate) type Place = (Ino, Fh, u64);

#[expect(clippy::unused_async, reason = "signatures first")]
impl<K: Kv, M: Medium> Kvfs<K, M> {
    pub(crate) async fn read(
        &self,
        _cx: &Context<'_>,
        _ino: Ino,
        _fh: Fh,
        _offset: u64,
        _len: u32,
    ) -> Result<Answer> {
        Err(Errno::ENOSYS)
    }

    pub(crate) async fn write(
        &self,
        _cx: &Context<'_>,
        _ino: Ino,
        _fh: Fh,
        _offset: u64,
        _flags: u32,
        _data: &[u8],
    ) -> Result<Reply> {
        Err(Errno::ENOSYS)
    }

    pub(crate) async fn fsync(
        &self,
        _cx: &Context<'_>,
        _ino: Ino,
        _fh: Fh,
        _data_only: bool,
    ) -> Result<Reply> {
        Err(Errno::ENOSYS)
    }

    pub(crate) async fn syncfs(&self) -> Result<Reply> {
        Err(Errno::ENOSYS)
    }

    pub(crate) async fn fallocate(
        &self,
        _cx: &Context<'_>,
        _ino: Ino,
        _fh: Fh,
        _offset: u64,
        _len: u64,
        _mode: u32,
    ) -> Result<Reply> {
        Err(Errno::ENOSYS)
    }

    pub(crate) async fn lseek(
        &self,
        _cx: &Context<'_>,
        _ino: Ino,
        _fh: Fh,
        _offset: u64,
        _whence: u32,
    ) -> Result<Reply> {
        Err(Errno::ENOSYS)
    }

    pub(crate) async fn copy_file_range(
        &self,
        _cx: &Context<'_>,
        _from: Place,
        _to: Place,
        _len: u64,
    ) -> Result<Reply> {
        Err(Errno::ENOSYS)
    }

    /// Stages a new size of a regular file into `txn` and `inode` (size, blocks, data kind, marks);
    /// the caller holds `turns.alone(ino)`, sets times and puts the inode.
    pub(crate) async fn stage_size(
        &self,
        _txn: &mut Txn<'_, outboard_kv::Cached<K>>,
        _inode: &mut Inode,
        _size: u64,
    ) -> Tried<()> {
        Err(Errno::ENOSYS.into())
    }

    /// After a committed [`Kvfs::stage_size`], the turn still held: gives back what one batch could
    /// not, within bounds; the rest is left to housekeeping.
    pub(crate) async fn finish_size(&self, _inode: &Inode) -> Result<()> {
        Err(Errno::ENOSYS)
    }

    /// Stages the end of an inode's data, as far as one batch allows: true if nothing is left then.
    /// If false the caller puts `inode`, commits and calls again.
    pub(crate) async fn stage_drop(
        &self,
        _txn: &mut Txn<'_, outboard_kv::Cached<K>>,
        _inode: &mut Inode,
    ) -> Tried<bool> {
        Err(Errno::ENOSYS.into())
    }

    /// A bounded part of what truncations left to do; true if there may be more.
    pub(crate) async fn trim_some(&self) -> Result<bool> {
        Err(Errno::ENOSYS)
    }

    /// Space of the volume.
    pub(crate) fn statfs(&self) -> Statfs {
        Statfs::default()
    }
}
