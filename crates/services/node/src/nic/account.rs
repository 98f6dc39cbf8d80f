//! Who uses how much of the landings' memory, and how many requests.

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
}

/// What all use.
#[derive(Debug)]
pub(super) struct Accounts {
    /// Bytes of each path.
    most: usize,
    of_peers: BTreeMap<Peer, Usage>,
    all: Usage,
}

impl Accounts {
    /// With `most` bytes for each path.
    pub(super) fn new(most: usize) -> Accounts {
        Accounts { most, of_peers: BTreeMap::new(), all: Usage::default() }
    }

    /// A request begins.
    pub(super) fn begin(&mut self, peer: Peer) {
        self.of_peers.entry(peer).or_default().requests += 1;
    }

    /// It takes bytes.
    pub(super) fn take(&mut self, peer: Peer, path: Path, bytes: usize) {
        *self.of_peers.entry(peer).or_default().bytes(path) += bytes;
        *self.all.bytes(path) += bytes;
    }

    /// It is over.
    pub(super) fn end(&mut self, peer: Peer, path: Path, bytes: usize) {
        let Some(of_peer) = self.of_peers.get_mut(&peer) else { return };
        of_peer.requests = of_peer.requests.saturating_sub(1);
        for usage in [&mut *of_peer, &mut self.all] {
            let used = usage.bytes(path);
            *used = used.saturating_sub(bytes);
        }
        if of_peer.requests == 0 {
            self.of_peers.remove(&peer);
        }
    }

    /// What a peer uses.
    pub(super) fn of(&self, peer: Peer) -> Usage {
        self.of_peers.get(&peer).copied().unwrap_or_default()
    }

    /// What all use.
    pub(super) fn all(&self) -> Usage {
        self.all
    }

    /// What a peer may still take: as much as would leave as much for others as it has itself. A
    /// peer that has nothing may take all that is left.
    pub(super) fn room(&self, peer: Peer, path: Path) -> usize {
        let (mut all, mut own) = (self.all, self.of(peer));
        let free = self.most.saturating_sub(*all.bytes(path));
        free.saturating_sub(*own.bytes(path))
    }

    /// Nobody uses anything.
    #[cfg(test)]
    pub(super) fn is_empty(&self) -> bool {
        self.of_peers.is_empty()
    }
}
