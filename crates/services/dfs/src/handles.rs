//! Open handles of sessions, as far as this side must know them: how each was opened.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Mutex, MutexGuard, PoisonError};

use outboard_base::{Errno, Fh, Ino, Result, SessionId};
use outboard_wire::file::open_flags;

/// An open file or directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Handle {
    pub(crate) ino: Ino,
    /// `open_flags`.
    pub(crate) flags: u32,
    pub(crate) directory: bool,
    /// The server has answered a sync by it: it has said all that it had to say of what was lost.
    pub(crate) synced: bool,
}

/// All of them. The server has counted each before it is here, so there are not too many.
#[derive(Debug, Default)]
pub(crate) struct Handles {
    open: Mutex<BTreeMap<(SessionId, Fh), Handle>>,
    sessions: Mutex<BTreeSet<SessionId>>,
}

impl Handles {
    fn all(&self) -> MutexGuard<'_, BTreeMap<(SessionId, Fh), Handle>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn sessions(&self) -> MutexGuard<'_, BTreeSet<SessionId>> {
        self.sessions.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A session asks for something.
    pub(crate) fn seen(&self, session: SessionId) {
        self.sessions().insert(session);
    }

    /// All sessions but this one.
    pub(crate) fn others(&self, session: SessionId) -> Vec<SessionId> {
        self.sessions().iter().copied().filter(|other| *other != session).collect()
    }

    pub(crate) fn opened(&self, session: SessionId, fh: Fh, handle: Handle) {
        self.all().insert((session, fh), handle);
    }

    /// The server has answered a sync by it.
    pub(crate) fn synced(&self, session: SessionId, fh: Fh) {
        self.all().entry((session, fh)).and_modify(|handle| handle.synced = true);
    }

    pub(crate) fn closed(&self, session: SessionId, fh: Fh) {
        self.all().remove(&(session, fh));
    }

    pub(crate) fn detach(&self, session: SessionId) {
        self.all().retain(|(of, _), _| *of != session);
        self.sessions().remove(&session);
    }

    /// How many there are.
    pub(crate) fn count(&self) -> u64 {
        self.all().len() as u64
    }

    /// The handle `fh` on `ino`; `EBADF` if it is not open, or on another inode.
    pub(crate) fn get(&self, session: SessionId, ino: Ino, fh: Fh) -> Result<Handle> {
        let handle = self.all().get(&(session, fh)).copied();
        handle.filter(|handle| handle.ino == ino).ok_or(Errno::EBADF)
    }

    /// The same, open for reading; `EISDIR` for a directory.
    pub(crate) fn readable(&self, session: SessionId, ino: Ino, fh: Fh) -> Result<Handle> {
        let handle = self.get(session, ino, fh)?;
        match handle.flags & open_flags::ACCMODE {
            _ if handle.directory => Err(Errno::EISDIR),
            open_flags::WRONLY => Err(Errno::EBADF),
            _ => Ok(handle),
        }
    }

    /// The same, open for writing.
    pub(crate) fn writable(&self, session: SessionId, ino: Ino, fh: Fh) -> Result<Handle> {
        let handle = self.get(session, ino, fh)?;
        match handle.flags & open_flags::ACCMODE {
            open_flags::WRONLY | open_flags::RDWR if !handle.directory => Ok(handle),
            _ => Err(Errno::EBADF),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_handle_is_its_sessions_and_of_one_inode() {
        let handles = Handles::default();
        let (me, other) = (SessionId(1), SessionId(2));
        let handle = |flags, directory| Handle { ino: Ino(5), flags, directory, synced: false };
        handles.opened(me, Fh(1), handle(0, false));
        handles.opened(me, Fh(2), handle(open_flags::WRONLY | open_flags::APPEND, false));
        handles.opened(me, Fh(3), handle(0, true));
        assert_eq!(handles.readable(me, Ino(5), Fh(1)), Ok(handle(0, false)));
        assert_eq!(handles.readable(me, Ino(5), Fh(2)), Err(Errno::EBADF));
        assert_eq!(handles.readable(me, Ino(5), Fh(3)), Err(Errno::EISDIR));
        assert!(handles.writable(me, Ino(5), Fh(2)).is_ok());
        assert_eq!(handles.writable(me, Ino(5), Fh(1)), Err(Errno::EBADF));
        assert_eq!(handles.writable(me, Ino(5), Fh(3)), Err(Errno::EBADF));
        assert_eq!(handles.get(other, Ino(5), Fh(1)), Err(Errno::EBADF));
        assert_eq!(handles.get(me, Ino(6), Fh(1)), Err(Errno::EBADF));
        handles.closed(me, Fh(1));
        assert_eq!(handles.get(me, Ino(5), Fh(1)), Err(Errno::EBADF));
        handles.detach(me);
        assert_eq!(handles.count(), 0);
    }
}
