//! The ring of responses (DDS 4.1 and 4.3; row D4): one producer beyond the bus, many consumers.
//!
//! ```text
//!            head                 claimed                  tail
//! ... free ...|--- being read, or read ---|--- to be claimed ---|... free ...
//! ```
//!
//! The DPU side writes whole frames (one DMA, two around the end) and then the tail (one). A
//! consumer claims the next frame by moving *claimed* over it, so that racing consumers get each
//! message exactly once; having copied it out it marks the frame read, and whoever finds the frame
//! at the head marked moves the head over it. So space is freed in order, and nobody waits for
//! anybody. The DPU side reads the head only when it seems to run out of room.

use std::sync::Arc;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Release};

use outboard_wire::dds::{FRAME_HEAD, Frame, Stamp, frame_len};

use super::frames::{Bytes, HELD, Intent, Line};
use super::{Fault, Owners, Place, Recovery};
use crate::Region;
use crate::dma::Dma;
use crate::region::{OutOfRegion, fence};
use outboard_base::ledger::Kind;

const HEAD: u64 = 0;
const CLAIMED: u64 = 64;
const TAIL: u64 = 128;
/// Claims lost to others before a consumer is told that there is nothing for it.
const TRIES: u32 = 1000;

/// The host's end.
#[derive(Clone, Debug)]
pub struct Ring {
    bytes: Bytes,
    owners: Owners,
}

impl Ring {
    /// A ring in zeroed memory, or one that is in use.
    ///
    /// # Errors
    /// If it does not lie in the region.
    pub fn new(region: Arc<Region>, place: Place) -> Result<Ring, OutOfRegion> {
        let bytes = Bytes::new(region, place)?;
        let owners = Owners::new(bytes.clone());
        Ok(Ring { bytes, owners })
    }

    /// A consumer known as `who` (a thread's id; not 0); `None` when there are too many.
    #[must_use]
    pub fn consumer(&self, who: u64) -> Option<Consumer> {
        let line = self.owners.enter(who).ok().flatten()?;
        Some(Consumer { ring: self.clone(), line })
    }

    /// Whether there is something to claim: what a sleeper looks at last.
    #[must_use]
    pub fn is_ready(&self) -> bool {
        let word = |word| self.bytes.load(word).unwrap_or(0);
        word(TAIL) > word(CLAIMED) & !HELD
    }

    /// The head, while consumers have claimed and not read. If it stays the same, one may have
    /// died.
    #[must_use]
    pub fn unfinished(&self) -> Option<u64> {
        let word = |word| self.bytes.load(word).unwrap_or(0);
        let (head, claimed) = (word(HEAD), word(CLAIMED));
        (head != claimed).then_some(head)
    }

    /// Whether a dead consumer left something to [recover](Ring::recover).
    ///
    /// # Errors
    /// If the ring does not lie in its region.
    pub fn has_left(&self, is_dead: &dyn Fn(u64) -> bool) -> Result<bool, OutOfRegion> {
        self.owners.has_left(is_dead)
    }

    /// Frees what dead consumers hold; their messages are gone with them. One caller at a time.
    ///
    /// # Errors
    /// If the ring does not lie in its region.
    pub fn recover(&self, is_dead: &dyn Fn(u64) -> bool) -> Result<Recovery, OutOfRegion> {
        let claimed = self.owners.hold(CLAIMED)?;
        let Some(dead) = self.owners.left_by(is_dead)? else { return Ok(Recovery::Waiting) };
        let head = self.bytes.load(HEAD)?;
        if claimed.wrapping_sub(head) > self.bytes.place.bytes() {
            return Ok(Recovery::Lost);
        }
        // Nobody who lives holds anything: whatever is claimed and not marked was theirs.
        let mut at = head;
        while at < claimed {
            let Some(bytes) = self.marked_or_whole(at)? else { return Ok(Recovery::Lost) };
            self.mark(at, bytes)?;
            at += bytes;
        }
        self.advance()?;
        for (line, _) in &dead {
            self.owners.leave(*line)?;
        }
        self.bytes.region.store_u64(self.bytes.place.word(CLAIMED), claimed, Release)?;
        Ok(Recovery::Done { owners: dead.len() as u64, bytes: claimed - head })
    }

    /// Bytes of the frame at `at`, read or not.
    fn marked_or_whole(&self, at: u64) -> Result<Option<u64>, OutOfRegion> {
        Ok(match self.marked(at)? {
            Some(bytes) => Some(bytes),
            None => self.bytes.frame(at)?.map(Frame::bytes),
        })
    }

    /// A frame that is read holds, in place of its head, its length with a bit that no head has.
    fn mark(&self, at: u64, bytes: u64) -> Result<(), OutOfRegion> {
        self.bytes.region.store_u64(self.bytes.place.of(at), read_at(at) | bytes, Release)
    }

    fn marked(&self, at: u64) -> Result<Option<u64>, OutOfRegion> {
        let word = self.bytes.region.load_u64(self.bytes.place.of(at), Acquire)?;
        let (is_read, bytes) = (word & !LENGTH == read_at(at), word & LENGTH);
        let fits = (FRAME_HEAD as u64..=self.bytes.place.to_end(at)).contains(&bytes);
        Ok((is_read && fits).then_some(bytes))
    }

    /// Moves the head over frames that are read: those that are claimed at most.
    fn advance(&self) -> Result<(), OutOfRegion> {
        let claimed = self.bytes.load(CLAIMED)? & !HELD;
        let mut head = self.bytes.load(HEAD)?;
        while head < claimed
            && let Some(bytes) = self.marked(head)?
        {
            let at = self.bytes.place.word(HEAD);
            let found = self.bytes.region.cas_u64(at, head, head + bytes, AcqRel)?;
            // Another has moved it: look on from there.
            head = if found == head { head + bytes } else { found };
        }
        Ok(())
    }
}

/// The length in a mark.
const LENGTH: u64 = (1 << 31) - 1;

/// A mark without its length: bit 63 as in a frame of nothing, 31 bits of the position, and bit 31,
/// which makes a length no frame has.
fn read_at(position: u64) -> u64 {
    1 << 63 | (position >> 3 & LENGTH) << 32 | 1 << 31
}

/// One consumer: a thread of the host.
#[derive(Debug)]
pub struct Consumer {
    ring: Ring,
    line: Line,
}

impl Drop for Consumer {
    fn drop(&mut self) {
        // The ring's place was checked when it was made.
        let _ = self.ring.owners.leave(self.line);
    }
}

impl Consumer {
    /// Another thread uses this consumer from now on: `who` it is, not 0.
    ///
    /// # Errors
    /// If the ring does not lie in its region.
    #[inline]
    pub fn rename(&mut self, who: u64) -> Result<(), OutOfRegion> {
        self.ring.owners.rename(self.line, who)
    }

    /// Claims the next message; `None` if there is none.
    ///
    /// # Errors
    /// [`Fault`], if the DPU side wrote what cannot be followed.
    pub fn claimed(&mut self) -> Result<Option<Claimed<'_>>, Fault> {
        for _ in 0..TRIES {
            let Some((position, frame)) = self.claim()? else { return Ok(None) };
            let claimed = Claimed { consumer: self, position, frame };
            if !frame.is_nothing {
                return Ok(Some(claimed));
            }
        }
        Ok(None)
    }

    /// Claims the next message and copies it into `out`, which becomes as long as it; whether there
    /// was one.
    ///
    /// # Errors
    /// As [`Consumer::claimed`].
    pub fn take(&mut self, out: &mut Vec<u8>) -> Result<bool, Fault> {
        let Some(claimed) = self.claimed()? else { return Ok(false) };
        out.resize(claimed.message_len(), 0);
        claimed.read(0, out)?;
        Ok(true)
    }

    fn claim(&self) -> Result<Option<(u64, Frame)>, Fault> {
        let Ring { bytes, owners } = &self.ring;
        for _ in 0..TRIES {
            let claimed = bytes.load(CLAIMED)?;
            let tail = bytes.load(TAIL)?;
            if claimed & HELD != 0 || tail == claimed {
                break;
            }
            let room = tail.wrapping_sub(claimed);
            if room > bytes.place.bytes() {
                return Err(Fault::Pointers);
            }
            let head = bytes.region.load_u64(bytes.place.of(claimed), Acquire)?;
            let at = bytes.place.word(CLAIMED);
            let frame = Frame::parse(head, claimed, room.min(bytes.place.to_end(claimed)));
            let frame = match frame {
                Ok(frame) => frame,
                // Another may have claimed and marked it meanwhile, or it is another lap's by now.
                Err(_) if bytes.region.cas_u64(at, claimed, claimed, AcqRel)? != claimed => {
                    continue;
                }
                Err(error) => return Err(error.into()),
            };
            owners.intend(self.line, Intent { position: claimed, bytes: frame.bytes() })?;
            let next = claimed + frame.bytes();
            if bytes.region.cas_u64(at, claimed, next, AcqRel)? == claimed {
                return Ok(Some((claimed, frame)));
            }
        }
        owners.clear(self.line)?;
        Ok(None)
    }
}

/// A message that is this consumer's alone. Its room is given back when this is dropped.
#[derive(Debug)]
pub struct Claimed<'a> {
    consumer: &'a Consumer,
    position: u64,
    frame: Frame,
}

impl Claimed<'_> {
    /// Bytes of the message.
    #[must_use]
    pub fn message_len(&self) -> usize {
        self.frame.message as usize
    }

    /// Copies bytes of the message out, from its byte `at` on. The other side may have changed
    /// them since they were last read.
    ///
    /// # Errors
    /// If they reach beyond the message.
    pub fn read(&self, at: usize, out: &mut [u8]) -> Result<(), OutOfRegion> {
        if at.checked_add(out.len()).is_none_or(|end| end > self.message_len()) {
            return Err(OutOfRegion);
        }
        let ring = &self.consumer.ring.bytes;
        ring.region.read_into(ring.place.of(self.position) + (FRAME_HEAD + at) as u64, out)
    }
}

impl Drop for Claimed<'_> {
    fn drop(&mut self) {
        let Consumer { ring, line } = self.consumer;
        // The ring's place was checked when it was made.
        let _ = ring.mark(self.position, self.frame.bytes());
        let _ = ring.owners.clear(*line);
        // Of two that mark neighbours at once, one at least sees both marks: else each could leave
        // the head to the other.
        fence();
        let _ = ring.advance();
    }
}

/// The end beyond the bus.
pub struct Producer {
    dma: Arc<dyn Dma>,
    place: Place,
    /// The host has read everything before, as far as is known.
    head: u64,
    /// Everything before is written, and the host was told.
    tail: u64,
}

impl Producer {
    /// The producer of a fresh ring.
    ///
    /// # Errors
    /// If it does not lie in the region.
    pub fn new(dma: Arc<dyn Dma>, place: Place) -> Result<Producer, OutOfRegion> {
        if place.end() > dma.region_len() {
            return Err(OutOfRegion);
        }
        Ok(Producer { dma, place, head: 0, tail: 0 })
    }

    /// Where the next frame goes (the paper's TailC).
    #[must_use]
    pub fn tail(&self) -> u64 {
        self.tail
    }

    /// Bytes that may be written up to `position`, itself at or behind the tail: what lies between
    /// is the caller's already. Reads the head (one DMA) only if fewer than `wanted` are known.
    ///
    /// # Errors
    /// [`Fault`], if the host has written nonsense.
    pub fn room(&mut self, position: u64, wanted: u64) -> Result<u64, Fault> {
        let used = |head: u64| position.wrapping_sub(head);
        if self.place.bytes().saturating_sub(used(self.head)) < wanted {
            let mut head = [0];
            self.dma.read_words(Kind::RingWords, self.place.word(HEAD), &mut head)?;
            let [head] = head;
            let moved = head.wrapping_sub(self.head);
            if moved > self.tail.wrapping_sub(self.head) || !head.is_multiple_of(8) {
                return Err(Fault::Pointers);
            }
            self.head = head;
        }
        Ok(self.place.bytes().saturating_sub(used(self.head)))
    }

    /// Writes whole frames, which begin at the tail and lie in `parts` one after another, and tells
    /// the host: one DMA (two around the end), and one for the tail. Everything before
    /// `tail + length` must be room the caller was told of. If it fails the tail has not moved.
    ///
    /// # Errors
    /// [`Fault::Dma`], and [`Fault::Pointers`] if it is longer than the ring.
    pub fn deliver(&mut self, parts: &[&[u8]]) -> Result<(), Fault> {
        let len: u64 = parts.iter().map(|part| part.len() as u64).sum();
        if len > self.place.bytes() {
            return Err(Fault::Pointers);
        }
        let (first, second) = split(parts, self.place.to_end(self.tail));
        if !first.is_empty() {
            self.dma.write_gathered(Kind::RingOut, self.place.of(self.tail), &first)?;
        }
        if !second.is_empty() {
            self.dma.write_gathered(Kind::RingOut, self.place.of(0), &second)?;
        }
        let tail = self.tail + len;
        self.dma.write(Kind::RingWords, self.place.word(TAIL), &tail.to_le_bytes())?;
        self.tail = tail;
        Ok(())
    }

    /// The head of the frame for a message of `message` bytes at `position`, and before it, if the
    /// message must begin at the ring's start, the head of a frame of nothing with its length.
    #[must_use]
    pub fn lay(place: Place, position: u64, message: usize) -> Laid {
        let gap = place.gap(position, frame_len(message) as u64);
        let at = position + gap;
        let len = u32::try_from(message).unwrap_or(u32::MAX);
        let nothing = gap.checked_sub(FRAME_HEAD as u64).map(|len| u32::try_from(len).unwrap_or(0));
        Laid {
            gap,
            passed: nothing.map(|len| Stamp { position, is_nothing: true }.head(len)),
            head: Stamp { position: at, is_nothing: false }.head(len),
            end: at + frame_len(message) as u64,
        }
    }
}

/// How a response lies in its ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Laid {
    /// Bytes passed over before it.
    pub gap: u64,
    /// First word of what is passed over.
    pub passed: Option<u64>,
    /// First word of its frame.
    pub head: u64,
    /// Position behind the frame.
    pub end: u64,
}

/// The pieces before and after `at` bytes.
fn split<'a>(parts: &[&'a [u8]], at: u64) -> (Vec<&'a [u8]>, Vec<&'a [u8]>) {
    let mut left = usize::try_from(at).unwrap_or(usize::MAX);
    let (mut first, mut second) = (Vec::with_capacity(parts.len()), Vec::new());
    for part in parts {
        let (low, high) = part.split_at(left.min(part.len()));
        left -= low.len();
        first.extend((!low.is_empty()).then_some(low));
        second.extend((!high.is_empty()).then_some(high));
    }
    (first, second)
}
