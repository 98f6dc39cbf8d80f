//! Finding names, and what an inode says about itself: `path_resolution(7)`, `stat(2)`.

use outboard_base::{Errno, Fh, Ino};
use outboard_wire::file::{FileKind, Request, mode};

use super::{alice, needs_users};
use crate::case::{Case, case, check, needs, refused, refused_by, same};

pub(super) const CASES: &[Case] = &[
    case("lookup/a missing name is ENOENT", |t| {
        refused("lookup", t.lookup(t.dir, "nothing"), Errno::ENOENT)
    }),
    case("lookup/finds what was made", |t| {
        let ino = t.touch(t.dir, "f")?;
        same("inode", t.lookup(t.dir, "f")?.ino, ino)?;
        same("again", t.lookup(t.dir, "f")?.ino, ino)
    }),
    case("lookup/tells capitals apart", |t| {
        t.touch(t.dir, "name")?;
        refused("lookup", t.lookup(t.dir, "Name"), Errno::ENOENT)
    }),
    case("lookup/in a file is ENOTDIR", |t| {
        let file = t.touch(t.dir, "f")?;
        refused("lookup", t.lookup(file, "x"), Errno::ENOTDIR)
    }),
    case("lookup/in a removed directory is ENOENT", |t| {
        let sub = t.mkdir(t.dir, "d", 0o755)?;
        t.rmdir(t.dir, "d")?;
        refused("lookup", t.lookup(sub, "x"), Errno::ENOENT)
    }),
    case("lookup/a removed name is ENOENT", |t| {
        t.touch(t.dir, "f")?;
        t.unlink(t.dir, "f")?;
        refused("lookup", t.lookup(t.dir, "f"), Errno::ENOENT)
    }),
    case("lookup/names are bytes, not text", |t| {
        let name = b"\xff\xfe \n\\\"'*?\x01\x7f";
        let (parent, mode) = (t.dir, FileKind::Regular.mode_bits() | 0o644);
        t.ask(&Request::Mknod { parent, name, mode, umask: 0, rdev: 0 }, &[])?;
        t.ask(&Request::Lookup { parent, name }, &[])?;
        let listed = t.list(parent)?;
        same("listed", listed.first().map(|entry| entry.name.clone()), Some(name.to_vec()))?;
        t.ask(&Request::Unlink { parent, name }, &[])?;
        same("left", t.list(parent)?.len(), 0)
    }),
    case("lookup/the longest name works, one more byte is ENAMETOOLONG", |t| {
        let (longest, longer) = (t.features().name_max, t.features().name_max + 1);
        let ino = t.touch(t.dir, &"n".repeat(longest))?;
        same("found", t.lookup(t.dir, &"n".repeat(longest))?.ino, ino)?;
        let name = "n".repeat(longer);
        refused("lookup", t.lookup(t.dir, &name), Errno::ENAMETOOLONG)?;
        refused("mkdir", t.mkdir(t.dir, &name, 0o755), Errno::ENAMETOOLONG)?;
        refused("create", t.create(t.dir, &name, 0o644), Errno::ENAMETOOLONG)?;
        refused("symlink", t.symlink(t.dir, &name, "x"), Errno::ENAMETOOLONG)?;
        refused("link", t.link(ino, t.dir, &name), Errno::ENAMETOOLONG)?;
        refused("unlink", t.unlink(t.dir, &name), Errno::ENAMETOOLONG)?;
        refused("rmdir", t.rmdir(t.dir, &name), Errno::ENAMETOOLONG)?;
        let old = "n".repeat(longest);
        let (from, to) = ((t.dir, old.as_str()), (t.dir, name.as_str()));
        refused("rename", t.rename(from, to), Errno::ENAMETOOLONG)
    }),
    case("lookup/names no directory can hold are refused", |t| {
        needs(!t.features().kernel, "the kernel walks `.`, `..` and slashes itself")?;
        for name in [".", "..", "a/b", "/", "a\0b"] {
            refused(name, t.lookup(t.dir, name), Errno::EINVAL)?;
            refused(name, t.mkdir(t.dir, name, 0o755), Errno::EINVAL)?;
            refused(name, t.unlink(t.dir, name), Errno::EINVAL)?;
            refused(name, t.rename((t.dir, "x"), (t.dir, name)), Errno::EINVAL)?;
        }
        refused("empty", t.lookup(t.dir, ""), Errno::ENOENT)
    }),
    case("lookup/an inode that never was is ESTALE", |t| {
        needs(!t.features().kernel, "needs an inode number of its own choice")?;
        let never = Ino(u64::MAX - 7);
        let wanted = [Errno::ESTALE, Errno::ENOENT];
        refused_by("stat", t.stat(never), &wanted)?;
        refused_by("lookup", t.lookup(never, "x"), &wanted)?;
        refused_by("open", t.open(never, 0), &wanted)?;
        refused_by("unlink", t.unlink(never, "x"), &wanted)?;
        refused_by("mkdir", t.mkdir(never, "x", 0o755), &wanted)?;
        refused_by("chmod", t.chmod(never, 0o644), &wanted)
    }),
    case("lookup/inode 1 is nobody's", |t| {
        needs(!t.features().kernel, "needs an inode number of its own choice")?;
        refused_by("stat", t.stat(Ino(1)), &[Errno::ESTALE, Errno::ENOENT])
    }),
    case("getattr/a new file", |t| {
        let ino = t.create(t.dir, "f", 0o640)?.0;
        let attr = t.stat(ino)?;
        same("inode", attr.ino, ino)?;
        same("size", attr.size, 0)?;
        same("blocks", attr.blocks, 0)?;
        same("links", attr.nlink, 1)?;
        same("mode", attr.mode, FileKind::Regular.mode_bits() | 0o640)?;
        if t.features().any_cred {
            same("owner", (attr.uid, attr.gid), (0, 0))?;
        }
        check(attr.blksize >= 512, "a preferred size of I/O")
    }),
    case("getattr/belongs to whom made it", |t| {
        needs_users(t)?;
        let dir = t.dir;
        let attr = t.by(&alice(), |t| {
            let (ino, fh) = t.create(dir, "f", 0o644)?;
            t.close(ino, fh)?;
            t.stat(ino)
        })?;
        same("owner", (attr.uid, attr.gid), (1001, 1001))
    }),
    case("getattr/the root is inode 0, a directory", |t| {
        let attr = t.stat(Ino::ROOT)?;
        same("inode", attr.ino, Ino::ROOT)?;
        same("kind", attr.kind()?, FileKind::Directory)
    }),
    case("getattr/no two inodes share a number", |t| {
        let mut inos = vec![Ino::ROOT, t.dir];
        for n in 0..50 {
            inos.push(t.touch(t.dir, &format!("f{n}"))?);
            inos.push(t.mkdir(t.dir, &format!("d{n}"), 0o755)?);
        }
        let all = inos.len();
        inos.sort_unstable();
        inos.dedup();
        same("different numbers", inos.len(), all)
    }),
    case("getattr/a number is not given out again while its file is open", |t| {
        let (gone, fh) = t.create(t.dir, "gone", 0o644)?;
        t.unlink(t.dir, "gone")?;
        for n in 0..50 {
            let ino = t.touch(t.dir, &format!("f{n}"))?;
            check(ino != gone, "the number of an open file is its own")?;
        }
        t.close(gone, fh)?;
        Ok(())
    }),
    case("getattr/the counter of changes grows with each change", |t| {
        needs(t.features().change_counter, "system calls do not show the counter")?;
        let (ino, fh) = t.create(t.dir, "f", 0o644)?;
        let mut last = t.stat(ino)?.change;
        for change in 0..4 {
            match change {
                0 => t.write(ino, fh, 0, b"x").map(drop)?,
                1 => t.chmod(ino, 0o600).map(drop)?,
                2 => t.link(ino, t.dir, "g").map(drop)?,
                _ => t.setxattr(ino, "user.x", b"1", 0)?,
            }
            let now = t.stat(ino)?.change;
            check(now > last, &format!("change {change} counts: {last} then {now}"))?;
            last = now;
        }
        t.close(ino, fh)?;
        Ok(())
    }),
    case("getattr/by an open file", |t| {
        let (ino, fh) = t.create(t.dir, "f", 0o644)?;
        let attr = t.ask(&Request::Getattr { ino, fh }, &[])?.0;
        let wanted = t.ask(&Request::Getattr { ino, fh: Fh::NONE }, &[])?.0;
        same("attributes", attr, wanted)?;
        t.close(ino, fh)?;
        Ok(())
    }),
    case("getattr/the mode keeps its kind", |t| {
        let ino = t.touch(t.dir, "f")?;
        let attr = t.chmod(ino, FileKind::Directory.mode_bits() | 0o7777)?;
        same("mode", attr.mode, FileKind::Regular.mode_bits() | mode::PERMISSIONS)
    }),
];
