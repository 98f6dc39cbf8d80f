//! `rename(2)`: files and directories, over each other, and what is refused.

use outboard_base::Errno;
use outboard_wire::file::FileKind;

use super::tick;
use crate::case::{Case, case, check, refused, refused_by, same};

const FULL: [Errno; 2] = [Errno::ENOTEMPTY, Errno::EEXIST];

pub(super) const CASES: &[Case] = &[
    case("rename/to a new name", |t| {
        let ino = t.file(t.dir, "a", b"x")?;
        same("orphan", t.rename((t.dir, "a"), (t.dir, "b"))?, None)?;
        refused("old", t.lookup(t.dir, "a"), Errno::ENOENT)?;
        same("new", t.lookup(t.dir, "b")?.ino, ino)?;
        same("content", t.contents(ino)?, b"x".to_vec())
    }),
    case("rename/of every kind, into another directory", |t| {
        let sub = t.mkdir(t.dir, "to", 0o755)?;
        t.touch(t.dir, "file")?;
        t.mkdir(t.dir, "dir", 0o755)?;
        t.symlink(t.dir, "link", "file")?;
        t.mknod(t.dir, "fifo", FileKind::Fifo, 0o644, 0)?;
        t.mknod(t.dir, "socket", FileKind::Socket, 0o644, 0)?;
        for name in ["file", "dir", "link", "fifo", "socket"] {
            let ino = t.lookup(t.dir, name)?.ino;
            t.rename((t.dir, name), (sub, name))?;
            same(name, t.lookup(sub, name)?.ino, ino)?;
        }
        same("left", t.names(t.dir)?, vec!["to".to_owned()])
    }),
    case("rename/a missing name is ENOENT", |t| {
        t.touch(t.dir, "b")?;
        refused("to new", t.rename((t.dir, "a"), (t.dir, "c")), Errno::ENOENT)?;
        refused("to old", t.rename((t.dir, "a"), (t.dir, "b")), Errno::ENOENT)?;
        check(t.has(t.dir, "b")?, "the target stays")
    }),
    case("rename/in a file is ENOTDIR", |t| {
        let file = t.touch(t.dir, "f")?;
        t.touch(t.dir, "a")?;
        refused("from", t.rename((file, "x"), (t.dir, "b")), Errno::ENOTDIR)?;
        refused("to", t.rename((t.dir, "a"), (file, "x")), Errno::ENOTDIR)
    }),
    case("rename/a file over a file", |t| {
        let a = t.file(t.dir, "a", b"a")?;
        let b = t.file(t.dir, "b", b"b")?;
        same("orphan", t.rename((t.dir, "a"), (t.dir, "b"))?, Some(b))?;
        same("new", t.lookup(t.dir, "b")?.ino, a)?;
        same("links", t.stat(a)?.nlink, 1)?;
        same("names", t.names(t.dir)?, vec!["b".to_owned()])
    }),
    case("rename/over a file someone has open", |t| {
        let a = t.file(t.dir, "a", b"a")?;
        let b = t.file(t.dir, "b", b"old")?;
        let fh = t.open(b, 0)?;
        t.rename((t.dir, "a"), (t.dir, "b"))?;
        same("links", t.stat(b)?.nlink, 0)?;
        same("its content", t.read(b, fh, 0, 10)?, b"old".to_vec())?;
        same("the name's content", t.contents(a)?, b"a".to_vec())?;
        t.close(b, fh)?;
        Ok(())
    }),
    case("rename/over a file with another name", |t| {
        let a = t.touch(t.dir, "a")?;
        let b = t.touch(t.dir, "b")?;
        t.link(b, t.dir, "c")?;
        same("no orphan", t.rename((t.dir, "a"), (t.dir, "b"))?, None)?;
        same("links", (t.stat(a)?.nlink, t.stat(b)?.nlink), (1, 1))?;
        same("other name", t.lookup(t.dir, "c")?.ino, b)
    }),
    case("rename/a file over a directory is EISDIR", |t| {
        t.touch(t.dir, "f")?;
        t.mkdir(t.dir, "d", 0o755)?;
        refused("rename", t.rename((t.dir, "f"), (t.dir, "d")), Errno::EISDIR)?;
        t.symlink(t.dir, "l", "d")?;
        refused("a link", t.rename((t.dir, "l"), (t.dir, "d")), Errno::EISDIR)
    }),
    case("rename/a directory over a file is ENOTDIR", |t| {
        t.touch(t.dir, "f")?;
        t.mkdir(t.dir, "d", 0o755)?;
        refused("rename", t.rename((t.dir, "d"), (t.dir, "f")), Errno::ENOTDIR)?;
        t.symlink(t.dir, "l", "e")?;
        refused("a link", t.rename((t.dir, "d"), (t.dir, "l")), Errno::ENOTDIR)
    }),
    case("rename/a directory over an empty one", |t| {
        let a = t.mkdir(t.dir, "a", 0o755)?;
        let b = t.mkdir(t.dir, "b", 0o755)?;
        t.touch(a, "inside")?;
        let links = t.stat(t.dir)?.nlink;
        same("orphan", t.rename((t.dir, "a"), (t.dir, "b"))?, Some(b))?;
        same("new", t.lookup(t.dir, "b")?.ino, a)?;
        same("inside", t.names(a)?, vec!["inside".to_owned()])?;
        same("the parent's links", t.stat(t.dir)?.nlink, links - 1)?;
        refused("in the replaced one", t.touch(b, "x"), Errno::ENOENT)
    }),
    case("rename/a directory over a full one is ENOTEMPTY", |t| {
        t.mkdir(t.dir, "a", 0o755)?;
        let b = t.mkdir(t.dir, "b", 0o755)?;
        t.touch(b, "f")?;
        refused_by("rename", t.rename((t.dir, "a"), (t.dir, "b")), &FULL)?;
        same("both stay", t.names(t.dir)?, vec!["a".to_owned(), "b".to_owned()])
    }),
    case("rename/to itself does nothing", |t| {
        let f = t.file(t.dir, "f", b"x")?;
        let sub = t.mkdir(t.dir, "d", 0o755)?;
        t.touch(sub, "inside")?;
        same("file", t.rename((t.dir, "f"), (t.dir, "f"))?, None)?;
        same("directory", t.rename((t.dir, "d"), (t.dir, "d"))?, None)?;
        same("file", (t.lookup(t.dir, "f")?.ino, t.stat(f)?.nlink), (f, 1))?;
        same("directory", t.lookup(t.dir, "d")?.ino, sub)
    }),
    case("rename/between two names of one file does nothing", |t| {
        let f = t.touch(t.dir, "a")?;
        let sub = t.mkdir(t.dir, "d", 0o755)?;
        t.link(f, t.dir, "b")?;
        t.link(f, sub, "c")?;
        same("here", t.rename((t.dir, "a"), (t.dir, "b"))?, None)?;
        same("there", t.rename((t.dir, "a"), (sub, "c"))?, None)?;
        check(t.has(t.dir, "a")? && t.has(t.dir, "b")? && t.has(sub, "c")?, "all names stay")?;
        same("links", t.stat(f)?.nlink, 3)
    }),
    case("rename/of one name of a file keeps the others", |t| {
        let f = t.touch(t.dir, "a")?;
        t.link(f, t.dir, "b")?;
        t.rename((t.dir, "a"), (t.dir, "c"))?;
        same("names", t.names(t.dir)?, vec!["b".to_owned(), "c".to_owned()])?;
        same("links", t.stat(f)?.nlink, 2)
    }),
    case("rename/a directory into itself is EINVAL", |t| {
        let a = t.mkdir(t.dir, "a", 0o755)?;
        let b = t.mkdir(a, "b", 0o755)?;
        let c = t.mkdir(b, "c", 0o755)?;
        refused("itself", t.rename((t.dir, "a"), (a, "x")), Errno::EINVAL)?;
        refused("its child", t.rename((t.dir, "a"), (b, "x")), Errno::EINVAL)?;
        refused("its grandchild", t.rename((t.dir, "a"), (c, "x")), Errno::EINVAL)?;
        refused("onto its child", t.rename((t.dir, "a"), (a, "b")), Errno::EINVAL)?;
        t.rename((b, "c"), (t.dir, "c"))?;
        t.rename((t.dir, "a"), (c, "a"))?;
        same("turned round", t.lookup(c, "a")?.ino, a)
    }),
    case("rename/onto one's ancestor is ENOTEMPTY", |t| {
        let a = t.mkdir(t.dir, "a", 0o755)?;
        let b = t.mkdir(a, "b", 0o755)?;
        t.mkdir(b, "c", 0o755)?;
        refused_by("parent", t.rename((b, "c"), (t.dir, "a")), &FULL)?;
        refused_by("directory", t.rename((a, "b"), (t.dir, "a")), &FULL)?;
        t.touch(b, "f")?;
        refused_by(
            "file",
            t.rename((b, "f"), (t.dir, "a")),
            &[Errno::ENOTEMPTY, Errno::EEXIST, Errno::EISDIR],
        )
    }),
    case("rename/a directory changes both parents' links", |t| {
        let a = t.mkdir(t.dir, "a", 0o755)?;
        let b = t.mkdir(t.dir, "b", 0o755)?;
        t.mkdir(a, "x", 0o755)?;
        t.touch(a, "f")?;
        t.rename((a, "x"), (b, "x"))?;
        same("links", (t.stat(a)?.nlink, t.stat(b)?.nlink), (2, 3))?;
        t.rename((a, "f"), (b, "f"))?;
        same("files do not count", (t.stat(a)?.nlink, t.stat(b)?.nlink), (2, 3))?;
        t.mkdir(a, "x", 0o755)?;
        t.rename((b, "x"), (a, "x"))?;
        same("over an empty one", (t.stat(a)?.nlink, t.stat(b)?.nlink), (3, 2))
    }),
    case("rename/a moved directory knows its new parent", |t| {
        let a = t.mkdir(t.dir, "a", 0o755)?;
        let b = t.mkdir(t.dir, "b", 0o755)?;
        let x = t.mkdir(a, "x", 0o755)?;
        t.rename((a, "x"), (b, "x"))?;
        // Were `x` still thought to be under `a`, this would be refused.
        t.rename((t.dir, "a"), (x, "a"))?;
        refused("a loop", t.rename((t.dir, "b"), (a, "b")), Errno::EINVAL)
    }),
    case("rename/moves the times of both directories", |t| {
        let a = t.mkdir(t.dir, "a", 0o755)?;
        let b = t.mkdir(t.dir, "b", 0o755)?;
        let f = t.touch(a, "f")?;
        let old = (t.age(a)?, t.age(b)?, t.age(f)?);
        tick();
        t.rename((a, "f"), (b, "f"))?;
        let new = (t.stat(a)?, t.stat(b)?, t.stat(f)?);
        check(new.0.mtime > old.0.mtime && new.1.mtime > old.1.mtime, "mtime of the directories")?;
        check(new.0.ctime > old.0.ctime && new.1.ctime > old.1.ctime, "ctime of the directories")?;
        same("mtime of the file", new.2.mtime, old.2.mtime)
    }),
    case("rename/keeps an open file open", |t| {
        let (f, fh) = t.create(t.dir, "a", 0o644)?;
        t.rename((t.dir, "a"), (t.dir, "b"))?;
        t.write(f, fh, 0, b"later")?;
        t.close(f, fh)?;
        same("content", t.contents(f)?, b"later".to_vec())
    }),
    case("rename/a replaced file gives its space back", |t| {
        for round in 0..4 {
            t.file(t.dir, "new", &super::pattern(300_000, round))?;
            t.rename((t.dir, "new"), (t.dir, "old"))?;
        }
        let ino = t.lookup(t.dir, "old")?.ino;
        check(t.contents(ino)? == super::pattern(300_000, 3), "the last content")?;
        same("names", t.names(t.dir)?, vec!["old".to_owned()])
    }),
];
