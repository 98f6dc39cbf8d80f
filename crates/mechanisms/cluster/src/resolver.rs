//! Who ends what a writer left: SEAL at all members, a verdict, RESOLVE at all members (R5).
//!
//! A resolver owns nothing. It may die or pause at any step: another begins anew under a higher
//! fence, which shuts this one out at every member.

use std::collections::{BTreeMap, BTreeSet};

use crate::group::Group;
use crate::message::{Fence, Node, Reason, Reply, Request, Version};
use crate::strip::Claim;
use crate::verdict::{Answer, Verdict, verdict};

/// Where a resolver stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    /// [`Resolver::asks`] says who is still to answer.
    Asking,
    /// Every member has this version and nothing newer.
    Done(Version),
    /// The epoch changed or another resolver is newer: begin anew.
    Over,
    /// No member that may serve has what must be kept.
    Lost,
}

/// The resolving of one strip.
#[derive(Clone, Debug)]
pub struct Resolver {
    group: Group,
    fence: Fence,
    claims: BTreeMap<Node, Claim>,
    verdict: Option<Verdict>,
    resolved: BTreeSet<Node>,
    end: Option<Progress>,
}

impl Resolver {
    /// One that seals at `fence`, which nobody was or will be given.
    #[must_use]
    pub fn new(group: Group, fence: Fence) -> Resolver {
        let (claims, resolved) = (BTreeMap::new(), BTreeSet::new());
        Resolver { group, fence, claims, verdict: None, resolved, end: None }
    }

    /// The group as this resolver knows it.
    #[must_use]
    pub fn group(&self) -> &Group {
        &self.group
    }

    /// The fence it seals at.
    #[must_use]
    pub fn fence(&self) -> Fence {
        self.fence
    }

    /// What is to be sent, again or for the first time, under the epoch of [`Resolver::group`].
    #[must_use]
    pub fn asks<B>(&self) -> Vec<(Node, Request<B>)> {
        let fence = self.fence;
        let ask = |node| match self.verdict {
            None => (!self.claims.contains_key(&node)).then_some(Request::Seal(fence)),
            Some(Verdict { version, source }) => (!self.resolved.contains(&node))
                .then_some(Request::Resolve { fence, version, source }),
        };
        let open = self.end.is_none();
        self.group.nodes().filter(|_| open).filter_map(|n| Some((n, ask(n)?))).collect()
    }

    /// `node` answered, under the epoch of [`Resolver::group`].
    pub fn answered<B>(&mut self, node: Node, reply: &Reply<B>) -> Progress {
        match reply {
            Reply::Sealed(claim) if self.verdict.is_none() => {
                self.claims.insert(node, *claim);
                self.decide();
            }
            Reply::Resolved if self.verdict.is_some() => {
                self.resolved.insert(node);
            }
            Reply::Refused(Reason::Epoch(gep)) if *gep < self.group.gep => {}
            Reply::Refused(Reason::Epoch(_) | Reason::Fenced) => {
                self.end.get_or_insert(Progress::Over);
            }
            _ => {}
        }
        self.progress()
    }

    /// Where it stands.
    #[must_use]
    pub fn progress(&self) -> Progress {
        match (self.end, self.verdict) {
            (Some(end), _) => end,
            (None, Some(verdict)) if self.group.nodes().all(|n| self.resolved.contains(&n)) => {
                Progress::Done(verdict.version)
            }
            _ => Progress::Asking,
        }
    }

    fn decide(&mut self) {
        let answer = |member: &crate::group::Entry| {
            Some(Answer { member: *member, claim: *self.claims.get(&member.node)? })
        };
        let answers: Option<Vec<Answer>> = self.group.members.iter().map(answer).collect();
        let Some(answers) = answers else { return };
        self.verdict = verdict(&answers);
        if self.verdict.is_none() {
            self.end = Some(Progress::Lost);
        }
    }
}
