//! `outboard bench apps`.

use std::io;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use clap::Args;
use outboard_bench::fs::apps::{self, AppsBench, Size};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

use super::{
    Failure, STOPPED, Scratch, failed, print, program, progress, time, with_targets, write_svg,
};

/// What to measure of applications.
#[derive(Args, Clone, Debug)]
pub(crate) struct AppsArgs {
    /// Print JSON
    #[arg(long)]
    json: bool,
    /// Small files, few of them, and one round: a look at whether all works
    #[arg(long)]
    quick: bool,
    /// Seconds for each measurement that has no end of its own: sqlite3 [default: 2, with --quick
    /// 0.2]
    #[arg(long)]
    seconds: Option<f64>,
    /// Interleaved rounds; medians are reported [default: 3, with --quick 1]
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..))]
    rounds: Option<u32>,
    /// Directory for the data of all file systems [default: a temporary one]
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
    /// Only the loads whose name contains this
    #[arg(long, value_name = "LOAD")]
    only: Option<String>,
    /// Also draw it to this file, as SVG
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
}

/// Measures applications.
pub(crate) fn bench(args: AppsArgs) -> Result<ExitCode, Failure> {
    let stop = Arc::<AtomicBool>::default();
    for signal in [SIGINT, SIGTERM, SIGHUP] {
        signal_hook::flag::register(signal, Arc::clone(&stop)).map_err(failed)?;
    }
    let (size, seconds, rounds) =
        if args.quick { (Size::QUICK, 0.2, 1) } else { (Size::FULL, 2.0, 3) };
    let dir = Scratch::new(args.dir.as_deref())?;
    let bench = AppsBench {
        dir: dir.0.clone(),
        time: time(args.seconds.unwrap_or(seconds))?,
        rounds: args.rounds.unwrap_or(rounds),
        only: args.only,
        size,
        program: program()?,
        stop,
    };
    let report = match apps::run(&bench, progress) {
        Err(error) if error.kind() == io::ErrorKind::Interrupted => {
            eprintln!("outboard: stopped before its end");
            return Ok(ExitCode::from(STOPPED));
        }
        report => report.map_err(failed)?,
    };
    write_svg(args.svg.as_deref(), || report.svg())?;
    print(args.json, &report, || with_targets(report.table(), &report.verdicts()))
}
