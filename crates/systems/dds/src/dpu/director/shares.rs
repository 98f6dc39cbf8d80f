//! Memory of all flows of a director: how much may be read from either leg now.
//!
//! What flows hold, requests and answers on their way, is bounded for all of them together and
//! shared as [`Memory`] says; buffers of the pool are bounded by that. A flow that finds no memory
//! is not read from: its sender is stopped by TCP, and nobody is told an error. Two parts of the
//! bound are each flow's own, one for what its client sends and one for what its host answers: so
//! who needs little goes on whatever others hold.
//!
//! Where a flow can go on only by more
//! * of its client's first message, it waits for memory. When for [`PATIENCE`] nobody who waits
//!   found any, those who wait are forwarded: a message that passes through needs no memory to
//!   speak of;
//! * of an answer that the host began, its part is enough where the application passes answers
//!   piece by piece ([`Cursor::passed`]). Where it must see one whole, one flow at a time has the
//!   *turn* and goes beyond the bound, for [`TURN_MAX`] at most if others wait.
//!
//! So nobody waits for a client that is slow: its memory is its own share, and who needs more than
//! is left is served by the host.
//!
//! [`Cursor::passed`]: crate::dpu::offload::Cursor::passed

use std::collections::VecDeque;
use std::time::Duration;

use outboard_base::Time;

use super::flow::{Flow, FlowId};
use super::machine::Director;
use crate::memory::{Memory, Turn};

/// So long those who wait for memory wait before they are forwarded, if nobody found any.
pub(super) const PATIENCE: Duration = Duration::from_millis(100);
/// So long one flow may have the turn while others wait for it.
pub(super) const TURN_MAX: Duration = Duration::from_secs(1);
/// Of those that wait, so many are looked at when there is more memory.
const LOOKED_AT: usize = 64;

/// What flows hold, and who waits for more.
#[derive(Debug)]
pub(super) struct Shares {
    /// Those in its line wait for the turn.
    memory: Memory<FlowId>,
    /// Flows that wait for memory for their client's message.
    waiting: VecDeque<FlowId>,
    /// Since when, without one that found any.
    since: Option<Time>,
}

impl Default for Shares {
    fn default() -> Shares {
        Shares::new(1, usize::MAX)
    }
}

impl Shares {
    fn new(flows: usize, most: usize) -> Shares {
        // Each has two parts.
        let memory = Memory::new(flows.saturating_mul(2), most);
        Shares { memory, waiting: VecDeque::new(), since: None }
    }

    /// What a flow holds has changed, perhaps. What it has the turn for is not counted: nobody
    /// else has less for it.
    pub(super) fn count(&mut self, id: FlowId, flow: &mut Flow) {
        let now = if self.memory.has_turn(id) { 0 } else { flow.weight() };
        self.memory.count(std::mem::replace(&mut flow.counted, now), now);
    }

    /// It is gone.
    pub(super) fn forget(&mut self, id: FlowId, flow: &Flow) {
        self.memory.count(flow.counted, 0);
        if self.memory.has_turn(id) {
            self.memory.turn = None;
        }
        if flow.waits {
            self.waiting.retain(|other| *other != id);
            self.memory.forget(id);
        }
    }

    fn client_room(&self, flow: &Flow) -> usize {
        let own = flow.weight();
        self.memory.room(own).max(self.memory.part_left(own))
    }

    fn host_room(&self, flow: &Flow) -> usize {
        self.memory.room(flow.weight()).max(self.memory.part_left(flow.answers_held()))
    }

    /// The same for one that has the turn. What can go on to its client as it comes is no more
    /// than a part, which it may leave there.
    fn turn_room(&self, flow: &Flow) -> usize {
        if !flow.needs_answer() {
            return 0;
        }
        flow.answer_needs.saturating_sub(flow.from_host.len()).max(self.memory.part_left(0))
    }
}

impl Director {
    /// The same with at most `bytes` held by all its flows, of which there may be so many.
    #[must_use]
    pub fn within(mut self, flows: usize, bytes: usize) -> Director {
        self.shares = Shares::new(flows, bytes);
        self
    }

    /// Bytes to read from a client now at most. One that could be read from and finds no memory
    /// is news when there is some.
    pub fn client_room(&mut self, id: FlowId) -> usize {
        let Some(flow) = self.flow(id).filter(|flow| flow.wants_client()) else { return 0 };
        if flow.host_ended {
            return usize::MAX;
        }
        let room = self.shares.client_room(flow);
        if room == 0 && flow.needs_input() && !flow.waits {
            self.shares.waiting.push_back(id);
            self.flow_mut(id).into_iter().for_each(|flow| flow.waits = true);
        }
        room
    }

    /// Bytes to read from the host for a flow now at most; else as [`Director::client_room`].
    pub fn host_room(&mut self, id: FlowId) -> usize {
        let Some(flow) = self.flow(id).filter(|flow| flow.wants_host()) else { return 0 };
        let room = self.shares.host_room(flow);
        if room > 0 {
            return room;
        }
        if self.shares.memory.has_turn(id) {
            return self.shares.turn_room(flow);
        }
        if flow.needs_answer() && !flow.waits {
            self.shares.memory.wait(id);
            self.flow_mut(id).into_iter().for_each(|flow| flow.waits = true);
        }
        0
    }

    /// Whether somebody waits for memory, or goes beyond the bound:
    /// [`Director::share_memory`] is to be called.
    #[must_use]
    pub fn is_short_of_memory(&self) -> bool {
        let Shares { memory, waiting, .. } = &self.shares;
        memory.turn.is_some() || memory.is_waited_for() || !waiting.is_empty()
    }

    /// When to call it at the latest.
    #[must_use]
    pub fn patience_ends(&self) -> Option<Time> {
        let Shares { memory, since, .. } = &self.shares;
        let turn = memory.turn.filter(|_| memory.is_waited_for());
        let turn_ends = turn.map(|turn| turn.since.after(TURN_MAX));
        since.map(|since| since.after(PATIENCE)).into_iter().chain(turn_ends).min()
    }

    /// Bytes that all flows hold.
    #[must_use]
    pub fn held(&self) -> usize {
        self.shares.memory.held().0
    }

    /// Gives memory that is free to those who wait.
    pub fn share_memory(&mut self, now: Time) {
        self.look_at_turn(now);
        while let Some(id) = self.shares.memory.next_turn() {
            let Some(mut flow) = self.lift(id) else { continue };
            flow.waits = false;
            self.shares.memory.turn = Some(Turn { id, since: now, requests: 0 });
            self.lower(id, flow);
        }
        let mut found = false;
        for _ in 0..self.shares.waiting.len().min(LOOKED_AT) {
            let Some(id) = self.shares.waiting.pop_front() else { break };
            let Some(mut flow) = self.lift(id) else { continue };
            flow.waits = self.shares.client_room(&flow) == 0 && flow.needs_input();
            if flow.waits {
                self.shares.waiting.push_back(id);
                self.lower_quietly(id, flow);
            } else {
                found = true;
                self.lower(id, flow);
            }
        }
        let Shares { waiting, since, .. } = &mut self.shares;
        *since = if waiting.is_empty() {
            None
        } else if found {
            Some(now)
        } else {
            Some(since.unwrap_or(now))
        };
        if since.is_some_and(|since| now >= since.after(PATIENCE)) {
            self.forward_waiting();
        }
    }

    /// Ends a turn that is not needed any more, or took too long. Who needs it still finds itself
    /// at the end of the line.
    fn look_at_turn(&mut self, now: Time) {
        let Some(turn) = self.shares.memory.turn else { return };
        let Some(flow) = self.flow(turn.id) else {
            self.shares.memory.turn = None;
            return;
        };
        let is_late = self.shares.memory.is_waited_for() && now >= turn.since.after(TURN_MAX);
        let needs = flow.needs_answer() && flow.wants_host();
        if needs && !is_late && self.shares.host_room(flow) == 0 {
            return;
        }
        self.shares.memory.turn = None;
        if let Some(flow) = self.lift(turn.id) {
            self.lower(turn.id, flow);
        }
    }

    /// Nobody who waits found memory: their messages are the host's as they come, and all that
    /// follows them.
    fn forward_waiting(&mut self) {
        self.shares.since = None;
        for id in std::mem::take(&mut self.shares.waiting) {
            let Some(mut flow) = self.lift(id) else { continue };
            flow.waits = false;
            if flow.needs_input() {
                flow.foreign = true;
                self.counts.crowded += 1;
                self.advance(id, &mut flow);
            }
            self.lower(id, flow);
        }
    }
}
