//! The key-value server, in the manner of FASTER: a hash index and the tail of a log in memory,
//! where records are updated in place, and the rest of the log in files.
//!
//! The host side is [`KvServer`]: one thread, any [`crate::device::Device`]. The DPU side runs
//! [`KvApplication`], which answers GETs of records in the file.

mod app;
mod commands;
mod extracts;
mod journal;
mod log;
mod lots;
mod record;
mod server;
mod store;
mod sync;

pub use crate::connections::{Ended, Stop};
pub use app::{KvApplication, hash};
pub use server::{KvServer, Setup};
pub use store::{Fsync, StoreSetup, check};
