//! Turns on ranges of blocks: of one file, readers side by side, a writer alone.
//!
//! So a read sees a write whole or not at all, and two that change parts of one block do not undo
//! each other. Turns are taken in the order they were asked for: nobody is overtaken by who
//! overlaps with him.

use std::collections::VecDeque;
use std::ops::Range;
use std::task::Waker;

#[derive(Debug)]
struct Turn {
    id: u64,
    /// The thread that alone goes on with it; 0 if any may.
    thread: u32,
    blocks: Range<u64>,
    writes: bool,
    /// Of one who waits.
    waker: Option<Waker>,
}

impl Turn {
    fn excludes(&self, blocks: &Range<u64>, writes: bool) -> bool {
        (self.writes || writes) && self.blocks.start < blocks.end && blocks.start < self.blocks.end
    }
}

/// The turns of one file: held and waited for, in order.
#[derive(Debug, Default)]
pub(super) struct Ranges {
    turns: VecDeque<Turn>,
    next: u64,
}

impl Ranges {
    /// Asks for a turn; its name, and whether it has come already.
    pub(super) fn ask(&mut self, thread: u32, blocks: Range<u64>, writes: bool) -> (u64, bool) {
        let id = self.next;
        self.next += 1;
        let come = !self.turns.iter().any(|turn| turn.excludes(&blocks, writes));
        self.turns.push_back(Turn { id, thread, blocks, writes, waker: None });
        (id, come)
    }

    /// Whether a turn has come; if not, whom to wake.
    pub(super) fn has_come(&mut self, id: u64, waker: &Waker) -> bool {
        let Some(at) = self.turns.iter().position(|turn| turn.id == id) else { return true };
        let mut before = self.turns.iter().take(at);
        let Some(mine) = self.turns.get(at) else { return true };
        if !before.any(|turn| turn.excludes(&mine.blocks, mine.writes)) {
            return true;
        }
        if let Some(mine) = self.turns.get_mut(at) {
            mine.waker = Some(waker.clone());
        }
        false
    }

    /// Ends a turn, or the wait for it; whom to wake.
    pub(super) fn leave(&mut self, id: u64) -> Vec<Waker> {
        let Some(at) = self.turns.iter().position(|turn| turn.id == id) else { return Vec::new() };
        let Some(left) = self.turns.remove(at) else { return Vec::new() };
        self.turns
            .iter_mut()
            .skip(at)
            .filter(|turn| left.excludes(&turn.blocks, turn.writes))
            .filter_map(|turn| turn.waker.take())
            .collect()
    }

    /// Ends all turns of a thread that never comes back; whom to wake.
    pub(super) fn forsake(&mut self, thread: u32) -> Vec<Waker> {
        let is_lost = |turn: &&Turn| turn.thread == thread;
        let lost: Vec<u64> = self.turns.iter().filter(is_lost).map(|turn| turn.id).collect();
        lost.into_iter().flat_map(|id| self.leave(id)).collect()
    }

    /// The file is gone: nobody waits any longer.
    pub(super) fn end(self) {
        self.turns.into_iter().filter_map(|turn| turn.waker).for_each(Waker::wake);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn readers_share_writers_do_not_and_order_holds() {
        let mut ranges = Ranges::default();
        let waker = Waker::noop();
        let (r1, come) = ranges.ask(0, 0..10, false);
        assert!(come);
        assert!(ranges.ask(0, 5..7, false).1, "beside another reader");
        let (w, come) = ranges.ask(0, 6..8, true);
        assert!(!come);
        assert!(ranges.ask(0, 20..30, true).1, "elsewhere");
        let (r3, come) = ranges.ask(0, 7..9, false);
        assert!(!come, "not before the writer who asked first");
        assert!(!ranges.has_come(w, waker));
        assert!(ranges.leave(r1).len() == 1 && !ranges.has_come(w, waker));
        assert!(ranges.leave(1).len() == 1 && ranges.has_come(w, waker));
        assert!(!ranges.has_come(r3, waker));
        assert_eq!(ranges.leave(w).len(), 1);
        assert!(ranges.has_come(r3, waker));
        assert!(ranges.leave(w).is_empty());
    }

    #[test]
    fn turns_of_a_thread_that_is_lost_end_and_no_others() {
        let mut ranges = Ranges::default();
        let waker = Waker::noop();
        let lost = [ranges.ask(7, 0..10, false).0, ranges.ask(7, 20..30, false).0];
        let (other, _) = ranges.ask(8, 0..5, false);
        let (first, _) = ranges.ask(0, 4..6, true);
        let (second, _) = ranges.ask(0, 25..26, true);
        assert!(!ranges.has_come(first, waker) && !ranges.has_come(second, waker));
        assert_eq!(ranges.forsake(7).len(), 2);
        assert!(!ranges.has_come(first, waker) && ranges.has_come(second, waker));
        // It comes back after all.
        assert!(lost.into_iter().all(|id| ranges.leave(id).is_empty()));
        assert_eq!(ranges.leave(other).len(), 1);
        assert!(ranges.has_come(first, waker));
    }
}
