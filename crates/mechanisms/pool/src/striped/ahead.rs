//! Pieces of objects that were read before they were asked for, and wait in memory.
//!
//! A *piece* is the rest of an object, or less at the end of what is expected: one operation, sent
//! when it is expected and ended by whoever wakes it or wants it: it needs no thread of its own.
//! Who reads bytes of it waits for it and gets a part of its memory, uncopied where one piece has
//! them all. It goes once all of it was read, when room is needed, and before a byte of it is
//! written; and while a write may land, of whatever became of its future, no piece of those bytes
//! is begun. So a piece holds what a read sent now would find.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::ops::Range;
use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Wake, Waker};

use super::{Part, STRIPE, parts};
use crate::port::{Pool, PoolError};
use outboard_medium::Buf;

/// How far ahead of a reader pieces are worth having, bytes: as many as `rados bench` has on their
/// way, an operation of 4 MiB each, would be 64 MiB; a quarter is enough for one reader here.
pub(super) const AHEAD: u64 = 16 << 20;
/// Pieces at a time; the oldest makes room.
const PIECES: usize = 16;
/// Less than this, 1 MiB, waits for what follows rather than go by itself.
const TAIL_MAX: usize = 1 << 20;
/// Ends of what is expected that are remembered, to be joined by what follows.
const TAILS: usize = 16;
/// Buffers kept for the next pieces.
const SPARE: usize = 4;

type Reading = Pin<Box<dyn Future<Output = (Result<usize, PoolError>, Buf)> + Send>>;

enum State {
    Reading(Reading),
    /// Its bytes; `None` if the pool did not give them.
    Over(Option<Arc<Buf>>),
}

/// Bytes of the medium on their way, or here.
pub(super) struct Piece {
    bytes: Range<u64>,
    state: Mutex<State>,
    waiting: Mutex<Vec<Waker>>,
    /// How many of its bytes were read.
    taken: AtomicUsize,
}

/// The pool has news: whoever brings them takes them in, then all who wait look.
impl Wake for Piece {
    fn wake(self: Arc<Self>) {
        // Whoever polls it just now takes them in instead, or one of those who wait.
        if let Ok(mut state) = self.state.try_lock() {
            let _ended = self.step(&mut state);
        }
        let waiting = std::mem::take(&mut *self.waiting());
        waiting.into_iter().for_each(Waker::wake);
    }
}

impl Piece {
    /// Sends the operation.
    fn begin(bytes: Range<u64>, reading: Reading) -> Arc<Piece> {
        let state = Mutex::new(State::Reading(reading));
        let (waiting, taken) = (Mutex::default(), AtomicUsize::new(0));
        let piece = Arc::new(Piece { bytes, state, waiting, taken });
        let _sent = piece.step(&mut piece.state());
        piece
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn waiting(&self) -> MutexGuard<'_, Vec<Waker>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn len(&self) -> usize {
        usize::try_from(self.bytes.end - self.bytes.start).unwrap_or(usize::MAX)
    }

    fn step(self: &Arc<Self>, state: &mut State) -> Poll<Option<Arc<Buf>>> {
        if let State::Reading(reading) = state {
            let waker = Waker::from(Arc::clone(self));
            let polled = reading.as_mut().poll(&mut Context::from_waker(&waker));
            let Poll::Ready((read, mut buf)) = polled else { return Poll::Pending };
            let filled = match read {
                Ok(filled) => Some(filled),
                // What is not there was never written, and reads as nothing.
                Err(PoolError::NotFound) => Some(0),
                Err(_) => None,
            };
            let buf = filled.map(|filled| {
                if let Some(rest) = buf.get_mut(filled..) {
                    rest.fill(0);
                }
                Arc::new(buf)
            });
            *state = State::Over(buf);
        }
        match state {
            State::Over(buf) => Poll::Ready(buf.clone()),
            State::Reading(_) => Poll::Pending,
        }
    }

    /// Its memory, once it is here; `None` if it does not come.
    async fn buf(self: &Arc<Self>) -> Option<Arc<Buf>> {
        poll_fn(|cx| {
            // Before it is polled: it may end at any moment. And without the list's lock, which a
            // `WaitList` holds while it looks: what is polled may wake the piece at once.
            let mut waiting = self.waiting();
            if !waiting.iter().any(|other| other.will_wake(cx.waker())) {
                waiting.push(cx.waker().clone());
            }
            drop(waiting);
            self.step(&mut self.state())
        })
        .await
    }

    /// The memory of `part`, a part of the piece.
    pub(super) async fn take(
        self: &Arc<Self>,
        offset: u64,
        part: &Part,
    ) -> Option<(Arc<Buf>, Range<usize>)> {
        let start = usize::try_from((offset + part.start as u64).checked_sub(self.bytes.start)?);
        let start = start.ok()?;
        let buf = self.buf().await?;
        self.taken.fetch_add(part.len, Ordering::Relaxed);
        Some((buf, start..start + part.len))
    }

    fn is_read(&self) -> bool {
        self.taken.load(Ordering::Relaxed) >= self.len()
    }
}

struct Write {
    bytes: Range<u64>,
    /// Its number among those whose futures were dropped.
    dropped: Option<u64>,
}

#[derive(Default)]
struct Kept {
    /// The oldest first.
    pieces: VecDeque<Arc<Piece>>,
    /// What was expected at last and does not end where an object does.
    tails: VecDeque<Range<u64>>,
    /// Memory of pieces that are gone; whoever read them may have it still.
    spare: VecDeque<Arc<Buf>>,
    /// Writes that may land at any moment.
    writes: Vec<Write>,
}

impl Kept {
    fn drop_pieces(&mut self, which: impl Fn(&Piece) -> bool) {
        let mut at = 0;
        while let Some(piece) = self.pieces.get(at) {
            if !which(piece) {
                at += 1;
            } else if let Some(piece) = self.pieces.remove(at) {
                self.retire(&piece);
            }
        }
    }

    fn retire(&mut self, piece: &Piece) {
        if let State::Over(Some(buf)) = &*piece.state()
            && buf.capacity() as u64 >= STRIPE
        {
            self.spare.push_back(Arc::clone(buf));
            if self.spare.len() > SPARE {
                self.spare.pop_front();
            }
        }
    }

    /// Memory for a piece: fresh pages cost more than the copy into them.
    fn memory(&mut self, len: usize) -> Buf {
        for _ in 0..self.spare.len() {
            let Some(buf) = self.spare.pop_front() else { break };
            match Arc::try_unwrap(buf) {
                Ok(mut buf) => {
                    buf.resize(len);
                    return buf;
                }
                Err(used) => self.spare.push_back(used),
            }
        }
        let mut buf = Buf::zeroed(usize::try_from(STRIPE).unwrap_or(len));
        buf.resize(len);
        buf
    }
}

fn overlaps(a: &Range<u64>, b: &Range<u64>) -> bool {
    a.start < b.end && b.start < a.end
}

/// The pieces of one medium.
#[derive(Default)]
pub(super) struct Ahead(Mutex<Kept>);

impl Ahead {
    fn lock(&self) -> MutexGuard<'_, Kept> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// These bytes are expected, and lie within the medium: sends for them, object by object. What
    /// does not reach an object's end waits for what follows.
    pub(super) fn expect<P: Pool>(&self, pool: &Arc<P>, bytes: Range<u64>) {
        let mut kept = self.lock();
        let mut bytes = bytes;
        if let Some(at) = kept.tails.iter().position(|tail| tail.end == bytes.start)
            && let Some(tail) = kept.tails.remove(at)
        {
            bytes.start = tail.start;
        }
        let len = usize::try_from(bytes.end.saturating_sub(bytes.start)).unwrap_or(0);
        for part in parts(bytes.start, len) {
            let start = bytes.start + part.start as u64;
            let piece = start..start + part.len as u64;
            if !piece.end.is_multiple_of(STRIPE) && part.len < TAIL_MAX {
                kept.tails.push_back(piece);
                if kept.tails.len() > TAILS {
                    kept.tails.pop_front();
                }
                continue;
            }
            let there = |other: &Arc<Piece>| overlaps(&other.bytes, &piece);
            if kept.pieces.iter().any(there)
                || kept.writes.iter().any(|write| overlaps(&write.bytes, &piece))
            {
                continue;
            }
            while kept.pieces.len() >= PIECES
                && let Some(oldest) = kept.pieces.pop_front()
            {
                kept.retire(&oldest);
            }
            let buf = kept.memory(part.len);
            let (pool, Part { object, within, .. }) = (Arc::clone(pool), part);
            let reading = async move { pool.read_into(&object, within, buf).await };
            kept.pieces.push_back(Piece::begin(piece, Box::pin(reading)));
        }
    }

    /// The piece that has all of a part of a read.
    pub(super) fn find(&self, offset: u64, part: &Part) -> Option<Arc<Piece>> {
        let start = offset + part.start as u64;
        let end = start + part.len as u64;
        let kept = self.lock();
        let has = |piece: &&Arc<Piece>| piece.bytes.start <= start && end <= piece.bytes.end;
        kept.pieces.iter().find(has).cloned()
    }

    /// A part of it was read, or it did not come: a piece that is of no more use goes.
    pub(super) fn read(&self, piece: &Arc<Piece>, came: bool) {
        if !came || piece.is_read() {
            self.lock().drop_pieces(|other| std::ptr::eq(other, &raw const **piece));
        }
    }

    /// A write of these bytes begins.
    pub(super) fn begin_write(&self, bytes: Range<u64>) {
        let mut kept = self.lock();
        kept.drop_pieces(|piece| overlaps(&piece.bytes, &bytes));
        kept.writes.push(Write { bytes, dropped: None });
    }

    /// It has landed, or never will.
    pub(super) fn end_write(&self, bytes: &Range<u64>) {
        let mut kept = self.lock();
        let ended = |write: &Write| write.dropped.is_none() && write.bytes == *bytes;
        if let Some(at) = kept.writes.iter().position(ended) {
            kept.writes.swap_remove(at);
        }
    }

    /// Its future was dropped, as number `number` of those.
    pub(super) fn drop_write(&self, bytes: &Range<u64>, number: u64) {
        let mut kept = self.lock();
        let dropped = |write: &&mut Write| write.dropped.is_none() && write.bytes == *bytes;
        if let Some(write) = kept.writes.iter_mut().find(dropped) {
            write.dropped = Some(number);
        }
    }

    /// Dropped writes up to this number are over.
    pub(super) fn settled(&self, number: u64) {
        self.lock().writes.retain(|write| write.dropped.is_none_or(|dropped| dropped > number));
    }
}
