//! The link between two processes of one computer: attach socket, shared memory, wake-ups.
//!
//! The DPU side listens on a Unix socket. A host sends a Hello with its region (a sealed memfd) and
//! gets a Welcome with the registers (a sealed memfd of the DPU) and its wake event. From then on
//! everything goes through memory; the socket says who the host is (its credentials, as the kernel
//! knows them), carries control requests, and by closing says that the other side is gone.
//!
//! Wake-ups: a host thread sleeps on its queue's interrupt word (a futex in the register pages);
//! the DPU sleeps on one descriptor, its [`Wakeup`](outboard_os::wakeup::Wakeup), whatever
//! the number of attachments.

mod dpu;
mod host;
mod socket;
mod stream;

pub use dpu::{DpuAttachment, Terms};
pub use host::{AttachFailure, Control, HostLink, HostMemory, control, wait};
pub use socket::{Listener, Peer, PeerCred, Received, connect};
pub use stream::Stream;
