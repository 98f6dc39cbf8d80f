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
        let known = state.objects.entry(object).or_insert_with(|| Object {
            fence,
            last: if fence > floor_fence { 0 } else { floor },
            ..Object::default()
        });
        if fence < known.fence {
            return Err(DataError::Fenced);
        }
        if fence > known.fence {
            *known = Object { fence, peak: known.peak, ..Object::default() };
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
