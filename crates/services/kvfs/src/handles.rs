//! Open files and directories, and what keeps an inode without a name alive.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet, VecDeque};
use std::hash::Hash;
use std::sync::{Mutex, MutexGuard, PoisonError};

use outboard_base::task::WaitList;
use outboard_base::{Errno, Fh, Ino, Result, SessionId};
use outboard_wire::file::open_flags;

use crate::shares::{Shares, Taker};

/// An open file or directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Handle {
    /// What is open.
    pub(crate) ino: Ino,
    /// How (`open_flags`).
    pub(crate) flags: u32,
    /// Whether it is a directory.
    pub(crate) directory: bool,
}

impl Handle {
    /// Whether it may be read from.
    pub(crate) fn reads(&self) -> bool {
        self.flags & open_flags::ACCMODE != open_flags::WRONLY
    }

    /// Whether it may be written to.
    pub(crate) fn writes(&self) -> bool {
        matches!(self.flags & open_flags::ACCMODE, open_flags::WRONLY | open_flags::RDWR)
    }
}

/// Who holds an inode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Hold {
    /// Nobody.
    Nobody,
    /// The asker has an interest in it. Nobody else does, and nobody has it open.
    Asker,
    /// It is open, or others have an interest in it, or it is not known yet who does.
    Others,
}

/// The interest of one attachment: the inodes whose numbers it was sent, a bit each, as numbers
/// are dense.
#[derive(Default)]
struct Interest(HashMap<u64, Box<[u64; Interest::WORDS]>>);

impl Interest {
    /// 4096 inode numbers a page.
    const WORDS: usize = 64;

    fn place(ino: Ino) -> (u64, usize, u64) {
        let word = usize::try_from(ino.0 / 64 % Self::WORDS as u64).unwrap_or(0);
        (ino.0 / 64 / Self::WORDS as u64, word, 1 << (ino.0 % 64))
    }

    fn insert(&mut self, ino: Ino) {
        let (page, word, bit) = Self::place(ino);
        let page = self.0.entry(page).or_insert_with(|| Box::new([0; Self::WORDS]));
        if let Some(word) = page.get_mut(word) {
            *word |= bit;
        }
    }

    fn remove(&mut self, ino: Ino) {
        let (number, word, bit) = Self::place(ino);
        if let Some(page) = self.0.get_mut(&number) {
            if let Some(word) = page.get_mut(word) {
                *word &= !bit;
            }
            if page.iter().all(|&word| word == 0) {
                self.0.remove(&number);
            }
        }
    }

    fn contains(&self, ino: Ino) -> bool {
        let (page, word, bit) = Self::place(ino);
        self.0.get(&page).and_then(|page| page.get(word)).is_some_and(|word| word & bit != 0)
    }
}

#[derive(Default)]
struct State {
    /// Each with who took it.
    open: HashMap<(SessionId, Fh), (Handle, Taker)>,
    /// Handles on each inode, of all and of each attachment.
    counts: HashMap<Ino, usize>,
    counts_by: HashMap<(SessionId, Ino), usize>,
    interest: BTreeMap<SessionId, Interest>,
    /// Inodes without name or holder, which are going: nobody may open them any more.
    dying: HashSet<Ino>,
    /// Inodes that lose their last name in a batch that has not come to its end: nobody may open
    /// these either, unless it is called off.
    undecided: HashSet<Ino>,
    /// Inodes without a name that are being given one, and by how many.
    naming: HashMap<Ino, usize>,
    /// Inodes without a name that somebody still holds.
    orphans: HashSet<Ino>,
    /// Inodes without a name that nobody holds: to be reclaimed.
    unheld: VecDeque<Ino>,
    /// Inodes that could not be reclaimed, of which the log knows.
    failed: HashSet<Ino>,
    /// Inodes whose fate must be looked up.
    doubts: BTreeSet<Ino>,
    next: u64,
    /// Numbers below it were given out by earlier instances.
    first: u64,
    /// Since the opening, until those who held something before had the time to say so.
    grace: bool,
}

impl State {
    fn held(&self, ino: Ino) -> bool {
        self.grace
            || self.counts.contains_key(&ino)
            || self.interest.values().any(|interest| interest.contains(ino))
    }

    /// Whether its end has begun.
    fn ends(&self, ino: Ino) -> bool {
        self.dying.contains(&ino) || self.undecided.contains(&ino)
    }

    fn hold(&self, asker: SessionId, ino: Ino) -> Hold {
        if self.grace || self.counts.contains_key(&ino) {
            return Hold::Others;
        }
        let mut hold = Hold::Nobody;
        for (&attachment, _) in self.interest.iter().filter(|(_, interest)| interest.contains(ino))
        {
            if attachment != asker {
                return Hold::Others;
            }
            hold = Hold::Asker;
        }
        hold
    }

    /// Nobody has an interest in `ino`, as it were.
    fn drop_interest(&mut self, ino: Ino) {
        self.interest.values_mut().for_each(|interest| interest.remove(ino));
    }

    /// Something released `ino`: if it was the last, and the inode has no name and gets none, its
    /// end has come.
    fn released(&mut self, ino: Ino) {
        if self.orphans.contains(&ino) && !self.held(ino) && !self.naming.contains_key(&ino) {
            self.orphans.remove(&ino);
            self.dying.insert(ino);
            self.unheld.push_back(ino);
        }
    }

    fn released_all(&mut self) {
        let mut orphans: Vec<Ino> = self.orphans.iter().copied().collect();
        orphans.sort_unstable();
        orphans.into_iter().for_each(|ino| self.released(ino));
    }

    fn uncount(&mut self, attachment: SessionId, ino: Ino) {
        uncount(&mut self.counts, ino);
        uncount(&mut self.counts_by, (attachment, ino));
    }
}

/// One less of `key`.
pub(crate) fn uncount<K: Eq + Hash>(counts: &mut HashMap<K, usize>, key: K) {
    if let Some(count) = counts.get_mut(&key) {
        *count -= 1;
        if *count == 0 {
            counts.remove(&key);
        }
    }
}

/// A handle that is closed again when dropped, unless it is kept: the rest of the opening may fail,
/// or never be run to its end.
#[must_use = "it is closed again unless it is kept"]
pub(crate) struct Opening<'h> {
    handles: &'h Handles,
    attachment: SessionId,
    fh: Fh,
}

impl Opening<'_> {
    /// The opening has succeeded.
    pub(crate) fn keep(self) -> Fh {
        let fh = self.fh;
        std::mem::forget(self);
        fh
    }
}

impl Drop for Opening<'_> {
    fn drop(&mut self) {
        // Closed already is closed, too: `EBADF` says nothing new here.
        let _ = self.handles.close(self.attachment, self.fh);
    }
}

/// An inode without a name is being given one, and its end does not begin meanwhile. Whether it was
/// named is looked up when this is dropped.
#[must_use = "its end can begin once this is dropped"]
pub(crate) struct Naming<'h> {
    handles: &'h Handles,
    ino: Ino,
}

impl Naming<'_> {
    /// It has a name.
    pub(crate) fn named(self) {
        let mut state = self.handles.state();
        state.orphans.remove(&self.ino);
        uncount(&mut state.naming, self.ino);
        drop(state);
        std::mem::forget(self);
    }
}

impl Drop for Naming<'_> {
    fn drop(&mut self) {
        let mut state = self.handles.state();
        state.orphans.remove(&self.ino);
        uncount(&mut state.naming, self.ino);
        state.doubts.insert(self.ino);
    }
}

/// An inode that is being reclaimed: comes back later when dropped, unless it is over.
#[must_use = "it comes back later unless it is over"]
pub(crate) struct Ending<'h> {
    handles: &'h Handles,
    ino: Ino,
}

impl Ending<'_> {
    /// Which inode.
    pub(crate) fn ino(&self) -> Ino {
        self.ino
    }

    /// It cannot be reclaimed now: whether that is news.
    pub(crate) fn fails_first_time(&self) -> bool {
        self.handles.state().failed.insert(self.ino)
    }

    /// It is gone.
    pub(crate) fn gone(self) {
        self.handles.buried(self.ino);
        std::mem::forget(self);
    }

    /// It has a name. That a removal may be taking this, too, is not for this to call off.
    pub(crate) fn named(self) {
        self.handles.state().dying.remove(&self.ino);
        std::mem::forget(self);
    }
}

impl Drop for Ending<'_> {
    fn drop(&mut self) {
        self.handles.state().unheld.push_back(self.ino);
    }
}

/// Handles and holds of every attachment.
pub(crate) struct Handles {
    state: Mutex<State>,
    shares: Mutex<Shares>,
    /// Who waits for one of the undecided.
    fates: WaitList,
}

impl Handles {
    /// None yet. `first` is above every handle of earlier instances.
    pub(crate) fn new(first: u64, shares: Shares) -> Handles {
        let first = first.max(1);
        let state = State { next: first, first, grace: true, ..State::default() };
        let shares = Mutex::new(shares);
        Handles { state: Mutex::new(state), shares, fates: WaitList::default() }
    }

    /// Asked for with the state, never the other way round.
    fn shares(&self) -> MutexGuard<'_, Shares> {
        self.shares.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// See [`Shares::figures`].
    pub(crate) fn figures(&self) -> (u64, u64, u64) {
        self.shares().figures()
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Opens `handle` under a number of its own. `EMFILE` and `ENFILE` beyond a share, `ESTALE` if
    /// its end has begun. Whoever opens must look *afterwards* whether the inode is there: it is
    /// closed again unless it is kept.
    pub(crate) fn open(&self, taker: Taker, handle: Handle) -> Result<Opening<'_>> {
        let mut state = self.state();
        let fh = Fh(state.next);
        state.next += 1;
        self.insert(&mut state, taker, fh, handle)?;
        Ok(Opening { handles: self, attachment: taker.attachment, fh })
    }

    /// Opens `handle` under the number it had before a restart; `None` if it is open already.
    pub(crate) fn reopen(
        &self,
        taker: Taker,
        fh: Fh,
        handle: Handle,
    ) -> Result<Option<Opening<'_>>> {
        let attachment = taker.attachment;
        let mut state = self.state();
        match state.open.get(&(attachment, fh)) {
            Some((found, _)) if *found == handle => Ok(None),
            None if fh.0 < state.first => {
                self.insert(&mut state, taker, fh, handle)?;
                Ok(Some(Opening { handles: self, attachment, fh }))
            }
            _ => Err(Errno::EBADF),
        }
    }

    fn insert(&self, state: &mut State, taker: Taker, fh: Fh, handle: Handle) -> Result<()> {
        if state.ends(handle.ino) {
            return Err(Errno::ESTALE);
        }
        self.shares().take(taker)?;
        state.open.insert((taker.attachment, fh), (handle, taker));
        *state.counts.entry(handle.ino).or_default() += 1;
        *state.counts_by.entry((taker.attachment, handle.ino)).or_default() += 1;
        Ok(())
    }

    /// Closes a handle; `EBADF` if it is not open.
    pub(crate) fn close(&self, attachment: SessionId, fh: Fh) -> Result<Handle> {
        let mut state = self.state();
        let (handle, taker) = state.open.remove(&(attachment, fh)).ok_or(Errno::EBADF)?;
        self.shares().give_back(taker);
        state.uncount(attachment, handle.ino);
        state.released(handle.ino);
        Ok(handle)
    }

    /// Whether nobody has `ino` open.
    pub(crate) fn is_closed(&self, ino: Ino) -> bool {
        !self.state().counts.contains_key(&ino)
    }

    /// The handle `fh` on `ino`; `EBADF` if it is not open, or on another inode.
    pub(crate) fn get(&self, attachment: SessionId, fh: Fh, ino: Ino) -> Result<Handle> {
        let handle = self.state().open.get(&(attachment, fh)).copied();
        handle.map(|(handle, _)| handle).filter(|handle| handle.ino == ino).ok_or(Errno::EBADF)
    }

    /// An attachment learns of `ino`.
    pub(crate) fn add_interest(&self, attachment: SessionId, ino: Ino) {
        self.state().interest.entry(attachment).or_default().insert(ino);
    }

    /// An attachment learns of several inodes.
    pub(crate) fn add_interests(&self, attachment: SessionId, inos: impl Iterator<Item = Ino>) {
        let mut state = self.state();
        let interest = state.interest.entry(attachment).or_default();
        inos.for_each(|ino| interest.insert(ino));
    }

    /// An attachment no longer refers to `ino`.
    pub(crate) fn forget(&self, attachment: SessionId, ino: Ino) {
        let mut state = self.state();
        if let Some(interest) = state.interest.get_mut(&attachment) {
            interest.remove(ino);
        }
        state.released(ino);
    }

    /// Whether an attachment has an interest in `ino`, or has it open. Everyone knows the root.
    pub(crate) fn knows(&self, attachment: SessionId, ino: Ino) -> bool {
        let state = self.state();
        ino == Ino::ROOT
            || state.interest.get(&attachment).is_some_and(|interest| interest.contains(ino))
            || state.counts_by.contains_key(&(attachment, ino))
    }

    /// Whether an attachment has `ino` open to write to it.
    pub(crate) fn writes(&self, attachment: SessionId, ino: Ino) -> bool {
        let state = self.state();
        // Few are open at once, but it is asked for every read of others.
        state.counts_by.contains_key(&(attachment, ino))
            && state.open.iter().any(|((whose, _), (handle, _))| {
                *whose == attachment && handle.ino == ino && handle.writes()
            })
    }

    /// Whether those who held something before the opening may still say so.
    pub(crate) fn in_grace(&self) -> bool {
        self.state().grace
    }

    /// Everyone but `attachment` with an interest in `ino` (in anything, if it is the root).
    pub(crate) fn others_interested(&self, attachment: SessionId, ino: Ino) -> Vec<SessionId> {
        let state = self.state();
        if state.interest.len() < 2 && state.interest.contains_key(&attachment) {
            return Vec::new();
        }
        let others = state.interest.iter().filter(|(other, _)| **other != attachment);
        let others = others.filter(|(_, interest)| ino == Ino::ROOT || interest.contains(ino));
        let mut others: Vec<SessionId> = others.map(|(other, _)| *other).collect();
        others.sort_unstable();
        others
    }

    /// Everyone with an interest in `ino` but for `except`.
    pub(crate) fn interested(&self, except: Option<SessionId>, ino: Ino) -> Vec<SessionId> {
        let state = self.state();
        let all = state.interest.iter().filter(|(_, interest)| interest.contains(ino));
        all.map(|(session, _)| *session).filter(|session| Some(*session) != except).collect()
    }

    /// `ino` is about to lose its last name: who holds it. Unless that is somebody whose hold is
    /// respected (`lingers`), its end begins, and the caller ends that by [`Handles::spare`],
    /// [`Handles::ending`] or [`Handles::buried`].
    pub(crate) fn last_name(
        &self,
        asker: SessionId,
        ino: Ino,
        lingers: impl FnOnce(Hold) -> bool,
    ) -> Hold {
        let mut state = self.state();
        let hold = state.hold(asker, ino);
        if !lingers(hold) {
            state.undecided.insert(ino);
        }
        hold
    }

    /// Waits while the end of `ino` has begun and may still be called off.
    pub(crate) async fn decided(&self, ino: Ino) {
        self.fates.until(|| (!self.state().undecided.contains(&ino)).then_some(())).await;
    }

    /// It is known what becomes of `ino`: whoever waits for that looks again.
    fn decide(&self, ino: Ino, change: impl FnOnce(&mut State)) {
        let mut state = self.state();
        change(&mut state);
        let waited_for = state.undecided.remove(&ino);
        drop(state);
        if waited_for {
            self.fates.notify();
        }
    }

    /// The end of `ino` is called off (its name stays).
    pub(crate) fn spare(&self, ino: Ino) {
        self.decide(ino, |_| {});
    }

    /// `ino` is gone.
    pub(crate) fn buried(&self, ino: Ino) {
        self.decide(ino, |state| {
            state.dying.remove(&ino);
            state.failed.remove(&ino);
            state.drop_interest(ino);
        });
    }

    /// The end of `ino` takes further batches.
    pub(crate) fn ending(&self, ino: Ino) {
        self.decide(ino, |state| {
            state.drop_interest(ino);
            state.dying.insert(ino);
            state.unheld.push_back(ino);
        });
    }

    /// `ino` has no name any more (or never had one): it goes when nobody holds it.
    pub(crate) fn orphaned(&self, ino: Ino) {
        self.decide(ino, |state| {
            if !state.dying.contains(&ino) {
                state.orphans.insert(ino);
                state.released(ino);
            }
        });
    }

    /// `ino`, which has no name, is to be given one; `ENOENT` if its end has begun.
    pub(crate) fn begin_naming(&self, ino: Ino) -> Result<Naming<'_>> {
        let mut state = self.state();
        if state.ends(ino) {
            return Err(Errno::ENOENT);
        }
        *state.naming.entry(ino).or_default() += 1;
        Ok(Naming { handles: self, ino })
    }

    /// The next inode to reclaim, if any.
    pub(crate) fn next_unheld(&self) -> Option<Ending<'_>> {
        let ino = self.state().unheld.pop_front()?;
        Some(Ending { handles: self, ino })
    }

    /// Somebody must look what became of `ino`.
    pub(crate) fn doubt(&self, ino: Ino) {
        self.state().doubts.insert(ino);
    }

    /// An inode to look at, if any; it stays one until [`Handles::settled`].
    pub(crate) fn a_doubt(&self) -> Option<Ino> {
        self.state().doubts.first().copied()
    }

    /// Somebody has looked.
    pub(crate) fn settled(&self, ino: Ino) {
        self.state().doubts.remove(&ino);
    }

    /// Whoever held something before the opening has said so.
    pub(crate) fn end_grace(&self) {
        let mut state = self.state();
        state.grace = false;
        state.released_all();
    }

    /// An attachment is gone: drops its handles and holds.
    pub(crate) fn detach(&self, attachment: SessionId) {
        let mut state = self.state();
        let mut released: Vec<Ino> = Vec::new();
        let mut shares = self.shares();
        state.open.retain(|(owner, _), (handle, taker)| {
            let stays = *owner != attachment;
            if !stays {
                shares.give_back(*taker);
                released.push(handle.ino);
            }
            stays
        });
        drop(shares);
        for &ino in &released {
            state.uncount(attachment, ino);
        }
        state.interest.remove(&attachment);
        state.released_all();
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use outboard_base::Rng;

    use super::*;
    use crate::Options;

    /// Whether an attachment has something open was looked for among the handles of all, for each
    /// request about an inode it had no interest in: with a hundred thousand files open somewhere,
    /// each such request walked them.
    #[test]
    fn who_has_something_open_is_known_without_a_walk() {
        let (handles, mut rng) = (Handles::new(1, Shares::new(&Options::default())), Rng::new(1));
        let mut open: BTreeMap<(u64, u64), Vec<Fh>> = BTreeMap::new();
        for step in 0..20_000 {
            let (by, ino) = (1 + rng.below(4), 2 + rng.below(20));
            let attachment = SessionId(by);
            match rng.below(if step % 2000 == 1999 { 9 } else { 8 }) {
                0..4 => {
                    let taker = Taker::unbounded(attachment);
                    let handle = Handle { ino: Ino(ino), flags: 0, directory: false };
                    let fh = handles.open(taker, handle).unwrap().keep();
                    open.entry((by, ino)).or_default().push(fh);
                }
                4..8 => {
                    if let Some(fh) = open.get_mut(&(by, ino)).and_then(Vec::pop) {
                        assert_eq!(handles.close(attachment, fh).unwrap().ino, Ino(ino));
                    }
                }
                _ => {
                    handles.detach(attachment);
                    open.retain(|(owner, _), _| *owner != by);
                }
            }
            let has = open.get(&(by, ino)).is_some_and(|all| !all.is_empty());
            assert_eq!(handles.knows(attachment, Ino(ino)), has, "{step}");
        }
        let all: usize = open.values().map(Vec::len).sum();
        assert_eq!(handles.state().open.len(), all);
        let taken = open.values().filter(|all| !all.is_empty()).count();
        assert_eq!(handles.state().counts_by.len(), taken, "nothing is left of what was closed");
    }
}
