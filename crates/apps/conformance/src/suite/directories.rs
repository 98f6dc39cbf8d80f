//! `mkdir(2)`, `rmdir(2)`, and the links directories count.

use outboard_base::{Errno, Ino};
use outboard_wire::file::FileKind;

use crate::case::{Case, case, check, refused, refused_by, same};

pub(super) const CASES: &[Case] = &[
    case("mkdir/an empty directory", |t| {
        let ino = t.mkdir(t.dir, "d", 0o751)?;
        let attr = t.stat(ino)?;
        same("mode", attr.mode, FileKind::Directory.mode_bits() | 0o751)?;
        same("links", attr.nlink, 2)?;
        same("entries", t.names(ino)?.len(), 0)
    }),
    case("mkdir/over anything is EEXIST", |t| {
        t.touch(t.dir, "file")?;
        t.mkdir(t.dir, "dir", 0o755)?;
        t.symlink(t.dir, "link", "nowhere")?;
        for name in ["file", "dir", "link"] {
            refused(name, t.mkdir(t.dir, name, 0o755), Errno::EEXIST)?;
        }
        Ok(())
    }),
    case("mkdir/the parent counts it", |t| {
        let before = t.stat(t.dir)?.nlink;
        t.mkdir(t.dir, "a", 0o755)?;
        t.mkdir(t.dir, "b", 0o755)?;
        same("two more", t.stat(t.dir)?.nlink, before + 2)?;
        t.touch(t.dir, "f")?;
        same("files do not count", t.stat(t.dir)?.nlink, before + 2)?;
        t.rmdir(t.dir, "a")?;
        same("one less", t.stat(t.dir)?.nlink, before + 1)
    }),
    case("mkdir/a hundred deep", |t| {
        let mut at = t.dir;
        let mut path = vec![at];
        for _ in 0..100 {
            at = t.mkdir(at, "deeper", 0o755)?;
            path.push(at);
        }
        t.file(at, "bottom", b"here")?;
        same("bottom", t.names(at)?, vec!["bottom".to_owned()])?;
        t.unlink(at, "bottom")?;
        for parent in path.iter().rev().skip(1) {
            t.rmdir(*parent, "deeper")?;
        }
        same("left", t.names(t.dir)?.len(), 0)
    }),
    case("rmdir/an empty directory goes", |t| {
        t.mkdir(t.dir, "d", 0o755)?;
        t.rmdir(t.dir, "d")?;
        refused("lookup", t.lookup(t.dir, "d"), Errno::ENOENT)?;
        refused("again", t.rmdir(t.dir, "d"), Errno::ENOENT)
    }),
    case("rmdir/with anything in it is ENOTEMPTY", |t| {
        let sub = t.mkdir(t.dir, "d", 0o755)?;
        let full = [Errno::ENOTEMPTY, Errno::EEXIST];
        t.touch(sub, "f")?;
        refused_by("file", t.rmdir(t.dir, "d"), &full)?;
        t.unlink(sub, "f")?;
        t.mkdir(sub, "e", 0o755)?;
        refused_by("directory", t.rmdir(t.dir, "d"), &full)?;
        t.rmdir(sub, "e")?;
        t.symlink(sub, "l", "x")?;
        refused_by("link", t.rmdir(t.dir, "d"), &full)?;
        t.unlink(sub, "l")?;
        t.rmdir(t.dir, "d")?;
        Ok(())
    }),
    case("rmdir/anything else is ENOTDIR", |t| {
        t.touch(t.dir, "file")?;
        t.mkdir(t.dir, "dir", 0o755)?;
        t.symlink(t.dir, "link", "dir")?;
        refused("file", t.rmdir(t.dir, "file"), Errno::ENOTDIR)?;
        refused("link to a directory", t.rmdir(t.dir, "link"), Errno::ENOTDIR)
    }),
    case("rmdir/a directory someone has open", |t| {
        let sub = t.mkdir(t.dir, "d", 0o755)?;
        let fh = t.opendir(sub)?;
        t.rmdir(t.dir, "d")?;
        same("links", t.stat(sub)?.nlink, 0)?;
        // Linux itself says ENOENT for a removed directory; POSIX says it is empty.
        let listed = t.readdir(sub, fh, 0, 4096);
        let empty = listed.map_or_else(|errno| errno == Errno::ENOENT, |names| names.is_empty());
        check(empty, "nothing in it")?;
        refused("a name in it", t.mkdir(sub, "x", 0o755), Errno::ENOENT)?;
        t.closedir(sub, fh)?;
        Ok(())
    }),
    case("rmdir/tells of the inode without a name", |t| {
        let sub = t.mkdir(t.dir, "d", 0o755)?;
        same("orphan", t.rmdir(t.dir, "d")?, Some(sub))
    }),
    case("rmdir/the name can be used again at once", |t| {
        let first = t.mkdir(t.dir, "d", 0o755)?;
        t.rmdir(t.dir, "d")?;
        let second = t.mkdir(t.dir, "d", 0o700)?;
        check(first != second, "another directory")?;
        same("mode", t.stat(second)?.mode & 0o7777, 0o700)
    }),
    case("mkdir/directories of the root", |t| {
        let name = format!("root-{}", t.dir.0);
        let before = t.stat(Ino::ROOT)?.nlink;
        let sub = t.mkdir(Ino::ROOT, &name, 0o755)?;
        same("counted", t.stat(Ino::ROOT)?.nlink, before + 1)?;
        same("found", t.lookup(Ino::ROOT, &name)?.ino, sub)?;
        t.rmdir(Ino::ROOT, &name)?;
        same("counted", t.stat(Ino::ROOT)?.nlink, before)
    }),
];
