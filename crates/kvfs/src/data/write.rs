//! Writing.
//!
//! To a big file, at a place of its own, a write has two halves: its blocks go out while others
//! write, read and append elsewhere in the file; then it takes the turn to commit. A write that
//! must know the size, or that changes the file's form, is alone with the file.

use outboard_base::limits::{FILE_SIZE_MAX, IO_MAX};
use outboard_base::{Errno, Fh, Ino, Result};
use outboard_kv::medium::Medium;
use outboard_kv::object::Room;
use outboard_kv::{Cached, Kv, KvError};
use outboard_wire::file::{Reply, open_flags, write_flags};

use super::regular;
use super::shape::Shape;
use crate::Kvfs;
use crate::context::Context;
use crate::layout::{DataKind, Inode};
use crate::txn::{Fail, Tried, Txn};

/// A write, as far as its effect is concerned.
struct Write<'a> {
    ino: Ino,
    flags: u32,
    data: &'a [u8],
}

impl Write<'_> {
    /// From the page cache: it moves no times and takes no privileges away.
    fn cached(&self) -> bool {
        self.flags & write_flags::WRITEBACK != 0
    }

    /// The part of the data that fits a file at `offset`; `EFBIG` if none does.
    fn clipped(&self, offset: u64) -> Result<&[u8]> {
        let room = FILE_SIZE_MAX.checked_sub(offset).filter(|room| *room > 0);
        let room = usize::try_from(room.ok_or(Errno::EFBIG)?).unwrap_or(usize::MAX);
        Ok(self.data.get(..room).unwrap_or(self.data))
    }
}

impl<K: Kv, M: Medium> Kvfs<K, M> {
    /// Writes `data` at `offset`, or at the end when the write or its handle appends. `EFBIG` when
    /// it begins beyond the largest file; less is taken when it ends there.
    pub(crate) async fn write(
        &self,
        cx: &Context<'_>,
        ino: Ino,
        fh: Fh,
        offset: u64,
        flags: u32,
        data: &[u8],
    ) -> Result<Reply> {
        if data.len() > IO_MAX {
            return Err(Errno::EINVAL);
        }
        let handle = self.writable(cx, ino, fh)?;
        let write = Write { ino, flags, data };
        // Cached pages come back with their own places, whatever way the file was opened.
        let appends = flags & write_flags::APPEND != 0
            || (!write.cached() && handle.flags & open_flags::APPEND != 0);
        let durable = flags & write_flags::DSYNC != 0 || handle.flags & open_flags::DSYNC != 0;
        let beside = if appends { None } else { self.write_beside(cx, &write, offset).await? };
        let taken = match beside {
            Some(taken) => taken,
            None => self.write_alone(cx, &write, (!appends).then_some(offset)).await?,
        };
        if taken > 0 {
            self.changed(cx, ino);
        }
        if durable {
            self.sync().await?;
        }
        Ok(Reply::Written(taken))
    }

    /// Writes some blocks of a big file, beside those who use others. `None` if it is not big.
    async fn write_beside(
        &self,
        cx: &Context<'_>,
        write: &Write<'_>,
        offset: u64,
    ) -> Result<Option<u32>> {
        let ino = write.ino;
        let bytes = offset..offset.saturating_add(write.data.len() as u64);
        let _turn = self.turns.alone_on(ino, bytes).await;
        let inode = self.inode(ino).await?;
        regular(&inode)?;
        let shape = Shape::of(&inode);
        // None of this changes while anybody has a turn on any block.
        if shape.data != DataKind::Big || shape.trimming || write.data.is_empty() {
            return Ok(None);
        }
        let data = write.clipped(offset)?;
        let end = offset + data.len() as u64;
        let store = self.store();
        let mut written = Some(store.write_out(ino, offset, data, Room::Common).await.map_err(KvError::errno)?);
        let _commit = self.commits.alone(ino).await;
        self.transact(async |txn| {
            let mut inode = txn.inode(ino).await?;
            let before = Shape::of(&inode);
            let mut shape = before;
            // What was written out went with the batch that failed.
            let written = match written.take() {
                Some(written) => written,
                None => store.write_out(ino, offset, data, Room::Common).await?,
            };
            let staged = store.stage_written(&mut shape, written, end, txn.batch()).await?;
            txn.stage(staged);
            shape.put(&mut inode);
            self.put_written(cx, txn, write, &mut inode).await?;
            let taken = u32::try_from(data.len()).map_err(|_| Errno::EIO)?;
            if shape.size > before.size {
                txn.record(cx, &Reply::Written(taken))?;
            }
            Ok(Some(taken))
        })
        .await
    }

    /// Writes at `place`, or at the end. Returns how much was taken.
    async fn write_alone(
        &self,
        cx: &Context<'_>,
        write: &Write<'_>,
        place: Option<u64>,
    ) -> Result<u32> {
        let ino = write.ino;
        let _turn = self.turns.alone(ino).await;
        self.transact(async |txn| {
            let mut inode = txn.inode(ino).await?;
            regular(&inode)?;
            let offset = place.unwrap_or(inode.attr.size);
            if write.data.is_empty() {
                return Ok(0);
            }
            let data = write.clipped(offset)?;
            let mut shape = Shape::of(&inode);
            if shape.trimming {
                self.trim(ino).await?;
                return Err(Fail::Again);
            }
            let before = shape;
            let store = self.store();
            let staged = store.stage_write(ino, &mut shape, offset, data, txn.batch()).await?;
            txn.stage(staged);
            self.keep_synced(ino, &before, &shape).await?;
            shape.put(&mut inode);
            self.put_written(cx, txn, write, &mut inode).await?;
            let taken = u32::try_from(data.len()).map_err(|_| Errno::EIO)?;
            if place.is_none() || shape.size > before.size {
                txn.record(cx, &Reply::Written(taken))?;
            }
            Ok(taken)
        })
        .await
    }

    /// Puts the inode of a file that was written, with what else of it a write changes.
    async fn put_written(
        &self,
        cx: &Context<'_>,
        txn: &mut Txn<'_, Cached<K>>,
        write: &Write<'_>,
        inode: &mut Inode,
    ) -> Tried<()> {
        let strips =
            write.flags & write_flags::KILL_SUIDGID != 0 || (!write.cached() && !cx.passes());
        if strips {
            self.strip_privileges(txn, inode).await?;
        }
        if write.cached() {
            inode.attr.change = inode.attr.change.saturating_add(1);
        } else {
            inode.modify(cx.now);
        }
        txn.put_inode(inode)?;
        Ok(())
    }
}
