//! What a cluster consists of, in a file: `etc/cluster.toml` is a sample with every key.
//!
//! A server needs all of it, a node only its own entry. Paths are relative to the file.

use std::net::SocketAddrV4;
use std::path::{Path, PathBuf};

use outboard_coordinator::COORDINATOR;
use outboard_fabric::Key;
use outboard_kvfs::spread::parse_layout;
use outboard_node::policy::Threat;
use outboard_wire::shared::call::Layout;
use outboard_wire::shared::{Coordinate, FAN_MAX, Peer};
use serde::{Deserialize, Serialize};

use crate::exit::{Code, Failure};
use crate::settings::bytes;

/// Its name in a directory that `outboard cluster up` has made.
pub(crate) const FILE: &str = "cluster.toml";
/// Numbers of servers that stand by.
const STANDBYS: std::ops::RangeInclusive<u16> = 2..=8;
/// How the location of a pool begins.
const POOL: &str = "rados://";
/// Bytes a frame has on the loopback, where nobody says otherwise, and elsewhere. On the loopback
/// that is the longest IPv4 packet: a piece of a write is two packets and not eight.
pub(crate) const MTU: (usize, usize) = (65_535, 1500);
/// What a frame may have.
pub(crate) const MTU_RANGE: std::ops::RangeInclusive<usize> = 1280..=65_535;

/// Whom the nodes of a cluster trust (NetDFS IV).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Trust {
    /// Clients and network: a capability is a plain ticket, which who has one can rewrite
    Plain,
    /// The network, no client: capabilities are signed
    #[default]
    Capability,
    /// Nobody: every packet is authenticated, too
    Sealed,
}

impl Trust {
    /// The one of this name.
    pub(crate) fn parse(name: &str) -> Option<Trust> {
        clap::ValueEnum::from_str(name, false).ok()
    }

    /// What a node is told.
    pub(crate) fn threat(self) -> Threat {
        match self {
            Trust::Plain => Threat::Ticket,
            Trust::Capability => Threat::Signed,
            Trust::Sealed => Threat::EveryPacket,
        }
    }
}

impl std::fmt::Display for Trust {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Trust::Plain => "plain",
            Trust::Capability => "capability",
            Trust::Sealed => "sealed",
        })
    }
}

/// A cluster.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub(crate) struct Description {
    /// The file of the cluster's key.
    pub(crate) key: PathBuf,
    /// The volume's name.
    pub(crate) volume: String,
    /// Bytes of a frame on the network.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) mtu: Option<usize>,
    /// How files lie whose directory says nothing: `strategy=single,width=4,strip=64K`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) layout: Option<String>,
    /// Whom nodes trust.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) trust: Option<Trust>,
    /// All in one process.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(crate) packed: bool,
    /// Each part in a network namespace of its own.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(crate) netns: bool,
    /// And so many for hosts that mount.
    #[serde(default, skip_serializing_if = "no_hosts")]
    pub(crate) hosts: u16,
    /// The metadata server.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) server: Option<Server>,
    /// Who keeps which parts there are. Without one they are those that stand here.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) coordinator: Option<Coordinator>,
    /// The storage nodes.
    pub(crate) nodes: Vec<Node>,
    /// The file it was read from.
    #[serde(skip)]
    file: PathBuf,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde gives a reference")]
fn no_hosts(hosts: &u16) -> bool {
    *hosts == 0
}

/// A metadata server.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub(crate) struct Server {
    /// Where it is reached.
    pub(crate) address: SocketAddrV4,
    /// Its data directory.
    pub(crate) data: PathBuf,
    /// What keeps names and inodes, as `--store` of a volume.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) store: Option<String>,
    /// Memory it may use, as `--memory` of a volume.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) memory: Option<String>,
    /// Seconds that a node may be away before files with copies on it get others elsewhere; 0: as
    /// many as it likes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) heal_after: Option<u64>,
    /// Others that serve the volume when this one does not.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) standby: Vec<Standby>,
}

/// One more server of a volume.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub(crate) struct Standby {
    /// Its number; the first server is 1.
    pub(crate) number: u16,
    /// Where it is reached.
    pub(crate) address: SocketAddrV4,
    /// Its data directory.
    pub(crate) data: PathBuf,
}

/// A coordinator: a process of its own, or an ensemble of ZooKeeper.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub(crate) struct Coordinator {
    /// Where a process of its own is reached.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) address: Option<SocketAddrV4>,
    /// Its data directory.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) data: Option<PathBuf>,
    /// The ensemble's servers: `zookeeper://HOST:PORT,HOST:PORT/PATH`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) zookeeper: Option<String>,
}

/// A storage node.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub(crate) struct Node {
    /// Its number.
    pub(crate) number: u16,
    /// Where it is reached.
    pub(crate) address: SocketAddrV4,
    /// Its data directory.
    pub(crate) data: PathBuf,
    /// Bytes of data it takes, with K, M, G or T.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) capacity: Option<String>,
    /// Bytes a second whose checksums it looks at though nobody reads them; 0: none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) scrub: Option<String>,
}

/// A part of a cluster, by its name: `meta`, `node.1`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Role {
    /// A metadata server, by its number: one of them serves.
    Meta(u16),
    /// A node, by its number.
    Node(u16),
    /// All of them in one process.
    Packed,
    /// The coordinator, where it is a process.
    Coordinator,
}

impl std::fmt::Display for Role {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match *self {
            Role::META => f.write_str("meta"),
            Role::Meta(number) => write!(f, "meta.{number}"),
            Role::Node(number) => write!(f, "node.{number}"),
            Role::Packed => f.write_str("packed"),
            Role::Coordinator => f.write_str("coordinator"),
        }
    }
}

impl Role {
    /// The first metadata server, and the only one where no other stands by.
    pub(crate) const META: Role = Role::Meta(1);

    /// Who it is to others.
    pub(crate) fn peer(self) -> Peer {
        match self {
            Role::Meta(_) | Role::Packed => Peer::Server(0),
            Role::Node(number) => Peer::Node(number),
            Role::Coordinator => COORDINATOR,
        }
    }
}

impl Description {
    /// A new one.
    pub(crate) fn new(server: Server, nodes: Vec<Node>, mtu: Option<usize>) -> Description {
        Description {
            key: "key".into(),
            volume: "main".to_owned(),
            mtu,
            layout: None,
            trust: None,
            packed: false,
            netns: false,
            hosts: 0,
            server: Some(server),
            coordinator: None,
            nodes,
            file: PathBuf::new(),
        }
    }

    /// Reads a file and checks it.
    pub(crate) fn read(path: &Path) -> Result<Description, Failure> {
        let wrong = |what: &dyn std::fmt::Display| {
            Failure::usage(format!(
                "{} describes no cluster: {what}; see etc/cluster.toml for every key",
                path.display()
            ))
        };
        let text = std::fs::read_to_string(path)
            .map_err(|error| Failure::usage(format!("cannot read {}: {error}", path.display())))?;
        let mut read: Description = toml::from_str(&text).map_err(|error| wrong(&error))?;
        path.clone_into(&mut read.file);
        read.check().map_err(|what| wrong(&what))?;
        Ok(read)
    }

    /// As its file describes it now.
    pub(crate) fn again(&self) -> Result<Description, Failure> {
        Description::read(&self.file)
    }

    /// That of a directory which `outboard cluster up` has made.
    pub(crate) fn of_dir(dir: &Path) -> Result<Description, Failure> {
        let file = dir.join(FILE);
        if file.is_file() {
            return Description::read(&file);
        }
        Err(Failure::new(
            Code::Data,
            format!(
                "{} holds no cluster: make one with `outboard cluster up {}`",
                dir.display(),
                dir.display()
            ),
        ))
    }

    /// Writes it into the directory `dir`.
    pub(crate) fn write(&mut self, dir: &Path) -> Result<(), Failure> {
        self.file = dir.join(FILE);
        let text = toml::to_string(self)
            .map_err(|error| Failure::internal(format!("a cluster is not described: {error}")))?;
        let text = format!("# Written by `outboard cluster up`; see etc/cluster.toml.\n\n{text}");
        // Others read it at any time.
        let draft = dir.join(format!("{FILE}.new"));
        let written = std::fs::write(&draft, text);
        written.and_then(|()| std::fs::rename(&draft, &self.file)).map_err(|error| {
            Failure::new(Code::Data, format!("cannot write {}: {error}", self.file.display()))
        })
    }

    pub(crate) fn check(&self) -> Result<(), String> {
        let mut numbers: Vec<u16> = self.nodes.iter().map(|node| node.number).collect();
        let count = numbers.len();
        numbers.sort_unstable();
        numbers.dedup();
        if numbers.len() != count {
            return Err("two nodes have one number".to_owned());
        }
        let addresses = self.nodes.iter().map(|node| node.address);
        let coordinator = self.coordinator.as_ref().and_then(|coordinator| coordinator.address);
        let others = self.server_places().into_iter();
        let mut addresses: Vec<SocketAddrV4> = addresses.chain(others.chain(coordinator)).collect();
        let count = addresses.len();
        addresses.sort_unstable();
        addresses.dedup();
        if addresses.len() != count {
            return Err("two parts have one address".to_owned());
        }
        if let Some(Coordinator { address, data, zookeeper }) = &self.coordinator
            && (address.is_some() != data.is_some() || address.is_some() == zookeeper.is_some())
        {
            let what = "the coordinator has either an address and data, or zookeeper";
            return Err(what.to_owned());
        }
        self.check_standby()?;
        let is_open = |address: &SocketAddrV4| address.ip().is_unspecified() || address.port() == 0;
        if let Some(address) = addresses.iter().find(|address| is_open(address)) {
            return Err(format!("{address} is no address that others reach a part at"));
        }
        if self.mtu.is_some_and(|mtu| !MTU_RANGE.contains(&mtu)) {
            return Err("mtu is not between 1280 and 65535".to_owned());
        }
        if self.volume.is_empty() || self.volume.contains(['/', '?', '"', '\\']) {
            return Err(format!("{:?} is no name of a volume", self.volume));
        }
        let capacities = self.nodes.iter().filter_map(|node| node.capacity.as_deref());
        for capacity in capacities {
            bytes("capacity", capacity).map_err(|failure| failure.to_string())?;
        }
        for scrub in self.nodes.iter().filter_map(|node| node.scrub.as_deref()) {
            bytes("scrub", scrub).map_err(|failure| failure.to_string())?;
        }
        self.layout().map(drop)
    }

    /// Servers that stand by have numbers of their own, and one store with the first.
    fn check_standby(&self) -> Result<(), String> {
        let Some(server) = self.server.as_ref().filter(|server| !server.standby.is_empty()) else {
            return Ok(());
        };
        let mut numbers: Vec<u16> = server.standby.iter().map(|other| other.number).collect();
        numbers.sort_unstable();
        numbers.dedup();
        let are_right = numbers.iter().all(|number| STANDBYS.contains(number));
        if numbers.len() != server.standby.len() || !are_right {
            return Err("servers that stand by have numbers from 2 to 8, one each".to_owned());
        }
        if self.packed || self.netns {
            return Err(
                "no server stands by in a cluster that is packed, which is one process, or \
                        in network namespaces, from where no pool is reached"
                    .to_owned(),
            );
        }
        if server.store.as_deref().is_none_or(|store| !store.starts_with(POOL)) {
            return Err(format!(
                "a server can only stand by where the volume's store is a pool that all servers \
                 reach: say store = \"{POOL}POOL?conf=FILE\", or leave out [[server.standby]]"
            ));
        }
        Ok(())
    }

    /// How files lie.
    pub(crate) fn layout(&self) -> Result<Layout, String> {
        let Some(text) = &self.layout else { return Ok(Layout::default()) };
        let layout = parse_layout(text).map_err(|_| {
            format!(
                "layout {text:?} is not understood; see strategy=single,width=4,strip=64K, \
                 strategy=ring,k=3 and strategy=parity,k=3,m=2"
            )
        })?;
        let nodes = self.nodes.len();
        if layout.is_redundant() && layout.nodes() > nodes.min(FAN_MAX) {
            let asks = layout.nodes();
            return Err(format!(
                "layout {text:?} asks for {asks} nodes for each file: there are {nodes}, and a \
                 file lies on {FAN_MAX} at most"
            ));
        }
        Ok(layout)
    }

    /// Whom nodes trust.
    pub(crate) fn trust(&self) -> Trust {
        self.trust.unwrap_or_default()
    }

    /// The server's entry.
    pub(crate) fn server(&self) -> Result<&Server, Failure> {
        let none = || Failure::usage("the cluster's description has no [server]");
        self.server.as_ref().ok_or_else(none)
    }

    /// One of the servers that stand by.
    fn standby(&self, number: u16) -> Result<&Standby, Failure> {
        let found = self.server()?.standby.iter().find(|other| other.number == number);
        let none = || format!("the cluster's description has no [[server.standby]] {number}");
        found.ok_or_else(|| Failure::usage(none()))
    }

    /// The servers, of which one serves.
    pub(crate) fn servers(&self) -> Vec<Role> {
        let others = self.server.iter().flat_map(|server| &server.standby);
        let others = others.map(|other| Role::Meta(other.number));
        self.server.iter().map(|_| Role::META).chain(others).collect()
    }

    /// Where the server may be.
    pub(crate) fn server_places(&self) -> Vec<SocketAddrV4> {
        let others = self.server.iter().flat_map(|server| &server.standby);
        let first = self.server.iter().map(|server| server.address);
        first.chain(others.map(|other| other.address)).collect()
    }

    /// The data directory of a server.
    pub(crate) fn data(&self, role: Role) -> Result<PathBuf, Failure> {
        match role {
            Role::Meta(number) if number > 1 => Ok(self.path(&self.standby(number)?.data)),
            _ => Ok(self.path(&self.server()?.data)),
        }
    }

    /// Where the coordinator is that is a process, and its directory.
    pub(crate) fn own_coordinator(&self) -> Result<(SocketAddrV4, &Path), Failure> {
        let coordinator = self.coordinator.as_ref();
        let own = coordinator.and_then(|own| Some((own.address?, own.data.as_deref()?)));
        let none = "the cluster's description has no [coordinator] with an address and data";
        own.ok_or_else(|| Failure::usage(none))
    }

    /// A node's entry; without a number that of the only one.
    pub(crate) fn node(&self, number: Option<u16>) -> Result<&Node, Failure> {
        let found = match (number, self.nodes.as_slice()) {
            (None, [only]) => Some(only),
            (None, _) => None,
            (Some(number), nodes) => nodes.iter().find(|node| node.number == number),
        };
        found.ok_or_else(|| {
            let known: Vec<String> =
                self.nodes.iter().map(|node| node.number.to_string()).collect();
            Failure::usage(format!(
                "say which node with --number; the description has {}",
                known.join(", ")
            ))
        })
    }

    /// Processes of the cluster, in the order in which they are started.
    pub(crate) fn processes(&self) -> Vec<Role> {
        if self.packed { vec![Role::Packed] } else { self.parts() }
    }

    /// Parts of the cluster: the coordinator, the nodes, the servers.
    pub(crate) fn parts(&self) -> Vec<Role> {
        let own = self.coordinator.as_ref().and_then(|coordinator| coordinator.address);
        let first = own.map(|_| Role::Coordinator).into_iter();
        let nodes = self.nodes.iter().map(|node| Role::Node(node.number));
        first.chain(nodes).chain(self.servers()).collect()
    }

    /// Where a part is.
    pub(crate) fn address(&self, role: Role) -> Result<SocketAddrV4, Failure> {
        match role {
            Role::META | Role::Packed => Ok(self.server()?.address),
            Role::Meta(number) => Ok(self.standby(number)?.address),
            Role::Node(number) => Ok(self.node(Some(number))?.address),
            Role::Coordinator => Ok(self.own_coordinator()?.0),
        }
    }

    /// Where the nodes are, for a server.
    pub(crate) fn coordinates(&self) -> Vec<Coordinate> {
        let coordinate = |node: &Node| Coordinate {
            address: node.address.ip().octets(),
            port: node.address.port(),
            node: node.number,
            unit: 0,
            role: outboard_wire::shared::Role::Data,
        };
        self.nodes.iter().map(coordinate).collect()
    }

    /// A path of it.
    pub(crate) fn path(&self, path: &Path) -> PathBuf {
        self.file.parent().unwrap_or_else(|| Path::new("")).join(path)
    }

    /// The cluster's key.
    pub(crate) fn key(&self) -> Result<Key, Failure> {
        read_key(&self.path(&self.key))
    }

    /// Bytes of a frame.
    pub(crate) fn mtu(&self) -> usize {
        let servers = self.server_places().into_iter();
        let mut all = servers.chain(self.nodes.iter().map(|node| node.address));
        let default = if all.all(|address| address.ip().is_loopback()) { MTU.0 } else { MTU.1 };
        self.mtu.unwrap_or(default)
    }

    /// What names the volume to `--store`.
    pub(crate) fn store(&self) -> Result<String, Failure> {
        let key = self.path(&self.key);
        let key = key.canonicalize().unwrap_or(key);
        let (_, mtu) = (self.server()?, self.mtu());
        let (volume, key) = (&self.volume, key.display());
        let trust = self.trust.map(|trust| format!("&trust={trust}")).unwrap_or_default();
        let places = named(&self.server_places());
        Ok(format!("shared://{places}/{volume}?key={key}&mtu={mtu}{trust}"))
    }
}

/// Places, as a location names them.
pub(crate) fn named(places: &[SocketAddrV4]) -> String {
    let places: Vec<String> = places.iter().map(SocketAddrV4::to_string).collect();
    places.join(",")
}

/// Reads a key's file.
pub(crate) fn read_key(path: &Path) -> Result<Key, Failure> {
    let cannot = |what: &dyn std::fmt::Display| {
        Failure::usage(format!(
            "cannot use the key in {}: {what}; `outboard cluster key` writes one for a client",
            path.display()
        ))
    };
    let text = std::fs::read_to_string(path).map_err(|error| cannot(&error))?;
    Key::parse(&text).map_err(|what| cannot(&what))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<Description, String> {
        let dir = std::env::temp_dir().join(format!("outboard-cluster-{}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        let file = dir.join(format!("{:?}.toml", std::thread::current().id()));
        std::fs::write(&file, text).unwrap();
        let read = Description::read(&file).map_err(|failure| failure.to_string());
        std::fs::remove_file(&file).unwrap();
        read
    }

    const WHOLE: &str = "key = \"key\"\nvolume = \"main\"\n\
        [server]\naddress = \"10.0.0.1:4791\"\ndata = \"meta\"\n\
        [[nodes]]\nnumber = 1\naddress = \"10.0.0.2:4791\"\ndata = \"node.1\"\n\
        [[nodes]]\nnumber = 2\naddress = \"10.0.0.3:4791\"\ndata = \"node.2\"\n";

    #[test]
    fn a_description_is_read_and_written() {
        let mut whole = read(WHOLE).unwrap();
        assert_eq!(whole.mtu(), 1500);
        assert_eq!(whole.parts(), [Role::Node(1), Role::Node(2), Role::META]);
        assert_eq!(whole.coordinates().len(), 2);
        assert_eq!(whole.address(Role::Node(2)).unwrap().to_string(), "10.0.0.3:4791");
        let dir = std::env::temp_dir().join(format!("outboard-written-{}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        whole.packed = true;
        whole.write(&dir).unwrap();
        let again = Description::of_dir(&dir).unwrap();
        assert_eq!(format!("{again:?}"), format!("{whole:?}"));
        assert_eq!(again.processes(), [Role::Packed]);
        std::fs::remove_dir_all(&dir).unwrap();
    }

    /// The rest of a server, with one that stands by.
    fn standby(store: &str, number: u16, address: &str) -> String {
        format!(
            "data = \"meta\"\n{store}[[server.standby]]\nnumber = {number}\n\
             address = \"{address}:4791\"\ndata = \"other\"\n"
        )
    }

    #[test]
    fn servers_that_stand_by_are_parts() {
        let text = standby("store = \"rados://p\"\n", 3, "10.0.0.9");
        let whole = read(&WHOLE.replace("data = \"meta\"", &text)).unwrap();
        assert_eq!(whole.servers(), [Role::META, Role::Meta(3)]);
        assert_eq!(whole.parts(), [Role::Node(1), Role::Node(2), Role::META, Role::Meta(3)]);
        assert_eq!(Role::Meta(3).to_string(), "meta.3");
        assert_eq!(whole.data(Role::Meta(3)).unwrap().file_name().unwrap(), "other");
        assert!(whole.store().unwrap().starts_with("shared://10.0.0.1:4791,10.0.0.9:4791/main?"));
        assert!(whole.address(Role::Meta(2)).is_err());
    }

    #[test]
    fn what_is_no_cluster_is_refused_in_words() {
        for (from, to, says) in [
            ("number = 2", "number = 1", "one number"),
            ("[server]", "[coordinator]\ndata = \"c\"\n[server]", "either an address"),
            ("[server]", "[coordinator]\n[server]", "either an address"),
            ("10.0.0.3", "10.0.0.2", "one address"),
            ("10.0.0.3:4791", "0.0.0.0:4791", "no address"),
            ("10.0.0.3:4791", "10.0.0.3:0", "no address"),
            ("volume = \"main\"", "volume = \"a/b\"", "no name"),
            ("volume = \"main\"", "volume = \"a\"\nmtu = 100", "mtu"),
            ("volume = \"main\"", "volume = \"a\"\nlayout = \"wide\"", "strip=64K"),
            (
                "volume = \"main\"",
                "volume = \"a\"\nlayout = \"strategy=ring,k=9\"",
                "asks for 9 nodes",
            ),
            (
                "volume = \"main\"",
                "volume = \"a\"\nlayout = \"strategy=parity,k=2,m=1\"",
                "asks for 3 nodes",
            ),
            ("volume = \"main\"", "volume = \"a\"\ntrust = \"nobody\"", "sealed"),
            ("volume = \"main\"", "volum = \"main\"", "volum"),
            ("data = \"node.2\"", "data = \"x\"\ncapacity = \"much\"", "much"),
            ("data = \"node.2\"", "data = \"x\"\nscrub = \"fast\"", "fast"),
            ("data = \"meta\"", &standby("", 2, "10.0.0.9"), "rados://"),
            ("data = \"meta\"", &standby("store = \"rados://p\"\n", 1, "10.0.0.9"), "from 2 to 8"),
            ("data = \"meta\"", &standby("store = \"rados://p\"\n", 2, "10.0.0.1"), "one address"),
        ] {
            let message = read(&WHOLE.replace(from, to)).unwrap_err();
            assert!(message.contains(says) && message.contains("etc/cluster.toml"), "{message}");
        }
        let whole = read(WHOLE).unwrap();
        let message = whole.node(None).unwrap_err().to_string();
        assert!(message.contains("--number") && message.contains("1, 2"), "{message}");
    }

    /// The sample names every key there is, and is one that works.
    #[test]
    fn the_sample_names_every_key() {
        let sample = include_str!("../../../../../etc/cluster.toml");
        let sample = sample.replace("\n#", "\n").replace("\n ", "\n# ");
        let read = read(&sample).unwrap();
        let whole = Description { packed: true, netns: true, hosts: 1, ..read };
        let table = toml::Table::try_from(&whole).unwrap();
        let named: toml::Table = sample.parse().unwrap();
        let keys = |table: &toml::Table| table.keys().cloned().collect::<Vec<_>>();
        let of_up = ["packed", "netns", "hosts"];
        for key in keys(&table).iter().filter(|key| !of_up.contains(&key.as_str())) {
            assert!(named.contains_key(key), "{key} is not in etc/cluster.toml");
        }
        let other = ("address = \"10.0.0.9:4791\"\ndata = \"coordinator\"", "zookeeper = \"");
        assert!(sample.contains(other.0) && sample.contains(other.1));
        assert_eq!(
            keys(named["server"].as_table().unwrap()),
            ["address", "data", "heal-after", "memory", "standby", "store"]
        );
        let standby = named["server"]["standby"][0].as_table().unwrap();
        assert_eq!(keys(standby), ["address", "data", "number"]);
        let node = named["nodes"][0].as_table().unwrap();
        assert_eq!(keys(node), ["address", "capacity", "data", "number", "scrub"]);
    }
}
