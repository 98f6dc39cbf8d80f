//! What a node has, in memory: objects, their strips, the grains of these; and how a record of the
//! log changes it. The same code runs when a write is taken and when the log is read again.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::{Bound, Range};

use outboard_base::planted::{Fault, is_planted};
use outboard_wire::shared::Share;
use outboard_wire::shared::call::Object;

use super::Version;
use super::format::{Bad, Fields, HAS_PENDING, emit_grains, emit_version};
use super::pending::Pending;
use super::record::{Record, shared};

/// Bytes of a grain, the unit of space and of checksums.
pub(super) const GRAIN: u64 = 8192;
/// Most bytes of a strip.
pub(super) const STRIP_MAX: u32 = 1 << 20;
/// Most grains of a strip.
pub(super) const GRAINS_MAX: usize = 128;
/// No byte of an object lies behind this.
pub(super) const END_MAX: u64 = 1 << 62;

/// Where a grain lies, and the crc of its bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Grain {
    pub(super) slot: u32,
    pub(super) crc: u32,
}

impl Grain {
    /// Zeros, which lie nowhere.
    pub(super) const NONE: Grain = Grain { slot: u32::MAX, crc: 0 };
    /// Zeros, which lie nowhere, and space that is put aside for what is written there.
    pub(super) const ASIDE: Grain = Grain { slot: u32::MAX, crc: 1 };

    /// Whether it lies somewhere.
    pub(super) fn is_some(self) -> bool {
        self.slot != u32::MAX
    }

    fn is_possible(self) -> bool {
        self.is_some() || [Grain::NONE, Grain::ASIDE].contains(&self)
    }
}

/// What a record has freed.
#[derive(Debug, Default)]
pub(super) struct Freed {
    /// Slots that nobody needs any more.
    pub(super) slots: Vec<u32>,
    /// Grains that no space is put aside for any more, though none of them was written; below
    /// zero: so many it is put aside for again.
    pub(super) aside: i64,
}

/// The bytes of a write in their strip.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Place {
    /// Bytes of a strip.
    pub(super) strip: u32,
    /// Which strip of the object.
    pub(super) index: u64,
    /// Where in it.
    pub(super) from: u32,
    pub(super) bytes: u32,
}

impl Place {
    /// Nothing unless they lie in one strip, of a size that can be.
    pub(super) fn of(strip: u32, offset: u64, bytes: usize) -> Option<Place> {
        let is_strip = strip.is_power_of_two()
            && u64::from(strip) >= GRAIN
            && strip <= STRIP_MAX
            && offset < END_MAX;
        let bytes = u32::try_from(bytes).ok().filter(|bytes| is_strip && *bytes > 0)?;
        let index = offset / u64::from(strip);
        let from = u32::try_from(offset % u64::from(strip)).ok()?;
        let fits = from.checked_add(bytes)? <= strip;
        fits.then_some(Place { strip, index, from, bytes })
    }

    /// One behind the last, in the strip.
    pub(super) fn end(&self) -> u32 {
        self.from + self.bytes
    }

    /// Whether they are whole grains.
    pub(super) fn is_whole(&self) -> bool {
        [self.from, self.bytes].iter().all(|bytes| u64::from(*bytes).is_multiple_of(GRAIN))
    }

    /// Which grains of the strip they touch.
    pub(super) fn grains(&self) -> Range<usize> {
        let grain = |at: u32| usize::try_from(u64::from(at) / GRAIN).unwrap_or(GRAINS_MAX);
        grain(self.from)..grain(self.end() - 1) + 1
    }
}

/// The write that a strip took last, so that it is known when it comes again.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Wrote {
    pub(super) from: u32,
    pub(super) bytes: u32,
    pub(super) crc: u32,
}

impl Wrote {
    /// The first grain that it touches.
    pub(super) fn first(&self) -> usize {
        usize::try_from(u64::from(self.from) / GRAIN).unwrap_or(GRAINS_MAX)
    }

    /// One behind its last byte, in the strip.
    pub(super) fn end(&self) -> u32 {
        self.from.saturating_add(self.bytes)
    }
}

/// A strip. Its version, the write that made it, its end and its grains are stable; where no other
/// node has a copy of it, all that was taken is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Strip {
    pub(super) last: Version,
    pub(super) wrote: Wrote,
    /// One behind the last byte of it that was written and not cut.
    pub(super) end: u32,
    /// Those behind the last are zeros.
    pub(super) grains: Box<[Grain]>,
    /// A write over that.
    pub(super) pending: Option<Box<Pending>>,
}

impl Strip {
    /// A grain as it is seen: what is pending counts.
    pub(super) fn grain(&self, at: usize) -> Grain {
        let over = self.pending.as_ref().and_then(|pending| pending.grain(at));
        over.or_else(|| self.grains.get(at).copied()).unwrap_or(Grain::NONE)
    }

    /// All its grains as they are seen.
    fn seen(&self) -> impl Iterator<Item = Grain> {
        let pends = self.pending.as_ref().map_or(0, |pending| pending.range().end);
        (0..self.grains.len().max(pends)).map(|at| self.grain(at))
    }

    /// One behind the last byte that is seen of it.
    pub(super) fn seen_end(&self) -> u32 {
        self.end.max(self.pending.as_ref().map_or(0, |pending| pending.wrote.end()))
    }

    /// Whether anything of it takes space.
    pub(super) fn holds_any(&self) -> bool {
        self.grains.iter().any(|grain| *grain != Grain::NONE)
    }

    /// Grains that take space: all, and those for which it is put aside. What is pending takes
    /// space beside what it replaces, and what was put aside for it.
    fn taken(&self) -> (u64, u64) {
        let pends = self.pending.as_ref().map_or(0..0, |pending| pending.range());
        let (mut taken, mut aside) = (pends.len() as u64, 0);
        for (at, grain) in self.grains.iter().enumerate() {
            let is_aside = *grain == Grain::ASIDE;
            if *grain != Grain::NONE && !(is_aside && pends.contains(&at)) {
                taken += 1;
                aside += u64::from(is_aside);
            }
        }
        (taken, aside)
    }

    /// Its grains that lie somewhere, those of both its versions.
    pub(super) fn some(&self) -> impl Iterator<Item = Grain> {
        let pending = self.pending.iter().flat_map(|pending| pending.grains.iter());
        self.grains.iter().chain(pending).copied().filter(|grain| grain.is_some())
    }

    /// Puts grains from number `at` on; what lay there goes to `retired`.
    pub(super) fn put(&mut self, at: usize, grains: &[Grain], retired: &mut Vec<u32>) {
        let mut all = std::mem::take(&mut self.grains).into_vec();
        all.resize(all.len().max(at + grains.len()), Grain::NONE);
        for (to, grain) in all.iter_mut().skip(at).zip(grains) {
            if to.is_some() {
                retired.push(to.slot);
            }
            *to = *grain;
        }
        while all.last() == Some(&Grain::NONE) {
            all.pop();
        }
        self.grains = all.into_boxed_slice();
    }

    /// The grains that lie wholly in `range` are zeros.
    fn clear(&mut self, range: Range<u64>, retired: &mut Vec<u32>) {
        let first = usize::try_from(range.start.div_ceil(GRAIN)).unwrap_or(GRAINS_MAX);
        let behind = usize::try_from(range.end / GRAIN).unwrap_or(GRAINS_MAX);
        let behind = behind.min(self.grains.len());
        if first < behind {
            self.put(first, &vec![Grain::NONE; behind - first], retired);
        }
    }
}

/// An object.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Entry {
    /// Bytes of a strip; 0 until the first write.
    pub(super) strip: u32,
    pub(super) fence: u64,
    /// The version of strips that are not here, from byte `floor_from` on: they were cut.
    pub(super) floor: Version,
    pub(super) floor_from: u64,
    pub(super) strips: BTreeMap<u64, Strip>,
    /// Those in which something is pending.
    pub(super) pending: BTreeSet<u64>,
    /// Grains of all strips that take space, and those of them that it is only put aside for.
    grains: u64,
    pub(super) aside: u64,
    end: u64,
}

impl Entry {
    /// One behind its last byte.
    pub(super) fn end(&self) -> u64 {
        self.end
    }

    /// Runs of grains that lie somewhere, that end behind `from`; so many at most.
    pub(super) fn runs(&self, from: u64, most: usize) -> Vec<Range<u64>> {
        let size = u64::from(self.strip.max(1));
        let mut runs: Vec<Range<u64>> = Vec::new();
        for (index, strip) in self.strips.range(from / size..) {
            for (at, _) in strip.seen().enumerate().filter(|(_, grain)| grain.is_some()) {
                let start = index * size + at as u64 * GRAIN;
                let end = start + GRAIN;
                if let Some(last) = runs.last_mut().filter(|last| last.end == start) {
                    last.end = end;
                } else if end > from {
                    if runs.len() == most {
                        return runs;
                    }
                    runs.push(start..end);
                }
            }
        }
        runs
    }

    /// The last stable version of a strip, here or cut.
    pub(super) fn last(&self, index: u64) -> Version {
        let is_cut =
            index.saturating_add(1).saturating_mul(u64::from(self.strip)) > self.floor_from;
        match self.strips.get(&index) {
            Some(strip) => strip.last,
            None if is_cut => self.floor,
            None => Version::default(),
        }
    }

    /// The strips that bytes touch.
    pub(super) fn touched(&self, range: &Range<u64>) -> Range<u64> {
        let strip = u64::from(self.strip.max(1));
        range.start / strip..range.end.div_ceil(strip)
    }

    /// What is left of an object that was purged: the fence that what is late of it must not be
    /// below, until so much of Unix time, milliseconds. The first write that may be makes it an
    /// object again.
    fn tomb(fence: u64, until: u64) -> Entry {
        let floor = Version { fence, sequence: u32::MAX };
        Entry { fence, floor, floor_from: until, ..Entry::default() }
    }

    /// Until when it is a tomb, if it is one.
    pub(super) fn buried(&self) -> Option<u64> {
        let is_tomb = self.strip == 0 && self.floor.sequence == u32::MAX;
        is_tomb.then_some(self.floor_from)
    }

    fn object(&self, object: u64) -> Object {
        Object { object, end: self.end(), fence: self.fence, bytes: self.grains * GRAIN }
    }

    fn hole(&mut self, version: Version, range: &Range<u64>, edges: &[(u64, Grain)]) -> Vec<u32> {
        let (mut retired, size) = (Vec::new(), u64::from(self.strip));
        let (is_cut, end) = (range.end == u64::MAX, self.end());
        for (index, strip) in self.strips.range_mut(self.touched(range)) {
            let base = index * size;
            let within = range.start.saturating_sub(base)..range.end.saturating_sub(base).min(size);
            strip.clear(within.clone(), &mut retired);
            strip.last = version;
            strip.wrote = Wrote::default();
            if is_cut {
                strip.end = strip.end.min(u32::try_from(within.start).unwrap_or(u32::MAX));
            }
        }
        for (number, grain) in edges {
            let at = number * GRAIN;
            let within = usize::try_from(at % size.max(1) / GRAIN).unwrap_or(GRAINS_MAX);
            if let Some(strip) = self.strips.get_mut(&(at / size.max(1))) {
                strip.put(within, &[*grain], &mut retired);
            }
        }
        if is_cut {
            self.cut(version, range.start, end);
        }
        self.count();
        retired
    }

    /// Space is put aside for what is not there, in some strips of a range.
    fn put_aside(&mut self, version: Version, range: &Range<u64>, share: Share) {
        self.fence = self.fence.max(version.fence);
        for (index, grains) in shared(self.strip, range, share) {
            let to = self.strips.entry(index).or_default();
            let fill = |at| match to.grain(at) {
                Grain::NONE => Grain::ASIDE,
                grain => grain,
            };
            let filled: Vec<Grain> = grains.clone().map(fill).collect();
            // Nothing that lies somewhere is replaced.
            to.put(grains.start, &filled, &mut Vec::new());
            (to.last, to.wrote) = (version, Wrote::default());
        }
        self.count();
    }

    /// Nothing lies from `start` on any more; before that the object ended at `end`.
    fn cut(&mut self, version: Version, start: u64, end: u64) {
        let size = u64::from(self.strip);
        let behind = start.div_ceil(size.max(1));
        drop(self.strips.split_off(&behind));
        let had = self.floor != Version::default();
        self.floor_from = if had { self.floor_from.min(start) } else { start };
        self.floor = self.floor.max(version);
        if let Some(last) = start.checked_sub(1)
            && end > start
        {
            let index = last / size.max(1);
            let fresh = || Strip { last: version, ..Strip::default() };
            let strip = self.strips.entry(index).or_insert_with(fresh);
            strip.end = u32::try_from(start - index * size).unwrap_or(u32::MAX);
        }
    }

    fn count(&mut self) {
        let size = u64::from(self.strip);
        (self.grains, self.aside, self.end) = (0, 0, 0);
        self.pending.clear();
        for (index, strip) in &self.strips {
            if strip.pending.is_some() {
                self.pending.insert(*index);
            }
            let (taken, aside) = strip.taken();
            (self.grains, self.aside) = (self.grains + taken, self.aside + aside);
            if strip.seen_end() > 0 {
                self.end = index * size + u64::from(strip.seen_end());
            }
        }
    }

    /// A strip takes a write that is pending.
    fn pend(&mut self, index: u64, pending: &Pending, retired: &mut Vec<u32>) {
        self.fence = self.fence.max(pending.version.fence);
        let last = self.last(index);
        let fresh = || Strip { last, ..Strip::default() };
        self.strips.entry(index).or_insert_with(fresh);
        self.change(index, |to| to.pend(pending.clone(), retired));
    }

    /// Changes a strip's pending write, and counts what the object has then; how many grains less
    /// space is put aside for.
    fn change(&mut self, index: u64, how: impl FnOnce(&mut Strip)) -> i64 {
        let Some(to) = self.strips.get_mut(&index) else { return 0 };
        let had = to.taken();
        how(to);
        let has = to.taken();
        match to.pending {
            Some(_) => self.pending.insert(index),
            None => self.pending.remove(&index),
        };
        self.grains = self.grains + has.0 - had.0;
        self.aside = self.aside + has.1 - had.1;
        let last = self.strips.iter().rev().find(|(_, strip)| strip.seen_end() > 0);
        self.end = last.map_or(0, |(index, strip)| {
            index * u64::from(self.strip) + u64::from(strip.seen_end())
        });
        let aside = |count: u64| i64::try_from(count).unwrap_or(0);
        aside(had.1) - aside(has.1)
    }
}

/// All of it.
#[derive(Debug, Default)]
pub(super) struct Index {
    pub(super) objects: BTreeMap<u64, Entry>,
}

/// How far a checkpoint has come.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Cursor {
    /// The object that is next, or being written.
    object: u64,
    /// Its strip that is next, if its head is written.
    strip: Option<u64>,
}

impl Index {
    /// What is told of an object.
    pub(super) fn object(&self, object: u64) -> Option<Object> {
        self.objects.get(&object).map(|entry| entry.object(object))
    }

    /// Does what a record says; what nobody needs then.
    pub(super) fn apply(&mut self, record: &Record) -> Result<Freed, Bad> {
        let mut freed = Freed::default();
        match record {
            Record::Write { object, strip, version, offset, bytes, crc, grains } => {
                let place = Place::of(*strip, *offset, *bytes as usize).ok_or(Bad::Impossible)?;
                let entry = self.entry(*object, *strip)?;
                entry.fence = entry.fence.max(version.fence);
                let to = entry.strips.entry(place.index).or_default();
                let had = to.taken();
                to.put(place.grains().start, grains, &mut freed.slots);
                to.last = *version;
                to.wrote = Wrote { from: place.from, bytes: *bytes, crc: *crc };
                to.end = to.end.max(place.end());
                let has = to.taken();
                let end = place.index * u64::from(*strip) + u64::from(to.end);
                entry.grains = entry.grains + has.0 - had.0;
                entry.aside = entry.aside + has.1 - had.1;
                entry.end = entry.end.max(end);
            }
            Record::Pending { object, strip, index, pending } => {
                self.entry(*object, *strip)?.pend(*index, pending, &mut freed.slots);
            }
            Record::Settled { object, index, version } => {
                if let Some(entry) = self.objects.get_mut(object) {
                    let slots = &mut freed.slots;
                    freed.aside = entry.change(*index, |strip| strip.settle(*version, slots));
                }
            }
            Record::Hole { object, version, range, edges } => {
                if let Some(entry) = self.objects.get_mut(object) {
                    entry.fence = entry.fence.max(version.fence);
                    let had = entry.aside;
                    freed.slots = entry.hole(*version, range, edges);
                    let less = had.saturating_sub(entry.aside);
                    freed.aside = i64::try_from(less).unwrap_or(0);
                }
            }
            Record::Aside { object, strip, version, range, share } => {
                self.entry(*object, *strip)?.put_aside(*version, range, *share);
            }
            Record::Seal { object, fence } => {
                let entry = self.objects.entry(*object).or_default();
                entry.fence = entry.fence.max(*fence);
            }
            Record::Purge { object } => freed = self.remove(*object),
            Record::Tomb { object, fence, until } => {
                let before = self.objects.get(object).map_or(0, |entry| entry.fence);
                freed = self.remove(*object);
                self.objects.insert(*object, Entry::tomb(before.max(*fence), *until));
            }
        }
        Ok(freed)
    }

    /// An object whose strips have this size, made if it is not there.
    fn entry(&mut self, object: u64, strip: u32) -> Result<&mut Entry, Bad> {
        let entry = self.objects.entry(object).or_default();
        if entry.strip != 0 && entry.strip != strip {
            return Err(Bad::Impossible);
        }
        entry.strip = strip;
        Ok(entry)
    }

    /// An object goes; the slots that nobody needs then.
    fn remove(&mut self, object: u64) -> Freed {
        let entry = self.objects.remove(&object).unwrap_or_default();
        let grains = entry.strips.values().flat_map(Strip::some);
        let aside = i64::try_from(entry.aside).unwrap_or(0);
        Freed { slots: grains.map(|grain| grain.slot).collect(), aside }
    }

    /// The strips whose content a record may change, those that are here and those it makes.
    pub(super) fn touched(&self, record: &Record) -> Vec<(u64, u64)> {
        match record {
            Record::Write { object, strip, offset, .. } => {
                vec![(*object, offset / u64::from((*strip).max(1)))]
            }
            Record::Hole { object, range, .. } => {
                let Some(entry) = self.objects.get(object) else { return Vec::new() };
                let here = entry.strips.range(entry.touched(range)).map(|(index, _)| *index);
                let last = range.start.saturating_sub(1) / u64::from(entry.strip.max(1));
                let last = (range.end == u64::MAX).then_some(last);
                let mut all: Vec<_> = last.into_iter().chain(here).collect();
                all.dedup();
                all.into_iter().map(|index| (*object, index)).collect()
            }
            Record::Aside { object, strip, range, share, .. } => {
                shared(*strip, range, *share).map(|(index, _)| (*object, index)).collect()
            }
            Record::Pending { object, index, .. } => vec![(*object, *index)],
            Record::Settled { object, index, .. } => {
                let is_here = self.strip((*object, *index)).is_some();
                is_here.then_some((*object, *index)).into_iter().collect()
            }
            Record::Seal { .. } => Vec::new(),
            Record::Purge { object } | Record::Tomb { object, .. } => {
                let strips = self.objects.get(object).map(|entry| entry.strips.keys());
                strips.into_iter().flatten().map(|index| (*object, *index)).collect()
            }
        }
    }

    /// A strip as it is.
    pub(super) fn strip(&self, (object, index): (u64, u64)) -> Option<&Strip> {
        self.objects.get(&object)?.strips.get(&index)
    }

    /// Makes a strip what it was.
    pub(super) fn restore(&mut self, (object, index): (u64, u64), strip: Option<Strip>) {
        let Some(entry) = self.objects.get_mut(&object) else { return };
        match strip {
            Some(strip) => drop(entry.strips.insert(index, strip)),
            None => drop(entry.strips.remove(&index)),
        }
        entry.count();
    }

    /// The first strip at or behind one, and the size of its kind.
    pub(super) fn next(&self, (object, index): (u64, u64)) -> Option<((u64, u64), u32)> {
        let first = self.objects.get(&object).and_then(|entry| {
            let (index, _) = entry.strips.range(index..).next()?;
            Some(((object, *index), entry.strip))
        });
        let behind = (Bound::Excluded(object), Bound::Unbounded);
        first.or_else(|| {
            self.objects.range(behind).find_map(|(object, entry)| {
                let (index, _) = entry.strips.first_key_value()?;
                Some(((*object, *index), entry.strip))
            })
        })
    }

    /// Writes objects from a cursor on until there are `room` bytes; where to go on.
    pub(super) fn emit(&self, from: Cursor, room: usize, into: &mut Vec<u8>) -> Option<Cursor> {
        let mut strip = from.strip;
        for (object, entry) in self.objects.range(from.object..) {
            if into.len() >= room {
                return Some(Cursor { object: *object, strip });
            }
            if strip.is_none() {
                into.extend_from_slice(&object.to_le_bytes());
                into.extend_from_slice(&entry.strip.to_le_bytes());
                into.extend_from_slice(&entry.fence.to_le_bytes());
                emit_version(entry.floor, into);
                into.extend_from_slice(&entry.floor_from.to_le_bytes());
                let count = u32::try_from(entry.strips.len()).unwrap_or(u32::MAX);
                into.extend_from_slice(&count.to_le_bytes());
            }
            for (index, strip) in entry.strips.range(strip.unwrap_or(0)..) {
                if into.len() >= room {
                    return Some(Cursor { object: *object, strip: Some(*index) });
                }
                emit_strip(*index, strip, into);
            }
            strip = None;
        }
        None
    }

    /// Reads what [`Index::emit`] wrote.
    pub(super) fn parse(bytes: &[u8]) -> Result<Index, Bad> {
        let (mut from, mut index) = (Fields(bytes), Index::default());
        while !from.is_empty() {
            let object = from.u64()?;
            let mut entry = Entry {
                strip: from.u32()?,
                fence: from.u64()?,
                floor: from.version()?,
                floor_from: from.u64()?,
                ..Entry::default()
            };
            for _ in 0..from.u32()? {
                let (index, strip) = parse_strip(&mut from, entry.strip)?;
                if entry.strips.last_key_value().is_some_and(|(last, _)| *last >= index) {
                    return Err(Bad::Impossible);
                }
                entry.strips.insert(index, strip);
            }
            entry.count();
            if index.objects.last_key_value().is_some_and(|(last, _)| *last >= object) {
                return Err(Bad::Impossible);
            }
            index.objects.insert(object, entry);
        }
        Ok(index)
    }
}

fn emit_strip(index: u64, strip: &Strip, into: &mut Vec<u8>) {
    into.extend_from_slice(&index.to_le_bytes());
    emit_version(strip.last, into);
    for field in [strip.wrote.from, strip.wrote.bytes, strip.wrote.crc, strip.end] {
        into.extend_from_slice(&field.to_le_bytes());
    }
    let pending = strip.pending.as_ref().filter(|_| !is_planted(Fault::Omitted));
    emit_grains(&strip.grains, if pending.is_some() { HAS_PENDING } else { 0 }, into);
    if let Some(pending) = pending {
        pending.emit(into);
    }
}

fn parse_strip(from: &mut Fields<'_>, size: u32) -> Result<(u64, Strip), Bad> {
    let (index, last) = (from.u64()?, from.version()?);
    let wrote = Wrote { from: from.u32()?, bytes: from.u32()?, crc: from.u32()? };
    let (end, count) = (from.u32()?, from.u16()?);
    let grains = from.counted(count & !HAS_PENDING)?.into_boxed_slice();
    let begins = index.checked_mul(u64::from(size)).filter(|at| *at < END_MAX);
    let place = begins.and_then(|at| Place::of(size, at, end.max(1) as usize));
    let is_possible = place.is_some()
        && grains.len() as u64 * GRAIN <= u64::from(size)
        && grains.iter().all(|grain| grain.is_possible())
        && grains.last() != Some(&Grain::NONE);
    let pending = if count & HAS_PENDING == 0 { None } else { Some(Pending::parse(from)?) };
    let is_possible =
        is_possible && pending.as_ref().is_none_or(|pending| pending.is_possible(size, index));
    let strip = Strip { last, wrote, end, grains, pending: pending.map(Box::new) };
    if is_possible { Ok((index, strip)) } else { Err(Bad::Impossible) }
}
