//! The hybrid cache (DPC 3.3; rows C8 to C16): pages of file data in host memory, managed by the
//! DPU side.
//!
//! * [`geometry`]: what lies where in a cache of so many bytes;
//! * [`host`]: the data plane. It finds, locks, copies and unlocks, and never decides what to keep;
//! * [`dpu`]: the control plane. It flushes, fills, grants and replaces, by DMA and atomics alone;
//! * [`coherence`]: who may cache which file. It grants, recalls and flushes, before any volume;
//! * [`policy`]: what the control plane keeps, fetches and flushes: catalogues of algorithms.
//!
//! The bytes are `outboard_wire::cache`; the protocol is drawn in `docs/internals/cache.md`.
//! Nothing here owns a clock, thread, socket or file.

#![forbid(unsafe_code)]
#![allow(unexpected_cfgs, reason = "`--cfg loom` is set by hand, for tests/loom.rs")]

pub mod coherence;
pub mod dpu;
pub mod geometry;
pub mod host;
pub mod policy;
mod sync;
