//! A slot: one command's place, with the pages its payload lies in.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::AtomicU8;

use outboard_base::Result;

use super::Session;

/// A place for one command and its payload, page-aligned in the region the DPU reads and writes.
/// Dropping it frees it.
pub struct QueueSlot {
    /// `None` once the slot has gone into flight.
    session: Option<Arc<Session>>,
    queue: u16,
    cid: u16,
    /// Where in the region its payload lies.
    at: u64,
}

impl QueueSlot {
    pub(super) fn new(session: Arc<Session>, queue: u16, cid: u16, at: u64) -> QueueSlot {
        QueueSlot { session: Some(session), queue, cid, at }
    }

    /// Which queue it belongs to.
    #[must_use]
    pub fn queue(&self) -> u16 {
        self.queue
    }

    /// Which slot of its queue.
    #[must_use]
    pub fn index(&self) -> u16 {
        self.cid
    }

    /// The payload, page aligned, `limits::IO_MAX` bytes: for `readv` and `writev`. The DPU side
    /// may write there at any moment.
    #[must_use]
    pub fn payload(&self) -> &[AtomicU8] {
        let session = self.session.as_ref();
        session.and_then(|session| session.payload(self.at)).unwrap_or_default()
    }

    /// Where in the region it lies.
    pub(super) fn at(&self) -> u64 {
        self.at
    }

    /// Copies bytes into the payload at `at`; `EINVAL` beyond its end.
    pub fn write(&mut self, at: usize, bytes: &[u8]) -> Result<()> {
        self.session.as_ref().map_or(Ok(()), |s| s.write_payload(self.queue, self.cid, at, bytes))
    }

    /// Copies bytes of the payload at `at` out; `EINVAL` beyond its end.
    pub fn read(&self, at: usize, out: &mut [u8]) -> Result<()> {
        self.session.as_ref().map_or(Ok(()), |s| s.read_payload(self.queue, self.cid, at, out))
    }

    /// Gives the slot to the command that is now in flight in it.
    pub(super) fn launch(mut self) {
        self.session = None;
    }
}

impl Drop for QueueSlot {
    fn drop(&mut self) {
        if let Some(session) = self.session.take() {
            session.release(self.queue, self.cid);
        }
    }
}

impl fmt::Debug for QueueSlot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Slot({}.{})", self.queue, self.cid)
    }
}
