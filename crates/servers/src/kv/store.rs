//! The store of one thread: log, journal and device, and the rules between them.
//!
//! What holds: what a command did is in the journal before its answer leaves; an answer leaves only
//! when the cache table knows no record older than what the answer may speak of. For the second,
//! answers are held back while keys are being retired ([`Store::gate`]).

use std::cell::RefCell;
use std::collections::{BTreeSet, VecDeque};
use std::future::Future;
use std::io;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::rc::Rc;

use outboard_base::Errno;
use outboard_dds::dpu::offload::{Item, Key};
use outboard_dds::table::Changes;
use outboard_kv::medium::{ALIGN, Buf};

use super::app::hash;
use super::journal::{Journal, Kind, Met};
use super::log::{Log, Retire};
use super::record::{self, HEAD, PAGE, Record};
use crate::device::Device;
use outboard_drivers::dds::tcp::sockets::ConnId;

/// Records of one hash followed through the file.
const HOPS_MAX: usize = 32;
/// Bytes read for a record whose length is not known.
const GUESS: usize = 1024;
/// Items of the table sent in one update.
const ITEMS: usize = 8192;

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

/// How it is set up.
#[derive(Clone, Debug)]
pub struct StoreSetup {
    /// Where the journal lies.
    pub dir: PathBuf,
    /// Of the hash of keys.
    pub seed: u64,
    /// Bytes of memory for the tail of the log.
    pub memory: usize,
}

/// What ended in the background.
pub(super) enum Event {
    /// The record of a key was read for a waiting answer.
    Read { conn: ConnId, token: u64, record: Result<Option<Vec<u8>>, Errno> },
    /// The record of a key was read for a command that waits for it.
    Brought { conn: ConnId, key: Vec<u8>, address: u64, record: Result<Option<Vec<u8>>, Errno> },
    /// A page was written, or not.
    Written(u64, Result<(), Errno>),
    /// The table was told of rounds up to this one.
    Retired(u64, Result<(), Errno>),
}

/// Work that a store begins.
pub(super) type Work = Pin<Box<dyn Future<Output = Event>>>;

/// Keys written in one round of the server.
struct Round {
    number: u64,
    keys: Vec<Key>,
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
    dir: PathBuf,
    rounds: VecDeque<Round>,
    /// Keys of the round under way.
    retiring: Vec<Key>,
    retiring_all: bool,
    retiring_after: Option<u64>,
    issued: u64,
    confirmed: u64,
    /// Pages that are being written.
    writing: BTreeSet<u64>,
    /// Pages that were not written, to be tried again.
    failed: Vec<u64>,
    warned: bool,
    /// Something was done that the journal did not take: this life ends.
    broken: bool,
    scratch: RefCell<Vec<u8>>,
}

const PAGE64: u64 = PAGE as u64;

impl<D: Device> Store<D> {
    /// Opens what is there: reads the log's file, replays the journal, tells the cache table.
    pub(super) async fn open(device: Rc<D>, setup: &StoreSetup) -> io::Result<Store<D>> {
        // Whatever the table knows is of an earlier life.
        device.update(Changes { clear: true, ..Changes::default() }).await?;
        let first = Journal::first_page(&setup.dir)?;
        let mut log = Log::new(setup.seed, first, usize::MAX - 64);
        let begin = read_begin(&setup.dir)?;
        let items = scan(&*device, &mut log, begin..first, setup.seed).await?;
        let replayed = replay(&setup.dir, &mut log, begin)?;
        log.set_budget((setup.memory / PAGE).max(4));
        let journal = Journal::begin(&setup.dir, log.tail_page())?;
        let keys = log.len();
        tracing::info!(keys, cold = items.len(), replayed, "the key-value store is open");
        for items in items.chunks(ITEMS) {
            let last = |(key, item): &&(Key, Item)| log.is_last(*key, item[1]);
            let items: Vec<(Key, Item)> = items.iter().filter(last).copied().collect();
            device.update(Changes { items, ..Changes::default() }).await?;
        }
        Ok(Store {
            device,
            log,
            journal,
            dir: setup.dir.clone(),
            rounds: VecDeque::new(),
            retiring: Vec::new(),
            retiring_all: false,
            retiring_after: None,
            issued: 0,
            confirmed: 0,
            writing: BTreeSet::new(),
            failed: Vec::new(),
            warned: false,
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
        self.change(Kind::Put, key, bulk)
    }

    /// Deletes a key.
    pub(super) fn delete(&mut self, key: &[u8]) -> Result<(), StoreError> {
        self.change(Kind::Delete, key, &[])
    }

    fn change(&mut self, kind: Kind, key: &[u8], bulk: &[u8]) -> Result<(), StoreError> {
        if self.journal.is_long() {
            self.log.roll();
        }
        let retire = self.log.put(key, bulk, kind == Kind::Delete).map_err(|_| StoreError::Full)?;
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
        if !self.log.roll() {
            return Err(StoreError::Full);
        }
        let noted = self.note_clear();
        self.broken |= noted.is_err();
        noted.map_err(journal_failed)?;
        self.log.clear();
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
        self.journal.commit()?;
        write_begin(&self.dir, self.log.tail_page())
    }

    /// Ends a round of commands: what they did is handed to the operating system, and what the
    /// table must forget is on its way.
    pub(super) fn end_round(&mut self, begin: &mut Vec<Work>) -> Result<(), StoreError> {
        if self.broken {
            return Err(StoreError::Journal);
        }
        if self.journal.has_pending() {
            self.journal.commit().map_err(journal_failed)?;
        }
        if self.retires() {
            self.issued += 1;
            let (keys, clear) =
                (std::mem::take(&mut self.retiring), std::mem::take(&mut self.retiring_all));
            let (number, after) = (self.issued, self.retiring_after.take());
            self.rounds.push_back(Round { number, keys, clear, after, asked: false });
        }
        self.ask(begin);
        self.write_pages(begin, true);
        Ok(())
    }

    /// Sends what may be sent to the table, in order.
    fn ask(&mut self, begin: &mut Vec<Work>) {
        // A page that could not be written told the table nothing, and when it is written after
        // all, what was forgotten until then is marked in it.
        let first = self.writing.first().copied();
        for round in self.rounds.iter_mut().filter(|round| !round.asked) {
            if round.after.zip(first).is_some_and(|(page, first)| first <= page) {
                return;
            }
            round.asked = true;
            let (number, removals) = (round.number, std::mem::take(&mut round.keys));
            let (device, clear) = (Rc::clone(&self.device), round.clear);
            begin.push(Box::pin(async move {
                let update = Changes { clear, removals, ..Changes::default() };
                Event::Retired(number, device.update(update).await)
            }));
        }
    }

    /// Begins to write pages; those that failed only with `again`, so that a full device is not
    /// asked without end.
    fn write_pages(&mut self, begin: &mut Vec<Work>, again: bool) {
        if again && self.writing.is_empty() {
            for number in std::mem::take(&mut self.failed) {
                if let Some(buf) = self.log.again(number) {
                    self.write_page(number, buf, begin);
                }
            }
        }
        while self.writing.len() < 4 && self.failed.is_empty() {
            let Some((number, buf)) = self.log.next_to_write() else { return };
            self.write_page(number, buf, begin);
        }
    }

    fn write_page(&mut self, number: u64, buf: Buf, begin: &mut Vec<Work>) {
        self.writing.insert(number);
        let device = Rc::clone(&self.device);
        begin.push(Box::pin(async move {
            Event::Written(number, device.write(number * PAGE64, buf).await)
        }));
    }

    /// Takes in what ended.
    pub(super) fn on(&mut self, event: Event, begin: &mut Vec<Work>) -> Result<(), StoreError> {
        match event {
            // The server's own.
            Event::Read { .. } | Event::Brought { .. } => {}
            Event::Written(number, Ok(())) => {
                self.writing.remove(&number);
                self.warned = false;
                self.log.written(number);
                self.journal.release(self.log.first_page()).map_err(journal_failed)?;
            }
            Event::Written(number, Err(error)) => {
                self.writing.remove(&number);
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
        self.write_pages(begin, false);
        Ok(())
    }

    /// Whether commands wait for pages that are being written. Not for those that could not be:
    /// then what needs room is told so.
    pub(super) fn is_choked(&self) -> bool {
        self.log.is_choked() && self.failed.is_empty()
    }

    /// What answers made now must wait for; see [`Store::is_open`].
    pub(super) fn gate(&self) -> u64 {
        self.issued + u64::from(self.retires())
    }

    /// Whether the round under way has something for the table.
    fn retires(&self) -> bool {
        self.retiring_all || !self.retiring.is_empty()
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

fn begin_path(dir: &Path) -> PathBuf {
    dir.join("begin")
}

/// The first page that counts.
fn read_begin(dir: &Path) -> io::Result<u64> {
    match std::fs::read_to_string(begin_path(dir)) {
        Ok(text) => text.trim().parse().map_err(|_| {
            let path = begin_path(dir);
            io::Error::other(format!("{} holds no page number", path.display()))
        }),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(0),
        Err(error) => Err(error),
    }
}

fn write_begin(dir: &Path, page: u64) -> io::Result<()> {
    let new = dir.join("begin.new");
    std::fs::write(&new, format!("{page}\n"))?;
    std::fs::rename(new, begin_path(dir))
}

/// Does again what the journal says, each file from a page of its own on, and names the files after
/// those pages; how many entries. `begin` is the first page that counts.
fn replay(dir: &Path, log: &mut Log, begin: u64) -> io::Result<u64> {
    let mut files: Vec<(u64, u64)> = Vec::new();
    let mut begins = begin;
    let full = || io::Error::from(io::ErrorKind::OutOfMemory);
    let count = Journal::replay(dir, |met| {
        match met {
            Met::File(page) => {
                let least = files.last().map_or(page, |(_, last)| page.max(last + 1));
                while log.tail_page() < least || !log.tail_is_empty() {
                    log.roll().then_some(()).ok_or_else(full)?;
                }
                files.push((page, log.tail_page()));
            }
            Met::Entry(Kind::Clear, ..) => {
                log.clear();
                if !log.tail_is_empty() {
                    log.roll().then_some(()).ok_or_else(full)?;
                }
                begins = begins.max(log.tail_page());
            }
            Met::Entry(kind, key, bulk) => {
                log.put(key, bulk, kind == Kind::Delete).map_err(|_| full())?;
            }
        }
        Ok(())
    })?;
    Journal::rename(dir, &files)?;
    if begins != begin {
        write_begin(dir, begins)?;
    }
    // The last file goes on if all it speaks of lies in its page.
    if files.last().is_some_and(|(_, page)| *page != log.tail_page()) {
        log.roll().then_some(()).ok_or_else(full)?;
    }
    Ok(count)
}

/// Reads the log's file into the index; the items the cache table may hold.
async fn scan<D: Device>(
    device: &D,
    log: &mut Log,
    pages: std::ops::Range<u64>,
    seed: u64,
) -> io::Result<Vec<(Key, Item)>> {
    let mut items = Vec::new();
    for number in pages {
        let buf = device.read(number * PAGE64, PAGE).await?;
        // A page that was never needed is a hole.
        let Some((own, used)) = record::page_head(&buf) else { continue };
        if own != number {
            continue;
        }
        for (offset, record) in record::records(&buf, used) {
            if !record.is_sound() {
                let at = number * PAGE64 + offset as u64;
                return Err(io::Error::other(format!(
                    "the log is damaged at byte {at}: a record's check does not fit"
                )));
            }
            let address = number * PAGE64 + offset as u64;
            let name = hash(record.key(), seed);
            log.recover(name, address, record.is_deleted() && record.earlier() == 0);
            if device.has_table() && !record.is_deleted() {
                let (len, check) = (record.len() as u64, u64::from(record.check()));
                items.push((name, [u64::from(device.file()), address, len, check]));
            }
        }
    }
    Ok(items)
}

/// Reads the record of `key` from the file, following records that hash alike. `None` if there is
/// none or it was deleted.
pub(super) async fn read_cold<D: Device>(
    device: Rc<D>,
    mut address: u64,
    key: Vec<u8>,
) -> Result<Option<Vec<u8>>, Errno> {
    for _ in 0..HOPS_MAX {
        if address == 0 {
            return Ok(None);
        }
        let bytes = read_record(&*device, address).await?;
        let record = Record::parse(&bytes).filter(Record::is_sound).ok_or(Errno::EIO)?;
        if record.key() == key {
            return Ok(if record.is_deleted() { None } else { Some(bytes) });
        }
        address = record.earlier();
    }
    Ok(None)
}

async fn read_record<D: Device>(device: &D, address: u64) -> Result<Vec<u8>, Errno> {
    let align = ALIGN as u64;
    let start = address / align * align;
    let skip = usize::try_from(address - start).map_err(|_| Errno::EIO)?;
    let mut buf = device.read(start, (skip + GUESS).next_multiple_of(ALIGN)).await?;
    let head = buf.get(skip..skip + HEAD).ok_or(Errno::EIO)?;
    let len = Record::len_from_head(head).ok_or(Errno::EIO)?;
    if skip + len > buf.len() {
        buf = device.read(start, (skip + len).next_multiple_of(ALIGN)).await?;
    }
    buf.get(skip..skip + len).map(<[u8]>::to_vec).ok_or(Errno::EIO)
}
