//! How a seed is walked, and what the walk met.

use outboard_wire::shared::Strategy;

use crate::part::Planted;

/// How a seed is walked.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Way {
    pub(crate) planted: Option<Planted>,
    /// Hosts have caches; else the seed says whether.
    pub(crate) cached: Option<bool>,
    /// More befalls it, and for longer.
    pub(crate) harsh: bool,
    /// Hosts go on by themselves while their DPU sides are stopped or away.
    pub(crate) apart: bool,
    /// Both nodes have a copy of each file, passed on like this; or more have stripes of it.
    pub(crate) copies: Option<Strategy>,
    /// Of stripes: how many units of data and how many parities.
    pub(crate) units: (u8, u8),
    /// Of stripes: clients bring parities, which else nodes compute.
    pub(crate) brings: bool,
    /// Nodes come and go.
    pub(crate) moves: bool,
    /// A coordinator says which parts there are, and what it meets befalls them, too.
    pub(crate) coordinated: bool,
    /// Some of what a node has rots.
    pub(crate) rots: bool,
    /// What happens is printed.
    pub(crate) tells: bool,
}

/// What a walk met.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Counts {
    pub(crate) asked: u64,
    pub(crate) failed: u64,
    pub(crate) deaths: u64,
    pub(crate) power: u64,
    pub(crate) replays: u64,
    /// Datagrams.
    pub(crate) lost: u64,
    /// What caches of hosts answered, and syncs that said that something was lost.
    pub(crate) hits: u64,
    pub(crate) kept: u64,
    pub(crate) told: u64,
    /// Times that nodes came or went.
    pub(crate) placed: u64,
    /// Nodes that came back elsewhere, parts that ended as they may not be there, and walks that
    /// ended without their coordinator.
    pub(crate) moved: u64,
    pub(crate) refused: u64,
    pub(crate) alone: u64,
    /// Nodes of which something rotted.
    pub(crate) rotten: u64,
    /// Writes in doubt after a loss of power that a sync then proved.
    pub(crate) proved: u64,
    /// Sizes that the server may have forgotten with its power, of which a sync proved the same.
    pub(crate) sizes: u64,
    pub(crate) trace: u64,
}
