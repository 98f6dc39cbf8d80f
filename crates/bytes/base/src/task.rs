//! Work on a store is `async fn` without a runtime; these are the few things it needs of one.

use std::future::Future;
use std::pin::Pin;

/// Work that waits for something.
pub type Work = Pin<Box<dyn Future<Output = ()>>>;

/// The world's executor: runs on the thread of who spawns.
pub trait Spawn {
    /// Polls work at once, and takes it over if it must wait for something.
    fn spawn(&self, work: Work);
}
