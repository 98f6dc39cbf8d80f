//! Which entries hold pages of which inode.
//!
//! The DPU side knows what it filled; what the host makes, it chains: each entry's `next` is the
//! one it made before for the same inode, and the inode's record has the last. Whoever asks for the
//! pages of an inode takes that chain and notes what it leads to, so that finding what a file has
//! in the cache costs as much as the file has there (DPC 3.3 chains the entries of a bucket; these
//! lie side by side, and need no chain).
//!
//! # Invariants
//!
//! 1. An entry is noted, or in an untaken chain, from the end of its making until it is freed; what
//!    an honest host gave back before it paid for the page was never in either.
//! 2. It is freed by this side alone, after it is in no chain ([`Control::leaves`]): the memory a
//!    chain leads through is nobody else's while it is followed.
//! 3. A chain is the host's word. It is followed for so many reads and steps at most, and left
//!    where it leads to what is not the inode's; then all entries are looked at. Whether something
//!    was missed, whoever closed the count of dirty pages knows ([`Control::close`]).

use std::collections::{BTreeSet, HashMap};
use std::ops::Range;

use outboard_base::Ino;
use outboard_base::ledger::Kind;
use outboard_link::dma::DmaError;
use outboard_wire::cache::{ENTRY_LEN, Entry, Lock, NEXT_NONE, Status};

use super::pages::{Found, PIECE};
use super::{Control, count};

/// Reads of a chain for each read that looking at all entries takes: they are that much smaller.
const READS: u64 = 16;
/// Entries between two that are read with them rather than each by itself.
const GAP: u64 = 16;

/// Entries by inode.
#[derive(Default)]
pub(super) struct Members(HashMap<Ino, BTreeSet<u64>>);

impl Members {
    pub(super) fn insert(&mut self, ino: Ino, index: u64) {
        self.0.entry(ino).or_default().insert(index);
    }

    /// Whether it was there.
    pub(super) fn remove(&mut self, ino: Ino, index: u64) -> bool {
        let Some(of) = self.0.get_mut(&ino) else { return false };
        let was = of.remove(&index);
        if of.is_empty() {
            self.0.remove(&ino);
        }
        was
    }

    /// Entries of an inode, in runs that one DMA reads each.
    fn runs(&self, ino: Ino) -> Vec<Range<u64>> {
        let most = (PIECE / ENTRY_LEN) as u64;
        let mut runs: Vec<Range<u64>> = Vec::new();
        for index in self.0.get(&ino).into_iter().flatten().copied() {
            match runs.last_mut() {
                Some(run) if index < run.end + GAP && index < run.start + most => {
                    run.end = index + 1;
                }
                _ => runs.push(index..index + 1),
            }
        }
        runs
    }
}

/// Entries read together on the way along a chain.
#[derive(Default)]
struct Window {
    first: u64,
    bytes: Vec<u8>,
    /// Steps that were taken in it.
    steps: u64,
}

impl Window {
    fn get(&self, index: u64) -> Option<&[u8; ENTRY_LEN]> {
        let at = usize::try_from(index.checked_sub(self.first)?).ok()?;
        self.bytes.as_chunks::<ENTRY_LEN>().0.get(at)
    }
}

fn holds(found: &Found, ino: Ino) -> bool {
    let word = found.entry.word;
    found.entry.ino == ino.0 && (word.status != Status::Free || word.lock != Lock::None)
}

impl Control {
    /// Entries that hold pages of `ino`, in the order of pages: those noted, and those its host
    /// chained since. As many DMAs as it has runs of buckets here, and one or two.
    ///
    /// # Errors
    /// [`DmaError`].
    pub fn known(&self, ino: Ino) -> Result<Vec<Found>, DmaError> {
        if !self.is_chained() {
            return self.search(ino);
        }
        let (runs, gathered) = {
            let mut members = self.members();
            let runs = members.runs(ino);
            (runs, self.gather(&mut members, ino)?)
        };
        let Some(mut found) = gathered else { return self.search(ino) };
        for run in runs {
            self.each(run, |at| found.extend(Some(at).filter(|at| holds(at, ino))))?;
        }
        found.sort_by_key(|at| (at.entry.lpn, at.index));
        found.dedup_by_key(|at| at.index);
        Ok(found)
    }

    /// The same by looking at all entries: what a chain should have led to and did not is noted.
    ///
    /// # Errors
    /// [`DmaError`].
    pub fn search(&self, ino: Ino) -> Result<Vec<Found>, DmaError> {
        let found = self.find(ino, 0..u64::MAX)?;
        let mut members = self.members();
        if self.is_chained() {
            count(&self.counters.searched);
            // What is not being made was chained before it was read: after this it is in none.
            self.gather(&mut members, ino)?;
        }
        for at in found.iter().filter(|at| !at.is_being_written()) {
            members.insert(ino, at.index);
        }
        Ok(found)
    }

    /// Notes what its host chained of an inode.
    ///
    /// # Errors
    /// [`DmaError`].
    pub(super) fn take_in(&self, ino: Ino) -> Result<(), DmaError> {
        let gathered = self.gather(&mut self.members(), ino)?;
        if gathered.is_none() {
            self.search(ino)?;
        }
        Ok(())
    }

    /// An entry is about to be freed, locked by this side: no chain leads through it afterwards.
    pub(super) fn leaves(&self, ino: Ino, index: u64) -> Result<(), DmaError> {
        let mut members = self.members();
        if !members.remove(ino, index) && self.is_chained() {
            self.gather(&mut members, ino)?;
            members.remove(ino, index);
        }
        Ok(())
    }

    /// Takes the chain of an inode and notes the entries it leads to: what they said. `None` if it
    /// is no chain.
    fn gather(&self, members: &mut Members, ino: Ino) -> Result<Option<Vec<Found>>, DmaError> {
        let mut found = Vec::new();
        let Some(slot) = self.slot_of(ino) else { return Ok(Some(found)) };
        let Some(first) = self.take_chain(slot)? else { return Ok(None) };
        let total = self.geometry.total();
        let mut reads = total.div_ceil((PIECE / ENTRY_LEN) as u64) * READS;
        let (mut window, mut at) = (Window::default(), first);
        for _ in 0..=total {
            if at == NEXT_NONE {
                return Ok(Some(found));
            }
            let index = u64::from(at);
            if window.get(index).is_none() {
                if index >= total || reads == 0 {
                    return Ok(None);
                }
                reads -= 1;
                self.look_from(&mut window, index)?;
            }
            window.steps += 1;
            let entry = window.get(index).and_then(|raw| Entry::parse(raw).ok());
            let Some(entry) = entry.filter(|entry| self.makes_sense(entry)) else {
                return Ok(None);
            };
            let next = Found { index, entry };
            if !holds(&next, ino) {
                return Ok(None);
            }
            members.insert(ino, index);
            found.push(next);
            at = entry.next;
        }
        Ok(None)
    }

    /// Reads the bucket of an entry and some before it: a file that is written on and on has its
    /// pages in buckets in a row. Twice as many as the last window was good for.
    fn look_from(&self, window: &mut Window, index: u64) -> Result<(), DmaError> {
        let ways = u64::from(self.geometry.ways()).max(1);
        let most = ((PIECE / ENTRY_LEN) as u64 / ways).max(1);
        let buckets = (2 * window.steps).clamp(1, most);
        let bucket = index / ways;
        let first = (bucket + 1).saturating_sub(buckets) * ways;
        let entries = usize::try_from((bucket + 1) * ways - first).unwrap_or(0);
        let mut bytes = std::mem::take(&mut window.bytes);
        bytes.resize(entries * ENTRY_LEN, 0);
        self.dma.read(Kind::Cache, self.geometry.entry_at(first), &mut bytes)?;
        *window = Window { first, bytes, steps: 0 };
        Ok(())
    }
}
