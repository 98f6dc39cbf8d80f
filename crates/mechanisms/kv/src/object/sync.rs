//! Making things durable, and keeping what waits for it within bounds.

use std::collections::BTreeMap;
use std::sync::atomic::Ordering;

use outboard_base::Errno;

use super::Objects;
use super::index::{TAG_MAP, TAG_MOVES, number_key};
use super::ledger::Changed;
use super::map::{MapPage, PAGE_BLOCKS};
use super::moves::{self, MARK};
use crate::{Batch, Durability, Kv, KvError};
use outboard_base::task::join2;
use outboard_medium::Medium;

/// Flushed records kept before a sync retires them on its way.
const RETIRE_AT: usize = 1024;
/// Blocks of the records retired in one batch, about: each may cost a page of the map.
const RETIRE_BATCH: usize = 1024;

/// Lets the next one write the map, however this one ends.
struct Retiring<'a>(&'a std::sync::atomic::AtomicBool);

impl Drop for Retiring<'_> {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Release);
    }
}

impl<K: Kv, M: Medium> Objects<K, M> {
    /// Makes durable everything committed and answered before the call: block writes, and *every*
    /// commit of the key-value store. This is fsync; callers at the same time share one. Its cost
    /// is one medium flush (none if no block was written) and one store sync, side by side; only
    /// the latter where it flushes the medium's device too; nothing where nothing was committed. A
    /// failure is final until reopened.
    pub async fn sync(&self) -> Result<(), KvError> {
        self.flight.join(|| self.sync_once()).await?;
        if self.ledger.count_retirable() >= RETIRE_AT { self.retire().await } else { Ok(()) }
    }

    async fn sync_once(&self) -> Result<(), KvError> {
        if self.failed.load(Ordering::Acquire) {
            return Err(KvError::Io(Errno::EIO));
        }
        self.resolve_doubts().await?;
        let (flush_epoch, dirty) = self.ledger.close_flush_epoch();
        if !dirty && self.kv.is_synced() {
            return Ok(());
        }
        let outcome = self.make_durable(dirty).await;
        match outcome {
            Ok(()) => self.ledger.flushed(flush_epoch),
            Err(_) => self.failed.store(true, Ordering::Release),
        }
        if dirty {
            self.unmarked.store(true, Ordering::Release);
        }
        outcome
    }

    /// Flushes the medium, if it is dirty, and syncs the store.
    async fn make_durable(&self, dirty: bool) -> Result<(), KvError> {
        if !dirty {
            return self.kv.sync().await;
        }
        if self.medium.is_flushed_by_store() {
            self.medium.hand_over().await?;
            return self.kv.sync().await;
        }
        // Side by side, because either may land first: an index without its block is found and
        // undone by the record's checksum, a block without its index is free space.
        let (flushed, synced) = join2(self.medium.flush(), self.kv.sync()).await;
        flushed.map_err(KvError::from).and(synced)
    }

    /// Whether [`Objects::mark`] has something to tell.
    pub fn is_unmarked(&self) -> bool {
        self.unmarked.load(Ordering::Acquire) && !self.failed.load(Ordering::Acquire)
    }

    /// Tells the next opening what syncs have proved; for a moment when nobody waits. Records say
    /// it too, but only of those before them: after the last one, a synced block that rots would be
    /// taken for one that never arrived. Where a record was committed since, all is said and
    /// nothing is written. The mark outlives this process; power loss may take it, and then nothing
    /// is known but the checksum.
    pub async fn mark(&self) -> Result<(), KvError> {
        if !self.is_unmarked() {
            return Ok(());
        }
        self.unmarked.store(false, Ordering::Release);
        if self.ledger.is_vouched() {
            return Ok(());
        }
        let mut batch = Batch::new();
        batch.essential();
        batch.put(number_key(TAG_MOVES, MARK), moves::encode(self.ledger.flushed_below(), &[]));
        self.kv.commit(batch, Durability::Answered).await
    }

    /// Asks the store what became of batches nobody told us about.
    async fn resolve_doubts(&self) -> Result<(), KvError> {
        while let Some(seq) = self.ledger.doubt() {
            let applied = self.kv.get(&number_key(TAG_MOVES, seq)).await?.is_some();
            self.ledger.resolve(seq, applied);
        }
        Ok(())
    }

    /// Syncs first if too much waits to be proved: bounds the work of the next opening.
    pub(super) async fn keep_bounds(&self) -> Result<(), KvError> {
        if self.ledger.pending() >= self.pending_blocks_max { self.sync().await } else { Ok(()) }
    }

    /// Housekeeping, to be called every few seconds: syncs if anything waits, writes the allocation
    /// map, retires the log of moves, and grows the medium ahead of need.
    pub async fn tidy(&self) -> Result<(), KvError> {
        if self.ledger.awaits_sync() {
            self.sync().await?;
        }
        self.retire().await?;
        if let Some(len) = self.ledger.grow_ahead() {
            self.grow(len).await?;
        }
        Ok(())
    }

    /// Works flushed records into the stored allocation map and deletes them.
    async fn retire(&self) -> Result<(), KvError> {
        if self.retiring.swap(true, Ordering::AcqRel) {
            return Ok(());
        }
        let _retiring = Retiring(&self.retiring);
        loop {
            let records = self.ledger.retirable(RETIRE_BATCH);
            if records.is_empty() {
                return Ok(());
            }
            let mut batch = Batch::new();
            batch.essential();
            self.stage_map(records.iter().map(|(_, changed)| changed), &mut batch).await?;
            for (seq, _) in &records {
                batch.delete(number_key(TAG_MOVES, *seq));
            }
            if records.len() == self.ledger.count_retirable() {
                // Nothing is left for it to speak of.
                self.unmarked.store(false, Ordering::Release);
                batch.delete(number_key(TAG_MOVES, MARK));
            }
            self.kv.commit(batch, Durability::Answered).await?;
            self.ledger.retired(records.into_iter().map(|(seq, _)| seq));
        }
    }

    /// Puts the pages of the stored map that records, in their order, change.
    async fn stage_map(
        &self,
        records: impl Iterator<Item = &Changed>,
        batch: &mut Batch,
    ) -> Result<(), KvError> {
        let mut bits: BTreeMap<u64, bool> = BTreeMap::new();
        for changed in records {
            bits.extend(changed.new.iter().map(|block| (*block, true)));
            bits.extend(changed.old.iter().map(|block| (*block, false)));
        }
        stage_bits(&self.kv, bits, batch).await
    }
}

/// Puts the pages of the stored map with `bits` set or cleared.
pub(super) async fn stage_bits<K: Kv>(
    kv: &K,
    bits: BTreeMap<u64, bool>,
    batch: &mut Batch,
) -> Result<(), KvError> {
    let mut bits = bits.into_iter().peekable();
    while let Some((block, _)) = bits.peek() {
        let index = block / PAGE_BLOCKS;
        let key = number_key(TAG_MAP, index);
        // The batch may have changed the page already.
        let value = match batch.staged(&key) {
            Some(staged) => staged.cloned(),
            None => kv.get(&key).await?,
        };
        let mut page = match value {
            Some(value) => MapPage::decode(&value)?,
            None => MapPage::empty(),
        };
        while let Some((block, used)) = bits.next_if(|(block, _)| block / PAGE_BLOCKS == index) {
            page.set(block % PAGE_BLOCKS, used);
        }
        match page.encode() {
            Some(value) => batch.put(key, value),
            None => batch.delete(key),
        }
    }
    Ok(())
}
