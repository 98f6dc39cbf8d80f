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
//! Calls that change one object are serialised by the caller, from 1 to 4. Different objects, and
//! reads of any, may run at once. See `docs/internals/objects.md` for bytes and proofs.

use std::sync::Arc;

use crate::medium::Medium;
use crate::{Batch, Kv, KvError};

/// Bytes of a block.
pub const BLOCK: u64 = outboard_base::limits::BLOCK as u64;

/// Names a file object; KVFS uses the inode number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ObjectId(pub u64);

/// How a store is laid out and bounded.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Most bytes the medium may grow to; rounded down to whole segments, at least one.
    pub capacity: u64,
    /// The medium grows by this many bytes at a time; a multiple of 1 MiB.
    pub segment: u64,
    /// Bytes only overwrites (which give back a block for each they take) may use.
    pub reserve: u64,
    /// A sync is forced when this many blocks wait to be freed or proved.
    pub pending_blocks_max: usize,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            capacity: 1 << 40,
            segment: 64 << 20,
            reserve: 4 << 20,
            pending_blocks_max: 32 << 10,
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

/// What opening found and did.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Recovered {
    /// Records of allocation changes replayed.
    pub records: u64,
    /// New blocks read back and found whole.
    pub kept: u64,
    /// New blocks that never reached the medium: the entry before was restored.
    pub restored: u64,
}

/// Changes staged into a batch, and the blocks they took and gave up. See the module's protocol.
#[must_use = "tell it what became of the batch"]
pub struct Staged {
    delta: i64,
}

impl Staged {
    /// By how many blocks the object's allocation changes (`st_blocks` is this times 16).
    pub fn blocks(&self) -> i64 {
        self.delta
    }

    /// The batch was committed.
    pub fn committed(self) {}

    /// The batch was certainly not applied ([`KvError::Conflict`], or never committed).
    pub fn abort(self) {}
}

/// The object store. Share it by `Arc`.
pub struct Objects<K, M> {
    kv: Arc<K>,
    medium: M,
}

impl<K: Kv, M: Medium> Objects<K, M> {
    /// Opens the store that lies in `kv` and `medium`, making a new one if both are empty, and
    /// replays what a crash left half done.
    pub async fn open(
        kv: Arc<K>,
        medium: M,
        options: Options,
    ) -> Result<(Objects<K, M>, Recovered), KvError> {
        let _ = options;
        Ok((Objects { kv, medium }, Recovered::default()))
    }

    /// Fills `out` with the object's bytes from `offset`; holes read zero. Knows no file size: the
    /// caller clips. Every block is checked: [`KvError::Corrupt`] if one fails.
    pub async fn read(&self, id: ObjectId, offset: u64, out: &mut [u8]) -> Result<(), KvError> {
        let _ = (id, offset, out, &self.medium, &self.kv);
        Err(KvError::Corrupt)
    }

    /// Writes `data` at `offset` (at most [`outboard_base::limits::IO_MAX`] bytes; up to
    /// [`outboard_base::limits::FILE_SIZE_MAX`], beyond which `TooLarge`).
    pub async fn write(
        &self,
        id: ObjectId,
        offset: u64,
        data: &[u8],
        batch: &mut Batch,
    ) -> Result<Staged, KvError> {
        let _ = (id, offset, data, batch);
        Err(KvError::Corrupt)
    }

    /// Makes bytes `from..to` a hole: whole blocks are given back, parts of blocks are zeroed.
    /// `to` may be `u64::MAX`: truncation to `from`, or deletion when `from` is 0. Bounded per call;
    /// always possible on a full volume if the batch is [`Batch::essential`].
    pub async fn punch(
        &self,
        id: ObjectId,
        from: u64,
        to: u64,
        batch: &mut Batch,
    ) -> Result<(Staged, Progress), KvError> {
        let _ = (id, from, to, batch);
        Err(KvError::Corrupt)
    }

    /// Gives every hole of `from..to` blocks that read zero until written (`fallocate`).
    pub async fn allocate(
        &self,
        id: ObjectId,
        from: u64,
        to: u64,
        batch: &mut Batch,
    ) -> Result<(Staged, Progress), KvError> {
        let _ = (id, from, to, batch);
        Err(KvError::Corrupt)
    }

    /// Makes `from..to` read zero but keep, or be given, its blocks (`FALLOC_FL_ZERO_RANGE`).
    pub async fn zero(
        &self,
        id: ObjectId,
        from: u64,
        to: u64,
        batch: &mut Batch,
    ) -> Result<(Staged, Progress), KvError> {
        let _ = (id, from, to, batch);
        Err(KvError::Corrupt)
    }

    /// The first byte at or after `from`, below `size`, that lies in a written block.
    pub async fn seek_data(
        &self,
        id: ObjectId,
        from: u64,
        size: u64,
    ) -> Result<Option<u64>, KvError> {
        let _ = (id, from, size);
        Err(KvError::Corrupt)
    }

    /// The first byte at or after `from`, below `size`, that lies in none; `size` if there is none.
    pub async fn seek_hole(&self, id: ObjectId, from: u64, size: u64) -> Result<u64, KvError> {
        let _ = (id, from, size);
        Err(KvError::Corrupt)
    }

    /// Makes durable everything committed and answered before the call: block writes, and *every*
    /// commit of the key-value store. This is fsync. A failure is final until reopened.
    pub async fn sync(&self) -> Result<(), KvError> {
        Err(KvError::Corrupt)
    }

    /// Housekeeping, to be called every few seconds: syncs if anything waits, writes the allocation
    /// map, retires the log of moves.
    pub async fn tidy(&self) -> Result<(), KvError> {
        Err(KvError::Corrupt)
    }

    /// Space of the block store.
    pub fn space(&self) -> Space {
        Space::default()
    }
}
