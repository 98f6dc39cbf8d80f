//! Rings of messages in host memory (DDS 4.1; rows D1, D2 and D4).
//!
//! Requests go from many producers of the host to one consumer beyond the bus, who touches host
//! memory only by DMA:
//!
//! * [`progress`]: the paper's ring. Producers reserve by moving the *tail*, write, and then add
//!   what they wrote to the *progress*; when the two are equal, everything before them is whole,
//!   and the consumer takes all of it: one DMA for both pointers, one for the batch (two where it
//!   goes around the end), one for the head;
//! * [`farm`], [`locked`], [`lanes`]: its rivals, behind the same two traits.
//!
//! Responses go the other way in [`response`]: one producer beyond the bus, many consumers.
//!
//! Positions are counted from a ring's beginning and never wrap; the byte of a position is the
//! position modulo the ring's bytes. Messages lie in frames (`outboard_wire::dds`), each whole in
//! one piece. Neither end believes the other: a consumer checks pointers, stamps and lengths, and
//! what it cannot follow is a [`Fault`] that ends the ring, never a wrong message.

pub mod farm;
mod frames;
pub mod lanes;
pub mod locked;
pub mod progress;
pub mod response;

use outboard_wire::dds::InvalidMessage;

use crate::dma::DmaError;
use crate::region::OutOfRegion;

pub use frames::{Owners, Place, Recovery};

/// Why a message was not put into a ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PushError {
    /// There is no room now (the paper's RETRY): the consumer has to catch up first.
    Retry,
    /// It is longer than this ring ever takes.
    TooLong,
    /// The ring does not lie in its region.
    Broken,
}

impl From<OutOfRegion> for PushError {
    fn from(_: OutOfRegion) -> PushError {
        PushError::Broken
    }
}

/// Why a ring can be followed no further.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The bus failed; nothing was taken, and it may be tried again.
    Dma(DmaError),
    /// Pointers that no honest other side has written.
    Pointers,
    /// Bytes that are no frame.
    Message(InvalidMessage),
}

impl From<DmaError> for Fault {
    fn from(error: DmaError) -> Fault {
        Fault::Dma(error)
    }
}

impl From<OutOfRegion> for Fault {
    fn from(_: OutOfRegion) -> Fault {
        Fault::Dma(DmaError::OutOfRegion)
    }
}

impl From<InvalidMessage> for Fault {
    fn from(error: InvalidMessage) -> Fault {
        Fault::Message(error)
    }
}

impl std::fmt::Display for Fault {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Fault::Dma(_) => f.write_str("a ring could not be reached by DMA"),
            Fault::Pointers => f.write_str("the pointers of a ring contradict each other"),
            Fault::Message(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for Fault {}

/// One producer of a ring of requests: a thread of the host.
pub trait Produce: Send {
    /// Puts messages in, in order and all together, or none of them.
    ///
    /// # Errors
    /// [`PushError`].
    fn push(&mut self, messages: &[&[u8]]) -> Result<(), PushError>;
}

/// The consumer of a ring of requests, beyond the bus.
pub trait Consume: Send {
    /// Takes what is there, at most one batch, and hands each message to `each`; how many.
    ///
    /// # Errors
    /// [`Fault`]. What was handed over before is taken all the same.
    fn take(&mut self, each: &mut dyn FnMut(&[u8])) -> Result<usize, Fault>;
}
