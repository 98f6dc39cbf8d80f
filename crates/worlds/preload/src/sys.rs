//! The C side: functions of libc stood in for, and what they need that safe Rust does not have.
//!
//! Each module exports functions under libc's names ([`export::stand_in`]): they turn what C hands
//! in into slices and numbers, ask [`crate::calls`], and give the answer as libc would.

mod capi;
mod dirs;
mod exec;
pub(crate) mod export;
mod files;
pub(crate) mod guard;
pub(crate) mod lock;
mod names;
mod open;
pub(crate) mod signals;
pub(crate) mod slots;
mod start;
pub(crate) mod stdio;
