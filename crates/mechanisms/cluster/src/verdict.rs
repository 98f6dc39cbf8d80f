//! What is decided of a strip whose writer is gone (R5).
//!
//! *Done* means that every member of one epoch logged it. So of the members there are now, all that
//! had joined by then have it, and it goes forward. Whoever joined later has no say: else one who
//! came after an acknowledged write could undo it.

use crate::fault::{Fault, planted};
use crate::group::{Entry, Role};
use crate::message::{Node, Version};
use crate::strip::Claim;

/// A member and what it claims.
#[derive(Clone, Copy, Debug)]
pub struct Answer {
    /// Who.
    pub member: Entry,
    /// What it has.
    pub claim: Claim,
}

impl Answer {
    fn has(&self, version: Version) -> bool {
        self.claim.stable == Some(version) || self.pends(version)
    }

    fn pends(&self, version: Version) -> bool {
        self.claim.pending.is_some_and(|(pending, _)| pending == version)
    }
}

/// What a strip becomes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Verdict {
    /// The version that all will have, with nothing newer.
    pub version: Version,
    /// An ACTIVE member that has it whole.
    pub source: Node,
}

/// Decides, from the answers of *all* members of one epoch: newest version first, forward if one
/// has it stable or everybody who must have it if it was done does have it, and an ACTIVE member
/// has it; else the next. `None` if no ACTIVE member has anything.
///
/// What no ACTIVE member has was not done: who became ACTIVE had all that was. It may be that only
/// a filling member has it, which joined before those who are ACTIVE now, and cannot make it whole.
#[must_use]
pub fn verdict(answers: &[Answer]) -> Option<Verdict> {
    let mut versions: Vec<Version> = answers
        .iter()
        .flat_map(|a| [a.claim.stable, a.claim.pending.map(|(version, _)| version)])
        .flatten()
        .collect();
    versions.sort_unstable();
    versions.dedup();
    let source = |version| {
        let has = |a: &&Answer| a.member.role == Role::Active && a.has(version);
        answers.iter().find(has).map(|answer| answer.member.node)
    };
    let is_it = |version: &Version| {
        goes_forward(answers, *version) && (source(*version).is_some() || planted(Fault::NoSource))
    };
    let version = versions.into_iter().rev().find(is_it)?;
    Some(Verdict { version, source: source(version)? })
}

fn goes_forward(answers: &[Answer], version: Version) -> bool {
    if answers.iter().any(|a| a.claim.stable == Some(version)) {
        return true;
    }
    let first = answers.iter().filter(|a| a.pends(version)).filter_map(|a| a.claim.pending);
    let Some(first) = first.map(|(_, gep)| gep).min() else { return false };
    let has_say = |a: &&Answer| a.member.joined <= first || planted(Fault::NaiveAllMembers);
    answers.iter().filter(has_say).all(|a| a.has(version))
}
