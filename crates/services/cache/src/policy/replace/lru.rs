//! Least recently used, approximately: the age of a page is the age of the last sample that found
//! it used.

use super::Replace;

/// A stamp a page.
pub struct Lru {
    stamps: Vec<u64>,
    now: u64,
}

impl Lru {
    /// For `total` entries.
    #[must_use]
    pub fn new(total: u32) -> Lru {
        Lru { stamps: vec![0; total as usize], now: 1 }
    }

    fn stamp(&mut self, at: u32, stamp: u64) {
        if let Some(place) = self.stamps.get_mut(at as usize) {
            *place = stamp;
        }
    }
}

impl Replace for Lru {
    fn filled(&mut self, at: u32, _: u32) {
        self.now += 1;
        self.stamp(at, self.now);
    }

    fn looked(&mut self, at: u32, referenced: bool) {
        if referenced {
            self.stamp(at, self.now);
        }
    }

    fn victim(&mut self, candidates: &[u32]) -> Option<u32> {
        self.now += 1;
        let stamp = |at: &u32| self.stamps.get(*at as usize).copied().unwrap_or(0);
        candidates.iter().copied().min_by_key(stamp)
    }

    fn removed(&mut self, at: u32) {
        self.stamp(at, 0);
    }
}
