//! The world: who there is, what is on its way, and what may happen next.
//!
//! A node's log keeps every state since the last flush: the end of its process loses none of them,
//! the loss of power all from a random one on. The network keeps messages as long as it likes,
//! loses and doubles them. All follows from the choices that are given.

use super::client::{Client, Wish};
use super::manager::Manager;
use super::oracle::Oracle;
use crate::fault::{Fault, planted};
use crate::{Fence, Gep, Grant, Group, Life, Mark, Member, Node, Reply, Request, Role, State};
use crate::{Strip, StripId, Version};

/// What a grain holds here.
pub(super) type Bytes = u32;
pub(super) const GRAINS: usize = 2;
pub(super) const STRIPS: u64 = 2;
/// Three members and one that joins.
pub(super) const NODES: Node = 4;
const CLIENTS: usize = 2;
/// How long a lease lasts, in ticks.
pub(super) const TERM: u64 = 6;
/// Messages on their way, at most; the oldest are lost.
const NET: usize = 48;
/// States of a node that a loss of power can bring back, at most.
const LOG: usize = 24;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Addr {
    Client(usize),
    Node(Node),
    Manager,
}

#[derive(Clone, Debug)]
pub(super) enum Body {
    Ask { strip: StripId, gep: Gep, call: u64, request: Request<Bytes> },
    Reply { strip: StripId, gep: Gep, call: u64, reply: Reply<Bytes> },
    Learn(Group),
    Hello(Life),
    Filled { life: Life, gep: Gep, marks: Vec<(StripId, Mark)> },
    Acquire { strip: StripId, nonce: u64 },
    Granted { strip: StripId, nonce: u64, grant: Grant, group: Group },
    Renew { strip: StripId, fence: Fence, sent: u64 },
    Renewed { strip: StripId, fence: Fence, sent: u64, group: Group },
    Gone { strip: StripId, fence: Fence },
    Release { strip: StripId, fence: Fence, last: Version },
    Abandon { strip: StripId, fence: Fence },
}

#[derive(Clone, Debug)]
pub(super) struct Envelope {
    pub(super) from: Addr,
    pub(super) to: Addr,
    pub(super) body: Body,
}

/// Messages that may be slow, all of one kind: they stay on their way while the others pass them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Slow {
    None,
    Contents,
    Copies,
    Acceptances,
    Verdicts,
    Writes,
    Filled,
    Records,
}

impl Slow {
    const KINDS: [Slow; 8] = [
        Slow::None,
        Slow::Contents,
        Slow::Copies,
        Slow::Acceptances,
        Slow::Verdicts,
        Slow::Writes,
        Slow::Filled,
        Slow::Records,
    ];

    /// Those of a walk.
    pub(super) fn of(seed: u64) -> Slow {
        Slow::KINDS[usize::try_from(seed % Slow::KINDS.len() as u64).unwrap()]
    }

    fn is(self, body: &Body) -> bool {
        let kind = match body {
            Body::Reply { reply: Reply::Content(..), .. } => Slow::Contents,
            Body::Reply { reply: Reply::Copy(_), .. } => Slow::Copies,
            Body::Reply { reply: Reply::Accepted(_), .. } => Slow::Acceptances,
            Body::Ask { request: Request::Resolve { .. }, .. } => Slow::Verdicts,
            Body::Ask { request: Request::Write(_), .. } => Slow::Writes,
            Body::Filled { .. } => Slow::Filled,
            Body::Learn(_) => Slow::Records,
            _ => return false,
        };
        self == kind
    }
}

/// What is on its way, and the time.
pub(super) struct Net {
    pub(super) now: u64,
    slow: Slow,
    pub(super) on_way: Vec<Envelope>,
}

impl Net {
    pub(super) fn send(&mut self, from: Addr, to: Addr, body: Body) {
        if self.on_way.len() >= NET {
            let passed = self.on_way.iter().position(|envelope| !self.slow.is(&envelope.body));
            self.on_way.remove(passed.unwrap_or(0));
        }
        self.on_way.push(Envelope { from, to, body });
    }
}

struct Machine {
    is_up: bool,
    life: Life,
    member: Member<Bytes>,
    /// The first is durable.
    log: Vec<Member<Bytes>>,
}

impl Machine {
    fn new(node: Node) -> Machine {
        let member = Member::new(node, 1, 0..STRIPS, &[0; GRAINS]);
        Machine { is_up: true, life: 1, log: vec![member.clone()], member }
    }

    fn logged(&mut self, durable: bool) {
        if durable {
            self.log.clear();
        } else if self.log.len() >= LOG {
            self.log.remove(1);
        }
        self.log.push(self.member.clone());
    }
}

pub(super) struct World {
    pub(super) net: Net,
    nodes: Vec<Machine>,
    pub(super) clients: Vec<Client>,
    pub(super) manager: Manager,
    pub(super) oracle: Oracle,
    /// What happened, if it is wanted.
    pub(super) trace: Option<Vec<String>>,
}

impl World {
    pub(super) fn new(slow: Slow, traced: bool) -> World {
        let mut world = World {
            net: Net { now: 0, slow, on_way: Vec::new() },
            nodes: (0..NODES).map(Machine::new).collect(),
            clients: (0..CLIENTS).map(Client::new).collect(),
            manager: Manager::new(),
            oracle: Oracle::new(STRIPS, &[0; GRAINS]),
            trace: traced.then(Vec::new),
        };
        for node in &mut world.nodes {
            node.member.learn(&world.manager.record);
            node.logged(true);
        }
        world
    }

    fn note(&mut self, what: impl FnOnce() -> String) {
        let now = self.net.now;
        if let Some(trace) = &mut self.trace {
            trace.push(format!("{now:3} {}", what()));
        }
    }

    /// One step, chosen by a number.
    pub(super) fn step(&mut self, choice: u64) {
        let (kind, operand) = (choice % 256, choice >> 8);
        let count = self.net.on_way.len();
        let pick = usize::try_from(operand % count.max(1) as u64).unwrap();
        match kind {
            0..130 if count > 0 => self.deliver(self.passing(pick, operand)),
            130..136 if count > 0 => {
                let again = self.net.on_way[pick].clone();
                self.receive(again);
            }
            136..144 if count > 0 => {
                let lost = self.net.on_way.remove(pick);
                self.note(|| format!("lost: {lost:?}"));
            }
            144..200 => self.client_acts(operand),
            200..212 => self.net.now += 1,
            212..238 => self.manager_acts(operand),
            238..256 => self.node_acts(operand),
            _ => {}
        }
    }

    /// Which message is delivered if this one is picked: of the slow ones it is seldom that.
    fn passing(&self, pick: usize, operand: u64) -> usize {
        let (Net { on_way, slow, .. }, rest) = (&self.net, operand / 1024);
        let fast = |at: &usize| !slow.is(&on_way[*at].body);
        let from_here = (pick..on_way.len()).chain(0..pick).find(fast);
        from_here.filter(|_| !rest.is_multiple_of(64)).unwrap_or(pick)
    }

    fn client_acts(&mut self, operand: u64) {
        let who = usize::try_from(operand % 2).unwrap();
        let (strip, which) = (operand / 2 % STRIPS, operand / 8);
        let client = &mut self.clients[who];
        let wish = match which % 40 {
            0 => return client.crash(),
            1..5 => return client.renew(strip, &mut self.net),
            5..22 => Wish::Write(which / 40),
            22..28 => Wish::Flush,
            28..36 => Wish::Read,
            36..39 => Wish::Release,
            _ => Wish::Abandon,
        };
        client.act(strip, wish, &mut self.oracle, &mut self.net);
        self.note(|| format!("client {who} strip {strip}: {wish:?}"));
    }

    fn manager_acts(&mut self, operand: u64) {
        let (strip, which) = (operand % STRIPS, operand / 8);
        let node = Node::try_from(which / 16 % u64::from(NODES)).unwrap();
        let (manager, net) = (&mut self.manager, &mut self.net);
        match which % 16 {
            0 => manager.exclude(node, net),
            1..3 => manager.admit(node, net),
            3 => manager.settle(strip),
            4..7 => manager.lapse(strip, net.now),
            7..9 => manager.tell(node, net),
            9..12 => manager.resolve(strip, net),
            _ => manager.pump((which / 64) as usize % manager.resolvers().max(1), net),
        }
        let gep = self.manager.record.gep;
        self.note(|| format!("manager: {} node {node} strip {strip}, gep {gep}", which % 16));
    }

    fn node_acts(&mut self, operand: u64) {
        let node = Node::try_from(operand % u64::from(NODES)).unwrap();
        match operand / 8 % 48 {
            0..2 => {
                self.nodes[usize::from(node)].is_up = false;
                self.note(|| format!("node {node} crashes"));
            }
            2 => self.power_fails(node, operand / 512),
            3 if (operand / 512).is_multiple_of(3) => {
                (0..NODES).for_each(|node| self.power_fails(node, operand / 2048));
            }
            4..20 => self.starts(node),
            _ => self.node_goes_on(node),
        }
    }

    fn power_fails(&mut self, node: Node, which: u64) {
        let machine = &mut self.nodes[usize::from(node)];
        let mixed = which.wrapping_mul(0x9E37_79B9).wrapping_add(u64::from(node) * 7);
        let keeps = usize::try_from(mixed % machine.log.len() as u64).unwrap();
        machine.member = machine.log[keeps].clone();
        machine.logged(true);
        machine.is_up = false;
        if !planted(Fault::PowerIgnored) {
            machine.life += 1;
        }
        self.note(|| format!("node {node} loses power, and its log from {keeps} on"));
    }

    fn starts(&mut self, node: Node) {
        let machine = &mut self.nodes[usize::from(node)];
        if !machine.is_up {
            machine.is_up = true;
            machine.member.start(machine.life);
            self.note(|| format!("node {node} starts"));
        }
        self.hello(node);
    }

    fn hello(&mut self, node: Node) {
        let life = self.nodes[usize::from(node)].life;
        self.net.send(Addr::Node(node), Addr::Manager, Body::Hello(life));
    }

    /// What a member does without being asked: it fills itself, and says when it is done.
    pub(super) fn node_goes_on(&mut self, node: Node) {
        let machine = &mut self.nodes[usize::from(node)];
        if !machine.is_up {
            return;
        }
        let gep = machine.member.gep();
        for (source, strip, request) in machine.member.wants() {
            let body = Body::Ask { strip, gep, call: 0, request };
            self.net.send(Addr::Node(node), Addr::Node(source), body);
        }
        if let Some(marks) = machine.member.filled() {
            if !planted(Fault::FilledNotDurable) {
                machine.logged(true);
            }
            let body = Body::Filled { life: machine.life, gep, marks };
            self.net.send(Addr::Node(node), Addr::Manager, body);
        }
    }

    pub(super) fn deliver(&mut self, which: usize) {
        let envelope = self.net.on_way.remove(which);
        self.receive(envelope);
    }

    fn receive(&mut self, envelope: Envelope) {
        let Envelope { from, to, body } = envelope;
        match to {
            Addr::Node(node) if !self.nodes[usize::from(node)].is_up => return,
            _ => self.note(|| format!("{from:?} -> {to:?}: {body:?}")),
        }
        match (to, from) {
            (Addr::Node(node), _) => self.node_receives(node, from, body),
            (Addr::Manager, Addr::Client(client)) => self.manager_hears(client, body),
            (Addr::Manager, Addr::Node(node)) => self.manager_hears_node(node, body),
            (Addr::Client(client), _) => self.client_receives(client, from, body),
            (Addr::Manager, Addr::Manager) => {}
        }
    }

    fn node_receives(&mut self, node: Node, from: Addr, body: Body) {
        let (me, machine) = (Addr::Node(node), &mut self.nodes[usize::from(node)]);
        let mut durable = false;
        match body {
            Body::Learn(group) => machine.member.learn(&group),
            Body::Ask { strip, gep, call, request } => {
                let output = machine.member.handle(strip, gep, request);
                durable = output.durable;
                if let Some(reply) = output.reply {
                    self.net.send(me, from, Body::Reply { strip, gep, call, reply });
                }
                if let Some((source, strip, request)) = output.ask {
                    let body = Body::Ask { strip, gep, call: 0, request };
                    self.net.send(me, Addr::Node(source), body);
                }
            }
            Body::Reply { strip, gep, reply, .. } => machine.member.answered(strip, gep, reply),
            _ => {}
        }
        machine.logged(durable);
        self.oracle.holds(node, &machine.member);
    }

    fn manager_hears(&mut self, client: usize, body: Body) {
        let (manager, net) = (&mut self.manager, &mut self.net);
        match body {
            Body::Acquire { strip, nonce } => manager.acquire(client, strip, nonce, net),
            Body::Renew { strip, fence, sent } => manager.renew(client, (strip, fence, sent), net),
            Body::Release { strip, fence, last } => {
                manager.release(client, (strip, fence, last), net);
            }
            Body::Abandon { strip, fence } => manager.abandon(client, (strip, fence), net),
            _ => {}
        }
    }

    fn manager_hears_node(&mut self, node: Node, body: Body) {
        let (manager, oracle, net) = (&mut self.manager, &mut self.oracle, &mut self.net);
        match body {
            Body::Hello(life) => manager.hello(node, life, oracle, net),
            Body::Filled { life, gep, marks } => manager.filled((node, life, gep), &marks, net),
            Body::Reply { gep, call, reply, .. } => {
                manager.answered((node, gep, call), &reply, oracle, net);
            }
            _ => {}
        }
    }

    fn client_receives(&mut self, client: usize, from: Addr, body: Body) {
        let (client, oracle, net) = (&mut self.clients[client], &mut self.oracle, &mut self.net);
        match (body, from) {
            (Body::Granted { strip, nonce, grant, group }, _) => {
                client.granted((strip, nonce, net.now), grant, group, oracle);
            }
            (Body::Renewed { strip, fence, sent, group }, _) => {
                client.renewed(strip, fence, sent, group);
            }
            (Body::Gone { strip, fence }, _) => client.gone(strip, fence),
            (Body::Reply { strip, gep, call, reply }, Addr::Node(node)) => {
                client.answered((strip, node, gep, call), &reply, oracle, net);
            }
            _ => {}
        }
    }

    /// The faults stop: everybody is up, nothing is lost. All that was begun must end, every node
    /// become ACTIVE, and both strips be of use.
    pub(super) fn heals(&mut self) {
        self.note(|| "the faults stop".into());
        if !self.ends(|world| {
            world.manager.record.active().count() == usize::from(NODES)
                && world.clients.iter().all(Client::holds_nothing)
                && (0..STRIPS).all(|s| matches!(world.manager.delegations.state(s), State::Free(_)))
        }) {
            let (record, delegations) = (&self.manager.record, &self.manager.delegations);
            let what = format!("no end after the faults: {record:?} {delegations:?}");
            self.oracle.blame(what);
            return;
        }
        for strip in 0..STRIPS {
            self.works(strip);
        }
        self.agree();
    }

    /// Rounds in which nothing fails, until `is_over` or too many.
    fn ends(&mut self, is_over: impl Fn(&World) -> bool) -> bool {
        for round in 0..120_u64 {
            if self.oracle.fault.is_some() || is_over(self) {
                return true;
            }
            self.round(round);
            for who in 0..CLIENTS {
                for strip in 0..STRIPS {
                    let client = &mut self.clients[who];
                    if !client.holds_nothing() {
                        client.renew_or_release(strip, round, &mut self.oracle, &mut self.net);
                    }
                }
            }
            self.delivers_all();
        }
        false
    }

    fn round(&mut self, round: u64) {
        self.net.now += 1;
        for node in 0..NODES {
            self.starts(node);
            self.node_goes_on(node);
            self.delivers_all();
            if self.manager.record.member(node).is_none() {
                self.manager.admit(node, &mut self.net);
            }
        }
        let fills = self.manager.record.members.iter().any(|entry| entry.role == Role::Filling);
        for strip in 0..STRIPS {
            if fills && round % 10 == 9 {
                self.manager.settle(strip);
            }
            self.manager.lapse(strip, self.net.now);
            if !self.manager.resolves(strip) {
                self.manager.resolve(strip, &mut self.net);
            }
        }
        for which in 0..self.manager.resolvers() {
            self.manager.pump(which, &mut self.net);
            self.delivers_all();
        }
    }

    pub(super) fn delivers_all(&mut self) {
        for _ in 0..2000 {
            if self.net.on_way.is_empty() {
                return;
            }
            self.deliver(0);
        }
    }

    /// One client gets the strip, writes, syncs and reads.
    fn works(&mut self, strip: StripId) {
        for wish in [Wish::Write(0), Wish::Flush, Wish::Read] {
            let done = self.clients[0].did(strip) + 1;
            for round in 0..20 {
                if self.clients[0].did(strip) >= done {
                    break;
                }
                self.round(round);
                if round % 3 == 2 {
                    self.clients[0].renew(strip, &mut self.net);
                    self.delivers_all();
                }
                self.clients[0].act(strip, wish, &mut self.oracle, &mut self.net);
                self.delivers_all();
            }
            if self.clients[0].did(strip) < done {
                let what = format!("strip {strip}: {wish:?} does not end");
                self.oracle.blame(what);
            }
        }
    }

    /// After a sync all members hold the same.
    fn agree(&mut self) {
        for strip in 0..STRIPS {
            let content = |machine: &Machine| {
                let strip = machine.member.strips().find(|(id, _)| *id == strip);
                strip.and_then(|(_, s): (_, &Strip<Bytes>)| s.stable().cloned())
            };
            let first = content(&self.nodes[0]);
            if self.nodes.iter().any(|machine| content(machine) != first) {
                self.oracle.blame(format!("strip {strip}: members differ"));
            }
        }
    }
}
