//! The world of a cluster: time, a network that loses and doubles, processes in their places, and
//! what befalls them.

mod members;

use std::cell::RefCell;
use std::net::{Ipv4Addr, SocketAddrV4};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use outboard_base::task::{poll_for, run};
use outboard_base::{Ino, Time};
use outboard_cluster::coordinator::COORDINATOR as KEEPER;
use outboard_codec::mac::derive;
use outboard_dfs::{Dfs, DfsOptions, Mode, Without};
use outboard_flow::{Config, Conversations, Keys, Settings};
use outboard_kv::mem::MemKv;
use outboard_kv::{Batch, Durability, Kv};
use outboard_kvfs::{Kvfs, Options};
use outboard_medium::mem::{self, MemMedium};
use outboard_meta::{Meta, MetaOptions};
use outboard_node::{Node, NodeOptions, Store, StoreOptions};
use outboard_sim::line::LineOptions;
use outboard_sim::network::{Endpoint, LossyNetwork};
use outboard_sim::{Chooser, Timeline, seeds};
use outboard_wire::shared::call::{Call, Layout, Reply};
use outboard_wire::shared::{Coordinate, Peer, Role as Copy, Strategy};

use crate::front::Front;
use crate::member::{MemShelf, Names};
use crate::part::{Client, Clock, Files, Net, Planted, Process, Role, Server, Takes, timestamp};
use crate::twice::{Change, Twice};
use crate::way::Way;

/// Places of processes: two nodes, a server, two clients; nodes that may come; a server that may
/// take the place of the first, or have another store; the coordinator, if there is one; and a node
/// that has another's number.
pub(crate) const NODES: [usize; 2] = [0, 1];
pub(crate) const SERVER: usize = 2;
pub(crate) const CLIENTS: [usize; 2] = [3, 4];
pub(crate) const SPARE: usize = 5;
pub(crate) const FOURTH: usize = 6;
pub(crate) const STANDBY: usize = 7;
pub(crate) const COORDINATOR: usize = 8;
pub(crate) const IMPOSTOR: usize = 9;
const PLACES: usize = 10;
/// Where a part listens, if it was never moved.
const PORT: u16 = 7000;
const CLUSTER: u64 = 77;
const SECRET: [u8; 32] = [9; 32];
const VOLUME: u32 = 5;
/// Bytes that a node scrubs in a second.
const SCRUB: u64 = 256 << 10;
/// Datagrams that wait for a process that is away; more are lost.
const INBOX: usize = 4096;
/// A datagram in so many comes once more, much later; of changes at nodes so many are asked for.
const REPLAYED: u64 = 400;
const AGAIN: u64 = 16;
/// Polls until what the volume says is not waited for.
const LOOKS: u64 = 1000;
const NEVER: Time = Time(u64::MAX);

/// Keys that any two parts share.
struct Shared(Peer);

impl Keys for Shared {
    fn of(&self, peer: Peer) -> Option<[u8; 32]> {
        Some(match (self.0, peer) {
            (Peer::Client(client), _) | (_, Peer::Client(client)) => {
                derive(&SECRET, "outboard client", &client.to_le_bytes())
            }
            _ => derive(&SECRET, "outboard parts", &[]),
        })
    }
}

/// What outlives a process.
struct Disk {
    kv: Arc<MemKv>,
    media: [Arc<MemMedium>; 2],
    /// Losses of power.
    boots: u64,
}

struct Place {
    endpoint: Endpoint,
    clock: Clock,
    disk: Disk,
    lives: u64,
    /// How often it was moved.
    moved: u16,
    process: Option<Process>,
    inbox: Vec<(SocketAddrV4, Vec<u8>)>,
    /// When it runs next, and until when it does not.
    wakes: Time,
    paused: Time,
    has_run: bool,
}

/// Its conversations, and what its part asks by.
type Asks = (Net, Twice);

/// From where, to where, what.
type Datagram = (SocketAddrV4, SocketAddrV4, Vec<u8>);

pub(crate) struct World {
    pub(crate) now: Time,
    pub(crate) chooser: Chooser,
    pub(crate) network: LossyNetwork<Datagram>,
    places: Vec<Place>,
    again: Timeline<(Endpoint, Endpoint, Datagram)>,
    pub(crate) replays: bool,
    /// Changes at nodes that were asked for, if they are kept.
    pub(crate) kept: Option<Vec<(usize, Change)>>,
    planted: Option<Planted>,
    layout: Layout,
    without: Without,
    /// The nodes that there may be, and those that files lie on at first.
    pub(crate) nodes: Vec<usize>,
    pub(crate) members: Vec<usize>,
    /// The server's, if its process lives.
    volume: Option<Files>,
    /// What the coordinator has kept, if there is one, and who has had which name.
    pub(crate) shelf: Option<MemShelf>,
    names: Names,
    /// The number of the node that has another's.
    imitates: usize,
    /// Processes that have ended by themselves.
    pub(crate) ended: Vec<usize>,
    mtu: usize,
    sealed: bool,
    pub(crate) is_told: bool,
    /// Clients know of the place of a second server.
    pub(crate) has_standby: bool,
}

fn address(place: usize, port: u16) -> SocketAddrV4 {
    SocketAddrV4::new(Ipv4Addr::new(10, 0, 0, 1 + place as u8), port)
}

/// Where a node is.
pub(crate) fn coordinate(node: usize) -> Coordinate {
    Coordinate {
        address: address(node, PORT).ip().octets(),
        port: PORT,
        node: node as u16,
        unit: 0,
        role: Copy::Data,
    }
}

fn layout(way: Way) -> Layout {
    let (strategy, (k, m)) = match way.copies {
        None => (Strategy::Single, (1, 0)),
        Some(Strategy::Parity) => (Strategy::Parity, way.units),
        Some(strategy) => (strategy, (2, 0)),
    };
    Layout { strategy, k, m, width: 2, strip: 65536, group: 0 }
}

fn delays() -> mem::Faults {
    mem::Faults { delay_polls: 3, ..mem::Faults::default() }
}

impl World {
    pub(crate) fn new(seed: u64, lines: LineOptions, way: Way) -> World {
        let mut network = LossyNetwork::new(seed, lines);
        let mut rng = seeds::rng(seed, "places");
        let places = (0..PLACES).map(|place| Place {
            endpoint: network.endpoint(&format!("place {place}")),
            clock: Clock {
                ahead: rng.below(1 << 40),
                ppm: rng.below(4001) as i64 - 2000,
                wall_ms: rng.below(2000),
            },
            disk: Disk {
                kv: Arc::new(MemKv::new(rng.next_u64())),
                media: [(); 2].map(|()| Arc::new(MemMedium::new(rng.next_u64()))),
                boots: 0,
            },
            lives: 0,
            moved: 0,
            process: None,
            inbox: Vec::new(),
            wakes: NEVER,
            paused: Time(0),
            has_run: false,
        });
        let places = places.collect();
        let mut chooser = Chooser::new(seed);
        let mtu = if chooser.chance(1, 4) { 1500 } else { 9000 };
        let sealed = chooser.chance(1, 4);
        let is_coded = way.copies == Some(Strategy::Parity);
        let members = if is_coded { usize::from(way.units.0 + way.units.1) } else { 2 };
        World {
            now: Time(1_000_000),
            chooser,
            network,
            places,
            again: Timeline::default(),
            replays: true,
            kept: None,
            planted: way.planted,
            layout: layout(way),
            without: Without { streams: way.brings, ..Without::default() },
            nodes: [NODES[0], NODES[1], SPARE, FOURTH][..if is_coded { 4 } else { 3 }].to_vec(),
            members: [NODES[0], NODES[1], SPARE, FOURTH][..members].to_vec(),
            volume: None,
            shelf: way.coordinated.then(|| MemShelf::new(way.planted)),
            names: Names::default(),
            imitates: NODES[0],
            ended: Vec::new(),
            mtu,
            sealed,
            is_told: false,
            has_standby: false,
        }
    }

    /// Notes what happens, and tells it if one seed is looked at.
    pub(crate) fn note(&mut self, what: std::fmt::Arguments<'_>) {
        self.chooser.note(self.now.0);
        self.chooser.note_text(what);
        if self.is_told {
            println!("{:>12.6} {what}", self.now.0 as f64 / 1e9);
        }
    }

    fn conversations(
        &mut self,
        place: usize,
        (me, address): (Peer, SocketAddrV4),
        target: Takes,
    ) -> Net {
        let life = self.chooser.below(u64::MAX >> 1) + 1;
        let clock = self.places[place].clock;
        let config = Config {
            me,
            address,
            life,
            cluster: CLUSTER,
            settings: Settings::of_mtu(self.mtu),
            keys: Box::new(Shared(me)),
            seed: self.chooser.below(u64::MAX >> 1),
            sealed: self.sealed,
            answer_within: Duration::from_secs(2),
        };
        let net = Conversations::new(config, target);
        // From now on it knows the time.
        net.pump(clock.at(self.now), clock.wall(self.now), &mut |_, _| ());
        net.know_places(Peer::Server(0), &self.servers());
        for node in self.nodes.clone() {
            let peer = Peer::Node(node as u16);
            outboard_flow::Net::know(&net, peer, self::address(node, PORT));
        }
        if self.shelf.is_some() {
            outboard_flow::Net::know(&net, KEEPER, self::address(COORDINATOR, PORT));
        }
        net
    }

    /// Starts the process of a place; nothing if it lives.
    pub(crate) fn start(&mut self, place: usize) {
        if self.is_alive(place) {
            return;
        }
        self.places[place].lives += 1;
        self.note(format_args!("place {place} starts"));
        let life = self.places[place].lives;
        let moved = self.places[place].moved;
        let port = PORT + if CLIENTS.contains(&place) { life as u16 } else { moved };
        let address = address(place, port);
        let is_member = self.shelf.is_some() && !CLIENTS.contains(&place) && place != COORDINATOR;
        let (me, asks, role) = match place {
            SERVER | STANDBY if is_member => self.waiting(place, address),
            SERVER | STANDBY => self.server(place, address),
            COORDINATOR => self.coordinator(address),
            client if CLIENTS.contains(&client) => self.client(client, address),
            node => self.node(node, address),
        };
        let clock = self.places[place].clock;
        let mut process = Process::new((me, address, clock), asks, role, self.planted);
        process.tells = self.is_told;
        if is_member {
            let life = self.chooser.below(u64::MAX >> 1) + 1;
            process.joins(self.member(&process, life));
        }
        let now = self.now;
        let place = &mut self.places[place];
        (place.process, place.wakes, place.paused) = (Some(process), now, Time(0));
        place.inbox.clear();
    }

    fn node(&mut self, place: usize, address: SocketAddrV4) -> (Peer, Asks, Role) {
        let number = if place == IMPOSTOR { self.imitates } else { place } as u16;
        let [log, data] = self.places[place].disk.media.each_ref().map(Arc::clone);
        let options = StoreOptions {
            node: number,
            cluster: CLUSTER,
            capacity: 64 << 20,
            segment: 1 << 20,
            checkpoint_bytes: 64 << 10,
        };
        let store = run(Store::open(Arc::clone(&log), Arc::clone(&data), options)).unwrap();
        [log, data].iter().for_each(|medium| medium.set_faults(delays()));
        let boot = match self.planted {
            Some(Planted::Boot) => 0,
            _ => self.places[place].disk.boots,
        };
        let volume = Some(VOLUME);
        let scrub = SCRUB;
        let options = NodeOptions { node: number, volume, boot, scrub, ..NodeOptions::default() };
        let node = Node::new(store, options);
        for other in self.nodes.clone() {
            node.know(other as u16, self::address(other, PORT));
        }
        let me = Peer::Node(number);
        let net = self.conversations(place, (me, address), Takes(Some(node.target())));
        let twice = Twice::new(&net);
        (me, (net, twice), Role::Node(node))
    }

    /// Where the server may be.
    fn servers(&self) -> Vec<SocketAddrV4> {
        let all = [SERVER, STANDBY].into_iter().take(if self.has_standby { 2 } else { 1 });
        all.map(|place| self::address(place, PORT)).collect()
    }

    /// The place of the server; of the one that took over, if one did.
    pub(crate) fn serves(&self) -> usize {
        if self.is_serving(STANDBY) { STANDBY } else { SERVER }
    }

    /// Another server takes over from the first, which does not know: whatever that commits from
    /// now on is for nobody, as a pool refuses it.
    pub(crate) fn takes_over(&mut self) {
        let kv = MemKv::new(self.chooser.below(u64::MAX));
        let all = self.places[SERVER].disk.kv.snapshot().unwrap();
        for (key, value) in all.scan(None, usize::MAX).unwrap() {
            let mut batch = Batch::new();
            batch.put(key, value);
            run(kv.commit(batch, Durability::Durable)).unwrap();
        }
        let medium = Arc::clone(&self.places[SERVER].disk.media[0]);
        let disk = &mut self.places[STANDBY].disk;
        (disk.kv, disk.media[0]) = (Arc::new(kv), medium);
        self.start(STANDBY);
    }

    fn server(&mut self, place: usize, address: SocketAddrV4) -> (Peer, Asks, Role) {
        let me = Peer::Server(0);
        let net = self.conversations(place, (me, address), Takes(None));
        let life = self.chooser.below(u64::MAX >> 1) + 1;
        let twice = Twice::new(&net);
        let volume = self.open_volume(place);
        let meta = self.open_server(place, (volume, &twice), life);
        (me, (net, twice), Role::Server(meta))
    }

    /// What a place's server has of the volume.
    fn open_volume(&self, place: usize) -> Files {
        let options = Options {
            capacity: 64 << 20,
            segment: 1 << 20,
            id: 7,
            mode: 0o777,
            spread: Some(self.layout),
            ..Options::default()
        };
        let Place { disk, clock, .. } = &self.places[place];
        let (kv, medium) = (Arc::clone(&disk.kv), Arc::clone(&disk.media[0]));
        let wall = timestamp(clock.wall(self.now));
        Arc::new(run(Kvfs::open(kv, medium, options, wall)).unwrap())
    }

    fn open_server(&mut self, place: usize, (kvfs, twice): (Files, &Twice), life: u64) -> Server {
        self.volume = Some(Arc::clone(&kvfs));
        let Place { disk, .. } = &self.places[place];
        let options = MetaOptions {
            cluster_key: SECRET,
            volume: VOLUME,
            life,
            boot: disk.boots,
            nodes: self.nodes.iter().copied().map(coordinate).collect(),
            members: self.members.iter().map(|node| *node as u16).collect(),
            ..MetaOptions::default()
        };
        let meta = run(Meta::open(kvfs, twice.clone(), options)).unwrap();
        disk.kv.set_faults(outboard_kv::mem::Faults { delay_polls: 3, ..Default::default() });
        meta
    }

    fn client(&mut self, place: usize, address: SocketAddrV4) -> (Peer, Asks, Role) {
        let nonce = self.chooser.below(u64::MAX >> 1) + 1;
        let client = place as u64;
        let me = Peer::Client(client);
        let net = self.conversations(place, (me, address), Takes(None));
        let options = DfsOptions {
            server: Peer::Server(0),
            client,
            volume: VOLUME,
            mode: Mode::Direct,
            nonce,
        };
        let twice = Twice::new(&net);
        let dfs = Arc::new(Dfs::new_without(twice.clone(), options, self.without));
        (me, (net, twice), Role::Client(dfs, None))
    }

    pub(crate) fn is_alive(&self, place: usize) -> bool {
        self.places[place].process.is_some()
    }

    /// Whether a node has lost power so far.
    pub(crate) fn has_lost_power(&self) -> bool {
        self.nodes.iter().any(|node| self.places[*node].disk.boots > 0)
    }

    /// The client at a place, if its process lives.
    pub(crate) fn dfs(&self, place: usize) -> Option<Arc<Client>> {
        match &self.places[place].process.as_ref()?.role {
            Role::Client(dfs, _) => Some(Arc::clone(dfs)),
            _ => None,
        }
    }

    /// The server, if its process lives.
    pub(crate) fn server_of(&self) -> Option<Server> {
        match &self.places[self.serves()].process.as_ref()?.role {
            Role::Server(meta) => Some(meta.clone()),
            _ => None,
        }
    }

    /// Whether a node knows that it has all that others count on, of these files.
    pub(crate) fn is_trusted(&self, node: usize, files: &[Ino]) -> bool {
        let Some(Role::Node(node)) = self.places[node].process.as_ref().map(|one| &one.role) else {
            return false;
        };
        let trusts = |file: &Ino| {
            let call = Call::Doubts { object: file.0 };
            run(node.call(Peer::Server(0), call)) == Reply::Done
        };
        files.iter().all(trusts)
    }

    /// Calls of a server that nodes refused as another had followed.
    pub(crate) fn late_calls(&self) -> u64 {
        let late = self.places.iter().filter_map(|place| match &place.process.as_ref()?.role {
            Role::Node(node) => Some(node.late_calls()),
            _ => None,
        });
        late.sum()
    }

    /// How many members lack something of a file, if that is known.
    pub(crate) fn lacking(&self, file: Ino) -> Option<usize> {
        let spread = poll_for(LOOKS, self.volume.as_ref()?.spread(file))?.ok()?;
        Some(spread.lacking.count_ones() as usize)
    }

    /// How many members of a file may be without what they have of it.
    pub(crate) fn bears(&self) -> usize {
        self.layout.nodes() - self.layout.suffice()
    }

    /// The time by the clock of a place.
    pub(crate) fn time(&self, place: usize) -> Time {
        self.places[place].clock.at(self.now)
    }

    /// Its client serves a host that has a cache.
    pub(crate) fn attach(&mut self, place: usize, front: Option<&mut Front>) {
        let wall = self.wall(place);
        let process = self.places[place].process.as_mut();
        let (Some(process), Some(front)) = (process, front) else { return };
        let net = process.net.clone();
        if let Role::Client(dfs, serves) = &mut process.role {
            *serves = Some(front.attach(dfs, &net, wall));
        }
    }

    /// What a clock on the wall at a place shows, milliseconds of Unix time.
    pub(crate) fn wall(&self, place: usize) -> u64 {
        self.places[place].clock.wall(self.now)
    }

    /// A process is to look at its host's memory.
    pub(crate) fn poke(&mut self, place: usize) {
        if self.is_alive(place) {
            let now = self.now;
            self.places[place].wakes = self.places[place].wakes.min(now);
        }
    }

    /// Whether the process of a place has run since this was asked.
    pub(crate) fn has_run(&mut self, place: usize) -> bool {
        std::mem::take(&mut self.places[place].has_run)
    }

    /// All that a node has of bytes is damaged.
    pub(crate) fn rots(&mut self, place: usize) {
        let [_, data] = &self.places[place].disk.media;
        (0..8 << 20).step_by(4096).for_each(|at| data.corrupt(at));
    }

    /// Some of what a node has of bytes is damaged.
    pub(crate) fn rots_here_and_there(&mut self, place: usize) {
        self.note(format_args!("what place {place} has rots"));
        let [_, data] = &self.places[place].disk.media;
        let rotten = (0..8 << 20).step_by(4096).filter(|_| self.chooser.chance(1, 8));
        rotten.for_each(|at| data.corrupt(at));
    }

    /// The disk of a node takes no bytes any more, and, if it is so bad, makes none durable.
    pub(crate) fn takes_nothing(&mut self, place: usize, flush_fails: bool) {
        let [_, data] = &self.places[place].disk.media;
        data.set_faults(mem::Faults { write_fails: 1, flush_fails, ..delays() });
    }

    /// The process dies; with `power` what was not flushed is lost, too.
    pub(crate) fn kill(&mut self, place: usize, power: bool) {
        self.note(format_args!("place {place} dies{}", if power { ", power is lost" } else { "" }));
        let serves = self.serves();
        self.volume.take_if(|_| place == serves);
        let dying = &mut self.places[place];
        let dead = dying.process.take();
        drop(dead);
        dying.inbox.clear();
        dying.wakes = NEVER;
        if power {
            dying.disk.boots += 1;
            dying.disk.kv.crash();
            dying.disk.media.iter().for_each(|medium| medium.crash());
            self.shelf.iter().filter(|_| place == COORDINATOR).for_each(MemShelf::crash);
        } else {
            dying.disk.kv.set_faults(outboard_kv::mem::Faults::default());
            dying.disk.media.iter().for_each(|medium| medium.set_faults(mem::Faults::default()));
        }
    }

    /// The process stops for so long, and does not know.
    pub(crate) fn pause(&mut self, place: usize, time: Duration) {
        self.note(format_args!("place {place} stops for {time:?}"));
        let until = self.now.after(time);
        let place = &mut self.places[place];
        place.paused = place.paused.max(until);
    }

    /// The same, and its clock does, too, as in a virtual machine that is paused.
    pub(crate) fn stands_still(&mut self, place: usize, time: Duration) {
        self.pause(place, time);
        let place = &mut self.places[place];
        place.clock.ahead -= time.as_nanos() as u64;
        if let Some(process) = &mut place.process {
            process.clock = place.clock;
        }
    }

    /// A clock is further ahead, from the start of its process on.
    pub(crate) fn is_ahead(&mut self, place: usize, by: Duration) {
        self.places[place].clock.ahead += by.as_nanos() as u64;
    }

    /// A clock runs faster by so many millionths, from the start of its process on.
    pub(crate) fn runs_faster(&mut self, place: usize, ppm: i64) {
        self.places[place].clock.ppm = ppm;
    }

    /// A process asks for all changes again that were kept.
    pub(crate) fn ask_again(&mut self) {
        let now = self.now;
        for (place, change) in self.kept.take().unwrap_or_default() {
            let place = &mut self.places[place];
            if let Some(process) = &mut place.process {
                process.ask_again(change, Duration::ZERO);
                place.wakes = now;
            }
        }
    }

    pub(crate) fn wake_all(&mut self) {
        let now = self.now;
        self.places.iter_mut().for_each(|place| place.paused = now.min(place.paused));
    }

    /// Whom `place` is with, cut off from all others.
    pub(crate) fn cut_off(&mut self, place: usize) {
        self.note(format_args!("place {place} is cut off"));
        let endpoint = self.places[place].endpoint;
        self.network.partition(&[endpoint]);
    }

    /// Nothing reaches `to` from `from`.
    pub(crate) fn cut(&mut self, from: usize, to: usize) {
        self.note(format_args!("nothing comes from place {from} to place {to}"));
        let (from, to) = (self.places[from].endpoint, self.places[to].endpoint);
        self.network.cut(from, to);
    }

    pub(crate) fn heal(&mut self) {
        self.note(format_args!("the network is whole"));
        self.network.heal();
    }

    /// A future of a living process; what it comes to is put into the slot.
    pub(crate) fn begin<T: 'static>(
        &mut self,
        place: usize,
        work: impl Future<Output = T> + 'static,
    ) -> Slot<T> {
        let slot = Slot::default();
        let into = Rc::clone(&slot);
        let now = self.now;
        let place = &mut self.places[place];
        if let Some(process) = &mut place.process {
            process.tasks.spawn(Box::pin(async move {
                let out = work.await;
                *into.borrow_mut() = Some(out);
            }));
            place.wakes = now;
        }
        slot
    }

    /// When something happens next.
    pub(crate) fn next(&self) -> Time {
        let places = self.places.iter().map(|place| place.wakes.max(place.paused));
        let places = places.min().unwrap_or(NEVER);
        let network = self.network.next_arrival().unwrap_or(NEVER);
        places.min(network).min(self.again.next_at().unwrap_or(NEVER)).max(self.now)
    }

    /// Time goes on to `until`, which nothing is before, and what is due happens.
    pub(crate) fn step(&mut self, until: Time) {
        self.now = until.max(self.now);
        let now = self.now;
        while let Some((from, to, message)) = self.again.take(now) {
            self.network.send(now, from, to, message);
        }
        while let Some(arrival) = self.network.take(now) {
            let (from, to, datagram) = arrival.message;
            let place = self.places.iter_mut().find(|place| place.endpoint == arrival.to).unwrap();
            let lives = place.process.as_ref().is_some_and(|process| process.address == to);
            if lives && place.inbox.len() < INBOX {
                place.inbox.push((from, datagram));
                place.wakes = now.min(place.wakes);
            }
        }
        for place in 0..PLACES {
            if self.places[place].wakes.max(self.places[place].paused) <= now {
                self.run(place);
            }
        }
    }

    fn run(&mut self, place: usize) {
        let polls = 1 + self.chooser.below(24);
        let soon = 1_000 + self.chooser.below(100_000);
        let now = self.now;
        let Place { process, inbox, endpoint, wakes, has_run, .. } = &mut self.places[place];
        let Some(process) = process else { return };
        *has_run = true;
        let (from, own) = (*endpoint, process.address);
        let sent = process.run(now, std::mem::take(inbox), &mut self.chooser, polls);
        if place == COORDINATOR && self.shelf.as_ref().is_some_and(MemShelf::is_dark) {
            self.kill(place, true);
            self.ended.push(place);
            return;
        }
        for change in process.changes() {
            if let Some(kept) = &mut self.kept {
                kept.push((place, change));
            } else if self.replays && self.chooser.chance(1, AGAIN) {
                let later = self.chooser.below(12);
                let later = Duration::from_millis(self.chooser.below(8 << later));
                process.ask_again(change, later);
            }
        }
        // It says why, and exits.
        let ends = matches!(&process.role, Role::Server(meta) if meta.is_superseded());
        let next = process.wakes();
        let is_busy = process.is_busy || process.tasks.has_woken() || process.net.has_work();
        let soon = Time(now.0 + soon);
        *wakes = if is_busy { soon } else { next.max(soon.min(Time(now.0 + 1))) };
        for (to, datagram) in sent {
            let owner = usize::from(to.ip().octets()[3]).wrapping_sub(1);
            let Some(Place { endpoint, .. }) = self.places.get(owner) else { continue };
            let (endpoint, message) = (*endpoint, (own, to, datagram));
            if self.replays && self.chooser.chance(1, REPLAYED) {
                let later = Duration::from_millis(self.chooser.below(20_000));
                self.again.add(now.after(later), (from, endpoint, message.clone()));
            }
            self.network.send(now, from, endpoint, message);
        }
        if ends {
            self.kill(place, false);
        }
        self.attends(place);
    }
}

pub(crate) type Slot<T> = Rc<RefCell<Option<T>>>;
