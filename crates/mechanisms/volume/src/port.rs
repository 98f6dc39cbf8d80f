//! The port for requests, and for what caches in front of a volume need.

use std::future::Future;
use std::time::Duration;

use outboard_base::{Fh, Ino, Result, SessionId, Timestamp};
use outboard_wire::file::{Attr, Header, Request};

use crate::{Answer, Caller, Payload, VolumeEvent};

/// What answers file operations.
pub trait Volume: 'static {
    /// Whether there is one: not [`crate::NoVolume`].
    const EXISTS: bool = true;

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

    /// What attachments must hear of; empties the list.
    fn take_events(&self) -> Vec<VolumeEvent>;

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

    /// Whether an attachment may keep something of `ino`: it was sent its number, or has it open.
    fn is_known(&self, _session: SessionId, _ino: Ino) -> bool {
        true
    }

    /// Whether an attachment has `ino` open to write to it.
    fn is_open_to_write(&self, _session: SessionId, _ino: Ino) -> bool {
        true
    }

    /// The flags a handle of an attachment was opened with.
    fn opened(&self, session: SessionId, ino: Ino, fh: Fh) -> Option<u32>;

    /// Truncates a file to no bytes.
    fn truncate(&self, ino: Ino, now: Timestamp) -> impl Future<Output = Result<()>>;

    /// Notifies every session but this one that a file is not what it has cached of it.
    fn notify_changed(&self, session: SessionId, ino: Ino);

    /// Puts space aside for so many pages of `page_size` bytes to be written back.
    fn reserve(&self, pages: u64, page_size: u64) -> impl Future<Output = Result<()>>;

    /// Gives it back.
    fn unreserve(&self, pages: u64, page_size: u64);

    /// How long hosts may use what they have cached, if there is an end to that: others may change
    /// it then, and this side may be stopped and not say so.
    fn lease_left(&self) -> Option<Duration> {
        None
    }

    /// Whether the bytes of a file may be changed without anybody being asked. Where they may not,
    /// [`Volume::hold`] comes first.
    fn holds(&self, _ino: Ino) -> bool {
        true
    }

    /// Makes it so. Whoever calls it has said by [`Volume::recalled`] that no host caches anything
    /// of the file, and lets none do so meanwhile: others may have to be waited for who wait for
    /// that themselves.
    fn hold(&self, _ino: Ino) -> impl Future<Output = Result<()>> {
        async { Ok(()) }
    }

    /// No host may write to a file in its cache any more, and what was written is written back;
    /// unless they keep what they may read, nothing of it is cached. After
    /// [`VolumeEvent::RecallPages`], and whenever it is so and [`Volume::hold`] follows.
    fn recalled(&self, _ino: Ino, _keep_read: bool) {}
}
