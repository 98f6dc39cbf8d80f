//! KVFS from outside: requests in, replies out, over in-memory engines that fail and forget.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::cast_possible_truncation,
    reason = "a test may panic"
)]

mod back;
mod beside;
mod check;
mod crash;
mod damage;
mod data;
mod data_crash;
mod data_space;
mod life;
mod list;
mod lock;
mod model;
mod names;
mod permission;
mod rename;
mod replay;
mod spread;
mod spread_model;
mod together;
mod world;
