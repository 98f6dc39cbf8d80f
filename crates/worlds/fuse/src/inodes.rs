//! Which inodes the kernel refers to, and how often.
//!
//! ```text
//! answer that names an inode ─▶ lookups + 1        FORGET n ─▶ lookups - n
//! answer that takes its last name ─▶ nameless      0 left: dropped; if nameless, the volume hears
//! answer that ends it ─▶ gone                      the volume does not hear: it has forgotten
//! ```
//! What is gone and still referred to is answered from here, as it was at its end.
//!
//! With notes ([`InodeTable::remember`]) a successor of this process finds the same again: counts
//! that are never too small, since they grow before the kernel is told and a FORGET that was read
//! does not come again. What is gone it does not find.
//!
//! Counted before the answer is written, since the kernel may forget what it got at once.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

use outboard_base::{Fh, Ino};
use outboard_link::Region;
use outboard_link::records::{Place, Records, Unusable};
use outboard_wire::file::{Attr, FileKind};

use crate::table::Table;

/// Kinds of records, and words of an inode's.
const INODE: u64 = 1;
const LOCKER: u64 = 2;
const LOOKUPS: usize = 1;
const NAMELESS: usize = 2;
const PARENT: usize = 3;

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
    lockers: Vec<Locker>,
    /// Where it is written down.
    place: Option<Place>,
}

/// An owner of POSIX locks, and the handle they were asked for through.
#[derive(Debug)]
struct Locker {
    fh: Fh,
    owner: u64,
    place: Option<Place>,
}

/// The inodes the kernel knows. The root, which it never forgets, is not among them.
#[derive(Debug, Default)]
pub(crate) struct InodeTable {
    table: Table<Inode>,
    /// How many of them are gone.
    gone: AtomicUsize,
    notes: OnceLock<Records>,
}

impl InodeTable {
    /// Takes in what a predecessor wrote down in `notes`, and writes down there from now on. Who
    /// locked what, for who must know. To be called before anything else.
    pub(crate) fn remember(&self, notes: Arc<Region>) -> Result<Vec<(Ino, Fh)>, Unusable> {
        let (records, found) = Records::open(notes, 0)?;
        let mut lockers = Vec::new();
        for (place, (kind, [ino, one, two, three, ..])) in found {
            let place = Some(place);
            let mut shard = self.table.shard(ino);
            let inode = shard.entry(ino).or_default();
            match kind {
                INODE => {
                    (inode.lookups, inode.nameless) = (one, two != 0);
                    (inode.parent, inode.place) = (Ino(three), place);
                }
                LOCKER => {
                    inode.lockers.push(Locker { fh: Fh(one), owner: two, place });
                    lockers.push((Ino(ino), Fh(one)));
                }
                _ => return Err(Unusable::Version),
            }
        }
        let _once = self.notes.set(records);
        Ok(lockers)
    }

    /// A request was answered to the kernel.
    pub(crate) fn told(&self) {
        if let Some(notes) = self.notes.get() {
            notes.mark();
        }
    }

    fn note(&self, place: Option<Place>, word: usize, value: u64) {
        if let (Some(notes), Some(place)) = (self.notes.get(), place) {
            notes.set(place, word, value);
        }
    }

    fn put(&self, kind: u64, [ino, one, two, three]: [u64; 4]) -> Option<Place> {
        self.notes.get()?.put((kind, [ino, one, two, three, 0, 0, 0]))
    }

    fn drop_note(&self, place: Option<Place>) {
        if let (Some(notes), Some(place)) = (self.notes.get(), place) {
            notes.remove(place);
        }
    }

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
            self.note(inode.place, PARENT, parent.0);
        }
        if inode.place.is_some() {
            self.note(inode.place, LOOKUPS, inode.lookups);
        } else {
            let (nameless, parent) = (u64::from(inode.nameless), inode.parent.0);
            inode.place = self.put(INODE, [attr.ino.0, inode.lookups, nameless, parent]);
        }
    }

    /// The kernel drops `count` references. True: the volume must be told.
    #[must_use]
    pub(crate) fn forgotten(&self, ino: Ino, count: u64) -> bool {
        let mut shard = self.table.shard(ino.0);
        let Some(inode) = shard.get_mut(&ino.0) else { return false };
        inode.lookups = inode.lookups.saturating_sub(count);
        if inode.lookups > 0 {
            self.note(inode.place, LOOKUPS, inode.lookups);
            return false;
        }
        let (nameless, gone) = (inode.nameless, inode.gone.is_some());
        if let Some(inode) = shard.remove(&ino.0) {
            self.drop_note(inode.place);
            inode.lockers.iter().for_each(|locker| self.drop_note(locker.place));
        }
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
            Some(inode) => {
                inode.nameless = true;
                self.note(inode.place, NAMELESS, 1);
            }
            None => return true,
        }
        false
    }

    /// An inode got a name, maybe its first (`O_TMPFILE`, linked). The kernel holds the inode's
    /// lock until it has the answer, so a removal of that name is not overtaken.
    pub(crate) fn named(&self, ino: Ino) {
        if let Some(inode) = self.table.shard(ino.0).get_mut(&ino.0) {
            inode.nameless = false;
            self.note(inode.place, NAMELESS, 0);
        }
    }

    /// A directory was moved.
    pub(crate) fn moved(&self, ino: Ino, parent: Ino) {
        if let Some(inode) = self.table.shard(ino.0).get_mut(&ino.0) {
            inode.parent = parent;
            self.note(inode.place, PARENT, parent.0);
        }
    }

    /// The directory above a directory; the root above itself.
    pub(crate) fn parent(&self, ino: Ino) -> Ino {
        self.table.shard(ino.0).get(&ino.0).map_or(Ino::ROOT, |inode| inode.parent)
    }

    /// A POSIX lock is being asked for by `owner`, through `fh`.
    pub(crate) fn locking(&self, ino: Ino, fh: Fh, owner: u64) {
        if let Some(inode) = self.table.shard(ino.0).get_mut(&ino.0)
            && !inode.lockers.iter().any(|locker| (locker.fh, locker.owner) == (fh, owner))
        {
            let place = self.put(LOCKER, [ino.0, fh.0, owner, 0]);
            inode.lockers.push(Locker { fh, owner, place });
        }
    }

    /// `owner` closes a descriptor, which drops its POSIX locks. True: it may have some.
    #[must_use]
    pub(crate) fn closing(&self, ino: Ino, owner: u64) -> bool {
        let mut shard = self.table.shard(ino.0);
        let Some(inode) = shard.get_mut(&ino.0) else { return true };
        let gone: Vec<Locker> =
            inode.lockers.extract_if(.., |locker| locker.owner == owner).collect();
        gone.iter().for_each(|locker| self.drop_note(locker.place));
        !gone.is_empty()
    }

    /// The last descriptor of `fh` is closed. Who still may have locks through it: owners that are
    /// open files (`F_OFD_SETLK`), whose closing the kernel does not tell otherwise.
    #[must_use]
    pub(crate) fn released(&self, ino: Ino, fh: Fh) -> Vec<u64> {
        let mut shard = self.table.shard(ino.0);
        let Some(inode) = shard.get_mut(&ino.0) else { return Vec::new() };
        let gone: Vec<Locker> = inode.lockers.extract_if(.., |locker| locker.fh == fh).collect();
        gone.iter().for_each(|locker| self.drop_note(locker.place));
        gone.iter().map(|locker| locker.owner).collect()
    }

    /// Whether the kernel refers to an inode.
    pub(crate) fn is_known(&self, ino: Ino) -> bool {
        ino == Ino::ROOT || self.table.shard(ino.0).contains_key(&ino.0)
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

    /// Whatever a predecessor knew of inodes, its successor knows; counts are what they were.
    #[test]
    fn a_successor_knows_what_its_predecessor_knew() {
        let notes = Region::anonymous(4096);
        let first = InodeTable::default();
        assert_eq!(first.remember(Arc::clone(&notes)), Ok(vec![]));
        let mode = FileKind::Directory.mode_bits();
        first.seen(&Attr { ino: Ino(5), mode, ..Attr::default() }, Ino(3));
        for ino in [2, 2, 2, 4, 6] {
            first.seen(&file(ino), Ino::ROOT);
        }
        first.locking(Ino(2), Fh(1), 7);
        first.locking(Ino(2), Fh(2), 8);
        assert!(!first.forgotten(Ino(2), 1) && !first.forgotten(Ino(6), 1));
        assert!(!first.unnamed(Ino(4)) && first.closing(Ino(2), 8));
        first.moved(Ino(5), Ino(9));

        let second = InodeTable::default();
        assert_eq!(second.remember(Arc::clone(&notes)), Ok(vec![(Ino(2), Fh(1))]));
        assert_eq!(second.parent(Ino(5)), Ino(9));
        assert!(second.forgotten(Ino(4), 1), "it has no name");
        assert!(second.unnamed(Ino(6)), "forgotten before");
        assert!(second.closing(Ino(2), 7) && !second.closing(Ino(2), 8));
        assert!(!second.unnamed(Ino(2)) && !second.forgotten(Ino(2), 1));
        let third = InodeTable::default();
        assert_eq!(third.remember(notes), Ok(vec![]));
        assert!(third.forgotten(Ino(2), 1), "one was left");
        assert_eq!(third.all(), [Ino(5)]);
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
