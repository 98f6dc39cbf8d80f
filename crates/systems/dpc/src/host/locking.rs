//! Requests about locks: decided here while the file's locks are this session's, sent otherwise.
//!
//! Decided from the session's own account of what it holds ([`Holdings`]), which is all there is to
//! know of a file whose locks were given to it. The answers are those of the table on the DPU side.
//!
//! [`Holdings`]: super::holdings::Holdings

use outboard_base::{Errno, Fh, Ino, Result, limits};
use outboard_wire::file::{HeldLock, Lock, LockKind, LockStyle, Reply, Request};

use super::Lane;
use super::books::Books;

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
    /// It waits for its turn.
    Wait,
    /// It goes to the DPU side.
    Send,
    /// So too, and the DPU side must not give the file's locks away: the end of a wait for one may
    /// be on its way here.
    SendOnly,
}

impl Locking {
    /// What handing in asks has no turn: it comes before everybody.
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

impl Books {
    /// What becomes of a request in `lane` about locks. What sending it gives up is off the books
    /// then.
    pub(super) fn begin(&mut self, lane: Lane, locking: Locking) -> Decision {
        let ino = locking.ino();
        // What is decided here the DPU side cannot count, and it must take it back one day.
        if matches!(locking, Locking::Set { .. }) && !locking.only_drops() && self.is_full() {
            return Decision::Answer(Err(Errno::ENOLCK));
        }
        if self.turns.decides(ino) {
            match self.decide(locking) {
                Some(outcome) => return Decision::Answer(outcome),
                None if matches!(locking, Locking::Release { .. }) => return Decision::Send,
                None => {}
            }
        }
        let has_turn = match locking {
            Locking::Release { .. } => !self.turns.knows(ino) || self.turns.take(ino, lane),
            _ => self.turns.take(ino, lane),
        };
        if !has_turn {
            return Decision::Wait;
        }
        self.give_up(locking);
        match locking {
            Locking::Set { .. } if self.is_waited_for(ino) => Decision::SendOnly,
            _ => Decision::Send,
        }
    }

    /// The same for one whose turn has come: meanwhile the file's locks may have become ours.
    pub(super) fn begin_again(&mut self, lane: Lane, locking: Locking) -> Decision {
        self.turns.put_down(locking.ino(), lane);
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

    /// The same for one that had waited for its turn.
    pub(super) fn never_sent(&mut self, locking: Locking) {
        self.give_up(locking);
    }

    /// A directory handle is given up when its closing is sent.
    pub(super) fn closes_directory(&mut self, request: &Request<'_>) {
        if let Request::Releasedir { ino, fh } = *request {
            self.holdings.closing(ino, fh, 0);
        }
    }

    /// What sending a request takes off the books already: what it gives up must not be handed in
    /// again, since someone else may have it by then.
    fn give_up(&mut self, locking: Locking) {
        let holdings = &mut self.holdings;
        match locking {
            Locking::Test { .. } => {}
            Locking::Set { ino, fh, lock, .. } => match (lock.style, lock.kind) {
                (_, LockKind::Unlock) => holdings.locked(ino, fh, lock),
                (LockStyle::Flock, _) => holdings.converting(ino, lock),
                (LockStyle::Posix, LockKind::Read) => holdings.weakening(ino, lock),
                (LockStyle::Posix, LockKind::Write) => {}
            },
            Locking::Flush { ino, owner, .. } => holdings.flushing(ino, owner),
            Locking::Release { ino, fh, owner } => {
                if holdings.closing(ino, fh, owner) {
                    self.turns.closed(ino);
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
                    self.turns.hand_back(ino);
                    None
                }
                outcome => Some(outcome),
            },
            Locking::Flush { ino, fh, owner } => Some(match self.holdings.handle(ino, fh) {
                Some(_) => {
                    self.holdings.flushing(ino, owner);
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
        self.holdings.handle(ino, fh).ok_or(Errno::EBADF)?;
        if lock.kind == LockKind::Unlock {
            return Err(Errno::EINVAL);
        }
        let free = Lock { kind: LockKind::Unlock, ..lock };
        Ok(Reply::Lock(self.holdings.blocker(ino, lock).unwrap_or(free)))
    }

    /// `EAGAIN` if the lock must be waited for; a flock of another kind is given up first.
    fn set(&mut self, ino: Ino, fh: Fh, lock: Lock) -> Result<Reply> {
        let handle = self.holdings.handle(ino, fh).ok_or(Errno::EBADF)?;
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
                self.holdings.converting(ino, lock);
            }
            if self.holdings.blocker(ino, lock).is_some() {
                return Err(Errno::EAGAIN);
            }
        }
        self.holdings.locked(ino, fh, lock);
        Ok(Reply::Empty)
    }

    /// Whether a lock more, which may split another in two, is one too many.
    fn is_full(&self) -> bool {
        self.holdings.counts().1 + 2 > limits::LOCKS_MAX
    }

    /// The locks of `ino` as they are handed back.
    pub(super) fn held_bytes(&self, ino: Ino) -> Vec<u8> {
        let mut bytes = Vec::new();
        for (fh, lock) in self.holdings.held(ino) {
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
