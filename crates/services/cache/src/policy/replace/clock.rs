//! CLOCK: a hand goes round the bucket; who was used since it last came by gets a second chance.

use super::Replace;

/// One bit a page, one hand a bucket.
pub struct Clock {
    used: Vec<bool>,
    hands: Vec<u32>,
    ways: u32,
}

impl Clock {
    /// For `total` entries in buckets of `ways`.
    #[must_use]
    pub fn new(total: u32, ways: u32) -> Clock {
        let (total, ways) = (total as usize, ways.max(1));
        let buckets = total.div_ceil(ways as usize);
        Clock { used: vec![false; total], hands: vec![0; buckets], ways }
    }

    fn set(&mut self, at: u32, used: bool) {
        if let Some(bit) = self.used.get_mut(at as usize) {
            *bit = used;
        }
    }
}

impl Replace for Clock {
    fn filled(&mut self, at: u32, _: u32) {
        self.set(at, true);
    }

    fn looked(&mut self, at: u32, referenced: bool) {
        if referenced {
            self.set(at, true);
        }
    }

    fn victim(&mut self, candidates: &[u32]) -> Option<u32> {
        let first = *candidates.first()?;
        let bucket = (first / self.ways) as usize;
        let hand = self.hands.get(bucket).copied().unwrap_or(0);
        // Candidates from the hand on, then from the start: twice, as the first round takes bits.
        let from = candidates.iter().position(|at| at % self.ways >= hand).unwrap_or(0);
        let (before, after) = candidates.split_at_checked(from)?;
        let round = || after.iter().chain(before).copied();
        let mut found = first;
        for at in round().chain(round()) {
            let used = self.used.get(at as usize).copied().unwrap_or(false);
            found = at;
            if !used {
                break;
            }
            self.set(at, false);
        }
        if let Some(hand) = self.hands.get_mut(bucket) {
            *hand = (found + 1) % self.ways;
        }
        Some(found)
    }

    fn removed(&mut self, at: u32) {
        self.set(at, false);
    }
}
