//! Fails and corrupts operations on command of a seed.

use std::sync::{Mutex, PoisonError};

use outboard_base::Rng;

use outboard_base::ledger::Kind;

use super::{Dma, DmaError};

/// How often, out of 65,536 operations.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Faults {
    /// The operation fails and does nothing.
    pub fail: u64,
    /// A write fails after a part was written.
    pub tear: u64,
    /// One byte of a read is another than in memory (a host that writes while the DPU reads).
    pub corrupt: u64,
}

/// An engine with seeded faults.
#[derive(Debug)]
pub struct Faulty<D> {
    inner: D,
    faults: Faults,
    rng: Mutex<Rng>,
}

impl<D: Dma> Faulty<D> {
    /// Makes `inner` fail as `faults` says; the same seed fails the same operations.
    #[must_use]
    pub fn new(inner: D, faults: Faults, seed: u64) -> Faulty<D> {
        Faulty { inner, faults, rng: Mutex::new(Rng::new(seed)) }
    }

    fn roll(&self, chance: u64) -> Option<u64> {
        let mut rng = self.rng.lock().unwrap_or_else(PoisonError::into_inner);
        rng.chance(chance, 1 << 16).then(|| rng.next_u64())
    }

    fn may_fail(&self) -> Result<(), DmaError> {
        self.roll(self.faults.fail).map_or(Ok(()), |_| Err(DmaError::Failed))
    }
}

impl<D: Dma> Dma for Faulty<D> {
    fn region_len(&self) -> u64 {
        self.inner.region_len()
    }

    fn read(&self, kind: Kind, at: u64, out: &mut [u8]) -> Result<(), DmaError> {
        self.may_fail()?;
        self.inner.read(kind, at, out)?;
        if let Some(dice) = self.roll(self.faults.corrupt) {
            let place = usize::try_from(dice >> 8).unwrap_or(0) % out.len().max(1);
            if let Some(byte) = out.get_mut(place) {
                *byte ^= 1 << (dice % 8);
            }
        }
        Ok(())
    }

    fn write(&self, kind: Kind, at: u64, data: &[u8]) -> Result<(), DmaError> {
        self.may_fail()?;
        if let Some(dice) = self.roll(self.faults.tear) {
            let cut = usize::try_from(dice).unwrap_or(0) % data.len().max(1);
            self.inner.write(kind, at, data.get(..cut).unwrap_or_default())?;
            return Err(DmaError::Failed);
        }
        self.inner.write(kind, at, data)
    }

    fn read_words(&self, kind: Kind, at: u64, out: &mut [u64]) -> Result<(), DmaError> {
        self.may_fail()?;
        self.inner.read_words(kind, at, out)?;
        if let Some(dice) = self.roll(self.faults.corrupt) {
            let place = usize::try_from(dice >> 8).unwrap_or(0) % out.len().max(1);
            if let Some(word) = out.get_mut(place) {
                *word ^= 1 << (dice % 64);
            }
        }
        Ok(())
    }

    fn write_gathered(&self, kind: Kind, at: u64, parts: &[&[u8]]) -> Result<(), DmaError> {
        self.may_fail()?;
        if let Some(dice) = self.roll(self.faults.tear) {
            let keep = usize::try_from(dice).unwrap_or(0) % parts.len().max(1);
            self.inner.write_gathered(kind, at, parts.get(..keep).unwrap_or_default())?;
            return Err(DmaError::Failed);
        }
        self.inner.write_gathered(kind, at, parts)
    }

    fn compare_and_swap(&self, at: u64, expected: u64, new: u64) -> Result<u64, DmaError> {
        self.may_fail()?;
        self.inner.compare_and_swap(at, expected, new)
    }

    fn fetch_add(&self, at: u64, by: u64) -> Result<u64, DmaError> {
        self.may_fail()?;
        self.inner.fetch_add(at, by)
    }
}
