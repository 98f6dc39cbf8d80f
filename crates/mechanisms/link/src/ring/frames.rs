//! What the rings share: where one lies, how frames are written at the host, and who owns what.

use std::sync::Arc;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};

use outboard_base::limits::PAGE;
use outboard_wire::dds::{FRAME_HEAD, Frame, Stamp, frame_len};

use crate::Region;
use crate::dma::{Dma, DmaError};
use crate::region::OutOfRegion;
use outboard_base::ledger::Kind;

/// Bytes of a ring before its messages: pointers and owners. What the two sides write lies on cache
/// lines of their own.
pub(super) const HEAD_LEN: u64 = 2 * PAGE as u64;
/// Where the owners begin.
const OWNERS_AT: u64 = 256;
/// Bytes of an owner: a cache line.
const OWNER_LEN: u64 = 64;
/// Owners of one ring at most.
pub(super) const OWNERS_MAX: u64 = (HEAD_LEN - OWNERS_AT) / OWNER_LEN;
/// Set in a pointer that nobody may move now; see [`Recovery`].
pub(super) const HELD: u64 = 1 << 63;

const _: () = assert!(OWNERS_MAX >= 64);

/// Where a ring lies in a region.
///
/// ```text
/// 0 progress | 8 tail | 16 0 | 128 head | 136 0 | 256 owners, 64 bytes each | 8192 messages
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    at: u64,
    bytes: u64,
}

impl Place {
    /// A ring at `at`, a whole page, with `bytes` for messages, a power of two from one page to 1
    /// GiB; `None` otherwise.
    #[must_use]
    pub fn new(at: u64, bytes: u64) -> Option<Place> {
        let fits = at.is_multiple_of(PAGE as u64) && bytes.is_power_of_two();
        let sane = (PAGE as u64..=1 << 30).contains(&bytes);
        let ends = at.checked_add(HEAD_LEN + bytes);
        (fits && sane && ends.is_some()).then_some(Place { at, bytes })
    }

    /// Where it begins.
    #[must_use]
    pub fn at(self) -> u64 {
        self.at
    }

    /// Bytes for messages.
    #[must_use]
    pub fn bytes(self) -> u64 {
        self.bytes
    }

    /// Where it ends.
    #[must_use]
    pub fn end(self) -> u64 {
        self.at + HEAD_LEN + self.bytes
    }

    /// Longest frame that surely finds room in one piece.
    pub(super) fn frame_max(self) -> u64 {
        self.bytes / 2
    }

    /// The region's byte of a position.
    pub(super) fn of(self, position: u64) -> u64 {
        self.at + HEAD_LEN + (position & (self.bytes - 1))
    }

    /// Bytes from a position to the ring's end.
    pub(super) fn to_end(self, position: u64) -> u64 {
        self.bytes - (position & (self.bytes - 1))
    }

    /// Bytes to pass over so that `frame` bytes lie in one piece.
    #[must_use]
    pub fn gap(self, position: u64, frame: u64) -> u64 {
        let left = self.to_end(position);
        if frame > left { left } else { 0 }
    }

    pub(super) fn word(self, word: u64) -> u64 {
        self.at + word
    }

    fn owner(self, owner: u64) -> u64 {
        self.at + OWNERS_AT + owner * OWNER_LEN
    }

    /// Reads `from..to` by one DMA, or two around the end.
    pub(super) fn fetch(self, dma: &dyn Dma, from: u64, out: &mut [u8]) -> Result<(), DmaError> {
        let first = usize::try_from(self.to_end(from)).unwrap_or(out.len()).min(out.len());
        let (head, rest) = out.split_at_mut(first);
        if !head.is_empty() {
            dma.read(Kind::RingIn, self.of(from), head)?;
        }
        if rest.is_empty() { Ok(()) } else { dma.read(Kind::RingIn, self.of(0), rest) }
    }
}

/// Bytes of the longest frame of messages put in together, and of all without gaps. Pushes of one
/// message are many: they pay for no loop, here and below.
#[inline]
pub(super) fn run_sizes(messages: &[&[u8]]) -> (u64, u64) {
    let frame = |message: &&[u8]| frame_len(message.len()) as u64;
    if let [message] = messages {
        return (frame(message), frame(message));
    }
    messages.iter().map(frame).fold((0, 0), |(most, sum), len| (len.max(most), sum + len))
}

/// Bytes that messages put in together take from `position` on, gaps included.
#[inline]
pub(super) fn run_len(place: Place, position: u64, messages: &[&[u8]]) -> u64 {
    if let [message] = messages {
        let frame = frame_len(message.len()) as u64;
        return place.gap(position, frame) + frame;
    }
    let mut end = position;
    for message in messages {
        let frame = frame_len(message.len()) as u64;
        end += place.gap(end, frame) + frame;
    }
    end - position
}

/// The host's hand on a ring's bytes.
#[derive(Clone, Debug)]
pub(super) struct Bytes {
    pub(super) region: Arc<Region>,
    pub(super) place: Place,
}

impl Bytes {
    pub(super) fn new(region: Arc<Region>, place: Place) -> Result<Bytes, OutOfRegion> {
        if place.end() > region.len() { Err(OutOfRegion) } else { Ok(Bytes { region, place }) }
    }

    #[inline]
    pub(super) fn load(&self, word: u64) -> Result<u64, OutOfRegion> {
        self.region.load_u64(self.place.word(word), Acquire)
    }

    /// Writes a frame's head, which makes it whole: the message is there already.
    #[inline]
    pub(super) fn seal(&self, stamp: Stamp, message: usize) -> Result<(), OutOfRegion> {
        let len = u32::try_from(message).map_err(|_| OutOfRegion)?;
        self.region.store_u64(self.place.of(stamp.position), stamp.head(len), Release)
    }

    /// Passes over `bytes` from `position` on, which end at the ring's end or before.
    #[inline]
    pub(super) fn pass(&self, position: u64, bytes: u64) -> Result<(), OutOfRegion> {
        let message = usize::try_from(bytes).map_err(|_| OutOfRegion)?.checked_sub(FRAME_HEAD);
        let stamp = Stamp { position, is_nothing: true };
        message.map_or(Ok(()), |message| self.seal(stamp, message))
    }

    /// Passes over a run that may go around the end.
    pub(super) fn pass_all(&self, from: u64, to: u64) -> Result<(), OutOfRegion> {
        let first = (to - from).min(self.place.to_end(from));
        self.pass(from, first)?;
        self.pass(from + first, to - from - first)
    }

    /// Writes messages as frames from `position` on; where they end.
    #[inline]
    pub(super) fn write_all(&self, position: u64, messages: &[&[u8]]) -> Result<u64, OutOfRegion> {
        if let [message] = messages {
            return self.write(position, message);
        }
        let mut position = position;
        for message in messages {
            position = self.write(position, message)?;
        }
        Ok(position)
    }

    #[inline(always)]
    fn write(&self, position: u64, message: &[u8]) -> Result<u64, OutOfRegion> {
        let frame = frame_len(message.len()) as u64;
        let gap = self.place.gap(position, frame);
        self.pass(position, gap)?;
        let position = position + gap;
        self.region.write_from(self.place.of(position) + FRAME_HEAD as u64, message)?;
        self.seal(Stamp { position, is_nothing: false }, message.len())?;
        Ok(position + frame)
    }

    /// The frame at `position`, if one was written for there.
    pub(super) fn frame(&self, position: u64) -> Result<Option<Frame>, OutOfRegion> {
        let head = self.region.load_u64(self.place.of(position), Acquire)?;
        Ok(Frame::parse(head, position, self.place.to_end(position)).ok())
    }
}

/// The owners of a ring: who may reserve (or claim) in it, and what each is about to take. An
/// owner that dies holding something is found by this and nothing else.
#[derive(Clone, Debug)]
pub struct Owners {
    bytes: Bytes,
}

/// One owner's line: 0 who | 8 position + 1, or 0 | 16 bytes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Line {
    at: u64,
}

/// What an owner wrote that it is about to take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Intent {
    pub(super) position: u64,
    pub(super) bytes: u64,
}

/// A dead owner's line, and what it was about to take, if anything.
pub(super) type Left = (Line, Option<Intent>);

/// What became of owners that died.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Recovery {
    /// Owners that live have yet to finish what they were about: the ring takes nothing new until
    /// this is called again and says something else.
    Waiting,
    /// So many owners were dead; what they had reserved is passed over, and the ring goes on.
    Done {
        /// Dead owners.
        owners: u64,
        /// Bytes of the ring that were theirs.
        bytes: u64,
    },
    /// It cannot be said what the dead had reserved: the ring must be reset, and everything that is
    /// unanswered fails.
    Lost,
}

impl Owners {
    pub(super) fn new(bytes: Bytes) -> Owners {
        Owners { bytes }
    }

    /// Takes a free line for `who`, never 0; `None` when all are taken.
    pub(super) fn enter(&self, who: u64) -> Result<Option<Line>, OutOfRegion> {
        for owner in 0..OWNERS_MAX {
            let at = self.bytes.place.owner(owner);
            if who != 0 && self.bytes.region.cas_u64(at, 0, who, AcqRel)? == 0 {
                return Ok(Some(Line { at }));
            }
        }
        Ok(None)
    }

    /// Says that `line` is `who`'s from now on.
    #[inline]
    pub(super) fn rename(&self, line: Line, who: u64) -> Result<(), OutOfRegion> {
        self.bytes.region.store_u64(line.at, who.max(1), Release)
    }

    /// Whether somebody dead was about to take something.
    pub(super) fn has_left(&self, is_dead: &dyn Fn(u64) -> bool) -> Result<bool, OutOfRegion> {
        for owner in 0..OWNERS_MAX {
            let at = self.bytes.place.owner(owner);
            let intends = self.bytes.region.load_u64(at + 8, Acquire)? != 0;
            if intends && is_dead(self.bytes.region.load_u64(at, Acquire)?) {
                return Ok(true);
            }
        }
        Ok(false)
    }

    pub(super) fn leave(&self, line: Line) -> Result<(), OutOfRegion> {
        self.clear(line)?;
        self.bytes.region.store_u64(line.at, 0, Release)
    }

    /// Says what `line` is about to take: before it tries to.
    #[inline]
    pub(super) fn intend(&self, line: Line, intent: Intent) -> Result<(), OutOfRegion> {
        self.bytes.region.store_u64(line.at + 16, intent.bytes, Relaxed)?;
        self.bytes.region.store_u64(line.at + 8, intent.position + 1, Release)
    }

    /// Nothing any more.
    #[inline]
    pub(super) fn clear(&self, line: Line) -> Result<(), OutOfRegion> {
        self.bytes.region.store_u64(line.at + 8, 0, Release)
    }

    /// Stops the pointer `word`, so that nobody takes anything new; what it was.
    pub(super) fn hold(&self, word: u64) -> Result<u64, OutOfRegion> {
        let at = self.bytes.place.word(word);
        let mut seen = self.bytes.load(word)?;
        while seen & HELD == 0 {
            let found = self.bytes.region.cas_u64(at, seen, seen | HELD, AcqRel)?;
            seen = if found == seen { seen | HELD } else { found };
        }
        Ok(seen & !HELD)
    }

    /// Everything the dead intended, and their lines; `None` while somebody who lives intends
    /// something. To be asked while the pointer is held.
    pub(super) fn left_by(
        &self,
        is_dead: &dyn Fn(u64) -> bool,
    ) -> Result<Option<Vec<Left>>, OutOfRegion> {
        let mut dead = Vec::new();
        for owner in 0..OWNERS_MAX {
            let line = Line { at: self.bytes.place.owner(owner) };
            let who = self.bytes.region.load_u64(line.at, Acquire)?;
            if who == 0 {
                continue;
            }
            let position = self.bytes.region.load_u64(line.at + 8, Acquire)?;
            if is_dead(who) {
                let bytes = self.bytes.region.load_u64(line.at + 16, Relaxed)?;
                let intent = position.checked_sub(1);
                dead.push((line, intent.map(|position| Intent { position, bytes })));
            } else if position != 0 {
                return Ok(None);
            }
        }
        Ok(Some(dead))
    }
}
