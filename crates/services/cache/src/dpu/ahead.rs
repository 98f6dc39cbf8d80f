//! Whether what was read ahead was worth it.
//!
//! A hit is invisible from here; its trace is the `referenced` bit of the entry. So each entry that
//! was filled ahead of need is remembered until that bit is seen, or the page goes without it.

/// Entries filled ahead of need and not seen used yet.
pub(super) struct Ahead {
    waiting: Vec<u64>,
    filled: u64,
    used: u64,
}

impl Ahead {
    pub(super) fn new(total: u32) -> Ahead {
        let words = usize::try_from(total.div_ceil(64)).unwrap_or(0);
        Ahead { waiting: vec![0; words], filled: 0, used: 0 }
    }

    fn word(&mut self, index: u64) -> Option<(&mut u64, u64)> {
        let word = self.waiting.get_mut(usize::try_from(index / 64).ok()?)?;
        Some((word, 1 << (index % 64)))
    }

    /// Entry `index` was filled; whether ahead of need.
    pub(super) fn filled(&mut self, index: u64, ahead: bool) {
        let Some((word, bit)) = self.word(index) else { return };
        if ahead {
            *word |= bit;
            self.filled += 1;
        } else {
            *word &= !bit;
        }
    }

    /// Entry `index` was looked at; whether it was used.
    pub(super) fn looked(&mut self, index: u64, referenced: bool) {
        let Some((word, bit)) = self.word(index) else { return };
        if referenced && *word & bit != 0 {
            *word &= !bit;
            self.used += 1;
        }
    }

    /// Pages filled ahead of need, and those of them seen used.
    pub(super) fn counts(&self) -> (u64, u64) {
        (self.filled, self.used)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_fetched_and_used_counts_once() {
        let mut ahead = Ahead::new(100);
        for index in 0..4 {
            ahead.filled(index, true);
        }
        ahead.filled(70, false);
        for index in [0, 0, 1, 70, 5000] {
            ahead.looked(index, true);
        }
        ahead.looked(2, false);
        // Entry 3 goes unused and is filled again by somebody who needs it.
        ahead.filled(3, false);
        ahead.looked(3, true);
        assert_eq!(ahead.counts(), (4, 2));
    }
}
