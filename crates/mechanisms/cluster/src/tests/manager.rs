//! The manager: the group's record, the delegations, and resolvers, some of which it forgot.

use std::collections::BTreeMap;

use super::oracle::Oracle;
use super::world::{Addr, Body, Bytes, NODES, Net, STRIPS, TERM};
use crate::fault::{Fault, planted};
use crate::{Delegations, Entry, Fence, Gep, Group, Life, Mark, Node, Progress, Reply, Resolver};
use crate::{Role, State, StripId, Version};

pub(super) struct Manager {
    /// Durable.
    pub(super) record: Group,
    pub(super) delegations: Delegations,
    /// Who holds a strip, and until when.
    holders: BTreeMap<StripId, (usize, u64)>,
    /// Until when a strip is not granted, for it was taken from its holder (R9).
    waits: BTreeMap<StripId, u64>,
    /// What it last heard of nodes.
    lives: BTreeMap<Node, Life>,
    /// At work, paused, or left by a manager that died.
    resolvers: Vec<(StripId, Resolver)>,
    /// Of faults: the group at a strip's first grant, the version of its last.
    first: BTreeMap<StripId, Group>,
    known: BTreeMap<StripId, Version>,
}

impl Manager {
    pub(super) fn new() -> Manager {
        let member = |node| Entry { node, life: 1, role: Role::Active, joined: 1 };
        Manager {
            record: Group { gep: 1, members: (0..NODES - 1).map(member).collect() },
            delegations: Delegations::default(),
            holders: BTreeMap::new(),
            waits: BTreeMap::new(),
            lives: (0..NODES).map(|node| (node, 1)).collect(),
            resolvers: Vec::new(),
            first: BTreeMap::new(),
            known: BTreeMap::new(),
        }
    }

    fn live(&self) -> Vec<(Node, Life)> {
        self.lives.iter().map(|(node, life)| (*node, *life)).collect()
    }

    fn publish(&mut self, group: Option<Group>, net: &mut Net) {
        let Some(group) = group else { return };
        self.record = group;
        (0..NODES).for_each(|node| self.tell(node, net));
    }

    pub(super) fn tell(&self, node: Node, net: &mut Net) {
        net.send(Addr::Manager, Addr::Node(node), Body::Learn(self.record.clone()));
    }

    /// A node was started: in the life that is recorded it goes on, in another it is out.
    pub(super) fn hello(&mut self, node: Node, life: Life, oracle: &mut Oracle, net: &mut Net) {
        let heard = self.lives.entry(node).or_default();
        *heard = life.max(*heard);
        let life = *heard;
        let is_over = self.record.member(node).is_some_and(|entry| entry.life != life);
        if is_over {
            let live = self.live();
            match self.record.without(node, &live) {
                Some(group) => self.publish(Some(group), net),
                None => self.recover(oracle, net),
            }
        }
        self.tell(node, net);
    }

    /// Every ACTIVE member lost power (R9).
    fn recover(&mut self, oracle: &mut Oracle, net: &mut Net) {
        if let Some(group) = self.record.recovered(&self.live()) {
            oracle.power_lost();
            self.delegations.lapse_all(0..STRIPS);
            // Answers that were sent before may still come: they count until the lease is over.
            self.waits = self.holders.iter().map(|(strip, (_, until))| (*strip, *until)).collect();
            self.publish(Some(group), net);
        }
    }

    pub(super) fn exclude(&mut self, node: Node, net: &mut Net) {
        self.publish(self.record.without(node, &self.live()), net);
    }

    pub(super) fn admit(&mut self, node: Node, net: &mut Net) {
        self.publish(self.record.with(node, self.lives[&node]), net);
    }

    /// A member says that it is filled. What was sealed since it was is not covered.
    pub(super) fn filled(
        &mut self,
        (node, life, gep): (Node, Life, Gep),
        marks: &[(StripId, Mark)],
        net: &mut Net,
    ) {
        let is_now = gep == self.record.gep
            && self.record.member(node).is_some_and(|entry| entry.life == life);
        if is_now && self.delegations.cover(marks) {
            self.publish(self.record.activated(node), net);
        }
    }

    pub(super) fn acquire(&mut self, client: usize, strip: StripId, nonce: u64, net: &mut Net) {
        if let (State::Held(fence), Some((holder, _))) =
            (self.delegations.state(strip), self.holders.get(&strip))
        {
            // It forgot that it has it, or its grant was lost.
            if *holder == client {
                self.delegations.lapse(strip, fence);
            }
        }
        if self.waits.get(&strip).is_some_and(|until| net.now <= *until) {
            return;
        }
        let Some(grant) = self.delegations.grant(strip) else { return };
        self.holders.insert(strip, (client, net.now + TERM));
        self.known.insert(strip, grant.last);
        let first = self.first.entry(strip).or_insert_with(|| self.record.clone());
        let old = planted(Fault::OldEpochGranted);
        let group = if old { first.clone() } else { self.record.clone() };
        let body = Body::Granted { strip, nonce, grant, group };
        net.send(Addr::Manager, Addr::Client(client), body);
    }

    pub(super) fn renew(
        &mut self,
        client: usize,
        (strip, fence, sent): (StripId, Fence, u64),
        net: &mut Net,
    ) {
        let body = if self.delegations.state(strip) == State::Held(fence) {
            self.holders.insert(strip, (client, net.now + TERM));
            Body::Renewed { strip, fence, sent, group: self.record.clone() }
        } else {
            Body::Gone { strip, fence }
        };
        net.send(Addr::Manager, Addr::Client(client), body);
    }

    pub(super) fn release(
        &mut self,
        client: usize,
        (strip, fence, last): (StripId, Fence, Version),
        net: &mut Net,
    ) {
        self.delegations.release(strip, fence, last);
        net.send(Addr::Manager, Addr::Client(client), Body::Gone { strip, fence });
    }

    pub(super) fn abandon(
        &mut self,
        client: usize,
        (strip, fence): (StripId, Fence),
        net: &mut Net,
    ) {
        self.delegations.lapse(strip, fence);
        net.send(Addr::Manager, Addr::Client(client), Body::Gone { strip, fence });
    }

    /// Ends a lease that is over.
    pub(super) fn lapse(&mut self, strip: StripId, now: u64) {
        if let (State::Held(fence), Some((_, until))) =
            (self.delegations.state(strip), self.holders.get(&strip))
            && now > *until
        {
            self.delegations.lapse(strip, fence);
        }
    }

    /// A strip that nobody holds is resolved all the same, so that nothing is pending there.
    pub(super) fn settle(&mut self, strip: StripId) {
        self.delegations.settle(strip);
    }

    /// A resolver begins; those before it do not know.
    pub(super) fn resolve(&mut self, strip: StripId, net: &mut Net) {
        let Some(fence) = self.delegations.seal(strip) else { return };
        if planted(Fault::NoResolve) {
            let last = self.known.get(&strip).copied().unwrap_or_default();
            self.delegations.resolved(strip, fence, last);
            return;
        }
        if self.resolvers.len() > 4 {
            self.resolvers.remove(0);
        }
        self.resolvers.push((strip, Resolver::new(self.record.clone(), fence)));
        self.pump(self.resolvers.len() - 1, net);
    }

    /// Whether the resolver that began last is still at work.
    pub(super) fn resolves(&self, strip: StripId) -> bool {
        let State::Broken(Some(seal)) = self.delegations.state(strip) else { return false };
        let is_it = |r: &Resolver| r.fence() == seal && r.group().gep == self.record.gep;
        self.resolvers.iter().any(|(_, r)| is_it(r) && r.progress() == Progress::Asking)
    }

    pub(super) fn resolvers(&self) -> usize {
        self.resolvers.len()
    }

    /// One of the resolvers sends again.
    pub(super) fn pump(&self, which: usize, net: &mut Net) {
        let Some((strip, resolver)) = self.resolvers.get(which) else { return };
        let (strip, gep, call) = (*strip, resolver.group().gep, resolver.fence());
        for (node, request) in resolver.asks::<Bytes>() {
            let body = Body::Ask { strip, gep, call, request };
            net.send(Addr::Manager, Addr::Node(node), body);
        }
    }

    pub(super) fn answered(
        &mut self,
        (node, gep, call): (Node, Gep, u64),
        reply: &Reply<Bytes>,
        oracle: &mut Oracle,
        net: &mut Net,
    ) {
        let same = |(_, r): &(StripId, Resolver)| r.fence() == call && r.group().gep == gep;
        let Some(which) = self.resolvers.iter().position(same) else { return };
        let (strip, resolver) = &mut self.resolvers[which];
        let before = resolver.asks::<Bytes>().len();
        let strip = *strip;
        match resolver.answered(node, reply) {
            Progress::Asking if resolver.asks::<Bytes>().len() > before => self.pump(which, net),
            Progress::Asking => {}
            Progress::Done(version) => {
                self.delegations.resolved(strip, call, version);
                self.resolvers.remove(which);
            }
            Progress::Over => {
                self.resolvers.remove(which);
            }
            Progress::Lost => {
                oracle.blame(format!("strip {strip}: no source for the verdict"));
            }
        }
    }
}
