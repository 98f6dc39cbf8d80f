//! The operating system behind the ports of the floors below: clocks, shared memory, descriptors,
//! wake-ups, the executor of a thread, and a medium over io_uring.
//!
//! Nothing here knows a protocol or a volume. Unsafe code stands in the folders the root manifest
//! names; each block says why it is sound.

pub mod alone;
pub mod clock;
pub mod event_loop;
pub mod executor;
pub mod fds;
pub mod lock;
pub mod medium;
pub mod memory;
pub mod room;
pub mod runtime;
pub mod sys;
pub mod wakeup;

pub use sys::{futex, shm, writing};
