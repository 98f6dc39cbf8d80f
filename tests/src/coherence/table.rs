//! What is known of each block, in a file outside the volume that all processes read and write.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::Path;

use super::record::Found;
use super::{BLOCKS, FILES, owner};
use crate::{Result, context};

/// Most workers.
pub const WORKERS_MAX: u64 = 64;

/// One word a worker.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fate {
    /// Whatever it was told is there.
    Lives = 0,
    /// It is being killed: its write under way may be torn.
    Doomed = 1,
    /// Its cache may be lost, too: what it has not synced may be gone.
    Loose = 2,
}

/// What became of a worker, and how often.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Life {
    fate: Fate,
    dooms: u64,
    losses: u64,
}

/// What held when a read began.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Before {
    known: Known,
    life: Life,
}

/// What is known of a block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Known {
    /// The last write begun.
    pub begun: u64,
    /// The last write answered.
    pub answered: u64,
    /// The last write synced.
    pub synced: u64,
}

/// The table. Words are eight bytes of their own, so each is read and written whole.
pub struct Table {
    file: File,
    workers: u64,
}

impl Table {
    /// Opens it, or makes an empty one.
    pub fn open(path: &Path, workers: u64) -> Result<Self> {
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true).truncate(false);
        let file = options.open(path);
        let file = context(file, || format!("cannot open {}", path.display()))?;
        let len = (1 + WORKERS_MAX + FILES * BLOCKS * 3) * 8;
        context(file.set_len(len), || "the table".to_owned())?;
        Ok(Self { file, workers })
    }

    fn get(&self, word: u64) -> Result<u64> {
        let mut bytes = [0; 8];
        context(self.file.read_exact_at(&mut bytes, word * 8), || "the table".to_owned())?;
        Ok(u64::from_le_bytes(bytes))
    }

    fn set(&self, word: u64, value: u64) -> Result<()> {
        let bytes = value.to_le_bytes();
        context(self.file.write_all_at(&bytes, word * 8), || "the table".to_owned())
    }

    /// Whether workers are to end.
    pub fn is_over(&self) -> Result<bool> {
        Ok(self.get(0)? != 0)
    }

    /// Workers are to end, or not.
    pub fn set_over(&self, over: bool) -> Result<()> {
        self.set(0, over.into())
    }

    /// What became of a worker.
    pub fn fate(&self, worker: u64) -> Result<Fate> {
        Ok(self.life(worker)?.fate)
    }

    fn life(&self, worker: u64) -> Result<Life> {
        let word = self.get(1 + worker)?;
        let fate = match word & 3 {
            0 => Fate::Lives,
            1 => Fate::Doomed,
            _ => Fate::Loose,
        };
        Ok(Life { fate, dooms: word >> 32, losses: word >> 2 & 0x3FFF_FFFF })
    }

    /// Says what becomes of a worker.
    pub fn set_fate(&self, worker: u64, fate: Fate) -> Result<()> {
        let before = self.life(worker)?;
        let dooms = before.dooms + u64::from(fate != Fate::Lives);
        let losses = before.losses + u64::from(fate == Fate::Loose);
        self.set(1 + worker, dooms << 32 | losses << 2 | fate as u64)
    }

    fn word(file: u64, block: u64) -> u64 {
        1 + WORKERS_MAX + (file * BLOCKS + block) * 3
    }

    /// What is known of a block.
    pub fn known(&self, file: u64, block: u64) -> Result<Known> {
        let at = Self::word(file, block);
        // In the order in which they are written, backwards: begun is never older than answered.
        let (synced, answered) = (self.get(at + 2)?, self.get(at + 1)?);
        Ok(Known { begun: self.get(at)?, answered, synced })
    }

    /// A write begins.
    pub fn begin(&self, file: u64, block: u64, seq: u64) -> Result<()> {
        self.set(Self::word(file, block), seq)
    }

    /// It is answered.
    pub fn answer(&self, file: u64, block: u64, seq: u64) -> Result<()> {
        self.set(Self::word(file, block) + 1, seq)
    }

    /// It is synced.
    pub fn sync(&self, file: u64, block: u64, seq: u64) -> Result<()> {
        self.set(Self::word(file, block) + 2, seq)
    }

    /// What holds for a read that begins now.
    pub fn before(&self, file: u64, block: u64) -> Result<Before> {
        let life = self.life(owner(file, block, self.workers))?;
        Ok(Before { known: self.known(file, block)?, life })
    }

    /// Judges what a read found that began at `before`.
    pub fn judge(&self, file: u64, block: u64, found: Found, before: Before) -> Result<()> {
        let life = self.life(owner(file, block, self.workers))?;
        let known = self.known(file, block)?;
        let lost = life.losses != before.life.losses
            || life.fate == Fate::Loose
            || before.life.fate == Fate::Loose;
        let least = if lost { before.known.synced } else { before.known.answered };
        let doomed = life.dooms != before.life.dooms
            || life.fate != Fate::Lives
            || before.life.fate != Fate::Lives;
        let right = match found {
            Found::Nothing => least == 0,
            Found::Whole(seq) => (least..=known.begun).contains(&seq),
            Found::Torn => doomed,
        };
        if right {
            return Ok(());
        }
        Err(format!(
            "block {block} of file {file} is {found:?}; before it was read {before:?}, \
             now {known:?}, {life:?}"
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_read_is_judged_by_what_was_answered_before_it() {
        let path = std::env::temp_dir().join(format!("outboard-table-{}", std::process::id()));
        let table = Table::open(&path, 4).unwrap();
        let is_right = |found, before| table.judge(0, 1, found, before).is_ok();
        let empty = table.before(0, 1).unwrap();
        assert!(is_right(Found::Nothing, empty) && !is_right(Found::Whole(1), empty));
        table.begin(0, 1, 1).unwrap();
        assert!(is_right(Found::Nothing, empty) && is_right(Found::Whole(1), empty));
        table.answer(0, 1, 1).unwrap();
        table.sync(0, 1, 1).unwrap();
        table.begin(0, 1, 2).unwrap();
        table.answer(0, 1, 2).unwrap();
        let now = table.before(0, 1).unwrap();
        assert!(is_right(Found::Whole(2), now) && is_right(Found::Nothing, empty));
        assert!(!is_right(Found::Whole(1), now) && !is_right(Found::Torn, now));
        let owner = owner(0, 1, 4);
        table.set_fate(owner, Fate::Doomed).unwrap();
        assert!(is_right(Found::Torn, now) && !is_right(Found::Whole(1), now));
        table.set_fate(owner, Fate::Loose).unwrap();
        assert!(is_right(Found::Whole(1), now) && !is_right(Found::Nothing, now));
        // It was lost and written again meanwhile: still no fault of that read.
        table.set_fate(owner, Fate::Lives).unwrap();
        assert!(is_right(Found::Whole(1), now) && is_right(Found::Torn, now));
        let later = table.before(0, 1).unwrap();
        assert!(!is_right(Found::Whole(1), later) && !is_right(Found::Torn, later));
        std::fs::remove_file(&path).unwrap();
    }
}
