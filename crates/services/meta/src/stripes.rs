//! Stripes: what becomes of one whose writer is gone, and whether its parities are right.
//!
//! All members have a stripe under one version, as those of a file with copies have a strip. But
//! one of them does not suffice for it: what goes forward is what `k` of them have.

use std::collections::BTreeSet;

use outboard_base::{Ino, Result};
use outboard_flow::Net;
use outboard_kv::Kv;
use outboard_medium::Medium;
use outboard_wire::shared::call::{Claim, Grant, Mode, Version};

use crate::Meta;
use crate::bytes::{Beside, errno};
use crate::copies::{STRIP, is_told};

/// The newest version that one has stable, or that all have pending who tell anything, if `k` have
/// it; and who has it. With `any` it need not be known to have been done: then the newest that `k`
/// have. That nothing was written is believed only if nobody has anything stable. `None`: more was
/// lost than the stripe bears.
pub(crate) fn decide(k: usize, voters: &[(usize, &Claim)], any: bool) -> Option<(Version, u32)> {
    let pends = |claim: &Claim| claim.pending.map(|taken| taken.version);
    let told: Vec<_> = voters.iter().filter(|(_, claim)| is_told(claim)).collect();
    let versions: BTreeSet<Version> =
        told.iter().flat_map(|(_, claim)| [Some(claim.stable), pends(claim)]).flatten().collect();
    let has = |claim: &Claim, version| claim.stable == version || pends(claim) == Some(version);
    for version in versions.into_iter().rev().filter(|version| *version != Version::default()) {
        let is_done = any
            || told.iter().any(|(_, claim)| claim.stable == version)
            || told.iter().all(|(_, claim)| pends(claim) == Some(version));
        let sources = told.iter().filter(|(_, claim)| has(claim, version));
        let sources = sources.fold(0_u32, |all, (rank, _)| all | 1 << rank);
        if is_done && sources.count_ones() as usize >= k {
            return Some((version, sources));
        }
    }
    let is_fresh = told.iter().all(|(_, claim)| claim.stable == Version::default());
    is_fresh.then(|| (Version::default(), 0))
}

impl<K: Kv, M: Medium, N: Net> Meta<K, M, N> {
    /// The first stripe of a file whose parities are not those of its data, up to where a member
    /// has rows.
    pub(crate) async fn wrong_stripe(&self, ino: Ino, end: u64) -> Result<Option<u64>> {
        let work = async |grant: &Grant| {
            // What is not there is to be filled, and has been found.
            let stripes =
                if grant.nodes.len() == grant.layout.nodes() { end.div_ceil(STRIP) } else { 0 };
            for stripe in 0..stripes {
                if !self.data().is_encoded(grant, stripe).await.map_err(errno)? {
                    return Ok((Some(stripe), None));
                }
            }
            Ok((None, None))
        };
        self.by_itself(ino, Mode::Read, Beside::Others, work).await
    }
}

#[cfg(test)]
mod tests {
    use outboard_wire::shared::call::Taken;

    use super::*;

    fn version(sequence: u32) -> Version {
        Version { fence: 1, sequence }
    }

    fn claim(stable: u32, pending: u32) -> Claim {
        let of = |sequence| if sequence == 0 { Version::default() } else { version(sequence) };
        let pending = (pending > 0).then(|| Taken { version: of(pending), epoch: 1 });
        Claim { strip: 0, stable: of(stable), pending }
    }

    /// What is decided of what five members say, of which three suffice: the sequence, and how
    /// many have it.
    fn decided(claims: &[(u32, u32)], any: bool) -> Option<(u32, u32)> {
        let claims: Vec<Claim> = claims.iter().map(|(one, other)| claim(*one, *other)).collect();
        let voters: Vec<(usize, &Claim)> = claims.iter().enumerate().collect();
        decide(3, &voters, any).map(|(version, has)| (version.sequence, has.count_ones()))
    }

    #[test]
    fn what_was_done_goes_forward_and_what_not_all_have_does_not() {
        assert_eq!(decided(&[(1, 2); 5], false), Some((2, 5)), "done, for all that is known");
        let some = [(1, 2), (1, 2), (1, 2), (1, 2), (1, 0)];
        assert_eq!(decided(&some, false), Some((1, 5)), "one never took it");
        let stable = [(2, 0), (1, 2), (1, 2), (1, 2), (1, 2)];
        assert_eq!(decided(&stable, false), Some((2, 5)), "one knows that all had it");
        let fresh = [(0, 1), (0, 1), (0, 0), (0, 0), (0, 0)];
        assert_eq!(decided(&fresh, false), Some((0, 0)), "it was never there");
        assert_eq!(decided(&[(0, 0); 5], false), Some((0, 0)));
    }

    /// The power of all was lost: each has what it had flushed. What is pending lies over what is
    /// durable at all, so one of the two can be had.
    #[test]
    fn of_two_versions_one_can_be_had() {
        for promoted in 0..=5_u32 {
            for pending in 0..=5 - promoted {
                let mut claims = vec![(2, 0); promoted as usize];
                claims.resize((promoted + pending) as usize, (1, 2));
                claims.resize(5, (1, 0));
                let (version, has) = decided(&claims, true).unwrap();
                assert!(has >= 3, "{claims:?}");
                assert_eq!(version, if promoted + pending >= 3 { 2 } else { 1 }, "{claims:?}");
            }
        }
    }

    #[test]
    fn what_too_few_have_is_not_made_up() {
        assert_eq!(decided(&[(1, 0), (1, 0), (0, 0), (0, 0), (0, 0)], true), None);
        assert_eq!(decided(&[(3, 0), (2, 0), (1, 0), (1, 0), (2, 0)], true), None);
    }
}
