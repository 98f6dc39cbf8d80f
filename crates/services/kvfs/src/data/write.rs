//! Writing.
//!
//! To a big file, at a place of its own, a write has two halves: its blocks go out while others
//! write and read elsewhere in the file; then those whose blocks are out at the same time commit
//! together ([`super::group_commit`]). A write that changes the file's form is alone with the file.
//!
//! Every write puts its replay record in its own batch: one that was done before the DPU side was
//! lost is answered when it is sent again, and cannot come over what others wrote since.

use outboard_base::limits::{FILE_SIZE_MAX, IO_MAX};
use outboard_base::task::RangeGuard;
use outboard_base::{Errno, Fh, Ino, Result};
use outboard_kv::object::{Room, Written};
use outboard_kv::{Cached, Kv, KvError};
use outboard_medium::Medium;
use outboard_wire::file::{Reply, open_flags, write_flags};

use super::group_commit::{Leader, Outcome, Role, Work};
use super::regular;
use super::shape::Shape;
use crate::Kvfs;
use crate::context::Context;
use crate::handles::Handle;
use crate::layout::{DataKind, Dates, Inode};
use crate::spread::not_spread;
use crate::txn::{Fail, ROUNDS_MAX, Tried, Txn};

/// A write, as far as its effect is concerned.
struct Write<'a> {
    ino: Ino,
    flags: u32,
    data: &'a [u8],
}

impl Write<'_> {
    /// From the page cache: it has its own place, and takes no privileges away.
    fn cached(&self) -> bool {
        self.flags & write_flags::WRITEBACK != 0
    }

    fn strips(&self, cx: &Context<'_>) -> bool {
        self.flags & write_flags::KILL_SUIDGID != 0 || (!self.cached() && !cx.passes())
    }

    /// The part of the data that fits a file at `offset`; `EFBIG` if none does.
    fn clipped(&self, offset: u64) -> Result<&[u8]> {
        let room = FILE_SIZE_MAX.checked_sub(offset).filter(|room| *room > 0);
        let room = usize::try_from(room.ok_or(Errno::EFBIG)?).unwrap_or(usize::MAX);
        Ok(self.data.get(..room).unwrap_or(self.data))
    }
}

/// A write to some blocks of a big file whose bytes are out.
pub(crate) struct Change {
    /// Its runs of blocks, none touching a block of another.
    pub(crate) written: Vec<Written>,
    /// Where it ends; beyond the size, it grows the file.
    pub(crate) end: u64,
    pub(crate) dates: Dates,
    pub(crate) strips: bool,
    /// Its answer, to be put with it.
    pub(crate) record: Option<(Vec<u8>, Vec<u8>)>,
    /// It was promised its space.
    pub(crate) essential: bool,
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
        let place = (!appends).then_some(offset);
        let taken = match self.write_beside(cx, &write, place).await? {
            Some(taken) => taken,
            None => self.write_alone(cx, &write, place).await?,
        };
        if taken > 0 {
            self.changed(cx, ino);
        }
        self.sync_written(handle, flags).await?;
        Ok(Reply::Written(taken))
    }

    /// After a write through `handle`: makes it durable, if that is what was asked for.
    pub(crate) async fn sync_written(&self, handle: Handle, flags: u32) -> Result<()> {
        let durable = flags & write_flags::DSYNC != 0 || handle.flags & open_flags::DSYNC != 0;
        if durable { self.sync().await } else { Ok(()) }
    }

    /// Writes some blocks of a big file, at `place` or from the end on, beside users of others.
    /// `None` if it is not big.
    async fn write_beside(
        &self,
        cx: &Context<'_>,
        write: &Write<'_>,
        place: Option<u64>,
    ) -> Result<Option<u32>> {
        let ino = write.ino;
        let (_guard, shape) = self.lock_to_write(write, place).await?;
        // Nobody changes this while anybody holds a lock of any block.
        if shape.data != DataKind::Big || shape.trimming || write.data.is_empty() {
            return Ok(None);
        }
        let offset = place.unwrap_or(shape.size);
        let data = write.clipped(offset)?;
        let end = offset + data.len() as u64;
        let taken = u32::try_from(data.len()).map_err(|_| Errno::EIO)?;
        let record = cx.record(&Reply::Written(taken))?;
        let work = self.writes.begin(ino);
        let mut apart = false;
        for _ in 0..ROUNDS_MAX {
            let written = self.store().write_out(ino, offset, data, Room::Common).await;
            let change = Change {
                written: vec![written.map_err(KvError::errno)?],
                end,
                dates: cx.dates(),
                strips: write.strips(cx),
                record: record.clone(),
                essential: false,
            };
            match self.commit_with_others(ino, &work, change, apart).await {
                Outcome::Done => return Ok(Some(taken)),
                Outcome::Failed(errno) => return Err(errno),
                Outcome::Again => {}
                Outcome::Apart => apart = true,
            }
        }
        Err(Errno::EBUSY)
    }

    /// The lock of the blocks a write touches, and the file's shape since then. Who appends has all
    /// from the end on, so that the end is nobody else's to move.
    async fn lock_to_write(
        &self,
        write: &Write<'_>,
        place: Option<u64>,
    ) -> Result<(RangeGuard<'_>, Shape)> {
        let ino = write.ino;
        let mut bytes = match place {
            Some(offset) => offset..offset.saturating_add(write.data.len() as u64),
            None => self.inode(ino).await?.attr.size..u64::MAX,
        };
        loop {
            let guard = self.range_locks.exclusive_on(ino, bytes.clone()).await;
            let inode = self.inode(ino).await?;
            regular(&inode)?;
            if place.is_some() || bytes.start <= inode.attr.size {
                return Ok((guard, Shape::of(&inode)));
            }
            // It was cut meanwhile.
            bytes.start = inode.attr.size;
        }
    }

    /// Commits a change, with those of others that are ready at the same time.
    pub(crate) async fn commit_with_others(
        &self,
        ino: Ino,
        work: &Work<'_, Change>,
        change: Change,
        apart: bool,
    ) -> Outcome {
        match work.commit(change, apart).await {
            Role::Follower(outcome) => outcome,
            Role::Leader(leader) => self.commit_group(ino, leader).await,
        }
    }

    /// Commits the writes of a group, as its leader.
    async fn commit_group(&self, ino: Ino, mut leader: Leader<'_, Change>) -> Outcome {
        let changes = leader.take_works();
        let committed = self.attempt(async |txn| self.stage_changes(ino, txn, changes).await).await;
        let outcome = match committed {
            Ok(()) => Outcome::Done,
            Err(Fail::Again) => Outcome::Again,
            Err(Fail::With(_)) if leader.has_followers() => Outcome::Apart,
            Err(Fail::With(errno)) => Outcome::Failed(errno),
        };
        leader.finish(outcome);
        outcome
    }

    async fn stage_changes(
        &self,
        ino: Ino,
        txn: &mut Txn<'_, Cached<K>>,
        changes: Vec<Change>,
    ) -> Tried<()> {
        let mut inode = txn.inode(ino).await?;
        let mut shape = Shape::of(&inode);
        let mut written = Vec::with_capacity(changes.len());
        for change in changes {
            shape.size = shape.size.max(change.end);
            if let Some((key, value)) = change.record {
                txn.put(key, value);
            }
            if change.essential {
                txn.essential();
            }
            self.count_change(txn, &mut inode, change.dates, change.strips).await?;
            written.extend(change.written);
        }
        let store = self.store();
        let staged = store.stage_written(ino, &mut shape, written, txn.batch()).await?;
        txn.stage(staged);
        shape.put(&mut inode);
        txn.put_inode(&inode)?;
        Ok(())
    }

    /// Writes at `place`, or at the end. Returns how much was taken.
    async fn write_alone(
        &self,
        cx: &Context<'_>,
        write: &Write<'_>,
        place: Option<u64>,
    ) -> Result<u32> {
        let ino = write.ino;
        let _guard = self.range_locks.exclusive(ino).await;
        self.transact(async |txn| {
            let mut inode = txn.inode(ino).await?;
            regular(&inode)?;
            let offset = place.unwrap_or(inode.attr.size);
            if write.data.is_empty() {
                return Ok(0);
            }
            not_spread(&inode)?;
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
            self.count_change(txn, &mut inode, cx.dates(), write.strips(cx)).await?;
            txn.put_inode(&inode)?;
            let taken = u32::try_from(data.len()).map_err(|_| Errno::EIO)?;
            txn.record(cx, &Reply::Written(taken))?;
            Ok(taken)
        })
        .await
    }

    /// What a write does to an inode beside its size.
    pub(crate) async fn count_change(
        &self,
        txn: &mut Txn<'_, Cached<K>>,
        inode: &mut Inode,
        dates: Dates,
        strips: bool,
    ) -> Tried<()> {
        if strips {
            self.strip_privileges(txn, inode).await?;
        }
        inode.date(dates);
        Ok(())
    }
}
