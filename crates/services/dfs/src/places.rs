//! Where nodes are, and which of them do not answer.
//!
//! A grant says where nodes were when it was made, and is used for minutes. Of what several say the
//! newest counts: capabilities expire in the order in which they were signed. A node that does not
//! answer may have moved, so the server is asked again for a file that lies on it.

use core::net::SocketAddrV4;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use outboard_base::Time;
use outboard_wire::shared::Peer;

/// How long one that did not answer is asked after those that have the same.
const SILENT: Duration = Duration::from_secs(20);
/// Objects of which it is remembered who was not reached.
const UNREACHED: usize = 4096;

#[derive(Debug, Default)]
struct State {
    /// Of each node the end of the capability that said so, and where it is.
    known: BTreeMap<Peer, (u64, SocketAddrV4)>,
    silent: BTreeSet<Peer>,
    /// When each was silent last.
    silent_at: BTreeMap<Peer, Time>,
    /// Of objects with copies: who of their members was not reached, from here or from another, and
    /// when.
    unreached: BTreeMap<u64, (u16, Time)>,
}

#[derive(Debug, Default)]
pub(crate) struct Places(Mutex<State>);

impl Places {
    fn change<T>(&self, change: impl FnOnce(&mut State) -> T) -> T {
        change(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// A grant whose capability ends at `expires` says that a node is at `address`; where it is.
    pub(crate) fn of(&self, node: Peer, address: SocketAddrV4, expires: u64) -> SocketAddrV4 {
        self.change(|state| {
            let known = state.known.entry(node).or_insert((expires, address));
            if expires >= known.0 {
                *known = (expires, address);
            }
            known.1
        })
    }

    /// A node did not answer.
    pub(crate) fn is_silent(&self, node: Peer, now: Time) {
        self.change(|state| {
            state.silent.insert(node);
            state.silent_at.insert(node, now);
        });
    }

    /// Somebody, or this part, does not reach a node that has a copy of an object.
    pub(crate) fn is_unreached(&self, object: u64, node: u16, now: Time) {
        self.change(|state| {
            if state.unreached.len() >= UNREACHED {
                state.unreached.pop_first();
            }
            state.unreached.insert(object, (node, now));
        });
    }

    /// Who was not of late, since this was asked.
    pub(crate) fn take_unreached(&self, object: u64, now: Time) -> Option<u16> {
        let (node, at) = self.change(|state| state.unreached.remove(&object))?;
        (now.since(at) < SILENT).then_some(node)
    }

    /// Whether one did not answer of late.
    pub(crate) fn was_silent(&self, node: Peer, now: Time) -> bool {
        let at = self.change(|state| state.silent_at.get(&node).copied());
        at.is_some_and(|at| now.since(at) < SILENT)
    }

    /// Whether one did not answer from some time on.
    pub(crate) fn is_silent_since(&self, node: Peer, time: Time) -> bool {
        self.change(|state| state.silent_at.get(&node).is_some_and(|at| *at >= time))
    }

    /// Those that did not since this was asked.
    pub(crate) fn take_silent(&self) -> BTreeSet<Peer> {
        self.change(|state| std::mem::take(&mut state.silent))
    }
}

#[cfg(test)]
mod tests {
    use core::net::Ipv4Addr;

    use super::*;

    #[test]
    fn the_newest_word_counts() {
        let places = Places::default();
        let at = |port| SocketAddrV4::new(Ipv4Addr::LOCALHOST, port);
        let node = Peer::Node(1);
        assert_eq!(places.of(node, at(1), 10), at(1));
        assert_eq!(places.of(node, at(2), 20), at(2));
        assert_eq!(places.of(node, at(1), 10), at(2), "an older grant is used again");
        assert_eq!(places.of(node, at(3), 20), at(3));
        assert_eq!(places.of(Peer::Node(2), at(4), 1), at(4));
        let now = Time(1);
        assert!(!places.was_silent(node, now));
        places.is_silent(node, now);
        assert!(places.was_silent(node, now) && !places.was_silent(node, now.after(SILENT)));
        assert!(places.is_silent_since(node, now) && !places.is_silent_since(node, Time(2)));
        assert_eq!(places.take_silent(), BTreeSet::from([node]));
        assert!(places.take_silent().is_empty());
        for object in 0..=UNREACHED as u64 {
            places.is_unreached(object, 3, now);
        }
        let take = |object| places.take_unreached(object, now);
        assert_eq!(take(0), None, "what is remembered is bounded");
        assert_eq!((take(7), take(7)), (Some(3), None));
        assert_eq!(places.take_unreached(8, now.after(SILENT)), None, "it is long ago");
    }
}
