//! `outboard cluster up`: makes a cluster, starts it, and starts again what dies.

use std::collections::BTreeMap;
use std::fs::DirBuilder;
use std::net::{Ipv4Addr, SocketAddrV4, UdpSocket};
use std::os::unix::fs::DirBuilderExt;
use std::path::Path;
use std::process::{Child, ExitCode};
use std::time::{Duration, Instant, SystemTime};

use outboard_coordinator::Way;
use outboard_fabric::Asking;
use rustix::process::Signal;

use super::Wishes;
use crate::cluster::description::{Coordinator, Description, FILE, Node, Role, Server, Standby};
use crate::cluster::membership::look_at_ensemble;
use crate::cluster::netns::{self, Place};
use crate::cluster::part::{Running, make_key};
use crate::cluster::process::{Cluster, signal};
use crate::exit::{Code, Failure};
use crate::log;
use crate::restarts::Restarts;
use crate::say::say;
use crate::watch::{Happened, Watch};

/// The port of RoCEv2.
const PORT: u16 = outboard_wire::roce::PORT;
/// Nodes of a cluster where nobody says how many.
const NODES: u16 = 3;
/// The highest number of a node.
const NODES_MAX: u16 = 64;
/// Where the coordinator is on the loopback: behind all nodes there may be.
const COORDINATOR_AT: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 254);
/// Ports that are tried where any will do.
const TRIES: usize = 100;
/// How often it is looked whether a part has died.
const LOOK: Duration = Duration::from_millis(50);

/// Makes and starts a cluster, and stays with it.
pub(crate) fn up(dir: &Path, how: &Wishes) -> Result<ExitCode, Failure> {
    log::start_with("info")?;
    let is_new = !dir.join(FILE).exists();
    if is_new {
        // What is refused leaves nothing behind.
        let wished = how.coordinator.as_deref().map(|text| coordinator(text, None)).transpose()?;
        look_at(wished.flatten().as_ref(), None)?;
        make(dir, how)?;
    }
    let mut cluster = Cluster::of(dir)?;
    if !is_new {
        let description = &cluster.description;
        agree(description, how)?;
        look_at(description.coordinator.as_ref(), Some(description.key()?.cluster))?;
    }
    cluster.capture = how.capture.as_deref().map(whole).transpose()?;
    cluster.make_run()?;
    let keeper = Running::claim(&cluster.keeper())?;
    let spaces = netns::make(&cluster.dir, &cluster.description)?;
    let mut watch = Watch::new()?;
    let mut kept = Kept::start(cluster.clone())?;
    let is_up = cluster.wait(|| {
        kept.look(true)?;
        Ok(watch.next(Duration::ZERO)? != Happened::Told)
    });
    match is_up {
        Ok(true) => greet(&cluster)?,
        Ok(false) => return end(&mut kept),
        Err(failure) => {
            let _ended = end(&mut kept);
            return Err(failure);
        }
    }
    if how.detach {
        spaces.keep();
        drop(keeper);
        return Ok(ExitCode::SUCCESS);
    }
    while watch.next(LOOK)? != Happened::Told {
        kept.describe_anew()?;
        kept.look(false)?;
    }
    end(&mut kept)
}

fn end(kept: &mut Kept) -> Result<ExitCode, Failure> {
    let ended = kept.cluster.end();
    kept.bury();
    ended.map(|()| ExitCode::SUCCESS)
}

fn greet(cluster: &Cluster) -> Result<(), Failure> {
    let program = std::env::current_exe().unwrap_or_else(|_| "outboard".into());
    let (program, dir) = (program.display(), cluster.dir.display());
    let parts: Vec<String> = cluster.description.parts().iter().map(Role::to_string).collect();
    say!("the cluster in {dir} is up: {}", parts.join(", "));
    say!("mount:  {program} run '{}' MOUNTPOINT", cluster.description.store()?);
    for number in 1..=cluster.description.hosts {
        let space = netns::space(&cluster.dir, Place::Host(number));
        say!("host {number}: mount with nsenter --net=/run/netns/{space} before it");
    }
    say!("look:   {program} cluster status {dir}");
    say!("end:    Ctrl-C here, or `{program} cluster down {dir}`");
    Ok(())
}

fn whole(dir: &Path) -> Result<std::path::PathBuf, Failure> {
    let made = std::fs::create_dir_all(dir).and_then(|()| dir.canonicalize());
    made.map_err(|error| Failure::usage(format!("--capture {}: {error}", dir.display())))
}

/// The coordinator that is wished: a process at this address, an ensemble, or none.
fn coordinator(
    wished: &str,
    address: Option<SocketAddrV4>,
) -> Result<Option<Coordinator>, Failure> {
    match wished {
        "none" => Ok(None),
        "embedded" => {
            let data = Some(Role::Coordinator.to_string().into());
            Ok(Some(Coordinator { address, data, zookeeper: None }))
        }
        location => {
            Way::<Asking>::zookeeper(location).map_err(|what| {
                Failure::usage(format!("--coordinator takes embedded, none or an ensemble: {what}"))
            })?;
            let zookeeper = Some(location.to_owned());
            Ok(Some(Coordinator { zookeeper, ..Coordinator::default() }))
        }
    }
}

/// An ensemble answers, and is nobody else's.
fn look_at(coordinator: Option<&Coordinator>, own: Option<u64>) -> Result<(), Failure> {
    let location = coordinator.and_then(|coordinator| coordinator.zookeeper.as_deref());
    location.map_or(Ok(()), |location| look_at_ensemble(location, own))
}

/// A cluster that is there is what it is.
fn agree(cluster: &Description, how: &Wishes) -> Result<(), Failure> {
    let differs = |what: &str| {
        Err(Failure::usage(format!(
            "the cluster that is there was made with another {what}: leave that flag out, or \
             choose another directory"
        )))
    };
    if how.nodes.is_some_and(|nodes| usize::from(nodes) != cluster.nodes.len()) {
        return differs("--nodes");
    }
    if how.packed && !cluster.packed {
        return differs("--packed");
    }
    if how.netns && !cluster.netns {
        return differs("--netns");
    }
    if how.hosts.is_some_and(|hosts| hosts != cluster.hosts) {
        return differs("--hosts");
    }
    let is_as_large = |node: &Node| node.capacity == how.capacity;
    if how.capacity.is_some() && !cluster.nodes.iter().all(is_as_large) {
        return differs("--capacity");
    }
    if how.heal_after.is_some() && how.heal_after != cluster.server()?.heal_after {
        return differs("--heal-after");
    }
    if how.store.is_some() && how.store != cluster.server()?.store {
        return differs("--store");
    }
    if how.standby.is_some_and(|count| usize::from(count) + 1 != cluster.servers().len()) {
        return differs("--standby");
    }
    if how.layout.is_some() && how.layout != cluster.layout {
        return differs("--layout");
    }
    if how.trust.is_some_and(|trust| trust != cluster.trust()) {
        return differs("--trust");
    }
    let wished = how.coordinator.as_deref().map(|text| coordinator(text, None)).transpose()?;
    let what = |one: &Option<Coordinator>| {
        one.as_ref().map(|one| (one.zookeeper.clone(), one.data.clone()))
    };
    if wished.is_some_and(|wished| what(&wished) != what(&cluster.coordinator)) {
        return differs("--coordinator");
    }
    let port = cluster.server()?.address.port();
    if how.port.is_some_and(|asked| asked != 0 && asked != port) {
        return differs("--port");
    }
    Ok(())
}

/// Describes a new cluster, and makes its key.
fn make(dir: &Path, how: &Wishes) -> Result<(), Failure> {
    let cannot = |error: std::io::Error| {
        Failure::new(Code::Data, format!("cannot make {}: {error}", dir.display()))
    };
    DirBuilder::new().recursive(true).mode(0o700).create(dir).map_err(cannot)?;
    let dir = dir.canonicalize().map_err(cannot)?;
    let numbers = 1..=how.nodes.unwrap_or(NODES);
    let address = |role: Role| address_of(&dir, how.netns, role);
    let servers = 2..=1 + how.standby.unwrap_or(0);
    let all: Vec<Ipv4Addr> = numbers
        .clone()
        .map(|number| address(Role::Node(number)))
        .chain(servers.clone().map(|number| address(Role::Meta(number))))
        .chain([address(Role::META), address(Role::Coordinator)])
        .collect();
    let port = match how.port {
        Some(0) if !how.netns => free_port(&all)?,
        Some(0) | None => PORT,
        Some(port) => port,
    };
    let at = |role: Role| SocketAddrV4::new(address(role), port);
    let nodes = numbers.map(|number| {
        let node = node_at(number, at(Role::Node(number)));
        Node { capacity: how.capacity.clone(), ..node }
    });
    let (address, data) = (at(Role::META), Role::META.to_string().into());
    let standby = servers.map(|number| {
        let role = Role::Meta(number);
        Standby { number, address: at(role), data: role.to_string().into() }
    });
    let server = Server {
        address,
        data,
        store: how.store.clone(),
        memory: None,
        heal_after: how.heal_after,
        standby: standby.collect(),
    };
    let mut description =
        Description::new(server, nodes.collect(), how.netns.then_some(netns::MTU));
    (description.packed, description.netns) = (how.packed, how.netns);
    description.hosts = how.hosts.unwrap_or(0);
    let wished = how.coordinator.as_deref().unwrap_or("embedded");
    description.coordinator = coordinator(wished, Some(at(Role::Coordinator)))?;
    description.layout.clone_from(&how.layout);
    description.trust = how.trust;
    description.check().map_err(Failure::usage)?;
    let key = dir.join(&description.key);
    if !key.exists() {
        make_key(&key)?;
    }
    description.write(&dir)
}

fn address_of(dir: &Path, netns: bool, role: Role) -> Ipv4Addr {
    match (netns, role) {
        (true, role) => netns::address(dir, Place::Part(role)),
        (false, Role::Node(number)) => {
            let last = u8::try_from(1 + number).unwrap_or(u8::MAX);
            Ipv4Addr::new(127, 0, 0, last)
        }
        (false, Role::Coordinator) => COORDINATOR_AT,
        // Before it, and behind all nodes.
        (false, Role::Meta(number)) if number > 1 => {
            let last = u8::try_from(255 - number).unwrap_or(u8::MAX);
            Ipv4Addr::new(127, 0, 0, last)
        }
        (false, _) => Ipv4Addr::LOCALHOST,
    }
}

fn node_at(number: u16, address: SocketAddrV4) -> Node {
    let data = Role::Node(number).to_string().into();
    Node { number, address, data, capacity: None, scrub: None }
}

/// One more node of a cluster that is there.
pub(crate) fn node(dir: &Path, cluster: &Description, number: u16) -> Result<Node, Failure> {
    if number > NODES_MAX {
        return Err(Failure::usage(format!(
            "a cluster on one machine has nodes 1 to {NODES_MAX}, and node {number} would be next"
        )));
    }
    let address = address_of(dir, cluster.netns, Role::Node(number));
    Ok(node_at(number, SocketAddrV4::new(address, cluster.server()?.address.port())))
}

/// A port that is free at all of these addresses.
fn free_port(addresses: &[Ipv4Addr]) -> Result<u16, Failure> {
    for _ in 0..TRIES {
        let first = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0));
        let Ok(port) = first.and_then(|first| first.local_addr()).map(|first| first.port()) else {
            continue;
        };
        if addresses.iter().all(|address| UdpSocket::bind((*address, port)).is_ok()) {
            return Ok(port);
        }
    }
    Err(Failure::internal("no port is free at all addresses of the cluster: name one with --port"))
}

/// When a cluster's description was written.
fn written(cluster: &Cluster) -> Option<SystemTime> {
    std::fs::metadata(cluster.dir.join(FILE)).and_then(|file| file.modified()).ok()
}

/// The processes of a cluster, kept running.
struct Kept {
    cluster: Cluster,
    /// When its description was written last.
    described: Option<SystemTime>,
    all: BTreeMap<Role, One>,
    /// Those of nodes that have left.
    gone: Vec<Child>,
}

#[derive(Default)]
struct One {
    /// `None`: another process started it.
    child: Option<Child>,
    restarts: Restarts,
    /// It is started again then.
    again: Option<Instant>,
}

impl Kept {
    /// Starts all that do not run.
    fn start(cluster: Cluster) -> Result<Kept, Failure> {
        // It is read once more: it may have been written since.
        let (all, gone, described) = (BTreeMap::new(), Vec::new(), None);
        let mut kept = Kept { cluster, described, all, gone };
        for role in kept.cluster.description.processes() {
            kept.begin(role)?;
        }
        Ok(kept)
    }

    fn begin(&mut self, role: Role) -> Result<(), Failure> {
        let child = match self.cluster.pid(role) {
            None => Some(self.cluster.spawn(role)?),
            Some(pid) => {
                tracing::info!(%role, pid, "runs already");
                None
            }
        };
        let mut one = One { child, ..One::default() };
        one.restarts.serves();
        self.all.insert(role, one);
        Ok(())
    }

    /// Starts the nodes that have come since, and ends those that have left.
    fn describe_anew(&mut self) -> Result<(), Failure> {
        let now = written(&self.cluster);
        if now == self.described {
            return Ok(());
        }
        self.described = now;
        match Description::of_dir(&self.cluster.dir) {
            Ok(description) => self.cluster.description = description,
            Err(failure) => {
                tracing::error!(%failure, "the description is as it was");
                return Ok(());
            }
        }
        let roles = self.cluster.description.processes();
        let left: Vec<Role> =
            self.all.keys().filter(|role| !roles.contains(role)).copied().collect();
        for role in left {
            tracing::info!(%role, "has left");
            if let Some(pid) = self.cluster.pid(role) {
                signal(pid, Signal::TERM)?;
            }
            self.gone.extend(self.all.remove(&role).and_then(|one| one.child));
        }
        for role in roles {
            if !self.all.contains_key(&role)
                && let Err(failure) = self.begin(role)
            {
                tracing::error!(%failure, "a node that has come does not run");
            }
        }
        Ok(())
    }

    /// Starts again what has died; at the `beginning` that ends all instead.
    fn look(&mut self, beginning: bool) -> Result<(), Failure> {
        self.gone.retain_mut(|child| matches!(child.try_wait(), Ok(None)));
        for (role, one) in &mut self.all {
            let (role, cluster) = (*role, &self.cluster);
            if let Some(child) = &mut one.child {
                let Ok(Some(status)) = child.try_wait() else { continue };
                if beginning {
                    return Err(Failure::internal(cluster.last_words(role)));
                }
                one.child = None;
                let pause = one.restarts.died();
                tracing::warn!(%role, %status, ?pause, "ended; starting it again");
                one.again = Some(Instant::now() + pause);
            }
            if one.again.is_some_and(|again| Instant::now() < again) || cluster.pid(role).is_some()
            {
                continue;
            }
            one.again = None;
            match cluster.spawn(role) {
                Ok(child) => {
                    one.child = Some(child);
                    one.restarts.serves();
                }
                Err(failure) => {
                    tracing::error!(%failure, "trying again");
                    one.again = Some(Instant::now() + one.restarts.died());
                }
            }
        }
        Ok(())
    }

    /// All were ended.
    fn bury(&mut self) {
        let kept = self.all.values_mut().filter_map(|one| one.child.as_mut());
        for child in kept.chain(&mut self.gone) {
            let _waited = child.wait();
        }
    }
}
