//! The gate: where every request passes before the volume sees it, so that what hosts hold in their
//! caches and what the volume holds are one file to everybody (DPC 3.3; rows C12, C15, C16).
//!
//! The gate knows which sessions may cache which inodes (their *grants*) and takes grants back
//! before a request that does not agree with them. The table is in `docs/internals/cache.md`.
//!
//! # Invariants
//!
//! 1. An inode is cached for writing by one session and by no other, or for reading by any
//!    number.
//! 2. A clean page holds what the volume holds, under a range lock: who changes an inode in the
//!    volume has taken the pages out before, or holds them frozen, and what a fill read before a
//!    change began or ended is dropped.
//! 3. What a host was told is written is in a dirty page or in the volume; a dirty page becomes
//!    free or clean only after its bytes are in the volume.
//!
//! # Order of locks
//!
//! The gate's range lock of an inode (of two: the lower number first), then the one to flush it,
//! then what the volume takes. Locks of pages are held for single steps, never across an await. The
//! mutex of the book is held for look-ups. No host is ever waited for but for the end of a
//! copy, and that not for longer than [`BUSY_LIMIT`].
//!
//! Where nobody has a cache, a request passes after one look at a counter.

mod attributes;
mod book;
mod class;
mod data;
mod flush;
mod grants;
mod leaving;
mod tend;

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Poll;
use std::time::Duration;

use outboard_base::task::RangeLocks;
use outboard_base::{Errno, Ino, Result, SessionId, Timestamp};
use outboard_link::dma::DmaError;
use outboard_volume::{Answer, Caller, Payload};
use outboard_wire::file::{Header, Reply, Request, open_flags};

use book::{Book, Cache, Hand, View};
use class::{Class, Drops};
use outboard_volume::Volume;

pub use book::CacheSetup;
pub use tend::Figures;

/// How long a page that its host is changing is waited for. An honest host copies 1 MiB meanwhile.
const BUSY_LIMIT: Duration = Duration::from_secs(5);

/// What is asked, by whom.
pub(super) struct Ask<'a> {
    pub(super) caller: &'a Caller,
    pub(super) header: &'a Header,
    pub(super) request: Request<'a>,
    pub(super) payload: Payload,
    pub(super) now: Timestamp,
}

/// An answer; of its payload, the bytes from `skip` on are the asker's, as many as the reply says.
pub(super) struct Passed {
    pub(super) answer: Answer,
    pub(super) skip: usize,
}

impl From<Answer> for Passed {
    fn from(answer: Answer) -> Passed {
        Passed { answer, skip: 0 }
    }
}

/// The gate of one volume. Shared with the thread that tends the caches.
pub struct Gate {
    range_locks: RangeLocks,
    flushing: RangeLocks,
    book: Mutex<Book>,
    /// Buffers of flushes, and bytes of a batch of one.
    spare: flush::Spare,
    batch: usize,
    /// Who tends the caches.
    tending: tend::Tending,
    /// Caches, and sessions still expected: while it is 0 nothing is looked at.
    concerns: AtomicUsize,
    /// When this life of the DPU side began, if anybody may bring a cache from an earlier one.
    began: Option<Timestamp>,
}

impl Default for Gate {
    fn default() -> Gate {
        Gate {
            range_locks: RangeLocks::default(),
            flushing: RangeLocks::default(),
            book: Mutex::default(),
            spare: flush::Spare::default(),
            batch: flush::BATCH,
            tending: tend::Tending::default(),
            concerns: AtomicUsize::new(0),
            began: None,
        }
    }
}

impl Gate {
    /// The gate of a life of the DPU side that begins now.
    pub(in crate::dpu) fn begin(now: Timestamp) -> Gate {
        Gate { began: Some(now), ..Gate::default() }
    }

    fn book(&self) -> MutexGuard<'_, Book> {
        self.book.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Who may cache `ino`. This and its like give the book back before anybody acts on it.
    fn hands(&self, ino: Ino) -> Vec<Hand> {
        self.book().hands(ino)
    }

    fn view(&self, ino: Ino, session: SessionId) -> View {
        self.book().view(ino, session)
    }

    fn held(&self, session: SessionId) -> Vec<(Ino, Hand)> {
        self.book().held(session)
    }

    fn written(&self) -> Vec<Ino> {
        self.book().written()
    }

    fn caches(&self) -> Vec<Arc<Cache>> {
        self.book().caches()
    }

    /// Changes who is concerned.
    fn concern<T>(&self, change: impl FnOnce(&mut Book) -> T) -> T {
        let mut book = self.book();
        let outcome = change(&mut book);
        self.concerns.store(book.concerns(), Ordering::SeqCst);
        outcome
    }

    /// Passes a request to the volume.
    pub(super) async fn pass<V: Volume>(&self, volume: &V, ask: Ask<'_>) -> Result<Passed> {
        if self.concerns.load(Ordering::SeqCst) == 0 {
            return ask.of(volume).await.map(Passed::from);
        }
        let class = class::of(&ask.request, &ask.payload);
        if class == Class::Plain {
            return ask.of(volume).await.map(Passed::from);
        }
        let session = ask.caller.attachment;
        self.everybody_is_back(session).await;
        match class {
            Class::Plain => ask.of(volume).await.map(Passed::from),
            Class::Read { ino, fh, offset, len, flags } => {
                let at = offset..offset.saturating_add(len.into());
                let passed = self.read(volume, ask, (ino, fh), at, flags).await?;
                self.grant_after_a_loss(volume, session, (ino, fh)).await;
                Ok(passed)
            }
            Class::Write { ino, fh, offset, len, flags } => {
                let at = offset..offset.saturating_add(len);
                let answer = self.write(volume, ask, (ino, fh), at, flags).await?;
                self.grant_after_a_loss(volume, session, (ino, fh)).await;
                Ok(answer.into())
            }
            Class::Change { ino, other, drops } => {
                self.change(volume, ask, (ino, other), drops).await.map(Passed::from)
            }
            Class::Attributes { ino } => self.getattr(volume, ask, ino).await.map(Passed::from),
            Class::Open { ino, flags } => {
                self.open(volume, ask, ino, flags).await.map(Passed::from)
            }
            Class::Names => self.names(volume, ask).await.map(Passed::from),
            Class::Listing => self.listing(volume, ask).await.map(Passed::from),
            Class::Sync { ino } => {
                self.flush_for_sync(volume, ino, Some(session)).await?;
                ask.of(volume).await.map(Passed::from)
            }
            Class::SyncAll => {
                for ino in self.written() {
                    self.flush_for_sync(volume, ino, Some(session)).await?;
                }
                ask.of(volume).await.map(Passed::from)
            }
            Class::Release { ino, fh } => {
                self.released(volume, session, ino, fh).await;
                ask.of(volume).await.map(Passed::from)
            }
            Class::Removal => {
                let answer = ask.of(volume).await?;
                if let Reply::Gone { last: attr, .. } = &answer.reply {
                    self.bury(volume, attr.ino).await;
                }
                Ok(answer.into())
            }
        }
    }

    /// Opens a file; its session may cache it then.
    async fn open<V: Volume>(
        &self,
        volume: &V,
        ask: Ask<'_>,
        ino: Ino,
        flags: u32,
    ) -> Result<Answer> {
        let session = ask.caller.attachment;
        let cuts = flags & open_flags::TRUNC != 0;
        let answer = if cuts {
            self.change(volume, ask, (ino, None), Drops::Pages).await?
        } else {
            ask.of(volume).await?
        };
        if let Reply::Opened(fh) = answer.reply {
            self.grant(volume, session, (ino, fh), flags).await;
        }
        Ok(answer)
    }

    /// Waits until every session that had files open before a restart has come back and its cache
    /// is flushed, or had the time to; and until its own is, whenever it came.
    async fn everybody_is_back(&self, session: SessionId) {
        std::future::poll_fn(|context| {
            let mut book = self.book();
            if book.is_complete(session) {
                return Poll::Ready(());
            }
            book.wait(context.waker());
            Poll::Pending
        })
        .await;
    }
}

impl<'a> Ask<'a> {
    async fn of<V: Volume>(self, volume: &V) -> Result<Answer> {
        volume.handle(self.caller, self.header, self.request, self.payload, self.now).await
    }
}

/// Lets others go on once.
async fn pause() {
    let mut paused = false;
    std::future::poll_fn(|context| {
        if std::mem::replace(&mut paused, true) {
            return Poll::Ready(());
        }
        context.waker().wake_by_ref();
        Poll::Pending
    })
    .await;
}

/// A cache that cannot be reached is a host that broke its region.
fn unreachable(_: DmaError) -> Errno {
    Errno::EIO
}

#[cfg(test)]
#[expect(clippy::cast_possible_truncation, reason = "small numbers")]
mod tests;
