//! One suite for every volume and every front-end.
//!
//! File operations are one vocabulary ([`outboard_wire::file`]), so what a file system must do is
//! written down once, as cases over `Request` and `Reply`, and run through each [`Front`]:
//!
//! - **in process**: KVFS over in-memory engines, requests encoded and decoded on the way;
//! - **replay**: the same, every change asked for twice;
//! - **link**: the same behind nvme-fs queue pairs, and with the loss of the DPU side or a hybrid
//!   cache between, or both;
//! - **directory**: any directory of any mounted file system, each request turned into the system
//!   call it stands for. Pointed at a mount of Outboard it tests the mount; pointed at ext4 it
//!   tests the suite, which is how its expectations were checked where a man page leaves room.
//!
//! The reference for each call is its man page, errors included. Beside the cases stands a
//! model-based test ([`model`]): random operations against a simple file system in memory, compared
//! reply by reply and tree by tree, with shrinking.
//!
//! The engines a volume can lie in have one set of tests as well ([`engines`]): the key-value
//! port's rules, a map, this suite; and this model, in which they all answer side by side.
//!
//! `docs/internals/conformance.md` tells how to add a case and lists the differences between
//! fronts.

#![forbid(unsafe_code)]

pub mod actor;
pub mod case;
#[expect(clippy::panic, clippy::unwrap_used, reason = "what tests are made of")]
pub mod engines;
pub mod front;
#[expect(clippy::cast_possible_truncation, reason = "lengths and offsets the generator chose")]
#[expect(clippy::expect_used, reason = "the reference knows its own numbers")]
pub mod model;
pub mod runner;
#[expect(clippy::cast_possible_truncation, reason = "lengths and offsets the cases chose")]
mod suite;

pub use case::{Case, Outcome, Stop};
pub use front::{Features, Front};
pub use suite::cases;
