//! Buffers kept for reuse: a fresh megabyte costs more in page faults than the copy into it.

use std::sync::{Mutex, PoisonError};

use super::BLOCK;
use outboard_medium::{Buf, Lender};

/// Size classes: 1, 2, 4 ... 256 blocks (2 MiB).
const CLASSES: usize = 9;
/// Bytes kept per class.
const KEPT: usize = 8 << 20;

/// A bounded pool of buffers.
pub(super) struct Pool {
    classes: [Mutex<Vec<Buf>>; CLASSES],
}

impl Pool {
    pub(super) fn new() -> Pool {
        Pool { classes: std::array::from_fn(|_| Mutex::new(Vec::new())) }
    }

    fn class(bytes: usize) -> Option<(usize, usize)> {
        let block = usize::try_from(BLOCK).unwrap_or(usize::MAX);
        let blocks = bytes.div_ceil(block).next_power_of_two();
        let class = usize::try_from(blocks.trailing_zeros()).unwrap_or(CLASSES);
        (class < CLASSES).then_some((class, blocks * block))
    }

    /// A buffer of `blocks` blocks with arbitrary bytes in it.
    pub(super) fn take(&self, blocks: u64) -> Buf {
        let bytes = usize::try_from(blocks * BLOCK).unwrap_or(usize::MAX);
        let Some((class, capacity)) = Self::class(bytes) else { return Buf::zeroed(bytes) };
        let kept = self.classes.get(class);
        let kept = kept.and_then(|k| k.lock().unwrap_or_else(PoisonError::into_inner).pop());
        let mut buf = kept.unwrap_or_else(|| Buf::zeroed(capacity));
        buf.resize(bytes);
        buf
    }

    /// Takes a buffer back.
    pub(super) fn give(&self, buf: Buf) {
        let Some((class, capacity)) = Self::class(buf.capacity()) else { return };
        if capacity == buf.capacity()
            && !buf.is_part()
            && let Some(kept) = self.classes.get(class)
        {
            let mut kept = kept.lock().unwrap_or_else(PoisonError::into_inner);
            if kept.len() < KEPT / capacity {
                kept.push(buf);
            }
        }
    }
}

impl Lender for Pool {
    fn take_back(&self, buf: Buf) {
        self.give(buf);
    }
}
