//! Any directory of any mounted file system as a volume: each request becomes its system call.
//!
//! An inode is an `O_PATH` descriptor, reached again through `/proc/self/fd`, so that it is found
//! whatever has happened to its names. The inode number is `st_ino`, but the directory itself is 0,
//! as every volume's root is. Calls are made as the user a request names: credentials of this
//! thread are changed for its length, which needs root.
//!
//! Pointed at a mount of Outboard this tests what programs see: kernel, mount adaptor, link and
//! volume. Pointed at a local file system it tests the suite.

use std::collections::HashMap;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::time::Duration;

use outboard_base::{Cred, Errno, Fh, Ino, Result};
use outboard_wire::file::{Attr, Reply, Request};
use rustix::fs::{AtFlags, CWD, Mode, OFlags};

use super::{Features, Front};

mod attributes;
mod credentials;
mod data;
mod locks;
mod names;

/// A directory that answers requests.
pub struct DirectoryFront {
    features: Features,
    root: OwnedFd,
    root_ino: u64,
    inodes: HashMap<Ino, OwnedFd>,
    handles: HashMap<Fh, OwnedFd>,
    next_handle: u64,
    locks: locks::Locks,
}

/// The errno of a failed system call.
pub(crate) fn errno(error: rustix::io::Errno) -> Errno {
    Errno::from_raw(error.raw_os_error().unsigned_abs())
}

impl DirectoryFront {
    /// The same directory, of a mount whose reads move no access times: a hybrid cache answers
    /// them, or the nodes of a shared volume.
    #[must_use]
    pub fn with_unseen_reads(mut self) -> DirectoryFront {
        self.features.reads_seen = false;
        self
    }

    /// The same directory, of a mount whose kernel collects writes: those, and what is read of what
    /// it has, nobody else sees.
    #[must_use]
    pub fn with_write_back(mut self) -> DirectoryFront {
        self.features.reads_seen = false;
        self.features.writes_seen = false;
        self
    }

    /// The directory at `path`. `outboard` tells whether it lies on a mount of Outboard.
    pub fn new(path: &Path, outboard: bool) -> Result<DirectoryFront> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let root = rustix::fs::openat(CWD, path, flags, Mode::empty()).map_err(errno)?;
        let root_ino = rustix::fs::fstat(&root).map_err(errno)?.st_ino;
        let is_root = rustix::process::geteuid().is_root();
        let features = Features {
            name: format!("{}:{}", if outboard { "mount" } else { "dir" }, path.display()),
            name_max: 255,
            change_counter: false,
            kernel: true,
            lock_owners: false,
            cancel_lock: false,
            any_cred: is_root,
            acl: true,
            steady: true,
            reads_seen: true,
            writes_seen: true,
            outboard,
        };
        Ok(DirectoryFront {
            features,
            root,
            root_ino,
            inodes: HashMap::new(),
            handles: HashMap::new(),
            next_handle: 1,
            locks: locks::Locks::default(),
        })
    }

    /// The descriptor of an inode that was told of before.
    fn inode(&self, ino: Ino) -> Result<&OwnedFd> {
        if ino == Ino::ROOT {
            return Ok(&self.root);
        }
        self.inodes.get(&ino).ok_or(Errno::ESTALE)
    }

    /// A path that leads to the inode itself.
    fn path(&self, ino: Ino) -> Result<String> {
        Ok(format!("/proc/self/fd/{}", self.inode(ino)?.as_raw_fd()))
    }

    fn handle(&self, fh: Fh) -> Result<&OwnedFd> {
        self.handles.get(&fh).ok_or(Errno::EBADF)
    }

    fn new_handle(&mut self, fd: OwnedFd) -> Fh {
        let fh = Fh(self.next_handle);
        self.next_handle += 1;
        self.handles.insert(fh, fd);
        fh
    }

    /// Remembers the inode behind an `O_PATH` descriptor and tells its attributes.
    fn learn(&mut self, fd: OwnedFd) -> Result<Attr> {
        let attr = attributes::of(&fd, self.root_ino)?;
        if attr.ino != Ino::ROOT {
            self.inodes.entry(attr.ino).or_insert(fd);
        }
        Ok(attr)
    }

    /// The inode `name` leads to, without following it.
    fn find(&mut self, parent: Ino, name: &[u8]) -> Result<Attr> {
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let name = std::ffi::OsStr::from_bytes(name);
        let fd = rustix::fs::openat(self.inode(parent)?, name, flags, Mode::empty());
        self.learn(fd.map_err(errno)?)
    }

    fn answer(
        &mut self,
        request: &Request<'_>,
        payload: &[u8],
        out: &mut Vec<u8>,
    ) -> Result<Reply> {
        match *request {
            Request::Noop => Ok(Reply::Empty),
            Request::Forget { ino } => {
                self.inodes.remove(&ino);
                Ok(Reply::Empty)
            }
            Request::Lookup { .. }
            | Request::Symlink { .. }
            | Request::Mknod { .. }
            | Request::Mkdir { .. }
            | Request::Unlink { .. }
            | Request::Rmdir { .. }
            | Request::Rename { .. }
            | Request::Link { .. }
            | Request::Readlink { .. }
            | Request::Opendir { .. }
            | Request::Readdir { .. }
            | Request::Releasedir { .. } => self.on_names(request, payload, out),
            Request::Getlk { .. }
            | Request::Setlk { .. }
            | Request::CancelLock { .. }
            | Request::Flush { .. }
            | Request::Release { .. } => self.on_locks(request),
            Request::Getattr { .. }
            | Request::Setattr { .. }
            | Request::Access { .. }
            | Request::Statfs { .. }
            | Request::Getxattr { .. }
            | Request::Setxattr { .. }
            | Request::Listxattr { .. }
            | Request::Removexattr { .. } => self.on_attributes(request, payload, out),
            _ => self.on_data(request, payload, out),
        }
    }
}

impl Front for DirectoryFront {
    fn features(&self) -> &Features {
        &self.features
    }

    fn call(
        &mut self,
        cred: &Cred,
        request: &Request<'_>,
        payload: &[u8],
        out: &mut Vec<u8>,
    ) -> Result<Reply> {
        out.clear();
        let _as_them = credentials::Borrowed::take(cred)?;
        self.answer(request, payload, out)
    }

    fn granted(&mut self, ticket: u64, patience: Duration) -> Result<bool> {
        self.locks.granted(ticket, patience)
    }

    fn settle(&mut self) -> Result<()> {
        self.inodes.clear();
        self.handles.clear();
        self.locks = locks::Locks::default();
        Ok(())
    }
}

/// Flags for calls on a descriptor alone.
const SELF: AtFlags = AtFlags::EMPTY_PATH;
