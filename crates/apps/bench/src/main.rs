//! `outboard-bench`: the measurements and their rivals, as `outboard bench` runs them.
//!
//! It is a program of its own so that the product links no rival. It starts `outboard` for what is
//! measured and itself for the rivals' processes.

#![forbid(unsafe_code)]

mod command;

use std::process::ExitCode;

use clap::Parser;

/// Measure the link or the file system, with its rivals, in one run
#[derive(Parser, Debug)]
#[command(name = "outboard-bench", bin_name = "outboard bench", arg_required_else_help = true)]
struct Cli {
    #[command(subcommand)]
    what: command::Bench,
}

fn main() -> ExitCode {
    command::run(Cli::parse().what).unwrap_or_else(|failure| failure.report())
}
