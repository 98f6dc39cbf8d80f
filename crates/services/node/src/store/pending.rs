//! A write that a strip has over its stable version, and that is not known to be done (R2): other
//! nodes have copies of the strip, and perhaps not all of them have this write.
//!
//! It lies in slots of its own, so forgetting it is going back. What it replaces stays until it is
//! stable: because the next write says that it was acknowledged, or because that was decided (R5).

use std::ops::Range;

use outboard_base::planted::{Fault, is_planted};

use super::Version;
use super::format::{Bad, Fields, emit_grains, emit_version};
use super::index::{Grain, Place, Strip, Wrote};

/// The write.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Pending {
    pub(super) version: Version,
    /// The last acknowledged one before it; zeros: its writer named none.
    pub(super) previous: Version,
    /// The epoch of the group in which it was first taken.
    pub(super) epoch: u32,
    pub(super) wrote: Wrote,
    /// All that it touches, in slots of its own; nothing where that stays as it is.
    pub(super) grains: Box<[Grain]>,
}

impl Pending {
    /// The grains of the strip that it touches.
    pub(super) fn range(&self) -> Range<usize> {
        let first = self.wrote.first();
        first..first + self.grains.len()
    }

    /// What it makes of a grain that it touches.
    pub(super) fn grain(&self, at: usize) -> Option<Grain> {
        self.grains.get(at.checked_sub(self.wrote.first())?).copied()
    }

    pub(super) fn emit(&self, into: &mut Vec<u8>) {
        emit_version(self.version, into);
        emit_version(self.previous, into);
        let Wrote { from, bytes, crc } = self.wrote;
        for field in [self.epoch, from, bytes, crc] {
            into.extend_from_slice(&field.to_le_bytes());
        }
        emit_grains(&self.grains, 0, into);
    }

    pub(super) fn parse(from: &mut Fields<'_>) -> Result<Pending, Bad> {
        let (version, previous, epoch) = (from.version()?, from.version()?, from.u32()?);
        let wrote = Wrote { from: from.u32()?, bytes: from.u32()?, crc: from.u32()? };
        let grains = from.grains()?.into_boxed_slice();
        Ok(Pending { version, previous, epoch, wrote, grains })
    }

    /// Whether it can be said of a strip of this size and number.
    pub(super) fn is_possible(&self, size: u32, index: u64) -> bool {
        let Wrote { from, bytes, .. } = self.wrote;
        let offset = index.checked_mul(size.into()).and_then(|at| at.checked_add(from.into()));
        let place = offset.and_then(|offset| Place::of(size, offset, bytes as usize));
        let is_its = |place: &Place| {
            place.index == index && (self.grains.is_empty() || place.grains() == self.range())
        };
        place.as_ref().is_some_and(is_its) && self.grains.iter().all(|grain| grain.is_some())
    }
}

impl Strip {
    /// Its newest version.
    pub(super) fn newest(&self) -> Version {
        self.pending.as_ref().map_or(self.last, |pending| pending.version)
    }

    /// Takes a write over what was pending, which was acknowledged; what nobody needs then goes to
    /// `retired`.
    pub(super) fn pend(&mut self, pending: Pending, retired: &mut Vec<u32>) {
        self.promote(retired);
        if is_planted(Fault::Unkept) {
            let under = self.grains.iter().skip(pending.range().start).take(pending.range().len());
            retired.extend(under.filter(|grain| grain.is_some()).map(|grain| grain.slot));
        }
        self.pending = Some(Box::new(pending));
    }

    /// `version` was decided, or is known to be done: it is stable if it is here, and nothing is
    /// pending then.
    pub(super) fn settle(&mut self, version: Version, retired: &mut Vec<u32>) {
        if self.pending.as_ref().is_some_and(|pending| pending.version == version) {
            self.promote(retired);
        } else if let Some(pending) = self.pending.take() {
            retired.extend(pending.grains.iter().map(|grain| grain.slot));
        }
    }

    /// What is pending is stable.
    fn promote(&mut self, retired: &mut Vec<u32>) {
        let Some(pending) = self.pending.take() else { return };
        let mut given_back = Vec::new();
        let given_back = if is_planted(Fault::Unkept) { &mut given_back } else { retired };
        self.put(pending.range().start, &pending.grains, given_back);
        self.end = self.end.max(pending.wrote.end());
        (self.last, self.wrote) = (pending.version, pending.wrote);
    }
}
