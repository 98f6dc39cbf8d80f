//! Stripes: what becomes of one whose writer is gone, and whether its parities are right.
//!
//! All members have a stripe under one version, as those of a file with copies have a strip. But
//! one of them does not suffice for it: what goes forward is what `k` of them have.

use std::collections::BTreeSet;
use std::ops::Range;
use std::pin::pin;
use std::time::Duration;

use outboard_base::limits::FILE_SIZE_MAX;
use outboard_base::planted::{Fault, is_planted};
use outboard_base::task::join_all;
use outboard_base::{Errno, Ino, Result};
use outboard_dfs::member_end;
use outboard_flow::Net;
use outboard_kv::Kv;
use outboard_kvfs::spread::Spread;
use outboard_medium::Medium;
use outboard_wire::shared::call::{Call, Claim, Grant, Layout, Mode, Object, Reply, Version};
use outboard_wire::shared::{Coordinate, Strategy};

use crate::Meta;
use crate::bytes::{Beside, errno};
use crate::copies::{STRIP, Sealed, is_told, peer};
use crate::delegations::Held;
use crate::grants::NOBODY;
use crate::nodes::{PATIENCE, QUICK, first_of, meanwhile};

/// How long members are given to flush what others wrote there, too.
const FLUSH: Duration = Duration::from_secs(30);
/// Stripes that are checked before others have the file in between.
const CHECKED: u64 = 256;

/// The newest version that one has stable, or that all have pending, if `k` have it; and who has
/// it. (Of copies who tells nothing has no say, as a hole may have taken it away there. Stripes
/// have no holes but behind the end, of which nothing is decided.) With `any` it need not be known
/// to have been done: then the newest that `k` have. That nothing was written is believed only if
/// nobody has anything stable. `None`: more was lost than the stripe bears.
pub(crate) fn decide(k: usize, voters: &[(usize, &Claim)], any: bool) -> Option<(Version, u32)> {
    let k = if is_planted(Fault::Few) { 1 } else { k };
    let pends = |claim: &Claim| claim.pending.map(|taken| taken.version);
    let told: Vec<_> = voters.iter().filter(|(_, claim)| is_told(claim)).collect();
    let versions: BTreeSet<Version> =
        told.iter().flat_map(|(_, claim)| [Some(claim.stable), pends(claim)]).flatten().collect();
    let has = |claim: &Claim, version| claim.stable == version || pends(claim) == Some(version);
    for version in versions.into_iter().rev().filter(|version| *version != Version::default()) {
        let is_done = any
            || told.iter().any(|(_, claim)| claim.stable == version)
            || voters.iter().all(|(_, claim)| pends(claim) == Some(version));
        let sources = told.iter().filter(|(_, claim)| has(claim, version));
        let sources = sources.fold(0_u32, |all, (rank, _)| all | 1 << rank);
        if is_done && sources.count_ones() as usize >= k {
            return Some((version, sources));
        }
    }
    let is_fresh = told.iter().all(|(_, claim)| claim.stable == Version::default());
    is_fresh.then(|| (Version::default(), 0))
}

/// Whether a file lies as stripes.
pub(crate) fn is_coded(layout: &Layout) -> bool {
    layout.strategy == Strategy::Parity
}

/// Whether the volume knows how long a file is: who writes stripes tells before it answers, but of
/// a server's loss of power, and of metadata from a backup, it may not know.
pub(crate) fn is_size_known(spread: &Spread) -> bool {
    !spread.writing || spread.tells
}

/// Where what members have of a file with parities ends of which anybody was answered.
pub(crate) fn ends_at(spread: &Spread) -> Option<u64> {
    let size = is_size_known(spread).then_some(spread.attr.size);
    let end = size.into_iter().chain(spread.cut).min()?;
    Some(member_end(&spread.layout, end))
}

impl<K: Kv, M: Medium, N: Net> Meta<K, M, N> {
    /// Stripes of which nobody was answered anything go, and what is behind `sound`, where those
    /// end that lacked nothing; what members hold then.
    pub(crate) async fn cut_behind(
        &self,
        sealed: &Sealed,
        found: Vec<Object>,
        sound: Option<u64>,
    ) -> Result<Vec<Object>> {
        let sound = sound.map(|end| end.min(FILE_SIZE_MAX).next_multiple_of(STRIP));
        let end = ends_at(&sealed.spread).into_iter().chain(sound).min().unwrap_or(u64::MAX);
        if found.iter().all(|object| object.end <= end) {
            return Ok(found);
        }
        let grant = self.grant_to_all(sealed).await?;
        self.in_time(self.data().hole_at_members(&grant, end..u64::MAX)).await?;
        self.seal_at(&sealed.members, sealed.spread.attr.ino.0, grant.capability.fence).await
    }

    /// A file is to be granted to a writer under a fence of its own: what members have of it is
    /// durable, so that it can be gone over, and none of them has lost anything.
    ///
    /// # Errors
    /// `EAGAIN` if it is to be resolved before.
    pub(crate) async fn make_durable(&self, ino: Ino) -> Result<()> {
        let spread = self.volume().spread(ino).await?;
        let is_fresh = spread.attr.size == 0 && spread.attr.blocks == 0;
        if !is_coded(&spread.layout) || is_fresh {
            return Ok(());
        }
        let members = self.nodes_of(&spread);
        let call = Call::Doubts { object: ino.0 };
        let all_trust = async |patience: Duration| {
            let asked = members.iter().map(|member| self.ask(peer(member), &call, patience));
            let answers = join_all(asked.collect()).await;
            answers.into_iter().all(|answer| answer == Ok(Reply::Done))
        };
        // One that does not answer is not waited for, nor one that falls silent meanwhile; one that
        // lost power meanwhile doubts.
        let begun = self.net().now();
        let mut flush = pin!(self.data().flush(members.iter().map(peer)));
        let (mut trusts, mut flushed) = (all_trust(QUICK).await, None);
        while trusts {
            if flushed.is_none() {
                let mut look = pin!(self.net().sleep(QUICK));
                flushed = first_of(flush.as_mut(), look.as_mut()).await;
            }
            let is_flushed = flushed.is_some();
            trusts = meanwhile(flush.as_mut(), &mut flushed, all_trust(PATIENCE)).await;
            match flushed {
                Some(Ok(())) if trusts && is_flushed => return Ok(()),
                // The medium of one fails: who decides goes on without it.
                Some(Err(_)) => break,
                Some(Ok(())) => {}
                None if self.net().now().since(begun) < FLUSH => {}
                // It takes long.
                None if trusts => return Err(Errno::EAGAIN),
                _ => {}
            }
        }
        self.delegations().must_resolve(ino);
        Err(Errno::EAGAIN)
    }

    /// Where a file ends whose size the volume does not know, by what its members have.
    pub(crate) async fn end_of_stripes(
        &self,
        spread: &Spread,
        fence: u64,
        end: u64,
    ) -> Result<u64> {
        let Some(last) = end.checked_sub(1) else { return Ok(0) };
        let held = Held { mode: Mode::Write, fence };
        let grant = self.grant_of(NOBODY, spread, held).await?;
        self.in_time(self.data().end_in(&grant, last / STRIP)).await
    }

    /// Who joins a file with parities, to have a unit of it from now on, has no other: what it has
    /// of a try under another map, or from a time before, goes. Under this seal.
    pub(crate) async fn empty_joiners(
        &self,
        spread: &Spread,
        fence: u64,
        joiners: &[Coordinate],
    ) -> Result<()> {
        let ino = spread.attr.ino;
        let is_new =
            |one: &&Coordinate| self.chores().unit_of_joiner(ino, one.node) != Some(one.unit);
        let new: Vec<Coordinate> = joiners.iter().filter(is_new).copied().collect();
        if new.is_empty() || !is_coded(&spread.layout) {
            return Ok(());
        }
        self.seal_at(&new, ino.0, fence).await?;
        let held = Held { mode: Mode::Write, fence };
        let grant = self.grant_at(NOBODY, spread, held, new.clone()).await?;
        self.in_time(self.data().hole_at_members(&grant, 0..u64::MAX)).await?;
        for one in new {
            self.chores().note_joiner(ino, one.node, one.unit);
        }
        Ok(())
    }

    /// The first stripe of a file whose parities are not those of its data, up to where a member
    /// has rows.
    pub(crate) async fn wrong_stripe(&self, ino: Ino, end: u64) -> Result<Option<u64>> {
        let mut from = 0;
        while from < end.div_ceil(STRIP) {
            // Others may have the file in between.
            let to = end.div_ceil(STRIP).min(from.saturating_add(CHECKED));
            if let Some(wrong) = self.wrong_stripe_of(ino, from..to).await? {
                return Ok(Some(wrong));
            }
            from = to;
        }
        Ok(None)
    }

    async fn wrong_stripe_of(&self, ino: Ino, stripes: Range<u64>) -> Result<Option<u64>> {
        let work = async |grant: &Grant| {
            // What is not there is to be filled, and has been found.
            let is_whole = grant.nodes.len() == grant.layout.nodes();
            for stripe in stripes.clone().filter(|_| is_whole) {
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
