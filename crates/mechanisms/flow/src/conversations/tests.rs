//! Conversations one by one here; the seeded world and its oracle are in `world`.

#![allow(clippy::cast_possible_truncation, reason = "small numbers")]

mod rig;
mod world;
