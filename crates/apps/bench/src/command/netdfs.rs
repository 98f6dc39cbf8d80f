//! `outboard bench netdfs`: shared volumes.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;
use outboard_bench::netdfs::node::{self, NodePart};
use outboard_bench::netdfs::{self, NetdfsBench, Policy};

use super::{Failure, Scratch, failed, print, program, progress, time, with_targets, write_svg};

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
    /// Also draw latency and goodput by size into this file, as SVG
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
}

/// A node that is measured.
#[derive(Args, Clone, Debug)]
pub(crate) struct NodeArgs {
    /// `raw`, `ticket`, `capability`, `every-packet`, `rpc` or `rpc+rdma`
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
}

/// Measures.
pub(crate) fn bench(args: &NetdfsArgs) -> Result<ExitCode, Failure> {
    let scratch = Scratch::new(args.dir.as_deref())?;
    let bench = NetdfsBench {
        program: program()?,
        dir: scratch.0.clone(),
        time: time(args.seconds.unwrap_or(if args.quick { 0.03 } else { 0.3 }))?,
        rounds: args.rounds.unwrap_or(if args.quick { 1 } else { 3 }),
        is_short: args.quick,
    };
    let report = netdfs::run(&bench, progress).map_err(failed)?;
    write_svg(args.svg.as_deref(), || report.svg())?;
    let text = || with_targets(report.table(), &report.verdicts());
    let code = print(args.json, &report, text)?;
    if args.check {
        report.check().map_err(Failure::Failed)?;
    }
    Ok(code)
}

/// Runs a node until it is ended.
pub(crate) fn node(args: NodeArgs) -> Result<ExitCode, Failure> {
    let NodeArgs { policy, number, key, mtu, looks } = args;
    let policy = Policy::from_name(&policy)
        .ok_or_else(|| Failure::Usage(format!("there is no policy {policy}")))?;
    node::serve(&NodePart { policy, number, key, mtu, looks }).map_err(failed)?;
    Ok(ExitCode::SUCCESS)
}
