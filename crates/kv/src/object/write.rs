//! Writing: fresh blocks, written and summed, then named by the index entries staged.

use outboard_base::limits::IO_MAX;
use outboard_codec::crc32c;

use super::edit::Edit;
use super::index::{Entry, locate};
use super::ledger::{Staged, Taken};
use super::map::Run;
use super::read::{BLOCK_LEN, blocks_of};
use super::{BLOCK, ObjectId, Objects};
use crate::medium::{Buf, Medium};
use crate::{Batch, Kv, KvError, join_all};

impl<K: Kv, M: Medium> Objects<K, M> {
    /// Writes `data` at `offset` (at most [`IO_MAX`] bytes; up to
    /// [`FILE_SIZE_MAX`](outboard_base::limits::FILE_SIZE_MAX); `TooLarge` beyond). Costs: parts of
    /// blocks are read first; one medium write for each run of fresh blocks, one if space is not
    /// fragmented; for each 256 KiB touched, an index page in the batch; 25 bytes a block of log.
    pub async fn write(
        &self,
        id: ObjectId,
        offset: u64,
        data: &[u8],
        batch: &mut Batch,
    ) -> Result<Staged, KvError> {
        if data.len() > IO_MAX {
            return Err(KvError::TooLarge);
        }
        let blocks = blocks_of(offset, data.len())?;
        if data.is_empty() {
            return Ok(Staged::none());
        }
        self.keep_bounds().await?;
        let mut edit = Edit::new(id);
        for number in locate(blocks.start).0..=locate(blocks.end - 1).0 {
            edit.add(number, self.page(id, number, Some(batch)).await?);
        }
        let growing = blocks.clone().any(|block| edit.get(block).block == 0);
        let taken = self.take(blocks.end - blocks.start, growing).await?;
        let crcs = self.write_blocks(&edit, &taken, offset, data).await?;
        for ((file_block, block), crc) in blocks.zip(taken.blocks()).zip(crcs) {
            edit.set(file_block, Entry { block, unwritten: false, crc });
        }
        Ok(self.stage(edit, Some(taken), batch))
    }

    /// Writes `data` and what surrounds it in its first and last block to the blocks taken.
    /// Returns each block's checksum.
    async fn write_blocks(
        &self,
        edit: &Edit,
        taken: &Taken,
        offset: u64,
        data: &[u8],
    ) -> Result<Vec<u32>, KvError> {
        let first = offset / BLOCK;
        let last = (offset + data.len() as u64 - 1) / BLOCK;
        let skip = usize::try_from(offset % BLOCK).unwrap_or(0);
        let whole =
            |at: u64| at * BLOCK >= offset && (at + 1) * BLOCK <= offset + data.len() as u64;
        let (mut head, mut tail) = (None, None);
        if !whole(first) {
            head = self.read_block(edit.get(first)).await?;
        }
        if last != first && !whole(last) {
            tail = self.read_block(edit.get(last)).await?;
        }
        let mut crcs = Vec::new();
        let mut bufs = Vec::new();
        let mut at = first;
        for run in &taken.runs {
            let mut buf = self.pool.take(run.len);
            for bytes in buf.chunks_mut(BLOCK_LEN) {
                if !whole(at) {
                    let old = if at == first { &head } else { &tail };
                    match old {
                        Some(old) => bytes.copy_from_slice(old),
                        None => bytes.fill(0),
                    }
                }
                overlay(bytes, at - first, skip, data);
                crcs.push(crc32c(bytes));
                at += 1;
            }
            bufs.push((*run, buf));
        }
        head.into_iter().chain(tail).for_each(|buf| self.pool.give(buf));
        self.write_runs(bufs).await?;
        Ok(crcs)
    }

    async fn write_run(&self, run: Run, buf: Buf) -> Result<(), KvError> {
        let (result, buf) = self.medium.write(run.start * BLOCK, buf).await;
        self.pool.give(buf);
        result.map_err(KvError::from)
    }

    async fn write_runs(&self, mut bufs: Vec<(Run, Buf)>) -> Result<(), KvError> {
        if bufs.len() == 1
            && let Some((run, buf)) = bufs.pop()
        {
            return self.write_run(run, buf).await;
        }
        let writes = bufs.into_iter().map(|(run, buf)| self.write_run(run, buf)).collect();
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
        let Some(mut buf) = self.read_block(edit.get(file_block)).await? else { return Ok(None) };
        if let Some(part) = buf.get_mut(from..to) {
            part.fill(0);
        }
        let taken = self.take(1, false).await?;
        let crc = crc32c(&buf);
        for run in &taken.runs {
            edit.set(file_block, Entry { block: run.start, unwritten: false, crc });
        }
        self.write_runs(taken.runs.iter().copied().zip([buf]).collect()).await?;
        Ok(Some(taken))
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
