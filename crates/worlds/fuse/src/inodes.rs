//! Which inodes the kernel refers to, and how often.
//!
//! ```text
//! answer that names an inode ─▶ lookups + 1        FORGET n ─▶ lookups - n
//! answer that takes its last name ─▶ nameless      0 left: dropped; if nameless, the volume hears
//! answer that ends it ─▶ gone                      the volume does not hear: it has forgotten
//! ```
//! What is gone and still referred to is answered from here, as it was at its end.
//!
//! Counted before the answer is written, since the kernel may forget what it got at once.

use std::sync::atomic::{AtomicUsize, Ordering};

use outboard_base::{Fh, Ino};
use outboard_wire::file::{Attr, FileKind};

use crate::table::Table;

#[derive(Debug, Default)]
struct Inode {
    lookups: u64,
    /// No name leads to it: once the kernel forgets it, the volume may drop it.
    nameless: bool,
    /// Its last attributes: the volume has it no more.
    gone: Option<Box<Attr>>,
    /// The directory above, for directories.
    parent: Ino,
    /// Through which handles whom POSIX locks were asked for, until that owner closes a descriptor.
    lockers: Vec<(Fh, u64)>,
}

/// The inodes the kernel knows. The root, which it never forgets, is not among them.
#[derive(Debug, Default)]
pub(crate) struct InodeTable {
    table: Table<Inode>,
    /// How many of them are gone.
    gone: AtomicUsize,
}

impl InodeTable {
    /// The kernel is about to be told of an inode, found in `parent`.
    pub(crate) fn seen(&self, attr: &Attr, parent: Ino) {
        if attr.ino == Ino::ROOT {
            return;
        }
        let mut shard = self.table.shard(attr.ino.0);
        let inode = shard.entry(attr.ino.0).or_default();
        inode.lookups += 1;
        if attr.kind() == Ok(FileKind::Directory) {
            inode.parent = parent;
        }
    }

    /// The kernel drops `count` references. True: the volume must be told.
    #[must_use]
    pub(crate) fn forgotten(&self, ino: Ino, count: u64) -> bool {
        let mut shard = self.table.shard(ino.0);
        let Some(inode) = shard.get_mut(&ino.0) else { return false };
        inode.lookups = inode.lookups.saturating_sub(count);
        if inode.lookups > 0 {
            return false;
        }
        let (nameless, gone) = (inode.nameless, inode.gone.is_some());
        shard.remove(&ino.0);
        if gone {
            self.gone.fetch_sub(1, Ordering::Relaxed);
        }
        nameless && !gone
    }

    /// An inode is gone; `last` is how it looked.
    pub(crate) fn gone(&self, last: &Attr) {
        if let Some(inode) = self.table.shard(last.ino.0).get_mut(&last.ino.0)
            && inode.gone.replace(Box::new(last.clone())).is_none()
        {
            self.gone.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// How an inode that is gone looked.
    pub(crate) fn last(&self, ino: Ino) -> Option<Box<Attr>> {
        // The kernel asks after the answer that ended it was given, on whichever thread that was:
        // the answer went through the kernel, which orders the two.
        if self.gone.load(Ordering::Relaxed) == 0 {
            return None;
        }
        self.table.shard(ino.0).get(&ino.0)?.gone.clone()
    }

    /// The last name of an inode is gone. True: the kernel does not refer to it, tell the volume.
    #[must_use]
    pub(crate) fn unnamed(&self, ino: Ino) -> bool {
        match self.table.shard(ino.0).get_mut(&ino.0) {
            Some(inode) => inode.nameless = true,
            None => return true,
        }
        false
    }

    /// An inode got a name, maybe its first (`O_TMPFILE`, linked). The kernel holds the inode's
    /// lock until it has the answer, so a removal of that name is not overtaken.
    pub(crate) fn named(&self, ino: Ino) {
        if let Some(inode) = self.table.shard(ino.0).get_mut(&ino.0) {
            inode.nameless = false;
        }
    }

    /// A directory was moved.
    pub(crate) fn moved(&self, ino: Ino, parent: Ino) {
        if let Some(inode) = self.table.shard(ino.0).get_mut(&ino.0) {
            inode.parent = parent;
        }
    }

    /// The directory above a directory; the root above itself.
    pub(crate) fn parent(&self, ino: Ino) -> Ino {
        self.table.shard(ino.0).get(&ino.0).map_or(Ino::ROOT, |inode| inode.parent)
    }

    /// A POSIX lock is being asked for by `owner`, through `fh`.
    pub(crate) fn locking(&self, ino: Ino, fh: Fh, owner: u64) {
        if let Some(inode) = self.table.shard(ino.0).get_mut(&ino.0)
            && !inode.lockers.contains(&(fh, owner))
        {
            inode.lockers.push((fh, owner));
        }
    }

    /// `owner` closes a descriptor, which drops its POSIX locks. True: it may have some.
    #[must_use]
    pub(crate) fn closing(&self, ino: Ino, owner: u64) -> bool {
        let mut shard = self.table.shard(ino.0);
        let Some(inode) = shard.get_mut(&ino.0) else { return true };
        let before = inode.lockers.len();
        inode.lockers.retain(|&(_, locker)| locker != owner);
        inode.lockers.len() < before
    }

    /// The last descriptor of `fh` is closed. Who still may have locks through it: owners that are
    /// open files (`F_OFD_SETLK`), whose closing the kernel does not tell otherwise.
    #[must_use]
    pub(crate) fn released(&self, ino: Ino, fh: Fh) -> Vec<u64> {
        let mut shard = self.table.shard(ino.0);
        let Some(inode) = shard.get_mut(&ino.0) else { return Vec::new() };
        inode
            .lockers
            .extract_if(.., |(through, _)| *through == fh)
            .map(|(_, owner)| owner)
            .collect()
    }

    /// Every inode known.
    pub(crate) fn all(&self) -> Vec<Ino> {
        self.table
            .shards()
            .flat_map(|shard| shard.keys().map(|&ino| Ino(ino)).collect::<Vec<_>>())
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(ino: u64) -> Attr {
        Attr { ino: Ino(ino), mode: FileKind::Regular.mode_bits(), ..Attr::default() }
    }

    #[test]
    fn the_volume_hears_only_of_nameless_inodes_and_once() {
        let inodes = InodeTable::default();
        inodes.seen(&file(2), Ino::ROOT);
        inodes.seen(&file(2), Ino::ROOT);
        assert!(!inodes.forgotten(Ino(2), 2), "it has a name");
        inodes.seen(&file(3), Ino::ROOT);
        inodes.seen(&file(3), Ino::ROOT);
        assert!(!inodes.unnamed(Ino(3)), "the kernel still refers to it");
        assert!(!inodes.forgotten(Ino(3), 1));
        assert!(inodes.forgotten(Ino(3), 1));
        assert!(!inodes.forgotten(Ino(3), 1));
        assert!(inodes.unnamed(Ino(4)), "the kernel never knew it");
    }

    /// A file made by `O_TMPFILE` and linked later still counted as nameless: the volume was told
    /// to forget it, and told of no change of it by others from then on.
    #[test]
    fn a_nameless_inode_that_is_linked_has_a_name() {
        let inodes = InodeTable::default();
        inodes.seen(&file(2), Ino::ROOT);
        assert!(!inodes.unnamed(Ino(2)), "the kernel refers to it");
        inodes.seen(&file(2), Ino::ROOT);
        inodes.named(Ino(2));
        assert!(!inodes.forgotten(Ino(2), 2), "it has a name");
    }

    #[test]
    fn what_is_gone_is_answered_until_forgotten_and_the_volume_does_not_hear() {
        let inodes = InodeTable::default();
        inodes.gone(&file(2));
        assert_eq!(inodes.last(Ino(2)), None, "the kernel does not know it");
        inodes.seen(&file(2), Ino::ROOT);
        inodes.seen(&file(3), Ino::ROOT);
        inodes.gone(&file(2));
        inodes.gone(&file(2));
        assert_eq!(inodes.last(Ino(2)).map(|attr| attr.ino), Some(Ino(2)));
        assert_eq!(inodes.last(Ino(3)), None);
        assert!(!inodes.forgotten(Ino(2), 1));
        assert_eq!(inodes.last(Ino(2)), None);
        assert_eq!(inodes.gone.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn a_close_matters_only_to_who_locked() {
        let inodes = InodeTable::default();
        inodes.seen(&file(2), Ino::ROOT);
        inodes.locking(Ino(2), Fh(1), 7);
        inodes.locking(Ino(2), Fh(1), 8);
        inodes.locking(Ino(2), Fh(2), 7);
        assert!(!inodes.closing(Ino(2), 9));
        assert!(inodes.closing(Ino(2), 7));
        assert!(!inodes.closing(Ino(2), 7));
        // Locked anew through another handle: the end of the first does not touch that.
        inodes.locking(Ino(2), Fh(2), 7);
        assert_eq!(inodes.released(Ino(2), Fh(1)), [8]);
        assert_eq!(inodes.released(Ino(2), Fh(2)), [7]);
        assert!(inodes.closing(Ino(3), 7), "unknown: better ask");
    }

    #[test]
    fn a_directory_knows_the_one_above() {
        let inodes = InodeTable::default();
        let mode = FileKind::Directory.mode_bits();
        inodes.seen(&Attr { ino: Ino(5), mode, ..Attr::default() }, Ino(2));
        assert_eq!(inodes.parent(Ino(5)), Ino(2));
        inodes.moved(Ino(5), Ino(3));
        assert_eq!(inodes.parent(Ino(5)), Ino(3));
        assert_eq!(inodes.parent(Ino::ROOT), Ino::ROOT);
    }
}
