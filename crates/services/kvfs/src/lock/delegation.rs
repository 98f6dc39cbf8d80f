//! Files whose locks one attachment decides by itself.
//!
//! An attachment that alone locks a file is given its locks: what it held here is its own account
//! from then on, and the table has nothing of the file. When another attachment asks, the locks are
//! recalled; until they are handed back nobody here knows what is held, so a lock that is asked for
//! waits, as in grace. What does not come back in time is refused to who would not wait; it is
//! never taken as free.
//!
//! Invariant: while a file is given away, only the attachment that has it holds locks of it.

use std::collections::HashMap;
use std::task::Waker;

use outboard_base::{Errno, Ino, SessionId};
use outboard_wire::file::{Lock, LockKind, LockStyle};

use super::{Held, Locks, Settled};

/// Locks granted here after a recall before the file is given away again: who shares a file would
/// else pass it to and fro.
const SHARED_FOR: u32 = 64;
/// Files of which that is known. Forgetting one costs a recall.
const SHARED_MAX: usize = 4096;
/// How long ago the locks were recalled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Recalled {
    Never,
    Lately,
    /// Before the last [`Locks::expire_recalls`].
    Before,
    /// Nobody waits for the answer any more but who would wait for the lock as well.
    Overdue,
}

#[derive(Debug)]
struct Delegation {
    session: SessionId,
    recalled: Recalled,
}

/// What is given away, and who waits for it.
#[derive(Default)]
pub(super) struct LockDelegations {
    files: HashMap<Ino, Delegation>,
    /// Locks to grant here before the file may be given away again.
    shared: HashMap<Ino, u32>,
    /// Of which attachments are to be notified.
    recalls: Vec<(SessionId, Ino)>,
    /// Who only wants to know what is held.
    askers: Vec<(Ino, Waker)>,
}

impl Locks {
    /// Whether somebody else than `session` decides the locks of `ino`.
    pub(super) fn is_with_another(&self, ino: Ino, session: SessionId) -> bool {
        self.delegations.files.get(&ino).is_some_and(|given| given.session != session)
    }

    /// Whether anybody does.
    pub(super) fn is_away(&self, ino: Ino) -> bool {
        self.delegations.files.contains_key(&ino)
    }

    /// Whether the locks of `ino` were recalled and nobody counts on an answer any more.
    pub(super) fn is_overdue(&self, ino: Ino) -> bool {
        self.delegations.files.get(&ino).is_some_and(|given| given.recalled == Recalled::Overdue)
    }

    /// Asks for the locks of `ino` back, once.
    pub(super) fn recall(&mut self, ino: Ino) {
        if let Some(given) = self.delegations.files.get_mut(&ino)
            && given.recalled == Recalled::Never
        {
            given.recalled = Recalled::Lately;
            self.delegations.recalls.push((given.session, ino));
        }
    }

    /// Recalls to notify attachments of, since the last call.
    pub(crate) fn take_recalls(&mut self) -> Vec<(SessionId, Ino)> {
        std::mem::take(&mut self.delegations.recalls)
    }

    /// An attachment that was away is back: notifications of that time did not reach it.
    pub(crate) fn recall_all(&mut self, session: SessionId) {
        for (&ino, given) in &mut self.delegations.files {
            if given.session == session {
                given.recalled = Recalled::Lately;
                self.delegations.recalls.push((session, ino));
            }
        }
    }

    /// Gives the locks of `ino` to `session`, which was just granted one, if it alone has any there
    /// and nobody waits.
    pub(crate) fn delegate(&mut self, ino: Ino, session: SessionId) -> bool {
        if let Some(left) = self.delegations.shared.get_mut(&ino) {
            *left -= 1;
            if *left == 0 {
                self.delegations.shared.remove(&ino);
            }
            return false;
        }
        let alone = self.files.get(&ino).is_some_and(|file| file.is_of(session));
        if self.grace || !alone || self.is_away(ino) || self.queue.is_waited_for(ino) {
            return false;
        }
        if !self.counts.may_be_given(session) {
            return false;
        }
        self.drop_pieces(ino, session);
        self.counts.give(session);
        self.delegations.files.insert(ino, Delegation { session, recalled: Recalled::Never });
        true
    }

    /// `session` asks here for a lock, which it would not do if it decided itself: it has let the
    /// locks of `ino` go with the last handle, and opened the file again.
    pub(crate) fn does_not_decide(&mut self, ino: Ino, session: SessionId, out: &mut Vec<Settled>) {
        if self.delegations.files.get(&ino).is_some_and(|given| given.session == session) {
            self.end_delegation(ino);
            self.settle(ino, out);
        }
    }

    /// `session` hands back the locks of `ino`: it holds exactly `held`. Nothing happens if it did
    /// not have them. `EINVAL` for locks that exclude each other, `ENOLCK` for too many; then it
    /// holds none.
    pub(crate) fn take_back(
        &mut self,
        ino: Ino,
        session: SessionId,
        held: &[Lock],
        out: &mut Vec<Settled>,
    ) -> Result<(), Errno> {
        if self.delegations.files.get(&ino).is_none_or(|given| given.session != session) {
            return Ok(());
        }
        self.end_delegation(ino);
        self.drop_pieces(ino, session);
        if self.delegations.shared.len() >= SHARED_MAX {
            self.delegations.shared.clear();
        }
        self.delegations.shared.insert(ino, SHARED_FOR);
        let taken = self.take_in(ino, session, held);
        if taken.is_err() {
            self.drop_pieces(ino, session);
        }
        self.settle(ino, out);
        taken
    }

    fn take_in(&mut self, ino: Ino, session: SessionId, held: &[Lock]) -> Result<(), Errno> {
        if !self.counts.may_return(session, held.len()) {
            return Err(Errno::ENOLCK);
        }
        for lock in held {
            let piece = Held::new(session, lock);
            if lock.kind == LockKind::Unlock || !self.is_free(ino, lock.style, &piece) {
                return Err(Errno::EINVAL);
            }
            self.apply(ino, lock.style, piece);
        }
        Ok(())
    }

    /// Nobody has `ino` open any more: nobody holds or decides a lock there.
    pub(crate) fn closed(&mut self, ino: Ino, out: &mut Vec<Settled>) {
        self.delegations.shared.remove(&ino);
        self.end_delegation(ino);
        if let Some(file) = self.files.remove(&ino) {
            let holders = file.posix.holders().chain(file.flock.holders());
            holders.for_each(|session| self.counts.sub(session, 1));
        }
        self.settle(ino, out);
    }

    /// Ends what `session` was given; the files.
    pub(super) fn end_delegations(&mut self, session: SessionId) -> Vec<Ino> {
        let given = self.delegations.files.iter().filter(|(_, given)| given.session == session);
        let files: Vec<Ino> = given.map(|(&ino, _)| ino).collect();
        files.iter().for_each(|&ino| self.end_delegation(ino));
        files
    }

    fn end_delegation(&mut self, ino: Ino) {
        if let Some(given) = self.delegations.files.remove(&ino) {
            self.counts.take_back(given.session);
            self.wake_askers(ino);
        }
    }

    fn wake_askers(&mut self, ino: Ino) {
        let askers = self.delegations.askers.extract_if(.., |(about, _)| *about == ino);
        askers.for_each(|(_, waker)| waker.wake());
    }

    /// Who asks what is held, and must wait until it is known.
    pub(super) fn asks(&mut self, ino: Ino, waker: &Waker) {
        let askers = &mut self.delegations.askers;
        if !askers.iter().any(|(about, other)| *about == ino && other.will_wake(waker)) {
            askers.push((ino, waker.clone()));
        }
        self.recall(ino);
    }

    /// Some seconds have passed. What was recalled before the call before this one has not come
    /// back: who would not wait for a lock is refused it.
    pub(crate) fn expire_recalls(&mut self, out: &mut Vec<Settled>) {
        let mut overdue = Vec::new();
        for (&ino, given) in &mut self.delegations.files {
            given.recalled = match given.recalled {
                Recalled::Lately => Recalled::Before,
                Recalled::Before => {
                    overdue.push(ino);
                    Recalled::Overdue
                }
                other => other,
            };
        }
        overdue.sort_unstable();
        for ino in overdue {
            for waiter in self.queue.of_inode(ino).into_iter().filter(|waiter| !waiter.patient) {
                self.end_wait(waiter, Err(Errno::EAGAIN), out);
            }
            self.wake_askers(ino);
        }
    }

    /// Drops what `session` holds of `ino` in the table.
    fn drop_pieces(&mut self, ino: Ino, session: SessionId) {
        let Some(file) = self.files.get_mut(&ino) else { return };
        let gone = file.posix.drop_session(session) + file.flock.drop_session(session);
        if file.is_empty() {
            self.files.remove(&ino);
        }
        self.counts.sub(session, gone);
    }

    /// All of a file whose locks are not known, as somebody who asks about `style` is answered.
    pub(super) fn unknown(style: LockStyle) -> Lock {
        Lock { owner: 0, start: 0, end: u64::MAX, kind: LockKind::Write, style, pid: 0 }
    }
}
