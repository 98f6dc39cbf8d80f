//! Caches come and go: what an earlier life of the DPU side left, and what a host leaves behind.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use crate::dpu::{Found, Pulled, Slot};
use outboard_base::task::yield_now;
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
    /// Inodes whose bytes go to the volume, and whose do not, as far as somebody asked.
    may: BTreeMap<Ino, bool>,
    /// Inodes of which something is lost.
    lost: BTreeSet<Ino>,
    /// Pages that could not be written back and are tried again.
    failures: u64,
    /// Rounds in which there were such.
    rounds: u32,
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
        let (may, lost) = (BTreeMap::new(), BTreeSet::new());
        Emptying { cache, written, slots, may, lost, failures: 0, rounds: 0 }
    }

    /// Whether dirty pages of an inode go to the volume.
    async fn may_go<V: Volume>(&mut self, volume: &V, ino: Ino, slot: Option<Slot>) -> bool {
        if slot.is_none() {
            return false;
        }
        let Written::Claimed { since } = self.written else { return true };
        if let Some(known) = self.may.get(&ino) {
            return *known;
        }
        let may = volume.may_write(&self.cache.caller, ino).await.unwrap_or(false);
        let newer = match since {
            Some(since) => volume.cacheable(ino).await.is_ok_and(|(attr, _)| attr.mtime >= since),
            None => false,
        };
        if newer {
            tracing::warn!(%ino, session = %self.cache.session(),
                "others wrote a file while the process that had it in its cache was away too long");
        }
        self.may.insert(ino, may && !newer);
        may && !newer
    }

    /// Something of an inode is lost; said once.
    fn is_lost(&mut self, ino: Ino, errno: Errno) {
        if self.lost.insert(ino) {
            tracing::error!(%ino, session = %self.cache.session(), %errno,
                "what was written in a cache is lost: it cannot be written back");
        }
    }
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

    /// A session brings a cache. Until [`Coherence::recover`] has ended, its requests wait, and
    /// after a start everybody's.
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
        let mut emptying = Emptying::new(cache, written, &recorded);
        let deadline = (cache.clock)().after(BUSY_LIMIT);
        let mut last = false;
        loop {
            if (cache.is_dead)() {
                cache.control.void_locks(false).map_err(unreachable)?;
            }
            let found = cache.control.find_all().map_err(unreachable)?;
            if found.is_empty() {
                break;
            }
            // A host that puts new pages in for ever is not followed for ever.
            let over = std::mem::replace(&mut last, (cache.clock)() >= deadline);
            let failures = emptying.failures;
            for found in &found {
                self.empty_one(volume, &mut emptying, found, over).await?;
            }
            if over {
                return Err(Errno::EIO);
            }
            if emptying.failures > failures {
                emptying.rounds += 1;
                let until = (cache.clock)().after(RETRY_AFTER * (1 << emptying.rounds.min(8)));
                while (cache.clock)() < until {
                    yield_now().await;
                }
            }
            yield_now().await;
        }
        for (_, slot, _) in recorded {
            cache.control.set(slot, Grant::Free).map_err(unreachable)?;
        }
        Ok(())
    }

    /// One page: into the volume if it is dirty and may go there, and out of the cache. With `over`
    /// it is given up where it is.
    async fn empty_one<V: Volume>(
        &self,
        volume: &V,
        emptying: &mut Emptying<'_>,
        found: &Found,
        over: bool,
    ) -> Result<()> {
        let cache = emptying.cache;
        let ino = Ino(found.entry.ino);
        let slot = emptying.slots.get(&ino).copied();
        let may = emptying.may_go(volume, ino, slot).await;
        // Its word alone says that it was written: nobody else hears of it.
        let whose = (!may).then_some(cache.session());
        let lost = |emptying: &mut Emptying<'_>, errno| {
            self.concern(|table| table.failed(ino, whose, errno));
            emptying.is_lost(ino, errno);
        };
        if over {
            if slot.is_some() && (found.is_dirty() || found.is_being_written()) {
                lost(emptying, Errno::EIO);
            }
            return Ok(());
        }
        let mut drops = !may;
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
                Err(_) if may && emptying.rounds < RETRIES => {
                    emptying.failures += 1;
                    return Ok(());
                }
                Err(errno) => {
                    drops = true;
                    lost(emptying, errno);
                }
            }
        }
        cache.control.take_out(found, drops).map_err(unreachable)?;
        Ok(())
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
