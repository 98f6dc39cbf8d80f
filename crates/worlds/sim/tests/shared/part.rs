//! One process of a cluster: its conversations, what it is, the futures it runs, and a clock that
//! is nobody else's.

use std::cell::{OnceCell, RefCell};
use std::collections::BTreeMap;
use std::net::SocketAddrV4;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Wake, Waker};
use std::time::Duration;

use outboard_base::planted::Fault;
use outboard_base::task::{Spawn, Work};
use outboard_base::{Errno, Time, Timestamp};
use outboard_cluster::coordinator::Keeper;
use outboard_dfs::Dfs;
use outboard_flow::{Conversations, Given, Target};
use outboard_kv::mem::MemKv;
use outboard_kvfs::Kvfs;
use outboard_medium::mem::MemMedium;
use outboard_meta::Meta;
use outboard_node::{Node, NodeTarget};
use outboard_sim::Chooser;
use outboard_volume::{Volume, VolumeEvent};
use outboard_wire::file::Request;
use outboard_wire::roce::Psn;
use outboard_wire::shared::Peer;
use outboard_wire::shared::call::{Call, Reply};

use crate::front::Serves;
use crate::member::{MemShelf, Member};
use crate::twice::{Change, Twice};

pub(crate) type Net = Conversations<Takes>;
pub(crate) type Server = Meta<Arc<MemKv>, Arc<MemMedium>, Twice>;
pub(crate) type Client = Dfs<Twice>;
pub(crate) type Files = Arc<Kvfs<Arc<MemKv>, Arc<MemMedium>>>;

/// Unix time when the world begins, milliseconds.
const WALL: u64 = 1_700_000_000_000;

/// A fault that some seed must find: of the wiring, or below it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Planted {
    Below(Fault),
    /// The server says that it was told of changes, and forgets them.
    Publish,
    /// Clients say that they gave a file back, and did not hear of it.
    Deaf,
    /// Nodes say that they flush, and do not.
    Flush,
    /// Nodes do not say that they have lost power.
    Boot,
    /// The server does not say of files what it may have forgotten with its power.
    Forgets,
    /// The coordinator answers what is not durable.
    Lazy,
    /// The server does not hear where nodes are.
    Unlooked,
    /// A server does not ask in which store the volume is.
    Unbound,
    /// Parts end when the coordinator does not answer.
    Mortal,
}

/// Takes requests if it is a node.
pub(crate) struct Takes(pub(crate) Option<NodeTarget<Arc<MemMedium>>>);

impl Target for Takes {
    fn opened(&mut self, from: Peer, sealed: bool) {
        if let Some(node) = &mut self.0 {
            node.opened(from, sealed);
        }
    }
    fn has_room(&mut self, from: Peer) -> bool {
        self.0.as_mut().is_some_and(|node| node.has_room(from))
    }
    fn given(&mut self, from: Peer, given: &Given<'_>, now: Time) {
        if let Some(node) = &mut self.0 {
            node.given(from, given, now);
        }
    }
    fn cleanup(&mut self, from: Peer, message: Psn) {
        if let Some(node) = &mut self.0 {
            node.cleanup(from, message);
        }
    }
    fn ended(&mut self, from: Peer) {
        if let Some(node) = &mut self.0 {
            node.ended(from);
        }
    }
}

/// A clock: how far it is ahead, and how much faster it runs.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Clock {
    pub(crate) ahead: u64,
    pub(crate) ppm: i64,
    pub(crate) wall_ms: u64,
}

impl Clock {
    /// What it shows at a time of the world.
    pub(crate) fn at(&self, time: Time) -> Time {
        let drift = i128::from(time.0) * i128::from(self.ppm) / 1_000_000;
        Time((i128::from(time.0) + drift) as u64 + self.ahead)
    }

    /// When it shows this.
    pub(crate) fn when(&self, shows: Time) -> Time {
        let since = i128::from(shows.0.saturating_sub(self.ahead));
        let mut time = Time((since * 1_000_000 / i128::from(1_000_000 + self.ppm)) as u64);
        while self.at(time) < shows {
            time.0 += 1;
        }
        time
    }

    pub(crate) fn wall(&self, time: Time) -> u64 {
        WALL + self.wall_ms + time.0 / 1_000_000
    }
}

pub(crate) fn timestamp(wall_ms: u64) -> Timestamp {
    Timestamp { sec: (wall_ms / 1000) as i64, nsec: (wall_ms % 1000) as u32 * 1_000_000 }
}

struct Woken(AtomicBool);

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Ordering::Relaxed);
    }
}

struct Task {
    work: Work,
    woken: Arc<Woken>,
    waker: Waker,
}

/// Futures of a process; those that were woken are polled in the order of the seed.
#[derive(Default)]
pub(crate) struct Executor {
    tasks: BTreeMap<u64, Task>,
    started: u64,
}

impl Executor {
    pub(crate) fn spawn(&mut self, work: Work) {
        let woken = Arc::new(Woken(AtomicBool::new(true)));
        let waker = Waker::from(Arc::clone(&woken));
        self.started += 1;
        self.tasks.insert(self.started, Task { work, woken, waker });
    }

    fn woken(&self) -> Vec<u64> {
        let woken = self.tasks.iter().filter(|(_, task)| task.woken.0.load(Ordering::Relaxed));
        woken.map(|(id, _)| *id).collect()
    }

    pub(crate) fn has_woken(&self) -> bool {
        self.tasks.values().any(|task| task.woken.0.load(Ordering::Relaxed))
    }

    /// Polls one; false if none was woken.
    fn step(&mut self, chooser: &mut Chooser) -> bool {
        let woken = self.woken();
        let Some(at) = chooser.one_of(woken.len()) else { return false };
        let task = self.tasks.get_mut(&woken[at]).unwrap();
        task.woken.0.store(false, Ordering::Relaxed);
        let mut context = Context::from_waker(&task.waker);
        if task.work.as_mut().poll(&mut context).is_ready() {
            self.tasks.remove(&woken[at]);
        }
        true
    }
}

/// Work that is to be spawned.
#[derive(Default)]
struct Begun(RefCell<Vec<Work>>);

impl Spawn for Begun {
    fn spawn(&self, work: Work) {
        self.0.borrow_mut().push(work);
    }
}

/// What a process is.
#[derive(Clone)]
pub(crate) enum Role {
    Node(Node<Arc<MemMedium>>),
    Server(Server),
    /// With what it does for a host that has a cache.
    Client(Arc<Client>, Option<Serves>),
    Coordinator(Rc<Keeper<MemShelf>>),
    /// A server that is not known yet, and has opened no store.
    Waits,
}

/// The loops that production has.
enum Tends {
    Node(outboard_node::Tending<Arc<MemMedium>>),
    Server(outboard_meta::Tending<Arc<MemKv>, Arc<MemMedium>, Twice>),
    Client(Rc<outboard_dfs::Tending<Twice>>),
    Coordinator(Rc<Keeper<MemShelf>>),
    /// Of a part that does not serve yet.
    Nothing,
}

impl Tends {
    fn new(role: &Role, now: Time) -> Tends {
        match role {
            Role::Node(node) => Tends::Node(outboard_node::Tending::new(node.clone(), now)),
            Role::Server(meta) => Tends::Server(outboard_meta::Tending::new(meta.clone(), now)),
            Role::Client(dfs, _) => {
                Tends::Client(Rc::new(outboard_dfs::Tending::new(Arc::clone(dfs), now)))
            }
            Role::Coordinator(keeper) => Tends::Coordinator(Rc::clone(keeper)),
            Role::Waits => Tends::Nothing,
        }
    }

    fn deadline(&self) -> Option<Time> {
        match self {
            Tends::Node(node) => node.deadline(),
            Tends::Server(server) => server.deadline(),
            Tends::Client(client) => Some(client.deadline()),
            Tends::Coordinator(keeper) => keeper.deadline(),
            Tends::Nothing => None,
        }
    }
}

/// A process that lives.
pub(crate) struct Process {
    pub(crate) me: Peer,
    pub(crate) address: SocketAddrV4,
    pub(crate) clock: Clock,
    pub(crate) net: Net,
    twice: Twice,
    pub(crate) role: Role,
    /// The server, once it serves.
    pub(crate) serves: Rc<OnceCell<Server>>,
    /// How it is known at a coordinator, if there is one, and whether it serves already.
    pub(crate) member: Option<Member>,
    pub(crate) is_in: bool,
    pub(crate) tasks: Executor,
    planted: Option<Planted>,
    /// Calls are printed.
    pub(crate) tells: bool,
    tends: Tends,
    /// Its host may have asked more.
    pub(crate) is_busy: bool,
}

const NEVER: Time = Time(u64::MAX);

impl Process {
    pub(crate) fn new(
        (me, address, clock): (Peer, SocketAddrV4, Clock),
        (net, twice): (Net, Twice),
        role: Role,
        planted: Option<Planted>,
    ) -> Process {
        let (tasks, tends) = (Executor::default(), Tends::new(&role, net_now(&net)));
        Process {
            me,
            address,
            clock,
            net,
            twice,
            role,
            serves: Rc::default(),
            member: None,
            is_in: true,
            tasks,
            planted,
            tells: false,
            tends,
            is_busy: false,
        }
    }

    /// It is to be known before it serves.
    pub(crate) fn joins(&mut self, (member, keeps): (Member, Work)) {
        self.member = Some(member);
        self.is_in = false;
        self.tends = Tends::Nothing;
        self.tasks.spawn(keeps);
    }

    /// It serves from now on.
    pub(crate) fn enters(&mut self, role: Role) {
        if let Role::Server(meta) = &role {
            let _was_empty = self.serves.set(meta.clone());
        }
        self.tends = Tends::new(&role, net_now(&self.net));
        self.role = role;
        self.is_in = true;
    }

    /// It runs at a time of the world, for so many polls; what it sends.
    pub(crate) fn run(
        &mut self,
        time: Time,
        came: Vec<(SocketAddrV4, Vec<u8>)>,
        chooser: &mut Chooser,
        polls: u64,
    ) -> Vec<(SocketAddrV4, Vec<u8>)> {
        let (now, wall) = (self.clock.at(time), self.clock.wall(time));
        if let Role::Node(node) = &self.role {
            node.set_wall(wall);
        }
        for (from, datagram) in came {
            self.net.datagram(from, &datagram, now, wall);
        }
        let mut out = Vec::new();
        let mut send = |to: SocketAddrV4, datagram: &[u8]| out.push((to, datagram.to_vec()));
        self.net.pump(now, wall, &mut send);
        self.take_calls(wall);
        self.tend(now);
        self.is_busy = self.pass(now, wall);
        for _ in 0..polls {
            if !self.tasks.step(chooser) {
                break;
            }
        }
        self.tend(now);
        self.is_busy |= self.serves().is_some_and(|serves| serves.flush(now));
        self.net.pump(now, wall, &mut send);
        out
    }

    /// What its part asks by.
    pub(crate) fn asks(&self) -> Twice {
        self.twice.clone()
    }

    /// What it has asked of nodes since it ran last.
    pub(crate) fn changes(&self) -> Vec<Change> {
        self.twice.take()
    }

    pub(crate) fn ask_again(&mut self, change: Change, later: Duration) {
        self.tasks.spawn(Box::pin(self.twice.clone().ask_again(change, later)));
    }

    fn serves(&self) -> Option<&Serves> {
        match &self.role {
            Role::Client(_, serves) => serves.as_ref(),
            _ => None,
        }
    }

    /// A DPU side takes what its host asks; whether it asked.
    fn pass(&mut self, now: Time, wall: u64) -> bool {
        let Some(serves) = self.serves().cloned() else { return false };
        let is_busy = serves.pass(now, wall);
        for work in serves.begun.0.take() {
            self.tasks.spawn(work);
        }
        is_busy
    }

    /// When it has something to do, of the world's time.
    pub(crate) fn wakes(&self) -> Time {
        let serves = self.serves().map_or(NEVER, Serves::wakes);
        let own = self.tends.deadline().unwrap_or(NEVER).min(serves);
        let next = self.net.deadline().map_or(own, |deadline| deadline.min(own));
        if next == NEVER { NEVER } else { self.clock.when(next) }
    }

    fn take_calls(&mut self, wall: u64) {
        // Nobody's are answered before.
        while self.is_in
            && let Some(incoming) = self.net.take_call()
        {
            let Ok(call) = Call::decode(&incoming.call) else { continue };
            let (role, net, planted) = (self.role.clone(), self.net.clone(), self.planted);
            let heard = match &self.tends {
                Tends::Node(node) => {
                    node.called(net_now(&net));
                    None
                }
                Tends::Server(_) | Tends::Coordinator(_) | Tends::Nothing => None,
                Tends::Client(client) => Some(Rc::clone(client)),
            };
            let (from, token) = (incoming.from, incoming.token);
            let tells = self.tells && !matches!(said(&call), Call::Renew | Call::Keys { .. });
            let (me, clock, about) =
                (self.me, self.clock, if tells { brief(&said(&call)) } else { String::new() });
            let begun = clock.when(net_now(&net)).0 as f64 / 1e9;
            self.tasks.spawn(Box::pin(async move {
                let reply = match &role {
                    Role::Node(node) => node_call(node, from, call, planted).await,
                    Role::Server(_)
                        if planted == Some(Planted::Publish)
                            && matches!(call, Call::Publish { .. }) =>
                    {
                        Reply::Done
                    }
                    Role::Server(meta) => {
                        let ask = |call| meta.call(from, call, net_now(&net), timestamp(wall));
                        let again = planted == Some(Planted::Forgets) && is_fsync(&call);
                        match ask(call.clone()).await {
                            // It is said once.
                            Reply::Failed(Errno::EIO) if again => ask(call).await,
                            reply => reply,
                        }
                    }
                    Role::Client(..)
                        if planted == Some(Planted::Deaf)
                            && matches!(call, Call::Recall { .. }) =>
                    {
                        Reply::Done
                    }
                    Role::Client(dfs, _) => dfs.incoming(call).await,
                    Role::Coordinator(keeper) => keeper.call(from, call, net_now(&net)),
                    Role::Waits => return,
                };
                if let Some(client) = heard {
                    client.has_answered();
                }
                if tells {
                    let now = clock.when(net_now(&net)).0 as f64 / 1e9;
                    let reply = format!("{reply:?}");
                    let reply: String = reply.chars().take(900).collect();
                    println!("{now:>12.6}     {me:?} to {from:?}: {about} of {begun:.6}: {reply}");
                }
                let mut bytes = Vec::new();
                reply.encode(&mut bytes);
                net.reply(token, bytes);
            }));
        }
    }

    fn tend(&mut self, now: Time) {
        if let Role::Client(dfs, None) = &self.role {
            for event in dfs.take_events() {
                // There is no cache in front: nobody has pages.
                if let VolumeEvent::RecallPages { ino, keep_read } = event {
                    dfs.recalled(ino, keep_read);
                }
            }
        }
        let begun = Begun::default();
        match &self.tends {
            Tends::Node(node) => node.tend(&self.net, now, &begun),
            Tends::Server(server) => {
                let done = server.tend(&self.net, now, &begun);
                done + usize::from(done == 0 && server.rest(&begun))
            }
            Tends::Client(client) => client.tend(now, &begun),
            Tends::Coordinator(keeper) => usize::from(keeper.tend(now)),
            Tends::Nothing => 0,
        };
        begun.0.into_inner().into_iter().for_each(|work| self.tasks.spawn(work));
    }
}

pub(crate) fn net_now(net: &Net) -> Time {
    outboard_flow::Net::now(net)
}

fn is_fsync(call: &Call) -> bool {
    let Call::File { request, .. } = call else { return false };
    matches!(Request::decode(request), Ok((_, Request::Fsync { .. })))
}

/// A call, whether it says its term or not.
fn said(call: &Call) -> Call {
    match call {
        Call::InTerm { call, .. } => Call::decode(call).unwrap(),
        call => call.clone(),
    }
}

fn brief(call: &Call) -> String {
    let text = match call {
        Call::File { request, asker, .. } => {
            let request = Request::decode(request);
            format!(
                "{:?} {:?}",
                asker.session,
                request.map(|(header, request)| (header.sequence, header.flags, request))
            )
        }
        other => format!("{other:?}"),
    };
    text.chars().take(240).collect()
}

async fn node_call(
    node: &Node<Arc<MemMedium>>,
    from: Peer,
    call: Call,
    planted: Option<Planted>,
) -> Reply {
    if planted == Some(Planted::Flush) && matches!(said(&call), Call::Flush { .. }) {
        return Reply::Number(0);
    }
    node.call(from, call).await
}
