//! Which attachments' replay records are of no more use, and dropping them.

use std::collections::HashSet;
use std::sync::{Mutex, MutexGuard, PoisonError};

use outboard_base::{Errno, Result, SessionId};
use outboard_kv::{Batch, Durability, Kv, KvError};
use outboard_medium::Medium;

use crate::Kvfs;
use crate::layout::key;

/// Records dropped in one batch.
const RECORDS: usize = 1024;

#[derive(Default)]
struct State {
    /// Attachments that have changed something since the opening.
    seen: HashSet<SessionId>,
    /// Attachments that are gone, whose records are still there.
    ended: HashSet<SessionId>,
}

/// Attachments, as far as their replay records are concerned.
#[derive(Default)]
pub(crate) struct Sessions(Mutex<State>);

impl Sessions {
    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The attachment lives: its records stay.
    pub(crate) fn seen(&self, session: SessionId) {
        let mut state = self.state();
        if state.seen.insert(session) {
            state.ended.remove(&session);
        }
    }

    /// The attachment is gone.
    pub(crate) fn ended(&self, session: SessionId) {
        let mut state = self.state();
        state.seen.remove(&session);
        state.ended.insert(session);
    }

    fn ended_unless_seen(&self, session: SessionId) {
        let mut state = self.state();
        if !state.seen.contains(&session) {
            state.ended.insert(session);
        }
    }

    fn an_ended(&self) -> Option<SessionId> {
        self.state().ended.iter().next().copied()
    }

    fn dropped(&self, session: SessionId) {
        self.state().ended.remove(&session);
    }
}

impl<K: Kv, M: Medium> Kvfs<K, M> {
    /// Finds sessions that have records and have not been seen since the opening.
    pub(crate) async fn find_ended_sessions(&self) -> Result<()> {
        let mut after: Option<Vec<u8>> = None;
        loop {
            let prefix = [key::Tag::Replay as u8];
            let found = self.kv.scan(&prefix, after.as_deref(), 1).await.map_err(KvError::errno)?;
            let Some((found, _)) = found.first() else { return Ok(()) };
            let session = SessionId(key::number(found).ok_or(Errno::EUCLEAN)?);
            self.sessions.ended_unless_seen(session);
            // No lane lies behind the last.
            after = Some(key::replay(session, u16::MAX));
        }
    }

    /// Drops some records of sessions that ended; true if there may be more.
    pub(crate) async fn drop_records(&self) -> Result<bool> {
        let Some(session) = self.sessions.an_ended() else { return Ok(false) };
        let prefix = key::replay_prefix(session);
        let found = self.kv.scan(&prefix, None, RECORDS).await.map_err(KvError::errno)?;
        let last = found.len() < RECORDS;
        let mut batch = Batch::new();
        batch.essential();
        found.into_iter().for_each(|(key, _)| batch.delete(key));
        if !batch.is_empty() {
            self.kv.commit(batch, Durability::Answered).await.map_err(KvError::errno)?;
        }
        if last {
            self.sessions.dropped(session);
        }
        Ok(true)
    }
}
