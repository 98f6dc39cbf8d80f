//! Which slots of the data medium are in use.
//!
//! A slot that nobody needs any more is *retired*: before it is used again a flush must have made
//! that durable which took its place, since after a loss of power the old grain may be the one
//! that counts.

use std::collections::VecDeque;
use std::ops::Range;

use outboard_base::planted::{Fault, is_planted};

use super::index::GRAIN;

/// Slots that new data leaves, so that holes can be made, and data written over, when there is no
/// other space: both give back what they take, but only later. So many of a store, within bounds.
const RESERVE_PART: u64 = 64;
const RESERVE_BOUNDS: (u64, u64) = (4, 64);
/// Fewest slots of a store.
pub(super) const SLOTS_MIN: u64 = 16;
/// Words in which a run of slots is looked for, before slots are taken where they are: 512 MiB.
const WORDS_LOOKED_AT: u64 = 1 << 10;

/// Grains that somebody is about to write.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Want {
    /// Where there was nothing.
    pub(super) fresh: u64,
    /// Over others, whose slots are given back.
    pub(super) over: u64,
    /// Where space was put aside.
    pub(super) aside: u64,
}

impl Want {
    /// The same, if those that are written over give nothing back.
    pub(super) fn kept(self) -> Want {
        Want { fresh: self.fresh + self.over, over: 0, ..self }
    }
}

/// A bit for each slot, and those that are retired.
#[derive(Debug, Default)]
pub(super) struct Space {
    /// Set: in use, or retired.
    words: Vec<u64>,
    slots: u64,
    used: u64,
    /// Slots that are promised to grains that are not written yet.
    aside: u64,
    /// Where the search goes on.
    next: u64,
    retired: VecDeque<u32>,
    /// How many were freed from the front of `retired`, ever.
    freed: u64,
}

impl Space {
    pub(super) fn new(capacity: u64) -> Space {
        let slots = (capacity / GRAIN).min(u64::from(u32::MAX));
        let words = usize::try_from(slots.div_ceil(64)).unwrap_or(0);
        Space { words: vec![0; words], slots, ..Space::default() }
    }

    /// Bytes of it.
    pub(super) fn capacity(&self) -> u64 {
        self.slots * GRAIN
    }

    /// Bytes that writes can still take.
    pub(super) fn free(&self) -> u64 {
        let retired = self.retired.len() as u64;
        (self.left() + retired).saturating_sub(self.reserve()) * GRAIN
    }

    fn reserve(&self) -> u64 {
        (self.slots / RESERVE_PART).clamp(RESERVE_BOUNDS.0, RESERVE_BOUNDS.1)
    }

    /// Slots that are neither in use nor promised.
    fn left(&self) -> u64 {
        (self.slots - self.used).saturating_sub(self.aside)
    }

    /// Slots that are promised.
    pub(super) fn aside(&self) -> u64 {
        self.aside
    }

    /// Promises slots; false if there are not as many.
    pub(super) fn put_aside(&mut self, count: u64) -> bool {
        let has = self.left() >= count.saturating_add(self.reserve());
        if has {
            self.aside += count;
        }
        has
    }

    /// So many slots are promised more, or fewer; whether or not there are as many.
    pub(super) fn promised(&mut self, more: i64) {
        self.aside = self.aside.saturating_add_signed(more);
    }

    /// Slots in use, retired ones too.
    pub(super) fn used(&self) -> u64 {
        self.used
    }

    /// Slots that wait for a flush.
    pub(super) fn retired(&self) -> u64 {
        self.retired.len() as u64
    }

    fn word(&mut self, slot: u64) -> Option<(&mut u64, u64)> {
        let word = usize::try_from(slot / 64).ok()?;
        let is_one = slot < self.slots;
        self.words.get_mut(word).filter(|_| is_one).map(|word| (word, 1 << (slot % 64)))
    }

    /// Marks a slot that something lies in; not if it is in use already, or none of ours.
    pub(super) fn mark(&mut self, slot: u32) -> bool {
        let fresh = self.word(u64::from(slot)).is_some_and(|(word, bit)| {
            let fresh = *word & bit == 0;
            *word |= bit;
            fresh
        });
        self.used += u64::from(fresh);
        fresh
    }

    /// Gives back what was never written, or what a flush has freed.
    pub(super) fn give_back(&mut self, slot: u32) {
        if let Some((word, bit)) = self.word(u64::from(slot)) {
            *word &= !bit;
            self.used -= 1;
        }
    }

    /// Takes slots, below `grown` if there are any; nothing if there are not as many. What is
    /// fresh leaves the reserve. What was put aside is not any more.
    pub(super) fn take(&mut self, want: Want, grown: u64) -> Option<Vec<u32>> {
        let Want { fresh, over, aside } = want;
        let keep = if fresh > 0 { self.reserve() } else { 0 };
        let (count, aside) = (fresh + over + aside, aside.min(self.aside));
        if self.left() + aside < count + keep {
            return None;
        }
        if count == 0 {
            return Some(Vec::new());
        }
        self.aside -= aside;
        let (mut taken, grown) = (Vec::new(), grown.min(self.slots));
        let next = if self.next < grown { self.next } else { 0 };
        // Where slots lie in a row, one write of the medium takes all.
        let run = self.run(next..grown, count).or_else(|| self.run(0..grown, count));
        let next = run.unwrap_or(next);
        for range in [next..grown, 0..next, grown..self.slots] {
            let mut at = range.start;
            while at < range.end && (taken.len() as u64) < count {
                at = self.look(at, &mut taken);
            }
        }
        self.next = taken.last().map_or(0, |last| u64::from(*last) + 1);
        Some(taken)
    }

    /// Where in `range` so many free slots lie in a row, of one word.
    fn run(&self, range: Range<u64>, count: u64) -> Option<u64> {
        if !(2..=64).contains(&count) {
            return None;
        }
        let first = range.start / 64;
        let mut words = first..range.end.div_ceil(64).min(first + WORDS_LOOKED_AT);
        words.find_map(|word| self.run_of_word(word, &range, count))
    }

    fn run_of_word(&self, word: u64, range: &Range<u64>, count: u64) -> Option<u64> {
        let (used, base) = (*self.words.get(usize::try_from(word).ok()?)?, word * 64);
        let ahead = u64::MAX.checked_shl(u32::try_from(range.start.saturating_sub(base)).ok()?)?;
        // Bit `i` stays if those from `i` on are free, as many as were looked at.
        let (mut starts, mut len) = (!used & ahead, 1);
        while len < count && starts != 0 {
            let more = len.min(count - len);
            starts &= starts >> more;
            len += more;
        }
        let start = base + u64::from(starts.trailing_zeros());
        (starts != 0 && start + count <= range.end).then_some(start)
    }

    /// Takes slot `at` if it is free; which to look at next.
    fn look(&mut self, at: u64, taken: &mut Vec<u32>) -> u64 {
        match self.word(at) {
            Some((word, _)) if *word == u64::MAX => (at / 64 + 1) * 64,
            _ => {
                let slot = u32::try_from(at).unwrap_or(u32::MAX);
                if self.mark(slot) {
                    taken.push(slot);
                }
                at + 1
            }
        }
    }

    /// Nobody needs them, once a flush was done.
    pub(super) fn retire(&mut self, slots: impl IntoIterator<Item = u32>) {
        self.retired.extend(slots);
        if is_planted(Fault::Reused) {
            self.free_before(self.now());
        }
    }

    /// What is retired as of now, for [`Space::free_before`].
    pub(super) fn now(&self) -> u64 {
        self.freed + self.retired.len() as u64
    }

    /// A flush that was begun at `now` has succeeded.
    pub(super) fn free_before(&mut self, now: u64) {
        while self.freed < now
            && let Some(slot) = self.retired.pop_front()
        {
            self.freed += 1;
            self.give_back(slot);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fresh(fresh: u64) -> Want {
        Want { fresh, ..Want::default() }
    }

    fn over(over: u64) -> Want {
        Want { over, ..Want::default() }
    }

    #[test]
    fn what_is_put_aside_is_for_who_was_promised_it() {
        let mut space = Space::new(16 * GRAIN);
        assert!(!space.put_aside(13) && space.put_aside(10) && !space.put_aside(3));
        assert_eq!((space.aside(), space.free()), (10, 2 * GRAIN));
        assert_eq!(space.take(fresh(3), 16), None);
        assert_eq!(space.take(fresh(2), 16).map(|taken| taken.len()), Some(2));
        assert_eq!(space.take(over(4), 16).map(|taken| taken.len()), Some(4));
        assert_eq!((space.take(over(1), 16), space.free()), (None, 0));
        let promised = Want { aside: 7, ..Want::default() };
        assert_eq!(space.take(promised, 16).map(|taken| taken.len()), Some(7));
        space.promised(-3);
        assert_eq!(space.aside(), 0);
        assert_eq!(space.take(over(3), 16).map(|taken| taken.len()), Some(3));
    }

    #[test]
    fn a_slot_is_used_again_only_after_the_flush_that_began_after_it_was_retired() {
        let mut space = Space::new(16 * GRAIN);
        let first = space.take(fresh(12), 16).unwrap();
        assert_eq!((first.len(), space.free()), (12, 0));
        assert_eq!(space.take(fresh(1), 16), None, "the reserve");
        assert_eq!(space.take(over(4), 16), Some(vec![12, 13, 14, 15]));
        space.retire([3, 5]);
        let now = space.now();
        space.retire([7]);
        assert_eq!(space.take(over(1), 16), None);
        space.free_before(now);
        assert_eq!(space.take(over(2), 16), Some(vec![3, 5]));
        space.free_before(now);
        assert_eq!(space.take(over(1), 16), None);
    }

    /// Holes of one slot, of three, and of eight: what is written at once lies in a row if it can,
    /// behind what was written last, and small holes are for what fits them.
    #[test]
    fn slots_of_one_write_lie_in_a_row_where_there_are_as_many() {
        let mut space = Space::new(256 * GRAIN);
        assert_eq!(space.take(fresh(192), 192).map(|taken| taken.len()), Some(192));
        let free = |space: &mut Space, slots: Range<u32>| slots.for_each(|at| space.give_back(at));
        for slots in [3..4, 10..13, 60..68, 70..78, 100..103, 180..192] {
            free(&mut space, slots);
        }
        space.next = 0;
        assert_eq!(space.take(fresh(8), 192), Some((70..78).collect()), "not across words");
        assert_eq!(space.take(fresh(8), 192), Some((180..188).collect()));
        assert_eq!(space.take(over(3), 192), Some((188..191).collect()));
        assert_eq!(space.take(over(3), 192), Some((10..13).collect()), "all round");
        assert_eq!(space.take(over(1), 192), Some(vec![60]));
        assert_eq!(space.take(over(10), 192).map(|taken| taken.len()), Some(10), "in pieces");
        free(&mut space, 64..128);
        assert_eq!(space.take(over(64), 192), Some((64..128).collect()), "a whole word");
    }

    #[test]
    fn the_medium_grows_only_when_what_it_has_is_full() {
        let mut space = Space::new(200 * GRAIN);
        assert_eq!(space.take(fresh(2), 70), Some(vec![0, 1]));
        space.give_back(0);
        assert_eq!(space.take(fresh(69), 70).map(|taken| taken.contains(&0)), Some(true));
        assert_eq!(space.take(fresh(2), 70), Some(vec![70, 71]));
        assert!(!space.mark(70) && !space.mark(200) && space.mark(199));
    }
}
