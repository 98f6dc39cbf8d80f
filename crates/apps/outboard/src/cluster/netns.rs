//! Parts of a cluster in network namespaces of their own, on one bridge: their cables can be cut,
//! or what goes between two of them. So can those of hosts, which are namespaces for mounts.
//!
//! ```text
//! bridge obXXXXXX 10.B.C.254/24 ── obXXXXXXm  ── eth0 of outboard-XXXXXX-meta, 10.B.C.1
//!                               ├─ obXXXXXX1  ── eth0 of outboard-XXXXXX-node.1, 10.B.C.11
//!                               └─ obXXXXXXh1 ── eth0 of outboard-XXXXXX-host.1, 10.B.C.101
//! ```
//!
//! XXXXXX, B and C are of the cluster's directory, so that several stand side by side. It takes
//! root and the program `ip`.

use std::net::Ipv4Addr;
use std::path::Path;
use std::process::Command;

use super::description::{Description, Role};
use super::process::done;
use crate::exit::Failure;

/// Bytes of a frame on the bridge.
pub(crate) const MTU: usize = 9000;

fn hash(dir: &Path) -> u32 {
    outboard_codec::crc32c(dir.as_os_str().as_encoded_bytes()) & 0x00FF_FFFF
}

fn bridge(dir: &Path) -> String {
    format!("ob{:06x}", hash(dir))
}

/// Who has a namespace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    /// A process of the cluster.
    Part(Role),
    /// A host, by its number.
    Host(u16),
}

impl std::fmt::Display for Place {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Place::Part(role) => role.fmt(f),
            Place::Host(number) => write!(f, "host.{number}"),
        }
    }
}

/// All that have one in a cluster.
pub(crate) fn places(cluster: &Description) -> Vec<Place> {
    let parts = cluster.processes().into_iter().map(Place::Part);
    parts.chain((1..=cluster.hosts).map(Place::Host)).collect()
}

/// The namespace of a place.
pub(crate) fn space(dir: &Path, place: Place) -> String {
    format!("outboard-{:06x}-{place}", hash(dir))
}

/// The cable's end at the bridge.
fn cable(dir: &Path, place: Place) -> String {
    let bridge = bridge(dir);
    match place {
        Place::Part(Role::Node(number)) => format!("{bridge}{number}"),
        Place::Part(Role::META | Role::Packed) => format!("{bridge}m"),
        Place::Part(Role::Meta(number)) => format!("{bridge}m{number}"),
        Place::Part(Role::Coordinator) => format!("{bridge}c"),
        Place::Host(number) => format!("{bridge}h{number}"),
    }
}

fn at(dir: &Path, last: u16) -> Ipv4Addr {
    let [_, _, b, c] = hash(dir).to_be_bytes();
    Ipv4Addr::new(10, 64 + b % 64, c, u8::try_from(last).unwrap_or(253))
}

/// The address of a place.
pub(crate) fn address(dir: &Path, place: Place) -> Ipv4Addr {
    match place {
        Place::Part(Role::Node(number)) => at(dir, 10 + number),
        Place::Part(Role::META | Role::Packed) => at(dir, 1),
        Place::Part(Role::Coordinator) => at(dir, 2),
        Place::Part(Role::Meta(number)) => at(dir, 1 + number),
        Place::Host(number) => at(dir, 100 + number),
    }
}

fn ip(arguments: &[&str]) -> Result<(), String> {
    done(Command::new("ip").args(arguments))
}

fn failed(what: String) -> Failure {
    Failure::internal(format!(
        "cannot make network namespaces, which needs root and the programs `ip` and `nsenter`: \
         {what}; leave out --netns to have all parts on the loopback"
    ))
}

/// The same program in the namespace of a part. Not by `ip netns exec`: that gives it a mount
/// namespace too, in which all that is mounted then stays mounted until the part ends.
pub(crate) fn inside(dir: &Path, role: Role, program: &Command) -> Command {
    let mut command = Command::new("nsenter");
    let space = space(dir, Place::Part(role));
    command.arg(format!("--net=/run/netns/{space}")).arg(program.get_program());
    command
}

/// Namespaces of a cluster; unless they are kept they go when this does.
pub(crate) struct Spaces<'a> {
    dir: &'a Path,
    cluster: &'a Description,
    is_kept: bool,
}

impl Spaces<'_> {
    /// They stay.
    pub(crate) fn keep(mut self) {
        self.is_kept = true;
    }
}

impl Drop for Spaces<'_> {
    fn drop(&mut self) {
        if self.cluster.netns && !self.is_kept {
            // Nodes may have come since.
            let now = Description::of_dir(self.dir);
            remove(self.dir, now.as_ref().unwrap_or(self.cluster));
        }
    }
}

/// Makes what is not there of the bridge, the namespaces and their cables, if the cluster is to
/// have any.
pub(crate) fn make<'a>(dir: &'a Path, cluster: &'a Description) -> Result<Spaces<'a>, Failure> {
    let spaces = Spaces { dir, cluster, is_kept: false };
    if !cluster.netns {
        return Ok(spaces);
    }
    let (bridge, mtu) = (bridge(dir), MTU.to_string());
    let mtu = mtu.as_str();
    if ip(&["link", "show", &bridge]).is_err() {
        let gateway = format!("{}/24", at(dir, 254));
        ip(&["link", "add", &bridge, "type", "bridge"])
            .and_then(|()| ip(&["link", "set", &bridge, "mtu", mtu]))
            .and_then(|()| ip(&["addr", "add", &gateway, "dev", &bridge]))
            .and_then(|()| ip(&["link", "set", &bridge, "up"]))
            .map_err(failed)?;
    }
    for place in places(cluster) {
        let (space, cable) = (space(dir, place), cable(dir, place));
        if ip(&["netns", "exec", &space, "true"]).is_ok() {
            continue;
        }
        let own = format!("{}/24", address(dir, place));
        let in_space = |arguments: &[&str]| {
            let mut all = vec!["-n", &space];
            all.extend(arguments);
            ip(&all)
        };
        let made = ip(&["netns", "add", &space])
            .and_then(|()| {
                let other = ["peer", "name", "eth0", "netns", &space];
                let mut all = vec!["link", "add", &cable, "mtu", mtu, "type", "veth"];
                all.extend(other);
                ip(&all)
            })
            .and_then(|()| ip(&["link", "set", &cable, "master", &bridge]))
            .and_then(|()| ip(&["link", "set", &cable, "up"]))
            .and_then(|()| in_space(&["link", "set", "eth0", "mtu", mtu]))
            .and_then(|()| in_space(&["addr", "add", &own, "dev", "eth0"]))
            .and_then(|()| in_space(&["link", "set", "lo", "up"]))
            .and_then(|()| in_space(&["link", "set", "eth0", "up"]));
        made.map_err(failed)?;
    }
    Ok(spaces)
}

/// Takes all of it away; what is not there is not missed.
pub(crate) fn remove(dir: &Path, cluster: &Description) {
    for place in places(cluster) {
        let _not_there = ip(&["link", "del", &cable(dir, place)]);
        let _not_there = ip(&["netns", "del", &space(dir, place)]);
    }
    let _not_there = ip(&["link", "del", &bridge(dir)]);
}

/// Cuts the cable of a place, or mends it.
pub(crate) fn set_cable(dir: &Path, place: Place, is_up: bool) -> Result<(), Failure> {
    let state = if is_up { "up" } else { "down" };
    ip(&["link", "set", &cable(dir, place), state]).map_err(|what| {
        Failure::internal(format!("cannot set the cable of {place} {state}: {what}"))
    })
}

/// Cuts what goes between two places, or mends it: each takes the other to be at an address of the
/// Ethernet that nobody has. Nobody is told, as on a real network.
pub(crate) fn set_between(dir: &Path, of: [Place; 2], is_up: bool) -> Result<(), Failure> {
    let [one, other] = of;
    for (here, there) in [(one, other), (other, one)] {
        let (space, there) = (space(dir, here), address(dir, there).to_string());
        let nobody = ["lladdr", "02:00:00:00:00:00", "nud", "permanent"];
        let mut all = vec!["-n", &space, "neigh"];
        all.push(if is_up { "del" } else { "replace" });
        all.extend([there.as_str(), "dev", "eth0"]);
        all.extend(nobody.iter().filter(|_| !is_up));
        let done = ip(&all);
        if let (Err(what), false) = (done, is_up) {
            return Err(Failure::internal(format!("cannot cut {one} from {other}: {what}")));
        }
    }
    Ok(())
}
