//! Versions of strips: sequences that are never given twice under a fence, and the last
//! acknowledged one of each strip.
//!
//! A node that has a version acknowledges it again without looking at the bytes, so a sequence that
//! came twice for different bytes would lose the second. What was given out for an object is
//! therefore never forgotten: an entry that makes room leaves its fence and its sequence as a
//! floor, and under a fence that is not above the floor's, sequences go on from there.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::{Mutex, MutexGuard, PoisonError};

use outboard_wire::shared::Reason;

use crate::DataError;

/// Objects that are remembered.
const OBJECTS: usize = 4096;
/// Strips of one object whose last sequence is remembered. Of others it is said to be 0, which is
/// right for one copy: nothing is ever pending there.
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
    strips: BTreeMap<u64, u32>,
    /// The last acknowledged one of a hole, which is about many.
    hole: u32,
    /// Bytes that it takes, by node, as far as they have said.
    held: BTreeMap<u16, u64>,
    /// When it was used last.
    used: u64,
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

    /// A new sequence for strips that the caller has alone, and the last acknowledged one of any
    /// of them.
    pub(crate) fn begin(
        &self,
        object: u64,
        fence: u64,
        strips: Range<u64>,
    ) -> Result<(u32, u32), DataError> {
        let mut state = self.state();
        state.clock += 1;
        let (clock, (floor_fence, floor)) = (state.clock, state.floor);
        let first = if fence > floor_fence { 0 } else { floor };
        let known = state.objects.entry(object).or_insert_with(|| Object {
            fence,
            last: first,
            ..Object::default()
        });
        if fence < known.fence {
            return Err(DataError::Fenced);
        }
        if fence > known.fence {
            *known = Object { fence, last: first, peak: known.peak, ..Object::default() };
        }
        known.used = clock;
        known.last = known.last.checked_add(1).ok_or(DataError::Refused(Reason::Order))?;
        known.peak = known.peak.max(known.last);
        let last = known.last;
        let of_strips = known.strips.range(strips).map(|(_, last)| *last).max().unwrap_or(0);
        let previous = of_strips.max(known.hole);
        if state.objects.len() > OBJECTS {
            state.forget_oldest();
        }
        Ok((last, previous))
    }

    /// All of these strips have it.
    pub(crate) fn done(&self, object: u64, fence: u64, strips: Range<u64>, sequence: u32) {
        let mut state = self.state();
        let Some(known) = state.objects.get_mut(&object).filter(|known| known.fence == fence)
        else {
            return;
        };
        if strips.end - strips.start > 1 {
            known.strips.retain(|strip, _| !strips.contains(strip));
            known.hole = known.hole.max(sequence);
            return;
        }
        known.strips.insert(strips.start, sequence);
        if known.strips.len() > STRIPS {
            known.strips.pop_first();
        }
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
                match versions.begin(object, fence, 0..1) {
                    Ok((sequence, previous)) => {
                        assert!(previous < sequence);
                        assert!(given.insert((object, fence, sequence)), "seed {seed}");
                        if rng.chance(1, 2) {
                            versions.done(object, fence, 0..1, sequence);
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
        let begin = |strips: Range<u64>| versions.begin(7, 5, strips);
        assert_eq!(begin(0..1), Ok((1, 0)));
        versions.done(7, 5, 0..1, 1);
        assert_eq!((begin(1..2), begin(0..1)), (Ok((2, 0)), Ok((3, 1))));
        versions.done(7, 5, 0..1, 3);
        assert_eq!(begin(0..9), Ok((4, 3)), "a hole");
        versions.done(7, 5, 0..9, 4);
        assert_eq!((begin(2..3), begin(20..21)), (Ok((5, 4)), Ok((6, 4))));
        assert_eq!(versions.begin(7, 4, 0..1), Err(DataError::Fenced), "it is over");
        assert_eq!(versions.begin(7, 6, 0..1), Ok((1, 0)), "a new delegation");
    }
}
