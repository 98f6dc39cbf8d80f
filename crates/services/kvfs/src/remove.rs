//! What takes names away: unlink, rmdir.

use outboard_base::{Errno, Ino, Result};
use outboard_kv::{Cached, Kv};
use outboard_medium::Medium;
use outboard_wire::file::Reply;

use crate::Kvfs;
use crate::context::Context;
use crate::layout::{Entry, Inode};
use crate::orphan::Parting;
use crate::permission::{EXECUTE, WRITE};
use crate::rename::remove_entry;
use crate::txn::{Tried, Txn};

impl<K: Kv, M: Medium> Kvfs<K, M> {
    pub(crate) async fn unlink(&self, cx: &Context<'_>, parent: Ino, name: &[u8]) -> Result<Reply> {
        self.remove(cx, parent, name, false).await
    }

    pub(crate) async fn rmdir(&self, cx: &Context<'_>, parent: Ino, name: &[u8]) -> Result<Reply> {
        self.remove(cx, parent, name, true).await
    }

    async fn remove(
        &self,
        cx: &Context<'_>,
        parent: Ino,
        name: &[u8],
        directory: bool,
    ) -> Result<Reply> {
        let guard = self.range_locks.exclusive(parent).await;
        let mut parting = Parting::new(&self.handles);
        let removed = self.transact(async |txn| {
            let mut dir = txn.directory(parent).await?;
            let (entry, inode) = self.named(cx, txn, &dir, name).await?;
            self.may_delete(cx, &dir, &inode).await?;
            match (directory, inode.is_directory()) {
                (true, false) => return Err(Errno::ENOTDIR.into()),
                (false, true) => return Err(Errno::EISDIR.into()),
                (true, true) if inode.entries != 0 => return Err(Errno::ENOTEMPTY.into()),
                _ => {}
            }
            txn.delete_entry(parent, name, entry.cookie);
            remove_entry(cx, &mut dir, directory);
            txn.put_inode(&dir)?;
            let reply = self.unname(cx, txn, inode, &mut parting).await?;
            txn.record(cx, &reply)?;
            let reply = match reply {
                // Not in the record: a replay says what was, and this may have changed since.
                Reply::Gone { last, .. } => Reply::Gone { last, parent: Some(dir.attr.into()) },
                reply => reply,
            };
            Ok((entry.ino, reply))
        });
        let (ino, reply) = removed.await?;
        parting.committed();
        drop(guard);
        self.renamed(cx, parent, name);
        self.changed(cx, ino);
        self.reclaim_some().await;
        Ok(reply)
    }

    /// What `name` leads to in `dir`, which the asker must be allowed to search.
    pub(crate) async fn named(
        &self,
        cx: &Context<'_>,
        txn: &mut Txn<'_, Cached<K>>,
        dir: &Inode,
        name: &[u8],
    ) -> Tried<(Entry, Inode)> {
        self.permit(cx, dir, EXECUTE).await?;
        let entry = txn.entry(dir.ino(), name).await?.ok_or(Errno::ENOENT)?;
        Ok((entry, txn.target(&entry).await?))
    }

    /// The asker may take away or replace a name of `inode` in `dir`.
    pub(crate) async fn may_delete(
        &self,
        cx: &Context<'_>,
        dir: &Inode,
        inode: &Inode,
    ) -> Result<()> {
        self.permit(cx, dir, WRITE | EXECUTE).await?;
        cx.sticky(dir, inode)
    }
}
