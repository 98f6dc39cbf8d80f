//! Holes: making them, filling them with blocks that read zero, finding them.

use std::collections::BTreeMap;

use outboard_base::limits::FILE_SIZE_MAX;

use super::edit::Edit;
use super::index::{
    Entry, PAGE_SPAN, Page, SLOTS, locate, object_prefix, page_key, parse_page_key,
};
use super::ledger::{Asks, Room, Staged, Taken};
use super::{BLOCK, ObjectId, Objects, Progress};
use crate::{Batch, Kv, KvError, Value};
use outboard_medium::Medium;

/// Index pages one call may change (32 MiB of file): bounds its batch to some 200 KiB.
const PAGES_PER_CALL: usize = 128;
/// Index pages a search reads at a time.
const PAGES_PER_SCAN: usize = 64;

/// What a cleared block becomes.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Clear {
    ToHole,
    ToUnwritten,
}

/// The length within its block of byte offset `at`.
fn within(at: u64) -> usize {
    usize::try_from(at % BLOCK).unwrap_or(0)
}

impl<K: Kv, M: Medium> Objects<K, M> {
    /// Makes bytes `from..to` a hole: whole blocks are given back, parts of blocks are zeroed.
    /// `to` may be `u64::MAX`: truncation to `from`, or deletion when `from` is 0. Bounded per
    /// call. If the batch is [`Batch::essential`] it is possible on a full volume, but for cuts
    /// within packed blocks, which are `NoSpace` once they have used up half of the reserve.
    pub async fn punch(
        &self,
        id: ObjectId,
        from: u64,
        to: u64,
        batch: &mut Batch,
    ) -> Result<(Staged, Progress), KvError> {
        self.clear(id, from, to.min(FILE_SIZE_MAX), Clear::ToHole, batch).await
    }

    /// Makes `from..to` read zero but keep, or be given, its blocks (`FALLOC_FL_ZERO_RANGE`).
    pub async fn zero(
        &self,
        id: ObjectId,
        from: u64,
        to: u64,
        batch: &mut Batch,
    ) -> Result<(Staged, Progress), KvError> {
        if to > FILE_SIZE_MAX {
            return Err(KvError::TooLarge);
        }
        self.clear(id, from, to, Clear::ToUnwritten, batch).await
    }

    /// Gives every hole of `from..to` blocks that read zero until written (`fallocate`).
    pub async fn allocate(
        &self,
        id: ObjectId,
        from: u64,
        to: u64,
        batch: &mut Batch,
    ) -> Result<(Staged, Progress), KvError> {
        if to > FILE_SIZE_MAX {
            return Err(KvError::TooLarge);
        }
        if from >= to {
            return Ok((Staged::none(), Progress::Done));
        }
        self.keep_bounds().await?;
        let (blocks, progress) = bounded(from / BLOCK, to.div_ceil(BLOCK));
        let mut edit = self.edit_pages(id, &blocks, Some(batch)).await?;
        let taken = self.give_unwritten(&mut edit, blocks, |entry| entry.block == 0).await?;
        Ok((self.stage(edit, taken, batch), progress))
    }

    async fn clear(
        &self,
        id: ObjectId,
        from: u64,
        to: u64,
        clear: Clear,
        batch: &mut Batch,
    ) -> Result<(Staged, Progress), KvError> {
        if from >= to {
            return Ok((Staged::none(), Progress::Done));
        }
        self.keep_bounds().await?;
        let (first, last) = (from / BLOCK, (to - 1) / BLOCK);
        let (mut edit, progress) = match clear {
            Clear::ToHole => self.edit_mapped(id, first, last, batch).await?,
            Clear::ToUnwritten => {
                let (blocks, progress) = bounded(first, last + 1);
                (self.edit_pages(id, &blocks, Some(batch)).await?, progress)
            }
        };
        let end = match progress {
            Progress::Done => to,
            Progress::More { from } => from,
        };
        let mut taken = self.zero_edges(&mut edit, from, end).await?;
        let whole = from.div_ceil(BLOCK)..end / BLOCK;
        match clear {
            Clear::ToHole => {
                for block in edit.mapped(&whole) {
                    edit.set(block, Entry::HOLE);
                }
            }
            Clear::ToUnwritten => {
                // A block that has data is exchanged, not marked: a crash may bring back the index
                // that trusts its bytes.
                taken.extend(self.give_unwritten(&mut edit, whole, |e| !e.unwritten).await?);
                // The parts of blocks at the edges keep their blocks, or are given some.
                for edge in [from / BLOCK, (end - 1) / BLOCK] {
                    let hole = |e: Entry| e.block == 0;
                    taken.extend(self.give_unwritten(&mut edit, edge..edge + 1, hole).await?);
                }
            }
        }
        Ok((self.stage(edit, taken, batch), progress))
    }

    /// Zeroes the parts of blocks at the ends of `from..to`.
    async fn zero_edges(&self, edit: &mut Edit, from: u64, to: u64) -> Result<Vec<Taken>, KvError> {
        let mut taken = Vec::new();
        let (head, tail) = (from / BLOCK, to / BLOCK);
        if head == tail {
            taken.extend(self.zero_part(edit, head, within(from), within(to)).await?);
            return Ok(taken);
        }
        if !from.is_multiple_of(BLOCK) {
            let end = super::read::BLOCK_LEN;
            taken.extend(self.zero_part(edit, head, within(from), end).await?);
        }
        if !to.is_multiple_of(BLOCK) {
            taken.extend(self.zero_part(edit, tail, 0, within(to)).await?);
        }
        Ok(taken)
    }

    /// Exchanges the entries among `blocks` that `wants` picks for fresh unwritten blocks.
    async fn give_unwritten(
        &self,
        edit: &mut Edit,
        blocks: std::ops::Range<u64>,
        wants: impl Fn(Entry) -> bool,
    ) -> Result<Option<Taken>, KvError> {
        let wanted: Vec<u64> = blocks.filter(|block| wants(edit.get(*block))).collect();
        if wanted.is_empty() {
            return Ok(None);
        }
        let growing = wanted.iter().any(|block| !edit.get(*block).is_whole());
        let taken = self.take(wanted.len() as u64, Asks::growing(growing), Room::Common).await?;
        for (file_block, block) in wanted.into_iter().zip(taken.blocks()) {
            edit.set(file_block, Entry::unwritten(block));
        }
        Ok(Some(taken))
    }

    /// Brings the pages of blocks `first..=last` that are not all holes under edit, as many as one
    /// call may change.
    async fn edit_mapped(
        &self,
        id: ObjectId,
        first: u64,
        last: u64,
        batch: &Batch,
    ) -> Result<(Edit, Progress), KvError> {
        let (from, to) = (locate(first).0, locate(last).0);
        let mut pages = self.mapped_pages(id, from, to, PAGES_PER_CALL + 1, Some(batch)).await?;
        let mut progress = Progress::Done;
        if pages.len() > PAGES_PER_CALL
            && let Some((next, _)) = pages.pop()
        {
            progress = Progress::More { from: u64::from(next) * PAGE_SPAN };
        }
        let mut edit = Edit::new(id);
        pages.into_iter().for_each(|(number, page)| edit.add(number, page));
        Ok((edit, progress))
    }

    /// The first `limit` pages numbered `from..=to` that are not all holes, as `batch` leaves them.
    async fn mapped_pages(
        &self,
        id: ObjectId,
        from: u32,
        to: u32,
        limit: usize,
        batch: Option<&Batch>,
    ) -> Result<Vec<(u32, Page)>, KvError> {
        let prefix = object_prefix(id);
        let mut values: BTreeMap<u32, Value> = BTreeMap::new();
        for write in batch.iter().flat_map(|b| b.writes()) {
            if let (true, Some(value)) = (write.key.starts_with(&prefix), &write.value) {
                values.insert(parse_page_key(&write.key)?.1, value.clone());
            }
        }
        let mut after = from.checked_sub(1).map(|before| page_key(id, before));
        // Pages found up to `known`, where the last scan ended.
        let mut known = from;
        loop {
            let stored = self.kv.scan(&prefix, after.as_ref().map(|key| &key[..]), limit).await?;
            let all = stored.len() < limit;
            for (key, value) in stored {
                known = parse_page_key(&key)?.1;
                if batch.is_none_or(|b| b.staged(&key).is_none()) {
                    values.insert(known, value);
                }
            }
            if all {
                known = to;
            }
            if known >= to || values.range(from..=known).count() >= limit {
                break;
            }
            after = Some(page_key(id, known));
        }
        let near = values.range(from..=known.min(to).max(from)).take(limit);
        near.map(|(number, value)| Ok((*number, Page::decode(id, *number, value)?))).collect()
    }

    /// The first byte at or after `from`, below `size`, that lies in a written block.
    pub async fn seek_data(
        &self,
        id: ObjectId,
        from: u64,
        size: u64,
    ) -> Result<Option<u64>, KvError> {
        let mut at = from;
        while at < size {
            let (number, _) = locate(at / BLOCK);
            let last = locate((size - 1) / BLOCK).0;
            let pages = self.mapped_pages(id, number, last, PAGES_PER_SCAN, None).await?;
            for (number, page) in &pages {
                let start = u64::from(*number) * SLOTS as u64;
                for (block, entry) in (start..).zip(&page.entries) {
                    if entry.is_data() && (block + 1) * BLOCK > at {
                        let found = at.max(block * BLOCK);
                        return Ok((found < size).then_some(found));
                    }
                }
                at = at.max((u64::from(*number) + 1) * PAGE_SPAN);
            }
            if pages.len() < PAGES_PER_SCAN {
                return Ok(None);
            }
        }
        Ok(None)
    }

    /// The first byte at or after `from`, below `size`, that lies in none; `size` if there is none.
    pub async fn seek_hole(&self, id: ObjectId, from: u64, size: u64) -> Result<u64, KvError> {
        let mut at = from;
        while at < size {
            let (number, _) = locate(at / BLOCK);
            let last = locate((size - 1) / BLOCK).0;
            let pages = self.mapped_pages(id, number, last, PAGES_PER_SCAN, None).await?;
            let before = at;
            for (number, page) in &pages {
                let start = u64::from(*number) * SLOTS as u64;
                if start * BLOCK > at {
                    return Ok(at);
                }
                for (block, entry) in (start..).zip(&page.entries) {
                    if !entry.is_data() && (block + 1) * BLOCK > at {
                        return Ok(at.max(block * BLOCK).min(size));
                    }
                }
                at = (u64::from(*number) + 1) * PAGE_SPAN;
            }
            if at == before {
                return Ok(at);
            }
        }
        Ok(size)
    }
}

/// As many of blocks `first..end` as one call may change.
fn bounded(first: u64, end: u64) -> (std::ops::Range<u64>, Progress) {
    let page_end = first / SLOTS as u64 + PAGES_PER_CALL as u64;
    let stop = page_end * SLOTS as u64;
    if end <= stop {
        (first..end, Progress::Done)
    } else {
        (first..stop, Progress::More { from: stop * BLOCK })
    }
}
