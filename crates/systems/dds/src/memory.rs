//! One bound for what all connections of somebody hold: requests that have not come whole, and
//! answers that were not sent. The host's servers and the director keep it, each with its own
//! rules for who may go beyond.
//!
//! Half of the bound is shared by who needs it: a connection may hold as much of that as is free
//! beside it, so that `n` greedy ones hold a part in `n + 1` each. (Dynamic thresholds, as switches
//! share their buffers: Choudhury and Hahne, 1998.) The other half is divided by as many as there
//! may be: its part each may hold, whatever the others do. Who finds no room waits, in order; its
//! bytes stay in the kernel, and its sender is stopped by TCP.
//!
//! A request that needs more than its share would wait for ever. So the first in line has the
//! *turn*: it goes on beyond the bound, one at a time, until whoever serves it says that it is
//! over.

use std::collections::VecDeque;

use outboard_base::Time;

/// Less room than this is none.
const ROOM_MIN: usize = 512;
/// Room for small requests.
const PART_MIN: usize = 1 << 10;
/// Of those that wait, so many are looked at when there is more room.
const LOOKED_AT: usize = 64;

/// Who goes beyond the bound.
#[derive(Clone, Copy, Debug)]
pub struct Turn<Id> {
    /// Who it is.
    pub id: Id,
    /// Since when.
    pub since: Time,
    /// Requests it had made when its turn came.
    pub requests: u64,
}

/// The bound, and who waits for it.
#[derive(Debug)]
pub struct Memory<Id> {
    most: usize,
    held: usize,
    peak: usize,
    /// What each may hold, whatever the others do.
    part: usize,
    waiting: VecDeque<Id>,
    /// Who goes beyond it now.
    pub turn: Option<Turn<Id>>,
    /// What was free when those that wait were last looked at.
    seen: usize,
}

impl<Id: Copy + PartialEq> Memory<Id> {
    /// For so many connections, `most` bytes.
    #[must_use]
    pub fn new(clients: usize, most: usize) -> Memory<Id> {
        let (held, peak) = (0, 0);
        let part = (most / 2 / clients.max(1)).max(PART_MIN);
        Memory { most, held, peak, part, waiting: VecDeque::new(), turn: None, seen: most }
    }

    /// Bytes held, and the most there ever were.
    #[must_use]
    pub fn held(&self) -> (usize, usize) {
        (self.held, self.peak)
    }

    /// A connection that held `before` holds `now`.
    pub fn count(&mut self, before: usize, now: usize) {
        self.held = self.held.saturating_sub(before) + now;
        self.peak = self.peak.max(self.held);
    }

    /// Whether half of it is free.
    #[must_use]
    pub fn is_half_free(&self) -> bool {
        self.free() >= self.most / 2
    }

    fn free(&self) -> usize {
        self.most.saturating_sub(self.held)
    }

    /// What a connection that holds `own` may take more now.
    #[must_use]
    pub fn room(&self, own: usize) -> usize {
        // Half of the difference: what it takes is no longer free.
        let shared = (self.most / 2).saturating_sub(self.held).saturating_sub(own) / 2;
        let room = shared.max(self.part_left(own)).min(self.free());
        if room < ROOM_MIN { 0 } else { room }
    }

    /// What it may take more of the part that is its own, whatever the others do.
    #[must_use]
    pub fn part_left(&self, own: usize) -> usize {
        self.part.saturating_sub(own)
    }

    /// Whether it goes beyond the bound.
    #[must_use]
    pub fn has_turn(&self, id: Id) -> bool {
        self.turn.is_some_and(|turn| turn.id == id)
    }

    /// It found no room.
    pub fn wait(&mut self, id: Id) {
        self.waiting.push_back(id);
    }

    /// It is gone.
    pub fn forget(&mut self, id: Id) {
        self.waiting.retain(|other| *other != id);
    }

    /// Whether somebody waits.
    #[must_use]
    pub fn is_waited_for(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// The first in line, if nobody has the turn. It does not wait any more; whether it is there
    /// still, the caller knows.
    pub fn next_turn(&mut self) -> Option<Id> {
        if self.turn.is_some() { None } else { self.waiting.pop_front() }
    }

    /// Those that wait and have room by now, by what `own` says of each, if there is more than
    /// there was.
    pub fn take_roomy(&mut self, mut own: impl FnMut(Id) -> Option<usize>) -> Vec<Id> {
        let grew = self.free() > self.seen;
        self.seen = self.free();
        let mut roomy = Vec::new();
        if !grew {
            return roomy;
        }
        let mut others = VecDeque::new();
        for id in self.waiting.drain(..self.waiting.len().min(LOOKED_AT)).collect::<Vec<_>>() {
            match own(id) {
                Some(own) if self.room(own) == 0 => others.push_back(id),
                _ => roomy.push(id),
            }
        }
        others.append(&mut self.waiting);
        self.waiting = others;
        roomy
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Greedy connections, each taking what room it has, in turns.
    fn shares(memory: &mut Memory<u32>, own: &mut [usize]) {
        let mut moved = true;
        while moved {
            moved = false;
            for own in own.iter_mut() {
                let room = memory.room(*own).min(64 << 10);
                memory.count(*own, *own + room);
                *own += room;
                moved |= room > 0;
            }
        }
    }

    /// Connections that take all they can and let go of nothing leave room for whoever comes.
    #[test]
    fn the_greedy_leave_room_for_whoever_comes() {
        let most = 8 << 20;
        let mut memory = Memory::new(1000, most);
        let mut own = Vec::new();
        for n in 1..=1000 {
            own.push(0);
            assert!(memory.room(0) >= most / 2 / 1000, "of {n}: {}", memory.room(0));
            shares(&mut memory, &mut own);
            assert!(memory.held().0 <= most);
            let equal = most / 2 / (n + 1);
            assert!(n > 1 || own[0] + 2 * ROOM_MIN >= equal, "alone it has half of the half");
        }
        assert!(own.iter().all(|own| *own >= ROOM_MIN) && own[0] < most / 2);
    }
}
