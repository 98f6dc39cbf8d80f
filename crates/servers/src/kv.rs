//! The key-value server, in the manner of FASTER: a hash index and the tail of a log in memory,
//! where records are updated in place, and the rest of the log in files.

mod app;
mod record;

pub use app::{KvApplication, hash};
