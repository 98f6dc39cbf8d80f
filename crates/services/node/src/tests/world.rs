//! Nodes and clients that speak over wires that lose, double and delay, in simulated time.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::net::{Ipv4Addr, SocketAddrV4};
use std::pin::Pin;
use std::task::Poll;
use std::time::Duration;

use outboard_base::Time;
use outboard_base::task::{Spawn, Work, poll_once};
use outboard_flow::{Config, Conversations, Gone, Keys, Net as _, NoTarget};
use outboard_wire::shared::{Coordinate, Reason, Role};

use super::*;

/// Of parts, and of clients: nobody has both but parts.
pub(super) struct OfRoles(bool);

impl Keys for OfRoles {
    fn of(&self, peer: Peer) -> Option<[u8; 32]> {
        let is_client = !self.0 || matches!(peer, Peer::Client(_));
        Some([if is_client { 9 } else { 8 }; 32])
    }
}

pub(super) fn address(number: u16) -> SocketAddrV4 {
    SocketAddrV4::new(Ipv4Addr::LOCALHOST, number)
}

/// Nanoseconds of a step.
pub(super) const TICK: u64 = 100_000;
/// Where the client is, and another.
pub(super) const FAR: u16 = 100;
pub(super) const FARTHER: u16 = 101;

pub(super) fn config(me: Peer, number: u16, life: u64, is_part: bool) -> Config {
    let mut settings = outboard_flow::Settings::of_mtu(1500);
    settings.silence = Duration::from_secs(1);
    settings.tries = 6;
    Config {
        me,
        address: address(number),
        life,
        cluster: 5,
        settings,
        keys: Box::new(OfRoles(is_part)),
        seed: life.wrapping_mul(31) + u64::from(number),
        sealed: false,
        answer_within: Duration::from_millis(50),
    }
}

/// What is spawned, until it ends.
#[derive(Default)]
pub(super) struct Tasks(RefCell<Vec<Work>>);

impl Spawn for Tasks {
    fn spawn(&self, mut work: Work) {
        if poll_once(work.as_mut()).is_pending() {
            self.0.borrow_mut().push(work);
        }
    }
}

impl Tasks {
    pub(super) fn poll(&self) {
        let all = self.0.take();
        let open = all.into_iter().filter_map(|mut work| {
            let is_open = poll_once(work.as_mut()).is_pending();
            is_open.then_some(work)
        });
        let open: Vec<Work> = open.collect();
        self.0.borrow_mut().extend(open);
    }
}

pub(super) struct Member {
    pub(super) rig: Rig,
    pub(super) conversations: Conversations<NodeTarget<Medium>>,
    pub(super) tasks: Tasks,
    pub(super) options: NodeOptions,
    pub(super) life: u64,
}

impl Member {
    pub(super) fn new(rig: Rig, number: u16, life: u64, options: NodeOptions, k: u16) -> Member {
        let me = Peer::Node(number);
        let target = rig.node.target();
        let conversations = Conversations::new(config(me, number, life, true), target);
        for other in (1..=k).filter(|other| *other != number) {
            rig.node.know(other, address(other));
            conversations.know(Peer::Node(other), address(other));
        }
        Member { rig, conversations, tasks: Tasks::default(), options, life }
    }
}

/// Nodes 1 to k, a client, and datagrams between them.
pub(super) struct World {
    pub(super) members: Vec<Member>,
    pub(super) client: Conversations<NoTarget>,
    pub(super) other: Conversations<NoTarget>,
    /// When it arrives, from where, to where, and what.
    pub(super) flying: Vec<(u64, u16, u16, Vec<u8>)>,
    pub(super) now: u64,
    pub(super) rng: Rng,
    /// Of 100 datagrams, so many are lost, doubled or late.
    pub(super) bad: u64,
    /// Of whom nothing goes or comes any more.
    pub(super) dead: BTreeSet<u16>,
    /// Between whom nothing goes.
    pub(super) cut: BTreeSet<(u16, u16)>,
    /// Bytes that went, by who sent and who was sent to.
    pub(super) sent: Vec<(u16, u16, usize)>,
}

impl World {
    pub(super) fn new(seed: u64, k: u16, bad: u64, options: impl Fn(u16) -> NodeOptions) -> World {
        let members = (1..=k).map(|number| {
            let options = NodeOptions { node: number, ..options(number) };
            let rig = Rig::new(options);
            Member::new(rig, number, seed * 100 + u64::from(number), options, k)
        });
        let members = members.collect();
        let client = Conversations::new(config(ME, FAR, seed + 7, false), NoTarget);
        let me = Peer::Client(CLIENT + 1);
        let other = Conversations::new(config(me, FARTHER, seed + 8, false), NoTarget);
        for number in 1..=k {
            client.know(Peer::Node(number), address(number));
            other.know(Peer::Node(number), address(number));
        }
        let rng = Rng::new(seed);
        let (dead, cut, sent) = (BTreeSet::new(), BTreeSet::new(), Vec::new());
        World { members, client, other, flying: Vec::new(), now: 0, rng, bad, dead, cut, sent }
    }

    pub(super) fn plain(seed: u64, k: u16, bad: u64) -> World {
        World::new(seed, k, bad, |_| NodeOptions::default())
    }

    /// The process of a node ends and begins anew, on its media.
    pub(super) fn restart(&mut self, number: u16) {
        self.restart_as(number, self.members[usize::from(number) - 1].options);
    }

    /// The same, with other options.
    pub(super) fn restart_as(&mut self, number: u16, options: NodeOptions) {
        let (at, k) = (usize::from(number) - 1, u16::try_from(self.members.len()).unwrap());
        let Member { rig, life, conversations, tasks, .. } = self.members.remove(at);
        drop((conversations, tasks));
        let member = Member::new(rig.restart(options), number, life + 50, options, k);
        self.members.insert(at, member);
        self.dead.remove(&number);
    }

    /// When something happens next: not at once, if nobody has anything to do.
    pub(super) fn next(&self) -> u64 {
        let alive = (1..).zip(&self.members).filter(|(number, _)| !self.dead.contains(number));
        let all = alive.map(|(_, member)| {
            let is_busy = member.conversations.has_work() || member.rig.node.has_work();
            if is_busy { Some(Time(0)) } else { member.conversations.deadline() }
        });
        let own = [&self.client, &self.other]
            .map(|client| if client.has_work() { Some(Time(0)) } else { client.deadline() });
        let flying = self.flying.iter().map(|one| one.0);
        let due = all.chain(own).flatten().map(|due| due.0);
        due.chain(flying).min().unwrap_or(u64::MAX)
    }

    /// A tenth of a millisecond passes, or more if nothing happens; to `end` at most.
    pub(super) fn step_to(&mut self, end: u64) {
        self.now = (self.now + TICK).max(self.next().min(end));
        let now = Time(self.now);
        let mut sent = Vec::new();
        for (client, at) in [(&self.client, FAR), (&self.other, FARTHER)] {
            client.pump(now, NOW, &mut |to, bytes| sent.push((at, to.port(), bytes.to_vec())));
        }
        for (number, member) in (1..).zip(&mut self.members) {
            if self.dead.contains(&number) {
                continue;
            }
            member.tasks.poll();
            member.rig.node.tend(&member.conversations, &member.tasks);
            let mut send = |to: SocketAddrV4, bytes: &[u8]| {
                sent.push((number, to.port(), bytes.to_vec()));
            };
            member.conversations.pump(now, NOW, &mut send);
        }
        for (from, to, bytes) in sent {
            self.sent.push((from, to, bytes.len()));
            let copies = match self.rng.below(300) {
                roll if roll < self.bad => 0,
                roll if roll < 2 * self.bad => 2,
                _ => 1,
            };
            for _ in 0..copies {
                let is_late = self.rng.chance(self.bad, 300);
                let late = if is_late { self.rng.below(3_000_000) } else { 0 };
                self.flying.push((self.now + late, from, to, bytes.clone()));
            }
        }
        let due = |one: &mut (u64, u16, u16, Vec<u8>)| one.0 <= self.now;
        let due: Vec<_> = self.flying.extract_if(.., due).collect();
        for (_, from, to, bytes) in due {
            let is_cut = self.cut.contains(&(from, to)) || self.cut.contains(&(to, from));
            if is_cut || self.dead.contains(&from) || self.dead.contains(&to) {
                continue;
            }
            match self.members.get(usize::from(to).wrapping_sub(1)) {
                Some(member) => member.conversations.datagram(address(from), &bytes, now, NOW),
                None if to == FARTHER => self.other.datagram(address(from), &bytes, now, NOW),
                None => self.client.datagram(address(from), &bytes, now, NOW),
            }
        }
    }

    pub(super) fn step(&mut self) {
        self.step_to(self.now + 100 * TICK);
    }

    /// So many tenths of a millisecond pass.
    pub(super) fn steps(&mut self, count: u64) {
        let end = self.now + count * TICK;
        while self.now < end {
            self.step_to(end);
        }
    }

    /// Begins to ask; polled by [`World::end`].
    pub(super) fn begin(&self, to: u16, ask: &Ask) -> Asking {
        let is_other = ask.heads.capability.client != CLIENT;
        let client = if is_other { self.other.clone() } else { self.client.clone() };
        let ask = ask.clone();
        let mut asking: Asking =
            Box::pin(async move { client.request(Peer::Node(to), &ask.heads, &ask.data).await });
        assert!(poll_once(asking.as_mut()).is_pending());
        asking
    }

    pub(super) fn end(&mut self, asking: &mut Asking) -> Result<(Answer, Vec<u8>), Gone> {
        for _ in 0..200_000 {
            if let Poll::Ready(answer) = poll_once(asking.as_mut()) {
                return answer;
            }
            self.step();
        }
        panic!("no answer");
    }

    pub(super) fn ask(&mut self, to: u16, ask: &Ask) -> (Answer, Vec<u8>) {
        let mut asking = self.begin(to, ask);
        self.end(&mut asking).unwrap()
    }

    /// Asks a group whose first member is `nodes[0]`: what it says, and by whom.
    pub(super) fn write(&mut self, nodes: &[u16], ask: &Ask) -> (u8, Result<(), Reason>) {
        let (answer, _) = self.ask(nodes[0], ask);
        (answer.rank, answer.outcome)
    }

    pub(super) fn figures(&self, name: &str) -> Vec<u64> {
        self.members.iter().map(|member| member.rig.figure(name)).collect()
    }

    /// Nothing is under way any more, anywhere.
    pub(super) fn is_quiet(&self) -> bool {
        let names = ["descriptors", "landed_nic", "landed_cpu", "waiting", "passing"];
        names.iter().all(|name| self.figures(name).iter().all(|figure| *figure == 0))
    }
}

pub(super) type Asking = Pin<Box<dyn Future<Output = Result<(Answer, Vec<u8>), Gone>>>>;

pub(super) fn coordinates(nodes: &[u16]) -> Vec<Coordinate> {
    let one = |node: &u16| {
        let (address, port) = ([127, 0, 0, 1], *node);
        Coordinate { address, port, node: *node, unit: 0, role: Role::Data }
    };
    nodes.iter().map(one).collect()
}

/// 1 to k, in an order that `rng` draws.
pub(super) fn order(k: u16, rng: &mut Rng) -> Vec<u16> {
    let mut nodes: Vec<u16> = (1..=k).collect();
    for at in (1..nodes.len()).rev() {
        nodes.swap(at, usize::try_from(rng.below(at as u64 + 1)).unwrap());
    }
    nodes
}

/// The same write, after one that was acknowledged.
pub(super) fn after(mut ask: Ask, previous: u32) -> Ask {
    if let Target::Write(write) = &mut ask.heads.target {
        write.previous = previous;
    }
    ask
}

/// The same request, of a client of which all up to a sequence was acknowledged.
pub(super) fn settled(mut ask: Ask, sequence: u32) -> Ask {
    ask.heads.head.settled = sequence;
    ask
}
