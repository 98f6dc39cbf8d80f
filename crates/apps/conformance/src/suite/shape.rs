//! `truncate(2)`: the length of a file, and the zeros it uncovers.

use outboard_base::{Errno, Fh};
use outboard_wire::file::{Setattr, SetattrTime, open_flags};

use super::{alice, needs_users, pattern, tick};
use crate::actor::Actor;
use crate::case::{Case, Outcome, case, check, refused, same};

pub(super) const CASES: &[Case] = &[
    case("truncate/shrinks and cuts", |t| {
        let content = pattern(100_000, 1);
        let ino = t.file(t.dir, "f", &content)?;
        for len in [99_999_usize, 65_536, 16_385, 8192, 1, 0] {
            same("size told", t.truncate(ino, len as u64)?.size, len as u64)?;
            check(t.contents(ino)? == content.get(..len).unwrap_or_default(), "what is left")?;
        }
        Ok(())
    }),
    case("truncate/grows with zeros", |t| {
        for (from, to) in
            [(0_usize, 1_usize), (5, 8191), (5, 8192), (5, 8193), (8192, 8193), (9000, 300_000)]
        {
            let mut content = pattern(from, 2);
            let ino = t.file(t.dir, &format!("{from}-{to}"), &content)?;
            same("size told", t.truncate(ino, to as u64)?.size, to as u64)?;
            content.resize(to, 0);
            check(t.contents(ino)? == content, &format!("{from} then zeros to {to}"))?;
        }
        Ok(())
    }),
    case("truncate/what was cut does not come back", |t| {
        for len in [5000, 8192, 8193, 20_000, 300_000] {
            for cut in [0, 1, 100, 4096, 8191, 8192, 8193, 16_384, 299_999] {
                if cut < len {
                    uncover_by_truncate(t, len, cut)?;
                    uncover_by_write(t, len, cut)?;
                }
            }
        }
        Ok(())
    }),
    case("truncate/to the same length keeps the content", |t| {
        let ino = t.file(t.dir, "f", &pattern(9000, 3))?;
        t.truncate(ino, 9000)?;
        check(t.contents(ino)? == pattern(9000, 3), "content")
    }),
    case("truncate/moves the times when the length changes", |t| {
        let ino = t.file(t.dir, "f", b"abc")?;
        let old = t.age(ino)?;
        tick();
        let new = t.truncate(ino, 1)?;
        check(new.mtime > old.mtime && new.ctime > old.ctime, "mtime and ctime")
    }),
    case("truncate/by an open file needs no permission left", |t| {
        needs_users(t)?;
        let dir = t.dir;
        t.by(&alice(), |t| {
            let (ino, fh) = t.create(dir, "f", 0o644)?;
            t.write(ino, fh, 0, b"abcdef")?;
            t.chmod(ino, 0)?;
            refused("by name", t.truncate(ino, 1), Errno::EACCES)?;
            same("by the open file", t.ftruncate(ino, fh, 1)?.size, 1)?;
            t.close(ino, fh)?;
            Ok(())
        })
    }),
    case("truncate/of what is no file", |t| {
        let sub = t.mkdir(t.dir, "d", 0o755)?;
        refused("directory", t.truncate(sub, 0), Errno::EISDIR)
    }),
    case("truncate/with other attributes in one request", |t| {
        let ino = t.file(t.dir, "f", &pattern(9000, 3))?;
        let past = outboard_base::Timestamp { sec: 77, nsec: 5 };
        let set = Setattr {
            size: Some(10),
            mode: Some(0o600),
            mtime: Some(SetattrTime::At(past)),
            ..Setattr::default()
        };
        let attr = t.set(ino, Fh::NONE, set)?;
        same("size", attr.size, 10)?;
        same("mode", attr.mode & 0o7777, 0o600)?;
        same("mtime", attr.mtime, past)
    }),
    case("truncate/gives space back", |t| {
        let ino = t.file(t.dir, "f", &pattern(1 << 20, 3))?;
        let fh = t.open(ino, open_flags::RDWR)?;
        t.fsync(ino, fh, false)?;
        let full = t.stat(ino)?.blocks;
        t.ftruncate(ino, fh, 100)?;
        t.fsync(ino, fh, false)?;
        let left = t.stat(ino)?.blocks;
        check(left < full / 16, &format!("{full} blocks, then {left}"))?;
        t.close(ino, fh)?;
        Ok(())
    }),
    case("truncate/up takes no space", |t| {
        let ino = t.touch(t.dir, "f")?;
        t.truncate(ino, 1 << 30)?;
        check(t.stat(ino)?.blocks < 1024, "a hole takes no space")?;
        t.truncate(ino, 0)?;
        Ok(())
    }),
];

/// Cuts a file of `len` to `cut`, grows it back by truncation: zeros, not the old bytes.
fn uncover_by_truncate(t: &mut Actor<'_>, len: usize, cut: usize) -> Outcome {
    let mut content = pattern(len, 5);
    let ino = t.file(t.dir, &format!("t{len}-{cut}"), &content)?;
    t.truncate(ino, cut as u64)?;
    t.truncate(ino, len as u64)?;
    content.truncate(cut);
    content.resize(len, 0);
    check(t.contents(ino)? == content, &format!("{len} cut to {cut} and back"))
}

/// The same, grown back by a write behind the old end.
fn uncover_by_write(t: &mut Actor<'_>, len: usize, cut: usize) -> Outcome {
    let mut content = pattern(len, 5);
    let ino = t.file(t.dir, &format!("w{len}-{cut}"), &content)?;
    t.truncate(ino, cut as u64)?;
    let fh = t.open(ino, open_flags::RDWR)?;
    t.write(ino, fh, len as u64, b"end")?;
    t.close(ino, fh)?;
    content.truncate(cut);
    content.resize(len, 0);
    content.extend(b"end");
    check(t.contents(ino)? == content, &format!("{len} cut to {cut}, written behind"))
}
