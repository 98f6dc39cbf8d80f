//! The formats from outside: every value travels and returns, bytes stand where they are drawn.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on says so by panicking")]

mod analysed;
mod any_request;
mod file_golden;
mod file_refusals;
mod file_round_trip;
#[path = "../../../../worlds/os/tests/skips/mod.rs"]
mod skips;
