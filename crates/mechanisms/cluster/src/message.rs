//! The words of the protocol and its messages.
//!
//! `B` is what stands for the bytes of one grain: a block of a node's store, a buffer in a packet,
//! a number in the tests. The machines only pass it on.

use crate::strip::{Claim, Copy, Write};

/// A storage node.
pub type Node = u16;
/// A group's epoch: raised by each change of its members.
pub type Gep = u32;
/// One boot of a node's computer. A process that is started again is in the same life.
pub type Life = u64;
/// A strip within a group.
pub type StripId = u64;
/// Which delegation: a higher one shuts those below out.
pub type Fence = u64;

/// Names one write of one strip for ever; later writes have higher ones.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Version {
    /// Under which delegation.
    pub fence: Fence,
    /// Counted within it.
    pub seq: u32,
}

/// How far a strip is fenced at a member. One that is sealed is behind one where that seal's
/// resolver was heard to the end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Mark {
    /// What is below is refused.
    pub fence: Fence,
    /// Whether what this fence was sealed for has been carried out here, or is long over.
    pub decided: bool,
}

/// What is asked of a member, each under an epoch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Request<B> {
    /// Take this write.
    Write(Write<B>),
    /// Make this version, which was acknowledged, stable and durable.
    Flush(Version, Fence),
    /// What the strip holds.
    Read(Fence),
    /// Refuse everything below this fence, and say what you have.
    Seal(Fence),
    /// Have this version and nothing newer; whoever lacks it copies it from `source`.
    Resolve {
        /// The seal under which it was decided.
        fence: Fence,
        /// What was decided.
        version: Version,
        /// A member that has it.
        source: Node,
    },
    /// Your stable version, unless it is this one.
    Fetch(Option<Version>),
    /// The fences of all your strips.
    Fences,
}

/// What a member answers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reply<B> {
    /// The write of this version is logged.
    Accepted(Version),
    /// This version is stable, and durable.
    Flushed(Version),
    /// The strip's content.
    Content(Version, Vec<B>),
    /// Sealed durably; what this member has.
    Sealed(Claim),
    /// Done durably.
    Resolved,
    /// A stable version.
    Copy(Copy<B>),
    /// The fences of all strips that were sealed or written.
    Fences(Vec<(StripId, Mark)>),
    /// Not done.
    Refused(Reason),
}

/// Why a member refuses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    /// The epoch is not this member's, which is told.
    Epoch(Gep),
    /// The fence is below the strip's (R3).
    Fenced,
    /// Another write is pending (R2).
    Order,
    /// The version before this one is not here.
    Gap,
    /// Not filled yet, or without the seals (R3, R7).
    Filling,
}
