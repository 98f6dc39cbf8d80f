//! Coherence of hosts' caches with the volume behind them: every file operation passes here before
//! the volume sees it, so that what hosts hold in their caches and what the volume holds are one
//! file to everybody (DPC 3.3; rows C12, C15, C16).
//!
//! [`Coherence`] knows which sessions may cache which inodes (their *grants*) and takes grants back
//! before a request that does not agree with them. The table is in `docs/internals/cache.md`.
//!
//! # Invariants
//!
//! 1. An inode is cached for writing by one session and by no other, or for reading by any
//!    number.
//! 2. A clean page holds what the volume holds, under a range lock: who changes an inode in the
//!    volume has taken the pages out before, or holds them frozen, and what a fill read before a
//!    change began or ended is dropped.
//! 3. What was answered to a host as written is in a dirty page or in the volume; a dirty page
//!    becomes free or clean only after its bytes are in the volume.
//!
//! # Order of locks
//!
//! The range lock of an inode here (of two: the lower number first), then the one to flush it,
//! then what the volume takes. Locks of pages are held for single steps, never across an await. The
//! mutex of the table is held for look-ups, also within a look of those who wait in a list. No
//! host is ever waited for but for the end of a copy, and that not for longer than `BUSY_LIMIT`.
//!
//! Where nobody has a cache, a request passes after one look at a counter.

mod attributes;
mod data;
mod flush;
mod grant_table;
mod grants;
mod lifecycle;
mod maintenance;
mod request_class;

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use outboard_base::task::{RangeLocks, WaitList};
use outboard_base::{Errno, Ino, Result, SessionId, Timestamp};
use outboard_link::dma::DmaError;
use outboard_volume::{Answer, Caller, Payload};
use outboard_wire::file::{Header, Reply, Request, open_flags};

use grant_table::{Cache, Concern, GrantTable, HeldGrant, View};
use outboard_volume::Volume;
use request_class::{Drops, RequestClass};

pub use grant_table::CacheSetup;
pub use maintenance::Figures;

/// How long a page that its host is changing is waited for. An honest host copies 1 MiB meanwhile.
const BUSY_LIMIT: Duration = Duration::from_secs(5);

/// A file operation, and who asks for it.
pub struct Operation<'a> {
    /// Who asks.
    pub caller: &'a Caller,
    /// The request's header.
    pub header: &'a Header,
    /// What it asks.
    pub request: Request<'a>,
    /// The bytes beside it.
    pub payload: Payload,
    /// When it is served.
    pub now: Timestamp,
}

/// An answer; of its payload, the bytes from `skip` on are the asker's, as many as the reply says.
pub struct Trimmed {
    /// The answer.
    pub answer: Answer,
    /// Bytes of its payload that are not the asker's.
    pub skip: usize,
}

impl From<Answer> for Trimmed {
    fn from(answer: Answer) -> Trimmed {
        Trimmed { answer, skip: 0 }
    }
}

/// Coherence of caches with one volume. Shared with the thread that maintains the caches.
pub struct Coherence {
    range_locks: RangeLocks,
    flushing: RangeLocks,
    table: Mutex<GrantTable>,
    /// Requests that wait for sessions of before a restart, and for their own.
    recovered: WaitList,
    /// Buffers of flushes, and bytes of a batch of one.
    spare: flush::Spare,
    batch: usize,
    /// Who maintains the caches.
    maintenance: maintenance::Maintenance,
    /// Caches, and sessions still expected: while it is 0 nothing is looked at.
    concerns: AtomicUsize,
    /// When this life of the DPU side began, if anybody may bring a cache from an earlier one.
    began: Option<Timestamp>,
}

impl Default for Coherence {
    fn default() -> Coherence {
        Coherence {
            range_locks: RangeLocks::default(),
            flushing: RangeLocks::default(),
            table: Mutex::default(),
            recovered: WaitList::default(),
            spare: flush::Spare::default(),
            batch: flush::BATCH,
            maintenance: maintenance::Maintenance::default(),
            concerns: AtomicUsize::new(0),
            began: None,
        }
    }
}

impl Coherence {
    /// Coherence for a life of the DPU side that begins now.
    pub fn begin(now: Timestamp) -> Coherence {
        Coherence { began: Some(now), ..Coherence::default() }
    }

    fn table(&self) -> MutexGuard<'_, GrantTable> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Who may cache `ino`. This and its like release the table before anybody acts on it.
    fn grants_on(&self, ino: Ino) -> Vec<HeldGrant> {
        self.table().grants_on(ino)
    }

    fn view(&self, ino: Ino, session: SessionId) -> View {
        self.table().view(ino, session)
    }

    fn grants_of(&self, session: SessionId) -> Vec<(Ino, HeldGrant)> {
        self.table().grants_of(session)
    }

    fn written(&self) -> Vec<Ino> {
        self.table().written()
    }

    fn caches(&self) -> Vec<Arc<Cache>> {
        self.table().caches()
    }

    /// Changes who is concerned.
    fn concern<T>(&self, change: impl FnOnce(&mut GrantTable) -> T) -> T {
        let mut table = self.table();
        let outcome = change(&mut table);
        self.concerns.store(table.concerns(), Ordering::SeqCst);
        outcome
    }

    /// Serves a file operation: grants that do not agree with it are taken back first, then the
    /// volume answers.
    pub async fn handle<V: Volume>(&self, volume: &V, operation: Operation<'_>) -> Result<Trimmed> {
        if self.concerns.load(Ordering::SeqCst) == 0 {
            return operation.run(volume).await.map(Trimmed::from);
        }
        let class = request_class::of(&operation.request, &operation.payload);
        if class == RequestClass::Plain {
            return operation.run(volume).await.map(Trimmed::from);
        }
        let session = operation.caller.attachment;
        self.await_recovery(session, class.concern()).await;
        match class {
            RequestClass::Plain => operation.run(volume).await.map(Trimmed::from),
            RequestClass::Read { ino, fh, offset, len, flags } => {
                let at = offset..offset.saturating_add(len.into());
                let passed = self.read(volume, operation, (ino, fh), at, flags).await?;
                self.grant_after_a_loss(volume, session, (ino, fh)).await;
                Ok(passed)
            }
            RequestClass::Write { ino, fh, offset, len, flags } => {
                let at = offset..offset.saturating_add(len);
                let answer = self.write(volume, operation, (ino, fh), at, flags).await?;
                self.grant_after_a_loss(volume, session, (ino, fh)).await;
                Ok(answer.into())
            }
            RequestClass::Change { ino, other, drops } => {
                self.change(volume, operation, (ino, other), drops).await.map(Trimmed::from)
            }
            RequestClass::Attributes { ino } => {
                self.getattr(volume, operation, ino).await.map(Trimmed::from)
            }
            RequestClass::Open { ino, flags } => {
                self.open(volume, operation, ino, flags).await.map(Trimmed::from)
            }
            RequestClass::Names { .. } => self.names(volume, operation).await.map(Trimmed::from),
            RequestClass::Listing => self.listing(volume, operation).await.map(Trimmed::from),
            RequestClass::Sync { ino } => {
                self.flush_for_sync(volume, ino, Some(session)).await?;
                operation.run(volume).await.map(Trimmed::from)
            }
            RequestClass::SyncAll => {
                for ino in self.written() {
                    self.flush_for_sync(volume, ino, Some(session)).await?;
                }
                operation.run(volume).await.map(Trimmed::from)
            }
            RequestClass::Release { ino, fh } => {
                self.released(volume, session, ino, fh).await;
                operation.run(volume).await.map(Trimmed::from)
            }
            RequestClass::Removal => {
                let answer = operation.run(volume).await?;
                if let Reply::Gone { last: attr, .. } = &answer.reply {
                    self.drop_removed(volume, attr.ino).await;
                }
                Ok(answer.into())
            }
        }
    }

    /// Opens a file; its session may cache it then.
    async fn open<V: Volume>(
        &self,
        volume: &V,
        operation: Operation<'_>,
        ino: Ino,
        flags: u32,
    ) -> Result<Answer> {
        let session = operation.caller.attachment;
        let cuts = flags & open_flags::TRUNC != 0;
        let answer = if cuts {
            self.change(volume, operation, (ino, None), Drops::Pages).await?
        } else {
            operation.run(volume).await?
        };
        if let Reply::Opened(fh) = answer.reply {
            self.grant(volume, session, (ino, fh), flags).await;
        }
        Ok(answer)
    }

    /// Waits until no cache that came back has anything that an earlier life left in it.
    pub async fn recovered(&self) {
        self.recovered.until(|| (!self.table().recovers_any()).then_some(())).await;
    }

    /// Waits until every session that had files open before a restart has come back, or had the
    /// time to, and nothing of what concerns the request is left in its cache; and until its own
    /// has nothing, whenever it came. Whether it had to.
    async fn await_recovery(&self, session: SessionId, concern: Concern) -> bool {
        let is_complete = || self.table().is_complete(session, concern);
        // Every request looks, few wait: the list is only for these.
        let waits = !is_complete();
        if waits {
            self.recovered.until(|| is_complete().then_some(())).await;
        }
        waits
    }
}

impl<'a> Operation<'a> {
    async fn run<V: Volume>(self, volume: &V) -> Result<Answer> {
        volume.handle(self.caller, self.header, self.request, self.payload, self.now).await
    }
}

/// A cache that cannot be reached is a host that broke its region.
fn unreachable(_: DmaError) -> Errno {
    Errno::EIO
}

#[cfg(test)]
#[expect(clippy::cast_possible_truncation, reason = "small numbers")]
mod tests;
