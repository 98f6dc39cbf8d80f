//! The write protocol of shared volumes, as machines that do no I/O.
//!
//! NetDFS (II to IV) lets clients write straight to storage nodes, which enforce policy. What a
//! write means when a node, a client or the power dies in its midst the paper leaves to the file
//! system. Here it is settled, once, for whoever carries the messages:
//!
//! - [`Group`] is the record of who holds the data: its epoch, its members, each in one life.
//! - [`Strip`] is what a member keeps of one strip, the unit of conflict; [`Member`] is all of
//!   them, and what they check before anything changes.
//! - [`Tally`] is how a writer counts acknowledgements.
//! - [`Resolver`] ends what a writer left: it seals, asks, decides ([`verdict()`]) and has the
//!   decision carried out.
//! - [`Delegations`] says who may use which strip, under which fence.
//!
//! The rules, R1 to R9, stand in `docs/internals/shared.md`; comments name them. The tests are a
//! world that loses, doubles and delays messages, stops and kills whoever it likes, and judges what
//! was answered. The store of a node is held against [`Strip`] in its tests, and the metadata
//! server decides by [`verdict()`]; groups with epochs nobody keeps yet.
//!
//! [`coordinator`] is the port through which parts agree on which of them there are.

#![forbid(unsafe_code)]

pub mod coordinator;
mod delegation;
mod fault;
mod group;
mod member;
mod message;
mod resolver;
mod strip;
mod tally;
#[cfg(test)]
mod tests;
mod verdict;

pub use delegation::{Delegations, Grant, State};
pub use group::{Entry, Group, Role};
pub use member::{Member, Output};
pub use message::{Fence, Gep, Life, Mark, Node, Reason, Reply, Request, StripId, Version};
pub use resolver::{Progress, Resolver};
pub use strip::{Claim, Copied, Copy, Resolved, Strip, Whole, Write};
pub use tally::Tally;
pub use verdict::{Answer, Verdict, verdict};
