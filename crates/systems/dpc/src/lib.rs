//! Host adaptor and DPU dispatch (DPC 3.1, 3.2; rows C5-C7, C16).
//!
//! - [`host`] turns file operations into nvme-fs commands, keeps what is unanswered across a loss
//!   of the DPU side, and hands answers back.
//! - [`dpu`] takes commands from every attached host, asks the volume, and completes them.
//!
//! Everything here is pure: the world that runs it (threads, clocks, sleeping) is an argument. Both
//! sides in one thread, stepped by hand, are `outboard_sim::loopback`.

#![forbid(unsafe_code)]

pub mod dpu;
pub mod host;
