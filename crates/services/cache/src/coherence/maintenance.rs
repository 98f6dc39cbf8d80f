//! What nobody asks for: writing back in time, making room ahead of need; and figures.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::dpu::Counts;
use crate::policy::Policies;
use crate::policy::flush::{Dirty, WATERMARK};
use outboard_base::task::WaitList;
use outboard_base::{Ino, Result, SessionId};
use outboard_wire::cache::{Grant, Status, Tallied};

use super::grant_table::{Cache, HeldGrant};
use super::{Coherence, unreachable};
use outboard_volume::Volume;

/// How one cache does.
#[derive(Clone, Copy, Debug)]
pub struct Figures {
    /// Whose it is.
    pub session: SessionId,
    /// Bytes of a page.
    pub page_size: u64,
    /// Pages.
    pub total: u64,
    /// Pages that hold nothing.
    pub free: u64,
    /// Pages the volume does not hold yet.
    pub dirty: u64,
    /// Inodes it may cache.
    pub inodes: u64,
    /// Pages promised to writers, for which space is put aside.
    pub promised: u64,
    /// Reads and writes that went through although their inode may be cached.
    pub through: u64,
    /// What its host says it counted.
    pub tallied: Tallied,
    /// What was done to its pages.
    pub counts: Counts,
    /// Its algorithms.
    pub policies: Policies,
}

/// Who maintains the caches, and who waits for room in them.
#[derive(Default)]
pub(super) struct Maintenance {
    rounds: Mutex<Rounds>,
    room: WaitList,
}

#[derive(Default)]
struct Rounds {
    /// Has a round begun soon, if anybody maintains them.
    wake: Option<Box<dyn Fn() + Send + Sync>>,
    /// A round is asked for, and none has begun since.
    asked: bool,
    /// Rounds that have begun, and the last of them that has ended.
    begun: u64,
    ended: u64,
}

impl Maintenance {
    fn state(&self) -> MutexGuard<'_, Rounds> {
        self.rounds.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn has_maintainer(&self) -> bool {
        self.state().wake.is_some()
    }

    /// There may be room for those who wait.
    pub(super) fn has_room(&self) {
        self.room.notify();
    }

    /// Asks for a round: its number. `None` if nobody maintains them.
    fn ask(&self) -> Option<u64> {
        let mut state = self.state();
        let wake = state.wake.as_ref()?;
        if !state.asked {
            wake();
        }
        state.asked = true;
        Some(state.begun + 1)
    }

    /// A round begins: its number.
    fn begin(&self) -> u64 {
        let mut state = self.state();
        state.asked = false;
        state.begun += 1;
        state.begun
    }

    /// It is over, and so is each before it that was given up half-way.
    fn end(&self, round: u64) {
        let mut state = self.state();
        state.ended = state.ended.max(round);
        drop(state);
        self.has_room();
    }
}

impl Coherence {
    /// Somebody maintains the caches from now on: calls [`Coherence::maintain`] every
    /// [`Coherence::MAINTAIN_EVERY`], and soon after `wake` was called, which is to return at once.
    pub fn set_maintainer(&self, wake: impl Fn() + Send + Sync + 'static) {
        self.maintenance.state().wake = Some(Box::new(wake));
    }

    /// Nobody does any more. What was asked of it, its successor has not heard.
    pub fn clear_maintainer(&self) {
        let mut state = self.maintenance.state();
        (state.wake, state.asked) = (None, false);
        drop(state);
        self.maintenance.has_room();
    }

    /// Has pages written back once many are promised, and waits until there is room for so many
    /// more: as long as the thread that maintains the caches needs for a round, at most.
    pub(super) async fn await_room(&self, cache: &Cache, pages: u64) {
        if !cache.lacks_room(pages + cache.dirty_max() * (WATERMARK - 1) / WATERMARK) {
            return;
        }
        let Some(round) = self.maintenance.ask().filter(|_| cache.lacks_room(pages)) else {
            return;
        };
        let may_go_on = || {
            let state = self.maintenance.state();
            !cache.lacks_room(pages) || state.ended >= round || state.wake.is_none()
        };
        self.maintenance.room.until(|| may_go_on().then_some(())).await;
    }

    /// One round over all caches: writes back what the policy says it is time for, gives writers
    /// credit, and makes room in buckets of caches that are written to. First, how long hosts may
    /// use what they have. Whether there is anything
    /// to come back for: while nobody may write in its cache, there is not.
    pub async fn maintain<V: Volume>(&self, volume: &V) -> bool {
        let round = self.maintenance.begin();
        let caches = self.caches();
        let mut written = false;
        for cache in &caches {
            if let Err(error) = cache.control.lease(|| volume.lease_left()) {
                let error = unreachable(error);
                tracing::debug!(session = %cache.session(), %error, "a cache cannot be reached");
            }
        }
        for cache in caches {
            let grants = self.grants_of(cache.session());
            let concerns = |held: &HeldGrant| held.writes() || held.grant == Grant::Frozen;
            let grants: Vec<_> = grants.into_iter().filter(|(_, held)| concerns(held)).collect();
            if grants.is_empty() {
                continue;
            }
            written = true;
            if let Err(errno) = self.maintain_cache(volume, &cache, grants).await {
                tracing::debug!(session = %cache.session(), %errno, "a cache cannot be maintained");
            }
        }
        self.maintenance.end(round);
        written
    }

    async fn maintain_cache<V: Volume>(
        &self,
        volume: &V,
        cache: &Arc<Cache>,
        grants: Vec<(Ino, HeldGrant)>,
    ) -> Result<()> {
        let now = (cache.clock)();
        let total = cache.control.geometry().total().max(1);
        let mut stale = Vec::new();
        let mut dirty = 0;
        for (ino, held) in grants {
            let record = cache.control.record(held.slot, ino).map_err(unreachable)?;
            let dirtied = record.map_or(0, |record| record.dirtied.pages);
            let mut table = self.table();
            let Some(holder) = table.holder(ino, cache.session()) else { continue };
            let unsettled = dirtied.saturating_sub(holder.settled);
            if unsettled == 0 && held.grant == Grant::Write {
                holder.dirty_since = None;
                continue;
            }
            dirty += unsettled;
            let since = *holder.dirty_since.get_or_insert(now);
            stale.push((ino, since, held.grant == Grant::Frozen));
        }
        let any = dirty > 0;
        for (ino, since, frozen) in stale {
            let age = now.since(since);
            if frozen || cache.flush.now(Dirty { share: dirty * 100 / total, age }) {
                self.maintain_inode(volume, cache, ino).await;
            }
        }
        if any { self.make_room(cache).await } else { Ok(()) }
    }

    async fn maintain_inode<V: Volume>(&self, volume: &V, cache: &Arc<Cache>, ino: Ino) {
        let mine = || self.view(ino, cache.session()).mine;
        let writes = |held: &HeldGrant| held.grant == Grant::Write;
        // No lock is held: requests go on meanwhile, and what they need of this they wait for.
        if let Some(held) = mine().filter(writes)
            && let Err(errno) = self.flush_file(volume, &held, ino, false).await
        {
            return self.failed(ino, errno);
        }
        let frozen = {
            let _guard = self.range_locks.shared(ino).await;
            let Some(held) = mine() else { return };
            if writes(&held)
                && let Err(errno) = self.top_up(volume, &held, ino, 0).await
            {
                tracing::debug!(%ino, %errno, "no more credit");
            }
            held.grant == Grant::Frozen
        };
        if !frozen {
            return;
        }
        // What failed before is tried again, until nothing of it is left.
        let _guard = self.range_locks.exclusive(ino).await;
        let mine = self.view(ino, cache.session()).mine;
        if let Some(held) = mine.filter(|held| held.grant == Grant::Frozen)
            && let Err(errno) = self.recall(volume, &held, ino, Grant::Free).await
        {
            self.failed(ino, errno);
        }
    }

    /// Leaves an entry free in each bucket, if a clean page can go: what the host writes anew finds
    /// a place then.
    async fn make_room(&self, cache: &Arc<Cache>) -> Result<()> {
        let ways = u64::from(cache.control.geometry().ways());
        let mut used: std::collections::HashMap<u64, (u64, Ino, u64)> =
            std::collections::HashMap::new();
        for found in cache.control.find_all().map_err(unreachable)? {
            let bucket = used.entry(found.index / ways).or_default();
            *bucket = (bucket.0 + 1, Ino(found.entry.ino), found.entry.lpn);
        }
        for (_, (count, ino, page)) in used {
            if count >= ways {
                cache.control.make_room_for(ino, page).map_err(unreachable)?;
            }
        }
        Ok(())
    }

    /// Writes back what is dirty in all caches: before an orderly end.
    pub async fn flush_all<V: Volume>(&self, volume: &V) -> Result<()> {
        let mut outcome = Ok(());
        for ino in self.written() {
            outcome = outcome.and(self.flush_for_sync(volume, ino, None).await);
        }
        outcome
    }

    /// Whether anybody has a cache, or brings one.
    pub fn has_caches(&self) -> bool {
        self.concerns.load(Ordering::Relaxed) > 0
    }

    /// How each cache does. Reads all entries: for people who look.
    pub fn figures(&self) -> Vec<Figures> {
        let caches = self.caches();
        let figures = |cache: Arc<Cache>| {
            let found = cache.control.find_all().unwrap_or_default();
            let total = cache.control.geometry().total();
            let of = |status| {
                let is = found.iter().filter(|found| found.entry.word.status == status);
                is.count() as u64
            };
            let (clean, dirty) = (of(Status::Clean), of(Status::Dirty));
            Figures {
                session: cache.session(),
                page_size: cache.page_size(),
                total,
                free: total.saturating_sub(clean + dirty),
                dirty,
                inodes: self.grants_of(cache.session()).len() as u64,
                promised: cache.promised.load(Ordering::Relaxed),
                through: cache.through.load(Ordering::Relaxed),
                tallied: cache.control.tallied().unwrap_or_default(),
                counts: cache.control.counts(),
                policies: cache.control.policies(),
            }
        };
        caches.into_iter().map(figures).collect()
    }

    /// How often [`Coherence::maintain`] is to be called.
    pub const MAINTAIN_EVERY: Duration = Duration::from_secs(1);
}
