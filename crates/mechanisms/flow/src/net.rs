//! The port through which the parts of a cluster reach each other.

use core::net::SocketAddrV4;
use std::future::Future;
use std::time::Duration;

use outboard_base::Time;
use outboard_wire::shared::{Answer, Heads, Peer};

/// Why something that was asked has no answer. Whether it was done is not known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Gone {
    /// Nobody answers there, or its address is not known.
    Unanswered,
    /// It ended, or began a new life, before it answered.
    Ended,
    /// It does not speak with this part: another cluster, another key.
    Refused,
}

/// How a part of a cluster asks others. Shared by all who ask; futures are woken by whoever pumps.
pub trait Net: Send + Sync + 'static {
    /// Where a part is, from now on.
    fn know(&self, peer: Peer, address: SocketAddrV4);

    /// Asks for something that is no data; the reply's bytes ([`outboard_wire::shared::call`]).
    fn call(&self, to: Peer, call: Vec<u8>) -> impl Future<Output = Result<Vec<u8>, Gone>>;

    /// A request to a node, with the data of a write; its answer, and the data of a read. The
    /// head's `request` is chosen here.
    fn request(
        &self,
        to: Peer,
        heads: &Heads,
        data: &[u8],
    ) -> impl Future<Output = Result<(Answer, Vec<u8>), Gone>>;

    /// Now.
    fn now(&self) -> Time;

    /// Milliseconds of Unix time, now.
    fn wall_ms(&self) -> u64;

    /// Waits so long.
    fn sleep(&self, time: Duration) -> impl Future<Output = ()>;
}
