//! A volume as a program sees it.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use outboard_base::{Cred, Errno, Fh, Ino, Result, limits};
use outboard_volume::backend::{Backend, Front};
use outboard_wire::file::{Attr, Reply, Request, Setattr, Statfs};

use crate::dir::Dir;
use crate::file::File;
use crate::interest::Held;
use crate::link::Link;
use crate::open::{self, How, OpenOptions, Opened};
use crate::walk::{Place, Spot, Walked, Walker};

/// How often a path is walked again because what it led to went meanwhile.
const WALKS: usize = 16;

/// A volume this process has attached to. Every method may be called from any thread.
pub struct Volume<B: Backend> {
    pub(crate) link: Arc<Link<B>>,
    prefix: Option<Vec<u8>>,
    umask: AtomicU32,
}

/// Who asks: this process as it is now.
#[must_use]
pub fn cred() -> Cred {
    let uid = rustix::process::geteuid().as_raw();
    let gid = rustix::process::getegid().as_raw();
    let pid = rustix::process::getpid().as_raw_nonzero().get().unsigned_abs();
    let groups = match uid {
        // Root needs none.
        0 => Vec::new(),
        _ => rustix::process::getgroups().unwrap_or_default(),
    };
    let groups = groups.iter().take(limits::GROUPS_MAX).map(|group| group.as_raw()).collect();
    Cred { uid, gid, pid, groups }
}

impl<B: Backend> Volume<B> {
    /// A volume behind what `attach` attaches to. What that is to tell (ends of waits for locks) it
    /// tells the front-end handed to it.
    pub fn attach<E>(
        attach: impl FnOnce(Arc<dyn Front<B::Slot>>) -> std::result::Result<Arc<B>, E>,
    ) -> std::result::Result<Volume<B>, E> {
        let link = Arc::new(Link::attach(attach)?);
        Ok(Volume { link, prefix: None, umask: AtomicU32::new(0) })
    }

    /// Where the volume's root lies for the user: absolute targets of symbolic links that begin
    /// with it lead into the volume, others out of it. Without it they lead to the volume's own
    /// root.
    #[must_use]
    pub fn with_prefix(self, prefix: Vec<u8>) -> Volume<B> {
        Volume { prefix: Some(prefix), ..self }
    }

    /// What it is attached to: for leaving in order, and for figures. Files and directories that
    /// are still open then must not be used any more.
    #[must_use]
    pub fn backend(&self) -> &Arc<B> {
        self.link.backend()
    }

    /// Keeps `ino`, referred to by its number from now on, and the directories on the way to
    /// `place` from being forgotten. To be called right after they were come to.
    #[must_use]
    pub fn hold(&self, ino: Ino, place: &Place) -> Held<B> {
        let inos = place.inos().chain([ino]).filter(|ino| *ino != Ino::ROOT).collect();
        Held::new(&self.link, inos)
    }

    /// Takes these bits from the permissions of what is made by path. None at first: the umask of
    /// the process is not looked at.
    pub fn set_umask(&self, umask: u32) {
        self.umask.store(umask & 0o777, Ordering::Relaxed);
    }

    pub(crate) fn umask(&self) -> u32 {
        self.umask.load(Ordering::Relaxed)
    }

    // By place.

    /// Walks `path` from `start`, or from the root if it begins with a slash.
    pub fn walk(&self, start: &Place, path: &[u8], follow: bool) -> Result<Walked> {
        let cred = cred();
        let walker = Walker { link: &self.link, cred: &cred, prefix: self.prefix.as_deref() };
        walker.walk(start, path, follow)
    }

    /// Opens what `spot` leads to. `ESTALE`: it went meanwhile, walk again.
    pub fn open_at(&self, spot: &Spot, how: &How) -> Result<Opened<B>> {
        open::open(&self.link, &cred(), spot, how)
    }

    /// Makes and opens a file without a name in the directory `spot` leads to.
    pub fn tmpfile_at(&self, spot: &Spot, how: &How) -> Result<Opened<B>> {
        open::tmpfile(&self.link, &cred(), spot, how)
    }

    /// Opens a file by its number, as `flags` (`open_flags`) say: for a process that inherited it.
    /// A process that is neither root's nor the volume owner's must have walked to it before.
    pub fn open_ino(&self, ino: Ino, flags: u32) -> Result<File<B>> {
        let cred = cred();
        match self.link.reply(&cred, &Request::Open { ino, flags })? {
            Reply::Opened(fh) => {
                let cred = Cred { groups: Vec::new(), ..cred };
                let handle = crate::data::Handle { ino, fh, flags, cred };
                Ok(File::new(Arc::clone(&self.link), handle))
            }
            _ => Err(Errno::EPROTO),
        }
    }

    /// Opens a directory by its number.
    pub fn open_dir_ino(&self, ino: Ino) -> Result<Dir<B>> {
        Dir::open(&self.link, &cred(), ino)
    }

    /// The attributes of an inode.
    pub fn attr(&self, ino: Ino) -> Result<Attr> {
        self.link.attributes(&cred(), &Request::Getattr { ino, fh: Fh::NONE })
    }

    /// Changes attributes of an inode.
    pub fn set_attr(&self, ino: Ino, set: Setattr) -> Result<Attr> {
        self.link.attributes(&cred(), &Request::Setattr { ino, fh: Fh::NONE, set })
    }

    /// Space and inodes.
    pub fn statfs(&self) -> Result<Statfs> {
        match self.link.reply(&cred(), &Request::Statfs { ino: Ino::ROOT })? {
            Reply::Statfs(figures) => Ok(figures),
            _ => Err(Errno::EPROTO),
        }
    }

    /// Makes everything answered so far durable.
    pub fn sync(&self) -> Result<()> {
        self.link.reply(&cred(), &Request::Syncfs).map(drop)
    }

    // By path from the root.

    /// Where `path` leads; absolute or not, it begins at the root.
    pub(crate) fn spot(&self, path: &Path, follow: bool) -> Result<Spot> {
        use std::os::unix::ffi::OsStrExt;
        match self.walk(&Place::root(), path.as_os_str().as_bytes(), follow)? {
            Walked::Inside(spot) => Ok(spot),
            Walked::Outside(_) => Err(Errno::EXDEV),
        }
    }

    /// Does something to what `path` leads to, walking again if that went meanwhile.
    pub(crate) fn at<T>(
        &self,
        path: &Path,
        follow: bool,
        act: impl Fn(&Spot) -> Result<T>,
    ) -> Result<T> {
        for _ in 1..WALKS {
            match act(&self.spot(path, follow)?) {
                Err(Errno::ESTALE) => {}
                done => return done,
            }
        }
        act(&self.spot(path, follow)?)
    }

    /// Opens a file. `EISDIR` for a directory, `ENXIO` for a fifo or a device node.
    pub fn open(&self, path: impl AsRef<Path>, options: OpenOptions) -> Result<File<B>> {
        let how = How { umask: self.umask(), ..options.how()? };
        match self.at(path.as_ref(), how.follows(), |spot| self.open_at(spot, &how))? {
            Opened::File(file, _) => Ok(file),
            Opened::Dir(..) => Err(Errno::EISDIR),
            Opened::Special(_) => Err(Errno::ENXIO),
        }
    }

    /// Opens a directory for listing.
    pub fn open_dir(&self, path: impl AsRef<Path>) -> Result<Dir<B>> {
        let how = How { directory: true, ..How::default() };
        match self.at(path.as_ref(), true, |spot| self.open_at(spot, &how))? {
            Opened::Dir(dir, _) => Ok(dir),
            _ => Err(Errno::ENOTDIR),
        }
    }
}
