//! What this node enforces on a request (NetDFS IV): who may do what, checked in the header handler
//! before a byte of data is looked at.

mod auth;
mod doubt;
mod hyperloop;
mod rules;

pub(crate) use auth::Auth;
pub(crate) use doubt::Doubt;
pub(crate) use hyperloop::HyperLoop;
pub use hyperloop::QUEUE;
pub use rules::Threat;
pub(crate) use rules::{Rules, Settings};

/// When requests are steered to the CPU side.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Steer {
    /// Never: without room they are refused as busy.
    Never,
    /// Always.
    Always,
    /// When the handlers' memory is short of room for them.
    #[default]
    Overload,
}

/// What requests are compared with in the benchmarks of NetDFS IV to VI; no node is run so.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Baseline {
    /// Nothing is checked: as fast as it can be.
    Raw,
    /// The CPU side gets whole messages, checks them, copies them out of their buffer and stores.
    Rpc,
    /// Data lands where the store takes it from; the CPU side checks before it does.
    RpcRdma,
    /// Nothing is checked of rights; writes go on when they are whole, as clients have prepared.
    HyperLoop,
    /// Nothing is checked of rights; a unit is multiplied for parities when it is whole.
    Inec,
}

impl Baseline {
    /// Whether requests are done without a look at what allows them.
    pub(crate) fn believes(self) -> bool {
        matches!(self, Baseline::Raw | Baseline::HyperLoop | Baseline::Inec)
    }

    /// Whether a write goes on to others once all of it is there, and not as its packets come.
    pub(crate) fn waits(self) -> bool {
        matches!(self, Baseline::HyperLoop | Baseline::Inec)
    }
}
