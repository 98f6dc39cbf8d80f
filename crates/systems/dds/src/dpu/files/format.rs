//! The bytes of the metadata segment.
//!
//! ```text
//! segment 0, by blocks of 4096 bytes
//! 0, 1   superblock, twice: magic "OBDDSFS1" | 8 version u32 | 12 segments u32 | 16 segment bytes
//!        u64 | 24 medium was zeros u32 | 28 0 | 32 name u64 | 40 crc32c u32 of 0-39 | 44 0
//!        All of it in one sector, which is written whole or not at all: it is never half made.
//! 2..    half A, then half B, equally long
//!
//! half   0 checkpoint head, then its records, whole blocks; then blocks of the log
//! head   "OBDC" | 4 crc32c u32 of 8-4095 | 8 sequence u64 | 16 bytes of records u32 | 20 crc32c of
//!        them u32 | 24 next directory u32 | 28 next file u32 | 32 first segment never used u32
//! log    "OBDL" | 4 crc32c u32 of 8-4095 | 8 sequence u64 | 16 index u32 | 20 crc of the block
//!        before u32 | 24 bytes of records u32 | 28 records
//!
//! record 1 directory   id u32, name
//!        2 gone        id u32                              an empty directory went
//!        3 file        id u32, directory u32, name
//!        4 deleted     id u32
//!        5 grown       id u32, size u64, runs u16, runs * (first segment u32, count u32)
//!        6 cut         id u32, size u64
//!        7 used        segment u32                         those before it may have been written
//! name   length u8, bytes
//! ```
//!
//! A checkpoint is the records that make a volume from nothing; a log block is those of one change
//! or of several. The half whose head is whole and has the greater sequence counts, and of its log
//! the blocks that follow one another without a gap.

use outboard_codec::crc32c;
use outboard_medium::ALIGN;
use outboard_wire::dds::NAME_MAX;

/// Bytes of a block.
pub(super) const BLOCK: usize = ALIGN;
const MAGIC: &[u8; 8] = b"OBDDSFS1";
const VERSION: u32 = 2;
/// Bytes of a superblock before its crc.
const SUPERBLOCK: usize = 40;
const CHECKPOINT: &[u8; 4] = b"OBDC";
const LOG: &[u8; 4] = b"OBDL";
/// First byte of records in a log block.
const LOG_HEAD: usize = 28;
/// Most bytes of records in one log block.
pub(super) const LOG_ROOM: usize = BLOCK - LOG_HEAD;
/// Most runs of one record: it fits a log block whatever it says.
pub(super) const RUNS_MAX: usize = 256;
/// Blocks before the first half.
pub(super) const HALVES_AT: u64 = 2;

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
pub(super) struct Fields<'a>(&'a [u8]);

impl<'a> Fields<'a> {
    pub(super) fn new(bytes: &'a [u8]) -> Fields<'a> {
        Fields(bytes)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], Bad> {
        let (head, rest) = self.0.split_first_chunk::<N>().ok_or(Bad::Impossible)?;
        self.0 = rest;
        Ok(*head)
    }

    fn u8(&mut self) -> Result<u8, Bad> {
        self.array::<1>().map(|[byte]| byte)
    }

    fn u16(&mut self) -> Result<u16, Bad> {
        self.array().map(u16::from_le_bytes)
    }

    fn u32(&mut self) -> Result<u32, Bad> {
        self.array().map(u32::from_le_bytes)
    }

    fn u64(&mut self) -> Result<u64, Bad> {
        self.array().map(u64::from_le_bytes)
    }

    fn name(&mut self) -> Result<Vec<u8>, Bad> {
        let len = usize::from(self.u8()?);
        let (name, rest) = self.0.split_at_checked(len).ok_or(Bad::Impossible)?;
        self.0 = rest;
        if name.is_empty() { Err(Bad::Impossible) } else { Ok(name.to_vec()) }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

fn set(block: &mut [u8], at: usize, bytes: &[u8]) {
    if let Some(to) = block.get_mut(at..at + bytes.len()) {
        to.copy_from_slice(bytes);
    }
}

fn part(block: &[u8], from: usize, len: usize) -> Result<&[u8], Bad> {
    block.get(from..).and_then(|rest| rest.get(..len)).ok_or(Bad::Impossible)
}

/// What never changes after formatting.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Superblock {
    /// Segments, the metadata segment among them.
    pub(super) segments: u32,
    /// Bytes of each.
    pub(super) segment: u64,
    /// Whether what was never written reads as zeros.
    pub(super) was_zeros: bool,
    /// Tells this volume from others.
    pub(super) name: u64,
}

impl Superblock {
    pub(super) fn emit(&self, block: &mut [u8]) {
        block.fill(0);
        set(block, 0, MAGIC);
        set(block, 8, &VERSION.to_le_bytes());
        set(block, 12, &self.segments.to_le_bytes());
        set(block, 16, &self.segment.to_le_bytes());
        set(block, 24, &u32::from(self.was_zeros).to_le_bytes());
        set(block, 32, &self.name.to_le_bytes());
        let crc = crc32c(block.get(..SUPERBLOCK).unwrap_or_default());
        set(block, SUPERBLOCK, &crc.to_le_bytes());
    }

    pub(super) fn parse(block: &[u8]) -> Result<Superblock, Bad> {
        let mut fields = Fields::new(part(block, 0, BLOCK)?);
        if &fields.array::<8>()? != MAGIC {
            return Err(Bad::Absent);
        }
        let version = fields.u32()?;
        if version != VERSION {
            return Err(Bad::Version(version));
        }
        let crc = Fields::new(part(block, SUPERBLOCK, 4)?).u32()?;
        let rest = part(block, SUPERBLOCK + 4, BLOCK - SUPERBLOCK - 4)?;
        if crc != crc32c(part(block, 0, SUPERBLOCK)?) || rest.iter().any(|byte| *byte != 0) {
            return Err(Bad::Absent);
        }
        let (segments, segment) = (fields.u32()?, fields.u64()?);
        let (was_zeros, _, name) = (fields.u32()? == 1, fields.u32()?, fields.u64()?);
        let fits = segment.checked_mul(u64::from(segments)).is_some();
        if !super::Layout::is_valid(segment, segments) || !fits {
            return Err(Bad::Impossible);
        }
        Ok(Superblock { segments, segment, was_zeros, name })
    }
}

/// What is at the front of a half.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Head {
    pub(super) sequence: u64,
    pub(super) bytes: u32,
    pub(super) crc: u32,
    pub(super) next_directory: u32,
    pub(super) next_file: u32,
    pub(super) fresh: u32,
}

/// Blocks a checkpoint takes whose records have so many bytes.
pub(super) fn checkpoint_blocks(bytes: usize) -> u64 {
    1 + bytes.div_ceil(BLOCK) as u64
}

fn sealed(block: &mut [u8], magic: &[u8; 4]) -> u32 {
    let crc = crc32c(block.get(8..BLOCK).unwrap_or_default());
    set(block, 0, magic);
    set(block, 4, &crc.to_le_bytes());
    crc
}

/// The crc of a sealed block, if it is whole.
fn unsealed(block: &[u8], magic: &[u8; 4]) -> Result<u32, Bad> {
    let crc = Fields::new(part(block, 4, 4)?).u32()?;
    let whole = part(block, 0, 4)? == magic && crc == crc32c(part(block, 8, BLOCK - 8)?);
    if whole { Ok(crc) } else { Err(Bad::Absent) }
}

impl Head {
    /// Writes the block; its crc, which the first log block names.
    pub(super) fn emit(&self, block: &mut [u8]) -> u32 {
        set(block, 8, &self.sequence.to_le_bytes());
        for (at, field) in [
            (16, self.bytes),
            (20, self.crc),
            (24, self.next_directory),
            (28, self.next_file),
            (32, self.fresh),
        ] {
            set(block, at, &field.to_le_bytes());
        }
        sealed(block, CHECKPOINT)
    }

    pub(super) fn parse(block: &[u8]) -> Result<(Head, u32), Bad> {
        let crc = unsealed(block, CHECKPOINT)?;
        let mut fields = Fields::new(part(block, 8, BLOCK - 8)?);
        let head = Head {
            sequence: fields.u64()?,
            bytes: fields.u32()?,
            crc: fields.u32()?,
            next_directory: fields.u32()?,
            next_file: fields.u32()?,
            fresh: fields.u32()?,
        };
        Ok((head, crc))
    }
}

/// Writes a log block over zeros; its crc, which the next one names.
pub(super) fn emit_log(
    block: &mut [u8],
    sequence: u64,
    index: u32,
    before: u32,
    records: &[u8],
) -> u32 {
    set(block, 8, &sequence.to_le_bytes());
    set(block, 16, &index.to_le_bytes());
    set(block, 20, &before.to_le_bytes());
    set(block, 24, &u32::try_from(records.len()).unwrap_or(u32::MAX).to_le_bytes());
    set(block, LOG_HEAD, records);
    sealed(block, LOG)
}

/// The records of the log block that must come next, and its crc.
pub(super) fn parse_log(
    block: &[u8],
    sequence: u64,
    index: u32,
    before: u32,
) -> Result<(&[u8], u32), Bad> {
    let crc = unsealed(block, LOG)?;
    let mut fields = Fields::new(part(block, 8, BLOCK - 8)?);
    if (fields.u64()?, fields.u32()?, fields.u32()?) != (sequence, index, before) {
        return Err(Bad::Absent);
    }
    let len = usize::try_from(fields.u32()?).unwrap_or(usize::MAX);
    Ok((part(block, LOG_HEAD, len)?, crc))
}

/// Segments one after another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Run {
    pub(super) first: u32,
    pub(super) count: u32,
}

/// The fewest runs that name these segments in order.
pub(super) fn runs(segments: &[u32]) -> Vec<Run> {
    let mut out: Vec<Run> = Vec::new();
    for &segment in segments {
        match out.last_mut() {
            Some(run) if run.first.checked_add(run.count) == Some(segment) => run.count += 1,
            _ => out.push(Run { first: segment, count: 1 }),
        }
    }
    out
}

/// One change of the metadata.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Record {
    Directory {
        id: u32,
        name: Vec<u8>,
    },
    Gone {
        id: u32,
    },
    File {
        id: u32,
        directory: u32,
        name: Vec<u8>,
    },
    Deleted {
        id: u32,
    },
    /// Segments added at the file's end, and its size then.
    Grown {
        id: u32,
        size: u64,
        runs: Vec<Run>,
    },
    /// The size, and no more segments than it needs.
    Cut {
        id: u32,
        size: u64,
    },
    /// Segments before this one may have been written.
    Used {
        upto: u32,
    },
}

fn put_name(out: &mut Vec<u8>, name: &[u8]) {
    let name = name.get(..NAME_MAX).unwrap_or(name);
    out.push(u8::try_from(name.len()).unwrap_or(u8::MAX));
    out.extend_from_slice(name);
}

impl Record {
    pub(super) fn emit(&self, out: &mut Vec<u8>) {
        match self {
            Record::Directory { id, name } => {
                out.push(1);
                out.extend(id.to_le_bytes());
                put_name(out, name);
            }
            Record::Gone { id } => {
                out.push(2);
                out.extend(id.to_le_bytes());
            }
            Record::File { id, directory, name } => {
                out.push(3);
                out.extend(id.to_le_bytes());
                out.extend(directory.to_le_bytes());
                put_name(out, name);
            }
            Record::Deleted { id } => {
                out.push(4);
                out.extend(id.to_le_bytes());
            }
            Record::Grown { id, size, runs } => {
                let runs = runs.get(..RUNS_MAX).unwrap_or(runs);
                out.push(5);
                out.extend(id.to_le_bytes());
                out.extend(size.to_le_bytes());
                out.extend(u16::try_from(runs.len()).unwrap_or(u16::MAX).to_le_bytes());
                for run in runs {
                    out.extend(run.first.to_le_bytes());
                    out.extend(run.count.to_le_bytes());
                }
            }
            Record::Cut { id, size } => {
                out.push(6);
                out.extend(id.to_le_bytes());
                out.extend(size.to_le_bytes());
            }
            Record::Used { upto } => {
                out.push(7);
                out.extend(upto.to_le_bytes());
            }
        }
    }

    pub(super) fn parse(fields: &mut Fields<'_>) -> Result<Record, Bad> {
        let kind = fields.u8()?;
        let id = fields.u32()?;
        Ok(match kind {
            1 => Record::Directory { id, name: fields.name()? },
            2 => Record::Gone { id },
            3 => Record::File { id, directory: fields.u32()?, name: fields.name()? },
            4 => Record::Deleted { id },
            5 => {
                let (size, count) = (fields.u64()?, usize::from(fields.u16()?));
                if count > RUNS_MAX {
                    return Err(Bad::Impossible);
                }
                let mut runs = Vec::with_capacity(count);
                for _ in 0..count {
                    runs.push(Run { first: fields.u32()?, count: fields.u32()? });
                }
                Record::Grown { id, size, runs }
            }
            6 => Record::Cut { id, size: fields.u64()? },
            7 => Record::Used { upto: id },
            _ => return Err(Bad::Impossible),
        })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn golden_bytes() {
        let mut out = Vec::new();
        Record::File { id: 2, directory: 1, name: b"log".to_vec() }.emit(&mut out);
        assert_eq!(out, [3, 2, 0, 0, 0, 1, 0, 0, 0, 3, b'l', b'o', b'g']);
        out.clear();
        let runs = vec![Run { first: 5, count: 2 }];
        Record::Grown { id: 2, size: 0x1_0000, runs }.emit(&mut out);
        let golden = [5, 2, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 1, 0, 5, 0, 0, 0, 2, 0, 0, 0];
        assert_eq!(out, golden);
    }

    #[test]
    fn runs_join_neighbours() {
        let all = [3, 4, 5, 9, 8, 7, u32::MAX];
        let joined: Vec<_> = runs(&all).iter().map(|run| (run.first, run.count)).collect();
        assert_eq!(joined, [(3, 3), (9, 1), (8, 1), (7, 1), (u32::MAX, 1)]);
    }

    fn records() -> impl Strategy<Value = Record> {
        let name = || prop::collection::vec(any::<u8>(), 1..=NAME_MAX);
        let run = any::<(u32, u32)>().prop_map(|(first, count)| Run { first, count });
        prop_oneof![
            (any::<u32>(), name()).prop_map(|(id, name)| Record::Directory { id, name }),
            any::<u32>().prop_map(|id| Record::Gone { id }),
            (any::<u32>(), any::<u32>(), name()).prop_map(|(id, directory, name)| Record::File {
                id,
                directory,
                name
            }),
            any::<u32>().prop_map(|id| Record::Deleted { id }),
            (any::<u32>(), any::<u64>(), prop::collection::vec(run, 0..=RUNS_MAX))
                .prop_map(|(id, size, runs)| Record::Grown { id, size, runs }),
            any::<(u32, u64)>().prop_map(|(id, size)| Record::Cut { id, size }),
            any::<u32>().prop_map(|upto| Record::Used { upto }),
        ]
    }

    proptest! {
        #[test]
        fn parse_undoes_emit(record in records()) {
            let mut out = Vec::new();
            record.emit(&mut out);
            prop_assert!(out.len() <= LOG_ROOM);
            let mut fields = Fields::new(&out);
            prop_assert_eq!(Record::parse(&mut fields), Ok(record));
            prop_assert!(fields.is_empty());
        }

        #[test]
        fn any_bytes_are_read_without_harm(bytes in prop::collection::vec(any::<u8>(), 0..400)) {
            let mut fields = Fields::new(&bytes);
            while Record::parse(&mut fields).is_ok() && !fields.is_empty() {}
            let mut block = vec![0; BLOCK];
            block[..bytes.len()].copy_from_slice(&bytes);
            prop_assert!(Superblock::parse(&block).is_err());
            prop_assert!(Head::parse(&block).is_err());
            prop_assert!(parse_log(&block, 0, 0, 0).is_err());
        }

        /// One bit anywhere in a block, and it does not count.
        #[test]
        fn a_flipped_bit_is_noticed(bit in 0..8 * BLOCK, sequence: u64, records in ".{0,200}") {
            let flip = |block: &[u8]| {
                let mut block = block.to_vec();
                block[bit / 8] ^= 1 << (bit % 8);
                block
            };
            let mut block = vec![0; BLOCK];
            emit_log(&mut block, sequence, 3, 9, records.as_bytes());
            prop_assert_eq!(parse_log(&block, sequence, 3, 9).unwrap().0, records.as_bytes());
            prop_assert!(parse_log(&block, sequence, 4, 9).is_err());
            prop_assert!(parse_log(&flip(&block), sequence, 3, 9).is_err());
            let head = Head { sequence, ..Head::default() };
            block.fill(0);
            head.emit(&mut block);
            prop_assert_eq!(Head::parse(&block).unwrap().0, head);
            prop_assert!(Head::parse(&flip(&block)).is_err());
            let superblock =
                Superblock { segments: 9, segment: 1 << 20, was_zeros: true, name: sequence };
            superblock.emit(&mut block);
            prop_assert_eq!(Superblock::parse(&block), Ok(superblock));
            prop_assert!(Superblock::parse(&flip(&block)).is_err());
        }
    }
}
