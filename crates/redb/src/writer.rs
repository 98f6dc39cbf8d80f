//! The thread that writes: one transaction for all that waits.

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::task::{Poll, Waker};

use outboard_base::Errno;
use outboard_kv::{Batch, KvError};
use redb::{Database, ReadableTable, Table};

use super::{PAIRS, failed};

/// Most bytes of batches in one transaction, if more than one.
const GROUP: usize = 8 << 20;

/// What becomes of a batch.
#[derive(Default)]
struct Outcome {
    ended: Option<Result<(), KvError>>,
    waker: Option<Waker>,
}

type Told = Arc<Mutex<Outcome>>;

struct Waiting {
    batch: Batch,
    told: Told,
}

#[derive(Default)]
struct State {
    queue: VecDeque<Waiting>,
    /// Transactions begun and ended.
    begun: u64,
    ended: u64,
    /// The last transaction that holds a batch whose future was dropped.
    orphan: u64,
    orphaned: Vec<Waker>,
    poisoned: bool,
    stopping: bool,
}

/// Batches on their way to the thread.
#[derive(Default)]
pub(super) struct Queue {
    state: Mutex<State>,
    work: Condvar,
}

/// A batch asked for. Dropped before it was begun, it never is.
pub(super) struct Asked<'a> {
    queue: &'a Queue,
    told: Told,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Asked<'_> {
    pub(super) fn poll(&self, waker: &Waker) -> Poll<Result<(), KvError>> {
        let mut outcome = lock(&self.told);
        match outcome.ended {
            Some(ended) => Poll::Ready(ended),
            None => {
                outcome.waker = Some(waker.clone());
                Poll::Pending
            }
        }
    }
}

impl Drop for Asked<'_> {
    fn drop(&mut self) {
        let mut state = lock(&self.queue.state);
        if lock(&self.told).ended.is_some() {
            return;
        }
        let queued = state.queue.iter().position(|w| Arc::ptr_eq(&w.told, &self.told));
        match queued {
            Some(at) => drop(state.queue.remove(at)),
            None => state.orphan = state.begun,
        }
    }
}

impl Queue {
    pub(super) fn ask(&self, batch: Batch) -> Result<Asked<'_>, KvError> {
        let told = Told::default();
        let mut state = lock(&self.state);
        if state.poisoned {
            return Err(KvError::Io(Errno::EIO));
        }
        state.queue.push_back(Waiting { batch, told: Arc::clone(&told) });
        self.work.notify_one();
        Ok(Asked { queue: self, told })
    }

    /// Whether a transaction with an orphan in it is under way; then its end wakes.
    pub(super) fn has_orphans(&self, waker: &Waker) -> bool {
        let mut state = lock(&self.state);
        let has = state.orphan > state.ended;
        if has {
            state.orphaned.push(waker.clone());
        }
        has
    }

    pub(super) fn health(&self) -> Result<(), KvError> {
        if lock(&self.state).poisoned { Err(KvError::Io(Errno::EIO)) } else { Ok(()) }
    }

    /// How many transactions have ended: what they wrote can be read.
    pub(super) fn version(&self) -> u64 {
        lock(&self.state).ended
    }

    /// The thread writes what is queued, and ends.
    pub(super) fn stop(&self) {
        lock(&self.state).stopping = true;
        self.work.notify_one();
    }

    /// The next group; `None` when it is to end.
    fn gather(&self) -> Option<Vec<Waiting>> {
        let state = lock(&self.state);
        let mut state = self
            .work
            .wait_while(state, |state| state.queue.is_empty() && !state.stopping)
            .unwrap_or_else(PoisonError::into_inner);
        let mut bytes = 0;
        let mut group = Vec::new();
        while let Some(next) = state.queue.front() {
            bytes += next.batch.bytes();
            if !group.is_empty() && bytes > GROUP {
                break;
            }
            group.extend(state.queue.pop_front());
        }
        state.begun += 1;
        (!group.is_empty()).then_some(group)
    }

    /// Writes group after group. After a failure whose outcome is unknown nothing is written any
    /// more.
    pub(super) fn serve(&self, database: &Database) {
        while let Some(group) = self.gather() {
            let poisoned = lock(&self.state).poisoned;
            let outcomes =
                if poisoned { Err(KvError::Io(Errno::EIO)) } else { write(database, &group) };
            let wakers = {
                let mut state = lock(&self.state);
                state.poisoned |= outcomes.is_err();
                state.ended = state.begun;
                std::mem::take(&mut state.orphaned)
            };
            for (at, waiting) in group.iter().enumerate() {
                let ended = match &outcomes {
                    Ok(outcomes) => {
                        outcomes.get(at).copied().unwrap_or(Err(KvError::Io(Errno::EIO)))
                    }
                    Err(error) => Err(*error),
                };
                let waker = {
                    let mut outcome = lock(&waiting.told);
                    outcome.ended = Some(ended);
                    outcome.waker.take()
                };
                waker.into_iter().for_each(Waker::wake);
            }
            wakers.into_iter().for_each(Waker::wake);
        }
    }
}

/// Does all batches whose conditions hold in one durable transaction; each one's outcome.
fn write(database: &Database, group: &[Waiting]) -> Result<Vec<Result<(), KvError>>, KvError> {
    let transaction = database.begin_write().map_err(|error| failed(&error.into()))?;
    let outcomes: Vec<Result<(), KvError>> = {
        let mut table = transaction.open_table(PAIRS).map_err(|error| failed(&error.into()))?;
        let done: Result<_, KvError> =
            group.iter().map(|waiting| apply(&mut table, &waiting.batch)).collect();
        done?
    };
    // A transaction of refusals only changes nothing.
    if outcomes.iter().all(Result::is_err) {
        transaction.abort().map_err(|error| failed(&error.into()))?;
    } else {
        transaction.commit().map_err(|error| failed(&error.into()))?;
    }
    Ok(outcomes)
}

type Pairs<'txn> = Table<'txn, &'static [u8], &'static [u8]>;

/// Does one batch, if its conditions hold.
fn apply(table: &mut Pairs<'_>, batch: &Batch) -> Result<Result<(), KvError>, KvError> {
    for condition in batch.conditions() {
        let found = table.get(&condition.key()[..]).map_err(super::read_failed)?;
        if !condition.holds(found.as_ref().map(redb::AccessGuard::value)) {
            return Ok(Err(KvError::Conflict));
        }
    }
    for write in batch.writes() {
        match &write.value {
            Some(value) => {
                drop(table.insert(&write.key[..], &value[..]).map_err(super::read_failed)?)
            }
            None => drop(table.remove(&write.key[..]).map_err(super::read_failed)?),
        }
    }
    Ok(Ok(()))
}
