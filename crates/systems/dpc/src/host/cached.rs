//! The hybrid cache between calls and queues: which calls it may answer.
//!
//! Only plain reads and writes through handles the session knows and that ask for nothing more: no
//! `O_DIRECT`, no `O_SYNC`, no write-back of a page cache (which moves no times). All else is sent,
//! and what changes bytes or length of a file is made known to the plane until it is answered.

use std::collections::HashMap;
use std::sync::atomic::Ordering::Acquire;
use std::sync::{PoisonError, RwLock};
use std::time::Duration;

use outboard_base::{Fh, Ino, Timestamp, limits};
use outboard_cache::host::{Place, Plane, Sink, Source};
use outboard_wire::cache::Tallied;
use outboard_wire::file::{Reply, Request, open_flags, write_flags};

use super::held::Handle;
use super::ranges::Span;
use super::{Call, QueueSlot, Session};

/// Maps of handles: opens and closes in one wait for no read of another.
const SHARDS: usize = 64;

/// Times a write is tried in the cache before it is made a call.
const TRIES: u32 = 3;

/// How long a thread that serves many waits for changes of a file on their way: about as long as
/// one takes.
const SHORT: Duration = Duration::from_micros(500);

/// A session's cache.
pub(super) struct Cached {
    plane: Plane,
    handles: [RwLock<HashMap<Fh, Handle>>; SHARDS],
}

impl Cached {
    pub(super) fn new(plane: Plane) -> Cached {
        Cached { plane, handles: std::array::from_fn(|_| RwLock::default()) }
    }

    pub(super) fn counts(&self) -> Tallied {
        self.plane.counts()
    }

    /// A call is about to be sent.
    pub(super) fn sending(&self, request: &Request<'_>, span: Option<Span>) {
        if let Some(span) = span {
            self.plane.begin_change(span.ino.0);
        }
        if let Request::Release { fh, .. } = *request
            && let Some(shard) = self.shard(fh)
        {
            shard.write().unwrap_or_else(PoisonError::into_inner).remove(&fh);
        }
    }

    /// A call that changed a file is answered.
    pub(super) fn changed(&self, span: Span) {
        self.plane.end_change(span.ino.0);
    }

    /// A handle was opened.
    pub(super) fn opened(&self, fh: Fh, handle: Handle) {
        if let Some(shard) = self.shard(fh).filter(|_| !handle.directory) {
            shard.write().unwrap_or_else(PoisonError::into_inner).insert(fh, handle);
        }
    }

    fn shard(&self, fh: Fh) -> Option<&RwLock<HashMap<Fh, Handle>>> {
        self.handles.get(usize::try_from(fh.0 % SHARDS as u64).ok()?)
    }

    /// The flags a handle on `ino` was opened with.
    fn flags(&self, ino: Ino, fh: Fh) -> Option<u32> {
        let handles = self.shard(fh)?.read().unwrap_or_else(PoisonError::into_inner);
        handles.get(&fh).filter(|handle| handle.ino == ino).map(|handle| handle.flags)
    }

    fn read(&self, ino: Ino, fh: Fh, offset: u64, flags: u32, sink: Sink<'_>) -> Option<u32> {
        let opened = self.flags(ino, fh)?;
        let plain = (opened | flags) & open_flags::DIRECT == 0
            && opened & open_flags::ACCMODE != open_flags::WRONLY;
        plain.then(|| self.plane.read(ino.0, offset, sink)).flatten()
    }

    fn write(
        &self,
        ino: Ino,
        fh: Fh,
        offset: u64,
        flags: u32,
        source: Source<'_>,
        now: Timestamp,
    ) -> Option<u32> {
        const THROUGH: u32 = write_flags::DSYNC | write_flags::WRITEBACK;
        let opened = self.flags(ino, fh)?;
        if flags & THROUGH != 0 || !writes(opened) {
            return None;
        }
        let appends = flags & write_flags::APPEND != 0 || opened & open_flags::APPEND != 0;
        let place = if appends { Place::End } else { Place::At(offset) };
        let second = i64::from(Timestamp::NSEC_PER_SEC);
        let now = now.sec.checked_mul(second)?.checked_add(i64::from(now.nsec))?;
        self.plane.write(ino.0, place, source, now)
    }

    /// Whether writes through a handle may be taken, now or once its inode is not frozen any more.
    fn is_for_writing(&self, ino: Ino, fh: Fh) -> bool {
        self.flags(ino, fh).is_some_and(writes) && self.plane.is_for_writing(ino.0)
    }
}

/// Whether a handle opened like this may write in a cache.
fn writes(opened: u32) -> bool {
    let access = opened & open_flags::ACCMODE;
    opened & (open_flags::DIRECT | open_flags::DSYNC) == 0
        && (access == open_flags::WRONLY || access == open_flags::RDWR)
}

impl Session {
    /// Answers a call from the cache, if that can be.
    pub(super) fn cached_answer(&self, slot: &QueueSlot, call: &Call<'_>) -> Option<Reply> {
        let cached = self.cached()?;
        match *call.request {
            Request::Read { ino, fh, offset, len, flags } => {
                let len = fits(len)?;
                let sink = Sink::Region { at: slot.at(), len };
                let read = cached.read(ino, fh, offset, flags, sink);
                read.filter(|_| self.is_leased(cached)).map(Reply::Data)
            }
            Request::Write { ino, fh, offset, flags } => {
                let len = fits(u32::try_from(call.payload_len).ok()?)?;
                let source = Source::Region { at: slot.at(), len };
                let now = self.world().wall();
                let write = || {
                    let leased = self.is_leased(cached);
                    leased.then(|| cached.write(ino, fh, offset, flags, source, now)).flatten()
                };
                let again = || {
                    // As in `write_cached`, but others wait for this thread.
                    let waits = cached.is_for_writing(ino, fh);
                    let over = waits && cached.plane.await_changes(ino.0, Some(SHORT));
                    over.then(write).flatten()
                };
                write().or_else(again).map(Reply::Written)
            }
            _ => None,
        }
    }

    /// Reads from the cache into memory of this process, without a slot: how many bytes; `None` if
    /// the request must be made as a call.
    #[must_use]
    pub fn read_cached(&self, ino: Ino, fh: Fh, offset: u64, into: &mut [u8]) -> Option<usize> {
        let cached = self.cached()?;
        let read = cached.read(ino, fh, offset, 0, Sink::Memory(into))?;
        usize::try_from(read).ok().filter(|_| self.is_leased(cached))
    }

    /// Writes all of `bytes` into the cache, at the end where the handle appends; false if the
    /// request must be made as a call, and nothing was changed.
    ///
    /// A change of the file by this session that is on its way is waited for, and then the cache is
    /// tried again: as a rule it brings new credit. Else one write that went through would have all
    /// others follow it, for as long as there is always one on its way.
    #[must_use]
    pub fn write_cached(&self, ino: Ino, fh: Fh, offset: u64, bytes: &[u8]) -> bool {
        let Some(cached) = self.cached().filter(|it| self.is_leased(it)) else { return false };
        let now = self.world().wall();
        let source = Source::Memory(bytes);
        for _ in 1..TRIES {
            if cached.write(ino, fh, offset, 0, source, now).is_some() {
                return true;
            }
            if !cached.is_for_writing(ino, fh) || !cached.plane.await_changes(ino.0, None) {
                return false;
            }
        }
        self.cached().is_some_and(|it| it.write(ino, fh, offset, 0, source, now).is_some())
    }

    /// Whether the DPU side is known to be there: until a time that it said, if it did.
    fn is_leased(&self, cached: &Cached) -> bool {
        cached.plane.is_leased(|| self.world().now().0)
    }

    /// The cache, while calls may be answered at all: after a loss was given up, a write taken here
    /// would wait for a DPU side nobody expects back.
    fn cached(&self) -> Option<&Cached> {
        self.cached.as_ref().filter(|_| !self.given_up.load(Acquire))
    }
}

/// A length, if a slot has room for it; what is longer is refused where calls are encoded.
fn fits(len: u32) -> Option<u32> {
    (u64::from(len) <= limits::IO_MAX as u64).then_some(len)
}
