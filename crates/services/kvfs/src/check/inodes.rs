//! A window of inodes, and the pairs that belong to each.

use outboard_base::Ino;
use outboard_base::limits::SMALL_FILE_MAX;
use outboard_kv::object::BLOCK;
use outboard_kv::{Cached, Key, Kv, KvError, Value};
use outboard_medium::Medium;
use outboard_wire::file::FileKind;

use super::cursor::Cursor;
use super::report::Finding;
use super::{Check, WINDOW, What};
use crate::data::shape::{SECTORS_PER_BLOCK, Shape};
use crate::layout::key::{self, Tag};
use crate::layout::{DataKind, Inode, decode_small, decode_xattr, marks};

/// What is kept of an inode until its names are counted.
pub(super) struct Slot {
    pub(super) ino: Ino,
    /// `None`: damaged, so nothing more is said about it.
    pub(super) kind: Option<FileKind>,
    pub(super) parent: Ino,
    pub(super) nlink: u32,
    pub(super) names: u32,
}

/// What one directory holds, as counted in its own pairs.
#[derive(Default)]
pub(super) struct Held {
    pub(super) entries: u64,
    pub(super) subdirectories: u64,
    pub(super) listed: u64,
    /// Above every cookie.
    pub(super) cookies_end: u64,
}

/// The inodes `first..end` by number, the cursors of all tables that go by inode beside them.
pub(super) struct Window<'k, K> {
    pub(super) kv: &'k Cached<K>,
    pub(super) slots: Vec<Slot>,
    pub(super) first: u64,
    /// `None`: no end.
    pub(super) end: Option<u64>,
    numbers_end: u64,
    inodes: Cursor<'k, Cached<K>>,
    small: Cursor<'k, Cached<K>>,
    xattrs: Cursor<'k, Cached<K>>,
    orphans: Cursor<'k, Cached<K>>,
    trims: Cursor<'k, Cached<K>>,
    writing: Cursor<'k, Cached<K>>,
    lacking: Cursor<'k, Cached<K>>,
    pub(super) entries: Cursor<'k, Cached<K>>,
    pub(super) listed: Cursor<'k, Cached<K>>,
    started: bool,
}

impl<'k, K: Kv> Window<'k, K> {
    pub(super) fn new(kv: &'k Cached<K>, numbers_end: u64) -> Self {
        let cursor = |tag| Cursor::new(kv, tag);
        Window {
            kv,
            slots: Vec::new(),
            first: 0,
            end: Some(0),
            numbers_end,
            inodes: cursor(Tag::Inode),
            small: cursor(Tag::Small),
            xattrs: cursor(Tag::Xattr),
            orphans: cursor(Tag::Orphan),
            trims: cursor(Tag::Trim),
            writing: cursor(Tag::Writing),
            lacking: cursor(Tag::Lacking),
            entries: cursor(Tag::Entry),
            listed: cursor(Tag::Listed),
            started: false,
        }
    }

    /// Takes the next window; `false` when there are no more inodes, and every number was covered.
    pub(super) async fn fill<M: Medium>(
        &mut self,
        check: &mut Check<'_, K, M>,
    ) -> Result<bool, KvError> {
        let Some(first) = self.end else { return Ok(false) };
        self.first = first;
        self.slots.clear();
        while self.slots.len() < WINDOW {
            let Some((pair_key, value)) = self.inodes.next().await? else { break };
            let Some(number) = key::number(&pair_key).filter(|_| pair_key.len() == 9) else {
                check.report.add(What::StrangeKey, Ino::ROOT, format!("{pair_key:?}"));
                continue;
            };
            self.inode(Ino(number), &value, check).await?;
        }
        if !self.started && self.slots.first().is_none_or(|slot| slot.ino != Ino::ROOT) {
            check.report.add(What::MissingRoot, Ino::ROOT, String::new());
        }
        self.started = true;
        self.end = self.inodes.number().await?;
        Ok(true)
    }

    /// One inode, and whatever belongs to it.
    async fn inode<M: Medium>(
        &mut self,
        ino: Ino,
        value: &[u8],
        check: &mut Check<'_, K, M>,
    ) -> Result<(), KvError> {
        check.report.counts.inodes += 1;
        let inode = Inode::decode(ino, value).ok();
        let blocks = check.object_of(ino);
        let small = pairs_of(&mut self.small, ino, check).await?;
        let xattrs = pairs_of(&mut self.xattrs, ino, check).await?;
        let orphaned = !pairs_of(&mut self.orphans, ino, check).await?.is_empty();
        let trimming = !pairs_of(&mut self.trims, ino, check).await?.is_empty();
        let writing = !pairs_of(&mut self.writing, ino, check).await?.is_empty();
        let lacking = !pairs_of(&mut self.lacking, ino, check).await?.is_empty();
        let held = self.held(ino, check).await?;
        let Some(inode) = inode else {
            check.report.add(What::BadInode, ino, String::new());
            self.slots.push(Slot { ino, kind: None, parent: Ino::ROOT, nlink: 0, names: 0 });
            return Ok(());
        };
        if ino != Ino::ROOT && (ino < Ino::FIRST || ino.0 >= self.numbers_end) {
            check.report.add(What::NumberNotGivenOut, ino, String::new());
        }
        check.report.counts.orphans += u64::from(orphaned);
        if orphaned != (inode.attr.nlink == 0) {
            let place = format!("link count {}", inode.attr.nlink);
            check.report.add(What::WrongOrphan, ino, place);
        }
        if trimming != inode.has(marks::TRIMMING) {
            check.report.add(What::WrongTrim, ino, String::new());
        }
        check.report.counts.writing += u64::from(writing);
        if writing != inode.has(marks::WRITING) {
            check.report.add(What::WrongWriting, ino, String::new());
        }
        if lacking != inode.has(marks::LACKING) {
            check.report.add(What::WrongLacking, ino, String::new());
        }
        check.xattrs(&inode, &xattrs);
        check.shape(&inode, blocks);
        check.small(&inode, small.first().map(|(_, value)| &value[..]));
        if check.contents {
            check.tail(&inode).await?;
        }
        check.held(&inode, &held);
        let (kind, parent, nlink) = (Some(inode.kind()), inode.parent, inode.attr.nlink);
        self.slots.push(Slot { ino, kind, parent, nlink, names: 0 });
        Ok(())
    }

    /// What is left in the tables belongs to nobody.
    pub(super) async fn finish<M: Medium>(
        &mut self,
        check: &mut Check<'_, K, M>,
    ) -> Result<(), KvError> {
        let tables = [
            &mut self.small,
            &mut self.xattrs,
            &mut self.orphans,
            &mut self.trims,
            &mut self.writing,
            &mut self.lacking,
            &mut self.entries,
            &mut self.listed,
        ];
        for table in tables {
            while let Some((pair_key, _)) = table.next().await? {
                check.ownerless(table.tag(), pair_key);
            }
        }
        Ok(())
    }
}

/// The next pair of `ino` in a table, if there is one. Pairs of inodes before it belong to nobody.
pub(super) async fn next_of<K: Kv, M: Medium>(
    table: &mut Cursor<'_, Cached<K>>,
    ino: Ino,
    check: &mut Check<'_, K, M>,
) -> Result<Option<(Key, Value)>, KvError> {
    while let Some(number) = table.number().await? {
        if number > ino.0 {
            return Ok(None);
        }
        let Some(pair) = table.next().await? else { return Ok(None) };
        if number == ino.0 && pair.0.len() >= 9 {
            return Ok(Some(pair));
        }
        check.ownerless(table.tag(), pair.0);
    }
    Ok(None)
}

/// All of them, in a table that has few for each inode.
async fn pairs_of<K: Kv, M: Medium>(
    table: &mut Cursor<'_, Cached<K>>,
    ino: Ino,
    check: &mut Check<'_, K, M>,
) -> Result<Vec<(Key, Value)>, KvError> {
    let mut pairs = Vec::new();
    while let Some(pair) = next_of(table, ino, check).await? {
        pairs.push(pair);
    }
    Ok(pairs)
}

impl<K: Kv, M: Medium> Check<'_, K, M> {
    pub(super) fn ownerless(&mut self, tag: Tag, pair_key: Key) {
        let ino = Ino(key::number(&pair_key).unwrap_or(0));
        let place = format!("{tag:?} {pair_key:?}");
        // Names are not thrown away: what they lead to would lose one.
        let removable = !matches!(tag, Tag::Entry | Tag::Listed);
        let key = removable.then_some(pair_key);
        let what = What::OwnerlessPair;
        self.report.push(Finding { what, ino, place, repaired: false, other: None, key });
    }

    fn xattrs(&mut self, inode: &Inode, xattrs: &[(Key, Value)]) {
        let ino = inode.ino();
        self.report.counts.xattrs += xattrs.len() as u64;
        for (pair_key, value) in xattrs {
            let name = key::rest(pair_key);
            if decode_xattr(ino, name, value).is_err() {
                self.report.add(What::BadXattr, ino, name.escape_ascii().to_string());
            }
        }
        if !xattrs.is_empty() && !inode.has(marks::ACL | marks::DEFAULT_ACL | marks::XATTRS) {
            self.report.add(What::UnmarkedXattr, ino, String::new());
        }
    }

    /// Size, form, marks and count of blocks.
    fn shape(&mut self, inode: &Inode, blocks: u64) {
        let ino = inode.ino();
        let shape = Shape::of(inode);
        let sound = match (inode.kind(), shape.data) {
            (FileKind::Regular, DataKind::Small) => {
                shape.size <= SMALL_FILE_MAX as u64 && !shape.trimming && blocks == 0
            }
            (FileKind::Regular, DataKind::Big) => true,
            (FileKind::Regular, DataKind::Spread) => !shape.trimming && blocks == 0,
            (FileKind::Regular, DataKind::None) => shape.trimming || blocks == 0,
            (FileKind::Symlink, DataKind::Small) => !shape.trimming && blocks == 0,
            (FileKind::Symlink, _) => false,
            (_, data) => data == DataKind::None && !shape.trimming && blocks == 0,
        };
        let spread = shape.data == DataKind::Spread;
        self.report.counts.spread_files += u64::from(spread);
        let laid_out = inode.is_directory() || inode.layout.is_some() == spread;
        if !sound || !laid_out || (inode.has(marks::WRITING | marks::LACKING) && !spread) {
            let layout = inode.layout;
            let place = format!("{shape:?}, {blocks} blocks, {layout:?}, marks {:#x}", inode.marks);
            self.report.add(What::BadShape, ino, place);
        }
        // What a spread file takes its nodes know.
        let is_here = !matches!(shape.data, DataKind::Small | DataKind::Spread);
        let counts = inode.kind() == FileKind::Regular && is_here;
        if counts && shape.sectors != blocks * SECTORS_PER_BLOCK {
            let place = format!("{} sectors, {blocks} blocks", shape.sectors);
            self.report.add(What::WrongBlockCount, ino, place);
        }
    }

    fn small(&mut self, inode: &Inode, stored: Option<&[u8]>) {
        let ino = inode.ino();
        let wanted = inode.data == DataKind::Small;
        self.report.counts.small_files += u64::from(stored.is_some());
        match stored {
            None if wanted => self.report.add(What::BadSmallFile, ino, "missing".to_owned()),
            None => {}
            Some(_) if !wanted => {
                let place = "a small file's bytes beside another form".to_owned();
                self.report.add(What::BadShape, ino, place);
            }
            Some(stored) => match decode_small(ino, stored) {
                Err(_) => self.report.add(What::BadSmallFile, ino, "damaged".to_owned()),
                Ok(bytes) => {
                    let len = bytes.len() as u64;
                    let link = inode.kind() == FileKind::Symlink;
                    if len > inode.attr.size || (link && len != inode.attr.size) {
                        let place = format!("{len} bytes of {}", inode.attr.size);
                        self.report.add(What::BadShape, ino, place);
                    }
                }
            },
        }
    }

    /// A file's last block keeps zeros beyond the end, for they show when it grows.
    async fn tail(&mut self, inode: &Inode) -> Result<(), KvError> {
        let shape = Shape::of(inode);
        let len = usize::try_from(shape.trim_from() - shape.size).unwrap_or(0);
        if shape.data != DataKind::Big || len == 0 {
            return Ok(());
        }
        let mut tail = vec![0; len.min(usize::try_from(BLOCK).unwrap_or(len))];
        match self.volume.store().read(inode.ino(), &shape, shape.size, &mut tail).await {
            Ok(()) if tail.iter().all(|byte| *byte == 0) => {}
            Ok(()) => self.report.add(What::StaleTail, inode.ino(), String::new()),
            Err(KvError::Corrupt) => {} // Reported as a bad block.
            Err(error) => return Err(error),
        }
        Ok(())
    }

    /// A directory's own counts.
    fn held(&mut self, inode: &Inode, held: &Held) {
        let ino = inode.ino();
        if !inode.is_directory() {
            if held.entries + held.listed > 0 {
                self.report.add(What::EntriesOfNoDirectory, ino, String::new());
            }
            return;
        }
        self.report.counts.directories += 1;
        self.report.counts.names += held.entries;
        if inode.attr.nlink > 0 {
            self.directories.push((ino, inode.parent));
        }
        if inode.entries != held.entries {
            let place = format!("{} instead of {}", inode.entries, held.entries);
            self.report.add(What::WrongEntryCount, ino, place);
        }
        if held.cookies_end > inode.next_cookie {
            self.report.add(What::CookieNotGivenOut, ino, String::new());
        }
        let links = 2 + held.subdirectories;
        if inode.attr.nlink > 0 && u64::from(inode.attr.nlink) != links {
            let place = format!("{} instead of {links}", inode.attr.nlink);
            self.report.add(What::WrongLinkCount, ino, place);
        }
    }
}
