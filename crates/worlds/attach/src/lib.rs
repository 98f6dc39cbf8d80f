//! The processes of a link: a host-side process attaches to the DPU side's over a socket, and from
//! then on the two speak through shared memory.
//!
//! [`link`] is the handshake and what both sides hold after it; [`host`] runs a session, reconnects
//! it when the DPU side was lost, and watches for answers and events; [`dpu`] serves attachments.

#![forbid(unsafe_code)]

pub mod dpu;
pub mod host;
pub mod link;
