//! `outboard bench dfs`.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, ValueEnum};
use outboard_bench::dfs::{self, Figure9};

use super::{
    Failure, Scratch, ascending, failed, print, program, progress, time, with_targets, write_svg,
};

/// The most threads of a measurement.
const THREADS_MAX: usize = 256;

/// Which figure.
#[derive(Clone, Copy, Debug, ValueEnum)]
enum Figure {
    /// Its first half: standard, host and dpu clients, by threads
    #[value(name = "9")]
    Nine,
}

/// What to measure of clients of a shared volume.
#[derive(Args, Clone, Debug)]
pub(crate) struct DfsArgs {
    /// Print JSON
    #[arg(long)]
    json: bool,
    /// The figure of the DPC paper
    #[arg(long, value_name = "NAME", default_value = "9")]
    figure: Figure,
    /// Seconds for each measurement
    #[arg(long, default_value_t = 0.5)]
    seconds: f64,
    /// Interleaved rounds; medians are reported
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..))]
    rounds: u32,
    /// Numbers of threads
    #[arg(long, value_delimiter = ',', default_values_t = [1, 2, 4, 8, 16, 32])]
    threads: Vec<usize>,
    /// Size of each client's file, MiB
    #[arg(long, value_name = "MIB", default_value_t = 128,
          value_parser = clap::value_parser!(u64).range(8..=65_536))]
    file_size: u64,
    /// Storage nodes of the cluster
    #[arg(long, value_name = "N", default_value_t = 2,
          value_parser = clap::value_parser!(u16).range(1..=16))]
    nodes: u16,
    /// What host and dpu clients do without, to see what they gain by it: view (where a file lies
    /// is asked for each time), delegations (given back each time)
    #[arg(long, value_name = "LIST", value_parser = ["view", "delegations", "view,delegations"])]
    without: Option<String>,
    /// Directory for cluster and mounts [default: a temporary one]
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
    /// Also draw it to this file, as SVG
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
    /// Fail when the CPU time of all parts does not add up to what was not idle
    #[arg(long)]
    check: bool,
}

/// Measures the figure.
pub(crate) fn bench(args: &DfsArgs) -> Result<ExitCode, Failure> {
    let dir = Scratch::new(args.dir.as_deref())?;
    let figure = Figure9 {
        dir: dir.0.clone(),
        time: time(args.seconds)?,
        rounds: args.rounds,
        threads: ascending(args.threads.clone(), THREADS_MAX)?,
        file_len: args.file_size << 20,
        nodes: args.nodes,
        without: args.without.clone(),
        program: program()?,
    };
    let report = match args.figure {
        Figure::Nine => dfs::run(&figure, progress).map_err(failed)?,
    };
    write_svg(args.svg.as_deref(), || report.svg())?;
    let text = || with_targets(report.table(), &report.verdicts());
    let code = print(args.json, &report, text)?;
    if args.check {
        report.check().map_err(Failure::Failed)?;
    }
    Ok(code)
}
