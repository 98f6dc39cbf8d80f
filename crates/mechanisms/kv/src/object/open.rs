//! Opening: the header, the allocation map, and what a crash left half done.
//!
//! Every record of moves still there is judged, newest first. If the index still has the entry the
//! record made, and the record was not yet known to be flushed, the block is read: bytes that match
//! the checksum are kept; bytes that do not were lost with the crash, and the entry before comes
//! back, whose block nobody reused. Then a block a record names is used exactly if an entry of a
//! page some record names still names it. All of this may be repeated, so a crash in here is no
//! matter.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use outboard_codec::crc32c;

use super::ahead::Readers;
use super::flight::Flight;
use super::index::{
    Entry, Page, TAG_HEAD, TAG_MAP, TAG_MOVES, number_key, page_key, parse_number_key,
};
use super::ledger::Ledger;
use super::map::{Map, MapPage};
use super::moves::{self, MARK, Move};
use super::pack;
use super::pool::Pool;
use super::read::BLOCK_LEN;
use super::recent::Recent;
use super::sync::stage_bits;
use super::{BLOCK, Compression, Counters, ObjectId, Objects, Options};
use crate::{Batch, Durability, Kv, KvError};
use outboard_medium::{Buf, Medium};

/// What opening found and did.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Recovered {
    /// Records of moves replayed.
    pub records: u64,
    /// New blocks read back and found whole.
    pub kept: u64,
    /// New blocks that never reached the medium: the entry before was restored.
    pub restored: u64,
    /// New blocks that fail their checksum and have nothing to go back to; reads of them fail.
    pub lost: u64,
    /// Objects that had an entry restored: [`Objects::count`] may tell another number of blocks
    /// than the caller's records.
    pub changed: Vec<ObjectId>,
}

/// First bytes of the medium.
const MAGIC: &[u8; 8] = b"OUTBOARD";
/// Version of the format of medium, index, map and records.
const FORMAT: u32 = 1;
/// The same where blocks may be packed. What the key says counts: the medium keeps what it was made
/// with.
const FORMAT_PACKED: u32 = 2;
/// Bytes of the header before its checksum: magic, format, block size, identity.
const HEADER: usize = 24;
/// Pairs a scan fetches.
const SCAN: usize = 256;
/// Changed bits staged together: at worst as many pages of 4 KiB.
const BITS_PER_BATCH: usize = 1024;
/// Bytes of a recovery batch, about.
const BATCH: usize = 1 << 20;

/// ```text
/// | magic (8) | format (4) | block size (4) | identity (8) | crc32c (4) |       little-endian
/// ```
/// at the start of block 0 of the medium, and as the value of the header's key.
fn header(format: u32, identity: u64) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(HEADER + 4);
    bytes.extend_from_slice(MAGIC);
    bytes.extend_from_slice(&format.to_le_bytes());
    bytes.extend_from_slice(&u32::try_from(BLOCK).unwrap_or(0).to_le_bytes());
    bytes.extend_from_slice(&identity.to_le_bytes());
    let crc = crc32c(&bytes);
    bytes.extend_from_slice(&crc.to_le_bytes());
    bytes
}

impl<K: Kv, M: Medium> Objects<K, M> {
    /// Opens the store that lies in `kv` and `medium`, making a new one if `kv` has none, and
    /// finishes or undoes what a crash left half done. `Corrupt` if the two do not belong together
    /// or are of another format.
    pub async fn open(
        kv: Arc<K>,
        medium: M,
        options: Options,
    ) -> Result<(Objects<K, M>, Recovered), KvError> {
        let head = number_key(TAG_HEAD, 0);
        let (found, identity) = match kv.get(&head).await? {
            Some(stored) => (Some(check_header(&medium, &stored).await?), identity_of(&stored)),
            None => {
                make_header(&medium, &options).await?;
                (None, options.identity)
            }
        };
        let packs = options.compression != Compression::None;
        let wanted = if packs { FORMAT_PACKED } else { found.unwrap_or(FORMAT) };
        // Durable before the first packed block: who does not know of them must not open it.
        if found.is_none_or(|found| found < wanted) {
            let mut batch = Batch::new();
            batch.put(head, header(wanted, identity));
            kv.commit(batch, Durability::Durable).await?;
        }
        let recovered = recover(&kv, &medium).await?;
        let map = load_map(&kv, medium.len() / BLOCK).await?;
        let store = Objects {
            kv,
            medium,
            ledger: Arc::new(Ledger::new(map, &options, MARK + 1)),
            flight: Flight::new(),
            pool: Arc::new(Pool::new()),
            recent: Recent::new(),
            readers: Readers::default(),
            failed: AtomicBool::new(false),
            unmarked: AtomicBool::new(false),
            retiring: AtomicBool::new(false),
            pending_blocks_max: options.pending_blocks_max,
            compression: options.compression,
            packing: Counters::default(),
        };
        Ok((store, recovered))
    }
}

async fn make_header<M: Medium>(medium: &M, options: &Options) -> Result<(), KvError> {
    if options.segment < BLOCK || options.capacity < options.segment {
        return Err(KvError::NoSpace);
    }
    medium.grow(options.segment).await?;
    let mut buf = Buf::zeroed(BLOCK_LEN);
    let bytes = header(FORMAT, options.identity);
    if let Some(start) = buf.get_mut(..bytes.len()) {
        start.copy_from_slice(&bytes);
    }
    medium.write(0, buf).await.0?;
    Ok(medium.flush().await?)
}

/// Which store a header is of.
fn identity_of(stored: &[u8]) -> u64 {
    let identity = stored.get(HEADER - 8..).and_then(|b| b.first_chunk::<8>());
    identity.map_or(0, |b| u64::from_le_bytes(*b))
}

/// The format the key's header says, if the two are of one store.
async fn check_header<M: Medium>(medium: &M, stored: &[u8]) -> Result<u32, KvError> {
    let (result, buf) = medium.read(0, Buf::zeroed(BLOCK_LEN)).await;
    result?;
    let known = [FORMAT, FORMAT_PACKED].map(|format| (format, header(format, identity_of(stored))));
    let is_here = known.iter().any(|(_, header)| buf.starts_with(header));
    let format = known.iter().find(|(_, header)| stored == &header[..]);
    format.filter(|_| is_here).map(|(format, _)| *format).ok_or(KvError::Corrupt)
}

/// Every pair under a tag, in order.
async fn scan_tag<K: Kv>(kv: &K, tag: u8) -> Result<Vec<(u64, crate::Value)>, KvError> {
    let mut pairs = Vec::new();
    let mut after: Option<crate::Key> = None;
    loop {
        let found = kv.scan(&[tag], after.as_deref(), SCAN).await?;
        let more = found.len() == SCAN;
        after = found.last().map(|(key, _)| key.clone());
        for (key, value) in found {
            pairs.push((parse_number_key(tag, &key)?, value));
        }
        if !more {
            return Ok(pairs);
        }
    }
}

async fn load_map<K: Kv>(kv: &K, blocks: u64) -> Result<Map, KvError> {
    let mut map = Map::new(blocks);
    for (index, value) in scan_tag(kv, TAG_MAP).await? {
        map.load(index, MapPage::decode(&value)?)?;
    }
    map.set(0, true);
    Ok(map)
}

/// A place in an index.
type Place = (ObjectId, u32, u8);

/// Recovery at work.
struct Recovery<'a, K, M> {
    kv: &'a K,
    medium: &'a M,
    pages: BTreeMap<(ObjectId, u32), Page>,
    changed: BTreeSet<(ObjectId, u32)>,
    /// Blocks that entries of records judged so far lie in.
    claimed: BTreeSet<u64>,
    recovered: Recovered,
}

async fn recover<K: Kv, M: Medium>(kv: &K, medium: &M) -> Result<Recovered, KvError> {
    let mut records = Vec::new();
    let mut flushed = 0;
    for (seq, value) in scan_tag(kv, TAG_MOVES).await? {
        let (below, moves) = moves::decode(&value)?;
        flushed = flushed.max(below);
        records.push((seq, moves));
    }
    if records.is_empty() {
        return Ok(Recovered::default());
    }
    let mut recovery = Recovery {
        kv,
        medium,
        pages: BTreeMap::new(),
        changed: BTreeSet::new(),
        claimed: BTreeSet::new(),
        recovered: Recovered {
            records: records.iter().filter(|(seq, _)| *seq != MARK).count() as u64,
            ..Recovered::default()
        },
    };
    for m in records.iter().flat_map(|(_, moves)| moves) {
        recovery.load(m).await?;
    }
    for (seq, moves) in records.iter().rev() {
        for m in moves.iter().rev().filter(|_| *seq >= flushed) {
            recovery.judge(m).await?;
        }
    }
    recovery.store(&records).await?;
    let changed: BTreeSet<ObjectId> = recovery.changed.iter().map(|(id, _)| *id).collect();
    Ok(Recovered { changed: changed.into_iter().collect(), ..recovery.recovered })
}

impl<K: Kv, M: Medium> Recovery<'_, K, M> {
    async fn load(&mut self, m: &Move) -> Result<(), KvError> {
        if !self.pages.contains_key(&(m.id, m.page)) {
            let value = self.kv.get(&page_key(m.id, m.page)).await?;
            self.pages.insert((m.id, m.page), Page::of(m.id, m.page, value.as_ref())?);
        }
        Ok(())
    }

    fn entry(&self, (id, page, slot): Place) -> Entry {
        self.pages.get(&(id, page)).map_or(Entry::HOLE, |page| page.get(usize::from(slot)))
    }

    /// Whether an entry's block reads as its checksum says.
    async fn sound(&self, entry: Entry) -> Result<bool, KvError> {
        if !entry.is_data() {
            return Ok(true);
        }
        if entry.blocks().end.checked_mul(BLOCK).is_none_or(|end| end > self.medium.len()) {
            return Ok(false);
        }
        let (offset, len) = pack::extent(&[entry]);
        let (result, raw) = self.medium.read(offset, Buf::zeroed(len)).await;
        result?;
        Ok(pack::unpack(entry, offset, &raw, &mut Buf::zeroed(BLOCK_LEN)).is_ok())
    }

    /// Keeps or undoes one move.
    async fn judge(&mut self, m: &Move) -> Result<(), KvError> {
        if self.entry((m.id, m.page, m.slot)) != m.new {
            return Ok(());
        }
        if m.new.is_data() && !self.sound(m.new).await? {
            // Somebody else's by now, named by a later record, only if the new block was flushed,
            // and so went bad later.
            if !m.old.blocks().any(|block| self.claimed.contains(&block)) {
                self.recovered.restored += 1;
                if let Some(page) = self.pages.get_mut(&(m.id, m.page)) {
                    page.set(usize::from(m.slot), m.old);
                    self.changed.insert((m.id, m.page));
                }
                return Ok(());
            }
            self.recovered.lost += 1;
        } else if m.new.is_data() {
            self.recovered.kept += 1;
        }
        self.claimed.extend(m.new.blocks());
        Ok(())
    }

    /// Stores the outcome: index pages, then the map, then the records' end.
    async fn store(&self, records: &[(u64, Vec<Move>)]) -> Result<(), KvError> {
        // What was found whole may have been read from a cache that power loss would empty.
        self.medium.flush().await?;
        let mut batch = essential();
        for (id, number) in &self.changed {
            if let Some(page) = self.pages.get(&(*id, *number)) {
                page.stage(*id, *number, &mut batch);
            }
            batch = self.commit_if_large(batch).await?;
        }
        let entries = self.pages.values().flat_map(|page| &page.entries);
        let used: BTreeSet<u64> = entries.flat_map(|entry| entry.blocks()).collect();
        let mut bits = BTreeMap::new();
        for m in records.iter().flat_map(|(_, moves)| moves) {
            for block in m.old.blocks().chain(m.new.blocks()) {
                bits.insert(block, used.contains(&block));
            }
        }
        let bits: Vec<(u64, bool)> = bits.into_iter().collect();
        for part in bits.chunks(BITS_PER_BATCH) {
            stage_bits(self.kv, part.iter().copied().collect(), &mut batch).await?;
            batch = self.commit_if_large(batch).await?;
        }
        for (seq, _) in records {
            batch.delete(number_key(TAG_MOVES, *seq));
        }
        self.kv.commit(batch, Durability::Durable).await
    }

    async fn commit_if_large(&self, batch: Batch) -> Result<Batch, KvError> {
        if batch.bytes() < BATCH {
            return Ok(batch);
        }
        self.kv.commit(batch, Durability::Answered).await?;
        Ok(essential())
    }
}

fn essential() -> Batch {
    let mut batch = Batch::new();
    batch.essential();
    batch
}
