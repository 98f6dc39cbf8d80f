//! Read-ahead: who reads on where the last fetch ended gets twice as much the next time.

use std::ops::Range;

use super::Prefetch;

/// Pages fetched ahead at the first sign of a sequential reader.
const WINDOW_MIN: u64 = 4;

/// One reader's place.
pub struct Sequential {
    /// The page behind all that was fetched; a file's beginning is a good guess for a start.
    next: u64,
    window: u64,
    window_max: u64,
}

impl Sequential {
    /// At most `window_max` pages ahead.
    #[must_use]
    pub fn new(window_max: u64) -> Sequential {
        Sequential { next: 0, window: 0, window_max }
    }
}

impl Prefetch for Sequential {
    fn missed(&mut self, read: Range<u64>, ahead: &mut Vec<Range<u64>>) {
        if read.start == self.next || (read.contains(&self.next) && self.window > 0) {
            self.window = (self.window * 2).max(WINDOW_MIN).min(self.window_max);
        } else {
            self.window = 0;
        }
        let end = read.end.saturating_add(self.window.min(self.window_max));
        if end > read.end {
            ahead.push(read.end..end);
        }
        self.next = end;
    }
}
