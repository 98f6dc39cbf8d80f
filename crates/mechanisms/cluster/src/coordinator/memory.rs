//! A coordinator in memory, for tests: it loses sessions, questions and answers when a seed says.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use outboard_base::{Errno, Result, Rng, Time};

use super::{Coordinator, Entry, Table};

struct State {
    table: Table,
    now: Time,
    rng: Rng,
    /// One question in so many goes wrong; 0: none.
    one_in: u64,
    is_away: bool,
}

/// A coordinator that several parts use.
#[derive(Clone)]
pub(super) struct Memory(Arc<Mutex<State>>);

/// One part's way to it.
pub(super) struct Way {
    memory: Memory,
    session: Mutex<u64>,
}

impl Memory {
    /// An empty one whose sessions go on for so long.
    #[must_use]
    pub(super) fn new(term: Duration, seed: u64) -> Memory {
        let (table, rng) = (Table::new(term), Rng::new(seed));
        Memory(Arc::new(Mutex::new(State { table, now: Time(1), rng, one_in: 0, is_away: false })))
    }

    /// One question in so many goes wrong from now on: lost before or after it was done.
    pub(super) fn fails(&self, one_in: u64) {
        self.state().one_in = one_in;
    }

    /// Nobody is answered.
    pub(super) fn is_away(&self, is_away: bool) {
        self.state().is_away = is_away;
    }

    /// Time passes.
    pub(super) fn passes(&self, time: Duration) {
        let mut state = self.state();
        state.now = state.now.after(time);
        let now = state.now;
        state.table.expire(now);
    }

    /// It ends and starts again with what it kept.
    pub(super) fn restarts(&self, term: Duration) {
        let mut state = self.state();
        let (last, all) = state.table.to_keep();
        let all = all.map(|(name, kept)| (name.clone(), kept.clone())).collect();
        state.table = Table::kept(term, last, all, state.now);
    }

    /// A way to it.
    #[must_use]
    pub(super) fn way(&self) -> Way {
        Way { memory: self.clone(), session: Mutex::new(0) }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn ask<T>(&self, what: impl FnOnce(&mut Table, Time) -> Result<T>) -> Result<T> {
        let mut state = self.state();
        let one_in = state.one_in;
        let goes_wrong = one_in > 0 && state.rng.chance(1, one_in);
        if state.is_away || (goes_wrong && state.rng.chance(1, 2)) {
            return Err(Errno::EIO);
        }
        let now = state.now;
        let done = what(&mut state.table, now);
        if goes_wrong { Err(Errno::EIO) } else { done }
    }
}

impl Way {
    fn session(&self) -> MutexGuard<'_, u64> {
        self.session.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Coordinator for Way {
    async fn beat(&self) -> Result<()> {
        let known = *self.session();
        let beaten = self.memory.ask(|table, now| table.beat(known, now));
        if beaten == Err(Errno::ENOTCONN) {
            *self.session() = 0;
        }
        *self.session() = beaten?;
        Ok(())
    }

    async fn list(&self, prefix: &str) -> Result<Vec<Entry>> {
        self.memory.ask(|table, _| Ok(table.list(prefix)))
    }

    async fn put(&self, name: &str, value: &str, version: Option<u64>, stays: bool) -> Result<()> {
        let session = if stays { 0 } else { *self.session() };
        if !stays && session == 0 {
            return Err(Errno::ENOTCONN);
        }
        let put = self.memory.ask(|table, now| table.put(name, value, version, session, now));
        put.map(drop)
    }

    async fn remove(&self, name: &str, version: u64) -> Result<()> {
        self.memory.ask(|table, _| table.remove(name, version))
    }
}
