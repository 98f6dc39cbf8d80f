//! `symlink(2)`, `readlink(2)`, `link(2)`, `unlink(2)`.

use outboard_base::Errno;
use outboard_wire::file::{FileKind, open_flags};

use super::tick;
use crate::case::{Case, case, check, refused, same};

pub(super) const CASES: &[Case] = &[
    case("symlink/says where it leads", |t| {
        let attr = t.symlink(t.dir, "l", "some/where")?;
        same("kind", attr.kind()?, FileKind::Symlink)?;
        same("mode", attr.mode & 0o7777, 0o777)?;
        same("size", attr.size, 10)?;
        same("target", t.readlink(attr.ino)?, b"some/where".to_vec())
    }),
    case("symlink/any target is kept as it is", |t| {
        for (n, target) in ["/", ".", "..", "a//b/", " ", "\u{fc}\n"].into_iter().enumerate() {
            let attr = t.symlink(t.dir, &format!("l{n}"), target)?;
            same("target", t.readlink(attr.ino)?, target.as_bytes().to_vec())?;
        }
        Ok(())
    }),
    case("symlink/targets up to 4095 bytes", |t| {
        for len in [59, 60, 61, 255, 256, 4000, 4095] {
            let target = "t".repeat(len);
            let attr = t.symlink(t.dir, &format!("l{len}"), &target)?;
            same("size", attr.size, len as u64)?;
            same("target", t.readlink(attr.ino)?, target.into_bytes())?;
        }
        refused("4096", t.symlink(t.dir, "x", &"t".repeat(4096)), Errno::ENAMETOOLONG)
    }),
    case("symlink/to nothing is ENOENT", |t| {
        refused("empty", t.symlink(t.dir, "l", ""), Errno::ENOENT)
    }),
    case("symlink/over anything is EEXIST", |t| {
        t.touch(t.dir, "f")?;
        t.symlink(t.dir, "l", "nowhere")?;
        refused("file", t.symlink(t.dir, "f", "x"), Errno::EEXIST)?;
        refused("link", t.symlink(t.dir, "l", "x"), Errno::EEXIST)
    }),
    case("readlink/of anything else is EINVAL", |t| {
        let file = t.touch(t.dir, "f")?;
        let sub = t.mkdir(t.dir, "d", 0o755)?;
        refused("file", t.readlink(file), Errno::EINVAL)?;
        refused("directory", t.readlink(sub), Errno::EINVAL)
    }),
    case("link/two names, one file", |t| {
        let ino = t.file(t.dir, "a", b"one")?;
        let attr = t.link(ino, t.dir, "b")?;
        same("inode", attr.ino, ino)?;
        same("links", attr.nlink, 2)?;
        same("found", t.lookup(t.dir, "b")?.ino, ino)?;
        let fh = t.open(ino, open_flags::RDWR)?;
        t.write(ino, fh, 0, b"two")?;
        t.close(ino, fh)?;
        same("content", t.contents(ino)?, b"two".to_vec())?;
        same("still has a name", t.unlink(t.dir, "a")?, None)?;
        same("links", t.stat(ino)?.nlink, 1)?;
        same("content", t.contents(ino)?, b"two".to_vec())?;
        same("the last name", t.unlink(t.dir, "b")?, Some(ino))
    }),
    case("link/in another directory", |t| {
        let sub = t.mkdir(t.dir, "d", 0o755)?;
        let ino = t.touch(t.dir, "a")?;
        t.link(ino, sub, "a")?;
        same("found", t.lookup(sub, "a")?.ino, ino)?;
        t.unlink(t.dir, "a")?;
        same("found", t.lookup(sub, "a")?.nlink, 1)
    }),
    case("link/over anything is EEXIST", |t| {
        let ino = t.touch(t.dir, "a")?;
        t.touch(t.dir, "b")?;
        t.mkdir(t.dir, "d", 0o755)?;
        for name in ["a", "b", "d"] {
            refused(name, t.link(ino, t.dir, name), Errno::EEXIST)?;
        }
        same("links", t.stat(ino)?.nlink, 1)
    }),
    case("link/a directory is EPERM", |t| {
        let sub = t.mkdir(t.dir, "d", 0o755)?;
        refused("link", t.link(sub, t.dir, "e"), Errno::EPERM)
    }),
    case("link/of a symbolic link is of the link itself", |t| {
        let link = t.symlink(t.dir, "l", "nowhere")?;
        let attr = t.link(link.ino, t.dir, "m")?;
        same("inode", (attr.ino, attr.nlink), (link.ino, 2))?;
        same("target", t.readlink(attr.ino)?, b"nowhere".to_vec())
    }),
    case("link/of a fifo", |t| {
        let fifo = t.mknod(t.dir, "p", FileKind::Fifo, 0o644, 0)?;
        same("links", t.link(fifo.ino, t.dir, "q")?.nlink, 2)
    }),
    case("link/a file without a name is ENOENT", |t| {
        let (ino, fh) = t.create(t.dir, "f", 0o644)?;
        t.unlink(t.dir, "f")?;
        refused("link", t.link(ino, t.dir, "g"), Errno::ENOENT)?;
        t.close(ino, fh)?;
        Ok(())
    }),
    case("link/65000 names, then EMLINK", |t| {
        let ino = t.touch(t.dir, "f")?;
        for n in 1..65_000 {
            t.link(ino, t.dir, &format!("f{n}"))?;
        }
        same("links", t.stat(ino)?.nlink, 65_000)?;
        refused("one more", t.link(ino, t.dir, "more"), Errno::EMLINK)?;
        t.unlink(t.dir, "f1")?;
        t.link(ino, t.dir, "more")?;
        t.unlink(t.dir, "more")?;
        for n in 2..65_000 {
            t.unlink(t.dir, &format!("f{n}"))?;
        }
        same("links", t.stat(ino)?.nlink, 1)
    }),
    case("unlink/every kind but directories", |t| {
        t.touch(t.dir, "file")?;
        t.symlink(t.dir, "link", "file")?;
        t.mknod(t.dir, "fifo", FileKind::Fifo, 0o644, 0)?;
        t.mknod(t.dir, "socket", FileKind::Socket, 0o644, 0)?;
        t.mkdir(t.dir, "dir", 0o755)?;
        for name in ["link", "fifo", "socket", "file"] {
            t.unlink(t.dir, name)?;
            refused(name, t.lookup(t.dir, name), Errno::ENOENT)?;
        }
        refused("directory", t.unlink(t.dir, "dir"), Errno::EISDIR)?;
        same("left", t.names(t.dir)?, vec!["dir".to_owned()])
    }),
    case("unlink/what is not there is ENOENT", |t| {
        refused("unlink", t.unlink(t.dir, "f"), Errno::ENOENT)?;
        let file = t.touch(t.dir, "f")?;
        refused("in a file", t.unlink(file, "x"), Errno::ENOTDIR)?;
        refused("rmdir in a file", t.rmdir(file, "x"), Errno::ENOTDIR)
    }),
    case("unlink/a link leaves its target", |t| {
        let ino = t.file(t.dir, "f", b"x")?;
        t.symlink(t.dir, "l", "f")?;
        t.unlink(t.dir, "l")?;
        same("content", t.contents(ino)?, b"x".to_vec())
    }),
    case("unlink/a file of every size", |t| {
        for len in [0, 1, 8192, 8193, 300_000] {
            t.file(t.dir, "f", &super::pattern(len, 3))?;
            t.unlink(t.dir, "f")?;
            let ino = t.touch(t.dir, "f")?;
            same("the next is empty", t.contents(ino)?.len(), 0)?;
            t.unlink(t.dir, "f")?;
        }
        Ok(())
    }),
    case("unlink/moves the change time of what is left", |t| {
        let ino = t.touch(t.dir, "a")?;
        let before = t.link(ino, t.dir, "b")?.ctime;
        tick();
        t.unlink(t.dir, "a")?;
        check(t.stat(ino)?.ctime > before, "ctime moved")
    }),
];
