//! The page server (DDS, the paper's sections 3 to 9; rows D1-D25): a storage server whose DPU
//! side owns the files and answers reads without waking the host.
//!
//! * [`host`]: the file library an application links: directories, files, notification groups;
//! * [`groups`]: where the rings of an attachment lie;
//! * [`dpu`]: what runs beyond the bus: files on segments, the pump between rings and files, and
//!   what offloads requests of remote clients;
//! * [`memory`]: the bound for what clients hold, and how they share it;
//! * [`wakeups`]: the words by which both say that they sleep;
//! * [`table`]: the cache table, what the DPU side knows about objects in files.
//!
//! The rings between the two are `outboard_link::ring`, their messages `outboard_wire::dds`. As
//! everything below floor 4 this owns no clock, thread, socket or file: `pageserver` does.

#![forbid(unsafe_code)]
#![allow(unexpected_cfgs, reason = "`--cfg loom` is set by hand, for tests/loom.rs")]

pub mod dpu;
pub mod groups;
pub mod host;
pub mod memory;
mod sync;
pub mod table;
pub mod wakeups;
