//! Reading: whole blocks, checked, adjacent ones in one operation; packed ones are unpacked.

use std::sync::Arc;

use outboard_base::limits::FILE_SIZE_MAX;
use outboard_codec::crc32c;

use super::index::{Entry, Page, SLOTS, locate, page_key};
use super::pack;
use super::pool::Pool;
use super::{BLOCK, ObjectId, Objects};
use crate::{Batch, Key, Kv, KvError};
use outboard_base::task::{join_all, join2};
use outboard_medium::{Buf, Lent, Medium};

/// A read that loses a race with a writer is done again, this often.
const ATTEMPTS: usize = 8;

/// Bytes of a block, as lengths in memory are counted.
pub(super) const BLOCK_LEN: usize = outboard_base::limits::BLOCK;

/// The blocks of file that bytes `offset..offset + len` touch; `TooLarge` beyond the largest file.
pub(super) fn blocks_of(offset: u64, len: usize) -> Result<std::ops::Range<u64>, KvError> {
    let end = offset.checked_add(len as u64).filter(|end| *end <= FILE_SIZE_MAX);
    let end = end.ok_or(KvError::TooLarge)?;
    Ok(offset / BLOCK..end.div_ceil(BLOCK))
}

/// Adjacent data blocks, or adjacent entries without data, of a read.
pub(super) struct Stretch<'a> {
    /// Index of the first, among the blocks of the read.
    at: usize,
    pub(super) entries: &'a [Entry],
}

/// Whether `b` continues `a`: on the medium, or in reading zero.
fn adjacent(a: &Entry, b: &Entry) -> bool {
    if a.is_data() { b.is_data() && pack::follows(a, b) } else { !b.is_data() }
}

pub(super) fn stretches(entries: &[Entry]) -> Vec<Stretch<'_>> {
    let mut at = 0;
    let chunks = entries.chunk_by(adjacent);
    chunks
        .map(|entries| {
            let stretch = Stretch { at, entries };
            at += entries.len();
            stretch
        })
        .collect()
}

impl<K: Kv, M: Medium> Objects<K, M> {
    /// A page of an object's index, as `batch` would leave it.
    pub(super) async fn page(
        &self,
        id: ObjectId,
        number: u32,
        batch: Option<&Batch>,
    ) -> Result<Page, KvError> {
        let key = page_key(id, number);
        let value = match batch.and_then(|b| b.staged(&key)) {
            Some(staged) => staged.cloned(),
            None => self.kv.get(&key).await?,
        };
        Page::of(id, number, value.as_ref())
    }

    pub(super) async fn entries(
        &self,
        id: ObjectId,
        blocks: std::ops::Range<u64>,
    ) -> Result<Vec<Entry>, KvError> {
        let (first, slot) = locate(blocks.start);
        let (last, _) = locate(blocks.end.saturating_sub(1));
        let count = usize::try_from(blocks.end.saturating_sub(blocks.start)).unwrap_or(0);
        if first == last {
            let page = self.page(id, first, None).await?;
            return Ok(page.entries.iter().skip(slot).take(count).copied().collect());
        }
        // All pages at once: where the store is far, each way there and back counts.
        let keys: Vec<Key> = (first..=last).map(|number| page_key(id, number).into()).collect();
        let values = self.kv.get_many(&keys).await?;
        let mut entries = Vec::with_capacity(keys.len() * SLOTS);
        for (number, value) in (first..=last).zip(&values) {
            entries.extend(Page::of(id, number, value.as_ref())?.entries);
        }
        Ok(entries.into_iter().skip(slot).take(count).collect())
    }

    /// Fills `out` with the object's bytes from `offset`; holes read zero. Knows no file size: the
    /// caller clips. Every block is checked: [`KvError::Corrupt`] if one fails, and `out` is then
    /// not to be used.
    pub async fn read(&self, id: ObjectId, offset: u64, out: &mut [u8]) -> Result<(), KvError> {
        let blocks = blocks_of(offset, out.len())?;
        let mut entries = self.entries(id, blocks.clone()).await?;
        for _ in 0..ATTEMPTS {
            match self.read_entries(&entries, offset % BLOCK, out).await {
                Err(KvError::Corrupt) => {
                    // A block may have been moved, freed and reused under us; then the index says
                    // so.
                    let now = self.entries(id, blocks.clone()).await?;
                    if now == entries {
                        return Err(KvError::Corrupt);
                    }
                    entries = now;
                }
                other => return other,
            }
        }
        Err(KvError::Corrupt)
    }

    /// Like [`Objects::read`], into a buffer of the store. Where the bytes begin with a block and
    /// lie in adjacent ones, as most do, it is the very buffer the medium filled.
    pub async fn read_lent(&self, id: ObjectId, offset: u64, len: usize) -> Result<Lent, KvError> {
        if self.medium.ahead() == 0 {
            return self.lent(id, offset, len).await;
        }
        let ahead = self.look_ahead(id, blocks_of(offset, len)?);
        join2(self.lent(id, offset, len), ahead).await.0
    }

    async fn lent(&self, id: ObjectId, offset: u64, len: usize) -> Result<Lent, KvError> {
        if offset.is_multiple_of(BLOCK) && len >= BLOCK_LEN {
            let entries = self.entries(id, blocks_of(offset, len)?).await?;
            if let [only] = &stretches(&entries)[..]
                && let Ok(Some(buf)) = self.read_stretch(only.entries).await
            {
                return Ok(self.lent_out(buf, len));
            }
            // Scattered, or a hole, or moved under us, or bad: the general way tells.
        }
        let mut lent = self.lend(len);
        self.read(id, offset, &mut lent).await?;
        Ok(lent)
    }

    /// A buffer of the store with arbitrary bytes in it.
    pub fn lend(&self, len: usize) -> Lent {
        let blocks = (len as u64).div_ceil(BLOCK).max(1);
        self.lent_out(self.pool.take(blocks), len)
    }

    fn lent_out(&self, buf: Buf, len: usize) -> Lent {
        let pool: Arc<Pool> = Arc::clone(&self.pool);
        Lent::new(buf, len, pool)
    }

    /// Reads what `entries` name, from byte `skip` of the first.
    async fn read_entries(
        &self,
        entries: &[Entry],
        skip: u64,
        out: &mut [u8],
    ) -> Result<(), KvError> {
        let skip = usize::try_from(skip).unwrap_or(0);
        if let [entry] = entries
            && entry.is_data()
            && out.len() < BLOCK_LEN
        {
            return self.read_part(*entry, skip, out).await;
        }
        let stretches = stretches(entries);
        if let [only] = &stretches[..] {
            let buf = self.read_stretch(only.entries).await?;
            return self.deliver(buf, 0, only.entries.len(), skip, out);
        }
        let reads = stretches.iter().map(|s| self.read_stretch(s.entries)).collect();
        for (stretch, buf) in stretches.iter().zip(join_all(reads).await) {
            self.deliver(buf?, stretch.at, stretch.entries.len(), skip, out)?;
        }
        Ok(())
    }

    /// The checked bytes of adjacent entries; `None` where they read zero.
    async fn read_stretch(&self, entries: &[Entry]) -> Result<Option<Buf>, KvError> {
        if !entries.first().is_some_and(|e| e.is_data()) {
            return Ok(None);
        }
        let (offset, len) = pack::extent(entries);
        let expected = match self.medium.ahead() {
            0 => None,
            _ => self.medium.expected(offset..offset + len as u64).await,
        };
        let (result, buf) = match expected {
            Some(buf) => (Ok(()), buf),
            None => {
                let mut buf = self.pool.take((len as u64).div_ceil(BLOCK));
                buf.resize(len);
                self.medium.read(offset, buf).await
            }
        };
        let read = result.map_err(KvError::from).and_then(|()| {
            if entries.iter().all(|entry| entry.is_whole()) {
                let mut blocks = buf.chunks(BLOCK_LEN).zip(entries);
                let sound = blocks.all(|(bytes, entry)| crc32c(bytes) == entry.crc);
                return if sound { Ok(None) } else { Err(KvError::Corrupt) };
            }
            self.unpack(entries, offset, &buf).map(Some)
        });
        match read {
            Ok(None) => Ok(Some(buf)),
            unpacked => {
                self.pool.give(buf);
                unpacked
            }
        }
    }

    /// The checked bytes of adjacent entries, some of them packed, out of `raw`, read at `offset`.
    fn unpack(&self, entries: &[Entry], offset: u64, raw: &[u8]) -> Result<Buf, KvError> {
        let mut plain = self.pool.take(entries.len() as u64);
        let mut blocks = entries.iter().zip(plain.chunks_mut(BLOCK_LEN));
        match blocks.try_for_each(|(entry, plain)| pack::unpack(*entry, offset, raw, plain)) {
            Ok(()) => Ok(plain),
            Err(error) => {
                self.pool.give(plain);
                Err(error)
            }
        }
    }

    /// Copies `count` blocks, the first being number `at` of the read, to where they belong in
    /// `out`.
    fn deliver(
        &self,
        buf: Option<Buf>,
        at: usize,
        count: usize,
        skip: usize,
        out: &mut [u8],
    ) -> Result<(), KvError> {
        let from = (at * BLOCK_LEN).saturating_sub(skip);
        let to = ((at + count) * BLOCK_LEN).saturating_sub(skip).min(out.len());
        let lost = if at == 0 { skip } else { 0 };
        let target = out.get_mut(from..to).ok_or(KvError::TooLarge)?;
        match buf {
            None => target.fill(0),
            Some(buf) => {
                let source = buf.get(lost..lost + target.len()).ok_or(KvError::TooLarge)?;
                target.copy_from_slice(source);
                self.pool.give(buf);
            }
        }
        Ok(())
    }

    /// Fills `out`, less than a block, from byte `skip` of a block. The rest of it is likely to be
    /// asked for next.
    async fn read_part(&self, entry: Entry, skip: usize, out: &mut [u8]) -> Result<(), KvError> {
        if self.recent.copy(entry, skip, out) {
            return Ok(());
        }
        let Some(buf) = self.read_stretch(&[entry]).await? else { return Ok(()) };
        let part = buf.get(skip..skip + out.len()).ok_or(KvError::TooLarge);
        let copied = part.map(|part| out.copy_from_slice(part));
        self.keep(entry, buf);
        copied
    }

    /// Keeps the bytes of a block for those who come for a part of it: in memory of their own,
    /// since a part of what was read ahead would hold all of that.
    pub(super) fn keep(&self, entry: Entry, bytes: Buf) {
        let bytes = if bytes.is_part() {
            let mut own = self.pool.take(1);
            own.resize(bytes.len());
            own.copy_from_slice(&bytes);
            own
        } else {
            bytes
        };
        if let Some(old) = self.recent.keep(entry, bytes) {
            self.pool.give(old);
        }
    }

    /// The checked bytes of one block; `None` if it reads zero.
    pub(super) async fn read_block(&self, entry: Entry) -> Result<Option<Buf>, KvError> {
        let mut buf = self.pool.take(1);
        if entry.is_data() && self.recent.copy(entry, 0, &mut buf) {
            return Ok(Some(buf));
        }
        self.pool.give(buf);
        self.read_stretch(&[entry]).await
    }
}
