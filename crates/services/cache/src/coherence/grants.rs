//! Giving the right to cache, and taking it back.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::dpu::{NoRecord, TakenOut};
use outboard_base::task::yield_now;
use outboard_base::{Errno, Fh, Ino, Result, SessionId};
use outboard_volume::Answer;
use outboard_wire::cache::Grant;
use outboard_wire::file::open_flags;

use super::flush::give_back;
use super::grant_table::{Cache, HeldGrant};
use super::request_class::{Drops, writes};
use super::{BUSY_LIMIT, Coherence, Operation, unreachable};
use outboard_volume::Volume;

/// Pages a host may make dirty of a file it just opened. A writer that uses them up gets as many
/// again as it had, up to its share of what may be dirty.
const CREDIT_FIRST: u64 = 64;
/// One writer's share of what may be dirty.
const CREDIT_SHARE: u64 = 4;

impl Coherence {
    /// After an open: its session may cache the inode, if it can. What stands in the way is left
    /// alone: without a grant requests go through.
    pub(super) async fn grant<V: Volume>(
        &self,
        volume: &V,
        session: SessionId,
        (ino, fh): (Ino, Fh),
        flags: u32,
    ) {
        let Some(cache) = self.table().cache(session) else { return };
        if flags & open_flags::DIRECT != 0 {
            return;
        }
        let durable = flags & open_flags::DSYNC != 0;
        let wants = writes(flags) && !durable && cache.control.takes_writes();
        // Twice: the first time all places for the record may be taken.
        for _ in 0..2 {
            let enough = |held: &HeldGrant| match held.grant {
                Grant::Write => true,
                Grant::Read => !wants,
                Grant::Free | Grant::Frozen | Grant::None => false,
            };
            if self.view(ino, session).mine.as_ref().is_some_and(enough) {
                break;
            }
            let guard = self.range_locks.exclusive(ino).await;
            let victim = match self.grant_alone(volume, &cache, ino, wants).await {
                Ok(None) => break,
                Ok(Some(victim)) => victim,
                Err(errno) => {
                    tracing::debug!(%ino, %session, %errno, "not cached");
                    return;
                }
            };
            drop(guard);
            let guard = self.range_locks.exclusive(victim).await;
            let held = self.view(victim, session).mine;
            if let Some(held) = held
                && self.recall(volume, &held, victim, Grant::Free).await.is_err()
            {
                return;
            }
            drop(guard);
        }
        if wants && let Some(holder) = self.table().holder(ino, session) {
            holder.writers.push(fh);
        }
    }

    /// A file that stayed open while the DPU side was lost is cached again once it is used, as if
    /// its handle had been opened just now.
    pub(super) async fn grant_after_a_loss<V: Volume>(
        &self,
        volume: &V,
        session: SessionId,
        (ino, fh): (Ino, Fh),
    ) {
        if !self.table().had_cached(session, ino) {
            return;
        }
        let Some(flags) = volume.opened(session, ino, fh) else { return };
        if flags & open_flags::DIRECT != 0 {
            return;
        }
        let again = self.table().caches_again(session, ino, writes(flags));
        if again {
            self.grant(volume, session, (ino, fh), flags).await;
        }
    }

    /// Grants, the lock held. An inode comes back whose grant must go first.
    pub(super) async fn grant_alone<V: Volume>(
        &self,
        volume: &V,
        cache: &Arc<Cache>,
        ino: Ino,
        wants: bool,
    ) -> Result<Option<Ino>> {
        let session = cache.session();
        self.clear_others(volume, session, ino, if wants { Grant::Free } else { Grant::Read })
            .await?;
        if wants && !volume.holds(ino) {
            if let Some(held) = self.view(ino, session).mine {
                self.recall(volume, &held, ino, Grant::Free).await?;
            }
            volume.recalled(ino, false);
            volume.hold(ino).await?;
        } else if let Some(held) = self.view(ino, session).mine.filter(HeldGrant::writes) {
            self.recall(volume, &held, ino, Grant::Read).await?;
        }
        let (attr, writable) = volume.cacheable(ino).await?;
        let grant = if wants && writable { Grant::Write } else { Grant::Read };
        let credit =
            if grant == Grant::Write { self.promise(volume, cache, CREDIT_FIRST).await } else { 0 };
        match cache.control.grant(ino, grant, attr.size, credit) {
            Ok(slot) => {
                let held = HeldGrant::new(cache, slot, grant);
                self.table().granted(ino, held, credit);
            }
            Err(no) => {
                give_back(volume, cache, credit);
                return match no {
                    NoRecord::Full(victim) => Ok(Some(victim)),
                    NoRecord::Dma(error) => Err(unreachable(error)),
                };
            }
        }
        if grant == Grant::Write {
            // What others have cached of it will not be true for long: they ask again, and then the
            // grant becomes one to read.
            volume.notify_changed(session, ino);
        }
        Ok(None)
    }

    /// Puts space aside for pages a host may make dirty, as many as may be: how many.
    async fn promise<V: Volume>(&self, volume: &V, cache: &Cache, pages: u64) -> u64 {
        let most = cache.dirty_max();
        let mut share = 0;
        let promised = cache.promised.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |before| {
            share = pages.min((most / CREDIT_SHARE).max(1)).min(most.saturating_sub(before));
            Some(before + share)
        });
        if promised.is_ok() && share > 0 && volume.reserve(share, cache.page_size()).await.is_ok() {
            return share;
        }
        cache.promised.fetch_sub(share, Ordering::SeqCst);
        0
    }

    /// What a writer is given when it has used up most of its credit, or has too little left for a
    /// write of `wanted` pages; `None` if it has enough.
    fn share(&self, held: &HeldGrant, ino: Ino, wanted: u64) -> Result<Option<u64>> {
        let HeldGrant { cache, slot, .. } = held;
        let Some(record) = cache.control.record(*slot, ino).map_err(unreachable)? else {
            return Ok(None);
        };
        let Some(credit) = self.table().holder_of(ino, held).map(|holder| holder.credit) else {
            return Ok(None);
        };
        let most = (cache.dirty_max() / CREDIT_SHARE).max(CREDIT_FIRST);
        // What can never be taken at once brings no credit.
        let wanted = if wanted > most { 0 } else { wanted };
        let share = credit.clamp(CREDIT_FIRST, most).max(wanted);
        let left = credit.saturating_sub(record.dirtied.pages);
        Ok((left <= share / 2 || left < wanted).then_some(share))
    }

    /// After a write of so many bytes went through: more credit, if it was for want of that. Where
    /// too much is dirty, waits until enough of it is written back; no lock is held.
    pub(super) async fn credit_for<V: Volume>(
        &self,
        volume: &V,
        session: SessionId,
        ino: Ino,
        bytes: u64,
    ) {
        let writes = |held: &HeldGrant| held.grant == Grant::Write;
        let Some(held) = self.view(ino, session).mine.filter(writes) else { return };
        let wanted = bytes.div_ceil(held.cache.page_size());
        if let Ok(Some(share)) = self.share(&held, ino, wanted) {
            self.await_room(&held.cache, share).await;
        }
        // Alone: of two at a time, the one with less could set the host's credit last.
        let _guard = self.range_locks.exclusive(ino).await;
        let Some(held) = self.view(ino, session).mine.filter(writes) else { return };
        if let Err(errno) = self.top_up(volume, &held, ino, wanted).await {
            tracing::debug!(%ino, %errno, "no more credit");
        }
    }

    /// More credit for a writer that has used up most of its own, or has too little for `wanted`
    /// pages. Nothing more while too much is dirty or space is short: then its writes go through.
    pub(super) async fn top_up<V: Volume>(
        &self,
        volume: &V,
        held: &HeldGrant,
        ino: Ino,
        wanted: u64,
    ) -> Result<()> {
        let HeldGrant { cache, slot, .. } = held;
        let Some(share) = self.share(held, ino, wanted)? else { return Ok(()) };
        if cache.lacks_room(share) && !self.maintenance.has_maintainer() {
            self.flush_file(volume, held, ino, false).await?;
        }
        let more = self.promise(volume, cache, share).await;
        let credit = {
            let mut table = self.table();
            match table.holder_of(ino, held) {
                Some(holder) if holder.held.grant == Grant::Write => {
                    holder.credit += more;
                    holder.credit
                }
                _ => {
                    drop(table);
                    give_back(volume, cache, more);
                    return Ok(());
                }
            }
        };
        cache.control.set_credit(*slot, credit).map_err(unreachable)
    }

    /// Others than `session` may at most do `to` (read, or nothing) with an inode; the lock is
    /// held exclusively.
    pub(super) async fn clear_others<V: Volume>(
        &self,
        volume: &V,
        session: SessionId,
        ino: Ino,
        to: Grant,
    ) -> Result<()> {
        for held in self.grants_on(ino) {
            let other = held.cache.session() != session;
            if other && (held.writes() || to == Grant::Free) {
                self.recall(volume, &held, ino, to).await?;
            }
        }
        Ok(())
    }

    /// Notes what a session may do, there and here.
    pub(super) fn set(&self, held: &HeldGrant, ino: Ino, grant: Grant) -> Result<()> {
        held.cache.control.set(held.slot, grant).map_err(unreachable)?;
        if let Some(holder) = self.table().holder(ino, held.cache.session()) {
            holder.held.set(grant);
        }
        Ok(())
    }

    /// Takes a grant back, down to reading (the pages stay) or altogether; the lock is held
    /// exclusively.
    /// If that fails the inode stays frozen: nothing is lost, and everything goes through.
    pub(super) async fn recall<V: Volume>(
        &self,
        volume: &V,
        held: &HeldGrant,
        ino: Ino,
        to: Grant,
    ) -> Result<()> {
        let cache = &held.cache;
        self.set(held, ino, Grant::Frozen)?;
        if held.writes() {
            self.flush_file(volume, held, ino, true).await?;
        }
        if to == Grant::Read {
            let outstanding = self.table().take_outstanding(ino, cache.session());
            give_back(volume, cache, outstanding.unwrap_or(0));
            return self.set(held, ino, Grant::Read);
        }
        self.take_out(volume, held, ino, None).await?;
        self.end(volume, held, ino)
    }

    /// The volume asks back what hosts cache of an inode; with `keep_read` they may go on reading
    /// what they have. Ends when that is so.
    pub async fn give_up<V: Volume>(&self, volume: &V, ino: Ino, keep_read: bool) -> Result<()> {
        let _guard = self.range_locks.exclusive(ino).await;
        self.give_up_alone(volume, ino, keep_read).await
    }

    /// The same, the lock held.
    async fn give_up_alone<V: Volume>(&self, volume: &V, ino: Ino, keep_read: bool) -> Result<()> {
        for held in self.grants_on(ino) {
            if held.writes() || !keep_read {
                let to = if keep_read { Grant::Read } else { Grant::Free };
                self.recall(volume, &held, ino, to).await?;
            }
        }
        volume.recalled(ino, keep_read);
        Ok(())
    }

    /// A grant is over, and no page of it is left.
    pub(super) fn end<V: Volume>(&self, volume: &V, held: &HeldGrant, ino: Ino) -> Result<()> {
        let holder = self.table().ended(ino, held.cache.session());
        if let Some(holder) = holder {
            give_back(volume, &held.cache, holder.credit.saturating_sub(holder.settled));
        }
        held.cache.control.set(held.slot, Grant::Free).map_err(unreachable)
    }

    /// Takes pages out, or all that are known. What is dirty among them is flushed first, if the
    /// session may write; else it was never allowed, and goes.
    pub(super) async fn take_out<V: Volume>(
        &self,
        volume: &V,
        held: &HeldGrant,
        ino: Ino,
        pages: Option<Range<u64>>,
    ) -> Result<()> {
        let cache = &held.cache;
        let find = || match &pages {
            Some(pages) => cache.control.find(ino, pages.clone()),
            None => cache.control.known(ino),
        };
        let deadline = (cache.clock)().after(BUSY_LIMIT);
        let drops = !held.writes();
        loop {
            let (mut busy, mut dirty) = (false, Vec::new());
            for found in find().map_err(unreachable)? {
                match cache.control.take_out(&found, drops).map_err(unreachable)? {
                    TakenOut::Free => {}
                    TakenOut::Busy => busy = true,
                    TakenOut::Dirty => dirty.push(found),
                }
            }
            if !busy && dirty.is_empty() {
                return Ok(());
            }
            if (cache.clock)() >= deadline {
                tracing::warn!(%ino, session = %cache.session(),
                    "a host holds a page of its cache for too long: it cannot be taken back");
                return Err(Errno::EIO);
            }
            if !dirty.is_empty() {
                self.flush_found(volume, held, ino, dirty, false).await?;
            }
            yield_now().await;
        }
    }

    /// Runs a request that changes `ino` and, if it copies, reads the other.
    pub(super) async fn change<V: Volume>(
        &self,
        volume: &V,
        operation: Operation<'_>,
        (ino, other): (Ino, Option<Ino>),
        drops: Drops,
    ) -> Result<Answer> {
        let session = operation.caller.attachment;
        let (first, second) = match other {
            Some(other) => (ino.min(other), Some(ino.max(other))),
            None => (ino, None),
        };
        {
            let _first = self.range_locks.shared(first).await;
            let _second = match second {
                Some(second) => Some(self.range_locks.shared(second).await),
                None => None,
            };
            let known = |ino: Ino| !self.grants_on(ino).is_empty();
            if !known(ino) && !other.is_some_and(known) {
                for ino in [Some(ino), other].into_iter().flatten() {
                    nothing_is_cached(volume, ino);
                }
                return operation.run(volume).await;
            }
        }
        let _guard = self.range_locks.exclusive_both(first, second.unwrap_or(first)).await;
        let to = if drops == Drops::Pages { Grant::Free } else { Grant::Read };
        self.clear_others(volume, session, ino, to).await?;
        if let Some(other) = other {
            self.clear_others(volume, session, other, Grant::Read).await?;
            if let Some(held) = self.view(other, session).mine.filter(HeldGrant::writes) {
                self.flush_file(volume, &held, other, false).await?;
            }
            // Whoever has one of the two may wait for the other.
            if !volume.holds(ino) || !volume.holds(other) {
                self.give_up_alone(volume, other, false).await?;
            }
        }
        let mine = self.view(ino, session).mine;
        if let Some(held) = &mine {
            self.quiesce(volume, held, ino, drops).await?;
        }
        if drops == Drops::Pages {
            nothing_is_cached(volume, ino);
        }
        let now = operation.now;
        self.table().changes(ino);
        let answer = operation.run(volume).await;
        self.table().changes(ino);
        if let Some(held) = mine {
            // What the volume has done stays answered; the record stays frozen, and is recalled.
            if let Err(errno) = self.grant_again(volume, &held, ino, now).await {
                tracing::warn!(%ino, %errno, "a changed file is not cached any more");
            }
        }
        answer
    }

    /// Before a change by its own session: nothing is dirty, and nothing moves.
    async fn quiesce<V: Volume>(
        &self,
        volume: &V,
        held: &HeldGrant,
        ino: Ino,
        drops: Drops,
    ) -> Result<()> {
        if held.writes() || drops == Drops::Pages {
            self.set(held, ino, Grant::Frozen)?;
        }
        if held.writes() {
            self.flush_file(volume, held, ino, true).await?;
        }
        if drops == Drops::Pages {
            self.take_out(volume, held, ino, None).await?;
        }
        Ok(())
    }

    /// After it: as before, with the size the file has now.
    async fn grant_again<V: Volume>(
        &self,
        volume: &V,
        held: &HeldGrant,
        ino: Ino,
        now: outboard_base::Timestamp,
    ) -> Result<()> {
        let cache = &held.cache;
        let Ok((attr, writable)) = volume.cacheable(ino).await else {
            // Gone, or unreadable: whatever is asked for next says so.
            return self.recall(volume, held, ino, Grant::Free).await;
        };
        // From here on it is nobody else's to give back: a flush may only now count its last pages.
        let outstanding = self.table().take_outstanding(ino, cache.session());
        let Some(outstanding) = outstanding else { return Ok(()) };
        // A time set ahead of the clock is not moved back by a write that comes late to the volume.
        let writes = held.grant == Grant::Write && writable && attr.mtime <= now;
        let (grant, credit) = if writes { (Grant::Write, outstanding) } else { (Grant::Read, 0) };
        give_back(volume, cache, outstanding - credit);
        match cache.control.grant(ino, grant, attr.size, credit) {
            Ok(slot) => {
                let held = HeldGrant::new(cache, slot, grant);
                self.table().granted(ino, held, credit);
                Ok(())
            }
            Err(no) => {
                give_back(volume, cache, credit);
                Err(match no {
                    // It has one, so there was a place.
                    NoRecord::Full(_) => Errno::EIO,
                    NoRecord::Dma(error) => unreachable(error),
                })
            }
        }
    }

    /// Takes the pages of a frozen inode out, dirty or not: whether there are dirty ones elsewhere.
    fn discard<V: Volume>(&self, volume: &V, held: &HeldGrant, ino: Ino) -> Result<bool> {
        let control = &held.cache.control;
        let settled = || self.table().holder_of(ino, held).map_or(0, |holder| holder.settled);
        let dirtied = control.close(held.slot, settled()).map_err(unreachable)?;
        let mut gone = 0;
        for found in control.known(ino).map_err(unreachable)? {
            let out = control.take_out(&found, true).map_err(unreachable)?;
            gone += u64::from(out == TakenOut::Free && found.is_dirty());
        }
        self.settled(volume, held, ino, gone);
        Ok(settled() < dirtied)
    }

    /// The inode is gone: nothing of it is kept.
    pub(super) async fn drop_removed<V: Volume>(&self, volume: &V, ino: Ino) {
        if self.grants_on(ino).is_empty() {
            return;
        }
        let _guard = self.range_locks.exclusive(ino).await;
        for held in self.grants_on(ino) {
            let over = async {
                self.set(&held, ino, Grant::Frozen)?;
                let missed = held.writes() && self.discard(volume, &held, ino)?;
                let pages = missed.then_some(0..u64::MAX);
                self.take_out(volume, &held, ino, pages).await?;
                self.end(volume, &held, ino)
            };
            if let Err(errno) = over.await {
                tracing::debug!(%ino, %errno, "pages of a file that is gone stay for now");
            }
        }
    }
}

/// Says that no host caches anything of an inode, to a volume that will want to know.
pub(super) fn nothing_is_cached<V: Volume>(volume: &V, ino: Ino) {
    if !volume.holds(ino) {
        volume.recalled(ino, false);
    }
}
