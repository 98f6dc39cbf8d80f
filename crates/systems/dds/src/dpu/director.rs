//! The traffic director (section 5, rows D11-D15): which bytes of a client go where.
//!
//! A connection is split in two **legs**: client to DPU side, and DPU side to host. Each is a TCP
//! connection of its own, so sequence numbers, retransmission and congestion control hold on both
//! whatever is answered here. The host's leg is made when the first byte must go there: a client
//! that is answered here whole never wakes the host.
//!
//! [`Director`] is a machine: bytes and endings of both legs and ended reads go in; it keeps what
//! is to be sent on each leg, the reads to begin, and which flows have news. It owns no socket.
//!
//! ```text
//!  client's bytes -> input -> messages -> OffPred -> parts --+-> literal ----------------> slot
//!                                                            +-> host: to_host, asked ---> slot
//!                                                            +-> dpu: engine, read ------> slot
//!  client's answers <- to_client <-------- slots, in order ----- filled by host and reads
//! ```
//!
//! What holds:
//! * answers leave in the order of the requests, each whole; protocols without ids need no more;
//! * a request is answered by one side. One that was begun here and fails goes to the host, and its
//!   answer takes the same slot;
//! * a client sees its own writes: while the host has a request of this flow that touches an
//!   object, further requests for it go to the host; and a request of the host that touches an
//!   object waits until reads of it that were begun here for this flow have ended;
//! * what is buffered is bounded on every way: a slow reader stops its host leg and its own input,
//!   a slow host stops its client ([`limits`]); and what all flows hold together is bounded and
//!   shared: who finds no memory is not read from, and holds up nobody else
//!   ([`Director::client_room`]);
//! * it calls no user code: that is asked by who drives it, who may never come back ([`Job`]);
//! * messages may be divided in another process ([`Director::asking`]): they wait in their order,
//!   and are the host's if nothing comes back;
//! * bytes that are no messages of the application, and flows outside the [`Signature`], are
//!   forwarded untouched, both ways.

mod asking;
mod flow;
mod idle;
mod job;
mod machine;
pub mod packet;
mod shares;
mod signature;
#[cfg(test)]
mod tests;

pub use flow::{Flow, FlowId, Piece};
pub use job::Job;
pub use machine::{Counts, Director, ToRead};
pub use signature::{Flow5, Signature, SignatureError, Transport, symmetric_hash};

/// What a flow may hold.
pub mod limits {
    /// Answers a client waits for at once; more stay in its input.
    pub const SLOTS_MAX: usize = 256;
    /// Parts of one message; one of more is the host's whole.
    pub const PARTS_MAX: usize = 1024;
    /// Bytes of a client not yet divided. The largest message that is divided; a larger one, and
    /// all after it, is the host's.
    pub const INPUT_MAX: usize = 2 << 20;
    /// Bytes for the host not yet taken; beyond, nothing more is divided.
    pub const TO_HOST_MAX: usize = 1 << 20;
    /// Bytes of answers not yet taken by the client; beyond, nothing more is divided or taken from
    /// the host.
    pub const TO_CLIENT_MAX: usize = 1 << 20;
    /// The largest answer of the host, bytes; a flow with a larger one is reset.
    pub const ANSWER_MAX: usize = 32 << 20;
}
