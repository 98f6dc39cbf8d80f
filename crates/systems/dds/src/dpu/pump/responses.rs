//! The response buffer: TailA, TailB and TailC.

use std::collections::VecDeque;

use outboard_base::Time;
use outboard_link::ring::response::{Laid, Producer};
use outboard_link::ring::{Fault, Place};
use outboard_medium::Buf;
use outboard_wire::dds::{FRAME_HEAD, RESPONSE_HEAD, ResponseHead, data_at, frame_len};

use super::Config;
use super::operation::{Data, Outcome};

/// What pads responses, and what is passed over before one that begins at the ring's start.
static ZEROS: [u8; 64 << 10] = [0; 64 << 10];
/// Bytes of both heads of a response.
const HEADS: usize = FRAME_HEAD + RESPONSE_HEAD;

/// Space set aside for one response.
struct Slot {
    laid: Laid,
    head: ResponseHead,
    /// The word before what is passed over, then frame head and response head as they are sent.
    passed: [u8; 8],
    heads: [u8; HEADS],
    /// There when it is done.
    data: Option<Data>,
}

impl Slot {
    fn bytes(&self) -> u64 {
        self.laid.gap + frame_len(self.head.message_len()) as u64
    }

    /// What is sent for it, in order.
    fn parts<'a>(&'a self, out: &mut Vec<&'a [u8]>) {
        if self.laid.passed.is_some() {
            out.push(&self.passed);
            zeros(out, usize::try_from(self.laid.gap).unwrap_or(0).saturating_sub(8));
        }
        let data = self.data.as_ref().map_or(&[][..], Data::bytes);
        let data = data.get(..self.head.data_len as usize).unwrap_or_default();
        let before = usize::from(self.head.data_at);
        out.push(&self.heads);
        zeros(out, before - RESPONSE_HEAD);
        if !data.is_empty() {
            out.push(data);
        }
        zeros(out, frame_len(self.head.message_len()) - FRAME_HEAD - before - data.len());
    }
}

fn zeros(out: &mut Vec<&[u8]>, mut len: usize) {
    while len > 0 {
        let part = ZEROS.get(..len.min(ZEROS.len())).unwrap_or_default();
        out.push(part);
        len -= part.len();
    }
}

/// Whether there is space for a response.
pub(super) enum Space {
    /// Under this number.
    Kept(u64),
    /// Not now.
    Short,
    /// Never: it is longer than the ring takes. A response without data was put in its place.
    Never(u64),
}

/// Responses set aside and not delivered.
pub(super) struct Responses {
    producer: Producer,
    place: Place,
    slots: VecDeque<Slot>,
    /// Number of the first slot.
    first: u64,
    /// Where the next response goes.
    tail_a: u64,
    /// Responses done without a gap, and their bytes: TailB is so far from TailC.
    done: usize,
    done_bytes: u64,
    /// When the first of them was.
    since: Option<Time>,
    /// Buffers of delivered responses.
    pub(super) emptied: Vec<Buf>,
}

impl Responses {
    pub(super) fn new(producer: Producer, place: Place) -> Responses {
        let tail_a = producer.tail();
        Responses {
            producer,
            place,
            slots: VecDeque::new(),
            first: 0,
            tail_a,
            done: 0,
            done_bytes: 0,
            since: None,
            emptied: Vec::new(),
        }
    }

    /// Sets space aside for a response with at most `room` bytes of data: TailA moves.
    pub(super) fn set_aside(&mut self, id: u64, room: u32) -> Result<Space, Fault> {
        // Longer than half the ring it might never find a place in one piece.
        let longest = RESPONSE_HEAD + 8 + room as usize;
        let fits = frame_len(longest) as u64 <= self.place.bytes() / 2;
        let room = if fits { room } else { 0 };
        // The data's place follows from the message's, which follows from its length: 8 is what
        // every frame is aligned to.
        let data_at = data_at(0, RESPONSE_HEAD, 8);
        let head = ResponseHead::pending(id, data_at, room);
        let laid = Producer::lay(self.place, self.tail_a, head.message_len());
        let wanted = laid.end - self.tail_a;
        if self.producer.room(self.tail_a, wanted)? < wanted {
            return Ok(Space::Short);
        }
        let number = self.first + self.slots.len() as u64;
        self.tail_a = laid.end;
        let passed = laid.passed.unwrap_or(0).to_le_bytes();
        self.slots.push_back(Slot { laid, head, passed, heads: [0; HEADS], data: None });
        Ok(if fits { Space::Kept(number) } else { Space::Never(number) })
    }

    /// An operation has ended; TailB moves over all that are done without a gap.
    pub(super) fn complete(&mut self, number: u64, outcome: Outcome, now: Time) {
        let at = number.checked_sub(self.first).and_then(|at| usize::try_from(at).ok());
        let Some(slot) = at.and_then(|at| self.slots.get_mut(at)) else { return };
        let len = outcome.data.bytes().len().min(slot.head.room as usize);
        slot.head.data_len = u32::try_from(len).unwrap_or(0);
        match outcome.result {
            Ok(value) => (slot.head.status, slot.head.value) = (0, value),
            Err(errno) => slot.head.status = u32::from(errno.raw()),
        }
        let (frame, response) = slot.heads.split_at_mut(FRAME_HEAD);
        frame.copy_from_slice(&slot.laid.head.to_le_bytes());
        response.copy_from_slice(&slot.head.emit());
        slot.data = Some(outcome.data);
        while let Some(slot) = self.slots.get(self.done).filter(|slot| slot.data.is_some()) {
            self.done += 1;
            self.done_bytes += slot.bytes();
            self.since.get_or_insert(now);
        }
    }

    /// When what is done is delivered at the latest.
    pub(super) fn deadline(&self, config: &Config) -> Option<Time> {
        self.since.map(|since| since.after(config.patience))
    }

    /// Delivers what is done, if it is enough or has waited long enough; how many. TailC moves once
    /// the DMA is done.
    pub(super) fn deliver(&mut self, now: Time, config: &Config) -> Result<usize, Fault> {
        let due = self.deadline(config).is_some_and(|deadline| now >= deadline);
        if self.done == 0 || !(due || self.done_bytes >= config.batch) {
            return Ok(0);
        }
        let mut parts = Vec::with_capacity(4 * self.done);
        self.slots.iter().take(self.done).for_each(|slot| slot.parts(&mut parts));
        self.producer.deliver(&parts)?;
        for slot in self.slots.drain(..self.done) {
            if let Some(Data::Read(buf, _)) = slot.data {
                self.emptied.push(buf);
            }
        }
        let delivered = std::mem::take(&mut self.done);
        self.first += delivered as u64;
        (self.done_bytes, self.since) = (0, None);
        Ok(delivered)
    }
}
