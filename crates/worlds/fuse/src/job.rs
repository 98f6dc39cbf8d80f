//! What a request under way needs to be answered.

use outboard_base::{Fh, Ino};
use outboard_wire::fuse::answer::Listing;

use crate::directories::Change;

/// How an answer looks to the kernel.
#[derive(Clone, Debug)]
pub(crate) enum Shape {
    /// A name that may not exist; found in `parent`.
    Lookup { parent: Ino },
    /// A new name in `parent`.
    Entry { parent: Ino },
    /// Attributes.
    Attr,
    /// Attributes of a file that stood still while others changed it.
    Mended,
    /// Extended attributes of an inode.
    Statx,
    /// An open file or directory, and the flags the kernel gets with it.
    Opened { fopen: u32 },
    /// A new file, open, in `parent`; `nameless` for one without a name.
    Created { parent: Ino, nameless: bool, fopen: u32 },
    /// Payload, at most `room` bytes.
    Data { room: u32 },
    /// Bytes taken, at most `most`.
    Written { most: u32 },
    /// The same, in 64 bits.
    Written64,
    /// Nothing.
    Empty,
    /// Nothing: a handle through which the inode was locked is gone.
    Released { ino: Ino, fh: Fh },
    /// A name is gone, or moved; `moved` holds (directory, name) of what came to another directory.
    Removed { moved: Vec<(Ino, Vec<u8>)> },
    /// Figures of the volume.
    Statfs,
    /// A lock.
    Lock,
    /// A place in the file.
    Offset,
    /// Directory entries, at most `room` bytes of the volume's.
    Listing { listing: Listing, room: u32 },
    /// No answer to the kernel: an inode is forgotten.
    Forget,
    /// No answer to the kernel: who lies behind a name that moved to `parent`?
    Moved { parent: Ino },
}

/// A request under way.
#[derive(Debug)]
pub(crate) struct Job {
    /// The clone of the device it was read from: the kernel takes the answer nowhere else.
    pub(crate) device: usize,
    /// Thread that asked, 0: the kernel.
    pub(crate) pid: u32,
    /// It waits for a lock: any signal ends it.
    pub(crate) waits_for_lock: bool,
    /// It may change a directory.
    pub(crate) change: Option<Change>,
    /// Which operation, for the log.
    pub(crate) what: &'static str,
    /// The answer's form.
    pub(crate) shape: Shape,
}

/// Something the volume must be asked beside the kernel's requests.
#[derive(Debug)]
pub(crate) enum Chore {
    /// The kernel does not refer to a nameless inode.
    Forget(Ino),
    /// A name moved to another directory: learn who it is.
    Moved {
        /// The directory it moved to.
        parent: Ino,
        /// Its name there.
        name: Vec<u8>,
    },
}
