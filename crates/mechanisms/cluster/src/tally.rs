//! How a writer counts: done is, by every member of one epoch under that epoch (R2).

use std::collections::BTreeSet;

use crate::fault::{Fault, planted};
use crate::group::Group;
use crate::message::{Gep, Node};

/// Who has answered one write or flush.
#[derive(Clone, Debug)]
pub struct Tally {
    gep: Gep,
    missing: BTreeSet<Node>,
    answered: BTreeSet<Node>,
}

impl Tally {
    /// Of nobody yet.
    #[must_use]
    pub fn new(group: &Group) -> Tally {
        Tally { gep: group.gep, missing: group.nodes().collect(), answered: BTreeSet::new() }
    }

    /// The group has another epoch: everybody is asked again, holders will answer again.
    pub fn restart(&mut self, group: &Group) {
        if group.gep <= self.gep {
            return;
        }
        let before = std::mem::take(&mut self.answered);
        *self = Tally::new(group);
        if planted(Fault::MixedEpochs) {
            self.missing.retain(|node| !before.contains(node));
            self.answered = before;
        }
    }

    /// `node` answered under `gep`; an answer of another epoch does not count.
    pub fn answered(&mut self, node: Node, gep: Gep) {
        if gep == self.gep && self.missing.remove(&node) {
            self.answered.insert(node);
        }
    }

    /// Who is to be asked, again or for the first time.
    pub fn missing(&self) -> impl Iterator<Item = Node> {
        self.missing.iter().copied()
    }

    /// Whether all have answered.
    #[must_use]
    pub fn is_done(&self) -> bool {
        self.missing.is_empty()
    }
}
