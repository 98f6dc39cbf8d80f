//! One flow: what waits on its two legs, and the slots that keep its answers in order.

use std::collections::VecDeque;
use std::ops::{Deref, Range};
use std::sync::Arc;

use outboard_medium::Buf;

use super::idle::Progress;
use super::job::{Frame, Then};
use super::limits::{ANSWER_MAX, INPUT_MAX, SLOTS_MAX, TO_CLIENT_MAX, TO_HOST_MAX};
use crate::dpu::offload::plugin::{AHEAD_MAX, Answering, Verdict};
use crate::dpu::offload::{Cursor, Head, Key, Touches};

/// Names a flow of one [`super::Director`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct FlowId {
    pub(super) at: usize,
    pub(super) generation: u64,
}

impl FlowId {
    /// A small number, for tables; used again after the flow was closed.
    #[must_use]
    pub fn index(self) -> usize {
        self.at
    }
}

/// Bytes that come at one end and go at the other. Whoever looks at an [`Excerpt`] keeps the bytes
/// as they were then.
#[derive(Debug, Default)]
pub(super) struct Stream {
    bytes: Arc<Vec<u8>>,
    start: usize,
}

/// A stream that was emptied gives its memory back, if that is more.
const KEPT: usize = 2 << 10;
/// A queue that was emptied gives its memory back, if it has more places.
const PLACES_KEPT: usize = 8;

impl Stream {
    pub(super) fn as_slice(&self) -> &[u8] {
        self.bytes.get(self.start..).unwrap_or_default()
    }

    pub(super) fn len(&self) -> usize {
        self.bytes.len() - self.start
    }

    pub(super) fn is_empty(&self) -> bool {
        self.len() == 0
    }

    pub(super) fn push(&mut self, new: &[u8]) {
        let bytes = Arc::make_mut(&mut self.bytes);
        if self.start > 0 && self.start >= bytes.len() / 2 {
            bytes.drain(..self.start);
            self.start = 0;
        }
        if bytes.capacity() - bytes.len() < new.len() {
            // An eighth more than is needed, not twice as much: what it takes is bounded.
            bytes.reserve_exact(new.len().max(bytes.len() / 8));
        }
        bytes.extend_from_slice(new);
    }

    pub(super) fn take(&mut self, n: usize) {
        self.start = (self.start + n).min(self.bytes.len());
        if self.start == self.bytes.len() {
            self.clear();
        } else if self.start > KEPT && self.start >= self.bytes.len() / 2 {
            // Whoever has an excerpt keeps all of it.
            let Some(bytes) = Arc::get_mut(&mut self.bytes) else { return };
            bytes.drain(..self.start);
            bytes.shrink_to_fit();
            self.start = 0;
        }
    }

    /// Bytes of memory, but for the eighth that may be free.
    pub(super) fn kept(&self) -> usize {
        self.bytes.len()
    }

    pub(super) fn clear(&mut self) {
        self.start = 0;
        match Arc::get_mut(&mut self.bytes) {
            Some(bytes) if bytes.capacity() <= KEPT => bytes.clear(),
            _ => self.bytes = Arc::default(),
        }
    }

    /// What is there now, for somebody else.
    pub(super) fn excerpt(&self) -> Excerpt {
        Excerpt { bytes: Arc::clone(&self.bytes), start: self.start }
    }
}

/// Bytes of a stream.
#[derive(Debug)]
pub(super) struct Excerpt {
    bytes: Arc<Vec<u8>>,
    start: usize,
}

impl Deref for Excerpt {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        self.bytes.get(self.start..).unwrap_or_default()
    }
}

/// Bytes for a client.
#[derive(Debug)]
pub enum Piece {
    /// Copied.
    Bytes(Vec<u8>),
    /// What a read left in its buffer, sent from there.
    Read {
        /// Stands before it.
        head: Head,
        /// The buffer.
        buffer: Buf,
        /// Of the buffer.
        payload: Range<usize>,
    },
}

impl Piece {
    /// Its bytes, in two runs.
    #[must_use]
    pub fn runs(&self) -> [&[u8]; 2] {
        match self {
            Piece::Bytes(bytes) => [bytes, &[]],
            Piece::Read { head, buffer, payload } => {
                [head, buffer.get(payload.clone()).unwrap_or_default()]
            }
        }
    }

    pub(super) fn len(&self) -> usize {
        self.runs().iter().map(|run| run.len()).sum()
    }

    /// Those that lie in a buffer of the pool.
    pub(super) fn lent(&self) -> usize {
        if matches!(self, Piece::Read { .. }) { self.len() } else { 0 }
    }
}

/// The place of one answer.
#[derive(Debug)]
pub(super) enum Slot {
    Ready(Piece),
    /// A read is under way; the request is kept for the check and for the host.
    Dpu {
        request: Arc<[u8]>,
        key: Key,
        /// What the answer is, where a plug-in said so before.
        answering: Option<Answering>,
    },
    /// The host was asked.
    Host,
    /// All that the host sends from here on.
    Rest,
}

/// Messages at the start of the input that a plug-in was asked about.
#[derive(Debug, Default)]
pub(super) struct Ahead {
    /// Number of the first.
    first: u64,
    /// Bytes of all.
    bytes: usize,
    /// Their lengths, and what came back: nothing yet, or a verdict, or that there is none.
    verdicts: VecDeque<(usize, Option<Option<Verdict>>)>,
    /// What stands behind them is no message.
    ends: bool,
}

impl Ahead {
    /// Where the first message begins that was not asked about; `None` if enough were.
    pub(super) fn next_at(&self) -> Option<usize> {
        (self.verdicts.len() < AHEAD_MAX && !self.ends).then_some(self.bytes)
    }

    /// No message begins behind those asked about.
    pub(super) fn end(&mut self) {
        self.ends = true;
    }

    /// Whether no message is left, and none begins.
    pub(super) fn has_ended(&self) -> bool {
        self.ends && self.verdicts.is_empty()
    }

    /// One more is asked about; its number.
    pub(super) fn ask(&mut self, len: usize) -> u64 {
        self.bytes += len;
        self.verdicts.push_back((len, None));
        self.first + (self.verdicts.len() - 1) as u64
    }

    pub(super) fn answered(&mut self, number: u64, verdict: Option<Verdict>) {
        let at = number.checked_sub(self.first).and_then(|at| usize::try_from(at).ok());
        if let Some((_, place)) = at.and_then(|at| self.verdicts.get_mut(at)) {
            *place = Some(verdict);
        }
    }

    /// The length of the first, and what came back about it; `None` if nothing yet.
    pub(super) fn take(&mut self) -> Option<(usize, Option<Verdict>)> {
        let (len, said) = self.verdicts.front_mut()?;
        said.take().map(|verdict| (*len, verdict))
    }

    /// The first waits still, for something else.
    pub(super) fn put_back(&mut self, verdict: Option<Verdict>) {
        if let Some((_, place)) = self.verdicts.front_mut() {
            *place = Some(verdict);
        }
    }

    /// The first, of `len` bytes, is placed.
    pub(super) fn pop(&mut self, len: usize) {
        if self.verdicts.pop_front().is_some() {
            self.first += 1;
            self.bytes = self.bytes.saturating_sub(len);
        }
    }

    fn clear(&mut self) {
        self.first += self.verdicts.len() as u64;
        self.bytes = 0;
        self.verdicts.clear();
    }
}

/// One flow.
#[derive(Debug, Default)]
pub struct Flow {
    /// Of the client, not yet divided.
    pub(super) input: Stream,
    pub(super) ahead: Ahead,
    /// Framing can say nothing before there are so many bytes of the first message that was not
    /// found to be whole, and it knows so much of it.
    pub(super) needs: usize,
    pub(super) cursor: Cursor,
    /// What comes is forwarded.
    pub(super) foreign: bool,
    /// A request of the host waits for reads of this flow to end that it touches.
    pub(super) stalled: Option<Touches>,
    pub(super) slots: VecDeque<Slot>,
    /// Number of the first slot.
    pub(super) first: u64,
    /// Slots that wait for reads.
    pub(super) reading: usize,
    /// Bytes in slots that are ready.
    pub(super) held: usize,
    /// Bytes of requests in slots that wait for reads.
    pub(super) kept: usize,
    /// Bytes of what is ready, and of what waits for the client, that lie in buffers of the pool,
    /// which has a bound of its own.
    pub(super) lent: usize,
    /// What of it is counted as held of the memory of all flows.
    pub(super) counted: usize,
    /// It waits for memory.
    pub(super) waits: bool,
    /// What its client got done.
    pub(super) progress: Progress,
    /// Slots in the order in which the host was asked, with what the requests touch.
    pub(super) asked: VecDeque<(u64, Touches)>,
    pub(super) to_host: Stream,
    /// Of the host, no whole answer yet.
    pub(super) from_host: Stream,
    /// Framing can say nothing before there are so many bytes there.
    pub(super) answer_needs: usize,
    /// What is known of the first answer, and how much of it is on its way to the client.
    pub(super) answer_cursor: Cursor,
    pub(super) answer_sent: usize,
    to_client: VecDeque<Piece>,
    to_client_len: usize,
    /// Bytes of the first piece that were taken.
    taken: usize,
    pub(super) client_ended: bool,
    /// Something was put on the host's leg.
    pub(super) host_used: bool,
    pub(super) host_ended: bool,
    /// The host has ended, and what it had sent is not looked at yet.
    pub(super) has_last_words: bool,
    /// The director keeps it in its list of flows with news.
    pub(super) has_news: bool,
    /// The director keeps it in its list of flows with jobs.
    pub(super) has_job: bool,
    /// Cannot go on: both legs are to be reset.
    pub(super) broken: bool,
}

impl Flow {
    /// What to send to the client next.
    pub fn to_client(&self) -> impl Iterator<Item = &[u8]> {
        let mut skip = self.taken;
        self.to_client.iter().flat_map(Piece::runs).filter_map(move |run| {
            let skipped = skip.min(run.len());
            skip -= skipped;
            run.get(skipped..).filter(|run| !run.is_empty())
        })
    }

    /// Bytes that wait for the client.
    #[must_use]
    pub fn to_client_len(&self) -> usize {
        self.to_client_len
    }

    /// What to send to the host next. Its leg is to be opened when there is something.
    #[must_use]
    pub fn to_host(&self) -> &[u8] {
        if self.host_ended { &[] } else { self.to_host.as_slice() }
    }

    /// Whether to read from the client: there is room, or what it sends is thrown away.
    #[must_use]
    pub fn wants_client(&self) -> bool {
        !self.client_ended && (self.host_ended || (self.input.len() < INPUT_MAX && self.has_room()))
    }

    /// Whether to read from the host.
    #[must_use]
    pub fn wants_host(&self) -> bool {
        // An answer that the first slot waits for is always read on: all others wait behind it.
        let awaited = matches!(self.slots.front(), Some(Slot::Host | Slot::Rest) | None);
        self.host_used
            && !self.host_ended
            && self.to_client_len < TO_CLIENT_MAX
            && (awaited || self.held + self.from_host.len() < TO_CLIENT_MAX)
            && self.from_host.len() < ANSWER_MAX
    }

    /// Bytes of memory it holds, but for buffers of the pool.
    pub(super) fn weight(&self) -> usize {
        let streams = self.input.kept() + self.to_host.kept() + self.from_host.kept();
        let places = self.slots.len() * size_of::<Slot>()
            + self.asked.len() * size_of::<(u64, Touches)>()
            + self.to_client.len() * size_of::<Piece>();
        let answers = (self.held + self.to_client_len + self.taken).saturating_sub(self.lent);
        streams + places + answers + self.kept + self.ahead.bytes
    }

    /// Bytes of the host's answers that it holds.
    pub(super) fn answers_held(&self) -> usize {
        let answers = (self.held + self.to_client_len + self.taken).saturating_sub(self.lent);
        self.from_host.kept() + answers
    }

    /// Whether nothing can go on but by more of the client's first message.
    pub(super) fn needs_input(&self) -> bool {
        self.slots.is_empty()
            && self.to_client.is_empty()
            && self.to_host.is_empty()
            && !self.foreign
            && self.ahead.verdicts.is_empty()
    }

    /// Whether nothing can go on but by more of the host's first answer.
    pub(super) fn needs_answer(&self) -> bool {
        self.to_client.is_empty() && matches!(self.slots.front(), Some(Slot::Host | Slot::Rest))
    }

    /// Gives back memory of queues that are empty.
    pub(super) fn tidy(&mut self) {
        if self.slots.is_empty() && self.slots.capacity() > PLACES_KEPT {
            self.slots = VecDeque::new();
        }
        if self.asked.is_empty() && self.asked.capacity() > PLACES_KEPT {
            self.asked = VecDeque::new();
        }
        if self.to_client.is_empty() && self.to_client.capacity() > PLACES_KEPT {
            self.to_client = VecDeque::new();
        }
    }

    /// Whether the host is to be told that the client sends no more.
    #[must_use]
    pub fn ends_host(&self) -> bool {
        let nothing_more = self.input.is_empty() && self.to_host.is_empty() && self.reading == 0;
        self.client_ended && self.host_used && nothing_more
    }

    /// Whether the client is to be told that no more comes.
    #[must_use]
    pub fn ends_client(&self) -> bool {
        let no_more = (self.host_ended && !self.has_last_words)
            || (self.client_ended && !self.host_used && self.input.is_empty());
        no_more && self.slots.is_empty() && self.to_client.is_empty()
    }

    /// Whether the client sends no more.
    #[must_use]
    pub fn client_has_ended(&self) -> bool {
        self.client_ended
    }

    /// Whether the client waits for an answer, rather than others for the client.
    #[must_use]
    pub fn awaits_answer(&self) -> bool {
        !matches!(self.slots.front(), None | Some(Slot::Rest))
    }

    /// Whether both legs are to be reset: a side sent what cannot be understood.
    #[must_use]
    pub fn is_broken(&self) -> bool {
        self.broken
    }

    /// Whether another message may be divided.
    pub(super) fn has_room(&self) -> bool {
        self.stalled.is_none()
            && self.slots.len() < SLOTS_MAX
            && self.to_host.len() < TO_HOST_MAX
            && self.to_client_len + self.held < TO_CLIENT_MAX
    }

    /// How much waits to go out; what the director did is news only if this changed.
    pub(super) fn outgoing(&self) -> (usize, usize, usize) {
        (self.to_host.len(), self.to_client_len, self.slots.len())
    }

    /// Whether there is input to be divided, and room for it.
    pub(super) fn can_divide(&self) -> bool {
        let enough = if self.client_ended { 1 } else { self.needs.max(1) };
        !self.foreign && !self.host_ended && self.has_room() && self.input.len() >= enough
    }

    /// Whether answers may be found in what the host sent.
    pub(super) fn can_frame(&self) -> bool {
        !self.broken && !self.asked.is_empty() && self.from_host.len() >= self.answer_needs.max(1)
    }

    /// What to ask about what the host sent.
    pub(super) fn frame_job(&self, id: FlowId) -> Frame {
        Frame {
            flow: id,
            bytes: self.from_host.excerpt(),
            sent: self.answer_sent,
            is_first: self.asked.front().is_some_and(|(slot, _)| *slot == self.first),
            most: self.asked.len(),
            cursor: self.answer_cursor,
            found: Vec::new(),
            then: Then::Nothing,
        }
    }

    /// Makes every request that is read for one of the host.
    pub(super) fn ask_instead_of_reading(&mut self) {
        let (first, mut slots) = (self.first, std::mem::take(&mut self.slots));
        for (slot, number) in slots.iter_mut().zip(first..) {
            if let Slot::Dpu { request, key, .. } = slot {
                self.ask(number, request, Touches::One(*key));
                *slot = Slot::Host;
            }
        }
        self.slots = slots;
        (self.reading, self.kept) = (0, 0);
    }

    /// Answers of the host are not told apart any more: from here on all that it sends goes to the
    /// client. False if that is not what the client waits for.
    pub(super) fn stop_framing(&mut self) -> bool {
        let mut asked = self.asked.iter().map(|(slot, _)| *slot);
        let mut waits = self.slots.iter().zip(self.first..);
        let in_order = waits.all(|(slot, number)| match slot {
            Slot::Host => asked.next() == Some(number),
            Slot::Rest => true,
            Slot::Ready(_) | Slot::Dpu { .. } => false,
        });
        if in_order && !self.asked.is_empty() {
            self.first += self.slots.len() as u64;
            self.slots.clear();
            self.asked.clear();
            self.slots.push_back(Slot::Rest);
            self.pass();
        }
        in_order
    }

    /// Whether a read that was begun for this flow may touch what a request of the host does.
    pub(super) fn reads(&self, touches: Touches) -> bool {
        self.reading > 0
            && self.slots.iter().any(|slot| match slot {
                Slot::Dpu { key, .. } => touches.include(*key),
                _ => false,
            })
    }

    /// Whether the host has a request of this flow that may touch `key`.
    pub(super) fn asks_about(&self, key: Key) -> bool {
        self.asked.iter().any(|(_, touches)| touches.include(key))
    }

    /// A slot for the next answer; its number.
    pub(super) fn push_slot(&mut self, slot: Slot) -> u64 {
        self.progress.made();
        self.slots.push_back(slot);
        self.first + (self.slots.len() - 1) as u64
    }

    pub(super) fn slot_mut(&mut self, number: u64) -> Option<&mut Slot> {
        let at = usize::try_from(number.checked_sub(self.first)?).ok()?;
        self.slots.get_mut(at)
    }

    /// Known bytes of an answer.
    pub(super) fn push_literal(&mut self, bytes: &[u8]) {
        if self.slots.is_empty() {
            self.send(bytes);
        } else {
            self.held += bytes.len();
            self.push_slot(Slot::Ready(Piece::Bytes(bytes.to_vec())));
        }
    }

    /// Copies bytes behind what the client gets.
    fn send(&mut self, bytes: &[u8]) {
        self.to_client_len += bytes.len();
        // A piece that is being sent may grow: what was taken of it is counted from its start.
        if let Some(Piece::Bytes(last)) = self.to_client.back_mut()
            && last.len() + bytes.len() <= 64 << 10
        {
            last.extend_from_slice(bytes);
        } else if !bytes.is_empty() {
            self.to_client.push_back(Piece::Bytes(bytes.to_vec()));
        }
    }

    /// Asks the host; the answer takes a new slot.
    pub(super) fn ask_in_order(&mut self, request: &[u8], touches: Touches) {
        let slot = self.push_slot(Slot::Host);
        self.ask(slot, request, touches);
    }

    /// Asks the host on behalf of a slot.
    pub(super) fn ask(&mut self, slot: u64, request: &[u8], touches: Touches) {
        self.host_used = true;
        self.asked.push_back((slot, touches));
        self.to_host.push(request);
    }

    /// A whole answer of the host: the first `len` bytes of what it sent and is not sent on.
    pub(super) fn answered(&mut self, len: usize) {
        (self.answer_needs, self.answer_sent) = (0, 0);
        let Some((slot, _)) = self.asked.pop_front() else { return };
        let from_host = std::mem::take(&mut self.from_host);
        let bytes = from_host.as_slice().get(..len).unwrap_or_default();
        if slot == self.first {
            self.send(bytes);
            self.slots.pop_front();
            self.first += 1;
        } else {
            let piece = Piece::Bytes(bytes.to_vec());
            if let Some(place) = self.slot_mut(slot) {
                *place = Slot::Ready(piece);
                self.held += len;
            }
        }
        self.from_host = from_host;
        self.from_host.take(len);
        self.settle();
    }

    /// The first answer is not whole before the host sent `needs` bytes of it. If the client waits
    /// for no other, what is known of it goes on its way.
    pub(super) fn awaits(&mut self, needs: usize, cursor: Cursor) {
        self.answer_cursor = cursor;
        if self.asked.front().is_some_and(|(slot, _)| *slot == self.first) {
            let from_host = std::mem::take(&mut self.from_host);
            let known = cursor.passed.saturating_sub(self.answer_sent);
            self.send(from_host.as_slice().get(..known).unwrap_or_default());
            self.from_host = from_host;
            self.from_host.take(known);
            self.answer_sent += known;
        }
        self.answer_needs = needs.saturating_sub(self.answer_sent);
    }

    /// Moves what is ready at the front to the client.
    pub(super) fn settle(&mut self) {
        while matches!(self.slots.front(), Some(Slot::Ready(_))) {
            let Some(Slot::Ready(piece)) = self.slots.pop_front() else { return };
            self.first += 1;
            self.held = self.held.saturating_sub(piece.len());
            match piece {
                Piece::Bytes(bytes) => self.send(&bytes),
                read @ Piece::Read { .. } => {
                    self.to_client_len += read.len();
                    self.to_client.push_back(read);
                }
            }
        }
    }

    /// What the host sends that answers no request, or that nobody frames, goes to the client.
    pub(super) fn pass(&mut self) {
        let unasked = self.slots.is_empty() && self.asked.is_empty();
        if unasked || matches!(self.slots.front(), Some(Slot::Rest)) {
            let from_host = std::mem::take(&mut self.from_host);
            self.send(from_host.as_slice());
            self.from_host = from_host;
            self.from_host.clear();
        }
    }

    /// The host sends no more: what it was asked and did not answer, and all behind it, never
    /// comes. Gives back what was kept there.
    pub(super) fn host_is_gone(&mut self) -> Vec<Slot> {
        self.pass();
        self.host_ended = true;
        self.has_last_words = false;
        self.input.clear();
        self.ahead.clear();
        self.to_host.clear();
        let lost = self.slots.iter().position(|slot| matches!(slot, Slot::Host | Slot::Rest));
        let mut rest = Vec::new();
        if let Some(at) = lost {
            rest.extend(self.slots.drain(at..));
            for slot in &rest {
                if let Slot::Ready(piece) = slot {
                    self.held = self.held.saturating_sub(piece.len());
                    self.lent = self.lent.saturating_sub(piece.lent());
                }
            }
            let next = self.first + at as u64;
            if !self.from_host.is_empty() && self.asked.front().is_some_and(|a| a.0 == next) {
                // Part of an answer: a server without a director would have sent that, too.
                let piece = Piece::Bytes(self.from_host.as_slice().to_vec());
                self.held += piece.len();
                self.push_slot(Slot::Ready(piece));
            }
        }
        self.asked.clear();
        self.from_host.clear();
        (self.reading, self.kept) = self.slots.iter().fold((0, 0), |(n, bytes), slot| match slot {
            Slot::Dpu { request, .. } => (n + 1, bytes + request.len()),
            _ => (n, bytes),
        });
        self.settle();
        rest
    }

    /// The client took `n` bytes; buffers that are done with are given to `free`.
    pub(super) fn client_took(&mut self, n: usize, mut free: impl FnMut(Buf)) {
        if n > 0 {
            self.progress.made();
        }
        self.taken += n.min(self.to_client_len);
        self.to_client_len = self.to_client_len.saturating_sub(n);
        while let Some(front) = self.to_client.front() {
            let len = front.len();
            if self.taken < len {
                return;
            }
            self.taken -= len;
            if let Some(Piece::Read { buffer, .. }) = self.to_client.pop_front() {
                self.lent = self.lent.saturating_sub(len);
                free(buffer);
            }
        }
    }

    /// Ends it: gives every buffer to `free`.
    pub(super) fn dissolve(self, mut free: impl FnMut(Buf)) {
        let ready = self.slots.into_iter().filter_map(|slot| match slot {
            Slot::Ready(piece) => Some(piece),
            _ => None,
        });
        for piece in self.to_client.into_iter().chain(ready) {
            if let Piece::Read { buffer, .. } = piece {
                free(buffer);
            }
        }
    }
}
