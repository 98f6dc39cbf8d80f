//! Changing the size, and giving back what lies beyond it.

use outboard_base::{Errno, Ino, Result};
use outboard_kv::object::{ObjectId, Progress};
use outboard_kv::{Cached, Kv, KvError};
use outboard_medium::Medium;

use super::shape::{SECTORS_PER_BLOCK, Shape};
use crate::Kvfs;
use crate::layout::key::{self, Tag};
use crate::layout::{DataKind, Inode};
use crate::spread;
use crate::txn::{Fail, Tried, Txn};

/// Steps of 32 MiB a truncation makes before it answers; the rest is housekeeping's.
const STEPS_BEFORE_ANSWER: usize = 32;
/// Files housekeeping looks at in one go.
const FILES_AT_ONCE: usize = 16;

impl<K: Kv, M: Medium> Kvfs<K, M> {
    /// Stages a new size of a regular file into `txn` and `inode` (size, blocks, data kind, marks);
    /// the caller holds the inode's lock alone, sets times and puts the inode.
    pub(crate) async fn stage_size(
        &self,
        txn: &mut Txn<'_, Cached<K>>,
        inode: &mut Inode,
        size: u64,
    ) -> Tried<()> {
        if inode.data == DataKind::Spread {
            return spread::resize(txn, inode, size).await;
        }
        let ino = inode.ino();
        let before = Shape::of(inode);
        if before.trimming {
            self.trim(ino).await?;
            return Err(Fail::Again);
        }
        let mut shape = before;
        let staged = self.store().stage_resize(ino, &mut shape, size, txn.batch()).await?;
        txn.stage(staged);
        self.keep_synced(ino, &before, &shape).await?;
        shape.put(inode);
        Ok(())
    }

    /// After a committed [`Kvfs::stage_size`], the lock still held: gives back what one batch could
    /// not, within bounds; the rest is left to housekeeping.
    pub(crate) async fn finish_size(&self, inode: &Inode) -> Result<()> {
        if Shape::of(inode).trimming {
            for _ in 0..STEPS_BEFORE_ANSWER {
                if !self.trim_step(inode.ino()).await? {
                    break;
                }
            }
        }
        Ok(())
    }

    /// Gives back all that lies beyond the size of `ino`; its lock is held.
    pub(crate) async fn trim(&self, ino: Ino) -> Result<()> {
        while self.trim_step(ino).await? {}
        Ok(())
    }

    /// One batch of it; true if there may be more.
    async fn trim_step(&self, ino: Ino) -> Result<bool> {
        self.transact(async |txn| {
            let mut inode = txn.inode(ino).await?;
            let mut shape = Shape::of(&inode);
            if !shape.trimming {
                return Ok(false);
            }
            let staged = self.store().stage_trim(ino, &mut shape, txn.batch()).await?;
            txn.stage(staged);
            shape.put(&mut inode);
            txn.put_inode(&inode)?;
            Ok(shape.trimming)
        })
        .await
    }

    /// A bounded part of what truncations left to do; true if there may be more. One file that
    /// fails does not stop the others; its error is returned once they are done.
    pub(crate) async fn trim_some(&self) -> Result<bool> {
        let prefix = [Tag::Trim as u8];
        let found = self.kv.scan(&prefix, None, FILES_AT_ONCE).await.map_err(KvError::errno)?;
        let mut outcome = Ok(found.len() == FILES_AT_ONCE);
        for (trim_key, _) in found {
            let ino = Ino(key::number(&trim_key).ok_or(Errno::EUCLEAN)?);
            let _guard = self.range_locks.exclusive(ino).await;
            match self.trim_step(ino).await {
                Ok(more) => outcome = outcome.map(|earlier| earlier || more),
                Err(error) => outcome = Err(error),
            }
        }
        outcome
    }

    /// Sets the counts of blocks right for files whose objects opening has changed: a power loss
    /// took blocks that were never synced, and their places are holes again.
    pub(crate) async fn recount(&self, objects: &[ObjectId]) -> Result<()> {
        for id in objects {
            let ino = Ino(id.0);
            let blocks = self.objects.count(*id).await.map_err(KvError::errno)?;
            self.transact(async |txn| {
                let Some(value) = txn.get(&key::inode(ino)).await? else { return Ok(()) };
                let mut inode = Inode::decode(ino, &value)?;
                let sectors = blocks.saturating_mul(SECTORS_PER_BLOCK);
                let is_here = !matches!(inode.data, DataKind::Small | DataKind::Spread);
                if is_here && inode.attr.blocks != sectors {
                    inode.attr.blocks = sectors;
                    txn.put_inode(&inode)?;
                }
                Ok(())
            })
            .await?;
        }
        Ok(())
    }

    /// Stages the end of an inode's data, as far as one batch allows: true if nothing is left then.
    /// If false the caller puts `inode`, commits and calls again.
    pub(crate) async fn stage_drop(
        &self,
        txn: &mut Txn<'_, Cached<K>>,
        inode: &mut Inode,
    ) -> Tried<bool> {
        let ino = inode.ino();
        let mut shape = Shape::of(inode);
        txn.essential();
        if shape.data == DataKind::Spread {
            // It stays what it is to its last step, which tells the nodes.
            return Ok(true);
        }
        if shape.data != DataKind::Big && !shape.trimming {
            if shape.data == DataKind::Small {
                txn.delete(key::of(Tag::Small, ino));
            }
            shape = Shape { data: DataKind::None, sectors: 0, ..shape };
            shape.put(inode);
            return Ok(true);
        }
        let (staged, progress) = self.store().stage_drop(ino, &shape, txn.batch()).await?;
        shape.add_blocks(staged.blocks());
        txn.stage(staged);
        let done = progress == Progress::Done;
        if done {
            (shape.data, shape.trimming) = (DataKind::None, false);
        }
        shape.put(inode);
        Ok(done)
    }
}
