//! Benchmarks, and the rivals they run against.
//!
//! Figures are measured, with the rivals in turn in the same run, and reported as medians and
//! ratios with the CPU time of every process apart. Nothing here is a test: no figure fails a
//! build.

#![forbid(unsafe_code)]
#![expect(
    clippy::cast_precision_loss,
    reason = "counts become rates; a double holds 2^53 of them exactly"
)]

pub mod cpu;
pub mod fs;
pub mod link;
pub mod passthrough;
pub mod scale;
pub mod stats;
pub mod workload;
