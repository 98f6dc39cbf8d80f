//! Charges every operation to a ledger.

use std::sync::Arc;

use outboard_base::ledger::{Kind, Ledger};

use super::{Dma, DmaError};

/// An engine whose operations are counted, whether they succeed or not: the bus was used.
#[derive(Clone, Debug)]
pub struct Counted<D> {
    inner: D,
    ledger: Arc<Ledger>,
}

impl<D: Dma> Counted<D> {
    /// Counts `inner`'s operations in `ledger`.
    #[must_use]
    pub fn new(inner: D, ledger: Arc<Ledger>) -> Counted<D> {
        Counted { inner, ledger }
    }
}

impl<D: Dma> Dma for Counted<D> {
    fn region_len(&self) -> u64 {
        self.inner.region_len()
    }

    fn read(&self, kind: Kind, at: u64, out: &mut [u8]) -> Result<(), DmaError> {
        self.ledger.charge(kind, out.len());
        self.inner.read(kind, at, out)
    }

    fn write(&self, kind: Kind, at: u64, data: &[u8]) -> Result<(), DmaError> {
        self.ledger.charge(kind, data.len());
        self.inner.write(kind, at, data)
    }

    fn read_words(&self, kind: Kind, at: u64, out: &mut [u64]) -> Result<(), DmaError> {
        self.ledger.charge(kind, size_of_val(out));
        self.inner.read_words(kind, at, out)
    }

    fn write_gathered(&self, kind: Kind, at: u64, parts: &[&[u8]]) -> Result<(), DmaError> {
        self.ledger.charge(kind, parts.iter().map(|part| part.len()).sum());
        self.inner.write_gathered(kind, at, parts)
    }

    fn compare_and_swap(&self, at: u64, expected: u64, new: u64) -> Result<u64, DmaError> {
        self.ledger.charge(Kind::Atomic, 8);
        self.inner.compare_and_swap(at, expected, new)
    }

    fn fetch_add(&self, at: u64, by: u64) -> Result<u64, DmaError> {
        self.ledger.charge(Kind::Atomic, 8);
        self.inner.fetch_add(at, by)
    }
}
