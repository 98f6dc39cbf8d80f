//! `xattr(7)`: values, names, flags, namespaces.

use outboard_base::Errno;
use outboard_wire::file::FileKind;
use outboard_wire::file::xattr_flags::{CREATE, REPLACE};

use super::{alice, needs_users, pattern, tick};
use crate::case::{Case, case, check, needs, refused, refused_by, same};

pub(super) const CASES: &[Case] = &[
    case("xattr/set, get, list, remove", |t| {
        let ino = t.touch(t.dir, "f")?;
        t.setxattr(ino, "user.one", b"1", 0)?;
        t.setxattr(ino, "user.two", b"22", 0)?;
        same("one", t.getxattr(ino, "user.one")?, b"1".to_vec())?;
        same("two", t.getxattr(ino, "user.two")?, b"22".to_vec())?;
        same("list", t.listxattr(ino)?, vec!["user.one".to_owned(), "user.two".to_owned()])?;
        t.removexattr(ino, "user.one")?;
        refused("gone", t.getxattr(ino, "user.one"), Errno::ENODATA)?;
        same("list", t.listxattr(ino)?, vec!["user.two".to_owned()])
    }),
    case("xattr/a missing one is ENODATA", |t| {
        let ino = t.touch(t.dir, "f")?;
        refused("get", t.getxattr(ino, "user.x"), Errno::ENODATA)?;
        refused("size", t.xattr_size(ino, "user.x"), Errno::ENODATA)?;
        refused("remove", t.removexattr(ino, "user.x"), Errno::ENODATA)?;
        same("list", t.listxattr(ino)?.len(), 0)
    }),
    case("xattr/CREATE and REPLACE", |t| {
        let ino = t.touch(t.dir, "f")?;
        refused("replace", t.setxattr(ino, "user.x", b"1", REPLACE), Errno::ENODATA)?;
        t.setxattr(ino, "user.x", b"1", CREATE)?;
        refused("create", t.setxattr(ino, "user.x", b"2", CREATE), Errno::EEXIST)?;
        same("kept", t.getxattr(ino, "user.x")?, b"1".to_vec())?;
        t.setxattr(ino, "user.x", b"3", REPLACE)?;
        t.setxattr(ino, "user.x", b"44", 0)?;
        same("replaced", t.getxattr(ino, "user.x")?, b"44".to_vec())
    }),
    case("xattr/an empty value is a value", |t| {
        let ino = t.touch(t.dir, "f")?;
        t.setxattr(ino, "user.x", b"", 0)?;
        same("value", t.getxattr(ino, "user.x")?.len(), 0)?;
        same("list", t.listxattr(ino)?, vec!["user.x".to_owned()])
    }),
    case("xattr/values are bytes", |t| {
        let ino = t.touch(t.dir, "f")?;
        let value: Vec<u8> = (0..=255).collect();
        t.setxattr(ino, "user.x", &value, 0)?;
        same("value", t.getxattr(ino, "user.x")?, value)
    }),
    case("xattr/sizes first, and ERANGE when there is no room", |t| {
        let ino = t.touch(t.dir, "f")?;
        t.setxattr(ino, "user.x", b"12345", 0)?;
        same("size", t.xattr_size(ino, "user.x")?, 5)?;
        same("exactly", t.getxattr_into(ino, "user.x", 5)?, b"12345".to_vec())?;
        refused("one short", t.getxattr_into(ino, "user.x", 4), Errno::ERANGE)?;
        same("list size", t.xattr_list_size(ino)?, 7)?;
        same("exactly", t.listxattr_into(ino, 7)?, b"user.x\0".to_vec())?;
        refused("one short", t.listxattr_into(ino, 6), Errno::ERANGE)
    }),
    case("xattr/values up to 65536 bytes", |t| {
        needs(t.features().outboard, "ext4 keeps all of a file's attributes in one block")?;
        let ino = t.touch(t.dir, "f")?;
        for len in [100, 4096, 8192, 65_535, 65_536] {
            t.setxattr(ino, "user.x", &pattern(len, 1), 0)?;
            same("size", t.xattr_size(ino, "user.x")?, len as u32)?;
            check(t.getxattr(ino, "user.x")? == pattern(len, 1), &format!("{len} bytes"))?;
        }
        Ok(())
    }),
    case("xattr/values beyond 65536 bytes are E2BIG", |t| {
        let ino = t.touch(t.dir, "f")?;
        refused("set", t.setxattr(ino, "user.x", &[0; 65_537], 0), Errno::E2BIG)
    }),
    case("xattr/names up to 255 bytes", |t| {
        let ino = t.touch(t.dir, "f")?;
        let name = format!("user.{}", "n".repeat(250));
        t.setxattr(ino, &name, b"x", 0)?;
        same("value", t.getxattr(ino, &name)?, b"x".to_vec())?;
        same("list", t.listxattr(ino)?, vec![name.clone()])?;
        let longer = format!("{name}n");
        let wanted = [Errno::ERANGE, Errno::ENAMETOOLONG];
        refused_by("set", t.setxattr(ino, &longer, b"x", 0), &wanted)
    }),
    case("xattr/a hundred of them", |t| {
        needs(t.features().outboard, "ext4 keeps all of a file's attributes in one block")?;
        let ino = t.touch(t.dir, "f")?;
        for n in 0..100 {
            t.setxattr(ino, &format!("user.{n:03}"), &pattern(200, n), 0)?;
        }
        let wanted: Vec<String> = (0..100).map(|n| format!("user.{n:03}")).collect();
        same("list", t.listxattr(ino)?, wanted)?;
        for n in 0..100 {
            check(t.getxattr(ino, &format!("user.{n:03}"))? == pattern(200, n), "value")?;
        }
        Ok(())
    }),
    case("xattr/on directories", |t| {
        let sub = t.mkdir(t.dir, "d", 0o755)?;
        t.setxattr(sub, "user.x", b"1", 0)?;
        same("value", t.getxattr(sub, "user.x")?, b"1".to_vec())?;
        t.rmdir(t.dir, "d")?;
        Ok(())
    }),
    case("xattr/go with their file", |t| {
        let ino = t.touch(t.dir, "f")?;
        t.setxattr(ino, "user.x", b"1", 0)?;
        t.link(ino, t.dir, "g")?;
        t.rename((t.dir, "f"), (t.dir, "h"))?;
        same("value", t.getxattr(ino, "user.x")?, b"1".to_vec())?;
        t.unlink(t.dir, "g")?;
        t.unlink(t.dir, "h")?;
        let other = t.touch(t.dir, "f")?;
        same("a new file has none", t.listxattr(other)?.len(), 0)
    }),
    case("xattr/user ones belong on files and directories only", |t| {
        let fifo = t.mknod(t.dir, "p", FileKind::Fifo, 0o666, 0)?.ino;
        refused("fifo", t.setxattr(fifo, "user.x", b"1", 0), Errno::EPERM)?;
        refused_by("get", t.getxattr(fifo, "user.x"), &[Errno::ENODATA, Errno::EPERM])
    }),
    case("xattr/unknown namespaces are EOPNOTSUPP", |t| {
        let ino = t.touch(t.dir, "f")?;
        for name in ["nonsense.x", "plain", "system.nonsense"] {
            refused(name, t.setxattr(ino, name, b"1", 0), Errno::EOPNOTSUPP)?;
        }
        refused_by(
            "user. alone",
            t.setxattr(ino, "user.", b"1", 0),
            &[Errno::EINVAL, Errno::EOPNOTSUPP],
        )
    }),
    case("xattr/move the change time, not the modification time", |t| {
        let ino = t.touch(t.dir, "f")?;
        let old = t.age(ino)?;
        tick();
        t.setxattr(ino, "user.x", b"1", 0)?;
        let set = t.stat(ino)?;
        check(set.ctime > old.ctime, "ctime on set")?;
        same("mtime", set.mtime, old.mtime)?;
        tick();
        t.removexattr(ino, "user.x")?;
        check(t.stat(ino)?.ctime > set.ctime, "ctime on remove")
    }),
    case("xattr/user ones ask for the file's permissions", |t| {
        needs_users(t)?;
        let ino = t.touch(t.dir, "f")?;
        t.setxattr(ino, "user.x", b"1", 0)?;
        t.by(&alice(), |t| {
            same("read", t.getxattr(ino, "user.x")?, b"1".to_vec())?;
            refused("set", t.setxattr(ino, "user.y", b"1", 0), Errno::EACCES)?;
            refused("remove", t.removexattr(ino, "user.x"), Errno::EACCES)
        })?;
        t.chmod(ino, 0o600)?;
        t.by(&alice(), |t| refused("read", t.getxattr(ino, "user.x"), Errno::EACCES))?;
        t.chmod(ino, 0o666)?;
        t.by(&alice(), |t| {
            t.setxattr(ino, "user.y", b"2", 0)?;
            t.removexattr(ino, "user.x")?;
            Ok(())
        })
    }),
    case("xattr/user ones of a sticky directory are its owner's", |t| {
        needs_users(t)?;
        let sub = t.mkdir(t.dir, "d", 0o777)?;
        t.chmod(sub, 0o1777)?;
        t.by(&alice(), |t| refused("set", t.setxattr(sub, "user.x", b"1", 0), Errno::EPERM))
    }),
    case("xattr/trusted ones are root's alone", |t| {
        needs_users(t)?;
        let dir = t.dir;
        let ino = t.by(&alice(), |t| t.touch(dir, "f"))?;
        t.setxattr(ino, "trusted.x", b"secret", 0)?;
        same("root reads", t.getxattr(ino, "trusted.x")?, b"secret".to_vec())?;
        check(t.listxattr(ino)?.contains(&"trusted.x".to_owned()), "root sees it")?;
        t.by(&alice(), |t| {
            refused("get", t.getxattr(ino, "trusted.x"), Errno::ENODATA)?;
            refused("set", t.setxattr(ino, "trusted.y", b"1", 0), Errno::EPERM)?;
            refused("remove", t.removexattr(ino, "trusted.x"), Errno::EPERM)?;
            same("unseen", t.listxattr(ino)?.len(), 0)
        })
    }),
    case("xattr/security ones are root's to set, all may read", |t| {
        needs_users(t)?;
        let dir = t.dir;
        let ino = t.by(&alice(), |t| t.touch(dir, "f"))?;
        t.setxattr(ino, "security.note", b"1", 0)?;
        t.by(&alice(), |t| {
            same("get", t.getxattr(ino, "security.note")?, b"1".to_vec())?;
            refused("set", t.setxattr(ino, "security.note", b"2", 0), Errno::EPERM)
        })
    }),
];
