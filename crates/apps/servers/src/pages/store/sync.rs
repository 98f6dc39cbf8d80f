//! Making everything that was answered survive power loss: every page that was newer than the file
//! when it began is written, and then the file is flushed. Who asks meanwhile waits for the next.
//! A page that cannot be written fails the sync of those who sent records for it, and of nobody
//! else while they are there.

use std::collections::HashMap;

use super::super::wire::{self, Status};
use super::{Event, Store, WRITES_MAX, Who};
use crate::connections::Work;
use crate::device::Device;

/// Of who asked: the page that failed whose records are theirs, too, and its LSN.
type Failed = Option<(u64, u64)>;

/// A sync under way.
pub(super) struct Syncing<C> {
    who: Vec<(Who<C>, Failed)>,
    /// Pages to be written, at least as new as this LSN.
    left: Vec<(u64, u64)>,
    /// Those being written.
    begun: HashMap<u64, u64>,
    /// All are written; it ends with this flush.
    flush: Option<u64>,
}

impl<D: Device, C: Copy + Eq> Store<D, C> {
    /// Begins one for nobody.
    pub(in crate::pages) fn sync_for_nobody(&mut self) {
        self.sync_next.get_or_insert_default();
    }

    /// Whether one is under way, or asked for.
    pub(in crate::pages) fn is_syncing(&self) -> bool {
        self.syncing.is_some() || self.sync_next.is_some()
    }

    /// Pages newer than the file.
    pub(in crate::pages) fn changed(&self) -> usize {
        self.frames.values().filter(|frame| frame.is_changed()).count()
    }

    /// Begins what a sync needs, and ends it.
    pub(super) fn sync(&mut self, begin: &mut Vec<Work<Event>>) {
        if self.syncing.is_none()
            && let Some(who) = self.sync_next.take()
        {
            let changed = self.frames.iter().filter(|(_, frame)| frame.is_changed());
            let mut left: Vec<(u64, u64)> = changed.map(|(page, f)| (*page, f.lsn)).collect();
            // The last is the first to be written.
            left.sort_unstable_by(|a, b| b.cmp(a));
            let who = who.into_iter().map(|who| (who, None)).collect();
            self.syncing = Some(Syncing { who, left, begun: HashMap::new(), flush: None });
        }
        if self.broken {
            return self.sync_failed();
        }
        let Some(mut sync) = self.syncing.take() else { return };
        self.write_for(&mut sync, begin);
        if sync.left.is_empty() && sync.begun.is_empty() && sync.flush.is_none() {
            // The flush under way covers what was written before it began.
            let more = u64::from(!self.unflushed.is_empty());
            self.flush_wanted |= more > 0;
            sync.flush = Some(self.flushes + more);
        }
        let flushed = self.flushes - u64::from(self.flushing.is_some());
        if sync.flush.is_some_and(|flush| flush <= flushed) {
            self.answer_sync(sync, Status::Done);
            // Who waits for the next goes on at once.
            return self.sync(begin);
        }
        self.syncing = Some(sync);
    }

    fn write_for(&mut self, sync: &mut Syncing<C>, begin: &mut Vec<Work<Event>>) {
        while self.writes < WRITES_MAX
            && let Some((page, lsn)) = sync.left.pop()
        {
            // Who was written by others has left memory, perhaps.
            let frame = self.frames.get(&page).filter(|frame| frame.in_file < lsn);
            let Some(frame) = frame else { continue };
            if frame.writing.is_some() || self.write_back(page, begin) {
                sync.begun.insert(page, lsn);
            } else {
                // After the flush that it waits for.
                return sync.left.push((page, lsn));
            }
        }
    }

    /// A page was written, as it was at `lsn`.
    pub(super) fn sync_was_written(&mut self, page: u64, lsn: u64) {
        if let Some(sync) = &mut self.syncing
            && let Some(wanted) = sync.begun.remove(&page)
            && lsn < wanted
        {
            sync.left.push((page, wanted));
        }
    }

    /// A page could not be written: it is tried elsewhere, or those are told who sent records for
    /// it; and if one of them is gone, all are, as nobody else would be.
    pub(super) fn sync_was_not_written(
        &mut self,
        page: u64,
        again: bool,
        is_there: &mut dyn FnMut(C) -> bool,
    ) {
        let Some(sync) = &mut self.syncing else { return };
        let Some(wanted) = sync.begun.remove(&page) else { return };
        if again {
            return sync.left.push((page, wanted));
        }
        let Some(frame) = self.frames.get(&page) else { return };
        let concerns_all = frame.writers.any(|writer| !is_there(writer));
        for ((conn, _), failed) in &mut sync.who {
            if concerns_all || frame.writers.include(*conn) {
                *failed = Some((page, wanted));
            }
        }
        // Nobody waits for the rest.
        if !sync.who.is_empty() && sync.who.iter().all(|(_, failed)| failed.is_some()) {
            self.sync_failed();
        }
    }

    /// It ends without a flush: who waits is told so.
    pub(super) fn sync_failed(&mut self) {
        if let Some(sync) = self.syncing.take() {
            self.answer_sync(sync, Status::Failed);
        }
    }

    fn answer_sync(&mut self, sync: Syncing<C>, status: Status) {
        for (who, failed) in sync.who {
            let answer = match failed {
                Some((page, lsn)) => wire::answer_head(Status::Failed, page, lsn, 0),
                None => wire::answer_head(status, 0, 0, 0),
            };
            self.answers.push((who, answer.to_vec()));
        }
    }
}
