//! Time, a network, nodes, a server and clients, in one thread.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddrV4;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::task::Poll;
use std::time::Duration;

use outboard_base::task::{Work, poll_once, run};
use outboard_base::{Errno, Ino, Rng, Time, Timestamp};
use outboard_codec::mac;
use outboard_dfs::{Dfs, DfsOptions, Mode, Without};
use outboard_flow::{Gone, Net};
use outboard_kv::mem::MemKv;
use outboard_kvfs::{Kvfs, Options};
use outboard_medium::mem::MemMedium;
use outboard_meta::{Meta, MetaOptions};
use outboard_node::{Change, Copies, Store, StoreOptions, Version};
use outboard_volume::{Volume, VolumeEvent};
use outboard_wire::shared::call::{Acknowledged, CLAIMS_MAX, Call, Key, Layout, Object, Reply};
use outboard_wire::shared::{
    Answer, Coordinate, Heads, HoleHead, Peer, Reason, Role, Strategy, Target, WriteHead,
};

pub(crate) type Server = Meta<Arc<MemKv>, Arc<MemMedium>, Line>;
pub(crate) type Client = Dfs<Line>;

const NODES: u16 = 3;
const STRIP: u32 = 65536;
const WALL: u64 = 1_700_000_000_000;
pub(crate) const SERVER: Peer = Peer::Server(0);
/// Time that a walk may take, of the world's.
const LIMIT: Duration = Duration::from_secs(60);

pub(crate) struct Node {
    pub(crate) store: Store<Arc<MemMedium>>,
    data: Arc<MemMedium>,
    fences: Mutex<BTreeMap<u64, u64>>,
    keys: Mutex<Vec<Key>>,
}

/// What becomes of a change at a node.
type Outcome = std::result::Result<(), Reason>;

impl Node {
    async fn write(&self, heads: &Heads, write: &WriteHead, data: &[u8]) -> Outcome {
        let (object, fence) = (heads.capability.object, heads.capability.fence);
        let version = Version { fence, sequence: write.sequence };
        let previous = (write.previous > 0).then_some(Version { fence, sequence: write.previous });
        if heads.capability.strategy == Strategy::Single {
            return self.store.write(object, STRIP, version, previous, write.offset, data).await;
        }
        let copies = Copies { previous, settled: heads.head.settled, epoch: heads.head.epoch };
        let change = Change::of(write.brings, write.bytes as usize, data);
        self.store.change_copy(object, STRIP, version, copies, write.offset, change).await
    }

    async fn hole(&self, heads: &Heads, hole: &HoleHead) -> Outcome {
        let (object, fence) = (heads.capability.object, heads.capability.fence);
        let version = Version { fence, sequence: hole.sequence };
        if heads.capability.strategy != Strategy::Single {
            let up_to = Version { fence, sequence: heads.head.settled };
            self.store.settle(object, hole.range(), up_to).await?;
        }
        match hole.share {
            None => self.store.hole(object, version, hole.range()).await,
            Some(share) => self.store.reserve(object, STRIP, version, hole.range(), share).await,
        }
    }

    fn raise(&self, object: u64, fence: u64) {
        let mut fences = self.fences.lock().unwrap();
        let known = fences.entry(object).or_default();
        *known = fence.max(*known);
    }
}

#[derive(Default)]
struct State {
    dead: BTreeSet<Peer>,
    cut: BTreeSet<Peer>,
    /// Cut off once a node is to flush.
    falls: BTreeSet<Peer>,
    /// Of a thousand messages, so many are lost.
    losses: u64,
    /// Nodes refuse as if they had no room now, as often.
    busy: u64,
    full: bool,
    /// How long it is until a node that does not answer is given up.
    silence: Duration,
    /// The next write to this node is answered so much later: it waits for others.
    late: Option<(u16, Duration)>,
    /// How often nodes were asked to flush.
    flushes: u64,
    /// The server hears so much later what clients give back.
    returns: Duration,
    /// Losses of power, of nodes.
    boots: BTreeMap<u16, u64>,
    /// Nodes that are at another address than at the start, and at no other.
    moved: BTreeMap<Peer, SocketAddrV4>,
}

pub(crate) struct World {
    now: AtomicU64,
    rng: Mutex<Rng>,
    state: Mutex<State>,
    pub(crate) nodes: Vec<Node>,
}

thread_local! {
    static NEW: RefCell<Vec<(Peer, Work)>> = const { RefCell::new(Vec::new()) };
    static SERVERS: RefCell<Option<Server>> = const { RefCell::new(None) };
    static CLIENTS: RefCell<BTreeMap<u64, Arc<Client>>> = const { RefCell::new(BTreeMap::new()) };
}

pub(crate) fn spawn(whose: Peer, work: impl Future<Output = ()> + 'static) {
    NEW.with_borrow_mut(|new| new.push((whose, Box::pin(work))));
}

/// Starts work, whose outcome comes into the slot.
pub(crate) fn start<T: 'static>(
    whose: Peer,
    work: impl Future<Output = T> + 'static,
) -> Arc<Mutex<Option<T>>> {
    let slot = Arc::new(Mutex::new(None));
    let into = Arc::clone(&slot);
    spawn(whose, async move {
        let out = work.await;
        *into.lock().unwrap() = Some(out);
    });
    slot
}

impl World {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap()
    }

    pub(crate) fn below(&self, bound: u64) -> u64 {
        self.rng.lock().unwrap().below(bound)
    }

    pub(crate) fn time(&self) -> Time {
        Time(self.now.load(Ordering::Relaxed))
    }

    fn wall_ms(&self) -> u64 {
        WALL + self.time().0 / 1_000_000
    }

    pub(crate) fn wall(&self) -> Timestamp {
        let ns = WALL * 1_000_000 + self.time().0;
        Timestamp { sec: (ns / 1_000_000_000) as i64, nsec: (ns % 1_000_000_000) as u32 }
    }

    fn boot(&self, node: u16) -> u64 {
        self.state().boots.get(&node).copied().unwrap_or(0)
    }

    /// Whether a node is one of those that fall silent at the next flush of any.
    fn falls(&self, node: u16) -> bool {
        let mut state = self.state();
        let falls = std::mem::take(&mut state.falls);
        state.cut.extend(falls);
        state.cut.contains(&Peer::Node(node))
    }

    fn is_lost(&self, one: Peer, other: Peer) -> bool {
        let losses = self.state().losses;
        let lost = losses > 0 && self.below(1000) < losses;
        let state = self.state();
        let gone = |peer| state.dead.contains(&peer) || state.cut.contains(&peer);
        lost || gone(one) || gone(other)
    }

    async fn request(&self, node: u16, heads: &Heads, data: &[u8]) -> (Answer, Vec<u8>) {
        let outcome = self.carry_out(&self.nodes[usize::from(node)], heads, data).await;
        let (outcome, data) = match outcome {
            Ok(data) => (Ok(()), data),
            Err(reason) => (Err(reason), Vec::new()),
        };
        let answer = Answer {
            data: data.len() as u32,
            request: heads.head.request,
            rank: 0,
            outcome,
            sequence: 0,
            epoch: 1,
            credit: 1,
            fence: 0,
            held: self.nodes[usize::from(node)].store.held(heads.capability.object),
            boot: self.boot(node),
        };
        (answer, data)
    }

    async fn carry_out(
        &self,
        node: &Node,
        heads: &Heads,
        data: &[u8],
    ) -> std::result::Result<Vec<u8>, Reason> {
        let mut bytes = Vec::new();
        heads.emit(&mut bytes).map_err(|_| Reason::Invalid)?;
        let capability = &heads.capability;
        let key = node.keys.lock().unwrap().iter().find(|key| key.id == capability.key).cloned();
        let is_signed =
            key.is_some_and(|key| mac::is_tag(&key.key, &[&capability.signed()], &capability.mac));
        if !is_signed {
            return Err(Reason::Forged);
        }
        if capability.expires <= self.wall_ms() {
            return Err(Reason::Expired);
        }
        if !capability.rights.allow(heads.rights_needed()) {
            return Err(Reason::Rights);
        }
        let busy = self.state().busy;
        if busy > 0 && self.below(1000) < busy {
            return Err(Reason::Busy);
        }
        let (object, fence) = (capability.object, capability.fence);
        let known = node.fences.lock().unwrap().get(&object).copied().unwrap_or(0);
        if known > fence {
            return Err(Reason::Fence);
        }
        match &heads.target {
            Target::Write(write) => {
                if outboard_codec::crc32c(data) != write.crc || self.state().full {
                    return Err(if self.state().full { Reason::Full } else { Reason::Invalid });
                }
                node.raise(object, fence);
                node.write(heads, write, data).await.map(|()| Vec::new())
            }
            Target::Hole(hole) => {
                node.raise(object, fence);
                node.hole(heads, hole).await.map(|()| Vec::new())
            }
            Target::Read(read) if read.map => {
                let runs = node.store.map(object, read.offset, read.bytes as usize / 16).await;
                Ok(runs
                    .iter()
                    .flat_map(|run| [run.start, run.end])
                    .flat_map(u64::to_le_bytes)
                    .collect())
            }
            Target::Read(read) => node.store.read(object, read.offset, read.bytes).await,
        }
    }

    async fn node_call(&self, node: u16, call: Call) -> Reply {
        let settle = async |node: &Node, of: Acknowledged| {
            let Acknowledged { capability, sequence } = of;
            let up_to = Version { fence: capability.fence, sequence };
            node.store.settle(capability.object, 0..u64::MAX, up_to).await
        };
        let number = node;
        let node = &self.nodes[usize::from(node)];
        // There is one server.
        let call = match call {
            Call::InTerm { call, .. } => Call::decode(&call).unwrap(),
            call => call,
        };
        match call {
            Call::Seal { object, fence } => {
                node.raise(object, fence);
                match node.store.seal(object, fence).await {
                    Ok(object) => Reply::Object(object),
                    Err(_) => Reply::Failed(Errno::EIO),
                }
            }
            Call::Purge { object, .. } => done(node.store.purge(object).await),
            Call::Newest => {
                let (object, fence) = node.store.newest();
                Reply::Object(Object { object, end: 0, fence, bytes: 0 })
            }
            Call::Objects { from } => Reply::Objects(node.store.objects(from, 16)),
            Call::Keys { keys, .. } => {
                *node.keys.lock().unwrap() = keys;
                Reply::Done
            }
            Call::Flush { .. } if self.falls(number) => std::future::pending().await,
            Call::Flush { settles } => {
                self.state().flushes += 1;
                for of in settles {
                    let _kept = settle(node, of).await;
                }
                match node.store.flush().await {
                    Ok(()) => Reply::Number(self.boot(number)),
                    Err(_) => Reply::Failed(Errno::EIO),
                }
            }
            Call::Damaged { .. } => Reply::Claims(Vec::new()),
            Call::Claims { object, from, .. } => {
                Reply::Claims(node.store.claims(object, from, CLAIMS_MAX).await)
            }
            Call::Resolve { object, fence, decided, .. } => {
                node.raise(object, fence);
                match node.store.resolve(object, fence, &decided).await {
                    Ok(lacking) => Reply::Claims(lacking),
                    Err(_) => Reply::Failed(Errno::EIO),
                }
            }
            // Nothing is ever lost here, whatever it says of boots.
            Call::Doubts { .. } | Call::Trust { .. } => Reply::Done,
            Call::Settle { of } => done(settle(node, of).await),
            Call::Space => {
                Reply::Space { free: node.store.free(), capacity: node.store.capacity() }
            }
            _ => Reply::Failed(Errno::ENOSYS),
        }
    }
}

fn done(outcome: std::result::Result<(), Reason>) -> Reply {
    outcome.map_or(Reply::Failed(Errno::EIO), |()| Reply::Done)
}

/// One part's end of the network.
#[derive(Clone)]
pub(crate) struct Line {
    pub(crate) world: Arc<World>,
    me: Peer,
    known: Arc<Mutex<BTreeMap<Peer, SocketAddrV4>>>,
}

impl Line {
    fn new(world: &Arc<World>, me: Peer) -> Line {
        Line { world: Arc::clone(world), me, known: Arc::default() }
    }

    /// Whether what is sent comes to where the other is.
    fn reaches(&self, to: Peer) -> bool {
        let moved = self.world.state().moved.get(&to).copied();
        moved.is_none_or(|at| self.known.lock().unwrap().get(&to) == Some(&at))
    }

    /// There and back: the target works on its own, whatever becomes of who asks.
    async fn exchange<T: 'static>(
        &self,
        to: Peer,
        work: impl Future<Output = T> + 'static,
    ) -> std::result::Result<T, Gone> {
        self.sleep(Duration::from_micros(self.world.below(1500))).await;
        if self.world.is_lost(self.me, to) || !self.reaches(to) {
            let silence = self.world.state().silence;
            self.sleep(silence.max(Duration::from_millis(100))).await;
            return Err(Gone::Unanswered);
        }
        let slot = start(to, work);
        let world = Arc::clone(&self.world);
        let mut until = None;
        let out = std::future::poll_fn(|_| {
            if let Some(out) = slot.lock().unwrap().take() {
                return Poll::Ready(Some(out));
            }
            // Who is gone is noticed after a while.
            let gone = {
                let state = world.state();
                state.dead.contains(&to) || state.cut.contains(&to)
            };
            match (gone, until) {
                (false, _) => until = None,
                (true, None) => until = Some(world.time().after(Duration::from_millis(500))),
                (true, Some(time)) if world.time() >= time => return Poll::Ready(None),
                _ => {}
            }
            Poll::Pending
        });
        let out = out.await.ok_or(Gone::Ended)?;
        if self.world.is_lost(self.me, to) {
            self.sleep(Duration::from_millis(100)).await;
            return Err(Gone::Ended);
        }
        Ok(out)
    }
}

impl Net for Line {
    fn know(&self, peer: Peer, address: SocketAddrV4) {
        self.known.lock().unwrap().insert(peer, address);
    }

    async fn call(&self, to: Peer, call: Vec<u8>) -> std::result::Result<Vec<u8>, Gone> {
        let (world, me) = (Arc::clone(&self.world), self.me);
        let call = Call::decode(&call).unwrap();
        let late = matches!(call, Call::Release { .. }).then(|| world.state().returns);
        let waits = self.clone();
        // Boxed: who answers asks others.
        let work: std::pin::Pin<Box<dyn Future<Output = Vec<u8>>>> = Box::pin(async move {
            waits.sleep(late.unwrap_or_default()).await;
            let reply = match to {
                Peer::Node(node) => world.node_call(node, call).await,
                Peer::Server(_) => {
                    let server = server();
                    server.call(me, call, world.time(), world.wall()).await
                }
                Peer::Coordinator(_) => std::future::pending().await,
                Peer::Client(client) => {
                    let client = CLIENTS.with_borrow(|all| all.get(&client).cloned());
                    match client {
                        Some(client) => client.incoming(call).await,
                        None => std::future::pending().await,
                    }
                }
            };
            let mut bytes = Vec::new();
            reply.encode(&mut bytes);
            bytes
        });
        self.exchange(to, work).await
    }

    async fn request(
        &self,
        to: Peer,
        heads: &Heads,
        data: &[u8],
    ) -> std::result::Result<(Answer, Vec<u8>), Gone> {
        let Peer::Node(node) = to else { return Err(Gone::Refused) };
        let (world, heads, data) = (Arc::clone(&self.world), *heads, data.to_vec());
        let waits = Line::new(&world, to);
        let is_write = matches!(heads.target, Target::Write(_));
        let late = world.state().late.take_if(|(late, _)| *late == node && is_write);
        let work = async move {
            if let Some((_, time)) = late {
                waits.sleep(time).await;
            }
            world.request(node, &heads, &data).await
        };
        self.exchange(to, work).await
    }

    fn now(&self) -> Time {
        self.world.time()
    }

    fn wall_ms(&self) -> u64 {
        self.world.wall_ms()
    }

    async fn sleep(&self, time: Duration) {
        let until = self.world.time().after(time);
        let over = || if self.world.time() >= until { Poll::Ready(()) } else { Poll::Pending };
        std::future::poll_fn(|_| over()).await;
    }
}

/// What hosts are asked, of a client.
type Pages = Box<dyn FnMut(u64, Ino, bool)>;

pub(crate) struct Rig {
    pub(crate) world: Arc<World>,
    tasks: Vec<(Peer, Work)>,
    beats: BTreeMap<u64, Time>,
    tidied: Time,
    /// Told of pages to be given up; else it is said at once that they were.
    pub(crate) pages: Option<Pages>,
}

impl Drop for Rig {
    fn drop(&mut self) {
        NEW.with_borrow_mut(Vec::clear);
        SERVERS.with_borrow_mut(|server| *server = None);
        CLIENTS.with_borrow_mut(BTreeMap::clear);
    }
}

pub(crate) fn server() -> Server {
    SERVERS.with_borrow(Clone::clone).unwrap()
}

fn coordinate(node: u16) -> Coordinate {
    Coordinate { address: [127, 0, 0, 1], port: 1000 + node, node, unit: 0, role: Role::Data }
}

impl Rig {
    pub(crate) fn new(seed: u64) -> Rig {
        let layout =
            Layout { strategy: Strategy::Single, k: 1, m: 0, width: 2, strip: STRIP, group: 0 };
        Rig::with(seed, layout, NODES)
    }

    /// One whose files have parities, on as many nodes as they need.
    pub(crate) fn coded(seed: u64, (k, m): (u8, u8)) -> Rig {
        let layout = Layout { strategy: Strategy::Parity, k, m, width: 2, strip: STRIP, group: 0 };
        Rig::with(seed, layout, u16::from(k + m))
    }

    fn with(seed: u64, layout: Layout, count: u16) -> Rig {
        let mut rng = Rng::new(seed);
        let node = |number: u16, seed: u64| {
            let medium = |seed| Arc::new(MemMedium::new(seed));
            let options = StoreOptions {
                node: number,
                cluster: 1,
                capacity: 64 << 20,
                segment: 1 << 20,
                checkpoint_bytes: 1 << 20,
            };
            let (log, data) = (medium(seed), medium(seed + 1));
            let store = run(Store::open(log, Arc::clone(&data), options)).unwrap();
            Node { store, data, fences: Mutex::default(), keys: Mutex::default() }
        };
        let nodes = (0..count).map(|number| node(number, rng.next_u64() >> 1)).collect();
        let world = Arc::new(World {
            now: AtomicU64::new(1_000_000_000),
            rng: Mutex::new(Rng::new(rng.next_u64())),
            state: Mutex::default(),
            nodes,
        });
        let options = Options {
            capacity: 64 << 20,
            segment: 1 << 20,
            id: 7,
            mode: 0o777,
            spread: Some(layout),
            ..Options::default()
        };
        let (kv, medium) = (Arc::new(MemKv::new(seed)), Arc::new(MemMedium::new(seed)));
        let kvfs = run(Kvfs::open(kv, medium, options, world.wall())).unwrap();
        let options = MetaOptions {
            cluster_key: [9; 32],
            volume: 5,
            life: 1,
            nodes: (0..count).map(coordinate).collect(),
            members: (0..count).collect(),
            ..MetaOptions::default()
        };
        let line = Line::new(&world, SERVER);
        let server = run(Meta::open(Arc::new(kvfs), line, options)).unwrap();
        SERVERS.with_borrow_mut(|place| *place = Some(server));
        let (beats, tidied) = (BTreeMap::new(), Time(0));
        Rig { world, tasks: Vec::new(), beats, tidied, pages: None }
    }

    /// A new client, connected.
    pub(crate) fn client(&mut self, number: u64) -> Arc<Client> {
        let me = Peer::Client(number);
        let line = Line::new(&self.world, me);
        self.world.state().dead.remove(&me);
        let mode = Mode::Direct;
        // Each life has one of its own.
        let nonce = number ^ self.world.time().0;
        let options = DfsOptions { server: SERVER, client: number, nonce, volume: 5, mode };
        // Nodes here multiply nothing.
        let without = Without { streams: true, ..Without::default() };
        let client = Arc::new(Dfs::new_without(line, options, without));
        CLIENTS.with_borrow_mut(|all| all.insert(number, Arc::clone(&client)));
        self.beats.insert(number, self.world.time());
        let connecting = Arc::clone(&client);
        self.wait(me, async move { connecting.connect().await }).unwrap();
        client
    }

    /// The process of a client dies.
    pub(crate) fn kill(&mut self, number: u64) {
        let me = Peer::Client(number);
        CLIENTS.with_borrow_mut(|all| all.remove(&number));
        NEW.with_borrow_mut(|new| new.retain(|(whose, _)| *whose != me));
        self.tasks.retain(|(whose, _)| *whose != me);
        self.beats.remove(&number);
        self.world.state().dead.insert(me);
    }

    pub(crate) fn faults(&self, losses: u64, busy: u64) {
        let mut state = self.world.state();
        (state.losses, state.busy) = (losses, busy);
    }

    /// All nodes lose power, and are back: what they have not flushed may be gone.
    pub(crate) fn power_fails(&self) {
        self.power_fails_at(0..self.world.nodes.len() as u16);
    }

    /// The same of some.
    pub(crate) fn power_fails_at(&self, nodes: impl Iterator<Item = u16>) {
        let mut state = self.world.state();
        nodes.for_each(|node| *state.boots.entry(node).or_default() += 1);
    }

    /// All that a node has of bytes is damaged.
    pub(crate) fn rots(&self, node: u16) {
        let data = &self.world.nodes[usize::from(node)].data;
        (0..8 << 20).step_by(4096).for_each(|at| data.corrupt(at));
    }

    pub(crate) fn full(&self, full: bool) {
        self.world.state().full = full;
    }

    pub(crate) fn cut(&self, peer: Peer, is_cut: bool) {
        let mut state = self.world.state();
        if is_cut {
            state.cut.insert(peer)
        } else {
            state.cut.remove(&peer)
        };
    }

    /// How long it takes to notice that a node does not answer, and one that answers the next write
    /// later.
    pub(crate) fn takes_time(&self, silence: Duration, late: Option<(u16, Duration)>) {
        let mut state = self.world.state();
        (state.silence, state.late) = (silence, late);
    }

    /// The server hears so much later what clients give back.
    pub(crate) fn returns_late(&self, time: Duration) {
        self.world.state().returns = time;
    }

    /// Nodes fall silent when any is flushed next.
    pub(crate) fn falls(&self, nodes: &[u16]) {
        self.world.state().falls = nodes.iter().map(|node| Peer::Node(*node)).collect();
    }

    /// How often nodes were asked to flush.
    pub(crate) fn flushes(&self) -> u64 {
        self.world.state().flushes
    }

    /// A node is at another address from now on, and the server knows.
    pub(crate) fn moves(&self, node: u16) {
        let at = SocketAddrV4::new([127, 0, 0, 2].into(), 2000 + node);
        self.world.state().moved.insert(Peer::Node(node), at);
        server().nodes_are(Some(&[(node, at)]));
    }

    pub(crate) fn ends(&self, object: u64) -> u64 {
        let end = |node: &Node| {
            let found = node.store.objects(object, 1);
            found.first().filter(|one: &&Object| one.object == object).map_or(0, |one| one.end)
        };
        self.world.nodes.iter().map(end).max().unwrap()
    }

    /// Everybody does something, and a little time passes.
    pub(crate) fn step(&mut self) {
        let now = self.world.time();
        let server = server();
        server.events();
        for work in server.take_work() {
            spawn(SERVER, work);
        }
        if now.since(self.tidied) >= Duration::from_secs(1) {
            self.tidied = now;
            spawn(SERVER, async move { while server.tidy(now).await {} });
        }
        let clients = CLIENTS.with_borrow(|all| all.clone());
        for (number, client) in clients {
            let me = Peer::Client(number);
            let beat = self.beats.get_mut(&number).unwrap();
            client.take_errands().into_iter().for_each(|work| spawn(me, work));
            if now >= *beat {
                client.take_work().into_iter().for_each(|work| spawn(me, work));
                *beat = now.after(Duration::from_secs(1));
                let client = Arc::clone(&client);
                spawn(me, async move { client.beat().await });
            }
            for event in client.take_events() {
                if let VolumeEvent::RecallPages { ino, keep_read } = event {
                    match &mut self.pages {
                        Some(pages) => pages(number, ino, keep_read),
                        None => client.recalled(ino, keep_read),
                    }
                }
            }
        }
        self.tasks.extend(NEW.with_borrow_mut(std::mem::take));
        let mut left = std::mem::take(&mut self.tasks);
        while !left.is_empty() {
            let at = self.world.below(left.len() as u64) as usize;
            let (whose, mut work) = left.swap_remove(at);
            if poll_once(work.as_mut()).is_pending() {
                self.tasks.push((whose, work));
            }
        }
        self.world.now.fetch_add(100_000 + self.world.below(900_000), Ordering::Relaxed);
    }

    pub(crate) fn pass(&mut self, time: Duration) {
        let end = self.world.time().after(time);
        while self.world.time() < end {
            self.step();
        }
    }

    /// Goes on until a slot is filled.
    pub(crate) fn until<T>(&mut self, slot: &Arc<Mutex<Option<T>>>) -> T {
        let limit = self.world.time().after(LIMIT);
        loop {
            if let Some(out) = slot.lock().unwrap().take() {
                return out;
            }
            if self.world.time() >= limit {
                CLIENTS.with_borrow(|all| {
                    for (number, client) in all {
                        println!(
                            "{number}: {:?}",
                            outboard_volume::Housekeeping::figures(&**client)
                        );
                    }
                });
                let whose: Vec<_> = self.tasks.iter().map(|(whose, _)| *whose).collect();
                println!("{whose:?}");
            }
            assert!(self.world.time() < limit, "it hangs");
            self.step();
        }
    }

    /// Does work of a part to its end.
    pub(crate) fn wait<T: 'static>(
        &mut self,
        whose: Peer,
        work: impl Future<Output = T> + 'static,
    ) -> T {
        let slot = start(whose, work);
        self.until(&slot)
    }
}

/// Seeds to walk: one that is asked for, or some.
pub(crate) fn seeds(count: u64) -> Vec<u64> {
    match std::env::var("OUTBOARD_SEED") {
        Ok(seed) => vec![seed.parse().unwrap()],
        Err(_) => (0..count).collect(),
    }
}
