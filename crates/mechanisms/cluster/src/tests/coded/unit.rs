//! One unit of a stripe at one member: what it keeps, what it takes, what a resolver makes of it.
//!
//! Contents are symbols: a data unit holds the one thing that was written there under a version, a
//! parity the sum of such things. Sums are sets, of which what comes twice is taken away again.

use std::collections::BTreeSet;

use super::{Canary, is};
use crate::{Fence, Version};

/// What was written to a data unit under a version.
pub(super) type Sum = BTreeSet<(usize, Version)>;

pub(super) fn add(sum: &mut Sum, other: &Sum) {
    for one in other {
        if !sum.remove(one) {
            sum.insert(*one);
        }
    }
}

/// A stripe at one version: under which version each of its data units was written.
pub(super) type Cover = Vec<Version>;

/// What is known of a write by all who have a part in it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Name {
    pub(super) version: Version,
    /// The last that was acknowledged, and what it covers.
    pub(super) prev: Version,
    pub(super) before: Cover,
    /// Data units that it touches.
    pub(super) mask: u32,
    /// The last that was synced.
    pub(super) settled: Version,
}

impl Name {
    pub(super) fn touches(&self, unit: usize) -> bool {
        self.mask >> unit & 1 == 1
    }

    pub(super) fn cover(&self) -> Cover {
        let at = |(unit, before): (usize, &Version)| {
            if self.touches(unit) { self.version } else { *before }
        };
        self.before.iter().enumerate().map(at).collect()
    }
}

/// A unit as it was at one version of the stripe.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Copy {
    pub(super) version: Version,
    pub(super) cover: Cover,
    pub(super) sum: Sum,
}

#[derive(Clone, Debug)]
struct Adds {
    name: Name,
    got: u32,
    sum: Sum,
}

/// What a member tells of its unit when it is sealed.
#[derive(Clone, Debug)]
pub(super) struct Claim {
    pub(super) stable: Vec<Copy>,
    pub(super) pending: Option<(Name, Copy)>,
}

#[derive(Clone, Debug)]
pub(super) struct Unit {
    /// Which one: below `k` data, else parity.
    at: usize,
    k: usize,
    pub(super) fence: Fence,
    /// Stable, from what is settled on; the newest last (R4).
    chain: Vec<Copy>,
    pending: Option<(Name, Copy)>,
    /// Of a parity: what data units have added so far. Lost with the process.
    adds: Option<Adds>,
}

impl Unit {
    pub(super) fn new(at: usize, k: usize) -> Unit {
        let zero = Version::default();
        let sum = if at < k { [(at, zero)].into() } else { (0..k).map(|at| (at, zero)).collect() };
        let chain = vec![Copy { version: zero, cover: vec![zero; k], sum }];
        Unit { at, k, fence: 0, chain, pending: None, adds: None }
    }

    /// Joined again: what is here counts for nothing.
    pub(super) fn rejoin(&mut self) {
        (self.chain, self.pending, self.adds) = (Vec::new(), None, None);
    }

    pub(super) fn restart(&mut self) {
        self.adds = None;
    }

    pub(super) fn newest(&self) -> Option<&Copy> {
        self.chain.last()
    }

    fn is_parity(&self) -> bool {
        self.at >= self.k
    }

    /// Whether a copy of it is the one of a stripe that is at `cover`.
    pub(super) fn fits(at: usize, k: usize, copy: &Copy, cover: &Cover) -> bool {
        if at < k { copy.cover[at] == cover[at] } else { copy.cover == *cover }
    }

    fn promote(&mut self) {
        if let Some((_, copy)) = self.pending.take() {
            if is(Canary::NoRetention) {
                self.chain.clear();
            }
            self.chain.push(copy);
        }
    }

    fn settle(&mut self, settled: Version) {
        let kept = self.chain.iter().rposition(|copy| copy.version <= settled).unwrap_or(0);
        self.chain.drain(..kept);
    }

    fn has(&self, version: Version) -> bool {
        let pending = self.pending.iter().map(|(_, copy)| copy);
        self.chain.iter().chain(pending).any(|copy| copy.version == version)
    }

    /// Whether it may take a write (R2), as its newest state is the one the writer knows. What was
    /// pending is stable then.
    fn admits(&mut self, name: &Name) -> bool {
        if name.version.fence < self.fence {
            return false;
        }
        if self.pending.as_ref().is_some_and(|(pending, _)| pending.version > name.prev) {
            return false;
        }
        let newest = self.pending.as_ref().map(|(_, copy)| copy).or_else(|| self.chain.last());
        let Some(newest) = newest.filter(|newest| newest.version < name.version) else {
            return false;
        };
        if !Unit::fits(self.at, self.k, newest, &name.before) {
            return false;
        }
        self.promote();
        self.settle(name.settled);
        self.fence = name.version.fence;
        true
    }

    /// A data unit takes a write: what its parities are to add, if it has it now.
    pub(super) fn write(&mut self, name: &Name) -> Option<Sum> {
        if name.version.fence < self.fence {
            return None;
        }
        let new: Sum = [(self.at, name.version)].into();
        if !self.has(name.version) {
            if !self.admits(name) {
                return None;
            }
            let copy = Copy { version: name.version, cover: name.cover(), sum: new.clone() };
            self.pending = Some((name.clone(), copy));
        }
        let before = |copy: &&Copy| copy.version < name.version;
        let mut change = self.chain.iter().rfind(before)?.sum.clone();
        add(&mut change, &new);
        Some(change)
    }

    /// A parity is told what to add by a data unit; whether it has the write whole.
    pub(super) fn part(&mut self, name: &Name, from: usize, change: &Sum) -> bool {
        if name.version.fence < self.fence {
            return false;
        }
        if self.has(name.version) {
            return true;
        }
        if self.adds.as_ref().is_none_or(|adds| adds.name.version < name.version) {
            self.adds = Some(Adds { name: name.clone(), got: 0, sum: Sum::new() });
        }
        let Some(adds) = self.adds.as_mut().filter(|adds| adds.name.version == name.version) else {
            return false;
        };
        if adds.got >> from & 1 == 0 || is(Canary::AddedTwice) {
            adds.got |= 1 << from;
            add(&mut adds.sum, change);
        }
        if adds.got != name.mask {
            return false;
        }
        let change = adds.sum.clone();
        if !self.admits(name) {
            return false;
        }
        self.adds = None;
        let Some(mut copy) = self.chain.last().cloned() else { return false };
        add(&mut copy.sum, &change);
        (copy.version, copy.cover) = (name.version, name.cover());
        self.pending = Some((name.clone(), copy));
        true
    }

    /// This was acknowledged (R4); whether it is here and stable.
    pub(super) fn flush(&mut self, fence: Fence, version: Version, cover: &Cover) -> bool {
        if fence < self.fence {
            return false;
        }
        if self.pending.as_ref().is_some_and(|(name, _)| name.version <= version) {
            self.promote();
        }
        self.newest().is_some_and(|newest| Unit::fits(self.at, self.k, newest, cover))
    }

    pub(super) fn seal(&mut self, fence: Fence) -> Option<Claim> {
        if fence < self.fence {
            return None;
        }
        self.fence = if is(Canary::NoSeal) { self.fence } else { fence };
        Some(Claim { stable: self.chain.clone(), pending: self.pending.clone() })
    }

    /// The stripe is at `decided.cover` (R5): this unit as it is there, and nothing newer.
    pub(super) fn resolve(&mut self, fence: Fence, decided: &Copy) -> bool {
        if fence < self.fence && !is(Canary::LateResolver) {
            return false;
        }
        self.fence = self.fence.max(fence);
        let pending = self.pending.take().map(|(_, copy)| copy);
        self.chain.extend(pending);
        self.adds = None;
        let fits = |copy: &Copy| Unit::fits(self.at, self.k, copy, &decided.cover);
        match self.chain.iter().rposition(fits) {
            Some(at) => self.chain.truncate(at + 1),
            None => {
                self.chain.retain(|copy| copy.version < decided.version);
                self.chain.push(decided.clone());
            }
        }
        true
    }

    /// What it holds is what its newest version means.
    pub(super) fn is_right(&self) -> bool {
        self.chain.iter().all(|copy| {
            let all = copy.cover.iter().copied().enumerate();
            let right: Sum = all.filter(|(at, _)| self.is_parity() || *at == self.at).collect();
            copy.sum == right
        })
    }
}
