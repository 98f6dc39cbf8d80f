//! What a cache of file pages in front of the volume asks of it: the coherence of
//! `outboard_cache` does, for hosts that hold pages of their files in memory (DPC 3.3).
//!
//! None of this is a request: nobody's permission is asked, no handle is needed, nothing is
//! recorded for a replay. Who asks has granted the right to cache when a file was opened.

use outboard_base::task::join_all;
use outboard_base::{Errno, Fh, Ino, Result, SessionId, Timestamp};
use outboard_kv::object::Room;
use outboard_kv::{Cached, Kv, KvError};
use outboard_medium::Medium;
use outboard_wire::file::{Attr, Header, Op, mode};

use crate::attr::CAPABILITY;
use crate::context::Context;
use crate::data::group_commit::Outcome;
use crate::data::regular;
use crate::data::shape::Shape;
use crate::data::write::Change;
use crate::layout::{DataKind, Dates, Inode, key, marks};
use crate::permission::WRITE;
use crate::spread::not_spread;
use crate::txn::{Fail, ROUNDS_MAX, Tried, Txn};
use crate::{Caller, Kvfs, VolumeEvent};

impl<K: Kv, M: Medium> Kvfs<K, M> {
    /// Attributes of a regular file, and whether its bytes may change without the volume being
    /// asked: not while a write would have to take set-id bits or capabilities away.
    pub async fn cacheable(&self, ino: Ino) -> Result<(Attr, bool)> {
        let inode = self.inode(ino).await?;
        regular(&inode)?;
        let privileged = self.is_privileged(&inode).await?;
        Ok((inode.attr, !privileged))
    }

    /// Whether a write has to take set-id bits or capabilities away.
    pub(crate) async fn is_privileged(&self, inode: &Inode) -> Result<bool> {
        let set_id = inode.attr.mode & (mode::S_ISUID | mode::S_ISGID) != 0;
        Ok(set_id
            || inode.has(marks::XATTRS) && {
                let key = key::xattr(inode.ino(), CAPABILITY);
                self.kv.get(&key).await.map_err(KvError::errno)?.is_some()
            })
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

    /// Writes runs of pages back, each an offset and at most 1 MiB, in their order, none touching a
    /// block of another: they were changed at `mtime`, if that is known. `ESTALE` if the file is
    /// gone, `EOPNOTSUPP` if its bytes lie on nodes.
    ///
    /// To a big file all of them go out side by side, beside users of other blocks, and are of one
    /// batch; what fails leaves none of them written.
    pub async fn write_back(
        &self,
        attachment: SessionId,
        ino: Ino,
        runs: &[(u64, &[u8])],
        mtime: Option<Timestamp>,
    ) -> Result<()> {
        let mut left = runs;
        // A file that is not big yet becomes so with one of the first, or stays small to the last.
        while let Some((first, rest)) = left.split_first() {
            if self.back_beside(ino, left, mtime).await? {
                break;
            }
            let _guard = self.range_locks.exclusive(ino).await;
            self.transact(async |txn| self.stage_back(ino, txn, *first, mtime).await).await?;
            left = rest;
        }
        self.notify_changed(attachment, ino);
        Ok(())
    }

    /// Writes runs back into a big file, all of them; false if it is not big.
    async fn back_beside(
        &self,
        ino: Ino,
        runs: &[(u64, &[u8])],
        mtime: Option<Timestamp>,
    ) -> Result<bool> {
        let ends = || runs.iter().map(|(at, data)| at.saturating_add(data.len() as u64));
        let start = runs.iter().map(|(at, _)| *at).min().unwrap_or(0);
        let end = ends().max().unwrap_or(0);
        let _guard = self.range_locks.exclusive_on(ino, start..end).await;
        let inode = self.inode(ino).await?;
        regular(&inode)?;
        not_spread(&inode)?;
        let shape = Shape::of(&inode);
        if shape.data != DataKind::Big || shape.trimming {
            return Ok(false);
        }
        let work = self.writes.begin(ino);
        let mut apart = false;
        for _ in 0..ROUNDS_MAX {
            let store = self.store();
            let out = runs.iter().map(|(at, data)| store.write_out(ino, *at, data, Room::Reserved));
            let written: std::result::Result<Vec<_>, _> =
                join_all(out.collect()).await.into_iter().collect();
            let change = Change {
                written: written.map_err(KvError::errno)?,
                end,
                dates: mtime.map_or(Dates::Stay, Dates::Then),
                strips: false,
                record: None,
                essential: true,
            };
            match self.commit_with_others(ino, &work, change, apart).await {
                Outcome::Done => return Ok(true),
                Outcome::Failed(errno) => return Err(errno),
                Outcome::Again => {}
                Outcome::Apart => apart = true,
            }
        }
        Err(Errno::EBUSY)
    }

    /// Stages a run of pages; the file's range lock is held.
    async fn stage_back(
        &self,
        ino: Ino,
        txn: &mut Txn<'_, Cached<K>>,
        (offset, data): (u64, &[u8]),
        mtime: Option<Timestamp>,
    ) -> Tried<()> {
        txn.essential();
        let mut inode = txn.inode(ino).await?;
        regular(&inode)?;
        not_spread(&inode)?;
        let mut shape = Shape::of(&inode);
        if shape.trimming {
            self.trim(ino).await?;
            return Err(Fail::Again);
        }
        let before = shape;
        let staged = self.store().stage_write(ino, &mut shape, offset, data, txn.batch()).await?;
        txn.stage(staged);
        self.keep_synced(ino, &before, &shape).await?;
        shape.put(&mut inode);
        self.count_change(txn, &mut inode, mtime.map_or(Dates::Stay, Dates::Then), false).await?;
        txn.put_inode(&inode)?;
        Ok(())
    }

    /// Whether an attachment was sent the number of `ino`, or has it open.
    pub fn is_known(&self, attachment: SessionId, ino: Ino) -> bool {
        self.handles.knows(attachment, ino)
    }

    /// Whether an attachment has `ino` open to write to it.
    pub fn is_open_to_write(&self, attachment: SessionId, ino: Ino) -> bool {
        self.handles.writes(attachment, ino)
    }

    /// The flags a handle of an attachment was opened with.
    pub fn opened(&self, attachment: SessionId, ino: Ino, fh: Fh) -> Option<u32> {
        self.handles.get(attachment, fh, ino).ok().map(|handle| handle.flags)
    }

    /// Truncates a file to no bytes, as opening it with `O_TRUNC` did just before: what was written
    /// back since goes, too.
    pub async fn truncate(&self, ino: Ino, now: Timestamp) -> Result<()> {
        let _guard = self.range_locks.exclusive(ino).await;
        let truncated = self.transact(async |txn| {
            let mut inode = txn.inode(ino).await?;
            regular(&inode)?;
            if inode.attr.size != 0 {
                self.stage_size(txn, &mut inode, 0).await?;
                inode.modify(now);
                txn.put_inode(&inode)?;
            }
            Ok(inode)
        });
        let inode = truncated.await?;
        self.finish_size(&inode).await
    }

    /// Notifies attachments other than this one that the file is not what they have cached.
    pub fn notify_changed(&self, attachment: SessionId, ino: Ino) {
        let others = self.handles.others_interested(attachment, ino);
        let stale = |attachment| VolumeEvent::StaleInode { attachment, ino };
        self.push_events(others.into_iter().map(stale));
    }
}
