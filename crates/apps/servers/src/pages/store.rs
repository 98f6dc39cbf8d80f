//! The pages of one thread: those in memory, where the others lie, and the rules between them.
//!
//! What holds, whenever power fails:
//!
//! * of each page the file holds a whole version, or it was never written ([`super::places`]);
//! * that version is no older than the last [`Request::Sync`] answered: a page is written over its
//!   older version only, and only when the newer one was flushed;
//! * a version is never mixed from two.
//!
//! Whoever asks and cannot be answered at once (`W`) is answered later, through
//! [`Store::take_answers`]; who asks for one page, in the order of asking.

mod memory;
mod sync;
#[cfg(test)]
mod tests;

use std::collections::{HashMap, HashSet, VecDeque};
use std::io;
use std::rc::Rc;

use outboard_base::Errno;
use outboard_medium::Buf;

use super::places::{self, HEAD_BLOCK, Headed, Newest, PAIR, Place};
use super::wire::{self, CONTENTS, PAGE, Request, Status};
use crate::connections::Work;
use crate::device::Device;
use memory::{Frame, Places};
use sync::Syncing;

/// Pages written at once, and looked at in one go for eviction four times as many.
const WRITES_MAX: usize = 32;
/// Pages written since the last flush, beyond which there is one.
const UNFLUSHED_MAX: usize = 1 << 16;

/// What ended in the background.
pub(super) enum Event {
    /// A page was read: from this place, or from both.
    Read(u64, Option<Place>, Result<Vec<u8>, Errno>),
    /// A page was written as it was at this LSN.
    Written(u64, u64, Place, Result<(), Errno>),
    Flushed(Result<(), Errno>),
}

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
pub(super) struct Store<D, W> {
    device: Rc<D>,
    frames: HashMap<u64, Frame>,
    /// Pages in memory, in the order in which they were last taken in or looked at for eviction.
    order: VecDeque<u64>,
    budget: usize,
    /// Where the newest versions of pages lie, as far as this life has seen them.
    places: Places,
    /// Pages being read, and who waits for them.
    reading: HashMap<u64, Vec<(W, Waiting)>>,
    /// Writes under way.
    writes: usize,
    write_failed: bool,
    /// Pages whose newest version was written since the last flush began.
    unflushed: HashSet<u64>,
    /// Those of the flush under way.
    flushing: Option<HashSet<u64>>,
    flush_wanted: bool,
    flushes: u64,
    /// A flush failed: what is in the file is not known, and nothing is written any more.
    broken: bool,
    syncing: Option<Syncing<W>>,
    /// Who waits for the sync after that.
    sync_next: Option<Vec<W>>,
    answers: Vec<(W, Vec<u8>)>,
}

impl<D: Device, W> Store<D, W> {
    /// Opens the file of `device`, or begins one. `memory` is in bytes.
    pub(super) async fn open(device: Rc<D>, memory: usize) -> io::Result<Store<D, W>> {
        let failed = |errno: Errno| io::Error::other(format!("the file of pages: {errno}"));
        let block = device.read(0, HEAD_BLOCK).await.map_err(failed)?;
        match places::headed(&block) {
            Headed::Pages => {}
            Headed::Nothing => {
                let mut block = Buf::zeroed(HEAD_BLOCK);
                block.copy_from_slice(&places::head());
                device.write(0, block).await.map_err(failed)?;
            }
            Headed::Foreign => {
                let why = "the file holds something else than pages, or pages in the format of \
                           another release; name another data directory";
                return Err(io::Error::new(io::ErrorKind::InvalidData, why));
            }
        }
        // From here on every version that can be read is one that stays.
        device.flush().await.map_err(failed)?;
        Ok(Store {
            device,
            frames: HashMap::new(),
            order: VecDeque::new(),
            budget: (memory / PAGE).max(2 * WRITES_MAX),
            places: Places::default(),
            reading: HashMap::new(),
            writes: 0,
            write_failed: false,
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

    /// Answers a request into `out`, if that can be done at once.
    pub(super) fn ask(&mut self, request: &Request<'_>, out: &mut Vec<u8>) -> Asked {
        let (Request::GetPage { page, .. } | Request::Apply { page, .. }) = *request else {
            return Asked::Waits;
        };
        if let Some(frame) = self.frames.get_mut(&page) {
            frame.answer(page, request, out);
            return Asked::Answered;
        }
        if self.reading.contains_key(&page) || !self.is_full() {
            return Asked::Waits;
        }
        if !self.is_stuck() {
            return Asked::Crowded;
        }
        out.extend(wire::answer_head(Status::Failed, page, 0, 0));
        Asked::Answered
    }

    /// Notes that `who` waits for the answer.
    pub(super) fn wait(&mut self, request: &Request<'_>, who: W, begin: &mut Vec<Work<Event>>) {
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
        self.read(page, self.places.get(page), begin);
    }

    /// Answers to those who waited, since this was last asked.
    pub(super) fn take_answers(&mut self) -> Vec<(W, Vec<u8>)> {
        std::mem::take(&mut self.answers)
    }

    /// Whether pages must leave before others come.
    pub(super) fn is_full(&self) -> bool {
        self.frames.len() + self.reading.len() >= 2 * self.budget
    }

    /// Whether pages cannot leave memory, as it seems.
    pub(super) fn is_stuck(&self) -> bool {
        self.write_failed || self.broken
    }

    fn read(&self, page: u64, place: Option<Place>, begin: &mut Vec<Work<Event>>) {
        let device = Rc::clone(&self.device);
        let (offset, len) = match place {
            Some(place) => (places::offset(page, place), PAGE),
            None => (places::pair(page), PAIR),
        };
        begin.push(Box::pin(async move {
            let read = device.read(offset, len).await;
            Event::Read(page, place, read.map(|bytes| bytes.to_vec()))
        }));
    }

    /// Something ended in the background.
    pub(super) fn on(&mut self, event: Event, begin: &mut Vec<Work<Event>>) {
        match event {
            Event::Read(page, place, Ok(bytes)) => self.was_read(page, place, bytes, begin),
            Event::Read(page, _, Err(error)) => {
                tracing::error!(page, %error, "a page cannot be read");
                self.answer_waiting(page);
            }
            Event::Written(page, lsn, place, written) => {
                self.was_written(page, lsn, place, written)
            }
            Event::Flushed(flushed) => self.was_flushed(flushed),
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
                None => {
                    // It was whole once: the medium lost it, and the other place may be.
                    self.places.forget(page);
                    return self.read(page, None, begin);
                }
            },
            None => {
                let (newest, is_damaged) = places::newest(&bytes, page);
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
        self.answer_waiting(page);
    }

    fn keep(&mut self, page: u64, frame: Frame) {
        self.frames.insert(page, frame);
        self.order.push_back(page);
    }

    /// Answers who waited for a page, which is in memory now, or cannot be had. Then a record that
    /// sets all of it makes it anew.
    fn answer_waiting(&mut self, page: u64) {
        for (who, waiting) in self.reading.remove(&page).unwrap_or_default() {
            let request = waiting.request(page);
            let is_whole = matches!(request, Request::Apply { data, .. } if data.len() == CONTENTS);
            if is_whole && !self.frames.contains_key(&page) {
                self.keep(page, Frame::new(page));
            }
            let mut out = Vec::new();
            match self.frames.get_mut(&page) {
                Some(frame) => frame.answer(page, &request, &mut out),
                None => out.extend(wire::answer_head(Status::Failed, page, 0, 0)),
            }
            self.answers.push((who, out));
        }
    }

    /// Begins what is to be begun: to be called when requests were taken and when something ended.
    pub(super) fn go_on(&mut self, begin: &mut Vec<Work<Event>>) {
        if !self.write_failed {
            self.make_room(begin);
        }
        self.sync(begin);
        self.flush(begin);
    }

    /// Writes changed pages while there are more than the memory allows, and lets clean ones go.
    pub(super) fn make_room(&mut self, begin: &mut Vec<Work<Event>>) {
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
            self.order.push_back(page);
            self.write_back(page, begin);
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
        let Some(frame) = frame else { return false };
        wire::seal(&mut frame.bytes, page, frame.lsn);
        let mut buf = Buf::zeroed(PAGE);
        buf.copy_from_slice(&frame.bytes);
        frame.writing = Some(frame.lsn);
        self.writes += 1;
        let place = frame.place.map_or(Place::First, Place::other);
        let (device, lsn) = (Rc::clone(&self.device), frame.lsn);
        begin.push(Box::pin(async move {
            let written = device.write(places::offset(page, place), buf).await;
            Event::Written(page, lsn, place, written)
        }));
        true
    }

    fn was_written(&mut self, page: u64, lsn: u64, place: Place, written: Result<(), Errno>) {
        self.writes = self.writes.saturating_sub(1);
        self.write_failed = written.is_err();
        if let Some(frame) = self.frames.get_mut(&page) {
            frame.writing = None;
            if written.is_ok() {
                (frame.place, frame.in_file) = (Some(place), lsn);
            }
        }
        match written {
            Ok(()) => {
                self.places.note(page, place);
                self.unflushed.insert(page);
                self.flush_wanted |= self.unflushed.len() >= UNFLUSHED_MAX;
                self.sync_was_written(page, lsn);
            }
            Err(error) => {
                tracing::warn!(page, %error, "a page was not written; it stays in memory");
                self.sync_failed();
            }
        }
    }

    /// Begins a flush, if one is wanted and none is under way.
    fn flush(&mut self, begin: &mut Vec<Work<Event>>) {
        if !self.flush_wanted || self.flushing.is_some() || self.broken {
            return;
        }
        self.flush_wanted = false;
        self.flushes += 1;
        self.flushing = Some(std::mem::take(&mut self.unflushed));
        let device = Rc::clone(&self.device);
        begin.push(Box::pin(async move { Event::Flushed(device.flush().await) }));
    }

    fn was_flushed(&mut self, flushed: Result<(), Errno>) {
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
