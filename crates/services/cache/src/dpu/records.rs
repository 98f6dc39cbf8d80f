//! Records: what the DPU side lets the host do, inode by inode.
//!
//! The DPU side keeps what it wrote, and reads back only what the host may write: size, time, pages
//! made dirty.

use outboard_base::Ino;
use outboard_base::ledger::Kind;
use outboard_base::limits::FILE_SIZE_MAX;
use outboard_link::dma::DmaError;
use outboard_wire::cache::{Dirtied, Grant, GrantWord, NEXT_NONE, RECORD_LEN, Record, record_at};

use super::{Control, count};

/// Bytes of records read by one DMA, at most.
const PIECE: usize = 64 << 10;
/// Steps on the size before a host that races us forward on purpose is left to itself.
const TRIES: usize = 64;

/// Names a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Slot(pub(super) u32);

/// Why no record can be had.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoRecord {
    /// All places an inode's record could have are taken; this inode's was used longest ago.
    Full(Ino),
    /// The cache cannot be reached.
    Dma(DmaError),
}

impl From<DmaError> for NoRecord {
    fn from(error: DmaError) -> NoRecord {
        NoRecord::Dma(error)
    }
}

#[derive(Clone, Copy)]
struct Known {
    ino: Ino,
    word: GrantWord,
    /// The tag that stands in `dirtied`.
    tag: u32,
    used: u64,
}

/// What the DPU side wrote into the records.
pub(super) struct Records {
    known: Vec<Known>,
    now: u64,
}

impl Records {
    pub(super) fn new(len: u32) -> Records {
        let word = GrantWord { grant: Grant::Free, epoch: 0 };
        let free = Known { ino: Ino(0), word, tag: 0, used: 0 };
        Records { known: vec![free; len as usize], now: 0 }
    }
}

impl Control {
    /// Reads what an earlier life left. What nobody writes is set free.
    pub(super) fn adopt_records(&self) -> Result<(), DmaError> {
        let count_all = self.geometry.records();
        let each = u32::try_from(PIECE / RECORD_LEN).unwrap_or(1);
        let mut first = 0;
        while first < count_all {
            let some = each.min(count_all - first);
            let mut bytes = vec![0; some as usize * RECORD_LEN];
            self.dma.read(Kind::Cache, self.geometry.record_at(first), &mut bytes)?;
            for (index, raw) in (first..).zip(bytes.as_chunks::<RECORD_LEN>().0) {
                let record = Record::parse(raw).ok().filter(|record| {
                    self.geometry.record_set(record.ino).contains(&index)
                        || record.word.grant == Grant::Free
                });
                match record {
                    Some(record) => {
                        if let Some(known) = self.records().known.get_mut(index as usize) {
                            (known.ino, known.word) = (Ino(record.ino), record.word);
                            known.tag = record.dirtied.tag;
                        }
                    }
                    None => {
                        count(&self.counters.repaired);
                        self.set(Slot(index), Grant::Free)?;
                    }
                }
            }
            first += some;
        }
        Ok(())
    }

    /// Inodes that have a record.
    #[must_use]
    pub fn recorded(&self) -> Vec<(Ino, Slot, Grant)> {
        let records = self.records();
        let taken = (0..).zip(&records.known).filter(|(_, known)| known.word.grant != Grant::Free);
        taken.map(|(index, known)| (known.ino, Slot(index), known.word.grant)).collect()
    }

    /// Gives the host `grant` on `ino`, whose file has `size` bytes and of which it may make
    /// `credit` pages dirty: two DMAs, two or three more if it had a record.
    ///
    /// # Errors
    /// [`NoRecord`].
    pub fn grant(&self, ino: Ino, grant: Grant, size: u64, credit: u64) -> Result<Slot, NoRecord> {
        let (slot, known) = {
            let mut records = self.records();
            records.now += 1;
            let now = records.now;
            let set = self.geometry.record_set(ino.0);
            let places =
                || set.clone().filter_map(|at| records.known.get(at as usize).map(|k| (at, *k)));
            let own = places().find(|(_, k)| k.ino == ino && k.word.grant != Grant::Free);
            let free = places().find(|(_, k)| k.word.grant == Grant::Free);
            let Some((at, known)) = own.or(free) else {
                let oldest = places().min_by_key(|(_, known)| known.used);
                return Err(NoRecord::Full(oldest.map_or(ino, |(_, known)| known.ino)));
            };
            if let Some(place) = records.known.get_mut(at as usize) {
                (place.ino, place.used) = (ino, now);
            }
            (Slot(at), known)
        };
        if known.word.grant.reads() {
            self.set(slot, Grant::None)?;
        }
        if known.word.grant != Grant::Free && self.is_chained() {
            // The record is written anew, and what its host chained is to be found later.
            self.take_in(ino)?;
        }
        let (epoch, tag) = self.retag(slot);
        let (word, dirtied) = (GrantWord { grant, epoch }, Dirtied { tag, pages: 0 });
        let chain = NEXT_NONE;
        let record = Record { word, ino: ino.0, size, mtime: 0, credit, dirtied, chain };
        let bytes = record.emit();
        let fields = bytes.get(8..).unwrap_or_default();
        self.dma.write(Kind::Cache, self.geometry.record_at(slot.0) + 8, fields)?;
        self.set(slot, grant)?;
        Ok(slot)
    }

    /// Changes what the host may do: one DMA. An atomic one, so that what is read next is read
    /// after it: a host that saw the old word has its page locked by then, or sees the new one.
    ///
    /// # Errors
    /// [`DmaError`].
    pub fn set(&self, slot: Slot, grant: Grant) -> Result<(), DmaError> {
        let (before, after) = {
            let mut records = self.records();
            records.now += 1;
            let now = records.now;
            let known = records.known.get_mut(slot.0 as usize).ok_or(DmaError::OutOfRegion)?;
            let before = known.word;
            (known.word, known.used) = (before.next(grant), now);
            (before.emit(), known.word.emit())
        };
        let at = self.geometry.record_at(slot.0) + record_at::WORD;
        let mut found = before;
        for _ in 0..TRIES {
            let now = self.dma.compare_and_swap(at, found, after)?;
            if now == found {
                return Ok(());
            }
            // Nobody else writes this word but a host that breaks the rules.
            found = now;
        }
        self.dma.write(Kind::Cache, at, &after.to_le_bytes())
    }

    /// Another tag for what a host counts from now on, and the epoch it is of. A host that keeps
    /// none (the version before) counts with tag 0.
    fn retag(&self, slot: Slot) -> (u32, u32) {
        let mut records = self.records();
        let Some(known) = records.known.get_mut(slot.0 as usize) else { return (0, 0) };
        let epoch = known.word.epoch;
        // The epoch moves on with each grant and each freeze.
        known.tag = if self.is_chained() { Dirtied::tag_of(epoch) } else { 0 };
        (epoch, known.tag)
    }

    /// Pages the host made dirty in this grant: one DMA. More than any where it cannot be believed.
    ///
    /// # Errors
    /// [`DmaError`].
    pub fn dirtied(&self, slot: Slot) -> Result<u64, DmaError> {
        if !self.is_chained() {
            return Ok(u64::MAX);
        }
        let mut bytes = [0; 8];
        let at = self.geometry.record_at(slot.0) + record_at::DIRTIED;
        self.dma.read(Kind::Cache, at, &mut bytes)?;
        Ok(Dirtied::parse(u64::from_le_bytes(bytes)).pages)
    }

    /// As [`Control::dirtied`], once and for all: after it, no page becomes dirty that was not
    /// paid for before. The record is frozen, and `guess` pages are known of: if it is right, one
    /// DMA.
    ///
    /// # Errors
    /// [`DmaError`].
    pub fn close(&self, slot: Slot, guess: u64) -> Result<u64, DmaError> {
        if !self.is_chained() {
            return Ok(u64::MAX);
        }
        let before = self.records().known.get(slot.0 as usize).map_or(0, |known| known.tag);
        let (_, tag) = self.retag(slot);
        let at = self.geometry.record_at(slot.0) + record_at::DIRTIED;
        let mut found = Dirtied { tag: before, pages: guess };
        for _ in 0..TRIES {
            let now =
                self.dma.compare_and_swap(at, found.emit(), Dirtied { tag, ..found }.emit())?;
            if now == found.emit() {
                return Ok(found.pages);
            }
            found = Dirtied::parse(now);
        }
        Ok(u64::MAX)
    }

    /// Takes the chain of what the host made of an inode: its first entry, or [`NEXT_NONE`]. One
    /// DMA if there is none, two if there is; `None` if the host does not let it go.
    pub(super) fn take_chain(&self, slot: Slot) -> Result<Option<u32>, DmaError> {
        let at = self.geometry.record_at(slot.0) + record_at::CHAIN;
        let none = u64::from(NEXT_NONE);
        let mut found = none;
        for _ in 0..TRIES {
            let now = self.dma.compare_and_swap(at, found, none)?;
            if now == found {
                return Ok(Some(u32::try_from(found).unwrap_or(NEXT_NONE - 1)));
            }
            found = now;
        }
        Ok(None)
    }

    /// The record of an inode.
    pub(super) fn slot_of(&self, ino: Ino) -> Option<Slot> {
        let records = self.records();
        let mut set = self.geometry.record_set(ino.0);
        let is_of = |known: &Known| known.ino == ino && known.word.grant != Grant::Free;
        set.find(|at| records.known.get(*at as usize).is_some_and(is_of)).map(Slot)
    }

    /// The record of `ino` as the host left it: one DMA. What is not that inode's, or makes no
    /// sense, is none.
    ///
    /// # Errors
    /// [`DmaError`].
    pub fn record(&self, slot: Slot, ino: Ino) -> Result<Option<Record>, DmaError> {
        let mut bytes = [0; RECORD_LEN];
        self.dma.read(Kind::Cache, self.geometry.record_at(slot.0), &mut bytes)?;
        let sound = Record::parse(&bytes).ok().filter(|record| record.ino == ino.0);
        if sound.is_none() {
            count(&self.counters.repaired);
        }
        Ok(sound)
    }

    /// The file has at least `size` bytes now.
    ///
    /// # Errors
    /// [`DmaError`].
    pub fn raise_size(&self, slot: Slot, size: u64) -> Result<(), DmaError> {
        let at = self.geometry.record_at(slot.0) + record_at::SIZE;
        let mut bytes = [0; 8];
        self.dma.read(Kind::Cache, at, &mut bytes)?;
        let mut found = u64::from_le_bytes(bytes);
        for _ in 0..TRIES {
            if found >= size.min(FILE_SIZE_MAX) {
                return Ok(());
            }
            let now = self.dma.compare_and_swap(at, found, size)?;
            if now == found {
                return Ok(());
            }
            found = now;
        }
        Ok(())
    }

    /// The host may make pages dirty until `credit` in all.
    ///
    /// # Errors
    /// [`DmaError`].
    pub fn set_credit(&self, slot: Slot, credit: u64) -> Result<(), DmaError> {
        let at = self.geometry.record_at(slot.0) + record_at::CREDIT;
        self.dma.write(Kind::Cache, at, &credit.to_le_bytes())
    }
}
