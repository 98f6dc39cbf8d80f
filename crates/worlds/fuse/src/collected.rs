//! What others ask of a kernel that collects writes: that it writes a file's pages, that it lets
//! the file stand still while another changes it, that it takes a size that another gave it
//! (`docs/internals/coherence.md`, "Beside who collects writes").
//!
//! The kernel believes nobody about a file's size and mtime but who sets them through the mount. So
//! this mount's process does: by the inode's handle, without opening it.
//!
//! ```text
//! asker (a thread)         kernel                    worker             mender (a thread)
//!   utimensat ───────────▶ locks the inode,
//!     (atime = mark)       writes its pages
//!                          SETATTR, atime = mark ──▶ write back: EAGAIN, nothing is set
//!                                                    hold: to the DPU side
//!                            (the file stands)       ... answered ────▶ pages go, the size
//!   returns  ◀──────────── unlocks the inode  ◀──────────────────────── grows; the answer
//! ```
//!
//! The asker may wait in the kernel for whoever has the inode locked, and the mender for pages that
//! are written; neither answers anything else.

use std::io;
use std::path::Path;
use std::sync::mpsc::Receiver;
use std::time::{Duration, Instant};

use outboard_base::Ino;
use outboard_volume::backend::{Slot, Told};
use outboard_wire::event::Wanted;
use outboard_wire::file::Attr;
use outboard_wire::fuse::translate::node_of;
use outboard_wire::fuse::{answer, fattr, inval_inode, store};

use crate::front::MountFront;
use crate::sys::{self, Mountpoint};

const NSEC_PER_SEC: u64 = 1_000_000_000;
/// How long a name that is being told to the kernel is waited for: it may lead to the file.
const FOR_NAMES: Duration = Duration::from_secs(1);
/// How long the kernel is given to make an inode of what it was told.
const FOR_INODES: Duration = Duration::from_millis(20);
const LOOK: Duration = Duration::from_millis(1);

/// Something that others ask; the last is dropped when it is done.
pub(crate) struct Asked {
    pub(crate) ino: Ino,
    pub(crate) mark: u64,
    pub(crate) wanted: Wanted,
    pub(crate) told: Told,
}

/// Which request of the kernel is the asker's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Marked {
    ino: Ino,
    mark: u64,
    holds: bool,
}

impl Marked {
    /// Whether a SETATTR of `ino` is the one; if so, whether it holds the file.
    pub(crate) fn is(self, ino: Ino, valid: u32, atime: (u64, u32)) -> Option<bool> {
        let mark = (self.mark / NSEC_PER_SEC, self.mark % NSEC_PER_SEC);
        let is_it = self.ino == ino
            && valid & fattr::ATIME != 0
            && valid & fattr::ATIME_NOW == 0
            && (atime.0, u64::from(atime.1)) == mark;
        is_it.then_some(self.holds)
    }
}

/// A file that stands still no more once the kernel is told: what it is now.
#[derive(Debug)]
pub(crate) struct Mended {
    pub(crate) device: usize,
    pub(crate) unique: u64,
    pub(crate) attr: Attr,
}

/// The asker: runs until `None`.
pub(crate) fn ask<S: Slot>(front: &MountFront<S>, place: &Path, asked: &Receiver<Option<Asked>>) {
    while let Ok(Some(Asked { ino, mark, wanted, told })) = asked.recv() {
        if is_there(front, ino) {
            let holds = matches!(wanted, Wanted::Hold { .. });
            front.mark(Some(Marked { ino, mark, holds }));
            match act(front, place, ino, mark, wanted) {
                Ok(()) => {}
                // Written back; or gone meanwhile, or the mount is.
                Err(error) if is_expected(&error) => {}
                Err(error) => tracing::warn!(%ino, %error, "a file was not given back in order"),
            }
            front.mark(None);
        }
        drop(told);
    }
}

/// Whether the kernel may know a file, after every answer that is under way and may tell of it.
fn is_there<S: Slot>(front: &MountFront<S>, ino: Ino) -> bool {
    let end = Instant::now() + FOR_NAMES;
    let mut telling = front.pending.telling();
    while !front.inodes.is_known(ino) && !telling.is_empty() && Instant::now() < end {
        std::thread::sleep(LOOK);
        let still = front.pending.telling();
        telling.retain(|tag| still.contains(tag));
    }
    front.inodes.is_known(ino)
}

fn act<S: Slot>(
    front: &MountFront<S>,
    place: &Path,
    ino: Ino,
    mark: u64,
    wanted: Wanted,
) -> io::Result<()> {
    let root = Mountpoint::open(place)?;
    let end = Instant::now() + FOR_INODES;
    let file = loop {
        match root.inode(node_of(ino)) {
            Ok(file) => break file,
            // It is about to know it, or has forgotten it and not said so.
            Err(error) if Instant::now() >= end || !front.inodes.is_known(ino) => {
                return Err(error);
            }
            Err(_) => std::thread::sleep(LOOK),
        }
    };
    let seconds = i64::try_from(mark / NSEC_PER_SEC).unwrap_or(i64::MAX);
    let atime = (seconds, u32::try_from(mark % NSEC_PER_SEC).unwrap_or(0));
    match wanted {
        Wanted::WriteBack | Wanted::Hold { mtime: None } => sys::set_times(&file, atime, None),
        Wanted::Hold { mtime: Some(at) } => sys::set_times(&file, atime, Some((at.sec, at.nsec))),
        Wanted::Truncate { size } => sys::truncate(&file, size),
    }
}

fn is_expected(error: &io::Error) -> bool {
    let expected = [libc::EAGAIN, libc::ESTALE, libc::ENOENT, libc::ENOTCONN];
    error.raw_os_error().is_some_and(|errno| expected.contains(&errno))
}

/// The mender: runs until `None`.
pub(crate) fn mend<S: Slot>(front: &MountFront<S>, mended: &Receiver<Option<Mended>>) {
    while let Ok(Some(Mended { device, unique, attr })) = mended.recv() {
        let Some(way) = front.device(device) else { continue };
        let node = node_of(attr.ino);
        // The kernel may not know what is stale, or grows, any more.
        let _gone = way.write(&inval_inode(node, 0, 0), &[]);
        if let Some(last) = attr.size.checked_sub(1) {
            let _raised = way.write_no_byte(&store(node, last, 1));
        }
        front.answer(device, unique, &answer::attr(&attr, front.valid().attr));
    }
}
