//! The other world: the systems that the operating system runs elsewhere, run in one thread with
//! every choice made by a seed.
//!
//! | part | what it is |
//! |---|---|
//! | [`seeds`] | which seeds run, what a failure says, a random source for each part |
//! | [`Chooser`] | the random scheduler: who moves next; notes what it chose |
//! | [`Tasks`] | an executor that polls one future a step, of the seed's choice |
//! | [`Timeline`] | virtual time: events by moment, then by order of asking |
//! | [`mod@line`] | lossy effects: what is lost, delayed, doubled, overtaken, refused |
//! | [`network`] | messages between named endpoints over such lines; cuts and partitions |
//! | [`oracle`] | judges that several simulations share |
//! | [`Trace`] | what a run did, as one number |
//! | [`loopback`] | both sides of a link, the session and the service of production |
//!
//! What holds: nothing here reads a clock, starts a thread or depends on an address; equal seeds
//! give equal runs, and a test of each simulation says so.
//!
//! # Where a new simulation goes
//!
//! Product crates hold no simulator; a medium or an engine in memory that fails on command is none
//! (it belongs to its port, and serves users too).
//!
//! - **A rig more than one crate uses** (a world, a port, an oracle) is a module here.
//! - **The simulation of one crate**, with its model and its judgements, is an integration test of
//!   that crate, `tests/it/simulation.rs`, with `outboard-sim` as a dev-dependency. It cannot be a
//!   unit test of a crate this one stands on: compiled for its own tests, that crate has types of
//!   its own.
//! - **Of several crates together**: of the highest among them, and of a whole cluster here, in
//!   `tests/`.
//!
//! It runs its seeds through [`seeds::run`], draws what it does from a [`Chooser`], and has two
//! phases: *safety* (things break, and nothing is answered wrongly), then *liveness* (all is
//! healed, and everybody comes to an end within so many steps). A machine (see
//! `outboard_base::machine`) is driven as `examples/ping.rs` does; copy that loop.

#![forbid(unsafe_code)]

mod chooser;
pub mod line;
pub mod loopback;
pub mod network;
pub mod oracle;
pub mod seeds;
mod tasks;
mod timeline;
mod trace;

pub use chooser::Chooser;
pub use tasks::Tasks;
pub use timeline::Timeline;
pub use trace::Trace;
