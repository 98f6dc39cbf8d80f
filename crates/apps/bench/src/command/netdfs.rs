//! `outboard bench netdfs`: shared volumes.

use std::net::{Ipv4Addr, SocketAddrV4};
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use clap::Args;
use outboard_bench::netdfs::node::{self, NodePart};
use outboard_bench::netdfs::replicas::{self, Wanted};
use outboard_bench::netdfs::{self, NetdfsBench, Policy, rival};
use outboard_wire::shared::Strategy;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

use super::{
    Failure, STOPPED, Scratch, failed, print, program, progress, time, with_targets, write_svg,
};

/// What to measure of shared volumes.
#[derive(Args, Clone, Debug)]
pub(crate) struct NetdfsArgs {
    /// Print JSON
    #[arg(long)]
    json: bool,
    /// At fewer sizes, one cluster, and shorter: for a look
    #[arg(long)]
    quick: bool,
    /// Fail unless a direct write is one request to a node, and none to the server
    #[arg(long)]
    check: bool,
    /// Directory for the data of clusters; without it one in the temporary directory
    #[arg(long)]
    dir: Option<PathBuf>,
    /// Seconds for each measurement [default: 0.3, with --quick 0.03]
    #[arg(long)]
    seconds: Option<f64>,
    /// Interleaved rounds; medians are reported [default: 3, with --quick 1]
    #[arg(long)]
    rounds: Option<u32>,
    /// Bytes of a frame between a client and nodes: of clusters on the loopback, unless said
    #[arg(long, value_name = "BYTES", default_value_t = 65_535)]
    #[arg(value_parser = clap::value_parser!(u16).range(1280..))]
    frame: u16,
    /// Only writes to so many nodes each, 1 to 8: by handlers, CPU sides, NICs that were told, and
    /// the client
    #[arg(long, value_name = "K,..", value_delimiter = ',')]
    replicas: Vec<u16>,
    /// Only stripes over so many nodes each, 10 at most: by handlers as packets come or of whole
    /// chunks, by CPU sides, and by the client
    #[arg(long, value_name = "K+M,..", value_delimiter = ',', value_parser = stripe)]
    stripes: Vec<(u16, u16)>,
    /// With --replicas, how nodes pass writes on; both without it
    #[arg(long, requires = "replicas")]
    strategy: Option<Spread>,
    /// Only writes to a mounted volume with three copies, beside this one with as many
    #[arg(long, conflicts_with_all = ["replicas", "stripes", "check", "svg", "frame"])]
    rival: Option<Rival>,
    /// Also draw latency and goodput by size into this file, as SVG
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
}

/// Another distributed file system.
#[derive(clap::ValueEnum, Clone, Copy, Debug)]
enum Rival {
    /// GlusterFS from Debian, replica 3: `scripts/gluster install`
    Gluster,
    /// CephFS from Debian, pools of size 3: `scripts/setup bench`
    Cephfs,
}

/// How nodes pass writes on.
#[derive(clap::ValueEnum, Clone, Copy, Debug)]
enum Spread {
    /// Each to the next.
    Ring,
    /// Each to two.
    Tree,
}

/// Data units and parities.
fn stripe(text: &str) -> Result<(u16, u16), String> {
    let numbers = text.split_once('+').and_then(|(k, m)| Some((k.parse().ok()?, m.parse().ok()?)));
    numbers.ok_or_else(|| format!("a stripe is K+M, as 3+2, not {text}"))
}

/// A node that is measured.
#[derive(Args, Clone, Debug)]
pub(crate) struct NodeArgs {
    /// `raw`, `ticket`, `capability`, `every-packet`, `rpc`, `rpc+rdma`, `steered`, `hyperloop` or
    /// `inec`
    policy: String,
    /// Its number
    #[arg(long)]
    number: u16,
    /// The file of the cluster's key
    #[arg(long)]
    key: PathBuf,
    /// Bytes of a frame
    #[arg(long)]
    mtu: usize,
    /// Count descriptors in use
    #[arg(long)]
    looks: bool,
    /// Where it is
    #[arg(long, default_value_t = SocketAddrV4::new(Ipv4Addr::LOCALHOST, 0))]
    at: SocketAddrV4,
    /// Another node, to which it passes writes on: NUMBER=ADDRESS:PORT
    #[arg(long)]
    peer: Vec<String>,
}

/// Measures.
pub(crate) fn bench(args: &NetdfsArgs) -> Result<ExitCode, Failure> {
    let scratch = Scratch::new(args.dir.as_deref())?;
    let bench = NetdfsBench {
        program: program()?,
        dir: scratch.0.clone(),
        time: time(args.seconds.unwrap_or(if args.quick { 0.03 } else { 0.3 }))?,
        rounds: args.rounds.unwrap_or(if args.quick { 1 } else { 3 }),
        frame: args.frame.into(),
        is_short: args.quick,
    };
    if let Some(one) = args.rival {
        return beside(one, args.json, &bench);
    }
    if !args.replicas.is_empty() || !args.stripes.is_empty() {
        let strategy = args.strategy.map(|spread| match spread {
            Spread::Ring => Strategy::Ring,
            Spread::Tree => Strategy::BinaryTree,
        });
        let (copies, stripes) = (args.replicas.clone(), args.stripes.clone());
        let wanted = Wanted { copies, stripes, strategy };
        let found = replicas::run(&bench, &wanted, progress).map_err(failed)?;
        return print(args.json, &found, || found.table());
    }
    let report = netdfs::run(&bench, progress).map_err(failed)?;
    write_svg(args.svg.as_deref(), || report.svg())?;
    let text = || with_targets(report.table(), &report.verdicts());
    let code = print(args.json, &report, text)?;
    if args.check {
        report.check().map_err(Failure::Failed)?;
    }
    Ok(code)
}

fn beside(one: Rival, json: bool, bench: &NetdfsBench) -> Result<ExitCode, Failure> {
    let one = match one {
        Rival::Gluster => &rival::GLUSTER,
        Rival::Cephfs => &rival::CEPHFS,
    };
    let stop = Arc::<AtomicBool>::default();
    for signal in [SIGINT, SIGTERM, SIGHUP] {
        signal_hook::flag::register(signal, Arc::clone(&stop)).map_err(failed)?;
    }
    match rival::run(bench, one, &stop, progress) {
        // What fails then is of the signal, which others heard, too.
        Err(_) if stop.load(Ordering::Relaxed) => {
            eprintln!("outboard: stopped before its end");
            Ok(ExitCode::from(STOPPED))
        }
        Err(error) => Err(failed(error)),
        Ok(found) => print(json, &found, || with_targets(found.table(), &found.verdicts())),
    }
}

/// Runs a node until it is ended.
pub(crate) fn node(args: NodeArgs) -> Result<ExitCode, Failure> {
    let NodeArgs { policy, number, key, mtu, looks, at, peer } = args;
    let policy = Policy::from_name(&policy)
        .ok_or_else(|| Failure::Usage(format!("there is no policy {policy}")))?;
    let peers = peer.iter().map(|one| {
        let (number, at) = one.split_once('=')?;
        Some((number.parse().ok()?, at.parse().ok()?))
    });
    let peers = peers.collect::<Option<Vec<_>>>();
    let peers = peers.ok_or_else(|| Failure::Usage("a peer is NUMBER=ADDRESS:PORT".into()))?;
    node::serve(&NodePart { policy, number, key, mtu, looks, at, peers }).map_err(failed)?;
    Ok(ExitCode::SUCCESS)
}
