//! An open file.

use std::sync::Arc;

use outboard_base::{Errno, Fh, Ino, Result};
use outboard_volume::backend::Backend;
use outboard_wire::file::{
    Attr, Lock, LockKind, LockStyle, Reply, Request, Setattr, open_flags, seek,
};

use crate::data::{self, Handle};
use crate::link::Link;
use crate::volume::cred;

/// An open regular file. Reads and writes name their place; there is no file offset.
/// Closed when dropped.
pub struct File<B: Backend> {
    link: Arc<Link<B>>,
    handle: Handle,
}

impl<B: Backend> std::fmt::Debug for File<B> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "File({:?})", self.handle)
    }
}

impl<B: Backend> File<B> {
    pub(crate) fn new(link: Arc<Link<B>>, handle: Handle) -> File<B> {
        File { link, handle }
    }

    /// As the DPU side knows it.
    #[must_use]
    pub fn handle(&self) -> &Handle {
        &self.handle
    }

    /// Its inode.
    #[must_use]
    pub fn ino(&self) -> Ino {
        self.handle.ino
    }

    /// How it was opened (`open_flags`).
    #[must_use]
    pub fn flags(&self) -> u32 {
        self.handle.flags
    }

    /// Reads at `offset`; fewer bytes than asked for only at the end of the file.
    pub fn read_at(&self, out: &mut [u8], offset: u64) -> Result<usize> {
        if self.flags() & open_flags::ACCMODE == open_flags::WRONLY {
            return Err(Errno::EBADF);
        }
        data::read(&self.link, &self.handle, out, offset)
    }

    /// Writes at `offset`, or at the end if it appends; how many bytes were taken.
    pub fn write_at(&self, bytes: &[u8], offset: u64) -> Result<usize> {
        if self.flags() & open_flags::ACCMODE == 0 {
            return Err(Errno::EBADF);
        }
        data::write(&self.link, &self.handle, bytes, offset)
    }

    /// Makes everything written durable, without attributes that no read needs if `data_only`.
    pub fn sync(&self, data_only: bool) -> Result<()> {
        data::sync(&self.link, &self.handle, data_only)
    }

    /// Its attributes.
    pub fn attr(&self) -> Result<Attr> {
        let Handle { ino, fh, .. } = self.handle;
        self.link.attributes(&self.handle.cred, &Request::Getattr { ino, fh })
    }

    /// Changes attributes; `size` needs a file open for writing.
    pub fn set_attr(&self, set: Setattr) -> Result<Attr> {
        let Handle { ino, fh, .. } = self.handle;
        // Who may change what depends on who asks now, and on all groups.
        self.link.attributes(&cred(), &Request::Setattr { ino, fh, set })
    }

    /// Sets the length.
    pub fn truncate(&self, size: u64) -> Result<()> {
        if self.flags() & open_flags::ACCMODE == 0 {
            return Err(Errno::EINVAL);
        }
        self.set_attr(Setattr { size: Some(size), ..Setattr::default() }).map(drop)
    }

    /// Allocates, punches or zeroes a range; `mode` as in `fallocate(2)`.
    pub fn allocate(&self, mode: u32, offset: u64, len: u64) -> Result<()> {
        let Handle { ino, fh, .. } = self.handle;
        let request = Request::Fallocate { ino, fh, offset, len, mode };
        self.link.reply(&self.handle.cred, &request).map(drop)
    }

    /// The next data (or hole) from `offset` on; `ENXIO` beyond the end.
    pub fn seek(&self, offset: u64, hole: bool) -> Result<u64> {
        let Handle { ino, fh, .. } = self.handle;
        let whence = if hole { seek::HOLE } else { seek::DATA };
        match self.link.reply(&self.handle.cred, &Request::Lseek { ino, fh, offset, whence })? {
            Reply::Offset(offset) => Ok(offset),
            _ => Err(Errno::EPROTO),
        }
    }

    /// Copies `len` bytes to another file of the same volume, inside the DPU side; how many.
    pub fn copy_to(&self, from: u64, to: &File<B>, at: u64, len: u64) -> Result<usize> {
        if !Arc::ptr_eq(&self.link, &to.link) {
            return Err(Errno::EXDEV);
        }
        let request = Request::CopyFileRange {
            from: self.handle.ino,
            from_fh: self.handle.fh,
            from_offset: from,
            to: to.handle.ino,
            to_fh: to.handle.fh,
            to_offset: at,
            len,
        };
        match self.link.reply(&self.handle.cred, &request)? {
            Reply::Written(len) => Ok(len as usize),
            _ => Err(Errno::EPROTO),
        }
    }

    /// Takes or drops a lock on the bytes `start..=end` for `owner`; `EAGAIN` if another stands in
    /// the way and `wait` is not set. Waiting cannot be interrupted.
    pub fn lock(
        &self,
        style: LockStyle,
        owner: u64,
        kind: LockKind,
        (start, end): (u64, u64),
        wait: bool,
    ) -> Result<()> {
        let Handle { ino, fh, .. } = self.handle;
        let lock = Lock { owner, start, end, kind, style, pid: self.handle.cred.pid };
        let request = Request::Setlk { ino, fh, lock, wait, reclaim: false };
        self.link.lock(&self.handle.cred, &request)
    }

    /// The lock that would stand in the way of a POSIX lock: its kind, range and process.
    pub fn test_lock(
        &self,
        owner: u64,
        kind: LockKind,
        (start, end): (u64, u64),
    ) -> Result<Option<(LockKind, u64, u64, u32)>> {
        let Handle { ino, fh, .. } = self.handle;
        let style = LockStyle::Posix;
        let lock = Lock { owner, start, end, kind, style, pid: self.handle.cred.pid };
        match self.link.reply(&self.handle.cred, &Request::Getlk { ino, fh, lock })? {
            Reply::Lock(found) if found.kind == LockKind::Unlock => Ok(None),
            Reply::Lock(found) => Ok(Some((found.kind, found.start, found.end, found.pid))),
            _ => Err(Errno::EPROTO),
        }
    }

    /// Drops the POSIX locks of `owner`, as closing any descriptor of the file does.
    pub fn drop_locks(&self, owner: u64) -> Result<()> {
        let Handle { ino, fh, .. } = self.handle;
        self.link.reply(&self.handle.cred, &Request::Flush { ino, fh, owner }).map(drop)
    }

    /// Closes it; `owner` names whose flock ends with it.
    pub fn close(mut self, owner: u64) -> Result<()> {
        let released = self.release(owner);
        self.handle.fh = Fh::NONE;
        released
    }

    fn release(&self, owner: u64) -> Result<()> {
        let Handle { ino, fh, .. } = self.handle;
        if fh == Fh::NONE {
            return Ok(());
        }
        self.link.reply(&self.handle.cred, &Request::Release { ino, fh, owner }).map(drop)
    }
}

impl<B: Backend> Drop for File<B> {
    fn drop(&mut self) {
        // A DPU side that is lost for good has closed it.
        let _closed = self.release(0);
    }
}
