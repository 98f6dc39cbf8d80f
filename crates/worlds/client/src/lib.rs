//! A volume from inside a program: file calls go straight into queue pairs of the program's own,
//! and the kernel is not asked. What the volume is reached through is any
//! [`Backend`](outboard_volume::backend::Backend); who opens it attaches to it.
//!
//! ```no_run
//! use outboard_attach::host::Connect;
//! use outboard_client::{OpenOptions, Volume};
//!
//! let volume = Volume::attach(|front| Connect::new("data/dpu.sock").attach(front))?;
//! let file = volume.open("notes.txt", OpenOptions::new().read().write().create(0o644))?;
//! file.write_at(b"hello", 0)?;
//! file.sync(false)?;
//! let mut bytes = [0; 5];
//! assert_eq!(file.read_at(&mut bytes, 0)?, 5);
//! volume.rename("notes.txt", "greetings.txt")?;
//! volume.backend().detach(std::time::Duration::from_secs(5))?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! What a mount leaves to the kernel is done here: a path is walked component by component by
//! [`walk`] (symbolic links, `..`, the limit of 40). What a mount has the kernel check is checked
//! by the volume: a request of this crate never claims to be checked.
//!
//! # Invariants
//!
//! 1. A call is answered once, whatever becomes of the DPU side; while that is lost, calls wait or
//!    fail as the backend was told.
//! 2. One queue pair is used by one thread at a time. A thread returns to the queue it had while
//!    nobody has to wait for one; who waits is served in order.
//! 3. File data passes through one place, [`mod@data`]. Where the backend has a cache, that is
//!    asked first.
//! 4. An answered read or write costs no allocation unless all queues are taken, and no system
//!    call but the pauses of a spinning thread, unless its DPU side must be woken or waited for
//!    asleep.
//!
//! # Errors
//!
//! A call fails with the [`Errno`] the system call of its name gives (`docs/SEMANTICS.md` says
//! where a volume differs). Beside those, any call: `ENOTCONN` once a loss of the DPU side is given
//! up, `EPROTO` for an answer that makes no sense, `EIO` for bytes the volume cannot read or write,
//! `EUCLEAN` for damaged names and attributes. Offsets and lengths are bytes.
//!
//! The page is `docs/internals/preload.md`.

#![forbid(unsafe_code)]

pub mod data;
mod dir;
mod file;
mod interest;
mod link;
mod names;
mod open;
mod ports;
mod volume;
pub mod walk;

pub use dir::{Dir, Entry};
pub use file::File;
pub use interest::Held;
pub use names::Xattr;
pub use open::{How, OpenOptions, Opened};
pub use outboard_base::{Cred, Errno, Fh, Ino, Result, Timestamp};
pub use outboard_wire::file::{
    Attr, FileKind, LockKind, LockStyle, Setattr, SetattrTime, Statfs, mode, open_flags,
    rename_flags, xattr_flags,
};
pub use volume::{Volume, cred};
pub use walk::{Place, Spot, Walked};
