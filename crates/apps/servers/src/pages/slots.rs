//! Which page has which slot of the file.
//!
//! A page that was once written keeps its slot. One that must leave a bad place gets a second slot;
//! at the next opening the newer version says which of them it has. Free is a slot of which neither
//! the directory nor what lies there says that a page has it.

use std::collections::{BTreeSet, HashMap};
use std::ops::Range;

use super::places::{self, Layout, NOBODY, SLOTS};

/// The slots of one file.
#[derive(Debug)]
pub(super) struct Slots {
    layout: Layout,
    of: HashMap<u32, u32>,
    /// The lowest last.
    free: Vec<u32>,
    /// Slots there is room for in the file.
    room: u32,
    /// The pages of groups with slots that no directory in the file names, or none needs to.
    filling: HashMap<u32, Vec<u32>>,
    /// Groups whose directory lacks pages.
    unlisted: BTreeSet<u32>,
    /// How many slots more the file is made longer by at a time.
    step: u32,
}

impl Slots {
    /// Of a file of `size` bytes in which nothing was found yet.
    pub(super) fn new(layout: Layout, size: u64) -> Slots {
        Slots {
            layout,
            of: HashMap::new(),
            free: Vec::new(),
            room: layout.slots(size),
            filling: HashMap::new(),
            unlisted: BTreeSet::new(),
            step: SLOTS,
        }
    }

    pub(super) fn layout(&self) -> Layout {
        self.layout
    }

    /// Groups there is room for, or for a part of.
    pub(super) fn groups(&self) -> u32 {
        self.room.div_ceil(SLOTS)
    }

    /// The slots of a group there is room for.
    pub(super) fn of_group(&self, group: u32) -> Range<u32> {
        group * SLOTS..((group + 1) * SLOTS).min(self.room)
    }

    /// The pages that have slots, and where those begin.
    pub(super) fn pairs(&self) -> impl Iterator<Item = (u64, u64)> {
        self.of.iter().map(|(page, slot)| (u64::from(*page), self.layout.slot(*slot)))
    }

    /// Where the pair of `page` begins; `None` if it has none: it was never written.
    pub(super) fn pair(&self, page: u64) -> Option<u64> {
        let slot = u32::try_from(page).ok().and_then(|page| self.of.get(&page));
        let dense = || self.layout.is_dense(page).then(|| Layout::dense(page));
        slot.map(|slot| self.layout.slot(*slot)).or_else(dense)
    }

    /// At opening: `page` has this slot, or both this and the one that is returned.
    pub(super) fn found(&mut self, slot: u32, page: u32, is_listed: bool) -> Option<u32> {
        self.note(slot, page);
        if !is_listed {
            self.unlisted.insert(slot / SLOTS);
        }
        self.of.insert(page, slot)
    }

    /// At opening: of all that it was found in `page` has this slot, or its dense pair.
    pub(super) fn prefer(&mut self, page: u32, slot: Option<u32>) {
        match slot {
            Some(slot) => self.of.insert(page, slot),
            None => self.of.remove(&page),
        };
    }

    /// At opening: these are free, in ascending order.
    pub(super) fn release(&mut self, free: Vec<u32>) {
        self.free = free;
        self.free.reverse();
        let unlisted = &self.unlisted;
        self.filling.retain(|group, pages| unlisted.contains(group) || pages.contains(&NOBODY));
    }

    fn note(&mut self, slot: u32, page: u32) {
        let group = self.filling.entry(slot / SLOTS);
        let pages = group.or_insert_with(|| (0..SLOTS).map(|_| NOBODY).collect());
        if let Some(place) = usize::try_from(slot % SLOTS).ok().and_then(|at| pages.get_mut(at)) {
            *place = page;
        }
    }

    /// Gives `page` a slot; whether there was one.
    pub(super) fn take(&mut self, page: u64) -> bool {
        let Ok(page) = u32::try_from(page) else { return false };
        let Some(slot) = self.free.pop() else { return false };
        self.note(slot, page);
        self.unlisted.insert(slot / SLOTS);
        self.of.insert(page, slot);
        true
    }

    /// The directories that lack pages, and where they lie: who takes them writes them.
    pub(super) fn take_unlisted(&mut self) -> Vec<(u32, u64, Vec<u8>)> {
        let groups = std::mem::take(&mut self.unlisted).into_iter();
        let all = groups.filter_map(|group| {
            let block = places::directory(group, self.filling.get(&group)?);
            Some((group, self.layout.directory(group), block))
        });
        all.collect()
    }

    /// A directory was written, or was not.
    pub(super) fn listed(&mut self, group: u32, is_written: bool) {
        if !is_written {
            self.unlisted.insert(group);
        } else if !self.unlisted.contains(&group) {
            let is_full = self.filling.get(&group).is_some_and(|all| !all.contains(&NOBODY));
            if is_full {
                self.filling.remove(&group);
            }
        }
    }

    /// How long the file should be for more pages to find room.
    pub(super) fn wanted(&self) -> u64 {
        self.layout.bytes(self.room + self.step.min(SLOTS - self.room % SLOTS))
    }

    /// The file is so long now.
    pub(super) fn grew(&mut self, size: u64) {
        let before = self.room;
        self.room = self.layout.slots(size).max(before);
        self.free.splice(0..0, (before..self.room).rev());
        self.step = (self.step * 2).min(SLOTS);
    }

    /// It cannot be so long. Whether to try again with less.
    pub(super) fn did_not_grow(&mut self) -> bool {
        let is_less = self.step > 1;
        self.step = (self.step / 2).max(1);
        is_less
    }
}

#[cfg(test)]
mod tests {
    use super::super::places::PAIR64;
    use super::*;

    fn grown(slots: u32) -> Slots {
        let layout = Layout::NEW;
        let mut all = Slots::new(layout, 0);
        all.grew(layout.bytes(slots));
        all
    }

    #[test]
    fn each_page_has_a_slot_of_its_own_and_is_listed() {
        let all = u64::from(SLOTS) + 5;
        let mut slots = grown(SLOTS + 5);
        for n in 0..all {
            assert!(slots.pair(n * 99).is_none() && slots.take(n * 99));
        }
        assert!(!slots.take(1));
        let mut pairs: Vec<u64> = (0..all).map(|n| slots.pair(n * 99).unwrap()).collect();
        pairs.sort_unstable();
        pairs.dedup();
        assert_eq!(pairs.len(), 517);
        let unlisted = slots.take_unlisted();
        let [(0, first, block), (1, second, _)] = &unlisted[..] else { panic!("{unlisted:?}") };
        assert_eq!((*first, *second), (PAIR64, Layout::NEW.directory(1)));
        let pages = places::entries(0, block).map(|(_, page)| page.unwrap());
        assert!(pages.eq((0..SLOTS).map(|n| n * 99)));
        slots.listed(0, true);
        slots.listed(1, false);
        assert_eq!(slots.filling.keys().collect::<Vec<_>>(), [&1], "the other is not full");
        assert_eq!(slots.take_unlisted().len(), 1, "it is tried again");
    }

    #[test]
    fn a_file_grows_by_groups_and_by_less_where_there_is_less() {
        let mut slots = grown(7);
        assert_eq!(slots.wanted(), Layout::NEW.bytes(SLOTS));
        let tries = (0..).take_while(|_| slots.did_not_grow()).count();
        assert_eq!((tries, slots.wanted()), (9, Layout::NEW.bytes(8)));
        slots.grew(slots.wanted());
        assert_eq!(slots.wanted(), Layout::NEW.bytes(10), "then by more again");
    }

    #[test]
    fn of_what_was_found_one_counts() {
        let mut slots = Slots::new(Layout::NEW, Layout::NEW.bytes(SLOTS + 3));
        for slot in 0..SLOTS {
            assert_eq!(slots.found(slot, slot + 1000, true), None);
        }
        assert_eq!(slots.found(SLOTS, 1000, false), Some(0), "a second one");
        slots.prefer(1000, Some(0));
        slots.release(vec![SLOTS + 1]);
        assert_eq!(slots.filling.keys().collect::<Vec<_>>(), [&1], "all of the other are listed");
        assert!(slots.take(5) && !slots.take(6), "nothing is known of the last");
        assert_eq!(slots.pair(5), Some(Layout::NEW.slot(SLOTS + 1)));
        assert_eq!(slots.pair(1000), Some(Layout::NEW.slot(0)));
    }
}
