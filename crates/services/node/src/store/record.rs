//! A change as it stands in the log: its fields, and what can be said of any object.

use std::ops::Range;

use outboard_wire::shared::{RESERVE_MAX, Share};

use super::Version;
use super::format::{PLAIN, TRUSTED};
use super::index::{GRAIN, GRAINS_MAX, Grain, Place};
use super::pending::Pending;

/// A change of the index, as it stands in the log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Record {
    Write {
        object: u64,
        strip: u32,
        version: Version,
        offset: u64,
        bytes: u32,
        crc: u32,
        /// All that the bytes touch.
        grains: Vec<Grain>,
    },
    /// A write that is pending from now on; what was is stable.
    Pending {
        object: u64,
        strip: u32,
        index: u64,
        pending: Pending,
    },
    /// Nothing is pending in a strip any more: if it was this version, that is stable.
    Settled {
        object: u64,
        index: u64,
        version: Version,
    },
    Hole {
        object: u64,
        version: Version,
        range: Range<u64>,
        /// The grains that lie partly in it, by their numbers in the object: as they are then.
        edges: Vec<(u64, Grain)>,
    },
    /// Space is put aside for the grains of a range that are not there, in some strips.
    Aside {
        object: u64,
        strip: u32,
        version: Version,
        range: Range<u64>,
        share: Share,
    },
    Seal {
        object: u64,
        fence: u64,
    },
    Purge {
        object: u64,
    },
    /// The object goes, and a tomb is left.
    Tomb {
        object: u64,
        fence: u64,
        until: u64,
    },
}

impl Record {
    /// Whether it can be said of any object.
    pub(super) fn is_possible(&self) -> bool {
        match self {
            Record::Write { strip, offset, bytes, grains, .. } => {
                let all_some = grains.iter().all(|grain| grain.is_some());
                let place = Place::of(*strip, *offset, *bytes as usize);
                all_some && place.is_some_and(|place| place.grains().len() == grains.len())
            }
            Record::Hole { range, edges, .. } => {
                let is_edge = |number: u64| {
                    let at = number.saturating_mul(GRAIN);
                    at < range.end && range.start < at.saturating_add(GRAIN)
                };
                range.start < range.end
                    && edges.iter().all(|(number, grain)| is_edge(*number) && grain.is_some())
            }
            Record::Aside { strip, range, share, .. } => {
                Place::of(*strip, range.start, 1).is_some()
                    && range.start < range.end
                    && range.end - range.start <= RESERVE_MAX
                    && share.place < share.count
                    && share.strip.is_power_of_two()
                    && share.strip >= *strip
            }
            Record::Pending { strip, index, pending, .. } => pending.is_possible(*strip, *index),
            Record::Seal { .. }
            | Record::Purge { .. }
            | Record::Tomb { .. }
            | Record::Settled { .. } => true,
        }
    }

    /// The version of the format that has it first.
    pub(super) fn format(&self) -> u32 {
        match self {
            Record::Pending { .. } | Record::Settled { .. } => TRUSTED,
            _ => PLAIN,
        }
    }
}

/// The strips of a range that are a node's, and the grains of each that the range touches.
pub(super) fn shared(
    strip: u32,
    range: &Range<u64>,
    share: Share,
) -> impl Iterator<Item = (u64, Range<usize>)> + use<> {
    let (size, range) = (u64::from(strip.max(1)), range.clone());
    let whole = |grain: u64| usize::try_from(grain).unwrap_or(GRAINS_MAX);
    let turns = (u64::from(share.strip.max(1)), u64::from(share.count.max(1)));
    (range.start / size..range.end.div_ceil(size)).filter_map(move |index| {
        let base = index * size;
        let within = |at: u64| at.saturating_sub(base).min(size);
        let from = whole(within(range.start) / GRAIN);
        let to = whole(within(range.end).div_ceil(GRAIN));
        let is_its = base / turns.0 % turns.1 == u64::from(share.place);
        is_its.then_some((index, from..to))
    })
}
