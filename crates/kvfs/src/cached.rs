//! What a cache of file pages in front of the volume asks of it: the gate of `outboard_dpc::dpu`
//! does, for hosts that hold pages of their files in memory (DPC 3.3).
//!
//! None of this is a request: nobody's permission is asked, no handle is needed, nothing is
//! recorded for a replay. Who asks has granted the right to cache when a file was opened.

use outboard_base::{Ino, Result, SessionId, Timestamp};
use outboard_kv::Kv;
use outboard_kv::medium::Medium;
use outboard_wire::file::{Attr, Header, Op, mode};

use crate::attr::CAPABILITY;
use crate::context::Context;
use crate::data::regular;
use crate::data::shape::Shape;
use crate::layout::{key, marks};
use crate::permission::WRITE;
use crate::txn::Fail;
use crate::{Caller, Event, Kvfs};

impl<K: Kv, M: Medium> Kvfs<K, M> {
    /// Attributes of a regular file, and whether its bytes may change without the volume being
    /// asked: not while a write would have to take set-id bits or capabilities away.
    pub async fn cacheable(&self, ino: Ino) -> Result<(Attr, bool)> {
        let inode = self.inode(ino).await?;
        regular(&inode)?;
        let set_id = inode.attr.mode & (mode::S_ISUID | mode::S_ISGID) != 0;
        let capable = inode.has(marks::XATTRS) && {
            let key = key::xattr(ino, CAPABILITY);
            self.kv.get(&key).await.map_err(outboard_kv::KvError::errno)?.is_some()
        };
        Ok((inode.attr, !set_id && !capable))
    }

    /// Whether the peer behind an attachment may write to a file now: one that is trusted, for
    /// whoever it spoke; the owner, as files may be opened to be written and made read-only at once
    /// (git's objects are); and whom its mode lets.
    pub async fn may_write(&self, caller: &Caller, ino: Ino) -> Result<bool> {
        let inode = self.inode(ino).await?;
        let header = Header { cred: caller.peer.clone(), ..Header::default() };
        let now = Timestamp::default();
        let context = Context::new(caller, &header, Op::Write, now)?;
        regular(&inode)?;
        let believed = context.trusted || context.owns(&inode);
        Ok(believed || self.permit(&context, &inode, WRITE).await.is_ok())
    }

    /// Writes pages back, at most 1 MiB: they were changed at `mtime`, if that is known. `ESTALE`
    /// if the file is gone.
    pub async fn write_back(
        &self,
        attachment: SessionId,
        ino: Ino,
        offset: u64,
        data: &[u8],
        mtime: Option<Timestamp>,
    ) -> Result<()> {
        let turn = self.turns.alone(ino).await;
        self.transact(async |txn| {
            txn.essential();
            let mut inode = txn.inode(ino).await?;
            regular(&inode)?;
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
            let attr = &mut inode.attr;
            attr.mtime = mtime.map_or(attr.mtime, |mtime| attr.mtime.max(mtime));
            attr.ctime = attr.ctime.max(attr.mtime);
            attr.change = attr.change.saturating_add(1);
            txn.put_inode(&inode)?;
            Ok(())
        })
        .await?;
        drop(turn);
        self.tell_changed(attachment, ino);
        Ok(())
    }

    /// Cuts a file to no bytes, as opening it with `O_TRUNC` did just before: what was written back
    /// since goes, too.
    pub async fn cut(&self, ino: Ino, now: Timestamp) -> Result<()> {
        let _turn = self.turns.alone(ino).await;
        let cut = self.transact(async |txn| {
            let mut inode = txn.inode(ino).await?;
            regular(&inode)?;
            if inode.attr.size != 0 {
                self.stage_size(txn, &mut inode, 0).await?;
                inode.modify(now);
                txn.put_inode(&inode)?;
            }
            Ok(inode)
        });
        let inode = cut.await?;
        self.finish_size(&inode).await
    }

    /// Attachments other than this one hear that the file is not what they were told.
    pub fn tell_changed(&self, attachment: SessionId, ino: Ino) {
        let others = self.handles.others_told(attachment, ino);
        let stale = |attachment| Event::StaleInode { attachment, ino };
        self.push_events(others.into_iter().map(stale));
    }
}
