//! A director whose messages are divided in another process: it asks, and goes on.
//!
//! Messages wait at the start of their flow's input until what became of them is known, and are
//! placed in order, so that all that holds of a flow holds here too. Asked about are as many as
//! have come, of all flows: that is what makes crossing cheap.

use std::collections::VecDeque;

use super::flow::{Flow, FlowId};
use super::limits::INPUT_MAX;
use super::machine::{Answers, Director};
use crate::dpu::offload::plugin::{Ask, MESSAGE_MAX, Verdict};
use crate::dpu::offload::{Application, Cursor, Framing};

impl Director {
    /// The same, but a plug-in divides the messages: [`Director::next_ask`],
    /// [`Director::divided`]. Its application is a [`Declared`] one.
    ///
    /// [`Declared`]: crate::dpu::offload::plugin::Declared
    #[must_use]
    pub fn asking(mut self) -> Director {
        self.asks = Some(VecDeque::new());
        self
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
        let answers = Answers::Plans(plans);
        let placed = self.place_parts(id, flow, message, division, answers, refused);
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
    while let Some(at) = flow.ahead.next_at() {
        let rest = bytes.get(at..).unwrap_or_default();
        if rest.is_empty() || (rest.len() < flow.needs && !flow.client_ended) {
            return;
        }
        let mut cursor = flow.cursor;
        match app.frame(cursor.shown(rest), &mut cursor) {
            Framing::Whole(len) if (1..=rest.len()).contains(&len) => {
                (flow.needs, flow.cursor) = (0, Cursor::default());
                let number = flow.ahead.ask(len);
                if len > MESSAGE_MAX {
                    flow.ahead.answered(number, None);
                } else {
                    let message = rest.get(..len).unwrap_or_default().to_vec();
                    asks.push_back(Ask { flow: id, number, message });
                }
            }
            Framing::More(needs)
                if needs.max(rest.len() + 1) <= INPUT_MAX && !flow.client_ended =>
            {
                (flow.needs, flow.cursor) = (needs.max(rest.len() + 1), cursor);
                return;
            }
            _ => return flow.ahead.end(),
        }
    }
}
