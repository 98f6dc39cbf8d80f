//! The traffic director over kernel sockets: the portable default of section 5.
//!
//! * [`sockets`]: streams without blocking, by epoll: TCP, and Unix sockets on one computer;
//! * [`worker`]: one thread's director, its flows' two legs, and the reads begun for them;
//! * [`front`]: listens, and spreads flows over workers by a symmetric hash.
//!
//! What this port keeps of the promises, and what takes a user-space stack, is told in
//! `docs/internals/director.md`: here the kernel ends both connections, so flows that do not match
//! the signature keep their bytes, but not their packets.

pub mod front;
mod kernel;
pub mod port;
pub mod sockets;
pub mod stack;
pub mod worker;
