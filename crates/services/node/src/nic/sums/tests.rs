//! Messages of all units, some of them several times, whose pieces come in any order, of which some
//! never become whole: against what a sum should be.

use outboard_base::Rng;
use outboard_wire::shared::{
    Brings, Capability, Coordinate, Coordinates, Head, MAC_LEN, Rights, Role, Strategy,
};

use super::*;

/// Bytes of a unit, and of heads.
const LEN: usize = 100;
const HEADS: u32 = 7;

fn part(k: u8, unit: u8, client: u64, path: Path) -> Part {
    let one = |at: u8| {
        let role = if at < k { Role::Data } else { Role::Parity };
        Coordinate { address: [127, 0, 0, 1], port: 1, node: at.into(), unit: at, role }
    };
    let capability = Capability {
        key: 1,
        rights: Rights::WRITE,
        volume: 1,
        object: 1,
        first: 0,
        end: 1 << 20,
        client,
        fence: 5,
        group: 6,
        strategy: Strategy::Parity,
        k,
        m: 1,
        expires: 1,
        mac: [0; MAC_LEN],
    };
    let write = WriteHead {
        strategy: Strategy::Parity,
        rank: k,
        k,
        unit,
        role: Role::Parity,
        brings: Brings::Bytes,
        offset: 0,
        bytes: u32::try_from(LEN).unwrap(),
        sequence: 1,
        previous: 0,
        crc: unit.into(),
        session: 0,
        number: 0,
        lane: 0,
        coordinates: Coordinates::new(&(0..=k).map(one).collect::<Vec<_>>()).unwrap(),
    };
    let head = Head { request: 1, data: write.bytes, epoch: 1, settled: unit.into(), hop: 1 };
    let heads = Box::new(Heads { head, capability, target: Target::Write(write) });
    let (data, sequence, epoch, credit, fence, held, boot) = (0, 1, 1, 1, 5, 0, 0);
    let (request, rank, outcome) = (1, k, Err(Reason::Unreached));
    let lost = Answer { request, rank, data, outcome, sequence, epoch, credit, fence, held, boot };
    Part { heads, begins: HEADS, path, lost }
}

/// A message on its way.
struct Comes {
    slot: u32,
    unit: u8,
    /// Pieces that have not come: where, and how long.
    left: Vec<(usize, usize)>,
    is_whole: bool,
}

struct Walk {
    rng: Rng,
    path: Path,
    units: Vec<Vec<u8>>,
    sums: Sums,
    coming: Vec<Comes>,
    next: u32,
    stored: u32,
    what: String,
}

impl Walk {
    fn new(seed: u64) -> Walk {
        let mut rng = Rng::new(seed);
        let k = 1 + rng.below(5);
        let path = if rng.chance(1, 2) { Path::Nic } else { Path::Cpu };
        let mut unit = || {
            let mut unit = vec![0; LEN];
            rng.fill(&mut unit);
            unit
        };
        let units = (0..k).map(|_| unit()).collect();
        let what = format!("seed {seed}, k {k}, {path:?}");
        let (sums, coming) = (Sums::new(LEN * 2), Vec::new());
        Walk { rng, path, units, sums, coming, next: 0, stored: 0, what }
    }

    fn pick(&mut self, most: usize) -> usize {
        usize::try_from(self.rng.below(most as u64)).unwrap()
    }

    /// Another message of some unit.
    fn begin(&mut self) {
        let (k, unit) = (self.units.len(), self.pick(self.units.len()));
        let unit = u8::try_from(unit).unwrap();
        let part = part(u8::try_from(k).unwrap(), unit, 1, self.path);
        let path = self.sums.path(&part.heads).unwrap();
        assert!(path.is_none_or(|path| path == self.path), "{}", self.what);
        self.next += 1;
        self.sums.join(self.next, &part);
        let mut left = vec![(0, 1 + self.pick(LEN))];
        while let Some(end) = left.last().map(|(at, len)| at + len).filter(|end| *end < LEN) {
            left.push((end, 1 + self.pick(LEN - end)));
        }
        self.coming.push(Comes { slot: self.next, unit, left, is_whole: false });
    }

    /// A piece of a message comes. Handlers see the heads with the first one.
    fn piece(&mut self, at: usize) {
        let which = self.pick(self.coming[at].left.len());
        let Comes { slot, unit, left, .. } = &mut self.coming[at];
        let (from, len) = left.swap_remove(which);
        let bytes = &self.units[usize::from(*unit)][from..from + len];
        if self.path == Path::Cpu {
            return;
        }
        let message = [&[0xFF; HEADS as usize][..], bytes].concat();
        let offset = u32::try_from(from).unwrap();
        match from {
            0 => self.sums.add(*slot, 0, &message),
            _ => self.sums.add(*slot, offset + HEADS, bytes),
        };
    }

    /// A message is whole: perhaps the sum is.
    fn whole(&mut self, at: usize) {
        let Comes { slot, unit, is_whole, .. } = &mut self.coming[at];
        *is_whole = true;
        let slot = *slot;
        let landing = match self.path {
            Path::Nic => self.sums.whole(slot),
            Path::Cpu => {
                let data = self.units[usize::from(*unit)].clone();
                self.sums.add_whole(slot, data)
            }
        };
        let Some(landing) = landing else { return };
        let mut sum = vec![0; LEN];
        self.units.iter().for_each(|unit| erasure::add(unit, &mut sum).unwrap());
        assert!(landing.data == sum && landing.bytes == LEN, "{}", self.what);
        let settled = landing.heads.unwrap().head.settled;
        assert!(settled < u32::try_from(self.units.len()).unwrap());
        // More may come while it is stored.
        if self.rng.chance(1, 2) {
            self.begin();
            let lost = self.sums.look();
            assert!(lost.is_empty(), "{}: it is being stored", self.what);
        }
        let told = self.sums.end(slot);
        assert!(told.iter().any(|(one, _)| *one == slot), "{}", self.what);
        self.told(told);
        self.stored += 1;
    }

    /// These are answered: each once, and they were waiting.
    fn told(&mut self, told: Vec<(u32, Answer)>) {
        for (slot, _) in told {
            let at = self.coming.iter().position(|one| one.slot == slot);
            self.coming.swap_remove(at.expect("it waits"));
            assert!(self.sums.leave(slot).is_empty(), "{}: told once", self.what);
        }
    }

    fn step(&mut self) {
        if self.coming.is_empty() || self.coming.len() < 12 && self.rng.chance(1, 6) {
            return self.begin();
        }
        let at = self.pick(self.coming.len());
        match self.rng.below(60) {
            0 if !self.coming[at].is_whole => {
                let slot = self.coming.swap_remove(at).slot;
                let lost = self.sums.leave(slot);
                assert!(lost.iter().all(|(_, answer)| answer.outcome == Err(Reason::Unreached)));
                self.told(lost);
            }
            1 => {
                let lost = self.sums.look();
                self.told(lost);
            }
            _ if !self.coming[at].left.is_empty() => self.piece(at),
            _ if !self.coming[at].is_whole => self.whole(at),
            _ => {}
        }
    }
}

#[test]
fn a_sum_is_of_each_unit_once_whatever_comes() {
    let seeds = match std::env::var("OUTBOARD_SEED") {
        Ok(seed) => {
            let seed: u64 = seed.parse().unwrap();
            seed..seed + 1
        }
        Err(_) => 0..300,
    };
    let mut stored = 0;
    for seed in seeds.clone() {
        let mut walk = Walk::new(seed);
        for _ in 0..400 {
            walk.step();
        }
        stored += walk.stored;
        for _ in 0..2 {
            let lost = walk.sums.look();
            walk.told(lost);
        }
        assert!(walk.coming.is_empty(), "{}: somebody still waits", walk.what);
        let (count, bytes, _) = walk.sums.figures();
        assert_eq!((count, bytes, walk.sums.of_slots.len()), (0, 0, 0), "{}", walk.what);
        assert!(!walk.sums.is_watched);
    }
    assert!(u64::from(stored) > 5 * (seeds.end - seeds.start), "{stored} sums were stored");
}

/// What is said of one write in several parts has to be the same.
#[test]
fn a_part_that_does_not_fit_the_others_is_refused() {
    let mut sums = Sums::new(1000);
    let first = part(3, 0, 1, Path::Nic);
    assert_eq!(sums.path(&first.heads), Ok(None));
    sums.join(1, &first);
    let said = |sums: &Sums, spoil: fn(&mut Heads, &mut WriteHead)| {
        let mut heads = part(3, 1, 1, Path::Nic).heads;
        let Target::Write(mut write) = heads.target else { panic!("it is a write") };
        spoil(&mut heads, &mut write);
        heads.target = Target::Write(write);
        sums.path(&heads)
    };
    assert_eq!(said(&sums, |_, _| ()), Ok(Some(Path::Nic)));
    assert_eq!(said(&sums, |heads, _| heads.head.settled = 9), Ok(Some(Path::Nic)));
    assert_eq!(said(&sums, |_, write| write.offset = 1), Err(Reason::Order));
    assert_eq!(said(&sums, |_, write| write.bytes = 99), Err(Reason::Order));
    assert_eq!(said(&sums, |_, write| write.previous = 1), Err(Reason::Order));
    assert_eq!(said(&sums, |_, write| (write.unit, write.crc) = (0, 9)), Err(Reason::Order));
    assert_eq!(said(&sums, |_, write| (write.unit, write.crc) = (0, 0)), Ok(Some(Path::Nic)));
    assert_eq!(said(&sums, |heads, _| heads.capability.client = 2), Err(Reason::Other));
    assert_eq!(said(&sums, |heads, _| heads.capability.group = 2), Err(Reason::Other));
    assert_eq!(said(&sums, |heads, _| heads.capability.k = 4), Err(Reason::Other));
    assert_eq!(said(&sums, |heads, _| heads.capability.m = 2), Err(Reason::Other));
    // Another version, another object: another sum.
    assert_eq!(said(&sums, |_, write| write.sequence = 2), Ok(None));
    assert_eq!(said(&sums, |heads, _| heads.capability.fence = 6), Ok(None));
    assert_eq!(said(&sums, |heads, _| heads.capability.object = 2), Ok(None));
    assert_eq!(said(&sums, |_, write| write.role = Role::Data), Err(Reason::Other));
}

#[test]
fn a_client_takes_no_more_than_it_leaves() {
    let mut sums = Sums::new(4 * LEN);
    let mut slots = 0;
    let mut taken = |sums: &mut Sums, client| {
        let mut count = 0;
        while sums.has_room(client, LEN) {
            slots += 1;
            let mut part = part(2, 0, client, Path::Nic);
            let Target::Write(write) = &mut part.heads.target else { panic!("it is a write") };
            write.sequence = slots;
            sums.join(slots, &part);
            count += 1;
        }
        count
    };
    assert_eq!((taken(&mut sums, 1), taken(&mut sums, 2)), (2, 1));
    assert_eq!(sums.figures(), (3, 3 * LEN, 0));
    for slot in 1..4 {
        assert!(sums.leave(slot).is_empty());
    }
    assert_eq!((taken(&mut sums, 2), sums.figures()), (2, (2, 2 * LEN, 3)));
}
