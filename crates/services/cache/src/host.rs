//! The data plane: everything the host side does to a cache (DPC 3.3, rows C9 to C11).
//!
//! A [`Plane`] answers reads and writes from the pages in host memory, or says that the request is
//! to go *through* to the DPU side. It asks nobody: a hit costs no DMA, no doorbell and no system
//! call. It never decides what to keep; pages come and go by the DPU side's doing, but for those a
//! write makes.
//!
//! # Invariants
//!
//! 1. Bytes are touched only under the page's lock, after a second look at whose page it is and at
//!    the file's record: the DPU side freezes the record first and looks at the pages then, so it
//!    meets every lock, or its maker sees the frozen record.
//! 2. All pages of a request are locked before a byte is copied, in order of their entries: a
//!    request is seen whole or not at all by others here, and nobody waits in a ring.
//! 3. Bytes of a page beyond the file's size are zero. A write raises the size while it holds the
//!    page.
//! 4. A page becomes dirty only against credit, counted before its lock is released.
//! 5. Writes that make pages or grow the file exclude one another and overwrites, and nothing is
//!    written here while a change of the file is on its way through ([`Plane::begin_change`]).
//!
//! Waits are bounded: who meets a held lock for too long goes through, where the DPU side waits.

mod pages;
mod plane;
mod read;
mod record;
mod write;

#[cfg(test)]
mod tests;

pub use plane::Plane;
pub use read::Sink;
pub use write::{Place, Source};

/// Most pages one request may touch; a larger one goes through.
pub const PAGES_MAX: usize = 128;
