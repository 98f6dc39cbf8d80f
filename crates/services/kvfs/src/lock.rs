//! Advisory locks: POSIX byte ranges and BSD flock, two families that do not see each other.
//!
//! One table for the volume, a plain state machine: calls go in, answers come back at once, and who
//! need not wait any longer is pushed to `out`. A lock that must be waited for is a
//! [`Asked::Waiting`] ticket, so it holds no queue slot; a later [`Settled`] names that ticket.
//!
//! - An owner is the front-end's owner *within* an attachment ([`Owner`]): two attachments never
//!   share one, whatever numbers they choose.
//! - POSIX: a new lock of an owner replaces what it held of the range; pieces split, neighbours of
//!   one kind merge. A wait that would close a circle of waiting owners is refused with `EDEADLK`,
//!   and so is one that a later change would leave in such a circle.
//! - flock: converting gives the old lock up first, as BSD and Linux do, and keeps nothing if the
//!   new one is refused.
//! - A file's locks may be given to the attachment that alone has some there; see `delegation`.
//! - Locks live in memory alone. After a loss of the DPU side their holders hand them in again;
//!   until that [`Locks::end_grace`]s, a new lock waits, one that would not wait too.
//!
//! Invariants: two held locks of one file and family that overlap and belong to different owners
//! are both shared; an owner's own locks never overlap, and neighbours differ in kind; no waiting
//! lock could be granted, unless grace lasts or another attachment decides. See
//! `docs/internals/locks.md`.

mod answer;
mod counts;
mod delegation;
#[cfg(test)]
mod model;
mod ranges;
mod waiting;

use std::collections::HashMap;

use outboard_base::{Errno, Ino, SessionId};
use outboard_wire::file::{Lock, LockKind, LockStyle};

use counts::{Counts, Holder};
use delegation::LockDelegations;
use ranges::{Held, Ranges};
use waiting::{Queue, Waiter};

/// Whose lock it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Owner {
    /// The attachment.
    pub(crate) session: SessionId,
    /// The front-end's name for the owner, meaningful within the attachment.
    pub(crate) owner: u64,
}

/// What became of a request for a lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Asked {
    /// It is held (or dropped) now.
    Done,
    /// It waits; a [`Settled`] with this ticket ends the wait.
    Waiting(u64),
}

/// The end of a wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Settled {
    /// Which attachment is notified.
    pub(crate) session: SessionId,
    /// Which wait.
    pub(crate) ticket: u64,
    /// The lock is held, or why it never will be (`EDEADLK`, `ENOLCK`).
    pub(crate) result: Result<(), Errno>,
}

/// The locks of one inode.
#[derive(Default)]
struct FileLocks {
    posix: Ranges,
    flock: Ranges,
}

impl FileLocks {
    fn family(&self, style: LockStyle) -> &Ranges {
        match style {
            LockStyle::Posix => &self.posix,
            LockStyle::Flock => &self.flock,
        }
    }

    fn family_mut(&mut self, style: LockStyle) -> &mut Ranges {
        match style {
            LockStyle::Posix => &mut self.posix,
            LockStyle::Flock => &mut self.flock,
        }
    }

    fn is_empty(&self) -> bool {
        self.posix.is_empty() && self.flock.is_empty()
    }

    /// Whether nobody but `session` holds any.
    fn is_of(&self, session: SessionId) -> bool {
        self.posix.holders().chain(self.flock.holders()).all(|holder| holder == session)
    }
}

/// Every lock of a volume.
pub(crate) struct Locks {
    files: HashMap<Ino, FileLocks>,
    queue: Queue,
    counts: Counts,
    grace: bool,
    delegations: LockDelegations,
}

impl Locks {
    /// No locks. Tickets count up from `first_ticket`, which differs between instances of the DPU
    /// side, so that a ticket of an earlier instance names no wait of this one.
    #[must_use]
    pub(crate) fn new(first_ticket: u64) -> Locks {
        Locks {
            files: HashMap::new(),
            queue: Queue::new(first_ticket),
            counts: Counts::default(),
            grace: false,
            delegations: LockDelegations::default(),
        }
    }

    /// From now on only locks marked `reclaim` are granted.
    pub(crate) fn begin_grace(&mut self) {
        self.grace = true;
    }

    /// Everyone who held a lock before the loss has handed it in, or had the time to: waits go on.
    pub(crate) fn end_grace(&mut self, out: &mut Vec<Settled>) {
        self.grace = false;
        for ino in self.queue.inodes() {
            self.settle(ino, out);
        }
    }

    /// The lock that stands in the way of `lock`, or `lock` with kind `Unlock`.
    #[must_use]
    pub(crate) fn test(&self, ino: Ino, session: SessionId, lock: Lock) -> Lock {
        let wanted = Held::new(session, &lock);
        self.files
            .get(&ino)
            .and_then(|file| file.family(lock.style).blockers(&wanted).next())
            .map_or(Lock { kind: LockKind::Unlock, ..lock }, |held| held.to_lock(lock.style))
    }

    /// Takes, changes or drops a lock. `EAGAIN` when another stands in the way and `wait` is not
    /// set, `EDEADLK`, `ENOLCK`. In grace, and while another attachment decides, nobody knows yet
    /// whether one does: whoever asks waits for that at least, and hears `EAGAIN` at its end if it
    /// would not wait longer. `reclaim` hands in
    /// a lock held before a loss of the DPU side: it is judged like any other, but not kept waiting
    /// by grace, and never waits (`EAGAIN`: it was lost).
    pub(crate) fn set(
        &mut self,
        ino: Ino,
        holder: impl Into<Holder>,
        lock: Lock,
        wait: bool,
        reclaim: bool,
        out: &mut Vec<Settled>,
    ) -> Result<Asked, Errno> {
        let holder = holder.into();
        let session = holder.session;
        let wanted = Held::new(session, &lock);
        if lock.kind == LockKind::Unlock {
            self.apply(ino, lock.style, wanted);
            self.settle(ino, out);
            return Ok(Asked::Done);
        }
        // An owner's second lock may split one piece in two, and the range is a piece of its own.
        self.counts.enter(holder);
        if !self.counts.may_take(session, 2) {
            return Err(Errno::ENOLCK);
        }
        if lock.style == LockStyle::Flock && self.gives_up_flock(ino, &wanted) {
            self.settle(ino, out);
        }
        let away = self.is_with_another(ino, session);
        let held_back = (self.grace && !reclaim) || away;
        let free = self.is_free(ino, lock.style, &wanted);
        if free && !held_back {
            self.apply(ino, lock.style, wanted);
            self.settle(ino, out);
            return Ok(Asked::Done);
        }
        if away && !reclaim {
            self.recall(ino);
        }
        let unknown = free && held_back && !self.is_overdue(ino);
        if reclaim || !(wait || unknown) {
            return Err(Errno::EAGAIN);
        }
        if wait && lock.style == LockStyle::Posix && self.would_deadlock(ino, &wanted) {
            return Err(Errno::EDEADLK);
        }
        let ticket = self.queue.push(ino, lock.style, wanted, wait);
        self.counts.add(session, 1);
        Ok(Asked::Waiting(ticket))
    }

    /// Gives up waiting; `ENOENT` when the wait is over already.
    pub(crate) fn cancel(&mut self, session: SessionId, ticket: u64) -> Result<(), Errno> {
        self.queue.remove(session, ticket).ok_or(Errno::ENOENT)?;
        self.counts.sub(session, 1);
        Ok(())
    }

    /// An attachment that was away is back: it asks anew for what it waited for, under tickets it
    /// knows. Left here, an old wait would be granted to somebody who may be gone.
    pub(crate) fn forget_waits(&mut self, session: SessionId) {
        let waits = self.queue.remove_session(session);
        self.counts.sub(session, waits);
    }

    /// Drops every lock of one family that `owner` holds on `ino`.
    pub(crate) fn drop_owner(
        &mut self,
        ino: Ino,
        style: LockStyle,
        owner: Owner,
        out: &mut Vec<Settled>,
    ) {
        if !self.files.contains_key(&ino) {
            return;
        }
        let everything = Held { owner, start: 0, end: u64::MAX, kind: LockKind::Unlock, pid: 0 };
        self.apply(ino, style, everything);
        self.settle(ino, out);
    }

    /// Drops whatever an attachment holds and waits for.
    pub(crate) fn drop_session(&mut self, session: SessionId, out: &mut Vec<Settled>) {
        self.queue.remove_session(session);
        let mut changed: Vec<Ino> = Vec::new();
        self.files.retain(|&ino, file| {
            if file.posix.drop_session(session) + file.flock.drop_session(session) > 0 {
                changed.push(ino);
            }
            !file.is_empty()
        });
        changed.extend(self.end_delegations(session));
        self.counts.remove(session);
        changed.sort_unstable();
        changed.dedup();
        for ino in changed {
            self.settle(ino, out);
        }
    }

    /// Whether no lock is held or waited for.
    #[cfg(test)]
    #[must_use]
    pub(crate) fn is_empty(&self) -> bool {
        self.files.is_empty() && self.queue.is_empty()
    }

    /// Removes the flock that a conversion gives up; whether there was one of another kind.
    fn gives_up_flock(&mut self, ino: Ino, wanted: &Held) -> bool {
        let held = self.files.get(&ino).and_then(|file| file.flock.kind_of(wanted.owner));
        if held.is_none_or(|kind| kind == wanted.kind) {
            return false;
        }
        self.apply(ino, LockStyle::Flock, Held { kind: LockKind::Unlock, ..*wanted });
        true
    }

    fn is_free(&self, ino: Ino, style: LockStyle, wanted: &Held) -> bool {
        self.files.get(&ino).is_none_or(|file| file.family(style).blockers(wanted).next().is_none())
    }

    fn apply(&mut self, ino: Ino, style: LockStyle, wanted: Held) {
        let file = self.files.entry(ino).or_default();
        let family = file.family_mut(style);
        let before = family.len();
        family.set(wanted);
        let after = family.len();
        if file.is_empty() {
            self.files.remove(&ino);
        }
        self.counts.add(wanted.owner.session, after.saturating_sub(before));
        self.counts.sub(wanted.owner.session, before.saturating_sub(after));
    }

    /// Grants what a change to `ino` has set free, oldest wait first, and ends the waits it has
    /// closed into a circle. A granted shared lock may replace an exclusive one of its owner and so
    /// set more free: each round ends a wait, or is the last.
    fn settle(&mut self, ino: Ino, out: &mut Vec<Settled>) {
        if self.grace || self.is_away(ino) {
            return;
        }
        loop {
            let mut again = false;
            for waiter in self.queue.of_inode(ino) {
                if self.is_free(ino, waiter.style, &waiter.wanted) {
                    again |= waiter.wanted.kind == LockKind::Read;
                    self.end_wait(waiter, Ok(()), out);
                }
            }
            if !again {
                break;
            }
        }
        for waiter in self.queue.of_inode(ino).into_iter().filter(|waiter| !waiter.patient) {
            self.end_wait(waiter, Err(Errno::EAGAIN), out);
        }
        for waiter in self.queue.of_inode(ino) {
            if waiter.style == LockStyle::Posix && self.would_deadlock(ino, &waiter.wanted) {
                self.end_wait(waiter, Err(Errno::EDEADLK), out);
            }
        }
    }

    fn end_wait(&mut self, waiter: Waiter, result: Result<(), Errno>, out: &mut Vec<Settled>) {
        let session = waiter.wanted.owner.session;
        self.queue.remove(session, waiter.ticket);
        self.counts.sub(session, 1);
        if result.is_ok() {
            self.apply(waiter.ino, waiter.style, waiter.wanted);
        }
        out.push(Settled { session, ticket: waiter.ticket, result });
    }

    /// Whether the owner of `wanted` would wait, through others' waits, for itself.
    fn would_deadlock(&self, ino: Ino, wanted: &Held) -> bool {
        if self.grace {
            return false; // Everyone waits for grace; nobody for an owner yet.
        }
        let blockers = |ino: Ino, wanted: &Held| -> Vec<Owner> {
            self.files
                .get(&ino)
                .map(|file| file.posix.blockers(wanted).map(|held| held.owner).collect())
                .unwrap_or_default()
        };
        self.queue.reaches(blockers(ino, wanted), wanted.owner, blockers)
    }
}
