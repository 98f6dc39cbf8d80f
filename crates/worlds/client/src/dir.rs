//! An open directory.

use std::sync::Arc;

use outboard_base::{Cred, Errno, Fh, Ino, Result};
use outboard_volume::backend::Backend;
use outboard_wire::file::{Dirents, FileKind, Reply, Request};

use crate::link::Link;

/// Bytes of entries asked for at once.
const ROOM: usize = 32 << 10;

/// One name of a directory. `.` and `..` are never among them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// The name.
    pub name: Vec<u8>,
    /// What it leads to.
    pub ino: Ino,
    /// What that is.
    pub kind: FileKind,
    /// Where to go on after it (`telldir`); never 0, 1 or 2.
    pub cookie: u64,
}

/// An open directory, listed from the start. Closed when dropped.
pub struct Dir<B: Backend> {
    link: Arc<Link<B>>,
    cred: Cred,
    ino: Ino,
    fh: Fh,
}

impl<B: Backend> std::fmt::Debug for Dir<B> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Dir({}, {})", self.ino, self.fh)
    }
}

impl<B: Backend> Dir<B> {
    pub(crate) fn open(link: &Arc<Link<B>>, cred: &Cred, ino: Ino) -> Result<Dir<B>> {
        match link.reply(cred, &Request::Opendir { ino })? {
            Reply::Opened(fh) => Ok(Dir { link: Arc::clone(link), cred: cred.clone(), ino, fh }),
            _ => Err(Errno::EPROTO),
        }
    }

    /// Its inode.
    #[must_use]
    pub fn ino(&self) -> Ino {
        self.ino
    }

    /// Some entries after `cookie` (0: from the start); none at the end.
    pub fn read(&self, cookie: u64) -> Result<Vec<Entry>> {
        let mut room = vec![0; ROOM];
        let len = u32::try_from(ROOM).map_err(|_| Errno::EINVAL)?;
        let (ino, fh) = (self.ino, self.fh);
        let request = Request::Readdir { ino, fh, cookie, len, with_attributes: false };
        let got = self.link.read(&self.cred, &request, &mut room)?;
        let entry = |found: Result<outboard_wire::file::Dirent<'_>>| {
            let found = found?;
            let (name, ino) = (found.name.to_vec(), found.ino);
            Ok(Entry { name, ino, kind: found.kind, cookie: found.cookie })
        };
        Dirents::new(room.get(..got).unwrap_or_default()).map(entry).collect()
    }

    /// Makes its names durable.
    pub fn sync(&self) -> Result<()> {
        let request = Request::Fsync { ino: self.ino, fh: self.fh, data_only: false };
        self.link.reply(&self.cred, &request).map(drop)
    }
}

impl<B: Backend> Drop for Dir<B> {
    fn drop(&mut self) {
        // A DPU side that is lost for good has closed it.
        let request = Request::Releasedir { ino: self.ino, fh: self.fh };
        let _closed = self.link.reply(&self.cred, &request);
    }
}
