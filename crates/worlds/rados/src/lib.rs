//! Ceph RADOS behind the pool port: a thin binding over librados, and the driver.
//!
//! `Rados` answers [`outboard_pool::Pool`]: named objects with bytes and an ordered map, each
//! changed atomically under guards. What a volume is on top of that is not known here.
//!
//! - Many operations are in flight: each is one asynchronous call of librados whose callback wakes
//!   its future. Nothing is repeated here: librados sends an operation again when a daemon went
//!   away, under one request id, and the daemons answer what they have done.
//! - An operation that got no answer within the location's time limit ends as
//!   [`TimedOut`](outboard_pool::PoolError::TimedOut), in doubt; the next one may succeed.
//! - [`fence`](outboard_pool::Pool::fence) puts the other client on the cluster's block list
//!   and waits for the map of the cluster that says so. Every operation of ours carries that map's
//!   number, and a daemon does not look at an operation before it has the map it names: so from our
//!   first operation on an object, nothing of the fenced client is done to it.
//!
//! Without the feature `librados` only [`Location`] is built, and no system library is needed. See
//! `docs/internals/rados.md`.

mod location;

#[cfg(feature = "librados")]
mod aside;
#[cfg(feature = "librados")]
mod keys;
#[cfg(feature = "librados")]
mod meter;
#[cfg(feature = "librados")]
mod store;
#[cfg(feature = "librados")]
mod sys;
#[cfg(feature = "librados")]
mod tracker;

pub use location::{Location, NoLocation, SCHEME};
#[cfg(feature = "librados")]
pub use meter::{Figures, Subject, Tally};
#[cfg(feature = "librados")]
pub use store::{ConnectError, Rados};
