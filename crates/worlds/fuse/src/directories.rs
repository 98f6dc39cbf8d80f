//! Attributes of directories, as the removal of a name left them.
//!
//! Whatever changes a directory makes the kernel forget its attributes, permissions included, and
//! ask for them before it looks at the next name: two requests for each file removed. A reply that
//! ends a file carries its directory's attributes, and the next GETATTR is answered from here.
//!
//! They are kept only if nothing else that may change a directory was under way while that request
//! was: its answer then says how the directory is, whatever order answers are read in. The first
//! sign of another change, an event or the answer to any request that may be one, drops all of
//! them, before the kernel hears of it. So what is told from here is at most as old as what the
//! kernel would have kept itself.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

use outboard_base::Ino;
use outboard_wire::file::{Attr, Op};

use crate::table::lock;

/// Directories remembered at most.
const MOST: usize = 16;

/// A change that was begun.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Change(u64);

#[derive(Debug, Default)]
struct State {
    known: Vec<Attr>,
    under_way: usize,
    /// Moves on whenever a change begins or ends.
    moment: u64,
}

/// Attributes known without asking.
#[derive(Debug, Default)]
pub(crate) struct Directories {
    state: Mutex<State>,
    /// Whether any are known: most look-ups end here.
    some: AtomicBool,
}

impl Directories {
    /// Whether a request may change the attributes of a directory.
    pub(crate) fn may_change(op: Op) -> bool {
        use Op::{
            Create, Link, Mkdir, Mknod, Readdir, Removexattr, Rename, Rmdir, Setattr, Setxattr,
            Symlink, Tmpfile, Unlink,
        };
        // Listing moves the access time.
        matches!(
            op,
            Setattr | Symlink | Mknod | Mkdir | Unlink | Rmdir | Rename | Link | Create | Tmpfile
        ) || matches!(op, Setxattr | Removexattr | Readdir)
    }

    /// Such a request is about to be sent.
    pub(crate) fn begin(&self) -> Change {
        let mut state = lock(&self.state);
        state.under_way += 1;
        state.moment += 1;
        Change(state.moment)
    }

    /// It is answered, and the kernel about to be. `left` is how its directory is now, if the
    /// answer says so.
    pub(crate) fn end(&self, change: Change, left: Option<&Attr>) {
        let mut state = lock(&self.state);
        let alone = state.under_way == 1 && state.moment == change.0;
        state.under_way = state.under_way.saturating_sub(1);
        state.moment += 1;
        match left {
            Some(attr) if alone => {
                state.known.retain(|known| known.ino != attr.ino);
                if state.known.len() >= MOST {
                    state.known.remove(0);
                }
                state.known.push(attr.clone());
            }
            _ => state.known.clear(),
        }
        self.some.store(!state.known.is_empty(), Ordering::Release);
    }

    /// Somebody else changed something.
    pub(crate) fn forget(&self) {
        let mut state = lock(&self.state);
        state.moment += 1;
        state.known.clear();
        self.some.store(false, Ordering::Release);
    }

    /// The attributes of `ino`, if they are known.
    pub(crate) fn get(&self, ino: Ino) -> Option<Attr> {
        if !self.some.load(Ordering::Acquire) {
            return None;
        }
        lock(&self.state).known.iter().find(|known| known.ino == ino).cloned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn dir(ino: u64, change: u64) -> Attr {
        Attr { ino: Ino(ino), change, ..Attr::default() }
    }

    fn known(directories: &Directories, ino: u64) -> Option<u64> {
        directories.get(Ino(ino)).map(|attr| attr.change)
    }

    #[test]
    fn what_a_change_left_is_known_until_the_next() {
        let directories = Directories::default();
        let change = directories.begin();
        assert_eq!(known(&directories, 2), None);
        directories.end(change, Some(&dir(2, 1)));
        let change = directories.begin();
        assert_eq!(known(&directories, 2), Some(1), "the next is not answered yet");
        directories.end(change, Some(&dir(2, 2)));
        assert_eq!(known(&directories, 2), Some(2));
        let change = directories.begin();
        directories.end(change, None);
        assert_eq!(known(&directories, 2), None);
    }

    /// Answers may be read in another order than the changes took place.
    #[test]
    fn nothing_is_kept_of_changes_side_by_side() {
        for later_ends_first in [false, true] {
            let directories = Directories::default();
            let (one, two) = (directories.begin(), directories.begin());
            let (first, second) = if later_ends_first { (two, one) } else { (one, two) };
            directories.end(first, Some(&dir(2, 6)));
            assert_eq!(known(&directories, 2), None);
            directories.end(second, Some(&dir(2, 5)));
            assert_eq!(known(&directories, 2), None);
        }
    }

    /// An event overtakes the answer that was sent before what it tells of.
    #[test]
    fn an_event_meanwhile_counts() {
        let directories = Directories::default();
        let change = directories.begin();
        directories.forget();
        directories.end(change, Some(&dir(2, 1)));
        assert_eq!(known(&directories, 2), None);
    }

    #[test]
    fn a_few_are_remembered() {
        let directories = Directories::default();
        for ino in 0..100 {
            let change = directories.begin();
            directories.end(change, Some(&dir(ino, 1)));
        }
        assert_eq!(known(&directories, 99), Some(1));
        assert_eq!((0..100).filter(|ino| known(&directories, *ino).is_some()).count(), MOST);
    }
}
