//! Compaction: the oldest pages of the log are gone through, what is still the last of its key is
//! put into the tail again, and their lots are free.
//!
//! ```text
//!  read page -> judge its records -> copy the living -> sync the journal -> head: begin = page + 1
//!                                                                              -> free the lots
//! ```
//!
//! A *pass* begins when half the records of the log are dead, or some are and the device is full,
//! and ends at the page that was the first in memory then. Whatever dies on the way leaves the old
//! page in its place, or the copy in the journal; one of them counts.
//!
//! **Judging.** A record that the index names lives. One that it does not may still be the last of
//! its key, if another key hashes alike: then its chain is followed, through the file if need be.
//!
//! **Freeing.** A lot is used again when the head says durably that its page does not count, when
//! the table has forgotten every record in it, and when every read of the host that may look there
//! has ended. A read of the DPU side that is under way all the same finds another record, or half
//! of one, and is answered by the host (`answer` looks at key and check).

use std::collections::{HashMap, VecDeque};
use std::rc::{Rc, Weak};

use outboard_base::Errno;

use super::super::app::hash;
use super::super::journal::Kind;
use super::super::log::{For, Found};
use super::super::record::{self, Record};
use super::super::sync::synced;
use super::{Event, PAGE64, Store, StoreError, Work, journal_failed, newest};
use crate::device::Device;
use crate::kv::lots::Head;
use crate::kv::record::PAGE;

/// Pages a log has before it is compacted.
const PAGES_MIN: u64 = 16;
/// Records judged by one task, at least, and tasks at a time.
const SHARE: usize = 16;
const TASKS: usize = 16;
/// On a full device, one dead record of so many is worth a pass.
const FULL_WORTH: u64 = 64;

/// What a chain says of a record that the index does not name.
#[derive(Clone, Copy)]
struct Verdict {
    /// The address the chain was followed from.
    from: u64,
    /// Its key's last record.
    newest: Option<u64>,
}

/// A record to be judged.
struct Doubt {
    key: Vec<u8>,
    own: u64,
    from: u64,
}

/// How far a page is.
#[derive(Default)]
enum Step {
    #[default]
    Idle,
    Reading,
    Judging(Judging),
    Syncing,
}

struct Judging {
    page: u64,
    bytes: Vec<u8>,
    /// Tasks under way.
    open: usize,
    verdicts: HashMap<u64, Verdict>,
}

/// What ended.
pub(in super::super) enum Progress {
    /// A page was read.
    Read(u64, Result<Vec<u8>, Errno>),
    /// Some records of a page were judged.
    Judged(u64, Vec<(u64, u64, Result<Option<u64>, Errno>)>),
    /// The copies of a page are in the journal for good.
    Synced(u64, std::io::Result<()>),
    /// The head was written.
    Begun(Head, Result<(), Errno>),
}

/// Lots to be freed, once nobody looks there.
pub(super) struct Freeing {
    begin: u64,
    gate: u64,
    readers: Weak<()>,
}

/// Where compaction is.
#[derive(Default)]
pub(super) struct Compaction {
    step: Step,
    /// The next page to go through.
    next: u64,
    /// Where the pass ends.
    until: u64,
    /// What the head says, and whether it is being written.
    head: Head,
    is_writing: bool,
    warned: bool,
    /// Something failed: nothing is begun before the next tick.
    pub(super) rests: bool,
    /// Records that were dead when the last pass had ended: those in memory.
    barren: u64,
    /// There is no room in the tail for what a page may hold.
    is_stuck: bool,
    /// The first page that counts, as soon as the head says so.
    begin: u64,
    pub(super) freeing: VecDeque<Freeing>,
    /// Pages gone through, and records copied.
    pub(super) pages: u64,
    pub(super) copied: u64,
}

impl Compaction {
    pub(super) fn new(head: Head, begin: u64) -> Compaction {
        Compaction { head, begin, next: begin, ..Compaction::default() }
    }

    /// The first page that counts for good.
    pub(super) fn durable_begin(&self) -> u64 {
        self.head.begin
    }

    /// The first page that counts, and will for good.
    pub(super) fn begin(&self) -> u64 {
        self.begin
    }

    /// Whether it may yet make room.
    pub(super) fn is_at_work(&self) -> bool {
        !matches!(self.step, Step::Idle)
            || (self.next < self.until && !self.is_stuck)
            || self.head.begin < self.begin
            || !self.freeing.is_empty()
    }

    /// What lies before this page does not count any more.
    pub(super) fn advance(&mut self, begin: u64) {
        self.begin = self.begin.max(begin);
        self.next = self.next.max(begin);
    }
}

impl<D: Device> Store<D> {
    /// Records that nobody needs, and all.
    fn dead(&self) -> (u64, u64) {
        let in_file = self.lots.borrow().records_before(self.log.first_page());
        let all = in_file + self.log.records();
        (all.saturating_sub(self.log.len() as u64), all)
    }

    /// Does what can be done now.
    pub(super) fn compact(&mut self, begin: &mut Vec<Work>) -> Result<(), StoreError> {
        self.free(begin);
        if self.compaction.rests {
            return Ok(());
        }
        self.write_head(begin)?;
        let first = self.log.first_page();
        let at = &mut self.compaction;
        if !matches!(at.step, Step::Idle) {
            return Ok(());
        }
        let next = at.next;
        if next >= at.until {
            let (dead, all) = self.dead();
            let worth = dead * 2 > all && first.saturating_sub(next) >= PAGES_MIN;
            self.compaction.barren = self.compaction.barren.min(dead);
            let died = dead - self.compaction.barren;
            let full = !self.failed.is_empty() && died > 0 && died * FULL_WORTH >= all;
            if !(worth || full) || next >= first {
                return Ok(());
            }
            self.compaction.until = first;
            tracing::info!(pages = first - next, dead, all, "a pass of compaction");
        }
        // While pages are on their way to a device that takes them, these come first.
        let waits = self.failed.is_empty() && self.log.is_choked(For::Values);
        self.compaction.is_stuck = !self.log.has_room_for_copies();
        if waits || self.compaction.is_stuck {
            return Ok(());
        }
        let place = self.lots.borrow().place(next * PAGE64).filter(|_| next < first);
        let Some(offset) = place else {
            self.compaction.until = next;
            return Ok(());
        };
        self.compaction.step = Step::Reading;
        let device = Rc::clone(&self.device);
        begin.push(Box::pin(async move {
            let read = device.read(offset, PAGE).await.map(|bytes| bytes.to_vec());
            Event::Compacting(Progress::Read(next, read))
        }));
        Ok(())
    }

    /// Takes in what ended.
    pub(super) fn on_progress(
        &mut self,
        progress: Progress,
        begin: &mut Vec<Work>,
    ) -> Result<(), StoreError> {
        match progress {
            Progress::Read(page, read) => {
                self.compaction.step = Step::Idle;
                match read {
                    // Everything was flushed meanwhile.
                    _ if page < self.compaction.begin => {}
                    Ok(bytes) => {
                        let verdicts = HashMap::new();
                        self.judge(Judging { page, bytes, open: 0, verdicts }, begin)?;
                    }
                    Err(error) => self.give_up(page, &error),
                }
            }
            Progress::Judged(page, judged) => return self.on_judged(page, judged, begin),
            Progress::Synced(page, synced) => {
                synced.map_err(journal_failed)?;
                self.compaction.step = Step::Idle;
                self.compaction.pages += 1;
                self.compaction.advance(page + 1);
                let (dead, all) = self.dead();
                let at = &mut self.compaction;
                if self.failed.is_empty() && dead * 5 < all {
                    at.until = at.next;
                }
                if at.next >= at.until {
                    at.barren = dead;
                }
            }
            Progress::Begun(head, written) => self.on_begun(head, written),
        }
        Ok(())
    }

    /// Ends the pass at a page that cannot be read: what lies there stays as it is.
    fn give_up(&mut self, page: u64, why: &dyn std::fmt::Display) {
        tracing::error!(page, %why, "a page of the log cannot be compacted; it stays");
        self.compaction.until = self.compaction.next;
        self.compaction.step = Step::Idle;
        self.compaction.rests = true;
    }

    fn on_judged(
        &mut self,
        page: u64,
        judged: Vec<(u64, u64, Result<Option<u64>, Errno>)>,
        begin: &mut Vec<Work>,
    ) -> Result<(), StoreError> {
        let Step::Judging(mut at) = std::mem::take(&mut self.compaction.step) else {
            return Ok(());
        };
        at.open -= 1;
        let mut failed = None;
        for (own, from, newest) in judged {
            match newest {
                Ok(newest) => drop(at.verdicts.insert(own, Verdict { from, newest })),
                Err(error) => failed = Some(error),
            }
        }
        if at.open > 0 {
            self.compaction.step = Step::Judging(at);
        } else if page < self.compaction.begin {
            // Everything was flushed meanwhile.
        } else if let Some(error) = failed {
            self.give_up(page, &error);
        } else {
            self.judge(at, begin)?;
        }
        Ok(())
    }

    /// Whether a record of the file is the last of its key; or from where to follow its chain.
    fn is_alive(&self, record: &Record<'_>, own: u64, at: &Judging) -> Result<bool, u64> {
        match self.log.find(record.key()) {
            // There is a later one in memory.
            Found::Nothing | Found::Here(_) => Ok(false),
            Found::Cold(last) if last == own => Ok(true),
            Found::Cold(from) => match at.verdicts.get(&own) {
                Some(verdict) if verdict.from == from => Ok(verdict.newest == Some(own)),
                _ => Err(from),
            },
        }
    }

    /// Copies what lives of a page, if all its records can be judged; else judges more of them.
    fn judge(&mut self, mut at: Judging, begin: &mut Vec<Work>) -> Result<(), StoreError> {
        let page = at.page;
        let bytes = std::mem::take(&mut at.bytes);
        let Some(head) = record::page_head(&bytes).filter(|head| head.number == page) else {
            self.give_up(page, &"its head is damaged");
            return Ok(());
        };
        let records: Vec<(u64, Record<'_>)> = record::records(&bytes, head.used)
            .map(|(offset, record)| (page * PAGE64 + offset as u64, record))
            .collect();
        if record::damage(&bytes, head.used).is_some() {
            self.give_up(page, &"the check of a record does not fit");
            return Ok(());
        }
        let doubt = |(own, record): &(u64, Record<'_>)| {
            let from = self.is_alive(record, *own, &at).err()?;
            Some(Doubt { key: record.key().to_vec(), own: *own, from })
        };
        let doubts: Vec<Doubt> = records.iter().filter_map(doubt).collect();
        if !doubts.is_empty() {
            at.bytes = bytes;
            self.follow(at, doubts, begin);
            return Ok(());
        }
        for (own, record) in records {
            if record.is_deleted() {
                self.log.forget(hash(record.key(), self.seed), own);
            } else if self.is_alive(&record, own, &at) == Ok(true) {
                match self.change_for(Kind::Put, record.key(), record.bulk(), For::Copies) {
                    Ok(()) => self.compaction.copied += 1,
                    // Again when there is room; what was copied is dead here by then.
                    Err(StoreError::Full) => return Ok(()),
                    Err(error) => return Err(error),
                }
            }
        }
        self.journal.commit().map_err(journal_failed)?;
        let files = self.journal.take_unsynced();
        self.compaction.step = Step::Syncing;
        begin.push(Box::pin(async move {
            Event::Compacting(Progress::Synced(page, synced(files).await))
        }));
        Ok(())
    }

    /// Follows the chains of doubtful records.
    fn follow(&mut self, mut at: Judging, doubts: Vec<Doubt>, begin: &mut Vec<Work>) {
        let page = at.page;
        let share = doubts.len().div_ceil(TASKS).max(SHARE);
        let mut doubts = doubts.into_iter().peekable();
        while doubts.peek().is_some() {
            let some: Vec<Doubt> = doubts.by_ref().take(share).collect();
            let reader = self.reader();
            at.open += 1;
            begin.push(Box::pin(async move {
                let mut judged = Vec::with_capacity(some.len());
                for Doubt { key, own, from } in some {
                    let found = newest(&reader, from, &key).await;
                    judged.push((own, from, found.map(|found| found.map(|(at, _)| at))));
                }
                Event::Compacting(Progress::Judged(page, judged))
            }));
        }
        self.compaction.step = Step::Judging(at);
    }

    /// Says in the head where the log begins, after all that the pages before need not say any more
    /// is durable: copies, what took the place of the dead, that everything was flushed. The
    /// journal is synced for that, and pages that were written since are flushed.
    fn write_head(&mut self, begin: &mut Vec<Work>) -> Result<(), StoreError> {
        let at = &mut self.compaction;
        if at.is_writing || at.head.begin >= at.begin {
            return Ok(());
        }
        self.journal.commit().map_err(journal_failed)?;
        let files = self.journal.take_all();
        at.is_writing = true;
        let (head, device) = (at.head.next(at.begin), Rc::clone(&self.device));
        begin.push(Box::pin(async move {
            if let Err(error) = synced(files).await {
                return Event::Synced(Err(error));
            }
            let (offset, bytes) = head.emit();
            let written = async {
                device.flush().await?;
                device.write(offset, bytes).await?;
                device.flush().await
            };
            Event::Compacting(Progress::Begun(head, written.await))
        }));
        Ok(())
    }

    fn on_begun(&mut self, head: Head, written: Result<(), Errno>) {
        self.compaction.is_writing = false;
        if let Err(error) = written {
            self.compaction.rests = true;
            if !std::mem::replace(&mut self.compaction.warned, true) {
                tracing::warn!(%error, "the head of the log was not written; again");
            }
            return;
        }
        self.compaction.warned = false;
        self.compaction.head = head;
        // Reads from now on know that nothing lies there.
        self.log.set_begin(head.begin);
        self.extracts.release_before(head.begin);
        let readers = Rc::downgrade(&std::mem::replace(&mut self.readers, Rc::new(())));
        let (begin, gate) = (head.begin, self.gate());
        self.compaction.freeing.push_back(Freeing { begin, gate, readers });
    }

    /// Frees lots where nobody looks any more; in order, as an older reader may look at all.
    fn free(&mut self, begin: &mut Vec<Work>) {
        let mut freed = false;
        while let Some(freeing) = self.compaction.freeing.front() {
            // After FLUSHALL pages that do not count may be on their way to such lots.
            let is_written_to =
                self.writing.keys().next().is_some_and(|page| *page < freeing.begin);
            let is_read = freeing.readers.strong_count() > 0;
            if is_written_to || is_read || !self.is_open(freeing.gate) {
                break;
            }
            self.lots.borrow_mut().release_before(freeing.begin);
            self.again = true;
            freed = true;
            self.compaction.freeing.pop_front();
        }
        // Not while pages look for room themselves.
        if freed
            && self.failed.is_empty()
            && !self.cutting
            && let Some(len) = self.lots.borrow_mut().give_back()
        {
            self.cutting = true;
            let device = Rc::clone(&self.device);
            begin.push(Box::pin(async move { Event::Cut(device.cut(len).await) }));
        }
    }
}
