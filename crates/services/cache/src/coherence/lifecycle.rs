//! Caches come and go: what an earlier life of the DPU side left, and what a host leaves behind.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use crate::dpu::{Found, Pulled, Slot, TakenOut};
use outboard_base::task::{try_join_abreast, yield_now};
use outboard_base::{Errno, Ino, Result, SessionId, Timestamp};
use outboard_volume::Caller;
use outboard_wire::cache::Grant;

use super::flush::{give_back, stamp};
use super::grant_table::{Cache, CacheSetup, HeldGrant};
use super::grants::nothing_is_cached;
use super::{BUSY_LIMIT, Coherence, unreachable};
use outboard_volume::Volume;

/// Rounds in which a page that cannot be written back is tried again: a disk that was full or slow
/// for a moment costs nothing. Each begins twice as late as the one before, 3 s later in all.
const RETRIES: u32 = 5;
/// Inodes whose pages are written back side by side.
const ABREAST: usize = 256;
/// Half of the first pause between two rounds.
const RETRY_AFTER: Duration = Duration::from_millis(50);

/// Which inodes a session may have written in its cache.
enum Written {
    /// These: they were granted.
    Known(BTreeSet<Ino>),
    /// What its records, which it can write itself, say of an earlier life of the DPU side. It came
    /// late if there is a time: what was changed since, by others, is newer than its pages.
    Claimed { since: Option<Timestamp> },
}

/// A cache being emptied.
struct Emptying<'a> {
    cache: &'a Cache,
    written: Written,
    /// The records of inodes that may have been written.
    slots: BTreeMap<Ino, Slot>,
}

/// How often the pages of an inode were tried.
#[derive(Clone, Copy)]
struct Round {
    /// Rounds in which some could not be written back.
    failed: u32,
    /// In this one pages are given up where they are.
    over: bool,
}

/// What became of a page of a cache that is being emptied.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Emptied {
    Gone,
    /// It is there still.
    Stays,
    /// The same: it could not be written back, and is tried again.
    Failed,
}

impl<'a> Emptying<'a> {
    fn new(cache: &'a Cache, written: Written, recorded: &[(Ino, Slot, Grant)]) -> Emptying<'a> {
        let concerns = |ino: &Ino, grant: Grant| match &written {
            Written::Known(inodes) => inodes.contains(ino),
            Written::Claimed { .. } => matches!(grant, Grant::Write | Grant::Frozen),
        };
        let slots = recorded
            .iter()
            .filter(|(ino, _, grant)| concerns(ino, *grant))
            .map(|(ino, slot, _)| (*ino, *slot))
            .collect();
        Emptying { cache, written, slots }
    }

    /// Whether dirty pages of an inode go to the volume; `None` if it is gone.
    async fn may_go<V: Volume>(&self, volume: &V, ino: Ino) -> Option<bool> {
        if !self.slots.contains_key(&ino) {
            return Some(false);
        }
        let Written::Claimed { since } = self.written else { return Some(true) };
        let may = match volume.may_write(&self.cache.caller, ino).await {
            Err(Errno::ESTALE) => return None,
            may => may.unwrap_or(false),
        };
        let newer = match since {
            Some(since) => volume.cacheable(ino).await.is_ok_and(|(attr, _)| attr.mtime >= since),
            None => false,
        };
        if newer {
            tracing::warn!(%ino, session = %self.cache.session(),
                "others wrote a file while the process that had it in its cache was away too long");
        }
        Some(may && !newer)
    }
}

/// Who died holding locks of pages lets go of them.
fn void_locks_of_dead(cache: &Cache) -> Result<()> {
    if (cache.is_dead)() {
        cache.control.void_locks(false).map_err(unreachable)?;
    }
    Ok(())
}

impl Coherence {
    /// These sessions had files open before the start, and may have written what the volume does
    /// not hold: until each has come back, or [`Coherence::expect_nobody`], requests wait.
    pub fn expect(&self, sessions: impl IntoIterator<Item = SessionId>) {
        self.concern(|table| sessions.into_iter().for_each(|session| table.expect(session)));
    }

    /// Whoever has not come back does not come.
    pub fn expect_nobody(&self) {
        self.concern(|table| table.is_back(None));
        self.recovered.notify();
    }

    /// A session is there: nothing more is to be expected of it.
    pub fn is_back(&self, session: SessionId) {
        self.concern(|table| table.is_back(Some(session)));
        self.recovered.notify();
    }

    /// A session brings a cache. Until [`Coherence::recover`] has emptied it of a file, its
    /// requests about that wait, and after a start everybody's.
    pub fn attach(&self, caller: Caller, setup: CacheSetup) -> Arc<Cache> {
        let cache = Arc::new(Cache::new(caller, setup));
        self.concern(|table| table.recovers(cache.session()));
        cache
    }

    /// Writes back what an earlier life of the DPU side left dirty in a cache, as far as its
    /// session may write those files; then it is empty, and in use. One that cannot be emptied is
    /// not used.
    pub async fn recover<V: Volume>(&self, volume: &V, cache: Arc<Cache>) {
        let session = cache.session();
        // Who comes in time makes all others wait.
        let since = self.began.filter(|_| self.table().recovers_late(session));
        let had: Vec<Ino> = cache.control.recorded().into_iter().map(|(ino, ..)| ino).collect();
        let emptied = self.empty(volume, &cache, Written::Claimed { since }).await
            && cache.control.lease(|| volume.lease_left()).is_ok();
        self.concern(|table| {
            if emptied {
                table.had(session, had.into_iter());
            }
            table.recovered(session, emptied.then_some(cache));
        });
        self.recovered.notify();
    }

    /// Its host leaves, or is dead: everything dirty is written back, and the cache forgotten.
    pub async fn detach<V: Volume>(&self, volume: &V, session: SessionId) {
        let Some(cache) = self.table().cache(session) else { return };
        let grants = self.grants_of(session);
        let written = grants
            .iter()
            .filter(|(_, held): &&(Ino, HeldGrant)| held.writes())
            .map(|(ino, _)| *ino)
            .collect();
        self.empty(volume, &cache, Written::Known(written)).await;
        for (ino, _) in grants {
            let holder = self.table().ended(ino, session);
            let outstanding = holder.map_or(0, |h| h.credit.saturating_sub(h.settled));
            give_back(volume, &cache, outstanding);
        }
        self.concern(|table| table.remove(session));
    }

    /// Freezes every record, writes every dirty page back that its session may have written, and
    /// sets all free: whether it is empty. What is lost is said at the next sync.
    async fn empty<V: Volume>(&self, volume: &V, cache: &Cache, written: Written) -> bool {
        let emptied = self.try_empty(volume, cache, written).await;
        if let Err(errno) = &emptied {
            tracing::error!(session = %cache.session(), %errno,
                "not all that was written in a cache could be written back");
        }
        emptied.is_ok()
    }

    async fn try_empty<V: Volume>(
        &self,
        volume: &V,
        cache: &Cache,
        written: Written,
    ) -> Result<()> {
        let recorded = cache.control.recorded();
        for (_, slot, _) in &recorded {
            cache.control.set(*slot, Grant::Frozen).map_err(unreachable)?;
        }
        let emptying = Emptying::new(cache, written, &recorded);
        let (deadline, mut last) = ((cache.clock)().after(BUSY_LIMIT), false);
        loop {
            void_locks_of_dead(cache)?;
            let found = cache.control.find_all().map_err(unreachable)?;
            if found.is_empty() {
                break;
            }
            // A host that puts new pages in for ever is not followed for ever.
            let over = std::mem::replace(&mut last, (cache.clock)() >= deadline);
            let emptied = self.empty_each(volume, &emptying, found, over).await?;
            if over || !emptied {
                return Err(Errno::EIO);
            }
            yield_now().await;
        }
        for (_, slot, _) in recorded {
            cache.control.set(slot, Grant::Free).map_err(unreachable)?;
        }
        Ok(())
    }

    /// Pages, inode by inode, side by side: one may have to wait for long, as for a node that is
    /// away, and nobody else waits for it. Records are frozen, so what is found is all there is.
    /// Whether all are out.
    async fn empty_each<V: Volume>(
        &self,
        volume: &V,
        emptying: &Emptying<'_>,
        found: Vec<Found>,
        over: bool,
    ) -> Result<bool> {
        let session = emptying.cache.session();
        let mut of_one: BTreeMap<Ino, Vec<Found>> = BTreeMap::new();
        for page in found {
            of_one.entry(Ino(page.entry.ino)).or_default().push(page);
        }
        self.concern(|table| table.has_left(session, of_one.keys().copied().collect()));
        self.recovered.notify();
        let each = of_one.into_iter();
        let each = each.map(|(ino, pages)| self.empty_inode(volume, emptying, (ino, pages), over));
        let emptied: Vec<bool> = try_join_abreast(ABREAST, each).await?;
        Ok(!emptied.contains(&false))
    }

    /// The pages of one inode, again and again as long as some stay. Whether all are out; if `over`
    /// they are given up where they are.
    async fn empty_inode<V: Volume>(
        &self,
        volume: &V,
        emptying: &Emptying<'_>,
        (ino, mut pages): (Ino, Vec<Found>),
        over: bool,
    ) -> Result<bool> {
        let (cache, session) = (emptying.cache, emptying.cache.session());
        // Once: what is written back changes the file, too.
        let goes = emptying.may_go(volume, ino).await;
        let may = goes == Some(true);
        // Its word alone says that it was written: nobody else hears of it.
        let whose = (!may).then_some(session);
        let (mut round, mut last) = (Round { failed: 0, over }, over);
        let mut deadline = None;
        loop {
            let (mut outcomes, mut lost) = (BTreeSet::new(), None);
            for page in &pages {
                let (outcome, failed) =
                    self.empty_one(volume, emptying, page, (may, round)).await?;
                outcomes.insert(outcome);
                lost = lost.or(failed);
            }
            if let Some(errno) = lost.filter(|_| goes.is_some()) {
                self.concern(|table| table.failed(ino, whose, errno));
                tracing::error!(%ino, %session, %errno,
                    "what was written in a cache is lost: it cannot be written back");
            }
            if outcomes.iter().all(|outcome| *outcome == Emptied::Gone) {
                self.concern(|table| table.is_emptied_of(session, ino));
                self.recovered.notify();
                return Ok(true);
            }
            if round.over {
                return Ok(false);
            }
            if outcomes.contains(&Emptied::Failed) {
                round.failed += 1;
                let until = (cache.clock)().after(RETRY_AFTER * (1 << round.failed.min(8)));
                while (cache.clock)() < until {
                    yield_now().await;
                }
            }
            yield_now().await;
            // How long it waits for a node is not the page's fault.
            let now = (cache.clock)();
            let deadline = *deadline.get_or_insert_with(|| now.after(BUSY_LIMIT));
            round.over = std::mem::replace(&mut last, now >= deadline);
            void_locks_of_dead(cache)?;
            pages = cache.control.find_all().map_err(unreachable)?;
            pages.retain(|page| page.entry.ino == ino.0);
        }
    }

    /// One page: into the volume if it is dirty and `may` go there, and out of the cache; and why
    /// it is lost, if it is.
    async fn empty_one<V: Volume>(
        &self,
        volume: &V,
        emptying: &Emptying<'_>,
        found: &Found,
        (may, round): (bool, Round),
    ) -> Result<(Emptied, Option<Errno>)> {
        let cache = emptying.cache;
        let slot = emptying.slots.get(&Ino(found.entry.ino)).copied();
        if round.over {
            let is_lost = slot.is_some() && (found.is_dirty() || found.is_being_written());
            return Ok((Emptied::Stays, is_lost.then_some(Errno::EIO)));
        }
        let (mut drops, mut lost) = (!may, None);
        if let (Some(slot), true) = (slot, found.is_dirty()) {
            let saved = match may {
                true => {
                    let known = matches!(emptying.written, Written::Known(_));
                    self.save(volume, cache, (slot, known), found).await
                }
                false => Err(Errno::EIO),
            };
            match saved {
                Ok(()) => {}
                Err(_) if may && round.failed < RETRIES => return Ok((Emptied::Failed, None)),
                Err(errno) => (drops, lost) = (true, Some(errno)),
            }
        }
        let taken = cache.control.take_out(found, drops).map_err(unreachable)?;
        let outcome = if taken == TakenOut::Free { Emptied::Gone } else { Emptied::Stays };
        Ok((outcome, lost))
    }

    /// Writes one page back, of an inode whose grant is `known` or was an earlier life's.
    async fn save<V: Volume>(
        &self,
        volume: &V,
        cache: &Cache,
        (slot, known): (Slot, bool),
        found: &Found,
    ) -> Result<()> {
        let ino = Ino(found.entry.ino);
        let _guard = self.range_locks.exclusive(ino).await;
        // Who comes late may find that others have the file.
        self.clear_others(volume, cache.session(), ino, Grant::Free).await?;
        if !known {
            nothing_is_cached(volume, ino);
        }
        let offset = found.entry.lpn.saturating_mul(cache.page_size());
        // The thread that maintains the caches may be writing it back, as it was a moment ago.
        let end = offset.saturating_add(cache.page_size());
        let _flush = self.flushing.exclusive_on(ino, offset..end).await;
        let mut page = vec![0; usize::try_from(cache.page_size()).map_err(|_| Errno::EIO)?];
        let pulled = cache.control.pull(found, &mut page).map_err(unreachable)?;
        let Pulled::Bytes { dirty: true, version } = pulled else { return Ok(()) };
        let record = cache.control.record(slot, ino).map_err(unreachable)?;
        let size = match record {
            Some(record) => record.size,
            None => volume.cacheable(ino).await.map_or(0, |(attr, _)| attr.size),
        };
        let within = size.saturating_sub(offset);
        page.truncate(usize::try_from(within).unwrap_or(usize::MAX));
        if !page.is_empty() {
            let mtime = record.and_then(|record| stamp(&record, (cache.wall)()));
            match volume.write_back(cache.session(), ino, &[(offset, &page)], mtime).await {
                Ok(()) | Err(Errno::ESTALE) => {}
                Err(errno) => return Err(errno),
            }
        }
        cache.control.cleaned(found, version).map_err(unreachable)?;
        Ok(())
    }
}
