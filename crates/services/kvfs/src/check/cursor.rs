//! One table of the store, pair by pair.

use std::collections::VecDeque;

use outboard_base::task::yield_now;
use outboard_kv::{Key, Kv, KvError, Value};

use crate::layout::key::{self, Tag};

/// Pairs fetched at a time: a table's values are at most 64 KiB.
const SCAN: usize = 64;

/// A place in a table; goes forward only.
pub(super) struct Cursor<'k, K> {
    kv: &'k K,
    tag: Tag,
    after: Option<Key>,
    fetched: VecDeque<(Key, Value)>,
    ended: bool,
}

impl<'k, K: Kv> Cursor<'k, K> {
    pub(super) fn new(kv: &'k K, tag: Tag) -> Self {
        Cursor { kv, tag, after: None, fetched: VecDeque::new(), ended: false }
    }

    pub(super) fn tag(&self) -> Tag {
        self.tag
    }

    async fn fetch(&mut self) -> Result<(), KvError> {
        if self.fetched.is_empty() && !self.ended {
            yield_now().await;
            let pairs = self.kv.scan(&[self.tag as u8], self.after.as_deref(), SCAN).await?;
            self.ended = pairs.len() < SCAN;
            self.after = pairs.last().map(|(key, _)| key.clone()).or_else(|| self.after.take());
            self.fetched.extend(pairs);
        }
        Ok(())
    }

    /// The next pair.
    pub(super) async fn next(&mut self) -> Result<Option<(Key, Value)>, KvError> {
        self.fetch().await?;
        Ok(self.fetched.pop_front())
    }

    /// The number in the next key; a key without one counts as 0 and so belongs to nobody but the
    /// root.
    pub(super) async fn number(&mut self) -> Result<Option<u64>, KvError> {
        self.fetch().await?;
        Ok(self.fetched.front().map(|(key, _)| key::number(key).unwrap_or(0)))
    }
}
