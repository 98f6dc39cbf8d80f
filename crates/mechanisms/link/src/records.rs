//! Records in a region that outlives its process: what it must tell a successor, which maps the
//! same memory after a kill.
//!
//! ```text
//! | magic | end | incomplete | mark | ...     | record | record | ...
//!   8       8     8            8    to byte 64    64 each: kind (0: none), seven words
//! ```
//!
//! A record is there once its kind is stored, which is last; so one that was being written at the
//! kill is not. Words of a record that is there change one at a time. Nobody else writes here: the
//! memory is never handed to the other side.

use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::{Arc, Mutex, PoisonError};

use crate::Region;
use crate::region::OutOfRegion;

/// Format and version; zero is memory nobody has written to.
pub const MAGIC: u64 = 0x6f62_7265_6364_0001;
const END: u64 = 8;
const INCOMPLETE: u64 = 16;
const MARK: u64 = 24;
/// Bytes of the head, and of a record.
const LEN: u64 = 64;
/// Words of a record beside its kind.
pub const WORDS: usize = 7;

/// Where a record lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place(u64);

/// A record: its kind, never 0, and what it says.
pub type Record = (u64, [u64; WORDS]);

/// Why records cannot be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unusable {
    /// Of another version, or no records.
    Version,
    /// Once there were more than the region has room for.
    Incomplete,
}

impl std::fmt::Display for Unusable {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Unusable::Version => "they were written by another version",
            Unusable::Incomplete => "there was more to write down than there is room for",
        })
    }
}

impl std::error::Error for Unusable {}

#[derive(Debug, Default)]
struct Free {
    places: Vec<u64>,
    /// Behind the last record there ever was.
    end: u64,
}

/// Whether records at `at` were marked since this was last asked.
#[must_use]
pub fn take_mark(region: &Region, at: u64) -> bool {
    region.swap_u64(at + MARK, 0, Acquire).is_ok_and(|mark| mark != 0)
}

/// Whether nobody has opened records at `at` yet.
#[must_use]
pub fn is_unused(region: &Region, at: u64) -> bool {
    region.load_u64(at, Acquire) == Ok(0)
}

/// A table of records from `at` of a region to its end. Shared by all threads of its process.
#[derive(Debug)]
pub struct Records {
    region: Arc<Region>,
    at: u64,
    free: Mutex<Free>,
}

impl Records {
    /// Those at `at`, a multiple of 8: empty in memory nobody has used, else what a predecessor
    /// left.
    ///
    /// # Errors
    /// See [`Unusable`].
    pub fn open(region: Arc<Region>, at: u64) -> Result<(Records, Vec<(Place, Record)>), Unusable> {
        let read = |offset| region.load_u64(at + offset, Acquire).map_err(|_| Unusable::Version);
        match read(0)? {
            0 => region.store_u64(at, MAGIC, Release).map_err(|_| Unusable::Version)?,
            MAGIC => {}
            _ => return Err(Unusable::Version),
        }
        if read(INCOMPLETE)? != 0 {
            return Err(Unusable::Incomplete);
        }
        let end = read(END)?.min(Self::most(&region, at));
        let mut free = Free { places: Vec::new(), end };
        let mut found = Vec::new();
        for place in (0..end).map(|n| at + LEN + n * LEN) {
            let kind = region.load_u64(place, Acquire).map_err(|_| Unusable::Version)?;
            if kind == 0 {
                free.places.push(place);
                continue;
            }
            let mut words = [0; WORDS];
            for (word, n) in words.iter_mut().zip(1u64..) {
                *word = region.load_u64(place + 8 * n, Relaxed).map_err(|_| Unusable::Version)?;
            }
            found.push((Place(place), (kind, words)));
        }
        Ok((Records { region, at, free: Mutex::new(free) }, found))
    }

    /// How many there is room for.
    fn most(region: &Region, at: u64) -> u64 {
        region.len().saturating_sub(at + LEN) / LEN
    }

    /// Leaves a mark for who looks at the memory from outside ([`take_mark`]).
    pub fn mark(&self) {
        let _in_bounds = self.region.store_u64(self.at + MARK, 1, Release);
    }

    /// Writes a record down. `None` when there is no room: whoever opens these records is told.
    pub fn put(&self, (kind, words): Record) -> Option<Place> {
        debug_assert!(kind != 0, "a record has a kind");
        let mut free = self.free.lock().unwrap_or_else(PoisonError::into_inner);
        let place = free.places.pop().or_else(|| {
            let next = self.at + LEN + free.end * LEN;
            let fits = free.end < Self::most(&self.region, self.at);
            free.end += u64::from(fits);
            fits.then_some(next)
        });
        let Some(place) = place else {
            let _in_bounds = self.region.store_u64(self.at + INCOMPLETE, 1, Release);
            return None;
        };
        let end = free.end;
        drop(free);
        self.write(place, kind, &words, end).ok().map(|()| Place(place))
    }

    fn write(
        &self,
        place: u64,
        kind: u64,
        words: &[u64; WORDS],
        end: u64,
    ) -> Result<(), OutOfRegion> {
        for (word, n) in words.iter().zip(1u64..) {
            self.region.store_u64(place + 8 * n, *word, Relaxed)?;
        }
        self.region.store_u64(place, kind, Release)?;
        // Others may have moved it further.
        while self.region.load_u64(self.at + END, Acquire)? < end {
            let now = self.region.load_u64(self.at + END, Acquire)?;
            self.region.cas_u64(self.at + END, now, now.max(end), Release)?;
        }
        Ok(())
    }

    /// Changes a word of a record.
    pub fn set(&self, place: Place, word: usize, value: u64) {
        if word < WORDS {
            let _in_bounds = self.region.store_u64(place.0 + 8 * (word as u64 + 1), value, Release);
        }
    }

    /// Takes a record away.
    pub fn remove(&self, place: Place) {
        let _in_bounds = self.region.store_u64(place.0, 0, Release);
        self.free.lock().unwrap_or_else(PoisonError::into_inner).places.push(place.0);
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use outboard_base::Rng;

    use super::*;

    fn left(region: &Arc<Region>) -> Vec<(Place, Record)> {
        Records::open(Arc::clone(region), 64).unwrap().1
    }

    /// Against a map; after each step a successor finds what the map says.
    #[test]
    fn a_successor_finds_what_was_written_down() {
        for seed in 0..50 {
            let mut rng = Rng::new(seed);
            let region = Region::anonymous(4096);
            let (mut records, none) = Records::open(Arc::clone(&region), 64).unwrap();
            assert!(none.is_empty());
            let mut model: BTreeMap<u64, (Place, Record)> = BTreeMap::new();
            for _ in 0..200 {
                let at = usize::try_from(rng.below(model.len().max(1) as u64)).unwrap();
                let key = model.keys().nth(at).copied();
                match (rng.below(4), key) {
                    (0, Some(key)) => {
                        let (place, _) = model.remove(&key).unwrap();
                        records.remove(place);
                    }
                    (1, Some(key)) => {
                        let (place, (_, words)) = model.get_mut(&key).unwrap();
                        words[3] = rng.below(100);
                        records.set(*place, 3, words[3]);
                    }
                    (2, _) => records = Records::open(Arc::clone(&region), 64).unwrap().0,
                    _ if model.len() < 40 => {
                        let record = (1 + rng.below(9), [rng.below(u64::MAX); WORDS]);
                        let place = records.put(record).unwrap();
                        assert!(model.insert(place.0, (place, record)).is_none(), "seed {seed}");
                    }
                    _ => {}
                }
                let found: BTreeMap<u64, (Place, Record)> =
                    left(&region).into_iter().map(|found| (found.0.0, found)).collect();
                assert_eq!(found, model, "seed {seed}");
            }
        }
    }

    #[test]
    fn what_does_not_fit_or_is_not_ours_is_said() {
        let region = Region::anonymous(4096);
        assert!(is_unused(&region, 64));
        let (records, _) = Records::open(Arc::clone(&region), 64).unwrap();
        assert!(!is_unused(&region, 64) && !take_mark(&region, 64));
        records.mark();
        assert!(take_mark(&region, 64) && !take_mark(&region, 64));
        let most = (0..).take_while(|_| records.put((1, [7; WORDS])).is_some()).count();
        assert_eq!(most, (4096 - 128) / 64);
        let again = Records::open(Arc::clone(&region), 64).map(|_| ());
        assert_eq!(again, Err(Unusable::Incomplete));
        region.store_u64(64, 5, Release).unwrap();
        assert_eq!(Records::open(region, 64).map(|_| ()), Err(Unusable::Version));
    }

    /// Whatever lies there, opening it ends, and so does using it.
    #[test]
    fn nonsense_is_read_and_nothing_panics() {
        for seed in 0..200 {
            let mut rng = Rng::new(seed);
            let region = Region::anonymous(4096);
            for at in (72..4096u64).step_by(8) {
                region.store_u64(at, rng.below(u64::MAX), Release).unwrap();
            }
            region.store_u64(64, MAGIC, Release).unwrap();
            region.store_u64(64 + INCOMPLETE, rng.below(2), Release).unwrap();
            if let Ok((records, found)) = Records::open(region, 64) {
                found.iter().take(3).for_each(|(place, _)| records.remove(*place));
                while records.put((1, [0; WORDS])).is_some() {}
            }
        }
    }
}
