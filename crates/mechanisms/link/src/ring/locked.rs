//! The lock-based rival: producers take turns under a lock, so the tail alone says what is whole.
//!
//! The lock is one of this process and lets the core go while it waits, the best a host would do;
//! the pointers and frames are those of the progress ring without its progress.

use std::sync::Arc;
use std::sync::atomic::Ordering::Release;
use std::sync::{Mutex, PoisonError};

use outboard_wire::dds::frames;

use super::frames::{Bytes, run_len, run_sizes};
use super::{Consume, Fault, Place, Produce, PushError};
use crate::Region;
use crate::dma::Dma;
use crate::region::OutOfRegion;
use outboard_base::ledger::Kind;

const TAIL: u64 = 64;
const HEAD: u64 = 128;

/// What the lock guards: where the next message goes, and the head when it was last looked at.
#[derive(Debug, Default)]
struct Pointers {
    tail: u64,
    head: u64,
}

/// One producer; all clones of one share a ring.
#[derive(Clone, Debug)]
pub struct Producer {
    bytes: Bytes,
    pointers: Arc<Mutex<Pointers>>,
}

impl Producer {
    /// The producers of a ring in zeroed memory.
    ///
    /// # Errors
    /// If it does not lie in the region.
    pub fn new(region: Arc<Region>, place: Place) -> Result<Producer, OutOfRegion> {
        Ok(Producer { bytes: Bytes::new(region, place)?, pointers: Arc::default() })
    }
}

impl Produce for Producer {
    fn push(&mut self, messages: &[&[u8]]) -> Result<(), PushError> {
        let place = self.bytes.place;
        let (longest, sum) = run_sizes(messages);
        if longest > place.frame_max() || sum + longest > place.bytes() {
            return Err(PushError::TooLong);
        }
        let mut guard = self.pointers.lock().unwrap_or_else(PoisonError::into_inner);
        let Pointers { tail, head } = &mut *guard;
        let end = *tail + run_len(place, *tail, messages);
        if end - *head > place.bytes() {
            *head = self.bytes.load(HEAD)?.min(*tail);
        }
        if end - *head > place.bytes() {
            return Err(PushError::Retry);
        }
        *tail = self.bytes.write_all(*tail, messages)?;
        Ok(self.bytes.region.store_u64(place.word(TAIL), *tail, Release)?)
    }
}

/// The end beyond the bus: the tail, the batch, the head.
pub struct Consumer {
    dma: Arc<dyn Dma>,
    place: Place,
    head: u64,
    buffer: Vec<u8>,
}

impl Consumer {
    /// The consumer of a fresh ring.
    ///
    /// # Errors
    /// If it does not lie in the region.
    pub fn new(dma: Arc<dyn Dma>, place: Place) -> Result<Consumer, OutOfRegion> {
        if place.end() > dma.region_len() {
            return Err(OutOfRegion);
        }
        Ok(Consumer { dma, place, head: 0, buffer: Vec::new() })
    }
}

impl Consume for Consumer {
    fn take(&mut self, each: &mut dyn FnMut(&[u8])) -> Result<usize, Fault> {
        let mut tail = [0];
        self.dma.read_words(Kind::RingWords, self.place.word(TAIL), &mut tail)?;
        let ([tail], from) = (tail, self.head);
        let new = tail.wrapping_sub(from);
        if new > self.place.bytes() || !tail.is_multiple_of(8) {
            return Err(Fault::Pointers);
        }
        if new == 0 {
            return Ok(0);
        }
        self.buffer.resize(usize::try_from(new).map_err(|_| Fault::Pointers)?, 0);
        self.place.fetch(&*self.dma, from, &mut self.buffer)?;
        let at = self.place.word(HEAD);
        self.dma.write(Kind::RingWords, at, &tail.to_le_bytes())?;
        self.head = tail;
        let mut taken = 0;
        for message in frames(&self.buffer, from) {
            each(message?.1);
            taken += 1;
        }
        Ok(taken)
    }
}
