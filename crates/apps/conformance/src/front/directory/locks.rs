//! Locks: an owner is an open file of its own (`F_OFD_SETLK`, `flock`).
//!
//! A process has one POSIX lock owner, this one must play many; locks of an open file description
//! conflict, split and merge by the same rules. What differs (no deadlock detection, no pid) is
//! told by [`crate::Features::lock_owners`].

use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::Duration;

use nix::fcntl::{FcntlArg, fcntl};
use outboard_base::{Errno, Ino, Result};
use outboard_wire::file::{Lock, LockKind, LockStyle, Reply, Request};
use rustix::fs::{FlockOperation, Mode, OFlags};

use super::{DirectoryFront, errno};

/// Open files that stand for owners, and waits under way.
#[derive(Default)]
pub(super) struct Locks {
    owners: HashMap<(Ino, u64, bool), OwnedFd>,
    waits: HashMap<u64, Receiver<Result<()>>>,
    last_ticket: u64,
}

impl Locks {
    pub(super) fn granted(&mut self, ticket: u64, patience: Duration) -> Result<bool> {
        let wait = self.waits.get(&ticket).ok_or(Errno::ENOENT)?;
        match wait.recv_timeout(patience) {
            Ok(end) => {
                self.waits.remove(&ticket);
                end.map(|()| true)
            }
            Err(RecvTimeoutError::Timeout) => Ok(false),
            Err(RecvTimeoutError::Disconnected) => Err(Errno::EIO),
        }
    }
}

fn range(lock: &Lock) -> Result<libc::flock> {
    let start = i64::try_from(lock.start).map_err(|_| Errno::EOVERFLOW)?;
    // Length zero is "to the end"; an end beyond the largest offset is the same.
    let len = match i64::try_from(lock.end) {
        Ok(end) if end < i64::MAX => end - start + 1,
        _ => 0,
    };
    let kind = match lock.kind {
        LockKind::Read => libc::F_RDLCK,
        LockKind::Write => libc::F_WRLCK,
        LockKind::Unlock => libc::F_UNLCK,
    };
    Ok(libc::flock {
        l_type: i16::try_from(kind).map_err(|_| Errno::EINVAL)?,
        l_whence: 0,
        l_start: start,
        l_len: len,
        l_pid: 0,
    })
}

fn whole(kind: LockKind, wait: bool) -> FlockOperation {
    match (kind, wait) {
        (LockKind::Read, false) => FlockOperation::NonBlockingLockShared,
        (LockKind::Read, true) => FlockOperation::LockShared,
        (LockKind::Write, false) => FlockOperation::NonBlockingLockExclusive,
        (LockKind::Write, true) => FlockOperation::LockExclusive,
        (LockKind::Unlock, _) => FlockOperation::Unlock,
    }
}

fn nix_errno(error: nix::errno::Errno) -> Errno {
    Errno::from_raw((error as i32).unsigned_abs())
}

/// Takes or drops `lock` for the owner whose open file `fd` is.
fn set(fd: &OwnedFd, lock: &Lock, wait: bool) -> Result<()> {
    match lock.style {
        LockStyle::Flock => rustix::fs::flock(fd, whole(lock.kind, wait)).map_err(errno),
        LockStyle::Posix => {
            let range = range(lock)?;
            let call = if wait { FcntlArg::F_OFD_SETLKW } else { FcntlArg::F_OFD_SETLK };
            fcntl(fd, call(&range)).map(drop).map_err(nix_errno)
        }
    }
}

impl DirectoryFront {
    pub(super) fn on_locks(&mut self, request: &Request<'_>) -> Result<Reply> {
        match *request {
            Request::Getlk { ino, lock, .. } => self.getlk(ino, &lock),
            Request::Setlk { ino, lock, wait, .. } => self.setlk(ino, &lock, wait),
            Request::Flush { ino, fh, owner } => {
                self.handle(fh)?;
                self.locks.owners.remove(&(ino, owner, false));
                Ok(Reply::Empty)
            }
            Request::Release { ino, fh, owner } => {
                self.handles.remove(&fh).ok_or(Errno::EBADF)?;
                self.locks.owners.remove(&(ino, owner, true));
                Ok(Reply::Empty)
            }
            _ => Err(Errno::ENOSYS),
        }
    }

    /// The open file that stands for the owner of `lock`.
    fn owner(&mut self, ino: Ino, lock: &Lock) -> Result<&OwnedFd> {
        let key = (ino, lock.owner, lock.style == LockStyle::Flock);
        if !self.locks.owners.contains_key(&key) {
            let flags = OFlags::RDWR | OFlags::CLOEXEC;
            let fd = rustix::fs::open(self.path(ino)?, flags, Mode::empty()).map_err(errno)?;
            self.locks.owners.insert(key, fd);
        }
        self.locks.owners.get(&key).ok_or(Errno::EIO)
    }

    fn getlk(&mut self, ino: Ino, lock: &Lock) -> Result<Reply> {
        let mut found = range(lock)?;
        fcntl(self.owner(ino, lock)?, FcntlArg::F_OFD_GETLK(&mut found)).map_err(nix_errno)?;
        let kind = match i32::from(found.l_type) {
            libc::F_RDLCK => LockKind::Read,
            libc::F_WRLCK => LockKind::Write,
            _ => return Ok(Reply::Lock(Lock { kind: LockKind::Unlock, ..*lock })),
        };
        let start = u64::try_from(found.l_start).map_err(|_| Errno::EPROTO)?;
        let end = match u64::try_from(found.l_len).map_err(|_| Errno::EPROTO)? {
            0 => u64::MAX,
            len => start + len - 1,
        };
        Ok(Reply::Lock(Lock { owner: 0, start, end, kind, style: lock.style, pid: 0 }))
    }

    fn setlk(&mut self, ino: Ino, lock: &Lock, wait: bool) -> Result<Reply> {
        let (lock, fd) = (*lock, self.owner(ino, lock)?);
        match set(fd, &lock, false) {
            Err(Errno::EAGAIN) if wait => {}
            end => return end.map(|()| Reply::Empty),
        }
        let fd = rustix::io::fcntl_dupfd_cloexec(fd, 0).map_err(errno)?;
        let (tell, end) = channel();
        // The thread ends with the wait, or with the process.
        std::thread::spawn(move || tell.send(set(&fd, &lock, true)));
        self.locks.last_ticket += 1;
        self.locks.waits.insert(self.locks.last_ticket, end);
        Ok(Reply::Waiting(self.locks.last_ticket))
    }
}
