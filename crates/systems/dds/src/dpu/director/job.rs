//! Calls of user code, as things to be done elsewhere.
//!
//! A call may never return, and would take with it whatever it was called from. So a director calls
//! nothing: it hands out jobs ([`Director::take_jobs`]), each with all it needs and none of
//! what others do, and goes on when they are brought back ([`Director::bring`]). What is not
//! brought back is missed by nobody: the bytes lie in the flow still, and a read's request in its
//! slot ([`Director::take_over`]).
//!
//! [`Director::take_jobs`]: super::Director::take_jobs
//! [`Director::bring`]: super::Director::bring
//! [`Director::take_over`]: super::Director::take_over

use std::sync::Arc;

use super::flow::{Excerpt, FlowId};
use super::limits::{ANSWER_MAX, INPUT_MAX};
use super::machine::Client;
use crate::dpu::offload::contained::Contained;
use crate::dpu::offload::engine::Filled;
use crate::dpu::offload::health::Call;
use crate::dpu::offload::{Answer, Application, Cursor, Division, Framing, Lookup, Part, ReadOp};

/// Messages of one job at most. Some may have to be divided again: those behind one that waits.
pub(super) const MESSAGES: usize = 16;
/// And no more of them once so many bytes were looked at, so that little is divided again, and the
/// jobs of other flows come soon.
const BYTES: usize = 64 << 10;

/// Something to ask an application.
#[derive(Debug)]
pub struct Job(pub(super) Kind);

#[derive(Debug)]
pub(super) enum Kind {
    Divide(Divide),
    Frame(Frame),
    Check(Check),
}

impl Job {
    /// The first of its calls.
    #[cfg(test)]
    pub(super) fn call(&self) -> Call {
        match &self.0 {
            Kind::Divide(_) => Call::OffPred,
            Kind::Frame(_) => Call::FrameAnswer,
            Kind::Check(_) => Call::Answer,
        }
    }

    /// Asks.
    pub fn run(&mut self, app: &dyn Application, table: &dyn Lookup, calls: &mut Contained) {
        match &mut self.0 {
            Kind::Divide(divide) => divide.run(app, table, calls),
            Kind::Frame(frame) => frame.run(app, calls),
            Kind::Check(check) => check.run(app, calls),
        }
    }
}

/// What follows the messages that were found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Then {
    /// Nothing was looked at, or as many were found as were asked for.
    Nothing,
    /// Nothing can be said before there are so many bytes.
    Needs(usize),
    /// No messages.
    Foreign,
}

/// One message, divided.
#[derive(Debug, Default)]
pub(super) struct Told {
    pub(super) len: usize,
    pub(super) division: Division,
    /// `OffFunc` of its requests of the DPU side.
    pub(super) reads: Vec<Option<ReadOp>>,
}

/// What a client sent, to be divided: `frame`, `off_pred`, `off_func`.
#[derive(Debug)]
pub(super) struct Divide {
    pub(super) flow: FlowId,
    pub(super) input: Excerpt,
    /// No more bytes come.
    pub(super) is_all: bool,
    /// How far the first message is known; when this was run, that of which more is needed.
    pub(super) cursor: Cursor,
    /// Places to be used again; the first `found` of them are messages.
    pub(super) told: Vec<Told>,
    pub(super) found: usize,
    pub(super) then: Then,
}

impl Divide {
    fn run(&mut self, app: &dyn Application, table: &dyn Lookup, calls: &mut Contained) {
        let mut at = 0;
        while self.found < MESSAGES && at < BYTES {
            let Some(rest) = self.input.get(at..).filter(|rest| !rest.is_empty()) else { break };
            let (shown, cursor) = (self.cursor.shown(rest), &mut self.cursor);
            let framing = calls.call_anyway(Call::Frame, || app.frame(shown, cursor));
            match framing.filter(|_| self.cursor.passed <= rest.len()) {
                Some(Framing::Whole(len)) if (1..=rest.len()).contains(&len) => {
                    self.cursor = Cursor::default();
                    let message = rest.get(..len).unwrap_or_default();
                    if self.told.len() == self.found {
                        self.told.push(Told::default());
                    }
                    if let Some(told) = self.told.get_mut(self.found) {
                        told.divide(message, app, table, calls);
                    }
                    self.found += 1;
                    at += len;
                }
                Some(Framing::More(needs)) if needs.max(rest.len() + 1) <= INPUT_MAX => {
                    let is_more = !self.is_all;
                    self.then = if is_more {
                        Then::Needs(needs.max(rest.len() + 1))
                    } else {
                        Then::Foreign
                    };
                    break;
                }
                _ => {
                    self.then = Then::Foreign;
                    break;
                }
            }
        }
    }
}

impl Told {
    fn divide(
        &mut self,
        message: &[u8],
        app: &dyn Application,
        table: &dyn Lookup,
        calls: &mut Contained,
    ) {
        let Told { len, division, reads } = self;
        *len = message.len();
        division.clear();
        reads.clear();
        if calls.call(Call::OffPred, || app.off_pred(message, table, division)).is_none() {
            division.clear();
        }
        for part in division.parts() {
            let Part::Dpu { request, .. } = part else { continue };
            let request = division.bytes(request, message);
            reads.push(calls.call(Call::OffFunc, || app.off_func(request, table)).flatten());
        }
    }
}

/// What the host sent, in which answers end: `frame_answer`.
#[derive(Debug)]
pub(super) struct Frame {
    pub(super) flow: FlowId,
    /// What is not on its way to the client yet.
    pub(super) bytes: Excerpt,
    /// Bytes of the first answer that are.
    pub(super) sent: usize,
    /// Whether its bytes may go as they come: no other answer is to go before.
    pub(super) is_first: bool,
    /// Answers that are waited for.
    pub(super) most: usize,
    /// As in [`Divide`].
    pub(super) cursor: Cursor,
    /// Lengths of those found, without what was sent.
    pub(super) found: Vec<usize>,
    pub(super) then: Then,
}

impl Frame {
    fn run(&mut self, app: &dyn Application, calls: &mut Contained) {
        let (mut at, mut sent) = (0, self.sent);
        while self.found.len() < self.most {
            let Some(rest) = self.bytes.get(at..).filter(|rest| !rest.is_empty()) else { break };
            let there = sent + rest.len();
            let shown = rest.get(self.cursor.passed - sent..).unwrap_or_default();
            let cursor = &mut self.cursor;
            let framing = calls.call_anyway(Call::FrameAnswer, || app.frame_answer(shown, cursor));
            match framing.filter(|_| (sent..=there).contains(&self.cursor.passed)) {
                Some(Framing::Whole(len)) if (sent + 1..=there).contains(&len) => {
                    self.found.push(len - sent);
                    at += len - sent;
                    (sent, self.cursor) = (0, Cursor::default());
                }
                Some(Framing::More(needs)) if self.may_keep(needs, sent) => {
                    self.then = Then::Needs(needs.max(there + 1));
                    break;
                }
                _ => {
                    self.then = Then::Foreign;
                    break;
                }
            }
        }
    }
}

impl Frame {
    /// Whether an answer of which `sent` bytes are gone may be waited for until it has so many.
    fn may_keep(&self, needs: usize, sent: usize) -> bool {
        let goes_on = self.is_first && self.found.is_empty();
        let gone = if goes_on { self.cursor.passed } else { sent };
        needs.saturating_sub(gone) <= ANSWER_MAX
    }
}

/// What was read for a request, in which its answer is looked for: `answer`.
#[derive(Debug)]
pub(super) struct Check {
    pub(super) client: Client,
    pub(super) request: Arc<[u8]>,
    pub(super) read: ReadOp,
    pub(super) filled: Filled,
    pub(super) answer: Option<Answer>,
}

impl Check {
    fn run(&mut self, app: &dyn Application, calls: &mut Contained) {
        let Check { request, read, filled, .. } = self;
        let bytes = filled.bytes.clone().and_then(|range| filled.buffer.get(range));
        self.answer = bytes.and_then(|bytes| {
            calls.call(Call::Answer, || app.answer(request, *read, bytes)).flatten()
        });
    }
}
