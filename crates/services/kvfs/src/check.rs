//! The file system check: is everything in the store as the invariants say?
//!
//! [`Kvfs::check`] runs offline (`outboard fsck`: nothing else uses the volume) and beside other
//! work, from inside the DPU side. It streams: every table is scanned in key order, inodes are
//! taken in windows of [`WINDOW`], and what is kept for the whole run is 24 bytes an object and 16
//! a directory (beside what the object store's own check keeps).
//!
//! Beside other work, two scans do not see the same moment. So every commit of a batch notes the
//! inodes it touches while a check runs (`touched`), and nothing is said about those; and if
//! something was found while others worked, the check is run again and only what both runs found is
//! reported.
//!
//! What it verifies is listed with [`What`]; see `docs/internals/fsck.md`.

mod cursor;
mod inodes;
mod names;
mod repair;
mod report;
pub(crate) mod touched;
mod tree;

use outboard_base::{Errno, Ino};
use outboard_kv::object::{self, Found};
use outboard_kv::{Cached, Kv, KvError};
use outboard_medium::Medium;

pub use report::{Counts, Finding, Report, Severity, What};

use crate::Kvfs;
use crate::layout::key::{self, Counter, Tag};
use crate::layout::{ReplayRecord, Superblock, decode_counter};
use crate::note;
use cursor::Cursor;
use inodes::Window;

/// Inodes judged together: each window costs a scan of all names, and 32 bytes an inode of memory.
pub const WINDOW: usize = 1 << 18;

/// How to check.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Options {
    /// Read every block and compare it with its checksum, too.
    pub contents: bool,
    /// Set right what can be set right without losing anything: counts of blocks, and pairs and
    /// objects that belong to no inode. Only when nothing worse was found, and nothing else uses
    /// the volume.
    pub repair: bool,
}

/// A check at work.
struct Check<'v, K, M> {
    volume: &'v Kvfs<K, M>,
    report: Report,
    /// Objects found, by id, and how far their inodes have been seen.
    objects: Vec<Found>,
    next_object: usize,
    /// Directories with a name: (inode, parent), by inode.
    directories: Vec<(Ino, Ino)>,
    contents: bool,
}

impl<K: Kv, M: Medium> Kvfs<K, M> {
    /// Checks the volume. `EBUSY` while another check runs; any other errno is a failure of the
    /// store that kept it from being checked.
    pub async fn check(&self, options: Options) -> Result<Report, Errno> {
        let (mut report, mut disturbed) = self.check_once(options.contents).await?;
        if disturbed && !report.findings.is_empty() {
            let again;
            (again, disturbed) = self.check_once(options.contents).await?;
            report.keep_common(&again);
        }
        if options.repair && !disturbed {
            self.repair(&mut report).await?;
        }
        Ok(report)
    }

    /// One run, and whether others worked meanwhile.
    async fn check_once(&self, contents: bool) -> Result<(Report, bool), Errno> {
        let noting = self.touched.begin().ok_or(Errno::EBUSY)?;
        let mut check = Check {
            volume: self,
            report: Report::default(),
            objects: Vec::new(),
            next_object: 0,
            directories: Vec::new(),
            contents,
        };
        check.run().await.map_err(KvError::errno)?;
        let touched = noting.end();
        let mut report = check.report;
        report.forgive(touched.as_ref());
        Ok((report, touched.is_none_or(|touched| !touched.is_empty())))
    }
}

impl<K: Kv, M: Medium> Check<'_, K, M> {
    fn kv(&self) -> &Cached<K> {
        &self.volume.kv
    }

    async fn run(&mut self) -> Result<(), KvError> {
        let numbers_end = self.volume_pairs().await?;
        self.objects().await?;
        self.replay_records().await?;
        self.strange_tags().await?;
        self.purges(numbers_end).await?;
        self.notes().await?;
        self.inodes(numbers_end).await?;
        self.tree();
        Ok(())
    }

    /// Superblock and counters; the end of the inode numbers given out.
    async fn volume_pairs(&mut self) -> Result<u64, KvError> {
        let superblock = self.kv().get(&key::SUPERBLOCK).await?;
        if superblock.is_none_or(|value| Superblock::decode(&value).is_err()) {
            self.report.add(What::BadSuperblock, Ino::ROOT, String::new());
        }
        let mut values = [None; 2];
        for (value, which) in values.iter_mut().zip([Counter::Ino, Counter::Opened]) {
            let stored = self.kv().get(&key::counter(which)).await?;
            *value = stored.and_then(|stored| decode_counter(&stored).ok());
            if value.is_none() {
                self.report.add(What::BadCounter, Ino::ROOT, format!("{which:?}"));
            }
        }
        let [numbers_end, _] = values;
        Ok(numbers_end.unwrap_or(u64::MAX))
    }

    /// The object store against itself.
    async fn objects(&mut self) -> Result<(), KvError> {
        let objects = &mut self.objects;
        let checked = self.volume.objects.check(self.contents, |found| objects.push(found)).await;
        let store = match checked {
            Ok(store) => store,
            Err(KvError::Corrupt) => {
                self.report.add(What::BadIndex, Ino::ROOT, "the object index".to_owned());
                return Ok(());
            }
            Err(error) => return Err(error),
        };
        self.report.counts.objects = store.objects;
        self.report.counts.blocks = store.blocks;
        let listed = store.faults.len() as u64;
        for fault in store.faults {
            self.object_fault(fault);
        }
        self.report.total += store.fault_count.saturating_sub(listed);
        Ok(())
    }

    fn object_fault(&mut self, fault: object::Fault) {
        use object::Fault;
        let (what, ino, place) = match fault {
            Fault::BadPage { id, page } => (What::BadIndex, id.0, format!("index page {page}")),
            Fault::UsedTwice { block, id } => {
                (What::BlockUsedTwice, id.0, format!("block {block}"))
            }
            Fault::NotAllocated { block, id } => {
                (What::BlockNotAllocated, id.0, format!("block {block}"))
            }
            Fault::Leaked { block } => (What::BlockLeaked, Ino::ROOT.0, format!("block {block}")),
            Fault::BadBlock { id, offset } => (What::BadBlock, id.0, format!("offset {offset}")),
        };
        self.report.add(what, Ino(ino), place);
    }

    async fn replay_records(&mut self) -> Result<(), KvError> {
        let mut records = Cursor::new(&*self.volume.kv, Tag::Replay);
        while let Some((key, value)) = records.next().await? {
            self.report.counts.replay_records += 1;
            if key.len() != 11 || ReplayRecord::decode(&value).is_err() {
                self.report.add(What::BadReplayRecord, Ino::ROOT, format!("{key:?}"));
            }
        }
        Ok(())
    }

    /// What is to be purged: objects of files that are gone.
    async fn purges(&mut self, numbers_end: u64) -> Result<(), KvError> {
        let mut purges = Cursor::new(&*self.volume.kv, Tag::Purge);
        while let Some((pair_key, _)) = purges.next().await? {
            let Some(number) = key::number(&pair_key).filter(|_| pair_key.len() == 9) else {
                self.report.add(What::StrangeKey, Ino::ROOT, format!("{pair_key:?}"));
                continue;
            };
            self.report.counts.purges += 1;
            if number >= numbers_end {
                self.report.add(What::NumberNotGivenOut, Ino(number), "to be purged".to_owned());
            }
            if self.kv().get(&key::inode(Ino(number))).await?.is_some() {
                self.report.add(What::PurgeOfFile, Ino(number), String::new());
            }
        }
        Ok(())
    }

    /// Notes of who serves the volume.
    async fn notes(&mut self) -> Result<(), KvError> {
        let mut notes = Cursor::new(&*self.volume.kv, Tag::Note);
        while let Some((key, value)) = notes.next().await? {
            if !note::is_fit(key.get(1..).unwrap_or_default(), &value) {
                self.report.add(What::StrangeKey, Ino::ROOT, format!("{key:?}"));
            }
        }
        Ok(())
    }

    /// Keys that nobody writes.
    async fn strange_tags(&mut self) -> Result<(), KvError> {
        /// The object store's tags begin here.
        const OBJECTS: u8 = 0xF0;
        const KNOWN: [Tag; 14] = [
            Tag::Superblock,
            Tag::Counter,
            Tag::Inode,
            Tag::Entry,
            Tag::Listed,
            Tag::Small,
            Tag::Xattr,
            Tag::Orphan,
            Tag::Trim,
            Tag::Replay,
            Tag::Writing,
            Tag::Purge,
            Tag::Note,
            Tag::Lacking,
        ];
        for tag in (0..OBJECTS).filter(|tag| KNOWN.iter().all(|known| *known as u8 != *tag)) {
            if let Some((key, _)) = self.kv().scan(&[tag], None, 1).await?.first() {
                self.report.add(What::StrangeKey, Ino::ROOT, format!("{key:?}"));
            }
        }
        Ok(())
    }

    /// Every inode, and every pair that belongs to one, window by window.
    async fn inodes(&mut self, numbers_end: u64) -> Result<(), KvError> {
        let mut window = Window::new(&*self.volume.kv, numbers_end);
        while window.fill(self).await? {
            window.count_names(self).await?;
            window.judge(self);
        }
        window.finish(self).await?;
        while let Some(found) = self.objects.get(self.next_object).copied() {
            self.next_object += 1;
            self.ownerless_object(found);
        }
        Ok(())
    }

    fn ownerless_object(&mut self, found: Found) {
        let place = format!("{} blocks", found.blocks);
        self.report.add(What::OwnerlessObject, Ino(found.id.0), place);
    }

    /// The object of `ino`, and a finding for every object before it: nobody owns those.
    fn object_of(&mut self, ino: Ino) -> u64 {
        while let Some(found) = self.objects.get(self.next_object).copied() {
            if found.id.0 > ino.0 {
                break;
            }
            self.next_object += 1;
            if found.id.0 == ino.0 {
                return found.blocks;
            }
            self.ownerless_object(found);
        }
        0
    }
}
