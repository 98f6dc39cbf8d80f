//! The link from outside: what every transport must do, and what nvme-fs and virtio-fs do
//! beyond that.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::cast_possible_truncation,
    reason = "a test may panic"
)]

mod conformance;
mod delete;
mod dma_count;
mod hostile;
mod loss;
mod rig;
mod rings;
mod simulation;
mod threads;
mod virtio_count;
mod virtio_hostile;
mod virtio_life;
