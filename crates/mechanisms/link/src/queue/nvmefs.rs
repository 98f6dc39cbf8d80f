//! nvme-fs queue pairs (DPC 3.2, Figure 4; rows C1-C7).
//!
//! Two rings in host memory: submissions, produced by the [`Initiator`] and fetched by the
//! [`Target`] by DMA, and completions, written by the target by DMA and found by their phase tag.
//! Doorbells and interrupt words are registers of the DPU. A ring is full when tail + 1 == head.
//!
//! An aligned 8 KiB write costs four DMAs: the entry; the request header with the PRP list before
//! it in one page; the data; the completion. `tests/it/dma_count.rs` pins the count of every kind
//! of command.
//!
//! The target believes nothing: entries and lists are copied once, every address is checked against
//! the region, command ids in flight twice are refused, and a doorbell out of range ends the queue.

mod admit;
mod initiator;
mod place;
mod target;

pub use super::initiator::Aborter;
pub use initiator::{Initiator, Pair};
pub use target::Target;

/// Most entries fetched in one DMA.
pub const SQE_BATCH: usize = 16;

/// A queue number beyond the grid, or a region shorter than it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NoSuchQueue;

/// The index behind `index` in a ring.
fn next(index: u16, depth: u16) -> u16 {
    if index + 1 >= depth { 0 } else { index + 1 }
}
