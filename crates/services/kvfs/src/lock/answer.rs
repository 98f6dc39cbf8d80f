//! Lock requests, answered from the table.

use std::future::poll_fn;
use std::sync::{MutexGuard, PoisonError};
use std::task::Poll;

use outboard_base::{Errno, Fh, Ino, Result, SessionId};
use outboard_kv::Kv;
use outboard_medium::Medium;
use outboard_wire::file::{Flags, HeldLock, Lock, LockKind, LockStyle, Reply};

use super::{Asked, Holder, Locks, Owner, Settled};
use crate::context::Context;
use crate::{Kvfs, VolumeEvent};

impl<K: Kv, M: Medium> Kvfs<K, M> {
    fn locks(&self) -> MutexGuard<'_, Locks> {
        self.locks.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Changes the table, then notifies whose waits that ended, and whose locks are recalled.
    fn with_locks<T>(&self, change: impl FnOnce(&mut Locks, &mut Vec<Settled>) -> T) -> T {
        let mut settled = Vec::new();
        let mut locks = self.locks();
        let outcome = change(&mut locks, &mut settled);
        let recalls = locks.take_recalls();
        drop(locks);
        if !settled.is_empty() || !recalls.is_empty() {
            let settled = settled.into_iter().map(|Settled { session, ticket, result }| {
                VolumeEvent::LockSettled { attachment: session, ticket, result }
            });
            let recalls = recalls
                .into_iter()
                .map(|(attachment, ino)| VolumeEvent::RecallLocks { attachment, ino });
            self.push_events(settled.chain(recalls));
        }
        outcome
    }

    /// The lock in the way of `lock`, or one of kind `Unlock`. Waits while another attachment
    /// decides the locks of the file; if that does not say in time, all of the file is in the way.
    pub(crate) async fn getlk(
        &self,
        cx: &Context<'_>,
        ino: Ino,
        fh: Fh,
        lock: Lock,
    ) -> Result<Reply> {
        self.handles.get(cx.attachment, fh, ino)?;
        if lock.kind == LockKind::Unlock {
            return Err(Errno::EINVAL);
        }
        let found = poll_fn(|task| {
            self.with_locks(|locks, _| {
                if !locks.is_with_another(ino, cx.attachment) {
                    return Poll::Ready(locks.test(ino, cx.attachment, lock));
                }
                if locks.is_overdue(ino) {
                    return Poll::Ready(Locks::unknown(lock.style));
                }
                locks.asks(ino, task.waker());
                Poll::Pending
            })
        });
        Ok(Reply::Lock(found.await))
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
        self.may_lock(cx, ino, fh, &lock)?;
        // Of a mount, which is root's or the owner's, all users have the attachment's share.
        let holder = Holder::new(cx.attachment, (!cx.trusted).then_some(cx.peer_uid));
        let delegable = cx.header.flags.has(Flags::DELEGABLE) && !reclaim;
        self.with_locks(|locks, out| {
            if !reclaim {
                locks.does_not_decide(ino, cx.attachment, out);
            }
            Ok(match locks.set(ino, holder, lock, wait, reclaim, out)? {
                Asked::Waiting(ticket) => Reply::Waiting(ticket),
                Asked::Done if delegable && locks.delegate(ino, cx.attachment) => Reply::Delegated,
                Asked::Done => Reply::Empty,
            })
        })
    }

    /// Takes back the locks of a file that this attachment decided: it holds those in `payload`.
    /// Those taken through a handle that does not allow them are not.
    pub(crate) fn return_locks(&self, cx: &Context<'_>, ino: Ino, payload: &[u8]) -> Result<Reply> {
        let mut held = Vec::new();
        for HeldLock { fh, lock } in HeldLock::parse(payload)? {
            if self.may_lock(cx, ino, fh, &lock).is_ok() {
                held.push(lock);
            }
        }
        self.with_locks(|locks, out| locks.take_back(ino, cx.attachment, &held, out))?;
        Ok(Reply::Empty)
    }

    /// `EBADF` for a handle that is not open there, or a byte range locked against its access mode.
    fn may_lock(&self, cx: &Context<'_>, ino: Ino, fh: Fh, lock: &Lock) -> Result<()> {
        let handle = self.handles.get(cx.attachment, fh, ino)?;
        let allowed = match (lock.style, lock.kind) {
            (LockStyle::Flock, _) | (_, LockKind::Unlock) => true,
            (LockStyle::Posix, LockKind::Read) => handle.reads(),
            (LockStyle::Posix, LockKind::Write) => handle.writes(),
        };
        if allowed { Ok(()) } else { Err(Errno::EBADF) }
    }

    /// An attachment that hung up is back: what it decides is asked of it again, and it asks again
    /// for what it waits for.
    pub fn is_back(&self, attachment: SessionId) {
        self.with_locks(|locks, _| {
            locks.forget_waits(attachment);
            locks.recall_all(attachment);
        });
    }

    /// Nobody listens to what an attachment waits for any more; whatever it wants it asks anew.
    pub fn forget_waits(&self, attachment: SessionId) {
        self.with_locks(|locks, _| locks.forget_waits(attachment));
    }

    /// To be called every few seconds: locks that were recalled and did not come back between two
    /// calls are refused to who would not wait for them.
    pub fn expire_recalls(&self) {
        self.with_locks(Locks::expire_recalls);
    }

    /// Nobody has `ino` open any more.
    pub(crate) fn drop_locks_on(&self, ino: Ino) {
        self.with_locks(|locks, out| locks.closed(ino, out));
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
