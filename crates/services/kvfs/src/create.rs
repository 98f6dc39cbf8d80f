//! What makes names: symlink, mknod, mkdir, create, tmpfile, link.

use outboard_base::{Errno, Fh, Ino, Result, limits};
use outboard_kv::{Cached, Kv};
use outboard_medium::Medium;
use outboard_wire::file::{Attr, FileKind, Reply, mode, open_flags};

use crate::Kvfs;
use crate::acl::{self, Acl};
use crate::context::Context;
use crate::handles::Handle;
use crate::layout::{DataKind, Entry, Inode, decode_xattr, encode_small, encode_xattr, key, marks};
use crate::lookup::TRIES;
use crate::orphan::Parting;
use crate::permission::{EXECUTE, WRITE};
use crate::shares::Taker;
use crate::txn::{Tried, Txn};

/// What is to be made.
#[derive(Clone, Copy)]
pub(crate) struct Birth<'a> {
    /// Kind and permissions.
    mode: u32,
    umask: u32,
    rdev: u32,
    /// Of a symbolic link.
    target: &'a [u8],
}

impl Birth<'_> {
    fn new(kind: FileKind, permissions: u32, umask: u32) -> Self {
        let mode = kind.mode_bits() | permissions & mode::PERMISSIONS;
        Birth { mode, umask, rdev: 0, target: &[] }
    }
}

impl<K: Kv, M: Medium> Kvfs<K, M> {
    pub(crate) async fn symlink(
        &self,
        cx: &Context<'_>,
        parent: Ino,
        name: &[u8],
        target: &[u8],
    ) -> Result<Reply> {
        match target.len() {
            0 => return Err(Errno::ENOENT),
            1..=limits::SYMLINK_MAX => {}
            _ => return Err(Errno::ENAMETOOLONG),
        }
        if target.contains(&0) {
            return Err(Errno::EINVAL);
        }
        let birth = Birth { target, ..Birth::new(FileKind::Symlink, 0o777, 0) };
        self.make_entry(cx, parent, name, birth).await
    }

    pub(crate) async fn mknod(
        &self,
        cx: &Context<'_>,
        parent: Ino,
        name: &[u8],
        mode: u32,
        umask: u32,
        rdev: u32,
    ) -> Result<Reply> {
        let kind = match mode & mode::S_IFMT {
            0 => FileKind::Regular,
            _ => FileKind::from_mode(mode)?,
        };
        let device = matches!(kind, FileKind::CharDevice | FileKind::BlockDevice);
        match kind {
            FileKind::Directory => return Err(Errno::EPERM),
            FileKind::Symlink => return Err(Errno::EINVAL),
            _ if device && !cx.passes() => return Err(Errno::EPERM),
            _ => {}
        }
        let rdev = if device { rdev } else { 0 };
        self.make_entry(cx, parent, name, Birth { rdev, ..Birth::new(kind, mode, umask) }).await
    }

    pub(crate) async fn mkdir(
        &self,
        cx: &Context<'_>,
        parent: Ino,
        name: &[u8],
        mode: u32,
        umask: u32,
    ) -> Result<Reply> {
        // As Linux has it: set-id bits come from the parent, not from the caller.
        let birth = Birth::new(FileKind::Directory, mode & 0o1777, umask);
        self.make_entry(cx, parent, name, birth).await
    }

    pub(crate) async fn create(
        &self,
        cx: &Context<'_>,
        parent: Ino,
        name: &[u8],
        mode: u32,
        umask: u32,
        flags: u32,
    ) -> Result<Reply> {
        if FileKind::from_mode(mode).is_ok_and(|kind| kind != FileKind::Regular) {
            return Err(Errno::EINVAL);
        }
        let birth = Birth::new(FileKind::Regular, mode, umask);
        let exclusive = flags & open_flags::EXCL != 0;
        for _ in 0..TRIES {
            if !cx.checked {
                self.searched(cx, parent).await?;
            }
            let found = self.find(parent, name).await?;
            let leads_to = found.as_ref().map(Inode::ino);
            match found {
                Some(_) if exclusive => return Err(Errno::EEXIST),
                _ if cx.leads_to.is_some_and(|wanted| wanted != leads_to) => {
                    return Err(Errno::EAGAIN);
                }
                Some(inode) => match self.open_inode(cx, inode.ino(), flags).await {
                    // Its removal has begun, of this name or of another that was its last then.
                    Err(Errno::ESTALE) => self.handles.decided(inode.ino()).await,
                    Err(errno) => return Err(errno),
                    Ok((fh, attr)) => {
                        self.handles.add_interest(cx.attachment, attr.ino);
                        return Ok(Reply::Created(attr, fh));
                    }
                },
                None => match self.make_open(cx, parent, name, birth, flags).await {
                    Err(Errno::EEXIST) if !exclusive => {} // Made meanwhile.
                    made => return made.map(|(attr, fh)| Reply::Created(attr, fh)),
                },
            }
        }
        Err(Errno::EBUSY)
    }

    /// Opens a handle on a new file, then makes it: nothing can fail after the commit.
    async fn make_open(
        &self,
        cx: &Context<'_>,
        parent: Ino,
        name: &[u8],
        birth: Birth<'_>,
        flags: u32,
    ) -> Result<(Attr, Fh)> {
        check_access_mode(flags)?;
        let ino = self.new_ino().await?;
        let handle = Handle { ino, flags, directory: false };
        let opening = self.handles.open(Taker::of(cx), handle)?;
        let reply = |attr| Reply::Created(attr, Fh::NONE);
        let attr = self.make(cx, parent, name, Some(ino), birth, reply).await?;
        Ok((attr, opening.keep()))
    }

    async fn make_entry(
        &self,
        cx: &Context<'_>,
        parent: Ino,
        name: &[u8],
        birth: Birth<'_>,
    ) -> Result<Reply> {
        self.make(cx, parent, name, None, birth, Reply::Entry).await.map(Reply::Entry)
    }

    /// Makes `name` in `parent` in one batch, with the asker's interest and replay record. A
    /// number is taken, if none is given, once the name is known to be free.
    async fn make(
        &self,
        cx: &Context<'_>,
        parent: Ino,
        name: &[u8],
        mut number: Option<Ino>,
        birth: Birth<'_>,
        reply: fn(Attr) -> Reply,
    ) -> Result<Attr> {
        let _guard = self.range_locks.exclusive(parent).await;
        let made = self.transact(async |txn| {
            let mut dir = self.room_for(cx, txn, parent, name).await?;
            let ino = match number {
                Some(ino) => ino,
                None => *number.insert(self.new_ino().await?),
            };
            let inode = self.born(cx, txn, &dir, ino, birth).await?;
            add_entry(cx, txn, &mut dir, name, &inode)?;
            txn.put_inode(&dir)?;
            txn.put_inode(&inode)?;
            txn.record(cx, &reply(inode.attr.clone()))?;
            Ok(inode.attr)
        });
        let attr = made.await?;
        self.handles.add_interest(cx.attachment, attr.ino);
        self.renamed(cx, parent, name);
        Ok(attr)
    }

    /// The directory, in which the asker may make `name`, which is free.
    async fn room_for(
        &self,
        cx: &Context<'_>,
        txn: &mut Txn<'_, Cached<K>>,
        parent: Ino,
        name: &[u8],
    ) -> Tried<Inode> {
        let dir = txn.directory(parent).await?;
        self.permit(cx, &dir, EXECUTE).await?;
        if txn.entry(parent, name).await?.is_some() {
            return Err(Errno::EEXIST.into());
        }
        if dir.attr.nlink == 0 {
            return Err(Errno::ENOENT.into());
        }
        self.permit(cx, &dir, WRITE).await?;
        Ok(dir)
    }

    /// A new inode in `dir`: owner, group, permissions and ACLs by inheritance; its data staged.
    async fn born(
        &self,
        cx: &Context<'_>,
        txn: &mut Txn<'_, Cached<K>>,
        dir: &Inode,
        ino: Ino,
        birth: Birth<'_>,
    ) -> Tried<Inode> {
        let mut inode = Inode::new(ino, dir.ino(), birth.mode, cx.now);
        inode.attr.uid = cx.cred.uid;
        inode.attr.gid = cx.cred.gid;
        inode.attr.rdev = birth.rdev;
        if dir.attr.mode & mode::S_ISGID != 0 {
            inode.attr.gid = dir.attr.gid;
            let executable = inode.attr.mode & 0o010 != 0;
            if inode.is_directory() {
                inode.attr.mode |= mode::S_ISGID;
            } else if executable && !cx.cred.is_root() && !cx.cred.in_group(dir.attr.gid) {
                // Checked or not: the kernel leaves this one to the volume, and names the groups.
                inode.attr.mode &= !mode::S_ISGID;
            }
        }
        if inode.kind() == FileKind::Symlink {
            inode.attr.size = birth.target.len() as u64;
            inode.attr.blocks = inode.attr.size.div_ceil(512);
            inode.data = DataKind::Small;
            txn.put(key::of(key::Tag::Small, ino), encode_small(ino, birth.target));
        } else {
            inherit(txn, dir, &mut inode, birth.umask).await?;
        }
        self.lay_out(dir, &mut inode);
        Ok(inode)
    }

    pub(crate) async fn tmpfile(
        &self,
        cx: &Context<'_>,
        parent: Ino,
        mode: u32,
        umask: u32,
        flags: u32,
    ) -> Result<Reply> {
        check_access_mode(flags)?;
        if flags & open_flags::ACCMODE == 0 {
            return Err(Errno::EINVAL);
        }
        let ino = self.new_ino().await?;
        let handle = Handle { ino, flags, directory: false };
        let opening = self.handles.open(Taker::of(cx), handle)?;
        let birth = Birth::new(FileKind::Regular, mode, umask);
        let made = self.transact(async |txn| {
            let dir = txn.directory(parent).await?;
            self.permit(cx, &dir, WRITE | EXECUTE).await?;
            if dir.attr.nlink == 0 {
                return Err(Errno::ENOENT.into());
            }
            let mut inode = self.born(cx, txn, &dir, ino, birth).await?;
            inode.attr.nlink = 0;
            inode.mark(marks::LINKABLE, flags & open_flags::EXCL == 0);
            txn.put_inode(&inode)?;
            txn.put(key::of(key::Tag::Orphan, ino), []);
            txn.record(cx, &Reply::Created(inode.attr.clone(), Fh::NONE))?;
            Ok(inode.attr)
        });
        let mut parting = Parting::new(&self.handles);
        parting.nameless(ino);
        let attr = made.await?;
        parting.committed();
        self.handles.add_interest(cx.attachment, ino);
        Ok(Reply::Created(attr, opening.keep()))
    }

    pub(crate) async fn link(
        &self,
        cx: &Context<'_>,
        ino: Ino,
        parent: Ino,
        name: &[u8],
    ) -> Result<Reply> {
        let _guard = self.range_locks.exclusive(parent).await;
        let mut naming = None;
        let linked = self.transact(async |txn| {
            let mut inode = txn.inode(ino).await?;
            let mut dir = self.room_for(cx, txn, parent, name).await?;
            if inode.is_directory() {
                return Err(Errno::EPERM.into());
            }
            if inode.attr.nlink == 0 && !inode.has(marks::LINKABLE) {
                return Err(Errno::ENOENT.into());
            }
            if inode.attr.nlink >= limits::LINK_MAX {
                return Err(Errno::EMLINK.into());
            }
            if inode.attr.nlink == 0 {
                if naming.is_none() {
                    naming = Some(self.handles.begin_naming(ino)?);
                }
                txn.delete(key::of(key::Tag::Orphan, ino));
                inode.mark(marks::LINKABLE, false);
            }
            inode.attr.nlink += 1;
            inode.touch(cx.now);
            add_entry(cx, txn, &mut dir, name, &inode)?;
            txn.put_inode(&dir)?;
            txn.put_inode(&inode)?;
            txn.record(cx, &Reply::Entry(inode.attr.clone()))?;
            Ok(inode.attr)
        });
        let attr = linked.await?;
        if let Some(naming) = naming {
            naming.named();
        }
        self.handles.add_interest(cx.attachment, ino);
        self.renamed(cx, parent, name);
        self.changed(cx, ino);
        Ok(Reply::Entry(attr))
    }
}

/// Access mode 3 is none.
pub(crate) fn check_access_mode(flags: u32) -> Result<()> {
    if flags & open_flags::ACCMODE == open_flags::ACCMODE { Err(Errno::EINVAL) } else { Ok(()) }
}

/// Stages the entry `name` for `inode` at the end of `dir`; the caller puts `dir`.
pub(crate) fn add_entry<K: Kv>(
    cx: &Context<'_>,
    txn: &mut Txn<'_, K>,
    dir: &mut Inode,
    name: &[u8],
    inode: &Inode,
) -> Result<()> {
    let cookie = dir.next_cookie;
    dir.next_cookie = cookie.checked_add(1).ok_or(Errno::EUCLEAN)?;
    dir.entries = dir.entries.saturating_add(1);
    if inode.is_directory() {
        dir.attr.nlink = dir.attr.nlink.checked_add(1).ok_or(Errno::EMLINK)?;
    }
    dir.modify(cx.now);
    txn.put_entry(dir.ino(), name, &Entry { ino: inode.ino(), cookie, kind: inode.kind() })
}

/// Permissions by the directory's default ACL, or else by the umask.
async fn inherit<K: Kv>(
    txn: &mut Txn<'_, K>,
    dir: &Inode,
    inode: &mut Inode,
    umask: u32,
) -> Tried<()> {
    let default = if dir.has(marks::DEFAULT_ACL) {
        txn.get(&key::xattr(dir.ino(), acl::DEFAULT)).await?
    } else {
        None
    };
    let Some(stored) = default else {
        inode.attr.mode &= !(umask & 0o777);
        return Ok(());
    };
    let value = decode_xattr(dir.ino(), acl::DEFAULT, &stored)?;
    let Some(list) = Acl::decode(value).map_err(|_| Errno::EUCLEAN)? else {
        return Err(Errno::EUCLEAN.into());
    };
    let ino = inode.ino();
    let own = list.inherited(inode.attr.mode);
    inode.attr.mode = inode.attr.mode & !0o777 | own.mode();
    if !own.is_mode() {
        inode.mark(marks::ACL, true);
        txn.put(key::xattr(ino, acl::ACCESS), encode_xattr(ino, acl::ACCESS, &own.encode()));
    }
    if inode.is_directory() {
        inode.mark(marks::DEFAULT_ACL, true);
        txn.put(key::xattr(ino, acl::DEFAULT), encode_xattr(ino, acl::DEFAULT, value));
    }
    Ok(())
}
