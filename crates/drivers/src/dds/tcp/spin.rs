//! Whether a worker looks for the ends of reads for a while before it sleeps.
//!
//! That pays where the device answers within the while: a sleep and a waking are saved. On a slower
//! one it is CPU time for nothing, so it is done as long as one look in three finds something, and
//! else only now and then, to notice when that changes.

/// How long it is remembered that looking paid.
const SCORE_MAX: u8 = 8;
/// Where it does not pay, one sleep in so many begins with a look.
const TRY_EVERY: u32 = 64;

/// Decides, sleep by sleep.
#[derive(Debug)]
pub(super) struct Spin {
    score: u8,
    sleeps: u32,
}

impl Spin {
    /// Looks until it has seen that it does not pay.
    pub(super) fn new() -> Spin {
        Spin { score: SCORE_MAX, sleeps: 0 }
    }

    /// Whether to look before this sleep.
    pub(super) fn is_due(&mut self) -> bool {
        self.sleeps = self.sleeps.wrapping_add(1);
        self.score > 0 || self.sleeps.is_multiple_of(TRY_EVERY)
    }

    /// Whether a look found something.
    pub(super) fn ended(&mut self, found: bool) {
        self.score = match found {
            true => (self.score + 2).min(SCORE_MAX),
            false => self.score.saturating_sub(1),
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Sleeps of so many that began with a look, where looks find something one time in `one_in`.
    fn looks(spin: &mut Spin, sleeps: u32, one_in: u32) -> u32 {
        let mut looks = 0;
        for _ in 0..sleeps {
            if spin.is_due() {
                looks += 1;
                spin.ended(looks % one_in == 0);
            }
        }
        looks
    }

    #[test]
    fn a_slow_device_is_not_looked_at_and_a_quick_one_is_found_again() {
        let mut spin = Spin::new();
        assert_eq!(looks(&mut spin, 640, 1), 640);
        assert_eq!(looks(&mut spin, 640, 2), 640);
        let slow = looks(&mut spin, 6400, u32::MAX);
        assert!((100..=120).contains(&slow), "{slow} of 6400");
        assert!(looks(&mut spin, 640, 1) > 500);
    }
}
