//! The pages of one thread: those in memory, where the others lie, and the rules between them.
//!
//! What holds, whenever power fails:
//!
//! * of each page the file holds a whole version, or it was never written ([`super::places`]);
//! * that version is no older than the last [`Request::Sync`] answered: a page is written over its
//!   older version only, and only when the newer one was flushed. A write that failed counts as one
//!   that may still come: nothing is written there before a flush either;
//! * a version is never mixed from two.
//!
//! Space for a page is there before its first record is answered ([`super::slots`]); who sends a
//! record that there is none for is told so. A page that cannot be written moves to another slot,
//! once; if it cannot be written there either, it stays in memory, and those who sent its records
//! are told when they sync. Nobody else is, unless one of them is gone.
//!
//! Whoever asks (a connection `C`, and a token of it) and cannot be answered at once is answered
//! later, through [`Store::take_answers`]; who asks for one page, in the order of asking.

mod check;
mod memory;
mod open;
mod sync;
#[cfg(test)]
mod tests;

use std::collections::{HashMap, HashSet, VecDeque};
use std::io;
use std::rc::Rc;

use outboard_base::Errno;

use super::places::{self, Newest, PAIR, Place};
use super::slots::Slots;
use super::wire::{self, CONTENTS, PAGE, Request, Status};
use crate::connections::Work;
use crate::device::Device;
pub use check::check;
use memory::{Frame, Places};
use sync::Syncing;

/// Pages written at once, and looked at in one go for eviction four times as many.
const WRITES_MAX: usize = 32;
/// Pages written since the last flush, beyond which there is one.
const UNFLUSHED_MAX: usize = 1 << 16;
/// Pages that cannot be written, beyond which it is not the fault of single places: none moves.
const FAULTS_MAX: usize = 64;

/// What ended in the background.
pub(super) enum Event {
    /// A page was read: from this place, or from both.
    Read(u64, Option<Place>, Result<Vec<u8>, Errno>),
    /// A page was written as it was at this LSN.
    Written(u64, u64, Place, Result<(), Errno>),
    /// The file was flushed, behind the directories of these groups.
    Flushed(Vec<(u32, Result<(), Errno>)>, Result<(), Errno>),
    /// The file was to be as long as this.
    Grown(u64, Result<(), Errno>),
}

/// Who waits: a connection, and its token.
type Who<C> = (C, u64);

/// What became of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Asked {
    /// It was answered.
    Answered,
    /// It will be: see [`Store::wait`].
    Waits,
    /// There is no memory for it now: it is to be asked again.
    Crowded,
}

/// A request that waits for its page.
enum Waiting {
    Get(u64),
    Apply(u64, usize, Vec<u8>),
}

/// The store.
pub(super) struct Store<D, C> {
    device: Rc<D>,
    frames: HashMap<u64, Frame<C>>,
    /// Pages in memory, in the order in which they were last taken in or looked at for eviction.
    order: VecDeque<u64>,
    budget: usize,
    slots: Slots,
    /// Pages without a slot whose records wait for room.
    wanting: Vec<u64>,
    growing: bool,
    /// There was no room when there was last to be some.
    has_no_room: bool,
    /// Which places hold the newest versions of pages, as far as this life has seen them.
    places: Places,
    /// Pages of which a version was lost that may have been newer than the one there is: a record
    /// that sets but a part of one might be applied to the wrong version.
    in_doubt: HashSet<u64>,
    /// Pages being read, or wanting room, and who waits for them.
    reading: HashMap<u64, Vec<(Who<C>, Waiting)>>,
    /// Writes under way.
    writes: usize,
    /// Pages in memory that could not be written.
    faults: usize,
    /// Pages written, or tried to be, since the last flush began.
    unflushed: HashSet<u64>,
    /// Those of the flush under way.
    flushing: Option<HashSet<u64>>,
    flush_wanted: bool,
    flushes: u64,
    /// A flush failed: what is in the file is not known, and nothing is written any more.
    broken: bool,
    syncing: Option<Syncing<C>>,
    /// Who waits for the sync after that.
    sync_next: Option<Vec<Who<C>>>,
    answers: Vec<(Who<C>, Vec<u8>)>,
}

impl<D: Device, C: Copy + Eq> Store<D, C> {
    /// Opens the file of `device`, or begins one. `memory` is in bytes.
    pub(super) async fn open(device: Rc<D>, memory: usize) -> io::Result<Store<D, C>> {
        let slots = open::open(&*device).await?;
        Ok(Store {
            device,
            frames: HashMap::new(),
            order: VecDeque::new(),
            budget: (memory / PAGE).max(2 * WRITES_MAX),
            slots,
            wanting: Vec::new(),
            growing: false,
            has_no_room: false,
            places: Places::default(),
            in_doubt: HashSet::new(),
            reading: HashMap::new(),
            writes: 0,
            faults: 0,
            unflushed: HashSet::new(),
            flushing: None,
            flush_wanted: false,
            flushes: 0,
            broken: false,
            syncing: None,
            sync_next: None,
            answers: Vec::new(),
        })
    }

    /// Answers a request of `who` into `out`, if that can be done at once.
    pub(super) fn ask(&mut self, request: &Request<'_>, who: C, out: &mut Vec<u8>) -> Asked {
        let (page, changes) = match *request {
            Request::GetPage { page, .. } => (page, false),
            Request::Apply { page, lsn, .. } => (page, lsn > 0),
            Request::Sync => return Asked::Waits,
        };
        if self.answer(page, request, who, out) {
            return Asked::Answered;
        }
        if self.reading.contains_key(&page) {
            return Asked::Waits;
        }
        let exists = self.slots.pair(page).is_some();
        if !exists && !changes {
            Frame::new(page).answer(page, request, who, out);
            return Asked::Answered;
        }
        if self.is_full() && !self.is_stuck() {
            return Asked::Crowded;
        }
        if self.is_full() {
            out.extend(wire::answer_head(Status::Failed, page, 0, 0));
            return Asked::Answered;
        }
        if exists || !self.slots.take(page) {
            return Asked::Waits;
        }
        let mut frame = Frame::new(page);
        frame.answer(page, request, who, out);
        self.keep(page, frame);
        Asked::Answered
    }

    /// Answers a request for a page that is in memory; whether it is.
    fn answer(&mut self, page: u64, request: &Request<'_>, who: C, out: &mut Vec<u8>) -> bool {
        let Some(frame) = self.frames.get_mut(&page) else { return false };
        if let Request::Apply { lsn, data, .. } = request
            && *lsn > frame.lsn
            && self.in_doubt.contains(&page)
        {
            if data.len() < CONTENTS {
                out.extend(wire::answer_head(Status::Failed, page, 0, 0));
                return true;
            }
            self.in_doubt.remove(&page);
        }
        frame.answer(page, request, who, out);
        true
    }

    /// Notes that `who` waits for the answer.
    pub(super) fn wait(
        &mut self,
        request: &Request<'_>,
        who: Who<C>,
        begin: &mut Vec<Work<Event>>,
    ) {
        let (page, waiting) = match *request {
            Request::Sync => return self.sync_next.get_or_insert_default().push(who),
            Request::GetPage { page, lsn } => (page, Waiting::Get(lsn)),
            Request::Apply { page, lsn, at, data } => {
                (page, Waiting::Apply(lsn, at, data.to_vec()))
            }
        };
        if let Some(queue) = self.reading.get_mut(&page) {
            return queue.push((who, waiting));
        }
        self.reading.insert(page, vec![(who, waiting)]);
        if self.slots.pair(page).is_some() {
            return self.read(page, self.places.get(page), begin);
        }
        self.wanting.push(page);
        self.grow(begin);
    }

    /// Begins to make the file longer, if a page wants room.
    fn grow(&mut self, begin: &mut Vec<Work<Event>>) {
        if self.wanting.is_empty() || std::mem::replace(&mut self.growing, true) {
            return;
        }
        let (device, wanted) = (Rc::clone(&self.device), self.slots.wanted());
        begin.push(Box::pin(async move { Event::Grown(wanted, device.grow(wanted).await) }));
    }

    fn has_grown(&mut self, size: u64, grown: Result<(), Errno>, begin: &mut Vec<Work<Event>>) {
        self.growing = false;
        let status = match grown {
            Ok(()) => {
                self.slots.grew(size);
                self.has_no_room = false;
                let mut wanting = std::mem::take(&mut self.wanting).into_iter();
                for page in wanting.by_ref() {
                    if !self.slots.take(page) {
                        self.wanting.push(page);
                        break;
                    }
                    self.keep(page, Frame::new(page));
                    self.answer_waiting(page, Status::Failed);
                }
                self.wanting.extend(wanting);
                return self.grow(begin);
            }
            Err(Errno::ENOSPC | Errno::EDQUOT | Errno::EFBIG) => {
                if self.slots.did_not_grow() {
                    return self.grow(begin);
                }
                Status::Full
            }
            Err(_) => Status::Failed,
        };
        if !std::mem::replace(&mut self.has_no_room, true) {
            tracing::warn!(?grown, "there is no room for another page; its records are refused");
        }
        for page in std::mem::take(&mut self.wanting) {
            self.answer_waiting(page, status);
        }
    }

    /// Answers to those who waited, since this was last asked.
    pub(super) fn take_answers(&mut self) -> Vec<(Who<C>, Vec<u8>)> {
        std::mem::take(&mut self.answers)
    }

    /// Whether pages must leave before others come.
    pub(super) fn is_full(&self) -> bool {
        self.frames.len() + self.reading.len() >= 2 * self.budget
    }

    /// Whether pages cannot leave memory, as it seems.
    pub(super) fn is_stuck(&self) -> bool {
        self.broken || self.faults >= self.budget
    }

    fn read(&self, page: u64, place: Option<Place>, begin: &mut Vec<Work<Event>>) {
        let device = Rc::clone(&self.device);
        let pair = self.slots.pair(page).unwrap_or(u64::MAX);
        begin.push(Box::pin(async move {
            let read = match place {
                Some(place) => {
                    device.read(pair + place.within(), PAGE).await.map(|bytes| bytes.to_vec())
                }
                None => open::read_apart(&*device, pair, PAIR, PAGE).await,
            };
            Event::Read(page, place, read)
        }));
    }

    /// Something ended in the background. `is_there` says whether a connection still is.
    pub(super) fn on(
        &mut self,
        event: Event,
        is_there: &mut dyn FnMut(C) -> bool,
        begin: &mut Vec<Work<Event>>,
    ) {
        match event {
            Event::Read(page, place, Ok(bytes)) => self.was_read(page, place, bytes, begin),
            Event::Read(page, Some(_), Err(error)) => {
                tracing::warn!(page, %error, "the newest version of a page cannot be read");
                self.was_lost(page, begin);
            }
            Event::Read(page, None, Err(error)) => {
                tracing::error!(page, %error, "a page cannot be read");
                self.answer_waiting(page, Status::Failed);
            }
            Event::Written(page, lsn, place, written) => {
                if let Some(moves) = self.was_written(page, lsn, place, written) {
                    self.sync_was_not_written(page, moves, is_there);
                }
            }
            Event::Flushed(listed, flushed) => self.was_flushed(listed, flushed),
            Event::Grown(size, grown) => self.has_grown(size, grown, begin),
        }
    }

    fn was_read(
        &mut self,
        page: u64,
        place: Option<Place>,
        mut bytes: Vec<u8>,
        begin: &mut Vec<Work<Event>>,
    ) {
        let newest = match place {
            Some(place) => match wire::lsn_of(&bytes, page) {
                Some(lsn) => Newest::Whole(place, lsn),
                None => return self.was_lost(page, begin),
            },
            None => {
                let (newest, is_damaged) = places::newest(&bytes, page);
                if places::is_lost(&bytes) {
                    self.in_doubt.insert(page);
                }
                if is_damaged {
                    tracing::warn!(
                        page,
                        ?newest,
                        "a version of a page is not whole: power failed while it was written, or \
                         the medium lost it; records newer than the other one are to come again"
                    );
                }
                match newest {
                    Newest::Whole(Place::Second, _) => drop(bytes.drain(..PAGE)),
                    _ => bytes.truncate(PAGE),
                }
                newest
            }
        };
        let frame = match newest {
            Newest::Whole(place, lsn) => {
                self.places.note(page, place);
                Some(Frame::read(bytes, place, lsn))
            }
            Newest::None => Some(Frame::new(page)),
            Newest::Damaged => None,
        };
        if let Some(frame) = frame {
            self.keep(page, frame);
        }
        self.answer_waiting(page, Status::Failed);
    }

    /// The newest version of a page was whole once, and is not any more: the other is all there is.
    fn was_lost(&mut self, page: u64, begin: &mut Vec<Work<Event>>) {
        self.places.forget(page);
        self.in_doubt.insert(page);
        self.read(page, None, begin);
    }

    fn keep(&mut self, page: u64, frame: Frame<C>) {
        self.frames.insert(page, frame);
        self.order.push_back(page);
    }

    /// Answers who waited for a page, which is in memory now, or cannot be had: then a record that
    /// sets all of it makes it anew, if it has a slot. Records without one are answered `refused`.
    fn answer_waiting(&mut self, page: u64, refused: Status) {
        let exists = self.slots.pair(page).is_some();
        for (who, waiting) in self.reading.remove(&page).unwrap_or_default() {
            let request = waiting.request(page);
            let is_whole = matches!(request, Request::Apply { data, .. } if data.len() == CONTENTS);
            if is_whole && exists && !self.frames.contains_key(&page) {
                self.keep(page, Frame::new(page));
            }
            let mut out = Vec::new();
            let is_hole = !exists && matches!(request, Request::GetPage { .. });
            if is_hole {
                Frame::new(page).answer(page, &request, who.0, &mut out);
            } else if !self.answer(page, &request, who.0, &mut out) {
                out.extend(wire::answer_head(refused, page, 0, 0));
            }
            self.answers.push((who, out));
        }
    }

    /// Begins what is to be begun: to be called when requests were taken and when something ended.
    pub(super) fn go_on(&mut self, begin: &mut Vec<Work<Event>>) {
        self.make_room(false, begin);
        self.sync(begin);
        self.flush(begin);
    }

    /// Writes changed pages while there are more than the memory allows, and lets clean ones go.
    /// `again` tries those that could not be written, too.
    pub(super) fn make_room(&mut self, again: bool, begin: &mut Vec<Work<Event>>) {
        let mut looks = self.order.len().min(4 * WRITES_MAX);
        while self.frames.len() > self.budget && looks > 0 {
            looks -= 1;
            let Some(page) = self.order.pop_front() else { return };
            let Some(frame) = self.frames.get(&page) else { continue };
            if !frame.is_changed() && frame.writing.is_none() {
                self.frames.remove(&page);
                continue;
            }
            if frame.writing.is_none() && self.writes >= WRITES_MAX {
                // It keeps its place: behind the others it could be passed over again and again.
                return self.order.push_front(page);
            }
            let passed_over = frame.failed && !again;
            self.order.push_back(page);
            if !passed_over {
                self.write_back(page, begin);
            }
        }
    }

    /// Begins to write a page as it is now, unless it is being written, or the version it would
    /// leave alone in the file has not been flushed: then it is wanted flushed. Whether it began.
    fn write_back(&mut self, page: u64, begin: &mut Vec<Work<Event>>) -> bool {
        if self.broken {
            return false;
        }
        let is_flushing = self.flushing.as_ref().is_some_and(|pages| pages.contains(&page));
        if is_flushing || self.unflushed.contains(&page) {
            self.flush_wanted = true;
            return false;
        }
        let frame = self.frames.get_mut(&page).filter(|frame| frame.writing.is_none());
        let (Some(frame), Some(pair)) = (frame, self.slots.pair(page)) else { return false };
        wire::seal(&mut frame.bytes, page, frame.lsn);
        let buf = open::buf(&frame.bytes);
        frame.writing = Some(frame.lsn);
        self.writes += 1;
        let place = frame.place.map_or(Place::First, Place::other);
        let (device, lsn) = (Rc::clone(&self.device), frame.lsn);
        begin.push(Box::pin(async move {
            let written = device.write(pair + place.within(), buf).await;
            Event::Written(page, lsn, place, written)
        }));
        true
    }

    /// If it was not written, whether the page moves.
    fn was_written(
        &mut self,
        page: u64,
        lsn: u64,
        place: Place,
        written: Result<(), Errno>,
    ) -> Option<bool> {
        self.writes = self.writes.saturating_sub(1);
        self.unflushed.insert(page);
        self.flush_wanted |= self.unflushed.len() >= UNFLUSHED_MAX;
        let frame = self.frames.get_mut(&page)?;
        frame.writing = None;
        if let Err(error) = written {
            return self.was_not_written(page, error);
        }
        frame.was_written(place, lsn);
        self.faults -= usize::from(std::mem::take(&mut frame.failed));
        self.places.note(page, place);
        self.sync_was_written(page, lsn);
        None
    }

    /// A page could not be written: where that may be the fault of its place it gets another.
    fn was_not_written(&mut self, page: u64, error: Errno) -> Option<bool> {
        let frame = self.frames.get_mut(&page)?;
        let may_move = error != Errno::ENOSPC && self.faults < FAULTS_MAX && !frame.moved;
        let moves = may_move && self.slots.take(page);
        if moves {
            tracing::warn!(page, %error, "a page was not written; it moves to another place");
            (frame.moved, frame.place) = (true, None);
            self.places.forget(page);
            // Nothing was written there.
            self.unflushed.remove(&page);
        } else {
            tracing::warn!(page, %error, "a page was not written; it stays in memory");
            self.faults += usize::from(!std::mem::replace(&mut frame.failed, true));
        }
        Some(moves)
    }

    /// Begins a flush, if one is wanted and none is under way. Directories that lack pages are
    /// written first: a page that was flushed has its slot on record.
    fn flush(&mut self, begin: &mut Vec<Work<Event>>) {
        if !self.flush_wanted || self.flushing.is_some() || self.broken {
            return;
        }
        self.flush_wanted = false;
        self.flushes += 1;
        self.flushing = Some(std::mem::take(&mut self.unflushed));
        let (device, unlisted) = (Rc::clone(&self.device), self.slots.take_unlisted());
        begin.push(Box::pin(async move {
            let mut listed = Vec::with_capacity(unlisted.len());
            for (group, at, block) in unlisted {
                listed.push((group, device.write(at, open::buf(&block)).await));
            }
            Event::Flushed(listed, device.flush().await)
        }));
    }

    fn was_flushed(&mut self, listed: Vec<(u32, Result<(), Errno>)>, flushed: Result<(), Errno>) {
        for (group, written) in listed {
            if let Err(error) = written {
                tracing::warn!(group, %error, "a directory of pages was not written");
            }
            self.slots.listed(group, written.is_ok());
        }
        let pages = self.flushing.take().unwrap_or_default();
        if let Err(error) = flushed {
            tracing::error!(%error, "the file cannot be flushed: nothing is written any more");
            self.broken = true;
            self.unflushed.extend(pages);
            self.sync_failed();
        }
    }
}

impl Waiting {
    fn request(&self, page: u64) -> Request<'_> {
        match self {
            Waiting::Get(lsn) => Request::GetPage { page, lsn: *lsn },
            Waiting::Apply(lsn, at, data) => Request::Apply { page, lsn: *lsn, at: *at, data },
        }
    }
}
