//! Files whose bytes lie on storage nodes: what the volume of a metadata server knows of them.
//!
//! A *spread* file is an inode with a layout. Its bytes are read and written by clients of the
//! nodes, who have a delegation from the server; the volume has names, attributes, and six things
//! that the server asks it to remember:
//!
//! - the layout of each file, and of directories, whose files get theirs;
//! - `WRITING`: somebody may be writing, so the size here is not to be believed after a crash
//!   ([`Kvfs::begin_writing`], before the first byte can reach a node), and whether by a writer
//!   that tells before it answers: then nobody was answered anything of what lies behind the size;
//! - in the same record, from where on the nodes may hold bytes that a truncation took away
//!   ([`Kvfs::holed`]);
//! - what a writer told of size and times ([`Kvfs::publish`]), with what it is about to answer;
//! - which of those who have copies lack something ([`Kvfs::set_lacking`]);
//! - objects to be *purged*: the nodes still hold bytes of files that are gone ([`Kvfs::purges`]).
//!
//! No request moves bytes of a spread file: reading and writing it here is `EOPNOTSUPP`.
//!
//! See `docs/internals/kvfs-data.md`.

mod record;
mod text;

pub use record::LaidOut;
pub use text::{layout_text, parse_layout};

use record::Writing;
use std::sync::atomic::Ordering;

use outboard_base::limits::FILE_SIZE_MAX;
use outboard_base::{Errno, Ino, Result, SessionId, Timestamp};
use outboard_kv::{Cached, Kv};
use outboard_medium::Medium;
use outboard_wire::file::{Attr, FileKind, Flags, Header, Op, Reply, xattr_flags};
use outboard_wire::shared::FAN_MAX;
use outboard_wire::shared::call::{Layout, Told};

use crate::context::Context;
use crate::layout::key::{self, Tag};
use crate::layout::{DataKind, Dates, Inode, marks};
use crate::txn::{Fail, Tried, Txn};
use crate::{Caller, Kvfs, VolumeEvent};

/// Placement groups that files are dealt out to, by their numbers.
pub const GROUPS: u64 = 64;
/// Most maps of which nodes there are.
pub const MAPS_MAX: u32 = 1 << 16;

/// The placement group of a layout, and the map of the nodes that its file was made under.
#[must_use]
pub fn placed(layout: &Layout) -> (u32, u32) {
    (layout.group % 64, layout.group / 64)
}

/// What a server has to know of a spread file before it gives a delegation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Spread {
    /// Attributes as of now.
    pub attr: Attr,
    /// How its bytes lie.
    pub layout: Layout,
    /// On which nodes, in their order, once they were moved.
    pub members: Vec<u16>,
    /// A write has to take set-id bits or capabilities away: [`Kvfs::strip`] before it.
    pub strips: bool,
    /// Somebody may be writing, or may have been when a server or a client died.
    pub writing: bool,
    /// Whoever it is, if that is known.
    pub writer: Option<u64>,
    /// Whoever it is tells before it answers.
    pub tells: bool,
    /// Which of those who have copies lack what was written since they were left out: a bit for
    /// each, by its rank.
    pub lacking: u16,
    /// It was cut to this size, and nobody has said that the nodes hold nothing behind.
    pub cut: Option<u64>,
}

impl Spread {
    /// How and where its bytes lie.
    #[must_use]
    pub fn laid_out(&self) -> LaidOut {
        let (ino, layout, members) = (self.attr.ino, self.layout, self.members.clone());
        LaidOut { ino, layout, members, is_file: true }
    }
}

/// What a request is answered that whoever serves the volume carries out at the nodes: put with its
/// effect, so that the request is not done twice.
#[derive(Clone, Debug)]
pub struct Record(Vec<u8>, Vec<u8>);

impl Record {
    /// None for a request that is not sent again.
    ///
    /// # Errors
    /// As a request that claims so much.
    pub fn of(caller: &Caller, header: &Header, op: Op, reply: &Reply) -> Result<Option<Record>> {
        let cx = Context::new(caller, header, op, Timestamp::default())?;
        Ok(cx.record(reply)?.map(|(key, value)| Record(key, value)))
    }
}

/// `EOPNOTSUPP` for what only the nodes could do: the bytes are there.
pub(crate) fn not_spread(inode: &Inode) -> Result<()> {
    if inode.data == DataKind::Spread { Err(Errno::EOPNOTSUPP) } else { Ok(()) }
}

/// Gives a spread file a size: nothing else of its bytes is here. What is cut off is still at the
/// nodes, so the mark of a file that is written to, and in its record the size, are put with it.
/// What it takes there is for who cuts it there to say; of a file without bytes it is nothing.
pub(crate) async fn resize<K: Kv>(
    txn: &mut Txn<'_, Cached<K>>,
    inode: &mut Inode,
    size: u64,
) -> Tried<()> {
    if size > FILE_SIZE_MAX {
        return Err(Errno::EFBIG.into());
    }
    if size < inode.attr.size {
        let key = key::of(Tag::Writing, inode.ino());
        let known = txn.get(&key).await?.map(|value| record::Writing::decode(&value));
        let known = known.unwrap_or_default();
        let cut = Some(known.cut.map_or(size, |before| before.min(size)));
        inode.mark(marks::WRITING, true);
        txn.put(key, record::Writing { cut, ..known }.encode());
    }
    inode.attr.size = size;
    if size == 0 {
        inode.attr.blocks = 0;
    }
    Ok(())
}

/// `EINVAL` for what no file can have, or not on so many nodes.
fn judge(layout: &Layout, nodes_max: u8) -> Result<()> {
    text::check(layout)?;
    let is_too_wide = layout.is_redundant() && layout.nodes() > usize::from(nodes_max);
    if is_too_wide { Err(Errno::EINVAL) } else { Ok(()) }
}

/// The layout for one file, made under a map: its group is its own.
fn of_file(layout: Layout, ino: Ino, map: u32) -> Layout {
    let group = u32::try_from(ino.0 % GROUPS).unwrap_or(0);
    Layout { group: map.saturating_mul(64).saturating_add(group), ..layout }
}

impl<K: Kv, M: Medium> Kvfs<K, M> {
    /// Files may lie on so many nodes, by this map of them, from now on: a layout cannot ask for
    /// more copies.
    pub fn lies_on(&self, nodes: usize, map: u32) {
        let most = u8::try_from(nodes.clamp(1, FAN_MAX)).unwrap_or(1);
        self.nodes_max.store(most, Ordering::Relaxed);
        self.map.store(map, Ordering::Relaxed);
    }

    /// How the bytes of a file lie; of a directory, how those of files made in it will. `None`: not
    /// on nodes.
    pub async fn layout(&self, ino: Ino) -> Result<Option<Layout>> {
        let inode = self.inode(ino).await?;
        Ok(self.layout_of(&inode))
    }

    pub(crate) fn layout_of(&self, inode: &Inode) -> Option<Layout> {
        match inode.kind() {
            FileKind::Regular => inode.layout,
            FileKind::Directory => self.spread.map(|default| inode.layout.unwrap_or(default)),
            _ => None,
        }
    }

    /// Gives `inode`, being made in `dir`, its layout.
    pub(crate) fn lay_out(&self, dir: &Inode, inode: &mut Inode) {
        match (inode.kind(), self.spread) {
            (FileKind::Directory, _) => inode.layout = dir.layout,
            (FileKind::Regular, Some(default)) => {
                inode.data = DataKind::Spread;
                let (layout, map) =
                    (dir.layout.unwrap_or(default), self.map.load(Ordering::Relaxed));
                inode.layout = Some(of_file(layout, inode.ino(), map));
            }
            _ => {}
        }
    }

    /// Changes the layout of a directory, or of a regular file without bytes: else `ENOTEMPTY`.
    /// `EPERM` but for the owner and root; `EBUSY` while somebody may be writing; `EOPNOTSUPP` if
    /// the volume has no nodes, or those do not do this; `EINVAL` for what is no layout, and
    /// anything that has none.
    pub async fn set_layout(
        &self,
        caller: &Caller,
        header: &Header,
        ino: Ino,
        layout: Layout,
    ) -> Result<()> {
        let cx = Context::new(caller, header, Op::Setxattr, Timestamp::default())?;
        if !self.may_name(&cx, ino) {
            return Err(Errno::ESTALE);
        }
        self.change_layout(&cx, ino, Some(layout), 0).await
    }

    /// The same under the rules of `setxattr(2)`; `None` takes a directory's away.
    pub(crate) async fn change_layout(
        &self,
        cx: &Context<'_>,
        ino: Ino,
        layout: Option<Layout>,
        flags: u32,
    ) -> Result<()> {
        if self.spread.is_none() {
            return Err(Errno::EOPNOTSUPP);
        }
        layout
            .as_ref()
            .map_or(Ok(()), |layout| judge(layout, self.nodes_max.load(Ordering::Relaxed)))?;
        let _guard = self.range_locks.exclusive(ino).await;
        let changed = self.transact(async |txn| {
            let mut inode = txn.inode(ino).await?;
            // A front-end that checks permissions takes this for an attribute that whoever may
            // write may set.
            if !cx.cred.is_root() && cx.cred.uid != inode.attr.uid {
                return Err(Errno::EPERM.into());
            }
            if inode.layout.is_some() && flags & xattr_flags::CREATE != 0 {
                return Err(Errno::EEXIST.into());
            }
            if inode.layout.is_none() && flags & xattr_flags::REPLACE != 0 {
                return Err(Errno::ENODATA.into());
            }
            match (inode.kind(), layout) {
                (FileKind::Directory, None) if inode.layout.is_none() => {
                    return Err(Errno::ENODATA.into());
                }
                (FileKind::Directory, layout) => {
                    inode.layout = layout.map(|layout| Layout { group: 0, ..layout });
                }
                (FileKind::Regular, Some(layout)) => self.respread(&mut inode, layout).await?,
                (FileKind::Regular, None) => return Err(Errno::EOPNOTSUPP.into()),
                _ => return Err(Errno::EINVAL.into()),
            }
            inode.touch(cx.now.max(inode.attr.ctime));
            txn.put_inode(&inode)?;
            txn.record(cx, &Reply::Empty)?;
            Ok(())
        });
        changed.await?;
        self.changed(cx, ino);
        Ok(())
    }

    /// A regular file without bytes gets a layout, whatever it was before.
    async fn respread(&self, inode: &mut Inode, layout: Layout) -> Tried<()> {
        if inode.has(marks::TRIMMING) {
            self.trim(inode.ino()).await?;
            return Err(Fail::Again);
        }
        // An empty file may have blocks that were promised to it.
        if inode.attr.size != 0 || matches!(inode.data, DataKind::Small | DataKind::Big) {
            return Err(Errno::ENOTEMPTY.into());
        }
        // Who lacks something may still have what the others cut away.
        if inode.has(marks::WRITING | marks::LACKING) {
            return Err(Errno::EBUSY.into());
        }
        inode.data = DataKind::Spread;
        inode.layout = Some(of_file(layout, inode.ino(), self.map.load(Ordering::Relaxed)));
        inode.members.clear();
        Ok(())
    }

    /// A spread file; `ESTALE` if it is gone, `EINVAL` for anything else.
    pub async fn spread(&self, ino: Ino) -> Result<Spread> {
        let inode = self.inode(ino).await?;
        let layout = inode.layout.filter(|_| inode.data == DataKind::Spread);
        let layout = layout.ok_or(Errno::EINVAL)?;
        let strips = self.is_privileged(&inode).await?;
        let writing = inode.has(marks::WRITING);
        let record = if writing { self.writing_of(ino).await? } else { Writing::default() };
        let Writing { cut, tells, writer } = record;
        let writer = Some(writer).filter(|writer| *writer != 0);
        let lacking = if inode.has(marks::LACKING) { self.lacking_of(ino).await? } else { 0 };
        let Inode { attr, members, .. } = inode;
        Ok(Spread { attr, layout, members, strips, writing, writer, tells, lacking, cut })
    }

    /// What was recorded for a request that is sent again ([`Record`]), whatever its flags say.
    pub async fn answered(
        &self,
        caller: &Caller,
        header: &Header,
        op: Op,
    ) -> Result<Option<Reply>> {
        let flags = header.flags.with(Flags::REPLAY);
        let header = Header { flags, ..header.clone() };
        self.recorded(&Context::new(caller, &header, op, Timestamp::default())?).await
    }

    /// What a writer says of a file it has a delegation of: the size is this, it takes so much, and
    /// the times are not before the last write. Told again it changes nothing. With it goes the
    /// record of what the write is answered. `ESTALE` if the file is gone.
    pub async fn publish(
        &self,
        session: Option<SessionId>,
        ino: Ino,
        told: Told,
        record: Option<Record>,
    ) -> Result<Attr> {
        let _guard = self.range_locks.exclusive(ino).await;
        let published = self.transact(async |txn| {
            // The nodes have taken the bytes already.
            txn.essential();
            let mut inode = spread_inode(txn, ino).await?;
            let written = told.mtime.is_some_and(|mtime| mtime != inode.attr.mtime);
            let blocks = told.blocks.unwrap_or(inode.attr.blocks);
            let known = (inode.attr.size, inode.attr.blocks);
            let changes = written || known != (told.size, blocks);
            if changes {
                resize(txn, &mut inode, told.size).await?;
                inode.attr.blocks = blocks;
                inode.date(told.mtime.map_or(Dates::Stay, Dates::Then));
                txn.put_inode(&inode)?;
            }
            if let Some(Record(key, value)) = &record {
                txn.put(key, value.as_slice());
            }
            Ok((inode.attr, changes))
        });
        let (attr, changes) = published.await?;
        if changes {
            let others = self.handles.interested(session, ino);
            let stale = |attachment| VolumeEvent::StaleInode { attachment, ino };
            self.push_events(others.into_iter().map(stale));
        }
        Ok(attr)
    }

    /// What a write does to a file beside its bytes: set-id bits and capabilities go, times move.
    pub async fn strip(&self, caller: &Caller, ino: Ino, now: Timestamp) -> Result<Attr> {
        let header = Header { cred: caller.peer.clone(), ..Header::default() };
        let cx = Context::new(caller, &header, Op::Write, now)?;
        if !self.may_name(&cx, ino) {
            return Err(Errno::ESTALE);
        }
        let _guard = self.range_locks.exclusive(ino).await;
        let stripped = self.transact(async |txn| {
            let mut inode = spread_inode(txn, ino).await?;
            self.count_change(txn, &mut inode, cx.dates(), true).await?;
            txn.put_inode(&inode)?;
            Ok(inode.attr)
        });
        let attr = stripped.await?;
        self.changed(&cx, ino);
        Ok(attr)
    }
}

/// A spread file; `ESTALE` if it is gone, `EINVAL` for anything else.
async fn spread_inode<K: Kv>(txn: &mut Txn<'_, Cached<K>>, ino: Ino) -> Tried<Inode> {
    let inode = txn.inode(ino).await?;
    if inode.data == DataKind::Spread { Ok(inode) } else { Err(Errno::EINVAL.into()) }
}
