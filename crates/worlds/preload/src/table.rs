//! What a descriptor number of the volume stands for.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU64, Ordering};

use outboard_client::{Errno, Ino, Place, Result, Walked, open_flags};

use crate::attach::{self, Attached, Dir, File, Held, attached};
use crate::sys::lock::Lock;

/// What is open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// A regular file.
    File,
    /// A directory.
    Dir,
    /// Anything, by `O_PATH`.
    Path,
}

/// What the DPU side has open for it.
#[derive(Clone)]
pub(crate) enum Open {
    File(Arc<File>),
    Dir(Arc<Dir>),
}

/// An open file description: shared by all descriptors made by `dup` and, placeholder and offset
/// only, by processes made by `fork`.
pub(crate) struct Description {
    pub(crate) kind: Kind,
    pub(crate) ino: Ino,
    /// A directory's way from the root.
    pub(crate) place: Place,
    /// The path it was opened by, from the root.
    pub(crate) path: Vec<u8>,
    /// As `F_GETFL` tells them.
    pub(crate) flags: AtomicI32,
    /// The descriptor is the mount's own.
    pub(crate) real: AtomicBool,
    /// Appended to since the offset was last right.
    pub(crate) appended: AtomicBool,
    /// Whose flock it holds.
    pub(crate) owner: u64,
    /// What is open, and in which life of the attachment.
    pub(crate) open: Lock<Option<(u32, Open)>>,
    /// Held while the offset is used and moved.
    pub(crate) place_lock: Lock<()>,
    /// What must not be forgotten meanwhile, and in which life of the attachment.
    held: Option<(u32, Held)>,
}

static OWNERS: AtomicU64 = AtomicU64::new(1);

impl Description {
    pub(crate) fn new(
        kind: Kind,
        ino: Ino,
        place: Place,
        path: Vec<u8>,
        flags: i32,
        open: Option<(u32, Open)>,
    ) -> Description {
        Description {
            kind,
            ino,
            place,
            path,
            flags: AtomicI32::new(flags),
            real: AtomicBool::new(false),
            appended: AtomicBool::new(false),
            owner: OWNERS.fetch_add(1, Ordering::Relaxed),
            open: Lock::new(open),
            place_lock: Lock::new(()),
            held: None,
        }
    }

    /// Its inode, and its way from the root, are referred to as long as it is there.
    pub(crate) fn holding(mut self, attached: &Attached) -> Description {
        self.held = Some((attached.life, attached.volume.hold(self.ino, &self.place)));
        self
    }

    pub(crate) fn flags(&self) -> i32 {
        self.flags.load(Ordering::Relaxed)
    }

    pub(crate) fn is_real(&self) -> bool {
        self.real.load(Ordering::Acquire)
    }

    /// The open file, opened again if this process has another attachment by now.
    pub(crate) fn file(&self) -> Result<Arc<File>> {
        match self.kind {
            Kind::File => {}
            Kind::Dir => return Err(Errno::EISDIR),
            Kind::Path => return Err(Errno::EBADF),
        }
        match self.current()? {
            Open::File(file) => Ok(file),
            Open::Dir(_) => Err(Errno::EISDIR),
        }
    }

    /// The open directory, likewise.
    pub(crate) fn dir(&self) -> Result<Arc<Dir>> {
        match self.kind {
            Kind::Dir => {}
            Kind::File => return Err(Errno::ENOTDIR),
            Kind::Path => return Err(Errno::EBADF),
        }
        match self.current()? {
            Open::Dir(dir) => Ok(dir),
            Open::File(_) => Err(Errno::ENOTDIR),
        }
    }

    fn current(&self) -> Result<Open> {
        let attached = attached()?;
        self.open.with(|open| {
            if let Some((life, open)) = open
                && *life == attached.life
            {
                return Ok(open.clone());
            }
            let fresh = self.open_again(attached)?;
            // The old one belongs to an attachment that is gone, or to the parent process.
            std::mem::forget(open.replace((attached.life, fresh.clone())));
            Ok(fresh)
        })
    }

    /// What is open, if anything is, is opened again as the flags say now, and closed then: a file
    /// without a name would be gone if nobody had it open in between.
    pub(crate) fn open_anew(&self) -> Result<()> {
        if self.open.with(|open| open.is_none()) {
            return Ok(());
        }
        let attached = attached()?;
        let fresh = self.open_again(attached)?;
        match self.open.with(|open| open.replace((attached.life, fresh))) {
            Some((opened, open)) if opened == attached.life => drop(open),
            other => std::mem::forget(other),
        }
        Ok(())
    }

    fn open_again(&self, attached: &Attached) -> Result<Open> {
        let again = || match self.kind {
            Kind::Dir => attached.volume.open_dir_ino(self.ino).map(|it| Open::Dir(Arc::new(it))),
            _ => {
                let flags = wire_flags(self.flags()) & !(open_flags::EXCL | open_flags::TRUNC);
                attached.volume.open_ino(self.ino, flags).map(|it| Open::File(Arc::new(it)))
            }
        };
        match again() {
            // A number alone is not enough for everybody: walk to it.
            Err(Errno::ESTALE) if self.leads_here(attached) => again(),
            opened => opened,
        }
    }

    fn leads_here(&self, attached: &Attached) -> bool {
        let walked = attached.volume.walk(&Place::root(), &self.path, true);
        matches!(walked, Ok(Walked::Inside(spot)) if spot.ino() == Ok(self.ino))
    }
}

impl Drop for Description {
    fn drop(&mut self) {
        let (life, owner) = (attach::life(), self.owner);
        self.open.with(|open| match open.take() {
            Some((opened, Open::File(file))) if opened == life => {
                // Nobody is left to tell of an error; whoever cares for durability has synced.
                let _closed = Arc::into_inner(file).map(|file| file.close(owner));
            }
            Some((opened, open)) if opened == life => drop(open),
            // Another attachment's.
            other => std::mem::forget(other),
        });
        if self.held.as_ref().is_some_and(|(held, _)| *held != life) {
            std::mem::forget(self.held.take());
        }
    }
}

/// `open(2)` flags as they travel.
pub(crate) fn wire_flags(flags: i32) -> u32 {
    let has = |flag: i32| flags & flag == flag;
    let mut wire = u32::try_from(flags & libc::O_ACCMODE).unwrap_or(0);
    for (flag, bit) in [
        (libc::O_EXCL, open_flags::EXCL),
        (libc::O_TRUNC, open_flags::TRUNC),
        (libc::O_APPEND, open_flags::APPEND),
        (libc::O_DSYNC, open_flags::DSYNC),
        (libc::O_SYNC, open_flags::SYNC),
        (libc::O_DIRECT, open_flags::DIRECT),
        (libc::O_NOATIME, open_flags::NOATIME),
    ] {
        if has(flag) {
            wire |= bit;
        }
    }
    wire
}
