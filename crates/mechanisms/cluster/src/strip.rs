//! What a member keeps of one strip, the unit in which writers conflict.
//!
//! *Last* is the stable version, whole; at most one write is *pending* over it, in grains of its
//! own, so that going back is forgetting it. A member that is FILLING may have a strip that is not
//! *complete*: then it keeps the newest write alone, which is what a copy of the version before it
//! needs to be made whole, and `last` is at most what an earlier membership left, of use only to
//! skip a copy (R7).
//!
//! What always holds: `last` never goes back within a membership; a complete strip has every
//! write up to its newest; nothing below `fence` is taken.

use crate::fault::{Fault, planted};
use crate::group::Role;
use crate::message::{Fence, Gep, Mark, Reason, Version};

/// A write of some grains of a strip.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Write<B> {
    /// Its name.
    pub version: Version,
    /// The last acknowledged before it (R2).
    pub prev: Version,
    /// Which grains, and what they become.
    pub grains: Vec<(usize, B)>,
}

/// All of a strip at one version.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Whole<B> {
    /// Which version.
    pub version: Version,
    /// Its grains.
    pub grains: Vec<B>,
}

/// What a member has, as it tells who resolves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Claim {
    /// The newest version known to have been done, or decided.
    pub stable: Option<Version>,
    /// The pending one, and the epoch in which it was first taken.
    pub pending: Option<(Version, Gep)>,
}

/// A stable version on its way to a member that lacks it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Copy<B> {
    /// Which version.
    pub version: Version,
    /// What is pending at the source.
    pub pending: Option<Version>,
    /// The grains, unless who asked has them.
    pub grains: Option<Vec<B>>,
}

/// What a RESOLVE came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Resolved {
    /// As was decided.
    Done,
    /// The version is to be copied from the source first.
    Lacks,
}

/// What a copy came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Copied {
    /// The strip is complete, or has what was decided.
    Taken,
    /// Of no use, or no longer.
    Passed,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Pending<B> {
    write: Write<B>,
    /// The epoch in which it was first taken.
    gep: Gep,
}

/// One strip at one member.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Strip<B> {
    mark: Mark,
    last: Option<Whole<B>>,
    pending: Option<Pending<B>>,
    complete: bool,
    /// What was done or decided while it could not be kept here: no older copy is taken.
    floor: Version,
    /// What was decided and is to be copied, and under which seal. Not kept across a restart: who
    /// resolves asks again.
    wanted: Option<(Fence, Version)>,
}

impl<B: Clone> Strip<B> {
    /// A strip nobody wrote, whose grains are these.
    #[must_use]
    pub fn new(grains: Vec<B>) -> Strip<B> {
        let last = Some(Whole { version: Version::default(), grains });
        let floor = Version::default();
        let mark = Mark { fence: 0, decided: true };
        Strip { mark, last, pending: None, complete: true, floor, wanted: None }
    }

    /// The strip's fence, and whether a resolver is still to come.
    #[must_use]
    pub fn mark(&self) -> Mark {
        self.mark
    }

    /// Whether it has every write up to its newest.
    #[must_use]
    pub fn is_complete(&self) -> bool {
        self.complete
    }

    /// The stable version, if the strip is complete.
    #[must_use]
    pub fn stable(&self) -> Option<&Whole<B>> {
        self.last.as_ref().filter(|_| self.complete)
    }

    /// The version a copy need not have, where nothing was written since (R7).
    #[must_use]
    pub fn kept(&self) -> Option<Version> {
        self.last.as_ref().map(|last| last.version)
    }

    /// Joined again: what is pending goes, and what is there counts for nothing until filled (R3).
    pub fn rejoin(&mut self) {
        if !planted(Fault::OldClaims) {
            self.pending = None;
        }
        self.complete = false;
        self.floor = Version::default();
        self.wanted = None;
    }

    /// The process is started again, in the same life.
    pub fn restart(&mut self) {
        self.wanted = None;
        if planted(Fault::RestartDrops) {
            self.pending = None;
        }
    }

    /// A joining member learns of a seal (R3).
    pub fn raise(&mut self, mark: Mark) {
        self.mark = self.mark.max(mark);
    }

    fn admits(&self, fence: Fence) -> Result<(), Reason> {
        if fence < self.mark.fence { Err(Reason::Fenced) } else { Ok(()) }
    }

    fn pends(&self, version: Version) -> bool {
        self.pending.as_ref().is_some_and(|p| p.write.version == version)
    }

    /// What is pending was done, or decided: it is stable now.
    fn promote(&mut self) {
        let Some(Pending { write, .. }) = self.pending.take() else { return };
        let keeps = self.complete || planted(Fault::SkippedEqual);
        let Some(last) = self.last.as_mut().filter(|_| keeps) else {
            self.last = None;
            self.floor = self.floor.max(write.version);
            return;
        };
        last.version = write.version;
        for (grain, bytes) in write.grains {
            if let Some(place) = last.grains.get_mut(grain) {
                *place = bytes;
            }
        }
    }

    /// Takes a write (R2). Once it returned `Ok` and is logged, the write may be acknowledged.
    ///
    /// # Errors
    ///
    /// `Fenced`, `Order`; `Gap` where a complete strip lacks the version before it.
    pub fn write(&mut self, write: Write<B>, role: Role, gep: Gep) -> Result<(), Reason> {
        self.admits(write.version.fence)?;
        let stable = self.stable().map(|last| last.version);
        let is_stable = stable.is_some_and(|stable| write.version <= stable);
        if self.pends(write.version) || is_stable && !planted(Fault::TakenAgain) {
            return Ok(());
        }
        let pending = self.pending.as_ref().map(|p| p.write.version);
        if pending.is_some_and(|pending| pending > write.prev) && !planted(Fault::NoOrder) {
            return Err(Reason::Order);
        }
        let is_next = pending.or(stable) == Some(write.prev);
        let lax = planted(Fault::NoOrder) || planted(Fault::TakenAgain);
        if self.complete && !is_next && !lax {
            if role == Role::Active {
                return Err(Reason::Gap);
            }
            self.complete = false;
        }
        self.promote();
        if !self.complete && !planted(Fault::SkippedEqual) {
            self.last = None;
        }
        self.raise(Mark { fence: write.version.fence, decided: true });
        self.pending = Some(Pending { write, gep });
        Ok(())
    }

    /// This version was acknowledged: it becomes stable, and the caller makes that durable (R4).
    ///
    /// # Errors
    ///
    /// `Fenced`; `Gap` where it is not here.
    pub fn flush(&mut self, version: Version, fence: Fence, role: Role) -> Result<(), Reason> {
        self.admits(fence)?;
        if self.pends(version) {
            self.promote();
        }
        let stable = self.stable().map(|last| last.version);
        let has = stable.map_or(role == Role::Filling, |stable| stable >= version);
        if has { Ok(()) } else { Err(Reason::Gap) }
    }

    /// The newest content.
    ///
    /// # Errors
    ///
    /// `Fenced`, and `Filling` where the strip is not complete.
    pub fn read(&self, fence: Fence) -> Result<Whole<B>, Reason> {
        self.admits(fence)?;
        let last = if planted(Fault::FillingReads) { self.last.as_ref() } else { self.stable() };
        let mut newest = Strip { last: last.cloned(), complete: true, ..self.clone() };
        newest.promote();
        newest.last.ok_or(Reason::Filling)
    }

    /// From now on nothing below `fence` is taken; the caller makes that durable before it answers.
    ///
    /// # Errors
    ///
    /// `Fenced`: there is a higher one.
    pub fn seal(&mut self, fence: Fence) -> Result<Claim, Reason> {
        self.admits(fence)?;
        if !planted(Fault::NoSeal) {
            self.raise(Mark { fence, decided: false });
        }
        let pending = self.pending.as_ref().map(|p| (p.write.version, p.gep));
        // Where the content is not there, a write still tells that the one before it was done, and
        // what could not be kept was done or decided: who is silent of it would undo it.
        let before = self.pending.as_ref().map(|p| p.write.prev);
        let gone = Some(self.floor).filter(|_| !planted(Fault::SilentOfGone));
        let before = before.max(gone.filter(|gone| *gone > Version::default()));
        let old = self.last.as_ref().filter(|_| planted(Fault::OldClaims)).map(|l| l.version);
        let stable = self.stable().map(|last| last.version).or(old).or(before);
        Ok(Claim { stable, pending })
    }

    /// What was decided under the seal `fence` (R5); the caller makes it durable before it answers.
    ///
    /// # Errors
    ///
    /// `Fenced`: another resolver or a new writer came since.
    pub fn resolve(
        &mut self,
        version: Version,
        fence: Fence,
        role: Role,
    ) -> Result<Resolved, Reason> {
        self.admits(fence)?;
        self.raise(Mark { fence, decided: false });
        let forward = self.pends(version);
        if forward {
            self.promote();
        }
        let stable = self.stable().map(|last| last.version);
        match stable {
            Some(stable) if stable > version && role == Role::Active => {
                return Err(Reason::Fenced);
            }
            Some(stable) if stable == version => {}
            _ if role == Role::Active && !planted(Fault::HolesForward) => {
                self.wanted = Some((fence, version));
                return Ok(Resolved::Lacks);
            }
            _ if role == Role::Active => {}
            _ => self.forget(version),
        }
        self.pending = None;
        self.wanted = None;
        self.raise(Mark { fence, decided: true });
        Ok(Resolved::Done)
    }

    /// A filling member lacks what was decided: it is not filled, and takes no older copy.
    fn forget(&mut self, version: Version) {
        self.complete = false;
        self.last = None;
        self.floor = version;
    }

    /// A copy for one that has `kept`; `None` where there is nothing stable to give.
    #[must_use]
    pub fn fetch(&self, kept: Option<Version>) -> Option<Copy<B>> {
        let last = self.stable()?;
        let pending = self.pending.as_ref().map(|p| p.write.version);
        let grains = (kept != Some(last.version)).then(|| last.grains.clone());
        Some(Copy { version: last.version, pending, grains })
    }

    /// Takes a copy of this epoch (R5, R7).
    ///
    /// It completes a strip if nothing can be missing: it is the source's newest, or it is the
    /// version right before the write that is here, and the source has no other.
    pub fn copy(&mut self, copy: Copy<B>, role: Role) -> Copied {
        let decided = self.wanted == Some((self.mark.fence, copy.version));
        let fills = role == Role::Filling && self.fills(&copy);
        if !decided && !fills {
            return Copied::Passed;
        }
        let version = copy.version;
        match copy.grains {
            Some(grains) => self.last = Some(Whole { version, grains }),
            None if self.kept() == Some(version) => {}
            None => return Copied::Passed,
        }
        let stays = |p: &Pending<B>| p.write.prev == version && !decided;
        self.pending = self.pending.take().filter(stays);
        self.complete = true;
        self.wanted = None;
        Copied::Taken
    }

    fn fills(&self, copy: &Copy<B>) -> bool {
        let reordered = planted(Fault::ReorderedCopies) && self.pending.is_none();
        if (self.complete && !reordered) || copy.version < self.floor {
            return false;
        }
        match &self.pending {
            None => copy.pending.is_none(),
            Some(p) if p.write.version <= copy.version => copy.pending.is_none(),
            Some(p) if p.write.prev == copy.version => {
                copy.pending.is_none_or(|pending| pending == p.write.version)
            }
            Some(_) => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A write was done by one ACTIVE member and two that were filling. One of these took the next
    /// write, or heard that this one was decided by a resolver that came no further: it could not
    /// keep the write, said nothing of it to the next resolver, and so undid it, for it had joined
    /// early enough to have a say.
    #[test]
    fn a_filling_member_still_claims_what_it_could_not_keep() {
        let version = |seq| Version { fence: 1, seq };
        let write = |seq| Write {
            version: version(seq),
            prev: if seq == 1 { Version::default() } else { version(seq - 1) },
            grains: vec![(0, seq)],
        };
        let mut strip = Strip::new(vec![0_u32]);
        strip.rejoin();
        assert_eq!(strip.seal(0).map(|claim| claim.stable), Ok(None), "what it had before");
        strip.write(write(1), Role::Filling, 5).unwrap();
        strip.write(write(2), Role::Filling, 5).unwrap();
        assert_eq!(strip.seal(5).map(|claim| claim.stable), Ok(Some(version(1))));
        assert_eq!(strip.resolve(version(1), 5, Role::Filling), Ok(Resolved::Done));
        let claim = Claim { stable: Some(version(1)), pending: None };
        assert_eq!(strip.seal(8), Ok(claim));
        let older = Copy { version: Version::default(), pending: None, grains: Some(vec![0]) };
        assert_eq!(strip.copy(older, Role::Filling), Copied::Passed);
    }
}
