//! The log: changes become records in it before anybody sees them, many in one write; what makes
//! it durable; and checkpoints, which begin it anew in the other half.
//!
//! Each write of the log begins a block, and no block is written twice: a torn write cannot harm
//! what is durable. What is done under `leader` is done by one at a time.

use std::sync::{Arc, OnceLock};

use outboard_base::Errno;
use outboard_base::planted::{Fault, is_planted};
use outboard_base::task::{join2, yield_now};
use outboard_medium::{Buf, Medium};
use outboard_wire::shared::Reason;

use super::format::{self, BLOCK, CHUNK, HEADERS, Header, LOG_ROOM, LogHead, PIECE_ROOM, PLAIN};
use super::index::Cursor;
use super::record::Record;
use super::space::Space;
use super::{Shared, Store};

/// Most blocks of one write of the log.
const BLOCKS_MAX: usize = 64;

/// Where the log ends.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Log {
    pub(super) half: u16,
    pub(super) epoch: u64,
    /// The version of the format that its header says.
    pub(super) format: u32,
    /// The last epoch that a checkpoint was tried for.
    pub(super) tried: u64,
    /// The first byte of the log in its half, and one behind the last that it may have.
    pub(super) start: u64,
    pub(super) end: u64,
    /// What the next block says: its number, the crc of the one before.
    pub(super) index: u32,
    pub(super) before: u32,
    /// Blocks up to the last that has records.
    pub(super) filled: u32,
    /// Blocks that are durable.
    pub(super) durable: u32,
    /// A write of it failed, or was left in its midst: nothing is found behind it. A checkpoint
    /// begins anew.
    pub(super) broken: bool,
}

impl Log {
    fn at(&self) -> u64 {
        self.start + u64::from(self.index) * BLOCK as u64
    }

    /// Bytes of it.
    pub(super) fn bytes(&self) -> u64 {
        self.at() - self.start
    }

    fn has(&self, epoch: u64, filled: u32) -> bool {
        self.epoch > epoch || self.durable >= filled
    }
}

/// Space that a record takes.
#[derive(Debug, Default)]
pub(super) struct Spent {
    /// Where its grains lie.
    pub(super) slots: Vec<u32>,
    /// Grains that space was put aside for, until they took it; below zero: so many it is put aside
    /// for.
    pub(super) aside: i64,
}

impl Spent {
    /// The record is not made after all. Slots are not free at once: a write to them may still be
    /// under way.
    pub(super) fn give_back(self, space: &mut Space) {
        space.retire(self.slots);
        space.promised(self.aside);
    }
}

/// A record on its way to the log.
#[derive(Debug)]
pub(super) struct Waiting {
    record: Record,
    spent: Spent,
    outcome: Arc<OnceLock<Result<(), Reason>>>,
}

/// Records that are being written. Where their writer is dropped nobody knows what is there.
struct Batch<'s> {
    shared: &'s Shared,
    waiting: Vec<Waiting>,
}

impl Batch<'_> {
    fn settle(&mut self, result: Result<(), Reason>) {
        let mut state = self.shared.state();
        for Waiting { record, spent, outcome } in self.waiting.drain(..) {
            if result.is_ok() {
                // Each was made from this index by who has its strip.
                let freed = state.index.apply(&record).unwrap_or_default();
                state.space.retire(freed.slots);
                state.space.promised(-freed.aside);
            } else {
                spent.give_back(&mut state.space);
            }
            let _first = outcome.set(result);
        }
        state.orphans = false;
    }
}

impl Drop for Batch<'_> {
    fn drop(&mut self) {
        self.settle(Err(Reason::Medium));
    }
}

/// A write of the log that fails, or is left in its midst, breaks it. While it goes on the log is
/// not broken: a flush need not wait for it, as nothing of it was answered.
struct Torn<'s> {
    shared: &'s Shared,
    is_whole: bool,
}

impl Drop for Torn<'_> {
    fn drop(&mut self) {
        if !self.is_whole {
            self.shared.state().log.broken = true;
        }
    }
}

/// Somebody who waits for a record.
struct Waiter<'s> {
    shared: &'s Shared,
    outcome: Arc<OnceLock<Result<(), Reason>>>,
}

impl Drop for Waiter<'_> {
    fn drop(&mut self) {
        if self.outcome.get().is_some() {
            return;
        }
        let mut state = self.shared.state();
        let mine = |waiting: &Waiting| Arc::ptr_eq(&waiting.outcome, &self.outcome);
        match state.waiting.iter().position(mine).and_then(|at| state.waiting.remove(at)) {
            Some(waiting) => waiting.spent.give_back(&mut state.space),
            // It is being written: who comes to this strip next waits until that is over.
            None => state.orphans = true,
        }
    }
}

fn packed(batch: &[Waiting]) -> Vec<Vec<u8>> {
    let mut blocks: Vec<Vec<u8>> = Vec::new();
    let mut bytes = Vec::new();
    for waiting in batch {
        bytes.clear();
        waiting.record.emit(&mut bytes);
        match blocks.last_mut() {
            Some(block) if block.len() + bytes.len() <= LOG_ROOM => block.extend(&bytes),
            _ => blocks.push(bytes.clone()),
        }
    }
    blocks
}

impl<M: Medium> Store<M> {
    /// Puts a record into the log and then does what it says. Its space is the log's from now on.
    pub(super) async fn commit(&self, record: Record, spent: Spent) -> Result<(), Reason> {
        let waiter = self.queue(record, spent);
        self.written(&waiter).await
    }

    /// The same for many. One waits for all, as they are written in their order: if each waited,
    /// all would look after each write whether they are among it.
    pub(super) async fn commit_all(&self, records: Vec<Record>) -> Result<(), Reason> {
        let queue = |record| self.queue(record, Spent::default());
        let waiters: Vec<Waiter<'_>> = records.into_iter().map(queue).collect();
        let Some(last) = waiters.last() else { return Ok(()) };
        self.written(last).await?;
        waiters.iter().filter_map(|waiter| waiter.outcome.get().copied()).collect()
    }

    /// A record is written with those that wait.
    fn queue(&self, record: Record, spent: Spent) -> Waiter<'_> {
        let outcome = Arc::new(OnceLock::new());
        let waiter = Waiter { shared: &self.shared, outcome: Arc::clone(&outcome) };
        self.shared.state().waiting.push_back(Waiting { record, spent, outcome });
        waiter
    }

    /// Waits until it is, or writes it.
    async fn written(&self, waiter: &Waiter<'_>) -> Result<(), Reason> {
        let outcome = &waiter.outcome;
        match self.leader.lock_unless(|| outcome.get().copied()).await {
            Err(outcome) => outcome,
            Ok(_leader) => loop {
                self.lead().await;
                if let Some(outcome) = outcome.get() {
                    return *outcome;
                }
                // What others wait for may be written.
                self.leader.notify();
            },
        }
    }

    /// Waits until no record is being written whose waiter is gone.
    pub(super) async fn settled(&self) {
        if self.shared.state().orphans {
            let _leader = self.leader.lock().await;
            self.shared.state().orphans = false;
        }
    }

    /// Writes those that wait, as many as one write takes. The caller has `leader`.
    async fn lead(&self) {
        // Whose data came together with this one's have a record as soon as they are polled.
        yield_now().await;
        let waiting: Vec<Waiting> = {
            let mut state = self.shared.state();
            // A record fits a block.
            let count = state.waiting.len().min(BLOCKS_MAX);
            state.waiting.drain(..count).collect()
        };
        let mut batch = Batch { shared: &self.shared, waiting };
        let blocks = packed(&batch.waiting);
        let formats = batch.waiting.iter().map(|waiting| waiting.record.format());
        let result = self.put(&blocks, formats.max().unwrap_or(PLAIN)).await;
        batch.settle(result);
    }

    /// Writes blocks of records, which `format` has first. The caller has `leader`.
    async fn put(&self, blocks: &[Vec<u8>], format: u32) -> Result<(), Reason> {
        let len = blocks.len() * BLOCK;
        let is_due =
            |log: &Log| log.broken || log.format < format || log.at() + len as u64 > log.end;
        if is_due(&self.shared.usable()?) {
            {
                let mut state = self.shared.state();
                state.format = state.format.max(format);
            }
            self.checkpoint().await?;
        }
        let mut log = self.shared.usable()?;
        if is_due(&log) {
            return Err(Reason::Full);
        }
        let (mut buf, at) = (Buf::zeroed(len), log.at());
        for (block, records) in buf.chunks_mut(BLOCK).zip(blocks) {
            let (epoch, index) = (log.epoch, log.index);
            let head = LogHead { epoch, index, before: log.before, durable: log.durable };
            log.before = head.emit(block, records);
            log.index += 1;
            if !records.is_empty() {
                log.filled = log.index;
            }
        }
        let mut torn = Torn { shared: &self.shared, is_whole: false };
        self.write_half(log.half, at, buf).await.map_err(|_| Reason::Medium)?;
        torn.is_whole = true;
        let mut state = self.shared.state();
        // A flush may have ended meanwhile.
        log.durable = log.durable.max(state.log.durable);
        state.log = log;
        Ok(())
    }

    /// Writes to a half, chunk by chunk.
    async fn write_half(&self, half: u16, mut at: u64, buf: Buf) -> Result<(), Errno> {
        let whole = Arc::new(buf);
        let mut from = 0;
        while from < whole.len() {
            let chunk = usize::try_from(CHUNK - at % CHUNK).unwrap_or(BLOCK);
            let len = chunk.min(whole.len() - from);
            let part = Buf::part(&whole, from..from + len).ok_or(Errno::EIO)?;
            self.log.write(format::place(half, at), part).await.0?;
            at += len as u64;
            from += len;
        }
        Ok(())
    }

    /// Everything that was answered becomes durable.
    ///
    /// # Errors
    /// [`Reason::Medium`]: it is not; after a flush failed nothing is taken any more.
    pub async fn flush(&self) -> Result<(), Reason> {
        let (epoch, filled) = {
            let mut state = self.shared.state();
            state.counts.flushes += 1;
            (state.log.epoch, state.log.filled)
        };
        let done = || match self.shared.usable() {
            Ok(log) => log.has(epoch, filled).then_some(Ok(())),
            Err(reason) => Some(Err(reason)),
        };
        match self.flusher.lock_unless(done).await {
            Err(outcome) => outcome,
            Ok(_flusher) => self.flush_now().await,
        }
    }

    /// Flushes both media, and notes in the log that it did. The caller has `flusher`.
    pub(super) async fn flush_now(&self) -> Result<(), Reason> {
        let (log, now) = {
            let state = self.shared.state();
            (state.log, state.space.now())
        };
        if log.broken {
            // If it is whole again, then by a checkpoint, which is as good as a flush.
            let _leader = self.leader.lock().await;
            return if self.shared.usable()?.broken { self.checkpoint().await } else { Ok(()) };
        }
        self.flush_media().await?;
        let is_news = {
            let mut state = self.shared.state();
            let now = if is_planted(Fault::Freed) { state.space.now() } else { now };
            state.space.free_before(now);
            let log = if is_planted(Fault::Noted) { state.log } else { log };
            let is_news = state.log.epoch == log.epoch && state.log.durable < log.filled;
            if state.log.epoch == log.epoch {
                state.log.durable = state.log.durable.max(log.index);
            }
            is_news
        };
        if is_news {
            let _leader = self.leader.lock().await;
            let now = self.shared.usable()?;
            // Only a hint for recovery: without it more is verified then.
            if !now.broken && now.epoch == log.epoch && now.at() < now.end {
                let _hint = self.put(&[Vec::new()], PLAIN).await;
            }
        }
        Ok(())
    }

    async fn flush_media(&self) -> Result<(), Reason> {
        let data =
            async { if is_planted(Fault::Alone) { Ok(()) } else { self.data.flush().await } };
        let (data, log) = join2(data, self.log.flush()).await;
        if data.and(log).is_err() {
            self.shared.state().failed = true;
            return Err(Reason::Medium);
        }
        Ok(())
    }

    /// Writes a checkpoint if one is due.
    ///
    /// # Errors
    /// [`Reason::Full`]: the log's medium cannot grow. [`Reason::Medium`]: it failed.
    pub async fn tidy(&self) -> Result<(), Reason> {
        let is_due = |log: &Log| log.broken || log.bytes() >= self.options.checkpoint_bytes;
        if is_due(&self.shared.usable()?) {
            let _leader = self.leader.lock().await;
            if is_due(&self.shared.usable()?) {
                self.checkpoint().await?;
            }
        }
        Ok(())
    }

    /// Writes all of the index into the other half, durably, and goes on there. The caller has
    /// `leader`, or is alone.
    pub(super) async fn checkpoint(&self) -> Result<(), Reason> {
        self.settle_headers().await?;
        let (log, now, format, trusted) = {
            let mut state = self.shared.state();
            state.log.tried += 1;
            let (format, trusted) = (state.format.max(PLAIN), state.trusted.unwrap_or(0));
            (state.log, state.space.now(), format, trusted)
        };
        let mut header = Header {
            format,
            trusted,
            cluster: self.options.cluster,
            node: self.options.node,
            half: 1 - log.half.min(1),
            pieces: 0,
            epoch: log.tried,
            bytes: 0,
            limit: self.options.log_limit(),
        };
        self.write_pieces(&mut header).await?;
        let start = header.log_at();
        self.grow_log(format::place(header.half, start + header.limit)).await?;
        self.flush_media().await?;
        // From here on the other half may count, so nothing is added to this one any more.
        {
            let mut state = self.shared.state();
            (state.log.broken, state.doubtful) = (true, true);
        }
        let before = self.write_header(&header, 0).await?;
        self.flush_log().await?;
        {
            let mut state = self.shared.state();
            state.header = header;
            let (half, epoch, tried) = (header.half, header.epoch, log.tried);
            let end = start + header.limit;
            state.log = Log { half, epoch, format, tried, start, end, before, ..Log::default() };
            state.space.free_before(now);
            state.counts.checkpoints += 1;
        }
        // Two copies: were the newest header lost, an older checkpoint would be believed.
        if self.write_header(&header, 1).await.is_ok() {
            self.shared.state().doubtful = false;
        }
        Ok(())
    }

    /// Makes both copies of the header say what counts, if one may say something else: before a
    /// half is written that it may name.
    async fn settle_headers(&self) -> Result<(), Reason> {
        let (header, doubtful) = {
            let state = self.shared.state();
            (state.header, state.doubtful)
        };
        if doubtful {
            for copy in 0..2 {
                self.write_header(&header, copy).await?;
                self.flush_log().await?;
            }
            self.shared.state().doubtful = false;
        }
        Ok(())
    }

    async fn flush_log(&self) -> Result<(), Reason> {
        self.log.flush().await.map_err(|_| {
            self.shared.state().failed = true;
            Reason::Medium
        })
    }

    async fn write_pieces(&self, header: &mut Header) -> Result<(), Reason> {
        let (mut cursor, mut objects) = (Some(Cursor::default()), Vec::new());
        while cursor.is_some() || !objects.is_empty() {
            if let Some(from) = cursor {
                cursor = self.shared.state().index.emit(from, PIECE_ROOM, &mut objects);
            }
            let rest = objects.split_off(objects.len().min(PIECE_ROOM));
            if !objects.is_empty() {
                let mut buf = Buf::zeroed(format::piece_len(objects.len()));
                format::emit_piece(&mut buf, header.epoch, header.pieces, &objects);
                let at = u64::from(header.pieces) * CHUNK;
                self.grow_log(format::place(header.half, at + CHUNK)).await?;
                self.write_half(header.half, at, buf).await.map_err(|_| Reason::Medium)?;
                header.pieces += 1;
                header.bytes += objects.len() as u64;
            }
            objects = rest;
        }
        Ok(())
    }

    /// Both copies are written one after the other, never at once.
    pub(super) async fn write_header(&self, header: &Header, copy: u64) -> Result<u32, Reason> {
        let mut buf = Buf::zeroed(BLOCK);
        let crc = header.emit(&mut buf);
        let (written, _) = self.log.write(copy * BLOCK as u64, buf).await;
        written.map(|()| crc).map_err(|_| Reason::Medium)
    }

    async fn grow_log(&self, len: u64) -> Result<(), Reason> {
        if len <= self.log.len() {
            return Ok(());
        }
        let len = HEADERS + (len - HEADERS).next_multiple_of(CHUNK);
        self.log.grow(len).await.map_err(|errno| match errno {
            Errno::ENOSPC => Reason::Full,
            _ => Reason::Medium,
        })
    }
}
