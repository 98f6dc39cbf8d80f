//! The engine of one computer: the region is mapped, a DMA is a copy.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use outboard_base::ledger::Kind;

use super::{Dma, DmaError, ENTRY_MAX};
use crate::Region;
use crate::region::fence;

/// Copies between the region and DPU memory. An atomic operation is done before what follows it, as
/// on a bus that answers it; on some processors that takes a fence.
#[derive(Clone, Debug)]
pub struct Direct(Arc<Region>);

impl Direct {
    /// An engine over a mapped region.
    #[must_use]
    pub fn new(region: Arc<Region>) -> Direct {
        Direct(region)
    }
}

impl Dma for Direct {
    fn region_len(&self) -> u64 {
        self.0.len()
    }

    fn read(&self, _: Kind, at: u64, out: &mut [u8]) -> Result<(), DmaError> {
        Ok(self.0.read_into(at, out)?)
    }

    fn write(&self, _: Kind, at: u64, data: &[u8]) -> Result<(), DmaError> {
        if let Ok(word) = <[u8; 4]>::try_from(data)
            && at.is_multiple_of(4)
        {
            return Ok(self.0.store_u32(at, u32::from_le_bytes(word), Ordering::Release)?);
        }
        let entry = data.len() <= ENTRY_MAX && data.len().is_multiple_of(8);
        if entry && at.is_multiple_of(8) {
            Ok(self.0.publish(at, data)?)
        } else {
            Ok(self.0.write_from(at, data)?)
        }
    }

    fn read_words(&self, _: Kind, at: u64, out: &mut [u64]) -> Result<(), DmaError> {
        for (place, word) in (at..).step_by(8).zip(out) {
            *word = self.0.load_u64(place, Ordering::Acquire)?;
        }
        Ok(())
    }

    fn write_gathered(&self, _: Kind, at: u64, parts: &[&[u8]]) -> Result<(), DmaError> {
        let mut at = at;
        for part in parts {
            self.0.write_from(at, part)?;
            at = at.saturating_add(part.len() as u64);
        }
        Ok(())
    }

    fn compare_and_swap(&self, at: u64, expected: u64, new: u64) -> Result<u64, DmaError> {
        let found = self.0.cas_u64(at, expected, new, Ordering::SeqCst)?;
        fence();
        Ok(found)
    }

    fn fetch_add(&self, at: u64, by: u64) -> Result<u64, DmaError> {
        let found = self.0.add_u64(at, by, Ordering::SeqCst)?;
        fence();
        Ok(found)
    }
}
