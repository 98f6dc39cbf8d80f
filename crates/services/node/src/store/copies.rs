//! Strips that other nodes have copies of: what may go over what (R2), what a member tells who
//! resolves, and what it does then (R5). The rules are those of `docs/internals/shared.md`; the
//! member here is an active one.

use std::ops::Range;

use outboard_base::Ino;
use outboard_base::planted::{Fault, is_planted};
use outboard_medium::Medium;
use outboard_wire::shared::Reason;
use outboard_wire::shared::call::{Claim, Decided, Taken};

use super::format::TRUSTED;
use super::index::{Entry, Strip};
use super::log::Spent;
use super::record::Record;
use super::write::Change;
use super::{Store, Version};

/// What a write says of the others that its strip had.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Copies {
    /// The last acknowledged version of the strip; nothing: none under this fence. What was under
    /// those below was done, or decided, before this one was given out (R1).
    pub previous: Option<Version>,
    /// All writes of the object under this fence up to this sequence were acknowledged, holes too.
    /// So its writer need not remember the last version of each strip.
    pub settled: u32,
    /// The epoch of the group under which it came.
    pub epoch: u32,
}

impl Copies {
    /// Whether a write may go over the newest one that is here: that is the last acknowledged one,
    /// or one that was settled. A newer one was not acknowledged; with an older one a write was
    /// missed.
    pub(super) fn follow(self, version: Version, newest: Version) -> bool {
        let is_its = newest.fence == version.fence || is_planted(Fault::Settled);
        let is_settled = is_its && newest.sequence <= self.settled;
        let is_known = match self.previous {
            Some(previous) if newest < previous => return is_planted(Fault::Gap),
            Some(previous) => newest == previous,
            None => newest == Version::default() || newest.fence < version.fence,
        };
        is_known || is_settled || is_planted(Fault::Unordered)
    }
}

/// Pending strips that are looked at before others may use the store again.
const STRIPS_AT_ONCE: usize = 1 << 12;

/// What a member has to do about what was decided of a strip.
enum Due {
    /// It is so.
    Nothing,
    /// What is pending becomes stable, or is forgotten.
    Record(Record),
    /// It lacks the version.
    Lacks(Claim),
}

/// What is here of a strip. What holds nothing, as a cut took it away, is as one that never was.
fn claim(entry: Option<&Entry>, index: u64) -> Claim {
    let strip = entry.and_then(|entry| entry.strips.get(&index));
    let pending = strip.and_then(|strip| strip.pending.as_ref());
    let taken = |version, epoch| Taken { version, epoch };
    let last = entry.map_or_else(Version::default, |entry| entry.last(index));
    let is_told = pending.is_none() || strip.is_some_and(Strip::holds_any);
    Claim {
        strip: index,
        stable: if is_told { last } else { Version::default() },
        pending: pending.map(|pending| taken(pending.version, pending.epoch)),
    }
}

impl<M: Medium> Store<M> {
    /// Writes bytes that lie within one strip, of which other nodes have copies, too. The write is
    /// pending then, and so much is `answered`; what was pending before is stable. What is read is
    /// what is pending: nobody but its writer reads before it is done or decided.
    ///
    /// # Errors
    /// As of [`Store::write`]. [`Reason::Order`] also where what is here is not the last
    /// acknowledged write before this one. [`Reason::Full`] also where it is over others: these
    /// give nothing back before this one is stable. [`Reason::Filling`]: it is to be laid over what
    /// is damaged here.
    pub async fn write_copy(
        &self,
        object: u64,
        strip: u32,
        version: Version,
        copies: Copies,
        offset: u64,
        bytes: &[u8],
    ) -> Result<(), Reason> {
        self.change_copy(object, strip, version, copies, offset, Change::Bytes(bytes)).await
    }

    /// The same of what changes of bytes: all but bytes themselves of whole grains.
    ///
    /// # Errors
    /// As of [`Store::write_copy`]; [`Reason::Invalid`] also where it is of parts of grains.
    pub async fn change_copy(
        &self,
        object: u64,
        strip: u32,
        version: Version,
        copies: Copies,
        offset: u64,
        change: Change<'_>,
    ) -> Result<(), Reason> {
        if copies.previous.is_some_and(|previous| previous >= version) {
            return Err(Reason::Invalid);
        }
        self.lay(object, strip, version, Some(copies), offset, change).await
    }

    /// What is here of the strips of an object from number `from` on, in their order, so many at
    /// most. Strips that were never written, or of which nothing is left, are not among them.
    pub async fn claims(&self, object: u64, from: u64, most: usize) -> Vec<Claim> {
        let _shared = self.locks.shared_on(Ino(object), 0..u64::MAX).await;
        self.settled().await;
        let state = self.shared.state();
        let Some(entry) = state.index.objects.get(&object) else { return Vec::new() };
        let is_there = |(_, strip): &(&u64, &Strip)| strip.pending.is_some() || strip.holds_any();
        let strips = entry.strips.range(from..).filter(is_there).take(most);
        strips.map(|(index, _)| claim(Some(entry), *index)).collect()
    }

    /// The same of those of its strips that were found damaged, and not written over since.
    #[must_use]
    pub fn damaged_strips(&self, object: u64, from: u64, most: usize) -> Vec<Claim> {
        let state = self.shared.state();
        let entry = state.index.objects.get(&object);
        let known = state.damaged.range((object, from)..=(object, u64::MAX)).map(|(at, _)| *at);
        let strips = known.filter(|at| state.is_damaged(*at)).take(most);
        strips.map(|(_, index)| claim(entry, index)).collect()
    }

    /// Each of these strips has this version and nothing newer: what is pending is stable, or
    /// forgotten. Durable before it returns. Those that lack theirs are left as they are, and
    /// returned.
    ///
    /// # Errors
    /// [`Reason::Fence`]: a higher fence is in force, or a strip that is here has a later stable
    /// version; of the others some may be done. [`Reason::Full`], [`Reason::Medium`].
    pub async fn resolve(
        &self,
        object: u64,
        fence: u64,
        decided: &[Decided],
    ) -> Result<Vec<Claim>, Reason> {
        let _all = self.locks.exclusive(Ino(object)).await;
        self.settled().await;
        self.shared.usable()?;
        let known = self.shared.state().index.objects.get(&object).map(|entry| entry.fence);
        match known {
            Some(known) if known > fence => return Err(Reason::Fence),
            Some(known) if known == fence => {}
            _ => self.commit(Record::Seal { object, fence }, Spent::default()).await?,
        }
        let (mut records, mut lacking) = (Vec::new(), Vec::new());
        for one in decided {
            match self.due(object, *one)? {
                Due::Nothing => {}
                Due::Record(record) => records.push(record),
                Due::Lacks(claim) => lacking.push(claim),
            }
        }
        self.commit_all(records).await?;
        if !is_planted(Fault::Undecided) {
            self.flush().await?;
        }
        Ok(lacking)
    }

    /// All writes of these bytes up to a version were acknowledged: they are stable, and durable
    /// once a flush says so, which gives back what they replaced (R4).
    ///
    /// # Errors
    /// [`Reason::Fence`]: a higher fence is in force. [`Reason::Full`], [`Reason::Medium`]: of the
    /// strips some may be done.
    pub async fn settle(
        &self,
        object: u64,
        range: Range<u64>,
        up_to: Version,
    ) -> Result<(), Reason> {
        let mut next = range.start;
        while next < range.end {
            // Who has nothing to settle waits for nobody: what is not here was not acknowledged.
            let (records, mut behind) = self.acknowledged(object, next..range.end, up_to)?;
            if !records.is_empty() {
                behind = self.settle_some(object, next..range.end, up_to).await?;
            }
            next = behind.unwrap_or(range.end);
        }
        Ok(())
    }

    /// The same of some strips; where those behind them begin.
    async fn settle_some(
        &self,
        object: u64,
        range: Range<u64>,
        up_to: Version,
    ) -> Result<Option<u64>, Reason> {
        let _all = self.locks.exclusive(Ino(object)).await;
        self.settled().await;
        self.shared.usable()?;
        let (records, behind) = self.acknowledged(object, range, up_to)?;
        self.commit_all(records).await?;
        Ok(behind)
    }

    /// Whether all that it has acknowledged of such strips is here, in this boot of its computer:
    /// it was trusted in it, or never had any before.
    pub fn is_trusted_in(&self, boot: u64) -> bool {
        *self.shared.state().trusted.get_or_insert(boot) == boot
    }

    /// What it has of such strips is what all have who have copies, in this boot. Durable before it
    /// returns.
    ///
    /// # Errors
    /// [`Reason::Full`], [`Reason::Medium`].
    pub async fn trust(&self, boot: u64) -> Result<(), Reason> {
        let _leader = self.leader.lock().await;
        self.shared.usable()?;
        let is_said = {
            let mut state = self.shared.state();
            state.trusted = Some(boot);
            // Where there was no such strip yet, the first one brings it.
            state.header.format < TRUSTED || state.header.trusted == boot
        };
        if is_said { Ok(()) } else { self.checkpoint().await }
    }

    /// What becomes stable of some strips, and where those behind them begin.
    fn acknowledged(
        &self,
        object: u64,
        range: Range<u64>,
        up_to: Version,
    ) -> Result<(Vec<Record>, Option<u64>), Reason> {
        let state = self.shared.state();
        let Some(entry) = state.index.objects.get(&object) else { return Ok((Vec::new(), None)) };
        if up_to.fence < entry.fence {
            return Err(Reason::Fence);
        }
        let is_done = |version: Version| version <= up_to || is_planted(Fault::Eager);
        let (mut records, mut strips) = (Vec::new(), entry.pending.range(entry.touched(&range)));
        for index in strips.by_ref().take(STRIPS_AT_ONCE).copied() {
            let pending = entry.strips.get(&index).and_then(|strip| strip.pending.as_ref());
            let version = pending.map(|pending| pending.version);
            if let Some(version) = version.filter(|version| is_done(*version)) {
                records.push(Record::Settled { object, index, version });
            }
        }
        Ok((records, strips.next().map(|index| index * u64::from(entry.strip))))
    }

    fn due(&self, object: u64, Decided { strip, version }: Decided) -> Result<Due, Reason> {
        let state = self.shared.state();
        let claim = claim(state.index.objects.get(&object), strip);
        let is_here = state.index.strip((object, strip)).is_some();
        let settled = Record::Settled { object, index: strip, version };
        Ok(match claim.pending {
            Some(pending) if pending.version == version => Due::Record(settled),
            _ if claim.stable > version && is_here => return Err(Reason::Fence),
            // What a cut took away here, and not at all, comes again from those who have it.
            _ if claim.stable != version => Due::Lacks(claim),
            Some(_) => Due::Record(settled),
            None => Due::Nothing,
        })
    }
}
