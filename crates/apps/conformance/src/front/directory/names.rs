//! Directories: names made, moved, removed and listed.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::sync::{Mutex, PoisonError};

use outboard_base::{Errno, Fh, Ino, Result};
use outboard_wire::file::{Dirent, DirentsWriter, FileKind, Reply, Request, mode};
use rustix::fs::{AtFlags, CWD, Mode, OFlags, RawDir, RenameFlags, SeekFrom};

use super::attributes::{self, data_reply};
use super::{DirectoryFront, errno};

/// The umask is the process's, so calls that use it go one at a time.
static UMASK: Mutex<()> = Mutex::new(());

/// Does `work` under `mask`.
pub(super) fn with_umask<T>(mask: u32, work: impl FnOnce() -> T) -> T {
    let _one = UMASK.lock().unwrap_or_else(PoisonError::into_inner);
    let before = rustix::process::umask(Mode::from_raw_mode(mask));
    let result = work();
    rustix::process::umask(before);
    result
}

/// Room for one `getdents64(2)`.
const DENTS: usize = 32 << 10;

impl DirectoryFront {
    pub(super) fn on_names(
        &mut self,
        request: &Request<'_>,
        payload: &[u8],
        out: &mut Vec<u8>,
    ) -> Result<Reply> {
        match *request {
            Request::Lookup { parent, name } => self.find(parent, name).map(Reply::Entry),
            Request::Symlink { parent, name } => {
                rustix::fs::symlinkat(payload, self.inode(parent)?, name).map_err(errno)?;
                self.find(parent, name).map(Reply::Entry)
            }
            Request::Mkdir { parent, name, mode, umask } => {
                let (fd, mode) = (self.inode(parent)?, Mode::from_raw_mode(mode & 0o7777));
                with_umask(umask, || rustix::fs::mkdirat(fd, name, mode)).map_err(errno)?;
                self.find(parent, name).map(Reply::Entry)
            }
            Request::Mknod { parent, name, mode, umask, rdev } => {
                self.mknod(parent, name, (mode, umask, rdev))
            }
            Request::Link { ino, to_parent, to_name } => {
                let (path, to) = (self.path(ino)?, self.inode(to_parent)?);
                let flags = AtFlags::SYMLINK_FOLLOW;
                rustix::fs::linkat(CWD, path, to, to_name, flags).map_err(errno)?;
                self.find(to_parent, to_name).map(Reply::Entry)
            }
            Request::Unlink { parent, name } => self.remove(parent, name, AtFlags::empty()),
            Request::Rmdir { parent, name } => self.remove(parent, name, AtFlags::REMOVEDIR),
            Request::Rename { parent, name, to_parent, to_name, flags } => {
                self.rename((parent, name), (to_parent, to_name), flags)
            }
            Request::Readlink { ino } => self.readlink(ino, out),
            Request::Opendir { ino } => {
                let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
                let fd = rustix::fs::open(self.path(ino)?, flags, Mode::empty()).map_err(errno)?;
                Ok(Reply::Opened(self.new_handle(fd)))
            }
            Request::Readdir { fh, cookie, len, with_attributes, .. } => {
                self.readdir(fh, cookie, (len, with_attributes), out)
            }
            Request::Releasedir { fh, .. } => {
                self.handles.remove(&fh).ok_or(Errno::EBADF)?;
                Ok(Reply::Empty)
            }
            _ => Err(Errno::ENOSYS),
        }
    }

    fn mknod(
        &mut self,
        parent: Ino,
        name: &[u8],
        (mode, umask, rdev): (u32, u32, u32),
    ) -> Result<Reply> {
        let kind = match mode & mode::S_IFMT {
            0 => rustix::fs::FileType::RegularFile,
            _ => rustix::fs::FileType::from_raw_mode(mode),
        };
        let device =
            rustix::fs::makedev((rdev >> 8) & 0xfff, (rdev & 0xff) | ((rdev >> 12) & !0xff));
        let (fd, bits) = (self.inode(parent)?, Mode::from_raw_mode(mode & 0o7777));
        with_umask(umask, || rustix::fs::mknodat(fd, name, kind, bits, device)).map_err(errno)?;
        self.find(parent, name).map(Reply::Entry)
    }

    /// The inode `name` leads to, if it can be told; for `Removed`.
    fn victim(&self, parent: Ino, name: &[u8]) -> Result<Option<std::os::fd::OwnedFd>> {
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let name = OsStr::from_bytes(name);
        Ok(rustix::fs::openat(self.inode(parent)?, name, flags, Mode::empty()).ok())
    }

    fn removed(&self, victim: Option<std::os::fd::OwnedFd>) -> Result<Reply> {
        let attr = victim.map(|fd| attributes::of(&fd, self.root_ino)).transpose()?;
        Ok(Reply::Removed(attr.filter(|attr| attr.nlink == 0).map(|attr| attr.ino)))
    }

    fn remove(&mut self, parent: Ino, name: &[u8], flags: AtFlags) -> Result<Reply> {
        let victim = self.victim(parent, name)?;
        rustix::fs::unlinkat(self.inode(parent)?, name, flags).map_err(errno)?;
        self.removed(victim)
    }

    fn rename(&mut self, from: (Ino, &[u8]), to: (Ino, &[u8]), flags: u32) -> Result<Reply> {
        let victim = self.victim(to.0, to.1)?;
        let flags = RenameFlags::from_bits_retain(flags);
        rustix::fs::renameat_with(self.inode(from.0)?, from.1, self.inode(to.0)?, to.1, flags)
            .map_err(errno)?;
        self.removed(victim)
    }

    fn readlink(&mut self, ino: Ino, out: &mut Vec<u8>) -> Result<Reply> {
        let fd = self.inode(ino)?;
        if attributes::of(fd, self.root_ino)?.kind()? != FileKind::Symlink {
            return Err(Errno::EINVAL);
        }
        let target = rustix::fs::readlinkat(fd, "", Vec::new()).map_err(errno)?;
        out.extend_from_slice(target.as_bytes());
        data_reply(out, target.as_bytes().len())
    }

    fn readdir(
        &mut self,
        fh: Fh,
        cookie: u64,
        (len, with_attributes): (u32, bool),
        out: &mut Vec<u8>,
    ) -> Result<Reply> {
        let root_ino = self.root_ino;
        let fd = self.handle(fh)?;
        rustix::fs::seek(fd, SeekFrom::Start(cookie)).map_err(errno)?;
        out.resize(len as usize, 0);
        let mut writer = DirentsWriter::new(out.as_mut_slice());
        let mut room = Vec::with_capacity(DENTS);
        let mut entries = RawDir::new(fd, room.spare_capacity_mut());
        while let Some(entry) = entries.next() {
            let entry = entry.map_err(errno)?;
            let name = entry.file_name().to_bytes();
            if matches!(name, b"." | b"..") {
                continue;
            }
            let attr = with_attributes.then(|| child(fd, name, root_ino)).transpose()?;
            let entry = Dirent {
                ino: if entry.ino() == root_ino { Ino::ROOT } else { Ino(entry.ino()) },
                cookie: entry.next_entry_cookie(),
                kind: FileKind::from_mode(entry.file_type().as_raw_mode())?,
                name,
                attr,
            };
            if !writer.push(&entry)? {
                break;
            }
        }
        let used = writer.len();
        data_reply(out, used)
    }
}

fn child(
    directory: &std::os::fd::OwnedFd,
    name: &[u8],
    root_ino: u64,
) -> Result<outboard_wire::file::Attr> {
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let fd = rustix::fs::openat(directory, name, flags, Mode::empty()).map_err(errno)?;
    attributes::of(&fd, root_ino)
}
