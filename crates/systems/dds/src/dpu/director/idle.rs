//! Which clients are idle: who gets nothing done, rather than who is silent. A client that sends
//! one byte of a command now and then would else keep its place for ever.

use std::time::Duration;

use outboard_base::Time;

use super::flow::{Flow, FlowId};
use super::machine::Director;

/// So many bytes of a message that is not whole are progress, if they come between two looks.
const PROGRESS: usize = 1 << 10;

/// What a client got done: messages of its that were placed, answers it took, and bytes that are
/// more than a trickle.
#[derive(Debug, Default)]
pub(super) struct Progress {
    has_moved: bool,
    /// Bytes since it was looked at, of no whole message yet.
    arrived: usize,
    /// When it was found to have moved.
    since: Time,
}

impl Progress {
    /// It got something done.
    pub(super) fn made(&mut self) {
        self.has_moved = true;
    }

    /// Bytes came; of a stream without messages each counts.
    pub(super) fn arrived(&mut self, bytes: usize, counts: bool) {
        self.arrived += bytes;
        self.has_moved |= self.arrived >= PROGRESS || (counts && bytes > 0);
    }

    /// Since when it got nothing done, seen from `now`.
    fn look(&mut self, now: Time, waits: bool) -> Time {
        if std::mem::take(&mut self.has_moved) || waits {
            self.since = now;
        }
        self.arrived = 0;
        self.since
    }
}

impl Director {
    /// A flow came now.
    pub fn came(&mut self, id: FlowId, now: Time) {
        self.flow_mut(id).into_iter().for_each(|flow| flow.progress.since = now);
    }

    /// Flows whose clients got nothing done for so long, and wait for no answer. To be called
    /// several times in that time.
    pub fn find_idle(&mut self, now: Time, timeout: Duration) -> Vec<FlowId> {
        let flows = self.flows.iter_mut().zip(&self.generations).enumerate();
        let mut look = |(at, (flow, generation)): (usize, (&mut Option<Flow>, &u64))| {
            let flow = flow.as_mut()?;
            let waits = flow.awaits_answer();
            let since = flow.progress.look(now, waits);
            (now >= since.after(timeout)).then_some(FlowId { at, generation: *generation })
        };
        flows.filter_map(&mut look).collect()
    }
}
