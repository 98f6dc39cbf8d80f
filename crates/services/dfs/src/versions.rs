//! Versions of strips: sequences that are never given twice under a fence, and the last
//! acknowledged one of each strip.
//!
//! A node that has a version acknowledges it again without looking at the bytes, so a sequence that
//! came twice for different bytes would lose the second. What was given out for an object is
//! therefore never forgotten: an entry that makes room leaves its fence and its sequence as a
//! floor, and under a fence that is not above the floor's, sequences go on from there.
//!
//! All sequences of an object under a fence up to its *settled* one were acknowledged. So a strip
//! whose own last one is not remembered, or that a hole touched, can be written to where it has
//! copies: what is there was done. With parities that is not enough, as what a write goes over must
//! be *durable* at all members: what was acknowledged before a flush of all of them began.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::{Mutex, MutexGuard, PoisonError};

use outboard_base::planted::{Fault, is_planted};
use outboard_wire::shared::Reason;

use crate::DataError;

/// Objects that are remembered.
const OBJECTS: usize = 4096;
/// Strips of one object whose last sequence is remembered. Of others it is said to be 0.
const STRIPS: usize = 4096;

/// One object under one fence.
#[derive(Debug, Default)]
struct Object {
    fence: u64,
    /// The last sequence given out.
    last: u32,
    /// The highest one, under any fence.
    peak: u32,
    /// The last acknowledged one, of strips.
    strips: BTreeMap<u64, Last>,
    /// When the last acknowledgement came; the last of strips that are not remembered; those up to
    /// this one came before the last flush.
    acks: u64,
    elsewhere: u64,
    flushed: u64,
    /// All up to this one were acknowledged before the last flush.
    durable: u32,
    /// Those that are under way.
    open: BTreeSet<u32>,
    /// The first that failed, or that may have.
    failed: Option<u32>,
    /// Bytes that it takes, by node, as far as they have said.
    held: BTreeMap<u16, u64>,
    /// Of nodes with units of it, in which boot they acknowledged the first write.
    boots: BTreeMap<u16, u64>,
    /// When it was used last.
    used: u64,
}

/// The last acknowledged write of a strip.
#[derive(Clone, Copy, Debug)]
struct Last {
    sequence: u32,
    /// When it was acknowledged.
    ack: u64,
}

/// What of an object is durable once a flush is that begins now.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Mark {
    acks: u64,
    settled: u32,
}

#[derive(Debug, Default)]
struct State {
    objects: BTreeMap<u64, Object>,
    /// Of those forgotten: the highest fence, and the highest sequence.
    floor: (u64, u32),
    clock: u64,
}

/// Versions of all objects.
#[derive(Debug, Default)]
pub(crate) struct Versions(Mutex<State>);

impl Versions {
    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A new sequence for a write of a strip that the caller has alone.
    pub(crate) fn begin_write(
        &self,
        object: u64,
        fence: u64,
        strip: u64,
    ) -> Result<Begun<'_>, DataError> {
        self.begin_as(object, fence, strip..strip + 1, true)
    }

    /// The same for something else, of strips that nobody remembers the last write of after it: of
    /// those that are not there no node keeps a version.
    pub(crate) fn begin(
        &self,
        object: u64,
        fence: u64,
        strips: Range<u64>,
    ) -> Result<Begun<'_>, DataError> {
        self.begin_as(object, fence, strips, false)
    }

    fn begin_as(
        &self,
        object: u64,
        fence: u64,
        strips: Range<u64>,
        is_write: bool,
    ) -> Result<Begun<'_>, DataError> {
        let mut state = self.state();
        state.clock += 1;
        let (clock, (floor_fence, floor)) = (state.clock, state.floor);
        // Of what was forgotten it is not known what became of it.
        let (first, failed) = if fence > floor_fence { (0, None) } else { (floor, Some(1)) };
        let fresh = Object { fence, last: first, failed, ..Object::default() };
        let known = state.objects.entry(object).or_insert_with(|| fresh);
        if fence < known.fence {
            return Err(DataError::Fenced);
        }
        if fence > known.fence {
            *known = Object { fence, last: first, failed, peak: known.peak, ..Object::default() };
        }
        known.used = clock;
        let (settled, durable) = (known.settled(), known.durable);
        known.last = known.last.checked_add(1).ok_or(DataError::Refused(Reason::Order))?;
        known.peak = known.peak.max(known.last);
        let sequence = known.last;
        known.open.insert(sequence);
        let last = known.strips.get(&strips.start).filter(|_| is_write);
        let previous = last.map_or(0, |last| last.sequence);
        if state.objects.len() > OBJECTS {
            state.forget_oldest();
        }
        drop(state);
        let (versions, is_done) = (self, false);
        Ok(Begun {
            versions,
            object,
            fence,
            strips,
            sequence,
            previous,
            settled,
            durable,
            is_write,
            is_done,
        })
    }

    fn over(&self, begun: &Begun<'_>) {
        let mut state = self.state();
        state.clock += 1;
        let now = state.clock;
        let known = state.objects.get_mut(&begun.object);
        let Some(known) = known.filter(|known| known.fence == begun.fence) else { return };
        if !known.open.remove(&begun.sequence) {
            return;
        }
        let strips = &begun.strips;
        known.acks = if begun.is_done { now } else { known.acks };
        let ack = now;
        if !begun.is_done {
            let failed = known.failed.map_or(begun.sequence, |failed| failed.min(begun.sequence));
            known.failed = Some(failed);
        } else if begun.is_write {
            known.strips.insert(strips.start, Last { sequence: begun.sequence, ack });
            if known.strips.len() > STRIPS {
                // Of one that is settled it need not be known.
                let settled = known.settled();
                let is_settled = |(_, last): &(&u64, &Last)| last.sequence <= settled;
                let oldest = known.strips.iter().find(is_settled).map(|(strip, _)| *strip);
                let forgotten = match oldest {
                    Some(strip) => known.strips.remove(&strip),
                    None => known.strips.pop_first().map(|(_, last)| last),
                };
                known.elsewhere = known.elsewhere.max(forgotten.map_or(0, |last| last.ack));
            }
        } else {
            known.strips.retain(|strip, _| !strips.contains(strip));
            known.elsewhere = ack;
        }
    }
}

impl Versions {
    /// All up to this one were acknowledged, of an object under a fence.
    pub(crate) fn settled(&self, object: u64, fence: u64) -> u32 {
        self.look(object, fence, 0, Object::settled)
    }

    /// Whether what was acknowledged of a strip under a fence is durable at all who have it.
    pub(crate) fn is_durable(&self, object: u64, fence: u64, strip: u64) -> bool {
        self.look(object, fence, true, |known| {
            let last = known.strips.get(&strip).map_or(known.elsewhere, |last| last.ack);
            last <= known.flushed || is_planted(Fault::Volatile)
        })
    }

    /// The same, of all strips.
    pub(crate) fn is_all_durable(&self, object: u64, fence: u64) -> bool {
        self.look(object, fence, true, |known| {
            known.acks <= known.flushed || is_planted(Fault::Volatile)
        })
    }

    /// Before a flush of all who have an object.
    pub(crate) fn mark(&self, object: u64, fence: u64) -> Mark {
        let none = Mark { acks: 0, settled: 0 };
        self.look(object, fence, none, |known| Mark { acks: known.acks, settled: known.settled() })
    }

    /// All who have an object have flushed what they had at that mark.
    pub(crate) fn flushed(&self, object: u64, fence: u64, mark: Mark) {
        let mut state = self.state();
        let known = state.objects.get_mut(&object).filter(|known| known.fence == fence);
        if let Some(known) = known {
            known.flushed = known.flushed.max(mark.acks);
            known.durable = known.durable.max(mark.settled);
        }
    }

    /// A node has acknowledged something of an object, or flushed it, in this boot; whether that is
    /// the one in which it acknowledged all else under this fence.
    pub(crate) fn is_in_boot(&self, object: u64, fence: u64, node: u16, boot: u64) -> bool {
        let mut state = self.state();
        let known = state.objects.get_mut(&object).filter(|known| known.fence == fence);
        known.is_none_or(|known| *known.boots.entry(node).or_insert(boot) == boot)
    }

    /// What became of an object was decided before this fence was given out.
    pub(crate) fn begins_anew(&self, object: u64, fence: u64) {
        let mut state = self.state();
        let (floor_fence, floor) = state.floor;
        let last = if fence > floor_fence { 0 } else { floor };
        let peak = state.objects.get(&object).map_or(0, |known| known.peak);
        if state.objects.get(&object).is_none_or(|known| known.fence < fence) {
            state.clock += 1;
            let used = state.clock;
            let fresh = Object { fence, last, peak: peak.max(last), used, ..Object::default() };
            state.objects.insert(object, fresh);
        }
        if state.objects.len() > OBJECTS {
            state.forget_oldest();
        }
    }

    /// All up to this one are durable at all who have an object.
    pub(crate) fn durable(&self, object: u64, fence: u64) -> u32 {
        self.look(object, fence, 0, |known| known.durable)
    }

    /// Whether something of an object under a fence has failed, or may have.
    pub(crate) fn has_failed(&self, object: u64, fence: u64) -> bool {
        let forgotten = fence <= self.state().floor.0;
        self.look(object, fence, forgotten, |known| known.failed.is_some())
    }

    fn look<T>(&self, object: u64, fence: u64, otherwise: T, look: impl FnOnce(&Object) -> T) -> T {
        let state = self.state();
        let known = state.objects.get(&object).filter(|known| known.fence == fence);
        known.map_or(otherwise, look)
    }

    /// Whether something of an object under a fence was not acknowledged, or may not have been.
    pub(crate) fn is_undone(&self, object: u64, fence: u64) -> bool {
        let state = self.state();
        match state.objects.get(&object).filter(|known| known.fence >= fence) {
            Some(known) => known.failed.is_some() || !known.open.is_empty(),
            None => fence <= state.floor.0,
        }
    }
}

impl Object {
    /// All up to this one were acknowledged.
    fn settled(&self) -> u32 {
        let unknown = self.open.first().copied().into_iter().chain(self.failed).min();
        unknown.map_or(self.last, |unknown| unknown.saturating_sub(1))
    }
}

/// A change under a version of its own. Unless it is [`Begun::done`] it has failed, or may have.
#[derive(Debug)]
pub(crate) struct Begun<'v> {
    versions: &'v Versions,
    object: u64,
    fence: u64,
    strips: Range<u64>,
    pub(crate) sequence: u32,
    /// Of a write: the last acknowledged one of its strip, if that is remembered; else 0.
    pub(crate) previous: u32,
    /// All up to this one were acknowledged.
    pub(crate) settled: u32,
    /// All up to this one are durable at all who have it.
    pub(crate) durable: u32,
    is_write: bool,
    is_done: bool,
}

impl Begun<'_> {
    /// All of these strips have it.
    pub(crate) fn done(mut self) {
        self.is_done = true;
    }
}

impl Drop for Begun<'_> {
    fn drop(&mut self) {
        self.versions.over(self);
    }
}

impl Versions {
    /// A node has said what an object takes there. Writes that are under way side by side only make
    /// it more; a hole is alone, and says what is left.
    pub(crate) fn takes(&self, object: u64, fence: u64, node: u16, held: u64, alone: bool) {
        let mut state = self.state();
        let known = state.objects.get_mut(&object).filter(|known| known.fence == fence);
        if let Some(known) = known {
            let said = known.held.entry(node).or_default();
            *said = if alone { held } else { held.max(*said) };
        }
    }

    /// What it takes at a node, if that has said so under this fence.
    pub(crate) fn held(&self, object: u64, fence: u64, node: u16) -> Option<u64> {
        let state = self.state();
        let known = state.objects.get(&object).filter(|known| known.fence == fence)?;
        known.held.get(&node).copied()
    }

    /// Whether nothing under this fence was forgotten.
    pub(crate) fn knows_all(&self, fence: u64) -> bool {
        fence > self.state().floor.0
    }

    /// What an object takes is to be asked for.
    pub(crate) fn forget_held(&self, object: u64) {
        if let Some(known) = self.state().objects.get_mut(&object) {
            known.held.clear();
        }
    }
}

impl State {
    /// Drops half of the objects, those unused for longest.
    fn forget_oldest(&mut self) {
        let mut used: Vec<u64> = self.objects.values().map(|known| known.used).collect();
        used.sort_unstable();
        let Some(middle) = used.get(used.len() / 2).copied() else { return };
        let floor = &mut self.floor;
        self.objects.retain(|_, known| {
            if known.used >= middle {
                return true;
            }
            *floor = (floor.0.max(known.fence), floor.1.max(known.peak));
            false
        });
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use outboard_base::Rng;

    use super::*;

    /// Whatever is forgotten, and whichever fence comes back.
    #[test]
    fn no_version_is_given_twice() {
        for seed in 0..2 {
            let (versions, mut rng) = (Versions::default(), Rng::new(seed));
            let mut given = BTreeSet::new();
            for _ in 0..60_000 {
                let object = rng.below(2 * OBJECTS as u64);
                let fence = 1 + rng.below(4);
                match versions.begin_write(object, fence, 0) {
                    Ok(begun) => {
                        let &Begun { sequence, previous, settled, .. } = &begun;
                        assert!(previous < sequence && settled < sequence);
                        assert!(given.insert((object, fence, sequence)), "seed {seed}");
                        if rng.chance(1, 2) {
                            begun.done();
                        }
                    }
                    Err(error) => assert_eq!(error, DataError::Fenced),
                }
            }
            assert!(versions.state().floor.1 > 0, "nothing was forgotten");
        }
    }

    #[test]
    fn a_write_carries_the_last_acknowledged_one_of_its_strip() {
        let versions = Versions::default();
        let hole = |strips: Range<u64>| versions.begin(7, 5, strips).unwrap();
        let begin = |strip| versions.begin_write(7, 5, strip).unwrap();
        let says = |begun: &Begun<'_>| (begun.sequence, begun.previous, begun.settled);
        let first = begin(0);
        assert_eq!(says(&first), (1, 0, 0));
        first.done();
        let (second, third) = (begin(1), begin(0));
        assert_eq!((says(&second), says(&third)), ((2, 0, 1), (3, 1, 1)));
        third.done();
        let cut = hole(0..9);
        assert_eq!(says(&cut), (4, 0, 1), "the second is under way");
        cut.done();
        second.done();
        let (inside, outside) = (begin(0), begin(20));
        assert_eq!((says(&inside), says(&outside)), ((5, 0, 4), (6, 0, 4)), "a hole is many's");
        outside.done();
        drop(inside);
        let after = begin(20);
        assert_eq!(says(&after), (7, 6, 4), "what failed is never settled");
        assert!(versions.is_undone(7, 5) && !versions.is_undone(7, 6));
        assert_eq!(versions.begin_write(7, 4, 0).unwrap_err(), DataError::Fenced, "it is over");
        assert_eq!(says(&versions.begin_write(7, 6, 0).unwrap()), (1, 0, 0), "a new delegation");
        after.done();
        assert_eq!(says(&versions.begin_write(7, 6, 20).unwrap()), (2, 0, 0), "late");
    }
}
