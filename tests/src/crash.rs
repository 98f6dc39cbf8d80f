//! Workers whose every answered operation is known, so that what a crash left can be judged.
//!
//! A [`Worker`] owns one directory of the volume and does one operation at a time, each written to
//! a journal outside the volume before it starts and after it is answered. Its model says which
//! answer is right. When the host side is killed, the operation in flight is the only one whose
//! fate is open: the directory must then be as before it or as after it, and nothing else. An
//! answer that is wrong only because an operation was applied twice (an append doubled, an
//! exclusive create that finds its own file) is as wrong as any other.

mod held;
mod model;
mod operation;
mod worker;

pub use held::Held;
pub use worker::{Mode, Worker};
