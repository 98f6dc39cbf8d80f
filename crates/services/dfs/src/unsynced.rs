//! What nodes have acknowledged and may not have flushed, and what of that is lost.
//!
//! An acknowledged write survives the end of a node's process, not a loss of its power. So each
//! answer names the node's *boot*, another one after each loss of power, and so does a flush: what
//! was acknowledged in one boot and is flushed in another may be gone. Nobody has the bytes any
//! more by then, so the next sync of the file fails, once, as that of a local file does whose
//! write-back has failed.
//!
//! Where a file bears that some of its nodes lose what they have, something is lost only if more of
//! them began another boot since: what the others kept those are given. Who has a file, and so what
//! it bears, is another thing under each fence; so is what is lost.
//!
//! A flush is of all that a node has, so it ends what is remembered of all files there.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::RangeInclusive;
use std::sync::{Mutex, MutexGuard, PoisonError};

use outboard_wire::shared::Peer;

/// Files of a node that may have something unflushed. Who would add one more flushes it first.
const OBJECTS: usize = 4096;
/// Files of which it is remembered that something is lost, until that is said.
const LOST: usize = 4096;

/// An object under a fence.
type Fenced = (u64, u64);

/// Writes of one object at one node under one fence, all in one boot.
#[derive(Clone, Copy, Debug)]
struct Since {
    boot: u64,
    /// So many others may lose it.
    bears: usize,
    /// When the first and the last of them were acknowledged.
    first: u64,
    last: u64,
}

#[derive(Debug, Default)]
struct State {
    /// Counts acknowledgements.
    clock: u64,
    nodes: BTreeMap<Peer, BTreeMap<Fenced, Since>>,
    /// In which boot each node was last.
    boots: BTreeMap<Peer, u64>,
    /// Of objects that bear a loss: who lost something since their last sync.
    losing: BTreeMap<Fenced, BTreeSet<Peer>>,
    lost: BTreeSet<u64>,
    /// Something was lost since somebody asked whether anything was.
    any: bool,
}

/// What is unflushed, of all nodes.
#[derive(Debug, Default)]
pub(crate) struct Unsynced(Mutex<State>);

impl Unsynced {
    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A node in this boot has acknowledged a change of an object that bears, under this fence, the
    /// loss of so many of its nodes.
    pub(crate) fn wrote(&self, peer: Peer, object: Fenced, boot: u64, bears: usize) {
        let mut state = self.state();
        state.clock += 1;
        state.boots.insert(peer, boot);
        let now = state.clock;
        let fresh = Since { boot, bears, first: now, last: now };
        let objects = state.nodes.entry(peer).or_default();
        let since = objects.entry(object).or_insert(fresh);
        since.last = now;
        if since.boot != boot {
            *since = fresh;
            state.lose(peer, object, bears);
        }
    }

    /// In which boot a node was when it said so last.
    pub(crate) fn boot(&self, peer: Peer) -> Option<u64> {
        self.state().boots.get(&peer).copied()
    }

    /// Whether a node must be flushed before it is written to.
    pub(crate) fn is_crowded(&self, peer: Peer) -> bool {
        self.state().nodes.get(&peer).is_some_and(|objects| objects.len() >= OBJECTS)
    }

    /// What is acknowledged by now, a flush that begins now makes durable.
    pub(crate) fn now(&self) -> u64 {
        self.state().clock
    }

    /// A node in this boot has flushed what was acknowledged at `when`.
    pub(crate) fn flushed(&self, peer: Peer, when: u64, boot: u64) {
        let mut state = self.state();
        state.boots.insert(peer, boot);
        let Some(objects) = state.nodes.get_mut(&peer) else { return };
        let mut lost = Vec::new();
        objects.retain(|object, since| {
            let is_lost = since.first <= when && since.boot != boot;
            if is_lost {
                lost.push((*object, since.bears));
            }
            !is_lost && since.last > when
        });
        if objects.is_empty() {
            state.nodes.remove(&peer);
        }
        lost.into_iter().for_each(|(object, bears)| state.lose(peer, object, bears));
    }

    /// Nodes that may have something of an object unflushed.
    pub(crate) fn of(&self, object: u64) -> Vec<Peer> {
        let state = self.state();
        let has = state
            .nodes
            .iter()
            .filter(|(_, objects)| objects.range(fences(object)).next().is_some());
        has.map(|(peer, _)| *peer).collect()
    }

    /// Nodes that may have something unflushed: those that have something nobody else has, and the
    /// others.
    pub(crate) fn nodes(&self) -> (Vec<Peer>, Vec<Peer>) {
        let state = self.state();
        let is_alone = |peer: &Peer| {
            let objects = state.nodes.get(peer);
            objects.is_some_and(|objects| objects.values().any(|since| since.bears == 0))
        };
        state.nodes.keys().copied().partition(is_alone)
    }

    /// An object goes on at these nodes: what others have not flushed of it is lost there.
    pub(crate) fn goes_on(&self, object: u64, members: &[Peer]) {
        let mut state = self.state();
        let mut left = Vec::new();
        for (peer, objects) in &mut state.nodes {
            if !members.contains(peer) {
                let all = objects.extract_if(fences(object), |_, _| true);
                left.extend(all.map(|(object, since)| (*peer, object, since.bears)));
            }
        }
        state.nodes.retain(|_, objects| !objects.is_empty());
        left.into_iter().for_each(|(peer, object, bears)| state.lose(peer, object, bears));
    }

    /// A node does not answer: what it has not flushed is lost there, if others have it.
    pub(crate) fn is_away(&self, peer: Peer) {
        let mut state = self.state();
        let Some(objects) = state.nodes.remove(&peer) else { return };
        for (object, since) in objects {
            if since.bears == 0 {
                state.nodes.entry(peer).or_default().insert(object, since);
            } else {
                state.lose(peer, object, since.bears);
            }
        }
    }

    /// A node is gone: what it has not flushed is lost there.
    pub(crate) fn is_gone(&self, peer: Peer) {
        let mut state = self.state();
        for (object, since) in state.nodes.remove(&peer).unwrap_or_default() {
            state.lose(peer, object, since.bears);
        }
    }

    /// Whether something of an object is lost, which is said once.
    pub(crate) fn take_lost(&self, object: u64) -> bool {
        let mut state = self.state();
        state.losing.retain(|(of, _), _| *of != object);
        state.lost.remove(&object)
    }

    /// Whether anything is, which is said once.
    pub(crate) fn take_any_lost(&self) -> bool {
        let mut state = self.state();
        state.losing.clear();
        std::mem::take(&mut state.any)
    }

    /// An object is gone.
    pub(crate) fn forget(&self, object: u64) {
        let mut state = self.state();
        state.lost.remove(&object);
        state.losing.retain(|(of, _), _| *of != object);
        state.nodes.retain(|_, objects| {
            objects.retain(|(of, _), _| *of != object);
            !objects.is_empty()
        });
    }
}

/// An object under all fences.
fn fences(object: u64) -> RangeInclusive<Fenced> {
    (object, 0)..=(object, u64::MAX)
}

impl State {
    fn lose(&mut self, peer: Peer, object: Fenced, bears: usize) {
        if bears > 0 {
            let losing = self.losing.entry(object).or_default();
            losing.insert(peer);
            if losing.len() <= bears {
                if self.losing.len() > LOST {
                    self.losing.pop_first();
                }
                return;
            }
            self.losing.remove(&object);
        }
        let (object, _) = object;
        tracing::error!(?peer, object, "a node lost power before what it acknowledged was synced");
        self.any = true;
        self.lost.insert(object);
        if self.lost.len() > LOST {
            self.lost.pop_first();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NODE: Peer = Peer::Node(1);

    /// A client heard of a write, the node lost power, and the sync said that all was well.
    #[test]
    fn a_boot_that_ends_between_write_and_flush_is_said_once() {
        let all = Unsynced::default();
        all.wrote(NODE, (7, 1), 1, 0);
        all.wrote(Peer::Node(2), (7, 1), 1, 0);
        all.flushed(NODE, all.now(), 2);
        assert!(all.take_any_lost() && !all.take_any_lost());
        assert!(all.take_lost(7) && !all.take_lost(7));
        assert_eq!(all.of(7), [Peer::Node(2)], "of the other node nothing is known");
        all.flushed(Peer::Node(2), all.now(), 1);
        assert_eq!(all.nodes(), (Vec::new(), Vec::new()));
        assert!(!all.take_lost(7));
    }

    #[test]
    fn a_write_in_another_boot_tells_of_the_loss_too() {
        let all = Unsynced::default();
        all.wrote(NODE, (7, 1), 1, 0);
        all.wrote(NODE, (7, 1), 2, 0);
        all.flushed(NODE, all.now(), 2);
        assert!(all.take_lost(7), "the first one");
        all.wrote(NODE, (7, 1), 2, 0);
        all.flushed(NODE, all.now(), 2);
        all.flushed(NODE, all.now(), 3);
        assert!(!all.take_lost(7), "flushed before");
    }

    #[test]
    fn a_flush_is_of_what_was_acknowledged_before_it() {
        let all = Unsynced::default();
        all.wrote(NODE, (7, 1), 1, 0);
        let when = all.now();
        all.wrote(NODE, (7, 1), 1, 0);
        all.wrote(NODE, (8, 1), 1, 0);
        all.flushed(NODE, when, 1);
        assert_eq!(all.of(7), [NODE]);
        all.flushed(NODE, all.now(), 2);
        assert!(all.take_lost(7) && all.take_lost(8));
        all.wrote(NODE, (9, 1), 2, 0);
        all.forget(9);
        all.flushed(NODE, all.now(), 3);
        assert!(!all.take_lost(9));
    }

    #[test]
    fn of_copies_one_that_is_kept_is_enough() {
        let all = Unsynced::default();
        let wrote = |boots: [u64; 2]| {
            for (peer, boot) in [NODE, Peer::Node(2)].into_iter().zip(boots) {
                all.wrote(peer, (7, 1), boot, 1);
            }
        };
        let flushed = |boots: [u64; 2]| {
            for (peer, boot) in [NODE, Peer::Node(2)].into_iter().zip(boots) {
                all.flushed(peer, all.now(), boot);
            }
        };
        wrote([1, 1]);
        flushed([2, 1]);
        assert!(!all.take_lost(7));
        wrote([2, 1]);
        flushed([2, 2]);
        assert!(!all.take_lost(7), "the first loss was before the last sync");
        wrote([2, 2]);
        flushed([3, 3]);
        assert!(all.take_any_lost() && all.take_lost(7) && !all.take_lost(7));
        assert_eq!((all.boot(NODE), all.boot(Peer::Node(3))), (Some(3), None));
    }

    /// A member that is left out may have lost power for all that is known; then the other does.
    #[test]
    fn who_is_left_out_counts_as_lost() {
        let all = Unsynced::default();
        for is_left_out in [true, false] {
            all.wrote(NODE, (7, 1), 1, 1);
            all.wrote(Peer::Node(2), (7, 1), 1, 1);
            all.wrote(NODE, (8, 1), 1, 0);
            assert_eq!(all.nodes(), (vec![NODE], vec![Peer::Node(2)]));
            if is_left_out {
                all.goes_on(7, &[Peer::Node(2)]);
            } else {
                all.is_away(NODE);
            }
            assert_eq!((all.of(7), all.of(8)), (vec![Peer::Node(2)], vec![NODE]));
            assert!(!all.state().lost.contains(&7), "the other has it");
            all.flushed(Peer::Node(2), all.now(), 2);
            assert!(all.take_lost(7));
        }
    }

    /// Of five members, of which three are enough, one was left out; then another, that had flushed
    /// all but what it wrote since. The four had that, and three of them do; but the first counted
    /// as one who had lost it, so the next sync said `EIO`.
    #[test]
    fn who_are_left_out_in_turn_have_not_lost_the_same() {
        let all = Unsynced::default();
        let members: Vec<Peer> = (1..=5).map(Peer::Node).collect();
        let wrote = |fence: u64, members: &[Peer]| {
            members.iter().for_each(|peer| all.wrote(*peer, (7, fence), 1, members.len() - 3));
        };
        wrote(1, &members);
        all.goes_on(7, &members[1..]);
        members[1..].iter().for_each(|peer| all.flushed(*peer, all.now(), 1));
        wrote(2, &members[1..]);
        all.goes_on(7, &members[2..]);
        assert!(!all.take_any_lost() && !all.take_lost(7), "three have it");
        // What two have is none.
        wrote(1, &members);
        all.goes_on(7, &members[1..]);
        all.goes_on(7, &members[2..]);
        assert!(!all.state().lost.contains(&7));
        all.flushed(Peer::Node(3), all.now(), 2);
        assert!(all.take_lost(7));
    }

    /// A node was drained, and did not answer any more: who synced waited for it for ever.
    #[test]
    fn what_a_node_that_is_gone_had_not_flushed_is_lost() {
        let all = Unsynced::default();
        all.wrote(NODE, (7, 1), 1, 0);
        all.wrote(NODE, (8, 1), 1, 1);
        all.is_gone(NODE);
        assert_eq!(all.nodes(), (Vec::new(), Vec::new()));
        assert!(all.take_lost(7) && !all.take_lost(8), "of copies others have it");
    }

    #[test]
    fn what_is_remembered_is_bounded() {
        let all = Unsynced::default();
        for object in 0..2 * OBJECTS as u64 {
            if all.is_crowded(NODE) {
                all.flushed(NODE, all.now(), 1);
            }
            all.wrote(NODE, (object, 1), 1, 0);
        }
        assert!(all.state().nodes.values().all(|objects| objects.len() <= OBJECTS));
        for object in 0..2 * LOST as u64 {
            all.wrote(NODE, (object, 1), object, 0);
            all.flushed(NODE, all.now(), u64::MAX);
        }
        assert_eq!(all.state().lost.len(), LOST);
    }
}
