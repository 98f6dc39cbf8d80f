//! The rig: a volume started as a user starts it, with `outboard run`, for programs to live on.
//!
//! A [`Volume`] owns a data directory, a mount point and the `outboard run` process between them.
//! It can be stopped cleanly, killed by halves, started again and checked. Everything it waits for
//! has a limit, and dropping it leaves no process and no mount behind.

#![forbid(unsafe_code)]

pub mod attacks;
pub mod clients;
pub mod cluster;
pub mod coherence;
mod command;
pub mod copies;
pub mod crash;
pub mod cut;
pub mod ensemble;
pub mod linear;
pub mod nodes;
pub mod pulse;
mod skips;
pub mod soak;
pub mod standby;
pub mod twins;
mod volume;

pub use command::{Ended, run_limited, wait_until};
pub use skips::note_skip;
pub use volume::{Side, Twin, Volume, program};

/// What a check of the rig or of a program found wrong.
pub type Result<T> = std::result::Result<T, String>;

/// Adds what was being done to an error.
pub fn context<T, E: std::fmt::Display>(
    result: std::result::Result<T, E>,
    doing: impl FnOnce() -> String,
) -> Result<T> {
    result.map_err(|error| format!("{}: {error}", doing()))
}
