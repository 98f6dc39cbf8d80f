//! Commits: judged in memory, appended to the journal in a group commit.

use std::collections::BTreeMap;
use std::sync::atomic::Ordering;

use outboard_base::Errno;

use super::super::journal::{self, OWNER, SEALED};
use super::super::port::{Guard, Op, Pool, PoolError, Step};
use super::{
    AGAIN, CommitGroup, GROUP_BYTES_MAX, PooledKv, Queued, REFUSED, State, Ticket, kv_error,
};
use outboard_kv::{Batch, Key, KvError, Value};

/// How often conditions are looked up again because others wrote the same keys meanwhile.
const LOOK_UPS: usize = 64;
/// How often an essential batch is tried that waits behind groups the pool has no space for.
const TRIES: usize = 64;

/// A commit that was judged; dropped before its end it becomes an orphan.
struct Judged<'a, P: Pool> {
    store: &'a PooledKv<P>,
    seq: u64,
    ticket: Ticket,
    over: bool,
}

impl<P: Pool> Drop for Judged<'_, P> {
    fn drop(&mut self) {
        if !self.over {
            let mut state = self.store.lock();
            state.orphan = state.orphan.max(self.seq);
        }
    }
}

/// Values read from shards, each with the number of the last commit judged before.
type Found = BTreeMap<Key, (u64, Option<Value>)>;

impl State {
    /// Which conditions are still to be looked up: none if all hold.
    fn judge(&self, batch: &Batch, found: &Found) -> Result<Vec<Key>, KvError> {
        let mut unknown = Vec::new();
        for condition in batch.conditions() {
            let key = condition.key();
            if batch.version().is_some_and(|at| !self.versions.written_since(key, at)) {
                continue;
            }
            let value = match self.overlay.newest(key) {
                Some(value) => value,
                None => match found.get(key) {
                    Some((at, value))
                        if !self.versions.written_since(key, outboard_kv::Version(*at)) =>
                    {
                        value.clone()
                    }
                    _ => {
                        unknown.push(key.clone());
                        continue;
                    }
                },
            };
            if !condition.holds(value.as_deref()) {
                return Err(KvError::Conflict);
            }
        }
        Ok(unknown)
    }

    /// Takes a judged batch into the queue.
    fn enqueue(&mut self, batch: &Batch) -> (u64, Ticket) {
        let seq = self.versions.record(batch).0;
        let ticket = Ticket::default();
        for write in batch.writes() {
            self.overlay.enqueue(seq, write);
        }
        let bytes = batch.writes().iter().map(journal::cost).sum();
        self.journal.queued += bytes as u64;
        self.queue.push_back(Queued {
            seq,
            writes: batch.writes().to_vec(),
            bytes,
            essential: batch.is_essential(),
            ticket: ticket.clone(),
        });
        (seq, ticket)
    }

    /// The group to send: the one not known to have arrived, or the next of the queue.
    fn next_group(&mut self) -> Result<Option<(u64, u64, outboard_kv::Bytes, bool)>, KvError> {
        if self.group.is_none() {
            let mut bytes = 0;
            let mut batches: Vec<Queued> = Vec::new();
            while let Some(next) = self.queue.front() {
                if !batches.is_empty() && bytes + next.bytes > GROUP_BYTES_MAX {
                    break;
                }
                bytes += next.bytes;
                batches.extend(self.queue.pop_front());
            }
            if batches.is_empty() {
                return Ok(None);
            }
            let (object, offset) = (self.journal.object, self.journal.len);
            let writes = batches.iter().flat_map(|batch| &batch.writes);
            let bytes = journal::encode(object, offset, writes)?;
            let essential = batches.iter().any(|batch| batch.essential);
            self.group =
                Some(CommitGroup { object, offset, bytes, essential, batches, sent: false });
        }
        let group = self.group.as_ref();
        Ok(group.map(|g| (g.object, g.offset, g.bytes.clone(), g.essential)))
    }

    /// The group is in the journal.
    fn publish(&mut self, object_max: u64) {
        let Some(group) = self.group.take() else { return };
        let len = group.bytes.len() as u64;
        self.journal.len += len;
        self.journal.bytes += len;
        self.since = self.since.saturating_add(len);
        self.counts.appends += 1;
        self.counts.commits += group.batches.len() as u64;
        for batch in group.batches {
            self.journal.queued = self.journal.queued.saturating_sub(batch.bytes as u64);
            for write in &batch.writes {
                self.overlay.publish(batch.seq, write);
            }
            self.ended = batch.seq;
        }
        if self.journal.len >= object_max {
            self.journal.rotate();
        }
    }

    /// Nothing that waits is done: those judged last count on those judged first. An essential one
    /// that waited behind a group without one was not tried: it is to be judged again.
    fn refuse_all(&mut self) {
        let Some(CommitGroup { batches, essential, .. }) = self.group.take() else { return };
        for batch in batches.into_iter().chain(std::mem::take(&mut self.queue)) {
            for write in &batch.writes {
                self.overlay.refuse(batch.seq, write);
            }
            let again = batch.essential && !essential;
            batch.ticket.store(if again { AGAIN } else { REFUSED }, Ordering::Release);
        }
        self.journal.queued = 0;
        self.ended = self.versions.now().0;
    }

    /// Whether there is space for the batch in the pool.
    fn fits(&self, batch: &Batch) -> bool {
        if batch.is_essential() {
            // The pool has the last word. More may be in it than fits, since it is seconds late to
            // notice; then an opening, or what frees space, would be refused until somebody else
            // has freed some.
            return true;
        }
        let usage = self.usage();
        let grows = batch.writes().iter().any(|write| write.value.is_some());
        let room = usage.capacity.saturating_sub(usage.reserve).saturating_sub(usage.used);
        !grows || batch.bytes() as u64 <= room
    }
}

impl<P: Pool> PooledKv<P> {
    pub(super) async fn submit(&self, batch: Batch) -> Result<(), KvError> {
        batch.check_limits::<Self>()?;
        self.make_room(&batch).await?;
        for _ in 0..TRIES {
            let mut judged = match self.judge(&batch).await {
                // What it lost against may still be on its way into the journal. Whoever tries at
                // once again would read what was before it, and lose without end, if the thread
                // that tries is the one to write the journal.
                Err(KvError::Conflict) => {
                    let now = self.lock().versions.now().0;
                    self.journaled(now).await?;
                    return Err(KvError::Conflict);
                }
                judged => judged?,
            };
            let outcome = self.journaled(judged.seq).await;
            judged.over = true;
            outcome?;
            match judged.ticket.load(Ordering::Acquire) {
                REFUSED => return Err(KvError::NoSpace),
                AGAIN => {}
                _ => return Ok(()),
            }
        }
        Err(KvError::NoSpace)
    }

    /// Waits until the journal has room, doing the worker's work if need be.
    async fn make_room(&self, batch: &Batch) -> Result<(), KvError> {
        if !self.lock().fits(batch) {
            self.refresh_usage().await?;
            if !self.lock().fits(batch) {
                return Err(KvError::NoSpace);
            }
        }
        let bytes = batch.bytes() as u64;
        loop {
            let (queued, seq) = {
                let state = self.lock();
                if let Some(error) = state.failed {
                    return Err(error);
                }
                let journal = &state.journal;
                let room = journal.bytes + journal.queued + bytes <= self.options.journal_max;
                if room || (journal.old.is_empty() && journal.queued == 0) {
                    return Ok(());
                }
                (journal.queued, state.versions.now())
            };
            if queued > 0 {
                self.journaled(seq.0).await?;
            } else {
                self.work_once(|state| state.journal.bytes + bytes <= self.options.journal_max)
                    .await?;
            }
        }
    }

    /// Judges the batch against everything judged before it, and puts it into the queue.
    async fn judge(&self, batch: &Batch) -> Result<Judged<'_, P>, KvError> {
        let mut found = Found::new();
        for _ in 0..LOOK_UPS {
            let (unknown, now) = {
                let mut state = self.lock();
                if let Some(error) = state.failed {
                    return Err(error);
                }
                let unknown = state.judge(batch, &found)?;
                if unknown.is_empty() {
                    let (seq, ticket) = if batch.is_empty() {
                        // It waits for what it was judged against.
                        (state.versions.now().0, Ticket::default())
                    } else {
                        state.enqueue(batch)
                    };
                    return Ok(Judged { store: self, seq, ticket, over: false });
                }
                (unknown, state.versions.now().0)
            };
            let values = self.base_many(&unknown).await?;
            for (key, value) in unknown.into_iter().zip(values) {
                found.insert(key, (now, value));
            }
        }
        Err(KvError::Conflict)
    }

    /// Waits until commits up to this one are in the journal or refused, appending if nobody does.
    pub(super) async fn journaled(&self, seq: u64) -> Result<(), KvError> {
        let outcome = || {
            let state = self.lock();
            if state.ended >= seq { Some(Ok(())) } else { state.failed.map(Err) }
        };
        loop {
            match self.appending.lock_unless(outcome).await {
                Err(outcome) => return outcome,
                Ok(_leading) => self.append().await,
            }
        }
    }

    /// Appends the next group. What is dropped on the way is sent again, the same bytes to the same
    /// place.
    async fn append(&self) {
        let (group, made) = {
            let mut state = self.lock();
            (state.next_group(), state.journal.made)
        };
        let (object, offset, bytes, essential) = match group {
            Ok(Some(group)) => group,
            Ok(None) => return,
            Err(error) => return self.fail(error),
        };
        let outcome = match made {
            true => Ok(()),
            false => self.make_journal(object).await,
        };
        let outcome = match outcome {
            Ok(()) => self.send(object, offset, bytes, essential).await,
            failed => failed,
        };
        let mut state = self.lock();
        match outcome {
            Ok(()) => state.publish(self.options.journal_object),
            Err(PoolError::NoSpace) if state.group.as_ref().is_some_and(|group| !group.sent) => {
                state.refuse_all();
            }
            Err(PoolError::NotFound | PoolError::Guard) => {
                // Sealed: the volume is another's.
                drop(state);
                return self.fail(KvError::Io(Errno::EIO));
            }
            Err(error) => {
                drop(state);
                return self.fail(kv_error(error));
            }
        }
        let due = state.is_due(&self.options);
        drop(state);
        if due {
            self.due.notify();
        }
    }

    async fn send(
        &self,
        object: u64,
        offset: u64,
        bytes: outboard_kv::Bytes,
        essential: bool,
    ) -> Result<(), PoolError> {
        let claim_epoch = self.owner.claim_epoch.to_be_bytes();
        let op = Op {
            guards: vec![
                Guard::MapEquals(OWNER.into(), claim_epoch.into()),
                Guard::MapEquals(SEALED.into(), Value::default()),
            ],
            steps: vec![Step::Write(offset, bytes)],
            essential,
        };
        let again = {
            let mut state = self.lock();
            state.journal.made = true;
            state.group.as_mut().is_some_and(|group| std::mem::replace(&mut group.sent, true))
        };
        let outcome = self.pool.apply(&journal::name(object), op).await;
        // Certain not to have been done, unless it was sent before.
        if !again
            && outcome.is_err_and(|error| !error.in_doubt())
            && let Some(group) = &mut self.lock().group
        {
            group.sent = false;
        }
        outcome
    }

    /// Makes the journal object to append to, unless an attempt that was in doubt has.
    async fn make_journal(&self, object: u64) -> Result<(), PoolError> {
        let name = journal::name(object);
        let claim_epoch = Value::from(self.owner.claim_epoch.to_be_bytes());
        let op = Op::new()
            .when(Guard::Absent)
            .then(Step::MapSet(OWNER.into(), claim_epoch.clone()))
            .essential();
        match self.pool.apply(&name, op).await {
            Err(PoolError::Guard) => {
                let owner = self.pool.map_get(&name, &[OWNER.into()]).await?;
                let ours = owner.into_iter().next().flatten() == Some(claim_epoch);
                if ours { Ok(()) } else { Err(PoolError::Guard) }
            }
            outcome => outcome,
        }
    }
}
