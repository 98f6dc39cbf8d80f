//! The store of one thread: log, journal and device, and the rules between them.
//!
//! What holds: what a command did is in the journal before its answer leaves; an answer leaves only
//! when the cache table knows no record older than what the answer may speak of. For the second,
//! answers are held back while keys are being retired ([`Store::gate`]).

mod check;
mod compact;
mod open;
#[cfg(test)]
mod tests;

use std::cell::RefCell;
use std::collections::{BTreeMap, VecDeque};
use std::future::Future;
use std::io;
use std::path::PathBuf;
use std::pin::Pin;
use std::rc::Rc;

use outboard_base::Errno;
use outboard_dds::dpu::offload::Key;
use outboard_dds::table::Changes;
use outboard_medium::ALIGN;

use super::commands::Cold;
use super::extracts::{Extract, Extracts, Whose};
use super::journal::{Journal, Kind, Taken};
use super::log::{For, Log, Retire, Sealed};
use super::lots::{Lots, offset_of};
use super::record::{HEAD, PAGE, Record};
use super::sync::synced;
use crate::device::Device;
pub use check::check;
use compact::{Compaction, Progress};
use open::Opened;
use outboard_pageserver::tcp::sockets::ConnId;

/// Records of one hash followed through the file.
const HOPS_MAX: usize = 32;
/// Journals let go of at once, after a flush.
const RELEASED: usize = 4;
/// Bytes read for a record whose length is not known.
const GUESS: usize = 1024;

/// Why a command was not done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum StoreError {
    /// Memory is full of pages the device does not take.
    Full,
    /// The journal does not take what was done.
    Journal,
    /// The cache table does not confirm what it was told.
    Table,
}

/// When what was answered survives power loss; the death of a process it survives at once.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Fsync {
    /// Before it is answered.
    Always,
    /// A second later.
    #[default]
    EverySecond,
    /// When the operating system thinks so.
    No,
}

impl Fsync {
    /// As Redis says it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Fsync::Always => "always",
            Fsync::EverySecond => "everysec",
            Fsync::No => "no",
        }
    }
}

/// What a store says of itself.
pub(super) struct About {
    pub(super) fsync: &'static str,
    /// Pages in the file, and room there for others.
    pub(super) pages: usize,
    pub(super) free: usize,
    /// Records in the log, dead and alive.
    pub(super) records: u64,
    /// Pages compacted, and records copied, in this life.
    pub(super) compacted: u64,
    pub(super) copied: u64,
}

/// How it is set up.
#[derive(Clone, Debug)]
pub struct StoreSetup {
    /// Where the journal lies.
    pub dir: PathBuf,
    /// Of the hash of keys.
    pub seed: u64,
    /// Bytes of memory for the tail of the log.
    pub memory: usize,
    /// When the journal is synced.
    pub fsync: Fsync,
}

/// What ended in the background.
pub(super) enum Event {
    /// The record of a key was read for a waiting answer.
    Read { conn: ConnId, token: u64, record: Result<Option<Vec<u8>>, Errno> },
    /// The record of a key was read for a command that waits for it.
    Brought { conn: ConnId, cold: Cold, record: Result<Option<Vec<u8>>, Errno> },
    /// A page was written, or not.
    Written(u64, Result<(), Errno>),
    /// The table was told of rounds up to this one.
    Retired(u64, Result<(), Errno>),
    /// The journal was synced.
    Synced(io::Result<()>),
    /// What was written before was flushed: journals of pages before this one can go.
    Flushed(u64, Result<(), Errno>),
    /// The end of the file was given back.
    Cut(Result<(), Errno>),
    /// A step of compaction ended.
    Compacting(Progress),
}

/// Work that a store begins.
pub(super) type Work = Pin<Box<dyn Future<Output = Event>>>;

/// What the answers of one round of the server wait for.
#[derive(Default)]
struct Round {
    number: u64,
    /// To be forgotten by the table.
    keys: Vec<Key>,
    /// To be synced.
    files: Vec<Taken>,
    /// Everything is to be forgotten.
    clear: bool,
    /// Not while this page, or one before it, is being written.
    after: Option<u64>,
    asked: bool,
}

/// The store.
pub(super) struct Store<D> {
    pub(super) device: Rc<D>,
    pub(super) log: Log,
    journal: Journal,
    seed: u64,
    fsync: Fsync,
    lots: Rc<RefCell<Lots>>,
    extracts: Extracts,
    compaction: Compaction,
    /// Held by reads that began since lots were last freed.
    readers: Rc<()>,
    rounds: VecDeque<Round>,
    /// Keys of the round under way.
    retiring: Vec<Key>,
    retiring_all: bool,
    retiring_after: Option<u64>,
    issued: u64,
    confirmed: u64,
    /// Pages that are being written.
    writing: BTreeMap<u64, Extract>,
    /// Pages that were not written, to be tried again.
    failed: Vec<u64>,
    /// The end of the file is being given back: no page is written meanwhile.
    cutting: bool,
    /// There may be room for those.
    again: bool,
    /// The journal is being synced.
    syncing: bool,
    warned: bool,
    /// What was written is being flushed, so that journals can go.
    flushing: bool,
    /// Something was done that the journal did not take: this life ends.
    broken: bool,
    scratch: RefCell<Vec<u8>>,
}

const PAGE64: u64 = PAGE as u64;

impl<D: Device> Store<D> {
    /// Opens what is there: reads the log's file, replays the journal, tells the cache table.
    pub(super) async fn open(device: Rc<D>, setup: &StoreSetup) -> io::Result<Store<D>> {
        let Opened { log, lots, extracts, head, journal, begin } =
            open::open(&*device, setup).await?;
        Ok(Store {
            device,
            log,
            journal,
            seed: setup.seed,
            fsync: setup.fsync,
            lots: Rc::new(RefCell::new(lots)),
            extracts,
            compaction: Compaction::new(head, begin),
            readers: Rc::new(()),
            rounds: VecDeque::new(),
            retiring: Vec::new(),
            retiring_all: false,
            retiring_after: None,
            issued: 0,
            confirmed: 0,
            writing: BTreeMap::new(),
            failed: Vec::new(),
            cutting: false,
            again: false,
            syncing: false,
            warned: false,
            flushing: false,
            broken: false,
            scratch: RefCell::default(),
        })
    }

    /// Stores a value.
    pub(super) fn put(&mut self, key: &[u8], value: &[u8]) -> Result<(), StoreError> {
        let mut bulk = self.scratch.take();
        bulk.clear();
        crate::resp::put_bulk(&mut bulk, value);
        let done = self.put_bulk(key, &bulk);
        self.scratch.replace(bulk);
        done
    }

    /// Stores a value that is as RESP sends it.
    pub(super) fn put_bulk(&mut self, key: &[u8], bulk: &[u8]) -> Result<(), StoreError> {
        self.change_for(Kind::Put, key, bulk, For::Values)
    }

    /// Deletes a key.
    pub(super) fn delete(&mut self, key: &[u8]) -> Result<(), StoreError> {
        self.change_for(Kind::Delete, key, &[], For::Deletions)
    }

    fn change_for(
        &mut self,
        kind: Kind,
        key: &[u8],
        bulk: &[u8],
        whom: For,
    ) -> Result<(), StoreError> {
        if self.journal.is_long() {
            self.log.roll(For::Values);
        }
        let retire = self.log.put(key, bulk, kind == Kind::Delete, whom);
        let retire = retire.map_err(|_| StoreError::Full)?;
        if self.device.has_table() {
            match retire {
                Retire::Nothing => {}
                Retire::Now(key) => self.retiring.push(key),
                Retire::After(page, key) => {
                    self.retiring.push(key);
                    self.retiring_after = self.retiring_after.max(Some(page));
                }
            }
        }
        // Entries go with the page their records lie in, or a later one.
        if self.log.tail_page() != self.journal.page() {
            let rolled = self.journal.roll(self.log.tail_page());
            self.broken |= rolled.is_err();
            rolled.map_err(journal_failed)?;
        }
        self.journal.note(kind, key, bulk);
        Ok(())
    }

    /// Forgets everything.
    pub(super) fn clear(&mut self) -> Result<(), StoreError> {
        // What was is in pages before the first that counts from now on.
        if !self.log.roll(For::Deletions) {
            return Err(StoreError::Full);
        }
        let noted = self.note_clear();
        self.broken |= noted.is_err();
        noted.map_err(journal_failed)?;
        self.log.clear();
        self.compaction.advance(self.log.tail_page());
        if self.device.has_table() {
            self.retiring_all = true;
            // What is being written was sealed when its records were not yet forgotten.
            self.retiring_after = self.retiring_after.max(self.log.last_sealed());
        }
        Ok(())
    }

    fn note_clear(&mut self) -> io::Result<()> {
        self.journal.roll(self.log.tail_page())?;
        self.journal.note(Kind::Clear, &[], &[]);
        self.journal.commit()
    }

    /// Ends a round of commands: what they did is handed to the operating system, and what the
    /// table must forget is on its way.
    pub(super) fn end_round(&mut self, begin: &mut Vec<Work>) -> Result<(), StoreError> {
        if self.broken {
            return Err(StoreError::Journal);
        }
        if self.holds() {
            self.issued += 1;
            let number = self.issued;
            let (keys, clear) =
                (std::mem::take(&mut self.retiring), std::mem::take(&mut self.retiring_all));
            let (files, after) = (self.synced_at_once()?, self.retiring_after.take());
            self.rounds.push_back(Round { number, keys, files, clear, after, asked: false });
        }
        self.journal.commit().map_err(journal_failed)?;
        self.ask(begin);
        self.compact(begin)?;
        self.write_pages(begin);
        Ok(())
    }

    /// What must be synced before this round is answered.
    fn synced_at_once(&mut self) -> Result<Vec<Taken>, StoreError> {
        if self.fsync != Fsync::Always || !self.journal.is_unsynced() {
            return Ok(Vec::new());
        }
        self.journal.commit().map_err(journal_failed)?;
        Ok(self.journal.take_unsynced())
    }

    /// To be called about once a second: what is done only so often.
    pub(super) fn tick(&mut self, begin: &mut Vec<Work>) -> Result<(), StoreError> {
        self.again = true;
        self.compaction.rests = false;
        if self.fsync != Fsync::EverySecond || self.syncing {
            return Ok(());
        }
        let files = self.journal.take_unsynced();
        if !files.is_empty() {
            self.syncing = true;
            begin.push(Box::pin(async move { Event::Synced(synced(files).await) }));
        }
        Ok(())
    }

    /// Sends what may be sent to the table, in order.
    fn ask(&mut self, begin: &mut Vec<Work>) {
        // A page that could not be written told the table nothing, and when it is written after
        // all, what was forgotten until then is marked in it.
        let first = self.writing.keys().next().copied();
        for round in self.rounds.iter_mut().filter(|round| !round.asked) {
            if round.after.zip(first).is_some_and(|(page, first)| first <= page) {
                return;
            }
            round.asked = true;
            let (number, removals) = (round.number, std::mem::take(&mut round.keys));
            let (device, clear) = (Rc::clone(&self.device), round.clear);
            let files = std::mem::take(&mut round.files);
            begin.push(Box::pin(async move {
                if !files.is_empty()
                    && let Err(error) = synced(files).await
                {
                    return Event::Synced(Err(error));
                }
                if !clear && removals.is_empty() {
                    return Event::Retired(number, Ok(()));
                }
                let update = Changes { clear, removals, ..Changes::default() };
                Event::Retired(number, device.update(update).await)
            }));
        }
    }

    /// Begins to write pages; those that failed only when there may be room, so that a full device
    /// is not asked without end.
    fn write_pages(&mut self, begin: &mut Vec<Work>) {
        if self.cutting {
            return;
        }
        if self.writing.is_empty() && std::mem::take(&mut self.again) {
            for number in std::mem::take(&mut self.failed) {
                if let Some(page) = self.log.again(number) {
                    self.write_page(page, begin);
                }
            }
        }
        while self.writing.len() < 4 && self.failed.is_empty() {
            let oldest = self.writing.keys().next().copied();
            let Some(page) = self.log.next_to_write(oldest) else { return };
            self.write_page(page, begin);
        }
    }

    fn write_page(&mut self, page: Sealed, begin: &mut Vec<Work>) {
        let Sealed { number, bytes, entries } = page;
        let lot = self.lots.borrow_mut().take(number, entries.len() as u64);
        let whose = Whose { page: number, life: self.log.life(), lot };
        self.writing.insert(number, Extract { whose, entries });
        let offset = offset_of(lot);
        let device = Rc::clone(&self.device);
        begin.push(Box::pin(
            async move { Event::Written(number, device.write(offset, bytes).await) },
        ));
    }

    /// Takes in what ended.
    pub(super) fn on(&mut self, event: Event, begin: &mut Vec<Work>) -> Result<(), StoreError> {
        match event {
            // The server's own.
            Event::Read { .. } | Event::Brought { .. } => {}
            Event::Synced(synced) => {
                self.syncing = false;
                synced.map_err(journal_failed)?;
            }
            Event::Flushed(before, flushed) => {
                self.flushing = false;
                match flushed {
                    Ok(()) => self.journal.release(before).map_err(journal_failed)?,
                    Err(error) => tracing::warn!(%error, "pages are not flushed; journals stay"),
                }
            }
            Event::Cut(cut) => {
                self.cutting = false;
                if let Err(error) = cut {
                    tracing::warn!(%error, "space of the log is not given back; at its next pass");
                }
            }
            Event::Compacting(progress) => self.on_progress(progress, begin)?,
            Event::Written(number, Ok(())) => self.on_written(number, begin),
            Event::Written(number, Err(error)) => {
                self.writing.remove(&number);
                self.lots.borrow_mut().put_back(number);
                // Said once: it is tried again every round, on what may be the disk of this
                // message.
                if !std::mem::replace(&mut self.warned, true) {
                    tracing::warn!(%error, page = number, "a page was not written; again");
                }
                self.failed.push(number);
            }
            Event::Retired(number, Ok(())) => {
                self.rounds.retain(|round| round.number != number);
                let waiting = self.rounds.front().map(|round| round.number);
                self.confirmed = waiting.map_or(self.issued, |number| number - 1);
            }
            Event::Retired(_, Err(error)) => {
                // Answers stay held: the table may be stale. The server starts over.
                tracing::error!(%error, "the cache table does not confirm");
                return Err(StoreError::Table);
            }
        }
        self.ask(begin);
        self.compact(begin)?;
        self.write_pages(begin);
        Ok(())
    }

    /// A page of the log is in its place.
    fn on_written(&mut self, number: u64, begin: &mut Vec<Work>) {
        let extract = self.writing.remove(&number);
        if let Some(Extract { whose, .. }) = &extract {
            self.lots.borrow_mut().written(whose.lot);
        }
        self.warned = false;
        self.log.written(number);
        if number < self.compaction.durable_begin() {
            self.lots.borrow_mut().put_back(number);
        } else if let Some(extract) = extract {
            self.extracts.add(&extract);
        }
        self.release_journals(begin);
    }

    /// Begins to let go of journals that speak of nothing but pages in the file, some at once. That
    /// everything was flushed is in one of them until the head says so, too.
    fn release_journals(&mut self, begin: &mut Vec<Work>) {
        let (now, durable) = (self.compaction.begin(), self.compaction.durable_begin());
        let kept = if durable < now { now } else { u64::MAX };
        let before = self.log.first_page().min(kept);
        if self.flushing || self.journal.count_before(before) < RELEASED {
            return;
        }
        self.flushing = true;
        let device = Rc::clone(&self.device);
        begin.push(Box::pin(async move { Event::Flushed(before, device.flush().await) }));
    }

    /// What it says of itself.
    pub(super) fn about(&self) -> About {
        let lots = self.lots.borrow();
        let (pages, free) = lots.len();
        About {
            fsync: self.fsync.name(),
            pages,
            free,
            records: lots.records_before(self.log.first_page()) + self.log.records(),
            compacted: self.compaction.pages,
            copied: self.compaction.copied,
        }
    }

    /// What a read of the file needs.
    pub(super) fn reader(&self) -> Reader<D> {
        let (device, lots) = (Rc::clone(&self.device), Rc::clone(&self.lots));
        Reader { device, lots, _pin: Rc::clone(&self.readers) }
    }

    /// Whether commands wait for pages that are being written. Not for those that could not be, if
    /// nothing makes room for them: then what needs room is told so.
    pub(super) fn is_choked(&self) -> bool {
        let may_end = self.failed.is_empty() || self.compaction.is_at_work();
        self.log.is_choked(For::Values) && may_end
    }

    /// What answers made now must wait for; see [`Store::is_open`].
    pub(super) fn gate(&self) -> u64 {
        self.issued + u64::from(self.holds())
    }

    /// Whether answers of the round under way must wait: for the table, or for a sync.
    fn holds(&self) -> bool {
        let syncs = self.fsync == Fsync::Always && self.journal.is_unsynced();
        syncs || self.retiring_all || !self.retiring.is_empty()
    }

    /// Whether answers made at `gate` may leave.
    pub(super) fn is_open(&self, gate: u64) -> bool {
        gate <= self.confirmed
    }
}

fn journal_failed(error: io::Error) -> StoreError {
    tracing::error!(%error, "the journal cannot be written; free space in the data directory");
    StoreError::Journal
}

/// What reads of the file need, and what says that one is under way.
pub(super) struct Reader<D> {
    device: Rc<D>,
    lots: Rc<RefCell<Lots>>,
    /// While there is one, no lot that it may look at is used again.
    _pin: Rc<()>,
}

/// Reads the record of `key` from the file, following records that hash alike. `None` if there is
/// none or it was deleted.
pub(super) async fn read_cold<D: Device>(
    reader: Reader<D>,
    address: u64,
    key: Vec<u8>,
) -> Result<Option<Vec<u8>>, Errno> {
    let found = newest(&reader, address, &key).await?;
    let is_there = |bytes: &Vec<u8>| Record::parse(bytes).is_some_and(|own| !own.is_deleted());
    Ok(found.map(|(_, bytes)| bytes).filter(is_there))
}

/// The last record of `key` in the file, and its address, on the chain that begins at `address`.
async fn newest<D: Device>(
    reader: &Reader<D>,
    mut address: u64,
    key: &[u8],
) -> Result<Option<(u64, Vec<u8>)>, Errno> {
    for _ in 0..HOPS_MAX {
        let place = reader.lots.borrow().place(address).filter(|_| address != 0);
        // Nobody needs what lay there.
        let Some(place) = place else { return Ok(None) };
        let bytes = read_record(&*reader.device, place).await?;
        let record = Record::parse(&bytes).filter(Record::is_sound).ok_or(Errno::EIO)?;
        if record.key() == key {
            return Ok(Some((address, bytes)));
        }
        address = record.earlier();
    }
    Ok(None)
}

async fn read_record<D: Device>(device: &D, place: u64) -> Result<Vec<u8>, Errno> {
    let align = ALIGN as u64;
    let start = place / align * align;
    let skip = usize::try_from(place - start).map_err(|_| Errno::EIO)?;
    let mut buf = device.read(start, (skip + GUESS).next_multiple_of(ALIGN)).await?;
    let head = buf.get(skip..skip + HEAD).ok_or(Errno::EIO)?;
    let len = Record::len_from_head(head).ok_or(Errno::EIO)?;
    if skip + len > buf.len() {
        buf = device.read(start, (skip + len).next_multiple_of(ALIGN)).await?;
    }
    buf.get(skip..skip + len).map(<[u8]>::to_vec).ok_or(Errno::EIO)
}
