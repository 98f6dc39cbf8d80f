//! A walk: two hosts work on a few files and names of one volume while a seed breaks things; then
//! all is healed, and everything must come to an end.

mod choices;
mod coordinated;
pub(crate) mod directed;
mod ending;
mod faults;
mod judge;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use outboard_base::planted::plant;
use outboard_base::{Fh, Ino, Result, Time};
use outboard_cache::policy::{DIRTY_MAX, Policies, flush, prefetch, replace};
use outboard_sim::line::{Delay, LineOptions};
use outboard_sim::{Timeline, seeds};
use outboard_volume::Answer;
use outboard_wire::file::Reply;

use self::faults::Fault;
use crate::front::Front;
use crate::host::{Ask, Host, session};
use crate::model::{File, Losses, Name, Since};
use crate::part::Planted;
use crate::way::{Counts, Way};
use crate::world::{CLIENTS, COORDINATOR, NODES, SERVER, World};

const LANES: usize = 2;
const FILES: usize = 2;
const NAMES: usize = 3;
/// How long things break.
const BREAKS: Duration = Duration::from_secs(30);
/// How long all may take once nothing breaks any more.
const HEALS: Duration = Duration::from_secs(240);
/// How much longer a host stops than its DPU side.
const SEES: Duration = Duration::from_secs(1);
const NEVER: Time = Time(u64::MAX);

struct Known {
    name: Vec<u8>,
    ino: Ino,
    model: File,
    /// Writes that leave the size alone, and whether something does not.
    writers: usize,
    sizing: bool,
}

/// What the models were told of something that is asked.
#[derive(Clone, Copy, Debug, Default)]
struct Told {
    begun: u64,
    file: usize,
    op: Option<usize>,
    /// The size it makes, and since when; and how much more each repetition may add.
    size: Option<(u64, u64, Since)>,
    adds: u64,
    losses: Losses,
    /// The server has lost power meanwhile: what it was told, too.
    repeats: bool,
}

pub(crate) struct Walk {
    world: World,
    hosts: Vec<Host>,
    files: Vec<Known>,
    names: Vec<(Vec<u8>, Name, bool)>,
    told: BTreeMap<(usize, usize), Told>,
    idle: Vec<Vec<Time>>,
    script: Timeline<Fault>,
    moment: u64,
    losses: Losses,
    patterns: u64,
    works: bool,
    breaks: bool,
    /// Hosts have caches; whether that of each may lose what is not synced at any time, as it may
    /// be out of reach for long. Else it outlives the DPU side.
    is_cached: bool,
    /// Nodes have copies or stripes of all.
    has_copies: bool,
    /// Nodes come and go.
    moves: bool,
    /// In the end there is no coordinator.
    alone: bool,
    /// Those that have lost power, and may lack something since.
    dark: BTreeSet<usize>,
    unkept: [bool; 2],
    /// The server, or a node, has lost power since the client of a host began.
    forgot: [bool; 2],
    counts: Counts,
}

impl Walk {
    fn new(seed: u64, way: Way) -> Walk {
        let sound = LineOptions::sound(Delay::Fixed(Duration::from_micros(50)));
        let world = World::new(seed, sound, way);
        let mut rng = seeds::rng(seed, "caches");
        let is_cached = way.cached.unwrap_or(seed % 2 == 1);
        let names = (0..NAMES).map(|at| (format!("n{at}").into_bytes(), Name::new(), false));
        let hosts = CLIENTS.map(|place| {
            let pages = if rng.chance(1, 3) { 32 } else { 256 };
            let policies = Policies {
                replace: replace::Name::ALL[rng.below(replace::Name::ALL.len() as u64) as usize],
                prefetch: prefetch::Name::ALL[rng.below(prefetch::Name::ALL.len() as u64) as usize],
                flush: flush::Name::ALL[rng.below(flush::Name::ALL.len() as u64) as usize],
                dirty: DIRTY_MAX - rng.below(u64::from(DIRTY_MAX)) as u8 / 2,
            };
            let front = is_cached.then(|| Front::new(session(place), LANES, pages, policies));
            Host::new(place, LANES, front, way.apart)
        });
        Walk {
            world,
            hosts: hosts.into(),
            files: Vec::new(),
            names: names.collect(),
            told: BTreeMap::new(),
            idle: vec![vec![Time(0); LANES]; 2],
            script: Timeline::default(),
            moment: 0,
            losses: Losses::default(),
            patterns: 0,
            works: false,
            breaks: false,
            is_cached,
            has_copies: way.copies.is_some(),
            moves: way.moves,
            alone: false,
            dark: BTreeSet::new(),
            unkept: [false; 2],
            forgot: [false; 2],
            counts: Counts::default(),
        }
    }

    /// The nodes that are there beside the two.
    fn spares(&self) -> Vec<usize> {
        let all = if self.moves { &self.world.nodes } else { &self.world.members };
        all.iter().copied().filter(|node| !NODES.contains(node)).collect()
    }

    fn moment(&mut self) -> u64 {
        self.moment += 1;
        self.moment
    }

    fn below(&mut self, bound: u64) -> u64 {
        self.world.chooser.below(bound)
    }

    /// Files are made, known to be durable, and open at both hosts.
    fn begin(&mut self) {
        self.world.shelf.is_some().then(|| self.world.start(COORDINATOR));
        for place in NODES.into_iter().chain([SERVER]) {
            self.world.start(place);
        }
        self.spares().into_iter().for_each(|node| self.world.start(node));
        for at in 0..FILES {
            let name = format!("d{at}").into_bytes();
            let (ino, _) = self.open(0, &name);
            let model = File::new(self.is_cached);
            self.files.push(Known { name, ino, model, writers: 0, sizing: false });
        }
        self.one(0, Ask::Syncfs).unwrap();
        for at in 0..FILES {
            let name = self.files[at].name.clone();
            assert_eq!(self.open(1, &name).0, self.files[at].ino);
        }
    }

    fn open(&mut self, host: usize, name: &[u8]) -> (Ino, Fh) {
        match self.one(host, Ask::Open { name: name.to_vec() }).unwrap().reply {
            Reply::Created(attr, fh) => (attr.ino, fh),
            other => panic!("{other:?}"),
        }
    }

    /// Asks while nothing else is, and waits for the answer.
    fn one(&mut self, host: usize, ask: Ask) -> Result<Answer> {
        let begun = self.moment();
        let losses = self.losses;
        self.told.insert((host, 0), Told { begun, losses, ..Told::default() });
        self.hosts[host].ask(&mut self.world, 0, ask);
        let limit = self.world.now.after(HEALS);
        loop {
            if let Some((asked, answer)) = self.hosts[host].take(0) {
                if let (Ask::Open { .. }, Ok(Reply::Created(attr, fh))) =
                    (&asked.ask, answer.as_ref().map(|answer| &answer.reply))
                {
                    self.hosts[host].handles.push((attr.ino, *fh));
                }
                return answer;
            }
            assert!(self.world.now < limit, "it is not answered: {:?}", asked_of(self));
            self.step();
        }
    }

    fn step(&mut self) {
        let lanes = self.idle.iter().flatten().copied().filter(|_| self.works);
        let hosts = self.hosts.iter().filter_map(Host::wakes);
        let own = lanes.chain(hosts).chain(self.script.next_at()).min().unwrap_or(NEVER);
        let next = own.min(self.world.next());
        assert_ne!(next, NEVER, "nothing will ever happen again");
        self.world.step(next);
        while let Some(fault) = self.script.take(self.world.now) {
            self.befall(fault);
        }
        self.start_again();
        for (host, client) in CLIENTS.into_iter().enumerate() {
            if self.hosts[host].tend(&mut self.world) {
                let away = Duration::from_millis(50 + self.below(500));
                self.kill(client, false, away);
            }
            for lane in 0..LANES {
                if !self.works {
                    continue;
                }
                if let Some((asked, answer)) = self.hosts[host].take(lane) {
                    self.judge((host, lane), &asked, answer);
                    let most = 4096 << self.below(if self.is_cached { 8 } else { 10 });
                    let pause = Duration::from_micros(self.below(most));
                    self.idle[host][lane] = self.world.now.after(pause);
                } else if self.hosts[host].lanes[lane].is_some() {
                    self.idle[host][lane] = NEVER;
                } else if self.breaks && self.idle[host][lane] <= self.world.now {
                    self.choose(host, lane);
                } else if !self.breaks {
                    self.idle[host][lane] = NEVER;
                }
            }
        }
    }
}

fn asked_of(walk: &Walk) -> Vec<String> {
    let lanes = walk.hosts.iter().flat_map(|host| &host.lanes).flatten();
    lanes.map(|asked| crate::host::short(&asked.ask)).collect()
}

/// Walks a seed to its end.
pub(crate) fn walk(seed: u64, way: Way) -> Counts {
    plant(match way.planted {
        Some(Planted::Below(fault)) => Some(fault),
        _ => None,
    });
    let mut walk = Walk::new(seed, way);
    walk.world.is_told = way.tells;
    walk.begin();
    walk.works = true;
    walk.breaks = true;
    if seed > 0 {
        walk.plan(way.harsh);
        way.rots.then(|| walk.plan_rot(seed));
        way.coordinated.then(|| walk.plan_coordinated(seed));
    }
    let end = walk.world.now.after(BREAKS);
    while walk.world.now < end {
        walk.step();
    }
    walk.heal();
    let (chosen, network) = (walk.world.chooser.trace().hash(), walk.world.network.trace().hash());
    let lost = walk.world.network.counts().lost;
    let cached = walk.hosts.iter().filter_map(|host| host.front.as_ref()).map(Front::cached);
    let (hits, kept) = cached.fold((0, 0), |sum, (hits, kept)| (sum.0 + hits, sum.1 + kept));
    let sizes = walk.files.iter().map(|file| file.model.sizes_proved).sum();
    Counts { lost, hits, kept, sizes, trace: chosen ^ network.rotate_left(1), ..walk.counts }
}
