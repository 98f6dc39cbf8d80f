//! The mount, over a toy volume in memory and over KVFS beyond a link, through real system calls.
//!
//! These tests mount, so they need root and `/dev/fuse`; elsewhere each says that it was skipped.

#![expect(clippy::unwrap_used, clippy::panic, reason = "a test fails where it unwraps")]
#![expect(clippy::cast_possible_truncation, reason = "patterns of bytes")]

mod calls;
mod harness;
mod kvfs;
mod life;
mod locks;
mod toy;
