//! Parts at their coordinator: how they come, when they serve, and when they end.

use std::net::SocketAddrV4;
use std::rc::Rc;
use std::sync::Arc;

use outboard_base::task::Work;
use outboard_cluster::coordinator::{COORDINATOR as KEEPER, Claim};
use outboard_medium::mem::MemMedium;
use outboard_sim::line::LineOptions;
use outboard_sim::network::Endpoint;
use outboard_wire::shared::Peer;
use outboard_wire::shared::call::{Call, Reply};

use super::{Asks, CLUSTER, COORDINATOR, IMPOSTOR, PORT, SERVER, STANDBY, World, address};
use crate::member::{Member, Turn};
use crate::part::{Planted, Process, Role, Takes};
use crate::twice::Twice;

impl World {
    /// A server that is not known yet.
    pub(super) fn waiting(&mut self, place: usize, address: SocketAddrV4) -> (Peer, Asks, Role) {
        let me = Peer::Server(0);
        let net = self.conversations(place, (me, address), Takes(None));
        let twice = Twice::new(&net);
        (me, (net, twice), Role::Waits)
    }

    pub(super) fn coordinator(&mut self, address: SocketAddrV4) -> (Peer, Asks, Role) {
        let net = self.conversations(COORDINATOR, (KEEPER, address), Takes(None));
        let now = self.places[COORDINATOR].clock.at(self.now);
        let keeper = self.shelf.as_ref().unwrap().open(now);
        let twice = Twice::new(&net);
        (KEEPER, (net, twice), Role::Coordinator(Rc::new(keeper)))
    }

    /// How a part is known, and hears where nodes are, as the program has it.
    pub(super) fn member(&self, process: &Process, life: u64) -> (Member, Work) {
        let net = process.net.clone();
        let (name, waits) = match process.me {
            Peer::Node(number) => (format!("node.{number}"), false),
            _ => ("meta".to_owned(), true),
        };
        let place = process.address.to_string();
        let claim = Claim { name, cluster: CLUSTER, place, life, takes_over: false };
        let (role, serves) = (process.role.clone(), Rc::clone(&process.serves));
        let is_deaf = self.planted == Some(Planted::Unlooked);
        let me = process.me;
        let hears = move |nodes: Option<Vec<(u16, SocketAddrV4)>>| match &role {
            Role::Node(node) => {
                for (other, address) in nodes.into_iter().flatten() {
                    if Peer::Node(other) != me {
                        node.know(other, address);
                        outboard_flow::Net::know(&net, Peer::Node(other), address);
                    }
                }
            }
            _ if is_deaf => {}
            _ => serves.get().into_iter().for_each(|meta| meta.nodes_are(nodes.as_deref())),
        };
        let world = (process.clock, self.names.clone(), self.planted);
        Member::new(&process.net, world, (claim, waits), hears)
    }

    /// A part at its coordinator does what is next.
    pub(super) fn attends(&mut self, place: usize) {
        let Some(process) = &mut self.places[place].process else { return };
        let (is_in, role, twice) = (process.is_in, process.role.clone(), process.asks());
        let Some(member) = &mut process.member else { return };
        let role = match member.turn(is_in) {
            Turn::Goes => return,
            // Who had the name is gone for so long that another may have it: it would be seen.
            Turn::Enters if place != IMPOSTOR => role,
            Turn::Ends | Turn::Enters => {
                self.kill(place, false);
                self.ended.push(place);
                return;
            }
            Turn::Opens => {
                let drawn = self.chooser.below(u64::MAX >> 1) + 1;
                let volume = self.open_volume(place);
                let process = self.places[place].process.as_mut().unwrap();
                let binds = process.member.as_mut().unwrap().binds(volume, drawn);
                process.tasks.spawn(binds);
                self.poke(place);
                return;
            }
            Turn::Serves(volume) => {
                let others = [SERVER, STANDBY].into_iter().filter(|other| *other != place);
                let alone = others.into_iter().all(|other| !self.is_serving(other));
                assert!(alone && place == SERVER, "a server at place {place} serves another store");
                let life = self.chooser.below(u64::MAX >> 1) + 1;
                Role::Server(self.open_server(place, (volume, &twice), life))
            }
        };
        self.note(format_args!("place {place} serves"));
        self.places[place].process.as_mut().unwrap().enters(role);
        self.poke(place);
    }

    /// A node comes, of another's number, with a disk of its own.
    pub(crate) fn imitates(&mut self, node: usize) {
        self.note(format_args!("another node {node} comes"));
        self.imitates = node;
        let disk = [(); 2].map(|()| Arc::new(MemMedium::new(self.chooser.below(u64::MAX))));
        self.places[IMPOSTOR].disk.media = disk;
        self.start(IMPOSTOR);
    }

    /// The process of a place comes back at another address.
    pub(crate) fn moves(&mut self, place: usize) {
        self.note(format_args!("place {place} comes back elsewhere"));
        self.places[place].moved += 1;
    }

    /// Whether a part of the cluster is there, and serves.
    pub(crate) fn is_serving(&self, place: usize) -> bool {
        let is_in = |process: &Process| process.is_in && !matches!(process.role, Role::Waits);
        self.places[place].process.as_ref().is_some_and(is_in)
    }

    /// Whether all of these parts serve, and the coordinator has them where they are.
    pub(crate) fn are_known(&self, parts: &[usize]) -> bool {
        let Some(Role::Coordinator(keeper)) =
            self.places[COORDINATOR].process.as_ref().map(|process| &process.role)
        else {
            return false;
        };
        let list = Call::List { prefix: String::new() };
        let Reply::Entries(all) = keeper.call(Peer::Server(0), list, self.time(COORDINATOR)) else {
            return false;
        };
        parts.iter().all(|part| {
            let name = if *part == SERVER { "meta".into() } else { format!("node.{part}") };
            let there = address(*part, PORT + self.places[*part].moved).to_string();
            let is_there = |value: &str| Claim::read(value).is_some_and(|(at, _)| at == there);
            let mut all = all.iter();
            self.is_serving(*part) && all.any(|one| one.name == name && is_there(&one.value))
        })
    }

    /// What the coordinator answers comes late, by up to so long.
    pub(crate) fn is_slow(&mut self, lines: LineOptions) {
        let all: Vec<Endpoint> = self.places.iter().map(|place| place.endpoint).collect();
        let own = all[COORDINATOR];
        all.into_iter().for_each(|other| self.network.set_line(own, other, lines));
    }
}
