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
mod grace;
mod serve;
mod service;
mod stats;

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

use outboard_base::{Result, SessionId, Timestamp};
use outboard_kv::Kv;
use outboard_kv::medium::Medium;
use outboard_kvfs::{Answer, Caller, Event, Kvfs, Payload};
use outboard_wire::file::{Header, Request};
use outboard_wire::nvmefs::Dispatch;

pub use attachment::{Attachment, Limits};
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

    /// What attachments must be told.
    fn take_events(&self) -> Vec<Event>;
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

    fn take_events(&self) -> Vec<Event> {
        Kvfs::take_events(self)
    }
}

/// Work that waits for something.
pub type Work = Pin<Box<dyn Future<Output = ()>>>;

/// The world's executor: runs on the service's own thread, between its turns.
pub trait Spawn {
    /// Polls work at once, and takes it over if it must wait for something.
    fn spawn(&self, work: Work);
}
