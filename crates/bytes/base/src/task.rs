//! Work on a store is `async fn` without a runtime; these are the few things it needs of one.

mod join;

use std::future::Future;
use std::pin::Pin;

pub use join::{join_all, join2, try_join_abreast};

/// Work that waits for something.
pub type Work = Pin<Box<dyn Future<Output = ()>>>;

/// The world's executor: runs on the thread of who spawns.
pub trait Spawn {
    /// Polls work at once, and takes it over if it must wait for something.
    fn spawn(&self, work: Work);
}
