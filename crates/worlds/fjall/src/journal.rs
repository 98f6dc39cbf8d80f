//! What power loss does to the engine's journal, undone before the engine sees it.
//!
//! ```text
//! batch  | start | item | item | ... | end |
//! start  | 1 (1) | items (4) | sequence (8) |
//! item   | 2 (1) | type (1) | compression (1) | keyspace (8) | key len (2) | len (4) |
//!        | stored len (4) | key | value |
//! clear  | 4 (1) | keyspace (8) |                                        counts as an item
//! end    | 3 (1) | xxh3 of the items (8) | "FJL" 3 |                     little-endian
//! ```
//! A journal is written through the page cache: after power loss, pages of what was not synced may
//! be there or not, in any subset. The engine drops an incomplete last batch, but calls a batch
//! with a hole inside (its checksum fails) damage, and does not open. What follows the first batch
//! that is not whole was never synced, because a sync makes all before it whole; so it is cut off
//! here. Only the last journal can have such a tail, since the engine syncs a journal before it
//! begins the next; or the one before, if the engine made the last and failed before it used it.

use std::fs::{File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};

use tracing::warn;
use xxhash_rust::xxh3::Xxh3;

const START: u8 = 1;
const ITEM: u8 = 2;
const END: u8 = 3;
const CLEAR: u8 = 4;
const TRAILER: &[u8; 4] = b"FJL\x03";
/// Bytes of an item after its tag and before its key.
const ITEM_HEAD: usize = 20;
/// Bytes of a batch's start and end.
const FRAME: usize = 13 + 13;

/// Cuts the last journal in `dir` after its last whole batch, if what follows is not empty; where
/// nothing is in it, the one before, too, which may have been written until the end.
pub(super) fn repair(dir: &Path) -> io::Result<()> {
    for (_, path) in super::journals(dir)?.into_iter().rev().take(2) {
        if repair_one(&path)? > 0 {
            break;
        }
    }
    Ok(())
}

/// How many bytes of whole batches a journal has, after all else was cut off.
fn repair_one(path: &Path) -> io::Result<usize> {
    let bytes = written(path, 0)?;
    let whole = whole_batches(&bytes);
    let tail = bytes.get(whole..).unwrap_or_default();
    let Some(last) = tail.iter().rposition(|byte| *byte != 0) else { return Ok(whole) };
    warn!(
        journal = %path.display(),
        bytes = last + 1,
        "cutting the journal's tail: it was being written when the computer or the process died"
    );
    let file = OpenOptions::new().write(true).open(path)?;
    file.set_len(whole as u64)?;
    file.sync_all()?;
    Ok(whole)
}

/// Bytes of a journal looked at together. The engine makes a journal 64 MiB of zeros at first.
const PIECE: usize = 1 << 20;

/// What is written in a journal from `from` on, up to the first long stretch of zeros.
fn written(path: &Path, from: u64) -> io::Result<Vec<u8>> {
    let zeros = vec![0; PIECE];
    let mut file = File::open(path)?;
    file.seek(SeekFrom::Start(from))?;
    let mut bytes = Vec::new();
    loop {
        let before = bytes.len();
        let read = Read::by_ref(&mut file).take(PIECE as u64).read_to_end(&mut bytes)?;
        if bytes.get(before..) == zeros.get(..read) {
            bytes.truncate(before);
            return Ok(bytes);
        }
    }
}

/// What is written in a journal.
pub(crate) fn journal_bytes(path: &Path) -> io::Result<Vec<u8>> {
    written(path, 0)
}

/// A place in the journals: what was committed before lies before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct JournalMark {
    /// Number of the journal.
    pub journal: u64,
    /// Bytes of it.
    pub len: u64,
}

impl JournalMark {
    /// The journal being written in `dir`.
    pub fn last(dir: &Path) -> io::Result<Option<(u64, PathBuf)>> {
        Ok(super::journals(dir)?.pop())
    }

    /// Where the whole batches in `dir` end, `known` being a place before.
    pub fn of(dir: &Path, known: JournalMark) -> io::Result<JournalMark> {
        let Some((journal, path)) = Self::last(dir)? else { return Ok(known) };
        let from = if journal == known.journal { known.len } else { 0 };
        let bytes = written(&path, from)?;
        Ok(JournalMark { journal, len: from + whole_batches(&bytes) as u64 })
    }
}

/// Bytes a batch takes in a journal, at most.
pub(super) fn encoded_len(batch: &outboard_kv::Batch) -> u64 {
    let items = batch.writes().len() * (1 + ITEM_HEAD);
    (FRAME + items + batch.bytes()) as u64
}

/// Length of the whole batches `bytes` starts with.
pub(super) fn whole_batches(bytes: &[u8]) -> usize {
    let mut rest = bytes;
    loop {
        match batch(rest) {
            Some(after) => rest = after,
            None => return bytes.len() - rest.len(),
        }
    }
}

/// What follows the whole batch `bytes` starts with; `None` if it starts with none.
fn batch(bytes: &[u8]) -> Option<&[u8]> {
    let (&START, rest) = bytes.split_first()? else { return None };
    let (count, rest) = rest.split_first_chunk::<4>()?;
    let (_sequence, mut rest) = rest.split_first_chunk::<8>()?;
    let mut hash = Xxh3::new();
    for _ in 0..u32::from_le_bytes(*count) {
        let after = item(rest)?;
        hash.update(rest.get(..rest.len() - after.len())?);
        rest = after;
    }
    let (&END, rest) = rest.split_first()? else { return None };
    let (stored, rest) = rest.split_first_chunk::<8>()?;
    let (trailer, rest) = rest.split_first_chunk::<4>()?;
    (trailer == TRAILER && hash.digest() == u64::from_le_bytes(*stored)).then_some(rest)
}

/// What follows the item `bytes` starts with.
fn item(bytes: &[u8]) -> Option<&[u8]> {
    let (tag, rest) = bytes.split_first()?;
    match *tag {
        CLEAR => rest.get(8..),
        ITEM => {
            let (head, rest) = rest.split_first_chunk::<ITEM_HEAD>()?;
            let &[_, _, _, _, _, _, _, _, _, _, k0, k1, _, _, _, _, v0, v1, v2, v3] = head;
            let key = usize::from(u16::from_le_bytes([k0, k1]));
            let value = usize::try_from(u32::from_le_bytes([v0, v1, v2, v3])).ok()?;
            rest.get(key.checked_add(value)?..)
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn no_bytes_panic(mut bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = whole_batches(&bytes);
            bytes.insert(0, START);
            let _ = whole_batches(&bytes);
        }
    }
}
