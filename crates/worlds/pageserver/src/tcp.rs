//! The traffic director's connections (section 5), ended by the kernel or by a stack of our own.
//!
//! * [`port`]: what a worker asks of whoever ends them;
//! * `kernel` and [`sockets`]: the portable default: streams without blocking, by epoll;
//! * [`stack`]: a bump in the wire, a user-space TCP stack between two network devices;
//! * [`worker`]: a director, and its flows' two legs;
//! * `context`: the thread it runs on, the reads begun there, and its calls of user code;
//! * [`front`]: listens, or sits between devices, and spreads flows by a symmetric hash.
//!
//! Which keeps which promise is told in `docs/internals/director.md`.

mod admission;
mod context;
pub mod front;
mod kernel;
pub mod port;
pub mod sockets;
pub mod stack;
pub mod worker;
