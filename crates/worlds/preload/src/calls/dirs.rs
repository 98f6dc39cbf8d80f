//! Listing directories, and the working directory.

use std::collections::VecDeque;
use std::ffi::CString;
use std::sync::Arc;
use std::time::Duration;

use outboard_client::{Entry, Errno, FileKind, Ino, Result};

use crate::attach::Dir;
use crate::calls::{aim, open};
use crate::config;
use crate::sys::export::{Route, refuse};
use crate::sys::slots;
use crate::table::{Description, Kind};

/// How often the kernel is asked for a directory of which it may not have heard yet.
const TRIES: u32 = 40;
const PAUSE: Duration = Duration::from_millis(1);
/// Places of a listing before the first name.
const AT_DOT: u64 = 0;
const AT_DOT_DOT: u64 = 1;
const AT_NAMES: u64 = 2;

/// A directory being listed: what stands behind a `DIR` of ours.
pub(crate) struct Listing {
    pub(crate) fd: i32,
    description: Arc<Description>,
    ahead: VecDeque<Entry>,
    /// Where the next name is: 0 and 1 for the dots, 2 or a cookie for what follows.
    at: u64,
    ended: bool,
}

impl Listing {
    /// A listing of what is open at `fd`; nothing if that is not the volume's.
    pub(crate) fn of(fd: i32) -> Route<Listing> {
        let Some(description) = slots::get(fd) else { return Route::Kernel };
        if description.kind != Kind::Dir {
            return Route::Ours(Err(Errno::ENOTDIR));
        }
        let ahead = VecDeque::new();
        Route::Ours(Ok(Listing { fd, description, ahead, at: AT_DOT, ended: false }))
    }

    /// The next name; none at the end.
    pub(crate) fn next(&mut self) -> Result<Option<Entry>> {
        let dot = |name: &[u8], ino: Ino, cookie: u64| {
            Ok(Some(Entry { name: name.to_vec(), ino, kind: FileKind::Directory, cookie }))
        };
        match self.at {
            AT_DOT => {
                self.at = AT_DOT_DOT;
                dot(b".", self.description.ino, AT_DOT_DOT)
            }
            AT_DOT_DOT => {
                self.at = AT_NAMES;
                dot(b"..", self.description.place.parent(), AT_NAMES)
            }
            _ => self.next_name(),
        }
    }

    fn next_name(&mut self) -> Result<Option<Entry>> {
        if self.ahead.is_empty() && !self.ended {
            let dir: Arc<Dir> = self.description.dir()?;
            let cookie = if self.at == AT_NAMES { 0 } else { self.at };
            self.ahead = dir.read(cookie)?.into();
            self.ended = self.ahead.is_empty();
        }
        let next = self.ahead.pop_front();
        if let Some(entry) = &next {
            self.at = entry.cookie;
        }
        Ok(next)
    }

    /// Where the next name is (`telldir`).
    pub(crate) fn at(&self) -> u64 {
        self.at
    }

    /// Goes on at another place.
    pub(crate) fn seek(&mut self, at: u64) {
        self.at = at;
        self.ahead.clear();
        self.ended = false;
    }
}

/// Opens a directory for listing; its descriptor.
pub(crate) fn open_listed(path: &[u8]) -> Route<i32> {
    let flags = libc::O_RDONLY | libc::O_DIRECTORY | libc::O_CLOEXEC;
    open::openat(libc::AT_FDCWD, path, flags, 0)
}

/// `chdir(2)`: the kernel's, which keeps the working directory of a process.
pub(crate) fn chdir(path: &[u8]) -> Route<i32> {
    let found = aim::at(libc::AT_FDCWD, path, true, |attached, spot| {
        let attr = attached.volume.attr_at(spot)?;
        if attr.kind() != Ok(FileKind::Directory) {
            return Err(Errno::ENOTDIR);
        }
        Ok(spot.path())
    });
    found.then(|path| enter(&path))
}

/// `fchdir(2)`.
pub(crate) fn fchdir(fd: i32) -> Route<i32> {
    let Some(description) = slots::get(fd) else { return Route::Kernel };
    if description.is_real() {
        return Route::Kernel;
    }
    Route::Ours(enter(&description.path))
}

fn enter(path: &[u8]) -> Result<i32> {
    let config = config::get().ok_or(Errno::ENOENT)?;
    if config.device().is_none() {
        let what = "the working directory can lie on the volume only where it is mounted";
        return refuse(what, Errno::ENOSYS);
    }
    let path = CString::new(config.outward(path)).map_err(|_| Errno::ENOENT)?;
    for _ in 0..TRIES {
        match rustix::process::chdir(&path) {
            // The kernel may not have heard of it yet.
            Err(rustix::io::Errno::NOENT | rustix::io::Errno::STALE) => std::thread::sleep(PAUSE),
            Err(error) => return Err(crate::shadow::errno(error)),
            Ok(()) => {
                config::moved();
                return Ok(0);
            }
        }
    }
    Err(Errno::ENOENT)
}
