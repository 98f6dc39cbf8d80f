//! A file's bytes in the store: small in one pair, big in a file object.
//!
//! Every `stage_*` changes a [`Shape`] and a batch together; the caller stores the shape with its
//! attributes in that same batch, so whatever a crash keeps, size, form and bytes agree. The caller
//! holds the inode's lock alone from reading the shape to the end of the commit, and tells the
//! returned [`Staged`] what became of it. All but the trims are given shapes that are not
//! `trimming`.

use std::ops::Range;

use outboard_base::Ino;
use outboard_base::limits::{FILE_SIZE_MAX, SMALL_FILE_MAX};
use outboard_kv::object::{BLOCK, ObjectId, Objects, Progress, Room, Staged, Written};
use outboard_kv::{Batch, Kv, KvError};
use outboard_medium::{Lent, Medium};
use outboard_volume::Fill;

use super::shape::{SECTOR, Shape};
use crate::layout::key::{self, Tag};
use crate::layout::{DataKind, decode_small, encode_small};

const SMALL: u64 = SMALL_FILE_MAX as u64;

/// The bytes of the volume's regular files.
pub(crate) struct Store<'o, K, M> {
    objects: &'o Objects<K, M>,
}

fn object(ino: Ino) -> ObjectId {
    ObjectId(ino.0)
}

fn small_key(ino: Ino) -> [u8; 9] {
    key::of(Tag::Small, ino)
}

fn trim_key(ino: Ino) -> [u8; 9] {
    key::of(Tag::Trim, ino)
}

/// A length in memory; what does not fit one is beyond every buffer.
fn len(bytes: u64) -> usize {
    usize::try_from(bytes).unwrap_or(usize::MAX)
}

impl<'o, K: Kv, M: Medium> Store<'o, K, M> {
    pub(crate) fn new(objects: &'o Objects<K, M>) -> Self {
        Store { objects }
    }

    /// The bytes of a file that is not big, as `batch` would leave them. They may be fewer than its
    /// size: the rest reads zero.
    async fn small_bytes(
        &self,
        ino: Ino,
        shape: &Shape,
        batch: Option<&Batch>,
    ) -> Result<Vec<u8>, KvError> {
        if shape.data == DataKind::None {
            return Ok(Vec::new());
        }
        let key = small_key(ino);
        let value = match batch.and_then(|batch| batch.staged(&key)) {
            Some(staged) => staged.cloned(),
            None => self.objects.kv().get(&key).await?,
        };
        let value = value.ok_or(KvError::Corrupt)?;
        Ok(decode_small(ino, &value).map_err(|_| KvError::Corrupt)?.to_vec())
    }

    fn put_small(&self, ino: Ino, shape: &mut Shape, bytes: &[u8], batch: &mut Batch) {
        shape.sectors = (bytes.len() as u64).div_ceil(SECTOR);
        if bytes.is_empty() {
            shape.data = DataKind::None;
            batch.delete(small_key(ino));
        } else {
            shape.data = DataKind::Small;
            batch.put(small_key(ino), encode_small(ino, bytes));
        }
    }

    /// Fills `out` with bytes from `offset`; the caller has clipped it to the size.
    pub(crate) async fn read(
        &self,
        ino: Ino,
        shape: &Shape,
        offset: u64,
        out: &mut [u8],
    ) -> Result<(), KvError> {
        if shape.data == DataKind::Big {
            return self.objects.read(object(ino), offset, out).await;
        }
        let bytes = self.small_bytes(ino, shape, None).await?;
        let from = bytes.get(len(offset)..).unwrap_or_default();
        let count = from.len().min(out.len());
        let (head, tail) = out.split_at_mut(count);
        head.iter_mut().zip(from).for_each(|(to, from)| *to = *from);
        tail.fill(0);
        Ok(())
    }

    /// The same into a buffer of the object store's, without a copy where the bytes allow it.
    pub(crate) async fn read_lent(
        &self,
        ino: Ino,
        shape: &Shape,
        offset: u64,
        len: usize,
    ) -> Result<Lent, KvError> {
        if shape.data == DataKind::Big {
            return self.objects.read_lent(object(ino), offset, len).await;
        }
        let mut lent = self.objects.lend(len);
        self.read(ino, shape, offset, &mut lent).await?;
        Ok(lent)
    }

    /// Writes `data`, at most 1 MiB, at `offset`. `TooLarge` beyond the largest file.
    pub(crate) async fn stage_write(
        &self,
        ino: Ino,
        shape: &mut Shape,
        offset: u64,
        data: &[u8],
        batch: &mut Batch,
    ) -> Result<Staged, KvError> {
        let end = offset.checked_add(data.len() as u64).filter(|end| *end <= FILE_SIZE_MAX);
        let size = shape.size.max(end.ok_or(KvError::TooLarge)?);
        let staged = if shape.data == DataKind::Big {
            self.objects.write(object(ino), offset, data, batch).await?
        } else if size <= SMALL {
            let mut bytes = if replaces(shape, offset, data) {
                Vec::new()
            } else {
                self.small_bytes(ino, shape, Some(batch)).await?
            };
            overlay(&mut bytes, len(offset), data);
            self.put_small(ino, shape, &bytes, batch);
            Staged::none()
        } else {
            self.stage_promotion(ino, shape, offset, data, batch).await?
        };
        shape.size = size;
        shape.add_blocks(staged.blocks());
        Ok(staged)
    }

    /// Puts `data` on fresh blocks of a big file, seen by nobody until they are staged. `TooLarge`
    /// beyond the largest file.
    pub(crate) async fn write_out(
        &self,
        ino: Ino,
        offset: u64,
        data: &[u8],
        room: Room,
    ) -> Result<Written, KvError> {
        self.objects.write_out(object(ino), offset, data, room).await
    }

    /// Stages what was written out, by one or several; the size is the caller's to set.
    pub(crate) async fn stage_written(
        &self,
        ino: Ino,
        shape: &mut Shape,
        written: Vec<Written>,
        batch: &mut Batch,
    ) -> Result<Staged, KvError> {
        let staged = self.objects.place(object(ino), written, batch).await?;
        shape.add_blocks(staged.blocks());
        Ok(staged)
    }

    /// Moves the bytes of a file that is not big into its object, and writes `data` there. No block
    /// is written twice. The caller counts the blocks in.
    async fn stage_promotion(
        &self,
        ino: Ino,
        shape: &mut Shape,
        offset: u64,
        data: &[u8],
        batch: &mut Batch,
    ) -> Result<Staged, KvError> {
        let (mut offset, mut data) = (offset, data);
        let replaced = replaces(shape, offset, data);
        let mut head =
            if replaced { Vec::new() } else { self.small_bytes(ino, shape, Some(batch)).await? };
        if shape.data == DataKind::Small {
            batch.delete(small_key(ino));
        }
        (shape.data, shape.sectors) = (DataKind::Big, 0);
        if !replaced && offset < BLOCK && !data.is_empty() {
            let (first, behind) = data.split_at(data.len().min(len(BLOCK - offset)));
            overlay(&mut head, len(offset), first);
            (offset, data) = (BLOCK, behind);
        }
        let mut staged = Staged::none();
        if !head.is_empty() {
            staged = self.objects.write(object(ino), 0, &head, batch).await?;
        }
        if data.is_empty() {
            return Ok(staged);
        }
        match self.objects.write(object(ino), offset, data, batch).await {
            Ok(more) => Ok(staged.and(more)),
            Err(error) => {
                staged.abort();
                Err(error)
            }
        }
    }

    /// Sets the size. Growing allocates nothing; shrinking gives blocks back as far as one batch
    /// allows and sets `trimming` if there may be more.
    pub(crate) async fn stage_resize(
        &self,
        ino: Ino,
        shape: &mut Shape,
        size: u64,
        batch: &mut Batch,
    ) -> Result<Staged, KvError> {
        if size > FILE_SIZE_MAX {
            return Err(KvError::TooLarge);
        }
        let before = std::mem::replace(&mut shape.size, size);
        match shape.data {
            DataKind::Big if size < before => {
                batch.essential();
                let punched = self.objects.punch(object(ino), size, u64::MAX, batch).await?;
                Ok(self.trimmed(ino, shape, punched, batch))
            }
            DataKind::Small if size > SMALL => {
                let staged = self.stage_promotion(ino, shape, 0, &[], batch).await?;
                shape.add_blocks(staged.blocks());
                Ok(staged)
            }
            DataKind::Small if size < before => {
                batch.essential();
                if size == 0 {
                    self.put_small(ino, shape, &[], batch);
                    return Ok(Staged::none());
                }
                let mut bytes = self.small_bytes(ino, shape, Some(batch)).await?;
                if len(size) < bytes.len() {
                    bytes.truncate(len(size));
                    self.put_small(ino, shape, &bytes, batch);
                }
                Ok(Staged::none())
            }
            _ => Ok(Staged::none()),
        }
    }

    /// Gives back more of what lies beyond the size. Clears `trimming` when nothing is left.
    pub(crate) async fn stage_trim(
        &self,
        ino: Ino,
        shape: &mut Shape,
        batch: &mut Batch,
    ) -> Result<Staged, KvError> {
        batch.essential();
        let from = shape.trim_from();
        let punched = self.objects.punch(object(ino), from, u64::MAX, batch).await?;
        Ok(self.trimmed(ino, shape, punched, batch))
    }

    /// Records what a punch beyond the size has left.
    fn trimmed(
        &self,
        ino: Ino,
        shape: &mut Shape,
        (staged, progress): (Staged, Progress),
        batch: &mut Batch,
    ) -> Staged {
        shape.add_blocks(staged.blocks());
        let more = progress != Progress::Done;
        if more && !shape.trimming {
            batch.put(trim_key(ino), []);
        } else if !more && shape.trimming {
            batch.delete(trim_key(ino));
        }
        shape.trimming = more;
        if shape.size == 0 {
            shape.data = DataKind::None;
        }
        staged
    }

    /// Does a step of `fill` to `range`; the size is the caller's to set, and `range` reaches
    /// beyond it only if that is to grow, or to be allocated. Only an object can promise space, so
    /// a file given blocks becomes big.
    pub(crate) async fn stage_fill(
        &self,
        ino: Ino,
        shape: &mut Shape,
        fill: Fill,
        range: Range<u64>,
        batch: &mut Batch,
    ) -> Result<(Staged, Progress), KvError> {
        let (id, Range { start, end }) = (object(ino), range);
        if fill == Fill::Punch && shape.data != DataKind::Big {
            self.punch_small(ino, shape, start..end, batch).await?;
            return Ok((Staged::none(), Progress::Done));
        }
        let promoted = if shape.data == DataKind::Big {
            Staged::none()
        } else {
            self.stage_promotion(ino, shape, 0, &[], batch).await?
        };
        let filled = match fill {
            Fill::Allocate => self.objects.allocate(id, start, end, batch).await,
            Fill::Zero => self.objects.zero(id, start, end, batch).await,
            Fill::Punch => {
                batch.essential();
                self.objects.punch(id, start, end, batch).await
            }
        };
        match filled {
            Ok((staged, progress)) => {
                let staged = promoted.and(staged);
                shape.add_blocks(staged.blocks());
                Ok((staged, progress))
            }
            Err(error) => {
                promoted.abort();
                Err(error)
            }
        }
    }

    async fn punch_small(
        &self,
        ino: Ino,
        shape: &mut Shape,
        range: Range<u64>,
        batch: &mut Batch,
    ) -> Result<(), KvError> {
        let mut bytes = self.small_bytes(ino, shape, Some(batch)).await?;
        let (start, end) = (len(range.start), len(range.end).min(bytes.len()));
        if start >= end {
            return Ok(());
        }
        if end == bytes.len() {
            bytes.truncate(start); // What is missing reads zero.
        } else if let Some(hole) = bytes.get_mut(start..end) {
            hole.fill(0);
        }
        self.put_small(ino, shape, &bytes, batch);
        Ok(())
    }

    /// The first data at or after `from`, which lies below the size.
    pub(crate) async fn seek_data(
        &self,
        ino: Ino,
        shape: &Shape,
        from: u64,
    ) -> Result<Option<u64>, KvError> {
        if shape.data == DataKind::Big {
            return self.objects.seek_data(object(ino), from, shape.size).await;
        }
        let bytes = self.small_bytes(ino, shape, None).await?;
        Ok((from < bytes.len() as u64).then_some(from))
    }

    /// The first hole at or after `from`, which lies below the size; the size if there is none.
    pub(crate) async fn seek_hole(
        &self,
        ino: Ino,
        shape: &Shape,
        from: u64,
    ) -> Result<u64, KvError> {
        if shape.data == DataKind::Big {
            return self.objects.seek_hole(object(ino), from, shape.size).await;
        }
        let bytes = self.small_bytes(ino, shape, None).await?;
        Ok(from.max(bytes.len() as u64))
    }

    /// Gives back the object's blocks, as far as one batch allows.
    pub(crate) async fn stage_drop(
        &self,
        ino: Ino,
        shape: &Shape,
        batch: &mut Batch,
    ) -> Result<(Staged, Progress), KvError> {
        batch.essential();
        if shape.data == DataKind::Small {
            batch.delete(small_key(ino));
        }
        let (staged, progress) = self.objects.punch(object(ino), 0, u64::MAX, batch).await?;
        if progress == Progress::Done && shape.trimming {
            batch.delete(trim_key(ino));
        }
        Ok((staged, progress))
    }
}

/// Whether `data` replaces every byte of the file, so that the old ones need not be read.
fn replaces(shape: &Shape, offset: u64, data: &[u8]) -> bool {
    offset == 0 && data.len() as u64 >= shape.size
}

/// Writes `data` over `bytes` at `offset`, filling a gap with zeros.
fn overlay(bytes: &mut Vec<u8>, offset: usize, data: &[u8]) {
    let end = offset + data.len();
    if bytes.len() < end {
        bytes.resize(end, 0);
    }
    if let Some(place) = bytes.get_mut(offset..end) {
        place.copy_from_slice(data);
    }
}
