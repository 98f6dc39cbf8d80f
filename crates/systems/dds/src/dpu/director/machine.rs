//! The director of one worker: its flows, divided messages, and the engine that reads for them.

use std::collections::VecDeque;
use std::sync::Arc;

use outboard_medium::{ALIGN, Buf};

use super::asking::ask_ahead;
use super::flow::{Flow, FlowId, Piece, Slot};
use super::job::{Check, Divide, Frame, Job, Kind, Then, Told};
use super::limits::{PARTS_MAX, TO_HOST_MAX};
use super::shares::Shares;
use crate::dpu::offload::engine::{Ended, Engine, Filled, Ticket};
use crate::dpu::offload::health::{Call, Health};
use crate::dpu::offload::plugin::{Answering, Ask, Plan};
use crate::dpu::offload::pool::Pool;
use crate::dpu::offload::{Answer, Application, Cursor, Division, Key, Lookup, Part, ReadOp};
use crate::dpu::offload::{Span, Touches};

/// Whose read it is: a flow and the number of a slot.
#[derive(Clone, Copy, Debug)]
pub(super) struct Client {
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
    /// Flows that are forwarded because a message of theirs found no memory.
    pub crowded: u64,
    /// Sent to the host because the ring was full or the pool empty.
    pub refused: u64,
    /// Begun here and then sent to the host: the read failed, or was not what was promised.
    pub fell_back: u64,
}

/// How the requests of a division are answered that the DPU side answers, in order.
pub(super) enum Answers<'a> {
    /// By what the application read for them; it looks for the answer itself.
    Reads(&'a [Option<ReadOp>]),
    /// As a plug-in planned.
    Plans(&'a [Plan]),
}

/// Flows, and how their messages are divided.
pub struct Director {
    app: Arc<dyn Application>,
    /// Messages for a plug-in, where that divides them.
    pub(super) asks: Option<VecDeque<Ask>>,
    pub(super) table: Arc<dyn Lookup>,
    health: Arc<Health>,
    engine: Engine<Client>,
    pub(super) flows: Vec<Option<Flow>>,
    free: Vec<usize>,
    generation: u64,
    pub(super) generations: Vec<u64>,
    reads: Vec<ToRead>,
    news: Vec<FlowId>,
    /// Flows with something to ask the application.
    wanting: Vec<FlowId>,
    /// Reads whose answers are to be looked for.
    checks: Vec<Check>,
    /// Of jobs that came back, to be used again.
    spare: Vec<Vec<Told>>,
    pub(super) shares: Shares,
    pub(super) counts: Counts,
}

/// Memory of jobs kept for others.
const SPARE: usize = 16;

impl Director {
    /// A director with `contexts` reads under way at most, and `pool` for them. Once the
    /// application is off, all is forwarded.
    #[must_use]
    pub fn new(
        app: Arc<dyn Application>,
        table: Arc<dyn Lookup>,
        contexts: usize,
        pool: Pool,
        health: Arc<Health>,
    ) -> Director {
        Director {
            app,
            asks: None,
            table,
            health,
            engine: Engine::new(contexts, pool),
            flows: Vec::new(),
            free: Vec::new(),
            generation: 0,
            generations: Vec::new(),
            reads: Vec::new(),
            news: Vec::new(),
            wanting: Vec::new(),
            checks: Vec::new(),
            spare: Vec::new(),
            shares: Shares::default(),
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

    pub(super) fn flow_mut(&mut self, id: FlowId) -> Option<&mut Flow> {
        let current = self.generations.get(id.at).is_some_and(|own| *own == id.generation);
        self.flows.get_mut(id.at).filter(|_| current)?.as_mut()
    }

    /// Takes a flow out while it is worked on.
    pub(super) fn lift(&mut self, id: FlowId) -> Option<Flow> {
        let current = self.generations.get(id.at).is_some_and(|own| *own == id.generation);
        self.flows.get_mut(id.at).filter(|_| current)?.take()
    }

    /// Puts it back, to be looked at.
    pub(super) fn lower(&mut self, id: FlowId, mut flow: Flow) {
        if !std::mem::replace(&mut flow.has_news, true) {
            self.news.push(id);
        }
        self.lower_quietly(id, flow);
    }

    /// Puts it back. What its legs have to do is as before, or is seen by who asks.
    pub(super) fn lower_quietly(&mut self, id: FlowId, mut flow: Flow) {
        let has_job = flow.can_frame() || (self.asks.is_none() && flow.can_divide());
        if has_job && !std::mem::replace(&mut flow.has_job, true) {
            self.wanting.push(id);
        }
        flow.tidy();
        self.shares.count(id, &mut flow);
        if let Some(place) = self.flows.get_mut(id.at) {
            *place = Some(flow);
        }
    }

    /// Forgets a flow: both its legs are closed, or are to be. Its reads end unheard.
    pub fn close(&mut self, id: FlowId) {
        let Some(flow) = self.lift(id) else { return };
        self.shares.forget(id, &flow);
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
            if let Some(flow) = self.flow_mut(id)
                && std::mem::take(&mut flow.has_news)
            {
                return Some(id);
            }
        }
    }

    /// Whether something changed in any.
    #[must_use]
    pub fn has_news(&self) -> bool {
        !self.news.is_empty()
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
            flow.input.push(bytes);
        }
        let is_all = flow.foreign || flow.host_ended;
        flow.progress.arrived(bytes.len(), is_all);
        self.resume(id, flow);
    }

    /// The client sends no more.
    pub fn client_ended(&mut self, id: FlowId) {
        let Some(mut flow) = self.lift(id) else { return };
        flow.client_ended = true;
        self.advance(id, &mut flow);
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
        if !flow.can_frame() {
            flow.pass();
        }
        self.resume(id, flow);
    }

    /// The host sends no more, or its leg could not be made.
    pub fn host_ended(&mut self, id: FlowId) {
        let Some(mut flow) = self.lift(id) else { return };
        flow.host_ended = true;
        flow.has_last_words = flow.can_frame();
        if !flow.has_last_words {
            self.let_go(&mut flow);
        }
        self.lower(id, flow);
    }

    /// A read ended. What it answers is news of its flow.
    pub fn read_ended(&mut self, ticket: Ticket, filled: Filled) {
        if let Some(ended) = self.engine.complete(ticket, filled) {
            self.deliver(ended);
        }
    }

    /// Has what was read looked at.
    fn deliver(&mut self, ended: Ended<Client>) {
        let Ended { client, read, filled } = ended;
        let is_off = self.health.is_off();
        let slot = self.flow_mut(client.flow).and_then(|flow| flow.slot_mut(client.slot));
        let Some(Slot::Dpu { request, answering, .. }) = slot else {
            return self.engine.pool.give(filled.buffer);
        };
        let bytes = filled.bytes.clone().and_then(|range| filled.buffer.get(range));
        let answer = match (answering, bytes) {
            (None, Some(_)) if !is_off => {
                let request = Arc::clone(request);
                return self.checks.push(Check { client, request, read, filled, answer: None });
            }
            (Some(answering), Some(bytes)) => answering.answer(bytes),
            (None, _) | (_, None) => None,
        };
        self.answer(client, filled, answer);
    }

    /// Puts the answer into its slot, if there is one in what was read; else asks the host.
    fn answer(&mut self, client: Client, filled: Filled, answer: Option<Answer>) {
        let Some(mut flow) = self.lift(client.flow) else {
            return self.engine.pool.give(filled.buffer);
        };
        let Some(Slot::Dpu { request, key, .. }) = flow.slot_mut(client.slot) else {
            self.engine.pool.give(filled.buffer);
            return self.lower(client.flow, flow);
        };
        let (request, key) = (Arc::clone(request), *key);
        flow.reading = flow.reading.saturating_sub(1);
        flow.kept = flow.kept.saturating_sub(request.len());
        let state = match piece(filled, answer) {
            Ok(piece) => {
                self.counts.offloaded += 1;
                flow.held += piece.len();
                flow.lent += piece.lent();
                Slot::Ready(piece)
            }
            Err(buffer) => {
                self.engine.pool.give(buffer);
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
        if flow.host_ended && !flow.has_last_words {
            // It would have to answer what fell back: that, and all behind it, never comes.
            self.let_go(&mut flow);
        }
        self.advance(client.flow, &mut flow);
        self.lower(client.flow, flow);
    }

    /// The host sends no more: forgets what waits for it.
    fn let_go(&mut self, flow: &mut Flow) {
        for slot in flow.host_is_gone() {
            if let Slot::Ready(Piece::Read { buffer, .. }) = slot {
                self.engine.pool.give(buffer);
            }
        }
    }

    /// There may be room again.
    pub(super) fn resume(&mut self, id: FlowId, mut flow: Flow) {
        let before = flow.outgoing();
        self.advance(id, &mut flow);
        if flow.outgoing() == before {
            self.lower_quietly(id, flow);
        } else {
            self.lower(id, flow);
        }
    }

    /// Whether there is something to ask the application.
    #[must_use]
    pub fn has_jobs(&self) -> bool {
        !self.wanting.is_empty() || !self.checks.is_empty()
    }

    /// What there is to ask the application. Nothing else is to be done with the director until
    /// they are brought back, or it is taken over.
    pub fn take_jobs(&mut self, jobs: &mut Vec<Job>) {
        jobs.extend(self.checks.drain(..).map(Kind::Check).map(Job));
        for id in std::mem::take(&mut self.wanting) {
            let divides = self.asks.is_none();
            let Some(flow) = self.flow_mut(id) else { continue };
            flow.has_job = false;
            if flow.can_frame() {
                jobs.push(Job(Kind::Frame(flow.frame_job(id))));
            }
            if divides && flow.can_divide() {
                let (input, is_all) = (flow.input.excerpt(), flow.client_ended);
                let (cursor, found, then) = (flow.cursor, 0, Then::Nothing);
                let told = self.spare.pop().unwrap_or_default();
                let divide = Divide { flow: id, input, is_all, cursor, told, found, then };
                jobs.push(Job(Kind::Divide(divide)));
            }
        }
    }

    /// Goes on with what the application said.
    pub fn bring(&mut self, jobs: &mut Vec<Job>) {
        for job in jobs.drain(..) {
            match job.0 {
                Kind::Check(Check { client, filled, answer, .. }) => {
                    self.answer(client, filled, answer);
                }
                Kind::Frame(frame) => self.framed(frame),
                Kind::Divide(divide) => self.told(divide),
            }
        }
    }

    /// Another thread goes on with it: the one before never came back from a call. All its jobs
    /// are lost, and so are the reads that were under way; whatever they were for is the host's.
    /// The application, which is off, is asked nothing any more but where answers of the host end
    /// that are waited for out of their order; not even that, if it is what was lost.
    pub fn take_over(&mut self, lost: Call) {
        self.checks.clear();
        self.reads.clear();
        self.wanting.clear();
        self.engine = Engine::new(0, Pool::new(0));
        for at in 0..self.flows.len() {
            let generation = self.generations.get(at).copied().unwrap_or(0);
            let id = FlowId { at, generation };
            let Some(mut flow) = self.lift(id) else { continue };
            flow.has_job = false;
            flow.ask_instead_of_reading();
            if lost == Call::FrameAnswer && !flow.asked.is_empty() && !flow.stop_framing() {
                tracing::warn!("answers of the host are not told apart any more; flow reset");
                flow.broken = true;
            }
            if flow.host_ended && !(flow.has_last_words && flow.can_frame()) {
                self.let_go(&mut flow);
            }
            self.advance(id, &mut flow);
            self.lower(id, flow);
        }
    }

    /// After it was taken over, and the application is asked again: reads can be begun.
    pub fn revive(&mut self, contexts: usize, pool: Pool) {
        if self.engine.is_empty() {
            self.engine = Engine::new(contexts, pool);
        }
    }

    /// Answers were found in what the host sent.
    fn framed(&mut self, frame: Frame) {
        let Frame { flow: id, bytes, cursor, found, then, .. } = frame;
        drop(bytes);
        let Some(mut flow) = self.lift(id) else { return };
        flow.answer_cursor = Cursor::default();
        found.into_iter().for_each(|len| flow.answered(len));
        match then {
            Then::Needs(needs) => flow.awaits(needs, cursor),
            Then::Foreign => {
                tracing::warn!("the host's answer is none of its application; flow reset");
                flow.broken = true;
            }
            Then::Nothing => {}
        }
        flow.pass();
        if flow.has_last_words {
            self.let_go(&mut flow);
        }
        self.advance(id, &mut flow);
        self.lower(id, flow);
    }

    /// Messages of a client were divided: gives their parts their slots.
    fn told(&mut self, divide: Divide) {
        let Divide { flow: id, input, cursor, mut told, found, then, .. } = divide;
        drop(input);
        let Some(mut flow) = self.lift(id) else { return };
        if flow.foreign || flow.host_ended {
            // Another job of the flow came back first: its input is forwarded, or dropped.
            return self.lower(id, flow);
        }
        let mut input = std::mem::take(&mut flow.input);
        // Line 6 of Figure 13: once one is refused, all that came with it go to the host.
        let (mut refused, mut placed) = (false, 0);
        (flow.needs, flow.cursor) = (0, Cursor::default());
        for Told { len, division, reads } in told.iter_mut().take(found) {
            let message = input.as_slice().get(..*len).unwrap_or_default();
            let answers = Answers::Reads(reads);
            if !flow.has_room()
                || !self.place_parts(id, &mut flow, message, division, answers, &mut refused)
            {
                break;
            }
            input.take(*len);
            placed += 1;
        }
        flow.input = input;
        match then {
            _ if placed < found => {}
            Then::Needs(needs) => (flow.needs, flow.cursor) = (needs, cursor),
            Then::Foreign => {
                flow.foreign = true;
                self.advance(id, &mut flow);
            }
            Then::Nothing => {}
        }
        if self.spare.len() < SPARE {
            self.spare.push(told);
        }
        self.lower(id, flow);
    }

    /// Goes on with the input of a flow, as far as that asks nobody here.
    pub(super) fn advance(&mut self, id: FlowId, flow: &mut Flow) {
        flow.stalled = flow.stalled.filter(|touches| flow.reads(*touches));
        if flow.host_ended {
            return;
        }
        if !flow.foreign {
            if self.asks.is_some() {
                self.divide_told(id, flow);
            } else if self.health.is_off() {
                flow.foreign = true;
            }
        }
        if flow.foreign {
            forward(flow);
        }
    }

    /// Places messages at the start of the input that a plug-in was asked about.
    fn divide_told(&mut self, id: FlowId, flow: &mut Flow) {
        let mut input = std::mem::take(&mut flow.input);
        let mut refused = false;
        while flow.has_room() && !input.is_empty() {
            if let Some(asks) = &mut self.asks {
                ask_ahead(&*self.app, asks, id, flow, input.as_slice());
            }
            if flow.ahead.has_ended() {
                flow.foreign = true;
                break;
            }
            let Some((len, verdict)) = flow.ahead.take() else { break };
            let message = input.as_slice().get(..len).unwrap_or_default();
            if !self.place_told(id, flow, message, verdict, &mut refused) {
                break;
            }
            input.take(len);
        }
        flow.input = input;
    }

    /// Gives parts their slots; without parts, or with too many, the message is the host's. False
    /// if it must wait for reads of its flow.
    pub(super) fn place_parts(
        &mut self,
        id: FlowId,
        flow: &mut Flow,
        message: &[u8],
        division: &mut Division,
        answers: Answers<'_>,
        refused: &mut bool,
    ) -> bool {
        if division.parts().is_empty() || division.parts().len() > PARTS_MAX {
            division.clear();
            division.host(Span::Message(0..message.len()), Touches::Everything);
        }
        let waits = division.parts().iter().filter_map(|part| match part {
            Part::Host { touches, .. } if flow.reads(*touches) => Some(*touches),
            _ => None,
        });
        // It is not divided again before it can be placed, whatever else comes meanwhile.
        flow.stalled = waits.reduce(|_, _| Touches::Everything);
        if flow.stalled.is_some() {
            return false;
        }
        let mut nth = 0;
        for part in division.parts() {
            match part {
                Part::Literal(span) => flow.push_literal(division.bytes(span, message)),
                Part::Host { request, touches } => {
                    self.counts.to_host += 1;
                    flow.ask_in_order(division.bytes(request, message), *touches);
                }
                Part::Dpu { request, key } => {
                    let request = division.bytes(request, message);
                    let (read, answering) = match &answers {
                        Answers::Reads(reads) => (reads.get(nth).copied().flatten(), None),
                        Answers::Plans(plans) => {
                            let plan = plans.get(nth);
                            (plan.map(|p| p.read), plan.map(|p| p.answering.clone()))
                        }
                    };
                    nth += 1;
                    let read = read.filter(|_| !*refused && !flow.asks_about(*key));
                    self.offload(id, flow, request, *key, (read, answering), refused);
                }
            }
        }
        true
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
                flow.push_slot(Slot::Dpu { request: request.into(), key, answering });
                flow.reading += 1;
                flow.kept += request.len();
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

/// The answer in what was read; without one, the buffer.
fn piece(filled: Filled, answer: Option<Answer>) -> Result<Piece, Buf> {
    let Filled { buffer, bytes } = filled;
    let (Some(Answer { head, payload }), Some(range)) = (answer, bytes) else { return Err(buffer) };
    let is_there = payload.start <= payload.end && payload.end <= range.len();
    if !is_there {
        return Err(buffer);
    }
    let payload = range.start + payload.start..range.start + payload.end;
    Ok(Piece::Read { head, buffer, payload })
}

/// Forwards as much of the input as there is room for; what the host sends is the client's from
/// here on.
fn forward(flow: &mut Flow) {
    if flow.input.is_empty() || !flow.has_room() {
        return;
    }
    if flow.reading > 0 {
        // One of them may yet have to ask the host, before these bytes.
        flow.stalled = Some(Touches::Everything);
        return;
    }
    flow.host_used = true;
    if !matches!(flow.slots.back(), Some(Slot::Rest)) {
        flow.push_slot(Slot::Rest);
    }
    let n = flow.input.len().min(TO_HOST_MAX.saturating_sub(flow.to_host.len()));
    let input = std::mem::take(&mut flow.input);
    flow.to_host.push(input.as_slice().get(..n).unwrap_or_default());
    flow.input = input;
    flow.input.take(n);
}
