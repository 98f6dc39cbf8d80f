//! The parts of a cluster in the world of an operating system: sockets, threads, and the clock
//! (NetDFS II; checklist rows N1 to N4).
//!
//! ```text
//! udp       a socket that moves many datagrams at once
//! capture   what went over it, for tshark; `faulty`: what goes wrong on the way, for tests
//! port      a socket with both before it
//! runtime   futures, storage and conversations on one thread
//! roles     what a node and a server do there; `process`: their loop, and their end
//! ask       somebody who only asks
//! keys      who has which key, and the files they lie in
//! ```
//!
//! What a part does is in crates that own none of this (`outboard_node`, `outboard_meta`,
//! `outboard_dfs`). The page is `docs/internals/fabric.md`.

#![forbid(unsafe_code)]

mod ask;
pub mod capture;
pub mod faulty;
mod keys;
mod net;
pub mod port;
mod process;
mod roles;
pub mod runtime;
pub mod udp;

pub use ask::{Asker, client_id, random};
pub use keys::{Key, client_of};
pub use net::Asking;
pub use process::Part;
pub use roles::{ClientRole, NodeRole, ServerRole};

use outboard_base::Timestamp;

/// Milliseconds of Unix time.
fn wall_ms(wall: Timestamp) -> u64 {
    let whole = u64::try_from(wall.sec).unwrap_or(0).saturating_mul(1000);
    whole.saturating_add(u64::from(wall.nsec / 1_000_000))
}
