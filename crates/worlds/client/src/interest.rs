//! Interest: the inodes whose numbers this attachment got in replies and has not forgotten.
//!
//! A process that is not trusted may only speak of inodes it has interest in or has open, so none
//! may be forgotten that is still referred to; and the list must not grow with every path walked.

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::Arc;

use outboard_base::Ino;
use outboard_volume::backend::Backend;

use crate::link::Link;

/// Inodes of interest; beyond it the oldest half is forgotten, but for those held.
const INTEREST_MAX: usize = 4096;

/// What the DPU side believes this one to know, oldest first.
#[derive(Default)]
pub(crate) struct Interest {
    order: VecDeque<Ino>,
    known: HashSet<Ino>,
    held: HashMap<Ino, usize>,
    /// How many may be known before some are forgotten: more while many are held.
    most: usize,
}

impl Interest {
    /// A reply named `ino`; those to be forgotten for it.
    pub(crate) fn add(&mut self, ino: Ino) -> Vec<Ino> {
        if self.known.insert(ino) {
            self.order.push_back(ino);
        }
        let mut old = Vec::new();
        if self.order.len() > self.most.max(INTEREST_MAX) {
            for ino in self.order.drain(..self.order.len() / 2).collect::<Vec<_>>() {
                if self.held.contains_key(&ino) {
                    self.order.push_back(ino);
                } else {
                    self.known.remove(&ino);
                    old.push(ino);
                }
            }
            self.most = self.order.len() + INTEREST_MAX / 2;
        }
        old
    }

    /// `ino` is referred to by its number once more, or once less.
    pub(crate) fn hold(&mut self, ino: Ino, holds: bool) {
        let count = self.held.entry(ino).or_default();
        *count = if holds { *count + 1 } else { count.saturating_sub(1) };
        if *count == 0 {
            self.held.remove(&ino);
        }
    }
}

/// Inodes referred to by their numbers, as `O_PATH` does, and directories on the way to one: not
/// forgotten before this is dropped.
pub struct Held<B: Backend> {
    link: Arc<Link<B>>,
    inos: Vec<Ino>,
}

impl<B: Backend> Held<B> {
    pub(crate) fn new(link: &Arc<Link<B>>, inos: Vec<Ino>) -> Held<B> {
        link.hold(&inos, true);
        Held { link: Arc::clone(link), inos }
    }
}

impl<B: Backend> Drop for Held<B> {
    fn drop(&mut self) {
        self.link.hold(&self.inos, false);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A directory held by `O_PATH` alone was forgotten after some thousands of look-ups: `ESTALE`
    /// for a process that is not trusted.
    #[test]
    fn what_is_held_is_not_forgotten_and_the_rest_is_bounded() {
        let mut interest = Interest::default();
        let held = [Ino(3), Ino(4), Ino(2_000)];
        for ino in held {
            assert!(interest.add(ino).is_empty());
            interest.hold(ino, true);
        }
        interest.hold(Ino(4), true);
        let mut forgotten = 0;
        for ino in 10_000..100_000 {
            let old = interest.add(Ino(ino));
            assert!(!old.iter().any(|ino| held.contains(ino)));
            forgotten += old.len();
        }
        assert!(
            interest.order.len() <= INTEREST_MAX && interest.known.len() == interest.order.len()
        );
        assert_eq!(forgotten + interest.order.len(), 90_000 + held.len());
        for ino in held {
            interest.hold(ino, false);
        }
        let mut old = Vec::new();
        for ino in 200_000..210_000 {
            old.extend(interest.add(Ino(ino)));
        }
        assert!(!old.contains(&Ino(4)), "held twice, let go once");
        assert!(old.contains(&Ino(3)) && old.contains(&Ino(2_000)));
    }

    /// More held than the list is long: it grows with them, and looking does not get dear.
    #[test]
    fn more_may_be_held_than_is_kept_otherwise() {
        let mut interest = Interest::default();
        for ino in 0..20_000 {
            assert!(interest.add(Ino(ino)).is_empty());
            interest.hold(Ino(ino), true);
        }
        let old: Vec<Ino> = (100_000..200_000).flat_map(|ino| interest.add(Ino(ino))).collect();
        assert!(old.iter().all(|ino| ino.0 >= 100_000));
        assert!(interest.order.len() <= 20_000 + 2 * INTEREST_MAX);
    }
}
