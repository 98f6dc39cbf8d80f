//! Which times move with what: `inode(7)`, `utimensat(2)`.

use std::time::{SystemTime, UNIX_EPOCH};

use outboard_base::{Errno, Ino, Timestamp};
use outboard_wire::file::{Attr, SetattrTime, open_flags};

use super::{alice, needs_users, tick};
use crate::actor::Actor;
use crate::case::{Case, Outcome, Stop, case, check, needs, refused, same};

/// Which of the three times moved between two looks at an inode.
fn moved(old: &Attr, new: &Attr) -> (bool, bool, bool) {
    (new.atime > old.atime, new.mtime > old.mtime, new.ctime > old.ctime)
}

/// Ages `ino`, does `work`, and compares which of (atime, mtime, ctime) moved.
fn moves<T, E>(
    t: &mut Actor<'_>,
    what: &str,
    ino: Ino,
    wanted: (bool, bool, bool),
    work: impl FnOnce(&mut Actor<'_>) -> Result<T, E>,
) -> Outcome
where
    Stop: From<E>,
{
    let old = t.age(ino)?;
    tick();
    work(t)?;
    same(what, moved(&old, &t.stat(ino)?), wanted)
}

const NONE: (bool, bool, bool) = (false, false, false);
const ATIME: (bool, bool, bool) = (true, false, false);
const CTIME: (bool, bool, bool) = (false, false, true);
const CHANGED: (bool, bool, bool) = (false, true, true);

pub(super) const CASES: &[Case] = &[
    case("times/a new inode has the present, four times", |t| {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
        for ino in
            [t.touch(t.dir, "f")?, t.mkdir(t.dir, "d", 0o755)?, t.symlink(t.dir, "l", "x")?.ino]
        {
            let attr = t.stat(ino)?;
            for time in [attr.atime, attr.mtime, attr.ctime, attr.crtime] {
                let off = time.sec.abs_diff(now.cast_signed());
                check(off <= 60, &format!("{off} s away from now"))?;
            }
        }
        Ok(())
    }),
    case("times/reading moves atime", |t| {
        needs(t.features().reads_seen, "what a cache answers moves no access time")?;
        let ino = t.file(t.dir, "f", b"abc")?;
        let fh = t.open(ino, 0)?;
        moves(t, "read", ino, ATIME, |t| t.read(ino, fh, 0, 3))?;
        t.close(ino, fh)?;
        Ok(())
    }),
    case("times/NOATIME reads move nothing", |t| {
        let ino = t.file(t.dir, "f", b"abc")?;
        let fh = t.open(ino, open_flags::NOATIME)?;
        moves(t, "read", ino, NONE, |t| t.read(ino, fh, 0, 3))?;
        t.close(ino, fh)?;
        Ok(())
    }),
    case("times/writing moves mtime and ctime", |t| {
        for len in [3, 10_000] {
            let ino = t.file(t.dir, &format!("f{len}"), &vec![1; len])?;
            let fh = t.open(ino, open_flags::RDWR)?;
            moves(t, "write", ino, CHANGED, |t| t.write(ino, fh, 0, b"x"))?;
            t.close(ino, fh)?;
        }
        Ok(())
    }),
    case("times/looking moves nothing", |t| {
        let ino = t.file(t.dir, "f", b"abc")?;
        moves(t, "stat, lookup, open, close", ino, NONE, |t| {
            t.lookup(t.dir, "f")?;
            t.stat(ino)?;
            let fh = t.open(ino, open_flags::RDWR)?;
            t.fsync(ino, fh, false)?;
            t.close(ino, fh)
        })
    }),
    case("times/chmod and chown move ctime", |t| {
        let ino = t.touch(t.dir, "f")?;
        moves(t, "chmod", ino, CTIME, |t| t.chmod(ino, 0o600))?;
        if t.features().any_cred {
            moves(t, "chown", ino, CTIME, |t| t.chown(ino, Some(5), None))?;
        }
        Ok(())
    }),
    case("times/link moves ctime", |t| {
        let ino = t.touch(t.dir, "f")?;
        moves(t, "link", ino, CTIME, |t| t.link(ino, t.dir, "g"))?;
        moves(t, "unlink", ino, CTIME, |t| t.unlink(t.dir, "g"))
    }),
    case("times/every change of names moves the directory's", |t| {
        let dir = t.mkdir(t.dir, "d", 0o755)?;
        let file = t.touch(dir, "f")?;
        moves(t, "create", dir, CHANGED, |t| t.touch(dir, "new"))?;
        moves(t, "mkdir", dir, CHANGED, |t| t.mkdir(dir, "sub", 0o755))?;
        moves(t, "symlink", dir, CHANGED, |t| t.symlink(dir, "l", "x"))?;
        moves(t, "link", dir, CHANGED, |t| t.link(file, dir, "g"))?;
        moves(t, "rename", dir, CHANGED, |t| t.rename((dir, "g"), (dir, "h")))?;
        moves(t, "unlink", dir, CHANGED, |t| t.unlink(dir, "h"))?;
        moves(t, "rmdir", dir, CHANGED, |t| t.rmdir(dir, "sub"))
    }),
    case("times/a failed change moves nothing", |t| {
        let dir = t.mkdir(t.dir, "d", 0o755)?;
        t.touch(dir, "f")?;
        moves(t, "refused", dir, NONE, |t| {
            refused("mkdir", t.mkdir(dir, "f", 0o755), Errno::EEXIST)?;
            refused("unlink", t.unlink(dir, "x"), Errno::ENOENT)?;
            refused("rename", t.rename((dir, "x"), (dir, "y")), Errno::ENOENT)
        })
    }),
    case("times/writing to a file leaves its directory alone", |t| {
        let dir = t.mkdir(t.dir, "d", 0o755)?;
        let (ino, fh) = t.create(dir, "f", 0o644)?;
        moves(t, "write", dir, NONE, |t| {
            t.write(ino, fh, 0, b"x")?;
            t.chmod(ino, 0o600)
        })?;
        t.close(ino, fh)?;
        Ok(())
    }),
    case("times/listing moves the directory's atime", |t| {
        let dir = t.mkdir(t.dir, "d", 0o755)?;
        t.touch(dir, "f")?;
        moves(t, "list", dir, ATIME, |t| t.list(dir))
    }),
    case("times/birth stays", |t| {
        let (ino, fh) = t.create(t.dir, "f", 0o644)?;
        let born = t.stat(ino)?.crtime;
        tick();
        t.write(ino, fh, 0, b"x")?;
        t.age(ino)?;
        t.rename((t.dir, "f"), (t.dir, "g"))?;
        t.close(ino, fh)?;
        same("crtime", t.stat(ino)?.crtime, born)
    }),
    case("utimens/to the nanosecond, both or one", |t| {
        let ino = t.touch(t.dir, "f")?;
        let (a, m) = (Timestamp { sec: 1_111, nsec: 999_999_999 }, Timestamp { sec: 2, nsec: 1 });
        let attr = t.utimens(ino, Some(SetattrTime::At(a)), Some(SetattrTime::At(m)))?;
        same("both", (attr.atime, attr.mtime), (a, m))?;
        let later = Timestamp { sec: 4_000_000_000, nsec: 7 };
        let attr = t.utimens(ino, None, Some(SetattrTime::At(later)))?;
        same("mtime alone", (attr.atime, attr.mtime), (a, later))?;
        let attr = t.utimens(ino, Some(SetattrTime::At(later)), None)?;
        same("atime alone", (attr.atime, attr.mtime), (later, later))
    }),
    case("utimens/before 1970", |t| {
        let ino = t.touch(t.dir, "f")?;
        let then = Timestamp { sec: -86_400, nsec: 5 };
        let attr = t.utimens(ino, Some(SetattrTime::At(then)), Some(SetattrTime::At(then)))?;
        same("times", (attr.atime, attr.mtime), (then, then))?;
        same("kept", t.stat(ino)?.mtime, then)
    }),
    case("utimens/now is now", |t| {
        let ino = t.touch(t.dir, "f")?;
        moves(t, "both", ino, (true, true, true), |t| {
            t.utimens(ino, Some(SetattrTime::Now), Some(SetattrTime::Now))
        })
    }),
    case("utimens/moves ctime", |t| {
        let ino = t.touch(t.dir, "f")?;
        let before = t.stat(ino)?.ctime;
        tick();
        check(t.age(ino)?.ctime > before, "ctime")
    }),
    case("utimens/who may", |t| {
        needs_users(t)?;
        let ino = t.touch(t.dir, "f")?;
        let at = Some(SetattrTime::At(Timestamp { sec: 5, nsec: 5 }));
        let now = Some(SetattrTime::Now);
        t.by(&alice(), |t| {
            refused("given, no owner", t.utimens(ino, at, at), Errno::EPERM)?;
            refused("now, may not write", t.utimens(ino, now, now), Errno::EACCES)
        })?;
        t.chmod(ino, 0o666)?;
        t.by(&alice(), |t| {
            t.utimens(ino, now, now)?;
            refused("given, no owner", t.utimens(ino, at, at), Errno::EPERM)?;
            refused("one of them", t.utimens(ino, now, None), Errno::EPERM)
        })?;
        t.chown(ino, Some(1001), None)?;
        t.chmod(ino, 0)?;
        t.by(&alice(), |t| {
            t.utimens(ino, at, at)?;
            t.utimens(ino, now, now)?;
            Ok(())
        })
    }),
];
