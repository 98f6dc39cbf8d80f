//! `fallocate(2)`, `lseek(2)` for data and holes, `copy_file_range(2)`.

use outboard_base::Errno;
use outboard_wire::file::{FileKind, open_flags, seek};

use super::{pattern, tick};
use crate::actor::Actor;
use crate::case::{Case, Outcome, case, check, needs, refused, refused_by, same};

/// `fallocate(2)` modes.
const KEEP_SIZE: u32 = 1;
const PUNCH_HOLE: u32 = 2;
const COLLAPSE_RANGE: u32 = 8;
const ZERO_RANGE: u32 = 16;
const INSERT_RANGE: u32 = 32;

pub(super) const CASES: &[Case] = &[
    case("fallocate/grows the file with zeros", |t| {
        for (len, offset, size) in
            [(0_usize, 0_u64, 5_u64), (10, 5, 100), (10, 0, 9000), (9000, 8000, 300_000)]
        {
            let (ino, fh) = t.create(t.dir, &format!("f{len}-{size}"), 0o644)?;
            let mut content = pattern(len, 1);
            t.write_all(ino, fh, 0, &content)?;
            t.fallocate((ino, fh), 0, offset, size)?;
            content.resize((offset + size) as usize, 0);
            same("size", t.stat(ino)?.size, offset + size)?;
            check(t.contents(ino)? == content, "content, then zeros")?;
            t.close(ino, fh)?;
        }
        Ok(())
    }),
    case("fallocate/inside the file changes nothing", |t| {
        let ino = t.file(t.dir, "f", &pattern(20_000, 1))?;
        let fh = t.open(ino, open_flags::RDWR)?;
        t.fallocate((ino, fh), 0, 100, 5000)?;
        check(t.contents(ino)? == pattern(20_000, 1), "content")?;
        t.close(ino, fh)?;
        Ok(())
    }),
    case("fallocate/KEEP_SIZE keeps the size", |t| {
        let ino = t.file(t.dir, "f", b"abc")?;
        let fh = t.open(ino, open_flags::RDWR)?;
        t.fallocate((ino, fh), KEEP_SIZE, 0, 100_000)?;
        same("size", t.stat(ino)?.size, 3)?;
        same("content", t.contents(ino)?, b"abc".to_vec())?;
        t.close(ino, fh)?;
        Ok(())
    }),
    case("fallocate/PUNCH_HOLE leaves zeros", |t| punches(t, PUNCH_HOLE | KEEP_SIZE)),
    case("fallocate/ZERO_RANGE leaves zeros", |t| punches(t, ZERO_RANGE | KEEP_SIZE)),
    case("fallocate/ZERO_RANGE grows the file", |t| {
        let ino = t.file(t.dir, "f", &pattern(10_000, 1))?;
        let fh = t.open(ino, open_flags::RDWR)?;
        t.fallocate((ino, fh), ZERO_RANGE, 9000, 5000)?;
        let mut content = pattern(9000, 1);
        content.resize(14_000, 0);
        check(t.contents(ino)? == content, "zeros to the new end")?;
        t.close(ino, fh)?;
        Ok(())
    }),
    case("fallocate/a hole beyond the end changes nothing", |t| {
        let ino = t.file(t.dir, "f", &pattern(10_000, 1))?;
        let fh = t.open(ino, open_flags::RDWR)?;
        t.fallocate((ino, fh), PUNCH_HOLE | KEEP_SIZE, 20_000, 5000)?;
        same("size", t.stat(ino)?.size, 10_000)?;
        check(t.contents(ino)? == pattern(10_000, 1), "content")?;
        t.close(ino, fh)?;
        Ok(())
    }),
    case("fallocate/a hole gives space back", |t| {
        let ino = t.file(t.dir, "f", &pattern(1 << 20, 1))?;
        let fh = t.open(ino, open_flags::RDWR)?;
        t.fsync(ino, fh, false)?;
        let full = t.stat(ino)?.blocks;
        t.fallocate((ino, fh), PUNCH_HOLE | KEEP_SIZE, 0, 1 << 20)?;
        t.fsync(ino, fh, false)?;
        let left = t.stat(ino)?.blocks;
        check(left < full / 16, &format!("{full} blocks, then {left}"))?;
        same("size", t.stat(ino)?.size, 1 << 20)?;
        t.close(ino, fh)?;
        Ok(())
    }),
    case("fallocate/moves the times", |t| {
        let ino = t.file(t.dir, "f", &pattern(10_000, 1))?;
        let fh = t.open(ino, open_flags::RDWR)?;
        for mode in [0, PUNCH_HOLE | KEEP_SIZE] {
            let old = t.age(ino)?;
            tick();
            t.fallocate((ino, fh), mode, 0, 20_000)?;
            let new = t.stat(ino)?;
            check(new.mtime > old.mtime && new.ctime > old.ctime, "mtime and ctime")?;
        }
        t.close(ino, fh)?;
        Ok(())
    }),
    case("fallocate/what it refuses", |t| {
        let (ino, fh) = t.create(t.dir, "f", 0o644)?;
        refused("no length", t.fallocate((ino, fh), 0, 0, 0), Errno::EINVAL)?;
        let unknown = [Errno::EOPNOTSUPP, Errno::EINVAL];
        refused_by("PUNCH alone", t.fallocate((ino, fh), PUNCH_HOLE, 0, 10), &unknown)?;
        refused_by("unknown", t.fallocate((ino, fh), 1 << 20, 0, 10), &unknown)?;
        let both = PUNCH_HOLE | ZERO_RANGE | KEEP_SIZE;
        refused_by("two at once", t.fallocate((ino, fh), both, 0, 10), &unknown)?;
        // ext4 could, but not at an odd place.
        refused_by("COLLAPSE", t.fallocate((ino, fh), COLLAPSE_RANGE, 1, 10), &unknown)?;
        refused_by("INSERT", t.fallocate((ino, fh), INSERT_RANGE, 1, 10), &unknown)?;
        let far = i64::MAX.unsigned_abs() - 10;
        let beyond = [Errno::EFBIG, Errno::EINVAL];
        refused_by("too far", t.fallocate((ino, fh), 0, far, 5), &beyond)?;
        refused_by("overflow", t.fallocate((ino, fh), 0, far, far), &beyond)?;
        same("size", t.stat(ino)?.size, 0)?;
        t.close(ino, fh)?;
        Ok(())
    }),
    case("lseek/all data has its hole at the end", |t| {
        for len in [1_usize, 5000, 8192, 8193, 100_000] {
            let ino = t.file(t.dir, &format!("f{len}"), &pattern(len, 1))?;
            let fh = t.open(ino, 0)?;
            let (end, last) = (len as u64, len as u64 - 1);
            same("data", t.seek(ino, fh, 0, seek::DATA)?, 0)?;
            same("data inside", t.seek(ino, fh, last, seek::DATA)?, last)?;
            same("hole", t.seek(ino, fh, 0, seek::HOLE)?, end)?;
            same("hole inside", t.seek(ino, fh, last, seek::HOLE)?, end)?;
            refused("data at the end", t.seek(ino, fh, end, seek::DATA), Errno::ENXIO)?;
            refused("hole at the end", t.seek(ino, fh, end, seek::HOLE), Errno::ENXIO)?;
            t.close(ino, fh)?;
        }
        Ok(())
    }),
    case("lseek/an empty file has neither", |t| {
        let ino = t.touch(t.dir, "f")?;
        let fh = t.open(ino, 0)?;
        refused("data", t.seek(ino, fh, 0, seek::DATA), Errno::ENXIO)?;
        refused("hole", t.seek(ino, fh, 0, seek::HOLE), Errno::ENXIO)?;
        t.close(ino, fh)?;
        Ok(())
    }),
    case("lseek/all hole", |t| {
        needs(t.features().writes_seen, "a kernel that collects writes shows no hole")?;
        let ino = t.touch(t.dir, "f")?;
        t.truncate(ino, 1 << 20)?;
        let fh = t.open(ino, 0)?;
        same("hole", t.seek(ino, fh, 5, seek::HOLE)?, 5)?;
        refused("data", t.seek(ino, fh, 0, seek::DATA), Errno::ENXIO)?;
        t.close(ino, fh)?;
        Ok(())
    }),
    case("lseek/finds the islands", |t| {
        needs(t.features().writes_seen, "a kernel that collects writes shows no hole")?;
        // Islands a megabyte apart, on any sensible granularity.
        let (ino, fh) = t.create(t.dir, "f", 0o644)?;
        for at in [1_u64 << 20, 3 << 20] {
            t.write_all(ino, fh, at, &pattern(65_536, at))?;
        }
        t.ftruncate(ino, fh, 5 << 20)?;
        t.fsync(ino, fh, false)?;
        let (a, b, island) = (1 << 20, 3 << 20, 65_536);
        same("first data", t.seek(ino, fh, 0, seek::DATA)?, a)?;
        same("its end", t.seek(ino, fh, a, seek::HOLE)?, a + island)?;
        same("second data", t.seek(ino, fh, a + island, seek::DATA)?, b)?;
        same("its end", t.seek(ino, fh, b + 1, seek::HOLE)?, b + island)?;
        same("inside a hole", t.seek(ino, fh, 2 << 20, seek::HOLE)?, 2 << 20)?;
        refused("no more", t.seek(ino, fh, b + island, seek::DATA), Errno::ENXIO)?;
        t.close(ino, fh)?;
        Ok(())
    }),
    case("copy/parts of a file, at every edge", copies),
    case("copy/stops at the end of the source", |t| {
        let (a, b) = (t.file(t.dir, "a", b"abc")?, t.touch(t.dir, "b")?);
        let (fa, fb) = (t.open(a, 0)?, t.open(b, open_flags::RDWR)?);
        same("short", t.copy_range((a, fa, 1), (b, fb, 0), 100)?, 2)?;
        same("at the end", t.copy_range((a, fa, 3), (b, fb, 2), 100)?, 0)?;
        same("nothing", t.copy_range((a, fa, 0), (b, fb, 0), 0)?, 0)?;
        t.close(a, fa)?;
        t.close(b, fb)?;
        same("content", t.contents(b)?, b"bc".to_vec())
    }),
    case("copy/inside one file, apart", |t| {
        let mut content = pattern(100_000, 4);
        let ino = t.file(t.dir, "f", &content)?;
        let fh = t.open(ino, open_flags::RDWR)?;
        let mut done = 0;
        while done < 20_000 {
            let left = 20_000 - done;
            let from = (ino, fh, 5 + done);
            let some = u64::from(t.copy_range(from, (ino, fh, 50_000 + done), left)?);
            check(some > 0, "goes on")?;
            done += some;
        }
        content.copy_within(5..20_005, 50_000);
        check(t.contents(ino)? == content, "content")?;
        t.close(ino, fh)?;
        Ok(())
    }),
    case("copy/onto itself is EINVAL", |t| {
        let ino = t.file(t.dir, "f", &pattern(10_000, 4))?;
        let fh = t.open(ino, open_flags::RDWR)?;
        refused("copy", t.copy_range((ino, fh, 0), (ino, fh, 100), 1000), Errno::EINVAL)?;
        t.close(ino, fh)?;
        check(t.contents(ino)? == pattern(10_000, 4), "content")
    }),
    case("copy/needs the right descriptors", |t| {
        let (a, b) = (t.file(t.dir, "a", b"abc")?, t.touch(t.dir, "b")?);
        let (fa, fb) = (t.open(a, open_flags::WRONLY)?, t.open(b, 0)?);
        let (ra, rb) = (t.open(a, 0)?, t.open(b, open_flags::RDWR)?);
        refused("unreadable", t.copy_range((a, fa, 0), (b, rb, 0), 3), Errno::EBADF)?;
        refused("unwritable", t.copy_range((a, ra, 0), (b, fb, 0), 3), Errno::EBADF)?;
        for (ino, fh) in [(a, fa), (b, fb), (a, ra), (b, rb)] {
            t.close(ino, fh)?;
        }
        Ok(())
    }),
    case("copy/moves the target's times, not the source's mtime", |t| {
        let (a, b) = (t.file(t.dir, "a", b"abc")?, t.touch(t.dir, "b")?);
        let (fa, fb) = (t.open(a, 0)?, t.open(b, open_flags::RDWR)?);
        let old = (t.age(a)?, t.age(b)?);
        tick();
        t.copy_range((a, fa, 0), (b, fb, 0), 3)?;
        same("source", t.stat(a)?.mtime, old.0.mtime)?;
        check(t.stat(b)?.mtime > old.1.mtime, "target")?;
        t.close(a, fa)?;
        t.close(b, fb)?;
        Ok(())
    }),
    case("fallocate/of what is no file is refused", |t| {
        let sub = t.mkdir(t.dir, "d", 0o755)?;
        same("kind", t.stat(sub)?.kind()?, FileKind::Directory)?;
        let fh = t.opendir(sub)?;
        let wanted = [Errno::EBADF, Errno::EISDIR, Errno::ENODEV];
        refused_by("directory", t.fallocate((sub, fh), 0, 0, 10), &wanted)?;
        t.closedir(sub, fh)?;
        Ok(())
    }),
];

/// Zeroes ranges around every edge of files of several lengths; the size stays.
fn punches(t: &mut Actor<'_>, mode: u32) -> Outcome {
    let ranges = [(0_usize, 1_usize), (0, 8192), (100, 50), (4000, 5000), (8191, 2), (8192, 8192)];
    for len in [200_usize, 8192, 8193, 50_000] {
        let mut content = pattern(len, 8);
        let ino = t.file(t.dir, &format!("f{len}"), &content)?;
        let fh = t.open(ino, open_flags::RDWR)?;
        for (at, size) in ranges {
            t.fallocate((ino, fh), mode, at as u64, size as u64)?;
            let (from, to) = (at.min(len), (at + size).min(len));
            content.get_mut(from..to).unwrap_or_default().fill(0);
            check(t.contents(ino)? == content, &format!("{size} zeros at {at} of {len}"))?;
        }
        same("size", t.stat(ino)?.size, len as u64)?;
        t.write_all(ino, fh, 0, &pattern(len, 9))?;
        check(t.contents(ino)? == pattern(len, 9), "written again")?;
        t.close(ino, fh)?;
    }
    Ok(())
}

/// Copies ranges of one file over another, aligned and not, and compares the whole each time.
fn copies(t: &mut Actor<'_>) -> Outcome {
    let content = pattern(100_000, 14);
    let source = t.file(t.dir, "from", &content)?;
    let from_fh = t.open(source, 0)?;
    let (ino, fh) = t.create(t.dir, "to", 0o644)?;
    let mut wanted: Vec<u8> = Vec::new();
    for (from, to, len) in [
        (0_usize, 0_usize, 100_usize),
        (0, 0, 8192),
        (8192, 8192, 16_384),
        (1, 0, 9000),
        (0, 50_001, 30_000),
        (70_000, 3, 20_000),
        (16_384, 131_072, 65_536),
    ] {
        let mut done = 0;
        while done < len {
            let (at, into) = ((from + done) as u64, (to + done) as u64);
            let left = (len - done) as u64;
            let some = t.copy_range((source, from_fh, at), (ino, fh, into), left)?;
            check(some > 0, "goes on")?;
            done += some as usize;
        }
        wanted.resize(wanted.len().max(to + len), 0);
        let place = wanted.get_mut(to..to + len).unwrap_or_default();
        place.copy_from_slice(content.get(from..from + len).unwrap_or_default());
        check(t.contents(ino)? == wanted, &format!("{len} bytes from {from} to {to}"))?;
    }
    t.close(source, from_fh)?;
    t.close(ino, fh)?;
    check(t.contents(source)? == content, "the source stays")
}
