//! Structured logs: one subscriber for the whole process, to standard error.

use std::io::IsTerminal;

use tracing_subscriber::EnvFilter;

use crate::exit::Failure;
use crate::settings::{LogFormat, Settings};

/// Starts logging text with a filter. `OUTBOARD_LOG` overrides it.
pub(crate) fn start_with(filter: &str) -> Result<(), Failure> {
    start_as(filter, LogFormat::Text)
}

/// Starts logging as the settings say. `OUTBOARD_LOG` overrides the filter.
pub(crate) fn start(settings: &Settings) -> Result<(), Failure> {
    start_as(settings.log(), settings.log_format())
}

/// The same for a command whose output is an answer: unless it was asked for, the engine's progress
/// is not logged.
pub(crate) fn start_quietly(settings: &Settings) -> Result<(), Failure> {
    start_as(settings.log.as_deref().unwrap_or("warn,outboard=info"), settings.log_format())
}

/// The client of ZooKeeper warns of each try, many a second while an ensemble is away; that it is
/// a part says by itself. What is asked for comes behind, and counts.
const QUIET: &str = "zookeeper_client=error";

fn start_as(filter: &str, format: LogFormat) -> Result<(), Failure> {
    let filter = std::env::var("OUTBOARD_LOG").unwrap_or_else(|_| filter.to_owned());
    let filter = EnvFilter::try_new(format!("{QUIET},{filter}"))
        .map_err(|error| Failure::usage(format!("--log {filter} is not a log filter: {error}")))?;
    let builder = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .with_ansi(std::io::stderr().is_terminal());
    let started = match format {
        LogFormat::Text => builder.with_target(false).try_init(),
        LogFormat::Json => builder.json().try_init(),
    };
    started.map_err(|error| Failure::internal(format!("cannot start logging: {error}")))
}
