//! Extended attributes, `xattr(7)`, and through them POSIX ACLs.

use outboard_base::{Errno, Ino, Result, limits};
use outboard_kv::{Cached, Key, Kv, KvError};
use outboard_medium::Medium;
use outboard_wire::file::{FileKind, Reply, mode, xattr_flags};

use crate::acl::{self, Acl};
use crate::context::Context;
use crate::layout::{Inode, decode_xattr, encode_xattr, key, marks};
use crate::permission::{READ, WRITE};
use crate::spread::{layout_text, parse_layout};
use crate::txn::{Fail, Tried, Txn};
use crate::{Answer, Kvfs, Payload};

/// How the bytes of a file, or of those made in a directory, lie on nodes.
const LAYOUT: &[u8] = b"user.outboard.layout";
/// Names fetched at a time.
const PAGE: usize = 256;

/// Whose rules an attribute obeys.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Space {
    User,
    Trusted,
    Security,
    AccessAcl,
    DefaultAcl,
}

impl Space {
    fn of(name: &[u8]) -> Result<Space> {
        let within = |prefix: &[u8]| name.len() > prefix.len() && name.starts_with(prefix);
        Ok(match name {
            acl::ACCESS => Space::AccessAcl,
            acl::DEFAULT => Space::DefaultAcl,
            _ if within(b"user.") => Space::User,
            _ if within(b"trusted.") => Space::Trusted,
            _ if within(b"security.") => Space::Security,
            _ => return Err(Errno::EOPNOTSUPP),
        })
    }

    fn mark(self) -> u32 {
        match self {
            Space::AccessAcl => marks::ACL,
            Space::DefaultAcl => marks::DEFAULT_ACL,
            Space::User | Space::Trusted | Space::Security => marks::XATTRS,
        }
    }
}

/// The bytes, or how many there are if none were asked for; `ERANGE` if they are more than asked
/// for.
fn answer(bytes: Vec<u8>, len: u32) -> Result<Answer> {
    let size = u32::try_from(bytes.len()).map_err(|_| Errno::E2BIG)?;
    if len == 0 {
        return Ok(Reply::Size(size).into());
    }
    if size > len {
        return Err(Errno::ERANGE);
    }
    Ok(Answer { reply: Reply::Data(size), payload: Payload::Bytes(bytes) })
}

impl<K: Kv, M: Medium> Kvfs<K, M> {
    pub(crate) async fn getxattr(
        &self,
        cx: &Context<'_>,
        ino: Ino,
        name: &[u8],
        len: u32,
    ) -> Result<Answer> {
        let space = Space::of(name)?;
        let inode = self.inode(ino).await?;
        if self.is_layout(name) && carries_user(&inode) {
            self.permit(cx, &inode, READ).await?;
            let layout = self.layout_of(&inode).ok_or(Errno::ENODATA)?;
            return answer(layout_text(&layout).into_bytes(), len);
        }
        match space {
            Space::User if !carries_user(&inode) => return Err(Errno::ENODATA),
            Space::User => self.permit(cx, &inode, READ).await?,
            Space::Trusted if !cx.passes() => return Err(Errno::ENODATA),
            Space::AccessAcl | Space::DefaultAcl if inode.kind() == FileKind::Symlink => {
                return Err(Errno::EOPNOTSUPP);
            }
            _ => {}
        }
        if !inode.has(space.mark()) {
            return Err(Errno::ENODATA);
        }
        let stored = self.kv.get(&key::xattr(ino, name)).await.map_err(KvError::errno)?;
        let stored = stored.ok_or(Errno::ENODATA)?;
        answer(decode_xattr(ino, name, &stored)?.to_vec(), len)
    }

    pub(crate) async fn listxattr(&self, cx: &Context<'_>, ino: Ino, len: u32) -> Result<Answer> {
        let inode = self.inode(ino).await?;
        let mut names = Vec::new();
        if inode.has(marks::ACL | marks::DEFAULT_ACL | marks::XATTRS) {
            for key in self.xattr_keys(ino).await.map_err(Fail::errno)? {
                let name = key::rest(&key);
                if !name.starts_with(b"trusted.") || cx.cred.is_root() {
                    names.extend_from_slice(name);
                    names.push(0);
                }
            }
        }
        answer(names, len)
    }

    /// The keys of every attribute of `ino`: their names' bytes are bounded by `XATTR_LIST_MAX`.
    async fn xattr_keys(&self, ino: Ino) -> Tried<Vec<Key>> {
        let prefix = key::of(key::Tag::Xattr, ino);
        let mut keys: Vec<Key> = Vec::new();
        loop {
            let pairs = self.kv.scan(&prefix, keys.last().map(|key| &key[..]), PAGE).await?;
            let last = pairs.len() < PAGE;
            keys.extend(pairs.into_iter().map(|(key, _)| key));
            if last {
                return Ok(keys);
            }
        }
    }

    pub(crate) async fn setxattr(
        &self,
        cx: &Context<'_>,
        ino: Ino,
        name: &[u8],
        value: &[u8],
        flags: u32,
    ) -> Result<Reply> {
        let known = xattr_flags::CREATE | xattr_flags::REPLACE | xattr_flags::KILL_SGID;
        let exclusive = xattr_flags::CREATE | xattr_flags::REPLACE;
        if flags & !known != 0 || flags & exclusive == exclusive {
            return Err(Errno::EINVAL);
        }
        if value.len() > limits::XATTR_SIZE_MAX {
            return Err(Errno::E2BIG);
        }
        let space = Space::of(name)?;
        if self.is_layout(name) {
            let text = std::str::from_utf8(value).map_err(|_| Errno::EINVAL)?;
            self.change_layout(cx, ino, Some(parse_layout(text)?), flags).await?;
            return Ok(Reply::Empty);
        }
        let _guard = self.range_locks.exclusive(ino).await;
        let set = self.transact(async |txn| {
            let mut inode = txn.inode(ino).await?;
            self.may_change(cx, &inode, space).await?;
            let key = key::xattr(ino, name);
            let found = txn.get(&key).await?.is_some();
            if found && flags & xattr_flags::CREATE != 0 {
                return Err(Errno::EEXIST.into());
            }
            if !found && flags & xattr_flags::REPLACE != 0 {
                return Err(Errno::ENODATA.into());
            }
            let value = match space {
                Space::AccessAcl => set_access(cx, &mut inode, value, flags)?,
                Space::DefaultAcl => default_list(&inode, value)?,
                _ => Some(value.to_vec()),
            };
            inode.mark(space.mark(), value.is_some());
            match value {
                Some(value) => {
                    if !found {
                        self.room_for_name(ino, name).await?;
                    }
                    txn.put(key, encode_xattr(ino, name, &value));
                }
                None => txn.delete(key),
            }
            finish(cx, txn, &mut inode)
        });
        set.await?;
        self.changed(cx, ino);
        Ok(Reply::Empty)
    }

    pub(crate) async fn removexattr(
        &self,
        cx: &Context<'_>,
        ino: Ino,
        name: &[u8],
    ) -> Result<Reply> {
        let space = Space::of(name)?;
        if self.is_layout(name) {
            self.change_layout(cx, ino, None, 0).await?;
            return Ok(Reply::Empty);
        }
        let _guard = self.range_locks.exclusive(ino).await;
        let removed = self.transact(async |txn| {
            let mut inode = txn.inode(ino).await?;
            self.may_change(cx, &inode, space).await?;
            let key = key::xattr(ino, name);
            if txn.get(&key).await?.is_none() {
                return Err(Errno::ENODATA.into());
            }
            txn.delete(key);
            txn.essential();
            inode.mark(space.mark() & !marks::XATTRS, false);
            finish(cx, txn, &mut inode)
        });
        removed.await?;
        self.changed(cx, ino);
        Ok(Reply::Empty)
    }

    /// The name stands for the layout in the inode, which no list mentions: a program that copies
    /// attributes copies none of it. A volume without nodes has no such thing.
    fn is_layout(&self, name: &[u8]) -> bool {
        self.spread.is_some() && name == LAYOUT
    }

    /// One more name still leaves a list that can be read.
    async fn room_for_name(&self, ino: Ino, name: &[u8]) -> Tried<()> {
        let keys = self.xattr_keys(ino).await?;
        let used: usize = keys.iter().map(|key| key::rest(key).len() + 1).sum();
        let fits = used + name.len() < limits::XATTR_LIST_MAX;
        if fits { Ok(()) } else { Err(Errno::ENOSPC.into()) }
    }

    async fn may_change(&self, cx: &Context<'_>, inode: &Inode, space: Space) -> Result<()> {
        let sticky = inode.is_directory() && inode.attr.mode & mode::S_ISVTX != 0;
        match space {
            Space::User if !carries_user(inode) => Err(Errno::EPERM),
            Space::User if sticky && !cx.owns(inode) => Err(Errno::EPERM),
            Space::User => self.permit(cx, inode, WRITE).await,
            Space::Trusted | Space::Security if !cx.passes() => Err(Errno::EPERM),
            Space::AccessAcl | Space::DefaultAcl if inode.kind() == FileKind::Symlink => {
                Err(Errno::EOPNOTSUPP)
            }
            Space::AccessAcl | Space::DefaultAcl if !cx.owns(inode) => Err(Errno::EPERM),
            _ => Ok(()),
        }
    }
}

/// Only files and directories have permissions of their own to guard `user.` attributes with.
fn carries_user(inode: &Inode) -> bool {
    matches!(inode.kind(), FileKind::Regular | FileKind::Directory)
}

/// An access ACL changes the mode; one that says no more than the mode is not stored.
fn set_access(
    cx: &Context<'_>,
    inode: &mut Inode,
    value: &[u8],
    flags: u32,
) -> Result<Option<Vec<u8>>> {
    let Some(list) = Acl::decode(value)? else { return Ok(None) };
    inode.attr.mode = inode.attr.mode & !0o777 | list.mode();
    let outsider = !cx.passes() && !cx.cred.in_group(inode.attr.gid);
    if outsider || flags & xattr_flags::KILL_SGID != 0 {
        inode.attr.mode &= !mode::S_ISGID;
    }
    Ok((!list.is_mode()).then(|| list.encode()))
}

fn default_list(inode: &Inode, value: &[u8]) -> Result<Option<Vec<u8>>> {
    let list = Acl::decode(value)?;
    if list.is_some() && !inode.is_directory() {
        return Err(Errno::EACCES);
    }
    Ok(list.map(|list| list.encode()))
}

fn finish<K: Kv>(cx: &Context<'_>, txn: &mut Txn<'_, Cached<K>>, inode: &mut Inode) -> Tried<()> {
    inode.touch(cx.now);
    txn.put_inode(inode)?;
    txn.record(cx, &Reply::Empty)?;
    Ok(())
}
