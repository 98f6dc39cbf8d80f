//! The FaRM-style rival: a flag after each message says that it is there, and clearing the flag
//! says that its place is free.
//!
//! ```text
//! place    0 tail (the host's) | 8192 slots, SLOT bytes each: 0 flag | 8 message
//! flag     lap << 8: free for that lap;  lap << 8 | length + 1: its message
//! ```
//!
//! The lap is how often the ring went around. Without it a slot that was taken and is not written
//! yet would look free to whoever comes a lap later.
//!
//! Nothing is batched: every message costs one DMA that looks (flag and message in one, as slots
//! are of one size) and one that clears. What is better about it here than in the paper: a look
//! brings the message along.

use std::sync::Arc;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Release};

use super::frames::Bytes;
use super::{Consume, Fault, Place, Produce, PushError};
use crate::Region;
use crate::dma::Dma;
use crate::region::OutOfRegion;
use outboard_base::ledger::Kind;

const TAIL: u64 = 0;
/// Words of a slot: a cache line.
const WORDS: usize = 8;
const SLOT: u64 = 8 * WORDS as u64;
/// Bytes of its longest message.
pub const MESSAGE_MAX: usize = 8 * (WORDS - 1);
const TRIES: u32 = 1000;
/// Bits of a flag below its lap.
const LAP: u32 = 8;

const _: () = assert!(MESSAGE_MAX + 1 < 1 << LAP);

/// The flag of the slot at `position` while it is free for whoever comes there.
fn free_at(place: Place, position: u64) -> u64 {
    (position / place.bytes()) << LAP
}

/// One producer.
#[derive(Clone, Debug)]
pub struct Producer {
    bytes: Bytes,
}

impl Producer {
    /// A producer of a ring in zeroed memory, or one in use.
    ///
    /// # Errors
    /// If it does not lie in the region.
    pub fn new(region: Arc<Region>, place: Place) -> Result<Producer, OutOfRegion> {
        Ok(Producer { bytes: Bytes::new(region, place)? })
    }

    /// The first of `count` slots that are free one after another.
    fn take(&self, count: u64) -> Result<u64, PushError> {
        let Bytes { region, place } = &self.bytes;
        for _ in 0..TRIES {
            let tail = self.bytes.load(TAIL)?;
            for slot in
                (tail..).step_by(8 * WORDS).take(usize::try_from(count).unwrap_or(usize::MAX))
            {
                if region.load_u64(place.of(slot), Acquire)? != free_at(*place, slot) {
                    return Err(PushError::Retry);
                }
            }
            let at = place.word(TAIL);
            if region.cas_u64(at, tail, tail + count * SLOT, AcqRel)? == tail {
                return Ok(tail);
            }
        }
        Err(PushError::Retry)
    }
}

impl Produce for Producer {
    fn push(&mut self, messages: &[&[u8]]) -> Result<(), PushError> {
        let Bytes { region, place } = &self.bytes;
        let count = messages.len() as u64;
        let too_long = messages.iter().any(|message| message.len() > MESSAGE_MAX);
        if too_long || count > place.bytes() / SLOT {
            return Err(PushError::TooLong);
        }
        let first = self.take(count)?;
        for (slot, message) in (first..).step_by(8 * WORDS).zip(messages) {
            region.write_from(place.of(slot) + 8, message)?;
            let flag = free_at(*place, slot) | (message.len() as u64 + 1);
            region.store_u64(place.of(slot), flag, Release)?;
        }
        Ok(())
    }
}

/// The end beyond the bus.
pub struct Consumer {
    dma: Arc<dyn Dma>,
    place: Place,
    head: u64,
    /// Messages a call takes at most.
    batch: usize,
}

impl Consumer {
    /// The consumer of a fresh ring; a call takes up to `batch` messages, one after another.
    ///
    /// # Errors
    /// If it does not lie in the region.
    pub fn new(dma: Arc<dyn Dma>, place: Place, batch: usize) -> Result<Consumer, OutOfRegion> {
        if place.end() > dma.region_len() {
            return Err(OutOfRegion);
        }
        Ok(Consumer { dma, place, head: 0, batch })
    }
}

impl Consume for Consumer {
    fn take(&mut self, each: &mut dyn FnMut(&[u8])) -> Result<usize, Fault> {
        for taken in 0..self.batch {
            let mut slot = [0; WORDS];
            let at = self.place.of(self.head);
            // The flag is the first word, and words are read in order.
            self.dma.read_words(Kind::RingIn, at, &mut slot)?;
            let [flag, words @ ..] = slot;
            let free = free_at(self.place, self.head);
            if flag == free {
                return Ok(taken);
            }
            let len = flag.wrapping_sub(free + 1);
            let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
            let message = usize::try_from(len).ok().and_then(|len| bytes.get(..len));
            let message = message.ok_or(Fault::Pointers)?;
            let next = free_at(self.place, self.head + self.place.bytes());
            self.dma.write(Kind::RingWords, at, &next.to_le_bytes())?;
            self.head += SLOT;
            each(message);
        }
        Ok(self.batch)
    }
}
