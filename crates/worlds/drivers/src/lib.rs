//! The real world: clocks, shared memory, sockets, wake-ups, storage.
//!
//! Everything that touches the operating system lives here, behind the ports and machines of the
//! lower floors. Unsafe code is allowed in this crate; each block says why it is sound.

mod alone;
pub mod clock;
pub mod dds;
pub mod dpu;
pub mod engine;
pub mod executor;
pub mod fds;
pub mod futex;
pub mod host;
pub mod link;
pub mod medium;
pub mod recorder;
pub mod shm;
mod writing;
