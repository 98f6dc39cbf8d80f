//! A director whose messages are divided in another process: it asks, and goes on.
//!
//! Messages wait at the start of their flow's input until what became of them is known, and are
//! placed in order, so that all that holds of a flow holds here too. Asked about are as many as
//! have come, of all flows: that is what makes crossing cheap.

use std::collections::VecDeque;
use std::sync::Arc;

use super::flow::{Flow, FlowId};
use super::machine::Director;
use crate::dpu::offload::contained::Clock;
use crate::dpu::offload::plugin::{Ask, Frames, MESSAGE_MAX, Verdict};
use crate::dpu::offload::pool::Pool;
use crate::dpu::offload::{
    Answer, Application, Division, Framing, Item, Key, Lookup, ReadOp, WriteOp,
};

/// The part of an application that is declared: where messages and answers end. Who divides them is
/// elsewhere.
struct Framed {
    messages: Frames,
    answers: Frames,
}

impl Application for Framed {
    fn frame(&self, stream: &[u8]) -> Framing {
        self.messages.frame(stream)
    }

    fn frame_answer(&self, stream: &[u8]) -> Framing {
        self.answers.frame(stream)
    }

    fn off_pred(&self, _: &[u8], _: &dyn Lookup, _: &mut Division) {}

    fn off_func(&self, _: &[u8], _: &dyn Lookup) -> Option<ReadOp> {
        None
    }

    fn answer(&self, _: &[u8], _: ReadOp, _: &[u8]) -> Option<Answer> {
        None
    }

    fn cache(&self, _: WriteOp<'_>, _: &mut Vec<(Key, Item)>) {}

    fn invalidate(&self, _: ReadOp, _: &mut Vec<Key>) {}
}

impl Director {
    /// A director whose messages a plug-in divides: [`Director::next_ask`], [`Director::divided`].
    #[must_use]
    pub fn asking(
        (messages, answers): (Frames, Frames),
        table: Arc<dyn Lookup>,
        contexts: usize,
        pool: Pool,
        clock: Clock,
    ) -> Director {
        let app = Arc::new(Framed { messages, answers });
        let mut director = Director::new(app, table, contexts, pool, clock);
        director.asks = Some(VecDeque::new());
        director
    }

    /// A message to be divided elsewhere, in the order they came.
    pub fn next_ask(&mut self) -> Option<Ask> {
        self.asks.as_mut()?.pop_front()
    }

    /// What became of a message that was asked about; without a verdict it is the host's. One that
    /// is not waited for is of no effect.
    pub fn divided(&mut self, id: FlowId, number: u64, verdict: Option<Verdict>) {
        let Some(mut flow) = self.lift(id) else { return };
        flow.ahead.answered(number, verdict);
        self.resume(id, flow);
    }

    /// The same for one that a plug-in divided, or did not. What it was told of the table and is
    /// not so any more makes the message the host's.
    pub(super) fn place_told(
        &mut self,
        id: FlowId,
        flow: &mut Flow,
        message: &[u8],
        verdict: Option<Verdict>,
        refused: &mut bool,
    ) -> bool {
        let table = &self.table;
        let is_so = |told: &Verdict| told.relies.iter().all(|(key, item)| table.get(*key) == *item);
        let mut told = verdict.filter(is_so).unwrap_or_default();
        let Verdict { division, plans, .. } = &mut told;
        let placed = self.place_parts(id, flow, message, division, Some(plans), refused);
        if placed {
            flow.ahead.pop(message.len());
        } else {
            flow.ahead.put_back(Some(told));
        }
        placed
    }
}

/// Asks about messages at the start of `bytes` that were not asked about yet: as many at once as
/// may be. A large one is the host's without a question.
pub(super) fn ask_ahead(
    app: &dyn Application,
    asks: &mut VecDeque<Ask>,
    id: FlowId,
    flow: &mut Flow,
    bytes: &[u8],
) {
    while let Some(rest) = flow.ahead.next_at().and_then(|at| bytes.get(at..)) {
        let Framing::Whole(len) = app.frame(rest) else { return };
        let Some(message) = rest.get(..len).filter(|message| !message.is_empty()) else { return };
        let number = flow.ahead.ask(len);
        if len > MESSAGE_MAX {
            flow.ahead.answered(number, None);
        } else {
            asks.push_back(Ask { flow: id, number, message: message.to_vec() });
        }
    }
}
