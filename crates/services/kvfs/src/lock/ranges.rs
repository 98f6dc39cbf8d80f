//! The held locks of one file and one family.

use outboard_base::SessionId;
use outboard_wire::file::{Lock, LockKind, LockStyle};

use super::Owner;

/// A lock of one owner over `start..=end`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Held {
    pub(super) owner: Owner,
    pub(super) start: u64,
    /// Inclusive.
    pub(super) end: u64,
    /// `Unlock` only in a change, never in the table.
    pub(super) kind: LockKind,
    /// Reported by F_GETLK.
    pub(super) pid: u32,
}

impl Held {
    /// What `lock` asks for. flock speaks of the whole file, whatever range came with it.
    pub(super) fn new(session: SessionId, lock: &Lock) -> Held {
        let (start, end) = match lock.style {
            LockStyle::Posix => (lock.start, lock.end),
            LockStyle::Flock => (0, u64::MAX),
        };
        let owner = Owner { session, owner: lock.owner };
        Held { owner, start, end, kind: lock.kind, pid: lock.pid }
    }

    pub(super) fn to_lock(self, style: LockStyle) -> Lock {
        let Held { owner, start, end, kind, pid } = self;
        Lock { owner: owner.owner, start, end, kind, style, pid }
    }

    fn overlaps(&self, other: &Held) -> bool {
        self.start <= other.end && other.start <= self.end
    }

    fn touches(&self, other: &Held) -> bool {
        self.start <= other.end.saturating_add(1) && other.start <= self.end.saturating_add(1)
    }

    fn blocks(&self, wanted: &Held) -> bool {
        self.owner != wanted.owner
            && self.overlaps(wanted)
            && (self.kind == LockKind::Write || wanted.kind == LockKind::Write)
    }
}

/// Held locks, by start. Few in practice: every call walks them all.
#[derive(Default)]
pub(super) struct Ranges(Vec<Held>);

impl Ranges {
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    /// Locks that stand in the way of `wanted`, by start.
    pub(super) fn blockers(&self, wanted: &Held) -> impl Iterator<Item = Held> {
        self.0.iter().filter(|held| held.blocks(wanted)).copied()
    }

    /// The locks of `owner`.
    #[cfg(test)]
    pub(super) fn of_owner(&self, owner: Owner) -> Vec<Held> {
        self.0.iter().filter(|held| held.owner == owner).copied().collect()
    }

    /// The attachment of each lock.
    pub(super) fn holders(&self) -> impl Iterator<Item = SessionId> {
        self.0.iter().map(|held| held.owner.session)
    }

    /// The kind of the first lock of `owner`.
    pub(super) fn kind_of(&self, owner: Owner) -> Option<LockKind> {
        self.0.iter().find(|held| held.owner == owner).map(|held| held.kind)
    }

    /// Makes the owner of `wanted` hold that kind of lock over the whole range, or none if it is
    /// `Unlock`. The caller has seen that nothing blocks it.
    pub(super) fn set(&mut self, mut wanted: Held) {
        let mut kept = Vec::with_capacity(self.0.len() + 2);
        for held in self.0.drain(..) {
            if held.owner != wanted.owner {
                kept.push(held);
            } else if held.kind == wanted.kind && held.touches(&wanted) {
                wanted.start = wanted.start.min(held.start);
                wanted.end = wanted.end.max(held.end);
            } else if held.overlaps(&wanted) {
                if held.start < wanted.start {
                    kept.push(Held { end: wanted.start - 1, ..held });
                }
                if held.end > wanted.end {
                    kept.push(Held { start: wanted.end + 1, ..held });
                }
            } else {
                kept.push(held);
            }
        }
        if wanted.kind != LockKind::Unlock {
            kept.push(wanted);
        }
        kept.sort_by_key(|held| (held.start, held.owner));
        self.0 = kept;
    }

    /// Drops the locks of an attachment; how many there were.
    pub(super) fn drop_session(&mut self, session: SessionId) -> usize {
        let before = self.0.len();
        self.0.retain(|held| held.owner.session != session);
        before - self.0.len()
    }
}
