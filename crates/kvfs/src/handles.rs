//! Open files and directories, and what keeps an inode without a name alive.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::{Mutex, MutexGuard, PoisonError};

use outboard_base::{Errno, Fh, Ino, Result, SessionId};
use outboard_wire::file::open_flags;

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

/// Inode numbers an attachment was told of: a bit each, as numbers are dense.
#[derive(Default)]
struct Told(HashMap<u64, Box<[u64; Told::WORDS]>>);

impl Told {
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
    open: HashMap<(SessionId, Fh), Handle>,
    /// Handles on each inode.
    counts: HashMap<Ino, usize>,
    told: BTreeMap<SessionId, Told>,
    /// Inodes whose end has begun: nobody may open them any more.
    dying: HashSet<Ino>,
    /// Inodes without a name that somebody still holds.
    orphans: HashSet<Ino>,
    /// Inodes without a name that nobody holds: to be reclaimed.
    unheld: Vec<Ino>,
    /// Inodes whose fate must be looked up.
    doubts: Vec<Ino>,
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
            || self.told.values().any(|told| told.contains(ino))
    }

    /// Something let go of `ino`: if it was the last, and the inode has no name, its end has come.
    fn let_go(&mut self, ino: Ino) {
        if self.orphans.contains(&ino) && !self.held(ino) {
            self.orphans.remove(&ino);
            self.dying.insert(ino);
            self.unheld.push(ino);
        }
    }

    fn let_go_all(&mut self) {
        let orphans: Vec<Ino> = self.orphans.iter().copied().collect();
        orphans.into_iter().for_each(|ino| self.let_go(ino));
    }

    fn uncount(&mut self, ino: Ino) {
        if let Some(count) = self.counts.get_mut(&ino) {
            *count -= 1;
            if *count == 0 {
                self.counts.remove(&ino);
            }
        }
    }
}

/// Handles and holds of every attachment.
pub(crate) struct Handles {
    state: Mutex<State>,
    handles_max: usize,
}

impl Handles {
    /// None yet. `first` is above every handle of earlier instances.
    pub(crate) fn new(first: u64, handles_max: usize) -> Handles {
        let first = first.max(1);
        let state = State { next: first, first, grace: true, ..State::default() };
        Handles { state: Mutex::new(state), handles_max }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Opens `handle` under a number of its own. `ENFILE` beyond the limit, `ESTALE` if its end has
    /// begun. Whoever opens must look *afterwards* whether the inode is there, and close if not.
    pub(crate) fn open(&self, attachment: SessionId, handle: Handle) -> Result<Fh> {
        let mut state = self.state();
        let fh = Fh(state.next);
        state.next += 1;
        self.insert(&mut state, attachment, fh, handle)?;
        Ok(fh)
    }

    /// Opens `handle` under the number it had before a restart.
    pub(crate) fn reopen(&self, attachment: SessionId, fh: Fh, handle: Handle) -> Result<()> {
        let mut state = self.state();
        if fh.0 >= state.first && !state.open.contains_key(&(attachment, fh)) {
            return Err(Errno::EBADF);
        }
        match state.open.get(&(attachment, fh)) {
            Some(found) if *found == handle => Ok(()),
            Some(_) => Err(Errno::EBADF),
            None => self.insert(&mut state, attachment, fh, handle),
        }
    }

    fn insert(
        &self,
        state: &mut State,
        attachment: SessionId,
        fh: Fh,
        handle: Handle,
    ) -> Result<()> {
        if state.open.len() >= self.handles_max {
            return Err(Errno::ENFILE);
        }
        if state.dying.contains(&handle.ino) {
            return Err(Errno::ESTALE);
        }
        state.open.insert((attachment, fh), handle);
        *state.counts.entry(handle.ino).or_default() += 1;
        Ok(())
    }

    /// Closes a handle; `EBADF` if it is not open.
    pub(crate) fn close(&self, attachment: SessionId, fh: Fh) -> Result<Handle> {
        let mut state = self.state();
        let handle = state.open.remove(&(attachment, fh)).ok_or(Errno::EBADF)?;
        state.uncount(handle.ino);
        state.let_go(handle.ino);
        Ok(handle)
    }

    /// The handle `fh` on `ino`; `EBADF` if it is not open, or on another inode.
    pub(crate) fn get(&self, attachment: SessionId, fh: Fh, ino: Ino) -> Result<Handle> {
        let handle = self.state().open.get(&(attachment, fh)).copied();
        handle.filter(|handle| handle.ino == ino).ok_or(Errno::EBADF)
    }

    /// An attachment learns of `ino`.
    pub(crate) fn tell(&self, attachment: SessionId, ino: Ino) {
        self.state().told.entry(attachment).or_default().insert(ino);
    }

    /// An attachment learns of several inodes.
    pub(crate) fn tell_all(&self, attachment: SessionId, inos: impl Iterator<Item = Ino>) {
        let mut state = self.state();
        let told = state.told.entry(attachment).or_default();
        inos.for_each(|ino| told.insert(ino));
    }

    /// An attachment no longer refers to `ino`.
    pub(crate) fn forget(&self, attachment: SessionId, ino: Ino) {
        let mut state = self.state();
        if let Some(told) = state.told.get_mut(&attachment) {
            told.remove(ino);
        }
        state.let_go(ino);
    }

    /// Everyone but `attachment` who was told of `ino`.
    pub(crate) fn others_told(&self, attachment: SessionId, ino: Ino) -> Vec<SessionId> {
        let state = self.state();
        if state.told.len() < 2 && state.told.contains_key(&attachment) {
            return Vec::new();
        }
        let others = state.told.iter().filter(|(other, _)| **other != attachment);
        others.filter(|(_, told)| told.contains(ino)).map(|(other, _)| *other).collect()
    }

    /// `ino` is about to lose its last name: true if somebody holds it. If not, its end begins, and
    /// the caller ends that by [`Handles::spare`] or [`Handles::buried`].
    pub(crate) fn held_or_dying(&self, ino: Ino) -> bool {
        let mut state = self.state();
        let held = state.held(ino);
        if !held {
            state.dying.insert(ino);
        }
        held
    }

    /// The end of `ino` is called off (its name stays).
    pub(crate) fn spare(&self, ino: Ino) {
        self.state().dying.remove(&ino);
    }

    /// `ino` is gone.
    pub(crate) fn buried(&self, ino: Ino) {
        let mut state = self.state();
        state.dying.remove(&ino);
        for told in state.told.values_mut() {
            told.remove(ino);
        }
    }

    /// `ino` has no name any more (or never had one): it goes when nobody holds it.
    pub(crate) fn orphaned(&self, ino: Ino) {
        let mut state = self.state();
        state.orphans.insert(ino);
        state.dying.remove(&ino);
        state.let_go(ino);
    }

    /// `ino` got a name (again).
    pub(crate) fn named(&self, ino: Ino) {
        self.state().orphans.remove(&ino);
    }

    /// The next inode to reclaim, if any.
    pub(crate) fn next_unheld(&self) -> Option<Ino> {
        self.state().unheld.pop()
    }

    /// Reclaiming `ino` failed, or is not done: it comes back later.
    pub(crate) fn unheld_again(&self, ino: Ino) {
        self.state().unheld.insert(0, ino);
    }

    /// Somebody must look what became of `ino`.
    pub(crate) fn doubt(&self, ino: Ino) {
        self.state().doubts.push(ino);
    }

    /// The next inode to look at, if any.
    pub(crate) fn next_doubt(&self) -> Option<Ino> {
        self.state().doubts.pop()
    }

    /// Whoever held something before the opening has said so.
    pub(crate) fn end_grace(&self) {
        let mut state = self.state();
        state.grace = false;
        state.let_go_all();
    }

    /// An attachment is gone: drops its handles and holds.
    pub(crate) fn detach(&self, attachment: SessionId) {
        let mut state = self.state();
        let mut let_go: Vec<Ino> = Vec::new();
        state.open.retain(|(owner, _), handle| {
            let stays = *owner != attachment;
            if !stays {
                let_go.push(handle.ino);
            }
            stays
        });
        for &ino in &let_go {
            state.uncount(ino);
        }
        state.told.remove(&attachment);
        state.let_go_all();
    }
}
