//! virtio-fs queues: FUSE messages in split virtqueues (DPC 2.3, Figure 2; row C4). The rival that
//! nvme-fs is measured against, over the same DMA port and counted by the same rule.
//!
//! One descriptor a page of data and no indirect tables, as DPFS has it. A slot has its own run of
//! descriptors, always in order: the kindest table a driver can offer. Two devices serve it:
//!
//! * [`Variant::Dpfs`] fetches each piece by its own DMA, one request at a time: avail idx, ring
//!   entry, every descriptor, command, data, response, used element, used idx. An 8 KiB write costs
//!   eleven;
//! * [`Variant::Tuned`] is told the avail idx by the doorbell (virtio's notification data), takes
//!   ring entries and descriptors in runs, and shows used elements a batch at a time.
//!
//! What virtio does not have is as in [`super::nvmefs`], by the same registers: aborts, deletion,
//! the two words that say who sleeps, and the host's memory of what is unanswered.
//!
//! The target believes nothing: every descriptor is copied once and checked, a chain is bounded, a
//! message that does not add up is refused, and a chain that cannot be followed, an index that
//! jumps or a doorbell out of range ends the queue (virtio: "device needs reset").

mod initiator;
mod rings;
mod target;

pub use initiator::{Driver, FuseCall, Initiator};
pub use rings::Rings;
pub use target::Target;

pub use super::nvmefs::NoSuchQueue;

/// How a device reads and writes its queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Variant {
    /// Each piece by its own DMA, as DPC describes DPFS.
    Dpfs,
    /// In runs and batches.
    Tuned,
}

/// Most avail entries taken, and used elements shown, in one DMA by [`Variant::Tuned`].
pub const BATCH: u16 = 16;
/// Descriptors [`Variant::Tuned`] fetches at a head: enough for 8 KiB either way.
const FIRST_RUN: u16 = 8;
/// Descriptors it fetches at a time further on: a page of them.
const NEXT_RUN: u16 = 256;
