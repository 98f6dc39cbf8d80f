//! Making files and nodes: `open(2)` with `O_CREAT`, `mknod(2)`.

use outboard_base::Errno;
use outboard_wire::file::{FileKind, open_flags};

use super::{alice, needs_users};
use crate::case::{Case, case, refused, refused_by, same};

const RDWR_EXCL: u32 = open_flags::RDWR | open_flags::EXCL;

pub(super) const CASES: &[Case] = &[
    case("create/EXCL makes what is not there", |t| {
        let (attr, fh) = t.create_with(t.dir, "f", 0o644, RDWR_EXCL)?;
        t.close(attr.ino, fh)?;
        same("found", t.lookup(t.dir, "f")?.ino, attr.ino)
    }),
    case("create/EXCL on anything is EEXIST", |t| {
        t.touch(t.dir, "file")?;
        t.mkdir(t.dir, "dir", 0o755)?;
        t.symlink(t.dir, "link", "nowhere")?;
        t.mknod(t.dir, "fifo", FileKind::Fifo, 0o644, 0)?;
        for name in ["file", "dir", "link", "fifo"] {
            refused(name, t.create_with(t.dir, name, 0o644, RDWR_EXCL), Errno::EEXIST)?;
        }
        Ok(())
    }),
    case("create/opens what is there", |t| {
        let ino = t.file(t.dir, "f", b"content")?;
        let (attr, fh) = t.create_with(t.dir, "f", 0o600, open_flags::RDWR)?;
        same("inode", attr.ino, ino)?;
        same("size", attr.size, 7)?;
        same("mode", attr.mode & 0o7777, 0o644)?;
        same("read", t.read(ino, fh, 0, 100)?, b"content".to_vec())?;
        t.close(ino, fh)?;
        Ok(())
    }),
    case("create/TRUNC empties what is there", |t| {
        let ino = t.file(t.dir, "f", b"content")?;
        let (attr, fh) = t.create_with(t.dir, "f", 0o644, open_flags::RDWR | open_flags::TRUNC)?;
        t.close(attr.ino, fh)?;
        same("inode", attr.ino, ino)?;
        same("size", t.stat(ino)?.size, 0)
    }),
    case("create/on a directory is EISDIR", |t| {
        t.mkdir(t.dir, "d", 0o755)?;
        refused("create", t.create(t.dir, "d", 0o644), Errno::EISDIR)
    }),
    case("create/never follows a link", |t| {
        t.touch(t.dir, "target")?;
        t.symlink(t.dir, "link", "target")?;
        // The kernel resolves links before it asks; O_NOFOLLOW makes it ELOOP.
        let wanted = [Errno::ELOOP, Errno::EEXIST];
        refused_by("create", t.create(t.dir, "link", 0o644), &wanted)
    }),
    case("create/in a file is ENOTDIR", |t| {
        let file = t.touch(t.dir, "f")?;
        refused("create", t.create(file, "x", 0o644), Errno::ENOTDIR)?;
        refused("mkdir", t.mkdir(file, "x", 0o755), Errno::ENOTDIR)?;
        refused("symlink", t.symlink(file, "x", "y"), Errno::ENOTDIR)?;
        refused("link", t.link(file, file, "x"), Errno::ENOTDIR)?;
        refused("mknod", t.mknod(file, "x", FileKind::Fifo, 0o644, 0), Errno::ENOTDIR)
    }),
    case("create/in a removed directory is ENOENT", |t| {
        let sub = t.mkdir(t.dir, "d", 0o755)?;
        let file = t.touch(t.dir, "f")?;
        t.rmdir(t.dir, "d")?;
        refused("create", t.create(sub, "x", 0o644), Errno::ENOENT)?;
        refused("mkdir", t.mkdir(sub, "x", 0o755), Errno::ENOENT)?;
        refused("symlink", t.symlink(sub, "x", "y"), Errno::ENOENT)?;
        refused("link", t.link(file, sub, "x"), Errno::ENOENT)?;
        refused("mknod", t.mknod(sub, "x", FileKind::Fifo, 0o644, 0), Errno::ENOENT)?;
        refused("rename", t.rename((t.dir, "f"), (sub, "x")), Errno::ENOENT)
    }),
    case("create/the umask takes permissions away", |t| {
        t.umask = 0o027;
        let (attr, fh) = t.create_with(t.dir, "f", 0o666, RDWR_EXCL)?;
        t.close(attr.ino, fh)?;
        same("file", attr.mode & 0o7777, 0o640)?;
        let dir = t.mkdir(t.dir, "d", 0o777)?;
        same("directory", t.stat(dir)?.mode & 0o7777, 0o750)?;
        let fifo = t.mknod(t.dir, "p", FileKind::Fifo, 0o666, 0)?;
        same("fifo", fifo.mode & 0o7777, 0o640)?;
        let link = t.symlink(t.dir, "l", "x")?;
        same("symlink", link.mode & 0o777, 0o777)
    }),
    case("create/a read-only file can be written by whom made it", |t| {
        needs_users(t)?;
        let dir = t.dir;
        t.by(&alice(), |t| {
            let (attr, fh) = t.create_with(dir, "f", 0o444, RDWR_EXCL)?;
            same("written", t.write(attr.ino, fh, 0, b"x")?, 1)?;
            t.close(attr.ino, fh)?;
            refused("open again", t.open(attr.ino, open_flags::RDWR), Errno::EACCES)
        })
    }),
    case("create/opening what is there asks for permission", |t| {
        needs_users(t)?;
        t.touch(t.dir, "f")?;
        let dir = t.dir;
        t.by(&alice(), |t| refused("create", t.create(dir, "f", 0o644), Errno::EACCES))
    }),
    case("create/set-id and sticky bits are kept for their owner", |t| {
        let (attr, fh) = t.create_with(t.dir, "f", 0o7755, RDWR_EXCL)?;
        t.close(attr.ino, fh)?;
        same("mode", attr.mode & 0o7777, 0o7755)
    }),
    case("mknod/each kind is what it was made", |t| {
        for (name, kind) in
            [("fifo", FileKind::Fifo), ("socket", FileKind::Socket), ("file", FileKind::Regular)]
        {
            let attr = t.mknod(t.dir, name, kind, 0o640, 0)?;
            same(name, attr.kind()?, kind)?;
            same("mode", attr.mode & 0o7777, 0o640)?;
            same("size", attr.size, 0)?;
            same("looked up", t.lookup(t.dir, name)?.kind()?, kind)?;
        }
        Ok(())
    }),
    case("mknod/devices keep their numbers", |t| {
        needs_users(t)?;
        // major 0x123, minor 0x45678, as Linux packs them into 32 bits.
        let packed = (0x45678 & 0xff) | (0x123 << 8) | ((0x45678 & !0xff) << 12);
        for (name, kind, rdev) in [
            ("null", FileKind::CharDevice, 0x103),
            ("disk", FileKind::BlockDevice, 0x801),
            ("far", FileKind::CharDevice, packed),
        ] {
            let made = t.mknod(t.dir, name, kind, 0o600, rdev)?;
            let found = t.lookup(t.dir, name)?;
            same(name, (made.rdev, made.kind()?), (rdev, kind))?;
            same(name, (found.rdev, found.kind()?), (rdev, kind))?;
        }
        Ok(())
    }),
    case("mknod/a device by a plain user is EPERM, a fifo is not", |t| {
        needs_users(t)?;
        let dir = t.dir;
        t.by(&alice(), |t| {
            let made = t.mknod(dir, "c", FileKind::CharDevice, 0o644, 0x103);
            refused("char", made, Errno::EPERM)?;
            let made = t.mknod(dir, "b", FileKind::BlockDevice, 0o644, 0x801);
            refused("block", made, Errno::EPERM)?;
            t.mknod(dir, "p", FileKind::Fifo, 0o644, 0)?;
            t.mknod(dir, "s", FileKind::Socket, 0o644, 0)?;
            Ok(())
        })
    }),
    case("mknod/over anything is EEXIST", |t| {
        t.touch(t.dir, "f")?;
        t.symlink(t.dir, "l", "nowhere")?;
        refused("file", t.mknod(t.dir, "f", FileKind::Fifo, 0o644, 0), Errno::EEXIST)?;
        refused("link", t.mknod(t.dir, "l", FileKind::Fifo, 0o644, 0), Errno::EEXIST)
    }),
    case("mknod/a directory is refused", |t| {
        let made = t.mknod(t.dir, "d", FileKind::Directory, 0o755, 0);
        refused_by("mknod", made, &[Errno::EPERM, Errno::EINVAL])
    }),
    case("mknod/a fifo is not truncated or allocated", |t| {
        let ino = t.mknod(t.dir, "p", FileKind::Fifo, 0o644, 0)?.ino;
        refused("truncate", t.truncate(ino, 1), Errno::EINVAL)
    }),
];
