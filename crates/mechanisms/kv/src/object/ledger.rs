//! Who holds which block: the allocator, and the moves not yet proved durable or retired.
//!
//! A block is, at any moment, one of
//! - free in the map;
//! - *taken*: written by a call whose batch has no outcome yet ([`Taken`], then [`Staged`]);
//! - in the index;
//! - *waiting*: no longer in the index of the newest commit, but a crash could bring back an index
//!   that names it; freed by the next flush;
//! - *kept*: freed, but a copy that is being made has not read it yet (`Hold`): used in the map;
//! - *doubtful*: its [`Staged`] was dropped; the next sync asks the store whether the batch was
//!   applied.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::map::{Map, Run};
use super::{BLOCK, Options, Space};
use crate::KvError;

/// The blocks that change hands by one record.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub(super) struct Changed {
    /// Fresh ones it names.
    pub(super) new: Vec<u64>,
    /// Those that no entry names any more; some may have been new to the same record.
    pub(super) old: Vec<u64>,
    /// How many entries change.
    pub(super) moves: usize,
}

/// A committed record not yet retired.
struct Committed {
    changed: Changed,
    flush_epoch: u64,
    flushed: bool,
}

/// Out of which space blocks are taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Room {
    /// What is free to all. Overwrites that give a block back for each they take may use the space
    /// kept in reserve for them; cuts in packed blocks half of it.
    Common,
    /// What [`Objects::reserve`](super::Objects::reserve) put aside for the caller.
    Reserved,
}

/// A copy was given up: the store needed what it kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GivenUp;

/// Who asks for blocks: how much of the space in reserve is theirs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Asks {
    /// Gives back fewer than it takes: none.
    Growth,
    /// Makes a hole, and needs a block of its own for what is left of a packed one: half, so that
    /// exchanges are possible whatever was cut before.
    Cut,
    /// Gives back a block for each it takes: all.
    Exchange,
}

impl Asks {
    /// A request that exchanges blocks, or grows.
    pub(super) fn growing(growing: bool) -> Asks {
        if growing { Asks::Growth } else { Asks::Exchange }
    }

    /// What it leaves of a reserve.
    fn leaves(self, reserve: u64) -> u64 {
        match self {
            Asks::Growth => reserve,
            Asks::Cut => reserve / 2,
            Asks::Exchange => 0,
        }
    }
}

/// What became of a request for blocks.
pub(super) enum Take {
    Got(Vec<Run>),
    /// Grow the medium to this many bytes and ask again.
    Grow(u64),
    /// Sync to free what waits and ask again.
    Sync,
    Full,
}

/// What a copy being made keeps from use.
struct Hold {
    /// Which copy's.
    number: u64,
    /// What was in use at its instant.
    used: Map,
    /// Blocks below this were read.
    read: u64,
    /// Freed since, and not read yet: in use in the map.
    freed: BTreeSet<u64>,
}

impl Hold {
    /// Whether a block that is freed must wait.
    fn keeps(&mut self, block: u64) -> bool {
        block >= self.read && self.used.is_used(block) && {
            self.freed.insert(block);
            true
        }
    }
}

pub(super) struct State {
    pub(super) map: Map,
    capacity: u64,
    segment: u64,
    reserve: u64,
    /// Blocks put aside for those who were promised them.
    reserved: u64,
    /// The medium refused to grow; not asked again until the next tidying.
    cannot_grow: bool,
    /// Commits told of now belong to this flush epoch; a flush closes it.
    flush_epoch: u64,
    next_seq: u64,
    /// Staged, doubtful or committed, but not flushed; and what each says is flushed.
    unproved: BTreeMap<u64, u64>,
    committed: BTreeMap<u64, Committed>,
    /// How many of them are flushed.
    flushed: usize,
    doubtful: BTreeMap<u64, Changed>,
    /// Blocks of calls dropped amid their writes, by flush epoch.
    quarantine: Vec<(u64, Vec<Run>)>,
    /// Blocks waiting or unproved.
    pending: usize,
    /// Blocks taken by calls whose batch has no outcome yet.
    in_flight: HashSet<u64>,
    /// While a copy is made: what may not be used again yet.
    hold: Option<Hold>,
    /// How many copies were begun.
    holds: u64,
    /// While a check runs: every block whose holder changed since it began.
    touched: Option<HashSet<u64>>,
}

impl State {
    fn touch(&mut self, blocks: impl IntoIterator<Item = u64>) {
        if let Some(touched) = &mut self.touched {
            touched.extend(blocks);
        }
    }

    fn free(&mut self, block: u64) {
        if block != 0 {
            self.in_flight.remove(&block);
            if !self.hold.as_mut().is_some_and(|hold| hold.keeps(block)) {
                self.map.set(block, false);
            }
            self.touch([block]);
        }
    }

    fn free_run(&mut self, run: Run) {
        for block in run.start..run.start + run.len {
            self.free(block);
        }
    }

    fn waits(&self) -> bool {
        !self.doubtful.is_empty()
            || !self.quarantine.is_empty()
            || self.committed.values().any(|c| !c.flushed && !c.changed.old.is_empty())
    }

    /// What to do before `count` blocks can be had that leave `reserve` blocks of the capacity, and
    /// `reserved` blocks that are there, to others.
    fn short_of(&self, count: u64, reserve: u64, reserved: u64) -> Option<Take> {
        let wait = || Some(if self.waits() { Take::Sync } else { Take::Full });
        if self.map.used() + count + reserve + reserved > self.capacity {
            return wait();
        }
        let missing = (count + reserved).checked_sub(self.map.free()).filter(|short| *short > 0)?;
        if self.map.len() == self.capacity || self.cannot_grow {
            return wait();
        }
        let more = missing.next_multiple_of(self.segment);
        Some(Take::Grow((self.map.len() + more).min(self.capacity) * BLOCK))
    }

    /// As [`State::short_of`]; before anybody is told that the store is full, a copy that keeps
    /// freed blocks from use is given up.
    fn short_after_all(&mut self, count: u64, reserve: u64, reserved: u64) -> Option<Take> {
        let short = self.short_of(count, reserve, reserved);
        if !matches!(short, Some(Take::Full)) || !self.give_copy_up() {
            return short;
        }
        self.short_of(count, reserve, reserved)
    }

    /// Ends a copy that keeps freed blocks from use; whether there was one.
    fn give_copy_up(&mut self) -> bool {
        let keeps = self.hold.as_ref().is_some_and(|hold| !hold.freed.is_empty());
        if keeps {
            self.end_hold();
        }
        keeps
    }

    fn end_hold(&mut self) {
        if let Some(hold) = self.hold.take() {
            self.free_kept(hold.freed);
        }
    }

    fn free_kept(&mut self, blocks: BTreeSet<u64>) {
        for block in blocks {
            self.map.set(block, false);
            self.touch([block]);
        }
    }

    /// Every record below this is durable with its blocks.
    fn flushed_below(&self) -> u64 {
        self.unproved.first_key_value().map_or(self.next_seq, |(seq, _)| *seq)
    }

    fn commit(&mut self, seq: u64, changed: Changed) {
        let flush_epoch = self.flush_epoch;
        self.touch(changed.new.iter().chain(&changed.old).copied());
        for block in &changed.new {
            self.in_flight.remove(block);
        }
        self.committed.insert(seq, Committed { changed, flush_epoch, flushed: false });
    }

    fn abandon(&mut self, seq: u64, changed: &Changed) {
        self.unproved.remove(&seq);
        self.pending = self.pending.saturating_sub(changed.moves);
        for block in &changed.new {
            self.free(*block);
        }
    }
}

/// The ledger, shared by the store and the tokens it gave out.
pub(super) struct Ledger {
    state: Mutex<State>,
}

impl Ledger {
    /// `map` is as long as the medium and has every used block set.
    pub(super) fn new(map: Map, options: &Options, next_seq: u64) -> Ledger {
        Ledger {
            state: Mutex::new(State {
                map,
                capacity: options.capacity / BLOCK,
                segment: options.segment / BLOCK,
                reserve: options.reserve / BLOCK,
                reserved: 0,
                cannot_grow: false,
                flush_epoch: 1,
                next_seq,
                unproved: BTreeMap::new(),
                committed: BTreeMap::new(),
                flushed: 0,
                doubtful: BTreeMap::new(),
                quarantine: Vec::new(),
                pending: 0,
                in_flight: HashSet::new(),
                hold: None,
                holds: 0,
                touched: None,
            }),
        }
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes `count` blocks out of `room`.
    pub(super) fn take(&self, count: u64, asks: Asks, room: Room) -> Take {
        let mut state = self.lock();
        let (reserve, reserved) = match room {
            Room::Common => (asks.leaves(state.reserve), state.reserved),
            Room::Reserved => (0, 0),
        };
        if let Some(short) = state.short_after_all(count, reserve, reserved) {
            return short;
        }
        let Some(runs) = state.map.take(count) else { return Take::Full };
        for run in &runs {
            state.in_flight.extend(run.start..run.start + run.len);
        }
        Take::Got(runs)
    }

    /// Puts `count` blocks aside, which the medium has grown by; what is to be done first, if
    /// anything is.
    pub(super) fn reserve(&self, count: u64) -> Option<Take> {
        let mut state = self.lock();
        let (reserve, reserved) = (state.reserve, state.reserved);
        let short = state.short_after_all(count, reserve, reserved);
        if short.is_none() {
            state.reserved += count;
        }
        short
    }

    /// Gives blocks back that were put aside.
    pub(super) fn unreserve(&self, count: u64) {
        let mut state = self.lock();
        state.reserved = state.reserved.saturating_sub(count);
    }

    /// Bytes to grow the medium to so that half a segment is free, if it is not and can be.
    pub(super) fn grow_ahead(&self) -> Option<u64> {
        let mut state = self.lock();
        state.cannot_grow = false;
        let short = state.map.free() < state.segment / 2 && state.map.len() < state.capacity;
        short.then(|| (state.map.len() + state.segment).min(state.capacity) * BLOCK)
    }

    pub(super) fn grown(&self, len: u64) {
        self.lock().map.grow(len / BLOCK);
    }

    pub(super) fn cannot_grow(&self) {
        self.lock().cannot_grow = true;
    }

    /// A number for a record being staged, and what it may say is flushed.
    pub(super) fn begin(&self, moves: usize) -> (u64, u64) {
        let mut state = self.lock();
        let flushed = state.flushed_below();
        let seq = state.next_seq;
        state.next_seq += 1;
        state.unproved.insert(seq, flushed);
        state.pending += moves;
        (seq, flushed)
    }

    /// Every record below this is durable with its blocks.
    pub(super) fn flushed_below(&self) -> u64 {
        self.lock().flushed_below()
    }

    /// Whether a record says all that is flushed. The last one says most, and what is not flushed
    /// is not retired.
    pub(super) fn is_vouched(&self) -> bool {
        let state = self.lock();
        let last = state.committed.last_key_value();
        let says = last.and_then(|(seq, _)| state.unproved.get(seq));
        says.is_some_and(|flushed| *flushed >= state.flushed_below())
    }

    pub(super) fn pending(&self) -> usize {
        self.lock().pending
    }

    /// Whether a sync would settle or free anything.
    pub(super) fn awaits_sync(&self) -> bool {
        let state = self.lock();
        state.pending > 0 || !state.doubtful.is_empty() || !state.quarantine.is_empty()
    }

    /// Lets the medium grow to so many bytes; what it could before, and can now. Never less.
    pub(super) fn raise_capacity(&self, bytes: u64) -> (u64, u64) {
        let mut state = self.lock();
        let before = state.capacity;
        state.capacity = before.max(bytes / BLOCK);
        state.cannot_grow &= state.capacity == before;
        (before * BLOCK, state.capacity * BLOCK)
    }

    pub(super) fn space(&self) -> Space {
        let state = self.lock();
        let (capacity, used) =
            (state.capacity.saturating_sub(1), state.map.used().saturating_sub(1));
        Space {
            total: capacity * BLOCK,
            used: used * BLOCK,
            free: capacity.saturating_sub(used + state.reserve + state.reserved) * BLOCK,
        }
    }

    /// A doubtful record to ask the store about.
    pub(super) fn doubt(&self) -> Option<u64> {
        self.lock().doubtful.first_key_value().map(|(seq, _)| *seq)
    }

    /// The store's answer.
    pub(super) fn resolve(&self, seq: u64, applied: bool) {
        let mut state = self.lock();
        if let Some(changed) = state.doubtful.remove(&seq) {
            if applied { state.commit(seq, changed) } else { state.abandon(seq, &changed) }
        }
    }

    /// Ends the flush epoch: what was committed or quarantined so far is proved by a flush begun
    /// now. Says which, and whether the medium need be flushed for it.
    pub(super) fn close_flush_epoch(&self) -> (u64, bool) {
        let mut state = self.lock();
        let closed = state.flush_epoch;
        state.flush_epoch += 1;
        let unflushed = state.committed.values().rev().any(|record| !record.flushed);
        let dirty = unflushed || !state.quarantine.is_empty();
        (closed, dirty)
    }

    /// The flush begun after `flush_epoch` closed has succeeded.
    pub(super) fn flushed(&self, flush_epoch: u64) {
        let mut state = self.lock();
        let mut proved = Vec::new();
        let first = state.flushed_below();
        for (seq, record) in state.committed.range_mut(first..) {
            if !record.flushed && record.flush_epoch <= flush_epoch {
                record.flushed = true;
                proved.push((*seq, record.changed.clone()));
            }
        }
        state.flushed += proved.len();
        for (seq, changed) in proved {
            state.unproved.remove(&seq);
            state.pending = state.pending.saturating_sub(changed.moves);
            for block in changed.old {
                state.free(block);
            }
        }
        let held = std::mem::take(&mut state.quarantine);
        let (done, held): (Vec<_>, Vec<_>) = held.into_iter().partition(|(e, _)| *e <= flush_epoch);
        state.quarantine = held;
        for run in done.into_iter().flat_map(|(_, runs)| runs) {
            state.free_run(run);
        }
    }

    /// Flushed records that can be retired, lowest first, until they name `blocks` blocks.
    pub(super) fn retirable(&self, blocks: usize) -> Vec<(u64, Changed)> {
        let state = self.lock();
        let (mut named, mut records) = (0, Vec::new());
        for (seq, record) in state.committed.iter().filter(|(_, record)| record.flushed) {
            if named >= blocks {
                break;
            }
            named += record.changed.new.len().max(record.changed.old.len());
            records.push((*seq, record.changed.clone()));
        }
        records
    }

    pub(super) fn count_retirable(&self) -> usize {
        self.lock().flushed
    }

    pub(super) fn retired(&self, seqs: impl IntoIterator<Item = u64>) {
        let mut state = self.lock();
        for seq in seqs {
            if state.committed.remove(&seq).is_some_and(|record| record.flushed) {
                state.flushed = state.flushed.saturating_sub(1);
            }
        }
    }

    /// Begins a check: the used blocks by page of the map, and from now on changes are remembered.
    /// `None` if one is running.
    pub(super) fn begin_check(&self) -> Option<Vec<super::map::MapPage>> {
        let mut state = self.lock();
        if state.touched.is_some() {
            return None;
        }
        // What already has no settled holder is as good as touched.
        let mut touched: HashSet<u64> = HashSet::new();
        touched.extend(state.committed.values().flat_map(|record| &record.changed.old));
        touched.extend(state.doubtful.values().flat_map(|c| c.new.iter().chain(&c.old)));
        for (_, runs) in &state.quarantine {
            touched.extend(runs.iter().flat_map(|r| r.start..r.start + r.len));
        }
        touched.extend(state.in_flight.iter().copied());
        touched.extend(state.hold.iter().flat_map(|hold| &hold.freed));
        state.touched = Some(touched);
        let pages = state.map.len().div_ceil(super::map::PAGE_BLOCKS);
        Some((0..pages).filter_map(|index| state.map.page(index).cloned()).collect())
    }

    /// From now on what is in use now is not used again, until a copy has read it; what `instant`
    /// gives is of the same moment. `None` if one is being made.
    pub(super) fn begin_hold<T>(
        &self,
        instant: impl FnOnce() -> Result<T, KvError>,
    ) -> Result<Option<(u64, T)>, KvError> {
        let mut state = self.lock();
        if state.hold.is_some() {
            return Ok(None);
        }
        let taken = instant()?;
        state.holds += 1;
        let (number, used) = (state.holds, state.map.clone());
        state.hold = Some(Hold { number, used, read: 0, freed: BTreeSet::new() });
        Ok(Some((number, taken)))
    }

    /// The blocks below `read` were read; the next run in use at the instant, at most `max` long.
    /// An error if the copy was given up.
    pub(super) fn next_held(
        &self,
        number: u64,
        read: u64,
        max: u64,
    ) -> Result<Option<Run>, GivenUp> {
        let mut state = self.lock();
        let hold = state.hold.as_mut().filter(|hold| hold.number == number).ok_or(GivenUp)?;
        hold.read = hold.read.max(read);
        let left = hold.freed.split_off(&hold.read);
        let done = std::mem::replace(&mut hold.freed, left);
        let run = hold.used.used_run(hold.read, max);
        state.free_kept(done);
        Ok(run)
    }

    /// Somebody waited long enough for what a copy keeps from use, if one does.
    pub(super) fn give_copy_up(&self) {
        self.lock().give_copy_up();
    }

    pub(super) fn end_hold(&self, number: u64) {
        let mut state = self.lock();
        if state.hold.as_ref().is_some_and(|hold| hold.number == number) {
            state.end_hold();
        }
    }

    pub(super) fn end_check(&self) -> HashSet<u64> {
        self.lock().touched.take().unwrap_or_default()
    }
}

/// Blocks a call has taken and not yet handed to a [`Staged`]. Dropped, it puts them aside until
/// the next flush: a write the call began may still be under way.
pub(super) struct Taken {
    ledger: Arc<Ledger>,
    pub(super) runs: Vec<Run>,
}

impl Taken {
    pub(super) fn new(ledger: Arc<Ledger>, runs: Vec<Run>) -> Taken {
        Taken { ledger, runs }
    }

    /// These and `other`'s.
    pub(super) fn and(mut self, mut other: Taken) -> Taken {
        self.runs.append(&mut other.runs);
        self
    }

    /// The blocks, in order.
    pub(super) fn blocks(&self) -> impl Iterator<Item = u64> {
        self.runs.iter().flat_map(|r| r.start..r.start + r.len)
    }

    /// Their writes are done and a record names them.
    pub(super) fn settle(mut self) {
        self.runs.clear();
    }
}

impl Drop for Taken {
    fn drop(&mut self) {
        let runs = std::mem::take(&mut self.runs);
        if !runs.is_empty() {
            let mut state = self.ledger.lock();
            let flush_epoch = state.flush_epoch;
            state.quarantine.push((flush_epoch, runs));
        }
    }
}

/// Changes staged into a batch, and the blocks they took and gave up. See the module's protocol.
///
/// Dropped, it leaves the outcome open: the blocks stay out of use until the next sync has asked
/// the store whether the batch was applied.
#[must_use = "tell it what became of the batch"]
#[derive(Default)]
pub struct Staged {
    ledger: Option<Arc<Ledger>>,
    records: Vec<(u64, Changed)>,
    delta: i64,
}

impl Staged {
    /// Nothing staged.
    pub fn none() -> Staged {
        Staged::default()
    }

    pub(super) fn new(ledger: Arc<Ledger>, seq: u64, changed: Changed, delta: i64) -> Staged {
        Staged { ledger: Some(ledger), records: vec![(seq, changed)], delta }
    }

    /// By how many blocks the object's allocation changes (`st_blocks` is 16 times as many).
    pub fn blocks(&self) -> i64 {
        self.delta
    }

    /// This and `other`, staged into the same batch.
    pub fn and(mut self, mut other: Staged) -> Staged {
        self.ledger = self.ledger.take().or_else(|| other.ledger.clone());
        self.records.append(&mut other.records);
        self.delta += other.delta;
        self
    }

    /// The batch was committed.
    pub fn committed(mut self) {
        self.settle(State::commit);
    }

    /// The batch was certainly not applied ([`KvError::Conflict`], or
    /// never committed).
    pub fn abort(mut self) {
        self.settle(|state, seq, changed| state.abandon(seq, &changed));
    }

    fn settle(&mut self, mut settle: impl FnMut(&mut State, u64, Changed)) {
        if let Some(ledger) = self.ledger.take() {
            let mut state = ledger.lock();
            for (seq, changed) in self.records.drain(..) {
                settle(&mut state, seq, changed);
            }
        }
    }
}

impl Drop for Staged {
    fn drop(&mut self) {
        self.settle(|state, seq, changed| {
            state.doubtful.insert(seq, changed);
        });
    }
}
