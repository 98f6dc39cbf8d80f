//! A page in memory, and where the newest versions of all lie in the file.

use std::collections::HashMap;

use super::super::places::Place;
use super::super::wire::{self, CONTENTS, PAGE, PAGE_HEAD, Request, Status};

/// A page in memory. `C` tells connections apart.
pub(super) struct Frame<C> {
    pub(super) bytes: Vec<u8>,
    pub(super) lsn: u64,
    /// Where the newest version in the file lies, if there is one, and its LSN.
    pub(super) place: Option<Place>,
    pub(super) in_file: u64,
    /// Being written as it was at this LSN.
    pub(super) writing: Option<u64>,
    /// It could not be written when that was last tried.
    pub(super) failed: bool,
    /// It has left its slot for another, where it was not written yet.
    pub(super) moved: bool,
    pub(super) writers: Writers<C>,
}

impl<C: Copy + Eq> Frame<C> {
    /// As it was read.
    pub(super) fn read(bytes: Vec<u8>, place: Place, lsn: u64) -> Frame<C> {
        let (place, in_file) = (Some(place), lsn);
        let writers = Writers::default();
        Frame { bytes, lsn, place, in_file, writing: None, failed: false, moved: false, writers }
    }

    /// One that was never written: zeros.
    pub(super) fn new(page: u64) -> Frame<C> {
        let mut bytes = vec![0; PAGE];
        wire::seal(&mut bytes, page, 0);
        Frame { place: None, ..Frame::read(bytes, Place::First, 0) }
    }

    /// Whether it is newer than the file.
    pub(super) fn is_changed(&self) -> bool {
        self.lsn > self.in_file
    }

    /// Answers a request of `who` for it.
    pub(super) fn answer(&mut self, page: u64, request: &Request<'_>, who: C, out: &mut Vec<u8>) {
        match *request {
            Request::GetPage { lsn, .. } if self.lsn >= lsn => {
                out.extend(wire::answer_head(Status::Done, page, self.lsn, PAGE));
                if self.is_changed() {
                    wire::seal(&mut self.bytes, page, self.lsn);
                }
                out.extend_from_slice(&self.bytes);
            }
            Request::Apply { lsn, at, data, .. } if lsn > self.lsn => {
                let start = PAGE_HEAD + at.min(CONTENTS);
                if let Some(to) = self.bytes.get_mut(start..start + data.len()) {
                    to.copy_from_slice(data);
                }
                self.lsn = lsn;
                self.writers.note(who, lsn);
                out.extend(wire::answer_head(Status::Done, page, lsn, 0));
            }
            Request::Apply { .. } => {
                out.extend(wire::answer_head(Status::Applied, page, self.lsn, 0));
            }
            // Of no page: nobody asks a page for it.
            Request::GetPage { .. } | Request::Sync => {
                out.extend(wire::answer_head(Status::Older, page, self.lsn, 0));
            }
        }
    }

    /// It was written as it was at `lsn`.
    pub(super) fn was_written(&mut self, place: Place, lsn: u64) {
        (self.place, self.in_file) = (Some(place), lsn);
        self.moved = false;
        self.writers.written(lsn);
    }
}

/// Writers of a page that are told apart.
const WRITERS_MAX: usize = 16;

/// Who sent records for a page that are not in the file, each with the newest of them.
pub(super) struct Writers<C> {
    few: Vec<(C, u64)>,
    /// The newest of those that more than these sent.
    others: u64,
}

impl<C> Default for Writers<C> {
    fn default() -> Writers<C> {
        Writers { few: Vec::new(), others: 0 }
    }
}

impl<C: Copy + Eq> Writers<C> {
    fn note(&mut self, who: C, lsn: u64) {
        if let Some((_, newest)) = self.few.iter_mut().find(|(known, _)| *known == who) {
            *newest = lsn;
        } else if self.few.len() < WRITERS_MAX {
            self.few.push((who, lsn));
        } else {
            self.others = lsn;
        }
    }

    fn written(&mut self, lsn: u64) {
        self.few.retain(|(_, newest)| *newest > lsn);
        if self.others <= lsn {
            self.others = 0;
        }
    }

    /// Whether this is so of one of them, or may be.
    pub(super) fn any(&self, mut is: impl FnMut(C) -> bool) -> bool {
        self.others > 0 || self.few.iter().any(|(known, _)| is(*known))
    }

    /// Whether `who` is one of them, or may be.
    pub(super) fn include(&self, who: C) -> bool {
        self.any(|known| known == who)
    }
}

/// Pages of one word.
const GROUP: u64 = 64;

/// Two bits for each page of which the newest version was seen: half a byte for a page at most, as
/// long as neighbours are used.
#[derive(Default)]
pub(super) struct Places(HashMap<u64, u128>);

impl Places {
    fn at(page: u64) -> (u64, u64) {
        (page / GROUP, page % GROUP * 2)
    }

    /// Where it lies, if that is known.
    pub(super) fn get(&self, page: u64) -> Option<Place> {
        let (group, shift) = Places::at(page);
        match self.0.get(&group)? >> shift & 3 {
            1 => Some(Place::First),
            2 => Some(Place::Second),
            _ => None,
        }
    }

    /// It lies there now.
    pub(super) fn note(&mut self, page: u64, place: Place) {
        let (group, shift) = Places::at(page);
        let bits = match place {
            Place::First => 1,
            Place::Second => 2,
        };
        let word = self.0.entry(group).or_default();
        *word = *word & !(3 << shift) | bits << shift;
    }

    /// It is to be looked for.
    pub(super) fn forget(&mut self, page: u64) {
        let (group, shift) = Places::at(page);
        if let Some(word) = self.0.get_mut(&group) {
            *word &= !(3 << shift);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn neighbours_have_places_of_their_own() {
        let mut places = Places::default();
        let of = |page: u64| if page < 100 { Place::First } else { Place::Second };
        (0..200).for_each(|page| places.note(page, of(page).other()));
        (0..200).for_each(|page| places.note(page, of(page)));
        places.forget(63);
        for page in 0..200 {
            assert_eq!(places.get(page), (page != 63).then(|| of(page)), "{page}");
        }
        assert_eq!(places.get(1 << 30), None);
    }

    /// Beyond the few that are remembered anybody may have written.
    #[test]
    fn writers_are_known_until_what_they_wrote_is_in_the_file() {
        let mut writers = Writers::default();
        writers.note('a', 1);
        writers.note('b', 2);
        writers.note('a', 3);
        assert!(writers.include('a') && writers.include('b') && !writers.include('c'));
        writers.written(2);
        assert!(writers.include('a') && !writers.include('b'));
        ('a'..='z').zip(4..).for_each(|(who, lsn)| writers.note(who, lsn));
        assert!(writers.include('!'));
        writers.written(40);
        assert!(!writers.include('!') && !writers.include('a'));
    }
}
