//! What befalls a cluster, and what the models hear of it.

use std::time::Duration;

use outboard_base::Ino;
use outboard_sim::line::{Delay, LineOptions};
use outboard_sim::seeds;
use outboard_wire::shared::Peer;
use outboard_wire::shared::call::Call;

use super::coordinated::Befalls;
use super::{BREAKS, SEES, Told, Walk};
use crate::model::Losses;
use crate::part::timestamp;
use crate::world::{CLIENTS, COORDINATOR, FOURTH, NODES, SERVER, SPARE, coordinate};

/// What befalls the cluster.
#[derive(Clone, Copy, Debug)]
pub(super) enum Fault {
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
    /// Files are to lie on all nodes but one, or on all.
    Place(Option<usize>),
    /// Some of what a node has rots.
    Rots(usize),
    /// What befalls the coordinator, and those that it knows.
    Known(Befalls),
}

impl Fault {
    /// Whether it keeps a node from what it is asked.
    fn is_of_nodes(self) -> bool {
        let is_node = |place| ![SERVER, CLIENTS[0], CLIENTS[1]].contains(&place);
        match self {
            Fault::Dies { place, .. } | Fault::Stops(place, _) | Fault::CutOff(place) => {
                is_node(place)
            }
            Fault::Cut(one, other) => is_node(one) || is_node(other),
            Fault::Dark(_) => true,
            _ => false,
        }
    }
}

pub(super) fn rough(world: &mut dyn FnMut(u64) -> u64) -> LineOptions {
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
    /// Draws what will befall.
    pub(super) fn plan(&mut self, harsh: bool) {
        let lines = rough(&mut |bound| self.world.chooser.below(bound));
        self.world.network.set_all(lines);
        self.world.replays = self.below(2) == 0;
        let [dies, power, stops, cuts] = [2, 2, 2, 2].map(|of| self.below(of) == 0 || harsh);
        let mut away = [Duration::ZERO; 2];
        for _ in 0..4 + self.below(8) {
            let at = self.world.now.after(BREAKS.mul_f64(self.below(1000) as f64 / 1000.0));
            let shortest = if harsh { 9 } else { 0 };
            let long = Duration::from_millis(10 << (shortest + self.below(12 - shortest)));
            let places = 5 + self.spares().len();
            let place = self.below(places as u64) as usize;
            let other = (place + 1 + self.below(places as u64 - 1) as usize) % places;
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
                    let place = if place >= SPARE { place } else { place.min(SERVER) };
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
        for _ in 0..if self.moves { 1 + self.below(4) } else { 0 } {
            let at = self.world.now.after(BREAKS.mul_f64(self.below(1000) as f64 / 1000.0));
            let nodes = self.world.nodes.clone();
            let without = self.below(nodes.len() as u64 + 1).checked_sub(1);
            let without = without.map(|at| nodes[at as usize]);
            self.script.add(at, Fault::Place(without));
        }
        // A lease ends, at the earliest, so long after something is out of reach.
        self.unkept = away.map(|time| self.is_cached && time > Duration::from_secs(4));
    }

    pub(super) fn befall(&mut self, fault: Fault) {
        // The others have what has rotted, and are needed until it is mended.
        if self.counts.rotten > 0 && fault.is_of_nodes() {
            return;
        }
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
            Fault::Place(without) => self.place(without),
            Fault::Rots(node) if self.breaks => self.rots(node),
            Fault::Known(what) => self.befall_known(what),
            _ => {}
        }
    }

    /// Draws when something rots, and where.
    pub(super) fn plan_rot(&mut self, seed: u64) {
        let mut rng = seeds::rng(seed, "rot");
        let nodes: Vec<usize> = NODES.into_iter().chain(self.spares()).collect();
        let node = nodes[rng.below(nodes.len() as u64) as usize];
        for _ in 0..8 {
            let at = self.world.now.after(BREAKS.mul_f64(rng.below(1000) as f64 / 1000.0));
            self.script.add(at, Fault::Rots(node));
        }
    }

    /// Some of what a node has rots, once, while all others have all.
    fn rots(&mut self, node: usize) {
        let mut nodes = NODES.into_iter().chain(self.spares());
        if self.counts.rotten > 0 || !nodes.all(|node| self.world.is_alive(node)) {
            return;
        }
        if self.lost_at_once() > 0 {
            return;
        }
        self.world.heal();
        self.world.wake_all();
        self.world.rots_here_and_there(node);
        self.counts.rotten += 1;
    }

    /// Files are to lie on all nodes but one, or on all.
    pub(super) fn place(&mut self, without: Option<usize>) {
        let Some(server) = self.world.server_of() else { return };
        self.world.note(format_args!("files are to lie on all nodes but {without:?}"));
        let all = self.world.nodes.iter().copied();
        let joins = all.filter(|node| Some(*node) != without).map(coordinate).collect();
        let leaves = without.into_iter().map(|node| node as u16).collect();
        let call = Call::Place { joins, leaves, rate: 0 };
        let place = self.world.serves();
        let (now, wall) = (self.world.time(place), timestamp(self.world.wall(place)));
        let manager = Peer::Client(1);
        self.counts.placed += 1;
        self.world.begin(place, async move { server.call(manager, call, now, wall).await });
    }

    pub(super) fn kill(&mut self, place: usize, power: bool, away: Duration) {
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
            self.dark.extend(is_node.then_some(place));
            self.counts.power += 1;
            if is_node && self.has_copies && self.lost_at_once() <= self.world.bears() {
                // The others have it all.
                return;
            }
            let Losses { nodes, server } = &mut self.losses;
            *if is_node { nodes } else { server } += 1;
            self.files.iter_mut().for_each(|file| file.model.power_lost(is_node, now));
            // A file may end before what was written to it last, once its writer dies, too.
            self.forgot = [true; 2];
            if !is_node {
                // It does not know any more whose files are.
                self.unkept = [self.is_cached; 2];
                self.may_repeat(|_, _| true);
                self.names.iter_mut().for_each(|(_, name, _)| name.power_lost());
            }
        }
    }

    /// How many members of a file may be without what others acknowledged: those that lost power,
    /// unless they have all again, durably, and those that were left out.
    fn lost_at_once(&mut self) -> usize {
        let files: Vec<Ino> = self.files.iter().map(|file| file.ino).collect();
        self.dark.retain(|node| !self.world.is_trusted(*node, &files));
        let lacking = files.iter().map(|file| self.world.lacking(*file));
        lacking.fold(self.dark.len(), |most, lacking| {
            lacking.map_or(usize::MAX, |lacking| most.max(self.dark.len() + lacking))
        })
    }

    /// It is not known any more what was written or told last: an append that is under way may be
    /// done twice, and anywhere from where its file ends now.
    fn may_repeat(&mut self, which: impl Fn(usize, &Told) -> bool) {
        let now = self.moment();
        for ((host, _), told) in &mut self.told {
            if !which(*host, told) {
                continue;
            }
            let (adds @ 1.., Some(op), Some((_, most, _))) = (told.adds, told.op, &mut told.size)
            else {
                continue;
            };
            told.repeats = true;
            let model = &mut self.files[told.file].model;
            let pattern = model.pattern(op);
            // Behind what it added before, or wherever the file may end again.
            model.begin(*host, (model.least().min(*most), *most + adds), pattern, now);
            *most += adds;
            model.begin_size(*host, (*most, *most), now);
        }
    }

    /// Power is lost everywhere; all come back one after the other. Hosts live.
    pub(super) fn dark(&mut self, away: Duration) {
        for place in NODES.into_iter().chain([SERVER, SPARE, FOURTH]).chain(CLIENTS) {
            if self.world.is_alive(place) {
                let share = self.below(1000) as f64 / 1000.0;
                self.kill(place, !CLIENTS.contains(&place), away.mul_f64(share));
            }
        }
        if self.world.is_alive(COORDINATOR) {
            self.coordinator_dies(true, away);
        }
    }

    /// What is under way on a host is done again by the next life of its client.
    pub(super) fn lost(&mut self, host: usize) {
        if std::mem::take(&mut self.forgot[host]) {
            // Nor what began since, by a client that did not know.
            self.may_repeat(|of, told| of == host && !told.repeats);
        }
        let now = self.moment();
        if self.unkept[host] {
            self.files.iter_mut().for_each(|file| file.model.unkept(host, false, now));
        }
        for ((of, lane), told) in &self.told {
            if *of != host || self.hosts[host].lanes[*lane].is_none() {
                continue;
            }
            self.counts.replays += 1;
            if let Some(op) = told.op {
                self.files[told.file].model.repeats(op);
            }
        }
        self.files.iter_mut().for_each(|file| file.model.orphaned(host));
    }
}
