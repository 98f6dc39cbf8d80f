//! `fallocate(2)`: space for a range, a hole, or zeros.

use std::ops::Range;

use outboard_base::limits::FILE_SIZE_MAX;
use outboard_base::{Errno, Fh, Ino, Result};
use outboard_kv::Kv;
use outboard_kv::object::Progress;
use outboard_medium::Medium;
use outboard_volume::Fill;
use outboard_wire::file::Reply;

use super::regular;
use super::shape::{SECTOR, Shape};
use crate::Kvfs;
use crate::context::Context;
use crate::spread::not_spread;
use crate::txn::Fail;

impl<K: Kv, M: Medium> Kvfs<K, M> {
    /// Fills `offset..offset + len` step by step; the last step sets size and times.
    pub(crate) async fn fallocate(
        &self,
        cx: &Context<'_>,
        ino: Ino,
        fh: Fh,
        offset: u64,
        len: u64,
        mode: u32,
    ) -> Result<Reply> {
        if len == 0 {
            return Err(Errno::EINVAL);
        }
        let (fill, keep_size) = Fill::of(mode)?;
        self.writable(cx, ino, fh)?;
        let end = offset.checked_add(len).filter(|end| *end <= FILE_SIZE_MAX);
        let range = offset..end.ok_or(Errno::EFBIG)?;
        let _guard = self.range_locks.exclusive(ino).await;
        not_spread(&self.inode(ino).await?)?;
        if fill != Fill::Punch {
            self.has_room(ino, len).await?;
        }
        let mut from = offset;
        while let Progress::More { from: next } =
            self.fill_step(cx, ino, fill, from..range.end, keep_size).await?
        {
            from = next.max(from.saturating_add(1)); // Always on.
        }
        self.changed(cx, ino);
        Ok(Reply::Empty)
    }

    /// `ENOSPC` if `len` bytes cannot fit, whatever of them the file has already: better said
    /// before than after a full volume.
    async fn has_room(&self, ino: Ino, len: u64) -> Result<()> {
        let held = Shape::of(&self.inode(ino).await?).sectors.saturating_mul(SECTOR);
        let wanted = len.saturating_sub(held);
        if wanted <= self.objects.space().free {
            return Ok(());
        }
        self.sync().await?; // Frees what waits for a sync.
        if wanted <= self.objects.space().free { Ok(()) } else { Err(Errno::ENOSPC) }
    }

    async fn fill_step(
        &self,
        cx: &Context<'_>,
        ino: Ino,
        fill: Fill,
        range: Range<u64>,
        keep_size: bool,
    ) -> Result<Progress> {
        self.transact(async |txn| {
            let mut inode = txn.inode(ino).await?;
            regular(&inode).map_err(|_| Errno::ENODEV)?;
            let before = Shape::of(&inode);
            if before.trimming {
                self.trim(ino).await?;
                return Err(Fail::Again);
            }
            let mut shape = before;
            let store = self.store();
            let (staged, progress) =
                store.stage_fill(ino, &mut shape, fill, range.clone(), txn.batch()).await?;
            txn.stage(staged);
            self.keep_synced(ino, &before, &shape).await?;
            if progress == Progress::Done {
                if !keep_size {
                    shape.size = shape.size.max(range.end);
                }
                if !cx.passes() {
                    self.strip_privileges(txn, &mut inode).await?;
                }
                inode.date(cx.dates());
                txn.record(cx, &Reply::Empty)?;
            }
            shape.put(&mut inode);
            txn.put_inode(&inode)?;
            Ok(progress)
        })
        .await
    }
}
