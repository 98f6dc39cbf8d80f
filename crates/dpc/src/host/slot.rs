//! A slot: one command's place, with the pages its payload lies in.

use outboard_base::Result;

/// A place for one command and its payload, page-aligned in the region the DPU reads and writes.
/// Dropping it frees it.
#[derive(Debug)]
pub struct Slot {
    index: u16,
    payload: usize,
    payload_max: usize,
}

impl Slot {
    /// Which slot of its queue.
    #[must_use]
    pub fn index(&self) -> u16 {
        self.index
    }

    /// Where the payload lies, page aligned, [`Slot::payload_max`] bytes: for `readv` and `writev`.
    /// Valid as long as the slot lives. The DPU side may write there while a call is in flight.
    #[must_use]
    pub fn payload_ptr(&self) -> *mut u8 {
        std::ptr::with_exposed_provenance_mut(self.payload)
    }

    /// Most payload bytes.
    #[must_use]
    pub fn payload_max(&self) -> usize {
        self.payload_max
    }

    /// Copies bytes into the payload at `at`; `EINVAL` beyond its end.
    pub fn write(&mut self, at: usize, bytes: &[u8]) -> Result<()> {
        let _ = (at, bytes);
        Err(outboard_base::Errno::EINVAL)
    }

    /// Copies bytes of the payload at `at` out; `EINVAL` beyond its end.
    pub fn read(&self, at: usize, out: &mut [u8]) -> Result<()> {
        let _ = (at, out);
        Err(outboard_base::Errno::EINVAL)
    }
}
