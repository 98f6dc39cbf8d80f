//! Small values every floor shares: errno, ids, time as values, seeded random, limits.
//!
//! Nothing here owns a clock, a thread, a socket or a file: time is an argument ([`Time`]), random
//! numbers come from a seed ([`Rng`]), and the limits that crates share stand in [`limits`], each
//! beside the reason for it.

#![forbid(unsafe_code)]

mod cred;
mod errno;
mod id;
pub mod ledger;
pub mod limits;
pub mod machine;
mod place;
pub mod planted;
mod rng;
pub mod task;
mod time;

pub use cred::Cred;
pub use errno::{Errno, Result};
pub use id::{Fh, Ino, SessionId};
pub use place::place;
pub use rng::Rng;
pub use time::{Deadline, Time, Timestamp};
