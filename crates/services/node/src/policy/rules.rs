//! The rules that a request is held against, and what they are made of: keys, fences, time.
//!
//! They lie in the node's memory: header handlers read them, the CPU side writes them, and asks
//! them itself about requests that were steered to it.

use core::net::SocketAddrV4;
use std::collections::{BTreeMap, BTreeSet};

use outboard_base::planted::{Fault, is_planted};
use outboard_wire::shared::call::{Key, REVOKED_MAX, Revoked};
use outboard_wire::shared::{
    Answer, Brings, Capability, Coordinate, Heads, Peer, Reason, Rights, Strategy, Target,
    WriteHead,
};

use super::Doubt;

/// For so many clients each node that forwards may have requests under way.
const CLIENTS: u32 = 16;
/// Sealed fences that are kept at hand; of others the store knows.
const FENCES_MAX: usize = 1 << 16;
/// Nodes whose places are known.
const NODES_MAX: usize = 1 << 10;
/// Keys that count at a time: as many as one byte can name.
const KEYS_MAX: usize = 1 << 8;

/// Whom a node trusts (NetDFS IV).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Threat {
    /// Clients and network: a capability is a plain ticket, its MAC is not looked at.
    Ticket,
    /// The network: capabilities are signed.
    #[default]
    Signed,
    /// Nobody: capabilities are signed, and so is every packet.
    EveryPacket,
}

/// What does not change.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Settings {
    /// The node's own number.
    pub(crate) node: u16,
    /// The epoch of its groups.
    pub(crate) epoch: u32,
    /// Whom the node trusts.
    pub(crate) threat: Threat,
    /// The volume it is of; `None`: any.
    pub(crate) volume: Option<u32>,
    /// Requests a peer may have under way.
    pub(crate) credit: u32,
    /// The node's boot, which answers tell.
    pub(crate) boot: u64,
}

/// The rules.
#[derive(Debug)]
pub(crate) struct Rules {
    settings: Settings,
    /// By their number, those that count or did.
    keys: BTreeMap<u8, Key>,
    wall_ms: u64,
    /// By object.
    fences: BTreeMap<u64, u64>,
    /// Numbers of keys of clients that count no more.
    revoked: BTreeSet<u32>,
    /// Where other nodes are.
    nodes: BTreeMap<u16, SocketAddrV4>,
    /// Nothing: what is here is what was acknowledged.
    pub(crate) doubt: Option<Doubt>,
}

impl Rules {
    /// Without keys or fences.
    pub(crate) fn new(settings: Settings) -> Rules {
        Rules {
            settings,
            keys: BTreeMap::new(),
            wall_ms: 0,
            fences: BTreeMap::new(),
            revoked: BTreeSet::new(),
            nodes: BTreeMap::new(),
            doubt: None,
        }
    }

    /// Bytes they take at most.
    pub(crate) const MEMORY: usize = FENCES_MAX * size_of::<(u64, u64)>()
        + KEYS_MAX * size_of::<(u8, Key)>()
        + REVOKED_MAX * size_of::<u32>()
        + NODES_MAX * size_of::<(u16, SocketAddrV4)>()
        + Doubt::MEMORY;

    /// What time it is; it never goes back.
    pub(crate) fn set_wall(&mut self, wall_ms: u64) {
        self.wall_ms = self.wall_ms.max(wall_ms);
    }

    /// Keys that count from now on, until they say. Those before them do as they said.
    pub(crate) fn set_keys(&mut self, keys: Vec<Key>) {
        let now = self.wall_ms;
        self.keys.retain(|_, key| now < key.until);
        self.keys.extend(keys.into_iter().map(|key| (key.id, key)));
    }

    /// All clients whose keys are revoked. A server never forgets one.
    pub(crate) fn set_revoked(&mut self, revoked: &[Revoked]) {
        self.revoked = revoked.iter().map(|one| one.client).collect();
    }

    /// How many keys there are.
    pub(crate) fn keys(&self) -> usize {
        self.keys.len()
    }

    /// Nothing of the object below `fence` is allowed any more.
    pub(crate) fn raise(&mut self, object: u64, fence: u64) {
        let known = self.fences.entry(object).or_default();
        *known = fence.max(*known);
        if self.fences.len() > FENCES_MAX {
            // The oldest object is the least likely to be used; the store still refuses.
            self.fences.pop_first();
        }
    }

    /// The fence of an object, as far as it is known here.
    pub(crate) fn fence(&self, object: u64) -> u64 {
        self.fences.get(&object).copied().unwrap_or(0)
    }

    /// Whether what was allowed before still is: the client's key was not revoked, no higher fence
    /// was heard of, and the capability's time is not over.
    pub(crate) fn still(&self, capability: &Capability) -> Result<(), Reason> {
        // A client's number is that of its key, and below it of the place it is at.
        let key = u32::try_from(capability.client >> 32).unwrap_or(u32::MAX);
        if self.revoked.contains(&key) {
            return Err(Reason::Revoked);
        }
        if self.wall_ms >= capability.expires {
            return Err(Reason::Expired);
        }
        let is_below = capability.fence < self.fence(capability.object);
        let is_planted = is_planted(Fault::Fence) || is_planted(Fault::Unfenced);
        if is_below && !is_planted { Err(Reason::Fence) } else { Ok(()) }
    }

    /// Requests a peer may have under way: a node, those of many clients.
    pub(crate) fn credit_of(&self, peer: Peer) -> u32 {
        match peer {
            Peer::Node(_) => self.settings.credit.saturating_mul(CLIENTS),
            _ => self.settings.credit,
        }
    }

    /// Where another node is: nothing is forwarded elsewhere.
    pub(crate) fn know(&mut self, node: u16, address: SocketAddrV4) {
        if self.nodes.len() < NODES_MAX || self.nodes.contains_key(&node) {
            self.nodes.insert(node, address);
        }
    }

    /// Whether a call that only a server may make is taken from `from`.
    pub(crate) fn is_server(&self, from: Peer, is_sealed: bool) -> bool {
        let is_proven = is_sealed || self.settings.threat != Threat::EveryPacket;
        is_proven && matches!(from, Peer::Server(_))
    }

    /// Whether a request is allowed; the first reason why not.
    pub(crate) fn check(&self, from: Peer, is_sealed: bool, heads: &Heads) -> Result<(), Reason> {
        let capability = &heads.capability;
        self.counts(is_sealed, capability)?;
        if !self.is_from(from, heads) || !self.is_spread(heads) {
            return Err(Reason::Other);
        }
        if !capability.rights.allow(heads.rights_needed()) {
            return Err(Reason::Rights);
        }
        if !capability.covers(&heads.range()) {
            return Err(Reason::Range);
        }
        self.still(capability)?;
        if heads.head.epoch != self.settings.epoch {
            return Err(Reason::Epoch);
        }
        if self.serves(capability) { Ok(()) } else { Err(Reason::Filling) }
    }

    /// Whether what is here of an object counts, or is being resolved. Where nobody else has a
    /// copy, there is nothing better.
    fn serves(&self, capability: &Capability) -> bool {
        let serves = |doubt: &Doubt| doubt.serves(capability.object, capability.fence);
        let is_single = capability.strategy == Strategy::Single || is_planted(Fault::Trusting);
        is_single || self.doubt.as_ref().is_none_or(serves)
    }

    /// Objects of which damage was found are doubted.
    pub(crate) fn doubt_damage(&mut self, damaged: &BTreeSet<u64>) {
        if !damaged.is_empty() {
            let doubt = self.doubt.get_or_insert_default();
            damaged.iter().for_each(|object| doubt.damage(*object));
        }
    }

    /// Whether a call about what was written under a capability is allowed: of its client, or of a
    /// server in its place.
    pub(crate) fn check_writer(
        &self,
        from: Peer,
        is_sealed: bool,
        capability: &Capability,
    ) -> Result<(), Reason> {
        self.counts(is_sealed, capability)?;
        if from != Peer::Client(capability.client) && !matches!(from, Peer::Server(_)) {
            return Err(Reason::Other);
        }
        if !capability.rights.allow(Rights::WRITE) {
            return Err(Reason::Rights);
        }
        self.still(capability)
    }

    /// Whether a capability is one of this node's volume, and in time.
    fn counts(&self, is_sealed: bool, capability: &Capability) -> Result<(), Reason> {
        if self.settings.threat == Threat::EveryPacket && !is_sealed {
            return Err(Reason::Forged);
        }
        if self.settings.threat != Threat::Ticket {
            self.check_mac(capability)?;
        }
        if self.wall_ms >= capability.expires {
            return Err(Reason::Expired);
        }
        if self.settings.volume.is_some_and(|volume| volume != capability.volume) {
            return Err(Reason::Other);
        }
        Ok(())
    }

    /// Whether it comes from who may send it: the client, a server that works for clients that have
    /// no conversation with this node, or the member that forwards to this one.
    fn is_from(&self, from: Peer, heads: &Heads) -> bool {
        let (hop, write) = (heads.head.hop, write_of(heads));
        let before = write.and_then(WriteHead::predecessor);
        match from {
            Peer::Client(id) => id == heads.capability.client && hop == 0 && before.is_none(),
            Peer::Server(_) => hop == 0 && before.is_none(),
            Peer::Node(node) => write.is_some_and(|write| {
                let all = write.coordinates.as_slice();
                let before = before.and_then(|rank| all.get(usize::from(rank)));
                before.is_some_and(|before| before.node == node) && hop == write.depth()
            }),
            Peer::Coordinator(_) => false,
        }
    }

    /// Whether it spreads as its capability says, this node is where it says, and it goes on to
    /// nodes that are known here, where they are known to be.
    pub(crate) fn is_spread(&self, heads: &Heads) -> bool {
        let capability = &heads.capability;
        // Any member is asked for a read, and each for a hole.
        let Some(write) = write_of(heads) else { return true };
        if write.strategy == Strategy::Single {
            // Who may write a stripe may bring each of its nodes what that is to have, or what
            // changes of it.
            return match capability.strategy {
                Strategy::Single => write.brings == Brings::Bytes,
                Strategy::Parity => true,
                Strategy::Ring | Strategy::BinaryTree => false,
            };
        }
        if write.strategy != capability.strategy || write.k != capability.k {
            return false;
        }
        let all = write.coordinates.as_slice();
        let own = all.get(usize::from(write.rank));
        let is_known = |(_, to): (u8, Coordinate)| {
            let address = SocketAddrV4::new(to.address.into(), to.port);
            self.nodes.get(&to.node) == Some(&address)
        };
        own.is_some_and(|own| own.node == self.settings.node)
            && all.len() == usize::from(capability.k) + usize::from(capability.m)
            && write.coordinates.group() == capability.group
            && write.successors().into_iter().flatten().all(is_known)
    }

    /// The key is known and in time, and the MAC is its.
    fn check_mac(&self, capability: &Capability) -> Result<(), Reason> {
        if self.keys.is_empty() {
            // This node has just started: a server will tell it the keys.
            return Err(Reason::Busy);
        }
        let key = self.keys.get(&capability.key).ok_or(Reason::Forged)?;
        if self.wall_ms >= key.until {
            return Err(Reason::Expired);
        }
        if capability.is_signed_by(&key.key) { Ok(()) } else { Err(Reason::Forged) }
    }

    /// The answer to a request.
    pub(crate) fn answer(&self, heads: &Heads, outcome: Result<u32, Reason>) -> Answer {
        let sequence = match &heads.target {
            Target::Write(write) => write.sequence,
            Target::Hole(hole) => hole.sequence,
            Target::Read(_) => 0,
        };
        Answer {
            request: heads.head.request,
            rank: write_of(heads).map_or(0, |write| write.rank),
            data: outcome.unwrap_or(0),
            outcome: outcome.map(|_| ()),
            sequence,
            epoch: self.settings.epoch,
            credit: self.settings.credit,
            fence: self.fence(heads.capability.object),
            held: 0,
            boot: self.settings.boot,
        }
    }

    /// The answer to what begins like a request and is none, if it has a number.
    pub(crate) fn answer_unread(&self, payload: &[u8], reason: Reason) -> Option<Answer> {
        let number = payload.get(8..)?.first_chunk()?;
        Some(Answer {
            request: u64::from_le_bytes(*number),
            rank: 0,
            data: 0,
            outcome: Err(reason),
            sequence: 0,
            epoch: self.settings.epoch,
            credit: self.settings.credit,
            fence: 0,
            held: 0,
            boot: self.settings.boot,
        })
    }
}

fn write_of(heads: &Heads) -> Option<&WriteHead> {
    match &heads.target {
        Target::Write(write) => Some(write),
        Target::Read(_) | Target::Hole(_) => None,
    }
}
