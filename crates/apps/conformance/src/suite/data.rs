//! `pread(2)` and `pwrite(2)` around every boundary: small files, blocks, pages.

use outboard_base::Errno;
use outboard_wire::file::{Request, open_flags};

use super::pattern;
use crate::actor::Actor;
use crate::case::{Case, Outcome, case, check, needs, refused, refused_by, same};

/// Lengths and offsets where something changes: the promotion of small files, blocks, pages.
const EDGES: &[u64] = &[
    0, 1, 2, 511, 512, 4095, 4096, 4097, 8190, 8191, 8192, 8193, 12_288, 16_383, 16_384, 16_385,
    65_536, 262_143, 262_144, 262_145,
];

pub(super) const CASES: &[Case] = &[
    case("data/a file of every edge length reads back", |t| {
        for &len in EDGES {
            let content = pattern(len as usize, len);
            let ino = t.file(t.dir, &format!("f{len}"), &content)?;
            same("size", t.stat(ino)?.size, len)?;
            check(t.contents(ino)? == content, &format!("content of {len} bytes"))?;
        }
        Ok(())
    }),
    case("data/one byte written at every edge", |t| {
        for &at in EDGES {
            let (ino, fh) = t.create(t.dir, &format!("f{at}"), 0o644)?;
            same("taken", t.write(ino, fh, at, b"!")?, 1)?;
            same("size", t.stat(ino)?.size, at + 1)?;
            let all = t.contents(ino)?;
            let zeros = all.iter().take(at as usize).all(|&byte| byte == 0);
            check(zeros && all.last() == Some(&b'!'), &format!("zeros, then the byte at {at}"))?;
            t.close(ino, fh)?;
        }
        Ok(())
    }),
    case("data/reads across every edge", |t| {
        let content = pattern(300_000, 9);
        let ino = t.file(t.dir, "f", &content)?;
        let fh = t.open(ino, 0)?;
        for &at in EDGES {
            for len in [1_usize, 100, 5000, 20_000] {
                let from = (at as usize).saturating_sub(len / 2);
                let wanted = content.get(from..from + len).unwrap_or_default();
                let got = t.read(ino, fh, from as u64, len as u32)?;
                check(got == wanted, &format!("{len} bytes at {from}"))?;
            }
        }
        t.close(ino, fh)?;
        Ok(())
    }),
    case("data/overwrites across every edge, in a large file", |t| overwrites(t, 300_000)),
    case("data/overwrites across every edge, in a small file", |t| overwrites(t, 8192)),
    case("data/overwrites across every edge, beside a promotion", |t| overwrites(t, 8193)),
    case("data/reads stop at the end", |t| {
        let ino = t.file(t.dir, "f", b"hello")?;
        let fh = t.open(ino, 0)?;
        same("across", t.read(ino, fh, 3, 100)?, b"lo".to_vec())?;
        same("at", t.read(ino, fh, 5, 100)?.len(), 0)?;
        same("beyond", t.read(ino, fh, 1 << 40, 100)?.len(), 0)?;
        same("nothing", t.read(ino, fh, 0, 0)?.len(), 0)?;
        t.close(ino, fh)?;
        Ok(())
    }),
    case("data/growing byte by byte across the promotion", |t| {
        let content = pattern(8300, 4);
        let ino = t.file(t.dir, "f", content.get(..8100).unwrap_or_default())?;
        let fh = t.open(ino, open_flags::RDWR)?;
        for (at, byte) in content.iter().enumerate().skip(8100) {
            t.write(ino, fh, at as u64, &[*byte])?;
        }
        t.close(ino, fh)?;
        check(t.contents(ino)? == content, "content")
    }),
    case("data/shrinking across the promotion and growing again", |t| {
        let content = pattern(20_000, 4);
        let ino = t.file(t.dir, "f", &content)?;
        for len in [8193_usize, 8192, 8191, 100] {
            t.truncate(ino, len as u64)?;
            check(t.contents(ino)? == content.get(..len).unwrap_or_default(), "what is left")?;
        }
        let fh = t.open(ino, open_flags::RDWR)?;
        t.write_all(ino, fh, 0, &content)?;
        t.close(ino, fh)?;
        check(t.contents(ino)? == content, "content")
    }),
    case("data/a write of nothing changes nothing", |t| {
        let ino = t.file(t.dir, "f", b"abc")?;
        let old = t.age(ino)?;
        let fh = t.open(ino, open_flags::RDWR)?;
        same("taken", t.write(ino, fh, 100, b"")?, 0)?;
        let new = t.stat(ino)?;
        same("size", new.size, 3)?;
        same("mtime", new.mtime, old.mtime)?;
        t.close(ino, fh)?;
        Ok(())
    }),
    case("data/holes read as zeros", |t| {
        let (ino, fh) = t.create(t.dir, "f", 0o644)?;
        t.write(ino, fh, 1 << 20, b"far")?;
        t.write(ino, fh, 100_000, b"middle")?;
        same("size", t.stat(ino)?.size, (1 << 20) + 3)?;
        let all = t.contents(ino)?;
        let mut wanted = vec![0; (1 << 20) + 3];
        wanted.splice(100_000..100_006, *b"middle");
        wanted.splice(1 << 20..(1 << 20) + 3, *b"far");
        check(all == wanted, "zeros but for what was written")?;
        check(t.stat(ino)?.blocks < 1024, "a hole takes no space")?;
        t.close(ino, fh)?;
        Ok(())
    }),
    case("data/a hole a terabyte wide", |t| {
        let (ino, fh) = t.create(t.dir, "f", 0o644)?;
        t.write(ino, fh, 1 << 40, b"far")?;
        same("size", t.stat(ino)?.size, (1 << 40) + 3)?;
        same("end", t.read(ino, fh, 1 << 40, 10)?, b"far".to_vec())?;
        same("hole", t.read(ino, fh, 1 << 39, 10)?, vec![0; 10])?;
        check(t.stat(ino)?.blocks < 1024, "a hole takes no space")?;
        t.ftruncate(ino, fh, 0)?;
        t.close(ino, fh)?;
        Ok(())
    }),
    case("data/beyond the largest file is EFBIG", |t| {
        needs(t.features().writes_seen, "a kernel that collects writes hears of it later")?;
        let (ino, fh) = t.create(t.dir, "f", 0o644)?;
        let far = i64::MAX.unsigned_abs() - 1;
        refused_by("write", t.write(ino, fh, far, b"x"), &[Errno::EFBIG, Errno::EINVAL])?;
        refused_by("truncate", t.ftruncate(ino, fh, far), &[Errno::EFBIG, Errno::EINVAL])?;
        same("size", t.stat(ino)?.size, 0)?;
        t.close(ino, fh)?;
        Ok(())
    }),
    case("data/offsets that overflow are refused", |t| {
        let (ino, fh) = t.create(t.dir, "f", 0o644)?;
        for offset in [u64::MAX, u64::MAX - 4095, i64::MAX.unsigned_abs()] {
            check(t.write(ino, fh, offset, &[1; 4096]).is_err(), "a write is refused")?;
            let read = t.ask(&Request::Read { ino, fh, offset, len: 4096, flags: 0 }, &[]);
            check(read.is_err() || read.is_ok_and(|(_, out)| out.is_empty()), "nothing to read")?;
        }
        same("size", t.stat(ino)?.size, 0)?;
        t.close(ino, fh)?;
        Ok(())
    }),
    case("data/a megabyte in one write", |t| {
        let content = pattern(1 << 20, 6);
        let (ino, fh) = t.create(t.dir, "f", 0o644)?;
        same("taken", t.write(ino, fh, 0, &content)?, 1 << 20)?;
        check(t.read(ino, fh, 0, 1 << 20)? == content, "content")?;
        same("unaligned", t.write(ino, fh, 4099, &content)?, 1 << 20)?;
        check(t.read(ino, fh, 4099, 1 << 20)? == content, "content")?;
        t.close(ino, fh)?;
        Ok(())
    }),
    case("data/allocated space is counted", |t| {
        let ino = t.file(t.dir, "f", &pattern(1 << 20, 2))?;
        let fh = t.open(ino, 0)?;
        t.fsync(ino, fh, false)?;
        t.close(ino, fh)?;
        let blocks = t.stat(ino)?.blocks;
        check((2048..=2400).contains(&blocks), &format!("about a megabyte: {blocks} blocks"))
    }),
    case("data/two files do not mix", |t| {
        let (a, fa) = t.create(t.dir, "a", 0o644)?;
        let (b, fb) = t.create(t.dir, "b", 0o644)?;
        let (one, two) = (pattern(200_000, 11), pattern(200_000, 12));
        for at in (0..200_000_usize).step_by(10_000) {
            t.write(a, fa, at as u64, one.get(at..at + 10_000).unwrap_or_default())?;
            t.write(b, fb, at as u64, two.get(at..at + 10_000).unwrap_or_default())?;
        }
        t.close(a, fa)?;
        t.close(b, fb)?;
        check(t.contents(a)? == one && t.contents(b)? == two, "each its own")
    }),
    case("data/writing a directory is refused", |t| {
        let sub = t.mkdir(t.dir, "d", 0o755)?;
        let fh = t.opendir(sub)?;
        refused("write", t.write(sub, fh, 0, b"x"), Errno::EBADF)?;
        t.closedir(sub, fh)?;
        Ok(())
    }),
];

/// Writes over a file of `len` bytes at every edge inside it, and compares the whole each time.
fn overwrites(t: &mut Actor<'_>, len: usize) -> Outcome {
    let mut content = pattern(len, 21);
    let ino = t.file(t.dir, "f", &content)?;
    let fh = t.open(ino, open_flags::RDWR)?;
    for (round, &edge) in EDGES.iter().enumerate() {
        for size in [1_usize, 3, 700, 9000] {
            let at = (edge as usize).saturating_sub(size / 2);
            let Some(place) = content.get_mut(at..at + size) else { continue };
            let new = pattern(size, (round * 7 + size) as u64);
            place.copy_from_slice(&new);
            same("taken", t.write(ino, fh, at as u64, &new)?, size as u32)?;
            check(t.contents(ino)? == content, &format!("after {size} bytes at {at}"))?;
        }
    }
    same("size", t.stat(ino)?.size, len as u64)?;
    t.close(ino, fh)?;
    Ok(())
}
