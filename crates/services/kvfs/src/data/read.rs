//! Reading, and where data and holes are.

use outboard_base::limits::IO_MAX;
use outboard_base::{Errno, Fh, Ino, Result};
use outboard_kv::{Kv, KvError};
use outboard_medium::Medium;
use outboard_wire::file::{Reply, seek};

use super::regular;
use super::shape::Shape;
use crate::context::Context;
use crate::permission::atime_is_due;
use crate::spread::not_spread;
use crate::{Answer, Kvfs, Payload};

impl<K: Kv, M: Medium> Kvfs<K, M> {
    /// Bytes from `offset`, fewer than `len` only at the end of the file.
    pub(crate) async fn read(
        &self,
        cx: &Context<'_>,
        ino: Ino,
        fh: Fh,
        offset: u64,
        len: u32,
    ) -> Result<Answer> {
        let len = usize::try_from(len).ok().filter(|len| *len <= IO_MAX).ok_or(Errno::EINVAL)?;
        let handle = self.readable(cx, ino, fh)?;
        let bytes = offset..offset.saturating_add(len as u64);
        let guard = self.range_locks.shared_on(ino, bytes).await;
        let inode = self.inode(ino).await?;
        regular(&inode)?;
        not_spread(&inode)?;
        let left = inode.attr.size.saturating_sub(offset);
        let len = usize::try_from(left).map_or(len, |left| left.min(len));
        if len == 0 {
            return Ok(Reply::Data(0).into());
        }
        let shape = Shape::of(&inode);
        let read = self.store().read_lent(ino, &shape, offset, len).await;
        let lent = read.map_err(KvError::errno)?;
        if atime_is_due(&inode, cx.now) {
            self.accessed(cx, ino, handle.flags).await;
        }
        drop(guard);
        let count = u32::try_from(len).map_err(|_| Errno::EIO)?;
        Ok(Answer { reply: Reply::Data(count), payload: Payload::Lent(lent) })
    }

    /// The next data or hole; `ENXIO` beyond the end, and for data when there is none.
    pub(crate) async fn lseek(
        &self,
        cx: &Context<'_>,
        ino: Ino,
        fh: Fh,
        offset: u64,
        whence: u32,
    ) -> Result<Reply> {
        self.handles.get(cx.attachment, fh, ino)?;
        let _guard = self.range_locks.shared(ino).await;
        let inode = self.inode(ino).await?;
        regular(&inode).map_err(|_| Errno::EINVAL)?;
        not_spread(&inode)?;
        let shape = Shape::of(&inode);
        if offset >= shape.size {
            return Err(Errno::ENXIO);
        }
        let found = match whence {
            seek::DATA => self.store().seek_data(ino, &shape, offset).await,
            seek::HOLE => self.store().seek_hole(ino, &shape, offset).await.map(Some),
            _ => return Err(Errno::EINVAL),
        };
        found.map_err(KvError::errno)?.map(Reply::Offset).ok_or(Errno::ENXIO)
    }
}
