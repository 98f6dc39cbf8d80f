//! The thread that writes. It does group commit: one durable transaction for all batches that wait.
//!
//! Whatever ends the thread, every batch gets an outcome: what the thread was working on by the
//! drop of [`Waiting`], what was queued by that of [`Serving`]; later batches are refused.

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::task::{Poll, Waker};

use outboard_base::Errno;
use outboard_kv::{Batch, KvError};
use redb::{Database, ReadableTable, Table};

use super::{PAIRS, failed};

/// Most bytes of batches in one group commit, if there is more than one.
const GROUP_COMMIT_MAX: usize = 8 << 20;

/// The answer of an engine that can no longer say what became of a batch.
const LOST: Result<(), KvError> = Err(KvError::Io(Errno::EIO));

/// What the engine did so far, and has before it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Batches asked for whose outcome is not known yet.
    pub waiting: u64,
    /// Durable transactions.
    pub transactions: u64,
    /// Batches in them, refused ones included.
    pub batches: u64,
}

/// What becomes of a batch: the thread resolves it, the batch's future polls it.
#[derive(Default)]
struct Outcome {
    ended: Option<Result<(), KvError>>,
    waker: Option<Waker>,
}

type SharedOutcome = Arc<Mutex<Outcome>>;

/// A batch somebody waits for; dropped without an outcome, that is an error.
pub(super) struct Waiting {
    batch: Batch,
    outcome: SharedOutcome,
}

impl Waiting {
    fn resolve(&self, ended: Result<(), KvError>) {
        let waker = {
            let mut outcome = lock(&self.outcome);
            if outcome.ended.is_some() {
                return;
            }
            outcome.ended = Some(ended);
            outcome.waker.take()
        };
        waker.into_iter().for_each(Waker::wake);
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        self.resolve(LOST);
    }
}

#[derive(Default)]
struct State {
    queue: VecDeque<Waiting>,
    /// Bytes of batches queued or being written.
    bytes: usize,
    /// Transactions begun and ended.
    begun: u64,
    ended: u64,
    /// The last transaction that holds a batch whose future was dropped.
    orphan: u64,
    orphaned: Vec<Waker>,
    poisoned: bool,
    stopping: bool,
    counts: Counts,
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
    outcome: SharedOutcome,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Asked<'_> {
    pub(super) fn poll(&self, waker: &Waker) -> Poll<Result<(), KvError>> {
        let mut outcome = lock(&self.outcome);
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
        if lock(&self.outcome).ended.is_some() {
            return;
        }
        let queued = state.queue.iter().position(|w| Arc::ptr_eq(&w.outcome, &self.outcome));
        match queued.and_then(|at| state.queue.remove(at)) {
            Some(never) => {
                state.bytes -= never.batch.bytes();
                state.counts.waiting -= 1;
            }
            None => state.orphan = state.begun,
        }
    }
}

impl Queue {
    pub(super) fn ask(&self, batch: Batch) -> Result<Asked<'_>, KvError> {
        let outcome = SharedOutcome::default();
        let mut state = lock(&self.state);
        if state.poisoned {
            return Err(KvError::Io(Errno::EIO));
        }
        state.bytes += batch.bytes();
        state.counts.waiting += 1;
        state.queue.push_back(Waiting { batch, outcome: Arc::clone(&outcome) });
        self.work.notify_one();
        Ok(Asked { queue: self, outcome })
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
        if lock(&self.state).poisoned { LOST } else { Ok(()) }
    }

    /// Bytes of batches that were asked for and may not be in the file yet.
    pub(super) fn bytes(&self) -> usize {
        lock(&self.state).bytes
    }

    pub(super) fn counts(&self) -> Counts {
        lock(&self.state).counts
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

    /// Waits for batches, and takes those of the next group commit; `None` when it is to end.
    fn next_group(&self) -> Option<Vec<Waiting>> {
        let state = lock(&self.state);
        let mut state = self
            .work
            .wait_while(state, |state| state.queue.is_empty() && !state.stopping)
            .unwrap_or_else(PoisonError::into_inner);
        let mut bytes = 0;
        let mut group = Vec::new();
        while let Some(next) = state.queue.front() {
            bytes += next.batch.bytes();
            if !group.is_empty() && bytes > GROUP_COMMIT_MAX {
                break;
            }
            group.extend(state.queue.pop_front());
        }
        state.begun += 1;
        (!group.is_empty()).then_some(group)
    }

    /// One group commit after another, each by `write`. After a failure whose outcome is unknown
    /// nothing is written any more.
    pub(super) fn serve(&self, mut write: impl FnMut(&[Waiting]) -> Outcomes) {
        let _serving = Serving(self);
        while let Some(group) = self.next_group() {
            let poisoned = lock(&self.state).poisoned;
            let outcomes = if poisoned { Err(KvError::Io(Errno::EIO)) } else { write(&group) };
            let wakers = {
                let mut state = lock(&self.state);
                state.poisoned |= outcomes.is_err();
                state.ended = state.begun;
                state.bytes -= group.iter().map(|waiting| waiting.batch.bytes()).sum::<usize>();
                let batches = group.len() as u64;
                state.counts.waiting -= batches;
                state.counts.batches += batches;
                state.counts.transactions += 1;
                std::mem::take(&mut state.orphaned)
            };
            for (at, waiting) in group.iter().enumerate() {
                waiting.resolve(match &outcomes {
                    Ok(outcomes) => outcomes.get(at).copied().unwrap_or(LOST),
                    Err(error) => Err(*error),
                });
            }
            wakers.into_iter().for_each(Waker::wake);
        }
    }
}

/// The thread serves until this is dropped: in order, with nothing left in the queue, or by a
/// panic.
struct Serving<'a>(&'a Queue);

impl Drop for Serving<'_> {
    fn drop(&mut self) {
        let (queue, wakers) = {
            let mut state = lock(&self.0.state);
            state.poisoned = true;
            state.ended = state.begun;
            state.bytes = 0;
            state.counts.waiting = 0;
            (std::mem::take(&mut state.queue), std::mem::take(&mut state.orphaned))
        };
        // Each gets its outcome here, outside of the lock.
        drop(queue);
        wakers.into_iter().for_each(Waker::wake);
    }
}

/// What became of each batch of a group commit, or why nobody knows.
type Outcomes = Result<Vec<Result<(), KvError>>, KvError>;

/// Does all batches whose conditions hold in one durable transaction; each one's outcome.
pub(super) fn write(database: &Database, group: &[Waiting]) -> Outcomes {
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

#[cfg(test)]
mod tests {
    use super::*;

    fn poll(asked: &Asked<'_>) -> Poll<Result<(), KvError>> {
        asked.poll(Waker::noop())
    }

    /// A panic of the thread, in the engine's own code for instance, left everybody waiting for
    /// ever who had asked or asked later.
    #[test]
    fn who_waits_for_a_thread_that_panics_is_told() {
        let queue = Queue::default();
        let first = queue.ask(Batch::new()).unwrap();
        let orphan = queue.ask(Batch::new()).unwrap();
        let second = queue.ask(Batch::new()).unwrap();
        assert!(poll(&first).is_pending());
        std::thread::scope(|scope| {
            let serving = scope.spawn(|| {
                queue.serve(|group| {
                    assert_eq!(group.len(), 3);
                    std::mem::forget(queue.ask(Batch::new()).unwrap());
                    panic!("as a fault of the engine would")
                });
            });
            assert!(serving.join().is_err());
        });
        drop(orphan);
        assert_eq!((poll(&first), poll(&second)), (Poll::Ready(LOST), Poll::Ready(LOST)));
        assert!(queue.ask(Batch::new()).is_err());
        assert!(queue.health().is_err());
        assert!(!queue.has_orphans(Waker::noop()), "nothing is under way that a read waits for");
        assert_eq!(queue.counts().waiting, 0);
    }
}
