//! Stripes whose data nodes send parts to parity nodes, over wires that lose, double and delay:
//! each parity is that of the data, bit by bit; who could not is named; asked again, nothing is
//! done twice.

mod attacks;
mod failures;
mod sums;

use outboard_base::task::poll_once;
use outboard_codec::erasure::{Code, Field};
use outboard_wire::shared::call::Call;
use outboard_wire::shared::{Coordinate, Reason, Role};

use super::world::*;
use super::*;
use crate::nic::sched::Handler;
use crate::policy::{Baseline, Steer};

/// Bytes of each unit that are looked at: strips, and a bit more.
const SIZE: usize = 150_000;

/// The members of a file with parities: data nodes, then those of parities.
#[derive(Clone, Debug)]
struct Group {
    k: usize,
    nodes: Vec<u16>,
}

/// What a member said: its rank, or whose it names.
type Said = (u8, Result<(), Reason>);

impl Group {
    fn new(k: usize, m: usize, rng: &mut Rng) -> Group {
        Group { k, nodes: order(u16::try_from(k + m).unwrap(), rng) }
    }

    /// Nodes in the order of their numbers.
    fn plain(k: usize, m: usize) -> Group {
        Group { k, nodes: (1..=u16::try_from(k + m).unwrap()).collect() }
    }

    fn m(&self) -> usize {
        self.nodes.len() - self.k
    }

    fn coordinates(&self) -> Vec<Coordinate> {
        let mut all = coordinates(&self.nodes);
        for (rank, one) in all.iter_mut().enumerate() {
            one.unit = u8::try_from(rank).unwrap();
            one.role = if rank < self.k { Role::Data } else { Role::Parity };
        }
        all
    }

    /// A request about an object of these, to the member at `rank`.
    fn ask(&self, mut ask: Ask, rank: usize) -> Ask {
        let all = Coordinates::new(&self.coordinates()).unwrap();
        let (k, m) = (u8::try_from(self.k).unwrap(), u8::try_from(self.m()).unwrap());
        let capability = &mut ask.heads.capability;
        (capability.strategy, capability.k, capability.m) = (Strategy::Parity, k, m);
        capability.group = all.group();
        if let Target::Write(write) = &mut ask.heads.target {
            let rank = u8::try_from(rank).unwrap();
            (write.strategy, write.k, write.coordinates) = (Strategy::Parity, k, all);
            (write.rank, write.unit) = (rank, rank);
        }
        ask.signed()
    }

    /// What each data node is asked to write of a stripe.
    fn write(&self, object: u64, version: (u64, u32), offset: u64, units: &[Vec<u8>]) -> Vec<Ask> {
        let ask = |(rank, unit): (usize, &Vec<u8>)| {
            self.ask(after(Ask::write(object, version, offset, unit.clone()), version.1 - 1), rank)
        };
        units.iter().enumerate().map(ask).collect()
    }

    /// The same, of so many drawn bytes of each unit.
    fn drawn(&self, object: u64, version: (u64, u32), len: u64) -> Vec<Ask> {
        let mut rng = Rng::new(object * 100 + u64::from(version.1));
        let units: Vec<Vec<u8>> = (0..self.k).map(|_| bytes(&mut rng, len)).collect();
        self.write(object, version, 0, &units)
    }

    fn encode(&self, units: &[Vec<u8>]) -> Vec<Vec<u8>> {
        let code = Code::new(Field::Tables, self.k, self.m()).unwrap();
        let mut parities = vec![vec![0; units[0].len()]; self.m()];
        let data: Vec<&[u8]> = units.iter().map(Vec::as_slice).collect();
        let mut outs: Vec<&mut [u8]> = parities.iter_mut().map(Vec::as_mut_slice).collect();
        code.encode(&data, &mut outs).unwrap();
        parities
    }
}

impl World {
    fn of(seed: u64, group: &Group, bad: u64, options: impl Fn(u16) -> NodeOptions) -> World {
        World::new(seed, u16::try_from(group.nodes.len()).unwrap(), bad, options)
    }

    fn begin_stripe(&self, group: &Group, asks: &[Ask]) -> Vec<Asking> {
        let all = group.nodes.iter().zip(asks);
        all.map(|(node, ask)| self.begin(*node, ask)).collect()
    }

    fn end_stripe(&mut self, asking: &mut [Asking]) -> Vec<Said> {
        let mut end = |one: &mut Asking| {
            let (answer, _) = self.end(one).unwrap();
            (answer.rank, answer.outcome)
        };
        asking.iter_mut().map(&mut end).collect()
    }

    /// Asks all data nodes; what each says.
    fn stripe(&mut self, group: &Group, asks: &[Ask]) -> Vec<Said> {
        let mut asking = self.begin_stripe(group, asks);
        self.end_stripe(&mut asking)
    }

    /// What a member holds. Who has begun a new life is asked again.
    fn holds(&mut self, group: &Group, rank: usize, object: u64, len: usize) -> Vec<u8> {
        let read = Ask::read(object, 100, 0, u32::try_from(len).unwrap());
        let read = group.ask(read, rank);
        for _ in 0..20 {
            let mut asking = self.begin(group.nodes[rank], &read);
            if let Ok((answer, mut data)) = self.end(&mut asking) {
                assert_eq!(answer.outcome, Ok(()), "rank {rank}");
                data.resize(len, 0);
                return data;
            }
        }
        panic!("rank {rank} does not answer");
    }

    /// All members hold what they should of these units.
    fn check(&mut self, group: &Group, object: u64, units: &[Vec<u8>], what: &str) {
        let len = units[0].len();
        let all: Vec<Vec<u8>> = units.iter().cloned().chain(group.encode(units)).collect();
        for (rank, unit) in all.iter().enumerate() {
            assert!(self.holds(group, rank, object, len) == *unit, "{what}: rank {rank}");
        }
    }

    /// The same, of what was asked for.
    fn check_asked(&mut self, group: &Group, asks: &[Ask], what: &str) {
        let units: Vec<Vec<u8>> = asks.iter().map(|ask| ask.data.clone()).collect();
        self.check(group, asks[0].heads.capability.object, &units, what);
    }

    /// Nothing is under way or added up any more, once what is silent was given up.
    fn is_at_rest(&mut self) -> bool {
        self.steps(60_000);
        let names = ["sums", "sum_bytes"];
        self.is_quiet() && names.iter().all(|name| self.figures(name).iter().all(|one| *one == 0))
    }

    /// A figure of members by their ranks.
    fn of_ranks(&self, group: &Group, name: &str) -> Vec<u64> {
        let all = self.figures(name);
        group.nodes.iter().map(|node| all[usize::from(*node) - 1]).collect()
    }
}

/// What all data nodes say if all is well.
fn done(group: &Group) -> Vec<Said> {
    (0..group.k).map(|rank| (u8::try_from(rank).unwrap(), Ok(()))).collect()
}

/// Writes of all sizes, added up by handlers, by the CPU side or by whom it comes.
fn parities_are_those_of_the_data(seed: u64, code: (usize, usize), bad: u64, writes: u32) {
    parities_are_those_by(None, seed, code, bad, writes);
}

/// The same, by nodes that are run otherwise.
fn parities_are_those_by(
    baseline: Option<Baseline>,
    seed: u64,
    (k, m): (usize, usize),
    bad: u64,
    writes: u32,
) {
    let what = format!("seed {seed}, {k}+{m}");
    let mut rng = Rng::new(seed);
    let group = Group::new(k, m, &mut rng);
    let steers = [Steer::Never, Steer::Always, Steer::Overload];
    let steers: Vec<Steer> =
        (0..k + m).map(|_| steers[usize::try_from(rng.below(3)).unwrap()]).collect();
    let mut world = World::of(seed, &group, bad, |number| NodeOptions {
        steer: steers[usize::from(number) - 1],
        baseline,
        ..NodeOptions::default()
    });
    let mut units = vec![vec![0; SIZE]; k];
    for sequence in 1..=writes {
        let size = 1 + rng.below(if sequence == 1 { 900 } else { 60_000 });
        let offset = rng.below(SIZE as u64 - size);
        let at = usize::try_from(offset).unwrap();
        let fresh: Vec<Vec<u8>> = (0..k).map(|_| bytes(&mut rng, size)).collect();
        for (unit, fresh) in units.iter_mut().zip(&fresh) {
            unit[at..at + fresh.len()].copy_from_slice(fresh);
        }
        // Each as if it were the first of a delegation: all before it was done.
        let asks = group.write(1, (4 + u64::from(sequence), 1), offset, &fresh);
        assert_eq!(world.stripe(&group, &asks), done(&group), "{what}");
        let before = world.figures("writes");
        assert_eq!(world.stripe(&group, &asks), done(&group), "{what}: once more");
        assert_eq!(world.figures("writes"), before, "{what}: done once");
    }
    let end = units.iter().flat_map(|unit| unit.iter().rposition(|byte| *byte != 0)).max();
    units.iter_mut().for_each(|unit| unit.truncate(end.unwrap_or(0) + 1));
    world.check(&group, 1, &units, &what);
    assert!(world.is_at_rest(), "{what}");
    assert_eq!(world.figures("refused"), vec![0; k + m], "{what}");
    assert_eq!(world.figures("sums_lost"), vec![0; k + m], "{what}");
}

#[test]
fn two_data_units_and_a_parity() {
    let group = Group::plain(2, 1);
    for len in [10, 30_000, 200_000] {
        let mut world = World::of(1, &group, 0, |_| NodeOptions::default());
        let asks = group.drawn(1, (5, 1), len);
        assert_eq!(world.stripe(&group, &asks), done(&group));
        world.check_asked(&group, &asks, "2+1");
        let strips = len.div_ceil(1 << 16);
        assert_eq!(world.figures("writes"), [strips; 3]);
        assert!(world.is_at_rest());
    }
}

#[test]
fn parities_are_right_for_every_code() {
    for (k, m) in (1..=16).flat_map(|k| (1..=4).map(move |m| (k, m))) {
        let seed = u64::try_from(10 * k + m).unwrap();
        parities_are_those_of_the_data(seed, (k, m), 0, 1);
    }
}

#[test]
fn parities_are_right_over_a_good_wire() {
    for (k, m) in [(1, 1), (3, 2), (6, 3), (16, 4)] {
        parities_are_those_of_the_data(u64::try_from(k).unwrap(), (k, m), 0, 4);
    }
}

#[test]
fn parities_are_right_over_a_bad_wire() {
    for seed in seeds(8) {
        let mut rng = Rng::new(seed + 50);
        let (k, m) = (1 + rng.below(6), 1 + rng.below(4));
        let code = (usize::try_from(k).unwrap(), usize::try_from(m).unwrap());
        parities_are_those_of_the_data(seed, code, 3 + seed % 8, 3);
    }
}

/// A packet's parts are added as soon as it came: sums are there, and bytes went to parities, when
/// the client has not sent the last of its bytes.
#[test]
fn packets_are_added_as_they_come() {
    let group = Group::plain(3, 2);
    let mut world = World::of(1, &group, 0, |_| NodeOptions::default());
    // Everybody speaks with everybody.
    assert_eq!(world.stripe(&group, &group.drawn(9, (5, 1), 10)), done(&group));
    let asks = group.drawn(1, (5, 1), 1 << 20);
    let mut asking = world.begin_stripe(&group, &asks);
    while world.figures("packets").iter().sum::<u64>() < 600 {
        world.step();
    }
    assert_eq!(world.of_ranks(&group, "sums"), [0, 0, 0, 1, 1]);
    assert_eq!(world.of_ranks(&group, "sum_bytes"), [0, 0, 0, 1 << 20, 1 << 20]);
    assert_eq!(world.of_ranks(&group, "landed_nic")[3..], [0, 0], "parts land nowhere else");
    for member in &world.members[..3] {
        let passed = member.rig.node.nic().ledger().of(Handler::Payload).passed_bytes;
        assert!(passed > 2 * 50_000, "the ledger has it: {passed}");
    }
    assert!(asking.iter_mut().all(|one| poll_once(one.as_mut()).is_pending()));
    assert_eq!(world.end_stripe(&mut asking), done(&group));
    world.check_asked(&group, &asks, "3+2");
}

/// INEC: parts of chunks that landed whole are those of the data, whatever the wire does, beside
/// members that steer, too.
#[test]
fn whole_chunks_have_the_same_parities() {
    let inec = Some(Baseline::Inec);
    for (k, m) in [(1, 1), (3, 2), (6, 3), (16, 4)] {
        parities_are_those_by(inec, u64::try_from(k).unwrap(), (k, m), 0, 4);
    }
    for seed in seeds(6) {
        let mut rng = Rng::new(seed + 90);
        let (k, m) = (1 + rng.below(6), 1 + rng.below(4));
        let code = (usize::try_from(k).unwrap(), usize::try_from(m).unwrap());
        parities_are_those_by(inec, seed, code, 3 + seed % 8, 3);
    }
}

/// INEC: nothing goes to parities before a unit is whole.
#[test]
fn whole_chunks_are_multiplied_when_they_are_whole() {
    let group = Group::plain(3, 2);
    let mut world = World::of(1, &group, 0, |_| NodeOptions {
        baseline: Some(Baseline::Inec),
        ..NodeOptions::default()
    });
    assert_eq!(world.stripe(&group, &group.drawn(9, (5, 1), 10)), done(&group));
    let asks = group.drawn(1, (5, 1), 1 << 20);
    let mut asking = world.begin_stripe(&group, &asks);
    while world.figures("packets").iter().sum::<u64>() < 600 {
        world.step();
    }
    assert_eq!(world.of_ranks(&group, "sums"), [0; 5]);
    assert_eq!(world.end_stripe(&mut asking), done(&group));
    world.check_asked(&group, &asks, "3+2");
    let multiplied = world.members[0].rig.node.nic().ledger().of(Handler::Completion).passed_bytes;
    assert!(multiplied >= 2 << 20, "the ledger has it");
    assert!(world.is_at_rest());
}
