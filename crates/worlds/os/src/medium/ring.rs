//! One thread's io_uring, and the buffers it has registered.

mod fixed;
mod reactor;

pub use reactor::Reactor;
pub(super) use reactor::{Action, Operation};
