//! The DPU side of its links: commands in, a volume's answers out (DPC 3.1 "IO_Dispatch"; rows C5,
//! C7).
//!
//! A [`Service`] polls every queue of every [`Attachment`], a bounded number of commands a turn
//! from each, decodes what it finds as the words of a stranger, and runs the volume's answer as a
//! future, which the world's executor polls at once: most answers never wait.
//!
//! # Invariants
//!
//! 1. Whatever a host puts into its queues, it is answered with an error or costs only that host:
//!    limits are per attachment, credentials come from the socket, a command's buffers are its own.
//! 2. A command is completed once, or belongs to an attachment that is gone.
//! 3. When an attachment is gone, what still runs for it ends first; then its handles, locks and
//!    memory go ([`Service::sweep`]). Until then no other attachment may use its session.
//! 4. A no-op never reaches the volume: it measures the link.
//!
//! Everything here belongs to one thread. The world provides turns, time, wake-ups and the
//! executor.

mod attachment;
mod gate;
mod grace;
mod serve;
mod service;
mod stats;

use std::future::Future;
use std::sync::Arc;

use outboard_base::{Fh, Ino, Result, SessionId, Timestamp};
use outboard_kv::object::BLOCK;
use outboard_kv::{Kv, KvError};
use outboard_kvfs::{Answer, Caller, Event, Kvfs, Payload};
use outboard_medium::Medium;
use outboard_wire::file::{Attr, Header, Request};
use outboard_wire::nvmefs::Dispatch;

pub use attachment::{Attachment, Limits};
pub use gate::{CacheSetup, Figures, Gate};
pub use grace::Grace;
pub use service::{AttachmentId, Gone, Service};
pub use stats::{Histogram, OpStats, Stats};

/// What answers file operations.
pub trait Volume: 'static {
    /// Which value of bit 10 speaks of it.
    fn dispatch(&self) -> Dispatch;

    /// Answers one request.
    fn handle(
        &self,
        caller: &Caller,
        header: &Header,
        request: Request<'_>,
        payload: Payload,
        now: Timestamp,
    ) -> impl Future<Output = Result<Answer>>;

    /// An attachment is gone for good.
    fn detach(&self, session: SessionId);

    /// An attachment that hung up may have missed events; it is there again.
    fn is_back(&self, session: SessionId);

    /// What attachments must be told.
    fn take_events(&self) -> Vec<Event>;

    /// Attributes of a regular file, and whether a host may change its bytes in a cache.
    fn cacheable(&self, ino: Ino) -> impl Future<Output = Result<(Attr, bool)>>;

    /// Whether the peer behind an attachment may write to a file now.
    fn may_write(&self, caller: &Caller, ino: Ino) -> impl Future<Output = Result<bool>>;

    /// Writes runs of pages of a cache back (an offset and at most 1 MiB each), changed at `mtime`;
    /// `ESTALE` if the file is gone.
    fn write_back(
        &self,
        session: SessionId,
        ino: Ino,
        runs: &[(u64, &[u8])],
        mtime: Option<Timestamp>,
    ) -> impl Future<Output = Result<()>>;

    /// The flags a handle of an attachment was opened with.
    fn opened(&self, session: SessionId, ino: Ino, fh: Fh) -> Option<u32>;

    /// Cuts a file to no bytes.
    fn cut(&self, ino: Ino, now: Timestamp) -> impl Future<Output = Result<()>>;

    /// Sessions other than this one hear that a file is not what they were told.
    fn tell_changed(&self, session: SessionId, ino: Ino);

    /// Puts space aside for so many pages of `page_size` bytes to be written back.
    fn reserve(&self, pages: u64, page_size: u64) -> impl Future<Output = Result<()>>;

    /// Gives it back.
    fn unreserve(&self, pages: u64, page_size: u64);
}

impl<K: Kv, M: Medium> Volume for Arc<Kvfs<K, M>> {
    fn dispatch(&self) -> Dispatch {
        Dispatch::Kv
    }

    fn handle(
        &self,
        caller: &Caller,
        header: &Header,
        request: Request<'_>,
        payload: Payload,
        now: Timestamp,
    ) -> impl Future<Output = Result<Answer>> {
        Kvfs::handle(self, caller, header, request, payload, now)
    }

    fn detach(&self, session: SessionId) {
        Kvfs::detach(self, session);
    }

    fn is_back(&self, session: SessionId) {
        Kvfs::is_back(self, session);
    }

    fn take_events(&self) -> Vec<Event> {
        Kvfs::take_events(self)
    }

    fn cacheable(&self, ino: Ino) -> impl Future<Output = Result<(Attr, bool)>> {
        Kvfs::cacheable(self, ino)
    }

    fn may_write(&self, caller: &Caller, ino: Ino) -> impl Future<Output = Result<bool>> {
        Kvfs::may_write(self, caller, ino)
    }

    fn write_back(
        &self,
        session: SessionId,
        ino: Ino,
        runs: &[(u64, &[u8])],
        mtime: Option<Timestamp>,
    ) -> impl Future<Output = Result<()>> {
        Kvfs::write_back(self, session, ino, runs, mtime)
    }

    fn opened(&self, session: SessionId, ino: Ino, fh: Fh) -> Option<u32> {
        Kvfs::opened(self, session, ino, fh)
    }

    fn cut(&self, ino: Ino, now: Timestamp) -> impl Future<Output = Result<()>> {
        Kvfs::cut(self, ino, now)
    }

    fn tell_changed(&self, session: SessionId, ino: Ino) {
        Kvfs::tell_changed(self, session, ino);
    }

    async fn reserve(&self, pages: u64, page_size: u64) -> Result<()> {
        self.objects().reserve(blocks(pages, page_size)).await.map_err(KvError::errno)
    }

    fn unreserve(&self, pages: u64, page_size: u64) {
        self.objects().unreserve(blocks(pages, page_size));
    }
}

/// Blocks that so many pages may take, wherever in the file they lie.
fn blocks(pages: u64, page_size: u64) -> u64 {
    pages.saturating_mul(page_size.div_ceil(BLOCK))
}
