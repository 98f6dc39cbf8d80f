//! A walk: two hosts work on a few files and names of one volume while a seed breaks things; then
//! all is healed, and everything must come to an end.

pub(crate) mod directed;

use std::collections::BTreeMap;
use std::time::Duration;

use outboard_base::planted::plant;
use outboard_base::{Errno, Fh, Ino, Result, Time};
use outboard_cache::policy::{DIRTY_MAX, Policies, flush, prefetch, replace};
use outboard_sim::line::{Delay, LineOptions};
use outboard_sim::{Timeline, seeds};
use outboard_volume::{Answer, Housekeeping};
use outboard_wire::file::Reply;

use crate::front::{Front, is_loss};
use crate::host::{Ask, Asked, Host, session};
use crate::model::{ANY, CELL, CELLS, File, Losses, NONE, Name, Since};
use crate::part::Planted;
use crate::way::{Counts, Way};
use crate::world::{CLIENTS, NODES, SERVER, World};

const LANES: usize = 2;
const STRIP: u64 = 65536;
const FILES: usize = 2;
const NAMES: usize = 3;
/// How long things break.
const BREAKS: Duration = Duration::from_secs(30);
/// How long all may take once nothing breaks any more.
const HEALS: Duration = Duration::from_secs(240);
/// How much longer a host stops than its DPU side.
const SEES: Duration = Duration::from_secs(1);
const NEVER: Time = Time(u64::MAX);

/// What befalls the cluster.
#[derive(Clone, Copy, Debug)]
enum Fault {
    Dies {
        place: usize,
        power: bool,
        away: Duration,
    },
    /// Power is lost everywhere, for up to so long.
    Dark(Duration),
    Starts(usize),
    Stops(usize, Duration),
    CutOff(usize),
    Cut(usize, usize),
    Heals,
}

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
    /// A client has died over it.
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
    /// Hosts have caches; whether that of each may lose what is not synced at any time.
    is_cached: bool,
    unkept: [bool; 2],
    counts: Counts,
}

fn rough(world: &mut dyn FnMut(u64) -> u64) -> LineOptions {
    let ppm = |below: u64, world: &mut dyn FnMut(u64) -> u64| {
        if world(3) == 0 { 0 } else { world(below) as u32 }
    };
    LineOptions {
        delay: Delay::Tail(Duration::from_micros(50), Duration::from_millis(1 + world(40))),
        lost_ppm: ppm(40_000, world),
        doubled_ppm: ppm(30_000, world),
        overtaken_ppm: ppm(30_000, world),
        queue_max: 4096,
    }
}

impl Walk {
    fn new(seed: u64, way: Way) -> Walk {
        let sound = LineOptions::sound(Delay::Fixed(Duration::from_micros(50)));
        let world = World::new(seed, sound, way.planted);
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
            unkept: [false; 2],
            counts: Counts::default(),
        }
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
        for place in NODES.into_iter().chain([SERVER]) {
            self.world.start(place);
        }
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

    /// Draws what will befall.
    fn plan(&mut self, harsh: bool) {
        let lines = rough(&mut |bound| self.world.chooser.below(bound));
        self.world.network.set_all(lines);
        self.world.replays = self.below(2) == 0;
        let [dies, power, stops, cuts] = [2, 2, 2, 2].map(|of| self.below(of) == 0 || harsh);
        let mut away = [Duration::ZERO; 2];
        for _ in 0..4 + self.below(8) {
            let at = self.world.now.after(BREAKS.mul_f64(self.below(1000) as f64 / 1000.0));
            let shortest = if harsh { 9 } else { 0 };
            let long = Duration::from_millis(10 << (shortest + self.below(12 - shortest)));
            let place = self.below(5) as usize;
            let other = (place + 1 + self.below(4) as usize) % 5;
            for (host, client) in CLIENTS.into_iter().enumerate() {
                if [place, other].iter().any(|at| [SERVER, client].contains(at)) {
                    away[host] += long;
                }
            }
            match self.below(5) {
                0 if dies => {
                    self.script.add(at, Fault::Dies { place, power: false, away: long });
                }
                4 if power && self.below(4) == 0 => self.script.add(at, Fault::Dark(long)),
                4 if power => {
                    let place = place.min(SERVER);
                    self.script.add(at, Fault::Dies { place, power: true, away: long });
                }
                1 if stops => self.script.add(at, Fault::Stops(place, long)),
                2 if cuts => {
                    self.script.add(at, Fault::CutOff(place));
                    self.script.add(at.after(long), Fault::Heals);
                }
                3 if cuts => {
                    self.script.add(at, Fault::Cut(place, other));
                    self.script.add(at.after(long), Fault::Heals);
                }
                _ => {}
            }
        }
        // A lease ends, at the earliest, so long after something is out of reach.
        self.unkept = away.map(|time| self.is_cached && time > Duration::from_secs(4));
    }

    fn befall(&mut self, fault: Fault) {
        match fault {
            Fault::Dies { place, power, away } => {
                if !self.world.is_alive(place) {
                    return;
                }
                self.kill(place, power, away);
            }
            Fault::Dark(away) => self.dark(away),
            Fault::Starts(place) => self.world.start(place),
            Fault::Stops(place, time) if self.breaks => {
                self.world.pause(place, time);
                if let Some(host) = CLIENTS.iter().position(|client| *client == place) {
                    // Its DPU side is given the time to see that its lease is over.
                    self.hosts[host].pause(self.world.now.after(time + SEES));
                }
            }
            Fault::CutOff(place) if self.breaks => self.world.cut_off(place),
            Fault::Cut(from, to) if self.breaks => self.world.cut(from, to),
            Fault::Heals => self.world.heal(),
            _ => {}
        }
    }

    fn kill(&mut self, place: usize, power: bool, away: Duration) {
        self.world.kill(place, power);
        self.counts.deaths += 1;
        let back = self.world.now.after(away);
        if let Some(host) = CLIENTS.iter().position(|client| *client == place) {
            self.hosts[host].lost(back);
            self.lost(host);
        } else {
            self.script.add(back, Fault::Starts(place));
        }
        if power {
            let now = self.moment();
            let is_node = place != SERVER;
            let Losses { nodes, server } = &mut self.losses;
            *if is_node { nodes } else { server } += 1;
            self.counts.power += 1;
            self.files.iter_mut().for_each(|file| file.model.power_lost(is_node, now));
            if !is_node {
                self.names.iter_mut().for_each(|(_, name, _)| name.power_lost());
            }
        }
    }

    /// Power is lost everywhere; all come back one after the other. Hosts live.
    fn dark(&mut self, away: Duration) {
        for place in NODES.into_iter().chain([SERVER]).chain(CLIENTS) {
            if self.world.is_alive(place) {
                let share = self.below(1000) as f64 / 1000.0;
                self.kill(place, place <= SERVER, away.mul_f64(share));
            }
        }
    }

    /// What is under way on a host is done again by the next life of its client.
    fn lost(&mut self, host: usize) {
        let now = self.moment();
        if self.is_cached {
            self.files.iter_mut().for_each(|file| file.model.unkept(host, false, now));
        }
        for ((of, lane), told) in &mut self.told {
            if *of != host || self.hosts[host].lanes[*lane].is_none() {
                continue;
            }
            self.counts.replays += 1;
            told.repeats = true;
            let Some(op) = told.op else { continue };
            let model = &mut self.files[told.file].model;
            model.repeats(op);
            if let (adds @ 1.., Some((_, most, _))) = (told.adds, &mut told.size) {
                // An append may be done twice.
                let pattern = model.pattern(op);
                model.begin(host, (*most, *most + adds), pattern, now);
                *most += adds;
                model.begin_size(host, (*most, *most), now);
            }
        }
        self.files.iter_mut().for_each(|file| file.model.orphaned(host));
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

    fn choose(&mut self, host: usize, lane: usize) {
        self.idle[host][lane] = self.world.now.after(Duration::from_millis(20));
        if !self.hosts[host].is_running(self.world.now) {
            return;
        }
        let mut file = self.below(FILES as u64) as usize;
        if self.is_cached && self.below(8) > 0 {
            // What all use all the time nobody caches.
            file = host;
        }
        let kind = self.below(100);
        if kind < 12 {
            return self.choose_name(host, lane, kind);
        }
        let ino = self.files[file].ino;
        let other = self.hosts[host].lanes[1 - lane].as_ref().map(|asked| asked.ask.clone());
        let syncs = matches!(other, Some(Ask::Fsync { .. } | Ask::Syncfs));
        if kind == 12 && !syncs {
            return self.ask((host, lane), Ask::Syncfs, Told::default());
        }
        let moves =
            matches!(other, Some(Ask::Open { .. } | Ask::Reopen { .. } | Ask::Close { .. }));
        let handle = self.hosts[host].handles.iter().find(|handle| handle.0 == ino).copied();
        let Some((_, fh)) = handle else {
            if !moves && self.is_cached {
                self.ask((host, lane), Ask::Reopen { ino }, Told { file, ..Told::default() });
            } else if !moves {
                let name = self.files[file].name.clone();
                self.ask((host, lane), Ask::Open { name }, Told { file, ..Told::default() });
            }
            return;
        };
        if moves {
            return;
        }
        let told = Told { file, ..Told::default() };
        match kind {
            40..48 if self.is_cached && other.is_none() => {
                self.ask((host, lane), Ask::Close { ino, fh }, told);
            }
            12..45 => {
                let offset = self.below(CELLS) * CELL;
                let len = (1 + self.below(CELLS)) * CELL;
                let len = len.min(CELLS * CELL - offset) as u32;
                self.ask((host, lane), Ask::Read { ino, fh, offset, len }, told);
            }
            45..50 => self.ask((host, lane), Ask::Getattr { ino }, told),
            // Two at a time do not say which of them heard of a loss.
            50..58 if syncs => {}
            50..58 => self.ask((host, lane), Ask::Fsync { ino, fh }, told),
            58..60 if other.is_none() => self.ask((host, lane), Ask::Close { ino, fh }, told),
            60..68 => self.truncate((host, lane), file, (ino, fh)),
            68..74 => self.punch((host, lane), file, (ino, fh)),
            _ => self.write((host, lane), file, (ino, fh), kind > 92),
        }
    }

    fn write(&mut self, at: (usize, usize), file: usize, (ino, fh): (Ino, Fh), append: bool) {
        let (least, most) = self.files[file].model.size();
        let cells = CELLS - 3;
        let from = self.below(cells);
        let short = if self.is_cached { 8 } else { 20 };
        let long = if self.below(3) == 0 { 140 } else { short };
        let count = (1 + self.below(long)).min(cells - from);
        let (mut offset, len) = (from * CELL, count * CELL);
        let known = &mut self.files[file];
        if append {
            offset = least;
            if least != most || least % CELL != 0 || least + 3 * len > CELLS * CELL {
                return;
            }
            if self.is_cached && !known.model.is_size_kept() {
                return;
            }
        }
        let extends = append || offset + len > least;
        if known.sizing || (extends && (known.writers > 0 || least != most)) {
            return;
        }
        self.patterns += 1;
        let pattern = self.patterns;
        let now = self.moment();
        let known = &mut self.files[file];
        let host = at.0;
        let op = Some(known.model.begin(host, (offset, offset + len), pattern, now));
        let mut told = Told { file, op, ..Told::default() };
        if extends {
            let end = most.max(offset + len);
            known.sizing = true;
            told.size = Some((end, end, known.model.begin_size(host, (end, end), now)));
            told.adds = if append { len } else { 0 };
        } else {
            known.writers += 1;
        }
        self.ask(at, Ask::Write { ino, fh, offset, len, pattern, append }, told);
    }

    fn truncate(&mut self, at: (usize, usize), file: usize, (ino, fh): (Ino, Fh)) {
        let size = self.below(CELLS) * CELL;
        let now = self.moment();
        let known = &mut self.files[file];
        if known.sizing || known.writers > 0 {
            return;
        }
        known.sizing = true;
        // What grows is not cut: behind its end there may be what a node has not forgotten.
        let (least, most) = known.model.size();
        let op = (size < most).then(|| known.model.begin(at.0, (size, CELLS * CELL), 0, now));
        let op = op.filter(|_| size < least);
        op.into_iter().for_each(|op| known.model.cuts(op));
        let losses = known.model.begin_size(at.0, (size, size), now);
        let told = Told { file, op, size: Some((size, size, losses)), ..Told::default() };
        self.ask(at, Ask::Truncate { ino, fh, size }, told);
    }

    fn punch(&mut self, at: (usize, usize), file: usize, (ino, fh): (Ino, Fh)) {
        let offset = self.below(CELLS) * CELL;
        let len = ((1 + self.below(60)) * CELL).min(CELLS * CELL - offset);
        let now = self.moment();
        let known = &mut self.files[file];
        if known.sizing {
            return;
        }
        known.writers += 1;
        let op = Some(known.model.begin(at.0, (offset, offset + len), 0, now));
        self.ask(at, Ask::Punch { ino, fh, offset, len }, Told { file, op, ..Told::default() });
    }

    fn choose_name(&mut self, host: usize, lane: usize, kind: u64) {
        let at = self.below(NAMES as u64) as usize;
        let to = (at + 1 + self.below(NAMES as u64 - 1) as usize) % NAMES;
        let name = self.names[at].0.clone();
        let told = Told::default();
        if kind < 5 {
            return self.ask((host, lane), Ask::Lookup { name }, told);
        }
        if self.names[at].2 {
            return;
        }
        let now = self.moment();
        let exact = self.names[at].1.exact();
        if kind < 8 {
            self.names[at].2 = true;
            self.names[at].1.begin(ANY, now);
            self.ask((host, lane), Ask::Mknod { name }, told);
        } else if kind < 10 {
            self.names[at].2 = true;
            self.names[at].1.begin(NONE, now);
            self.ask((host, lane), Ask::Unlink { name }, told);
        } else if let (Some(ino @ 1..), false) = (exact, self.names[to].2) {
            (self.names[at].2, self.names[to].2) = (true, true);
            self.names[at].1.begin(NONE, now);
            self.names[to].1.begin(ino, now);
            let to = self.names[to].0.clone();
            self.ask((host, lane), Ask::Rename { from: name, to }, told);
        }
    }

    fn ask(&mut self, (host, lane): (usize, usize), ask: Ask, told: Told) {
        let begun = self.moment();
        let losses = self.losses;
        self.told.insert((host, lane), Told { begun, losses, ..told });
        self.counts.asked += 1;
        self.idle[host][lane] = NEVER;
        self.hosts[host].ask(&mut self.world, lane, ask);
    }

    fn judge(&mut self, (host, lane): (usize, usize), asked: &Asked, answer: Result<Answer>) {
        let told = self.told.remove(&(host, lane)).unwrap();
        let now = self.moment();
        let said = match &answer {
            Ok(answer) => format!("{:?}", std::mem::discriminant(&answer.reply)),
            Err(errno) => errno.to_string(),
        };
        self.world.note(format_args!("host {} lane {lane} hears {said}", CLIENTS[host]));
        if let Err(errno) = &answer {
            self.counts.failed += u64::from(![Errno::ENOENT, Errno::EEXIST].contains(errno));
            let strange = [Errno::EPROTO, Errno::EBADF, Errno::EUCLEAN, Errno::ENOSYS];
            assert!(!strange.contains(errno), "{errno} to {:?}", asked.ask);
        }
        let wrong = self.judge_file((host, told, now), asked, &answer);
        let wrong = wrong.and_then(|()| self.judge_name((told, now), asked, &answer));
        if let Err(why) = wrong {
            panic!("at {} to host {}: {:?}: {why}", self.world.now.0, CLIENTS[host], asked.ask);
        }
    }

    fn judge_file(
        &mut self,
        (host, told, now): (usize, Told, u64),
        asked: &Asked,
        answer: &Result<Answer>,
    ) -> std::result::Result<(), String> {
        let file = &mut self.files[told.file];
        let times = (told.begun, now);
        let steady = !file.sizing;
        match (&asked.ask, answer) {
            (Ask::Open { .. }, Ok(answer)) => {
                let Reply::Created(attr, fh) = &answer.reply else { return Err(odd(answer)) };
                self.hosts[host].handles.push((attr.ino, *fh));
                if attr.ino != file.ino {
                    return Err(format!("another inode, {}", attr.ino));
                }
            }
            (Ask::Reopen { ino }, Ok(answer)) => {
                let Reply::Opened(fh) = &answer.reply else { return Err(odd(answer)) };
                self.hosts[host].handles.push((*ino, *fh));
            }
            (Ask::Close { ino, .. }, _) => {
                self.hosts[host].handles.retain(|handle| handle.0 != *ino);
            }
            (Ask::Read { offset, len, .. }, Ok(answer)) => {
                let found = answer.payload.bytes();
                file.model.read(host, times, (*offset, u64::from(*len)), found, steady)?;
            }
            (Ask::Getattr { .. }, Ok(answer)) => {
                let Reply::Attr(attr) = &answer.reply else { return Err(odd(answer)) };
                file.model.look(times, (0, u64::MAX), attr.size, steady)?;
            }
            (Ask::Fsync { .. }, Ok(_)) => {
                self.counts.proved += file.model.synced((host, false), told.begun, told.losses);
            }
            (Ask::Syncfs, Ok(_)) => self.synced((host, told)),
            (Ask::Fsync { .. }, Err(errno)) => self.is_told((host, told, now), *errno),
            (Ask::Write { .. } | Ask::Truncate { .. } | Ask::Punch { .. }, _) => {
                if let (Ok(answer), Ask::Write { len, .. }) = (answer, &asked.ask)
                    && answer.reply != Reply::Written(*len as u32)
                {
                    return Err(odd(answer));
                }
                // An append that is done again may stand behind some strips of itself.
                let is_torn = told.repeats && told.adds > 0 && crosses(&asked.ask);
                if let (Ok(_), Some(op), false) = (answer, told.op, is_torn) {
                    file.model.end(op, now);
                }
                match told.size {
                    Some((least, most, since)) => {
                        file.sizing = false;
                        if answer.is_ok() {
                            file.model.end_size((least, most), since, now);
                        } else {
                            file.model.fail_size();
                        }
                    }
                    None => file.writers -= 1,
                }
                if self.unkept[host] {
                    file.model.unkept(host, false, now);
                }
            }
            _ => {}
        }
        Ok(())
    }

    /// All names, and all that the host wrote. (Of what lies in its cache a kernel would know.)
    fn synced(&mut self, (host, told): (usize, Told)) {
        self.names.iter_mut().for_each(|(_, name, _)| name.synced(told.begun));
        if !self.is_cached {
            for file in &mut self.files {
                self.counts.proved += file.model.synced((host, true), told.begun, told.losses);
            }
        }
    }

    /// A sync failed: some of what the host wrote was lost.
    fn is_told(&mut self, (host, told, now): (usize, Told, u64), errno: Errno) {
        if is_loss(errno) {
            self.files[told.file].model.unkept(host, true, now);
            self.counts.told += 1;
        }
    }

    fn judge_name(
        &mut self,
        (told, now): (Told, u64),
        asked: &Asked,
        answer: &Result<Answer>,
    ) -> std::result::Result<(), String> {
        let sure = told.losses.server == self.losses.server;
        let at = |name: &Vec<u8>| name[1] as usize - usize::from(b'0');
        let names = &mut self.names;
        let mut set = |name: usize, value: u64| {
            names[name].2 = false;
            match sure {
                true => names[name].1.set(value, now),
                false => names[name].1.may_be(value, now),
            }
        };
        match (&asked.ask, answer.as_ref().map(|answer| &answer.reply)) {
            (Ask::Mknod { name }, Ok(Reply::Entry(attr))) => set(at(name), attr.ino.0),
            (Ask::Unlink { name }, Ok(_)) => set(at(name), NONE),
            (Ask::Rename { from, to }, Ok(_)) => {
                let (from, to) = (at(from), at(to));
                let value = names[to].1.begun();
                names[from].2 = false;
                names[to].2 = false;
                if sure {
                    names[from].1.set(NONE, now);
                    names[to].1.set(value, now);
                }
            }
            (Ask::Mknod { name } | Ask::Unlink { name }, Err(errno)) => {
                let name = at(name);
                names[name].2 = false;
                let found = match *errno {
                    Errno::EEXIST => ANY,
                    Errno::ENOENT => NONE,
                    _ => return Ok(()),
                };
                names[name].1.look(told.begun, found)?;
                if sure && !asked.is_replay {
                    names[name].1.undo(now);
                }
            }
            (Ask::Rename { from, to }, Err(_)) => {
                (names[at(from)].2, names[at(to)].2) = (false, false);
            }
            (Ask::Lookup { name }, Ok(Reply::Entry(attr))) => {
                names[at(name)].1.look(told.begun, attr.ino.0)?;
            }
            (Ask::Lookup { name }, Err(&Errno::ENOENT)) => {
                names[at(name)].1.look(told.begun, NONE)?;
            }
            _ => {}
        }
        Ok(())
    }

    /// Everything is whole again, and all comes to an end.
    fn heal(&mut self) {
        self.breaks = false;
        self.world.heal();
        self.world.wake_all();
        let now = self.world.now.after(SEES);
        self.hosts.iter_mut().for_each(|host| host.wake(now));
        let sound = LineOptions::sound(Delay::Fixed(Duration::from_micros(50)));
        self.world.network.set_all(sound);
        let limit = self.world.now.after(HEALS);
        while self.hosts.iter().any(|host| host.lanes.iter().any(Option::is_some)) {
            assert!(self.world.now < limit, "it does not end: {:?}", asked_of(self));
            self.step();
        }
        self.works = false;
        for host in 0..self.hosts.len() {
            (0..FILES).for_each(|file| self.settle(host, file));
        }
        let seen = self.all_see();
        self.check();
        for host in 0..self.hosts.len() {
            // One that fails has said that something was lost, and the next has nothing to say.
            let synced = self.one(host, Ask::Syncfs).or_else(|_| self.one(host, Ask::Syncfs));
            synced.unwrap_or_else(|errno| panic!("{errno}: a sync of all after all is healed"));
        }
        self.dark(Duration::from_secs(1));
        assert!(self.all_see() == seen, "what was synced is there after a loss of power");
        self.check();
    }

    /// The bytes of files, and where names lead, which both clients find alike.
    fn all_see(&mut self) -> (Vec<Vec<u8>>, Vec<u64>) {
        let files = (0..FILES).map(|file| {
            let found = [0, 1, 0].map(|host| self.whole(host, file));
            let [found, other, again] = found;
            assert!(found == other && found == again, "both clients read the same");
            found
        });
        let files = files.collect();
        let names = (0..NAMES).map(|at| {
            let name = self.names[at].0.clone();
            let found = [0, 1].map(|host| {
                let begun = self.moment();
                let found = match self.one(host, Ask::Lookup { name: name.clone() }) {
                    Ok(Answer { reply: Reply::Entry(attr), .. }) => attr.ino.0,
                    Err(Errno::ENOENT) => NONE,
                    other => panic!("{other:?}"),
                };
                self.names[at].1.look(begun, found).unwrap();
                found
            });
            assert_eq!(found[0], found[1]);
            found[0]
        });
        let names = names.collect();
        (files, names)
    }

    /// What a host wrote is in the file, or it is told that it is not.
    fn settle(&mut self, host: usize, file: usize) {
        let ino = self.files[file].ino;
        let handle = self.hosts[host].handles.iter().find(|handle| handle.0 == ino).copied();
        let name = self.files[file].name.clone();
        let (ino, fh) = handle.unwrap_or_else(|| self.open(host, &name));
        let (begun, losses) = (self.moment(), self.files[file].model.losses());
        let answer = self.one(host, Ask::Fsync { ino, fh });
        let now = self.moment();
        let model = &mut self.files[file].model;
        match answer {
            Ok(_) => self.counts.proved += model.synced((host, false), begun, losses),
            Err(errno) if is_loss(errno) => model.unkept(host, true, now),
            Err(errno) => panic!("{errno}: a sync after all is healed"),
        }
    }

    /// A whole file, as a host reads it.
    fn whole(&mut self, host: usize, file: usize) -> Vec<u8> {
        let ino = self.files[file].ino;
        let handle = self.hosts[host].handles.iter().find(|handle| handle.0 == ino).copied();
        let name = self.files[file].name.clone();
        let (ino, fh) = handle.unwrap_or_else(|| self.open(host, &name));
        let begun = self.moment();
        let len = CELLS * CELL;
        let answer = self.one(host, Ask::Read { ino, fh, offset: 0, len: len as u32 });
        let answer = answer.unwrap_or_else(|errno| panic!("{errno}: a read after all is healed"));
        let found = answer.payload.bytes().to_vec();
        let now = self.moment();
        let wrong = self.files[file].model.read(host, (begun, now), (0, len), &found, true);
        wrong.unwrap_or_else(|why| panic!("at the end, host {}: {why}", CLIENTS[host]));
        found
    }

    fn check(&mut self) {
        let place = CLIENTS[0];
        let dfs = self.world.dfs(place).unwrap();
        let slot = self.world.begin(place, async move { dfs.check(true).await });
        let limit = self.world.now.after(HEALS);
        let report = loop {
            if let Some(report) = slot.borrow_mut().take() {
                break report.unwrap();
            }
            assert!(self.world.now < limit, "the check does not end");
            self.step();
        };
        assert!(report.is_clean(), "{:?}", report.findings);
    }
}

/// Whether a write is of more than one strip.
fn crosses(ask: &Ask) -> bool {
    match ask {
        Ask::Write { offset, len, .. } => offset / STRIP != (offset + len - 1) / STRIP,
        _ => false,
    }
}

fn odd(answer: &Answer) -> String {
    format!("the answer {:?}", answer.reply)
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
    Counts { lost, hits, kept, trace: chosen ^ network.rotate_left(1), ..walk.counts }
}
