//! Writing dirty pages back.

use std::ops::Range;
use std::sync::{Mutex, PoisonError};

use crate::dpu::{Control, Found, Pulled};
use outboard_base::limits::{BLOCK, IO_MAX};
use outboard_base::task::{try_join_abreast, yield_now};
use outboard_base::{Errno, Fh, Ino, Result, SessionId, Timestamp};
use outboard_link::dma::DmaError;
use outboard_wire::cache::{Grant, Record, Status};

use super::grant_table::{Cache, HeldGrant};
use super::{BUSY_LIMIT, Coherence, unreachable};
use outboard_volume::Volume;

/// Bytes written back by one change of the volume, at most: as many as cost little memory and keep
/// nobody waiting for long.
pub(super) const BATCH: usize = 2 * IO_MAX;
/// Changes of the volume side by side in one flush: while one waits for the store, others are on
/// their way. More of them than fit the processors' caches cost more each.
const ABREAST: usize = 3;
/// Runs of pages in one, at most: each is a write of the medium.
const RUNS: usize = 128;

/// Buffers for batches, kept: a fresh megabyte costs more in page faults than the copy into it.
#[derive(Default)]
pub(super) struct Spare(Mutex<Vec<Vec<u8>>>);

impl Spare {
    fn take(&self) -> Vec<u8> {
        let kept = self.0.lock().unwrap_or_else(PoisonError::into_inner).pop();
        kept.unwrap_or_default()
    }

    fn give(&self, mut bytes: Vec<u8>) {
        bytes.clear();
        let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if kept.len() < ABREAST {
            kept.push(bytes);
        }
    }
}

/// Pages, pulled, in their order: some in a row, some apart.
#[derive(Default)]
struct Batch {
    pages: Vec<(Found, u32)>,
    bytes: Vec<u8>,
    /// The first page of each run, and where its bytes begin.
    runs: Vec<(u64, usize)>,
}

impl Batch {
    /// An empty one, with a buffer to use.
    fn new(bytes: Vec<u8>) -> Batch {
        Batch { bytes, ..Batch::default() }
    }

    /// Whether there is room for `page`. Runs of one change of the volume have no block in common,
    /// though pages may be smaller than a block, and a hostile host may have one twice.
    fn has_room(&self, page: u64, page_size: usize) -> bool {
        let Some((last, _)) = self.pages.last() else { return true };
        let block = |page: u64| page.saturating_mul(page_size as u64) / BLOCK as u64;
        let last = last.entry.lpn;
        let joins = self.joins(page, page_size, self.bytes.len());
        let apart = joins || (page > last && block(page) > block(last));
        apart && self.bytes.len() + page_size <= BATCH && self.runs.len() < RUNS
    }

    /// Whether `page`, whose bytes come at `at`, goes on with the last run.
    fn joins(&self, page: u64, page_size: usize, at: usize) -> bool {
        let next = self.pages.last().map(|(found, _)| found.entry.lpn.wrapping_add(1));
        let run = self.runs.last().map_or(0, |(_, from)| at - from);
        next == Some(page) && run + page_size <= IO_MAX
    }

    /// Pulls a page, and keeps it if it is dirty; there is room for it.
    fn pull(
        &mut self,
        control: &Control,
        found: Found,
        page_size: usize,
    ) -> std::result::Result<Pulled, DmaError> {
        let from = self.bytes.len();
        self.bytes.resize(from + page_size, 0);
        let place = self.bytes.get_mut(from..).unwrap_or_default();
        let pulled = control.pull(&found, place);
        match pulled {
            Ok(Pulled::Bytes { version, dirty: true }) => self.keep(found, version, from),
            _ => self.bytes.truncate(from),
        }
        pulled
    }

    /// Notes a page whose bytes were put behind the others', from `from` on.
    fn keep(&mut self, found: Found, version: u32, from: usize) {
        let page = found.entry.lpn;
        let len = self.bytes.len() - from;
        if !self.joins(page, len, from) {
            self.runs.push((page, from));
        }
        self.pages.push((found, version));
    }

    fn clear(&mut self) {
        self.pages.clear();
        self.bytes.clear();
        self.runs.clear();
    }

    /// Offsets and bytes of the runs, as far as a file of `size` bytes goes.
    fn within(&self, size: u64, page_size: u64) -> Vec<(u64, &[u8])> {
        let ends = self.runs.iter().skip(1).map(|(_, from)| *from).chain([self.bytes.len()]);
        let each = self.runs.iter().zip(ends).map(|((page, from), end)| {
            let offset = page.saturating_mul(page_size);
            let most = usize::try_from(size.saturating_sub(offset)).unwrap_or(usize::MAX);
            (offset, self.bytes.get(*from..end.min(from.saturating_add(most))).unwrap_or_default())
        });
        each.filter(|(_, bytes)| !bytes.is_empty()).collect()
    }
}

/// Pages of one batch, in their order.
struct Part {
    pages: Vec<Found>,
    /// From the first page to behind the last.
    span: Range<u64>,
}

/// Divides pages, in their order, among batches of so many pages at most.
fn parts(pages: Vec<Found>, most: usize) -> Vec<Part> {
    let mut parts: Vec<Part> = Vec::new();
    let mut runs = 0;
    for found in pages {
        let page = found.entry.lpn;
        match parts.last_mut() {
            Some(part) if part.pages.len() < most && runs < RUNS => {
                runs += usize::from(part.span.end != page);
                part.span.end = page.saturating_add(1);
                part.pages.push(found);
            }
            _ => {
                runs = 1;
                parts.push(Part { span: page..page.saturating_add(1), pages: vec![found] });
            }
        }
    }
    parts
}

impl Coherence {
    /// Writes the dirty pages of an inode back. With `still` (the record is frozen), also waits for
    /// those being made, and counts no more of them from here on.
    ///
    /// As many pages are looked for as its host paid for and are not settled; where there is none,
    /// nothing is looked at. Those that are noted or chained come first. If that settles fewer, a
    /// page is being made, or its host chained it nowhere: then all entries are looked at.
    pub(super) async fn flush_file<V: Volume>(
        &self,
        volume: &V,
        held: &HeldGrant,
        ino: Ino,
        still: bool,
    ) -> Result<()> {
        let control = &held.cache.control;
        let settled = || self.table().holder_of(ino, held).map(|holder| holder.settled);
        // Before the count is read: what is settled later may be of pages paid for later.
        let Some(before) = settled() else { return Ok(()) };
        let dirtied =
            if still { control.close(held.slot, before) } else { control.dirtied(held.slot) };
        let dirtied = dirtied.map_err(unreachable)?;
        if dirtied > before {
            let known = control.known(ino).map_err(unreachable)?;
            self.flush_found(volume, held, ino, known, still).await?;
            if settled().is_some_and(|settled| settled < dirtied) {
                let all = control.search(ino).map_err(unreachable)?;
                self.flush_found(volume, held, ino, all, still).await?;
            }
        }
        if let Some(holder) = self.table().holder_of(ino, held) {
            holder.dirty_since = None;
        }
        Ok(())
    }

    /// Writes the dirty pages among `pages` back, as [`Coherence::flush_found`].
    pub(super) async fn flush<V: Volume>(
        &self,
        volume: &V,
        held: &HeldGrant,
        ino: Ino,
        pages: Range<u64>,
        still: bool,
    ) -> Result<()> {
        let todo = held.cache.control.find(ino, pages).map_err(unreachable)?;
        self.flush_found(volume, held, ino, todo, still).await
    }

    /// Writes what is dirty of these back, a few batches side by side. With `still` (nobody makes
    /// any more), also waits for those being made. What cannot be written stays dirty, and is said.
    ///
    /// Whoever is not the thread that maintains the caches holds the inode's range lock. What was
    /// dirty when this began is in the volume when it ends, whoever wrote it: a page is pulled and
    /// marked clean under a lock to flush the span it lies in.
    pub(super) async fn flush_found<V: Volume>(
        &self,
        volume: &V,
        held: &HeldGrant,
        ino: Ino,
        mut todo: Vec<Found>,
        still: bool,
    ) -> Result<()> {
        let cache = &held.cache;
        let deadline = (cache.clock)().after(BUSY_LIMIT);
        let page_size = usize::try_from(cache.page_size()).map_err(|_| Errno::EIO)?;
        loop {
            // Those made and not dirty yet are left to the next round, unless there is none.
            todo.retain(|found| found.is_dirty() || (still && found.is_being_written()));
            let each = parts(todo, self.batch / page_size.max(1)).into_iter();
            let each = each.map(|part| self.flush_part(volume, held, ino, part));
            let busy = try_join_abreast(ABREAST, each).await?.concat();
            let (Some(first), Some(last)) = (busy.iter().min(), busy.iter().max()) else {
                return Ok(());
            };
            if (cache.clock)() >= deadline {
                tracing::warn!(%ino, session = %cache.session(),
                    "a host holds a page of its cache for too long: it cannot be written back");
                return Err(Errno::EIO);
            }
            yield_now().await;
            let span = *first..last.saturating_add(1);
            todo = cache.control.find(ino, span).map_err(unreachable)?;
            todo.retain(|found| busy.contains(&found.entry.lpn));
        }
    }

    /// Writes back what is still dirty of a part; the pages that its host was changing.
    async fn flush_part<V: Volume>(
        &self,
        volume: &V,
        held: &HeldGrant,
        ino: Ino,
        part: Part,
    ) -> Result<Vec<u64>> {
        let control = &held.cache.control;
        let page_size = held.cache.page_size();
        let bytes = |page: u64| page.saturating_mul(page_size);
        let _guard =
            self.flushing.exclusive_on(ino, bytes(part.span.start)..bytes(part.span.end)).await;
        let mut busy = Vec::new();
        if self.table().holder_of(ino, held).is_none() {
            // The grant was taken back meanwhile, and for that everything was written.
            return Ok(busy);
        }
        let page_size = usize::try_from(page_size).map_err(|_| Errno::EIO)?;
        let mut batch = Batch::new(self.spare.take());
        for found in part.pages {
            if !batch.has_room(found.entry.lpn, page_size) {
                self.put(volume, held, ino, &mut batch).await?;
            }
            match batch.pull(control, found, page_size).map_err(unreachable)? {
                Pulled::Bytes { .. } | Pulled::Gone => {}
                Pulled::Busy => busy.push(found.entry.lpn),
            }
        }
        let put = self.put(volume, held, ino, &mut batch).await;
        self.spare.give(batch.bytes);
        put.map(|()| busy)
    }

    /// Writes pages back and marks them clean; the batch is empty then.
    async fn put<V: Volume>(
        &self,
        volume: &V,
        held: &HeldGrant,
        ino: Ino,
        batch: &mut Batch,
    ) -> Result<()> {
        if batch.pages.is_empty() {
            return Ok(());
        }
        let cache = &held.cache;
        // Read after the pages: whoever wrote them had raised the size before it unlocked them.
        let record = cache.control.record(held.slot, ino).map_err(unreachable)?;
        if self.table().holder_of(ino, held).is_none() {
            // The grant went between the look at the table and the pulls: what is dirty is a later
            // one's, of which this record says nothing.
            batch.clear();
            return Ok(());
        }
        let size = match record {
            Some(record) => record.size,
            None => volume.cacheable(ino).await.map_or(0, |(attr, _)| attr.size),
        };
        let runs = batch.within(size, cache.page_size());
        if !runs.is_empty() {
            self.table().changes(ino);
            let mtime = record.and_then(|record| stamp(&record, (cache.wall)()));
            let written = volume.write_back(cache.session(), ino, &runs, mtime).await;
            self.table().changes(ino);
            match written {
                // Of a file that is gone nothing is kept.
                Ok(()) | Err(Errno::ESTALE) => {}
                Err(errno) => {
                    tracing::error!(%ino, %errno, "pages of a cache cannot be written back");
                    return Err(errno);
                }
            }
        }
        let mut settled = 0;
        for (mut found, version) in batch.pages.drain(..) {
            found.entry.word.status = Status::Dirty;
            let clean = cache.control.cleaned(&found, version).map_err(unreachable)?;
            settled += u64::from(clean);
        }
        batch.clear();
        self.settled(volume, held, ino, settled);
        Ok(())
    }

    /// So many pages a session made dirty are in the volume: the space put aside for them is free
    /// again.
    pub(super) fn settled<V: Volume>(&self, volume: &V, held: &HeldGrant, ino: Ino, pages: u64) {
        let freed = self.table().holder_of(ino, held).map_or(0, |holder| {
            // A host may mark pages dirty that it has no credit for.
            let freed = pages.min(holder.credit.saturating_sub(holder.settled));
            holder.settled += freed;
            freed
        });
        give_back(volume, &held.cache, freed);
        self.maintenance.has_room();
    }

    /// Before a sync: what any session has in its cache of `ino` goes to the volume, and what
    /// failed to since the last sync is said.
    pub(super) async fn flush_for_sync<V: Volume>(
        &self,
        volume: &V,
        ino: Ino,
        session: Option<SessionId>,
    ) -> Result<()> {
        let _guard = self.range_locks.shared(ino).await;
        let grants = self.grants_on(ino);
        for held in grants.iter().filter(|held| held.writes()) {
            self.flush_file(volume, held, ino, false).await?;
        }
        let failed = self.concern(|table| table.take_failure(ino, session));
        failed.map_or(Ok(()), Err)
    }

    /// Before a file is closed: with the last handle that writes, the session's right to write in
    /// its cache goes, and what it wrote goes to the volume.
    pub(super) async fn released<V: Volume>(
        &self,
        volume: &V,
        session: SessionId,
        ino: Ino,
        fh: Fh,
    ) {
        let last = self.table().holder(ino, session).is_some_and(|holder| {
            let before = holder.writers.len();
            holder.writers.retain(|writer| *writer != fh);
            before > 0 && holder.writers.is_empty()
        });
        if !last {
            return;
        }
        let _guard = self.range_locks.exclusive(ino).await;
        let mine =
            self.table().holder(ino, session).map(|h| (h.held.clone(), h.writers.is_empty()));
        if let Some((held, true)) = mine
            && held.writes()
            && let Err(errno) = self.recall(volume, &held, ino, Grant::Read).await
        {
            self.failed(ino, errno);
        }
    }

    /// A write-back that nobody waits for failed: the next sync says so.
    pub(super) fn failed(&self, ino: Ino, errno: Errno) {
        self.concern(|table| table.failed(ino, None, errno));
    }
}

/// Gives back space put aside for so many pages.
pub(super) fn give_back<V: Volume>(volume: &V, cache: &Cache, pages: u64) {
    if pages > 0 {
        volume.unreserve(pages, cache.page_size());
        cache.promised.fetch_sub(pages, std::sync::atomic::Ordering::SeqCst);
    }
}

/// When the host last wrote, by its record, and not later than `now`: who may write a file need not
/// own it, and may not date it into the future.
pub(super) fn stamp(record: &Record, now: Timestamp) -> Option<Timestamp> {
    const SECOND: i64 = Timestamp::NSEC_PER_SEC as i64;
    let nsec = u32::try_from(record.mtime.rem_euclid(SECOND)).ok()?;
    let stamp = Timestamp::new(record.mtime.div_euclid(SECOND), nsec)?;
    (record.mtime != 0).then_some(stamp.min(now))
}

#[cfg(test)]
mod tests {
    use outboard_base::Rng;
    use outboard_wire::cache::{Entry, Word};

    use super::*;

    fn found(lpn: u64) -> Found {
        Found { index: 0, entry: Entry { word: Word::FREE, next: 0, lpn, ino: 7 } }
    }

    /// Two runs that met in a block went out side by side, each with the block's other half as the
    /// volume had it: one of them was lost. Pages smaller than a block came there when a run of
    /// more than 1 MiB began with an odd one.
    #[test]
    fn runs_of_one_change_have_no_block_in_common() {
        for seed in 0..200 {
            let mut rng = Rng::new(seed);
            let page_size = 4096 << rng.below(3);
            let mut pages: Vec<u64> = Vec::new();
            let mut next = rng.below(4);
            for _ in 0..700 {
                pages.push(next);
                next += if rng.chance(1, 40) { rng.below(4) } else { 1 };
            }
            let (mut batch, mut written) = (Batch::default(), 0);
            let mut put = |batch: &mut Batch| {
                let block = |at: u64| at / BLOCK as u64;
                let batch = std::mem::take(batch);
                let runs = batch.within(u64::MAX, page_size as u64);
                for pair in runs.windows(2) {
                    let [(before, bytes), (after, _)] = pair else { panic!("{pair:?}") };
                    let last = before + bytes.len() as u64 - 1;
                    assert!(block(last) < block(*after), "seed {seed}: {last} and {after}");
                }
                written += runs.iter().map(|(_, bytes)| bytes.len()).sum::<usize>();
            };
            for &page in &pages {
                if !batch.has_room(page, page_size) {
                    put(&mut batch);
                }
                batch.bytes.extend(vec![1; page_size]);
                batch.keep(found(page), 1, batch.bytes.len() - page_size);
            }
            put(&mut batch);
            assert_eq!(written, pages.len() * page_size, "seed {seed}");
        }
    }
}
