//! `outboard-bench`: the measurements and their rivals, as `outboard bench` runs them.
//!
//! It is a program of its own so that the product links no rival. It starts `outboard` for what is
//! measured and itself for the rivals' processes.

#![forbid(unsafe_code)]

mod command;

use std::process::ExitCode;
use std::sync::LazyLock;

use clap::Parser;

/// Measure the link or the file system, with its rivals, in one run
#[derive(Parser, Debug)]
#[command(
    name = "outboard-bench",
    bin_name = "outboard bench",
    version = version(),
    arg_required_else_help = true
)]
struct Cli {
    #[command(subcommand)]
    what: command::Bench,
}

/// Version, and the commit it was built from if the build said so.
fn version() -> &'static str {
    static VERSION: LazyLock<String> = LazyLock::new(|| {
        let commit = option_env!("OUTBOARD_COMMIT").unwrap_or("unknown");
        format!("{} (commit {commit})", env!("CARGO_PKG_VERSION"))
    });
    VERSION.as_str()
}

fn main() -> ExitCode {
    command::run(Cli::parse().what).unwrap_or_else(|failure| failure.report())
}
