//! Who may use which file's bytes: a table without I/O.
//!
//! A file has many readers or one writer. Each has a fence, of which the high half is the number of
//! the server's opening and the low half a counter. It is above every fence that the file had
//! before, so a call that comes late names a fence that is nobody's any more, and a node that has
//! seen a later one refuses it. The table drops a file that nobody holds and keeps the highest such
//! fence as a floor for all files.
//!
//! A file is *unresolved* if somebody may have written to it who has neither told nor released:
//! its size is not known until its nodes were sealed and asked, and nobody gets it before.
//!
//! Who begins another life *inherits* what it could write: hosts may have something of it to write
//! back. It is kept from others until they had the time to, and granted to its *heir* anew.

use std::collections::{BTreeMap, VecDeque};

use outboard_base::{Errno, Ino, Result};
use outboard_wire::shared::call::Mode;

/// How many are remembered that were given back, for who gives back again.
const RETURNED_MAX: usize = 1024;

/// What a client has of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Held {
    /// What it may do.
    pub(crate) mode: Mode,
    /// Under which fence.
    pub(crate) fence: u64,
}

/// What must be given back before another can be granted something.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct InTheWay {
    /// By whom.
    pub(crate) client: u64,
    /// What it has now.
    pub(crate) held: Held,
    /// What it may keep.
    pub(crate) keep: Option<Mode>,
}

#[derive(Debug)]
struct File {
    /// The highest fence given to anybody, or sealed.
    fence: u64,
    held: BTreeMap<u64, Held>,
    /// Of who has something without a break under one fence after the other: the first of them.
    since: BTreeMap<u64, u64>,
    unresolved: bool,
    /// Nobody else had it since this client had it to write, in the life before.
    heir: Option<u64>,
    /// What the heir has is from then: it has to ask.
    inherited: bool,
}

/// The table.
#[derive(Debug)]
pub(crate) struct Delegations {
    files: BTreeMap<Ino, File>,
    /// No file that is not in the table has had a higher fence.
    floor: u64,
    /// The last fence of this opening.
    last: u64,
    /// The last write delegations that were given back: of which file, by whom, under which fence.
    returned: VecDeque<(Ino, u64, u64)>,
}

impl Delegations {
    /// An empty one, of the opening with this number.
    pub(crate) fn new(opening: u64) -> Delegations {
        let floor = opening << 32;
        let last = floor | u64::from(u32::MAX);
        Delegations { files: BTreeMap::new(), floor, last, returned: VecDeque::new() }
    }

    /// What stands in the way of `mode` for a client.
    pub(crate) fn in_the_way(&self, ino: Ino, client: u64, mode: Mode) -> Vec<InTheWay> {
        let Some(file) = self.files.get(&ino) else { return Vec::new() };
        let others = file.held.iter().filter(|(other, _)| **other != client);
        let keep = match mode {
            Mode::Read => Some(Mode::Read),
            Mode::Write => None,
        };
        others
            .filter(|(_, held)| mode == Mode::Write || held.mode == Mode::Write)
            .map(|(client, held)| InTheWay { client: *client, held: *held, keep })
            .collect()
    }

    /// What a client has of a file.
    pub(crate) fn held(&self, ino: Ino, client: u64) -> Option<Held> {
        self.files.get(&ino)?.held.get(&client).copied()
    }

    /// Whether a client has a file under this fence for writing.
    pub(crate) fn writes(&self, ino: Ino, client: u64, fence: u64) -> bool {
        let held = self.named(ino, client, fence);
        held.is_some_and(|held| held.mode == Mode::Write)
    }

    /// What a client means by a fence: what it has, or has without a break since.
    pub(crate) fn named(&self, ino: Ino, client: u64, fence: u64) -> Option<Held> {
        let file = self.files.get(&ino)?;
        let held = file.held.get(&client).copied()?;
        let since = file.since.get(&client).copied().unwrap_or(held.fence);
        (since..=held.fence).contains(&fence).then_some(held)
    }

    /// What a client has it has under a new fence, and without a break.
    ///
    /// # Errors
    /// `ESTALE` if it has nothing, `EIO` once an opening has no fences left.
    pub(crate) fn go_on(&mut self, ino: Ino, client: u64) -> Result<Held> {
        let Held { mode, fence: before } = self.held(ino, client).ok_or(Errno::ESTALE)?;
        let held = Held { mode, fence: self.raise(ino)? };
        let file = self.file(ino);
        file.held.insert(client, held);
        file.since.entry(client).or_insert(before);
        Ok(held)
    }

    /// Whether the file's nodes must be asked before anybody gets it.
    pub(crate) fn is_unresolved(&self, ino: Ino) -> bool {
        self.files.get(&ino).is_some_and(|file| file.unresolved)
    }

    /// Whether somebody has a file to write.
    pub(crate) fn is_written(&self, ino: Ino) -> bool {
        let file = self.files.get(&ino);
        file.is_some_and(|file| file.held.values().any(|held| held.mode == Mode::Write))
    }

    /// Whether the file's nodes must be asked, and nobody of this life still writes to it.
    pub(crate) fn is_left(&self, ino: Ino) -> bool {
        self.is_unresolved(ino) && (self.is_inherited(ino) || !self.is_written(ino))
    }

    /// Grants what nothing stands in the way of, under a new fence, instead of what the client had.
    ///
    /// # Errors
    /// `EBUSY` if something stands in the way, `EIO` once an opening has no fences left.
    pub(crate) fn grant(&mut self, ino: Ino, client: u64, mode: Mode) -> Result<Held> {
        if self.is_unresolved(ino) || !self.in_the_way(ino, client, mode).is_empty() {
            return Err(Errno::EBUSY);
        }
        let held = Held { mode, fence: self.raise(ino)? };
        let file = self.file(ino);
        file.held.insert(client, held);
        file.since.remove(&client);
        file.heir = file.heir.filter(|heir| *heir == client);
        file.inherited = false;
        Ok(held)
    }

    /// A client gives back what it has under this fence, down to `keep`; what it had, if that is
    /// what it has.
    pub(crate) fn give_back(
        &mut self,
        ino: Ino,
        client: u64,
        fence: u64,
        keep: Option<Mode>,
    ) -> Option<Held> {
        let held = self.named(ino, client, fence)?;
        if held.mode == Mode::Write && keep != Some(Mode::Write) {
            self.returned.truncate(RETURNED_MAX - 1);
            self.returned.push_front((ino, client, fence));
        }
        let file = self.file(ino);
        match keep.map(|keep| keep.min(held.mode)) {
            Some(mode) => {
                file.held.insert(client, Held { mode, fence: held.fence });
            }
            None => file.leaves(client),
        }
        self.forget_if_free(ino);
        Some(held)
    }

    /// Whether a client gave this back some time ago, and nothing was taken from it.
    pub(crate) fn was_given_back(&self, ino: Ino, client: u64, fence: u64) -> bool {
        self.returned.contains(&(ino, client, fence))
    }

    /// A client loses what it has of a file, and cannot be asked what it did to it; what it had.
    pub(crate) fn lose(&mut self, ino: Ino, client: u64) -> Option<Held> {
        let file = self.files.get_mut(&ino)?;
        let held = file.held.get(&client).copied()?;
        file.leaves(client);
        file.unresolved |= held.mode == Mode::Write;
        self.forget_if_free(ino);
        Some(held)
    }

    /// A client begins another life. What it could read it has no more; what it could write it
    /// inherits.
    pub(crate) fn inherit_all(&mut self, client: u64) {
        let of_client = |file: &File| file.held.get(&client).map(|held| held.mode);
        let files: Vec<(Ino, Mode)> =
            self.files.iter().filter_map(|(ino, file)| Some((*ino, of_client(file)?))).collect();
        for (ino, mode) in files {
            self.lose(ino, client);
            if mode == Mode::Write {
                self.inherits(ino, client);
            }
        }
    }

    /// A client could write this file in the life before, and nobody had it since. What it has is
    /// under a fence that nobody was told.
    pub(crate) fn inherits(&mut self, ino: Ino, client: u64) {
        self.must_resolve(ino);
        // An opening without fences grants nothing any more.
        let Ok(fence) = self.raise(ino) else { return };
        let file = self.file(ino);
        file.held.insert(client, Held { mode: Mode::Write, fence });
        (file.heir, file.inherited) = (Some(client), true);
    }

    /// For whom a file is kept.
    pub(crate) fn heir(&self, ino: Ino) -> Option<u64> {
        self.files.get(&ino)?.heir
    }

    /// Whether what somebody has of a file is from the life before.
    pub(crate) fn is_inherited(&self, ino: Ino) -> bool {
        self.files.get(&ino).is_some_and(|file| file.inherited)
    }

    /// A client loses all that it has.
    pub(crate) fn lose_all(&mut self, client: u64) {
        let of_client = self.files.iter().filter(|(_, file)| file.held.contains_key(&client));
        let files: Vec<Ino> = of_client.map(|(ino, _)| *ino).collect();
        files.into_iter().for_each(|ino| {
            self.lose(ino, client);
        });
    }

    /// Somebody may have written to this file who cannot be asked.
    pub(crate) fn must_resolve(&mut self, ino: Ino) {
        self.file(ino).unresolved = true;
    }

    /// A fence above every one that this file has had, to be shown to its nodes.
    ///
    /// # Errors
    /// `EIO` once an opening has no fences left.
    pub(crate) fn raise(&mut self, ino: Ino) -> Result<u64> {
        let last = self.last;
        let file = self.file(ino);
        if file.fence >= last {
            return Err(Errno::EIO);
        }
        file.fence += 1;
        Ok(file.fence)
    }

    /// A file whose fence was raised need not be remembered if nobody has it.
    pub(crate) fn let_go(&mut self, ino: Ino) {
        self.forget_if_free(ino);
    }

    /// Whether no fence of a file was raised above this one.
    pub(crate) fn is_last(&self, ino: Ino, fence: u64) -> bool {
        self.files.get(&ino).map_or(fence >= self.floor, |file| file.fence == fence)
    }

    /// The same, if a client has the file under this fence.
    ///
    /// # Errors
    /// `ESTALE` if it has not; as of [`Delegations::raise`].
    pub(crate) fn raise_for(&mut self, ino: Ino, client: u64, fence: u64) -> Result<u64> {
        let is_its = self.held(ino, client).is_some_and(|held| held.fence == fence);
        if is_its { self.raise(ino) } else { Err(Errno::ESTALE) }
    }

    /// All nodes of a file were sealed and have answered.
    pub(crate) fn resolved(&mut self, ino: Ino) {
        self.file(ino).unresolved = false;
        self.forget_if_free(ino);
    }

    /// Files that must be resolved.
    pub(crate) fn unresolved(&self) -> Vec<Ino> {
        let unresolved = self.files.iter().filter(|(_, file)| file.unresolved);
        unresolved.map(|(ino, _)| *ino).collect()
    }

    /// Delegations to read, and to write.
    pub(crate) fn counts(&self) -> (usize, usize) {
        let all = || self.files.values().flat_map(|file| file.held.values());
        let writers = all().filter(|held| held.mode == Mode::Write).count();
        (all().count() - writers, writers)
    }

    fn file(&mut self, ino: Ino) -> &mut File {
        let fence = self.floor;
        self.files.entry(ino).or_insert_with(|| File {
            fence,
            held: BTreeMap::new(),
            since: BTreeMap::new(),
            unresolved: false,
            heir: None,
            inherited: false,
        })
    }

    fn forget_if_free(&mut self, ino: Ino) {
        if let Some(file) = self.files.get(&ino)
            && file.held.is_empty()
            && !file.unresolved
        {
            self.floor = self.floor.max(file.fence);
            self.files.remove(&ino);
        }
    }
}

impl File {
    /// A client has nothing of it any more, in whatever life.
    fn leaves(&mut self, client: u64) {
        self.held.remove(&client);
        self.since.remove(&client);
        if self.heir == Some(client) {
            (self.heir, self.inherited) = (None, false);
        }
    }
}

#[cfg(test)]
mod tests;
