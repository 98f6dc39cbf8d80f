//! Host adaptor and DPU dispatch (DPC 3.1, 3.2; rows C5-C7, C16).
//!
//! - [`host`] turns file operations into nvme-fs commands, keeps what is unanswered across a loss
//!   of the DPU side, and hands answers back.
//! - [`dpu`] takes commands from every attached host, asks the volume, and completes them.
//! - [`loopback`] is both in one thread, stepped by hand.
//!
//! Everything here is pure: the world that runs it (threads, clocks, sleeping) is an argument.

#![forbid(unsafe_code)]

pub mod dpu;
pub mod host;
pub mod loopback;
