//! The random scheduler: who moves next, by seed.
//!
//! A world asks it whenever several may go on: which side of a link, which future, which machine
//! whose deadline has come, whether somebody dies now. Every choice is noted with how many there
//! were to choose from, so the trace of a run tells where two runs of one seed part.

use std::fmt;

use outboard_base::Rng;

use crate::Trace;

/// A seeded random source that notes what it chose.
#[derive(Clone, Debug)]
pub struct Chooser {
    rng: Rng,
    trace: Trace,
}

impl Chooser {
    /// A chooser that repeats itself for the same `seed`.
    #[must_use]
    pub fn new(seed: u64) -> Chooser {
        Chooser { rng: Rng::new(seed), trace: Trace::default() }
    }

    /// One of `0..bound`; zero when `bound` is zero.
    pub fn below(&mut self, bound: u64) -> u64 {
        let chosen = self.rng.below(bound);
        self.trace.note(bound);
        self.trace.note(chosen);
        chosen
    }

    /// True `numerator` times out of `denominator`.
    pub fn chance(&mut self, numerator: u64, denominator: u64) -> bool {
        self.below(denominator) < numerator
    }

    /// Which of `ready` goes next, if any is ready.
    pub fn one_of(&mut self, ready: usize) -> Option<usize> {
        let chosen = self.below(ready as u64);
        usize::try_from(chosen).ok().filter(|chosen| *chosen < ready)
    }

    /// Notes what came of a choice.
    pub fn note(&mut self, number: u64) {
        self.trace.note(number);
    }

    /// Notes whatever can be printed.
    pub fn note_text(&mut self, text: fmt::Arguments<'_>) {
        self.trace.note_text(text);
    }

    /// What was chosen and noted so far.
    #[must_use]
    pub fn trace(&self) -> &Trace {
        &self.trace
    }

    /// A chooser for a part of the world.
    pub fn part(&mut self) -> Chooser {
        Chooser::new(self.rng.next_u64())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_seeds_choose_alike_and_the_trace_tells_where_they_do_not() {
        let run = |seed, ready| {
            let mut chooser = Chooser::new(seed);
            (0..20).for_each(|_| _ = chooser.one_of(ready));
            chooser.trace().hash()
        };
        assert_eq!(run(1, 5), run(1, 5));
        assert_ne!(run(1, 5), run(2, 5));
        // The same choices out of more: the world was another.
        assert_ne!(run(1, 1), run(1, 0));
        assert_eq!(Chooser::new(1).one_of(0), None);
    }
}
