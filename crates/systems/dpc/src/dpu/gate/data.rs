//! Reading and writing through the gate.

use std::ops::Range;

use outboard_base::limits::IO_MAX;
use outboard_base::task::join_all;
use outboard_base::{Fh, Ino, Result};
use outboard_volume::{Answer, Payload};
use outboard_wire::cache::Grant;
use outboard_wire::file::{Reply, Request, open_flags, write_flags};

use super::book::{Cache, Hand, Moment};
use super::{Ask, Gate, Passed, unreachable};
use outboard_volume::Volume;

/// What is read beside what was asked for, to be put into the cache.
struct Plan {
    /// The request, widened to whole pages and read-ahead.
    whole: Range<u64>,
    /// Pages elsewhere.
    apart: Vec<Range<u64>>,
    moment: Option<Moment>,
}

impl Gate {
    pub(super) async fn read<V: Volume>(
        &self,
        volume: &V,
        ask: Ask<'_>,
        (ino, fh): (Ino, Fh),
        bytes: Range<u64>,
        flags: u32,
    ) -> Result<Passed> {
        let session = ask.caller.attachment;
        let mut guard = self.range_locks.shared(ino).await;
        if self.view(ino, session).other_writes {
            drop(guard);
            guard = self.range_locks.exclusive(ino).await;
            self.clear_others(volume, session, ino, Grant::Read).await?;
        }
        let _guard = guard;
        let Some(hand) = self.view(ino, session).mine else {
            return ask.of(volume).await.map(Passed::from);
        };
        Cache::count(&hand.cache.through, 1);
        if hand.writes() {
            self.flush_for_read(volume, &hand, ino, &bytes).await?;
        }
        if hand.grant == Grant::Frozen || flags & open_flags::DIRECT != 0 {
            return ask.of(volume).await.map(Passed::from);
        }
        let plan = self.plan(&hand, ino, &bytes);
        let read = |bytes: &Range<u64>| {
            let len = u32::try_from(bytes.end.saturating_sub(bytes.start)).unwrap_or(u32::MAX);
            let request = Request::Read { ino, fh, offset: bytes.start, len, flags };
            volume.handle(ask.caller, ask.header, request, Payload::None, ask.now)
        };
        let mut all = vec![read(&plan.whole)];
        all.extend(plan.apart.iter().map(read));
        let mut answers = join_all(all).await.into_iter();
        let answer = match answers.next() {
            Some(Ok(answer)) => answer,
            // What was read beside it may be what failed.
            _ => return ask.of(volume).await.map(Passed::from),
        };
        let asked = pages_of(&bytes, &hand.cache);
        self.fill(&hand, ino, plan.whole.start, &answer, (plan.moment, &asked));
        for (bytes, answer) in plan.apart.iter().zip(answers) {
            // What nobody asked for may fail unheard.
            if let Ok(answer) = answer {
                self.fill(&hand, ino, bytes.start, &answer, (plan.moment, &asked));
            }
        }
        Ok(clipped(answer, &plan.whole, &bytes))
    }

    /// Before the volume is read: what it must have for the answer to be right.
    async fn flush_for_read<V: Volume>(
        &self,
        volume: &V,
        hand: &Hand,
        ino: Ino,
        bytes: &Range<u64>,
    ) -> Result<()> {
        let cache = &hand.cache;
        self.flush(volume, hand, ino, pages_of(bytes, cache), false).await?;
        let (attr, _) = volume.cacheable(ino).await?;
        if bytes.end > attr.size {
            self.flush_end(volume, hand, ino, attr.size).await?;
        }
        Ok(())
    }

    /// The volume learns of the file's size: the page with its last byte is written back.
    async fn flush_end<V: Volume>(
        &self,
        volume: &V,
        hand: &Hand,
        ino: Ino,
        known: u64,
    ) -> Result<()> {
        let record = hand.cache.control.record(hand.slot, ino).map_err(unreachable)?;
        let size = record.map_or(0, |record| record.size);
        if size > known {
            let last = (size - 1) / hand.cache.page_size();
            self.flush(volume, hand, ino, last..last + 1, false).await?;
        }
        Ok(())
    }

    /// Widens a read to whole pages, and by what the policy guesses.
    fn plan(&self, hand: &Hand, ino: Ino, bytes: &Range<u64>) -> Plan {
        let page_size = hand.cache.page_size();
        let pages = pages_of(bytes, &hand.cache);
        let mut ahead = Vec::new();
        let mut book = self.book();
        if let Some(holder) = book.holder(ino, hand.cache.session()) {
            holder.stream.missed(pages.clone(), &mut ahead);
        }
        let moment = book.moment(ino);
        drop(book);
        let most = IO_MAX as u64 / page_size;
        let mut whole = pages.clone();
        if let Some(next) = ahead.first().filter(|next| next.start == pages.end).cloned() {
            whole.end = next.end;
            ahead.remove(0);
        }
        whole.end = whole.end.min(pages.start.saturating_add(most));
        if whole.end < pages.end {
            return Plan { whole: bytes.clone(), apart: Vec::new(), moment: None };
        }
        ahead.retain(|range| range.end - range.start <= most);
        let in_bytes = |pages: &Range<u64>| {
            pages.start.saturating_mul(page_size)..pages.end.saturating_mul(page_size)
        };
        Plan { whole: in_bytes(&whole), apart: ahead.iter().map(in_bytes).collect(), moment }
    }

    /// Puts what was read from `from` on into the cache, unless the inode changed since. What does
    /// not fit is not kept. Pages other than `asked` are ahead of need.
    fn fill(
        &self,
        hand: &Hand,
        ino: Ino,
        from: u64,
        answer: &Answer,
        (moment, asked): (Option<Moment>, &Range<u64>),
    ) {
        let Some(moment) = moment else { return };
        let first = from / hand.cache.page_size();
        let valid = || self.book().moment(ino) == Some(moment);
        let ahead = |page: u64| !asked.contains(&page);
        let bytes = answer.payload.bytes();
        if let Err(error) = hand.cache.control.fill(ino, first, bytes, ahead, valid) {
            tracing::debug!(%ino, ?error, "pages were not put into their cache");
        }
    }

    pub(super) async fn write<V: Volume>(
        &self,
        volume: &V,
        ask: Ask<'_>,
        (ino, fh): (Ino, Fh),
        bytes: Range<u64>,
        flags: u32,
    ) -> Result<Answer> {
        let session = ask.caller.attachment;
        {
            let _guard = self.range_locks.shared(ino).await;
            if self.hands(ino).is_empty() {
                return ask.of(volume).await;
            }
        }
        let len = bytes.end - bytes.start;
        let answer = self.write_through(volume, ask, (ino, fh), bytes, flags).await;
        // No lock is held: what is dirty may have to be written back first.
        self.credit_for(volume, session, ino, len).await;
        answer
    }

    /// A write to a file that somebody may cache.
    async fn write_through<V: Volume>(
        &self,
        volume: &V,
        ask: Ask<'_>,
        (ino, fh): (Ino, Fh),
        bytes: Range<u64>,
        flags: u32,
    ) -> Result<Answer> {
        let session = ask.caller.attachment;
        let _guard = self.range_locks.exclusive(ino).await;
        self.clear_others(volume, session, ino, Grant::Free).await?;
        let Some(hand) = self.view(ino, session).mine else {
            return ask.of(volume).await;
        };
        Cache::count(&hand.cache.through, 1);
        if hand.grant == Grant::Frozen {
            // Something failed before: whatever is still dirty goes first.
            self.recall(volume, &hand, ino, Grant::Free).await?;
            return ask.of(volume).await;
        }
        let opened = volume.opened(session, ino, fh).unwrap_or(0);
        let appends = flags & write_flags::APPEND != 0
            || (flags & write_flags::WRITEBACK == 0 && opened & open_flags::APPEND != 0);
        self.set(&hand, ino, Grant::Frozen)?;
        let (outcome, size) = self.write_still(volume, ask, &hand, ino, bytes, appends).await?;
        // What the volume has done stays answered; a record that stays frozen is recalled.
        if let Err(errno) = self.thaw(volume, &hand, ino, size).await {
            tracing::warn!(%ino, %errno, "a written file is not cached any more");
        }
        outcome
    }

    /// After a write through to a file that had `size` bytes: as granted before, with the size it
    /// has now.
    async fn thaw<V: Volume>(&self, volume: &V, hand: &Hand, ino: Ino, size: u64) -> Result<()> {
        let (after, _) = volume.cacheable(ino).await?;
        if after.size > size {
            hand.cache.control.raise_size(hand.slot, after.size).map_err(unreachable)?;
        }
        self.set(hand, ino, if hand.writes() { Grant::Write } else { Grant::Read })
    }

    /// Writes to the volume while the session's own pages stand still; the size the file had
    /// before. The outer error means that they do not, and nothing was written.
    async fn write_still<V: Volume>(
        &self,
        volume: &V,
        ask: Ask<'_>,
        hand: &Hand,
        ino: Ino,
        bytes: Range<u64>,
        appends: bool,
    ) -> Result<(Result<Answer>, u64)> {
        let cache = &hand.cache;
        let (before, _) = volume.cacheable(ino).await?;
        let mut bytes = bytes;
        if appends {
            let record = cache.control.record(hand.slot, ino).map_err(unreachable)?;
            let size = record.map_or(0, |record| record.size).max(before.size);
            bytes = size..size.saturating_add(bytes.end - bytes.start);
            self.flush_end(volume, hand, ino, before.size).await?;
        }
        let pages = pages_of(&bytes, cache);
        if hand.writes() {
            self.flush(volume, hand, ino, pages.clone(), true).await?;
        }
        self.take_out(volume, hand, ino, pages).await?;
        self.book().changes(ino);
        let answer = ask.of(volume).await;
        self.book().changes(ino);
        Ok((answer, before.size))
    }
}

/// The pages that bytes touch.
fn pages_of(bytes: &Range<u64>, cache: &Cache) -> Range<u64> {
    let page_size = cache.page_size();
    bytes.start / page_size..bytes.end.div_ceil(page_size)
}

/// Of an answer about `whole`, the part about `wanted`.
fn clipped(answer: Answer, whole: &Range<u64>, wanted: &Range<u64>) -> Passed {
    let bytes = |count: u64| usize::try_from(count).unwrap_or(usize::MAX);
    let skip = bytes(wanted.start - whole.start).min(answer.payload.bytes().len());
    let rest = answer.payload.bytes().len() - skip;
    let len = rest.min(bytes(wanted.end - wanted.start));
    match answer.reply {
        Reply::Data(_) => {
            let reply = Reply::Data(u32::try_from(len).unwrap_or(u32::MAX));
            Passed { answer: Answer { reply, ..answer }, skip }
        }
        _ => answer.into(),
    }
}
