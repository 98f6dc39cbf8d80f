//! KVFS: a POSIX file system on a key-value store (DPC 3.4; rows C17 to C23).
//!
//! [`Kvfs::handle`] answers one file operation of [`outboard_wire::file`]: the whole interface
//! upward. Below are a [`Kv`](outboard_kv::Kv) for everything but the data of big files, and the
//! object store over the same `Kv` and a [`Medium`](outboard_medium::Medium) for that.
//!
//! # Invariants
//!
//! 1. Every operation that changes something is one atomic batch under conditions of what it read
//!    (`txn`); the reply to a request that may not be done twice is recorded in the same batch.
//!    What cannot be one batch (giving back the blocks of a big file) is recorded as still to be
//!    done, and finished in bounded steps, after a restart too.
//! 2. An inode number is never given out twice. An inode without a name lives while a handle is
//!    open on it, or an attachment has an interest in it: was sent its number, and has not
//!    forgotten it.
//! 3. What is in memory only (handles, holds, locks) belongs to an attachment and is handed in
//!    again by it after a restart, before [`Kvfs::end_grace`].
//! 4. State in memory is behind short mutexes, never held across an await.
//! 5. Bytes that come from the store are checked like any other: `EUCLEAN` or `EIO`, no panic.
//!
//! # Parts
//!
//! `layout` (bytes), `txn` (one batch), `context` (who asks), `dispatch`, `replay`; names:
//! `lookup`, `create`, `remove`, `rename`, `list`; inodes: `attr`, `permission`, `acl`, `xattr`;
//! life: `open`, `handles`, `orphan`, `session`, `volume` (opening, housekeeping); data:
//! `data`, [`spread`], `note`, `lock`, [`mod@check`]. The page is `docs/internals/kvfs.md`, the
//! promises are `docs/SEMANTICS.md`.

#![forbid(unsafe_code)]

mod acl;
mod attr;
mod cached;
pub mod check;
mod context;
mod create;
mod data;
mod dispatch;
mod handles;
pub mod layout;
mod list;
mod lock;
mod lookup;
mod note;
mod open;
mod options;
mod orphan;
mod permission;
mod port;
mod remove;
mod rename;
mod replay;
mod session;
mod shares;
pub mod spread;
mod txn;
mod volume;
mod xattr;

pub use options::{OpenError, Options};

use std::sync::atomic::{AtomicU8, AtomicU32, AtomicU64};
use std::sync::{Arc, Mutex};

use outboard_base::task::{self, RangeLocks};
use outboard_kv::Cached;
use outboard_kv::object::{Objects, Recovered};
// The words of every volume, for the modules here.
use outboard_volume::{Answer, Caller, Payload, VolumeEvent};
use outboard_wire::shared::call::Layout;

use check::touched::Touched;
use data::fresh::Fresh;
use data::group_commit::GroupCommit;
use data::write::Change;
use handles::Handles;
use layout::Superblock;
use lock::Locks;
use session::Sessions;
use volume::Numbers;

/// A volume. Share it by reference between threads; every method may be called from any.
pub struct Kvfs<K, M> {
    kv: Arc<Cached<K>>,
    objects: Objects<Cached<K>, M>,
    recovered: Recovered,
    superblock: Superblock,
    /// How the bytes of new files lie on nodes, where their directory says nothing.
    spread: Option<Layout>,
    /// Nodes that there are: a redundant layout cannot ask for more.
    nodes_max: AtomicU8,
    /// The map of nodes under which files are made.
    map: AtomicU32,
    /// Which opening of the volume this is.
    opened: AtomicU64,
    /// Who changes a directory's entries or a file's data locks the inode. Directories first, by
    /// number; then files, by number.
    range_locks: RangeLocks,
    /// Held by who changes which directory a directory is in; locked before those.
    tree: task::Mutex,
    /// Writes to some blocks of a file, which are committed together.
    writes: GroupCommit<Change>,
    fresh: Fresh,
    touched: Touched,
    numbers: Numbers,
    /// What [`layout::key::Counter::Marked`] is, or is about to be.
    marked: AtomicU64,
    handles: Handles,
    sessions: Sessions,
    locks: Mutex<Locks>,
    events: Mutex<Vec<VolumeEvent>>,
}
