//! Clients against a real server and real stores of nodes, in one thread, over a network that
//! loses, delays and cuts.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::cast_possible_truncation,
    reason = "a test may panic"
)]

mod away;
mod caches;
mod coded;
mod durable;
mod fences;
mod host;
mod reference;
mod registers;
mod world;
