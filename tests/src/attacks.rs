//! A real cluster under attack, over its network: what its parts refuse, and when.
//!
//! ```text
//! End      somebody with a socket who speaks with a part: as a client, a node or a server, with a
//!          key or without; datagrams of it can be kept, changed and sent again
//! make     requests that are right, and what is done to them
//! table    each attack in a model of trust: what was seen, and what has to be
//! capture  what tshark says of what passed
//! noise    what is no packet, no message, or lies
//! ```
//!
//! Whoever attacks sees and changes all that passes, and knows everything but keys.

mod capture;
mod end;
mod make;
mod noise;
mod table;

pub use capture::capture;
pub use noise::noise;
pub use table::{Row, Siege, print};

/// Whom a cluster's nodes trust, by the words of `outboard cluster up --trust`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Trust {
    /// Everybody.
    Plain,
    /// The network.
    Capability,
    /// Nobody.
    Sealed,
}

impl Trust {
    /// All of them.
    pub const ALL: [Trust; 3] = [Trust::Plain, Trust::Capability, Trust::Sealed];

    /// Its word.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Trust::Plain => "plain",
            Trust::Capability => "capability",
            Trust::Sealed => "sealed",
        }
    }
}
