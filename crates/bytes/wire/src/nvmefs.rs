//! nvme-fs: the bytes of a queue pair (DPC 3.2, rows C1-C4 and C7).
//!
//! A submission entry ([`Sqe`], 64 bytes) is an NVMe command with a vendor opcode whose two lowest
//! bits say "both directions": one command carries a request header and write data to the DPU, and
//! brings a reply header and read data back. A completion entry ([`Cqe`], 16 bytes) answers it.
//! Where the bytes lie is said by PRP entries ([`Prp`]), read by the rules in [`prp`].
//!
//! Each type has `parse` (checks everything that needs no context) and `emit`; `parse(emit(x)) ==
//! x`. Addresses are bus addresses: offsets into the one region the host registered. Page 0 of a
//! region is never addressed, so that a zero PRP entry means "none".

mod cqe;
pub mod prp;
mod sqe;

use crate::cursor;

pub use cqe::{Cqe, QueueError, Status};
pub use prp::{Extent, InvalidPrp, Prp};
pub use sqe::{Dispatch, OPCODE, Sqe, cid_of};

/// Bytes of a submission entry.
pub const SQE_LEN: usize = 64;
/// Bytes of a completion entry.
pub const CQE_LEN: usize = 16;
/// Smallest queue depth: one command in flight (full is tail + 1 == head).
pub const DEPTH_MIN: u16 = 2;
/// Largest queue depth.
pub const DEPTH_MAX: u16 = 1024;
/// Most queue pairs one attachment may have.
pub const QUEUES_MAX: u16 = 64;

/// Fields of fixed-size entries: the callers pass whole entries and constant offsets, so that
/// nothing is ever beyond the end; if it were, it would read as zero and not be written.
#[inline]
pub(crate) fn u16_at(entry: &[u8], at: usize) -> u16 {
    cursor::u16_at(entry, at).unwrap_or(0)
}

#[inline]
pub(crate) fn u32_at(entry: &[u8], at: usize) -> u32 {
    cursor::u32_at(entry, at).unwrap_or(0)
}

#[inline]
pub(crate) fn u64_at(entry: &[u8], at: usize) -> u64 {
    cursor::u64_at(entry, at).unwrap_or(0)
}

#[inline]
pub(crate) fn put(entry: &mut [u8], at: usize, field: &[u8]) {
    if let Some(to) = at.checked_add(field.len()).and_then(|end| entry.get_mut(at..end)) {
        to.copy_from_slice(field);
    }
}
