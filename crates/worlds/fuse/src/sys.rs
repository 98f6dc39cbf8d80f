//! System calls that take raw memory: the FUSE device, and the slots it reads into and writes from.

mod device;
mod slot;

pub(crate) use device::Device;
pub use slot::{HeapSlot, Slot};
