//! The bytes of a store.
//!
//! ```text
//! log medium: two copies of the header, one block of 4096 bytes each; then two halves, whose
//! chunks of 256 KiB lie in turn (A0 B0 A1 B1 ...), so that both can grow
//!
//! half    pieces of the checkpoint, each in a chunk of its own; behind the last, blocks of the log
//! header  "OBNODST1" | 8 version u32, 1 to 3 | 12 crc u32 of 16-511 | 16 cluster u64 |
//!         24 node u16 | 26 half u16 | 28 pieces u32 | 32 epoch u64 |
//!         40 bytes of the checkpoint u64 | 48 bytes of the log at most u64 |
//!         56 boot in which it was trusted u64, from version 3 on | zeros. All in one sector: it is
//!         never half made
//! piece   "OBSP" | 4 crc u32 of 8- | 8 epoch u64 | 16 index u32 | 20 bytes u32 | 24 objects
//! block   "OBSL" | 4 crc u32 of 8-4095 | 8 epoch u64 | 16 index u32 | 20 crc of the block before
//!         u32 | 24 blocks that are durable u32 | 28 bytes u32 | 32 records
//!
//! record  1 write  object u64, strip u32, version, offset u64, bytes u32, crc u32, grains
//!         2 hole   object u64, version, start u64, end u64, count u8, edges (number u64, grain)
//!         3 seal   object u64, fence u64
//!         4 purge  object u64
//!         5 aside  object u64, strip u32, version, start u64, end u64, count u8, place u8,
//!                  strip of the layout u32
//!         6 tomb   object u64, fence u64, until u64
//!         7 pending  object u64, strip u32, index of the strip u64, what is pending
//!         8 settled  object u64, index of the strip u64, version
//! object  number u64, strip u32, fence u64, floor version, floor from u64, strips u32, each
//!         index u64, version, offset u32, bytes u32, crc u32, end u32, grains; where the top bit
//!         of their count is set, what is pending
//! pending version, previous version, epoch u32, offset in the strip u32, bytes u32, crc u32,
//!         grains
//! version fence u64, sequence u32     grains  count u16, each slot u32, crc u32
//! ```
//!
//! Version 1 knows no pending writes, version 2 no boot. The header says 3 before the first of
//! these writes is in the log.

use outboard_codec::crc32c;
use outboard_medium::ALIGN;
use outboard_wire::shared::Share;

use super::Version;
use super::index::{GRAIN, GRAINS_MAX, Grain};
use super::pending::Pending;
use super::record::Record;

/// Bytes of a block.
pub(super) const BLOCK: usize = ALIGN;
/// Bytes of a half that lie together.
pub(super) const CHUNK: u64 = CHUNK_LEN as u64;
const CHUNK_LEN: usize = 256 << 10;
/// Bytes before the halves.
pub(super) const HEADERS: u64 = 2 * BLOCK as u64;
const MAGIC: &[u8; 8] = b"OBNODST1";
/// The version of the format without pending writes, the one with them, which is opened only, and
/// the one with the boot in which all of them were known to be here.
pub(super) const PLAIN: u32 = 1;
const COPIES: u32 = 2;
pub(super) const TRUSTED: u32 = 3;
/// Set in a strip's count of grains: something is pending.
pub(super) const HAS_PENDING: u16 = 1 << 15;
const SECTOR: usize = 512;
const PIECE_MAGIC: &[u8; 4] = b"OBSP";
const PIECE_HEAD: usize = 24;
/// Most bytes of objects in a piece.
pub(super) const PIECE_ROOM: usize = CHUNK_LEN - PIECE_HEAD;
const LOG_MAGIC: &[u8; 4] = b"OBSL";
const LOG_HEAD: usize = 32;
/// Most bytes of records in a block.
pub(super) const LOG_ROOM: usize = BLOCK - LOG_HEAD;

/// Why bytes are not what they should be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Bad {
    /// Nothing of ours, or torn.
    Absent,
    /// Of another version.
    Version(u32),
    /// Whole, and not possible.
    Impossible,
}

/// A cursor over little-endian fields.
pub(super) struct Fields<'a>(pub(super) &'a [u8]);

impl<'a> Fields<'a> {
    fn array<const N: usize>(&mut self) -> Result<[u8; N], Bad> {
        let (head, rest) = self.0.split_first_chunk::<N>().ok_or(Bad::Impossible)?;
        self.0 = rest;
        Ok(*head)
    }

    pub(super) fn u8(&mut self) -> Result<u8, Bad> {
        self.array::<1>().map(|[byte]| byte)
    }

    pub(super) fn u16(&mut self) -> Result<u16, Bad> {
        self.array().map(u16::from_le_bytes)
    }

    pub(super) fn u32(&mut self) -> Result<u32, Bad> {
        self.array().map(u32::from_le_bytes)
    }

    pub(super) fn u64(&mut self) -> Result<u64, Bad> {
        self.array().map(u64::from_le_bytes)
    }

    pub(super) fn version(&mut self) -> Result<Version, Bad> {
        Ok(Version { fence: self.u64()?, sequence: self.u32()? })
    }

    pub(super) fn grain(&mut self) -> Result<Grain, Bad> {
        Ok(Grain { slot: self.u32()?, crc: self.u32()? })
    }

    pub(super) fn grains(&mut self) -> Result<Vec<Grain>, Bad> {
        let count = self.u16()?;
        self.counted(count)
    }

    /// So many grains.
    pub(super) fn counted(&mut self, count: u16) -> Result<Vec<Grain>, Bad> {
        if usize::from(count) > GRAINS_MAX {
            return Err(Bad::Impossible);
        }
        (0..count).map(|_| self.grain()).collect()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

pub(super) fn emit_version(version: Version, into: &mut Vec<u8>) {
    into.extend_from_slice(&version.fence.to_le_bytes());
    into.extend_from_slice(&version.sequence.to_le_bytes());
}

fn emit_numbers(numbers: &[u64], into: &mut Vec<u8>) {
    numbers.iter().for_each(|number| into.extend_from_slice(&number.to_le_bytes()));
}

fn emit_grain(grain: Grain, into: &mut Vec<u8>) {
    into.extend_from_slice(&grain.slot.to_le_bytes());
    into.extend_from_slice(&grain.crc.to_le_bytes());
}

pub(super) fn emit_grains(grains: &[Grain], flag: u16, into: &mut Vec<u8>) {
    // Never more than GRAINS_MAX.
    let count = u16::try_from(grains.len()).unwrap_or(u16::MAX);
    into.extend_from_slice(&(count | flag).to_le_bytes());
    grains.iter().for_each(|grain| emit_grain(*grain, into));
}

impl Record {
    /// Writes it behind what is there.
    pub(super) fn emit(&self, into: &mut Vec<u8>) {
        match self {
            Record::Write { object, strip, version, offset, bytes, crc, grains } => {
                into.push(1);
                into.extend_from_slice(&object.to_le_bytes());
                into.extend_from_slice(&strip.to_le_bytes());
                emit_version(*version, into);
                into.extend_from_slice(&offset.to_le_bytes());
                into.extend_from_slice(&bytes.to_le_bytes());
                into.extend_from_slice(&crc.to_le_bytes());
                emit_grains(grains, 0, into);
            }
            Record::Pending { object, strip, index, pending } => {
                into.push(7);
                into.extend_from_slice(&object.to_le_bytes());
                into.extend_from_slice(&strip.to_le_bytes());
                into.extend_from_slice(&index.to_le_bytes());
                pending.emit(into);
            }
            Record::Settled { object, index, version } => {
                into.push(8);
                emit_numbers(&[*object, *index], into);
                emit_version(*version, into);
            }
            Record::Hole { object, version, range, edges } => {
                into.push(2);
                into.extend_from_slice(&object.to_le_bytes());
                emit_version(*version, into);
                emit_numbers(&[range.start, range.end], into);
                into.push(u8::try_from(edges.len()).unwrap_or(u8::MAX));
                for (number, grain) in edges {
                    into.extend_from_slice(&number.to_le_bytes());
                    emit_grain(*grain, into);
                }
            }
            Record::Aside { object, strip, version, range, share } => {
                into.push(5);
                into.extend_from_slice(&object.to_le_bytes());
                into.extend_from_slice(&strip.to_le_bytes());
                emit_version(*version, into);
                emit_numbers(&[range.start, range.end], into);
                into.extend_from_slice(&[share.count, share.place]);
                into.extend_from_slice(&share.strip.to_le_bytes());
            }
            Record::Seal { object, fence } => {
                into.push(3);
                emit_numbers(&[*object, *fence], into);
            }
            Record::Purge { object } => {
                into.push(4);
                into.extend_from_slice(&object.to_le_bytes());
            }
            Record::Tomb { object, fence, until } => {
                into.push(6);
                emit_numbers(&[*object, *fence, *until], into);
            }
        }
    }

    /// Takes one from the front.
    pub(super) fn parse(from: &mut Fields<'_>) -> Result<Record, Bad> {
        let record = match from.u8()? {
            1 => Record::Write {
                object: from.u64()?,
                strip: from.u32()?,
                version: from.version()?,
                offset: from.u64()?,
                bytes: from.u32()?,
                crc: from.u32()?,
                grains: from.grains()?,
            },
            2 => {
                let (object, version) = (from.u64()?, from.version()?);
                let range = from.u64()?..from.u64()?;
                let count = from.u8()?;
                if count > 2 {
                    return Err(Bad::Impossible);
                }
                let edges = (0..count).map(|_| Ok((from.u64()?, from.grain()?)));
                Record::Hole { object, version, range, edges: edges.collect::<Result<_, Bad>>()? }
            }
            3 => Record::Seal { object: from.u64()?, fence: from.u64()? },
            4 => Record::Purge { object: from.u64()? },
            5 => Record::Aside {
                object: from.u64()?,
                strip: from.u32()?,
                version: from.version()?,
                range: from.u64()?..from.u64()?,
                share: Share { count: from.u8()?, place: from.u8()?, strip: from.u32()? },
            },
            6 => Record::Tomb { object: from.u64()?, fence: from.u64()?, until: from.u64()? },
            7 => {
                let (object, strip, index) = (from.u64()?, from.u32()?, from.u64()?);
                Record::Pending { object, strip, index, pending: Pending::parse(from)? }
            }
            8 => {
                let (object, index, version) = (from.u64()?, from.u64()?, from.version()?);
                Record::Settled { object, index, version }
            }
            _ => return Err(Bad::Impossible),
        };
        if record.is_possible() { Ok(record) } else { Err(Bad::Impossible) }
    }
}

/// What names the checkpoint that counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Header {
    /// The version of the format.
    pub(super) format: u32,
    pub(super) cluster: u64,
    pub(super) node: u16,
    /// 0 or 1.
    pub(super) half: u16,
    pub(super) pieces: u32,
    /// Goes up with each checkpoint.
    pub(super) epoch: u64,
    /// Of the checkpoint's objects.
    pub(super) bytes: u64,
    /// Most bytes of log behind it.
    pub(super) limit: u64,
    /// The boot in which the store was trusted last; 0 where the format does not say.
    pub(super) trusted: u64,
}

fn set(block: &mut [u8], at: usize, bytes: &[u8]) {
    if let Some(to) = block.get_mut(at..at + bytes.len()) {
        to.copy_from_slice(bytes);
    }
}

impl Header {
    /// Writes the block; its crc, which the first block of the log names.
    pub(super) fn emit(&self, block: &mut [u8]) -> u32 {
        block.fill(0);
        set(block, 0, MAGIC);
        set(block, 8, &self.format.to_le_bytes());
        set(block, 16, &self.cluster.to_le_bytes());
        set(block, 24, &self.node.to_le_bytes());
        set(block, 26, &self.half.to_le_bytes());
        set(block, 28, &self.pieces.to_le_bytes());
        set(block, 32, &self.epoch.to_le_bytes());
        set(block, 40, &self.bytes.to_le_bytes());
        set(block, 48, &self.limit.to_le_bytes());
        if self.format >= TRUSTED {
            set(block, 56, &self.trusted.to_le_bytes());
        }
        let crc = crc32c(block.get(16..SECTOR).unwrap_or_default());
        set(block, 12, &crc.to_le_bytes());
        crc
    }

    /// The header of a block, and its crc.
    pub(super) fn parse(block: &[u8]) -> Result<(Header, u32), Bad> {
        let mut from = Fields(block.get(..SECTOR).ok_or(Bad::Absent)?);
        if &from.array::<8>()? != MAGIC {
            return Err(Bad::Absent);
        }
        let (format, crc) = (from.u32()?, from.u32()?);
        if crc != crc32c(from.0) {
            return Err(Bad::Absent);
        }
        if ![PLAIN, COPIES, TRUSTED].contains(&format) {
            return Err(Bad::Version(format));
        }
        let header = Header {
            format,
            cluster: from.u64()?,
            node: from.u16()?,
            half: from.u16()?,
            pieces: from.u32()?,
            epoch: from.u64()?,
            bytes: from.u64()?,
            limit: from.u64()?,
            trusted: if format >= TRUSTED { from.u64()? } else { 0 },
        };
        let most = u64::from(header.pieces) * PIECE_ROOM as u64;
        let is_possible = header.half < 2
            && header.bytes <= most
            && header.limit.is_multiple_of(BLOCK as u64)
            && header.limit < 1 << 48;
        if is_possible { Ok((header, crc)) } else { Err(Bad::Impossible) }
    }

    /// Where in its half the log begins.
    pub(super) fn log_at(&self) -> u64 {
        let Some(whole) = u64::from(self.pieces).checked_sub(1) else { return 0 };
        let last = self.bytes - self.bytes.min(whole * PIECE_ROOM as u64);
        whole * CHUNK + (last + PIECE_HEAD as u64).next_multiple_of(BLOCK as u64)
    }
}

/// Where on the medium a byte of a half lies.
pub(super) fn place(half: u16, at: u64) -> u64 {
    HEADERS + (at / CHUNK * 2 + u64::from(half)) * CHUNK + at % CHUNK
}

/// Writes a piece to the front of `block`, whose length is a multiple of blocks.
pub(super) fn emit_piece(block: &mut [u8], epoch: u64, index: u32, objects: &[u8]) {
    set(block, 0, PIECE_MAGIC);
    set(block, 8, &epoch.to_le_bytes());
    set(block, 16, &index.to_le_bytes());
    set(block, 20, &u32::try_from(objects.len()).unwrap_or(0).to_le_bytes());
    set(block, PIECE_HEAD, objects);
    let crc = crc32c(block.get(8..PIECE_HEAD + objects.len()).unwrap_or_default());
    set(block, 4, &crc.to_le_bytes());
}

/// Blocks of a piece with so many bytes of objects.
pub(super) fn piece_len(objects: usize) -> usize {
    (PIECE_HEAD + objects).next_multiple_of(BLOCK)
}

/// The objects of piece number `index`.
pub(super) fn parse_piece(block: &[u8], epoch: u64, index: u32) -> Result<&[u8], Bad> {
    let mut from = Fields(block);
    let (magic, crc) = (from.array::<4>()?, from.u32()?);
    let (its_epoch, its_index, bytes) = (from.u64()?, from.u32()?, from.u32()?);
    let bytes = usize::try_from(bytes).map_err(|_| Bad::Absent)?;
    let objects = from.0.get(..bytes).ok_or(Bad::Absent)?;
    let sealed = block.get(8..PIECE_HEAD + bytes).ok_or(Bad::Absent)?;
    let is_it = &magic == PIECE_MAGIC && crc == crc32c(sealed);
    if is_it && (its_epoch, its_index) == (epoch, index) { Ok(objects) } else { Err(Bad::Absent) }
}

/// What a block of the log says beside its records.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct LogHead {
    pub(super) epoch: u64,
    pub(super) index: u32,
    pub(super) before: u32,
    /// Blocks of this epoch that were durable when it was written.
    pub(super) durable: u32,
}

impl LogHead {
    /// Writes the block; its crc.
    pub(super) fn emit(&self, block: &mut [u8], records: &[u8]) -> u32 {
        set(block, 0, LOG_MAGIC);
        set(block, 8, &self.epoch.to_le_bytes());
        set(block, 16, &self.index.to_le_bytes());
        set(block, 20, &self.before.to_le_bytes());
        set(block, 24, &self.durable.to_le_bytes());
        set(block, 28, &u32::try_from(records.len()).unwrap_or(0).to_le_bytes());
        set(block, LOG_HEAD, records);
        let crc = crc32c(block.get(8..BLOCK).unwrap_or_default());
        set(block, 4, &crc.to_le_bytes());
        crc
    }

    /// A whole block: what it says, its records, its crc.
    pub(super) fn parse(block: &[u8]) -> Result<(LogHead, &[u8], u32), Bad> {
        let mut from = Fields(block);
        let (magic, crc) = (from.array::<4>()?, from.u32()?);
        if &magic != LOG_MAGIC || crc != crc32c(block.get(8..BLOCK).ok_or(Bad::Absent)?) {
            return Err(Bad::Absent);
        }
        let (epoch, index, before) = (from.u64()?, from.u32()?, from.u32()?);
        let head = LogHead { epoch, index, before, durable: from.u32()? };
        let bytes = usize::try_from(from.u32()?).map_err(|_| Bad::Impossible)?;
        let records = from.0.get(..bytes.min(LOG_ROOM + 1)).ok_or(Bad::Impossible)?;
        if head.durable > head.index { Err(Bad::Impossible) } else { Ok((head, records, crc)) }
    }
}

/// The epoch that a piece or a block of the log says it has, whole or not.
pub(super) fn epoch(block: &[u8]) -> Option<u64> {
    let mut from = Fields(block);
    let magic = from.array::<4>().ok()?;
    let _crc = from.u32().ok()?;
    let is_ours = &magic == PIECE_MAGIC || &magic == LOG_MAGIC;
    from.u64().ok().filter(|_| is_ours)
}

/// All records of a block.
pub(super) fn records(bytes: &[u8]) -> Result<Vec<Record>, Bad> {
    let (mut from, mut records) = (Fields(bytes), Vec::new());
    while !from.is_empty() {
        records.push(Record::parse(&mut from)?);
    }
    Ok(records)
}

const _: () = assert!(GRAIN.is_multiple_of(BLOCK as u64));
