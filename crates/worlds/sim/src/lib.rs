//! The other world: the systems that the operating system runs elsewhere, run in one thread with
//! every choice made by a seed.
//!
//! - [`loopback`] is both sides of a link, stepped by hand.
//!
//! Nothing here reads a clock or starts a thread; equal seeds give equal runs. Product crates hold
//! no simulator: what simulates stands here, and tests of any floor may use it. A test of a crate
//! that this one stands on is an integration test (`tests/`), for a crate compiled for its own unit
//! tests has types of its own.

#![forbid(unsafe_code)]

pub mod loopback;
