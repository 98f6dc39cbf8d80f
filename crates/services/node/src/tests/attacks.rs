//! The attacks on a node that anybody could think of, in each of the three models of trust: what
//! must be refused is refused, by one answer with its reason, and not a byte of it gets to a
//! medium.
//!
//! `OUTBOARD_ATTACKS=n` makes so many random ones of each model; a million takes minutes.

mod make;

use std::collections::BTreeMap;

use outboard_wire::shared::call::{Call, Reply};

use self::make::{Attack, Fate, fate, make};
use super::*;
use crate::policy::Threat;

const OBJECTS: u64 = 6;
const SIZE: usize = 65_536;

/// What the objects hold, if the node is right.
#[derive(Default)]
struct Model {
    contents: BTreeMap<u64, Vec<u8>>,
    sequences: BTreeMap<u64, u32>,
}

impl Model {
    fn next(&mut self, object: u64) -> u32 {
        let sequence = self.sequences.entry(object).or_default();
        *sequence += 1;
        *sequence
    }

    fn apply(&mut self, ask: &Ask) {
        let Target::Write(write) = &ask.heads.target else { return };
        let contents =
            self.contents.entry(ask.heads.capability.object).or_insert_with(|| vec![0; SIZE]);
        // What lies behind the bytes that are looked at counts for nothing.
        let at = usize::try_from(write.offset).unwrap().min(SIZE);
        let len = ask.data.len().min(SIZE - at);
        contents[at..at + len].copy_from_slice(&ask.data[..len]);
    }
}

/// A request that is right, to be made wrong.
fn right(rng: &mut Rng, model: &mut Model, object: u64) -> Ask {
    let size = 1 + rng.below(1600);
    let offset = rng.below(SIZE as u64 - size);
    Ask::write(object, (FENCE, model.next(object)), offset, bytes(rng, size))
}

const FENCE: u64 = 50;

/// A node and what it should hold.
struct Siege {
    rig: Rig,
    model: Model,
    threat: Threat,
    /// The last write of each object that was done.
    done: BTreeMap<u64, (Vec<u8>, Ask)>,
}

impl Siege {
    fn new(threat: Threat) -> Siege {
        let mut rig = Rig::new(NodeOptions { threat, ..NodeOptions::default() });
        rig.target.opened(Peer::Client(CLIENT + 2), false);
        for object in 1..=OBJECTS {
            let seal = Call::Seal { object, fence: FENCE };
            assert!(matches!(run(rig.node.call(SERVER, seal)), Reply::Object(_)));
        }
        let mut siege = Siege { rig, model: Model::default(), threat, done: BTreeMap::new() };
        let mut rng = Rng::new(0);
        for object in 1..=OBJECTS {
            let ask = right(&mut rng, &mut siege.model, object);
            siege.send(ME, &ask.message(), &ask, Fate::Done, &mut rng);
        }
        siege
    }

    /// Sends a request, and sees that its fate is what it should be.
    fn send(&mut self, from: Peer, message: &[u8], ask: &Ask, fate: Fate, rng: &mut Rng) {
        let before = self.rig.writes();
        let (answer, data) = self.rig.ask(from, message, rng);
        assert_eq!(answer.request, ask.heads.head.request);
        match fate {
            Fate::Done if matches!(ask.heads.target, Target::Read(_)) => {
                let range = ask.heads.range();
                let range = range.start.try_into().unwrap()..range.end.try_into().unwrap();
                assert_eq!(answer.outcome, Ok(()));
                assert!(data == self.model.contents[&ask.heads.capability.object][range]);
            }
            Fate::Done => {
                assert_eq!(answer.outcome, Ok(()));
                assert!(self.rig.writes() > before);
                self.model.apply(ask);
                let object = ask.heads.capability.object;
                self.done.insert(object, (message.to_vec(), ask.clone()));
            }
            Fate::Known => {
                assert_eq!(answer.outcome, Ok(()));
                assert_eq!(self.rig.writes(), before, "done twice");
            }
            Fate::Refused(reason) => {
                assert_eq!((answer.outcome, data), (Err(reason), Vec::new()));
                assert_eq!(self.rig.writes(), before, "bytes got to a medium");
            }
            Fate::Somehow | Fate::Silence => panic!("not for this: {answer:?}"),
        }
    }

    fn attack(&mut self, attack: Attack, rng: &mut Rng) {
        let fate = fate(self.threat, attack);
        let object = 1 + rng.below(OBJECTS);
        if matches!(attack, Attack::Replayed | Attack::Older) {
            let (mut message, mut ask) = self.done[&object].clone();
            if attack == Attack::Older {
                let Target::Write(write) = ask.heads.target else { return };
                // Its version is passed by one more write, and then it comes with other bytes.
                let next = right(rng, &mut self.model, object);
                self.send(ME, &next.message(), &next, Fate::Done, rng);
                let version = (FENCE, write.sequence);
                ask = Ask::write(object, version, write.offset, bytes(rng, 30));
                message = ask.message();
            }
            let from = ME;
            if ask.heads.capability.client != CLIENT {
                return;
            }
            return self.send(from, &message, &ask, fate, rng);
        }
        let (from, message, ask) = make(attack, rng, &mut self.model);
        match attack {
            Attack::Injected => self.inject(&message, &ask, rng),
            Attack::Garbage => {
                let whole = |rig: &mut Rig, rng: &mut Rng| {
                    rig.give(ME, &message, usize::MAX, rng);
                };
                self.silent(whole, rng);
            }
            Attack::Unfinished => {
                let all = message.len().div_ceil(MTU);
                let cut = |rig: &mut Rig, rng: &mut Rng| {
                    let message = rig.give(ME, &message, all - 1, rng);
                    rig.target.cleanup(ME, message);
                };
                self.silent(cut, rng);
            }
            Attack::Bit if self.threat == Threat::Ticket => self.anything(&message, rng),
            Attack::Bit => self.bit(&message, &ask, rng),
            _ => self.send(from, &message, &ask, fate, rng),
        }
    }

    /// What nobody answers, and nobody stores.
    fn silent(&mut self, act: impl FnOnce(&mut Rig, &mut Rng), rng: &mut Rng) {
        let before = self.rig.writes();
        act(&mut self.rig, rng);
        assert_eq!(self.rig.answers(), []);
        assert_eq!(self.rig.writes(), before, "bytes got to a medium");
    }

    /// Packets without a beginning, one with the number of another's message that is under way:
    /// that is not touched.
    fn inject(&mut self, message: &[u8], ask: &Ask, rng: &mut Rng) {
        let before = self.rig.writes();
        let number = self.rig.give(ME, message, 1, rng);
        let packet = |number, payload, offset, completes| {
            let offset = u32::try_from(offset).unwrap();
            Given { message: number, header: None, offset, payload, completes }
        };
        let now = outboard_base::Time(0);
        let garbage = bytes(rng, MTU as u64);
        let given = packet(number, &garbage, MTU, true);
        self.rig.target.given(Peer::Client(CLIENT + 1), &given, now);
        let stranger = packet(Psn::new(number.raw() ^ 0x80_0000), &garbage, 0, true);
        self.rig.target.given(ME, &stranger, now);
        if message.len() > MTU {
            assert_eq!((self.rig.answers(), self.rig.writes()), (vec![], before));
        }
        for (at, payload) in message.chunks(MTU).enumerate().skip(1) {
            let given = packet(number, payload, at * MTU, (at + 1) * MTU >= message.len());
            self.rig.target.given(ME, &given, now);
        }
        let answers = self.rig.answers();
        assert!(matches!(&answers[..], [(ME, Answer { outcome: Ok(()), .. }, _)]), "{answers:?}");
        self.model.apply(ask);
        self.done.insert(ask.heads.capability.object, (message.to_vec(), ask.clone()));
    }

    /// A bit of the heads: what is not signed may say something else that is right, too. Not of
    /// another object, and not beyond the capability.
    fn bit(&mut self, message: &[u8], ask: &Ask, rng: &mut Rng) {
        let before = self.rig.writes();
        let (answer, _) = self.rig.ask(ME, message, rng);
        if answer.outcome.is_err() {
            assert_eq!(self.rig.writes(), before, "bytes got to a medium");
            return;
        }
        let heads = outboard_wire::shared::Request::parse(&message[..MTU.min(message.len())]);
        let heads = heads.unwrap().heads;
        assert_eq!(heads.capability, ask.heads.capability, "a bit of it is signed");
        assert!(heads.capability.covers(&heads.range()));
        self.take(message, Ask { heads, data: ask.data.clone() });
    }

    /// With a ticket anything may be right; what is refused is not stored.
    fn anything(&mut self, message: &[u8], rng: &mut Rng) {
        let before = self.rig.writes();
        let (answer, _) = self.rig.ask(ME, message, rng);
        if answer.outcome.is_err() {
            assert_eq!(self.rig.writes(), before, "bytes got to a medium");
            return;
        }
        let request = outboard_wire::shared::Request::parse(&message[..MTU.min(message.len())]);
        let heads = request.unwrap().heads;
        let begins = message.len() - heads.head.data as usize;
        self.take(message, Ask { heads, data: message[begins..].to_vec() });
    }

    /// The node did this, which is not what was meant, but allowed.
    fn take(&mut self, message: &[u8], ask: Ask) {
        let Target::Write(write) = &ask.heads.target else { return };
        let (object, fence) = (ask.heads.capability.object, ask.heads.capability.fence);
        let meant = self.model.sequences.get(&object).copied();
        if !(1..=OBJECTS).contains(&object) {
            return;
        }
        if fence != FENCE || Some(write.sequence) != meant {
            // Versions have gone beyond what is counted here: it goes on with a new node.
            *self = Siege::new(self.threat);
            return;
        }
        self.model.apply(&ask);
        self.done.insert(object, (message.to_vec(), ask));
    }

    /// The node holds what was allowed, and nothing else.
    fn settle(&mut self) {
        for (object, contents) in &self.model.contents {
            let ask = Ask::read(*object, FENCE, 0, u32::try_from(SIZE).unwrap()).message();
            let (answer, data) = self.rig.ask(ME, &ask, &mut Rng::new(1));
            assert_eq!(answer.outcome, Ok(()));
            assert!(data == *contents, "object {object} has other bytes");
        }
        let figures = ["descriptors", "landed_nic", "landed_cpu", "waiting"];
        assert_eq!(figures.map(|name| self.rig.figure(name)), [0; 4]);
    }
}

const THREATS: [Threat; 3] = [Threat::Ticket, Threat::Signed, Threat::EveryPacket];

/// Each attack in each model, a few times.
#[test]
fn the_table_of_attacks() {
    for threat in THREATS {
        for attack in Attack::ALL {
            let mut siege = Siege::new(threat);
            let mut rng = Rng::new(attack as u64);
            for _ in 0..4 {
                println!("{threat:?} {attack:?}");
                siege.attack(attack, &mut rng);
            }
            siege.settle();
        }
    }
}

/// All of them, in any order, among requests that are right.
fn random_attacks(threat: Threat) {
    let count = std::env::var("OUTBOARD_ATTACKS").map_or(33_400, |count| count.parse().unwrap());
    let seed = seeds(1).start;
    let mut siege = Siege::new(threat);
    let mut rng = Rng::new(seed);
    for number in 0..count {
        let attack = Attack::ALL[usize::try_from(rng.below(27)).unwrap()];
        if number % 1000 == 999 {
            siege.settle();
        }
        println!("seed {seed} number {number} {threat:?} {attack:?}");
        siege.attack(attack, &mut rng);
    }
    siege.settle();
}

#[test]
fn random_attacks_on_who_trusts_all() {
    random_attacks(Threat::Ticket);
}

#[test]
fn random_attacks_on_who_trusts_the_network() {
    random_attacks(Threat::Signed);
}

#[test]
fn random_attacks_on_who_trusts_nobody() {
    random_attacks(Threat::EveryPacket);
}
