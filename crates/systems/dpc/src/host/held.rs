//! What a session holds on the DPU side: open files and locks. After a loss they are handed in
//! again, so the session keeps its own account of them.

use std::collections::{BTreeMap, HashMap};

use outboard_base::{Fh, Ino};
use outboard_link::records::{Place, Records};
use outboard_wire::file::{Lock, LockKind, LockStyle, Request, open_flags};

use super::notes::Written;

/// An open file or directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Handle {
    pub(super) ino: Ino,
    pub(super) flags: u32,
    pub(super) directory: bool,
}

impl Handle {
    /// Whether it may be read from.
    pub(super) fn reads(&self) -> bool {
        self.flags & open_flags::ACCMODE != open_flags::WRONLY
    }

    /// Whether it may be written to.
    pub(super) fn writes(&self) -> bool {
        matches!(self.flags & open_flags::ACCMODE, open_flags::WRONLY | open_flags::RDWR)
    }
}

/// A lock held, and the handle it was taken through.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Held {
    fh: Fh,
    lock: Lock,
}

/// Open handles and held locks.
#[derive(Debug, Default)]
pub(super) struct HeldState {
    handles: BTreeMap<Fh, Handle>,
    /// Handles on each inode.
    open: HashMap<Ino, usize>,
    locks: HashMap<(Ino, LockStyle), Vec<Held>>,
    /// How many locks those are.
    held: usize,
    /// The same where a successor of this process finds it.
    written: Written,
}

impl HeldState {
    /// A handle was opened.
    pub(super) fn opened(&mut self, fh: Fh, handle: Handle) {
        self.written.opened(fh, handle);
        *self.open.entry(handle.ino).or_default() += 1;
        if let Some(other) = self.handles.insert(fh, handle) {
            self.uncount(other.ino);
        }
    }

    /// A handle is being closed: its owner's flock goes with it. If it is the last on its inode,
    /// every lock there goes, and this is true.
    pub(super) fn closing(&mut self, ino: Ino, fh: Fh, owner: u64) -> bool {
        if let Some(handle) = self.handles.remove(&fh) {
            self.written.closed(fh);
            self.uncount(handle.ino);
        }
        self.drop_owner(ino, LockStyle::Flock, owner);
        let last = !self.open.contains_key(&ino);
        if last {
            self.unlocked(ino);
        }
        last
    }

    fn uncount(&mut self, ino: Ino) {
        if let Some(count) = self.open.get_mut(&ino) {
            *count -= 1;
            if *count == 0 {
                self.open.remove(&ino);
            }
        }
    }

    /// Nothing is locked on `ino` any more.
    pub(super) fn unlocked(&mut self, ino: Ino) {
        for style in [LockStyle::Posix, LockStyle::Flock] {
            self.held -= self.locks.remove(&(ino, style)).map_or(0, |held| held.len());
            self.note((ino, style));
        }
    }

    /// The handle `fh`, if it is on `ino`.
    pub(super) fn handle(&self, ino: Ino, fh: Fh) -> Option<Handle> {
        self.handles.get(&fh).filter(|handle| handle.ino == ino).copied()
    }

    /// The first lock held here that stands in the way of `lock`.
    pub(super) fn blocker(&self, ino: Ino, lock: Lock) -> Option<Lock> {
        let held = self.locks.get(&(ino, lock.style)).into_iter().flatten().map(|held| held.lock);
        let whole = lock.style == LockStyle::Flock;
        held.filter(|held| held.owner != lock.owner)
            .filter(|held| whole || held.start <= lock.end && lock.start <= held.end)
            .filter(|held| held.kind == LockKind::Write || lock.kind == LockKind::Write)
            .min_by_key(|held| held.start)
    }

    /// Every lock held on `ino`, and the handle it was taken through.
    pub(super) fn locks(&self, ino: Ino) -> impl Iterator<Item = (Fh, Lock)> {
        let of = move |style| self.locks.get(&(ino, style)).into_iter().flatten();
        of(LockStyle::Posix).chain(of(LockStyle::Flock)).map(|held| (held.fh, held.lock))
    }

    /// A descriptor is being closed: the owner's POSIX locks on the file go.
    pub(super) fn flushing(&mut self, ino: Ino, owner: u64) {
        self.drop_owner(ino, LockStyle::Posix, owner);
    }

    fn drop_owner(&mut self, ino: Ino, style: LockStyle, owner: u64) {
        if let Some(held) = self.locks.get_mut(&(ino, style)) {
            let before = held.len();
            held.retain(|held| held.lock.owner != owner);
            self.held -= before - held.len();
            if held.is_empty() {
                self.locks.remove(&(ino, style));
            }
            self.note((ino, style));
        }
    }

    /// Writes down what is held of one style on one inode.
    fn note(&mut self, key: (Ino, LockStyle)) {
        let held = self.locks.get(&key).into_iter().flatten();
        self.written.locked(key, held.map(|held| (held.fh, held.lock)));
    }

    /// From here on what changes is written down in `records`, where all of this stands already.
    pub(super) fn write_down(&mut self, records: Records) {
        self.written.records = Some(records);
    }

    /// A handle was found written down.
    pub(super) fn handle_found(&mut self, fh: Fh, handle: Handle, place: Place) {
        self.opened(fh, handle);
        self.written.handle_found(fh, place);
    }

    /// A lock was found written down.
    pub(super) fn lock_found(&mut self, ino: Ino, fh: Fh, lock: Lock, place: Place) {
        self.locked(ino, fh, lock);
        self.written.lock_found(ino, lock.style, place);
    }

    /// A lock was granted or dropped: it replaces what its owner held of the range.
    pub(super) fn locked(&mut self, ino: Ino, fh: Fh, lock: Lock) {
        let key = (ino, lock.style);
        let before = self.locks.remove(&key).unwrap_or_default();
        self.held -= before.len();
        let mut after = Vec::with_capacity(before.len() + 2);
        for held in before {
            let own = held.lock.owner == lock.owner;
            if !own || held.lock.end < lock.start || lock.end < held.lock.start {
                after.push(held);
                continue;
            }
            if held.lock.start < lock.start {
                let lock = Lock { end: lock.start - 1, ..held.lock };
                after.push(Held { lock, ..held });
            }
            if lock.end < held.lock.end {
                let lock = Lock { start: lock.end + 1, ..held.lock };
                after.push(Held { lock, ..held });
            }
        }
        if lock.kind != LockKind::Unlock {
            join(&mut after, fh, lock);
        }
        self.held += after.len();
        if !after.is_empty() {
            self.locks.insert(key, after);
        }
        self.note(key);
    }

    /// A flock is being converted: the old one is given up before the new one is asked for.
    pub(super) fn converting(&mut self, ino: Ino, lock: Lock) {
        let held = self.locks.get(&(ino, LockStyle::Flock));
        let differs = |held: &Held| held.lock.owner == lock.owner && held.lock.kind != lock.kind;
        if held.is_some_and(|held| held.iter().any(differs)) {
            self.drop_owner(ino, LockStyle::Flock, lock.owner);
        }
    }

    /// A shared lock is being asked for where its owner may hold exclusive ones: from now on it can
    /// count on no more than a shared one there.
    pub(super) fn weakening(&mut self, ino: Ino, lock: Lock) {
        let held = self.locks.get(&(ino, lock.style));
        let weaker: Vec<(Fh, Lock)> = held
            .into_iter()
            .flatten()
            .filter(|held| held.lock.owner == lock.owner && held.lock.kind == LockKind::Write)
            .filter(|held| held.lock.start <= lock.end && lock.start <= held.lock.end)
            .map(|held| {
                let (start, end) = (held.lock.start.max(lock.start), held.lock.end.min(lock.end));
                (held.fh, Lock { start, end, kind: LockKind::Read, ..held.lock })
            })
            .collect();
        for (fh, lock) in weaker {
            self.locked(ino, fh, lock);
        }
    }

    /// The requests that hand everything in again: handles first, then locks, each by inode, so
    /// that a simulation replays.
    pub(super) fn reclaims(&self) -> Vec<Request<'static>> {
        let handles = self.handles.iter().map(|(&fh, handle)| Request::Reclaim {
            ino: handle.ino,
            fh,
            flags: handle.flags,
            directory: handle.directory,
        });
        let mut locks: Vec<_> = self.locks.iter().collect();
        locks.sort_unstable_by_key(|&(&(ino, style), _)| (ino, style == LockStyle::Flock));
        let locks = locks.into_iter().flat_map(|(&(ino, _), held)| {
            held.iter().map(move |&Held { fh, lock }| Request::Setlk {
                ino,
                fh,
                lock,
                wait: false,
                reclaim: true,
            })
        });
        handles.chain(locks).collect()
    }

    /// Open handles and held locks, counted.
    pub(super) fn counts(&self) -> (usize, usize) {
        (self.handles.len(), self.held)
    }
}

/// Adds a lock, joined with neighbours of the same owner and kind, so that locking a file byte by
/// byte keeps one entry.
fn join(held: &mut Vec<Held>, fh: Fh, mut lock: Lock) {
    held.retain(|other| {
        let same = other.lock.owner == lock.owner && other.lock.kind == lock.kind;
        let before = other.lock.end.checked_add(1) == Some(lock.start);
        let behind = lock.end.checked_add(1) == Some(other.lock.start);
        if same && (before || behind) {
            lock.start = lock.start.min(other.lock.start);
            lock.end = lock.end.max(other.lock.end);
            return false;
        }
        true
    });
    held.push(Held { fh, lock });
}

#[cfg(test)]
mod tests {
    use outboard_base::Rng;

    use super::*;

    fn lock(owner: u64, start: u64, end: u64, kind: LockKind) -> Lock {
        Lock { owner, start, end, kind, style: LockStyle::Posix, pid: 1 }
    }

    /// Against an array of bytes: what each owner holds of each byte.
    #[test]
    fn locks_are_kept_as_byte_by_byte_bookkeeping_says() {
        const BYTES: usize = 24;
        for seed in 0..300 {
            let (mut rng, mut held) = (Rng::new(seed), HeldState::default());
            let mut bytes = [[LockKind::Unlock; BYTES]; 2];
            for _ in 0..40 {
                let owner = rng.below(2);
                let start = rng.below(BYTES as u64);
                let end = start + rng.below(BYTES as u64 - start);
                let kinds = [LockKind::Read, LockKind::Write, LockKind::Unlock];
                let kind = kinds[usize::try_from(rng.below(3)).unwrap()];
                held.locked(Ino(2), Fh(1), lock(owner, start, end, kind));
                for at in start..=end {
                    bytes[usize::try_from(owner).unwrap()][usize::try_from(at).unwrap()] = kind;
                }
                let mut seen = [[LockKind::Unlock; BYTES]; 2];
                for request in held.reclaims() {
                    let Request::Setlk { lock, reclaim: true, wait: false, .. } = request else {
                        panic!("{request:?}")
                    };
                    for at in lock.start..=lock.end {
                        let place = &mut seen[usize::try_from(lock.owner).unwrap()]
                            [usize::try_from(at).unwrap()];
                        assert_eq!(*place, LockKind::Unlock, "seed {seed}: held twice");
                        *place = lock.kind;
                    }
                }
                assert_eq!(seen, bytes, "seed {seed}");
            }
        }
    }

    #[test]
    fn what_is_being_given_up_is_not_handed_in_again() {
        let mut held = HeldState::default();
        let flock = |kind| Lock { style: LockStyle::Flock, ..lock(9, 0, u64::MAX, kind) };
        held.locked(Ino(2), Fh(1), flock(LockKind::Write));
        held.converting(Ino(2), flock(LockKind::Write));
        assert_eq!(held.counts(), (0, 1), "the same lock again gives nothing up");
        held.converting(Ino(2), flock(LockKind::Read));
        assert_eq!(held.counts(), (0, 0));

        held.locked(Ino(2), Fh(1), lock(5, 0, 9, LockKind::Write));
        held.weakening(Ino(2), lock(5, 4, 20, LockKind::Read));
        let mut locks: Vec<(u64, u64, LockKind)> = held
            .reclaims()
            .iter()
            .map(|request| match request {
                Request::Setlk { lock, .. } => (lock.start, lock.end, lock.kind),
                other => panic!("{other:?}"),
            })
            .collect();
        locks.sort_by_key(|lock| lock.0);
        assert_eq!(locks, [(0, 3, LockKind::Write), (4, 9, LockKind::Read)]);
    }

    #[test]
    fn closing_drops_what_goes_with_it() {
        let mut held = HeldState::default();
        let handle = Handle { ino: Ino(2), flags: 2, directory: false };
        held.opened(Fh(1), handle);
        held.opened(Fh(2), handle);
        let flock = Lock { style: LockStyle::Flock, ..lock(9, 0, u64::MAX, LockKind::Write) };
        held.locked(Ino(2), Fh(1), flock);
        held.locked(Ino(2), Fh(1), lock(5, 0, 3, LockKind::Read));
        assert_eq!(held.counts(), (2, 2));
        held.flushing(Ino(2), 5);
        assert_eq!(held.counts(), (2, 1));
        held.closing(Ino(2), Fh(1), 9);
        assert_eq!(held.counts(), (1, 0));
        let whole = lock(5, 0, u64::MAX, LockKind::Write);
        held.locked(Ino(2), Fh(2), whole);
        held.locked(Ino(2), Fh(2), Lock { kind: LockKind::Unlock, ..whole });
        assert_eq!(held.counts(), (1, 0));
    }
}
