//! `bench netdfs`: shared volumes, after NetDFS IV and its Table I.
//!
//! * [`node`]: a storage node as a process of its own, with a policy: requests checked by handlers
//!   (in each threat model), by the CPU side before or after their data landed, or by nobody;
//! * [`load`]: who asks it, over loopback UDP: latency with one request under way, goodput with
//!   eight, by size, all policies in turn;
//! * [`handlers`]: the time of each handler, and the descriptors in use;
//! * [`volume`]: the whole way, 8 KiB direct writes on a mounted volume of a cluster;
//! * [`replicas`]: writes to several nodes, by each of the `protocols` that spread them;
//! * [`rival`]: a mounted volume with three copies beside GlusterFS or CephFS;
//! * [`report`]: the figures, and how the targets stand.

pub mod handlers;
pub mod load;
pub mod node;
mod protocols;
pub mod replicas;
pub mod report;
pub mod rival;
pub mod volume;

use std::io;
use std::path::PathBuf;
use std::time::Duration;

use outboard_node::NodeOptions;
use outboard_node::policy::{Baseline, Steer, Threat};
use serde::Serialize;

use report::Report;

/// How it is measured.
#[derive(Clone, Debug)]
pub struct NetdfsBench {
    /// The program whose clusters and mounts are measured.
    pub program: PathBuf,
    /// Where their data lies.
    pub dir: PathBuf,
    /// Length of each measurement.
    pub time: Duration,
    /// Interleaved rounds.
    pub rounds: u32,
    /// Bytes of a frame between clients and nodes that are processes of their own.
    pub frame: usize,
    /// Few sizes, and one cluster: for a look.
    pub is_short: bool,
}

/// What a node does with requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Policy {
    /// It checks nothing.
    Raw,
    /// Handlers look at all but MACs.
    Ticket,
    /// Handlers look at the MAC of each capability.
    Capability,
    /// That, and each packet has a MAC.
    EveryPacket,
    /// The CPU side gets whole messages, checks them, copies them out of their buffer, and stores.
    Rpc,
    /// Data lands where the store takes it from; the CPU side checks before it does.
    RpcRdma,
    /// All requests are steered to the CPU side, which checks them as handlers would.
    Steered,
    /// Handlers pass whole writes on as clients have prepared.
    HyperLoop,
    /// Handlers multiply units when they are whole.
    Inec,
}

impl Policy {
    /// Those that a node of its own is measured under, in the order of tables.
    pub const ALL: [Policy; 6] = [
        Policy::Raw,
        Policy::Ticket,
        Policy::Capability,
        Policy::EveryPacket,
        Policy::Rpc,
        Policy::RpcRdma,
    ];

    /// How tables and command lines say it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Policy::Raw => "raw",
            Policy::Ticket => "ticket",
            Policy::Capability => "capability",
            Policy::EveryPacket => "every-packet",
            Policy::Rpc => "rpc",
            Policy::RpcRdma => "rpc+rdma",
            Policy::Steered => "steered",
            Policy::HyperLoop => "hyperloop",
            Policy::Inec => "inec",
        }
    }

    /// By its name.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Policy> {
        let more = [Policy::Steered, Policy::HyperLoop, Policy::Inec];
        Policy::ALL.into_iter().chain(more).find(|policy| policy.name() == name)
    }

    /// Whether packets carry MACs.
    fn seals(self) -> bool {
        self == Policy::EveryPacket
    }

    /// What makes a node have it.
    fn options(self, node: u16) -> NodeOptions {
        let (threat, baseline) = match self {
            Policy::Raw => (Threat::Ticket, Some(Baseline::Raw)),
            Policy::Ticket => (Threat::Ticket, None),
            Policy::Capability | Policy::Steered => (Threat::Signed, None),
            Policy::EveryPacket => (Threat::EveryPacket, None),
            Policy::Rpc => (Threat::Signed, Some(Baseline::Rpc)),
            Policy::RpcRdma => (Threat::Signed, Some(Baseline::RpcRdma)),
            Policy::HyperLoop => (Threat::Ticket, Some(Baseline::HyperLoop)),
            Policy::Inec => (Threat::Ticket, Some(Baseline::Inec)),
        };
        let volume = Some(load::VOLUME);
        NodeOptions {
            node,
            volume,
            threat,
            baseline,
            steer: if self == Policy::Steered { Steer::Always } else { Steer::Never },
            ..NodeOptions::default()
        }
    }
}

/// Measures; `progress` is told what comes next.
///
/// # Errors
/// A node, a cluster or a mount that does not start, or answers wrongly.
pub fn run(bench: &NetdfsBench, mut progress: impl FnMut(&str)) -> io::Result<Report> {
    std::fs::create_dir_all(&bench.dir)?;
    let points = load::points(bench, &mut progress)?;
    progress("handlers, and descriptors in use");
    let costs = handlers::run(bench)?;
    let volumes = volume::run(bench, &mut progress)?;
    Ok(Report::new(bench, points, costs, volumes))
}
