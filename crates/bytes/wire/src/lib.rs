//! Every byte that crosses the bus, or the network between the nodes of shared volumes, one module
//! a format, each a checked view and a meaning.
//!
//! Decoding never panics and never trusts a length; encoding never writes beyond its buffer.

#![forbid(unsafe_code)]

pub mod attach;
pub mod cache;
mod cursor;
pub mod dds;
pub mod event;
pub mod file;
pub mod fuse;
#[cfg(any(test, feature = "fuzz"))]
pub mod fuzz;
pub mod nvmefs;
pub mod regs;
pub mod roce;
pub mod shared;
pub mod virtio;
