//! Lock requests, answered from the table.

use outboard_base::{Errno, Fh, Ino, Result, SessionId};
use outboard_kv::Kv;
use outboard_kv::medium::Medium;
use outboard_wire::file::{Lock, Reply};

use crate::Kvfs;
use crate::context::Context;

#[expect(clippy::unused_async, clippy::unnecessary_wraps, reason = "signatures first")]
impl<K: Kv, M: Medium> Kvfs<K, M> {
    pub(crate) fn getlk(
        &self,
        _cx: &Context<'_>,
        _ino: Ino,
        _fh: Fh,
        _lock: Lock,
    ) -> Result<Reply> {
        Err(Errno::ENOSYS)
    }

    pub(crate) async fn setlk(
        &self,
        _cx: &Context<'_>,
        _ino: Ino,
        _fh: Fh,
        _lock: Lock,
        _wait: bool,
        _reclaim: bool,
    ) -> Result<Reply> {
        Err(Errno::ENOSYS)
    }

    pub(crate) fn cancel_lock(&self, _cx: &Context<'_>, _ticket: u64) -> Result<Reply> {
        Err(Errno::ENOSYS)
    }

    /// Drops the POSIX locks of `owner` on `ino`.
    pub(crate) fn flush(
        &self,
        _cx: &Context<'_>,
        _ino: Ino,
        _fh: Fh,
        _owner: u64,
    ) -> Result<Reply> {
        Err(Errno::ENOSYS)
    }

    /// A handle on `ino` is closed: drops the flock of `owner`.
    pub(crate) fn drop_flock(&self, _attachment: SessionId, _ino: Ino, _owner: u64) {}

    /// The attachment is gone.
    pub(crate) fn drop_locks(&self, _attachment: SessionId) {}

    /// Those who held locks before a restart had their time.
    pub(crate) fn end_lock_grace(&self) {}
}
