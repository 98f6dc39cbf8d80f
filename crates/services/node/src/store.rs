//! The store of a storage node: what objects hold, on two media, so that a crash of the process
//! loses nothing that was answered, and a loss of power nothing that was flushed.
//!
//! Grains of 8 KiB lie out of place on the data medium; what lies where is an index in memory, made
//! durable by the log: a record for each change, and checkpoints of all. What always holds:
//!
//! - A change is seen, and answered, once the systems under both media have its data and its
//!   record; never a part of it.
//! - Versions of a strip only go up, fences of an object only go up.
//! - No slot is used again before a flush made durable what took the place of its grain.
//! - A grain is given out only if its bytes have the checksum that its record says.
//! - Of a strip that other nodes have copies of, the stable version is kept until a write over it
//!   is known to be done, or is forgotten.
//!
//! `node.md` has the states and failure cases.

mod copies;
mod format;
#[cfg(any(test, feature = "fuzz"))]
pub mod fuzz;
mod index;
mod log;
mod open;
mod pending;
mod read;
mod record;
mod space;
#[cfg(test)]
mod tests;
mod write;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::{self, MutexGuard, PoisonError};

use outboard_base::Errno;
use outboard_base::task::{Mutex, RangeLocks};
use outboard_medium::Medium;
use outboard_wire::shared::Reason;
pub use outboard_wire::shared::call::Version;

use format::{BLOCK, Header};
use index::{GRAIN, Index};
use log::{Log, Waiting};
use space::Space;

pub use copies::Copies;
pub use read::Scrubbed;
pub use write::Change;

/// [`GRAIN`], as a length.
const GRAIN_LEN: usize = 8192;
const _: () = assert!(GRAIN_LEN as u64 == GRAIN);
/// Fewest blocks of log between two checkpoints.
const LOG_BLOCKS_MIN: u64 = 128;

/// How a store is opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StoreOptions {
    /// The node's number.
    pub node: u16,
    /// Its cluster.
    pub cluster: u64,
    /// Most bytes of data.
    pub capacity: u64,
    /// By how many bytes the data medium grows.
    pub segment: u64,
    /// Bytes of log after which a checkpoint is due.
    pub checkpoint_bytes: u64,
}

/// Why a store does not open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OpenError {
    /// A medium failed.
    Io(Errno),
    /// The options cannot be.
    Options(&'static str),
    /// It is of another cluster: this one.
    Cluster(u64),
    /// It is of another node: this one.
    Node(u16),
    /// It was written by another version of the format.
    Format(u32),
    /// What is on the media is not whole.
    Damaged(&'static str),
}

impl std::fmt::Display for OpenError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            OpenError::Io(errno) => write!(f, "a medium of the store failed: {errno:?}"),
            OpenError::Options(what) => write!(f, "the options of the store: {what}"),
            OpenError::Cluster(of) => write!(f, "the store belongs to another cluster, {of:#x}"),
            OpenError::Node(of) => write!(f, "the store belongs to another node, number {of}"),
            OpenError::Format(of) => write!(f, "the store has format {of}, which is not known"),
            OpenError::Damaged(what) => write!(f, "the store is damaged: {what}"),
        }
    }
}

impl std::error::Error for OpenError {}

/// A store.
#[derive(Debug)]
pub struct Store<M> {
    log: M,
    data: M,
    options: StoreOptions,
    shared: Shared,
    /// The bytes of objects, by their numbers.
    locks: RangeLocks,
    /// Who writes the log. Taken behind `locks` and `flusher`.
    leader: Mutex,
    /// Who flushes. Taken behind `locks`.
    flusher: Mutex,
    /// Who makes the data medium longer.
    growing: Mutex,
}

/// What all calls share; never locked across an await.
#[derive(Debug)]
struct Shared(sync::Mutex<State>);

#[derive(Debug, Default)]
struct State {
    index: Index,
    space: Space,
    log: Log,
    /// The header that counts, and whether a copy may say something else.
    header: Header,
    doubtful: bool,
    /// The version of the format that the next checkpoint has.
    format: u32,
    /// The boot in which all that it has was known to be what was acknowledged, last; nothing: of
    /// no strip other nodes have copies, or that was before it was noted down.
    trusted: Option<u64>,
    /// Records that wait for the log.
    waiting: VecDeque<Waiting>,
    /// Somebody whose record is being written has left.
    orphans: bool,
    /// A flush failed: nothing is taken any more.
    failed: bool,
    /// Of objects that were purged: until when they are remembered, and which.
    tombs: BTreeSet<(u64, u64)>,
    /// The strip that a scrub looks at next.
    scrub_at: (u64, u64),
    /// Strips of which a grain was found damaged, with their newest version then; another one was
    /// written over it.
    damaged: BTreeMap<(u64, u64), Version>,
    counts: Counts,
}

/// Damaged strips that are remembered; a scrub finds the others again.
const DAMAGED_MAX: usize = 4096;

impl State {
    fn note_damage(&mut self, strip: (u64, u64), newest: Version) {
        if self.damaged.len() >= DAMAGED_MAX {
            let index = &self.index;
            self.damaged
                .retain(|at, found| index.strip(*at).is_some_and(|strip| strip.newest() == *found));
        }
        if self.damaged.len() < DAMAGED_MAX {
            self.damaged.insert(strip, newest);
        }
    }

    /// Something is of a newer version as it is: what was found damaged of it still is.
    fn keeps_damage(&mut self, strip: (u64, u64), before: Version, version: Version) {
        if let Some(found) = self.damaged.get_mut(&strip).filter(|found| **found == before) {
            *found = version;
        }
    }

    /// Whether a strip was found damaged, and not written over since.
    fn is_damaged(&self, strip: (u64, u64)) -> bool {
        let found = self.damaged.get(&strip);
        found.is_some_and(|found| self.index.strip(strip).is_some_and(|is| is.newest() == *found))
    }
}

#[derive(Clone, Copy, Debug, Default)]
struct Counts {
    writes: u64,
    written: u64,
    reads: u64,
    holes: u64,
    purges: u64,
    flushes: u64,
    checkpoints: u64,
    /// Grains that were not what their records say, each time one was met.
    damaged: u64,
    /// Bytes that scrubs have read, and how often they came to the end.
    scrubbed: u64,
    scrubs: u64,
    /// Changes of strips that were not believed when the store was opened.
    dropped: u64,
}

impl Shared {
    fn new(state: State) -> Shared {
        Shared(sync::Mutex::new(state))
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The log, unless nothing is taken any more.
    fn usable(&self) -> Result<Log, Reason> {
        let state = self.state();
        if state.failed { Err(Reason::Medium) } else { Ok(state.log) }
    }
}

impl StoreOptions {
    /// Most bytes of log behind a checkpoint.
    fn log_limit(&self) -> u64 {
        let blocks = (self.checkpoint_bytes.saturating_mul(2) / BLOCK as u64).max(LOG_BLOCKS_MIN);
        blocks * BLOCK as u64
    }
}

impl<M: Medium> Store<M> {
    /// Bytes that writes can still take, once everything is flushed.
    #[must_use]
    pub fn free(&self) -> u64 {
        self.shared.state().space.free()
    }

    /// Most bytes it can have.
    #[must_use]
    pub fn capacity(&self) -> u64 {
        self.shared.state().space.capacity()
    }

    /// What it has and did, by name.
    #[must_use]
    pub fn figures(&self) -> Vec<(&'static str, u64)> {
        let state = self.shared.state();
        let counts = &state.counts;
        vec![
            ("objects", state.index.objects.len() as u64),
            ("tombs", state.tombs.len() as u64),
            ("capacity_bytes", state.space.capacity()),
            ("used_bytes", state.space.used() * GRAIN),
            ("retired_bytes", state.space.retired() * GRAIN),
            ("aside_bytes", state.space.aside() * GRAIN),
            ("log_bytes", state.log.bytes()),
            ("epoch", state.log.epoch),
            ("writes", counts.writes),
            ("written_bytes", counts.written),
            ("reads", counts.reads),
            ("holes", counts.holes),
            ("purges", counts.purges),
            ("flushes", counts.flushes),
            ("checkpoints", counts.checkpoints),
            ("damaged_grains", counts.damaged),
            ("scrubbed_bytes", counts.scrubbed),
            ("scrubs", counts.scrubs),
            ("dropped_changes", counts.dropped),
            ("failed", u64::from(state.failed)),
        ]
    }
}
