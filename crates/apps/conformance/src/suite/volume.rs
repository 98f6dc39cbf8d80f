//! The volume as a whole: `statfs(2)`, `fsync(2)`, `syncfs(2)`.

use outboard_base::{Errno, Ino};
use outboard_wire::file::{Request, open_flags};

use super::pattern;
use crate::actor::Actor;
use crate::case::{Case, case, check, needs, same};

pub(super) const CASES: &[Case] = &[
    case("statfs/figures that can be true", |t| {
        let dir = t.dir;
        for ino in [Ino::ROOT, dir] {
            let figures = t.statfs(ino)?;
            check(figures.block_size >= 512, "a block")?;
            check(figures.blocks > 0, "space")?;
            check(figures.blocks_free <= figures.blocks, "free space is part of all")?;
            check(figures.blocks_available <= figures.blocks_free, "available is part of free")?;
            check(figures.files_free <= figures.files, "free inodes are part of all")?;
            check(figures.name_max >= 255, "the longest name")?;
        }
        Ok(())
    }),
    case("statfs/space taken shows, and comes back", |t| {
        needs(t.features().outboard, "others use the reference file system too")?;
        let free = |t: &mut Actor<'_>| -> outboard_base::Result<u64> {
            let figures = t.statfs(Ino::ROOT)?;
            Ok(figures.blocks_free * figures.block_size)
        };
        t.syncfs()?;
        let before = free(t)?;
        let (ino, fh) = t.create(t.dir, "f", 0o644)?;
        t.write_all(ino, fh, 0, &pattern(4 << 20, 1))?;
        t.fsync(ino, fh, false)?;
        let taken = before.saturating_sub(free(t)?);
        check(taken >= 4 << 20, &format!("four megabytes taken shows as {taken}"))?;
        t.close(ino, fh)?;
        t.unlink(t.dir, "f")?;
        t.forget(ino)?;
        // Housekeeping gives it back, and through a mount the kernel first forgets the inode.
        let mut left = 0;
        for _ in 0..1000 {
            t.syncfs()?;
            left = before.saturating_sub(free(t)?);
            if left < 1 << 20 {
                return Ok(());
            }
            super::tick();
        }
        check(false, &format!("the space comes back: {left} bytes do not"))
    }),
    case("sync/every way to make things durable", |t| {
        let (ino, fh) = t.create(t.dir, "f", 0o644)?;
        for len in [100, 8192, 100_000] {
            t.write_all(ino, fh, 0, &pattern(len, 1))?;
            t.fsync(ino, fh, false)?;
            t.fsync(ino, fh, true)?;
            t.syncfs()?;
            check(t.contents(ino)? == pattern(len, 1), "content stays")?;
        }
        t.close(ino, fh)?;
        let dir = t.opendir(t.dir)?;
        t.fsync(t.dir, dir, false)?;
        t.closedir(t.dir, dir)?;
        Ok(())
    }),
    case("sync/a read-only descriptor syncs too", |t| {
        let ino = t.file(t.dir, "f", b"x")?;
        let fh = t.open(ino, 0)?;
        t.fsync(ino, fh, false)?;
        t.close(ino, fh)?;
        Ok(())
    }),
    case("volume/nothing is answered", |t| {
        t.ask(&Request::Noop, &[])?;
        Ok(())
    }),
    case("volume/a thousand files of mixed sizes survive each other", |t| {
        let len = |n: usize| (n * 37) % 20_000;
        for n in 0..1000 {
            t.file(t.dir, &format!("f{n}"), &pattern(len(n), n as u64))?;
        }
        for n in (0..1000).step_by(3) {
            t.unlink(t.dir, &format!("f{n}"))?;
        }
        for n in (0..1000).filter(|n| n % 3 != 0) {
            let ino = t.lookup(t.dir, &format!("f{n}"))?.ino;
            check(t.contents(ino)? == pattern(len(n), n as u64), &format!("file {n}"))?;
        }
        Ok(())
    }),
    case("volume/write, rename into place, read: the way programs save", |t| {
        for round in 0..50_u64 {
            let flags = open_flags::RDWR | open_flags::EXCL;
            let (attr, fh) = t.create_with(t.dir, "f.tmp", 0o644, flags)?;
            t.write_all(attr.ino, fh, 0, &pattern(9000, round))?;
            t.fsync(attr.ino, fh, false)?;
            t.close(attr.ino, fh)?;
            t.rename((t.dir, "f.tmp"), (t.dir, "f"))?;
            let ino = t.lookup(t.dir, "f")?.ino;
            check(t.contents(ino)? == pattern(9000, round), &format!("round {round}"))?;
        }
        same("names", t.names(t.dir)?, vec!["f".to_owned()])
    }),
    case("volume/an unknown open file is refused everywhere", |t| {
        needs(!t.features().kernel, "the kernel knows descriptors itself")?;
        let ino = t.file(t.dir, "f", b"abc")?;
        let never = outboard_base::Fh(u64::MAX - 3);
        let wanted = [Errno::EBADF, Errno::ESTALE];
        let wanted = |errno: Errno| wanted.contains(&errno);
        check(t.read(ino, never, 0, 1).is_err_and(wanted), "read")?;
        check(t.write(ino, never, 0, b"x").is_err_and(wanted), "write")?;
        check(t.fallocate((ino, never), 0, 0, 1).is_err_and(wanted), "fallocate")?;
        check(t.seek(ino, never, 0, 3).is_err_and(wanted), "lseek")?;
        if t.features().steady {
            check(t.release(ino, never, 0).is_err_and(wanted), "release")?;
            check(t.closedir(ino, never).is_err_and(wanted), "releasedir")?;
        }
        check(t.readdir(t.dir, never, 0, 100).is_err_and(wanted), "readdir")?;
        same("content", t.contents(ino)?, b"abc".to_vec())
    }),
];
