//! Who may do what: `path_resolution(7)`, classes of users, root.

use outboard_base::{Cred, Errno, Ino};
use outboard_wire::file::{FileKind, open_flags};

use super::{alice, bob, member, needs_users};
use crate::actor::Actor;
use crate::case::{Case, Outcome, case, check, refused, same};

/// What `who` may do to `ino`, of 4 read, 2 write, 1 execute.
fn may(t: &mut Actor<'_>, who: &Cred, ino: Ino) -> u32 {
    t.by(who, |t| [4, 2, 1].into_iter().filter(|&bit| t.access(ino, bit).is_ok()).sum())
}

/// Every mode for one class of users, with the others given the opposite.
fn class(t: &mut Actor<'_>, who: &Cred, shift: u32) -> Outcome {
    let ino = t.touch(t.dir, "f")?;
    t.chown(ino, Some(1001), Some(50))?;
    for bits in 0..8_u32 {
        let opposite = 0o777 & !(0o7 << shift) & !(bits * 0o111);
        t.chmod(ino, bits << shift | opposite)?;
        same(&format!("mode {bits}"), may(t, who, ino), bits)?;
        opens(t, who, ino, bits)?;
    }
    Ok(())
}

/// What can be opened is what may be done.
fn opens(t: &mut Actor<'_>, who: &Cred, ino: Ino, bits: u32) -> Outcome {
    for (flags, needed) in [(0, 4), (open_flags::WRONLY, 2), (open_flags::RDWR, 6)] {
        let opened = t.by(who, |t| t.open(ino, flags));
        same(&format!("{bits}: flags {flags}"), opened.is_ok(), bits & needed == needed)?;
        match opened {
            Ok(fh) => t.close(ino, fh)?,
            Err(errno) => same("errno", errno, Errno::EACCES)?,
        }
    }
    Ok(())
}

/// Everything that needs search, in a directory nobody may search.
fn search(t: &mut Actor<'_>) -> Outcome {
    let dir = t.mkdir(t.dir, "d", 0o777)?;
    let file = t.touch(dir, "f")?;
    t.chmod(dir, 0o666)?;
    let outside = t.dir;
    t.by(&alice(), |t| {
        refused("lookup", t.lookup(dir, "f"), Errno::EACCES)?;
        refused("lookup of nothing", t.lookup(dir, "x"), Errno::EACCES)?;
        refused("create", t.create(dir, "x", 0o644), Errno::EACCES)?;
        refused("mkdir", t.mkdir(dir, "x", 0o755), Errno::EACCES)?;
        refused("unlink", t.unlink(dir, "f"), Errno::EACCES)?;
        refused("link", t.link(file, dir, "x"), Errno::EACCES)?;
        refused("rename from", t.rename((dir, "f"), (outside, "x")), Errno::EACCES)
    })?;
    let entries = t.by(&alice(), |t| t.list(dir))?;
    same("but it can be listed", entries.len(), 1)
}

/// Everything that needs writing, in a directory others may only search.
fn unwritable(t: &mut Actor<'_>) -> Outcome {
    let dir = t.mkdir(t.dir, "d", 0o755)?;
    let file = t.touch(dir, "f")?;
    t.mkdir(dir, "sub", 0o777)?;
    t.chmod(file, 0o666)?;
    let outside = t.dir;
    t.by(&alice(), |t| {
        t.lookup(dir, "f")?;
        refused("create", t.create(dir, "x", 0o644), Errno::EACCES)?;
        refused("mkdir", t.mkdir(dir, "x", 0o755), Errno::EACCES)?;
        refused("symlink", t.symlink(dir, "x", "y"), Errno::EACCES)?;
        refused("mknod", t.mknod(dir, "x", FileKind::Fifo, 0o644, 0), Errno::EACCES)?;
        refused("link", t.link(file, dir, "x"), Errno::EACCES)?;
        refused("unlink", t.unlink(dir, "f"), Errno::EACCES)?;
        refused("rmdir", t.rmdir(dir, "sub"), Errno::EACCES)?;
        refused("rename from", t.rename((dir, "f"), (outside, "x")), Errno::EACCES)?;
        t.touch(outside, "mine")?;
        refused("rename to", t.rename((outside, "mine"), (dir, "x")), Errno::EACCES)?;
        let (ino, fh) = t.create(dir, "f", 0o644)?;
        t.close(ino, fh)?;
        Ok(())
    })
}

pub(super) const CASES: &[Case] = &[
    case("permission/the owner's bits are the owner's", |t| {
        needs_users(t)?;
        class(t, &alice(), 6)
    }),
    case("permission/the group's bits are its members'", |t| {
        needs_users(t)?;
        class(t, &Cred::user(1002, 50), 3)
    }),
    case("permission/supplementary groups count", |t| {
        needs_users(t)?;
        class(t, &member(50), 3)
    }),
    case("permission/the others' bits are everyone else's", |t| {
        needs_users(t)?;
        class(t, &bob(), 0)
    }),
    case("permission/many groups", |t| {
        needs_users(t)?;
        let ino = t.touch(t.dir, "f")?;
        t.chown(ino, None, Some(2031))?;
        t.chmod(ino, 0o060)?;
        let many = Cred { groups: (2000..2032).collect(), ..Cred::user(1003, 1003) };
        same("in the last of 32", may(t, &many, ino), 6)
    }),
    case("permission/root reads and writes all, executes what anyone may", |t| {
        needs_users(t)?;
        let ino = t.touch(t.dir, "f")?;
        t.chown(ino, Some(1001), Some(1001))?;
        t.chmod(ino, 0)?;
        same("nothing set", may(t, &Cred::root(), ino), 6)?;
        t.chmod(ino, 0o001)?;
        same("others execute", may(t, &Cred::root(), ino), 7)?;
        let dir = t.mkdir(t.dir, "d", 0)?;
        same("a directory", may(t, &Cred::root(), dir), 7)?;
        t.touch(dir, "inside")?;
        Ok(())
    }),
    case("permission/a directory without search", |t| {
        needs_users(t)?;
        search(t)
    }),
    case("permission/a directory without writing", |t| {
        needs_users(t)?;
        unwritable(t)
    }),
    case("permission/a directory without reading", |t| {
        needs_users(t)?;
        let dir = t.mkdir(t.dir, "d", 0o777)?;
        t.touch(dir, "f")?;
        t.chmod(dir, 0o711)?;
        t.by(&alice(), |t| {
            refused("opendir", t.opendir(dir), Errno::EACCES)?;
            t.lookup(dir, "f")?;
            Ok(())
        })
    }),
    case("permission/what exists is told before what may not be written", |t| {
        needs_users(t)?;
        let dir = t.mkdir(t.dir, "d", 0o755)?;
        t.mkdir(dir, "there", 0o755)?;
        t.by(&alice(), |t| {
            refused("mkdir", t.mkdir(dir, "there", 0o755), Errno::EEXIST)?;
            refused("unlink nothing", t.unlink(dir, "x"), Errno::ENOENT)
        })
    }),
    case("permission/moving a directory rewrites its parent, so it must be writable", |t| {
        needs_users(t)?;
        let (from, to) = (t.mkdir(t.dir, "from", 0o777)?, t.mkdir(t.dir, "to", 0o777)?);
        t.mkdir(from, "d", 0o755)?;
        t.by(&alice(), |t| {
            t.rename((from, "d"), (from, "e"))?;
            refused("elsewhere", t.rename((from, "e"), (to, "e")), Errno::EACCES)
        })?;
        let dir = t.lookup(from, "e")?.ino;
        t.chmod(dir, 0o777)?;
        t.by(&alice(), |t| t.rename((from, "e"), (to, "e")))?;
        check(t.has(to, "e")?, "moved")
    }),
    case("permission/reading attributes needs none", |t| {
        needs_users(t)?;
        let ino = t.touch(t.dir, "f")?;
        t.chmod(ino, 0)?;
        t.by(&alice(), |t| same("size", t.stat(ino)?.size, 0))
    }),
    case("permission/NOATIME is the owner's", |t| {
        needs_users(t)?;
        let ino = t.touch(t.dir, "f")?;
        t.by(&alice(), |t| refused("open", t.open(ino, open_flags::NOATIME), Errno::EPERM))
    }),
];
