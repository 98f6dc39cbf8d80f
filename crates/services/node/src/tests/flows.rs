//! Requests that come by conversations, over a wire that loses, doubles and delays datagrams; and
//! clients that fall silent.

use std::net::{Ipv4Addr, SocketAddrV4};
use std::pin::pin;
use std::task::Poll;
use std::time::Duration;

use outboard_base::Time;
use outboard_base::task::poll_once;
use outboard_flow::{Config, Conversations, Keys, Net as _, NoTarget};

use super::*;
use crate::policy::Threat;

struct OneKey;

impl Keys for OneKey {
    fn of(&self, _: Peer) -> Option<[u8; 32]> {
        Some([8; 32])
    }
}

const NODE: Peer = Peer::Node(1);

fn config(me: Peer, seed: u64) -> Config {
    let mut settings = outboard_flow::Settings::of_mtu(1500);
    settings.silence = Duration::from_secs(1);
    settings.tries = 6;
    Config {
        me,
        address: address(me),
        life: seed + 1,
        cluster: 5,
        settings,
        keys: Box::new(OneKey),
        seed,
        sealed: true,
        answer_within: Duration::from_millis(50),
    }
}

fn address(peer: Peer) -> SocketAddrV4 {
    let port = if peer == NODE { 1 } else { 2 };
    SocketAddrV4::new(Ipv4Addr::LOCALHOST, port)
}

/// Two ends, and datagrams between them.
struct Wire {
    rig: Rig,
    node: Conversations<NodeTarget<Medium>>,
    client: Conversations<NoTarget>,
    /// When it arrives, whether at the node, and what.
    flying: Vec<(u64, bool, Vec<u8>)>,
    now: u64,
    rng: Rng,
    /// Of 100 datagrams, so many are lost, doubled or late.
    bad: u64,
    /// Nothing from the client arrives any more.
    is_cut: bool,
}

impl Wire {
    fn new(seed: u64, bad: u64) -> Wire {
        let options = NodeOptions { threat: Threat::EveryPacket, ..NodeOptions::default() };
        let rig = Rig::new(options);
        let node = Conversations::new(config(NODE, 2 * seed), rig.node.target());
        let client = Conversations::new(config(ME, 2 * seed + 1), NoTarget);
        client.know(NODE, address(NODE));
        let (flying, rng) = (Vec::new(), Rng::new(seed));
        Wire { rig, node, client, flying, now: 0, rng, bad, is_cut: false }
    }

    /// A tenth of a millisecond passes.
    fn step(&mut self) {
        self.now += 100_000;
        let now = Time(self.now);
        let mut sent = Vec::new();
        self.client.pump(now, NOW, &mut |_, bytes| sent.push((true, bytes.to_vec())));
        if self.is_cut {
            sent.clear();
        }
        while let Some(work) = self.rig.node.take_work() {
            run(work);
        }
        for (to, answer) in self.rig.node.take_answers() {
            let _ = self.node.send(to, answer);
        }
        self.node.pump(now, NOW, &mut |_, bytes| sent.push((false, bytes.to_vec())));
        for (is_to_node, bytes) in sent {
            let copies = match self.rng.below(300) {
                roll if roll < self.bad => 0,
                roll if roll < 2 * self.bad => 2,
                _ => 1,
            };
            for _ in 0..copies {
                let late =
                    if self.rng.chance(self.bad, 300) { self.rng.below(3_000_000) } else { 0 };
                self.flying.push((self.now + late, is_to_node, bytes.clone()));
            }
        }
        let due = |(when, _, _): &mut (u64, bool, Vec<u8>)| *when <= self.now;
        let due: Vec<_> = self.flying.extract_if(.., due).collect();
        for (_, is_to_node, bytes) in due {
            if is_to_node {
                self.node.datagram(address(ME), &bytes, now, NOW);
            } else {
                self.client.datagram(address(NODE), &bytes, now, NOW);
            }
        }
    }

    fn ask(&mut self, ask: &Ask) -> (Answer, Vec<u8>) {
        let client = self.client.clone();
        let mut request = pin!(client.request(NODE, &ask.heads, &ask.data));
        for _ in 0..200_000 {
            if let Poll::Ready(answer) = poll_once(request.as_mut()) {
                return answer.unwrap();
            }
            self.step();
        }
        panic!("no answer");
    }
}

#[test]
fn requests_are_done_once_over_a_bad_wire() {
    for seed in seeds(6) {
        let mut wire = Wire::new(seed, 5 * seed);
        let mut contents = vec![0; 200_000];
        let mut rng = Rng::new(seed);
        for sequence in 1..12 {
            let size = 1 + rng.below(60_000);
            let offset = rng.below(contents.len() as u64 - size);
            let data = bytes(&mut rng, size);
            let ask = Ask::write(1, (5, sequence), offset, data.clone());
            let (answer, _) = wire.ask(&ask);
            assert_eq!(answer.outcome, Ok(()), "seed {seed}");
            let at = usize::try_from(offset).unwrap();
            contents[at..at + data.len()].copy_from_slice(&data);
        }
        let (_, data) = wire.ask(&Ask::read(1, 5, 0, 200_000));
        let end = contents.iter().rposition(|byte| *byte != 0).unwrap();
        assert!(data[..=end] == contents[..=end], "seed {seed}");
        assert_eq!(wire.rig.figure("refused"), 0, "seed {seed}: the conversation is sealed");
        assert_eq!(wire.rig.figure("accepted"), 12, "seed {seed}: each came once");
    }
}

/// A client dies in the middle of a write: what it had is free again, and nothing was stored.
#[test]
fn silence_cleans_up() {
    let mut wire = Wire::new(1, 0);
    wire.ask(&Ask::read(1, 5, 0, 10));
    let before = wire.rig.writes();
    let client = wire.client.clone();
    let ask = Ask::write(1, (5, 1), 0, vec![7; 200_000]);
    let mut request = pin!(client.request(NODE, &ask.heads, &ask.data));
    assert!(poll_once(request.as_mut()).is_pending());
    while wire.rig.figure("landed_nic") == 0 {
        wire.step();
    }
    wire.is_cut = true;
    assert_eq!(wire.rig.figure("descriptors"), 1);
    for _ in 0..15_000 {
        wire.step();
    }
    let all = ["descriptors", "landed_nic", "waiting"].map(|name| wire.rig.figure(name));
    assert_eq!((all, wire.rig.figure("cleaned")), ([0; 3], 1));
    assert_eq!(wire.rig.writes(), before);
}
