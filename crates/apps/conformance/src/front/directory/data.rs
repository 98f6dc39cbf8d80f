//! Open files and their bytes.

use std::os::fd::OwnedFd;

use outboard_base::{Errno, Fh, Ino, Result};
use outboard_wire::file::{Reply, Request, open_flags, seek, write_flags};
use rustix::fs::{FallocateFlags, Mode, OFlags, SeekFrom};

use super::attributes::data_reply;
use super::names::with_umask;
use super::{DirectoryFront, errno};

/// The flags of `open(2)`. Never waits at a fifo, never takes a terminal.
fn open_with(flags: u32) -> OFlags {
    OFlags::from_bits_retain(flags & !open_flags::EXEC)
        | OFlags::CLOEXEC
        | OFlags::NOCTTY
        | OFlags::NONBLOCK
}

impl DirectoryFront {
    pub(super) fn on_data(
        &mut self,
        request: &Request<'_>,
        payload: &[u8],
        out: &mut Vec<u8>,
    ) -> Result<Reply> {
        match *request {
            Request::Open { ino, flags } => {
                let path = self.path(ino)?;
                let fd = rustix::fs::open(path, open_with(flags), Mode::empty()).map_err(errno)?;
                Ok(Reply::Opened(self.new_handle(fd)))
            }
            Request::Create { parent, name, mode, umask, flags } => {
                self.create((parent, name), mode, umask, flags)
            }
            Request::Tmpfile { parent, mode, umask, flags } => {
                self.tmpfile(parent, mode, umask, flags)
            }
            Request::Read { fh, offset, len, .. } => {
                out.resize(len as usize, 0);
                let got = rustix::io::pread(self.handle(fh)?, out.as_mut_slice(), offset);
                data_reply(out, got.map_err(errno)?)
            }
            Request::Write { fh, offset, flags, .. } => {
                self.appends(fh, flags & write_flags::APPEND != 0)?;
                let took = rustix::io::pwrite(self.handle(fh)?, payload, offset).map_err(errno)?;
                written(took)
            }
            Request::Fsync { fh, data_only, .. } => {
                let fd = self.handle(fh)?;
                if data_only { rustix::fs::fdatasync(fd) } else { rustix::fs::fsync(fd) }
                    .map_err(errno)?;
                Ok(Reply::Empty)
            }
            Request::Fallocate { fh, offset, len, mode, .. } => {
                let mode = FallocateFlags::from_bits_retain(mode);
                rustix::fs::fallocate(self.handle(fh)?, mode, offset, len).map_err(errno)?;
                Ok(Reply::Empty)
            }
            Request::Lseek { fh, offset, whence, .. } => self.lseek(fh, offset, whence),
            Request::CopyFileRange { from_fh, from_offset, to_fh, to_offset, len, .. } => {
                self.copy((from_fh, from_offset), (to_fh, to_offset), len)
            }
            Request::Syncfs => {
                let root = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
                let path = self.path(Ino::ROOT)?;
                let fd = rustix::fs::open(path, root, Mode::empty()).map_err(errno)?;
                rustix::fs::syncfs(fd).map_err(errno)?;
                Ok(Reply::Empty)
            }
            _ => Err(Errno::ENOSYS),
        }
    }

    /// Has the open file append or not, as the write at hand says, by `fcntl(2)`.
    fn appends(&self, fh: Fh, appends: bool) -> Result<()> {
        let file = self.handle(fh)?;
        let mut flags = rustix::fs::fcntl_getfl(file).map_err(errno)?;
        if flags.contains(OFlags::APPEND) == appends {
            return Ok(());
        }
        flags.set(OFlags::APPEND, appends);
        rustix::fs::fcntl_setfl(file, flags).map_err(errno)
    }

    fn created(&mut self, fd: OwnedFd) -> Result<Reply> {
        let path = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&fd));
        let flags = OFlags::PATH | OFlags::CLOEXEC;
        let node = rustix::fs::open(path, flags, Mode::empty()).map_err(errno)?;
        let attr = self.learn(node)?;
        Ok(Reply::Created(attr, self.new_handle(fd)))
    }

    fn create(
        &mut self,
        (parent, name): (Ino, &[u8]),
        mode: u32,
        umask: u32,
        flags: u32,
    ) -> Result<Reply> {
        let (dir, mode) = (self.inode(parent)?, Mode::from_raw_mode(mode & 0o7777));
        let flags = open_with(flags) | OFlags::CREATE | OFlags::NOFOLLOW;
        let fd = with_umask(umask, || rustix::fs::openat(dir, name, flags, mode)).map_err(errno)?;
        self.created(fd)
    }

    fn tmpfile(&mut self, parent: Ino, mode: u32, umask: u32, flags: u32) -> Result<Reply> {
        let (path, mode) = (self.path(parent)?, Mode::from_raw_mode(mode & 0o7777));
        let flags = open_with(flags) | OFlags::TMPFILE;
        let fd = with_umask(umask, || rustix::fs::open(path, flags, mode)).map_err(errno)?;
        self.created(fd)
    }

    fn lseek(&mut self, fh: Fh, offset: u64, whence: u32) -> Result<Reply> {
        let to = match whence {
            seek::DATA => SeekFrom::Data(offset),
            seek::HOLE => SeekFrom::Hole(offset),
            _ => return Err(Errno::EINVAL),
        };
        rustix::fs::seek(self.handle(fh)?, to).map(Reply::Offset).map_err(errno)
    }

    fn copy(&mut self, from: (Fh, u64), to: (Fh, u64), len: u64) -> Result<Reply> {
        let (source, target) = (self.handle(from.0)?, self.handle(to.0)?);
        let (mut from_at, mut to_at) = (from.1, to.1);
        let len = usize::try_from(len).unwrap_or(usize::MAX);
        let source = (source, Some(&mut from_at));
        let copied = rustix::fs::copy_file_range(source.0, source.1, target, Some(&mut to_at), len);
        written(copied.map_err(errno)?)
    }
}

fn written(count: usize) -> Result<Reply> {
    u32::try_from(count).map(Reply::Written).map_err(|_| Errno::EOVERFLOW)
}
