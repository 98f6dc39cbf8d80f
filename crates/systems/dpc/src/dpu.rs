//! The DPU side of its links: commands in, a volume's answers out (DPC 3.1 "IO_Dispatch"; rows C5,
//! C7).
//!
//! A [`Service`] polls every queue of every [`Attachment`], a bounded number of commands a pass
//! from each, decodes what it finds as the words of a stranger, and runs the answer of the
//! volume that bit 10 speaks of as a future, which the world's executor polls at once: most
//! answers never wait.
//!
//! # Invariants
//!
//! 1. Whatever a host puts into its queues, it is answered with an error or costs only that host:
//!    limits are per attachment, credentials come from the socket, a command's buffers are its own.
//! 2. A command is completed once, or belongs to an attachment that is gone.
//! 3. When an attachment is gone, what still runs for it ends first; then its handles, locks and
//!    memory go ([`Service::sweep`]). Until then no other attachment may use its session.
//! 4. A no-op never reaches the volume: it measures the link.
//!
//! Everything here belongs to one thread. The world provides passes, time, wake-ups and the
//! executor.

mod attachment;
mod beside;
mod collector;
mod grace;
mod letting_go;
mod serve;
mod service;
mod stats;

pub use attachment::{Attachment, Limits, Served};
pub use grace::Grace;
pub use service::{AttachmentId, Gone, Service};
pub use stats::{Histogram, OpStats, Stats};
