//! `copy_file_range(2)` inside the volume.

use outboard_base::limits::{FILE_SIZE_MAX, IO_MAX};
use outboard_base::{Errno, Ino, Result};
use outboard_kv::Kv;
use outboard_kv::object::Progress;
use outboard_medium::Medium;
use outboard_volume::Fill;
use outboard_wire::file::{Reply, open_flags};

use super::shape::Shape;
use super::{Place, regular};
use crate::Kvfs;
use crate::context::Context;
use crate::spread::not_spread;
use crate::txn::{Fail, Tried};

/// Most bytes of hole one call copies: a quarter of what the reply can count.
const HOLE_MAX: u64 = 1 << 30;

/// What a call copies: bytes of data, or a hole.
enum Run {
    Data(u64),
    Hole(u64),
}

impl<K: Kv, M: Medium> Kvfs<K, M> {
    /// Copies the first run of data (at most 1 MiB) or of hole in the range, as one batch; the
    /// caller asks again for the rest, as `copy_file_range(2)` lets it.
    pub(crate) async fn copy_file_range(
        &self,
        cx: &Context<'_>,
        from: Place,
        to: Place,
        len: u64,
    ) -> Result<Reply> {
        let ((from, from_fh, from_at), (to, to_fh, to_at)) = (from, to);
        self.readable(cx, from, from_fh)?;
        let target = self.writable(cx, to, to_fh)?;
        if target.flags & open_flags::APPEND != 0 {
            return Err(Errno::EBADF);
        }
        let ends = from_at.checked_add(len).zip(to_at.checked_add(len));
        let (from_end, to_end) = ends.ok_or(Errno::EOVERFLOW)?;
        if from == to && from_at < to_end && to_at < from_end {
            return Err(Errno::EINVAL);
        }
        let _guard = self.range_locks.exclusive_both(from, to).await;
        let copied = self.copy_run(cx, (from, from_at), (to, to_at), len).await?;
        if copied > 0 {
            self.changed(cx, to);
        }
        Ok(Reply::Written(copied))
    }

    async fn copy_run(
        &self,
        cx: &Context<'_>,
        (from, from_at): (Ino, u64),
        (to, to_at): (Ino, u64),
        len: u64,
    ) -> Result<u32> {
        self.transact(async |txn| {
            let source = txn.inode(from).await?;
            let mut target = txn.inode(to).await?;
            regular(&source)?;
            regular(&target)?;
            [&source, &target].into_iter().try_for_each(not_spread)?;
            let shape = Shape::of(&source);
            let len = len.min(shape.size.saturating_sub(from_at));
            if len == 0 {
                return Ok(0);
            }
            let room = FILE_SIZE_MAX.checked_sub(to_at).filter(|room| *room > 0);
            let len = len.min(room.ok_or(Errno::EFBIG)?);
            let before = Shape::of(&target);
            if before.trimming {
                self.trim(to).await?;
                return Err(Fail::Again);
            }
            let mut after = before;
            let (staged, copied) = match self.next_run(from, &shape, from_at, len).await? {
                Run::Data(len) => {
                    let mut bytes = vec![0; usize::try_from(len).map_err(|_| Errno::EIO)?];
                    let store = self.store();
                    store.read(from, &shape, from_at, &mut bytes).await?;
                    (store.stage_write(to, &mut after, to_at, &bytes, txn.batch()).await?, len)
                }
                Run::Hole(len) => {
                    // A hole in the target as far as it has bytes there; beyond, growing is enough.
                    let end = to_at + len;
                    let range = to_at.min(end)..end;
                    let (staged, progress) = self
                        .store()
                        .stage_fill(to, &mut after, Fill::Punch, range, txn.batch())
                        .await?;
                    let done = match progress {
                        Progress::Done => len,
                        Progress::More { from } => from.saturating_sub(to_at).min(len),
                    };
                    (staged, done)
                }
            };
            txn.stage(staged);
            let copied = u32::try_from(copied).map_err(|_| Errno::EIO)?;
            let end = to_at + u64::from(copied);
            if end > after.size {
                let staged = self.store().stage_resize(to, &mut after, end, txn.batch()).await?;
                txn.stage(staged);
            }
            self.keep_synced(to, &before, &after).await?;
            after.put(&mut target);
            if !cx.passes() {
                self.strip_privileges(txn, &mut target).await?;
            }
            target.date(cx.dates());
            txn.put_inode(&target)?;
            txn.record(cx, &Reply::Written(copied))?;
            Ok(copied)
        })
        .await
    }

    async fn next_run(&self, ino: Ino, shape: &Shape, at: u64, len: u64) -> Tried<Run> {
        let data = self.store().seek_data(ino, shape, at).await?;
        Ok(match data {
            Some(data) if data <= at => {
                let hole = self.store().seek_hole(ino, shape, at).await?;
                Run::Data((hole - at).min(len).min(IO_MAX as u64))
            }
            Some(data) => Run::Hole((data - at).min(len).min(HOLE_MAX)),
            None => Run::Hole(len.min(HOLE_MAX)),
        })
    }
}
