//! A part of a cluster on a thread of this process: a storage node, or the metadata server.

use std::cell::Cell;
use std::fs::{DirBuilder, File, OpenOptions};
use std::io::{self, Write};
use std::net::SocketAddrV4;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use outboard_base::task::Spawn;
use outboard_coordinator::{CoordinatorRole, Directory};
use outboard_fabric::port::{Port, PortOptions};
use outboard_fabric::runtime::{FabricRuntime, Identity};
use outboard_fabric::{Key, NodeRole, Part, faulty, random};
use outboard_flow::{Net, NoTarget, Target};
use outboard_link::pace;
use outboard_node::{Node, NodeOptions, Store, StoreOptions};
use outboard_os::clock;
use outboard_os::executor::block_on;
use outboard_os::medium::{FileMedium, MediumOptions, Reactor};
use outboard_os::room::{Reserve, disk_room};
use outboard_os::runtime::Poller;
use outboard_os::wakeup::Wakeup;
use outboard_store::RING_DEPTH;
use outboard_wire::shared::Peer;
use outboard_wire::shared::call::{Call, Reply};

use super::description::{self, Description, Role, Trust, named};
use super::membership::Membership;
use super::server::server;
use crate::exit::{Code, Failure};
use crate::settings::bytes;
use crate::watch::{Happened, Watch};

/// How long the end of a part may take: what was answered becomes durable.
pub(super) const END_LIMIT: Duration = Duration::from_secs(60);
/// By how much a node's data grows at a time.
const SEGMENT: u64 = 64 << 20;
/// So much log a node reads at its start, at most.
const CHECKPOINT: u64 = 16 << 20;

/// How parts run that are started together.
#[derive(Clone, Debug, Default)]
pub(crate) struct PartOptions {
    /// Where their packets are written down.
    pub(crate) capture: Option<PathBuf>,
    /// Longest spin, microseconds.
    pub(crate) spin: Option<u64>,
}

/// Tells threads that they are to end.
#[derive(Default)]
pub(crate) struct Stop {
    asked: AtomicBool,
    wakeups: Mutex<Vec<Arc<Wakeup>>>,
}

impl Stop {
    /// Who sleeps on `wakeup` is told, too.
    pub(crate) fn tells(&self, wakeup: &Arc<Wakeup>) {
        self.wakeups.lock().unwrap_or_else(PoisonError::into_inner).push(Arc::clone(wakeup));
        if self.is_asked() {
            wakeup.notify();
        }
    }

    /// Whether they are.
    pub(crate) fn is_asked(&self) -> bool {
        self.asked.load(Ordering::Acquire)
    }

    /// They are.
    pub(crate) fn ask(&self) {
        self.asked.store(true, Ordering::Release);
        let wakeups = self.wakeups.lock().unwrap_or_else(PoisonError::into_inner);
        wakeups.iter().for_each(|wakeup| wakeup.notify());
    }

    /// A thread that waits for a signal, then asks.
    pub(crate) fn on_signal(self: &Arc<Self>) -> Result<(), Failure> {
        let (mut watch, stop) = (Watch::new()?, Arc::clone(self));
        let wait = move || {
            while !matches!(watch.next(Duration::from_secs(3600)), Ok(Happened::Told) | Err(_)) {}
            stop.ask();
        };
        let started = std::thread::Builder::new().name("signals".into()).spawn(wait);
        started.map(drop).map_err(|error| {
            Failure::internal(format!("cannot start a thread for signals: {error}"))
        })
    }
}

/// Says who runs a part: a file that is locked as long as it does, with the process in it.
pub(crate) struct Running(#[expect(dead_code, reason = "its lock is what matters")] File);

impl Running {
    /// This process does. Refused if another does.
    pub(crate) fn claim(path: &Path) -> Result<Running, Failure> {
        let cannot = |error: io::Error| {
            Failure::new(Code::Data, format!("cannot use {}: {error}", path.display()))
        };
        let mut options = OpenOptions::new();
        let options = options.read(true).write(true).create(true).truncate(false).mode(0o600);
        let mut file = options.open(path).map_err(cannot)?;
        if outboard_os::lock::lock_within(&file, outboard_os::lock::LOCK_PATIENCE).is_err() {
            let message = format!("{} says that another process runs it", path.display());
            return Err(Failure::new(Code::Data, message));
        }
        file.set_len(0).and_then(|()| writeln!(file, "{}", std::process::id())).map_err(cannot)?;
        Ok(Running(file))
    }

    /// The process that does.
    pub(crate) fn pid(path: &Path) -> Option<u32> {
        let file = File::open(path).ok()?;
        match file.try_lock_shared() {
            Ok(()) => None,
            Err(_) => std::fs::read_to_string(path).ok()?.trim().parse().ok(),
        }
    }
}

/// Runs a part on this thread until it is told to end.
pub(crate) fn run(
    cluster: &Description,
    role: Role,
    options: &PartOptions,
    stop: &Stop,
) -> Result<(), Failure> {
    outboard_os::fds::raise_limit();
    match role {
        Role::Meta(number) => server(cluster, number, options, stop),
        Role::Node(number) => node(cluster, number, options, stop),
        Role::Packed => packed(cluster, options, stop),
        Role::Coordinator => coordinator(cluster, options, stop),
    }
}

/// All parts, each on a thread; if one ends, all do.
fn packed(cluster: &Description, options: &PartOptions, stop: &Stop) -> Result<(), Failure> {
    std::thread::scope(|scope| {
        let parts: Vec<_> = cluster
            .parts()
            .into_iter()
            .map(|role| {
                scope.spawn(move || {
                    let ended = run(cluster, role, options, stop);
                    stop.ask();
                    ended
                })
            })
            .collect();
        parts.into_iter().try_for_each(|part| {
            let panicked = || Failure::internal("the thread of a part panicked");
            part.join().map_err(|_| panicked())?
        })
    })
}

pub(super) fn failed(role: Role, what: &str, error: &dyn std::fmt::Display) -> Failure {
    Failure::new(Code::Data, format!("{role} cannot {what}: {error}"))
}

pub(super) fn port(
    cluster: &Description,
    role: Role,
    options: &PartOptions,
) -> Result<Port, Failure> {
    let address = cluster.address(role)?;
    let faults = faulty::Settings::of_environment().map_err(Failure::usage)?;
    let before = PortOptions { capture: options.capture.clone(), faults };
    Port::open(address, &role.to_string(), &before)
        .map_err(|error| failed(role, &format!("use the address {address}"), &error))
}

pub(super) fn identity(cluster: &Description, role: Role) -> Result<Identity, Failure> {
    let key = cluster_key(cluster)?;
    let life = random().map_err(|error| failed(role, "get random numbers", &error))? | 1;
    let volume = &cluster.volume;
    let trust = cluster.trust();
    let about = format!(
        "\"role\":\"{role}\",\"volume\":\"{volume}\",\"trust\":\"{trust}\",\"life\":{life}"
    );
    let (me, mtu, sealed) = (role.peer(), cluster.mtu(), trust == Trust::Sealed);
    Ok(Identity { me, life, key, mtu, sealed, about })
}

fn cluster_key(cluster: &Description) -> Result<Key, Failure> {
    let key = cluster.key()?;
    if key.client.is_some() {
        let file = cluster.path(&cluster.key);
        let file = file.display();
        return Err(Failure::usage(format!("{file} is a client's key, and not the cluster's")));
    }
    Ok(key)
}

pub(super) fn pace(options: &PartOptions) -> pace::Config {
    let default = pace::Config::default();
    let spin = options.spin.map_or(default.spin, Duration::from_micros);
    pace::Config { spin, ..default }
}

/// The volume's number in capabilities.
pub(crate) fn number_of(volume: &str) -> u32 {
    outboard_codec::crc32c(volume.as_bytes())
}

fn node(
    cluster: &Description,
    number: u16,
    options: &PartOptions,
    stop: &Stop,
) -> Result<(), Failure> {
    let role = Role::Node(number);
    let cannot = |what: &'static str| move |error: io::Error| failed(role, what, &error);
    let (identity, port) = (identity(cluster, role)?, port(cluster, role, options)?);
    let wakeup = Arc::new(Wakeup::new().map_err(cannot("make a wake event"))?);
    let reactor = Reactor::install(RING_DEPTH)
        .inspect_err(|error| tracing::warn!(%error, "no io_uring here: storage I/O uses threads"))
        .ok();
    let poller = Rc::new(Poller::new(Arc::clone(&wakeup), reactor));
    let store = open_store(cluster, number, identity.key.cluster)?;
    let scrub = cluster.node(Some(number))?.scrub.as_deref();
    let scrub = scrub.map(|rate| bytes("scrub", rate)).transpose()?;
    let node_options = NodeOptions {
        node: number,
        volume: Some(number_of(&cluster.volume)),
        threat: cluster.trust().threat(),
        boot: boot().map_err(cannot("tell one boot from another"))?,
        ..NodeOptions::default()
    };
    let node_options = NodeOptions { scrub: scrub.unwrap_or(node_options.scrub), ..node_options };
    let node = Node::new(store, node_options);
    let names = (identity.key.cluster, identity.life);
    let runtime = FabricRuntime::new(poller, Arc::clone(&wakeup), port, identity, node.target());
    let runtime = Rc::new(runtime.map_err(cannot("start"))?);
    let part = Part::new(Rc::clone(&runtime), Arc::clone(&wakeup)).map_err(cannot("start"))?;
    stop.tells(&wakeup);
    let role_of_it = Rc::new(NodeRole::new(node.clone(), runtime.conversations().clone()));
    for other in cluster.coordinates().iter().filter(|other| other.node != number) {
        role_of_it.know(other.node, SocketAddrV4::new(other.address.into(), other.port));
    }
    // Nodes come while others run: the coordinator says where they are.
    let hears = {
        let role_of_it = Rc::clone(&role_of_it);
        move |nodes: Option<Vec<(u16, SocketAddrV4)>>| {
            let others = nodes.into_iter().flatten().filter(|(node, _)| *node != number);
            others.for_each(|(node, address)| role_of_it.know(node, address));
        }
    };
    let membership = Membership::begin(cluster, (role, false), names, &runtime, hears)?;
    if !membership.enter(&part, pace(options), stop)? {
        return Ok(());
    }
    runtime.set_role(role_of_it);
    let strange = greet(cluster, role, &runtime, vec![(Role::META, cluster.server_places())]);
    tracing::info!(%role, address = %runtime.local(), pid = std::process::id(), "serving");
    serve((&part, &membership), options, &|| stop.is_asked(), &strange)?;
    membership.leave(&part);
    let flush = async move { node.call(Peer::Server(0), Call::FLUSH).await };
    match part.finish(flush, END_LIMIT).map_err(cannot("end in order"))? {
        Some(Reply::Number(_)) => {
            tracing::info!(%role, "ended in order");
            strange.take().map_or(Ok(()), Err)
        }
        _ => Err(failed(role, "make durable what it answered", &"see its log")),
    }
}

/// Another number after each start of the computer, which is what a loss of power comes to: the end
/// of a process loses nothing that the system has.
pub(super) fn boot() -> io::Result<u64> {
    let id = std::fs::read_to_string("/proc/sys/kernel/random/boot_id")?;
    let digits: String = id.chars().filter(char::is_ascii_hexdigit).take(16).collect();
    u64::from_str_radix(&digits, 16).map_err(io::Error::other)
}

/// A part that is not of this cluster as it is described here, and what to do about it.
pub(super) type Strange = Rc<Cell<Option<Failure>>>;

/// Asks other parts how they are. The server learns from it that a node has begun another life,
/// which has no keys; and whoever starts later sees whether both trust alike. One that is not there
/// will ask by itself.
pub(super) fn greet<T: Target>(
    cluster: &Description,
    role: Role,
    runtime: &FabricRuntime<T>,
    others: Vec<(Role, Vec<SocketAddrV4>)>,
) -> Strange {
    let (strange, own) = (Strange::default(), cluster.trust().to_string());
    for (other, places) in others.into_iter().filter(|(_, places)| !places.is_empty()) {
        let (asking, strange, own) = (runtime.asking(), Rc::clone(&strange), own.clone());
        asking.know_places(other.peer(), &places);
        let mut call = Vec::new();
        Call::Status.encode(&mut call);
        runtime.spawn(Box::pin(async move {
            let Ok(reply) = asking.call(other.peer(), call).await else { return };
            let Ok(Reply::Text(text)) = Reply::decode(&reply) else { return };
            let said: serde_json::Value = serde_json::from_str(&text).unwrap_or_default();
            let Some(trust) = said.get("trust").and_then(serde_json::Value::as_str) else { return };
            if trust != own {
                strange.set(Some(Failure::usage(format!(
                    "{role} is described with the trust {own}, and {other} at {} with {trust}: \
                     say the same in the description of each part",
                    named(&places)
                ))));
            }
        }));
    }
    strange
}

/// Serves until it is told to end, another part is strange, or it may not be here any more.
pub(super) fn serve<T: Target>(
    (part, membership): (&Part<T>, &Membership<T>),
    options: &PartOptions,
    is_asked: &dyn Fn() -> bool,
    strange: &Strange,
) -> Result<(), Failure> {
    let is_strange = || {
        let found = strange.take();
        let is_found = found.is_some();
        strange.set(found);
        is_found
    };
    let ends = || is_asked() || is_strange() || membership.is_refused();
    part.serve(pace(options), &ends)
        .map_err(|error| Failure::internal(format!("a part cannot go on: {error}")))?;
    match membership.refusal().filter(|_| membership.is_refused() && !is_asked()) {
        Some(failure) => Err(failure),
        None => Ok(()),
    }
}

/// The store of a node, made if it is not there.
fn open_store(cluster: &Description, number: u16, of: u64) -> Result<Store<FileMedium>, Failure> {
    let role = Role::Node(number);
    let described = cluster.node(Some(number))?;
    let dir = cluster.path(&described.data);
    let cannot = |error: io::Error| failed(role, &format!("use {}", dir.display()), &error);
    DirBuilder::new().recursive(true).mode(0o700).create(&dir).map_err(cannot)?;
    let threads = if Reactor::is_installed() { 0 } else { 8 };
    let medium = MediumOptions { threads, ..MediumOptions::default() };
    // Answered is what the system has: records wait in its page cache for a flush, and go many at a
    // time, where each of them was an operation of the device.
    let cached = MediumOptions { direct: false, ..medium };
    let log = FileMedium::open(&dir.join("log"), cached).map_err(cannot)?;
    let data = FileMedium::open(&dir.join("blocks"), medium).map_err(cannot)?;
    let capacity = match &described.capacity {
        Some(text) => bytes("capacity", text)?,
        None => {
            let used = std::fs::metadata(dir.join("blocks")).map_or(0, |file| file.len());
            let (free, kept) = disk_room(&dir, Reserve::default()).map_err(cannot)?;
            free.saturating_sub(kept).saturating_add(used)
        }
    };
    let options = StoreOptions {
        node: number,
        cluster: of,
        capacity,
        segment: SEGMENT,
        checkpoint_bytes: CHECKPOINT,
    };
    block_on(Store::open(log, data, options))
        .map_err(|error| failed(role, &format!("use {}", dir.display()), &error))
}

/// The coordinator.
fn coordinator(cluster: &Description, options: &PartOptions, stop: &Stop) -> Result<(), Failure> {
    let role = Role::Coordinator;
    let cannot = |what: &'static str| move |error: io::Error| failed(role, what, &error);
    let (_, data) = cluster.own_coordinator()?;
    let dir = cluster.path(data);
    let of_dir = |error: io::Error| failed(role, &format!("use {}", dir.display()), &error);
    let (identity, port) = (identity(cluster, role)?, port(cluster, role, options)?);
    DirBuilder::new().recursive(true).mode(0o700).create(&dir).map_err(of_dir)?;
    let keeper = Directory::open(&dir, clock::now()).map_err(of_dir)?;
    let wakeup = Arc::new(Wakeup::new().map_err(cannot("make a wake event"))?);
    let poller = Rc::new(Poller::new(Arc::clone(&wakeup), None));
    let runtime = FabricRuntime::new(poller, Arc::clone(&wakeup), port, identity, NoTarget);
    let runtime = Rc::new(runtime.map_err(cannot("start"))?);
    runtime.set_role(Rc::new(CoordinatorRole(keeper)));
    let part = Part::new(Rc::clone(&runtime), Arc::clone(&wakeup)).map_err(cannot("start"))?;
    stop.tells(&wakeup);
    tracing::info!(%role, address = %runtime.local(), pid = std::process::id(), "serving");
    part.serve(pace(options), &|| stop.is_asked()).map_err(cannot("go on"))?;
    tracing::info!(%role, "ended in order");
    Ok(())
}

/// A new key of a cluster, in a file that only its owner reads.
pub(crate) fn make_key(path: &Path) -> Result<(), Failure> {
    let cannot = |error: io::Error| {
        Failure::new(Code::Data, format!("cannot make the key {}: {error}", path.display()))
    };
    let mut secret = [0; 32];
    for chunk in secret.chunks_mut(8) {
        chunk.copy_from_slice(&random().map_err(cannot)?.to_le_bytes());
    }
    let key = Key { cluster: random().map_err(cannot)?, client: None, secret };
    write_key(path, &key)
}

/// Writes a key into a new file.
pub(crate) fn write_key(path: &Path, key: &Key) -> Result<(), Failure> {
    let cannot = |error: io::Error| {
        Failure::new(Code::Data, format!("cannot make the key {}: {error}", path.display()))
    };
    let mut options = OpenOptions::new();
    let mut file = options.write(true).create_new(true).mode(0o600).open(path).map_err(cannot)?;
    file.write_all(key.text().as_bytes()).and_then(|()| file.sync_all()).map_err(cannot)
}

/// The description in a file, and the role in it.
pub(crate) fn described(path: Option<&Path>, command: &str) -> Result<Description, Failure> {
    let Some(path) = path else {
        return Err(Failure::usage(format!(
            "outboard {command} needs the cluster's description: --config FILE (a sample is \
             etc/cluster.toml)"
        )));
    };
    description::Description::read(path)
}
