//! What changes an object: writes, holes, seals, the end.
//!
//! A grain never changes where it lies: what is written goes to fresh slots, and what lay there
//! before stays until a flush has made the change durable.

use std::ops::Range;

use outboard_base::planted::{Fault, is_planted};
use outboard_base::task::join_all;
use outboard_base::{Errno, Ino};
use outboard_codec::crc32c;
use outboard_codec::erasure::add;
use outboard_medium::{Buf, Medium};
use outboard_wire::shared::call::Object;
use outboard_wire::shared::{Brings, RESERVE_MAX, Reason, Share};

use super::copies::Copies;
use super::index::{Entry, GRAIN, Grain, Place, Strip, Wrote};
use super::log::Spent;
use super::pending::Pending;
use super::record::{Record, shared};
use super::space::Want;
use super::{GRAIN_LEN, Shared, Store, Version};

/// Purged objects that are remembered.
const TOMBS_MAX: usize = 1 << 16;
/// Of these, so many are forgotten in one go.
const FORGOTTEN_AT_ONCE: usize = 256;

/// Flushes after which what is written over others gives up waiting for space.
const ROUNDS: usize = 16;

/// What a write does to the bytes that it is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change<'a> {
    /// They are these.
    Bytes(&'a [u8]),
    /// They differ by these from those that were there.
    Delta(&'a [u8]),
    /// So many are of its version as they are.
    Nothing(usize),
}

impl<'a> Change<'a> {
    /// What a write brings of so many bytes.
    #[must_use]
    pub fn of(brings: Brings, len: usize, data: &'a [u8]) -> Change<'a> {
        match brings {
            Brings::Bytes => Change::Bytes(data),
            Brings::Delta => Change::Delta(data),
            Brings::Nothing => Change::Nothing(len),
        }
    }

    fn len(self) -> usize {
        match self {
            Change::Bytes(bytes) | Change::Delta(bytes) => bytes.len(),
            Change::Nothing(len) => len,
        }
    }

    /// Of what it brings.
    fn crc(self) -> u32 {
        match self {
            Change::Bytes(bytes) | Change::Delta(bytes) => crc32c(bytes),
            Change::Nothing(_) => crc32c(&[]),
        }
    }
}

/// What becomes of a write.
enum Admitted {
    /// It is done already.
    Done,
    /// It is new: the grains before it, and whether it reaches to the end of the strip, behind
    /// which there are zeros.
    New(Vec<Grain>, bool),
}

/// Space that somebody has taken and not yet used.
pub(super) struct Taken<'s> {
    shared: &'s Shared,
    spent: Spent,
}

impl Taken<'_> {
    /// They are the log's from now on.
    fn into_spent(mut self) -> Spent {
        std::mem::take(&mut self.spent)
    }
}

impl Drop for Taken<'_> {
    fn drop(&mut self) {
        std::mem::take(&mut self.spent).give_back(&mut self.shared.state().space);
    }
}

fn touched(grain: u64, range: &Range<u64>) -> Option<Range<usize>> {
    let base = grain * GRAIN;
    let start = usize::try_from(range.start.saturating_sub(base).min(GRAIN)).ok()?;
    let end = usize::try_from(range.end.saturating_sub(base).min(GRAIN)).ok()?;
    (start < end).then_some(start..end)
}

impl<M: Medium> Store<M> {
    /// Writes bytes that lie within one strip. They are `answered` then: the systems under both
    /// media have them.
    ///
    /// # Errors
    /// [`Reason::Invalid`]: they do not lie within one strip, or the object's strips have another
    /// size. [`Reason::Fence`]: a higher fence is in force. [`Reason::Order`]: the strip has a
    /// later write, or another of this version, or one that is pending. [`Reason::Full`],
    /// [`Reason::Medium`].
    pub async fn write(
        &self,
        object: u64,
        strip: u32,
        version: Version,
        previous: Option<Version>,
        offset: u64,
        bytes: &[u8],
    ) -> Result<(), Reason> {
        if previous.is_some_and(|previous| previous >= version) {
            return Err(Reason::Invalid);
        }
        self.lay(object, strip, version, None, offset, Change::Bytes(bytes)).await
    }

    /// Changes bytes, of which other nodes have copies or not.
    pub(super) async fn lay(
        &self,
        object: u64,
        strip: u32,
        version: Version,
        copies: Option<Copies>,
        offset: u64,
        change: Change<'_>,
    ) -> Result<(), Reason> {
        let place = Place::of(strip, offset, change.len()).ok_or(Reason::Invalid)?;
        if !matches!(change, Change::Bytes(_)) && !place.is_whole() {
            return Err(Reason::Invalid);
        }
        let first = place.index * u64::from(strip);
        let range = first..first + u64::from(strip);
        let _strip = self.locks.exclusive_on(Ino(object), range).await;
        self.settled().await;
        let crc = change.crc();
        let wrote = Wrote { from: place.from, bytes: place.bytes, crc };
        let (old, to_end) = match self.admit(object, &place, version, copies, wrote)? {
            Admitted::Done => return Ok(()),
            Admitted::New(old, to_end) => (old, to_end),
        };
        let is_kept =
            matches!(change, Change::Nothing(_)) && old.iter().all(|grain| grain.is_some());
        let (taken, grains) = if is_kept {
            (self.take(Want::default()).await?, Vec::new())
        } else {
            let buf = self.changed(&place, &old, change, to_end).await;
            // What is left of it is damaged; others who have it have better.
            let lacks = if copies.is_some() { Reason::Filling } else { Reason::Medium };
            let buf = buf.map_err(|_| lacks)?;
            let want = if copies.is_some() { wanted(&old).kept() } else { wanted(&old) };
            let taken = self.take(want).await?;
            let grains = self.put_grains(&taken, buf).await?;
            (taken, grains)
        };
        let bytes = place.bytes;
        let record = match copies {
            None => Record::Write { object, strip, version, offset, bytes, crc, grains },
            Some(Copies { previous, epoch, .. }) => {
                let (index, previous) = (place.index, previous.unwrap_or_default());
                let grains = grains.into_boxed_slice();
                let pending = Pending { version, previous, epoch, wrote, grains };
                Record::Pending { object, strip, index, pending }
            }
        };
        let before = self.shared.state().index.strip((object, place.index)).map(Strip::newest);
        self.commit(record, taken.into_spent()).await?;
        let mut state = self.shared.state();
        if is_kept {
            state.keeps_damage((object, place.index), before.unwrap_or_default(), version);
        }
        state.counts.writes += 1;
        state.counts.written += if is_kept { 0 } else { u64::from(bytes) };
        Ok(())
    }

    /// The grains that a change touches, as they are then.
    async fn changed(
        &self,
        place: &Place,
        old: &[Grain],
        change: Change<'_>,
        to_end: bool,
    ) -> Result<Buf, Reason> {
        let len = old.len() * GRAIN_LEN;
        let from = place.from as usize % GRAIN_LEN;
        match change {
            Change::Bytes(bytes) if bytes.len() == len => Ok(Buf::copied(bytes)),
            Change::Bytes(bytes) => {
                let mut buf = Buf::zeroed(len);
                self.merge(&mut buf, old, from, bytes, to_end).await?;
                Ok(buf)
            }
            Change::Delta(delta) => {
                let mut buf = Buf::zeroed(len);
                self.merge(&mut buf, old, 0, &[], false).await?;
                add(delta, &mut buf).map_err(|_| Reason::Invalid)?;
                Ok(buf)
            }
            Change::Nothing(_) => {
                let mut buf = Buf::zeroed(len);
                self.merge(&mut buf, old, 0, &[], false).await?;
                Ok(buf)
            }
        }
    }

    fn admit(
        &self,
        object: u64,
        place: &Place,
        version: Version,
        copies: Option<Copies>,
        wrote: Wrote,
    ) -> Result<Admitted, Reason> {
        self.shared.usable()?;
        let state = self.shared.state();
        let follows = |newest| copies.is_none_or(|copies| copies.follow(version, newest));
        let Some(entry) = state.index.objects.get(&object) else {
            let is_first = version > Version::default() && follows(Version::default());
            let none = vec![Grain::NONE; place.grains().len()];
            return if is_first { Ok(Admitted::New(none, true)) } else { Err(Reason::Order) };
        };
        if version.fence < entry.fence && !is_planted(Fault::Fence) {
            return Err(Reason::Fence);
        }
        if entry.strip != 0 && entry.strip != place.strip {
            return Err(Reason::Invalid);
        }
        let (strip, last) = (entry.strips.get(&place.index), entry.last(place.index));
        let pending = strip.and_then(|strip| strip.pending.as_ref());
        let is_pending = pending.is_some_and(|it| version == it.version && wrote == it.wrote);
        let is_stable = version == last && strip.is_some_and(|strip| wrote == strip.wrote);
        if is_pending || is_stable {
            return Ok(Admitted::Done);
        }
        let newest = strip.map_or(last, Strip::newest);
        if version <= newest && !is_planted(Fault::Order) {
            return Err(Reason::Order);
        }
        if !follows(newest) || pending.is_some() && copies.is_none() {
            return Err(Reason::Order);
        }
        let grain = |at| strip.map_or(Grain::NONE, |strip| strip.grain(at));
        let to_end = strip.is_none_or(|strip| strip.seen_end() <= wrote.end());
        Ok(Admitted::New(place.grains().map(grain).collect(), to_end))
    }

    /// Lays bytes over the old grains, from byte `from` of the first on, `to_end` of what there is.
    /// Only grains of which something is left are read.
    async fn merge(
        &self,
        buf: &mut Buf,
        old: &[Grain],
        from: usize,
        bytes: &[u8],
        to_end: bool,
    ) -> Result<(), Reason> {
        let end = from + bytes.len();
        for (at, grain) in old.iter().enumerate() {
            let base = at * GRAIN_LEN;
            let is_covered = from <= base && (to_end || base + GRAIN_LEN <= end);
            if !is_covered
                && grain.is_some()
                && let Some(to) = buf.get_mut(base..base + GRAIN_LEN)
                && self.check(&[*grain], |_, bytes| to.copy_from_slice(bytes)).await > 0
            {
                return Err(Reason::Medium);
            }
        }
        if let Some(to) = buf.get_mut(from..end) {
            to.copy_from_slice(bytes);
        }
        Ok(())
    }

    /// Slots for grains, on a medium that has them. What is written over others gives as much back,
    /// once that is durable, so it waits for others that do.
    async fn take(&self, want: Want) -> Result<Taken<'_>, Reason> {
        let shared = &self.shared;
        let grown = self.data.len() / GRAIN;
        let aside = i64::try_from(want.aside).unwrap_or(i64::MAX);
        let take = || {
            let slots = shared.state().space.take(want, grown);
            slots.map(|slots| Taken { shared, spent: Spent { slots, aside } })
        };
        let mut taken = take();
        for _ in 0..ROUNDS {
            let may_help = want.fresh == 0 || shared.state().space.retired() > 0;
            if taken.is_some() || !may_help {
                break;
            }
            taken = self.after_flush(&take).await?;
        }
        let taken = taken.ok_or(Reason::Full)?;
        let last = taken.spent.slots.iter().max().map_or(0, |last| (u64::from(*last) + 1) * GRAIN);
        self.grow_data(last).await?;
        Ok(taken)
    }

    /// Tries, and again once a flush has freed what was retired.
    async fn after_flush<T>(&self, take: impl Fn() -> Option<T>) -> Result<Option<T>, Reason> {
        let _flusher = self.flusher.lock().await;
        let taken = take();
        if taken.is_some() {
            return Ok(taken);
        }
        self.flush_now().await?;
        Ok(take())
    }

    async fn grow_data(&self, len: u64) -> Result<(), Reason> {
        if len <= self.data.len() {
            return Ok(());
        }
        let _growing = self.growing.lock().await;
        if len <= self.data.len() {
            return Ok(());
        }
        let capacity = self.shared.state().space.capacity();
        let whole = len.next_multiple_of(self.options.segment.max(GRAIN)).min(capacity);
        let grown = match self.data.grow(whole.max(len)).await {
            Err(Errno::ENOSPC) => self.data.grow(len).await,
            other => other,
        };
        grown.map_err(|errno| match errno {
            Errno::ENOSPC => Reason::Full,
            _ => Reason::Medium,
        })
    }

    /// Writes grains to their slots, in as few writes as these allow.
    async fn put_grains(&self, taken: &Taken<'_>, buf: Buf) -> Result<Vec<Grain>, Reason> {
        let slots = &taken.spent.slots;
        let grains = slots.iter().zip(buf.chunks(GRAIN_LEN));
        let grains =
            grains.map(|(slot, bytes)| Grain { slot: *slot, crc: crc32c(bytes) }).collect();
        let runs = runs(slots);
        if let [(slot, _, _)] = runs[..] {
            let (written, _) = self.data.write(u64::from(slot) * GRAIN, buf).await;
            return written.map(|()| grains).map_err(|_| Reason::Medium);
        }
        let whole = std::sync::Arc::new(buf);
        let mut writes = Vec::new();
        for (slot, at, count) in runs {
            let part = at * GRAIN_LEN..(at + count) * GRAIN_LEN;
            let part = Buf::part(&whole, part).ok_or(Reason::Medium)?;
            writes.push(self.data.write(u64::from(slot) * GRAIN, part));
        }
        let all = join_all(writes).await;
        let failed = all.iter().any(|(written, _)| written.is_err());
        if failed { Err(Reason::Medium) } else { Ok(grains) }
    }

    /// The bytes of a range are zeros from now on. An `end` of [`u64::MAX`]: the object ends at
    /// `start`, if it went further.
    ///
    /// # Errors
    /// As of [`Store::write`]; [`Reason::Order`] also where a write is pending, whoever made it.
    /// Also [`Reason::Medium`] where a grain that lies partly in it is damaged.
    pub async fn hole(
        &self,
        object: u64,
        version: Version,
        range: Range<u64>,
    ) -> Result<(), Reason> {
        if range.start >= range.end {
            return Err(Reason::Invalid);
        }
        let _all = self.locks.exclusive(Ino(object)).await;
        self.settled().await;
        let Some(edges) = self.admit_hole(object, version, &range)? else { return Ok(()) };
        let old: Vec<Grain> = edges.iter().map(|(_, grain)| *grain).collect();
        let mut buf = Buf::zeroed(old.len() * GRAIN_LEN);
        self.merge(&mut buf, &old, 0, &[], false).await?;
        for ((number, _), bytes) in edges.iter().zip(buf.chunks_mut(GRAIN_LEN)) {
            let within = touched(*number, &range).and_then(|within| bytes.get_mut(within));
            within.unwrap_or_default().fill(0);
        }
        let taken = self.take(wanted(&old)).await?;
        let grains = self.put_grains(&taken, buf).await?;
        let edges = edges.iter().map(|(number, _)| *number).zip(grains).collect();
        let record = Record::Hole { object, version, range, edges };
        self.commit(record, taken.into_spent()).await?;
        self.shared.state().counts.holes += 1;
        Ok(())
    }

    /// Space is put aside for the bytes of a range that are not there, in the strips that are this
    /// node's: writes to them do not end for want of space. What is there stays as it is.
    ///
    /// # Errors
    /// As of [`Store::write`]; [`Reason::Full`] if there is not enough for all.
    pub async fn reserve(
        &self,
        object: u64,
        strip: u32,
        version: Version,
        range: Range<u64>,
        share: Share,
    ) -> Result<(), Reason> {
        let record = Record::Aside { object, strip, version, range: range.clone(), share };
        if !record.is_possible() || range.end - range.start > RESERVE_MAX {
            return Err(Reason::Invalid);
        }
        let _all = self.locks.exclusive(Ino(object)).await;
        self.settled().await;
        let count = self.admit_aside(&record)?;
        if count == 0 {
            return Ok(());
        }
        let aside = i64::try_from(count).map_err(|_| Reason::Invalid)?;
        let shared = &self.shared;
        let take = || {
            let has = shared.state().space.put_aside(count);
            let spent = Spent { slots: Vec::new(), aside: -aside };
            has.then_some(Taken { shared, spent })
        };
        let mut taken = take();
        if taken.is_none() && shared.state().space.retired() > 0 {
            taken = self.after_flush(take).await?;
        }
        self.commit(record, taken.ok_or(Reason::Full)?.into_spent()).await
    }

    /// Grains that space is to be put aside for.
    fn admit_aside(&self, record: &Record) -> Result<u64, Reason> {
        self.shared.usable()?;
        let Record::Aside { object, strip, version, range, share } = record else {
            return Err(Reason::Invalid);
        };
        let state = self.shared.state();
        let entry = state.index.objects.get(object);
        if entry.is_some_and(|entry| version.fence < entry.fence) {
            return Err(Reason::Fence);
        }
        if entry.is_some_and(|entry| entry.strip != 0 && entry.strip != *strip) {
            return Err(Reason::Invalid);
        }
        let mut count = 0;
        for (index, grains) in shared(*strip, range, *share) {
            let known = entry.and_then(|entry| entry.strips.get(&index));
            let pends = known.is_some_and(|strip| strip.pending.is_some());
            if pends || entry.is_some_and(|entry| entry.last(index) > *version) {
                return Err(Reason::Order);
            }
            let grain = |at| known.map_or(Grain::NONE, |strip| strip.grain(at));
            count += grains.filter(|at| grain(*at) == Grain::NONE).count() as u64;
        }
        Ok(count)
    }

    /// The grains that lie partly in the hole; nothing if there is nothing to do.
    fn admit_hole(
        &self,
        object: u64,
        version: Version,
        range: &Range<u64>,
    ) -> Result<Option<Vec<(u64, Grain)>>, Reason> {
        self.shared.usable()?;
        let state = self.shared.state();
        let Some(entry) = state.index.objects.get(&object) else { return Ok(None) };
        if version.fence < entry.fence && !is_planted(Fault::Fence) {
            return Err(Reason::Fence);
        }
        let mut strips = entry.strips.range(entry.touched(range)).map(|(_, strip)| strip);
        let is_late = |strip: &Strip| strip.last > version && !is_planted(Fault::Order);
        if strips.any(|strip| strip.pending.is_some() || is_late(strip)) {
            return Err(Reason::Order);
        }
        let mut edges = Vec::new();
        let size = u64::from(entry.strip.max(1));
        for at in [range.start, range.end].into_iter().filter(|at| *at != u64::MAX) {
            let number = at / GRAIN;
            let within = usize::try_from(number * GRAIN % size / GRAIN).unwrap_or(usize::MAX);
            let strip = entry.strips.get(&(number * GRAIN / size));
            let grain = strip.map_or(Grain::NONE, |strip| strip.grain(within));
            let is_new = edges.iter().all(|(other, _)| *other != number);
            if !at.is_multiple_of(GRAIN) && grain.is_some() && is_new {
                edges.push((number, grain));
            }
        }
        Ok(Some(edges))
    }

    /// Nothing below this fence is taken any more, durably.
    ///
    /// # Errors
    /// [`Reason::Full`], [`Reason::Medium`].
    pub async fn seal(&self, object: u64, fence: u64) -> Result<Object, Reason> {
        let _all = self.locks.exclusive(Ino(object)).await;
        self.settled().await;
        self.shared.usable()?;
        let known = self.shared.state().index.object(object);
        if known.is_none_or(|known| known.fence < fence) {
            self.commit(Record::Seal { object, fence }, Spent::default()).await?;
        }
        self.flush().await?;
        let sealed = self.shared.state().index.object(object);
        sealed.ok_or(Reason::Medium)
    }

    /// The object goes, and a tomb is left: nothing of it below this fence is taken until so much
    /// of Unix time, milliseconds, also after a restart. It is `answered` then, as a write is.
    ///
    /// # Errors
    /// [`Reason::Fence`]: a higher fence is in force, so it was made anew since. [`Reason::Full`],
    /// [`Reason::Medium`].
    pub async fn bury(&self, object: u64, fence: u64, until: u64) -> Result<(), Reason> {
        {
            let _all = self.locks.exclusive(Ino(object)).await;
            self.settled().await;
            self.shared.usable()?;
            let known = |entry: &Entry| (entry.buried().is_some(), entry.fence);
            let known = self.shared.state().index.objects.get(&object).map(known);
            match known {
                Some((true, _)) => return Ok(()),
                Some((false, later)) if later > fence && !is_planted(Fault::Buried) => {
                    return Err(Reason::Fence);
                }
                _ => {}
            }
            self.commit(Record::Tomb { object, fence, until }, Spent::default()).await?;
            let mut state = self.shared.state();
            state.counts.purges += 1;
            state.tombs.insert((until, object));
        }
        // The oldest is the least likely to be needed.
        self.forget_tombs(TOMBS_MAX, 0).await
    }

    /// Forgets some tombs whose time is over.
    ///
    /// # Errors
    /// As of [`Store::bury`].
    pub async fn forget(&self, wall_ms: u64) -> Result<(), Reason> {
        self.forget_tombs(0, wall_ms).await
    }

    async fn forget_tombs(&self, most: usize, wall_ms: u64) -> Result<(), Reason> {
        for _ in 0..FORGOTTEN_AT_ONCE {
            let (until, object) = {
                let mut state = self.shared.state();
                let is_due = |until: u64| most > 0 || until <= wall_ms;
                let first = state.tombs.first().copied().filter(|(until, _)| is_due(*until));
                let Some(first) = first.filter(|_| state.tombs.len() > most) else { return Ok(()) };
                state.tombs.remove(&first);
                first
            };
            let _all = self.locks.exclusive(Ino(object)).await;
            self.settled().await;
            let buried = self.shared.state().index.objects.get(&object).and_then(Entry::buried);
            // Else it is an object again.
            if buried == Some(until) {
                self.commit(Record::Purge { object }, Spent::default()).await?;
            }
        }
        Ok(())
    }

    /// The object goes, and all that was known of it. It is `answered` then, as a write is.
    ///
    /// # Errors
    /// [`Reason::Full`], [`Reason::Medium`].
    pub async fn purge(&self, object: u64) -> Result<(), Reason> {
        let _all = self.locks.exclusive(Ino(object)).await;
        self.settled().await;
        self.shared.usable()?;
        if !self.shared.state().index.objects.contains_key(&object) {
            return Ok(());
        }
        self.commit(Record::Purge { object }, Spent::default()).await?;
        self.shared.state().counts.purges += 1;
        Ok(())
    }
}

/// What is wanted to write over these.
fn wanted(old: &[Grain]) -> Want {
    let count = |is: fn(&&Grain) -> bool| old.iter().filter(is).count() as u64;
    Want {
        fresh: count(|grain| **grain == Grain::NONE),
        over: count(|grain| grain.is_some()),
        aside: count(|grain| **grain == Grain::ASIDE),
    }
}

/// Slots that follow one another: the first, its place in the list, how many.
pub(super) fn runs(slots: &[u32]) -> Vec<(u32, usize, usize)> {
    let mut runs: Vec<(u32, usize, usize)> = Vec::new();
    for (at, slot) in slots.iter().enumerate() {
        match runs.last_mut() {
            Some((first, _, count)) if u64::from(*first) + *count as u64 == u64::from(*slot) => {
                *count += 1;
            }
            _ => runs.push((*slot, at, 1)),
        }
    }
    runs
}
