//! The metadata segment: formatting, recovery, changes, checkpoints.

use std::sync::PoisonError;

use outboard_base::Errno;
use outboard_codec::crc32c;
use outboard_medium::{Buf, Medium};

use super::format::{
    BLOCK, Bad, Fields, HALVES_AT, Head, LOG_ROOM, Record, Superblock, checkpoint_blocks, emit_log,
    parse_log,
};
use super::state::State;
use super::{FileError, FileService, Layout, OpenError};

/// Blocks of a half that a checkpoint leaves to the log, at least.
const LOG_MIN: u64 = 8;

/// Where the next change is written.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Log {
    /// 0 or 1.
    half: u64,
    sequence: u64,
    /// The next block of the half.
    block: u64,
    /// What the next log block says: its index, and the crc before it.
    index: u32,
    before: u32,
    /// Bytes of records a checkpoint may have now, at most.
    bytes: usize,
    /// A write failed: behind it nothing would be found.
    broken: bool,
}

fn half_blocks(superblock: &Superblock) -> u64 {
    (superblock.segment / BLOCK as u64 - HALVES_AT) / 2
}

fn half_at(superblock: &Superblock, half: u64) -> u64 {
    (HALVES_AT + half * half_blocks(superblock)) * BLOCK as u64
}

async fn read_blocks<M: Medium>(medium: &M, at: u64, blocks: u64) -> Result<Buf, Errno> {
    let len = usize::try_from(blocks).unwrap_or(usize::MAX).saturating_mul(BLOCK);
    let (result, buf) = medium.read(at, Buf::zeroed(len)).await;
    result.map(|()| buf)
}

/// See [`FileService::format`].
pub(super) async fn format<M: Medium>(
    medium: &M,
    layout: Layout,
    name: u64,
    force: bool,
) -> Result<(), OpenError> {
    let Layout { segment, segments } = layout;
    if !Layout::is_valid(segment, segments) {
        return Err(OpenError::Layout);
    }
    let was_zeros = medium.is_empty();
    if !was_zeros && !force {
        // An empty volume of an unfinished format is no volume yet: its superblock comes last.
        let front = read_blocks(medium, 0, 2.min(medium.len() / BLOCK as u64)).await?;
        if front.iter().any(|byte| *byte != 0) {
            return Err(OpenError::OtherFormat);
        }
    }
    medium.grow(segment).await?;
    let superblock = Superblock { segments, segment, was_zeros, name };
    let write = async |at: u64, buf: Buf| medium.write(at, buf).await.0.map_err(OpenError::Io);
    // No checkpoint of an earlier volume may count.
    write(half_at(&superblock, 1), Buf::zeroed(BLOCK)).await?;
    let mut block = Buf::zeroed(BLOCK);
    let head = Head { sequence: 1, crc: crc32c(&[]), ..Head::default() };
    head.emit(&mut block);
    write(half_at(&superblock, 0), block).await?;
    medium.flush().await?;
    for copy in 0..HALVES_AT {
        let mut block = Buf::zeroed(BLOCK);
        superblock.emit(&mut block);
        write(copy * BLOCK as u64, block).await?;
    }
    medium.flush().await.map_err(OpenError::Io)
}

pub(super) async fn superblock<M: Medium>(medium: &M) -> Result<Superblock, OpenError> {
    if medium.is_empty() {
        return Err(OpenError::Empty);
    }
    let front = read_blocks(medium, 0, HALVES_AT.min(medium.len() / BLOCK as u64)).await?;
    let mut found = Err(Bad::Absent);
    for block in front.chunks(BLOCK) {
        found = Superblock::parse(block);
        if found.is_ok() {
            break;
        }
    }
    match found {
        Ok(superblock) if medium.len() < superblock.segment => {
            Err(OpenError::Damaged("the device is shorter than its metadata"))
        }
        Ok(superblock) => Ok(superblock),
        Err(Bad::Version(version)) => Err(OpenError::Version(version)),
        Err(Bad::Impossible) => Err(OpenError::Damaged("its superblock cannot be")),
        Err(Bad::Absent) if front.iter().all(|byte| *byte == 0) => Err(OpenError::Empty),
        Err(Bad::Absent) => Err(OpenError::OtherFormat),
    }
}

/// Both copies of the superblock.
pub(super) async fn superblocks<M: Medium>(
    medium: &M,
) -> Result<Vec<Result<Superblock, Bad>>, Errno> {
    let front = read_blocks(medium, 0, HALVES_AT).await?;
    Ok(front.chunks(BLOCK).map(Superblock::parse).collect())
}

/// A half whose checkpoint is whole.
struct Half {
    half: u64,
    head: Head,
    crc: u32,
    bytes: Buf,
}

impl Half {
    async fn read<M: Medium>(
        medium: &M,
        superblock: &Superblock,
        half: u64,
    ) -> Result<Option<Half>, OpenError> {
        let bytes = read_blocks(medium, half_at(superblock, half), half_blocks(superblock)).await?;
        let Ok((head, crc)) = Head::parse(&bytes) else { return Ok(None) };
        let half = Half { half, head, crc, bytes };
        let whole = half.records().is_some_and(|records| crc32c(records) == half.head.crc);
        Ok(whole.then_some(half))
    }

    fn records(&self) -> Option<&[u8]> {
        self.bytes.get(BLOCK..)?.get(..usize::try_from(self.head.bytes).ok()?)
    }

    /// What the checkpoint and the log behind it say.
    fn replay(&self, superblock: &Superblock) -> Result<(State, Log), Bad> {
        let mut state = State::new(superblock.segment, superblock.segments, &self.head);
        let records = self.records().ok_or(Bad::Impossible)?;
        apply_all(&mut state, records)?;
        let mut log = Log {
            half: self.half,
            sequence: self.head.sequence,
            block: checkpoint_blocks(records.len()),
            before: self.crc,
            bytes: records.len(),
            ..Log::default()
        };
        let first = usize::try_from(log.block).unwrap_or(usize::MAX);
        for block in self.bytes.chunks(BLOCK).skip(first) {
            let next = parse_log(block, log.sequence, log.index, log.before);
            let Ok((records, crc)) = next else { break };
            apply_all(&mut state, records)?;
            log.index += 1;
            log.block += 1;
            log.before = crc;
            log.bytes += records.len();
        }
        state.settle();
        Ok((state, log))
    }
}

fn apply_all(state: &mut State, records: &[u8]) -> Result<(), Bad> {
    let mut fields = Fields::new(records);
    while !fields.is_empty() {
        state.apply(&Record::parse(&mut fields)?)?;
    }
    Ok(())
}

/// The volume as its last changes left it.
pub(super) async fn recover<M: Medium>(medium: &M) -> Result<(Superblock, State, Log), OpenError> {
    let superblock = superblock(medium).await?;
    let mut best: Option<Half> = None;
    for half in 0..2 {
        if let Some(half) = Half::read(medium, &superblock, half).await? {
            let newer = best.as_ref().is_none_or(|best| best.head.sequence < half.head.sequence);
            if newer {
                best = Some(half);
            }
        }
    }
    let best = best.ok_or(OpenError::Damaged("no checkpoint is whole"))?;
    let (state, log) =
        best.replay(&superblock).map_err(|_| OpenError::Damaged("a record says what cannot be"))?;
    Ok((superblock, state, log))
}

/// Records in as few blocks as hold them.
fn packed(records: &[Record]) -> Vec<Vec<u8>> {
    let mut blocks: Vec<Vec<u8>> = Vec::new();
    let mut bytes = Vec::new();
    for record in records {
        bytes.clear();
        record.emit(&mut bytes);
        match blocks.last_mut() {
            Some(block) if block.len() + bytes.len() <= LOG_ROOM => block.extend(&bytes),
            _ => blocks.push(bytes.clone()),
        }
    }
    blocks
}

fn adds(record: &Record) -> bool {
    matches!(record, Record::Directory { .. } | Record::File { .. } | Record::Grown { .. })
}

impl<M: Medium> FileService<M> {
    fn log(&self) -> Log {
        *self.log.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn set_log(&self, log: Log) {
        *self.log.lock().unwrap_or_else(PoisonError::into_inner) = log;
    }

    /// Puts records on the medium and then does what they say. The caller is in `changing`.
    pub(super) async fn commit(&self, records: &[Record]) -> Result<(), FileError> {
        let blocks = packed(records);
        let more: usize = blocks.iter().map(Vec::len).sum();
        let half = half_blocks(&self.superblock);
        let room = |log: &Log| log.block + blocks.len() as u64 <= half;
        let fits = |log: &Log| checkpoint_blocks(log.bytes + more) + LOG_MIN <= half;
        let mut log = self.log();
        if log.broken || !room(&log) || !fits(&log) {
            self.checkpoint().await?;
            log = self.log();
            if !room(&log) || !fits(&log) && records.iter().any(adds) {
                return Err(FileError::Full);
            }
        }
        let mut buf = Buf::zeroed(blocks.len() * BLOCK);
        let at = half_at(&self.superblock, log.half) + log.block * BLOCK as u64;
        for (block, bytes) in buf.chunks_mut(BLOCK).zip(&blocks) {
            log.before = emit_log(block, log.sequence, log.index, log.before, bytes);
            log.index += 1;
            log.block += 1;
        }
        log.bytes += more;
        let (written, _) = self.medium.write(at, buf).await;
        log.broken = written.is_err();
        self.set_log(log);
        written?;
        let mut state = self.state();
        for record in records {
            // Each was made from this very state by who is in `changing`.
            let applied = state.apply(record);
            debug_assert!(applied.is_ok(), "{record:?}");
        }
        Ok(())
    }

    /// Writes all metadata into the other half, durably, and goes on there. The caller is in
    /// `changing`, or alone.
    pub(super) async fn checkpoint(&self) -> Result<(), FileError> {
        let mut log = self.log();
        let (records, mut head) = {
            let state = self.state();
            let mut records = Vec::new();
            state.records().for_each(|record| record.emit(&mut records));
            let head = Head {
                sequence: log.sequence + 1,
                next_directory: state.next_directory,
                next_file: state.next_file,
                fresh: state.marked,
                ..Head::default()
            };
            (records, head)
        };
        let blocks = checkpoint_blocks(records.len());
        if blocks > half_blocks(&self.superblock) {
            return Err(FileError::Full);
        }
        head.bytes = u32::try_from(records.len()).map_err(|_| FileError::Full)?;
        head.crc = crc32c(&records);
        let mut buf = Buf::zeroed(usize::try_from(blocks).unwrap_or(0) * BLOCK);
        let crc = head.emit(&mut buf);
        if let Some(to) = buf.get_mut(BLOCK..BLOCK + records.len()) {
            to.copy_from_slice(&records);
        }
        let half = 1 - log.half;
        // Until the new one is durable the old half counts, and nothing is added to it: what
        // follows a checkpoint on the medium then belongs to it and to no other.
        log.broken = true;
        self.set_log(log);
        let (written, _) = self.medium.write(half_at(&self.superblock, half), buf).await;
        written?;
        self.medium.flush().await?;
        self.set_log(Log {
            half,
            sequence: head.sequence,
            block: blocks,
            index: 0,
            before: crc,
            bytes: records.len(),
            broken: false,
        });
        Ok(())
    }
}
