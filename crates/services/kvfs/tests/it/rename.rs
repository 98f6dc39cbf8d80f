//! rename, every pair of kinds and every flag: the table of `rename(2)`.

use outboard_base::{Errno, Ino, Result};
use outboard_wire::file::rename_flags::{EXCHANGE, NOREPLACE, WHITEOUT};

use crate::world::{Disk, User, assert_clean, errno};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Nothing,
    File,
    Link,
    Empty,
    Full,
}

use Kind::{Empty, File, Full, Link, Nothing};

impl Kind {
    const ALL: [Kind; 5] = [Nothing, File, Link, Empty, Full];

    fn is_dir(self) -> bool {
        matches!(self, Empty | Full)
    }

    fn make(self, user: &User<'_>, parent: Ino, name: &str) -> Option<Ino> {
        let attr = match self {
            Nothing => return None,
            File => user.file(parent, name).unwrap(),
            Link => user.symlink(parent, name, "somewhere").unwrap(),
            Empty => user.mkdir(parent, name).unwrap(),
            Full => {
                let dir = user.mkdir(parent, name).unwrap();
                user.file(dir.ino, "inside").unwrap();
                dir
            }
        };
        Some(attr.ino)
    }
}

fn expected(from: Kind, to: Kind, flags: u32) -> Result<()> {
    match (from, to, flags) {
        (Nothing, _, _) => Err(Errno::ENOENT),
        (_, Nothing, EXCHANGE) => Err(Errno::ENOENT),
        (_, _, EXCHANGE) | (_, Nothing, _) => Ok(()),
        (_, _, NOREPLACE) => Err(Errno::EEXIST),
        _ if from.is_dir() && !to.is_dir() => Err(Errno::ENOTDIR),
        _ if !from.is_dir() && to.is_dir() => Err(Errno::EISDIR),
        (_, Full, _) => Err(Errno::ENOTEMPTY),
        _ => Ok(()),
    }
}

#[test]
fn every_pair_of_kinds_with_every_flag() {
    for from in Kind::ALL {
        for to in Kind::ALL {
            for flags in [0, NOREPLACE, EXCHANGE] {
                for elsewhere in [false, true] {
                    one(from, to, flags, elsewhere);
                }
            }
        }
    }
}

fn one(from: Kind, to: Kind, flags: u32, elsewhere: bool) {
    let case = format!("{from:?} to {to:?}, flags {flags}, elsewhere {elsewhere}");
    let disk = Disk::new(1);
    let volume = disk.open_settled();
    let user = User::root(&volume);
    let here = user.mkdir(Ino::ROOT, "here").unwrap().ino;
    let there = if elsewhere { user.mkdir(Ino::ROOT, "there").unwrap().ino } else { here };
    let moved = from.make(&user, here, "a");
    let replaced = to.make(&user, there, "b");
    let outcome = user.rename((here, "a"), (there, "b"), flags);
    assert_eq!(outcome.map(drop), expected(from, to, flags), "{case}");

    let ino = |dir, name| user.lookup(dir, name).ok().map(|attr| attr.ino);
    let (a, b) = (ino(here, "a"), ino(there, "b"));
    match (expected(from, to, flags), flags) {
        (Err(_), _) => assert_eq!((a, b), (moved, replaced), "{case}"),
        (Ok(()), EXCHANGE) => assert_eq!((a, b), (replaced, moved), "{case}"),
        (Ok(()), _) => assert_eq!((a, b), (None, moved), "{case}"),
    }
    for dir in [here, there] {
        let subdirs = user
            .names(dir)
            .iter()
            .filter(|name| user.lookup(dir, name).unwrap().mode & 0o170_000 == 0o040_000)
            .count();
        assert_eq!(user.stat(dir).unwrap().nlink as usize, 2 + subdirs, "{case}");
    }
    for ino in [moved, replaced].into_iter().flatten() {
        user.forget(ino);
    }
    assert_clean(&volume);
}

#[test]
fn no_directory_comes_below_itself() {
    let disk = Disk::new(1);
    let volume = disk.open_settled();
    let user = User::root(&volume);
    let a = user.mkdir(Ino::ROOT, "a").unwrap().ino;
    let b = user.mkdir(a, "b").unwrap().ino;
    let c = user.mkdir(b, "c").unwrap().ino;
    assert_eq!(errno(user.rename((Ino::ROOT, "a"), (c, "x"), 0)), Errno::EINVAL);
    assert_eq!(errno(user.rename((Ino::ROOT, "a"), (a, "x"), 0)), Errno::EINVAL);
    assert_eq!(errno(user.rename((Ino::ROOT, "a"), (b, "c"), EXCHANGE)), Errno::EINVAL);
    assert_eq!(errno(user.rename((b, "c"), (Ino::ROOT, "a"), EXCHANGE)), Errno::EINVAL);
    assert_eq!(errno(user.rename((b, "c"), (Ino::ROOT, "a"), 0)), Errno::ENOTEMPTY);
    // Up and sideways is fine, and the way up follows.
    user.rename((a, "b"), (Ino::ROOT, "b"), 0).unwrap();
    user.rename((Ino::ROOT, "a"), (c, "a"), 0).unwrap();
    assert_eq!(errno(user.rename((Ino::ROOT, "b"), (a, "b"), 0)), Errno::EINVAL);
    assert_clean(&volume);
}

/// The range lock of the tree was once that of an inode number nobody has; a host that gave this
/// number as a directory waited for itself.
#[test]
fn no_number_of_a_directory_makes_it_wait_for_itself() {
    let disk = Disk::new(1);
    let volume = disk.open_settled();
    let user = User::root(&volume);
    for ino in [Ino(u64::MAX), Ino(1), Ino(99)] {
        assert_eq!(errno(user.rename((ino, "a"), (Ino::ROOT, "b"), 0)), Errno::ESTALE);
        assert_eq!(errno(user.rename((Ino::ROOT, "a"), (ino, "b"), 0)), Errno::ESTALE);
    }
}

#[test]
fn two_names_of_one_file_stay() {
    let disk = Disk::new(1);
    let volume = disk.open_settled();
    let user = User::root(&volume);
    let file = user.file(Ino::ROOT, "a").unwrap().ino;
    user.link(file, Ino::ROOT, "b").unwrap();
    for flags in [0, EXCHANGE] {
        assert_eq!(user.rename((Ino::ROOT, "a"), (Ino::ROOT, "b"), flags), Ok(None));
        assert_eq!(user.stat(file).unwrap().nlink, 2);
    }
    assert_eq!(user.rename((Ino::ROOT, "a"), (Ino::ROOT, "a"), 0), Ok(None));
    assert_eq!(user.names(Ino::ROOT), ["a", "b"]);
    assert_eq!(errno(user.rename((Ino::ROOT, "a"), (Ino::ROOT, "c"), WHITEOUT)), Errno::EINVAL);
    let both = NOREPLACE | EXCHANGE;
    assert_eq!(errno(user.rename((Ino::ROOT, "a"), (Ino::ROOT, "c"), both)), Errno::EINVAL);
}

#[test]
fn times_and_permissions_of_a_move() {
    let disk = Disk::new(1);
    let volume = disk.open_settled();
    let root = User::root(&volume);
    let from = root.mkdir(Ino::ROOT, "from").unwrap().ino;
    let to = root.mkdir(Ino::ROOT, "to").unwrap().ino;
    let user = root.by(10, 10);
    let file = user.file(from, "file").unwrap();
    let dir = root.mkdir_mode(from, "dir", 0o755).unwrap();
    let before = (root.stat(from).unwrap(), root.stat(to).unwrap());
    user.rename((from, "file"), (to, "file"), 0).unwrap();
    let after = (root.stat(from).unwrap(), root.stat(to).unwrap());
    for (before, after) in [(before.0, after.0), (before.1, after.1)] {
        assert!(after.mtime > before.mtime && after.ctime > before.ctime);
        assert!(after.change > before.change);
    }
    let moved = root.stat(file.ino).unwrap();
    assert!(moved.ctime > file.ctime && moved.mtime == file.mtime);
    // Somebody else's directory may be renamed in place, but not moved: its `..` would change.
    assert_eq!(errno(user.rename((from, "dir"), (to, "dir"), 0)), Errno::EACCES);
    user.rename((from, "dir"), (from, "dir2"), 0).unwrap();
    // Sticky: only what one owns.
    root.chmod(from, 0o1777).unwrap();
    assert_eq!(errno(user.rename((from, "dir2"), (from, "dir"), 0)), Errno::EPERM);
    user.file(from, "mine").unwrap();
    assert_eq!(errno(user.rename((from, "mine"), (from, "dir2"), EXCHANGE)), Errno::EPERM);
    user.rename((from, "mine"), (from, "mine2"), 0).unwrap();
    root.chmod(to, 0o555).unwrap();
    assert_eq!(errno(user.rename((from, "mine2"), (to, "x"), 0)), Errno::EACCES);
    assert!(root.stat(dir.ino).is_ok());
}
