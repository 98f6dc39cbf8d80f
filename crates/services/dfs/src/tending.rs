//! What a client does unasked: for whoever has its thread, and the same in every world.

use std::cell::Cell;
use std::sync::Arc;
use std::time::Duration;

use outboard_base::Time;
use outboard_base::task::Spawn;
use outboard_flow::Net;

use crate::Dfs;

/// How often it renews its lease.
const EVERY: Duration = Duration::from_secs(1);

/// A client that is tended. The owner says when the server was answered, tends it after each pass
/// of its conversations, and sleeps until [`Tending::deadline`] at most.
pub struct Tending<N> {
    dfs: Arc<Dfs<N>>,
    next_beat: Cell<Time>,
    /// The server has said something: there may be work.
    has_heard: Cell<bool>,
}

impl<N: Net> Tending<N> {
    /// Of `dfs`, which has connected just now.
    #[must_use]
    pub fn new(dfs: Arc<Dfs<N>>, now: Time) -> Tending<N> {
        Tending { dfs, next_beat: Cell::new(now.after(EVERY)), has_heard: Cell::default() }
    }

    /// The client.
    #[must_use]
    pub fn dfs(&self) -> &Arc<Dfs<N>> {
        &self.dfs
    }

    /// What the server asked was answered.
    pub fn has_answered(&self) {
        self.has_heard.set(true);
    }

    /// Does what there is to do, without waiting; how much that was.
    pub fn tend(&self, now: Time, spawn: &dyn Spawn) -> usize {
        let beats = now >= self.next_beat.get();
        if beats {
            self.next_beat.set(now.after(EVERY));
            let dfs = Arc::clone(&self.dfs);
            spawn.spawn(Box::pin(async move { dfs.beat().await }));
        }
        let looks = self.has_heard.take() || beats;
        let works = if looks { self.dfs.take_work() } else { Vec::new() };
        // A session that is back waits until the server knows: not for a beat.
        let works = works.into_iter().chain(self.dfs.take_errands());
        works.map(|work| spawn.spawn(work)).count() + usize::from(beats)
    }

    /// When it is to be tended though nothing came.
    #[must_use]
    pub fn deadline(&self) -> Time {
        self.next_beat.get()
    }
}
