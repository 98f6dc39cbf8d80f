//! Caches come and go: what an earlier life of the DPU side left, and what a host leaves behind.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use outboard_base::{Errno, Ino, Result, SessionId};
use outboard_cache::dpu::{Found, Pulled, Slot};
use outboard_kvfs::Caller;
use outboard_wire::cache::Grant;

use super::book::{Cache, CacheSetup, Hand};
use super::flush::{give_back, stamp};
use super::{BUSY_LIMIT, Gate, pause, unreachable};
use crate::dpu::Volume;

impl Gate {
    /// These sessions had files open before the start, and may have written what the volume does
    /// not hold: until each has come back, or [`Gate::expect_nobody`], requests wait.
    pub fn expect(&self, sessions: impl IntoIterator<Item = SessionId>) {
        self.concern(|book| sessions.into_iter().for_each(|session| book.expect(session)));
    }

    /// Whoever has not come back does not come.
    pub fn expect_nobody(&self) {
        let woken = self.concern(|book| book.is_back(None));
        woken.into_iter().for_each(std::task::Waker::wake);
    }

    /// A session is there: nothing more is to be expected of it.
    pub(in crate::dpu) fn is_back(&self, session: SessionId) {
        let woken = self.concern(|book| book.is_back(Some(session)));
        woken.into_iter().for_each(std::task::Waker::wake);
    }

    /// A session brings a cache. Until [`Gate::adopt`] has ended, its requests wait, and after a
    /// start everybody's.
    pub(in crate::dpu) fn attach(&self, caller: Caller, setup: CacheSetup) -> Arc<Cache> {
        let cache = Arc::new(Cache::new(caller, setup));
        self.concern(|book| book.adopts(cache.session()));
        cache
    }

    /// Writes back what an earlier life of the DPU side left dirty in a cache, as far as its
    /// session may write those files; then it is empty, and in use. One that cannot be emptied is
    /// not used.
    pub(in crate::dpu) async fn adopt<V: Volume>(&self, volume: &V, cache: Arc<Cache>) {
        let session = cache.session();
        let emptied = self.empty(volume, &cache, None).await;
        let woken = self.concern(|book| book.adopted(session, emptied.then_some(cache)));
        woken.into_iter().for_each(std::task::Waker::wake);
    }

    /// Its host leaves, or is dead: everything dirty is written back, and the cache forgotten.
    pub(in crate::dpu) async fn part<V: Volume>(&self, volume: &V, session: SessionId) {
        let Some(cache) = self.book().cache(session) else { return };
        let held = self.held(session);
        let written = held
            .iter()
            .filter(|(_, hand): &&(Ino, Hand)| hand.writes())
            .map(|(ino, _)| *ino)
            .collect();
        self.empty(volume, &cache, Some(written)).await;
        for (ino, _) in held {
            let holder = self.book().ended(ino, session);
            let outstanding = holder.map_or(0, |h| h.credit.saturating_sub(h.settled));
            give_back(volume, &cache, outstanding);
        }
        self.concern(|book| book.remove(session));
    }

    /// Freezes every record, writes every dirty page back that its session may have written (the
    /// inodes `written`, if they are known), and sets all free: whether it is empty. What is lost
    /// is said at the next sync.
    async fn empty<V: Volume>(
        &self,
        volume: &V,
        cache: &Cache,
        written: Option<BTreeSet<Ino>>,
    ) -> bool {
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
        written: Option<BTreeSet<Ino>>,
    ) -> Result<()> {
        let recorded = cache.control.recorded();
        for (_, slot, _) in &recorded {
            cache.control.set(*slot, Grant::Frozen).map_err(unreachable)?;
        }
        let writes = |grant: Grant| matches!(grant, Grant::Write | Grant::Frozen);
        let slots: BTreeMap<Ino, Slot> = recorded
            .iter()
            .filter(|(ino, _, grant)| match &written {
                Some(written) => written.contains(ino),
                None => writes(*grant),
            })
            .map(|(ino, slot, _)| (*ino, *slot))
            .collect();
        let mut may: BTreeMap<Ino, bool> = BTreeMap::new();
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
            for found in found {
                let ino = Ino(found.entry.ino);
                let slot = slots.get(&ino).copied();
                let may = match (slot, may.get(&ino), &written) {
                    (None, ..) => false,
                    (Some(_), _, Some(_)) => true,
                    (Some(_), Some(known), None) => *known,
                    (Some(_), None, None) => {
                        let now = volume.may_write(&cache.caller, ino).await.unwrap_or(false);
                        may.insert(ino, now);
                        now
                    }
                };
                let holds = slot.is_some() && (found.is_dirty() || found.is_being_written());
                let lost = |errno| {
                    // Its word alone that it was written: told to nobody else.
                    let whose = (!may).then_some(cache.session());
                    self.concern(|book| book.failed(ino, whose, errno));
                };
                if over {
                    if holds {
                        lost(Errno::EIO);
                    }
                    continue;
                }
                let mut drops = !may;
                if let (Some(slot), true) = (slot, found.is_dirty()) {
                    let saved = match may {
                        true => self.save(volume, cache, slot, &found).await,
                        false => Err(Errno::EIO),
                    };
                    if let Err(errno) = saved {
                        drops = true;
                        lost(errno);
                    }
                }
                cache.control.take_out(&found, drops).map_err(unreachable)?;
            }
            if over {
                return Err(Errno::EIO);
            }
            pause().await;
        }
        for (_, slot, _) in recorded {
            cache.control.set(slot, Grant::Free).map_err(unreachable)?;
        }
        Ok(())
    }

    /// Writes one page back.
    async fn save<V: Volume>(
        &self,
        volume: &V,
        cache: &Cache,
        slot: Slot,
        found: &Found,
    ) -> Result<()> {
        let ino = Ino(found.entry.ino);
        let _turn = self.turns.alone(ino).await;
        // Who comes late may find that others have the file.
        self.clear_others(volume, cache.session(), ino, Grant::Free).await?;
        let mut page = vec![0; usize::try_from(cache.page_size()).map_err(|_| Errno::EIO)?];
        let pulled = cache.control.pull(found, &mut page).map_err(unreachable)?;
        let Pulled::Bytes { dirty: true, version } = pulled else { return Ok(()) };
        let record = cache.control.record(slot, ino).map_err(unreachable)?;
        let size = match record {
            Some(record) => record.size,
            None => volume.cacheable(ino).await.map_or(0, |(attr, _)| attr.size),
        };
        let offset = found.entry.lpn.saturating_mul(cache.page_size());
        let within = size.saturating_sub(offset);
        page.truncate(usize::try_from(within).unwrap_or(usize::MAX));
        if !page.is_empty() {
            let mtime = record.and_then(|record| stamp(&record));
            match volume.write_back(cache.session(), ino, &[(offset, &page)], mtime).await {
                Ok(()) | Err(Errno::ESTALE) => {}
                Err(errno) => return Err(errno),
            }
        }
        cache.control.cleaned(found, version).map_err(unreachable)?;
        Ok(())
    }
}
