//! One call's changes to an object's index, gathered and then staged together.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::Arc;

use super::index::{Entry, Page, SLOTS, TAG_MOVES, locate, number_key, page_key};
use super::ledger::{Asks, Changed, Room, Staged, Take, Taken};
use super::moves::{self, Move};
use super::{BLOCK, ObjectId, Objects};
use crate::{Batch, Key, Kv, KvError};
use outboard_medium::Medium;

/// Rounds of growing and syncing before a request for blocks gives up.
const TAKE_ROUNDS: usize = 16;
/// The one in which a copy that keeps freed blocks is given up: beside busy writers something
/// always waits for a sync, so that the ledger never says that it is full.
const ROUND_WITHOUT_COPY: usize = TAKE_ROUNDS / 2;
/// Index pages asked for at once: those of 4 MiB.
const GROUP: u32 = 16;

/// Index pages being changed, and the moves made.
pub(super) struct Edit {
    id: ObjectId,
    pages: BTreeMap<u32, Page>,
    changed: BTreeSet<u32>,
    moves: Vec<Move>,
    delta: i64,
}

impl Edit {
    pub(super) fn new(id: ObjectId) -> Edit {
        Edit { id, pages: BTreeMap::new(), changed: BTreeSet::new(), moves: Vec::new(), delta: 0 }
    }

    /// Brings a page under edit.
    pub(super) fn add(&mut self, number: u32, page: Page) {
        self.pages.insert(number, page);
    }

    /// The entry of a block of file, as edited so far.
    pub(super) fn get(&self, file_block: u64) -> Entry {
        let (number, slot) = locate(file_block);
        self.pages.get(&number).map_or(Entry::HOLE, |page| page.get(slot))
    }

    /// Those of `blocks` that are not holes, among the pages under edit.
    pub(super) fn mapped(&self, blocks: &Range<u64>) -> Vec<u64> {
        let all = self.pages.iter().flat_map(|(number, page)| {
            let start = u64::from(*number) * SLOTS as u64;
            (start..).zip(&page.entries)
        });
        let mapped = all.filter(|(block, entry)| blocks.contains(block) && entry.block != 0);
        mapped.map(|(block, _)| block).collect()
    }

    /// Sets the entry of a block of file whose page is under edit.
    pub(super) fn set(&mut self, file_block: u64, new: Entry) {
        let (number, slot) = locate(file_block);
        let Some(page) = self.pages.get_mut(&number) else { return };
        let old = page.get(slot);
        if old == new {
            return;
        }
        page.set(slot, new);
        self.delta += i64::from(new.block != 0) - i64::from(old.block != 0);
        self.changed.insert(number);
        let slot = u8::try_from(slot).unwrap_or(0);
        self.moves.push(Move { id: self.id, page: number, slot, old, new });
    }

    /// The blocks that change hands. One that entries shared is given back with the last of them,
    /// all of which are of one page.
    fn changed(&self) -> Changed {
        let mut changed = Changed { moves: self.moves.len(), ..Changed::default() };
        let named = |m: &Move, block| self.pages.get(&m.page).is_some_and(|p| p.names(block));
        for m in &self.moves {
            changed.new.extend(m.new.blocks());
            changed.old.extend(m.old.blocks().filter(|block| !named(m, *block)));
        }
        for blocks in [&mut changed.new, &mut changed.old] {
            blocks.sort_unstable();
            blocks.dedup();
        }
        changed
    }
}

impl<K: Kv, M: Medium> Objects<K, M> {
    /// Brings every page of `blocks`, of which there are some, under edit, as `batch` would leave
    /// it.
    pub(super) async fn edit_pages(
        &self,
        id: ObjectId,
        blocks: &Range<u64>,
        batch: Option<&Batch>,
    ) -> Result<Edit, KvError> {
        let mut edit = Edit::new(id);
        self.add_pages(&mut edit, blocks, batch).await?;
        Ok(edit)
    }

    /// Brings those pages of `blocks` under edit that are not yet: what is not known of them is
    /// asked of the store at once. With the first of a group all of it is asked for, so that who
    /// writes in sequence asks once a group, of a new file, too.
    pub(super) async fn add_pages(
        &self,
        edit: &mut Edit,
        blocks: &Range<u64>,
        batch: Option<&Batch>,
    ) -> Result<(), KvError> {
        let id = edit.id;
        let mut wanted = Vec::new();
        for number in locate(blocks.start).0..=locate(blocks.end - 1).0 {
            if edit.pages.contains_key(&number) {
                continue;
            }
            let key = page_key(id, number);
            match batch.and_then(|batch| batch.staged(&key)) {
                Some(staged) => edit.add(number, Page::of(id, number, staged)?),
                None => wanted.push(number),
            }
        }
        let Some(last) = wanted.last() else { return Ok(()) };
        // Behind those wanted, so that values and numbers go in step.
        let ahead = wanted.iter().find(|number| number.is_multiple_of(GROUP));
        let ahead = ahead.map_or(0..0, |first| *last + 1..first.saturating_add(GROUP));
        let keys = wanted.iter().copied().chain(ahead);
        let keys: Vec<Key> = keys.map(|number| page_key(id, number).into()).collect();
        for (number, value) in wanted.into_iter().zip(self.kv.get_many(&keys).await?) {
            edit.add(number, Page::of(id, number, value.as_ref())?);
        }
        Ok(())
    }

    /// Takes `count` blocks, growing the medium or waiting for freed blocks as need be.
    pub(super) async fn take(&self, count: u64, asks: Asks, room: Room) -> Result<Taken, KvError> {
        for round in 0..TAKE_ROUNDS {
            match self.ledger.take(count, asks, room) {
                Take::Got(runs) => return Ok(Taken::new(Arc::clone(&self.ledger), runs)),
                short => self.find_room(short, round).await?,
            }
        }
        Err(KvError::NoSpace)
    }

    /// Puts `blocks` aside for writes out of [`Room::Reserved`]: they will not want for space,
    /// whatever others write. `NoSpace` if there is not as much.
    pub async fn reserve(&self, blocks: u64) -> Result<(), KvError> {
        for round in 0..TAKE_ROUNDS {
            match self.ledger.reserve(blocks) {
                None => return Ok(()),
                Some(short) => self.find_room(short, round).await?,
            }
        }
        Err(KvError::NoSpace)
    }

    /// Gives back `blocks` put aside, used or not: taking them out of [`Room::Reserved`] does not.
    pub fn unreserve(&self, blocks: u64) {
        self.ledger.unreserve(blocks);
    }

    /// Does what a request for blocks that came back short asks for.
    async fn find_room(&self, short: Take, round: usize) -> Result<(), KvError> {
        if round == ROUND_WITHOUT_COPY && matches!(short, Take::Sync) {
            self.ledger.give_copy_up();
        }
        match short {
            Take::Got(_) => Ok(()),
            Take::Grow(len) => self.grow(len).await,
            Take::Sync => self.sync().await,
            Take::Full => Err(KvError::NoSpace),
        }
    }

    /// Grows the medium; a refusal for want of space is remembered, not an error.
    pub(super) async fn grow(&self, len: u64) -> Result<(), KvError> {
        match self.medium.grow(len).await.map_err(KvError::from) {
            Ok(()) => self.ledger.grown(len / BLOCK * BLOCK),
            Err(KvError::NoSpace) => self.ledger.cannot_grow(),
            Err(error) => return Err(error),
        }
        Ok(())
    }

    /// Stages the edited pages and the record of the moves into `batch`.
    pub(super) fn stage(
        &self,
        edit: Edit,
        taken: impl IntoIterator<Item = Taken>,
        batch: &mut Batch,
    ) -> Staged {
        if edit.moves.is_empty() {
            return Staged::none();
        }
        let (seq, flushed) = self.ledger.begin(edit.moves.len());
        for (number, page) in &edit.pages {
            if edit.changed.contains(number) {
                page.stage(edit.id, *number, batch);
            }
        }
        batch.put(number_key(TAG_MOVES, seq), moves::encode(flushed, &edit.moves));
        let changed = edit.changed();
        let staged = Staged::new(Arc::clone(&self.ledger), seq, changed, edit.delta);
        taken.into_iter().for_each(Taken::settle);
        staged
    }
}
