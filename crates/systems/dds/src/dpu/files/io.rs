//! Reads, writes, and the space they need.

use std::future::poll_fn;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Poll, Waker};

use outboard_base::Errno;
use outboard_base::task::{RangeRequest, join_all};
use outboard_medium::{Buf, Medium};
use outboard_wire::dds::FileId;

use super::format::{BLOCK, Record};
use super::state::State;
use super::{FILE_MAX, FileError, FileService, ReadOp, blocks};

/// Segments put on record as used at a time, before the first of them is: a flush each.
const MARK: u32 = 64;
/// The medium grows to multiples of so many bytes.
const AHEAD: u64 = 8 << 20;
/// Bytes of zeros written at a time.
const ZEROS: u64 = 1 << 20;

/// Blocks of a file are locked, or waited for, until this is dropped.
pub(super) struct BlockGuard<'a, M> {
    service: &'a FileService<M>,
    file: u32,
    id: u64,
}

impl<M> Drop for BlockGuard<'_, M> {
    fn drop(&mut self) {
        let mut woken = Vec::new();
        let mut state = self.service.state.lock().unwrap_or_else(|bad| bad.into_inner());
        if let Some(file) = state.files.get_mut(&self.file) {
            file.locks.release(self.id, |waker| woken.push(waker));
        }
        drop(state);
        woken.into_iter().for_each(Waker::wake);
    }
}

/// Bytes of a file that lie side by side on the medium.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Piece {
    /// Where on the medium.
    at: u64,
    bytes: u64,
}

/// The pieces of whole blocks; `None` if the file has no segment there.
fn pieces(state: &State, file: u32, blocks: &Range<u64>) -> Option<Vec<Piece>> {
    let file = state.files.get(&file)?;
    let (mut offset, end) = (blocks.start * BLOCK as u64, blocks.end * BLOCK as u64);
    let mut out: Vec<Piece> = Vec::with_capacity(1);
    while offset < end {
        let segment = *file.segments.get(usize::try_from(offset / state.segment).ok()?)?;
        let within = offset % state.segment;
        let bytes = (state.segment - within).min(end - offset);
        let at = u64::from(segment) * state.segment + within;
        match out.last_mut() {
            Some(last) if last.at + last.bytes == at => last.bytes += bytes,
            _ => out.push(Piece { at, bytes }),
        }
        offset += bytes;
    }
    Some(out)
}

fn len(bytes: u64) -> usize {
    usize::try_from(bytes).unwrap_or(usize::MAX)
}

/// What is written.
#[derive(Clone, Debug)]
pub enum Data<'a> {
    /// Bytes, which are copied to where the medium can take them from.
    Bytes(&'a [u8]),
    /// A range of a buffer that nobody changes meanwhile: whole blocks go to the medium from where
    /// they lie, if that is at a multiple of the block too.
    Lying(&'a Arc<Buf>, Range<usize>),
}

impl Data<'_> {
    fn bytes(&self) -> &[u8] {
        match self {
            Data::Bytes(bytes) => bytes,
            Data::Lying(buf, range) => buf.get(range.clone()).unwrap_or_default(),
        }
    }

    /// The very bytes, if they can be written from where they lie.
    fn part(&self, offset: u64) -> Option<Buf> {
        match self {
            Data::Lying(buf, range) if offset.is_multiple_of(BLOCK as u64) => {
                Buf::part(buf, range.clone())
            }
            _ => None,
        }
    }
}

/// What a write must do before its data.
enum Plan {
    /// Nothing: the lock asked for is enough.
    Go,
    /// Clean what lies behind the end first, under a lock that reaches from there on.
    Clean,
}

impl<M: Medium> FileService<M> {
    /// Locks blocks of a file: readers side by side, a writer alone, in the order they came.
    pub(super) async fn lock(
        &self,
        file: FileId,
        blocks: Range<u64>,
        exclusive: bool,
    ) -> Result<BlockGuard<'_, M>, FileError> {
        self.lock_by(0, file, blocks, exclusive).await
    }

    /// The same for a thread that may be lost.
    async fn lock_by(
        &self,
        thread: u32,
        file: FileId,
        blocks: Range<u64>,
        exclusive: bool,
    ) -> Result<BlockGuard<'_, M>, FileError> {
        let Range { start, end } = blocks;
        let request = RangeRequest { start, end, exclusive, owner: thread };
        let mut guard = None;
        poll_fn(|cx| -> Poll<Result<(), FileError>> {
            let mut state = self.state();
            let locks = &mut state.file_mut(file.0)?.locks;
            let Some(BlockGuard { id, .. }) = &guard else {
                let (id, granted) = locks.ask(request, || cx.waker().clone());
                guard = Some(BlockGuard { service: self, file: file.0, id });
                return if granted { Poll::Ready(Ok(())) } else { Poll::Pending };
            };
            match locks.waiter(*id) {
                Some(waker) => {
                    waker.clone_from(cx.waker());
                    Poll::Pending
                }
                None => Poll::Ready(Ok(())),
            }
        })
        .await?;
        guard.ok_or(FileError::NoFile)
    }

    /// A buffer that will be read into or written from again and again: the medium prepares it.
    #[must_use]
    pub fn keep(&self, buf: Buf) -> Buf {
        self.medium.keep(buf)
    }

    /// Reads into `buf`, which is made as long as the blocks read take; where in it the bytes
    /// asked for are: fewer at the end of the file, none beyond. The device puts them there, and
    /// nobody copies them unless they lie in several places.
    ///
    /// # Errors
    /// [`FileError::NoFile`], the medium's.
    pub async fn read(&self, op: ReadOp, buf: Buf) -> (Result<Range<usize>, FileError>, Buf) {
        self.read_by(0, op, buf).await
    }

    /// Nobody goes on with what [`FileService::read_by`] began for `thread`: writes do not wait for
    /// it any more. What the device still brings is heard by nobody.
    pub fn forsake(&self, thread: u32) {
        let mut woken = Vec::new();
        for file in self.state().files.values_mut() {
            file.locks.release_all(thread, |waker| woken.push(waker));
        }
        woken.into_iter().for_each(Waker::wake);
    }

    /// The same, on a thread that may be lost; its number is not 0.
    ///
    /// # Errors
    /// As of [`FileService::read`].
    pub async fn read_by(
        &self,
        thread: u32,
        op: ReadOp,
        buf: Buf,
    ) -> (Result<Range<usize>, FileError>, Buf) {
        let ReadOp { file, offset, bytes } = op;
        let Some(end) = offset.checked_add(u64::from(bytes)) else { return (Ok(0..0), buf) };
        if end > FILE_MAX {
            return (if offset > FILE_MAX { Ok(0..0) } else { Err(FileError::Range) }, buf);
        }
        let _guard = match self.lock_by(thread, file, blocks(offset, u64::from(bytes)), false).await
        {
            Ok(guard) => guard,
            Err(error) => return (Err(error), buf),
        };
        let (there, pieces) = {
            let state = self.state();
            let Ok(it) = state.file(file.0) else { return (Err(FileError::NoFile), buf) };
            let there = it.size.saturating_sub(offset).min(u64::from(bytes));
            if there == 0 {
                return (Ok(0..0), buf);
            }
            (there, pieces(&state, file.0, &blocks(offset, there)))
        };
        // A size on record has its segments on record.
        let Some(pieces) = pieces else {
            return (Err(FileError::Io(Errno::EIO)), buf);
        };
        let skip = len(offset % BLOCK as u64);
        let (result, buf) = self.read_pieces(&pieces, buf).await;
        (result.map(|()| skip..skip + len(there)), buf)
    }

    fn count_copy(&self, bytes: usize) {
        self.copied.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    /// Reads pieces one behind the other.
    async fn read_pieces(&self, pieces: &[Piece], mut buf: Buf) -> (Result<(), FileError>, Buf) {
        let all = len(pieces.iter().map(|piece| piece.bytes).sum());
        if buf.capacity() < all {
            buf = Buf::zeroed(all);
        }
        buf.resize(all);
        if let [piece] = pieces {
            let (result, buf) = self.medium.read(piece.at, buf).await;
            return (result.map_err(FileError::from), buf);
        }
        let reads = pieces
            .iter()
            .map(|piece| self.medium.read(piece.at, Buf::zeroed(len(piece.bytes))))
            .collect();
        let mut rest = &mut buf[..];
        for (result, part) in join_all(reads).await {
            if let Err(errno) = result {
                return (Err(errno.into()), buf);
            }
            let Some((to, behind)) = rest.split_at_mut_checked(part.len()) else { break };
            to.copy_from_slice(&part);
            self.count_copy(part.len());
            rest = behind;
        }
        (Ok(()), buf)
    }

    /// Writes `data` at `offset`; the file grows if it ends before. `done` is awaited when the data
    /// is on the medium and in the file, before anybody can read it: it sees the writes of one
    /// place in the order they were done.
    ///
    /// # Errors
    /// [`FileError::NoFile`], [`FileError::Range`], [`FileError::Full`], the medium's.
    pub async fn write(
        &self,
        file: FileId,
        offset: u64,
        data: Data<'_>,
        done: impl AsyncFnOnce(),
    ) -> Result<(), FileError> {
        let size = data.bytes().len() as u64;
        let end = offset.checked_add(size).filter(|end| *end <= FILE_MAX);
        let end = end.ok_or(FileError::Range)?;
        if size == 0 {
            return self.state().file(file.0).map(drop);
        }
        let mut plan = Plan::Go;
        loop {
            let mut range = blocks(offset, size);
            if matches!(plan, Plan::Clean) {
                range = range.start.min(self.size(file)? / BLOCK as u64)..u64::MAX;
            }
            let _guard = self.lock(file, range, true).await?;
            let is_clean = {
                let state = self.state();
                let it = state.file(file.0)?;
                end <= it.size || it.junk <= it.size
            };
            if !is_clean && matches!(plan, Plan::Go) {
                plan = Plan::Clean;
                continue;
            }
            if !is_clean {
                self.clean(file).await?;
            }
            self.reserve(file, end).await?;
            if let Err(error) = self.put(file, offset, &data).await {
                let mut state = self.state();
                if let Ok(it) = state.file_mut(file.0) {
                    it.junk = it.junk.max(end.next_multiple_of(BLOCK as u64));
                }
                return Err(error);
            }
            self.record_growth(file, end).await?;
            done().await;
            return Ok(());
        }
    }

    /// Writes bytes where the file has segments; parts of blocks are read, changed and written
    /// back. The caller has the lock.
    async fn put(&self, file: FileId, offset: u64, data: &Data<'_>) -> Result<(), FileError> {
        let end = offset + data.bytes().len() as u64;
        let range = blocks(offset, end - offset);
        let (size, places) = {
            let state = self.state();
            let it = state.file(file.0)?;
            (it.size, pieces(&state, file.0, &range))
        };
        let places = places.ok_or(FileError::Io(Errno::EIO))?;
        if let Some(part) = data.part(offset) {
            return self.write_pieces(&places, part).await;
        }
        let data = data.bytes();
        let bytes = len((range.end - range.start) * BLOCK as u64);
        let mut buf = Buf::zeroed(bytes);
        let front = range.start * BLOCK as u64;
        let (first, last) = (range.start, range.end - 1);
        // The first and the last block, if the data does not cover them.
        let cut = |block: u64| {
            let from = block * BLOCK as u64;
            offset > from || end < from + BLOCK as u64
        };
        for block in [first, last].into_iter().take(if first == last { 1 } else { 2 }) {
            if cut(block) && block * (BLOCK as u64) < size {
                self.fetch(file, block, size, &mut buf, len(block * BLOCK as u64 - front)).await?;
            }
        }
        let skip = len(offset - front);
        if let Some(to) = buf.get_mut(skip..skip + data.len()) {
            to.copy_from_slice(data);
            self.count_copy(data.len());
        }
        self.write_pieces(&places, buf).await
    }

    /// Puts what a block holds within the file into `buf` at `at`; zeros behind the file's end.
    async fn fetch(
        &self,
        file: FileId,
        block: u64,
        size: u64,
        buf: &mut Buf,
        at: usize,
    ) -> Result<(), FileError> {
        let places = pieces(&self.state(), file.0, &(block..block + 1));
        let places = places.ok_or(FileError::Io(Errno::EIO))?;
        let (result, old) = self.read_pieces(&places, Buf::zeroed(BLOCK)).await;
        result?;
        let there = len((size - block * BLOCK as u64).min(BLOCK as u64));
        if let (Some(to), Some(from)) = (buf.get_mut(at..at + there), old.get(..there)) {
            to.copy_from_slice(from);
            self.count_copy(there);
        }
        Ok(())
    }

    async fn write_pieces(&self, places: &[Piece], buf: Buf) -> Result<(), FileError> {
        if let [piece] = places {
            return self.medium.write(piece.at, buf).await.0.map_err(FileError::from);
        }
        let (whole, mut from) = (Arc::new(buf), 0);
        let mut writes = Vec::with_capacity(places.len());
        for piece in places {
            let Some(part) = Buf::part(&whole, from..from + len(piece.bytes)) else { break };
            from += part.len();
            writes.push(self.medium.write(piece.at, part));
        }
        let results = join_all(writes).await;
        results.into_iter().try_for_each(|(result, _)| result.map_err(FileError::from))
    }

    /// Makes what lies behind the file's end zeros, for good. The caller has the lock from there
    /// on.
    pub(super) async fn clean(&self, file: FileId) -> Result<(), FileError> {
        let (mut from, junk) = {
            let state = self.state();
            let it = state.file(file.0)?;
            let there = (it.segments.len() as u64).saturating_mul(state.segment);
            (it.size, it.junk.min(there))
        };
        if from >= junk {
            return Ok(());
        }
        while from < junk {
            let step = (ZEROS - from % ZEROS).min(junk - from);
            self.put(file, from, &Data::Bytes(&vec![0; len(step)])).await?;
            from += step;
        }
        self.medium.flush().await?;
        self.state().file_mut(file.0)?.junk = 0;
        Ok(())
    }

    /// Puts segments aside until the file has those that `end` bytes need.
    pub(super) async fn reserve(&self, file: FileId, end: u64) -> Result<(), FileError> {
        let lacks = || {
            let state = self.state();
            let needs = state.needs(end);
            state.file(file.0).map(|file| needs.saturating_sub(file.segments.len()))
        };
        if lacks()? == 0 {
            return Ok(());
        }
        let _guard = self.reserving.lock().await;
        let (taken, used) = self.take(lacks()?)?;
        let prepared = self.prepare(&taken, used).await;
        let mut state = self.state();
        match (prepared, state.file_mut(file.0)) {
            (Ok(()), Ok(file)) => {
                file.segments.extend(taken.iter().map(|(segment, _)| *segment));
                Ok(())
            }
            (prepared, file) => {
                let lost = file.map(drop);
                taken.iter().for_each(|(segment, _)| state.bitmap.give_back(*segment));
                prepared.and(lost)
            }
        }
    }

    /// Takes `count` free segments, each with whether it was used before, and says up to where
    /// they must be marked as used.
    fn take(&self, count: usize) -> Result<(Vec<(u32, bool)>, u32), FileError> {
        let mut state = self.state();
        let free = usize::try_from(state.bitmap.free()).unwrap_or(usize::MAX);
        if count > free {
            return Err(FileError::Full);
        }
        let (mut taken, mut used) = (Vec::with_capacity(count), 0);
        for _ in 0..count {
            let fresh = state.fresh;
            let Some(segment) = state.bitmap.find(fresh) else { break };
            state.bitmap.take(segment);
            state.fresh = state.fresh.max(segment + 1);
            used = used.max(segment + 1);
            taken.push((segment, segment < fresh));
        }
        Ok((taken, used))
    }

    /// Makes segments just taken ready: there, on record as used, and zeros.
    async fn prepare(&self, taken: &[(u32, bool)], used: u32) -> Result<(), FileError> {
        let segment = self.superblock.segment;
        if self.state().marked < used {
            let _guard = self.changing.lock().await;
            let upto = used.saturating_add(MARK).min(self.superblock.segments);
            self.commit(&[Record::Used { upto }]).await?;
            // Durably: after a crash nobody takes what they hold for zeros.
            self.medium.flush().await?;
        }
        self.lengthen(u64::from(used) * segment).await?;
        let dirty = taken.iter().filter(|(_, was)| *was || !self.superblock.was_zeros);
        let mut cleaned = false;
        for (dirty, _) in dirty {
            let (mut at, end) = (u64::from(*dirty) * segment, u64::from(dirty + 1) * segment);
            while at < end {
                let step = ZEROS.min(end - at);
                self.medium.write(at, Buf::zeroed(len(step))).await.0?;
                at += step;
            }
            cleaned = true;
        }
        if cleaned {
            self.medium.flush().await?;
        }
        Ok(())
    }

    /// Makes the medium reach to `end`, and further if it can: growing costs a flush.
    async fn lengthen(&self, end: u64) -> Result<(), FileError> {
        if self.medium.len() >= end {
            return Ok(());
        }
        let capacity = self.superblock.segment * u64::from(self.superblock.segments);
        let ahead = end.next_multiple_of(AHEAD).min(capacity).max(end);
        match self.medium.grow(ahead).await {
            Err(Errno::ENOSPC) if ahead > end => Ok(self.medium.grow(end).await?),
            other => Ok(other?),
        }
    }

    /// Puts a file's new size on record, and its new segments; with it what others wait for.
    pub(super) async fn record_growth(&self, file: FileId, end: u64) -> Result<(), FileError> {
        if self.size(file)? >= end {
            return Ok(());
        }
        self.state().growing.entry(file.0).and_modify(|size| *size = end.max(*size)).or_insert(end);
        let _guard = self.changing.lock().await;
        let records = {
            let mut state = self.state();
            if state.file(file.0)?.size >= end {
                return Ok(());
            }
            // Whoever was here before may have failed with it.
            state.growing.entry(file.0).and_modify(|size| *size = end.max(*size)).or_insert(end);
            state.growth()
        };
        self.commit(&records).await
    }
}
