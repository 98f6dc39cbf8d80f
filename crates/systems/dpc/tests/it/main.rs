//! The two sides of a link together, in one thread.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::cast_possible_truncation,
    reason = "a test may panic"
)]

mod delegation;
mod feud;
mod gone_again;
mod hostile;
mod lock_ends;
mod overflow;
mod simulation;
