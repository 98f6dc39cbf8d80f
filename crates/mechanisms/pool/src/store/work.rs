//! The worker: carries the overlay into the shards, trims the journal, splits what is too large,
//! merges what is too small.

use std::ops::Bound;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::super::journal;
use super::super::overlay::Portion;
use super::super::port::{Op, Pool, PoolError, Step};
use super::super::root::{Root, Shard, pair_key, set, shard_name};
use super::super::stamped::Refused;
use super::{PooledKv, State, kv_error};
use outboard_kv::{Key, KvError};

/// Most pairs and bytes one operation changes.
pub(super) const PAIRS: usize = 1000;
pub(super) const BYTES: usize = 2 << 20;

impl<P: Pool> PooledKv<P> {
    /// Does what is due whenever something is, until [`PooledKv::stop`].
    ///
    /// # Errors
    ///
    /// The pool failed, and it is to be called again after a while; or the store has, for good
    /// ([`PooledKv::is_poisoned`]).
    pub async fn work(&self) -> Result<(), KvError> {
        loop {
            let due = || {
                let state = self.lock();
                (state.failed.is_some() || state.is_due(&self.options)).then_some(())
            };
            self.due.until(due).await;
            {
                let state = self.lock();
                if state.stopping {
                    return Ok(());
                }
                if let Some(error) = state.failed {
                    return Err(error);
                }
            }
            self.work_once(|state| !state.is_due(&self.options)).await?;
        }
    }

    /// Carries everything into the shards and empties the journal: before the claim is released,
    /// so that the next opening finds nothing to do.
    ///
    /// # Errors
    ///
    /// The pool failed: nothing is lost, the next opening does it.
    pub async fn drain(&self) -> Result<(), KvError> {
        let now = self.lock().versions.now();
        self.journaled(now.0).await?;
        {
            let mut state = self.lock();
            if state.journal.len > 0 && state.group.is_none() {
                state.journal.rotate();
            }
        }
        self.work_once(|state| state.journal.old.is_empty()).await
    }

    /// Asks every shard how much is in it, so that [`PooledKv::counts`] knows of all.
    ///
    /// # Errors
    ///
    /// The pool failed, or the store has, for good.
    pub async fn survey(&self) -> Result<(), KvError> {
        let failed = || self.lock().failed.map(Err);
        let _guard = match self.working.lock_unless(failed).await {
            Err(outcome) => return outcome,
            Ok(guard) => guard,
        };
        let shards: Vec<_> = self.lock().root.shards.values().cloned().collect();
        for shard in shards {
            shard.map.stamp(&*self.pool).await.map_err(|refused| self.refused(refused))?;
        }
        Ok(())
    }

    /// One pass of work, unless `done` by another's.
    pub(super) async fn work_once(&self, done: impl Fn(&State) -> bool) -> Result<(), KvError> {
        let over = || {
            let state = self.lock();
            if let Some(error) = state.failed {
                return Some(Err(error));
            }
            done(&state).then_some(Ok(()))
        };
        let _guard = match self.working.lock_unless(over).await {
            Err(outcome) => return outcome,
            Ok(guard) => guard,
        };
        self.recall().await.map_err(|refused| self.refused(refused))?;
        self.finish_split().await.map_err(|refused| self.refused(refused))?;
        self.sweep().await.map_err(|refused| self.refused(refused))?;
        self.split_large().await.map_err(|refused| self.refused(refused))?;
        self.merge_small().await.map_err(|refused| self.refused(refused))?;
        self.refresh_usage().await
    }

    /// Asks for the space there is.
    pub(super) async fn refresh_usage(&self) -> Result<(), KvError> {
        let usage = self.pool.usage().await.map_err(kv_error)?;
        let mut state = self.lock();
        state.usage = usage;
        state.since = 0;
        Ok(())
    }

    /// Changes the root object. Until the answer is here, memory may not say what it does.
    pub(super) async fn change_root(&self, steps: Vec<Step>) -> Result<(), Refused> {
        self.lock().doubt = true;
        self.root.change(&*self.pool, &self.owner, steps, |pairs, bytes| (pairs, bytes)).await?;
        self.lock().doubt = false;
        Ok(())
    }

    /// Learns what the root object says, if that is in doubt.
    async fn recall(&self) -> Result<(), Refused> {
        let root = {
            let state = self.lock();
            if !state.doubt {
                return Ok(());
            }
            state.root.clone()
        };
        // A change of its own first: nothing that was in doubt lands after it.
        self.root.change(&*self.pool, &self.owner, Vec::new(), |p, b| (p, b)).await?;
        let root = Root::load(&*self.pool, Some(&root)).await?;
        let mut state = self.lock();
        state.root = root;
        state.ranges += 1;
        state.doubt = false;
        Ok(())
    }

    /// Carries what the overlay holds into the shards, then removes the journal objects that were
    /// left when this began.
    async fn sweep(&self) -> Result<(), Refused> {
        let upto = self.lock().journal.object;
        let mut from = Bound::Included(Key::default());
        loop {
            let (shard, portion) = {
                let state = self.lock();
                let Some(first) = state.overlay.next(from.as_ref().map(|key| &key[..])) else {
                    break;
                };
                let (shard, end) = state.root.locate(&first).ok_or(Refused::Corrupt)?;
                (shard, state.overlay.portion(&first, end.as_ref(), PAIRS, BYTES))
            };
            if let Some((last, ..)) = portion.last() {
                from = Bound::Excluded(last.clone());
            }
            self.apply(&shard, &portion).await?;
            self.lock().overlay.applied(portion);
        }
        self.trim(upto).await
    }

    /// Puts a portion of the overlay into its shard.
    async fn apply(&self, shard: &Arc<Shard>, portion: &Portion) -> Result<(), Refused> {
        let (mut pairs, mut bytes) = (0, 0);
        let step = |(key, _, value): &(Key, u64, Option<outboard_kv::Value>)| match value {
            Some(value) => {
                pairs += 1;
                bytes += (key.len() + value.len()) as u64;
                Step::MapSet(pair_key(key), value.clone())
            }
            None => Step::MapRemove(pair_key(key)),
        };
        let steps = portion.iter().map(step).collect();
        let removed = portion.len() as u64 - pairs;
        // At most: what was there before may have been replaced.
        let size = |p: u64, b: u64| (p.saturating_add(pairs), b.saturating_add(bytes));
        shard.map.change(&*self.pool, &self.owner, steps, size).await?;
        shard.removed.fetch_add(removed, Ordering::Relaxed);
        Ok(())
    }

    /// Removes the journal objects below this one.
    async fn trim(&self, upto: u64) -> Result<(), Refused> {
        if self.lock().journal.old.front().is_none_or(|(object, _)| *object >= upto) {
            return Ok(());
        }
        // First they no longer count, so that none is missed that counts.
        self.change_root(vec![set(b"j", upto)]).await?;
        self.lock().root.journal = upto;
        loop {
            let object = match self.lock().journal.old.front() {
                Some((object, _)) if *object < upto => *object,
                _ => return Ok(()),
            };
            remove(&*self.pool, &journal::name(object)).await?;
            let mut state = self.lock();
            if let Some((_, len)) = state.journal.old.pop_front() {
                state.journal.bytes = state.journal.bytes.saturating_sub(len);
            }
        }
    }

    /// Takes away what a split or a merge that was not completed has left.
    pub(super) async fn finish_split(&self) -> Result<(), Refused> {
        let (tentative, remains) = {
            let state = self.lock();
            (state.root.tentative, state.root.remains.clone())
        };
        if let Some(id) = tentative {
            // Its number is never used again, so what is in doubt may still land there.
            remove(&*self.pool, &shard_name(id)).await?;
            self.change_root(vec![Step::MapRemove(b"t".into())]).await?;
            self.lock().root.tentative = None;
        }
        if let Some((id, from)) = remains {
            self.clean(id, &from).await?;
        }
        Ok(())
    }
}

/// Removes an object that may be gone already.
pub(super) async fn remove<P: Pool>(pool: &P, object: &str) -> Result<(), Refused> {
    match pool.apply(object, Op::new().then(Step::Remove).essential()).await {
        Ok(()) | Err(PoolError::NotFound) => Ok(()),
        Err(error) => Err(error.into()),
    }
}
