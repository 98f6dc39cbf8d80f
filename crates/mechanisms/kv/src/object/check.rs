//! Checking the store against itself, while it works or at rest.

use std::collections::{BTreeSet, HashMap};

use super::index::{Entry, Page, SLOTS, TAG_INDEX, parse_page_key};
use super::map::PAGE_BLOCKS;
use super::{BLOCK, ObjectId, Objects};
use crate::{Key, Kv, KvError};
use outboard_medium::Medium;

/// Index pages a scan fetches.
const SCAN: usize = 256;
/// Faults listed; more are counted only.
const FAULTS_MAX: usize = 1000;

/// Something that must not be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// An index page that is none.
    BadPage {
        /// Whose.
        id: ObjectId,
        /// Its number: it covers 256 KiB of file from this many times 256 KiB.
        page: u32,
    },
    /// Two places in indexes, or two in one, name the same block, or overlap in one they share.
    UsedTwice {
        /// The block.
        block: u64,
        /// The object found second.
        id: ObjectId,
    },
    /// An index names a block that the allocation map calls free, or that is not there.
    NotAllocated {
        /// The block.
        block: u64,
        /// The object.
        id: ObjectId,
    },
    /// The allocation map calls used a block that no index names.
    Leaked {
        /// The block.
        block: u64,
    },
    /// A block's bytes fail their checksum or cannot be read.
    BadBlock {
        /// The object.
        id: ObjectId,
        /// Offset in the object, bytes.
        offset: u64,
    },
}

/// An object found by a check.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Found {
    /// Its id.
    pub id: ObjectId,
    /// Blocks of file it has.
    pub blocks: u64,
    /// Offset after its last block, bytes.
    pub end: u64,
}

/// What a check found.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Report {
    /// Objects with at least one block.
    pub objects: u64,
    /// Blocks of the medium named by indexes.
    pub blocks: u64,
    /// Blocks of file in them: more, where they are packed.
    pub filled: u64,
    /// Faults in all.
    pub fault_count: u64,
    /// The first thousand of them.
    pub faults: Vec<Fault>,
}

impl Report {
    fn fault(&mut self, fault: Fault) {
        self.fault_count += 1;
        if self.faults.len() < FAULTS_MAX {
            self.faults.push(fault);
        }
    }
}

/// A check at work.
struct Check {
    report: Report,
    /// Who was found to hold each block.
    holders: HashMap<u64, ObjectId>,
    /// Blocks found held twice: counted once the touched ones are known.
    twice: Vec<(u64, ObjectId)>,
    current: Option<Found>,
}

impl Check {
    /// Counts a page; returns a finished object, if this page begins another.
    fn page(&mut self, id: ObjectId, number: u32, page: &Page) -> Option<Found> {
        let finished = self.current.take_if(|found| found.id != id);
        let start = u64::from(number) * SLOTS as u64;
        for (at, _) in (start..).zip(&page.entries).filter(|(_, entry)| entry.block != 0) {
            let found = self.current.get_or_insert(Found { id, blocks: 0, end: 0 });
            found.blocks += 1;
            found.end = (at + 1) * BLOCK;
            self.report.filled += 1;
        }
        self.blocks(id, page);
        finished
    }
}

impl Check {
    /// Counts the blocks of the medium a page names. Its entries may share some, but no sector.
    fn blocks(&mut self, id: ObjectId, page: &Page) {
        let mut entries: Vec<Entry> = page.entries.to_vec();
        entries.retain(|entry| entry.block != 0);
        entries.sort_unstable_by_key(|entry| entry.sectors().start);
        for pair in entries.windows(2) {
            if let [a, b] = pair
                && a.sectors().end > b.sectors().start
            {
                self.twice.push((b.block, id));
            }
        }
        let named: BTreeSet<u64> = entries.iter().flat_map(|entry| entry.blocks()).collect();
        self.report.blocks += named.len() as u64;
        for block in named {
            if self.holders.insert(block, id).is_some() {
                self.twice.push((block, id));
            }
        }
    }
}

impl<K: Kv, M: Medium> Objects<K, M> {
    /// Checks that no two index entries lie in one place, that those of two pages share no block,
    /// that the allocation map is exactly the blocks named and, if `contents`, that every block
    /// matches its checksum. Calls `seen` for each object. Runs beside other work: what changes
    /// meanwhile is not judged. One at a time: `Conflict` if another runs.
    pub async fn check(
        &self,
        contents: bool,
        mut seen: impl FnMut(Found),
    ) -> Result<Report, KvError> {
        let used = self.ledger.begin_check().ok_or(KvError::Conflict)?;
        let ended = Ended(self);
        let mut check = Check {
            report: Report::default(),
            holders: HashMap::new(),
            twice: Vec::new(),
            current: None,
        };
        let mut after: Option<Key> = None;
        loop {
            let pairs = self.kv.scan(&[TAG_INDEX], after.as_deref(), SCAN).await?;
            let more = pairs.len() == SCAN;
            after = pairs.last().map(|(key, _)| key.clone());
            for (key, value) in pairs {
                let (id, number) = parse_page_key(&key)?;
                match Page::decode(id, number, &value) {
                    Err(_) => check.report.fault(Fault::BadPage { id, page: number }),
                    Ok(page) => {
                        if let Some(found) = check.page(id, number, &page) {
                            check.report.objects += 1;
                            seen(found);
                        }
                        if contents {
                            self.check_contents(id, number, &page, &mut check.report).await?;
                        }
                    }
                }
            }
            if !more {
                break;
            }
        }
        if let Some(found) = check.current.take() {
            check.report.objects += 1;
            seen(found);
        }
        let touched = ended.touched();
        let Check { mut report, holders, twice, .. } = check;
        for (block, id) in twice.into_iter().filter(|(block, _)| !touched.contains(block)) {
            report.fault(Fault::UsedTwice { block, id });
        }
        let is_used = |block: u64| {
            let page = usize::try_from(block / PAGE_BLOCKS).ok().and_then(|at| used.get(at));
            page.is_some_and(|page| page.is_used(block % PAGE_BLOCKS))
        };
        for (block, id) in &holders {
            if !is_used(*block) && !touched.contains(block) {
                report.fault(Fault::NotAllocated { block: *block, id: *id });
            }
        }
        for block in (0..).zip(&used).flat_map(|(at, page)| page.used_blocks(at)) {
            if block != 0 && !holders.contains_key(&block) && !touched.contains(&block) {
                report.fault(Fault::Leaked { block });
            }
        }
        Ok(report)
    }

    /// How many blocks of file an object has.
    pub async fn count(&self, id: ObjectId) -> Result<u64, KvError> {
        let prefix = super::index::object_prefix(id);
        let mut blocks = 0;
        let mut after: Option<Key> = None;
        loop {
            let pairs = self.kv.scan(&prefix, after.as_deref(), SCAN).await?;
            let more = pairs.len() == SCAN;
            after = pairs.last().map(|(key, _)| key.clone());
            for (key, value) in pairs {
                let page = Page::decode(id, parse_page_key(&key)?.1, &value)?;
                blocks += page.entries.iter().filter(|entry| entry.block != 0).count() as u64;
            }
            if !more {
                return Ok(blocks);
            }
        }
    }

    async fn check_contents(
        &self,
        id: ObjectId,
        number: u32,
        page: &Page,
        report: &mut Report,
    ) -> Result<(), KvError> {
        let start = u64::from(number) * SLOTS as u64;
        for (at, entry) in (start..).zip(&page.entries).filter(|(_, entry)| entry.is_data()) {
            if let Ok(Some(buf)) = self.read_block(*entry).await {
                self.pool.give(buf);
                continue;
            }
            // Bad, unless a writer was faster.
            let now = self.page(id, number, None).await?;
            let (_, slot) = super::index::locate(at);
            if now.get(slot) == *entry {
                report.fault(Fault::BadBlock { id, offset: at * BLOCK });
            }
        }
        Ok(())
    }
}

/// Ends the check however it ends.
struct Ended<'a, K: Kv, M: Medium>(&'a Objects<K, M>);

impl<K: Kv, M: Medium> Ended<'_, K, M> {
    fn touched(&self) -> std::collections::HashSet<u64> {
        self.0.ledger.end_check()
    }
}

impl<K: Kv, M: Medium> Drop for Ended<'_, K, M> {
    fn drop(&mut self) {
        self.0.ledger.end_check();
    }
}
