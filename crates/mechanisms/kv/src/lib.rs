//! The key-value port, a cache of pairs before it, and file objects on it and a medium.
//!
//! DPC 3.4 stores a file system as key-value pairs and, for big files, as file objects whose index
//! maps discrete blocks into one contiguous space. This crate has both:
//!
//! - [`Kv`] is the key-value port: get, ordered scan, atomic conditional commit, sync.
//!   [`mem::MemKv`] answers it in memory and fails on command, [`Cached`] puts an exact point-get
//!   cache before any other, [`conformance`] is the suite every implementation passes.
//! - [`object::Objects`] is the object store over that port and a medium: file objects of 8 KiB
//!   blocks that are never overwritten in place, checksummed in the file's index, so that a crash
//!   between a block and its checksum costs neither the old nor a synced new block.
//!
//! # What every implementation promises
//!
//! 1. A commit is atomic: all of its writes, or none; its conditions are judged at the same moment.
//! 2. Commits have one order, and a crash keeps a *prefix* of it: never a later commit without the
//!    earlier. The prefix holds everything [`Durability::Durable`] or synced; when only processes
//!    died (kill -9) it holds everything answered.
//! 3. A failed commit is not applied; a commit whose outcome cannot be known poisons the engine, so
//!    that every later commit and sync fails until it is opened again.
//!
//! Work here is `async fn` without a runtime: futures borrow, need not be `Send`, start nothing,
//! and may be dropped at any await.

#![forbid(unsafe_code)]

mod batch;
mod bytes;
mod cached;
pub mod conformance;
mod hash;
pub mod mem;
pub mod object;
mod port;
mod versions;

pub use batch::{Batch, Condition, Durability, Version, Write};
pub use bytes::{Bytes, Key, Value};
pub use cached::{CacheCounts, Cached};
pub use port::{Kv, KvError, Snapshot, Usage};
pub use versions::KeyVersions;
