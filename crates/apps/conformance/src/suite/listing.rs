//! `readdir(3)`: complete, once each, while the directory changes.

use std::collections::{BTreeMap, BTreeSet};

use outboard_base::{Errno, Fh, Ino};
use outboard_wire::file::FileKind;

use crate::actor::Actor;
use crate::case::{Case, Outcome, case, check, needs, refused_by, same};

/// Reads on from `cookie` to the end, `len` bytes at a time: names with how often each came.
fn rest(
    t: &mut Actor<'_>,
    (ino, fh): (Ino, Fh),
    mut cookie: u64,
    len: u32,
) -> Result<BTreeMap<Vec<u8>, usize>, Errno> {
    let mut seen = BTreeMap::new();
    for _ in 0..100_000 {
        let some = t.readdir(ino, fh, cookie, len)?;
        let Some(last) = some.last() else { return Ok(seen) };
        cookie = last.cookie;
        for entry in some {
            *seen.entry(entry.name).or_insert(0) += 1;
        }
    }
    Err(Errno::ELOOP)
}

/// A directory of `count` files `f00000`....
fn filled(t: &mut Actor<'_>, count: usize) -> Result<Ino, Errno> {
    let dir = t.mkdir(t.dir, "many", 0o755)?;
    for n in 0..count {
        let ino = t.mknod(dir, &format!("f{n:05}"), FileKind::Regular, 0o644, 0)?.ino;
        t.forget(ino)?;
    }
    Ok(dir)
}

/// Lists `count` entries with `len` bytes a call: each once.
fn complete(t: &mut Actor<'_>, count: usize, len: u32) -> Outcome {
    let dir = filled(t, count)?;
    let fh = t.opendir(dir)?;
    let seen = rest(t, (dir, fh), 0, len)?;
    t.closedir(dir, fh)?;
    same("names", seen.len(), count)?;
    check(seen.values().all(|&times| times == 1), "each once")
}

pub(super) const CASES: &[Case] = &[
    case("readdir/an empty directory is empty", |t| same("names", t.list(t.dir)?.len(), 0)),
    case("readdir/names, inodes and kinds", |t| {
        let mut wanted = BTreeSet::new();
        for (name, kind) in
            [("file", FileKind::Regular), ("fifo", FileKind::Fifo), ("socket", FileKind::Socket)]
        {
            let ino = t.mknod(t.dir, name, kind, 0o644, 0)?.ino;
            wanted.insert((name.as_bytes().to_vec(), ino, kind.dirent_type()));
        }
        let link = t.symlink(t.dir, "link", "x")?.ino;
        wanted.insert((b"link".to_vec(), link, FileKind::Symlink.dirent_type()));
        let dir = t.mkdir(t.dir, "dir", 0o755)?;
        wanted.insert((b"dir".to_vec(), dir, FileKind::Directory.dirent_type()));
        let entries = t.list(t.dir)?;
        let found: BTreeSet<_> =
            entries.into_iter().map(|entry| (entry.name, entry.ino, entry.kind)).collect();
        same("entries", found, wanted)
    }),
    case("readdir/with attributes, as getattr tells them", |t| {
        t.file(t.dir, "f", b"abc")?;
        t.mkdir(t.dir, "d", 0o755)?;
        t.symlink(t.dir, "l", "target")?;
        let fh = t.opendir(t.dir)?;
        let entries = t.readdir_plus(t.dir, fh, 0, 8192)?;
        same("entries", entries.len(), 3)?;
        for (entry, attr) in entries {
            let name = String::from_utf8_lossy(&entry.name).into_owned();
            same("inode", attr.ino, entry.ino)?;
            same(&name, attr, t.lookup(t.dir, &name)?)?;
        }
        t.closedir(t.dir, fh)?;
        Ok(())
    }),
    case("readdir/a thousand names, each once", |t| complete(t, 1000, 4096)),
    case("readdir/a few names a call, each once", |t| complete(t, 300, 120)),
    case("readdir/twenty thousand names, each once", |t| complete(t, 20_000, 65_536)),
    case("readdir/names of every length", |t| {
        let longest = t.features().name_max;
        let lens: Vec<usize> =
            (1..=40).chain([100, 200, 254, 255, longest]).filter(|&len| len <= longest).collect();
        let names: BTreeSet<String> = lens.iter().map(|&len| "x".repeat(len)).collect();
        for name in &names {
            t.touch(t.dir, name)?;
        }
        same("names", t.names(t.dir)?.into_iter().collect::<BTreeSet<_>>(), names)
    }),
    case("readdir/from any cookie it goes on behind it", |t| {
        let dir = filled(t, 200)?;
        let fh = t.opendir(dir)?;
        let all = t.list(dir)?;
        for at in [0, 1, 57, 198, 199] {
            let entry = all.get(at).ok_or(Errno::EIO)?;
            let seen = rest(t, (dir, fh), entry.cookie, 512)?;
            same(&format!("behind {at}"), seen.len(), 200 - at - 1)?;
        }
        t.closedir(dir, fh)?;
        Ok(())
    }),
    case("readdir/cookies are the same for every descriptor", |t| {
        let dir = filled(t, 100)?;
        same("entries", t.list(dir)?, t.list(dir)?)
    }),
    case("readdir/cookies are never 0, 1 or 2, and differ", |t| {
        needs(!t.features().kernel, "the kernel's front-end numbers . and ..")?;
        let dir = filled(t, 500)?;
        let mut cookies: Vec<u64> = t.list(dir)?.iter().map(|entry| entry.cookie).collect();
        check(cookies.iter().all(|&cookie| cookie > 2), "free for . and ..")?;
        cookies.sort_unstable();
        cookies.dedup();
        same("different", cookies.len(), 500)
    }),
    case("readdir/what stays is seen once while others go", |t| {
        let dir = filled(t, 1000)?;
        let fh = t.opendir(dir)?;
        let first = t.readdir(dir, fh, 0, 2048)?;
        let cookie = first.last().ok_or(Errno::EIO)?.cookie;
        for n in (0..1000).step_by(2) {
            t.unlink(dir, &format!("f{n:05}"))?;
        }
        let mut seen = rest(t, (dir, fh), cookie, 2048)?;
        for entry in first {
            *seen.entry(entry.name).or_insert(0) += 1;
        }
        for n in (1..1000).step_by(2) {
            let name = format!("f{n:05}").into_bytes();
            same("odd one", seen.get(&name).copied(), Some(1))?;
        }
        t.closedir(dir, fh)?;
        Ok(())
    }),
    case("readdir/what stays is seen once while others come", |t| {
        let dir = filled(t, 500)?;
        let fh = t.opendir(dir)?;
        let (mut cookie, mut seen, mut made) = (0, BTreeMap::new(), 0);
        loop {
            let some = t.readdir(dir, fh, cookie, 1024)?;
            let Some(last) = some.last() else { break };
            cookie = last.cookie;
            for entry in some {
                *seen.entry(entry.name).or_insert(0) += 1;
            }
            // A few a call, so that the walk ends.
            if made < 300 {
                for n in made..made + 10 {
                    t.mknod(dir, &format!("new{n}"), FileKind::Regular, 0o644, 0)?;
                }
                made += 10;
            }
        }
        t.closedir(dir, fh)?;
        for n in 0..500 {
            let name = format!("f{n:05}").into_bytes();
            same("old one", seen.get(&name).copied(), Some(1))?;
        }
        check(seen.values().all(|&times| times == 1), "new ones at most once")
    }),
    case("readdir/removing everything while reading it", |t| {
        let dir = filled(t, 700)?;
        let fh = t.opendir(dir)?;
        let mut cookie = 0;
        loop {
            let some = t.readdir(dir, fh, cookie, 1024)?;
            let Some(last) = some.last() else { break };
            cookie = last.cookie;
            for entry in &some {
                t.unlink(dir, &String::from_utf8_lossy(&entry.name))?;
            }
        }
        t.closedir(dir, fh)?;
        same("left", t.list(dir)?.len(), 0)?;
        t.rmdir(t.dir, "many")?;
        Ok(())
    }),
    case("readdir/a listing ends though each name is renamed when it is listed", |t| {
        // Local file systems list some new names again.
        let most = if t.features().outboard { 3000 } else { 30_000 };
        let dir = filled(t, 3000)?;
        let fh = t.opendir(dir)?;
        let (mut cookie, mut seen) = (0, 0);
        loop {
            let some = t.readdir(dir, fh, cookie, 4096)?;
            let Some(last) = some.last() else { break };
            cookie = last.cookie;
            for entry in some {
                let old = String::from_utf8_lossy(&entry.name).into_owned();
                t.rename((dir, &old), (dir, &format!("r{seen}")))?;
                seen += 1;
            }
            check(seen <= most, "no more than there was")?;
        }
        t.closedir(dir, fh)?;
        check(seen >= 3000, "all there was")
    }),
    case("readdir/a removed cookie still leads on", |t| {
        let dir = filled(t, 50)?;
        let fh = t.opendir(dir)?;
        let all = t.list(dir)?;
        let at = all.get(20).ok_or(Errno::EIO)?.clone();
        t.unlink(dir, &String::from_utf8_lossy(&at.name))?;
        same("behind", rest(t, (dir, fh), at.cookie, 512)?.len(), 29)?;
        t.closedir(dir, fh)?;
        Ok(())
    }),
    case("readdir/from the start again sees what is new", |t| {
        let dir = filled(t, 5)?;
        let fh = t.opendir(dir)?;
        same("first", rest(t, (dir, fh), 0, 4096)?.len(), 5)?;
        t.touch(dir, "new")?;
        t.unlink(dir, "f00000")?;
        let seen = rest(t, (dir, fh), 0, 4096)?;
        check(seen.contains_key(b"new".as_slice()), "the new one")?;
        check(!seen.contains_key(b"f00000".as_slice()), "not the removed one")?;
        t.closedir(dir, fh)?;
        Ok(())
    }),
    case("readdir/a rename inside is one name before and one after", |t| {
        let dir = filled(t, 100)?;
        t.rename((dir, "f00050"), (dir, "zzz"))?;
        let names = t.names(dir)?;
        same("names", names.len(), 100)?;
        check(names.contains(&"zzz".to_owned()), "the new name")
    }),
    case("readdir/no room for one entry is EINVAL", |t| {
        needs(!t.features().kernel, "the kernel brings room of its own")?;
        let dir = filled(t, 1)?;
        let fh = t.opendir(dir)?;
        refused_by("readdir", t.readdir(dir, fh, 0, 8), &[Errno::EINVAL])?;
        t.closedir(dir, fh)?;
        Ok(())
    }),
    case("readdir/a cookie nobody gave is harmless", |t| {
        needs(!t.features().kernel, "the kernel checks offsets itself")?;
        let dir = filled(t, 10)?;
        let fh = t.opendir(dir)?;
        for cookie in [1, 2, 3, 1 << 40, u64::MAX] {
            if let Ok(entries) = t.readdir(dir, fh, cookie, 4096) {
                check(entries.len() <= 10, "no more than there is")?;
            }
        }
        t.closedir(dir, fh)?;
        Ok(())
    }),
    case("readdir/needs an open directory", |t| {
        needs(!t.features().kernel, "the kernel knows descriptors itself")?;
        let dir = filled(t, 1)?;
        let fh = t.opendir(dir)?;
        t.closedir(dir, fh)?;
        refused_by("closed", t.readdir(dir, fh, 0, 4096), &[Errno::EBADF])
    }),
];
