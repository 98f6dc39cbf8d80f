//! The store as it was at one instant, kept for a copy while everything goes on.
//!
//! Blocks are never overwritten, so an instant of the store is a snapshot of its pairs and the
//! blocks in use at that moment, as long as none of those is used again before it was read.
//! [`Held`] is both: the snapshot is taken, and the map remembered, under the lock under which
//! blocks change hands. A block that is in the snapshot's index was in use then; one that is freed
//! later waits in the ledger until the copy is past it.
//!
//! What always holds:
//! - a copy of the pairs and of the runs is a store that opens as after a kill at that instant: all
//!   that was answered, and of each other change all or nothing;
//! - what is kept from use is at most what was in use then and was freed since, less the further
//!   the copy is. A full store gives the copy up instead of saying that it is full, and says so to
//!   who makes it ([`GivenUp`]): a copy can be made again, a program's write cannot;
//! - the stored allocation map knows nothing of it: after a crash nothing is kept.

use std::ops::Range;
use std::sync::Arc;

use outboard_base::Errno;

use super::ledger::{GivenUp, Ledger};
use super::{BLOCK, Objects};
use crate::{Kv, KvError, Snapshot};
use outboard_medium::Medium;

/// An instant of the store. Dropped, it keeps nothing any more.
pub struct Held {
    ledger: Arc<Ledger>,
    number: u64,
    pairs: Option<Box<dyn Snapshot>>,
    len: u64,
}

impl<K: Kv, M: Medium> Objects<K, M> {
    /// Keeps the store as it is now until it was copied. One at a time: `EBUSY`. `EOPNOTSUPP` where
    /// the engine has no snapshots. Writers wait while the map is copied: 16 KiB for each GiB of
    /// medium.
    pub fn hold(&self) -> Result<Held, KvError> {
        let held = self.ledger.begin_hold(|| Ok((self.kv.snapshot()?, self.medium.len())))?;
        let (number, (pairs, len)) = held.ok_or(KvError::Io(Errno::EBUSY))?;
        Ok(Held { ledger: Arc::clone(&self.ledger), number, pairs: Some(pairs), len })
    }
}

impl Held {
    /// The pairs of the instant, until [`Held::end_pairs`].
    pub fn pairs(&self) -> Option<&dyn Snapshot> {
        self.pairs.as_deref()
    }

    /// The pairs were copied: the engine keeps nothing for it any more.
    pub fn end_pairs(&mut self) {
        self.pairs = None;
    }

    /// Bytes of the medium at the instant.
    pub fn medium_len(&self) -> u64 {
        self.len
    }

    /// The next bytes of the medium, at or after `from`, that the instant names: `max` at most, in
    /// whole blocks. `None`: there are no more. Everything before `from` may be used again.
    ///
    /// The medium is read without a lock, so what was read of a run is the instant's only if the
    /// next call succeeds.
    pub fn next_run(&self, from: u64, max: u64) -> Result<Option<Range<u64>>, GivenUp> {
        let run = self.ledger.next_held(self.number, from.div_ceil(BLOCK), (max / BLOCK).max(1))?;
        Ok(run.map(|run| run.start * BLOCK..(run.start + run.len) * BLOCK))
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.ledger.end_hold(self.number);
    }
}
