//! Writing: fresh blocks, written and summed, then named by the index entries staged.
//!
//! The two halves may be called apart: [`Objects::write_out`] does what takes time and changes
//! nothing anybody sees, so that writes of one object go on side by side, and [`Objects::place`]
//! stages what came of it, quickly and one at a time. Where blocks are packed, `write/packed.rs` is
//! the first half.

mod packed;

use std::ops::Range;
use std::sync::atomic::Ordering;

use outboard_base::limits::IO_MAX;
use outboard_codec::crc32c;

use super::edit::Edit;
use super::index::Entry;
use super::ledger::{Asks, Room, Staged, Taken};
use super::map::Run;
use super::read::{BLOCK_LEN, blocks_of};
use super::{BLOCK, Compression, ObjectId, Objects};
use crate::{Batch, Kv, KvError};
use outboard_base::task::join_all;
use outboard_medium::{Buf, Medium};

/// Fresh blocks with a write's bytes on the medium, which no index names yet.
///
/// Dropped, it leaves nothing behind; its blocks are free after the next sync.
#[must_use = "to be placed into a batch"]
pub struct Written {
    /// The blocks of file written, from the first on.
    first: u64,
    entries: Vec<Entry>,
    taken: Option<Taken>,
}

impl Written {
    fn blocks(&self) -> Range<u64> {
        self.first..self.first + self.entries.len() as u64
    }
}

impl<K: Kv, M: Medium> Objects<K, M> {
    /// Writes `data` at `offset` (at most [`IO_MAX`] bytes; up to
    /// [`FILE_SIZE_MAX`](outboard_base::limits::FILE_SIZE_MAX); `TooLarge` beyond). Costs: parts of
    /// blocks are read first, unless they were lately; one medium write for each run of fresh
    /// blocks, one if space is not fragmented; for each 256 KiB touched, an index page in the
    /// batch; 25 bytes a block of log. An essential batch writes out of [`Room::Reserved`].
    pub async fn write(
        &self,
        id: ObjectId,
        offset: u64,
        data: &[u8],
        batch: &mut Batch,
    ) -> Result<Staged, KvError> {
        let blocks = blocks_of(offset, data.len())?;
        if data.is_empty() {
            return Ok(Staged::none());
        }
        let mut edit = self.edit_pages(id, &blocks, Some(batch)).await?;
        let room = if batch.is_essential() { Room::Reserved } else { Room::Common };
        let written = self.write_fresh(&edit, offset, data, room).await?;
        let taken = Self::enter(&mut edit, written);
        Ok(self.stage(edit, taken, batch))
    }

    /// The first half of [`Objects::write`]: the bytes are on fresh blocks, and nobody sees them
    /// yet. Nothing else may change blocks that this touches until it is placed or dropped.
    pub async fn write_out(
        &self,
        id: ObjectId,
        offset: u64,
        data: &[u8],
        room: Room,
    ) -> Result<Written, KvError> {
        let blocks = blocks_of(offset, data.len())?;
        if data.is_empty() {
            return Ok(Written { first: blocks.start, entries: Vec::new(), taken: None });
        }
        let edit = self.edit_pages(id, &blocks, None).await?;
        self.write_fresh(&edit, offset, data, room).await
    }

    /// The second half: stages the index entries that name what was written to `id`, by one or
    /// several, under one record. Calls for one object are serialised from here to the end of the
    /// commit, or the batch is under a condition that fails when another has been committed.
    pub async fn place(
        &self,
        id: ObjectId,
        mut written: Vec<Written>,
        batch: &mut Batch,
    ) -> Result<Staged, KvError> {
        // In their order on the pages, so that the record names each page once.
        written.sort_unstable_by_key(|written| written.first);
        let mut edit = Edit::new(id);
        let mut taken = Vec::with_capacity(written.len());
        for written in written.into_iter().filter(|written| !written.entries.is_empty()) {
            self.add_pages(&mut edit, &written.blocks(), Some(batch)).await?;
            taken.extend(Self::enter(&mut edit, written));
        }
        Ok(self.stage(edit, taken, batch))
    }

    /// Enters what was written into the pages under edit.
    fn enter(edit: &mut Edit, written: Written) -> Option<Taken> {
        for (file_block, entry) in written.blocks().zip(&written.entries) {
            edit.set(file_block, *entry);
        }
        written.taken
    }

    /// Writes `data` and what surrounds it in its first and last block to fresh blocks.
    async fn write_fresh(
        &self,
        edit: &Edit,
        offset: u64,
        data: &[u8],
        room: Room,
    ) -> Result<Written, KvError> {
        if data.len() > IO_MAX {
            return Err(KvError::TooLarge);
        }
        self.keep_bounds().await?;
        let blocks = blocks_of(offset, data.len())?;
        let fresh = self.surround(edit, offset, data).await?;
        let growing = blocks.clone().any(|block| !edit.get(block).is_whole());
        let packed = match self.compression {
            Compression::None => None,
            Compression::Lz4 => fresh.pack(&self.pool, |at| edit.get(at).is_whole()).await,
        };
        let outcome = match &packed {
            Some(parts) => self.write_parts(&fresh, parts, room).await,
            None => self.write_blocks(&fresh, blocks.clone(), growing, room).await,
        };
        fresh.edges().for_each(|buf| self.pool.give(buf));
        let (entries, taken) = outcome?;
        Ok(Written { first: blocks.start, entries, taken: Some(taken) })
    }

    /// What stands around a write that does not begin or end with a block.
    async fn surround<'d>(
        &self,
        edit: &Edit,
        offset: u64,
        data: &'d [u8],
    ) -> Result<Fresh<'d>, KvError> {
        let mut fresh = Fresh { offset, data, head: None, tail: None };
        let blocks = fresh.blocks();
        let last = blocks.end - 1;
        if !fresh.is_whole(blocks.start) {
            fresh.head = self.read_block(edit.get(blocks.start)).await?;
        }
        if last != blocks.start && !fresh.is_whole(last) {
            fresh.tail = self.read_block(edit.get(last)).await?;
        }
        Ok(fresh)
    }

    /// Writes `blocks` as they are. Returns the entries that will name them, and what they took.
    async fn write_blocks(
        &self,
        fresh: &Fresh<'_>,
        blocks: Range<u64>,
        growing: bool,
        room: Room,
    ) -> Result<(Vec<Entry>, Taken), KvError> {
        let taken = self.take(blocks.end - blocks.start, Asks::growing(growing), room).await?;
        let mut entries = Vec::new();
        let mut bufs = Vec::new();
        let mut at = blocks.start;
        for run in &taken.runs {
            let mut buf = self.pool.take(run.len);
            for (bytes, block) in buf.chunks_mut(BLOCK_LEN).zip(run.start..) {
                fresh.fill(at, bytes);
                entries.push(Entry::whole(block, crc32c(bytes)));
                at += 1;
            }
            bufs.push((*run, buf));
        }
        let parts = (blocks.start..).zip(&entries).filter(|(at, _)| !fresh.is_whole(*at));
        let parts: Vec<Entry> = parts.map(|(_, entry)| *entry).collect();
        self.write_runs(bufs, &parts).await?;
        Ok((entries, taken))
    }

    /// Writes one run, and keeps those of its blocks that are in `parts`.
    async fn write_run(&self, run: Run, buf: Buf, parts: &[Entry]) -> Result<(), KvError> {
        self.packing.plain.fetch_add(run.len * BLOCK, Ordering::Relaxed);
        let (result, buf) = self.put_run(run, buf).await;
        if result.is_ok() {
            let kept = parts.iter().filter(|part| run.has(part.block));
            for part in kept {
                if run.len == 1 {
                    self.keep(*part, buf);
                    return Ok(());
                }
                let nth = usize::try_from(part.block - run.start).unwrap_or(usize::MAX);
                if let Some(bytes) = buf.chunks(BLOCK_LEN).nth(nth) {
                    let mut copy = self.pool.take(1);
                    copy.copy_from_slice(bytes);
                    self.keep(*part, copy);
                }
            }
        }
        self.pool.give(buf);
        result
    }

    /// Writes `buf` to the start of a run.
    pub(super) async fn put_run(&self, run: Run, buf: Buf) -> (Result<(), KvError>, Buf) {
        let sent = buf.len() as u64;
        let (result, buf) = self.medium.write(run.start * BLOCK, buf).await;
        self.recent.forget(run);
        self.packing.taken.fetch_add(run.len * BLOCK, Ordering::Relaxed);
        self.packing.sent.fetch_add(sent, Ordering::Relaxed);
        (result.map_err(KvError::from), buf)
    }

    async fn write_runs(&self, mut bufs: Vec<(Run, Buf)>, parts: &[Entry]) -> Result<(), KvError> {
        if bufs.len() == 1
            && let Some((run, buf)) = bufs.pop()
        {
            return self.write_run(run, buf, parts).await;
        }
        let writes = bufs.into_iter().map(|(run, buf)| self.write_run(run, buf, parts)).collect();
        join_all(writes).await.into_iter().collect()
    }

    /// Rewrites one block with bytes `from..to` of it zeroed, if it has data.
    pub(super) async fn zero_part(
        &self,
        edit: &mut Edit,
        file_block: u64,
        from: usize,
        to: usize,
    ) -> Result<Option<Taken>, KvError> {
        let old = edit.get(file_block);
        let Some(mut buf) = self.read_block(old).await? else { return Ok(None) };
        if let Some(part) = buf.get_mut(from..to) {
            part.fill(0);
        }
        let asks = if old.is_whole() { Asks::Exchange } else { Asks::Cut };
        let taken = self.take(1, asks, Room::Common).await?;
        let entry = Entry::whole(taken.blocks().next().unwrap_or(0), crc32c(&buf));
        edit.set(file_block, entry);
        self.write_runs(taken.runs.iter().copied().zip([buf]).collect(), &[entry]).await?;
        Ok(Some(taken))
    }
}

/// A write's bytes, with what surrounds them in their first and last block.
pub(super) struct Fresh<'d> {
    offset: u64,
    data: &'d [u8],
    /// The block of file of the first byte as it was, if it stays in part and is no hole.
    head: Option<Buf>,
    /// That of the last byte, if it is another.
    tail: Option<Buf>,
}

impl Fresh<'_> {
    /// The blocks of file it touches.
    pub(super) fn blocks(&self) -> Range<u64> {
        self.offset / BLOCK..(self.offset + self.data.len() as u64).div_ceil(BLOCK)
    }

    /// Whether the data are all of a block.
    pub(super) fn is_whole(&self, at: u64) -> bool {
        at * BLOCK >= self.offset && (at + 1) * BLOCK <= self.offset + self.data.len() as u64
    }

    /// Fills `bytes` with block `at` of the file, as it will be.
    pub(super) fn fill(&self, at: u64, bytes: &mut [u8]) {
        let first = self.offset / BLOCK;
        if !self.is_whole(at) {
            match if at == first { &self.head } else { &self.tail } {
                Some(old) => bytes.copy_from_slice(old),
                None => bytes.fill(0),
            }
        }
        let skip = usize::try_from(self.offset % BLOCK).unwrap_or(0);
        overlay(bytes, at - first, skip, self.data);
    }

    /// The buffers it used.
    fn edges(self) -> impl Iterator<Item = Buf> {
        self.head.into_iter().chain(self.tail)
    }
}

/// Copies what `data` has for block `nth` of a write into it; `skip` bytes of the first are not
/// its.
fn overlay(bytes: &mut [u8], nth: u64, skip: usize, data: &[u8]) {
    let nth = usize::try_from(nth).unwrap_or(usize::MAX / BLOCK_LEN);
    let (to, from) = if nth == 0 { (skip, 0) } else { (0, nth * BLOCK_LEN - skip) };
    let source = data.get(from..).unwrap_or_default();
    if let Some(target) = bytes.get_mut(to..) {
        let len = target.len().min(source.len());
        if let (Some(target), Some(source)) = (target.get_mut(..len), source.get(..len)) {
            target.copy_from_slice(source);
        }
    }
}
