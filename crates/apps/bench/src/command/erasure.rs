//! `outboard bench erasure`.

use std::process::ExitCode;

use clap::Args;
use outboard_bench::erasure::{self, ErasureBench};

use super::{Failure, Scratch, failed, print, progress, time, with_targets};

/// What to measure of the erasure code.
#[derive(Args, Clone, Debug)]
pub(crate) struct ErasureArgs {
    /// Print JSON
    #[arg(long)]
    json: bool,
    /// Seconds of CPU for each measurement
    #[arg(long, default_value_t = 0.2)]
    seconds: f64,
    /// Interleaved rounds; medians are reported
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..))]
    rounds: u32,
    /// Bytes of each unit
    #[arg(long, default_value_t = 4096, value_parser = clap::value_parser!(u32).range(1..=1 << 20))]
    length: u32,
}

/// Measures the erasure code.
pub(crate) fn bench(args: &ErasureArgs) -> Result<ExitCode, Failure> {
    let dir = Scratch::new(None)?;
    let bench = ErasureBench {
        time: time(args.seconds)?,
        rounds: args.rounds,
        length: usize::try_from(args.length).unwrap_or(usize::MAX),
        dir: dir.0.clone(),
    };
    let report = erasure::run(&bench, progress).map_err(failed)?;
    print(args.json, &report, || with_targets(report.table(), &report.verdicts()))
}
