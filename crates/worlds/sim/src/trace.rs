//! What a run did, as one number: two runs of one seed must have the same.
//!
//! A simulation whose equal seeds differ cannot be replayed, and nothing else tells: it still finds
//! faults, and loses them again. So each simulation notes its choices and what came of them, and a
//! test runs a seed twice. Where two runs differ, look for a map whose order is random, an address,
//! a clock or a thread.

use std::fmt;

/// A running FNV-1a hash of what was noted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Trace(u64);

impl Default for Trace {
    fn default() -> Trace {
        Trace(0xcbf2_9ce4_8422_2325)
    }
}

impl Trace {
    /// Notes a choice or a count.
    pub fn note(&mut self, number: u64) {
        self.bytes(&number.to_le_bytes());
    }

    /// Notes whatever can be printed.
    pub fn note_text(&mut self, text: fmt::Arguments<'_>) {
        // Writing into a hash does not fail.
        let _ = fmt::Write::write_fmt(self, text);
    }

    fn bytes(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.0 = (self.0 ^ u64::from(*byte)).wrapping_mul(0x100_0000_01b3);
        }
    }

    /// The number.
    #[must_use]
    pub fn hash(&self) -> u64 {
        self.0
    }
}

impl fmt::Write for Trace {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        self.bytes(text.as_bytes());
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_order_of_what_is_noted_counts() {
        let noted = |numbers: [u64; 2]| {
            let mut trace = Trace::default();
            numbers.into_iter().for_each(|number| trace.note(number));
            trace.hash()
        };
        assert_eq!(noted([1, 2]), noted([1, 2]));
        assert_ne!(noted([1, 2]), noted([2, 1]));
        let (mut a, mut b) = (Trace::default(), Trace::default());
        a.note_text(format_args!("{} {}", 1, 2));
        b.note_text(format_args!("1 2"));
        assert_eq!(a, b);
    }
}
