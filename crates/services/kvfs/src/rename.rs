//! rename: moves, replaces or exchanges names, `rename(2)`.

use outboard_base::{Errno, Ino, Result};
use outboard_kv::{Cached, Kv};
use outboard_medium::Medium;
use outboard_wire::file::{Reply, rename_flags};

use crate::Kvfs;
use crate::context::Context;
use crate::create::add_entry;
use crate::layout::{Entry, Inode};
use crate::orphan::Parting;
use crate::permission::WRITE;
use crate::txn::{Fail, Tried, Txn};

/// Deepest directory the search for a cycle climbs from.
const DEPTH_MAX: usize = 1 << 20;

/// One end of a rename.
struct End<'n> {
    name: &'n [u8],
    entry: Entry,
    inode: Inode,
}

/// The directories of a rename; one if both names are in the same.
struct Dirs {
    from: Inode,
    to: Option<Inode>,
}

impl Dirs {
    fn to(&self) -> &Inode {
        self.to.as_ref().unwrap_or(&self.from)
    }

    fn to_mut(&mut self) -> &mut Inode {
        self.to.as_mut().unwrap_or(&mut self.from)
    }
}

impl<K: Kv, M: Medium> Kvfs<K, M> {
    pub(crate) async fn rename(
        &self,
        cx: &Context<'_>,
        (parent, name): (Ino, &[u8]),
        (to_parent, to_name): (Ino, &[u8]),
        flags: u32,
    ) -> Result<Reply> {
        if !matches!(flags, 0 | rename_flags::NOREPLACE | rename_flags::EXCHANGE) {
            return Err(Errno::EINVAL);
        }
        // Who moves a directory elsewhere must know that no ancestor moves meanwhile.
        let tree = if parent == to_parent { None } else { Some(self.tree.lock().await) };
        let guards = self.range_locks.exclusive_both(parent, to_parent).await;
        let mut parting = Parting::new(&self.handles);
        let renamed = self.transact(async |txn| {
            let from = txn.directory(parent).await?;
            let to = if parent == to_parent { None } else { Some(txn.directory(to_parent).await?) };
            let dirs = Dirs { from, to };
            let (from, to) = self.ends(cx, txn, &dirs, name, to_name, flags).await?;
            match to {
                Some(to) if to.entry.ino == from.entry.ino => {
                    let reply = Reply::Removed(None);
                    txn.record(cx, &reply)?;
                    Ok((reply, vec![]))
                }
                Some(to) if flags & rename_flags::EXCHANGE != 0 => {
                    self.exchange(cx, txn, dirs, from, to).await
                }
                to => self.replace(cx, txn, dirs, from, (to_name, to), &mut parting).await,
            }
        });
        let (reply, touched) = renamed.await?;
        parting.committed();
        drop((guards, tree));
        self.renamed(cx, parent, name);
        self.renamed(cx, to_parent, to_name);
        touched.into_iter().for_each(|ino| self.changed(cx, ino));
        self.reclaim_some().await;
        Ok(reply)
    }

    /// Both names looked up and the flags' wishes about the second judged.
    async fn ends<'n>(
        &self,
        cx: &Context<'_>,
        txn: &mut Txn<'_, Cached<K>>,
        dirs: &Dirs,
        name: &'n [u8],
        to_name: &'n [u8],
        flags: u32,
    ) -> Tried<(End<'n>, Option<End<'n>>)> {
        let (entry, inode) = self.named(cx, txn, &dirs.from, name).await?;
        let from = End { name, entry, inode };
        let to = match self.named(cx, txn, dirs.to(), to_name).await {
            Ok((entry, inode)) => Some(End { name: to_name, entry, inode }),
            Err(Fail::With(Errno::ENOENT)) => None,
            Err(fail) => return Err(fail),
        };
        match (&to, flags) {
            (Some(_), rename_flags::NOREPLACE) => Err(Errno::EEXIST.into()),
            (None, rename_flags::EXCHANGE) => Err(Errno::ENOENT.into()),
            _ if dirs.to().attr.nlink == 0 => Err(Errno::ENOENT.into()),
            _ => Ok((from, to)),
        }
    }

    /// `moved` may leave `from` for `to`: not into itself, and by whoever may change its `..`.
    async fn may_move(
        &self,
        cx: &Context<'_>,
        from: &Inode,
        moved: &Inode,
        to: &Inode,
    ) -> Tried<()> {
        self.may_delete(cx, from, moved).await?;
        if !moved.is_directory() || from.ino() == to.ino() {
            return Ok(());
        }
        self.not_inside(moved.ino(), to).await?;
        Ok(self.permit(cx, moved, WRITE).await?)
    }

    /// `EINVAL` if `dir` is `ancestor` or lies below it. The lock of the tree keeps the answer
    /// true.
    async fn not_inside(&self, ancestor: Ino, dir: &Inode) -> Result<()> {
        let (mut at, mut parent) = (dir.ino(), dir.parent);
        for _ in 0..DEPTH_MAX {
            if at == ancestor {
                return Err(Errno::EINVAL);
            }
            if at == Ino::ROOT {
                return Ok(());
            }
            at = parent;
            parent = self.inode(at).await.map_err(|_| Errno::EUCLEAN)?.parent;
        }
        Err(Errno::EUCLEAN)
    }

    async fn replace<'v>(
        &'v self,
        cx: &Context<'_>,
        txn: &mut Txn<'_, Cached<K>>,
        mut dirs: Dirs,
        mut from: End<'_>,
        (to_name, to): (&[u8], Option<End<'_>>),
        parting: &mut Parting<'v>,
    ) -> Tried<(Reply, Vec<Ino>)> {
        self.may_move(cx, &dirs.from, &from.inode, dirs.to()).await?;
        let directory = from.inode.is_directory();
        match &to {
            None => self.permit(cx, dirs.to(), WRITE).await?,
            Some(to) => {
                self.may_delete(cx, dirs.to(), &to.inode).await?;
                match (directory, to.inode.is_directory()) {
                    (true, false) => return Err(Errno::ENOTDIR.into()),
                    (false, true) => return Err(Errno::EISDIR.into()),
                    (true, true) if to.inode.entries != 0 => return Err(Errno::ENOTEMPTY.into()),
                    _ => {}
                }
            }
        }
        txn.delete_entry(dirs.from.ino(), from.name, from.entry.cookie);
        remove_entry(cx, &mut dirs.from, directory);
        from.inode.touch(cx.now);
        if directory {
            from.inode.parent = dirs.to().ino();
        }
        let (mut touched, mut reply) = (vec![from.inode.ino()], Reply::Removed(None));
        match to {
            None => add_entry(cx, txn, dirs.to_mut(), to_name, &from.inode)?,
            Some(to) => {
                // The name stays where it is in its directory's order; what it leads to changes.
                let entry = Entry { cookie: to.entry.cookie, ..from.entry };
                txn.put_entry(dirs.to().ino(), to_name, &entry)?;
                dirs.to_mut().modify(cx.now);
                touched.push(to.inode.ino());
                reply = self.unname(cx, txn, to.inode, parting).await?;
            }
        }
        txn.put_inode(&from.inode)?;
        self.put_dirs(txn, &dirs)?;
        txn.record(cx, &reply)?;
        Ok((reply, touched))
    }

    async fn exchange(
        &self,
        cx: &Context<'_>,
        txn: &mut Txn<'_, Cached<K>>,
        mut dirs: Dirs,
        mut from: End<'_>,
        mut to: End<'_>,
    ) -> Tried<(Reply, Vec<Ino>)> {
        self.may_move(cx, &dirs.from, &from.inode, dirs.to()).await?;
        self.may_move(cx, dirs.to(), &to.inode, &dirs.from).await?;
        let (from_dir, to_dir) = (dirs.from.ino(), dirs.to().ino());
        let moved_in = Entry { cookie: to.entry.cookie, ..from.entry };
        let moved_out = Entry { cookie: from.entry.cookie, ..to.entry };
        txn.put_entry(to_dir, to.name, &moved_in)?;
        txn.put_entry(from_dir, from.name, &moved_out)?;
        let directories = (from.inode.is_directory(), to.inode.is_directory());
        for (end, now_in) in [(&mut from, to_dir), (&mut to, from_dir)] {
            end.inode.touch(cx.now);
            if end.inode.is_directory() {
                end.inode.parent = now_in;
            }
            txn.put_inode(&end.inode)?;
        }
        match directories {
            (true, false) => {
                dirs.from.attr.nlink -= 1;
                dirs.to_mut().attr.nlink += 1;
            }
            (false, true) => {
                dirs.from.attr.nlink += 1;
                dirs.to_mut().attr.nlink -= 1;
            }
            _ => {}
        }
        dirs.from.modify(cx.now);
        if let Some(to) = &mut dirs.to {
            to.modify(cx.now);
        }
        self.put_dirs(txn, &dirs)?;
        let reply = Reply::Removed(None);
        txn.record(cx, &reply)?;
        Ok((reply, vec![from.inode.ino(), to.inode.ino()]))
    }

    fn put_dirs(&self, txn: &mut Txn<'_, Cached<K>>, dirs: &Dirs) -> Result<()> {
        txn.put_inode(&dirs.from)?;
        dirs.to.as_ref().map_or(Ok(()), |to| txn.put_inode(to))
    }
}

/// Counts an entry out of `dir`.
pub(crate) fn remove_entry(cx: &Context<'_>, dir: &mut Inode, directory: bool) {
    dir.entries = dir.entries.saturating_sub(1);
    dir.attr.nlink = dir.attr.nlink.saturating_sub(u32::from(directory));
    dir.modify(cx.now);
}
