//! A set of packet numbers near each other: one bit each, by the number's low bits.

use outboard_wire::roce::Psn;

/// Packets a window has at most.
pub const WINDOW_MAX: u32 = 256;

const WORDS: usize = (WINDOW_MAX / 64) as usize;

/// Numbers of a window of [`WINDOW_MAX`]; who uses it keeps them that near.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Numbers {
    bits: [u64; WORDS],
    len: u32,
}

impl Numbers {
    fn place(psn: Psn) -> (usize, u64) {
        let low = psn.raw() % WINDOW_MAX;
        ((low / 64) as usize, 1 << (low % 64))
    }

    pub(crate) fn has(&self, psn: Psn) -> bool {
        let (word, bit) = Numbers::place(psn);
        self.bits.get(word).is_some_and(|bits| bits & bit != 0)
    }

    pub(crate) fn insert(&mut self, psn: Psn) {
        if !self.has(psn) {
            let (word, bit) = Numbers::place(psn);
            self.bits.get_mut(word).into_iter().for_each(|bits| *bits |= bit);
            self.len += 1;
        }
    }

    pub(crate) fn remove(&mut self, psn: Psn) {
        if self.has(psn) {
            let (word, bit) = Numbers::place(psn);
            self.bits.get_mut(word).into_iter().for_each(|bits| *bits &= !bit);
            self.len -= 1;
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The first of `count` numbers from `from` on that is in.
    pub(crate) fn first(&self, from: Psn, count: u32) -> Option<Psn> {
        if self.is_empty() {
            return None;
        }
        (0..count.min(WINDOW_MAX)).map(|ahead| from.plus(ahead)).find(|psn| self.has(*psn))
    }
}
