//! Opening, closing, and handing in what was open before a restart.

use outboard_base::{Errno, Fh, Ino, Result};
use outboard_kv::Kv;
use outboard_medium::Medium;
use outboard_wire::file::{Attr, FileKind, Flags, Op, Reply, open_flags};

use crate::Kvfs;
use crate::context::Context;
use crate::create::check_access_mode;
use crate::handles::Handle;
use crate::layout::Inode;
use crate::permission::{EXECUTE, READ, WRITE};
use crate::shares::Taker;

impl<K: Kv, M: Medium> Kvfs<K, M> {
    pub(crate) async fn open_file(&self, cx: &Context<'_>, ino: Ino, flags: u32) -> Result<Reply> {
        self.open_inode(cx, ino, flags).await.map(|(fh, _)| Reply::Opened(fh))
    }

    /// Opens a regular file.
    pub(crate) async fn open_inode(
        &self,
        cx: &Context<'_>,
        ino: Ino,
        flags: u32,
    ) -> Result<(Fh, Attr)> {
        check_access_mode(flags)?;
        let handle = Handle { ino, flags, directory: false };
        let opening = self.handles.open(Taker::of(cx), handle)?;
        let mut inode = self.inode(ino).await?;
        self.may_open(cx, &inode, flags).await?;
        if flags & open_flags::TRUNC != 0 {
            inode = self.truncate_for_open(cx, ino).await?;
        }
        Ok((opening.keep(), inode.attr))
    }

    /// The kind is right and the asker has the permissions `flags` need.
    pub(crate) async fn may_open(&self, cx: &Context<'_>, inode: &Inode, flags: u32) -> Result<()> {
        let handle = Handle { ino: inode.ino(), flags, directory: false };
        match inode.kind() {
            FileKind::Regular => {}
            FileKind::Directory => return Err(Errno::EISDIR),
            FileKind::Symlink => return Err(Errno::ELOOP),
            // The kernel opens these itself; there is nothing behind them here.
            _ => return Err(Errno::ENXIO),
        }
        let bit = |wanted: bool, bit: u32| if wanted { bit } else { 0 };
        let executes = flags & open_flags::EXEC != 0;
        let writes = handle.writes() || flags & open_flags::TRUNC != 0;
        let mask =
            bit(handle.reads() && !executes, READ) | bit(writes, WRITE) | bit(executes, EXECUTE);
        self.permit(cx, inode, mask).await?;
        if flags & open_flags::NOATIME != 0 && !cx.owns(inode) {
            return Err(Errno::EPERM);
        }
        Ok(())
    }

    /// A handle comes back whose opening nobody remembers: what may be opened now, and whatever the
    /// owner says it had. Who makes a file may write through that handle whatever the mode is, and
    /// could set the mode to what is asked here.
    pub(crate) async fn may_reopen(
        &self,
        cx: &Context<'_>,
        inode: &Inode,
        flags: u32,
    ) -> Result<()> {
        let owned = inode.kind() == FileKind::Regular && cx.owns(inode);
        if owned { Ok(()) } else { self.may_open(cx, inode, flags & !open_flags::TRUNC).await }
    }

    /// `O_TRUNC`: to no bytes, with new times even if there were none.
    async fn truncate_for_open(&self, cx: &Context<'_>, ino: Ino) -> Result<Inode> {
        let _guard = self.range_locks.exclusive(ino).await;
        let truncated = self.transact(async |txn| {
            let mut inode = txn.inode(ino).await?;
            self.set_size(cx, txn, &mut inode, 0).await?;
            // `Open` has no flag that asks for it, so that a front-end's checks do not cover this.
            if !cx.cred.is_root() {
                self.strip_privileges(txn, &mut inode).await?;
            }
            inode.modify(cx.now);
            txn.put_inode(&inode)?;
            let reply = match cx.op {
                Op::Create => Reply::Created(inode.attr.clone(), Fh::NONE),
                _ => Reply::Opened(Fh::NONE),
            };
            txn.record(cx, &reply)?;
            Ok(inode)
        });
        let inode = truncated.await?;
        self.finish_size(&inode).await?;
        self.changed(cx, ino);
        Ok(inode)
    }

    pub(crate) async fn release(
        &self,
        cx: &Context<'_>,
        ino: Ino,
        fh: Fh,
        owner: u64,
    ) -> Result<Reply> {
        self.close(cx, ino, fh, false)?;
        self.drop_flock(cx.attachment, ino, owner);
        if self.handles.is_closed(ino) {
            self.drop_locks_on(ino);
        }
        self.reclaim_some().await;
        Ok(Reply::Empty)
    }

    pub(crate) async fn releasedir(&self, cx: &Context<'_>, ino: Ino, fh: Fh) -> Result<Reply> {
        self.close(cx, ino, fh, true)?;
        self.reclaim_some().await;
        Ok(Reply::Empty)
    }

    fn close(&self, cx: &Context<'_>, ino: Ino, fh: Fh, directory: bool) -> Result<()> {
        let found = self.handles.get(cx.attachment, fh, ino);
        match found {
            Ok(handle) if handle.directory == directory => {
                self.handles.close(cx.attachment, fh).map(drop)
            }
            // What was being closed when an instance was lost is not handed in to the next.
            Err(_) if cx.header.flags.has(Flags::REPLAY) => Ok(()),
            _ => Err(Errno::EBADF),
        }
    }

    pub(crate) async fn opendir(&self, cx: &Context<'_>, ino: Ino) -> Result<Reply> {
        let handle = Handle { ino, flags: 0, directory: true };
        let opening = self.handles.open(Taker::of(cx), handle)?;
        let inode = self.inode(ino).await?;
        if !inode.is_directory() {
            return Err(Errno::ENOTDIR);
        }
        self.permit(cx, &inode, READ).await?;
        Ok(Reply::Opened(opening.keep()))
    }

    /// Hands in `fh`, open before a loss; [`Fh::NONE`] hands in a mere reference. An attachment
    /// that is not trusted hands in handles only, only in grace, and must be allowed now what it
    /// says it was allowed then.
    pub(crate) async fn reclaim(
        &self,
        cx: &Context<'_>,
        ino: Ino,
        fh: Fh,
        flags: u32,
        directory: bool,
    ) -> Result<Reply> {
        check_access_mode(flags)?;
        if !cx.trusted && (fh == Fh::NONE || !self.handles.in_grace()) {
            return Err(Errno::EPERM);
        }
        if fh == Fh::NONE {
            self.inode(ino).await?;
            self.handles.add_interest(cx.attachment, ino);
            return Ok(Reply::Empty);
        }
        let handle = Handle { ino, flags, directory };
        let Some(opening) = self.handles.reopen(Taker::of(cx), fh, handle)? else {
            return Ok(Reply::Empty);
        };
        let inode = self.inode(ino).await?;
        match (directory, inode.is_directory()) {
            (true, false) => return Err(Errno::ENOTDIR),
            (false, true) => return Err(Errno::EISDIR),
            _ if cx.trusted => {}
            (true, true) => self.permit(cx, &inode, READ).await?,
            (false, false) => self.may_reopen(cx, &inode, flags).await?,
        }
        opening.keep();
        // Whoever has it open has an interest in it.
        self.handles.add_interest(cx.attachment, ino);
        Ok(Reply::Empty)
    }
}
