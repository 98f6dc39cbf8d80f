//! What this node enforces on a request (NetDFS IV): who may do what, checked in the header handler
//! before a byte of data is looked at.

mod auth;
mod doubt;
mod rules;

pub(crate) use auth::Auth;
pub(crate) use doubt::Doubt;
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

/// What a request is compared with in the benchmarks of NetDFS IV A; no node is run so.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Baseline {
    /// Nothing is checked: as fast as it can be.
    Raw,
    /// The CPU side gets whole messages, checks them, copies them out of their buffer and stores.
    Rpc,
    /// Data lands where the store takes it from; the CPU side checks before it does.
    RpcRdma,
}
