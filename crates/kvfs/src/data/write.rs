//! Writing.

use outboard_base::limits::{FILE_SIZE_MAX, IO_MAX};
use outboard_base::{Errno, Fh, Ino, Result};
use outboard_kv::Kv;
use outboard_kv::medium::Medium;
use outboard_wire::file::{Reply, open_flags, write_flags};

use super::regular;
use super::shape::Shape;
use crate::Kvfs;
use crate::context::Context;
use crate::txn::Fail;

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
        // Cached pages come back with their own places, whatever way the file was opened.
        let cached = flags & write_flags::WRITEBACK != 0;
        let appends =
            flags & write_flags::APPEND != 0 || (!cached && handle.flags & open_flags::APPEND != 0);
        let durable = flags & write_flags::DSYNC != 0 || handle.flags & open_flags::DSYNC != 0;
        let turn = self.turns.alone(ino).await;
        let place = if appends { None } else { Some(offset) };
        let taken = self.write_at(cx, ino, place, flags, data).await?;
        drop(turn);
        if taken > 0 {
            self.changed(cx, ino);
        }
        if durable {
            self.sync().await?;
        }
        Ok(Reply::Written(taken))
    }

    /// Writes at `place`, or at the end; the turn is held. Returns how much was taken.
    async fn write_at(
        &self,
        cx: &Context<'_>,
        ino: Ino,
        place: Option<u64>,
        flags: u32,
        data: &[u8],
    ) -> Result<u32> {
        let cached = flags & write_flags::WRITEBACK != 0;
        let strips = flags & write_flags::KILL_SUIDGID != 0 || (!cached && !cx.passes());
        self.transact(async |txn| {
            let mut inode = txn.inode(ino).await?;
            regular(&inode)?;
            let offset = place.unwrap_or(inode.attr.size);
            if data.is_empty() {
                return Ok(0);
            }
            let room = FILE_SIZE_MAX.checked_sub(offset).filter(|room| *room > 0);
            let room = usize::try_from(room.ok_or(Errno::EFBIG)?).unwrap_or(usize::MAX);
            let data = data.get(..room.min(data.len())).unwrap_or(data);
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
            if strips {
                self.strip_privileges(txn, &mut inode).await?;
            }
            if cached {
                inode.attr.change = inode.attr.change.saturating_add(1);
            } else {
                inode.modify(cx.now);
            }
            txn.put_inode(&inode)?;
            let taken = u32::try_from(data.len()).map_err(|_| Errno::EIO)?;
            if place.is_none() || shape.size > before.size {
                txn.record(cx, &Reply::Written(taken))?;
            }
            Ok(taken)
        })
        .await
    }
}
