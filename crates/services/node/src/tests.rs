//! A whole node, on media in memory, and who speaks with it.

mod attacks;
mod calls;
mod coding;
mod doubt;
mod flows;
mod paths;
mod replication;
mod tending;
mod terms;
mod world;

use std::sync::Arc;

use outboard_base::Rng;
use outboard_base::task::run;
use outboard_flow::{Given, Header, Target as _};
use outboard_medium::mem::MemMedium;
use outboard_wire::roce::Psn;
use outboard_wire::shared::call::{Call, Key, Reply};
use outboard_wire::shared::{
    Answer, Capability, Coordinates, Head, Heads, HoleHead, MAC_LEN, Peer, ReadHead, Rights,
    Strategy, Target, WriteHead,
};

use crate::{Node, NodeOptions, NodeTarget, Store, StoreOptions};

/// Bytes of payload of a packet: the heads of a write without coordinates fit.
const MTU: usize = 512;
const VOLUME: u32 = 9;
const CLIENT: u64 = 77;
const ME: Peer = Peer::Client(CLIENT);
const SERVER: Peer = Peer::Server(0);
const NOW: u64 = 1_000_000;
const KEY: [u8; 32] = [3; 32];
const OLD_KEY: [u8; 32] = [4; 32];

/// Which seeds: one by `OUTBOARD_SEED`, else `count` of them.
fn seeds(count: u64) -> std::ops::Range<u64> {
    match std::env::var("OUTBOARD_SEED") {
        Ok(seed) => {
            let seed = seed.parse().unwrap();
            seed..seed + 1
        }
        Err(_) => 0..count,
    }
}

type Medium = Arc<MemMedium>;

fn store(log: &Medium, data: &Medium) -> Store<Medium> {
    let options = StoreOptions {
        node: 1,
        cluster: 5,
        capacity: 64 << 20,
        segment: 1 << 20,
        checkpoint_bytes: 1 << 20,
    };
    run(Store::open(Arc::clone(log), Arc::clone(data), options)).unwrap()
}

/// A node and the wire to it.
struct Rig {
    node: Node<Medium>,
    target: NodeTarget<Medium>,
    log: Medium,
    data: Medium,
    psn: u32,
}

impl Rig {
    fn new(options: NodeOptions) -> Rig {
        let (log, data) = (Arc::new(MemMedium::new(1)), Arc::new(MemMedium::new(2)));
        Rig::on(log, data, options)
    }

    fn on(log: Medium, data: Medium, options: NodeOptions) -> Rig {
        let volume = options.volume.or(Some(VOLUME));
        let node = Node::new(
            store(&log, &data),
            NodeOptions { node: options.node.max(1), volume, ..options },
        );
        let mut target = node.target();
        node.set_wall(NOW);
        for peer in [ME, SERVER, Peer::Client(CLIENT + 1), Peer::Node(2)] {
            target.opened(peer, true);
        }
        let keys = vec![
            Key { id: 1, until: NOW + 1000, key: KEY },
            Key { id: 2, until: NOW, key: OLD_KEY },
        ];
        let rig = Rig { node, target, log, data, psn: 0 };
        let term = u32::try_from(rig.figure("term")).unwrap();
        let told = Call::Keys { keys, revoked: Vec::new() }.in_term(term);
        assert_eq!(run(rig.node.call(SERVER, told)), Reply::Done);
        rig
    }

    /// The process ends and starts.
    fn restart(self, options: NodeOptions) -> Rig {
        let Rig { node, target, log, data, .. } = self;
        drop((node, target));
        Rig::on(log, data, options)
    }

    /// Gives packets of one message: the first ones up to `most`, those in the middle as `rng`
    /// draws.
    fn give(&mut self, from: Peer, message: &[u8], most: usize, rng: &mut Rng) -> Psn {
        let psn = Psn::new(self.psn);
        let mut offsets: Vec<usize> = (0..message.len().max(1)).step_by(MTU).collect();
        for at in (2..offsets.len()).rev() {
            let other = 1 + usize::try_from(rng.below(at as u64)).unwrap();
            offsets.swap(at, other);
        }
        let count = offsets.len();
        self.psn = self.psn.wrapping_add(u32::try_from(count).unwrap()) & 0xFF_FFFF;
        for (index, offset) in offsets.into_iter().enumerate().take(most) {
            let end = (offset + MTU).min(message.len());
            let bytes = u32::try_from(message.len()).unwrap();
            let given = Given {
                message: psn,
                header: (offset == 0).then_some(Header { write: None, bytes }),
                offset: u32::try_from(offset).unwrap(),
                payload: &message[offset..end],
                completes: index + 1 == count,
            };
            self.target.given(from, &given, outboard_base::Time(0));
        }
        psn
    }

    /// Runs what is whole, and takes what is answered.
    fn answers(&mut self) -> Vec<(Peer, Answer, Vec<u8>)> {
        while let Some(work) = self.node.take_work() {
            run(work);
        }
        let split = |(peer, message): (Peer, Vec<u8>)| {
            let (answer, data) = Answer::split(&message).unwrap();
            (peer, answer, data.to_vec())
        };
        self.node.take_answers().into_iter().map(split).collect()
    }

    /// Sends a whole request; its one answer.
    fn ask(&mut self, from: Peer, message: &[u8], rng: &mut Rng) -> (Answer, Vec<u8>) {
        self.give(from, message, usize::MAX, rng);
        let mut all = self.answers();
        let (to, answer, data) = all.pop().unwrap();
        assert!(all.is_empty() && to == from, "one answer, to who asked");
        (answer, data)
    }

    /// Writes that reached the media.
    fn writes(&self) -> (u64, u64) {
        (self.log.counts().writes, self.data.counts().writes)
    }

    /// A figure of the node.
    fn figure(&self, name: &str) -> u64 {
        let status = self.node.status();
        let at = status.find(&format!("\"{name}\":")).unwrap();
        let digits = status[at + name.len() + 3..].chars();
        digits.take_while(char::is_ascii_digit).collect::<String>().parse().unwrap()
    }
}

/// A request as it is made.
#[derive(Clone, Debug)]
struct Ask {
    heads: Heads,
    data: Vec<u8>,
}

impl Ask {
    fn new(object: u64, fence: u64, target: Target, data: Vec<u8>) -> Ask {
        let capability = Capability {
            key: 1,
            rights: Rights::READ_WRITE,
            volume: VOLUME,
            object,
            first: 0,
            end: 1 << 20,
            client: CLIENT,
            fence,
            group: 0,
            strategy: Strategy::Single,
            k: 1,
            m: 0,
            expires: NOW + 1,
            mac: [0; MAC_LEN],
        };
        let len = u32::try_from(data.len()).unwrap();
        let head = Head { request: object << 32 | 5, data: len, epoch: 1, settled: 0, hop: 0 };
        Ask { heads: Heads { head, capability, target }, data }.signed()
    }

    /// With the MAC of the key that it names.
    fn signed(mut self) -> Ask {
        let key = if self.heads.capability.key == 2 { OLD_KEY } else { KEY };
        self.heads.capability = self.heads.capability.sign(&key);
        self
    }

    fn write(object: u64, version: (u64, u32), offset: u64, data: Vec<u8>) -> Ask {
        let write = WriteHead {
            strategy: Strategy::Single,
            rank: 0,
            k: 1,
            unit: 0,
            role: outboard_wire::shared::Role::Data,
            brings: outboard_wire::shared::Brings::Bytes,
            offset,
            bytes: u32::try_from(data.len()).unwrap(),
            sequence: version.1,
            previous: 0,
            crc: outboard_codec::crc32c(&data),
            session: 0,
            number: 0,
            lane: 0,
            coordinates: Coordinates::new(&[]).unwrap(),
        };
        Ask::new(object, version.0, Target::Write(write), data)
    }

    fn read(object: u64, fence: u64, offset: u64, bytes: u32) -> Ask {
        Ask::new(
            object,
            fence,
            Target::Read(ReadHead { offset, bytes, unit: 0, map: false }),
            Vec::new(),
        )
    }

    fn hole(object: u64, version: (u64, u32), range: std::ops::Range<u64>) -> Ask {
        let hole = HoleHead {
            offset: range.start,
            end: range.end,
            sequence: version.1,
            previous: 0,
            session: 0,
            number: 0,
            lane: 0,
            share: None,
        };
        Ask::new(object, version.0, Target::Hole(hole), Vec::new())
    }

    fn message(&self) -> Vec<u8> {
        let mut message = Vec::new();
        self.heads.emit(&mut message).unwrap();
        message.extend_from_slice(&self.data);
        message
    }
}

fn bytes(rng: &mut Rng, len: u64) -> Vec<u8> {
    let mut out = vec![0; usize::try_from(len).unwrap()];
    rng.fill(&mut out);
    out
}
