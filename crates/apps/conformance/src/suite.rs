//! The cases, one file a group, each a table of names and what must hold.

use std::time::Duration;

use outboard_base::Cred;

use crate::actor::Actor;
use crate::case::{Case, Outcome, needs};

mod acl;
mod create;
mod data;
mod directories;
mod flock;
mod links;
mod listing;
mod lookup;
mod open;
mod owner;
mod permission;
mod posix_lock;
mod rename;
mod rename_flags;
mod shape;
mod space;
mod sticky;
mod times;
mod volume;
mod xattr;

/// Every case, group by group.
#[must_use]
pub fn cases() -> Vec<Case> {
    [
        lookup::CASES,
        create::CASES,
        directories::CASES,
        links::CASES,
        rename::CASES,
        rename_flags::CASES,
        open::CASES,
        data::CASES,
        shape::CASES,
        space::CASES,
        xattr::CASES,
        acl::CASES,
        posix_lock::CASES,
        flock::CASES,
        times::CASES,
        permission::CASES,
        sticky::CASES,
        owner::CASES,
        listing::CASES,
        volume::CASES,
    ]
    .concat()
}

/// A user without privileges.
fn alice() -> Cred {
    Cred::user(1001, 1001)
}

/// Another, who shares no group with [`alice`].
fn bob() -> Cred {
    Cred::user(1002, 1002)
}

/// A third, in group `gid` besides their own.
fn member(gid: u32) -> Cred {
    Cred { groups: vec![gid], ..Cred::user(1003, 1003) }
}

/// Skips a case that takes several users when the front cannot be them.
fn needs_users(t: &Actor<'_>) -> Outcome {
    needs(t.features().any_cred, "needs root, to be other users")
}

/// Lets the clock that stamps inodes tick.
fn tick() {
    std::thread::sleep(Duration::from_millis(12));
}

/// `len` bytes without a pattern an offset error could hide in.
pub(crate) fn pattern(len: usize, seed: u64) -> Vec<u8> {
    let mut state = seed | 1;
    let mut bytes = Vec::with_capacity(len + 8);
    while bytes.len() < len {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        bytes.extend((state ^ (state >> 29)).to_le_bytes());
    }
    bytes.truncate(len);
    bytes
}
