//! The link: one host-side process attached to one DPU (DPC 3.2; rows C1-C7 and C11).
//!
//! * [`region`]: host memory and register pages, the only unsafe code of this crate, and its only
//!   atomics;
//! * [`dma`]: the DPU's only access to host memory, with the ledger that counts what hardware would
//!   charge;
//! * [`registers`]: doorbells and interrupt words;
//! * [`queue`]: queue pairs, the initiator of the host and the target of the DPU: nvme-fs, and
//!   virtio-fs as its rival;
//! * [`events`]: the ring of notices from the DPU to the host;
//! * [`ring`]: rings of messages, the page server's;
//! * [`layout`]: where the rings and slots lie in a region;
//! * [`records`]: what a process writes down for its successor;
//! * [`pace`]: when to spin and when to sleep; [`beat`]: when the other side counts as dead.
//!
//! Nothing here owns a clock, thread, socket or file: a world maps the memory, makes the wake-ups
//! and passes the time. The byte layouts are in `outboard_wire`, drawn in `docs/internals/link.md`.

#![deny(unsafe_code)]
#![allow(unexpected_cfgs, reason = "`--cfg loom` is set by hand, for tests/loom.rs")]

pub mod beat;
pub mod dma;
pub mod events;
#[cfg(any(test, feature = "fuzz"))]
pub mod fuzz;
pub mod layout;
pub mod pace;
pub mod queue;
pub mod records;
#[cfg_attr(
    not(loom),
    expect(unsafe_code, reason = "shared memory is reached through raw pointers")
)]
pub mod region;
pub mod registers;
pub mod ring;

pub use region::Region;
