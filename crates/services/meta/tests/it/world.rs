//! Time, a network, nodes and a server, in one thread.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::net::SocketAddrV4;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::task::Poll;
use std::time::Duration;

use outboard_base::task::{poll_once, run};
use outboard_base::{Errno, Ino, SessionId, Time, Timestamp};
use outboard_codec::mac;
use outboard_flow::{Gone, Net};
use outboard_kv::mem::MemKv;
use outboard_kvfs::{Kvfs, Options};
use outboard_medium::mem::MemMedium;
use outboard_meta::{Meta, MetaOptions, count_beyond_nodes};
use outboard_volume::Caller;
use outboard_wire::file::{Attr, Header, Reply as FileReply, Request, open_flags};
use outboard_wire::shared::call::{Asker, Call, Event, Layout, Mode, Object, Reply};
use outboard_wire::shared::{Answer, Capability, Coordinate, Heads, Peer, Rights, Role, Strategy};

use crate::node::{Node, nothing};

pub(crate) type Server = Meta<Arc<MemKv>, Arc<MemMedium>, Line>;

/// The nodes of the volume.
pub(crate) const NODES: u16 = 3;
/// Unix time when the world begins, milliseconds.
const WALL: u64 = 1_700_000_000_000;

/// What the server asked a client that has not answered yet.
pub(crate) struct Asked {
    pub(crate) client: u64,
    pub(crate) call: Call,
    pub(crate) answer: Arc<Mutex<Option<Result<Reply, Gone>>>>,
}

#[derive(Default)]
pub(crate) struct State {
    pub(crate) nodes: BTreeMap<u16, Node>,
    /// For clients; the newest last.
    pub(crate) asked: VecDeque<Asked>,
    pub(crate) known: BTreeSet<Peer>,
    /// Files that were cut before the server lost power, and that nobody has looked at since.
    doubtful: BTreeSet<u64>,
}

/// The network, as the server and clients see it.
#[derive(Default)]
pub(crate) struct World {
    now: AtomicU64,
    state: Mutex<State>,
}

impl World {
    pub(crate) fn new() -> Arc<World> {
        let world = World::default();
        (0..NODES).for_each(|node| {
            world.state().nodes.insert(node, Node::default());
        });
        Arc::new(world)
    }

    pub(crate) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap()
    }

    pub(crate) fn pass(&self, time: Duration) {
        self.now.fetch_add(time.as_nanos() as u64, Ordering::Relaxed);
    }

    pub(crate) fn time(&self) -> Time {
        Time(self.now.load(Ordering::Relaxed))
    }

    fn wall_ms(&self) -> u64 {
        WALL + self.time().0 / 1_000_000
    }

    pub(crate) fn wall(&self) -> Timestamp {
        let ms = self.wall_ms();
        Timestamp { sec: (ms / 1000) as i64, nsec: (ms % 1000) as u32 * 1_000_000 }
    }

    /// A client writes to the nodes of a file, so that its end there is at least `end`; false if a
    /// node has seen a later fence, or the capability is not good.
    pub(crate) fn write(&self, capability: &Capability, nodes: &[Coordinate], end: u64) -> bool {
        let wall = self.wall_ms();
        let mut state = self.state();
        let node = state.nodes.get_mut(&nodes[(end as usize) % nodes.len()].node).unwrap();
        let known = node.keys.iter().find(|key| key.id == capability.key && key.until > wall);
        let good = known
            .is_some_and(|key| mac::is_tag(&key.key, &[&capability.signed()], &capability.mac));
        let mut revoked = node.revoked.iter();
        let revoked = revoked.any(|one| u64::from(one.client) == capability.client >> 32);
        let allowed = capability.rights.allow(Rights::WRITE) && !revoked;
        if !good || !allowed || capability.expires <= wall || node.away {
            return false;
        }
        let object = capability.object;
        let new = nothing(object);
        let held = node.objects.entry(object).or_insert(new);
        if capability.fence < held.fence {
            return false;
        }
        held.fence = capability.fence;
        held.end = held.end.max(end);
        true
    }

    /// Whether a node knows of a later fence.
    pub(crate) fn is_fenced(&self, capability: &Capability) -> bool {
        let state = self.state();
        let mut held = state.nodes.values().filter_map(|node| node.objects.get(&capability.object));
        held.any(|held| held.fence > capability.fence)
    }

    /// Whether a file that is granted is as long as its nodes say. Once after the server's loss of
    /// power it may be longer: it was cut, and the volume has lost that. Then its end is zeros.
    pub(crate) fn is_settled(&self, object: u64, size: u64) -> bool {
        let end = self.end(object);
        let mut state = self.state();
        if state.doubtful.remove(&object) && size > end {
            let mut held =
                state.nodes.values_mut().filter_map(|node| node.objects.get_mut(&object));
            held.next().into_iter().for_each(|held| held.end = size);
            return true;
        }
        size == end
    }

    /// Where the nodes say that a file ends.
    pub(crate) fn end(&self, object: u64) -> u64 {
        let state = self.state();
        let ends = state.nodes.values().filter_map(|node| node.objects.get(&object));
        ends.map(|object| object.end).max().unwrap_or(0)
    }

    fn node(&self, node: u16, call: Call) -> Result<Reply, Gone> {
        let mut state = self.state();
        let node = state.nodes.get_mut(&node).ok_or(Gone::Unanswered)?;
        if node.away {
            return Err(Gone::Unanswered);
        }
        let call = match call {
            Call::InTerm { term, call } => {
                let volume = node.objects.entry(0).or_insert_with(|| nothing(0));
                let heard = (volume.fence >> 32) as u32;
                if term < heard {
                    node.late += 1;
                    return Ok(Reply::Later { term: heard });
                }
                volume.fence = volume.fence.max(u64::from(term) << 32);
                Call::decode(&call).unwrap()
            }
            call => call,
        };
        Ok(match call {
            Call::Seal { object, fence } => {
                let new = nothing(object);
                let held = node.objects.entry(object).or_insert(new);
                held.fence = held.fence.max(fence);
                Reply::Object(*held)
            }
            Call::Purge { object, .. } => {
                node.objects.remove(&object);
                node.bytes.remove(&object);
                Reply::Done
            }
            Call::Objects { from } => {
                let some = node.objects.range(from..).take(2).map(|(_, object)| *object);
                Reply::Objects(some.collect())
            }
            Call::Verify { object } => {
                Reply::Number(node.damaged.get(&object).copied().unwrap_or(0))
            }
            Call::Keys { keys, revoked } => {
                (node.keys, node.revoked) = (keys, revoked);
                Reply::Done
            }
            Call::Newest => {
                let object = node.objects.keys().max().copied().unwrap_or(0);
                let fence = node.objects.values().map(|object| object.fence).max().unwrap_or(0);
                Reply::Object(Object { object, end: 0, fence, bytes: 0 })
            }
            Call::Flush { .. } => Reply::Number(1),
            Call::Space => Reply::Space { free: 100, capacity: 200 },
            _ => Reply::Failed(Errno::ENOSYS),
        })
    }
}

/// The server's end of the network.
pub(crate) struct Line(Arc<World>);

impl Net for Line {
    fn know(&self, peer: Peer, _: SocketAddrV4) {
        self.0.state().known.insert(peer);
    }

    async fn call(&self, to: Peer, call: Vec<u8>) -> Result<Vec<u8>, Gone> {
        let call = Call::decode(&call).unwrap();
        let reply = match to {
            Peer::Node(node) => self.0.node(node, call)?,
            Peer::Server(_) | Peer::Coordinator(_) => return Err(Gone::Refused),
            Peer::Client(client) => {
                let answer = Arc::default();
                let asked = Asked { client, call, answer: Arc::clone(&answer) };
                self.0.state().asked.push_back(asked);
                std::future::poll_fn(|_| match answer.lock().unwrap().take() {
                    Some(answer) => Poll::Ready(answer),
                    None => Poll::Pending,
                })
                .await?
            }
        };
        let mut bytes = Vec::new();
        reply.encode(&mut bytes);
        Ok(bytes)
    }

    async fn request(
        &self,
        to: Peer,
        heads: &Heads,
        data: &[u8],
    ) -> Result<(Answer, Vec<u8>), Gone> {
        let wall = self.0.wall_ms();
        let mut state = self.0.state();
        let Peer::Node(node) = to else { return Err(Gone::Refused) };
        let node = state.nodes.get_mut(&node).filter(|node| !node.away).ok_or(Gone::Unanswered)?;
        let done = node.request(heads, data, wall);
        let answer = Answer {
            data: done.as_ref().map_or(0, |data| data.len() as u32),
            request: heads.head.request,
            rank: 0,
            outcome: done.as_ref().map(|_| ()).map_err(|reason| *reason),
            sequence: 0,
            epoch: 1,
            credit: 1,
            fence: 0,
            held: 0,
            boot: 1,
        };
        Ok((answer, done.unwrap_or_default()))
    }

    fn now(&self) -> Time {
        self.0.time()
    }

    fn wall_ms(&self) -> u64 {
        self.0.wall_ms()
    }

    async fn sleep(&self, time: Duration) {
        let until = self.0.time().after(time);
        let over = || if self.0.time() >= until { Poll::Ready(()) } else { Poll::Pending };
        std::future::poll_fn(|_| over()).await;
    }
}

/// What stays when a server goes.
pub(crate) struct Disk {
    pub(crate) kv: Arc<MemKv>,
    pub(crate) medium: Arc<MemMedium>,
    /// Losses of power.
    boots: Cell<u64>,
}

impl Disk {
    pub(crate) fn new(seed: u64) -> Disk {
        let (kv, medium) = (Arc::new(MemKv::new(seed)), Arc::new(MemMedium::new(seed)));
        Disk { kv, medium, boots: Cell::new(0) }
    }

    pub(crate) fn open(&self, world: &Arc<World>, life: u64) -> Server {
        let layout =
            Layout { strategy: Strategy::Single, k: 1, m: 0, width: 2, strip: 65536, group: 0 };
        let options = Options {
            capacity: 64 << 20,
            segment: 1 << 20,
            id: 7,
            mode: 0o777,
            spread: Some(layout),
            ..Options::default()
        };
        let (kv, medium) = (Arc::clone(&self.kv), Arc::clone(&self.medium));
        let kvfs = run(Kvfs::open(kv, medium, options, world.wall())).unwrap();
        let node = |node| Coordinate {
            address: [127, 0, 0, 1],
            port: 1000 + node,
            node,
            unit: 0,
            role: Role::Data,
        };
        let options = MetaOptions {
            cluster_key: [9; 32],
            volume: 5,
            life,
            boot: self.boots.get(),
            nodes: (0..NODES).map(node).collect(),
            members: (0..NODES).collect(),
            ..MetaOptions::default()
        };
        let line = Line(Arc::clone(world));
        run(count_beyond_nodes(&kvfs, &line, &options)).unwrap();
        run(Meta::open(Arc::new(kvfs), line, options)).unwrap()
    }
}

/// Where the reply to something comes.
pub(crate) type Slot = Arc<Mutex<Option<Reply>>>;

type Task = Pin<Box<dyn Future<Output = ()>>>;

/// A server, its world, and what is under way.
pub(crate) struct Rig {
    pub(crate) world: Arc<World>,
    pub(crate) disk: Disk,
    server: RefCell<Option<Server>>,
    life: Cell<u64>,
    /// Of this life of the server.
    tasks: RefCell<Vec<Task>>,
    tidied: Cell<Time>,
    tidying: RefCell<Option<Task>>,
}

impl Rig {
    pub(crate) fn new(seed: u64) -> Rig {
        let (world, disk) = (World::new(), Disk::new(seed));
        let server = disk.open(&world, 1);
        Rig {
            world,
            disk,
            server: RefCell::new(Some(server)),
            life: Cell::new(1),
            tasks: RefCell::default(),
            tidied: Cell::default(),
            tidying: RefCell::default(),
        }
    }

    /// The server's disk is what it was when the volume was made, as from a backup.
    pub(crate) fn restore(&mut self) {
        self.disk = Disk::new(77);
        self.restart(false);
    }

    /// Another server of the volume begins, with a disk of its own, while this one goes on.
    pub(crate) fn begins_beside(&self) -> Server {
        let other = Disk::new(78).open(&self.world, 99);
        let (server, now) = (other.clone(), self.world.time());
        self.tasks.borrow_mut().push(Box::pin(async move { while server.tidy(now).await {} }));
        (0..50).for_each(|_| self.step());
        self.tasks.borrow_mut().extend(other.take_work());
        (0..50).for_each(|_| self.step());
        other
    }

    pub(crate) fn server(&self) -> Server {
        self.server.borrow().clone().unwrap()
    }

    pub(crate) fn life(&self) -> u64 {
        self.life.get()
    }

    /// The process dies (`power`: with what was not durable), and another begins.
    pub(crate) fn restart(&self, power: bool) {
        self.tasks.borrow_mut().clear();
        *self.tidying.borrow_mut() = None;
        *self.server.borrow_mut() = None;
        self.world.state().asked.clear();
        if power {
            self.disk.kv.crash();
            self.disk.medium.crash();
            self.disk.boots.set(self.disk.boots.get() + 1);
            let mut state = self.world.state();
            let cut = state.nodes.values().flat_map(|node| node.cut.iter().copied());
            state.doubtful = cut.collect();
        }
        self.life.set(self.life.get() + 10);
        *self.server.borrow_mut() = Some(self.disk.open(&self.world, self.life.get()));
    }

    /// A client asks; the reply comes into the slot. It ends with the server.
    pub(crate) fn ask(&self, client: u64, call: Call) -> Slot {
        self.ask_late(client, call, Duration::ZERO)
    }

    /// The same, of a message that is on its way for so long.
    pub(crate) fn ask_late(&self, client: u64, call: Call, late: Duration) -> Slot {
        let (server, world) = (self.server(), Arc::clone(&self.world));
        let slot = Arc::new(Mutex::new(None));
        let into = Arc::clone(&slot);
        self.tasks.borrow_mut().push(Box::pin(async move {
            Line(Arc::clone(&world)).sleep(late).await;
            let (now, wall) = (world.time(), world.wall());
            let reply = server.call(Peer::Client(client), call, now, wall).await;
            *into.lock().unwrap() = Some(reply);
        }));
        slot
    }

    /// Everybody does what can be done now.
    pub(crate) fn step(&self) {
        let server = self.server();
        server.events();
        self.tasks.borrow_mut().extend(server.take_work());
        let now = self.world.time();
        if self.tidying.borrow().is_none() && now.since(self.tidied.get()) >= Duration::from_secs(1)
        {
            self.tidied.set(now);
            let server = server.clone();
            *self.tidying.borrow_mut() =
                Some(Box::pin(async move { while server.tidy(now).await {} }));
        }
        let done = |task: &mut Task| poll_once(task.as_mut()).is_ready();
        if self.tidying.borrow_mut().as_mut().is_some_and(done) {
            *self.tidying.borrow_mut() = None;
        }
        let mut tasks = std::mem::take(&mut *self.tasks.borrow_mut());
        tasks.retain_mut(|task| !done(task));
        tasks.append(&mut self.tasks.borrow_mut());
        *self.tasks.borrow_mut() = tasks;
    }

    /// The server alone goes on for so long.
    pub(crate) fn pass(&self, time: Duration) {
        let end = self.world.time().after(time);
        while self.world.time() < end {
            (0..4).for_each(|_| self.step());
            self.world.pass(Duration::from_millis(50));
        }
        (0..4).for_each(|_| self.step());
    }

    /// What is answered, if it is without that time passes.
    pub(crate) fn at_once(&self, slot: &Slot) -> Option<Reply> {
        (0..200).for_each(|_| self.step());
        slot.lock().unwrap().take()
    }

    /// Asks, and is answered without that time passes.
    pub(crate) fn call(&self, client: u64, call: Call) -> Reply {
        let slot = self.ask(client, call);
        self.at_once(&slot).unwrap()
    }

    /// The oldest thing that a client was asked.
    pub(crate) fn asked(&self, client: u64) -> Option<Asked> {
        (0..50).for_each(|_| self.step());
        let mut state = self.world.state();
        let at = state.asked.iter().position(|asked| asked.client == client)?;
        state.asked.remove(at)
    }

    /// The same, once the client has taken its events.
    pub(crate) fn recalled(&self, client: u64) -> Option<Asked> {
        loop {
            let asked = self.asked(client)?;
            if !matches!(asked.call, Call::Events { .. }) {
                return Some(asked);
            }
            answer(&asked, Reply::Done);
        }
    }

    /// A file operation of a session.
    pub(crate) fn file(&self, session: u64, request: &Request<'_>) -> Call {
        self.file_with(session, request, b"")
    }

    /// The same, with bytes.
    pub(crate) fn file_with(&self, session: u64, request: &Request<'_>, payload: &[u8]) -> Call {
        let header = Header { session: SessionId(session), ..Header::default() };
        let mut bytes = vec![0; request.encoded_len(&header)];
        request.encode(&header, &mut bytes).unwrap();
        Call::File { asker: asker(session), request: bytes, payload: payload.to_vec() }
    }

    /// Does it, and expects that it succeeds at once.
    pub(crate) fn does(&self, client: u64, session: u64, request: &Request<'_>) -> FileReply {
        let call = self.file(session, request);
        let slot = self.ask(client, call);
        reply(request, self.at_once(&slot).unwrap()).unwrap()
    }

    /// Makes a file in the root.
    pub(crate) fn create(&self, client: u64, session: u64, name: &[u8]) -> Ino {
        let (mode, umask, flags) = (0o644, 0, open_flags::RDWR);
        let request = Request::Create { parent: Ino::ROOT, name, mode, umask, flags };
        match self.does(client, session, &request) {
            FileReply::Created(attr, fh) => {
                let release = Request::Release { ino: attr.ino, fh, owner: 0 };
                self.does(client, session, &release);
                self.tidy();
                attr.ino
            }
            other => panic!("{other:?}"),
        }
    }

    /// Housekeeping: files that were made until now do not count as written to at a restart.
    fn tidy(&self) {
        let (server, now) = (self.server(), self.world.time());
        self.tasks.borrow_mut().push(Box::pin(async move { while server.tidy(now).await {} }));
        (0..50).for_each(|_| self.step());
    }

    pub(crate) fn renew(&self, client: u64) {
        let renewed = self.call(client, Call::Renew);
        assert!(matches!(renewed, Reply::Lease { term_ms: 10_000, .. }), "{renewed:?}");
    }

    /// A delegation that nothing is in the way of.
    pub(crate) fn grant(&self, client: u64, ino: Ino, mode: Mode) -> Granted {
        granted(self.call(client, Call::Delegate { ino, mode }))
    }
}

pub(crate) type Granted = outboard_wire::shared::call::Grant;

pub(crate) fn granted(reply: Reply) -> Granted {
    match reply {
        Reply::Grant(grant) => *grant,
        other => panic!("{other:?}"),
    }
}

pub(crate) fn asker(session: u64) -> Asker {
    let caller = Caller::root(SessionId(session));
    Asker {
        session: caller.attachment,
        trusted: caller.trusted,
        keeps_times: caller.keeps_times,
        peer: caller.peer,
    }
}

/// The reply to a file operation.
pub(crate) fn reply(request: &Request<'_>, reply: Reply) -> Result<FileReply, Errno> {
    match reply {
        Reply::File { result, header, .. } => {
            Ok(FileReply::decode(request.op(), result, &header).unwrap())
        }
        Reply::Failed(errno) => Err(errno),
        other => panic!("{other:?}"),
    }
}

pub(crate) fn attr(reply: FileReply) -> Attr {
    match reply {
        FileReply::Attr(attr) | FileReply::Entry(attr) | FileReply::Created(attr, _) => attr,
        other => panic!("{other:?}"),
    }
}

/// Answers what was asked.
pub(crate) fn answer(asked: &Asked, reply: Reply) {
    *asked.answer.lock().unwrap() = Some(Ok(reply));
}

pub(crate) fn events(asked: Asked) -> Vec<Event> {
    match asked.call {
        Call::Events { ref events } => {
            let events = events.clone();
            answer(&asked, Reply::Done);
            events
        }
        other => panic!("{other:?}"),
    }
}
