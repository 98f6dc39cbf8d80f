//! Who may use which strip (R1).
//!
//! One client at a time, under a fence that was never given out before. After a clean release the
//! next is granted at once; after anything else only when the strip was sealed and resolved. All of
//! it is durable where it lies, with the metadata.

use std::collections::BTreeMap;

use crate::fault::{Fault, planted};
use crate::message::{Fence, Mark, StripId, Version};

/// What is known of a strip.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// Nobody has it; this is its last version.
    Free(Version),
    /// Granted under this fence.
    Held(Fence),
    /// To be resolved; under this seal, once somebody began.
    Broken(Option<Fence>),
}

/// What a client is given.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Grant {
    /// Its fence, above every seal.
    pub fence: Fence,
    /// The version that its first write follows.
    pub last: Version,
}

/// The delegations of a group's strips.
#[derive(Clone, Debug, Default)]
pub struct Delegations {
    highest: Fence,
    strips: BTreeMap<StripId, State>,
    /// The last seal of each strip, whatever came of it.
    seals: BTreeMap<StripId, Fence>,
}

impl Delegations {
    /// What is known of a strip; one that was never used is free.
    #[must_use]
    pub fn state(&self, strip: StripId) -> State {
        self.strips.get(&strip).copied().unwrap_or_else(|| State::Free(Version::default()))
    }

    /// Gives the strip out, if it is free.
    pub fn grant(&mut self, strip: StripId) -> Option<Grant> {
        let State::Free(last) = self.state(strip) else { return None };
        if !planted(Fault::EqualFences) || last == Version::default() {
            self.highest += 1;
        }
        let fence = self.highest;
        self.strips.insert(strip, State::Held(fence));
        Some(Grant { fence, last })
    }

    /// The holder gives it back with everything acknowledged; false if it is not the holder's any
    /// more.
    pub fn release(&mut self, strip: StripId, fence: Fence, last: Version) -> bool {
        let is_held = self.state(strip) == State::Held(fence);
        if is_held {
            self.strips.insert(strip, State::Free(last));
        }
        is_held
    }

    /// The holder is gone, or left a write that is not done.
    pub fn lapse(&mut self, strip: StripId, fence: Fence) {
        if self.state(strip) == State::Held(fence) {
            self.strips.insert(strip, State::Broken(None));
        }
    }

    /// Nobody has it, but what is pending there is to be stable, for whoever is filled (R7).
    pub fn settle(&mut self, strip: StripId) {
        if let State::Free(_) = self.state(strip) {
            self.strips.insert(strip, State::Broken(None));
        }
    }

    /// Every strip is to be resolved, whoever has it (R9).
    pub fn lapse_all(&mut self, strips: impl Iterator<Item = StripId>) {
        for strip in strips {
            self.strips.insert(strip, State::Broken(None));
        }
    }

    /// A resolver begins: the fence it seals at, which ends every other's attempt.
    pub fn seal(&mut self, strip: StripId) -> Option<Fence> {
        let State::Broken(_) = self.state(strip) else { return None };
        self.highest += 1;
        self.strips.insert(strip, State::Broken(Some(self.highest)));
        self.seals.insert(strip, self.highest);
        Some(self.highest)
    }

    /// Whether a member that had all its strips complete under these marks still has (R7): the
    /// last resolver of each was heard there to the end. Who says so after a SEAL and before the
    /// RESOLVE may be about to forget.
    #[must_use]
    pub fn cover(&self, marks: &[(StripId, Mark)]) -> bool {
        let marks: BTreeMap<StripId, Mark> = marks.iter().copied().collect();
        let decided = !planted(Fault::FilledWhileSealed);
        self.seals.iter().filter(|_| !planted(Fault::FilledBefore)).all(|(strip, fence)| {
            marks.get(strip).is_some_and(|mark| *mark >= Mark { fence: *fence, decided })
        })
    }

    /// The resolver of this seal is done; false if it is not the last that began.
    pub fn resolved(&mut self, strip: StripId, fence: Fence, last: Version) -> bool {
        let is_last = self.state(strip) == State::Broken(Some(fence));
        if is_last {
            self.strips.insert(strip, State::Free(last));
        }
        is_last
    }
}
