//! What to keep, what to fetch ahead, when to write back: the decisions of the control plane (DPC
//! 3.3; rows C13, C14).
//!
//! One file an algorithm, chosen per mount by name. None of them touches the cache: they are told
//! what the control plane saw and say what it should do, so each is tried on traces alone.

pub mod flush;
pub mod prefetch;
pub mod replace;

pub use flush::Flush;
pub use prefetch::Prefetch;
pub use replace::Replace;

/// The algorithms of one mount.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Policies {
    /// Which page makes room.
    pub replace: replace::Name,
    /// Which pages are fetched before they are asked for.
    pub prefetch: prefetch::Name,
    /// Which dirty pages are written back ahead of need.
    pub flush: flush::Name,
}
