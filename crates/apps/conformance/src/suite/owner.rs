//! `chmod(2)`, `chown(2)`, and what clears set-id bits.

use outboard_base::{Errno, Fh};
use outboard_wire::file::{Setattr, open_flags, write_flags};

use super::{alice, bob, member, needs_users};
use crate::case::{Case, Outcome, case, refused, same};

pub(super) const CASES: &[Case] = &[
    case("chmod/every bit is kept", |t| {
        let ino = t.touch(t.dir, "f")?;
        let sub = t.mkdir(t.dir, "d", 0o755)?;
        for mode in [0, 0o777, 0o4755, 0o2755, 0o1777, 0o7777, 0o644] {
            same("told", t.chmod(ino, mode)?.mode & 0o7777, mode)?;
            same("file", t.stat(ino)?.mode & 0o7777, mode)?;
            t.chmod(sub, mode)?;
            same("directory", t.stat(sub)?.mode & 0o7777, mode)?;
        }
        Ok(())
    }),
    case("chmod/only the owner and root", |t| {
        needs_users(t)?;
        let dir = t.dir;
        let ino = t.by(&alice(), |t| t.touch(dir, "f"))?;
        t.by(&alice(), |t| t.chmod(ino, 0o666))?;
        t.by(&bob(), |t| refused("bob", t.chmod(ino, 0o777), Errno::EPERM))?;
        t.chmod(ino, 0o640)?;
        same("mode", t.stat(ino)?.mode & 0o7777, 0o640)
    }),
    case("chmod/a stranger to the group sets no set-group-id", |t| {
        needs_users(t)?;
        let ino = t.touch(t.dir, "f")?;
        t.chown(ino, Some(1001), Some(50))?;
        t.by(&alice(), |t| t.chmod(ino, 0o6755))?;
        same("stranger", t.stat(ino)?.mode & 0o7777, 0o4755)?;
        t.chown(ino, Some(1003), None)?;
        t.by(&member(50), |t| t.chmod(ino, 0o6755))?;
        same("member", t.stat(ino)?.mode & 0o7777, 0o6755)
    }),
    case("chown/root gives files away", |t| {
        needs_users(t)?;
        let ino = t.touch(t.dir, "f")?;
        let attr = t.chown(ino, Some(7), Some(8))?;
        same("both", (attr.uid, attr.gid), (7, 8))?;
        let attr = t.chown(ino, None, Some(9))?;
        same("group", (attr.uid, attr.gid), (7, 9))?;
        let attr = t.chown(ino, Some(10), None)?;
        same("owner", (attr.uid, attr.gid), (10, 9))?;
        let link = t.symlink(t.dir, "l", "nowhere")?.ino;
        same("a link", t.chown(link, Some(7), Some(8))?.uid, 7)
    }),
    case("chown/large ids", |t| {
        needs_users(t)?;
        let ino = t.touch(t.dir, "f")?;
        let attr = t.chown(ino, Some(0xffff_fffe), Some(0x8000_0000))?;
        same("ids", (attr.uid, attr.gid), (0xffff_fffe, 0x8000_0000))
    }),
    case("chown/others give nothing away", |t| {
        needs_users(t)?;
        let dir = t.dir;
        let ino = t.by(&alice(), |t| t.touch(dir, "f"))?;
        t.by(&alice(), |t| -> Outcome {
            refused("owner", t.chown(ino, Some(1002), None), Errno::EPERM)?;
            refused("foreign group", t.chown(ino, None, Some(1002)), Errno::EPERM)?;
            t.chown(ino, Some(1001), Some(1001))?;
            Ok(())
        })?;
        t.by(&bob(), |t| {
            refused("take", t.chown(ino, Some(1002), None), Errno::EPERM)?;
            refused("own group", t.chown(ino, None, Some(1002)), Errno::EPERM)
        })
    }),
    case("chown/the owner moves a file among their groups", |t| {
        needs_users(t)?;
        let dir = t.dir;
        t.by(&member(50), |t| {
            let ino = t.touch(dir, "f")?;
            same("group", t.chown(ino, None, Some(50))?.gid, 50)?;
            same("back", t.chown(ino, None, Some(1003))?.gid, 1003)
        })
    }),
    case("chown/clears set-id bits of files", |t| {
        needs_users(t)?;
        let ino = t.touch(t.dir, "f")?;
        t.chmod(ino, 0o6755)?;
        same("owner", t.chown(ino, Some(7), None)?.mode & 0o7777, 0o755)?;
        t.chmod(ino, 0o6755)?;
        same("group", t.chown(ino, None, Some(8))?.mode & 0o7777, 0o755)
    }),
    case("chown/keeps them on directories", |t| {
        needs_users(t)?;
        let sub = t.mkdir(t.dir, "d", 0o755)?;
        t.chmod(sub, 0o6755)?;
        same("mode", t.chown(sub, Some(7), Some(8))?.mode & 0o7777, 0o6755)
    }),
    case("set-id/a write by another clears them", |t| {
        needs_users(t)?;
        let ino = t.touch(t.dir, "f")?;
        t.chmod(ino, 0o6777)?;
        t.by(&alice(), |t| {
            let fh = t.open(ino, open_flags::RDWR)?;
            t.write_with((ino, fh), 0, b"x", write_flags::KILL_SUIDGID)?;
            t.close(ino, fh)
        })?;
        same("mode", t.stat(ino)?.mode & 0o7777, 0o777)
    }),
    case("set-id/a write by root keeps them", |t| {
        needs_users(t)?;
        let ino = t.touch(t.dir, "f")?;
        t.chmod(ino, 0o6777)?;
        let fh = t.open(ino, open_flags::RDWR)?;
        t.write(ino, fh, 0, b"x")?;
        t.close(ino, fh)?;
        same("mode", t.stat(ino)?.mode & 0o7777, 0o6777)
    }),
    case("set-id/a truncation by another clears them", |t| {
        needs_users(t)?;
        let ino = t.file(t.dir, "f", b"abc")?;
        t.chmod(ino, 0o6777)?;
        let set = Setattr { size: Some(1), kill_suidgid: true, ..Setattr::default() };
        t.by(&alice(), |t| t.set(ino, Fh::NONE, set))?;
        same("mode", t.stat(ino)?.mode & 0o7777, 0o777)
    }),
    case("set-id/an open that truncates, by another, clears them", |t| {
        needs_users(t)?;
        let dir = t.dir;
        for (name, content, creates) in [
            ("open", "abc", false),
            ("create", "abc", true),
            ("open empty", "", false),
            ("create empty", "", true),
        ] {
            let ino = t.file(dir, name, content.as_bytes())?;
            t.chmod(ino, 0o6777)?;
            let flags = open_flags::WRONLY | open_flags::TRUNC;
            t.by(&alice(), |t| {
                let fh = match creates {
                    true => t.create_with(dir, name, 0o644, flags)?.1,
                    false => t.open(ino, flags)?,
                };
                t.close(ino, fh)
            })?;
            same(name, t.stat(ino)?.mode & 0o7777, 0o777)?;
        }
        Ok(())
    }),
    case("set-id/reading and chmod by the owner keep them", |t| {
        needs_users(t)?;
        let dir = t.dir;
        t.by(&alice(), |t| {
            let ino = t.file(dir, "f", b"abc")?;
            t.chmod(ino, 0o6755)?;
            t.contents(ino)?;
            same("mode", t.stat(ino)?.mode & 0o7777, 0o6755)
        })
    }),
];
