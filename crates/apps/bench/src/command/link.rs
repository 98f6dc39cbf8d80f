//! `outboard bench link`.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;
use outboard_bench::link::{self, device, figure6};

use super::{
    Failure, Scratch, ascending, failed, print, program, progress, time, with_targets, write_svg,
};

/// What to measure of the link.
#[derive(Args, Clone, Debug)]
pub(crate) struct LinkArgs {
    /// Print JSON
    #[arg(long)]
    json: bool,
    /// Seconds for each measurement
    #[arg(long, default_value_t = 1.0)]
    seconds: f64,
    /// Interleaved rounds; medians are reported
    #[arg(long, default_value_t = 5)]
    rounds: u32,
    /// Measure a figure of the DPC paper instead: 6, nvme-fs against virtio-fs by threads
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u8).range(6..=6))]
    figure: Option<u8>,
    /// With --figure: the time a DMA takes, as on a named bus
    #[arg(long, default_value = "none", requires = "figure",
          value_parser = ["none", "pcie3x16", "pcie4x16"])]
    price: String,
    /// With --figure: numbers of threads
    #[arg(long, value_delimiter = ',', requires = "figure",
          default_values_t = [1, 2, 4, 8, 16, 32, 64, 128])]
    threads: Vec<usize>,
    /// With --figure: also write it to this file, as SVG
    #[arg(long, value_name = "FILE", requires = "figure")]
    svg: Option<PathBuf>,
}

/// A device of `link --figure 6`.
#[derive(Args, Clone, Debug)]
pub(crate) struct DeviceArgs {
    /// `nvme-fs`, `virtio-fs` or `virtio-fs-mq`
    system: String,
    /// Queues
    queues: u16,
    /// Entries of each
    depth: u16,
    /// Bytes of each operation
    io: u32,
    /// Threads
    workers: usize,
    /// What the bus charges
    price: String,
}

/// Measures the link, or the figure that was asked for.
pub(crate) fn bench(args: LinkArgs) -> Result<ExitCode, Failure> {
    if args.figure.is_some() {
        return figure(args);
    }
    let dir = Scratch::new(None)?;
    let bench = link::LinkBench {
        time: time(args.seconds)?,
        rounds: args.rounds,
        program: program()?,
        dir: dir.0.clone(),
    };
    let report = link::run(&bench, progress).map_err(failed)?;
    print(args.json, &report, || with_targets(report.table(), &report.verdicts()))
}

fn figure(args: LinkArgs) -> Result<ExitCode, Failure> {
    let figure = figure6::Figure6 {
        time: time(args.seconds)?,
        rounds: args.rounds,
        threads: ascending(args.threads, figure6::THREADS_MAX)?,
        price: price_of(&args.price)?,
    };
    let report = figure6::run(&figure, progress).map_err(failed)?;
    write_svg(args.svg.as_deref(), || report.svg())?;
    print(args.json, &report, || report.table())
}

/// Is the device of the figure until the host side is gone.
pub(crate) fn device(args: &DeviceArgs) -> Result<ExitCode, Failure> {
    let system = device::System::from_name(&args.system)
        .ok_or_else(|| Failure::Usage(format!("there is no transport {}", args.system)))?;
    let price = price_of(&args.price)?;
    let DeviceArgs { queues, depth, io, workers, .. } = *args;
    let shape = device::Shape { system, queues, depth, io, workers, price };
    device::serve(&shape).map_err(failed)?;
    Ok(ExitCode::SUCCESS)
}

fn price_of(name: &str) -> Result<device::NamedPrice, Failure> {
    device::NamedPrice::from_name(name)
        .ok_or_else(|| Failure::Usage(format!("there is no price {name}")))
}
