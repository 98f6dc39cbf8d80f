//! Parts of a cluster in network namespaces of their own, on one bridge: their cables can be cut.
//!
//! ```text
//! bridge obXXXXXX 10.B.C.254/24 ── obXXXXXXm ── eth0 of outboard-XXXXXX-meta, 10.B.C.1
//!                               └─ obXXXXXX1 ── eth0 of outboard-XXXXXX-node.1, 10.B.C.11
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

fn space(dir: &Path, role: Role) -> String {
    format!("outboard-{:06x}-{role}", hash(dir))
}

/// The cable's end at the bridge.
fn cable(dir: &Path, role: Role) -> String {
    match role {
        Role::Node(number) => format!("{}{number}", bridge(dir)),
        Role::Meta | Role::Packed => format!("{}m", bridge(dir)),
    }
}

/// The address of a part, or of the bridge for none.
pub(crate) fn address(dir: &Path, role: Option<Role>) -> Ipv4Addr {
    let [_, _, b, c] = hash(dir).to_be_bytes();
    let last = match role {
        Some(Role::Node(number)) => u8::try_from(10 + number).unwrap_or(253),
        Some(Role::Meta | Role::Packed) => 1,
        None => 254,
    };
    Ipv4Addr::new(10, 64 + b % 64, c, last)
}

fn ip(arguments: &[&str]) -> Result<(), String> {
    done(Command::new("ip").args(arguments))
}

fn failed(what: String) -> Failure {
    Failure::internal(format!(
        "cannot make network namespaces, which needs root and the program `ip`: {what}; leave out \
         --netns to have all parts on the loopback"
    ))
}

/// The same program in the namespace of a part.
pub(crate) fn inside(dir: &Path, role: Role, program: &Command) -> Command {
    let mut command = Command::new("ip");
    command.args(["netns", "exec", &space(dir, role)]).arg(program.get_program());
    command
}

/// Makes what is not there of the bridge, the namespaces and their cables.
pub(crate) fn make(dir: &Path, cluster: &Description) -> Result<(), Failure> {
    let (bridge, mtu) = (bridge(dir), MTU.to_string());
    let mtu = mtu.as_str();
    if ip(&["link", "show", &bridge]).is_err() {
        let gateway = format!("{}/24", address(dir, None));
        ip(&["link", "add", &bridge, "type", "bridge"])
            .and_then(|()| ip(&["link", "set", &bridge, "mtu", mtu]))
            .and_then(|()| ip(&["addr", "add", &gateway, "dev", &bridge]))
            .and_then(|()| ip(&["link", "set", &bridge, "up"]))
            .map_err(failed)?;
    }
    for role in cluster.processes() {
        let (space, cable) = (space(dir, role), cable(dir, role));
        if ip(&["netns", "exec", &space, "true"]).is_ok() {
            continue;
        }
        let own = format!("{}/24", address(dir, Some(role)));
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
    Ok(())
}

/// Takes all of it away; what is not there is not missed.
pub(crate) fn remove(dir: &Path, cluster: &Description) {
    for role in cluster.processes() {
        let _not_there = ip(&["link", "del", &cable(dir, role)]);
        let _not_there = ip(&["netns", "del", &space(dir, role)]);
    }
    let _not_there = ip(&["link", "del", &bridge(dir)]);
}

/// Cuts the cable of a part, or mends it.
pub(crate) fn set_cable(dir: &Path, role: Role, is_up: bool) -> Result<(), Failure> {
    let state = if is_up { "up" } else { "down" };
    ip(&["link", "set", &cable(dir, role), state]).map_err(|what| {
        Failure::internal(format!("cannot set the cable of {role} {state}: {what}"))
    })
}
