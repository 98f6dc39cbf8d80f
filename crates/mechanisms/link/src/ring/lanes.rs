//! The rival without sharing: every producer has a ring of its own, in one process.
//!
//! Producers never touch each other's cache lines. The consumer pays: it reads the tails of all
//! lanes (one DMA, a cache line each), then each lane that has something by itself (one batch, or
//! two around its end, and one head).

use std::sync::Arc;
use std::sync::atomic::Ordering::{Acquire, Release};

use outboard_wire::dds::frames;

use super::frames::{Bytes, HEAD_LEN, run_len, run_sizes};
use super::{Consume, Fault, Place, Produce, PushError};
use crate::Region;
use crate::dma::Dma;
use crate::region::OutOfRegion;
use outboard_base::ledger::Kind;

/// Bytes between the tails of two lanes, and between their heads.
const LINE: u64 = 64;
/// Most lanes.
pub const LANES_MAX: u64 = 64;
/// Where the tails are, and the heads, from the first place's beginning on.
const TAILS: u64 = 0;
const HEADS: u64 = LANES_MAX * LINE;

const _: () = assert!(HEADS + LANES_MAX * LINE <= HEAD_LEN);

/// So many lanes in a row. Tails and heads of all lie before the first one's messages.
#[derive(Clone, Copy, Debug)]
pub struct Lanes {
    first: Place,
    count: u64,
}

impl Lanes {
    /// `count` lanes from `at` on, each with `bytes` for messages; `None` if that is none, too
    /// many, or no place.
    #[must_use]
    pub fn new(at: u64, bytes: u64, count: u64) -> Option<Lanes> {
        let first = Place::new(at, bytes)?;
        (1..=LANES_MAX).contains(&count).then_some(Lanes { first, count })
    }

    /// Where the last one ends.
    #[must_use]
    pub fn end(self) -> u64 {
        self.first.at() + self.count * (HEAD_LEN + self.first.bytes())
    }

    fn place(self, lane: u64) -> Option<Place> {
        Place::new(self.first.at() + lane * (HEAD_LEN + self.first.bytes()), self.first.bytes())
    }
}

/// The producer of one lane.
#[derive(Debug)]
pub struct Producer {
    bytes: Bytes,
    tail: u64,
    /// The head when it was last looked at. It only ever grows.
    head: u64,
    tail_at: u64,
    head_at: u64,
}

impl Producer {
    /// Of `lane`, in zeroed memory.
    ///
    /// # Errors
    /// If there is no such lane, or it does not lie in the region.
    pub fn new(region: Arc<Region>, lanes: Lanes, lane: u64) -> Result<Producer, OutOfRegion> {
        let place = lanes.place(lane).filter(|_| lane < lanes.count).ok_or(OutOfRegion)?;
        let base = lanes.first.at();
        let (tail_at, head_at) = (base + TAILS + lane * LINE, base + HEADS + lane * LINE);
        let bytes = Bytes::new(region, place)?;
        Ok(Producer { bytes, tail: 0, head: 0, tail_at, head_at })
    }
}

impl Produce for Producer {
    fn push(&mut self, messages: &[&[u8]]) -> Result<(), PushError> {
        let Bytes { region, place } = &self.bytes;
        let (longest, sum) = run_sizes(messages);
        if longest > place.frame_max() || sum + longest > place.bytes() {
            return Err(PushError::TooLong);
        }
        let end = self.tail + run_len(*place, self.tail, messages);
        if end - self.head > place.bytes() {
            self.head = region.load_u64(self.head_at, Acquire)?.min(self.tail);
        }
        if end - self.head > place.bytes() {
            return Err(PushError::Retry);
        }
        self.tail = self.bytes.write_all(self.tail, messages)?;
        Ok(region.store_u64(self.tail_at, self.tail, Release)?)
    }
}

/// The end beyond the bus, of all lanes.
pub struct Consumer {
    dma: Arc<dyn Dma>,
    lanes: Lanes,
    heads: Vec<u64>,
    tails: Vec<u64>,
    buffer: Vec<u8>,
}

impl Consumer {
    /// The consumer of fresh lanes.
    ///
    /// # Errors
    /// If they do not lie in the region.
    pub fn new(dma: Arc<dyn Dma>, lanes: Lanes) -> Result<Consumer, OutOfRegion> {
        let count = usize::try_from(lanes.count).map_err(|_| OutOfRegion)?;
        if lanes.end() > dma.region_len() {
            return Err(OutOfRegion);
        }
        let words = (count - 1) * 8 + 1;
        let (heads, tails) = (vec![0; count], vec![0; words]);
        Ok(Consumer { dma, lanes, heads, tails, buffer: Vec::new() })
    }

    fn take_lane(
        &mut self,
        lane: u64,
        place: Place,
        tail: u64,
        each: &mut dyn FnMut(&[u8]),
    ) -> Result<usize, Fault> {
        let Some(head) = usize::try_from(lane).ok().and_then(|lane| self.heads.get_mut(lane))
        else {
            return Ok(0);
        };
        let (from, new) = (*head, tail.wrapping_sub(*head));
        if new > place.bytes() || !tail.is_multiple_of(8) {
            return Err(Fault::Pointers);
        }
        if new == 0 {
            return Ok(0);
        }
        self.buffer.resize(usize::try_from(new).map_err(|_| Fault::Pointers)?, 0);
        place.fetch(&*self.dma, from, &mut self.buffer)?;
        let at = self.lanes.first.at() + HEADS + lane * LINE;
        self.dma.write(Kind::RingWords, at, &tail.to_le_bytes())?;
        *head = tail;
        let mut taken = 0;
        for message in frames(&self.buffer, from) {
            each(message?.1);
            taken += 1;
        }
        Ok(taken)
    }
}

impl Consume for Consumer {
    fn take(&mut self, each: &mut dyn FnMut(&[u8])) -> Result<usize, Fault> {
        let at = self.lanes.first.at() + TAILS;
        self.dma.read_words(Kind::RingWords, at, &mut self.tails)?;
        let mut taken = 0;
        for lane in 0..self.lanes.count {
            let tail = usize::try_from(lane).ok().and_then(|lane| self.tails.get(8 * lane));
            if let (Some(&tail), Some(place)) = (tail, self.lanes.place(lane)) {
                taken += self.take_lane(lane, place, tail, each)?;
            }
        }
        Ok(taken)
    }
}
