//! The servers, whole: over real sockets, rings and devices, with clients of our own.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests may panic")]

mod compaction;
mod history;
mod kv;
mod limits;
mod linear;
mod lives;
mod pages;
mod redis;
mod rig;
