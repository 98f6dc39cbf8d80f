//! System calls that take raw memory: the FUSE device, handles of inodes, and a slot in
//! ordinary memory.

mod device;
mod handle;
mod slot;

pub(crate) use device::{Device, map_pages};
pub(crate) use handle::{Mountpoint, set_times, truncate};
pub use slot::HeapSlot;
