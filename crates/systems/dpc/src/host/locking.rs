//! Requests about locks: decided here while the file's locks are delegated to this session, sent
//! otherwise.
//!
//! Decided from the session's own account of what it holds ([`HeldState`]), which is all there is
//! to know of a file whose locks are delegated to it. The answers are those of the table on the DPU
//! side.
//!
//! [`HeldState`]: super::held::HeldState

use outboard_base::{Errno, Fh, Ino, Result, limits};
use outboard_wire::file::{HeldLock, Lock, LockKind, LockStyle, Reply, Request};

use super::Lane;
use super::shared::SharedState;

/// A request that asks about locks or may drop some.
#[derive(Clone, Copy, Debug)]
pub(super) enum Locking {
    Test { ino: Ino, fh: Fh, lock: Lock },
    Set { ino: Ino, fh: Fh, lock: Lock, wait: bool },
    Flush { ino: Ino, fh: Fh, owner: u64 },
    Release { ino: Ino, fh: Fh, owner: u64 },
}

/// What is to be done with one.
#[derive(Debug)]
pub(super) enum Decision {
    /// It is answered.
    Answer(Result<Reply>),
    /// It waits for another about the same file.
    Wait,
    /// It goes to the DPU side.
    Send,
    /// So too, and the DPU side must not give the file's locks away: the end of a wait for one may
    /// be on its way here.
    SendOnly,
}

impl Locking {
    /// What handing in asks does not wait: it comes before everybody.
    pub(super) fn of(request: &Request<'_>) -> Option<Locking> {
        match *request {
            Request::Getlk { ino, fh, lock } => Some(Locking::Test { ino, fh, lock: whole(lock) }),
            Request::Setlk { ino, fh, lock, wait, reclaim: false } => {
                Some(Locking::Set { ino, fh, lock: whole(lock), wait })
            }
            Request::Flush { ino, fh, owner } => Some(Locking::Flush { ino, fh, owner }),
            Request::Release { ino, fh, owner } => Some(Locking::Release { ino, fh, owner }),
            _ => None,
        }
    }

    /// Whether it drops locks and takes none: who asks for that does not ask again, and may be dead
    /// by the time it is answered.
    pub(super) fn only_drops(&self) -> bool {
        match self {
            Locking::Test { .. } => false,
            Locking::Set { lock, .. } => lock.kind == LockKind::Unlock,
            Locking::Flush { .. } | Locking::Release { .. } => true,
        }
    }

    pub(super) fn ino(&self) -> Ino {
        match *self {
            Locking::Test { ino, .. }
            | Locking::Set { ino, .. }
            | Locking::Flush { ino, .. }
            | Locking::Release { ino, .. } => ino,
        }
    }
}

impl SharedState {
    /// What becomes of a request in `lane` about locks. What sending it gives up is held no longer
    /// then.
    pub(super) fn begin(&mut self, lane: Lane, locking: Locking) -> Decision {
        let ino = locking.ino();
        // What is decided here the DPU side cannot count, and it must take it back one day.
        if matches!(locking, Locking::Set { .. }) && !locking.only_drops() && self.is_full() {
            return Decision::Answer(Err(Errno::ENOLCK));
        }
        if self.lock_requests.decides(ino) {
            match self.decide(locking) {
                Some(outcome) => return Decision::Answer(outcome),
                None if matches!(locking, Locking::Release { .. }) => return Decision::Send,
                None => {}
            }
        }
        let may_go = match locking {
            Locking::Release { .. } => {
                !self.lock_requests.knows(ino) || self.lock_requests.enter(ino, lane)
            }
            _ => self.lock_requests.enter(ino, lane),
        };
        if !may_go {
            return Decision::Wait;
        }
        self.give_up(locking);
        match locking {
            Locking::Set { .. } if self.is_waited_for(ino) => Decision::SendOnly,
            _ => Decision::Send,
        }
    }

    /// The same for one that waited and may go: meanwhile the file's locks may have been delegated.
    pub(super) fn begin_again(&mut self, lane: Lane, locking: Locking) -> Decision {
        self.lock_requests.reconsider(locking.ino(), lane);
        self.begin(lane, locking)
    }

    /// A request will never be sent: what it would give up is given up all the same, since its
    /// caller does not ask again.
    pub(super) fn refused(&mut self, request: &Request<'_>) {
        match Locking::of(request) {
            Some(locking) => self.never_sent(locking),
            None => self.closes_directory(request),
        }
    }

    /// The same for one that had waited for another.
    pub(super) fn never_sent(&mut self, locking: Locking) {
        self.give_up(locking);
    }

    /// A directory handle is given up when its closing is sent.
    pub(super) fn closes_directory(&mut self, request: &Request<'_>) {
        if let Request::Releasedir { ino, fh } = *request {
            self.held.closing(ino, fh, 0);
        }
    }

    /// What sending a request drops from the held state already: what it gives up must not be
    /// handed in again, since someone else may have it by then.
    fn give_up(&mut self, locking: Locking) {
        let held = &mut self.held;
        match locking {
            Locking::Test { .. } => {}
            Locking::Set { ino, fh, lock, .. } => match (lock.style, lock.kind) {
                (_, LockKind::Unlock) => held.locked(ino, fh, lock),
                (LockStyle::Flock, _) => held.converting(ino, lock),
                (LockStyle::Posix, LockKind::Read) => held.weakening(ino, lock),
                (LockStyle::Posix, LockKind::Write) => {}
            },
            Locking::Flush { ino, owner, .. } => held.flushing(ino, owner),
            Locking::Release { ino, fh, owner } => {
                if held.closing(ino, fh, owner) {
                    self.lock_requests.closed(ino);
                }
            }
        }
    }

    /// Decides a request about locks that are this session's. `None`: it must be sent, after the
    /// locks were handed back unless it is a release.
    fn decide(&mut self, locking: Locking) -> Option<Result<Reply>> {
        match locking {
            Locking::Test { ino, fh, lock } => Some(self.test(ino, fh, lock)),
            Locking::Set { ino, fh, lock, wait } => match self.set(ino, fh, lock) {
                Err(Errno::EAGAIN) if wait => {
                    // Waits, and the circles they may close, are looked at where all of them are.
                    self.lock_requests.hand_back(ino);
                    None
                }
                outcome => Some(outcome),
            },
            Locking::Flush { ino, fh, owner } => Some(match self.held.handle(ino, fh) {
                Some(_) => {
                    self.held.flushing(ino, owner);
                    Ok(Reply::Empty)
                }
                None => Err(Errno::EBADF),
            }),
            Locking::Release { .. } => {
                self.give_up(locking);
                None
            }
        }
    }

    fn test(&self, ino: Ino, fh: Fh, lock: Lock) -> Result<Reply> {
        self.held.handle(ino, fh).ok_or(Errno::EBADF)?;
        if lock.kind == LockKind::Unlock {
            return Err(Errno::EINVAL);
        }
        let free = Lock { kind: LockKind::Unlock, ..lock };
        Ok(Reply::Lock(self.held.blocker(ino, lock).unwrap_or(free)))
    }

    /// `EAGAIN` if the lock must be waited for; a flock of another kind is given up first.
    fn set(&mut self, ino: Ino, fh: Fh, lock: Lock) -> Result<Reply> {
        let handle = self.held.handle(ino, fh).ok_or(Errno::EBADF)?;
        let allowed = match (lock.style, lock.kind) {
            (LockStyle::Flock, _) | (_, LockKind::Unlock) => true,
            (LockStyle::Posix, LockKind::Read) => handle.reads(),
            (LockStyle::Posix, LockKind::Write) => handle.writes(),
        };
        if !allowed {
            return Err(Errno::EBADF);
        }
        if lock.kind != LockKind::Unlock {
            if lock.style == LockStyle::Flock {
                self.held.converting(ino, lock);
            }
            if self.held.blocker(ino, lock).is_some() {
                return Err(Errno::EAGAIN);
            }
        }
        self.held.locked(ino, fh, lock);
        Ok(Reply::Empty)
    }

    /// Whether a lock more, which may split another in two, is one too many.
    fn is_full(&self) -> bool {
        self.held.counts().1 + 2 > limits::LOCKS_MAX
    }

    /// The locks of `ino` as they are handed back.
    pub(super) fn held_bytes(&self, ino: Ino) -> Vec<u8> {
        let mut bytes = Vec::new();
        for (fh, lock) in self.held.locks(ino) {
            HeldLock { fh, lock }.emit(&mut bytes);
        }
        bytes
    }
}

/// A flock is of the whole file, whatever range came with it.
pub(super) fn whole(lock: Lock) -> Lock {
    match lock.style {
        LockStyle::Posix => lock,
        LockStyle::Flock => Lock { start: 0, end: u64::MAX, ..lock },
    }
}
