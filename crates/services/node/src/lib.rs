//! A storage node of shared volumes (NetDFS II to IV): policies enforced on each packet, and a
//! versioned store.
//!
//! [`nic`] runs handlers on packets; [`policy`] is what they enforce; [`Store`] is where bytes
//! rest; a [`Node`] is all of it. No clock, socket or thread is here. `docs/internals/node.md`.

#![forbid(unsafe_code)]

mod figures;
mod heard;
pub mod nic;
mod node;
pub mod policy;
mod relay;
mod serve;
mod store;
mod tending;
mod term;
#[cfg(test)]
mod tests;

pub use node::{Node, NodeOptions, NodeTarget};
#[cfg(any(test, feature = "fuzz"))]
pub use store::fuzz as store_fuzz;
pub use store::{Change, Copies, OpenError, Scrubbed, Store, StoreOptions, Version};
pub use tending::Tending;
