//! Making things durable, and keeping what was made so.

use outboard_base::{Fh, Ino, Result, limits};
use outboard_kv::object::{BLOCK, Space};
use outboard_kv::{Kv, KvError, Usage};
use outboard_medium::Medium;
use outboard_wire::file::{Reply, Statfs};

use super::shape::Shape;
use crate::Kvfs;
use crate::context::Context;
use crate::layout::DataKind;

/// Inodes a volume is said to have room for: nothing but space limits them.
const INODES: u64 = 1 << 32;

impl<K: Kv, M: Medium> Kvfs<K, M> {
    /// Everything answered before the call is durable after it. A failure is final, and so every
    /// later sync fails too: nobody can say any more what the device has.
    pub(crate) async fn sync(&self) -> Result<()> {
        self.fresh.sync_begins();
        self.objects.sync().await.map_err(KvError::errno)
    }

    /// `fsync(2)` and `fdatasync(2)`: the store has one order of commits, so data and metadata of a
    /// file, and all before them, become durable together.
    pub(crate) async fn fsync(
        &self,
        cx: &Context<'_>,
        ino: Ino,
        fh: Fh,
        _data_only: bool,
    ) -> Result<Reply> {
        if fh != Fh::NONE {
            self.handles.get(cx.attachment, fh, ino)?;
        }
        self.sync().await?;
        Ok(Reply::Empty)
    }

    /// `syncfs(2)`.
    pub(crate) async fn syncfs(&self) -> Result<Reply> {
        self.sync().await?;
        Ok(Reply::Empty)
    }

    /// Called with staged changes, before their commit: flushes the blocks that will stand for
    /// bytes which may have been synced elsewhere (see [`super::fresh`]).
    pub(crate) async fn keep_synced(&self, ino: Ino, before: &Shape, after: &Shape) -> Result<()> {
        if before.data == DataKind::None && after.data == DataKind::Small {
            self.fresh.begins(ino);
        }
        // A small file's bytes leave their pair.
        let moves = before.data == DataKind::Small && after.data == DataKind::Big;
        // A block keeps the bytes before the new end, but not those behind: should the new block be
        // lost and the old one come back, they would show when the file grows.
        let cut = before.data == DataKind::Big
            && after.size < before.size
            && after.size != after.trim_from();
        if (moves && !self.fresh.is(ino)) || cut {
            self.objects.medium().flush().await?;
        }
        Ok(())
    }

    /// Space of the volume.
    pub fn statfs(&self) -> Statfs {
        let space = self.objects.space();
        let grown = self.objects.medium().len().saturating_sub(space.used);
        statfs(space, grown, self.kv.usage(), self.superblock.id)
    }
}

/// Figures from the space of the block store and of the key-value store, whichever is shorter. Of
/// the medium, what has `grown` and is not used is there for data whatever else the disk holds.
fn statfs(space: Space, grown: u64, pairs: Usage, id: u64) -> Statfs {
    let pairs_free = pairs.capacity.saturating_sub(pairs.used);
    let room = |of_disk: u64| space.free.min(grown.saturating_add(of_disk)) / BLOCK;
    let free = room(pairs_free);
    let available = room(pairs_free.saturating_sub(pairs.reserve));
    Statfs {
        block_size: BLOCK,
        blocks: space.total / BLOCK,
        blocks_free: free,
        blocks_available: available,
        files: INODES,
        files_free: INODES,
        name_max: limits::NAME_MAX as u64,
        id,
    }
}
