//! Opening: the head of the log's file, its lots and pages, the journal.
//!
//! Of each lot the first block is read, which says which page lies there. What is in the page says
//! its extract, if there is one; only others are read.

use std::collections::BTreeMap;
use std::future::{Future, poll_fn};
use std::io;
use std::ops::Range;
use std::path::Path;
use std::pin::Pin;
use std::task::Poll;
use std::time::{Duration, Instant};

use outboard_base::Errno;
use outboard_dds::dpu::offload::{Item, Key};
use outboard_dds::table::Changes;
use outboard_medium::ALIGN;

use super::super::app::hash;
use super::super::extracts::{Entry, Extract, Extracts, Whose};
use super::super::journal::{Journal, Kind, Met};
use super::super::log::{For, Log};
use super::super::lots::{HEAD_LEN, HEADS, Head, Lots, count_of, offset_of};
use super::super::record::{self, PAGE, PageHead};
use super::{PAGE64, StoreSetup};
use crate::device::Device;

/// Items of the table sent in one update.
const ITEMS: usize = 8192;
/// Bytes of one read of heads.
const HEADS_LEN: usize = HEADS * HEAD_LEN;
/// First blocks of lots read at a time.
const SIDE_BY_SIDE: usize = 32;
/// How often opening says how far it is.
const SAID: Duration = Duration::from_secs(1);

/// What was found.
pub(super) struct Opened {
    pub(super) log: Log,
    pub(super) lots: Lots,
    pub(super) extracts: Extracts,
    pub(super) head: Head,
    pub(super) journal: Journal,
    /// The first page that counts, once the head says so.
    pub(super) begin: u64,
}

/// What the table is told of a record, and where that lies in the log.
struct Cold {
    name: Key,
    address: u64,
    item: Item,
}

/// Says how far opening is, if it takes long.
pub(super) struct Said(pub(super) Instant);

impl Said {
    fn at(&mut self, what: &str, done: u64, of: u64) {
        if self.0.elapsed() >= SAID {
            self.0 = Instant::now();
            tracing::info!(done, of, "opening the log: {what}");
        }
    }
}

fn damaged(text: String) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("{text}; restore the data from a copy"))
}

/// Reads the log's file, replays the journal, tells the cache table.
pub(super) async fn open<D: Device>(device: &D, setup: &StoreSetup) -> io::Result<Opened> {
    // Whatever the table knows is of an earlier life.
    device.update(Changes { clear: true, ..Changes::default() }).await?;
    let journaled = Journal::first_page(&setup.dir)?;
    let head = match read_head(device, journaled.is_none()).await? {
        Some(head) => head,
        None => first_head(device).await?,
    };
    // The sequence of its first head is a store's life.
    let head = head.next(head.begin);
    let (offset, bytes) = head.emit();
    device.write(offset, bytes).await?;
    device.flush().await?;
    // Journals lag behind the head. What they speak of that lies before the first page that counts
    // was copied, or is dead: what is done again must not lie there.
    let first = journaled.unwrap_or(0).max(head.begin);
    let mut log = Log::new(setup.seed, head.sequence, first, usize::MAX / 2);
    log.set_begin(head.begin);
    let mut said = Said(Instant::now());
    let mut lots = Lots::new(count_of(device.size()?));
    let found = find_pages(device, &lots, &mut said).await?;
    if journaled.is_none() && !found.is_empty() {
        return Err(damaged(format!("{} holds no journal of the log", setup.dir.display())));
    }
    let pages = head.begin..first;
    let counts = |whose: Whose| {
        let is_there = |own: &Candidates| own.life == whose.life && own.lots.contains(&whose.lot);
        pages.contains(&whose.page) && found.get(&whose.page).is_some_and(is_there)
    };
    let (mut extracts, loaded) = Extracts::load(&setup.dir, setup.seed, counts)?;
    let scan = Scan { device, found: &found, loaded, seed: setup.seed };
    let cold = scan.run(pages.clone(), &mut log, &mut lots, &mut extracts, &mut said).await?;
    let (replayed, begin) = replay(&setup.dir, &mut log, head.begin, &mut said)?;
    log.set_budget((setup.memory / PAGE).max(4));
    let journal = Journal::begin(&setup.dir, log.tail_page())?;
    let (keys, all) = (log.len(), cold.len());
    tracing::info!(keys, cold = all, replayed, "the key-value store is open");
    for (at, cold) in cold.chunks(ITEMS).enumerate() {
        said.at("records for the cache table", (at * ITEMS) as u64, all as u64);
        let last = cold.iter().filter(|cold| log.is_last(cold.name, cold.address));
        let items = last.map(|cold| (cold.name, cold.item)).collect();
        device.update(Changes { items, ..Changes::default() }).await?;
    }
    Ok(Opened { log, lots, extracts, head, journal, begin })
}

/// The head that counts; `None` if nothing was ever written.
pub(super) async fn read_head<D: Device>(device: &D, is_new: bool) -> io::Result<Option<Head>> {
    let bytes = device.read(0, HEADS_LEN).await?;
    let heads = bytes.chunks(HEAD_LEN).filter_map(Head::parse);
    let head = heads.max_by_key(|head| head.sequence);
    if head.is_none() && !(is_new && bytes.iter().all(|byte| *byte == 0)) {
        return Err(damaged("the file of the log has no head that this program knows".to_owned()));
    }
    Ok(head)
}

/// Makes the file, so that there always is room to say where the log begins.
async fn first_head<D: Device>(device: &D) -> io::Result<Head> {
    for sequence in 0..HEADS as u64 {
        let (offset, bytes) = Head { begin: 0, sequence }.emit();
        device.write(offset, bytes).await?;
    }
    device.flush().await?;
    Ok(Head { begin: 0, sequence: HEADS as u64 - 1 })
}

/// The lots that a page may lie in, and the life they are of.
#[derive(Default)]
pub(super) struct Candidates {
    life: u64,
    lots: Vec<u64>,
}

/// Which pages lie in which lots. One that an earlier life wrote, too, is that of the last life
/// alone: a replay may put other records into a page of the same number. In one life a page is in
/// two lots if it could not be written to the first.
pub(super) async fn find_pages<D: Device>(
    device: &D,
    lots: &Lots,
    said: &mut Said,
) -> io::Result<BTreeMap<u64, Candidates>> {
    let mut heads = read_heads(device, lots.len().1 as u64, said).await?;
    heads.sort_unstable_by_key(|(lot, _)| *lot);
    let mut found: BTreeMap<u64, Candidates> = BTreeMap::new();
    for (lot, head) in heads {
        let candidates = found.entry(head.number).or_default();
        if head.life > candidates.life {
            *candidates = Candidates { life: head.life, lots: Vec::new() };
        }
        if head.life == candidates.life {
            candidates.lots.push(lot);
        }
    }
    Ok(found)
}

/// What lies in so many lots, those that hold a page.
async fn read_heads<D: Device>(
    device: &D,
    count: u64,
    said: &mut Said,
) -> Result<Vec<(u64, PageHead)>, Errno> {
    type Reading<'a, B> = Pin<Box<dyn Future<Output = Result<B, Errno>> + 'a>>;
    let (mut next, mut heads) = (0..count, Vec::new());
    let mut under_way: Vec<(u64, Reading<'_, D::Bytes>)> = Vec::new();
    poll_fn(|cx| {
        loop {
            let more = next.by_ref().take(SIDE_BY_SIDE - under_way.len());
            let read = |lot| -> Reading<'_, _> { Box::pin(device.read(offset_of(lot), ALIGN)) };
            under_way.extend(more.map(|lot| (lot, read(lot))));
            let before = under_way.len();
            let mut failed = None;
            under_way.retain_mut(|(lot, read)| match read.as_mut().poll(cx) {
                Poll::Pending => true,
                Poll::Ready(read) => {
                    let head = read.map(|bytes| record::page_head(&bytes));
                    match head {
                        Ok(head) => heads.extend(head.map(|head| (*lot, head))),
                        Err(error) => failed = Some(error),
                    }
                    false
                }
            });
            match failed {
                Some(error) => return Poll::Ready(Err(error)),
                None if under_way.is_empty() && next.is_empty() => return Poll::Ready(Ok(())),
                None if under_way.len() == before => return Poll::Pending,
                None => said.at("which pages are there", next.start, count),
            }
        }
    })
    .await?;
    Ok(heads)
}

/// What pages are read by.
pub(super) struct Scan<'a, D> {
    pub(super) device: &'a D,
    pub(super) found: &'a BTreeMap<u64, Candidates>,
    pub(super) loaded: BTreeMap<u64, Extract>,
    pub(super) seed: u64,
}

impl<D: Device> Scan<'_, D> {
    /// Takes pages into the index; what the cache table may hold.
    async fn run(
        mut self,
        pages: Range<u64>,
        log: &mut Log,
        lots: &mut Lots,
        extracts: &mut Extracts,
        said: &mut Said,
    ) -> io::Result<Vec<Cold>> {
        let (mut all, mut read) = (Vec::new(), 0);
        for number in pages.clone() {
            said.at("its pages", number - pages.start, pages.end - pages.start);
            let extract = if let Some(extract) = self.loaded.remove(&number) {
                extract
            } else {
                read += 1;
                let extract = self.read(number).await?;
                extracts.add(&extract);
                extract
            };
            let lot = extract.whose.lot;
            for entry in &extract.entries {
                let address = number * PAGE64 + u64::from(entry.offset);
                log.recover(entry.name, address, entry.deleted && entry.first);
                log.met(entry.len);
                if self.device.has_table() && !entry.deleted {
                    let (at, len) = (u64::from(entry.offset), u64::from(entry.len));
                    let file = u64::from(self.device.file());
                    let item = [file, offset_of(lot) + at, len, u64::from(entry.check)];
                    all.push(Cold { name: entry.name, address, item });
                }
            }
            lots.found(number, lot, extract.entries.len() as u64);
        }
        tracing::info!(pages = pages.end.saturating_sub(pages.start), read, "pages of the log");
        Ok(all)
    }

    /// What a page without an extract holds.
    pub(super) async fn read(&self, number: u64) -> io::Result<Extract> {
        let mut why = format!("the log lacks its page {number}");
        for &lot in self.found.get(&number).map_or(&[][..], |candidates| &candidates.lots) {
            let buf = self.device.read(offset_of(lot), PAGE).await?;
            let Some(head) = record::page_head(&buf) else { continue };
            if let Some(at) = record::damage(&buf, head.used) {
                let at = offset_of(lot) + at as u64;
                why = format!("the log is damaged at byte {at}: a record's check does not fit");
                continue;
            }
            let entries = record::records(&buf, head.used)
                .map(|(at, record)| Entry::of(hash(record.key(), self.seed), at, &record));
            let whose = Whose { page: number, life: head.life, lot };
            return Ok(Extract { whose, entries: entries.collect() });
        }
        Err(damaged(why))
    }
}

/// Does again what the journal says, each file from a page of its own on, and names the files after
/// those pages; how many entries, and the first page that counts, which was `begin`.
fn replay(dir: &Path, log: &mut Log, begin: u64, said: &mut Said) -> io::Result<(u64, u64)> {
    let mut files: Vec<(u64, u64)> = Vec::new();
    let mut begins = begin;
    let full = || io::Error::from(io::ErrorKind::OutOfMemory);
    let all = Journal::count(dir)? as u64;
    let count = Journal::replay(dir, |met| {
        match met {
            Met::File(page) => {
                said.at("its journals", files.len() as u64, all);
                let least = files.last().map_or(page, |(_, last)| page.max(last + 1));
                while log.tail_page() < least || !log.tail_is_empty() {
                    log.roll(For::Values).then_some(()).ok_or_else(full)?;
                }
                files.push((page, log.tail_page()));
            }
            Met::Entry(Kind::Clear, ..) => {
                log.clear();
                if !log.tail_is_empty() {
                    log.roll(For::Values).then_some(()).ok_or_else(full)?;
                }
                begins = begins.max(log.tail_page());
            }
            Met::Entry(kind, key, bulk) => {
                log.put(key, bulk, kind == Kind::Delete, For::Values).map_err(|_| full())?;
            }
        }
        Ok(())
    })?;
    Journal::rename(dir, &files)?;
    // The last file goes on if all it speaks of lies in its page.
    if files.last().is_some_and(|(_, page)| *page != log.tail_page()) {
        log.roll(For::Values).then_some(()).ok_or_else(full)?;
    }
    Ok((count, begins))
}
