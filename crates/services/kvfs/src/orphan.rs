//! Inodes without a name: they live while somebody holds them, then go in bounded steps.
//!
//! ```text
//!            last name gone, held                 released          steps
//!   named  ----------------------->  orphaned  ------------> dying ------> gone
//!     |  ^                               |                      ^
//!     |  '------ link (tmpfile) ---------'                      |
//!     '---------- last name gone, not held ---------------------'
//!                 (the first step in that batch, which is often all)
//! ```
//! A regular file in which only the asker has an interest, and that nobody has open, counts as not
//! held: the asker gets its last attributes with the reply, and need not forget it.
//!
//! "Orphaned" is recorded under its own tag in the batch that took the name, so what a crash leaves
//! is found at the next opening. "Dying" is in memory: nobody may open the inode any more.

use outboard_base::task::RangeGuard;
use outboard_base::{Errno, Ino, Result, SessionId};
use outboard_kv::{Cached, Kv};
use outboard_medium::Medium;
use outboard_wire::file::{FileKind, Reply};

use crate::Kvfs;
use crate::context::Context;
use crate::handles::{Handles, Hold};
use crate::layout::{DataKind, Inode, key, marks};
use crate::txn::{Fail, Tried, Txn};

/// Steps one request does for others, at most. Each gives back some MiB; housekeeping does the
/// rest.
const STEPS: usize = 16;
/// Extended attributes removed in one step.
const XATTRS: usize = 128;

/// What becomes of an inode that loses a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fate {
    /// It has others.
    Named,
    /// Somebody holds it.
    Orphaned,
    /// Its end has begun, but takes more than this batch.
    Ending,
    /// It is gone with the batch.
    Gone,
}

/// Where the end of an inode has got to.
enum Step {
    /// It is not over.
    More,
    /// It is over.
    Gone,
    /// It was called off: the inode was given a name.
    Named,
}

/// Keeps the handles' view of an inode that loses a name in step with what becomes of the batch.
pub(crate) struct Parting<'v> {
    handles: &'v Handles,
    /// The inode considered, and whether its end has begun (else somebody holds it).
    considered: Option<(Ino, bool)>,
    fate: Fate,
    /// On the inode, while its data goes.
    guard: Option<RangeGuard<'v>>,
}

impl<'v> Parting<'v> {
    pub(crate) fn new(handles: &'v Handles) -> Parting<'v> {
        Parting { handles, considered: None, fate: Fate::Named, guard: None }
    }

    /// Who holds `inode`; its end begins unless that keeps it.
    fn hold(&mut self, asker: SessionId, inode: &Inode) -> Hold {
        self.spare();
        let ino = inode.ino();
        let lingers = |hold| lingers(inode, hold);
        let hold = self.handles.last_name(asker, ino, lingers);
        self.considered = Some((ino, !lingers(hold)));
        hold
    }

    /// `ino` is being made without a name; its maker holds it.
    pub(crate) fn nameless(&mut self, ino: Ino) {
        self.considered = Some((ino, false));
        self.fate = Fate::Orphaned;
    }

    fn spare(&mut self) {
        self.guard = None;
        if let Some((ino, true)) = self.considered.take() {
            self.handles.spare(ino);
        }
    }

    /// The batch is in the store.
    pub(crate) fn committed(mut self) {
        match (self.considered.take(), self.fate) {
            (Some((ino, _)), Fate::Gone) => self.handles.buried(ino),
            (Some((ino, _)), Fate::Ending) => self.handles.ending(ino),
            (Some((ino, _)), Fate::Orphaned) => self.handles.orphaned(ino),
            _ => {}
        }
    }
}

impl Drop for Parting<'_> {
    /// The batch failed, or its future was dropped and nobody knows: housekeeping looks.
    fn drop(&mut self) {
        if let Some((ino, _)) = self.considered.take() {
            self.handles.spare(ino);
            self.handles.doubt(ino);
        }
    }
}

impl<K: Kv, M: Medium> Kvfs<K, M> {
    /// Stages the loss of one name of `inode` (a directory: its only one), and says what to reply.
    pub(crate) async fn unname<'v>(
        &'v self,
        cx: &Context<'_>,
        txn: &mut Txn<'_, Cached<K>>,
        mut inode: Inode,
        parting: &mut Parting<'v>,
    ) -> Tried<Reply> {
        inode.attr.nlink = if inode.is_directory() {
            0
        } else {
            inode.attr.nlink.checked_sub(1).ok_or(Errno::EUCLEAN)?
        };
        inode.touch(cx.now);
        txn.essential();
        let ino = inode.ino();
        if inode.attr.nlink > 0 {
            // An earlier round may have begun its end before a link came between.
            parting.spare();
            parting.fate = Fate::Named;
            txn.put_inode(&inode)?;
            return Ok(Reply::Removed(None));
        }
        let hold = parting.hold(cx.attachment, &inode);
        if lingers(&inode, hold) {
            parting.fate = Fate::Orphaned;
            txn.put(key::of(key::Tag::Orphan, ino), []);
            txn.put_inode(&inode)?;
            return Ok(Reply::Removed(Some(ino)));
        }
        if inode.data == DataKind::Big || inode.has(marks::TRIMMING) {
            parting.guard = Some(self.range_locks.exclusive(ino).await);
        }
        let last = inode.attr.clone();
        parting.fate = match self.stage_end(txn, &mut inode).await {
            Ok(true) => Fate::Gone,
            Err(Fail::Again) => return Err(Fail::Again),
            // What cannot be given back now, as it is damaged, does not keep the name.
            Ok(false) | Err(Fail::With(_)) => {
                txn.put(key::of(key::Tag::Orphan, ino), []);
                txn.put_inode(&inode)?;
                Fate::Ending
            }
        };
        Ok(if hold == Hold::Asker {
            Reply::Gone { last, parent: None }
        } else {
            Reply::Removed(None)
        })
    }

    /// Stages what one batch can do of the end of an inode without a name: true if nothing is left
    /// then.
    async fn stage_end(&self, txn: &mut Txn<'_, Cached<K>>, inode: &mut Inode) -> Tried<bool> {
        let empty = self.stage_drop(txn, inode).await?;
        let bare = !has_xattrs(inode) || self.drop_xattrs(txn, inode.ino()).await?;
        if empty && bare {
            let ino = inode.ino();
            txn.delete(key::inode(ino));
            if inode.data == DataKind::Spread {
                txn.put(key::of(key::Tag::Purge, ino), []);
            }
            if inode.has(marks::WRITING) {
                txn.delete(key::of(key::Tag::Writing, ino));
            }
            if inode.has(marks::LACKING) {
                txn.delete(key::of(key::Tag::Lacking, ino));
            }
        } else {
            txn.put_inode(inode)?;
        }
        Ok(empty && bare)
    }

    /// Does some of what inodes without name or holder left to do; true if there is more to do at
    /// once. What fails comes back later.
    pub(crate) async fn reclaim_some(&self) -> bool {
        for _ in 0..STEPS {
            let Some(ending) = self.handles.next_unheld() else { return false };
            let ino = ending.ino();
            match self.reclaim_step(ino).await {
                Ok(Step::Gone) => ending.gone(),
                Ok(Step::Named) => ending.named(),
                Ok(Step::More) => drop(ending),
                Err(errno) => {
                    if ending.fails_first_time() {
                        tracing::warn!(%ino, %errno, "an unlinked file keeps its space for now");
                    }
                    return false;
                }
            }
        }
        true
    }

    /// One step of the end of `ino`.
    async fn reclaim_step(&self, ino: Ino) -> Result<Step> {
        let _guard = self.range_locks.exclusive(ino).await;
        let step = self.transact(async |txn| {
            txn.essential();
            let Some(value) = txn.get(&key::inode(ino)).await? else {
                txn.delete(key::of(key::Tag::Orphan, ino));
                return Ok(Step::Gone);
            };
            let mut inode = Inode::decode(ino, &value)?;
            if inode.attr.nlink > 0 {
                return Ok(Step::Named);
            }
            if !self.stage_end(txn, &mut inode).await? {
                return Ok(Step::More);
            }
            txn.delete(key::of(key::Tag::Orphan, ino));
            Ok(Step::Gone)
        });
        step.await
    }

    /// Removes extended attributes, some at a time; true if none is left.
    async fn drop_xattrs(&self, txn: &mut Txn<'_, Cached<K>>, ino: Ino) -> Tried<bool> {
        let pairs = self.kv.scan(&key::of(key::Tag::Xattr, ino), None, XATTRS).await?;
        let last = pairs.len() < XATTRS;
        pairs.into_iter().for_each(|(key, _)| txn.delete(key));
        Ok(last)
    }

    /// Looks at inodes whose fate is not known for sure (a request was dropped in the middle).
    pub(crate) async fn settle_doubts(&self) -> Result<()> {
        while let Some(ino) = self.handles.a_doubt() {
            match self.inode(ino).await {
                Ok(inode) if inode.attr.nlink == 0 => self.handles.orphaned(ino),
                Ok(_) | Err(Errno::ESTALE) => {}
                Err(errno) => return Err(errno),
            }
            self.handles.settled(ino);
        }
        Ok(())
    }

    /// Finds what an earlier instance left without a name.
    pub(crate) async fn find_orphans(&self) -> Tried<()> {
        const PAGE: usize = 1024;
        let prefix = [key::Tag::Orphan as u8];
        let mut after: Option<outboard_kv::Key> = None;
        loop {
            let pairs = self.kv.scan(&prefix, after.as_deref(), PAGE).await?;
            for (key, _) in &pairs {
                let ino = key::number(key).ok_or(Errno::EUCLEAN)?;
                self.handles.orphaned(Ino(ino));
            }
            match pairs.last() {
                Some((key, _)) if pairs.len() == PAGE => after = Some(key.clone()),
                _ => return Ok(()),
            }
        }
    }
}

fn has_xattrs(inode: &Inode) -> bool {
    inode.has(marks::ACL | marks::DEFAULT_ACL | marks::XATTRS)
}

/// Whether a hold keeps an inode without a name. Of a regular file that nobody has open the
/// attributes are all that can be asked for, and those go with the reply. What is behind a
/// directory, a link, a fifo or a device may still be in use without the volume knowing.
fn lingers(inode: &Inode, hold: Hold) -> bool {
    match hold {
        Hold::Nobody => false,
        Hold::Asker => inode.kind() != FileKind::Regular,
        Hold::Others => true,
    }
}
