//! The suite and the model, through every front that needs no mount.
#![expect(clippy::unwrap_used, clippy::panic, reason = "tests say so when they fail")]

mod engines;
mod fronts;
mod model;
#[path = "../../../../worlds/os/tests/skips/mod.rs"]
mod skips;
