//! Reads at a constant distance, such as one field of every record of a table.

use std::ops::Range;

use super::{Prefetch, Sequential};

/// Misses at one distance before it is believed.
const SIGNS: u32 = 2;
/// Strides fetched ahead at first.
const AHEAD_MIN: u64 = 2;
/// Most strides fetched ahead: each is a read of its own.
const AHEAD_MAX: u64 = 16;

/// A sequential reader's state, and a stride that may be one.
pub struct Strided {
    sequential: Sequential,
    last: u64,
    stride: i64,
    signs: u32,
    ahead: u64,
    window_max: u64,
}

impl Strided {
    /// At most `window_max` pages ahead.
    #[must_use]
    pub fn new(window_max: u64) -> Strided {
        let sequential = Sequential::new(window_max);
        Strided { sequential, last: 0, stride: 0, signs: 0, ahead: 0, window_max }
    }

    /// Whether a miss at `page` is where the stride leads, what was fetched ahead being hit.
    fn follows(&self, page: u64) -> bool {
        let steps = i64::try_from(self.ahead).unwrap_or(0) + 1;
        let expected = self.stride.checked_mul(steps);
        self.stride != 0 && expected.and_then(|by| self.last.checked_add_signed(by)) == Some(page)
    }
}

impl Prefetch for Strided {
    fn missed(&mut self, read: Range<u64>, ahead: &mut Vec<Range<u64>>) {
        let before = ahead.len();
        self.sequential.missed(read.clone(), ahead);
        if self.follows(read.start) {
            self.signs += 1;
        } else {
            self.stride = i64::try_from(read.start)
                .ok()
                .and_then(|page| page.checked_sub(i64::try_from(self.last).ok()?))
                .unwrap_or(0);
            (self.signs, self.ahead) = (0, 0);
        }
        self.last = read.start;
        if ahead.len() > before || self.signs < SIGNS {
            self.ahead = 0;
            return;
        }
        let len = read.end.saturating_sub(read.start).max(1);
        let most = (self.window_max / len).min(AHEAD_MAX);
        let mut wanted = read.start;
        let strides = (self.ahead * 2).clamp(AHEAD_MIN, AHEAD_MAX).min(most);
        self.ahead = 0;
        for _ in 0..strides {
            let Some(page) = wanted.checked_add_signed(self.stride) else { break };
            let Some(end) = page.checked_add(len) else { break };
            ahead.push(page..end);
            wanted = page;
            self.ahead += 1;
        }
    }
}
