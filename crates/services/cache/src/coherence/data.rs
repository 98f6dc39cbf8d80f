//! Reading and writing, where files may be cached.

use std::ops::Range;

use outboard_base::limits::IO_MAX;
use outboard_base::task::join_all;
use outboard_base::{Fh, Ino, Result};
use outboard_volume::{Answer, Payload};
use outboard_wire::cache::Grant;
use outboard_wire::file::{Reply, Request, open_flags, write_flags};

use super::grant_table::{Cache, HeldGrant, InodeVersion};
use super::grants::nothing_is_cached;
use super::{Coherence, Operation, Trimmed, unreachable};
use outboard_volume::Volume;

/// What is read beside what was asked for, to be put into the cache.
struct Plan {
    /// The request, widened to whole pages and read-ahead.
    whole: Range<u64>,
    /// Pages elsewhere.
    apart: Vec<Range<u64>>,
    version: Option<InodeVersion>,
}

impl Coherence {
    pub(super) async fn read<V: Volume>(
        &self,
        volume: &V,
        operation: Operation<'_>,
        (ino, fh): (Ino, Fh),
        bytes: Range<u64>,
        flags: u32,
    ) -> Result<Trimmed> {
        let session = operation.caller.attachment;
        let mut guard = self.range_locks.shared(ino).await;
        if self.view(ino, session).other_writes {
            drop(guard);
            guard = self.range_locks.exclusive(ino).await;
            self.clear_others(volume, session, ino, Grant::Read).await?;
        }
        let _guard = guard;
        let Some(held) = self.view(ino, session).mine else {
            return operation.run(volume).await.map(Trimmed::from);
        };
        Cache::count(&held.cache.through, 1);
        if held.writes() {
            self.flush_for_read(volume, &held, ino, &bytes).await?;
        }
        if held.grant == Grant::Frozen || flags & open_flags::DIRECT != 0 {
            return operation.run(volume).await.map(Trimmed::from);
        }
        let plan = self.plan(&held, ino, &bytes);
        let read = |bytes: &Range<u64>| {
            let len = u32::try_from(bytes.end.saturating_sub(bytes.start)).unwrap_or(u32::MAX);
            let request = Request::Read { ino, fh, offset: bytes.start, len, flags };
            volume.handle(operation.caller, operation.header, request, Payload::None, operation.now)
        };
        let mut all = vec![read(&plan.whole)];
        all.extend(plan.apart.iter().map(read));
        let mut answers = join_all(all).await.into_iter();
        let answer = match answers.next() {
            Some(Ok(answer)) => answer,
            // What was read beside it may be what failed.
            _ => return operation.run(volume).await.map(Trimmed::from),
        };
        let asked = pages_of(&bytes, &held.cache);
        self.fill(&held, ino, plan.whole.start, &answer, (plan.version, &asked));
        for (bytes, answer) in plan.apart.iter().zip(answers) {
            // What nobody asked for may fail unheard.
            if let Ok(answer) = answer {
                self.fill(&held, ino, bytes.start, &answer, (plan.version, &asked));
            }
        }
        Ok(clipped(answer, &plan.whole, &bytes))
    }

    /// Before the volume is read: what it must have for the answer to be right.
    async fn flush_for_read<V: Volume>(
        &self,
        volume: &V,
        held: &HeldGrant,
        ino: Ino,
        bytes: &Range<u64>,
    ) -> Result<()> {
        let cache = &held.cache;
        self.flush(volume, held, ino, pages_of(bytes, cache), false).await?;
        let (attr, _) = volume.cacheable(ino).await?;
        if bytes.end > attr.size {
            self.flush_end(volume, held, ino, attr.size).await?;
        }
        Ok(())
    }

    /// The volume learns of the file's size: the page with its last byte is written back.
    async fn flush_end<V: Volume>(
        &self,
        volume: &V,
        held: &HeldGrant,
        ino: Ino,
        known: u64,
    ) -> Result<()> {
        let record = held.cache.control.record(held.slot, ino).map_err(unreachable)?;
        let size = record.map_or(0, |record| record.size);
        if size > known {
            let last = (size - 1) / held.cache.page_size();
            self.flush(volume, held, ino, last..last + 1, false).await?;
        }
        Ok(())
    }

    /// Widens a read to whole pages, and by what the policy guesses.
    fn plan(&self, held: &HeldGrant, ino: Ino, bytes: &Range<u64>) -> Plan {
        let page_size = held.cache.page_size();
        let pages = pages_of(bytes, &held.cache);
        let mut ahead = Vec::new();
        let mut table = self.table();
        if let Some(holder) = table.holder(ino, held.cache.session()) {
            holder.stream.missed(pages.clone(), &mut ahead);
        }
        let version = table.version(ino);
        drop(table);
        let most = IO_MAX as u64 / page_size;
        let mut whole = pages.clone();
        if let Some(next) = ahead.first().filter(|next| next.start == pages.end).cloned() {
            whole.end = next.end;
            ahead.remove(0);
        }
        whole.end = whole.end.min(pages.start.saturating_add(most));
        if whole.end < pages.end {
            return Plan { whole: bytes.clone(), apart: Vec::new(), version: None };
        }
        ahead.retain(|range| range.end - range.start <= most);
        let in_bytes = |pages: &Range<u64>| {
            pages.start.saturating_mul(page_size)..pages.end.saturating_mul(page_size)
        };
        Plan { whole: in_bytes(&whole), apart: ahead.iter().map(in_bytes).collect(), version }
    }

    /// Puts what was read from `from` on into the cache, unless the inode changed since. What does
    /// not fit is not kept. Pages other than `asked` are ahead of need.
    fn fill(
        &self,
        held: &HeldGrant,
        ino: Ino,
        from: u64,
        answer: &Answer,
        (version, asked): (Option<InodeVersion>, &Range<u64>),
    ) {
        let Some(version) = version else { return };
        let first = from / held.cache.page_size();
        let valid = || self.table().version(ino) == Some(version);
        let ahead = |page: u64| !asked.contains(&page);
        let bytes = answer.payload.bytes();
        if let Err(error) = held.cache.control.fill(ino, first, bytes, ahead, valid) {
            tracing::debug!(%ino, ?error, "pages were not put into their cache");
        }
    }

    pub(super) async fn write<V: Volume>(
        &self,
        volume: &V,
        operation: Operation<'_>,
        (ino, fh): (Ino, Fh),
        bytes: Range<u64>,
        flags: u32,
    ) -> Result<Answer> {
        let session = operation.caller.attachment;
        {
            let _guard = self.range_locks.shared(ino).await;
            if self.grants_on(ino).is_empty() {
                nothing_is_cached(volume, ino);
                return operation.run(volume).await;
            }
        }
        let len = bytes.end - bytes.start;
        let answer = self.write_through(volume, operation, (ino, fh), bytes, flags).await;
        // No lock is held: what is dirty may have to be written back first.
        self.credit_for(volume, session, ino, len).await;
        answer
    }

    /// A write to a file that somebody may cache.
    async fn write_through<V: Volume>(
        &self,
        volume: &V,
        operation: Operation<'_>,
        (ino, fh): (Ino, Fh),
        bytes: Range<u64>,
        flags: u32,
    ) -> Result<Answer> {
        let session = operation.caller.attachment;
        let _guard = self.range_locks.exclusive(ino).await;
        self.clear_others(volume, session, ino, Grant::Free).await?;
        let Some(held) = self.view(ino, session).mine else {
            nothing_is_cached(volume, ino);
            return operation.run(volume).await;
        };
        Cache::count(&held.cache.through, 1);
        if held.grant == Grant::Frozen || !volume.holds(ino) {
            // Something failed before: whatever is still dirty goes first. Or others may have to be
            // waited for, who wait for what is cached here.
            self.recall(volume, &held, ino, Grant::Free).await?;
            nothing_is_cached(volume, ino);
            let answer = operation.run(volume).await;
            if held.grant == Grant::Read
                && let Err(errno) = self.grant_alone(volume, &held.cache, ino, false).await
            {
                tracing::debug!(%ino, %session, %errno, "a written file is not cached any more");
            }
            return answer;
        }
        let opened = volume.opened(session, ino, fh).unwrap_or(0);
        let appends = flags & write_flags::APPEND != 0
            || (flags & write_flags::WRITEBACK == 0 && opened & open_flags::APPEND != 0);
        self.set(&held, ino, Grant::Frozen)?;
        let (outcome, size) =
            self.write_quiesced(volume, operation, &held, ino, bytes, appends).await?;
        // What the volume has done stays answered; a record that stays frozen is recalled.
        if let Err(errno) = self.thaw(volume, &held, ino, size).await {
            tracing::warn!(%ino, %errno, "a written file is not cached any more");
        }
        outcome
    }

    /// After a write through to a file that had `size` bytes: as granted before, with the size it
    /// has now.
    async fn thaw<V: Volume>(
        &self,
        volume: &V,
        held: &HeldGrant,
        ino: Ino,
        size: u64,
    ) -> Result<()> {
        let (after, _) = volume.cacheable(ino).await?;
        if after.size > size {
            held.cache.control.raise_size(held.slot, after.size).map_err(unreachable)?;
        }
        self.set(held, ino, if held.writes() { Grant::Write } else { Grant::Read })
    }

    /// Writes to the volume while the session's own pages stand still; the size the file had
    /// before. The outer error means that they do not, and nothing was written.
    async fn write_quiesced<V: Volume>(
        &self,
        volume: &V,
        operation: Operation<'_>,
        held: &HeldGrant,
        ino: Ino,
        bytes: Range<u64>,
        appends: bool,
    ) -> Result<(Result<Answer>, u64)> {
        let cache = &held.cache;
        let (before, _) = volume.cacheable(ino).await?;
        let mut bytes = bytes;
        if appends {
            let record = cache.control.record(held.slot, ino).map_err(unreachable)?;
            let size = record.map_or(0, |record| record.size).max(before.size);
            bytes = size..size.saturating_add(bytes.end - bytes.start);
            self.flush_end(volume, held, ino, before.size).await?;
        }
        let pages = pages_of(&bytes, cache);
        if held.writes() {
            self.flush(volume, held, ino, pages.clone(), true).await?;
        }
        self.take_out(volume, held, ino, Some(pages)).await?;
        self.table().changes(ino);
        let answer = operation.run(volume).await;
        self.table().changes(ino);
        Ok((answer, before.size))
    }
}

/// The pages that bytes touch.
fn pages_of(bytes: &Range<u64>, cache: &Cache) -> Range<u64> {
    let page_size = cache.page_size();
    bytes.start / page_size..bytes.end.div_ceil(page_size)
}

/// Of an answer about `whole`, the part about `wanted`.
fn clipped(answer: Answer, whole: &Range<u64>, wanted: &Range<u64>) -> Trimmed {
    let bytes = |count: u64| usize::try_from(count).unwrap_or(usize::MAX);
    let skip = bytes(wanted.start - whole.start).min(answer.payload.bytes().len());
    let rest = answer.payload.bytes().len() - skip;
    let len = rest.min(bytes(wanted.end - wanted.start));
    match answer.reply {
        Reply::Data(_) => {
            let reply = Reply::Data(u32::try_from(len).unwrap_or(u32::MAX));
            Trimmed { answer: Answer { reply, ..answer }, skip }
        }
        _ => answer.into(),
    }
}
