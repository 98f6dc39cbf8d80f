//! librados, safely: what unsafe code there is stands in this module's files.
//!
//! librados is thread-safe; every operation on an object is asynchronous and ends in a callback on
//! a thread of librados, which wakes the future. A future may be dropped: what librados writes to
//! and reads from belongs to the call, which lives until its callback was made. Blocking calls
//! (connecting, the monitors' commands, listing) are made on threads by who needs them.

mod call;
mod cluster;
mod ffi;
mod list;
mod ops;

pub(crate) use call::{Call, Out};
pub(crate) use cluster::{Cluster, Handle};
pub(crate) use ops::WriteOp;

/// What librados says went wrong: a negated errno, or `-4095 - offset` of a comparison.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Code(pub(crate) i32);

impl Code {
    /// Success or failure of a return value.
    pub(crate) fn check(value: i32) -> Result<i32, Code> {
        if value < 0 { Err(Code(value)) } else { Ok(value) }
    }
}
