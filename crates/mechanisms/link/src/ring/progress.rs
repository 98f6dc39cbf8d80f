//! The progress ring (DDS 4.1, Figures 7 and 8).
//!
//! ```text
//!            head                      progress      tail
//! ... free ...|--- whole, to be taken ----|-- some of it whole --|... free ...
//! ```
//!
//! A producer reserves `n` bytes by moving the tail from `t` to `t + n`, writes its frames there,
//! and adds `n` to the progress. Producers finish in any order, so the progress is a sum, not a
//! place: only when it *equals* the tail is everything before the tail whole. The consumer reads
//! both in one DMA, the progress first: the other way around a reservation that began and ended
//! between the two reads could make them equal while an older one is unfinished.
//!
//! The two lie in one cache line, unlike the paper's: whoever pushes moves both within nanoseconds,
//! and whoever looks reads both, so two lines would be fetched from another core's cache where one
//! does. For the same reason a producer begins with the tail it saw last and not
//! with a look: if it was right that was one access, and if not, the line is its own by then.
//!
//! `max` (the paper's *maximum allowable progress*) bounds tail - head: a batch is never longer,
//! and a producer that would exceed it is told to retry.
//!
//! **A producer that dies** between reserving and finishing would stop the ring for ever. So each
//! has an owner's line where it says what it is about to reserve *before* it tries.
//! [`Ring::recover`] holds the tail (no reservation succeeds from then on, and every one that did
//! has its intent in memory), waits for those who live to finish, and passes over what is left:
//! frames that were written stay, the rest becomes a frame of nothing. Who is dead is the caller's
//! proof to bring; a producer that was merely preempted only delays.

use std::sync::Arc;
use std::sync::atomic::Ordering::{AcqRel, Release};

use outboard_wire::dds::{FRAME_HEAD, Stamp, data_at, frame_len, frames};

use super::frames::{Bytes, HELD, Intent, Left, Line, run_len, run_sizes};
use super::{Consume, Fault, Owners, Place, Produce, PushError, Recovery};
use crate::Region;
use crate::dma::Dma;
use crate::region::OutOfRegion;
use outboard_base::ledger::Kind;

const PROGRESS: u64 = 0;
const TAIL: u64 = 8;
const HEAD: u64 = 128;
/// Words from progress to tail.
const BOTH: usize = 2;
/// Pauses of who lost a reservation to others that are still at it: a microsecond or two, in which
/// who has the line makes many.
const PATIENCE: u32 = if cfg!(loom) { 0 } else { 128 };
/// Reservations lost to others before a producer is told to retry.
const TRIES: u32 = 1000;

/// The host's end.
#[derive(Clone, Debug)]
pub struct Ring {
    bytes: Bytes,
    owners: Owners,
    max: u64,
}

/// The shape of a message whose data is to lie aligned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// Bytes before the data.
    pub head: usize,
    /// Bytes of data.
    pub data: usize,
    /// Alignment of the data in the ring, a power of two up to 4096.
    pub align: usize,
}

impl Shape {
    /// Where the data begins in a message at `position`, and the message's length.
    fn at(self, position: u64) -> (usize, usize) {
        let from = data_at(position, self.head, self.align);
        (from, from + self.data)
    }
}

impl Ring {
    /// A ring in zeroed memory, or one that is in use; `max` bytes may be under way, at most all.
    ///
    /// # Errors
    /// If it does not lie in the region.
    pub fn new(region: Arc<Region>, place: Place, max: u64) -> Result<Ring, OutOfRegion> {
        let bytes = Bytes::new(region, place)?;
        let owners = Owners::new(bytes.clone());
        Ok(Ring { bytes, owners, max: max.min(place.bytes()) })
    }

    /// A producer known as `who` (a thread's id; not 0); `None` when there are too many.
    #[must_use]
    pub fn producer(&self, who: u64) -> Option<Producer> {
        let line = self.owners.enter(who).ok().flatten()?;
        Some(Producer { ring: self.clone(), line, head: 0, tail: 0 })
    }

    /// Bytes reserved and not yet taken by the consumer.
    #[must_use]
    pub fn under_way(&self) -> u64 {
        let word = |word| self.bytes.load(word).unwrap_or(0);
        (word(TAIL) & !HELD).saturating_sub(word(HEAD))
    }

    /// Longest message a producer may put in.
    #[must_use]
    pub fn message_max(&self) -> usize {
        let frame = self.bytes.place.frame_max().min(self.max / 2);
        usize::try_from(frame).unwrap_or(usize::MAX).saturating_sub(FRAME_HEAD)
    }

    /// The progress, while producers have reserved and not finished. If it stays the same, one may
    /// have died.
    #[must_use]
    pub fn unfinished(&self) -> Option<u64> {
        let word = |word| self.bytes.load(word).unwrap_or(0);
        let (progress, tail) = (word(PROGRESS), word(TAIL));
        (progress != tail).then_some(progress)
    }

    /// Whether a dead producer left something to [recover](Ring::recover): asked first, as
    /// recovery stops all others for a while.
    ///
    /// # Errors
    /// If the ring does not lie in its region.
    pub fn has_left(&self, is_dead: &dyn Fn(u64) -> bool) -> Result<bool, OutOfRegion> {
        self.owners.has_left(is_dead)
    }

    /// Frees what dead producers hold. One caller at a time; work is bounded by the ring's bytes.
    ///
    /// # Errors
    /// If the ring does not lie in its region.
    pub fn recover(&self, is_dead: &dyn Fn(u64) -> bool) -> Result<Recovery, OutOfRegion> {
        let tail = self.owners.hold(TAIL)?;
        let Some(dead) = self.owners.left_by(is_dead)? else { return Ok(Recovery::Waiting) };
        let lost = tail.wrapping_sub(self.bytes.load(PROGRESS)?);
        let head = self.bytes.load(HEAD)?;
        if lost > self.bytes.place.bytes() || tail.wrapping_sub(head) > self.bytes.place.bytes() {
            return Ok(Recovery::Lost);
        }
        if lost != 0 && !self.pass_over(head, tail, &dead)? {
            return Ok(Recovery::Lost);
        }
        self.bytes.region.add_u64(self.bytes.place.word(PROGRESS), lost, AcqRel)?;
        for (line, _) in &dead {
            self.owners.leave(*line)?;
        }
        self.bytes.region.store_u64(self.bytes.place.word(TAIL), tail, Release)?;
        Ok(Recovery::Done { owners: dead.len() as u64, bytes: lost })
    }

    /// Makes everything in `head..tail` frames; false where it is not clear whose a gap is.
    fn pass_over(&self, head: u64, tail: u64, dead: &[Left]) -> Result<bool, OutOfRegion> {
        let mut at = head;
        while at < tail {
            if let Some(frame) = self.bytes.frame(at)? {
                at += frame.bytes();
                continue;
            }
            let holds = |intent: &Intent| (intent.position..intent.end()).contains(&at);
            let intents = dead.iter().filter_map(|(_, intent)| *intent).filter(holds);
            let mut ends = intents.map(|intent| intent.end());
            let Some(end) = ends.next() else { return Ok(false) };
            if end > tail || ends.any(|other| other != end) {
                return Ok(false);
            }
            self.bytes.pass_all(at, end)?;
            at = end;
        }
        Ok(at == tail)
    }
}

impl Intent {
    fn end(self) -> u64 {
        self.position.saturating_add(self.bytes)
    }
}

/// One producer: a thread of the host.
#[derive(Debug)]
pub struct Producer {
    ring: Ring,
    line: Line,
    /// The head when it was last looked at. It only ever grows.
    head: u64,
    /// The tail when it was last looked at: where it probably is.
    tail: u64,
}

impl Drop for Producer {
    fn drop(&mut self) {
        // The ring's place was checked when it was made.
        let _ = self.ring.owners.leave(self.line);
    }
}

impl Producer {
    /// Another thread uses this producer from now on: `who` it is, not 0.
    ///
    /// # Errors
    /// If the ring does not lie in its region.
    #[inline]
    pub fn rename(&mut self, who: u64) -> Result<(), OutOfRegion> {
        self.ring.owners.rename(self.line, who)
    }

    /// Reserves room for a message; the data of its shape will lie aligned.
    ///
    /// # Errors
    /// [`PushError`].
    pub fn reserve(&mut self, shape: Shape) -> Result<Reservation<'_>, PushError> {
        let place = self.ring.bytes.place;
        let longest = frame_len(shape.head + shape.data + shape.align);
        if longest as u64 > place.frame_max().min(self.ring.max / 2) {
            return Err(PushError::TooLong);
        }
        // The frame grows with the padding its place asks for, and its place moves with a gap.
        let lay = |from: u64| {
            let at = |from: u64| frame_len(shape.at(from + FRAME_HEAD as u64).1) as u64;
            let gap = place.gap(from, at(from));
            (gap, at(from + gap))
        };
        let position = self.take(|from| {
            let (gap, frame) = lay(from);
            gap + frame
        })?;
        let (gap, frame) = lay(position);
        let reservation = Reservation {
            producer: self,
            from: position,
            at: position + gap,
            end: position + gap + frame,
            shape,
            is_published: false,
        };
        reservation.producer.ring.bytes.pass(position, gap)?;
        Ok(reservation)
    }

    /// Moves the tail by as many bytes as `needs` says for where it is.
    #[inline]
    fn take(&mut self, needs: impl Fn(u64) -> u64) -> Result<u64, PushError> {
        let Ring { bytes, owners, max } = &self.ring;
        let at = bytes.place.word(TAIL);
        let mut intends = false;
        for _ in 0..TRIES {
            let tail = self.tail;
            let need = needs(tail & !HELD);
            let exceeds = |head| tail.saturating_sub(head).saturating_add(need) > *max;
            if exceeds(self.head) {
                self.head = bytes.load(HEAD)?;
            }
            if tail & HELD != 0 || exceeds(self.head) {
                // Not on a guess.
                self.tail = bytes.load(TAIL)?;
                if self.tail == tail {
                    break;
                }
                continue;
            }
            owners.intend(self.line, Intent { position: tail, bytes: need })?;
            intends = true;
            self.tail = bytes.region.cas_u64(at, tail, tail + need, AcqRel)?;
            if self.tail == tail {
                self.tail = tail + need;
                return Ok(tail);
            }
            // Somebody is between reserving and finishing at this moment: let them keep the line.
            if bytes.load(PROGRESS)? != self.tail {
                (0..PATIENCE).for_each(|_| std::hint::spin_loop());
                self.tail = bytes.load(TAIL)?;
            }
        }
        if intends {
            owners.clear(self.line)?;
        }
        Err(PushError::Retry)
    }

    /// Adds to the progress what was reserved and is written.
    #[inline]
    fn finish(&self, bytes: u64) -> Result<(), OutOfRegion> {
        let ring = &self.ring.bytes;
        ring.region.add_u64(ring.place.word(PROGRESS), bytes, AcqRel)?;
        self.ring.owners.clear(self.line)
    }
}

impl Produce for Producer {
    fn push(&mut self, messages: &[&[u8]]) -> Result<(), PushError> {
        let place = self.ring.bytes.place;
        let (longest, sum) = run_sizes(messages);
        // A run goes around the end at most once: the gap is shorter than the longest frame.
        if longest > place.frame_max() || sum + longest > self.ring.max {
            return Err(PushError::TooLong);
        }
        if messages.is_empty() {
            return Ok(());
        }
        let fits = |from| place.to_end(from) >= sum;
        let needs = |from| if fits(from) { sum } else { run_len(place, from, messages) };
        let position = self.take(needs)?;
        let end = self.ring.bytes.write_all(position, messages)?;
        Ok(self.finish(end - position)?)
    }
}

/// Room in the ring that is to be written and published. Dropped without, it is passed over: a
/// producer that panics loses its own message and nothing else.
#[derive(Debug)]
pub struct Reservation<'a> {
    producer: &'a Producer,
    /// The reservation begins here, a gap before the ring's end included.
    from: u64,
    /// The frame.
    at: u64,
    end: u64,
    shape: Shape,
    is_published: bool,
}

impl Reservation<'_> {
    /// Where the data begins in the message.
    #[must_use]
    pub fn data_at(&self) -> usize {
        self.shape.at(self.at + FRAME_HEAD as u64).0
    }

    /// Writes bytes of the message, from its byte `at` on.
    ///
    /// # Errors
    /// If they reach beyond the message.
    pub fn write(&self, at: usize, bytes: &[u8]) -> Result<(), OutOfRegion> {
        let (_, len) = self.shape.at(self.at + FRAME_HEAD as u64);
        if at.checked_add(bytes.len()).is_none_or(|end| end > len) {
            return Err(OutOfRegion);
        }
        let ring = &self.producer.ring.bytes;
        ring.region.write_from(ring.place.of(self.at) + (FRAME_HEAD + at) as u64, bytes)
    }

    /// Lets the consumer have the message.
    ///
    /// # Errors
    /// If the ring does not lie in its region.
    pub fn publish(mut self) -> Result<(), OutOfRegion> {
        let (_, len) = self.shape.at(self.at + FRAME_HEAD as u64);
        let stamp = Stamp { position: self.at, is_nothing: false };
        self.producer.ring.bytes.seal(stamp, len)?;
        self.is_published = true;
        self.producer.finish(self.end - self.from)
    }
}

impl Drop for Reservation<'_> {
    fn drop(&mut self) {
        if !self.is_published {
            // The ring's place was checked when it was made.
            let _ = self.producer.ring.bytes.pass(self.at, self.end - self.at);
            let _ = self.producer.finish(self.end - self.from);
        }
    }
}

/// What a look at the pointers said.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Seen {
    /// Nothing new.
    Nothing,
    /// Producers have reserved and not finished (the paper's RETRY). If this lasts, one may have
    /// died: the host is to look ([`Ring::recover`]), or the group is reset.
    Unfinished,
    /// Whole frames, `from..to`.
    Batch {
        /// First position.
        from: u64,
        /// Position behind the last.
        to: u64,
    },
}

/// The end beyond the bus. Three steps, each as many DMAs as it says, so that whoever needs the
/// bytes longer can release them later: [`Consumer::look`], [`Consumer::fetch`],
/// [`Consumer::release`]. [`Consume::take`] is all three.
pub struct Consumer {
    dma: Arc<dyn Dma>,
    place: Place,
    /// Everything before is fetched.
    fetched: u64,
    /// Everything before is released.
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
        Ok(Consumer { dma, place, fetched: 0, head: 0, buffer: Vec::new() })
    }

    /// Reads the pointers: one DMA.
    ///
    /// # Errors
    /// [`Fault::Dma`], and [`Fault::Pointers`] if the host has written nonsense.
    pub fn look(&mut self) -> Result<Seen, Fault> {
        let mut words = [0; BOTH];
        self.dma.read_words(Kind::RingWords, self.place.word(PROGRESS), &mut words)?;
        let [progress, tail] = words;
        let reserved = (tail & !HELD).wrapping_sub(self.head);
        let new = progress.wrapping_sub(self.fetched);
        let around = self.place.bytes();
        if reserved > around || new > around || !progress.is_multiple_of(8) {
            return Err(Fault::Pointers);
        }
        Ok(match (tail == progress, new) {
            (false, _) => Seen::Unfinished,
            (true, 0) => Seen::Nothing,
            (true, _) => Seen::Batch { from: self.fetched, to: progress },
        })
    }

    /// Copies the frames from `from` on into `out`: one DMA, or two around the end. The batch
    /// counts as fetched from then on.
    ///
    /// # Errors
    /// [`Fault::Dma`]; it may be tried again.
    pub fn fetch(&mut self, from: u64, out: &mut [u8]) -> Result<(), Fault> {
        self.place.fetch(&*self.dma, from, out)?;
        self.fetched = self.fetched.max(from + out.len() as u64);
        Ok(())
    }

    /// The same into a buffer as large as the ring, at the ring's own places: what is aligned in
    /// the ring is aligned there.
    ///
    /// # Errors
    /// [`Fault::Dma`], and [`Fault::Pointers`] if the buffer has another size.
    pub fn fetch_in_place(&mut self, from: u64, to: u64, mirror: &mut [u8]) -> Result<(), Fault> {
        let index = |position: u64| usize::try_from(position & (self.place.bytes() - 1));
        let (Ok(first), Ok(len)) = (index(from), usize::try_from(to.wrapping_sub(from))) else {
            return Err(Fault::Pointers);
        };
        if mirror.len() as u64 != self.place.bytes() || len > mirror.len() {
            return Err(Fault::Pointers);
        }
        let straight = len.min(mirror.len() - first);
        let (low, high) = mirror.split_at_mut(first);
        for (place, part) in [
            (from, high.get_mut(..straight)),
            (from + straight as u64, low.get_mut(..len - straight)),
        ] {
            if let Some(part) = part.filter(|part| !part.is_empty()) {
                self.dma.read(Kind::RingIn, self.place.of(place), part)?;
            }
        }
        self.fetched = self.fetched.max(to);
        Ok(())
    }

    /// Gives everything before `to` back to the producers: one DMA. Not beyond what was fetched,
    /// and never back.
    ///
    /// # Errors
    /// [`Fault::Dma`]; it may be tried again.
    pub fn release(&mut self, to: u64) -> Result<(), Fault> {
        let to = to.min(self.fetched);
        if to > self.head {
            let at = self.place.word(HEAD);
            self.dma.write(Kind::RingWords, at, &to.to_le_bytes())?;
            self.head = to;
        }
        Ok(())
    }
}

impl Consume for Consumer {
    fn take(&mut self, each: &mut dyn FnMut(&[u8])) -> Result<usize, Fault> {
        let Seen::Batch { from, to } = self.look()? else { return Ok(0) };
        let mut buffer = std::mem::take(&mut self.buffer);
        buffer.resize(usize::try_from(to - from).map_err(|_| Fault::Pointers)?, 0);
        let done = self.fetch(from, &mut buffer).and_then(|()| self.release(to));
        let mut taken = 0;
        let handed = done.and_then(|()| {
            for message in frames(&buffer, from) {
                each(message?.1);
                taken += 1;
            }
            Ok(taken)
        });
        self.buffer = buffer;
        handed
    }
}
