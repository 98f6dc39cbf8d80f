//! `open(2)`, files without names, and descriptors that outlive them.

use outboard_base::Errno;
use outboard_wire::file::{FileKind, Request, open_flags, write_flags};

use super::{alice, needs_users, pattern, tick};
use crate::case::{Case, case, check, needs, refused, refused_by, same};

pub(super) const CASES: &[Case] = &[
    case("open/a read-only descriptor does not write", |t| {
        let ino = t.file(t.dir, "f", b"abc")?;
        let fh = t.open(ino, 0)?;
        refused("write", t.write(ino, fh, 0, b"x"), Errno::EBADF)?;
        refused_by("ftruncate", t.ftruncate(ino, fh, 0), &[Errno::EBADF, Errno::EINVAL])?;
        refused("fallocate", t.fallocate((ino, fh), 0, 0, 10), Errno::EBADF)?;
        t.close(ino, fh)?;
        same("content", t.contents(ino)?, b"abc".to_vec())
    }),
    case("open/a write-only descriptor does not read", |t| {
        let ino = t.file(t.dir, "f", b"abc")?;
        let fh = t.open(ino, open_flags::WRONLY)?;
        refused("read", t.read(ino, fh, 0, 3), Errno::EBADF)?;
        t.close(ino, fh)?;
        Ok(())
    }),
    case("open/a directory for writing is EISDIR", |t| {
        let sub = t.mkdir(t.dir, "d", 0o755)?;
        refused("RDWR", t.open(sub, open_flags::RDWR), Errno::EISDIR)?;
        refused("WRONLY", t.open(sub, open_flags::WRONLY), Errno::EISDIR)
    }),
    case("open/a file as a directory is ENOTDIR", |t| {
        let file = t.touch(t.dir, "f")?;
        refused("opendir", t.opendir(file), Errno::ENOTDIR)
    }),
    case("open/a symbolic link itself is ELOOP", |t| {
        let link = t.symlink(t.dir, "l", "nowhere")?.ino;
        needs(!t.features().kernel, "a descriptor of a link is opened by its path here")?;
        refused_by("open", t.open(link, 0), &[Errno::ELOOP, Errno::EINVAL])
    }),
    case("open/TRUNC empties the file and moves its times", |t| {
        let ino = t.file(t.dir, "f", &pattern(20_000, 1))?;
        let old = t.age(ino)?;
        tick();
        let fh = t.open(ino, open_flags::RDWR | open_flags::TRUNC)?;
        let new = t.stat(ino)?;
        same("size", new.size, 0)?;
        check(new.mtime > old.mtime && new.ctime > old.ctime, "mtime and ctime moved")?;
        t.close(ino, fh)?;
        Ok(())
    }),
    case("open/TRUNC needs permission to write", |t| {
        needs_users(t)?;
        let ino = t.file(t.dir, "f", b"abc")?;
        t.by(&alice(), |t| {
            refused("open", t.open(ino, open_flags::RDWR | open_flags::TRUNC), Errno::EACCES)
        })?;
        same("content", t.contents(ino)?, b"abc".to_vec())
    }),
    case("open/permission is asked once", |t| {
        needs_users(t)?;
        let ino = t.file(t.dir, "f", b"abc")?;
        t.chmod(ino, 0o666)?;
        let fh = t.by(&alice(), |t| t.open(ino, open_flags::RDWR))?;
        t.chmod(ino, 0)?;
        t.by(&alice(), |t| {
            same("read", t.read(ino, fh, 0, 3)?, b"abc".to_vec())?;
            same("write", t.write(ino, fh, 0, b"x")?, 1)?;
            refused("open again", t.open(ino, 0), Errno::EACCES)
        })?;
        t.close(ino, fh)?;
        Ok(())
    }),
    case("open/APPEND writes at the end, wherever that is", |t| {
        let ino = t.file(t.dir, "f", b"one")?;
        let fh = t.open(ino, open_flags::WRONLY | open_flags::APPEND)?;
        t.write_with((ino, fh), 0, b"two", write_flags::APPEND)?;
        t.truncate(ino, 2)?;
        t.write_with((ino, fh), 0, b"three", write_flags::APPEND)?;
        t.close(ino, fh)?;
        same("content", t.contents(ino)?, b"onthree".to_vec())
    }),
    case("open/APPEND of an open file can be set and cleared", |t| {
        let ino = t.file(t.dir, "f", b"one")?;
        let fh = t.open(ino, open_flags::WRONLY)?;
        t.write_with((ino, fh), 0, b"two", write_flags::APPEND)?;
        t.write_with((ino, fh), 0, b"O", 0)?;
        t.write_with((ino, fh), 0, b"three", write_flags::APPEND)?;
        t.close(ino, fh)?;
        same("set later", t.contents(ino)?, b"Onetwothree".to_vec())?;
        needs(t.features().kernel, "a handle opened to append does so for good")?;
        let fh = t.open(ino, open_flags::WRONLY | open_flags::APPEND)?;
        t.write_with((ino, fh), 0, b"N", 0)?;
        t.write_with((ino, fh), 0, b"!", write_flags::APPEND)?;
        t.close(ino, fh)?;
        same("cleared", t.contents(ino)?, b"Nnetwothree!".to_vec())
    }),
    case("open/two appenders lose nothing", |t| {
        let ino = t.touch(t.dir, "f")?;
        let flags = open_flags::WRONLY | open_flags::APPEND;
        let (a, b) = (t.open(ino, flags)?, t.open(ino, flags)?);
        for round in 0..500_u32 {
            let fh = if round % 2 == 0 { a } else { b };
            let line = format!("{round:08}\n").repeat(5);
            t.write_with((ino, fh), 0, line.as_bytes(), write_flags::APPEND)?;
        }
        t.close(ino, a)?;
        t.close(ino, b)?;
        let wanted: String = (0..500_u32).map(|n| format!("{n:08}\n").repeat(5)).collect();
        check(t.contents(ino)? == wanted.into_bytes(), "every line once, in order")
    }),
    case("open/SYNC and DSYNC write as others do", |t| {
        for flag in [open_flags::SYNC, open_flags::DSYNC] {
            let ino = t.touch(t.dir, &format!("f{flag}"))?;
            let fh = t.open(ino, open_flags::RDWR | flag)?;
            t.write_all(ino, fh, 0, &pattern(20_000, 5))?;
            check(t.read(ino, fh, 0, 20_000)? == pattern(20_000, 5), "content")?;
            t.close(ino, fh)?;
        }
        Ok(())
    }),
    case("open/many descriptors of one file see one content", |t| {
        let ino = t.touch(t.dir, "f")?;
        let mut open = Vec::new();
        for _ in 0..64 {
            open.push(t.open(ino, open_flags::RDWR)?);
        }
        for (n, &fh) in open.iter().enumerate() {
            t.write(ino, fh, n as u64, &[n as u8])?;
        }
        let wanted: Vec<u8> = (0..64).collect();
        for &fh in &open {
            same("content", t.read(ino, fh, 0, 100)?, wanted.clone())?;
        }
        for fh in open {
            t.close(ino, fh)?;
        }
        Ok(())
    }),
    case("open/a closed descriptor is EBADF", |t| {
        needs(!t.features().kernel, "the kernel knows descriptors itself")?;
        let (ino, fh) = t.create(t.dir, "f", 0o644)?;
        t.close(ino, fh)?;
        refused("read", t.read(ino, fh, 0, 1), Errno::EBADF)?;
        refused("write", t.write(ino, fh, 0, b"x"), Errno::EBADF)?;
        if t.features().steady {
            refused("release", t.release(ino, fh, 0), Errno::EBADF)?;
        }
        Ok(())
    }),
    case("open/a descriptor serves only its own file", |t| {
        needs(!t.features().kernel, "the kernel knows descriptors itself")?;
        let (a, fh) = t.create(t.dir, "a", 0o644)?;
        let b = t.touch(t.dir, "b")?;
        refused("read", t.read(b, fh, 0, 1), Errno::EBADF)?;
        refused("write", t.write(b, fh, 0, b"x"), Errno::EBADF)?;
        t.close(a, fh)?;
        Ok(())
    }),
    case("open/reading a directory as a file is EISDIR", |t| {
        let sub = t.mkdir(t.dir, "d", 0o755)?;
        let fh = t.opendir(sub)?;
        refused_by("read", t.read(sub, fh, 0, 10), &[Errno::EISDIR, Errno::EBADF])?;
        t.closedir(sub, fh)?;
        Ok(())
    }),
    case("unnamed/a file without a name lives while it is open", |t| {
        let (ino, fh) = t.create(t.dir, "f", 0o644)?;
        t.write_all(ino, fh, 0, &pattern(30_000, 7))?;
        same("orphan", t.unlink(t.dir, "f")?, Some(ino))?;
        same("links", t.stat(ino)?.nlink, 0)?;
        check(t.read(ino, fh, 0, 30_000)? == pattern(30_000, 7), "content stays")?;
        t.write_all(ino, fh, 30_000, b"more")?;
        t.ftruncate(ino, fh, 30_002)?;
        same("tail", t.read(ino, fh, 30_000, 10)?, b"mo".to_vec())?;
        t.chmod(ino, 0o600)?;
        t.fsync(ino, fh, false)?;
        t.close(ino, fh)?;
        Ok(())
    }),
    case("unnamed/one of two descriptors closes", |t| {
        let (ino, a) = t.create(t.dir, "f", 0o644)?;
        let b = t.open(ino, open_flags::RDWR)?;
        t.unlink(t.dir, "f")?;
        t.write(ino, a, 0, b"kept")?;
        t.close(ino, a)?;
        same("content", t.read(ino, b, 0, 10)?, b"kept".to_vec())?;
        t.close(ino, b)?;
        Ok(())
    }),
    case("unnamed/it is gone with its last descriptor", |t| {
        needs(!t.features().kernel, "the kernel remembers inodes as it likes")?;
        let (ino, fh) = t.create(t.dir, "f", 0o644)?;
        t.unlink(t.dir, "f")?;
        t.close(ino, fh)?;
        t.forget(ino)?;
        refused_by("stat", t.stat(ino), &[Errno::ESTALE, Errno::ENOENT])
    }),
    case("tmpfile/has no name until it is given one", |t| {
        let (attr, fh) = t.tmpfile(t.dir, 0o640, open_flags::RDWR)?;
        same("links", attr.nlink, 0)?;
        same("mode", attr.mode, FileKind::Regular.mode_bits() | 0o640)?;
        same("names", t.names(t.dir)?.len(), 0)?;
        t.write(attr.ino, fh, 0, b"made whole")?;
        same("links", t.link(attr.ino, t.dir, "f")?.nlink, 1)?;
        t.close(attr.ino, fh)?;
        same("content", t.contents(attr.ino)?, b"made whole".to_vec())?;
        same("found", t.lookup(t.dir, "f")?.ino, attr.ino)
    }),
    case("tmpfile/EXCL says it never gets one", |t| {
        let (attr, fh) = t.tmpfile(t.dir, 0o640, open_flags::RDWR | open_flags::EXCL)?;
        refused("link", t.link(attr.ino, t.dir, "f"), Errno::ENOENT)?;
        t.close(attr.ino, fh)?;
        Ok(())
    }),
    case("tmpfile/once named it is a file like any", |t| {
        let (attr, fh) = t.tmpfile(t.dir, 0o640, open_flags::RDWR)?;
        t.link(attr.ino, t.dir, "f")?;
        t.link(attr.ino, t.dir, "g")?;
        t.unlink(t.dir, "f")?;
        same("links", t.stat(attr.ino)?.nlink, 1)?;
        t.unlink(t.dir, "g")?;
        refused("no name again", t.link(attr.ino, t.dir, "h"), Errno::ENOENT)?;
        t.close(attr.ino, fh)?;
        Ok(())
    }),
    case("tmpfile/in a file is ENOTDIR", |t| {
        let file = t.touch(t.dir, "f")?;
        refused("tmpfile", t.tmpfile(file, 0o640, open_flags::RDWR), Errno::ENOTDIR)
    }),
    case("tmpfile/needs permission to write the directory", |t| {
        needs_users(t)?;
        let sub = t.mkdir(t.dir, "d", 0o755)?;
        t.by(&alice(), |t| {
            refused("tmpfile", t.tmpfile(sub, 0o640, open_flags::RDWR), Errno::EACCES)
        })
    }),
    case("open/a fifo's requests are the kernel's business", |t| {
        needs(!t.features().kernel, "the kernel serves fifos itself")?;
        let ino = t.mknod(t.dir, "p", FileKind::Fifo, 0o644, 0)?.ino;
        let asked = t.ask(&Request::Open { ino, flags: open_flags::RDWR }, &[]);
        // Opened or refused, but no data in it.
        if let Ok((outboard_wire::file::Reply::Opened(fh), _)) = asked {
            check(t.write(ino, fh, 0, b"x").is_err(), "a fifo holds no bytes")?;
            t.close(ino, fh)?;
        }
        Ok(())
    }),
];
