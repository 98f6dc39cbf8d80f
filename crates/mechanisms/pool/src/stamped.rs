//! A map in an object that only its owner changes, by compare-and-swap of a stamp.
//!
//! ```text
//! key "a" | claim epoch (8) | attempt (8) | pairs (8) | bytes (8) |              little-endian
//! ```
//!
//! Every attempt has a number of its own, never used again, and asks for the stamp that was there.
//! So an attempt in doubt lands before the next one or never, once or not at all; and whoever finds
//! a later claim epoch in a stamp knows that it has lost the volume.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::port::{Guard, Op, Pool, PoolError, Step};
use outboard_kv::{Key, Value};

/// The key of the stamp.
pub(crate) const STAMP: &[u8] = b"a";

/// How often an attempt is made while others of ours, in doubt, land.
const ATTEMPTS: usize = 16;

/// What a stamp says.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Stamp {
    pub(crate) claim_epoch: u64,
    pub(crate) attempt: u64,
    /// What the map holds at most: pairs, and bytes of keys and values.
    pub(crate) pairs: u64,
    pub(crate) bytes: u64,
}

impl Stamp {
    pub(crate) fn encode(self) -> Value {
        let numbers = [self.claim_epoch, self.attempt, self.pairs, self.bytes];
        numbers.map(u64::to_le_bytes).concat().into()
    }

    fn decode(bytes: &[u8]) -> Option<Stamp> {
        let (words, []) = bytes.as_chunks::<8>() else { return None };
        let &[claim_epoch, attempt, pairs, bytes] = words else { return None };
        let [claim_epoch, attempt, pairs, bytes] =
            [claim_epoch, attempt, pairs, bytes].map(u64::from_le_bytes);
        Some(Stamp { claim_epoch, attempt, pairs, bytes })
    }
}

/// Who changes things: the claim epoch, and what numbers its attempts.
#[derive(Clone, Debug)]
pub(crate) struct Owner {
    pub(crate) claim_epoch: u64,
    attempts: Arc<AtomicU64>,
}

impl Owner {
    pub(crate) fn new(claim_epoch: u64) -> Owner {
        Owner { claim_epoch, attempts: Arc::default() }
    }

    fn attempt(&self) -> u64 {
        self.attempts.fetch_add(1, Ordering::Relaxed)
    }
}

/// Why a change was not made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Refused {
    /// The pool failed: try again.
    Pool(PoolError),
    /// A later owner has been here.
    Lost,
    /// It was to be made, and exists.
    Exists,
    /// The object or its stamp is not what it must be.
    Corrupt,
}

impl From<PoolError> for Refused {
    fn from(error: PoolError) -> Refused {
        match error {
            PoolError::NotFound => Refused::Corrupt,
            PoolError::Fenced => Refused::Lost,
            error => Refused::Pool(error),
        }
    }
}

/// The object as its owner knows it.
#[derive(Debug)]
pub(crate) struct Stamped {
    object: String,
    /// The stamp there, unless an attempt is or was in doubt.
    known: Mutex<Option<Stamp>>,
}

impl Stamped {
    pub(crate) fn new(object: String) -> Stamped {
        Stamped { object, known: Mutex::new(None) }
    }

    /// The object's name.
    pub(crate) fn object(&self) -> &str {
        &self.object
    }

    fn known(&self) -> MutexGuard<'_, Option<Stamp>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What the map holds at most, if known.
    pub(crate) fn size(&self) -> Option<(u64, u64)> {
        self.known().map(|stamp| (stamp.pairs, stamp.bytes))
    }

    /// The stamp in the object.
    pub(crate) async fn stamp<P: Pool>(&self, pool: &P) -> Result<Stamp, Refused> {
        if let Some(stamp) = *self.known() {
            return Ok(stamp);
        }
        let found = pool.map_get(&self.object, &[Key::from(STAMP)]).await?;
        let found = found.into_iter().next().flatten().and_then(|value| Stamp::decode(&value));
        let found = found.ok_or(Refused::Corrupt)?;
        *self.known() = Some(found);
        Ok(found)
    }

    /// Does the steps. `size` makes the new counts from the old. One change at a time.
    pub(crate) async fn change<P: Pool>(
        &self,
        pool: &P,
        owner: &Owner,
        steps: Vec<Step>,
        size: impl Fn(u64, u64) -> (u64, u64),
    ) -> Result<(), Refused> {
        for _ in 0..ATTEMPTS {
            let stamp = self.stamp(pool).await?;
            if stamp.claim_epoch > owner.claim_epoch {
                return Err(Refused::Lost);
            }
            let (pairs, bytes) = size(stamp.pairs, stamp.bytes);
            let attempt = owner.attempt();
            let next = Stamp { claim_epoch: owner.claim_epoch, attempt, pairs, bytes };
            let mut op = Op::new()
                .when(Guard::MapEquals(STAMP.into(), stamp.encode()))
                .then(Step::MapSet(STAMP.into(), next.encode()))
                .essential();
            op.steps.extend(steps.iter().cloned());
            // In doubt until the answer is here, also if this future is dropped.
            *self.known() = None;
            match pool.apply(&self.object, op).await {
                Ok(()) => {
                    *self.known() = Some(next);
                    return Ok(());
                }
                Err(PoolError::Guard) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Err(Refused::Pool(PoolError::TimedOut))
    }

    /// Makes the object, with this in it.
    pub(crate) async fn make<P: Pool>(
        &self,
        pool: &P,
        owner: &Owner,
        steps: Vec<Step>,
    ) -> Result<(), Refused> {
        let attempt = owner.attempt();
        let stamp = Stamp { claim_epoch: owner.claim_epoch, attempt, pairs: 0, bytes: 0 };
        let mut op = Op::new()
            .when(Guard::Absent)
            .then(Step::MapSet(STAMP.into(), stamp.encode()))
            .essential();
        op.steps.extend(steps);
        match pool.apply(&self.object, op).await {
            Ok(()) => {
                *self.known() = Some(stamp);
                Ok(())
            }
            Err(PoolError::Guard) => Err(Refused::Exists),
            Err(error) => Err(error.into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_bytes_of_a_stamp_are_pinned() {
        let stamp = Stamp { claim_epoch: 1, attempt: 2, pairs: 3, bytes: 4 };
        let bytes = stamp.encode();
        let words = [1, 0, 0, 0, 0, 0, 0, 0, 2];
        assert!(bytes.starts_with(&words) && bytes.len() == 32);
        assert_eq!(Stamp::decode(&bytes), Some(stamp));
        assert_eq!(Stamp::decode(&bytes[..31]), None);
        assert_eq!(Stamp::decode(&[0; 40]), None);
    }
}
