//! A pool in memory that delays, reorders, repeats, times out and fences on command, by seed.
//!
//! [`MemPool`] is one client; clients of one [`MemCluster`] share the objects. What a client began
//! and never heard of again, because it timed out, was dropped or died, waits in the cluster and
//! lands at some later moment, if ever: as late as the port allows.

mod store;

use std::collections::{BTreeMap, BTreeSet};
use std::future::poll_fn;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Poll;

use outboard_base::{Errno, Rng};

use super::port::{Op, Pool, PoolError, PoolUsage, Scan};
use outboard_kv::{Key, Value};
use store::Store;

/// What goes wrong from now on. All off by default.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Faults {
    /// Each operation is pending for up to this many polls; those under way overtake each other.
    pub delay_polls: u64,
    /// One change in this many times out, done at once, late or never; 0 for none.
    pub time_outs: u64,
    /// One change in this many is done again later, though it was answered: worse than the port
    /// allows, and for what changes by compare-and-swap only; 0 for none.
    pub repeats: u64,
    /// One read in this many times out; 0 for none.
    pub read_time_outs: u64,
    /// Bytes of names, data, keys and values the pool holds; 0 for no limit.
    pub capacity: u64,
    /// Every operation times out, undone: the engine is gone.
    pub gone: bool,
    /// Fences shut nobody out, against the port's promise: what else stands in a late owner's way?
    pub void_fences: bool,
}

/// A change that may still land.
struct Late {
    instance: String,
    object: String,
    op: Op,
    /// Its future was dropped: [`Pool::settle`] waits for it.
    dropped: bool,
}

struct State {
    store: Store,
    late: Vec<Late>,
    faults: Faults,
    rng: Rng,
    /// Instances shut out, each with the objects others have touched since.
    fenced: BTreeMap<String, BTreeSet<String>>,
    clients: u64,
    /// Changes done so far.
    done: u64,
}

impl State {
    fn fails(&mut self, one_in: u64) -> bool {
        one_in != 0 && self.rng.chance(1, one_in)
    }

    /// Lets the instance at the object, or not. What is fenced is refused where others have been
    /// since; elsewhere the news may not have arrived.
    fn admit(&mut self, instance: &str, object: &str) -> Result<(), PoolError> {
        if self.faults.void_fences {
            return Ok(());
        }
        if let Some(touched) = self.fenced.get(instance) {
            let refused = touched.contains(object) || self.rng.chance(1, 2);
            return if refused { Err(PoolError::Fenced) } else { Ok(()) };
        }
        for touched in self.fenced.values_mut() {
            touched.insert(object.into());
        }
        Ok(())
    }

    fn perform(&mut self, instance: &str, object: &str, op: &Op) -> Result<(), PoolError> {
        self.admit(instance, object)?;
        self.store.apply(object, op, self.faults.capacity)?;
        self.done += 1;
        Ok(())
    }

    /// Some of what is late lands, in any order.
    fn land_some(&mut self, one_in: u64) {
        let mut at = if self.faults.gone { self.late.len() } else { 0 };
        while at < self.late.len() {
            if self.rng.chance(1, one_in) {
                let late = self.late.swap_remove(at);
                // Nobody hears how it ended.
                let _ = self.perform(&late.instance, &late.object, &late.op);
            } else {
                at += 1;
            }
        }
    }

    /// A change arrives: done, and answered, as the faults have it.
    fn arrive(&mut self, instance: &str, object: &str, op: &Op) -> Result<(), PoolError> {
        let Faults { time_outs, repeats, gone, .. } = self.faults;
        if gone {
            return Err(PoolError::TimedOut);
        }
        let late = |dropped| Late {
            instance: instance.into(),
            object: object.into(),
            op: op.clone(),
            dropped,
        };
        if self.fails(time_outs) {
            match self.rng.below(3) {
                0 => drop(self.perform(instance, object, op)),
                1 => self.late.push(late(false)),
                _ => {}
            }
            return Err(PoolError::TimedOut);
        }
        let outcome = self.perform(instance, object, op);
        if outcome.is_ok() && self.fails(repeats) {
            self.late.push(late(false));
        }
        outcome
    }
}

/// The objects, and what is on its way to them.
#[derive(Clone)]
pub struct MemCluster {
    state: Arc<Mutex<State>>,
}

impl MemCluster {
    /// No objects yet; faults follow `seed`.
    #[must_use]
    pub fn new(seed: u64) -> MemCluster {
        MemCluster {
            state: Arc::new(Mutex::new(State {
                store: Store::default(),
                late: Vec::new(),
                faults: Faults::default(),
                rng: Rng::new(seed),
                fenced: BTreeMap::new(),
                clients: 0,
                done: 0,
            })),
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sets what goes wrong from now on.
    pub fn set_faults(&self, faults: Faults) {
        self.lock().faults = faults;
    }

    /// A new client.
    #[must_use]
    pub fn client(&self) -> MemPool {
        let mut state = self.lock();
        state.clients += 1;
        let instance = format!("client-{}", state.clients);
        MemPool { cluster: self.clone(), instance, life: Mutex::new(None) }
    }

    /// How many changes were done so far, by everybody.
    #[must_use]
    pub fn done(&self) -> u64 {
        self.lock().done
    }

    /// The names of all objects, in order.
    #[must_use]
    pub fn objects(&self) -> Vec<String> {
        self.lock().store.names().map(String::from).collect()
    }

    /// Pairs in the map of an object.
    #[must_use]
    pub fn map_len(&self, object: &str) -> usize {
        self.lock().store.map_len(object)
    }

    /// Flips one bit of an object's bytes, if it has that one.
    pub fn corrupt(&self, object: &str, offset: usize) {
        self.lock().store.corrupt(object, offset);
    }
}

/// One client of a [`MemCluster`].
pub struct MemPool {
    cluster: MemCluster,
    instance: String,
    /// Operations it may still begin; `None` for any number. At zero it is dead: nothing it waits
    /// for ever ends.
    life: Mutex<Option<u64>>,
}

/// A change under way; dropped before its end it becomes late, or was never sent.
struct Sending<'a> {
    pool: &'a MemPool,
    object: &'a str,
    op: Option<Op>,
}

impl Drop for Sending<'_> {
    fn drop(&mut self) {
        let Some(op) = self.op.take() else { return };
        let mut state = self.pool.cluster.lock();
        if state.rng.chance(1, 2) {
            state.late.push(Late {
                instance: self.pool.instance.clone(),
                object: self.object.into(),
                op,
                dropped: true,
            });
        }
    }
}

impl MemPool {
    /// The cluster it belongs to.
    #[must_use]
    pub fn cluster(&self) -> &MemCluster {
        &self.cluster
    }

    /// It dies after beginning so many more operations: what is under way then may land or not.
    pub fn die_after(&self, operations: u64) {
        *self.life() = Some(operations);
    }

    /// Whether it is dead.
    #[must_use]
    pub fn is_dead(&self) -> bool {
        *self.life() == Some(0)
    }

    fn life(&self) -> MutexGuard<'_, Option<u64>> {
        self.life.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts an operation begun, and waits as long as it takes; for ever, if the client dies.
    async fn travel(&self) {
        if let Some(left) = self.life().as_mut() {
            *left = left.saturating_sub(1);
        }
        let mut polls = {
            let mut state = self.cluster.lock();
            let max = state.faults.delay_polls;
            if max == 0 { 0 } else { state.rng.below(max + 1) }
        };
        poll_fn(|cx| {
            self.cluster.lock().land_some(16);
            cx.waker().wake_by_ref();
            if self.is_dead() {
                return Poll::Pending;
            }
            if polls == 0 {
                return Poll::Ready(());
            }
            polls -= 1;
            Poll::Pending
        })
        .await;
    }

    /// A read arrives.
    async fn ask<T>(
        &self,
        object: &str,
        answer: impl FnOnce(&Store) -> Result<T, PoolError>,
    ) -> Result<T, PoolError> {
        self.travel().await;
        let mut state = self.cluster.lock();
        let one_in = state.faults.read_time_outs;
        if state.faults.gone || state.fails(one_in) {
            return Err(PoolError::TimedOut);
        }
        state.admit(&self.instance, object)?;
        answer(&state.store)
    }
}

impl Pool for MemPool {
    async fn apply(&self, object: &str, op: Op) -> Result<(), PoolError> {
        assert!(op.bytes() <= Self::OP_MAX, "{} bytes in one operation", op.bytes());
        let mut sending = Sending { pool: self, object, op: Some(op) };
        self.travel().await;
        let Some(op) = sending.op.take() else { return Err(PoolError::Io(Errno::EIO)) };
        self.cluster.lock().arrive(&self.instance, object, &op)
    }

    async fn read(&self, object: &str, offset: u64, len: usize) -> Result<Vec<u8>, PoolError> {
        self.ask(object, |store| store.read(object, offset, len)).await
    }

    async fn map_get(&self, object: &str, keys: &[Key]) -> Result<Vec<Option<Value>>, PoolError> {
        self.ask(object, |store| store.map_get(object, keys)).await
    }

    async fn map_scan(
        &self,
        object: &str,
        prefix: &[u8],
        after: Option<&[u8]>,
        limit: usize,
    ) -> Result<Scan, PoolError> {
        let fewer = self.cluster.lock().rng.below(limit.max(1) as u64);
        let fewer = usize::try_from(fewer).unwrap_or(0) + 1;
        // With delays it bounds its answers, too.
        let delays = self.cluster.lock().faults.delay_polls > 0;
        let limit = if delays { fewer } else { limit };
        self.ask(object, |store| store.map_scan(object, prefix, after, limit)).await
    }

    async fn stat(&self, object: &str) -> Result<u64, PoolError> {
        self.ask(object, |store| store.stat(object)).await
    }

    async fn list(&self, limit: usize) -> Result<Vec<String>, PoolError> {
        self.ask("", |store| Ok(store.names().take(limit).map(String::from).collect())).await
    }

    async fn usage(&self) -> Result<PoolUsage, PoolError> {
        let capacity = self.cluster.lock().faults.capacity;
        let capacity = if capacity == 0 { u64::MAX } else { capacity };
        self.ask("", |store| Ok(PoolUsage { capacity, used: store.bytes() })).await
    }

    async fn settle(&self) -> Result<(), PoolError> {
        self.travel().await;
        let mut state = self.cluster.lock();
        let mut outcome = Ok(());
        while let Some(at) =
            state.late.iter().position(|late| late.dropped && late.instance == self.instance)
        {
            let late = state.late.swap_remove(at);
            let ended = state.arrive(&self.instance, &late.object, &late.op);
            outcome = outcome.and(ended);
        }
        outcome
    }

    async fn fence(&self, instance: &str) -> Result<(), PoolError> {
        self.travel().await;
        let mut state = self.cluster.lock();
        if state.faults.gone {
            return Err(PoolError::TimedOut);
        }
        state.admit(&self.instance, "")?;
        state.land_some(2);
        state.fenced.entry(instance.into()).or_default();
        Ok(())
    }

    fn instance(&self) -> String {
        self.instance.clone()
    }

    fn identity(&self) -> String {
        "memory".into()
    }
}
