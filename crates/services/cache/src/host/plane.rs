//! The plane: a region, what lies where in it, and the changes on their way through.

use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Duration;

use outboard_base::planted::{Fault, is_planted};
use outboard_link::Region;
use outboard_link::region::OutOfRegion;
use outboard_wire::cache::{
    Grant, Header, NEXT_NONE, RECORD_LEN, TALLIES, TALLY_LEN, Tallied, entry_at, header_at, spread,
    tally_at,
};

use crate::geometry::Geometry;
use crate::sync::{RwLock, alone, shared};

/// Locks for changes. Reads take none, overwrites share one; unrelated files seldom meet in one.
const STRIPES: usize = if cfg!(loom) { 1 } else { 1024 };

/// What a process does with its cache. Share it by `Arc`; all threads use it at once.
pub struct Plane {
    pub(super) region: Arc<Region>,
    pub(super) geometry: Geometry,
    /// Changes on their way through, by inode.
    changes: Box<[Changes]>,
}

/// How old the clock in the header may be while the cache is used.
const TELL_EVERY: u64 = 50_000_000;

/// Changes of some inodes on their way through.
#[derive(Default)]
struct Changes {
    count: RwLock<u32>,
    /// Held to look whether to wait, and to say that there is nothing to wait for.
    waiters: Mutex<()>,
    over: Condvar,
}

/// What became of a request, for the counters.
#[derive(Clone, Copy)]
pub(super) enum Event {
    Hit,
    Miss,
    Write,
    Through,
}

impl Plane {
    /// Lays an empty cache out in `region`. Nobody else may use the area yet.
    ///
    /// # Errors
    /// The area lies outside the region.
    pub fn format(region: Arc<Region>, geometry: Geometry) -> Result<Plane, OutOfRegion> {
        region.write_from(geometry.header_at(0), &geometry.header().emit())?;
        let rest = geometry.record_at(0) - geometry.header_at(Header::LEN as u64);
        zero(&region, geometry.header_at(Header::LEN as u64), rest)?;
        let records = u64::from(geometry.records()) * RECORD_LEN as u64;
        zero(&region, geometry.record_at(0), records)?;
        for index in 0..geometry.total() {
            let at = geometry.entry_at(index);
            region.store_u64(at + entry_at::WORD, 0, Relaxed)?;
            region.store_u64(at + entry_at::NEXT, NEXT_NONE.into(), Relaxed)?;
            region.store_u64(at + entry_at::LPN, 0, Relaxed)?;
            region.store_u64(at + entry_at::INO, 0, Relaxed)?;
        }
        let changes = (0..STRIPES).map(|_| Changes::default()).collect();
        Ok(Plane { region, geometry, changes })
    }

    /// What lies where.
    #[must_use]
    pub fn geometry(&self) -> &Geometry {
        &self.geometry
    }

    /// Figures since the start.
    #[must_use]
    pub fn counts(&self) -> Tallied {
        let mut bytes = [0; TALLIES * TALLY_LEN];
        let read = self.region.read_into(self.geometry.header_at(header_at::TALLIES), &mut bytes);
        debug_assert!(read.is_ok(), "the tallies lie in the header");
        Tallied::parse(&bytes)
    }

    /// Whether what is cached may be used at a time of this host's clock, which is asked for if
    /// there is an end to that at all. To be asked after reading, as a read counts when it is done,
    /// and before writing.
    #[must_use]
    pub fn is_leased(&self, now: impl FnOnce() -> u64) -> bool {
        let [lease, clock] =
            [header_at::LEASE, header_at::CLOCK].map(|at| self.geometry.header_at(at));
        let until = self.region.load_u64(lease, Relaxed).unwrap_or(1);
        if until == 0 || is_planted(Fault::Leased) {
            return true;
        }
        let now = now();
        // The DPU side counts from what it finds there, so a cache that was not used for long may
        // have to be told the time first.
        let told = self.region.load_u64(clock, Relaxed).unwrap_or(now);
        if now.saturating_sub(told) >= TELL_EVERY {
            let stored = self.region.store_u64(clock, now, Relaxed);
            debug_assert!(stored.is_ok(), "the clock lies in the header");
        }
        now < until
    }

    pub(super) fn count(&self, lpn: u64, event: Event) {
        if cfg!(loom) {
            return; // Counters order nothing: interleaving them would explore in vain.
        }
        let field = match event {
            Event::Hit => tally_at::HITS,
            Event::Miss => tally_at::MISSES,
            Event::Write => tally_at::WRITES,
            Event::Through => tally_at::THROUGH,
        };
        // In the region, where the DPU side reads them for its figures; one of several, so that
        // cores do not fight for them.
        let tally = header_at::TALLIES + lpn % TALLIES as u64 * TALLY_LEN as u64;
        let added = self.region.add_u64(self.geometry.header_at(tally + field), 1, Relaxed);
        debug_assert!(added.is_ok(), "the tallies lie in the header");
    }

    /// A change of the file (a write that goes through, a truncation) is about to be sent: until
    /// [`Plane::end_change`], nothing of the file is written here. Waits for writes that are being
    /// copied.
    ///
    /// So a write that is answered here is never older than one in flight, which may be sent again
    /// after a loss; and no page is made that a change on its way would be hidden by.
    pub fn begin_change(&self, ino: u64) {
        if let Some(mut changes) = self.changes(ino).map(alone) {
            *changes = changes.saturating_add(1);
        }
    }

    /// A change is answered. Once for each [`Plane::begin_change`].
    pub fn end_change(&self, ino: u64) {
        let Some(changes) = self.stripe(ino) else { return };
        {
            let mut count = alone(&changes.count);
            debug_assert!(*count > 0, "a change ended that never began");
            *count = count.saturating_sub(1);
            if *count > 0 {
                return;
            }
        }
        let _looked = changes.waiters.lock().unwrap_or_else(PoisonError::into_inner);
        changes.over.notify_all();
    }

    /// Whether the file may be written here, now or when its record is not frozen any more.
    #[must_use]
    pub fn is_for_writing(&self, ino: u64) -> bool {
        let record = self.record(ino);
        record.is_some_and(|record| record.grant.writes() || record.grant == Grant::Frozen)
    }

    /// Waits for the changes of the file that are on their way through, as long as they take or, if
    /// there is a limit, until then; whether there were any and are none now. Without a limit, not
    /// for threads that have to take answers in.
    pub fn await_changes(&self, ino: u64, limit: Option<Duration>) -> bool {
        let Some(changes) = self.stripe(ino) else { return false };
        let mut looking = changes.waiters.lock().unwrap_or_else(PoisonError::into_inner);
        let mut waited = false;
        while *shared(&changes.count) > 0 {
            let Some(limit) = limit else {
                looking = changes.over.wait(looking).unwrap_or_else(PoisonError::into_inner);
                waited = true;
                continue;
            };
            // Once: who wakes without need goes through earlier than it might.
            let woken = changes.over.wait_timeout(looking, limit);
            let (_looking, _timed_out) = woken.unwrap_or_else(PoisonError::into_inner);
            return *shared(&changes.count) == 0;
        }
        waited
    }

    /// How many changes of the file (or of one that shares its lock) are on their way through.
    pub(super) fn changes(&self, ino: u64) -> Option<&RwLock<u32>> {
        self.stripe(ino).map(|changes| &changes.count)
    }

    fn stripe(&self, ino: u64) -> Option<&Changes> {
        let stripe = usize::try_from(spread(ino) % self.changes.len().max(1) as u64).ok()?;
        self.changes.get(stripe)
    }
}

/// Zeroes whole words one by one: under loom, words nobody made yet are zero.
fn zero(region: &Region, at: u64, len: u64) -> Result<(), OutOfRegion> {
    region.zero(at, usize::try_from(len).map_err(|_| OutOfRegion)?)
}

impl std::fmt::Debug for Plane {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Plane").field("geometry", &self.geometry).finish_non_exhaustive()
    }
}
