//! System calls that take raw memory: the FUSE device, and a slot in ordinary memory.

mod device;
mod slot;

pub(crate) use device::{Device, map_pages};
pub use slot::HeapSlot;
