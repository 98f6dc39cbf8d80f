//! The director of one worker: its flows, divided messages, and the engine that reads for them.

use std::collections::VecDeque;
use std::sync::Arc;

use outboard_kv::medium::{ALIGN, Buf};

use super::asking::ask_ahead;
use super::flow::{Flow, FlowId, Piece, Slot};
use super::limits::{ANSWER_MAX, INPUT_MAX, TO_HOST_MAX};
use crate::dpu::offload::contained::{Clock, Contained};
use crate::dpu::offload::engine::{Ended, Engine, Filled, Ticket};
use crate::dpu::offload::plugin::{Answering, Ask, Plan};
use crate::dpu::offload::pool::Pool;
use crate::dpu::offload::{
    Application, Division, Framing, Key, Lookup, Part, ReadOp, Span, Touches,
};

/// Whose read it is: a flow and the number of a slot.
#[derive(Clone, Copy, Debug)]
struct Client {
    flow: FlowId,
    slot: u64,
}

/// A read for the file service. It fills `buffer`, as [`ToRead::window`] says.
#[derive(Debug)]
pub struct ToRead {
    /// To be given back with what was read.
    pub ticket: Ticket,
    /// What is read.
    pub read: ReadOp,
    /// Where to; of [`ToRead::space`].
    pub buffer: Buf,
}

impl ToRead {
    /// The read widened to whole blocks: where it starts in the file, and where in the buffer the
    /// bytes asked for start.
    #[must_use]
    pub fn window(read: &ReadOp) -> (u64, usize) {
        let align = ALIGN as u64;
        let start = read.offset / align * align;
        (start, usize::try_from(read.offset - start).unwrap_or(0))
    }

    /// Bytes of buffer the widened read takes.
    #[must_use]
    pub fn space(read: &ReadOp) -> usize {
        let (_, shift) = ToRead::window(read);
        (shift + usize::try_from(read.bytes).unwrap_or(usize::MAX - shift))
            .checked_next_multiple_of(ALIGN)
            .unwrap_or(usize::MAX)
    }
}

/// What a director did so far, in requests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Answered here.
    pub offloaded: u64,
    /// Sent to the host because the predicate or the function said so.
    pub to_host: u64,
    /// Sent to the host because the ring was full or the pool empty.
    pub refused: u64,
    /// Begun here and then sent to the host: the read failed, or was not what was promised.
    pub fell_back: u64,
}

/// Flows, and the application that divides them.
pub struct Director {
    app: Arc<dyn Application>,
    /// Messages for a plug-in, where that divides them.
    pub(super) asks: Option<VecDeque<Ask>>,
    pub(super) table: Arc<dyn Lookup>,
    contained: Contained,
    engine: Engine<Client>,
    division: Division,
    flows: Vec<Option<Flow>>,
    free: Vec<usize>,
    generation: u64,
    generations: Vec<u64>,
    reads: Vec<ToRead>,
    news: Vec<FlowId>,
    counts: Counts,
}

impl Director {
    /// A director with `contexts` reads under way at most, and `pool` for them.
    #[must_use]
    pub fn new(
        app: Arc<dyn Application>,
        table: Arc<dyn Lookup>,
        contexts: usize,
        pool: Pool,
        clock: Clock,
    ) -> Director {
        Director {
            app,
            asks: None,
            table,
            contained: Contained::new(clock),
            engine: Engine::new(contexts, pool),
            division: Division::default(),
            flows: Vec::new(),
            free: Vec::new(),
            generation: 0,
            generations: Vec::new(),
            reads: Vec::new(),
            news: Vec::new(),
            counts: Counts::default(),
        }
    }

    /// A new flow; one that is not `ours` by the signature is forwarded untouched.
    pub fn open(&mut self, ours: bool) -> FlowId {
        let mut flow = Flow::default();
        flow.foreign = !ours;
        self.generation += 1;
        let at = self.free.pop().unwrap_or_else(|| {
            self.flows.push(None);
            self.generations.push(0);
            self.flows.len() - 1
        });
        if let (Some(place), Some(generation)) =
            (self.flows.get_mut(at), self.generations.get_mut(at))
        {
            *place = Some(flow);
            *generation = self.generation;
        }
        FlowId { at, generation: self.generation }
    }

    /// A flow, if it was not closed.
    #[must_use]
    pub fn flow(&self, id: FlowId) -> Option<&Flow> {
        let current = self.generations.get(id.at).is_some_and(|own| *own == id.generation);
        self.flows.get(id.at).filter(|_| current)?.as_ref()
    }

    fn flow_mut(&mut self, id: FlowId) -> Option<&mut Flow> {
        let current = self.generations.get(id.at).is_some_and(|own| *own == id.generation);
        self.flows.get_mut(id.at).filter(|_| current)?.as_mut()
    }

    /// Takes a flow out while it is worked on.
    pub(super) fn lift(&mut self, id: FlowId) -> Option<Flow> {
        let current = self.generations.get(id.at).is_some_and(|own| *own == id.generation);
        self.flows.get_mut(id.at).filter(|_| current)?.take()
    }

    fn lower(&mut self, id: FlowId, mut flow: Flow) {
        if !std::mem::replace(&mut flow.has_news, true) {
            self.news.push(id);
        }
        if let Some(place) = self.flows.get_mut(id.at) {
            *place = Some(flow);
        }
    }

    /// Forgets a flow: both its legs are closed, or are to be. Its reads end unheard.
    pub fn close(&mut self, id: FlowId) {
        let Some(flow) = self.lift(id) else { return };
        flow.dissolve(|buffer| self.engine.pool.give(buffer));
        self.free.push(id.at);
        if let Some(generation) = self.generations.get_mut(id.at) {
            *generation = 0;
        }
    }

    /// A flow in which something changed: look at what it has to send and what it wants.
    pub fn next_news(&mut self) -> Option<FlowId> {
        loop {
            let id = self.news.pop()?;
            if let Some(flow) = self.flow_mut(id) {
                flow.has_news = false;
                return Some(id);
            }
        }
    }

    /// A read to begin.
    pub fn next_read(&mut self) -> Option<ToRead> {
        self.reads.pop()
    }

    /// Reads under way.
    #[must_use]
    pub fn reading(&self) -> usize {
        self.engine.len()
    }

    /// What it did so far.
    #[must_use]
    pub fn counts(&self) -> Counts {
        self.counts
    }

    /// The client sent bytes.
    pub fn client_bytes(&mut self, id: FlowId, bytes: &[u8]) {
        let Some(mut flow) = self.lift(id) else { return };
        if !flow.host_ended {
            self.advance(id, &mut flow, bytes);
        }
        self.lower(id, flow);
    }

    /// The client sends no more.
    pub fn client_ended(&mut self, id: FlowId) {
        let Some(mut flow) = self.lift(id) else { return };
        flow.client_ended = true;
        if !flow.host_ended {
            self.advance(id, &mut flow, &[]);
        }
        self.lower(id, flow);
    }

    /// The client took bytes of [`Flow::to_client`].
    pub fn client_took(&mut self, id: FlowId, n: usize) {
        let Some(mut flow) = self.lift(id) else { return };
        flow.client_took(n, |buffer| self.engine.pool.give(buffer));
        self.resume(id, flow);
    }

    /// The host took bytes of [`Flow::to_host`].
    pub fn host_took(&mut self, id: FlowId, n: usize) {
        let Some(mut flow) = self.lift(id) else { return };
        flow.to_host.take(n);
        self.resume(id, flow);
    }

    /// The host sent bytes.
    pub fn host_bytes(&mut self, id: FlowId, bytes: &[u8]) {
        let Some(mut flow) = self.lift(id) else { return };
        flow.from_host.push(bytes);
        self.hear(&mut flow);
        self.resume(id, flow);
    }

    /// The host sends no more, or its leg could not be made.
    pub fn host_ended(&mut self, id: FlowId) {
        let Some(mut flow) = self.lift(id) else { return };
        self.hear(&mut flow);
        self.let_go(&mut flow);
        self.lower(id, flow);
    }

    /// A read ended. What it answers is news of its flow.
    pub fn read_ended(&mut self, ticket: Ticket, filled: Filled) {
        self.engine.complete(ticket, filled);
        while let Some(ended) = self.engine.next_ended() {
            self.deliver(ended);
        }
    }

    /// Puts what was read into its slot, or asks the host.
    fn deliver(&mut self, ended: Ended<Client>) {
        let Ended { client, read, filled } = ended;
        let Some(mut flow) = self.lift(client.flow) else {
            return self.engine.pool.give(filled.buffer);
        };
        let Some(Slot::Dpu { request, key, answering }) = flow.slot_mut(client.slot) else {
            self.engine.pool.give(filled.buffer);
            return self.lower(client.flow, flow);
        };
        let (request, key, answering) = (std::mem::take(request), *key, answering.take());
        let answer = self.check(&request, read, filled, answering.as_ref());
        flow.reading = flow.reading.saturating_sub(1);
        let state = match answer {
            Some(piece) => {
                self.counts.offloaded += 1;
                flow.held += piece.len();
                Slot::Ready(piece)
            }
            None => {
                self.counts.fell_back += 1;
                flow.ask(client.slot, &request, Touches::One(key));
                Slot::Host
            }
        };
        if let Some(slot) = flow.slot_mut(client.slot) {
            *slot = state;
        }
        flow.settle();
        flow.pass();
        if flow.host_ended {
            // It would have to answer what fell back: that, and all behind it, never comes.
            self.let_go(&mut flow);
        }
        self.resume(client.flow, flow);
    }

    /// The host sends no more: forgets what waits for it.
    fn let_go(&mut self, flow: &mut Flow) {
        for slot in flow.host_is_gone() {
            if let Slot::Ready(Piece::Read { buffer, .. }) = slot {
                self.engine.pool.give(buffer);
            }
        }
    }

    /// The answer in what was read, if the application finds it there.
    fn check(
        &mut self,
        request: &[u8],
        read: ReadOp,
        filled: Filled,
        answering: Option<&Answering>,
    ) -> Option<Piece> {
        let Filled { buffer, bytes: range } = filled;
        let app = &self.app;
        let bytes = range.clone().and_then(|range| buffer.get(range));
        let answer = bytes.and_then(|bytes| {
            let answer = match answering {
                Some(answering) => answering.answer(bytes)?,
                None => self.contained.call("answer", || app.answer(request, read, bytes))??,
            };
            bytes.get(answer.payload.clone()).is_some().then_some(answer)
        });
        let (Some(answer), Some(range)) = (answer, range) else {
            self.engine.pool.give(buffer);
            return None;
        };
        let payload = range.start + answer.payload.start..range.start + answer.payload.end;
        Some(Piece::Read { head: answer.head, buffer, payload })
    }

    /// There may be room again.
    pub(super) fn resume(&mut self, id: FlowId, mut flow: Flow) {
        if !flow.host_ended {
            self.advance(id, &mut flow, &[]);
        }
        self.lower(id, flow);
    }

    /// Takes whole answers from what the host sent.
    fn hear(&mut self, flow: &mut Flow) {
        while !flow.asked.is_empty() && flow.from_host.len() >= flow.answer_needs.max(1) {
            let app = &self.app;
            let bytes = flow.from_host.as_slice();
            let framing = self.contained.call_anyway("frame_answer", || app.frame_answer(bytes));
            match framing {
                Some(Framing::Whole(len)) if (1..=bytes.len()).contains(&len) => {
                    flow.answer_needs = 0;
                    flow.answered(len);
                }
                Some(Framing::More(needs)) if needs <= ANSWER_MAX => {
                    flow.answer_needs = needs.max(bytes.len() + 1);
                }
                _ => {
                    tracing::warn!("the host's answer is none of its application; flow reset");
                    flow.broken = true;
                    return;
                }
            }
        }
        flow.pass();
    }

    /// Divides as many messages as there are and there is room for. `incoming` is divided where it
    /// lies, unless something lies before it.
    fn advance(&mut self, id: FlowId, flow: &mut Flow, incoming: &[u8]) {
        flow.stalled = false;
        let mut input = std::mem::take(&mut flow.input);
        if input.is_empty() {
            let taken = self.divide(id, flow, incoming);
            input.push(incoming.get(taken..).unwrap_or_default());
        } else {
            input.push(incoming);
            let taken = self.divide(id, flow, input.as_slice());
            input.take(taken);
        }
        flow.input = input;
    }

    /// Divides messages at the start of `bytes`; how many bytes were taken.
    fn divide(&mut self, id: FlowId, flow: &mut Flow, bytes: &[u8]) -> usize {
        let mut taken = 0;
        // Line 6 of Figure 13: once one is refused, all that came with it go to the host.
        let mut refused = self.contained.is_given_up();
        while let Some(rest) = bytes.get(taken..).filter(|rest| !rest.is_empty()) {
            if !flow.has_room() {
                break;
            }
            if flow.foreign {
                if flow.reading > 0 {
                    // One of them may yet have to ask the host, before these bytes.
                    flow.stalled = true;
                    break;
                }
                return taken + forward(flow, rest);
            }
            if rest.len() < flow.needs && !flow.client_ended {
                break;
            }
            let app = &self.app;
            match self.contained.call_anyway("frame", || app.frame(rest)) {
                Some(Framing::Whole(len)) if (1..=rest.len()).contains(&len) => {
                    flow.needs = 0;
                    let message = rest.get(..len).unwrap_or_default();
                    let placed = match &mut self.asks {
                        None => self.place(id, flow, message, &mut refused),
                        Some(asks) => {
                            ask_ahead(&*self.app, asks, id, flow, rest);
                            let Some(verdict) = flow.ahead.take() else { break };
                            self.place_told(id, flow, message, verdict, &mut refused)
                        }
                    };
                    if !placed {
                        flow.stalled = true;
                        break;
                    }
                    taken += len;
                }
                Some(Framing::More(needs)) if needs <= INPUT_MAX && !flow.client_ended => {
                    flow.needs = needs.max(rest.len() + 1);
                    if flow.needs > INPUT_MAX {
                        flow.foreign = true;
                    }
                }
                _ => flow.foreign = true,
            }
        }
        taken
    }

    /// Divides one message here, and gives its parts their slots; false if it must wait for reads
    /// of its flow.
    fn place(&mut self, id: FlowId, flow: &mut Flow, message: &[u8], refused: &mut bool) -> bool {
        let mut division = std::mem::take(&mut self.division);
        division.clear();
        let (app, table) = (&self.app, &self.table);
        let divided =
            self.contained.call("off_pred", || app.off_pred(message, &**table, &mut division));
        if divided.is_none() {
            division.clear();
        }
        let placed = self.place_parts(id, flow, message, &mut division, None, refused);
        self.division = division;
        placed
    }

    /// Gives parts their slots, with how those of the DPU side are answered, if that is known;
    /// without parts the message is the host's. False if it must wait for reads of its flow.
    pub(super) fn place_parts(
        &mut self,
        id: FlowId,
        flow: &mut Flow,
        message: &[u8],
        division: &mut Division,
        plans: Option<&[Plan]>,
        refused: &mut bool,
    ) -> bool {
        if division.parts().is_empty() {
            division.host(Span::Message(0..message.len()), Touches::Everything);
        }
        let waits = division.parts().iter().any(|part| match part {
            Part::Host { touches, .. } => flow.reads(*touches),
            _ => false,
        });
        if waits {
            return false;
        }
        let mut next = plans.unwrap_or_default().iter();
        for part in division.parts() {
            match part {
                Part::Literal(span) => flow.push_literal(division.bytes(span, message)),
                Part::Host { request, touches } => {
                    self.counts.to_host += 1;
                    flow.ask_in_order(division.bytes(request, message), *touches);
                }
                Part::Dpu { request, key } => {
                    let request = division.bytes(request, message);
                    let (read, answering) = match (plans, next.next()) {
                        (None, _) => (self.off_func(flow, request, *key, *refused), None),
                        (Some(_), plan) => {
                            let plan = plan.filter(|_| !*refused && !flow.asks_about(*key));
                            (plan.map(|p| p.read), plan.map(|p| p.answering.clone()))
                        }
                    };
                    self.offload(id, flow, request, *key, (read, answering), refused);
                }
            }
        }
        true
    }

    /// The read that answers a request, unless the host has something to do with its key.
    fn off_func(&mut self, flow: &Flow, request: &[u8], key: Key, refused: bool) -> Option<ReadOp> {
        if refused || flow.asks_about(key) {
            return None;
        }
        let (app, table) = (&self.app, &self.table);
        self.contained.call("off_func", || app.off_func(request, &**table)).flatten()
    }

    /// Lines 5 to 14 of Figure 13 for one request.
    fn offload(
        &mut self,
        id: FlowId,
        flow: &mut Flow,
        request: &[u8],
        key: Key,
        (read, answering): (Option<ReadOp>, Option<Answering>),
        refused: &mut bool,
    ) {
        let Some(read) = read else {
            *(if *refused { &mut self.counts.refused } else { &mut self.counts.to_host }) += 1;
            return flow.ask_in_order(request, Touches::One(key));
        };
        let slot = flow.first + flow.slots.len() as u64;
        match self.engine.begin(Client { flow: id, slot }, read, ToRead::space(&read)) {
            Ok((ticket, buffer)) => {
                flow.push_slot(Slot::Dpu { request: request.to_vec(), key, answering });
                flow.reading += 1;
                self.reads.push(ToRead { ticket, read, buffer });
            }
            Err(_) => {
                *refused = true;
                self.counts.refused += 1;
                flow.ask_in_order(request, Touches::One(key));
            }
        }
    }
}

/// Forwards as much as there is room for; what the host sends is the client's from here on.
fn forward(flow: &mut Flow, bytes: &[u8]) -> usize {
    flow.host_used = true;
    if !matches!(flow.slots.back(), Some(Slot::Rest)) {
        flow.push_slot(Slot::Rest);
    }
    let n = bytes.len().min(TO_HOST_MAX.saturating_sub(flow.to_host.len()));
    flow.to_host.push(bytes.get(..n).unwrap_or_default());
    n
}
