//! Judges that several simulations share, each for one kind of promise.

use std::ops::Range;

/// One write of a unit. Value 0 is what is not there: a hole, or beyond the end.
#[derive(Clone, Copy, Debug)]
struct Put {
    value: u32,
    begun: u64,
    /// When it was answered; never, if it was given up.
    ended: u64,
}

/// Units that behave like registers: a look may find what any write has put there, unless another
/// write of the unit began after that one had ended, and had itself ended before the look began.
///
/// A write that is never answered may take effect at any time, or never. Moments are whatever the
/// simulation counts; each write has one of its own.
#[derive(Clone, Debug)]
pub struct RegisterOracle(Vec<Vec<Put>>);

impl RegisterOracle {
    /// So many units, all 0 since moment 0.
    #[must_use]
    pub fn new(units: usize) -> RegisterOracle {
        let zero = Put { value: 0, begun: 0, ended: 0 };
        RegisterOracle(vec![vec![zero]; units])
    }

    /// A write of these units is begun. Those out of range are nobody's.
    pub fn begin(&mut self, units: Range<usize>, value: u32, begun: u64) {
        let put = Put { value, begun, ended: u64::MAX };
        self.0.iter_mut().take(units.end).skip(units.start).for_each(|puts| puts.push(put));
    }

    /// The write that was begun at `begun` is answered.
    pub fn end(&mut self, begun: u64, ended: u64) {
        let all = self.0.iter_mut().flatten();
        all.filter(|put| put.begun == begun).for_each(|put| put.ended = ended);
    }

    /// Whether a look at `unit` that began at `when` may find `value`.
    #[must_use]
    pub fn allow(&self, unit: usize, value: u32, when: u64) -> bool {
        let puts = self.0.get(unit).map_or(&[][..], Vec::as_slice);
        let over = |put: &Put| puts.iter().any(|p| p.begun > put.ended && p.ended < when);
        puts.iter().any(|put| put.value == value && !over(put))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_answered_write_is_found_or_one_beside_it() {
        let mut registers = RegisterOracle::new(2);
        registers.begin(0..1, 7, 1);
        assert!(registers.allow(0, 7, 2) && registers.allow(0, 0, 2), "it is under way");
        registers.end(1, 3);
        assert!(registers.allow(0, 7, 4) && !registers.allow(0, 0, 4), "it is done");
        assert!(registers.allow(0, 0, 3), "the look began before the answer");
        registers.begin(0..1, 8, 5);
        registers.begin(0..1, 9, 6);
        registers.end(6, 9);
        registers.end(5, 10);
        let found = [7, 8, 9].map(|value| registers.allow(0, value, 11));
        assert_eq!(found, [false, true, true], "either of two that went side by side");
        assert!(registers.allow(1, 0, 11) && !registers.allow(1, 7, 11), "its neighbour has none");
    }

    #[test]
    fn what_is_given_up_may_come_late_and_never_goes_back() {
        let mut registers = RegisterOracle::new(1);
        registers.begin(0..1, 7, 1);
        registers.begin(0..1, 8, 2);
        registers.end(2, 3);
        assert!(registers.allow(0, 7, 100) && registers.allow(0, 8, 100));
        assert!(!registers.allow(0, 0, 100), "what was before the answered one is gone");
    }
}
