//! Opening: the head of the log's file, its lots and pages, the journal.

use std::collections::BTreeMap;
use std::io;
use std::path::Path;

use outboard_dds::dpu::offload::{Item, Key};
use outboard_dds::table::Changes;
use outboard_kv::medium::ALIGN;

use super::super::app::hash;
use super::super::journal::{Journal, Kind, Met};
use super::super::log::{For, Log};
use super::super::lots::{HEAD_LEN, HEADS, Head, Lots, count_of, offset_of};
use super::super::record::{self, PAGE};
use super::{PAGE64, StoreSetup};
use crate::device::Device;

/// Items of the table sent in one update.
const ITEMS: usize = 8192;
/// Bytes of one read of heads.
const HEADS_LEN: usize = HEADS * HEAD_LEN;

/// What was found.
pub(super) struct Opened {
    pub(super) log: Log,
    pub(super) lots: Lots,
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
    let first = journaled.unwrap_or(0);
    let mut log = Log::new(setup.seed, head.sequence, first, usize::MAX / 2);
    log.set_begin(head.begin);
    let mut lots = Lots::new(count_of(device.size()?));
    let found = find_pages(device, &lots).await?;
    if journaled.is_none() && !found.is_empty() {
        return Err(damaged(format!("{} holds no journal of the log", setup.dir.display())));
    }
    let cold = scan(device, &mut log, &mut lots, &found, head.begin..first, setup.seed).await?;
    let (replayed, begin) = replay(&setup.dir, &mut log, head.begin)?;
    log.set_budget((setup.memory / PAGE).max(4));
    let journal = Journal::begin(&setup.dir, log.tail_page())?;
    let keys = log.len();
    tracing::info!(keys, cold = cold.len(), replayed, "the key-value store is open");
    for cold in cold.chunks(ITEMS) {
        let last = cold.iter().filter(|cold| log.is_last(cold.name, cold.address));
        let items = last.map(|cold| (cold.name, cold.item)).collect();
        device.update(Changes { items, ..Changes::default() }).await?;
    }
    Ok(Opened { log, lots, head, journal, begin })
}

/// The head that counts; `None` if nothing was ever written.
async fn read_head<D: Device>(device: &D, is_new: bool) -> io::Result<Option<Head>> {
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
struct Candidates {
    life: u64,
    lots: Vec<u64>,
}

/// Which pages lie in which lots. One that an earlier life wrote, too, is that of the last life
/// alone: a replay may put other records into a page of the same number. In one life a page is in
/// two lots if it could not be written to the first.
async fn find_pages<D: Device>(device: &D, lots: &Lots) -> io::Result<BTreeMap<u64, Candidates>> {
    let mut found: BTreeMap<u64, Candidates> = BTreeMap::new();
    for lot in 0..lots.len().1 as u64 {
        let bytes = device.read(offset_of(lot), ALIGN).await?;
        let Some(head) = record::page_head(&bytes) else { continue };
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

/// Reads pages into the index; what the cache table may hold.
async fn scan<D: Device>(
    device: &D,
    log: &mut Log,
    lots: &mut Lots,
    found: &BTreeMap<u64, Candidates>,
    pages: std::ops::Range<u64>,
    seed: u64,
) -> io::Result<Vec<Cold>> {
    let mut all = Vec::new();
    'pages: for number in pages {
        let mut why = format!("the log lacks its page {number}");
        for &lot in found.get(&number).map_or(&[][..], |candidates| &candidates.lots) {
            let buf = device.read(offset_of(lot), PAGE).await?;
            let Some(head) = record::page_head(&buf) else { continue };
            let unsound = record::records(&buf, head.used).find(|(_, record)| !record.is_sound());
            if let Some((at, _)) = unsound {
                let at = offset_of(lot) + at as u64;
                why = format!("the log is damaged at byte {at}: a record's check does not fit");
                continue;
            }
            let mut records = 0;
            for (at, record) in record::records(&buf, head.used) {
                let (address, name) = (number * PAGE64 + at as u64, hash(record.key(), seed));
                log.recover(name, address, record.is_deleted() && record.earlier() == 0);
                records += 1;
                if device.has_table() && !record.is_deleted() {
                    let (len, check) = (record.len() as u64, u64::from(record.check()));
                    let item = [u64::from(device.file()), offset_of(lot) + at as u64, len, check];
                    all.push(Cold { name, address, item });
                }
            }
            lots.found(number, lot, records);
            continue 'pages;
        }
        return Err(damaged(why));
    }
    Ok(all)
}

/// Does again what the journal says, each file from a page of its own on, and names the files after
/// those pages; how many entries, and the first page that counts, which was `begin`.
fn replay(dir: &Path, log: &mut Log, begin: u64) -> io::Result<(u64, u64)> {
    let mut files: Vec<(u64, u64)> = Vec::new();
    let mut begins = begin;
    let full = || io::Error::from(io::ErrorKind::OutOfMemory);
    let count = Journal::replay(dir, |met| {
        match met {
            Met::File(page) => {
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
