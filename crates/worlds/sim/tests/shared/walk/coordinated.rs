//! What befalls a coordinator, and those that it knows: a source of its own draws it, so that walks
//! without one are what they were.

use std::time::Duration;

use outboard_sim::line::{Delay, LineOptions};
use outboard_sim::seeds;

use super::faults::Fault;
use super::{BREAKS, Walk};
use crate::world::{CLIENTS, COORDINATOR, IMPOSTOR, NODES, SERVER, STANDBY};

/// What befalls them.
#[derive(Clone, Copy, Debug)]
pub(super) enum Befalls {
    Dies {
        power: bool,
        away: Duration,
    },
    /// Power is lost in its next change, that is kept or not.
    Tears(bool),
    /// Its answers are late.
    Slow,
    /// A node dies, and comes back at another address.
    Moves(usize, Duration),
    /// A server comes that has another store.
    Second,
    /// A node comes that has another's number.
    Impostor(usize),
}

/// Until who ended by itself is started again.
const AGAIN: Duration = Duration::from_secs(1);
/// How long until all parts are known where they are, once nothing breaks; and until the server has
/// heard of it.
const KNOWN: Duration = Duration::from_secs(90);
const HEARD: Duration = Duration::from_secs(3);

impl Walk {
    /// Draws what will befall.
    pub(super) fn plan_coordinated(&mut self, seed: u64) {
        let mut rng = seeds::rng(seed, "coordinator");
        let nodes: Vec<usize> = NODES.into_iter().chain(self.spares()).collect();
        for _ in 0..6 + rng.below(8) {
            let at = self.world.now.after(BREAKS.mul_f64(rng.below(1000) as f64 / 1000.0));
            let long = Duration::from_millis(10 << rng.below(12));
            let node = nodes[rng.below(nodes.len() as u64) as usize];
            let other = [node, SERVER][rng.below(2) as usize];
            let fault = match rng.below(10) {
                0 | 1 => Fault::Known(Befalls::Dies { power: rng.chance(1, 2), away: long }),
                2 => Fault::Known(Befalls::Tears(rng.chance(1, 2))),
                3 => Fault::Stops(COORDINATOR, long),
                4 => Fault::CutOff(COORDINATOR),
                5 if rng.chance(1, 2) => Fault::Cut(COORDINATOR, other),
                5 => Fault::Cut(other, COORDINATOR),
                6 => Fault::Known(Befalls::Slow),
                7 => Fault::Known(Befalls::Moves(node, long)),
                8 => Fault::Known(Befalls::Second),
                _ => Fault::Known(Befalls::Impostor(node)),
            };
            self.script.add(at, fault);
            if matches!(fault, Fault::CutOff(_) | Fault::Cut(..)) {
                self.script.add(at.after(long), Fault::Heals);
            }
        }
        self.alone = rng.chance(1, 2);
        // A server that starts may wait for longer than any lease.
        self.unkept = [self.is_cached; CLIENTS.len()];
    }

    pub(super) fn befall_known(&mut self, what: Befalls) {
        match what {
            Befalls::Dies { power, away } if self.world.is_alive(COORDINATOR) => {
                self.coordinator_dies(power, away);
            }
            Befalls::Tears(is_kept) if self.breaks => {
                self.world.shelf.iter().for_each(|shelf| shelf.tears(is_kept));
            }
            Befalls::Slow if self.breaks => {
                let delay = Delay::Tail(Duration::from_millis(5), Duration::from_secs(2));
                self.world.is_slow(LineOptions::sound(delay));
            }
            Befalls::Moves(node, away) if self.world.is_alive(node) => {
                self.world.moves(node);
                self.counts.moved += 1;
                self.kill(node, false, away);
            }
            Befalls::Second if self.breaks => self.world.start(STANDBY),
            Befalls::Impostor(node) if self.breaks && !self.world.is_alive(IMPOSTOR) => {
                self.world.imitates(node);
            }
            _ => {}
        }
    }

    pub(super) fn coordinator_dies(&mut self, power: bool, away: Duration) {
        self.world.kill(COORDINATOR, power);
        self.counts.deaths += 1;
        let back = self.world.now.after(away);
        self.script.add(back, Fault::Starts(COORDINATOR));
    }

    /// Who has ended by itself is started again, if it is of the cluster.
    pub(super) fn start_again(&mut self) {
        for place in std::mem::take(&mut self.world.ended) {
            self.counts.refused += u64::from(place != COORDINATOR);
            if ![STANDBY, IMPOSTOR].contains(&place) {
                self.script.add(self.world.now.after(AGAIN), Fault::Starts(place));
            }
        }
    }

    /// All parts are known where they are, and the server has heard of it. Then, in some walks, the
    /// coordinator is gone: what follows is to need none.
    pub(super) fn are_known(&mut self) {
        if self.world.shelf.is_none() {
            return;
        }
        let parts: Vec<usize> = NODES.into_iter().chain([SERVER]).chain(self.spares()).collect();
        let limit = self.world.now.after(KNOWN);
        let mut since = self.world.now;
        while self.world.now < since.after(HEARD) {
            assert!(self.world.now < limit, "not all parts are known where they are");
            self.step();
            if !self.world.are_known(&parts) {
                since = self.world.now;
            }
        }
        if self.alone {
            self.world.kill(COORDINATOR, true);
            self.counts.alone += 1;
        }
    }
}
