//! Small writes through the page cache, and on to the device at once.
//!
//! A direct write is answered when the device has it: who writes and then syncs waits for the
//! device twice. A write that is alone and small is instead copied into the page cache and its way
//! to the device begun (`RWF_DONTCACHE`: the cache lets go of it when it arrived). It is answered
//! as any write is: the operating system has it. Before a flush of the device those on their way
//! are waited for.
//!
//! What is on its way is bounded: beyond that writes are direct again, and so wait.

use std::fs::File;
use std::io::IoSlice;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use outboard_base::Errno;
use rustix::io::ReadWriteFlags;

/// Bytes of a write that may pass through, at most.
const WRITE_MAX: usize = 64 << 10;
/// Bytes on their way, at most.
const UNDER_WAY_MAX: u64 = 1 << 20;

/// Not to be kept in the page cache when it is on the device.
const DONTCACHE: ReadWriteFlags = ReadWriteFlags::from_bits_retain(0x80);

#[derive(Default)]
struct UnderWay {
    /// The writes lie within, if there are any.
    range: Option<Range<u64>>,
    /// Bytes ever sent on their way, and those of them that have surely arrived. Counted from the
    /// beginning, since several may wait for the same ones.
    begun: u64,
    arrived: u64,
}

impl UnderWay {
    fn bytes(&self) -> u64 {
        self.begun - self.arrived
    }
}

/// The medium's file by the page cache.
pub(super) struct Passing {
    file: Arc<File>,
    refused: AtomicBool,
    under_way: Mutex<UnderWay>,
}

impl Passing {
    /// `file` was not opened for direct I/O.
    pub(super) fn new(file: File) -> Passing {
        let (refused, under_way) = (AtomicBool::new(false), Mutex::default());
        Passing { file: Arc::new(file), refused, under_way }
    }

    pub(super) fn file(&self) -> &Arc<File> {
        &self.file
    }

    fn under_way(&self) -> MutexGuard<'_, UnderWay> {
        self.under_way.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Writes `bytes`, if that may be done this way; `None` if it must be done another.
    pub(super) fn write(&self, offset: u64, bytes: &[u8]) -> Option<Result<(), Errno>> {
        if bytes.len() > WRITE_MAX || self.refused.load(Ordering::Relaxed) {
            return None;
        }
        let mut under_way = self.under_way();
        let len = bytes.len() as u64;
        if under_way.bytes() + len > UNDER_WAY_MAX {
            return None;
        }
        let slice = [IoSlice::new(bytes)];
        match rustix::io::pwritev2(&self.file, &slice, offset, DONTCACHE) {
            Ok(written) if written == bytes.len() => {
                let (mut start, mut end) = (offset, offset + len);
                if let Some(range) = &under_way.range {
                    (start, end) = (start.min(range.start), end.max(range.end));
                }
                under_way.range = Some(start..end);
                under_way.begun += len;
                Some(Ok(()))
            }
            // A part of it: the direct write does it all again.
            Ok(_) => None,
            Err(_) => {
                // An old kernel, another file system, an error: the direct write will tell.
                self.refused.store(true, Ordering::Relaxed);
                None
            }
        }
    }

    /// Where writes are on their way, and what [`Passing::arrived`] is told when they are there.
    pub(super) fn on_their_way(&self) -> Option<(Range<u64>, u64)> {
        let under_way = self.under_way();
        under_way.range.clone().map(|range| (range, under_way.begun))
    }

    /// Those that were on their way at some time have arrived; `begun` was told then.
    pub(super) fn arrived(&self, begun: u64) {
        let mut under_way = self.under_way();
        under_way.arrived = under_way.arrived.max(begun);
        if under_way.bytes() == 0 {
            under_way.range = None;
        }
    }

    /// Bytes on their way, if there are any.
    #[cfg(test)]
    pub(super) fn bytes(&self) -> Option<u64> {
        let under_way = self.under_way();
        under_way.range.as_ref().map(|_| under_way.bytes())
    }
}
