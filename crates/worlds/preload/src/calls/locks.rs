//! Locks. Where the volume is mounted they are the kernel's to keep, on the mount's descriptor:
//! it knows what a process is, and what `fork`, `exec` and `close` do to its locks. Without a mount
//! they are taken for this process alone.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use outboard_client::{Errno, Ino, LockKind, LockStyle, Result};

use crate::attach::File;
use crate::shadow;
use crate::sys::export::Route;
use crate::sys::lock::Lock;
use crate::sys::signals;
use crate::sys::slots;
use crate::table::{Description, Kind};

/// The owner of this process's POSIX locks. Owners of flocks count from 1.
const PROCESS: u64 = u64::MAX;
/// Pause between two tries for a lock that others hold, and the longest.
const PAUSE: Duration = Duration::from_millis(1);
const PAUSE_MAX: Duration = Duration::from_millis(20);

/// Inodes on which this process may hold POSIX locks.
static LOCKED: Lock<BTreeSet<Ino>> = Lock::new(BTreeSet::new());
static ANY_LOCKED: AtomicBool = AtomicBool::new(false);

/// Has the kernel do it if the volume is mounted; if not, `act` does.
fn locking<T>(fd: i32, act: impl FnOnce(&Arc<Description>, &File) -> Result<T>) -> Route<T> {
    let Some(description) = slots::get(fd) else { return Route::Kernel };
    if shadow::become_real(&description) {
        return Route::Kernel;
    }
    Route::Ours(description.file().and_then(|file| act(&description, &file)))
}

/// `flock(2)`.
pub(crate) fn flock(fd: i32, operation: i32) -> Route<i32> {
    locking(fd, |description, file| {
        let kind = match operation & !libc::LOCK_NB {
            libc::LOCK_SH => LockKind::Read,
            libc::LOCK_EX => LockKind::Write,
            libc::LOCK_UN => LockKind::Unlock,
            _ => return Err(Errno::EINVAL),
        };
        let take = || file.lock(LockStyle::Flock, description.owner, kind, (0, u64::MAX), false);
        until_taken(operation & libc::LOCK_NB == 0, take)
    })
}

/// What a `struct flock` asks for.
pub(crate) struct Asked {
    pub(crate) kind: i32,
    pub(crate) whence: i32,
    pub(crate) start: i64,
    pub(crate) len: i64,
}

impl Asked {
    fn kind(&self) -> Result<LockKind> {
        match self.kind {
            libc::F_RDLCK => Ok(LockKind::Read),
            libc::F_WRLCK => Ok(LockKind::Write),
            libc::F_UNLCK => Ok(LockKind::Unlock),
            _ => Err(Errno::EINVAL),
        }
    }

    /// First and last byte.
    fn range(&self, fd: i32, file: &File) -> Result<(u64, u64)> {
        let base = match self.whence {
            libc::SEEK_SET => 0,
            libc::SEEK_CUR => match super::files::lseek(fd, 0, libc::SEEK_CUR) {
                Route::Ours(at) => at?,
                _ => return Err(Errno::EBADF),
            },
            libc::SEEK_END => file.attr()?.size.cast_signed(),
            _ => return Err(Errno::EINVAL),
        };
        let start = base.checked_add(self.start).ok_or(Errno::EOVERFLOW)?;
        let (start, len) = match self.len {
            len if len < 0 => (start.checked_add(len).ok_or(Errno::EINVAL)?, -len),
            len => (start, len),
        };
        let first = u64::try_from(start).map_err(|_| Errno::EINVAL)?;
        match len {
            0 => Ok((first, u64::MAX)),
            len => {
                let last = start.checked_add(len - 1).ok_or(Errno::EOVERFLOW)?;
                Ok((first, u64::try_from(last).map_err(|_| Errno::EINVAL)?))
            }
        }
    }
}

/// `F_SETLK`, `F_SETLKW`.
pub(crate) fn set(fd: i32, asked: &Asked, wait: bool) -> Route<i32> {
    if let Some(description) = slots::get(fd) {
        LOCKED.with(|locked| locked.insert(description.ino));
        ANY_LOCKED.store(true, Ordering::Release);
    }
    locking(fd, |_, file| {
        let (kind, range) = (asked.kind()?, asked.range(fd, file)?);
        until_taken(wait, || file.lock(LockStyle::Posix, PROCESS, kind, range, false))
    })
}

/// `F_GETLK`: what stands in the way, as kind, start, length and process.
pub(crate) fn test(fd: i32, asked: &Asked) -> Route<Option<(i32, i64, i64, i32)>> {
    locking(fd, |_, file| {
        let found = file.test_lock(PROCESS, asked.kind()?, asked.range(fd, file)?)?;
        Ok(found.map(|(kind, start, end, pid)| {
            let kind = if kind == LockKind::Read { libc::F_RDLCK } else { libc::F_WRLCK };
            let len = if end == u64::MAX { 0 } else { (end - start + 1).cast_signed() };
            (kind, start.cast_signed(), len, pid.cast_signed())
        }))
    })
}

/// Tries until the lock is taken. A signal that is handled ends it, as it ends the kernel's wait.
fn until_taken(wait: bool, take: impl Fn() -> Result<()>) -> Result<i32> {
    let mut pause = PAUSE;
    loop {
        match take() {
            Err(Errno::EAGAIN) if wait => {}
            taken => return taken.map(|()| 0),
        }
        if signals::sleep(pause) {
            return Err(Errno::EINTR);
        }
        pause = (pause * 2).min(PAUSE_MAX);
    }
}

/// A descriptor was closed: the process's POSIX locks on its file go, whichever descriptor they
/// were taken by.
pub(crate) fn closed(description: &Description) {
    let ino = description.ino;
    let locked = ANY_LOCKED.load(Ordering::Acquire) && LOCKED.with(|locked| locked.remove(&ino));
    // The kernel sees to it if the descriptor was one of its own.
    if !locked || description.kind != Kind::File || description.is_real() {
        return;
    }
    let others = slots::all();
    match others.iter().find(|(_, other)| other.ino == ino && other.is_real()) {
        Some((fd, _)) => signals::unlock(*fd),
        None => {
            // A file that cannot be reached any more has lost its locks, too.
            let _dropped = description.file().and_then(|file| file.drop_locks(PROCESS));
        }
    }
}

/// Locks of an open file description (`F_OFD_SETLK`) are the kernel's.
pub(crate) fn of_description(fd: i32) -> Route<i32> {
    locking(fd, |_, _| {
        let what = "locks of open file descriptions need the volume to be mounted";
        crate::sys::export::refuse(what, Errno::EINVAL)
    })
}
