//! Two sides, whole: host sessions and a DPU side with a volume on disk, each killed under work.
//!
//! The DPU side of these tests is this same program run again: `rig::dpu_process` does nothing
//! unless its directory is named in the environment.

#![forbid(unsafe_code)]
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::cast_possible_truncation,
    reason = "a test may panic"
)]

mod hosts;
mod link;
mod locks;
mod loss;
mod rig;
mod shares;
#[path = "../../../os/tests/skips/mod.rs"]
mod skips;
