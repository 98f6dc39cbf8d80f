//! Work on a store is `async fn` without a runtime; these are the few things it needs of one.
//!
//! Each exists once: [`Mutex`] for what is done one at a time (and the leader of a group commit),
//! [`RangeLocks`] for bytes of files, [`WaitList`] for anything else that is waited for,
//! [`Recurring`] for what is done again and again,
//! [`join_all`] and its kin for work side by side, [`poll_once`] and [`run`] for who polls by hand.
//! None reads a clock or knows a thread; who sleeps, and is woken by a waker, is a world's.

mod join;
mod mutex;
mod poll;
mod range_lock;
mod recurring;
mod wait;

use std::future::Future;
use std::pin::Pin;

pub use join::{join_all, join2, try_join_abreast, try_join_all};
pub use mutex::{Mutex, MutexGuard};
pub use poll::{poll_for, poll_once, run, yield_now};
pub use range_lock::{RangeGuard, RangeLocks, RangeQueue, RangeRequest};
pub use recurring::Recurring;
pub use wait::WaitList;

/// Work that waits for something.
pub type Work = Pin<Box<dyn Future<Output = ()>>>;

/// The world's executor: runs on the thread of who spawns.
pub trait Spawn {
    /// Polls work at once, and takes it over if it must wait for something.
    fn spawn(&self, work: Work);
}
