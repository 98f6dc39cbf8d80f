//! DMA: the DPU's only access to host memory.
//!
//! One call is one operation on one contiguous range, and is charged as one in the
//! [`Ledger`](outboard_base::ledger::Ledger). The
//! engines are a catalogue: [`Direct`] copies; [`Counted`], [`Delayed`] and [`Faulty`] wrap another
//! engine and add the count, the price of a bus, or seeded faults. They stack in any order.

mod counted;
mod delayed;
mod direct;
mod faulty;

pub use counted::Counted;
pub use delayed::{Delayed, Pause, Price};
pub use direct::Direct;
pub use faulty::{Faults, Faulty};

use outboard_base::ledger::Kind;

/// Why a DMA was not done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DmaError {
    /// The range lies outside the region, or a word is not aligned.
    OutOfRegion,
    /// The bus or the engine failed; host memory may be partly written.
    Failed,
}

impl From<crate::region::OutOfRegion> for DmaError {
    fn from(_: crate::region::OutOfRegion) -> DmaError {
        DmaError::OutOfRegion
    }
}

/// Access to one host's region from beyond the bus. Addresses are offsets in the region.
pub trait Dma: Send + Sync {
    /// Bytes of the region behind this engine.
    fn region_len(&self) -> u64;

    /// Copies from host memory. The host may be writing meanwhile: check what was read, not the
    /// memory.
    fn read(&self, kind: Kind, at: u64, out: &mut [u8]) -> Result<(), DmaError>;

    /// Copies aligned words of 8 bytes from host memory, each whole and in ascending order: what
    /// the host wrote before a word that is read here is seen by every read after it. One
    /// operation, unless an engine has only [`Dma::read`] and asks for each word by itself.
    fn read_words(&self, kind: Kind, at: u64, out: &mut [u64]) -> Result<(), DmaError> {
        for (place, word) in (at..).step_by(8).zip(out) {
            let mut bytes = [0; 8];
            self.read(kind, place, &mut bytes)?;
            *word = u64::from_le_bytes(bytes);
        }
        Ok(())
    }

    /// Copies several pieces to one contiguous range of host memory, as one operation: the pieces
    /// lie in the DPU's own memory, where gathering costs the bus nothing.
    fn write_gathered(&self, kind: Kind, at: u64, parts: &[&[u8]]) -> Result<(), DmaError> {
        self.write(kind, at, &parts.concat())
    }

    /// Copies to host memory. Whole 8-byte-aligned entries of at most [`ENTRY_MAX`] bytes and
    /// aligned words of 4 bytes become visible in ascending order, after all earlier writes;
    /// other writes in any order.
    fn write(&self, kind: Kind, at: u64, data: &[u8]) -> Result<(), DmaError>;

    /// Writes `new` where `expected` stands, atomically for host and DPU; returns what was found.
    fn compare_and_swap(&self, at: u64, expected: u64, new: u64) -> Result<u64, DmaError>;

    /// Adds, wrapping, atomically for host and DPU; returns what was found.
    fn fetch_add(&self, at: u64, by: u64) -> Result<u64, DmaError>;
}

/// Longest write that becomes visible in order: a ring entry. Longer ones are data.
pub const ENTRY_MAX: usize = 64;

#[cfg(test)]
mod tests;
