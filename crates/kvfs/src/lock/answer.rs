//! Lock requests, answered from the table.

use std::sync::{MutexGuard, PoisonError};

use outboard_base::{Errno, Fh, Ino, Result, SessionId};
use outboard_kv::Kv;
use outboard_kv::medium::Medium;
use outboard_wire::file::{Lock, LockKind, LockStyle, Reply};

use super::{Asked, Locks, Owner, Settled};
use crate::context::Context;
use crate::{Event, Kvfs};

impl<K: Kv, M: Medium> Kvfs<K, M> {
    fn locks(&self) -> MutexGuard<'_, Locks> {
        self.locks.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn tell_settled(&self, settled: Vec<Settled>) {
        if !settled.is_empty() {
            self.push_events(settled.into_iter().map(|Settled { session, ticket, result }| {
                Event::LockSettled { attachment: session, ticket, result }
            }));
        }
    }

    /// Changes the table, then tells whose waits that ended.
    fn with_locks<T>(&self, change: impl FnOnce(&mut Locks, &mut Vec<Settled>) -> T) -> T {
        let mut settled = Vec::new();
        let outcome = change(&mut self.locks(), &mut settled);
        self.tell_settled(settled);
        outcome
    }

    /// The lock in the way of `lock`, or one of kind `Unlock`.
    pub(crate) fn getlk(&self, cx: &Context<'_>, ino: Ino, fh: Fh, lock: Lock) -> Result<Reply> {
        self.handles.get(cx.attachment, fh, ino)?;
        if lock.kind == LockKind::Unlock {
            return Err(Errno::EINVAL);
        }
        Ok(Reply::Lock(self.locks().test(ino, cx.attachment, lock)))
    }

    /// Takes or drops a lock. Never recorded for replay: what an earlier instance did to its table
    /// died with it. `EBADF` for a byte range locked against the handle's access mode.
    pub(crate) fn setlk(
        &self,
        cx: &Context<'_>,
        ino: Ino,
        fh: Fh,
        lock: Lock,
        wait: bool,
        reclaim: bool,
    ) -> Result<Reply> {
        let handle = self.handles.get(cx.attachment, fh, ino)?;
        let allowed = match (lock.style, lock.kind) {
            (LockStyle::Flock, _) | (_, LockKind::Unlock) => true,
            (LockStyle::Posix, LockKind::Read) => handle.reads(),
            (LockStyle::Posix, LockKind::Write) => handle.writes(),
        };
        if !allowed {
            return Err(Errno::EBADF);
        }
        let asked =
            self.with_locks(|locks, out| locks.set(ino, cx.attachment, lock, wait, reclaim, out))?;
        Ok(match asked {
            Asked::Done => Reply::Empty,
            Asked::Waiting(ticket) => Reply::Waiting(ticket),
        })
    }

    /// Gives up waiting; `ENOENT` when the wait is over.
    pub(crate) fn cancel_lock(&self, cx: &Context<'_>, ticket: u64) -> Result<Reply> {
        self.locks().cancel(cx.attachment, ticket)?;
        Ok(Reply::Empty)
    }

    /// Drops the POSIX locks of `owner` on `ino`: one of its descriptors was closed.
    pub(crate) fn flush(&self, cx: &Context<'_>, ino: Ino, fh: Fh, owner: u64) -> Result<Reply> {
        self.handles.get(cx.attachment, fh, ino)?;
        self.drop_locks_of(cx.attachment, ino, LockStyle::Posix, owner);
        Ok(Reply::Empty)
    }

    /// A handle on `ino` is closed: drops the flock of `owner`.
    pub(crate) fn drop_flock(&self, attachment: SessionId, ino: Ino, owner: u64) {
        self.drop_locks_of(attachment, ino, LockStyle::Flock, owner);
    }

    fn drop_locks_of(&self, session: SessionId, ino: Ino, style: LockStyle, owner: u64) {
        let owner = Owner { session, owner };
        self.with_locks(|locks, out| locks.drop_owner(ino, style, owner, out));
    }

    /// The attachment is gone.
    pub(crate) fn drop_locks(&self, attachment: SessionId) {
        self.with_locks(|locks, out| locks.drop_session(attachment, out));
    }

    /// Those who held locks before a restart had their time.
    pub(crate) fn end_lock_grace(&self) {
        self.with_locks(Locks::end_grace);
    }
}
