//! The control plane: everything the DPU side does to a cache (DPC 3.3; rows C11 to C14, C16).
//!
//! A [`Control`] is what the DPU side does to one host's cache. It reaches the cache only through
//! [`Dma`], one step of the lock protocol at a time; what is done when, and to whose order, says
//! [`crate::coherence`], which holds the range locks.
//!
//! # Invariants
//!
//! 1. Every byte is read once, checked, then used. The geometry is read at attach and kept. Work is
//!    bounded by the geometry, also where a chain is followed.
//! 2. No lock is held between two calls: a call that takes one releases it before it returns, so a
//!    future that is dropped leaves none.
//! 3. Bytes are pulled under a shared lock and replaced under the write lock, after the entry's
//!    identity was read again.
//! 4. A page is marked clean only if its version is the one that was pulled.
//! 5. An entry is set free only after the chain it may be linked in was taken: what is linked in
//!    one that was not, stays. So a chain an honest host keeps leads to all it made.

mod ahead;
mod members;
mod pages;
mod records;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use outboard_base::ledger::Kind;
use outboard_link::dma::{Dma, DmaError};
use outboard_wire::cache::{CacheMode, Header, TALLIES, TALLY_LEN, Tallied, header_at};

use crate::geometry::{Area, Geometry, GeometryError};
use crate::policy::{Policies, Replace};
use crate::sync::{Mutex, MutexGuard, held};

pub use pages::{Filled, Found, Pulled, TakenOut};
pub use records::{NoRecord, Slot};

use ahead::Ahead;
use members::Members;
use records::Records;

/// Why a cache cannot be managed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CacheAttachError {
    /// The header does not describe a cache that fits its area.
    Geometry(GeometryError),
    /// The region cannot be reached.
    Dma(DmaError),
}

impl std::fmt::Display for CacheAttachError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            CacheAttachError::Geometry(error) => error.fmt(f),
            CacheAttachError::Dma(error) => write!(f, "the cache cannot be read: {error:?}"),
        }
    }
}

impl std::error::Error for CacheAttachError {}

/// What was done to one cache, since it was attached.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Pages put in.
    pub filled: u64,
    /// Pages pulled for a write-back.
    pub pulled: u64,
    /// Pages that were dirty again when their write-back was done.
    pub dirty_again: u64,
    /// Pages that made room for others.
    pub replaced: u64,
    /// Pages taken out because a file changed behind the cache, or a grant ended.
    pub taken_out: u64,
    /// Entries and records that held what nobody writes, and were set free.
    pub repaired: u64,
    /// Times all entries were looked at for one inode: its chain did not lead to what its host
    /// counted, or a page was being made. Not for a host that chains nothing.
    pub searched: u64,
    /// Pages put in ahead of need.
    pub ahead: u64,
    /// Of those, used since; as far as it was looked.
    pub ahead_used: u64,
}

#[derive(Default)]
struct Counters {
    filled: AtomicU64,
    pulled: AtomicU64,
    dirty_again: AtomicU64,
    replaced: AtomicU64,
    taken_out: AtomicU64,
    repaired: AtomicU64,
    searched: AtomicU64,
}

fn count(counter: &AtomicU64) {
    counter.fetch_add(1, Ordering::Relaxed);
}

/// One host's cache, from beyond the bus. Share it by `Arc` between threads.
pub struct Control {
    dma: Arc<dyn Dma>,
    geometry: Geometry,
    policies: Policies,
    replace: Mutex<Box<dyn Replace>>,
    ahead: Mutex<Ahead>,
    records: Mutex<Records>,
    members: Mutex<Members>,
    counters: Counters,
}

impl Control {
    /// Reads and checks the cache in `area`, and voids what locks an earlier life of the DPU side
    /// left. Its records and pages are as that life left them. It is managed by `policies` where
    /// its host wishes nothing else.
    ///
    /// # Errors
    /// [`CacheAttachError`]; the host can only blame itself.
    pub fn attach(
        dma: Arc<dyn Dma>,
        area: Area,
        policies: Policies,
    ) -> Result<Control, CacheAttachError> {
        let end = area.at.checked_add(area.len).filter(|end| *end <= dma.region_len());
        if end.is_none() {
            return Err(CacheAttachError::Geometry(GeometryError::Place));
        }
        let mut bytes = [0; Header::LEN];
        dma.read(Kind::Cache, area.at, &mut bytes).map_err(CacheAttachError::Dma)?;
        let header =
            Header::parse(&bytes).map_err(|error| CacheAttachError::Geometry(error.into()))?;
        let geometry = Geometry::check(area, header).map_err(CacheAttachError::Geometry)?;
        let total = u32::try_from(geometry.total()).unwrap_or(u32::MAX);
        let policies = policies.with(header.wishes);
        let control = Control {
            policies,
            replace: Mutex::new(policies.replace.build(total, geometry.ways())),
            ahead: Mutex::new(Ahead::new(total)),
            records: Mutex::new(Records::new(geometry.records())),
            members: Mutex::default(),
            counters: Counters::default(),
            dma,
            geometry,
        };
        control.adopt_records().map_err(CacheAttachError::Dma)?;
        control.void_locks(true).map_err(CacheAttachError::Dma)?;
        Ok(control)
    }

    /// The layout.
    #[must_use]
    pub fn geometry(&self) -> &Geometry {
        &self.geometry
    }

    /// Whether its host chains what it makes: the version before did not.
    fn is_chained(&self) -> bool {
        self.geometry.header().chained
    }

    /// By what it is managed.
    #[must_use]
    pub fn policies(&self) -> Policies {
        self.policies
    }

    /// What its host says it counted. For people: a host may say what it likes.
    ///
    /// # Errors
    /// [`DmaError`].
    pub fn tallied(&self) -> Result<Tallied, DmaError> {
        let mut bytes = [0; TALLIES * TALLY_LEN];
        self.dma.read(Kind::Cache, self.geometry.header_at(header_at::TALLIES), &mut bytes)?;
        Ok(Tallied::parse(&bytes))
    }

    /// Lets the host use what is cached for as long as is left now; `None`: for ever. By the host's
    /// clock, which is read first: whatever delays this, the end is not later than it is here.
    ///
    /// # Errors
    /// [`DmaError`].
    pub fn lease(&self, left: impl FnOnce() -> Option<Duration>) -> Result<(), DmaError> {
        let mut clock = [0; 8];
        self.dma.read(Kind::Cache, self.geometry.header_at(header_at::CLOCK), &mut clock)?;
        let until = left().map_or(0, |left| {
            let left = u64::try_from(left.as_nanos()).unwrap_or(u64::MAX);
            u64::from_le_bytes(clock).saturating_add(left.max(1))
        });
        let at = self.geometry.header_at(header_at::LEASE);
        self.dma.write(Kind::Cache, at, &until.to_le_bytes())
    }

    /// Whether the host may ever write into it.
    #[must_use]
    pub fn takes_writes(&self) -> bool {
        self.geometry.header().mode == CacheMode::Write
    }

    /// What was done to it.
    #[must_use]
    pub fn counts(&self) -> Counts {
        let of = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let Counters { filled, pulled, dirty_again, replaced, taken_out, repaired, searched } =
            &self.counters;
        let (ahead, ahead_used) = self.ahead().counts();
        Counts {
            filled: of(filled),
            pulled: of(pulled),
            dirty_again: of(dirty_again),
            replaced: of(replaced),
            taken_out: of(taken_out),
            repaired: of(repaired),
            searched: of(searched),
            ahead,
            ahead_used,
        }
    }

    fn replace(&self) -> MutexGuard<'_, Box<dyn Replace>> {
        held(&self.replace)
    }

    fn ahead(&self) -> MutexGuard<'_, Ahead> {
        held(&self.ahead)
    }

    fn records(&self) -> MutexGuard<'_, Records> {
        held(&self.records)
    }

    fn members(&self) -> MutexGuard<'_, Members> {
        held(&self.members)
    }
}

#[cfg(test)]
#[expect(clippy::cast_possible_truncation, reason = "small numbers")]
mod tests;
