//! Sticky and set-group-id directories: `inode(7)`, `unlink(2)`, `rename(2)`.

use outboard_base::{Errno, Ino, Result};
use outboard_wire::file::{FileKind, open_flags, rename_flags};

use super::{alice, bob, member, needs_users};
use crate::actor::Actor;
use crate::case::{Case, case, check, refused, same};

/// A sticky directory of root's with alice's file `f` and directory `d` in it.
fn shared(t: &mut Actor<'_>) -> Result<Ino> {
    let dir = t.mkdir(t.dir, "tmp", 0o777)?;
    t.chmod(dir, 0o1777)?;
    t.by(&alice(), |t| {
        t.touch(dir, "f")?;
        t.mkdir(dir, "d", 0o777)
    })?;
    Ok(dir)
}

/// A set-group-id directory for everyone, of group 50.
fn grouped(t: &mut Actor<'_>) -> Result<Ino> {
    let dir = t.mkdir(t.dir, "group", 0o777)?;
    t.chown(dir, None, Some(50))?;
    t.chmod(dir, 0o2777)?;
    Ok(dir)
}

pub(super) const CASES: &[Case] = &[
    case("sticky/others do not remove or rename", |t| {
        needs_users(t)?;
        let dir = shared(t)?;
        let outside = t.dir;
        t.by(&bob(), |t| {
            refused("unlink", t.unlink(dir, "f"), Errno::EPERM)?;
            refused("rmdir", t.rmdir(dir, "d"), Errno::EPERM)?;
            refused("rename", t.rename((dir, "f"), (dir, "g")), Errno::EPERM)?;
            refused("move away", t.rename((dir, "f"), (outside, "g")), Errno::EPERM)?;
            t.touch(dir, "mine")?;
            refused("replace", t.rename((dir, "mine"), (dir, "f")), Errno::EPERM)?;
            let exchanged = t.rename_with((dir, "mine"), (dir, "f"), rename_flags::EXCHANGE);
            refused("exchange", exchanged, Errno::EPERM)?;
            t.rename((dir, "mine"), (dir, "still mine"))?;
            t.unlink(dir, "still mine")?;
            Ok(())
        })
    }),
    case("sticky/the owner of the file does", |t| {
        needs_users(t)?;
        let dir = shared(t)?;
        t.by(&alice(), |t| {
            t.rename((dir, "f"), (dir, "g"))?;
            t.unlink(dir, "g")?;
            t.rmdir(dir, "d")?;
            Ok(())
        })
    }),
    case("sticky/the owner of the directory does", |t| {
        needs_users(t)?;
        let dir = shared(t)?;
        t.chown(dir, Some(1002), None)?;
        t.by(&bob(), |t| {
            t.rename((dir, "f"), (dir, "g"))?;
            t.unlink(dir, "g")?;
            t.rmdir(dir, "d")?;
            Ok(())
        })
    }),
    case("sticky/root does", |t| {
        needs_users(t)?;
        let dir = shared(t)?;
        t.chown(dir, Some(1002), None)?;
        t.unlink(dir, "f")?;
        t.rmdir(dir, "d")?;
        Ok(())
    }),
    case("sticky/anyone adds", |t| {
        needs_users(t)?;
        let dir = shared(t)?;
        t.by(&bob(), |t| {
            let file = t.lookup(dir, "f")?.ino;
            t.touch(dir, "new")?;
            check(t.link(file, dir, "linked").is_ok() || !t.has(dir, "linked")?, "link or not")
        })
    }),
    case("setgid/files take the directory's group", |t| {
        needs_users(t)?;
        let dir = grouped(t)?;
        t.by(&alice(), |t| {
            let (attr, fh) = t.create_with(dir, "f", 0o644, open_flags::RDWR)?;
            t.close(attr.ino, fh)?;
            same("file", (attr.uid, attr.gid), (1001, 50))?;
            same("mode", attr.mode & 0o7777, 0o644)?;
            same("fifo", t.mknod(dir, "p", FileKind::Fifo, 0o644, 0)?.gid, 50)?;
            same("link", t.symlink(dir, "l", "x")?.gid, 50)?;
            let (attr, fh) = t.tmpfile(dir, 0o644, open_flags::RDWR)?;
            same("unnamed", attr.gid, 50)?;
            t.close(attr.ino, fh)?;
            Ok(())
        })
    }),
    case("setgid/directories take the group and the bit", |t| {
        needs_users(t)?;
        let dir = grouped(t)?;
        t.by(&alice(), |t| {
            let sub = t.mkdir(dir, "d", 0o755)?;
            let attr = t.stat(sub)?;
            same("group", attr.gid, 50)?;
            same("mode", attr.mode & 0o7777, 0o2755)
        })
    }),
    case("setgid/a stranger to the group makes no set-group-id program", |t| {
        needs_users(t)?;
        let dir = grouped(t)?;
        let (attr, fh) = t.by(&alice(), |t| t.create_with(dir, "f", 0o2755, open_flags::RDWR))?;
        t.close(attr.ino, fh)?;
        same("stranger", attr.mode & 0o7777, 0o755)?;
        let (attr, fh) =
            t.by(&member(50), |t| t.create_with(dir, "g", 0o2755, open_flags::RDWR))?;
        t.close(attr.ino, fh)?;
        same("member", attr.mode & 0o7777, 0o2755)
    }),
    case("setgid/without it a file takes its maker's group", |t| {
        needs_users(t)?;
        let dir = t.mkdir(t.dir, "d", 0o777)?;
        t.chown(dir, None, Some(50))?;
        let ino = t.by(&alice(), |t| t.touch(dir, "f"))?;
        same("group", t.stat(ino)?.gid, 1001)
    }),
];
