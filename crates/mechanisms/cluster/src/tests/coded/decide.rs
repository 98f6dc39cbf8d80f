//! What becomes of a stripe whose writer is gone, and the units that members lack.

use std::collections::{BTreeMap, BTreeSet};

use super::unit::{Claim, Copy, Cover, Sum, Unit, add};
use super::{Canary, is};
use crate::Version;

/// A stripe: so many data units, and parities.
#[derive(Clone, Copy, Debug)]
pub(super) struct Code {
    pub(super) k: usize,
    pub(super) m: usize,
}

impl Code {
    pub(super) fn units(self) -> usize {
        self.k + self.m
    }
}

/// What members told, by unit.
pub(super) type Claims = BTreeMap<usize, Claim>;

fn copies(claim: &Claim) -> impl Iterator<Item = &Copy> {
    claim.stable.iter().chain(claim.pending.iter().map(|(_, copy)| copy))
}

/// The newest version that is stable somewhere, or that everybody whom it touches has, and of which
/// so many units are left that match (R5, R6). `None`: no version can be decoded.
pub(super) fn decide(code: Code, claims: &Claims) -> Option<(Version, Cover)> {
    let known: BTreeMap<Version, Cover> =
        claims.values().flat_map(copies).map(|copy| (copy.version, copy.cover.clone())).collect();
    let is_it = |(version, cover): &(&Version, &Cover)| {
        goes_forward(code, claims, **version) && matching(code, claims, cover).len() >= code.k
    };
    let (version, cover) = known.iter().rev().find(is_it)?;
    Some((*version, cover.clone()))
}

fn goes_forward(code: Code, claims: &Claims, version: Version) -> bool {
    if claims.values().any(|claim| claim.stable.iter().any(|copy| copy.version == version)) {
        return true;
    }
    let pends = |claim: &Claim| {
        claim
            .pending
            .as_ref()
            .filter(|(name, _)| name.version == version)
            .map(|(name, _)| name.mask)
    };
    let Some(mask) = claims.values().find_map(pends) else { return false };
    let is_touched = |unit: usize| unit >= code.k || mask >> unit & 1 == 1 || is(Canary::NaiveAll);
    let mut touched = claims.iter().filter(|(unit, _)| is_touched(**unit));
    touched.all(|(_, claim)| pends(claim).is_some())
}

/// Units that are as they are in a stripe at `cover`.
fn matching<'c>(code: Code, claims: &'c Claims, cover: &Cover) -> BTreeMap<usize, &'c Copy> {
    let fits = |(unit, claim): (&usize, &'c Claim)| {
        let mut all: Vec<&Copy> = copies(claim).collect();
        all.reverse();
        let fits = |copy: &&&Copy| {
            let any = is(Canary::AnyUnits) && copy.version <= *cover.iter().max().unwrap();
            any || Unit::fits(*unit, code.k, copy, cover)
        };
        Some((*unit, *all.iter().find(fits)?))
    };
    claims.iter().filter_map(fits).collect()
}

/// Every unit of the stripe at `cover`, made of those that match.
pub(super) fn decode(
    code: Code,
    claims: &Claims,
    (version, cover): (Version, &Cover),
) -> Vec<Copy> {
    let found = matching(code, claims, cover);
    let missing: BTreeSet<usize> = (0..code.k).filter(|unit| !found.contains_key(unit)).collect();
    let mut data: BTreeMap<usize, Sum> =
        (0..code.k).filter_map(|unit| Some((unit, found.get(&unit)?.sum.clone()))).collect();
    // So many parities as data is missing. Each gives the sum of what is missing, and all must say
    // the same: of what they agree on each missing unit is its own part.
    let parities = found.iter().filter(|(unit, _)| **unit >= code.k);
    let sums = parities.take(missing.len()).map(|(_, copy)| {
        let mut sum = copy.sum.clone();
        data.values().for_each(|known| add(&mut sum, known));
        sum
    });
    let mut sums = sums.collect::<Vec<Sum>>().into_iter();
    let first = sums.next().unwrap_or_default();
    let agree = sums.all(|sum| sum == first);
    for unit in &missing {
        let own = first.iter().copied().filter(|(at, _)| at == unit && agree).collect();
        data.insert(*unit, own);
    }
    let all = (0..code.units()).map(|unit| {
        let mut sum = Sum::new();
        match data.get(&unit) {
            Some(own) => sum = own.clone(),
            None => data.values().for_each(|known| add(&mut sum, known)),
        }
        // A data unit is as old as its last write.
        let version = if unit < code.k { cover[unit] } else { version };
        Copy { version, cover: cover.clone(), sum }
    });
    all.collect()
}
