//! A key-value volume on an engine that is atomic within one object only.
//!
//! DPC keeps its files in a disaggregated store (DPC 2.3, 3.4, 4.2). Such stores (Ceph RADOS is the
//! one driven here) answer for one object at a time: bytes and an ordered map, changed together
//! under a guard. This crate builds the rest once, for any of them:
//!
//! - [`Pool`] is the port: what such an engine must do, and what it may do to us.
//!   [`mem::MemPool`] does the worst of it; [`conformance`] is the suite every implementation
//!   passes.
//! - [`Claim`] lets one writer in at a time.
//! - [`PooledKv`] is the key-value store: pairs in ranges, each in the map of one object, changed
//!   together through a redo journal.
//! - [`Striped`] is the medium: big files' bytes, over objects of 4 MiB.
//!
//! The words, the bytes and the failure cases are in `docs/internals/pool.md`.

#![forbid(unsafe_code)]

mod claim;
pub mod conformance;
mod head;
mod journal;
pub mod mem;
mod overlay;
mod port;
mod root;
mod stamped;
mod store;
mod striped;

pub use claim::{Claim, ClaimError, Me, Taken, Taking, Terms, Wanted};
pub use port::{Guard, Op, Pool, PoolError, PoolUsage, Scan, Step};
pub use store::{Counts, Options, PooledKv};
pub use striped::Striped;
