//! What one commit does, and what must hold for it to be done.

use crate::{Key, Kv, KvError, Value};

/// A moment in the order of commits, as [`Kv::version`] tells it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct Version(pub u64);

/// What an answered commit survives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Durability {
    /// Handed to the operating system: survives the death of our processes.
    Answered,
    /// On the device: survives power loss.
    Durable,
}

/// One write of a batch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Write {
    /// The key.
    pub key: Key,
    /// Its new value; `None` deletes.
    pub value: Option<Value>,
}

/// Something that must hold just before the batch is applied.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Condition {
    /// The key has no value.
    Absent(Key),
    /// The key has some value.
    Exists(Key),
    /// The key has exactly this value.
    Equals(Key, Value),
}

impl Condition {
    /// The key it speaks of.
    #[must_use]
    pub fn key(&self) -> &Key {
        match self {
            Condition::Absent(key) | Condition::Exists(key) | Condition::Equals(key, _) => key,
        }
    }

    /// Whether it holds when the key's value is `found`.
    #[must_use]
    pub fn holds(&self, found: Option<&[u8]>) -> bool {
        match self {
            Condition::Absent(_) => found.is_none(),
            Condition::Exists(_) => found.is_some(),
            Condition::Equals(_, value) => found == Some(&value[..]),
        }
    }
}

/// Writes applied together or not at all, under conditions judged at the same moment.
///
/// The last write to a key wins. Conditions speak of the store before the batch.
#[derive(Clone, Debug, Default)]
pub struct Batch {
    writes: Vec<Write>,
    conditions: Vec<Condition>,
    version: Option<Version>,
    essential: bool,
}

impl Batch {
    /// An empty batch, whose conditions are always looked up.
    #[must_use]
    pub fn new() -> Batch {
        Batch::default()
    }

    /// An empty batch that promises: every condition it will carry was seen to hold by a read begun
    /// after `version` was taken. The engine then looks up only keys committed to since.
    #[must_use]
    pub fn at(version: Version) -> Batch {
        Batch { version: Some(version), ..Batch::default() }
    }

    /// Sets `key` to `value`.
    pub fn put(&mut self, key: impl Into<Key>, value: impl Into<Value>) {
        self.writes.push(Write { key: key.into(), value: Some(value.into()) });
    }

    /// Removes `key`, which need not exist.
    pub fn delete(&mut self, key: impl Into<Key>) {
        self.writes.push(Write { key: key.into(), value: None });
    }

    /// Requires that `key` has no value.
    pub fn absent(&mut self, key: impl Into<Key>) {
        self.conditions.push(Condition::Absent(key.into()));
    }

    /// Requires that `key` has some value.
    pub fn exists(&mut self, key: impl Into<Key>) {
        self.conditions.push(Condition::Exists(key.into()));
    }

    /// Requires that `key` has exactly `value`.
    pub fn equals(&mut self, key: impl Into<Key>, value: impl Into<Value>) {
        self.conditions.push(Condition::Equals(key.into(), value.into()));
    }

    /// Lets this batch use the space kept in reserve: for work that frees space, or must not fail
    /// for want of it (deleting, truncating, logging).
    pub fn essential(&mut self) {
        self.essential = true;
    }

    /// What this batch itself does to `key`: `Some(Some(value))` puts, `Some(None)` deletes, `None`
    /// leaves alone. Linear in the batch.
    #[must_use]
    pub fn staged(&self, key: &[u8]) -> Option<Option<&Value>> {
        self.writes.iter().rev().find(|w| &w.key[..] == key).map(|w| w.value.as_ref())
    }

    /// The writes, in the order given.
    #[must_use]
    pub fn writes(&self) -> &[Write] {
        &self.writes
    }

    /// The conditions.
    #[must_use]
    pub fn conditions(&self) -> &[Condition] {
        &self.conditions
    }

    /// The version given to [`Batch::at`].
    #[must_use]
    pub fn version(&self) -> Option<Version> {
        self.version
    }

    /// Whether it may use the reserve.
    #[must_use]
    pub fn is_essential(&self) -> bool {
        self.essential
    }

    /// Whether it writes nothing (it may still carry conditions).
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.writes.is_empty()
    }

    /// Bytes of keys and values written.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.writes.iter().map(|w| w.key.len() + w.value.as_ref().map_or(0, |v| v.len())).sum()
    }

    /// Refuses keys, values and batches beyond the limits of `K`.
    pub fn check_limits<K: Kv>(&self) -> Result<(), KvError> {
        let fits = self.writes.iter().all(|write| {
            (1..=K::KEY_MAX).contains(&write.key.len())
                && write.value.as_ref().is_none_or(|value| value.len() <= K::VALUE_MAX)
        });
        if fits && self.bytes() <= K::BATCH_MAX { Ok(()) } else { Err(KvError::TooLarge) }
    }
}
