//! `outboard bench fs`, `rados` and `compress`.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::Args;
use outboard_bench::fs::figure::{self, Figure, FsFigure};
use outboard_bench::fs::{self, compress, engine};
use outboard_bench::link::figure6::THREADS_MAX;

use super::{
    Failure, Scratch, ascending, failed, print, program, progress, time, with_targets, write_svg,
};

/// What to measure of file systems.
#[derive(Args, Clone, Debug)]
pub(crate) struct FsArgs {
    /// Print JSON
    #[arg(long)]
    json: bool,
    /// Seconds for each measurement [default: 2, with --figure 0.5]
    #[arg(long)]
    seconds: Option<f64>,
    /// Interleaved rounds; medians are reported
    #[arg(long, default_value_t = 3)]
    rounds: u32,
    /// Directory for the data of all file systems [default: a temporary one]
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
    /// Only the measurements whose name contains this
    #[arg(long, value_name = "NAME", conflicts_with = "figure")]
    only: Option<String>,
    /// Measure a volume in this store, too (several times: in each): fjall, redb, or
    /// rados://POOL?conf=PATH with a namespace that is free
    #[arg(long, value_name = "STORE", conflicts_with = "figure")]
    store: Vec<String>,
    /// Fail when the CPU time of all parts does not add up to what was not idle
    #[arg(long, conflicts_with = "figure")]
    check: bool,
    /// Measure a figure of the DPC paper instead: 7, direct by threads; 8, by cache; table2,
    /// sequential
    #[arg(long, value_name = "NAME", value_parser = ["7", "8", "table2"])]
    figure: Option<String>,
    /// With --figure: numbers of threads [default: 1 to 256, for 8: 1,8,32, for table2: 1,32]
    #[arg(long, value_delimiter = ',', requires = "figure")]
    threads: Vec<usize>,
    /// With --figure: size of each system's file, MiB
    #[arg(long, value_name = "MIB", default_value_t = 128, requires = "figure",
          value_parser = clap::value_parser!(u64).range(8..=65_536))]
    file_size: u64,
    /// With --figure: microseconds each read of a volume's data file takes longer, as if it lay
    /// far away; the rivals' do not
    #[arg(long, value_name = "US", default_value_t = 0, requires = "figure",
          value_parser = clap::value_parser!(u32).range(..=1_000_000))]
    read_delay: u32,
    /// With --figure: also write it to this file, as SVG
    #[arg(long, value_name = "FILE", requires = "figure")]
    svg: Option<PathBuf>,
}

/// What to measure of a pool.
#[derive(Args, Clone, Debug)]
pub(crate) struct RadosArgs {
    /// Print JSON
    #[arg(long)]
    json: bool,
    /// Interleaved rounds; medians are reported
    #[arg(long, default_value_t = 5)]
    rounds: u32,
    /// Size of the file, MiB
    #[arg(long = "size", value_name = "MIB", default_value_t = 256,
          value_parser = clap::value_parser!(u64).range(8..=65_536))]
    mebibytes: u64,
    /// Directory for mount points [default: a temporary one]
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
    /// The pool, and a namespace in it that is free
    #[arg(long, value_name = "URL")]
    store: String,
}

/// What to measure of compression.
#[derive(Args, Clone, Debug)]
pub(crate) struct CompressArgs {
    /// Print JSON
    #[arg(long)]
    json: bool,
    /// Interleaved rounds; medians are reported
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..))]
    rounds: u32,
    /// Size of each file, MiB
    #[arg(long = "size", value_name = "MIB", default_value_t = 64,
          value_parser = clap::value_parser!(u64).range(1..=65_536))]
    mebibytes: u64,
    /// Directory for the volumes [default: a temporary one]
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
}

/// Measures file operations, or the figure that was asked for.
pub(crate) fn bench(mut args: FsArgs) -> Result<ExitCode, Failure> {
    if let Some(name) = args.figure.take() {
        return figure(args, &name);
    }
    let dir = Scratch::new(args.dir.as_deref())?;
    let bench = fs::FsBench {
        dir: dir.0.clone(),
        time: time(args.seconds.unwrap_or(2.0))?,
        rounds: args.rounds,
        only: args.only,
        program: program()?,
        stores: args.store,
    };
    let report = fs::run(&bench, progress).map_err(failed)?;
    let text = || with_targets(report.table(), &report.verdicts());
    let code = print(args.json, &report, text)?;
    if args.check {
        report.check().map_err(Failure::Failed)?;
    }
    Ok(code)
}

fn figure(args: FsArgs, name: &str) -> Result<ExitCode, Failure> {
    let figure = Figure::from_name(name)
        .ok_or_else(|| Failure::Usage(format!("there is no figure {name}")))?;
    let threads = if args.threads.is_empty() { figure.threads().to_vec() } else { args.threads };
    let dir = Scratch::new(args.dir.as_deref())?;
    let figure = FsFigure {
        figure,
        dir: dir.0.clone(),
        time: time(args.seconds.unwrap_or(0.5))?,
        rounds: args.rounds,
        threads: ascending(threads, THREADS_MAX)?,
        file_len: args.file_size << 20,
        read_delay: Duration::from_micros(args.read_delay.into()),
        program: program()?,
    };
    let report = figure::run(&figure, progress).map_err(failed)?;
    write_svg(args.svg.as_deref(), || report.svg())?;
    print(args.json, &report, || with_targets(report.table(), &report.verdicts()))
}

/// Measures a volume in a pool against the pool.
pub(crate) fn rados(args: &RadosArgs) -> Result<ExitCode, Failure> {
    let store = args.store.parse();
    let store = store.map_err(|error| Failure::Usage(format!("--store {error}")))?;
    let dir = Scratch::new(args.dir.as_deref())?;
    let bench = engine::EngineBench {
        dir: dir.0.clone(),
        rounds: args.rounds,
        mebibytes: args.mebibytes,
        program: program()?,
        store,
    };
    let report = engine::run(&bench, progress).map_err(failed)?;
    print(args.json, &report, || report.table())
}

/// Measures a volume that compresses against one that does not.
pub(crate) fn compress(args: &CompressArgs) -> Result<ExitCode, Failure> {
    let dir = Scratch::new(args.dir.as_deref())?;
    let bench = compress::CompressBench {
        dir: dir.0.clone(),
        rounds: args.rounds,
        mebibytes: args.mebibytes,
        program: program()?,
    };
    let report = compress::run(&bench, progress).map_err(failed)?;
    print(args.json, &report, || report.table())
}
