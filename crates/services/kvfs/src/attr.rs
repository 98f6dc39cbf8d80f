//! Attributes: getattr, setattr, access.

use outboard_base::{Errno, Fh, Ino, Result};
use outboard_kv::{Cached, Kv};
use outboard_medium::Medium;
use outboard_wire::file::{FileKind, Reply, Setattr, SetattrTime, mode};

use crate::Kvfs;
use crate::acl::{self, Acl};
use crate::context::Context;
use crate::layout::{Inode, decode_xattr, encode_xattr, key, marks};
use crate::permission::WRITE;
use crate::txn::{Tried, Txn};

/// File capabilities: gone with the set-id bits.
pub(crate) const CAPABILITY: &[u8] = b"security.capability";

impl<K: Kv, M: Medium> Kvfs<K, M> {
    pub(crate) async fn getattr(&self, _cx: &Context<'_>, ino: Ino) -> Result<Reply> {
        Ok(Reply::Attr(self.inode(ino).await?.attr))
    }

    pub(crate) async fn access(&self, cx: &Context<'_>, ino: Ino, mask: u32) -> Result<Reply> {
        if mask > 7 {
            return Err(Errno::EINVAL);
        }
        let inode = self.inode(ino).await?;
        self.permit(cx, &inode, mask).await?;
        Ok(Reply::Empty)
    }

    pub(crate) async fn setattr(
        &self,
        cx: &Context<'_>,
        ino: Ino,
        fh: Fh,
        set: &Setattr,
    ) -> Result<Reply> {
        // -1 means "leave alone", which is said by not saying it.
        if set.uid == Some(u32::MAX) || set.gid == Some(u32::MAX) {
            return Err(Errno::EINVAL);
        }
        let through_handle = set.size.is_some() && fh != Fh::NONE;
        if through_handle && !self.handles.get(cx.attachment, fh, ino)?.writes() {
            return Err(Errno::EINVAL);
        }
        let _guard = self.range_locks.exclusive(ino).await;
        let changed = self.transact(async |txn| {
            let mut inode = txn.inode(ino).await?;
            if *set == Setattr::default() {
                return Ok(inode);
            }
            may_set(cx, &inode, set)?;
            if needs_write(cx, &inode, set) && !through_handle {
                self.permit(cx, &inode, WRITE).await?;
            }
            if let Some(size) = set.size {
                self.set_size(cx, txn, &mut inode, size).await?;
            }
            self.set_owner(txn, &mut inode, set).await?;
            if let Some(new) = set.mode {
                self.set_mode(cx, txn, &mut inode, new).await?;
            }
            if set.kill_suidgid && set.mode.is_none() {
                self.strip_privileges(txn, &mut inode).await?;
            }
            set_times(cx, &mut inode, set);
            inode.touch(cx.changed_at(set.ctime));
            txn.put_inode(&inode)?;
            txn.record(cx, &Reply::Attr(inode.attr.clone()))?;
            Ok(inode)
        });
        let inode = changed.await?;
        if set.size.is_some() {
            self.finish_size(&inode).await?;
        }
        self.changed(cx, ino);
        Ok(Reply::Attr(inode.attr))
    }

    /// Stages a new size with what goes with it: mtime, and set-id bits of a file that an ordinary
    /// user changed.
    pub(crate) async fn set_size(
        &self,
        cx: &Context<'_>,
        txn: &mut Txn<'_, Cached<K>>,
        inode: &mut Inode,
        size: u64,
    ) -> Tried<()> {
        match inode.kind() {
            FileKind::Regular => {}
            FileKind::Directory => return Err(Errno::EISDIR.into()),
            _ => return Err(Errno::EINVAL.into()),
        }
        if !cx.passes() {
            self.strip_privileges(txn, inode).await?;
        }
        if size != inode.attr.size {
            self.stage_size(txn, inode, size).await?;
            inode.date(cx.dates());
        }
        Ok(())
    }

    async fn set_owner(
        &self,
        txn: &mut Txn<'_, Cached<K>>,
        inode: &mut Inode,
        set: &Setattr,
    ) -> Tried<()> {
        if set.uid.is_none() && set.gid.is_none() {
            return Ok(());
        }
        inode.attr.uid = set.uid.unwrap_or(inode.attr.uid);
        inode.attr.gid = set.gid.unwrap_or(inode.attr.gid);
        if !inode.is_directory() {
            self.strip_privileges(txn, inode).await?;
        }
        Ok(())
    }

    async fn set_mode(
        &self,
        cx: &Context<'_>,
        txn: &mut Txn<'_, Cached<K>>,
        inode: &mut Inode,
        new: u32,
    ) -> Tried<()> {
        let mut bits = new & mode::PERMISSIONS;
        if !cx.passes() && !cx.cred.in_group(inode.attr.gid) {
            bits &= !mode::S_ISGID;
        }
        inode.attr.mode = inode.attr.mode & mode::S_IFMT | bits;
        if !inode.has(marks::ACL) {
            return Ok(());
        }
        let key = key::xattr(inode.ino(), acl::ACCESS);
        if let Some(stored) = txn.get(&key).await? {
            let value = decode_xattr(inode.ino(), acl::ACCESS, &stored)?;
            if let Some(mut list) = Acl::decode(value).map_err(|_| Errno::EUCLEAN)? {
                list.set_mode(bits);
                txn.put(key, encode_xattr(inode.ino(), acl::ACCESS, &list.encode()));
            }
        }
        Ok(())
    }

    /// Takes away what a file that somebody else changed must not keep: set-user-id, set-group-id
    /// if the group may execute it, file capabilities. The caller puts the inode.
    pub(crate) async fn strip_privileges(
        &self,
        txn: &mut Txn<'_, Cached<K>>,
        inode: &mut Inode,
    ) -> Tried<()> {
        inode.attr.mode &= !mode::S_ISUID;
        if inode.attr.mode & 0o010 != 0 {
            inode.attr.mode &= !mode::S_ISGID;
        }
        if inode.has(marks::XATTRS) {
            let key = key::xattr(inode.ino(), CAPABILITY);
            if txn.get(&key).await?.is_some() {
                txn.delete(key);
            }
        }
        Ok(())
    }
}

/// `chmod(2)`, `chown(2)`, `utimensat(2)`: what only owner or root may do.
fn may_set(cx: &Context<'_>, inode: &Inode, set: &Setattr) -> Result<()> {
    if cx.passes() {
        return Ok(());
    }
    let owner = cx.owns(inode);
    let attr = &inode.attr;
    let gives_away = set.uid.is_some_and(|uid| !owner || uid != attr.uid);
    let regroups = set.gid.is_some_and(|gid| {
        let own_group = gid == attr.gid || cx.cred.in_group(gid);
        !owner || !own_group
    });
    let chmods = set.mode.is_some() && !owner;
    let (given, both_now) = times(set);
    let sets_times = given && !both_now && !owner;
    if gives_away || regroups || chmods || sets_times { Err(Errno::EPERM) } else { Ok(()) }
}

/// Whether any time is given, and whether both are "now", which whoever may write may do.
fn times(set: &Setattr) -> (bool, bool) {
    let now = Some(SetattrTime::Now);
    (set.atime.is_some() || set.mtime.is_some(), set.atime == now && set.mtime == now)
}

fn needs_write(cx: &Context<'_>, inode: &Inode, set: &Setattr) -> bool {
    let (_, both_now) = times(set);
    set.size.is_some() || (both_now && !cx.owns(inode))
}

fn set_times(cx: &Context<'_>, inode: &mut Inode, set: &Setattr) {
    let time = |given: SetattrTime| match given {
        SetattrTime::Now => cx.now,
        SetattrTime::At(at) => at,
    };
    inode.attr.atime = set.atime.map_or(inode.attr.atime, time);
    inode.attr.mtime = set.mtime.map_or(inode.attr.mtime, time);
}
