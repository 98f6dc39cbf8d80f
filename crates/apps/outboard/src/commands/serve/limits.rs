//! What clients may take of a server, as flags.

use std::time::Duration;

use clap::Args;
use clap::builder::RangedU64ValueParser;
use outboard_pageserver::tcp::worker::Limits;

use crate::exit::Failure;
use crate::settings::bytes;

/// What clients may take.
#[derive(Args, Clone, Debug)]
pub(crate) struct LimitArgs {
    /// Clients at a time, fewer if `ulimit -n` allows fewer; one more is refused
    #[arg(long, value_name = "N", default_value_t = 10_000, value_parser = clients())]
    max_clients: usize,
    /// Seconds after which a client that gets nothing done is let go; 0 for never
    #[arg(long, value_name = "SECONDS", default_value_t = 0, value_parser = seconds())]
    idle_timeout: u64,
    /// Memory for requests and answers of all clients, with K, M or G, at host and DPU side each;
    /// who finds none waits, or is the host's
    #[arg(long, value_name = "BYTES", default_value = "64M")]
    client_memory: String,
}

/// Less than one read takes helps nobody.
const MEMORY_MIN: u64 = 1 << 20;

fn clients() -> RangedU64ValueParser<usize> {
    RangedU64ValueParser::new().range(1..=1 << 20)
}

/// A year at most.
fn seconds() -> RangedU64ValueParser<u64> {
    RangedU64ValueParser::new().range(0..=365 * 24 * 3600)
}

impl LimitArgs {
    /// Of who accepts the clients.
    pub(super) fn limits(&self) -> Result<Limits, Failure> {
        let memory = bytes("client-memory", &self.client_memory)?;
        if memory < MEMORY_MIN {
            let text = format!("--client-memory {} is too little; take 1M", self.client_memory);
            return Err(Failure::usage(text));
        }
        let timeout = Duration::from_secs(self.idle_timeout);
        Ok(Limits {
            max_clients: self.max_clients,
            idle_timeout: Some(timeout).filter(|timeout| !timeout.is_zero()),
            memory: usize::try_from(memory).unwrap_or(usize::MAX),
        })
    }

    /// The same for a process.
    pub(super) fn to_flags(&self) -> [String; 3] {
        [
            format!("--max-clients={}", self.max_clients),
            format!("--idle-timeout={}", self.idle_timeout),
            format!("--client-memory={}", self.client_memory),
        ]
    }
}
