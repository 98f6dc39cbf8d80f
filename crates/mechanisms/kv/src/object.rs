//! File objects: big files as 8 KiB blocks behind an index (DPC 3.4, "big file KV").
//!
//! "In place at a granularity of 8K" is the logical view. Underneath, a block is never overwritten:
//! a write goes to fresh blocks of the [`Medium`], and the index entries that name them, with the
//! checksum of each, ride in the caller's [`Batch`] together with the inode and the replay record.
//! The old block stays until that batch and the new block are both known to be durable. So whatever
//! a crash keeps, the index names a block whose bytes match their checksum: the new or the old.
//!
//! # How a caller changes an object
//!
//! 1. `let mut batch = Batch::at(kv.version())`, reads, conditions, its own pairs;
//! 2. `let staged = objects.write(id, offset, data, &mut batch).await?` (or several such calls);
//! 3. `kv.commit(batch, ..).await`, through the *same* [`Kv`] the store was opened on;
//! 4. on success `staged.committed()`; on [`KvError::Conflict`] `staged.abort()`; if the outcome is
//!    unknown, drop it: its blocks stay out of use until the next sync.
//!
//! Calls that change one object are serialised by the caller, from 1 to 4; but what takes time in
//! a write, [`Objects::write_out`], needs only that nobody else changes the same blocks, and what
//! several have written out is staged together by [`Objects::place`]. Different objects, and reads
//! of any, may run at once. See `docs/internals/objects.md` for bytes and proofs.
//!
//! [`Batch`]: crate::Batch
//! [`KvError::Conflict`]: crate::KvError::Conflict

mod ahead;
mod check;
mod edit;
mod flight;
mod held;
mod index;
mod ledger;
mod map;
mod moves;
mod open;
mod pack;
mod pool;
mod punch;
mod read;
mod recent;
mod sync;
mod write;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

pub use check::{Fault, Found, Report};
pub use held::Held;
pub use ledger::{GivenUp, Room, Staged};
pub use open::Recovered;
pub use write::Written;

use crate::Kv;
use ahead::Readers;
use flight::Flight;
use ledger::Ledger;
use outboard_medium::Medium;
use pool::Pool;
use recent::Recent;

/// Bytes of a block.
pub const BLOCK: u64 = outboard_base::limits::BLOCK as u64;

/// Names a file object; KVFS uses the inode number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ObjectId(pub u64);

/// How blocks are kept that are written from now on; any are read, whatever is chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Compression {
    /// As they are.
    #[default]
    None,
    /// Packed, where a write of several blocks takes fewer by it. A store that was once opened so
    /// is of a newer format, which programs before it refuse.
    Lz4,
}

/// What was written since the store was opened, bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Packing {
    /// Blocks of file.
    pub plain: u64,
    /// Blocks of the medium they took.
    pub taken: u64,
    /// Bytes that went to the medium.
    pub sent: u64,
}

/// Counts for [`Packing`].
#[derive(Default)]
struct Counters {
    plain: AtomicU64,
    taken: AtomicU64,
    sent: AtomicU64,
}

/// How a store is laid out and bounded.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Most bytes the medium may grow to; rounded down to whole segments, at least one.
    pub capacity: u64,
    /// The medium grows by this many bytes at a time; a multiple of 1 MiB.
    pub segment: u64,
    /// Told to a new store's medium and key-value pairs, so that one is never opened with
    /// another's.
    pub identity: u64,
    /// Bytes only overwrites (which give back a block for each they take) may use.
    pub reserve: u64,
    /// A sync is forced when this many blocks wait to be freed or proved.
    pub pending_blocks_max: usize,
    /// Whether blocks are packed.
    pub compression: Compression,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            capacity: 1 << 40,
            segment: 64 << 20,
            identity: 0,
            reserve: 4 << 20,
            pending_blocks_max: 32 << 10,
            compression: Compression::None,
        }
    }
}

/// Space of the block store, bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Space {
    /// Capacity less the header block.
    pub total: u64,
    /// In use by objects, or not yet proved free.
    pub used: u64,
    /// What growing writes may still take.
    pub free: u64,
}

/// Whether a bounded call did all it was asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    /// All of it.
    Done,
    /// Up to this file offset (a multiple of 256 KiB); commit, then call again from there.
    More {
        /// Where to go on.
        from: u64,
    },
}

/// The object store. Share it by `Arc`.
pub struct Objects<K, M> {
    kv: Arc<K>,
    medium: M,
    ledger: Arc<Ledger>,
    flight: Flight,
    pool: Arc<Pool>,
    recent: Recent,
    readers: Readers,
    /// A flush failed: what it should have written may be gone, so no later one can be believed.
    failed: AtomicBool,
    /// A sync proved what no record and no mark vouches for yet.
    unmarked: AtomicBool,
    /// Somebody writes the allocation map.
    retiring: AtomicBool,
    pending_blocks_max: usize,
    compression: Compression,
    packing: Counters,
}

impl<K: Kv, M: Medium> Objects<K, M> {
    /// The key-value store it was opened on.
    pub fn kv(&self) -> &Arc<K> {
        &self.kv
    }

    /// The medium it was opened on.
    pub fn medium(&self) -> &M {
        &self.medium
    }

    /// What was written so far, and what it took.
    pub fn packing(&self) -> Packing {
        let Counters { plain, taken, sent } = &self.packing;
        let [plain, taken, sent] = [plain, taken, sent].map(|c| c.load(Ordering::Relaxed));
        Packing { plain, taken, sent }
    }

    /// Lets the medium grow to so many bytes, while everything goes on: what it could before, and
    /// can from now on. Never less than before, nor more than the default of
    /// [`Options::capacity`].
    pub fn raise_capacity(&self, bytes: u64) -> (u64, u64) {
        self.ledger.raise_capacity(bytes.min(Options::default().capacity))
    }

    /// Space of the block store.
    pub fn space(&self) -> Space {
        self.ledger.space()
    }
}

#[cfg(test)]
#[expect(clippy::cast_possible_truncation, clippy::cast_possible_wrap, reason = "small numbers")]
mod tests;
