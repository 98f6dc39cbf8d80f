//! The server from outside: calls in, replies out, over a volume in memory, nodes that are a map,
//! and clients whose every step a test chooses.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::cast_possible_truncation,
    reason = "a test may panic"
)]

mod bytes;
mod client;
mod directed;
mod files;
mod lives;
mod node;
mod nodes;
mod power;
mod telling;
mod users;
mod walk;
mod world;
