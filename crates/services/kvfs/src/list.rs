//! readdir: entries from the newest cookie down, stable while the directory changes.
//!
//! A name gets its cookie when it is made (or takes over the one of the name it replaces) and keeps
//! it; cookies of a directory only grow. A listing goes down: it goes on *below* the last cookie it
//! gave. So it sees every name that was there all the time exactly once, and nothing that was made
//! after it began: it ends, whatever comes meanwhile, and needs no state but the cookie.
//!
//! Stores scan upwards only. [`Descent`] reads windows of cookies, as wide as the directory is
//! dense there, and turns each around.

use outboard_base::{Errno, Fh, Ino, Result, limits};
use outboard_kv::{Key, Kv, KvError, Value};
use outboard_medium::Medium;
use outboard_wire::file::{Attr, Dirent, DirentsWriter, Reply};

use crate::context::Context;
use crate::layout::{FIRST_COOKIE, Inode, Listed, key};
use crate::permission::READ;
use crate::{Answer, Kvfs, Payload};

/// Entries fetched at a time.
const PAGE: usize = 256;
/// The shortest entry on the wire, bytes.
const DIRENT_MIN: usize = 32;
/// Scans one request makes before it answers with what it has found. The widest gap between two
/// entries takes fewer.
const SCANS: usize = 128;
/// An empty window is followed by one so many times as wide.
const GALLOP: u64 = 8;

impl<K: Kv, M: Medium> Kvfs<K, M> {
    pub(crate) async fn readdir(
        &self,
        cx: &Context<'_>,
        ino: Ino,
        fh: Fh,
        cookie: u64,
        len: u32,
        with_attributes: bool,
    ) -> Result<Answer> {
        let inode = self.inode(ino).await;
        if fh == Fh::NONE {
            let inode = inode.as_ref().map_err(|&errno| errno)?;
            if !inode.is_directory() {
                return Err(Errno::ENOTDIR);
            }
            self.permit(cx, inode, READ).await?;
        } else if !self.handles.get(cx.attachment, fh, ino)?.directory {
            return Err(Errno::ENOTDIR);
        }
        if cookie == 0 {
            self.accessed(cx, ino, 0).await;
        }
        let len = usize::try_from(len).unwrap_or(usize::MAX).min(limits::IO_MAX);
        let mut buffer = vec![0; len];
        let mut writer = DirentsWriter::new(&mut buffer);
        let mut named = Vec::new();
        let mut descent = Descent::new(inode.ok().as_ref(), cookie);
        for scans in 1.. {
            let page = PAGE.min((len - writer.len()) / DIRENT_MIN + 1);
            let pairs = self.scan_down(ino, &mut descent, page).await?;
            let attrs = if with_attributes { self.attrs(ino, &pairs).await? } else { Vec::new() };
            let full = write_page(ino, &pairs, attrs, &mut writer, &mut named)?;
            if full && writer.is_empty() {
                return Err(Errno::EINVAL);
            }
            // No entries at all would say that there are no more.
            if full || descent.is_over() || (scans >= SCANS && !writer.is_empty()) {
                break;
            }
        }
        let used = writer.len();
        buffer.truncate(used);
        if with_attributes {
            self.handles.add_interests(cx.attachment, named.into_iter());
        }
        let reply = Reply::Data(u32::try_from(used).map_err(|_| Errno::EOVERFLOW)?);
        Ok(Answer { reply, payload: Payload::Bytes(buffer) })
    }

    /// One scan of a descent: entries from the highest cookie down, which may be none before the
    /// descent is over.
    async fn scan_down(
        &self,
        dir: Ino,
        descent: &mut Descent,
        page: usize,
    ) -> Result<Vec<(Key, Value)>> {
        let Some((from, most)) = descent.window(page) else { return Ok(Vec::new()) };
        let after = key::listed(dir, from - 1);
        let pairs = self.kv.scan(&key::of(key::Tag::Listed, dir), Some(&after), most).await;
        let mut pairs = pairs.map_err(KvError::errno)?;
        let cookies: Result<Vec<u64>> = pairs.iter().map(|(key, _)| key::cookie(key)).collect();
        pairs.truncate(descent.take(from, most, page, &cookies?));
        pairs.reverse();
        Ok(pairs)
    }

    /// The attributes of what each pair leads to: `None` for what is gone meanwhile, or damaged.
    async fn attrs(&self, dir: Ino, pairs: &[(Key, Value)]) -> Result<Vec<Option<Attr>>> {
        let mut inos = Vec::with_capacity(pairs.len());
        for (key, value) in pairs {
            inos.push(Listed::decode(dir, key::cookie(key)?, value)?.ino);
        }
        let keys: Vec<Key> = inos.iter().map(|&ino| key::inode(ino).into()).collect();
        let values = self.kv.get_many(&keys).await.map_err(KvError::errno)?;
        let attr = |(ino, value): (Ino, Option<Value>)| {
            value.and_then(|value| Inode::decode(ino, &value).ok()).map(|inode| inode.attr)
        };
        Ok(inos.into_iter().zip(values).map(attr).collect())
    }
}

/// Where a listing has got to, and how far it looks down at a time.
#[derive(Debug)]
struct Descent {
    /// What is still to be listed has smaller cookies.
    below: u64,
    /// Cookies the next scan spans.
    width: u64,
    /// Cookies for one entry, as the whole directory is.
    spread: u64,
    /// From here on, and below [`Self::below`], are more entries than a page; 0: nobody knows.
    crowd: u64,
}

impl Descent {
    /// On from `cookie`; from the newest name if it is none. Without an inode that can be read the
    /// newest name is looked for.
    fn new(inode: Option<&Inode>, cookie: u64) -> Descent {
        let top = inode.map_or(u64::MAX, |inode| inode.next_cookie);
        let entries = inode.map_or(1, |inode| inode.entries.max(1));
        let below = if cookie < FIRST_COOKIE { top } else { cookie.min(top) };
        let spread = top.saturating_sub(FIRST_COOKIE).div_ceil(entries).clamp(1, 1 << 20);
        Descent { below, width: 0, spread, crowd: 0 }
    }

    /// There is nothing below.
    fn is_over(&self) -> bool {
        self.below <= FIRST_COOKIE
    }

    /// The next window for a page of so many entries: its first cookie, and how many entries to
    /// read at most.
    fn window(&mut self, page: usize) -> Option<(u64, usize)> {
        if self.is_over() {
            return None;
        }
        let page = page as u64;
        if self.width == 0 {
            self.width = page.saturating_mul(self.spread);
        }
        // So many always fit: no two entries have one cookie.
        self.width = self.width.max(page);
        let from = self.below.saturating_sub(self.width).max(FIRST_COOKIE);
        Some((from, usize::try_from(page.min(self.below - from)).unwrap_or(1)))
    }

    /// The window from `from` on was read, `most` entries of it: how many of those with the cookies
    /// `found` are its entries. None if there may be more than these: narrower windows follow.
    fn take(&mut self, from: u64, most: usize, page: usize, found: &[u64]) -> usize {
        let width = self.below - from;
        if found.len() == most && found.last().is_some_and(|&last| last < self.below - 1) {
            self.width = (width / 2).max(1);
            self.crowd = from;
            return 0;
        }
        let entries = found.partition_point(|&cookie| cookie < self.below);
        self.below = from;
        let next = match entries as u64 {
            0 if (1..from).contains(&self.crowd) => (from - self.crowd) / 2,
            0 => self.width.saturating_mul(GALLOP),
            // Somewhat fewer than a page, so that the next window is seldom too wide.
            entries => (page as u64 * 3 / 4).saturating_mul(width / entries),
        };
        self.width = next.max(1);
        entries
    }
}

/// Writes entries until one does not fit: true then.
fn write_page(
    dir: Ino,
    pairs: &[(Key, Value)],
    attrs: Vec<Option<Attr>>,
    writer: &mut DirentsWriter<'_>,
    named: &mut Vec<Ino>,
) -> Result<bool> {
    let mut attrs = attrs.into_iter();
    for (key, value) in pairs {
        let cookie = key::cookie(key)?;
        let Listed { ino, kind, name } = Listed::decode(dir, cookie, value)?;
        let attr = attrs.next().flatten();
        let with_attr = attr.is_some();
        if !writer.push(&Dirent { ino, cookie, kind, name, attr })? {
            return Ok(true);
        }
        if with_attr {
            named.push(ino);
        }
    }
    Ok(false)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use outboard_base::Rng;

    use super::*;

    /// Lists `cookies`, a page at a time; how many scans that took.
    fn descend(mut descent: Descent, cookies: &BTreeSet<u64>, page: usize) -> (Vec<u64>, usize) {
        let (mut listed, mut scans) = (Vec::new(), 0);
        while let Some((from, most)) = descent.window(page) {
            let found: Vec<u64> = cookies.range(from..).take(most).copied().collect();
            let entries = descent.take(from, most, page, &found);
            listed.extend(found[..entries].iter().rev());
            scans += 1;
        }
        (listed, scans)
    }

    fn directory(next_cookie: u64, entries: usize) -> Inode {
        let mut dir = Inode::new(Ino(2), Ino::ROOT, 0o040_755, outboard_base::Timestamp::default());
        (dir.next_cookie, dir.entries) = (next_cookie, entries as u64);
        dir
    }

    /// Runs of names with gaps of any width between them, by pages of any length: each once, from
    /// the newest down, and the widest gap takes few scans.
    #[test]
    fn a_descent_finds_every_entry_over_gaps_of_any_width() {
        for seed in 0..300 {
            let mut rng = Rng::new(seed);
            let (mut next, mut cookies, mut gaps) = (FIRST_COOKIE, BTreeSet::new(), 0);
            for _ in 0..rng.below(12) {
                let widest = 1 << rng.below(58);
                next += rng.below(widest);
                gaps += 1;
                for _ in 0..rng.below(2000) {
                    cookies.insert(next);
                    next += 1 + rng.below(2);
                }
            }
            let page = 1 + usize::try_from(rng.below(300)).unwrap();
            let dir = directory(next, cookies.len());
            let down: Vec<u64> = cookies.iter().rev().copied().collect();
            for inode in [Some(&dir), None] {
                let (listed, scans) = descend(Descent::new(inode, 0), &cookies, page);
                assert!(listed == down, "seed {seed}");
                let most = cookies.len() * 3 / page + (gaps + 1) * 128;
                assert!(scans <= most, "seed {seed}: {scans} scans of {most}");
            }
            if let Some(&at) = down.get(down.len() / 3) {
                let (listed, _) = descend(Descent::new(Some(&dir), at), &cookies, page);
                assert!(listed == down[down.len() / 3 + 1..], "seed {seed}");
            }
        }
    }

    /// Where nothing was removed a page is one scan.
    #[test]
    fn a_dense_directory_takes_a_scan_a_page() {
        let cookies: BTreeSet<u64> = (FIRST_COOKIE..FIRST_COOKIE + 10_000).collect();
        let dir = directory(FIRST_COOKIE + 10_000, cookies.len());
        let (listed, scans) = descend(Descent::new(Some(&dir), 0), &cookies, 100);
        assert_eq!((listed.len(), scans), (10_000, 100));
    }
}
