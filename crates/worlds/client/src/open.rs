//! How files are opened.

use std::sync::Arc;

use outboard_base::{Cred, Errno, Fh, Result};
use outboard_volume::backend::Backend;
use outboard_wire::file::{Attr, FileKind, Reply, Request, open_flags};

use crate::data::Handle;
use crate::dir::Dir;
use crate::file::File;
use crate::link::Link;
use crate::walk::Spot;

/// How a file is to be opened, in words of `open(2)`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct How {
    /// Flags that travel (`open_flags`): access mode, truncate, append, sync.
    pub flags: u32,
    /// Make it if it is missing.
    pub create: bool,
    /// It must be a directory.
    pub directory: bool,
    /// A symbolic link at the end is not followed.
    pub nofollow: bool,
    /// Permissions of a new file, before the umask.
    pub mode: u32,
    /// The umask.
    pub umask: u32,
}

impl How {
    /// Whether it must not exist.
    #[must_use]
    pub fn is_exclusive(&self) -> bool {
        self.create && self.flags & open_flags::EXCL != 0
    }

    /// Whether a symbolic link at the end of the path is followed.
    #[must_use]
    pub fn follows(&self) -> bool {
        !self.nofollow && !self.is_exclusive()
    }

    fn writes(&self) -> bool {
        self.flags & open_flags::ACCMODE != 0
    }
}

/// The same for Rust programs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OpenOptions {
    how: How,
    read: bool,
    write: bool,
}

impl From<How> for OpenOptions {
    fn from(how: How) -> OpenOptions {
        let access = how.flags & open_flags::ACCMODE;
        let flags = how.flags & !open_flags::ACCMODE;
        let (read, write) = (access != open_flags::WRONLY, access != 0);
        OpenOptions { how: How { flags, ..how }, read, write }
    }
}

impl OpenOptions {
    /// Neither for reading nor for writing yet.
    #[must_use]
    pub fn new() -> OpenOptions {
        OpenOptions::default()
    }

    /// For reading.
    #[must_use]
    pub fn read(mut self) -> OpenOptions {
        self.read = true;
        self
    }

    /// For writing.
    #[must_use]
    pub fn write(mut self) -> OpenOptions {
        self.write = true;
        self
    }

    /// Every write goes to the end.
    #[must_use]
    pub fn append(mut self) -> OpenOptions {
        self.write = true;
        self.how.flags |= open_flags::APPEND;
        self
    }

    /// Made with these permissions (the umask does not apply) if it is missing.
    #[must_use]
    pub fn create(mut self, mode: u32) -> OpenOptions {
        (self.how.create, self.how.mode) = (true, mode);
        self
    }

    /// It must not exist.
    #[must_use]
    pub fn exclusive(mut self) -> OpenOptions {
        self.how.flags |= open_flags::EXCL;
        self
    }

    /// Emptied.
    #[must_use]
    pub fn truncate(mut self) -> OpenOptions {
        self.how.flags |= open_flags::TRUNC;
        self
    }

    /// Each write is durable before it returns.
    #[must_use]
    pub fn sync(mut self) -> OpenOptions {
        self.how.flags |= open_flags::SYNC;
        self
    }

    /// Past every cache.
    #[must_use]
    pub fn direct(mut self) -> OpenOptions {
        self.how.flags |= open_flags::DIRECT;
        self
    }

    pub(crate) fn how(self) -> Result<How> {
        let mut how = self.how;
        how.flags |= match (self.read, self.write) {
            (true, false) => 0,
            (false, true) => open_flags::WRONLY,
            (true, true) => open_flags::RDWR,
            (false, false) => return Err(Errno::EINVAL),
        };
        Ok(how)
    }
}

/// What a path turned out to be.
#[derive(Debug)]
pub enum Opened<B: Backend> {
    /// A regular file.
    File(File<B>, Attr),
    /// A directory, open for listing.
    Dir(Dir<B>, Attr),
    /// Something the kernel must open: a fifo, a device node.
    Special(Attr),
}

/// Opens what `spot` leads to. `ESTALE`: it went meanwhile, walk again.
pub(crate) fn open<B: Backend>(
    link: &Arc<Link<B>>,
    cred: &Cred,
    spot: &Spot,
    how: &How,
) -> Result<Opened<B>> {
    let attr = match (&spot.name, &spot.found) {
        (None, _) => {
            match link.reply(cred, &Request::Getattr { ino: spot.dir.ino(), fh: Fh::NONE })? {
                Reply::Attr(attr) => attr,
                _ => return Err(Errno::EPROTO),
            }
        }
        (Some(_), Some(attr)) => attr.clone(),
        (Some(name), None) if how.create => return create(link, cred, spot, name, how),
        (Some(_), None) => return Err(Errno::ENOENT),
    };
    if how.is_exclusive() {
        return Err(Errno::EEXIST);
    }
    match attr.kind().map_err(|_| Errno::EPROTO)? {
        FileKind::Directory if how.create || how.writes() => Err(Errno::EISDIR),
        FileKind::Directory => Dir::open(link, cred, attr.ino).map(|dir| Opened::Dir(dir, attr)),
        _ if how.directory || spot.slash => Err(Errno::ENOTDIR),
        FileKind::Symlink => Err(Errno::ELOOP),
        FileKind::Regular => {
            let flags = how.flags & !open_flags::EXCL;
            let handle = open_ino(link, cred, &attr, flags)?;
            Ok(Opened::File(File::new(Arc::clone(link), handle), attr))
        }
        _ => Ok(Opened::Special(attr)),
    }
}

fn open_ino<B: Backend>(link: &Link<B>, cred: &Cred, attr: &Attr, flags: u32) -> Result<Handle> {
    match link.reply(cred, &Request::Open { ino: attr.ino, flags })? {
        Reply::Opened(fh) => Ok(handle(attr, fh, flags, cred)),
        _ => Err(Errno::EPROTO),
    }
}

fn handle(attr: &Attr, fh: Fh, flags: u32, cred: &Cred) -> Handle {
    let cred = Cred { groups: Vec::new(), ..cred.clone() };
    Handle { ino: attr.ino, fh, flags, cred }
}

fn create<B: Backend>(
    link: &Arc<Link<B>>,
    cred: &Cred,
    spot: &Spot,
    name: &[u8],
    how: &How,
) -> Result<Opened<B>> {
    if spot.slash {
        return Err(Errno::EISDIR);
    }
    if how.directory {
        return Err(Errno::EINVAL);
    }
    let request = Request::Create {
        parent: spot.dir.ino(),
        name,
        mode: how.mode,
        umask: how.umask,
        flags: how.flags,
    };
    match link.reply(cred, &request)? {
        Reply::Created(attr, fh) => {
            link.add_interest(cred, attr.ino);
            let handle = handle(&attr, fh, how.flags, cred);
            Ok(Opened::File(File::new(Arc::clone(link), handle), attr))
        }
        _ => Err(Errno::EPROTO),
    }
}

/// Makes a file without a name in `spot`, a directory.
pub(crate) fn tmpfile<B: Backend>(
    link: &Arc<Link<B>>,
    cred: &Cred,
    spot: &Spot,
    how: &How,
) -> Result<Opened<B>> {
    let parent = spot.found.as_ref().map_or_else(|| spot.dir.ino(), |attr| attr.ino);
    if spot.name.is_some() && spot.found.is_none() {
        return Err(Errno::ENOENT);
    }
    let How { mode, umask, flags, .. } = *how;
    let request = Request::Tmpfile { parent, mode, umask, flags };
    match link.reply(cred, &request)? {
        Reply::Created(attr, fh) => {
            // This side refers to it no more than it has it open.
            link.forget(cred, attr.ino);
            let handle = handle(&attr, fh, flags, cred);
            Ok(Opened::File(File::new(Arc::clone(link), handle), attr))
        }
        _ => Err(Errno::EPROTO),
    }
}
