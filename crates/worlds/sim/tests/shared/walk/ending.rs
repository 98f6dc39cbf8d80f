//! The end of a walk: all is healed, everything is answered, both hosts see the same, and that
//! outlives a loss of power.

use std::time::Duration;

use outboard_base::Errno;
use outboard_sim::line::{Delay, LineOptions};
use outboard_volume::{Answer, Housekeeping};
use outboard_wire::file::Reply;

use super::{FILES, HEALS, NAMES, SEES, Walk, asked_of};
use crate::front::is_loss;
use crate::host::Ask;
use crate::model::{CELL, CELLS, NONE};
use crate::world::{CLIENTS, COORDINATOR, NODES};

/// How long copies are filled.
const FILLS: Duration = Duration::from_secs(40);

impl Walk {
    /// Everything is whole again, and all comes to an end.
    pub(super) fn heal(&mut self) {
        self.breaks = false;
        self.world.heal();
        self.world.wake_all();
        let now = self.world.now.after(SEES);
        self.hosts.iter_mut().for_each(|host| host.wake(now));
        let sound = LineOptions::sound(Delay::Fixed(Duration::from_micros(50)));
        self.world.network.set_all(sound);
        self.are_known();
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
            // Nodes and the server each say so by themselves.
            let sync = |walk: &mut Walk| walk.one(host, Ask::Syncfs);
            let synced = sync(self).or_else(|_| sync(self)).or_else(|_| sync(self));
            synced.unwrap_or_else(|errno| panic!("{errno}: a sync of all after all is healed"));
        }
        self.world.shelf.is_some().then(|| self.world.start(COORDINATOR));
        self.dark(Duration::from_secs(1));
        assert!(self.all_see() == seen, "what was synced is there after a loss of power");
        self.check();
    }

    /// The bytes of files, and where names lead, which both clients find alike.
    pub(super) fn all_see(&mut self) -> (Vec<Vec<u8>>, Vec<u64>) {
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
    pub(super) fn settle(&mut self, host: usize, file: usize) {
        let ino = self.files[file].ino;
        let handle = self.hosts[host].handles.iter().find(|handle| handle.0 == ino).copied();
        let name = self.files[file].name.clone();
        let (ino, fh) = handle.unwrap_or_else(|| self.open(host, &name));
        let (begun, losses) = (self.moment(), self.files[file].model.losses());
        let answer = self.one(host, Ask::Fsync { ino, fh, data_only: false });
        let now = self.moment();
        let model = &mut self.files[file].model;
        match answer {
            Ok(_) => self.counts.proved += model.synced((host, false), begun, losses),
            Err(errno) if is_loss(errno) => model.unkept(host, true, now),
            Err(errno) => panic!("{errno}: a sync after all is healed"),
        }
    }

    /// A whole file, as a host reads it.
    pub(super) fn whole(&mut self, host: usize, file: usize) -> Vec<u8> {
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

    /// Nobody waits for a copy that is away: it has the time to come back, and to be filled.
    fn fill(&mut self) {
        let nodes = NODES.into_iter().chain(self.spares());
        let is_away = |walk: &Walk| nodes.clone().any(|node| !walk.world.is_alive(node));
        let mut end = self.world.now.after(FILLS);
        while (self.has_copies || self.moves) && self.world.now < end {
            self.step();
            if is_away(self) {
                end = self.world.now.after(FILLS);
            }
        }
    }

    /// The check finds nothing. What could not be filled or moved is tried again after some time.
    pub(super) fn check(&mut self) {
        let limit = self.world.now.after(HEALS);
        loop {
            self.fill();
            let findings = self.findings();
            let status = self.world.server_of().map(|server| server.status()).unwrap();
            let is_moving = status.contains("\"moving\":true");
            let rots = self.counts.rotten > 0 && !findings.is_empty();
            let waits =
                rots || is_moving || findings.iter().any(|found| found.contains("to be filled"));
            if waits && self.world.now < limit {
                continue;
            }
            assert!(findings.is_empty() && !is_moving, "{findings:?}; {status}");
            return;
        }
    }

    /// Of what is missing at nodes only where none has lost power: it may not have been synced.
    fn findings(&mut self) -> Vec<String> {
        let place = CLIENTS[0];
        let dfs = self.world.dfs(place).unwrap();
        let slot = self.world.begin(place, async move { dfs.check(true).await });
        let limit = self.world.now.after(HEALS);
        loop {
            if let Some(report) = slot.borrow_mut().take() {
                let report = report.unwrap();
                assert!(report.is_clean() || !report.findings.is_empty());
                let may_miss = self.world.has_lost_power();
                let mut findings = report.findings;
                findings.retain(|found| !(may_miss && found.starts_with("file ")));
                return findings;
            }
            assert!(self.world.now < limit, "the check does not end");
            self.step();
        }
    }
}
