//! Who has how many locks: nobody hoards them.
//!
//! An attachment holds and waits for so many, and a user who is neither root nor the volume's owner
//! for twice that by all its attachments together. A file given away counts as one, though its
//! attachment may hold many there, which it was told it holds: they are taken back whatever else is
//! counted. So a user has files given to so few of its attachments at a time that what may come
//! back is bounded, too.

use std::collections::HashMap;

use outboard_base::SessionId;
use outboard_base::limits::LOCKS_MAX as SESSION_LOCKS_MAX;

use crate::handles::uncount;

/// Beyond it no attachment of a user takes another lock.
pub(super) const USER_LOCKS_MAX: usize = 2 * SESSION_LOCKS_MAX;
/// Attachments of a user that are given files at a time.
const USER_DECIDERS: usize = 4;
/// Files one attachment is given at most: what it is given counts as a lock, and must leave it
/// room.
const GIVEN_MAX: usize = SESSION_LOCKS_MAX / 2;
/// What an attachment may hold, wait for and decide when it hands locks back. It grants itself no
/// more than [`SESSION_LOCKS_MAX`] altogether, but those the table did not count while they were
/// its own; refusing them would take away what somebody was promised it holds.
const BACK_MAX: usize = 3 * SESSION_LOCKS_MAX;
/// The same of a user: what it has when it is given a file, and what all who decide for it hold.
const USER_BACK_MAX: usize = USER_LOCKS_MAX + USER_DECIDERS * SESSION_LOCKS_MAX;

/// An attachment, and the user whose share it takes of.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Holder {
    pub(super) session: SessionId,
    /// Root and the volume's owner need none.
    pub(super) user: Option<u32>,
}

impl Holder {
    pub(crate) fn new(session: SessionId, user: Option<u32>) -> Holder {
        Holder { session, user }
    }
}

#[cfg(test)]
impl From<SessionId> for Holder {
    fn from(session: SessionId) -> Holder {
        Holder { session, user: None }
    }
}

#[derive(Debug, Default)]
struct Session {
    user: Option<u32>,
    /// Pieces held, waits, and files given away.
    locks: usize,
    given: usize,
}

/// What everybody has.
#[derive(Debug, Default)]
pub(super) struct Counts {
    /// From an attachment's first lock to its end.
    sessions: HashMap<SessionId, Session>,
    /// Locks of each user that has any.
    users: HashMap<u32, usize>,
    /// Attachments of each user that were given files.
    deciders: HashMap<u32, usize>,
}

impl Counts {
    /// Says whose attachment it is.
    pub(super) fn enter(&mut self, holder: Holder) {
        self.sessions.entry(holder.session).or_default().user = holder.user;
    }

    fn session(&self, session: SessionId) -> Option<&Session> {
        self.sessions.get(&session)
    }

    /// What an attachment has.
    pub(super) fn of(&self, session: SessionId) -> usize {
        self.session(session).map_or(0, |session| session.locks)
    }

    fn of_user(&self, user: Option<u32>) -> usize {
        user.and_then(|user| self.users.get(&user)).copied().unwrap_or(0)
    }

    fn user(&self, session: SessionId) -> Option<u32> {
        self.session(session).and_then(|session| session.user)
    }

    /// Whether `more` are within the attachment's share and its user's.
    pub(super) fn may_take(&self, session: SessionId, more: usize) -> bool {
        self.of(session) + more <= SESSION_LOCKS_MAX
            && self.of_user(self.user(session)) + more <= USER_LOCKS_MAX
    }

    /// Whether `more` may come back from it.
    pub(super) fn may_return(&self, session: SessionId, more: usize) -> bool {
        self.of(session) + more <= BACK_MAX
            && self.of_user(self.user(session)) + more <= USER_BACK_MAX
    }

    /// Whether it may be given one more file.
    pub(super) fn may_be_given(&self, session: SessionId) -> bool {
        let Some(Session { user, locks, given }) = self.session(session) else { return false };
        let deciders = user.and_then(|user| self.deciders.get(&user)).copied().unwrap_or(0);
        *locks < GIVEN_MAX
            && self.of_user(*user) < USER_LOCKS_MAX
            && (*given > 0 || deciders < USER_DECIDERS)
    }

    pub(super) fn add(&mut self, session: SessionId, by: usize) {
        let it = self.sessions.entry(session).or_default();
        it.locks += by;
        if let Some(user) = it.user.filter(|_| by > 0) {
            *self.users.entry(user).or_default() += by;
        }
    }

    pub(super) fn sub(&mut self, session: SessionId, by: usize) {
        let Some(it) = self.sessions.get_mut(&session) else { return };
        let by = by.min(it.locks);
        it.locks -= by;
        if let Some(user) = it.user {
            self.sub_user(user, by);
        }
    }

    fn sub_user(&mut self, user: u32, by: usize) {
        if let Some(count) = self.users.get_mut(&user) {
            *count = count.saturating_sub(by);
            if *count == 0 {
                self.users.remove(&user);
            }
        }
    }

    /// It is given a file.
    pub(super) fn give(&mut self, session: SessionId) {
        self.add(session, 1);
        let Some(it) = self.sessions.get_mut(&session) else { return };
        it.given += 1;
        if let (1, Some(user)) = (it.given, it.user) {
            *self.deciders.entry(user).or_default() += 1;
        }
    }

    /// It decides a file no more.
    pub(super) fn take_back(&mut self, session: SessionId) {
        self.sub(session, 1);
        let Some(it) = self.sessions.get_mut(&session) else { return };
        it.given = it.given.saturating_sub(1);
        if let (0, Some(user)) = (it.given, it.user) {
            uncount(&mut self.deciders, user);
        }
    }

    /// It is gone, and has nothing that was given to it.
    pub(super) fn remove(&mut self, session: SessionId) {
        if let Some(Session { user: Some(user), locks, .. }) = self.sessions.remove(&session) {
            self.sub_user(user, locks);
        }
    }

    #[cfg(test)]
    pub(super) fn is_empty(&self) -> bool {
        self.sessions.is_empty() && self.users.is_empty() && self.deciders.is_empty()
    }

    /// What all have together; the users add up to their attachments.
    #[cfg(test)]
    pub(super) fn total(&self) -> usize {
        for (user, count) in &self.users {
            let own = self.sessions.values().filter(|session| session.user == Some(*user));
            assert_eq!(own.map(|session| session.locks).sum::<usize>(), *count, "user {user}");
        }
        self.sessions.values().map(|session| session.locks).sum()
    }
}
