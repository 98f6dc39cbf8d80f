//! Who uses how much of the landings' memory, and how many requests.
//!
//! What a node passes on is accounted to the client whose it is, whichever node brings it: of what
//! a client uses here it has one account. Requests that a node has under way here are one share, of
//! which each of its clients may have as many as it leaves for others.

use std::collections::BTreeMap;

use outboard_wire::shared::Peer;

use super::context::Path;

/// What somebody uses.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Usage {
    pub(super) requests: u32,
    pub(super) nic: usize,
    pub(super) cpu: usize,
}

impl Usage {
    fn bytes(&mut self, path: Path) -> &mut usize {
        match path {
            Path::Nic => &mut self.nic,
            Path::Cpu => &mut self.cpu,
        }
    }

    fn is_nothing(&self) -> bool {
        (self.requests, self.nic, self.cpu) == (0, 0, 0)
    }
}

/// What all use.
#[derive(Debug)]
pub(super) struct Accounts {
    /// Bytes of each path.
    most: usize,
    of_peers: BTreeMap<Peer, Usage>,
    /// Requests that a peer has under way for another.
    passed: BTreeMap<(Peer, Peer), u32>,
    all: Usage,
}

impl Accounts {
    /// With `most` bytes for each path.
    pub(super) fn new(most: usize) -> Accounts {
        let (of_peers, passed) = (BTreeMap::new(), BTreeMap::new());
        Accounts { most, of_peers, passed, all: Usage::default() }
    }

    /// A request begins.
    pub(super) fn begin(&mut self, peer: Peer) {
        self.of_peers.entry(peer).or_default().requests += 1;
    }

    /// It is another's, who has sent it to that peer.
    pub(super) fn passes(&mut self, peer: Peer, payer: Peer) {
        *self.passed.entry((peer, payer)).or_default() += 1;
    }

    /// It takes bytes.
    pub(super) fn take(&mut self, payer: Peer, path: Path, bytes: usize) {
        *self.of_peers.entry(payer).or_default().bytes(path) += bytes;
        *self.all.bytes(path) += bytes;
    }

    /// It gives bytes back.
    pub(super) fn give_back(&mut self, payer: Peer, path: Path, bytes: usize) {
        for usage in self.of_peers.get_mut(&payer).into_iter().chain([&mut self.all]) {
            let used = usage.bytes(path);
            *used = used.saturating_sub(bytes);
        }
    }

    /// It is over.
    pub(super) fn end(&mut self, peer: Peer, payer: Peer, path: Path, bytes: usize) {
        if let Some(of_peer) = self.of_peers.get_mut(&peer) {
            of_peer.requests = of_peer.requests.saturating_sub(1);
        }
        if let Some(count) = self.passed.get_mut(&(peer, payer)).filter(|_| peer != payer) {
            *count = count.saturating_sub(1);
            if *count == 0 {
                self.passed.remove(&(peer, payer));
            }
        }
        self.give_back(payer, path, bytes);
        for one in [peer, payer] {
            if self.of_peers.get(&one).is_some_and(Usage::is_nothing) {
                self.of_peers.remove(&one);
            }
        }
    }

    /// What a peer uses.
    pub(super) fn of(&self, peer: Peer) -> Usage {
        self.of_peers.get(&peer).copied().unwrap_or_default()
    }

    /// Requests that a peer has under way for another.
    pub(super) fn passed(&self, peer: Peer, payer: Peer) -> u32 {
        self.passed.get(&(peer, payer)).copied().unwrap_or(0)
    }

    /// What all use.
    pub(super) fn all(&self) -> Usage {
        self.all
    }

    /// What somebody may still take: as much as would leave as much for others as it has itself.
    /// Who has nothing may take all that is left.
    pub(super) fn room(&self, payer: Peer, path: Path) -> usize {
        let (mut all, mut own) = (self.all, self.of(payer));
        let free = self.most.saturating_sub(*all.bytes(path));
        free.saturating_sub(*own.bytes(path))
    }

    /// Nobody uses anything.
    #[cfg(test)]
    pub(super) fn is_empty(&self) -> bool {
        self.of_peers.is_empty() && self.passed.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PATH: Path = Path::Nic;

    #[test]
    fn what_a_node_passes_on_is_its_client_s() {
        let mut all = Accounts::new(1000);
        let (node, greedy, modest) = (Peer::Node(1), Peer::Client(1), Peer::Client(2));
        let mut taken = 0;
        while all.room(greedy, PATH) >= 100 {
            all.begin(node);
            all.passes(node, greedy);
            all.take(greedy, PATH, 100);
            taken += 1;
        }
        assert_eq!((taken, all.passed(node, greedy), all.of(node).requests), (5, 5, 5));
        assert_eq!((all.room(greedy, PATH), all.room(modest, PATH)), (0, 500));
        // By itself it has no more.
        all.begin(greedy);
        all.end(greedy, greedy, PATH, 0);
        assert_eq!(all.passed(node, greedy), 5);
        for _ in 0..taken {
            all.end(node, greedy, PATH, 100);
        }
        assert!(all.is_empty() && all.all().nic == 0);
    }
}
