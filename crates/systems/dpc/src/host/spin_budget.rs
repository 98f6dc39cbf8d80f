//! How long to spin for an answer: as long as experience says that it will come.
//!
//! Sleeping and being woken costs tens of microseconds of two processors; most operations answer in
//! a few. So each kind of operation has a moving average of its time from start to answer, and is
//! spun for twice as long. Only answers found while spinning count: one that a sleeper took in says
//! how long it slept, and who believed that would never spin again.
//!
//! A kind that is not answered in time (a read that goes to a disk) is left to sleep at once: after
//! one miss the next time, after each further miss in a row twice as often, up to 63 times of 64.
//! The first answer found ends that.

use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::time::Duration;

use outboard_wire::file::Op;

const OPS: usize = 64;
const _: () = assert!(Op::ALL.len() <= OPS);
/// Calls of a slow kind between two that are spun for, at most.
const REST_MAX: u32 = 63;

/// What is known of one kind of operation. Shared by the threads of a port: a lost update costs
/// nothing.
#[derive(Debug)]
struct Kind {
    /// Time to an answer that was spun for.
    average_ns: AtomicU32,
    /// Calls to leave alone before the next that is spun for.
    rest: AtomicU32,
    /// How many the last miss asked for.
    penalty: AtomicU32,
}

/// How long to spin, by operation; learnt from answers.
#[derive(Debug)]
pub(super) struct SpinBudget {
    kinds: [Kind; OPS],
    max_ns: u32,
}

impl SpinBudget {
    /// Never spins longer than `max`. Starts hopeful.
    pub(super) fn new(max: Duration) -> SpinBudget {
        let max_ns = u32::try_from(max.as_nanos()).unwrap_or(u32::MAX);
        let kind = |_| Kind {
            average_ns: AtomicU32::new(max_ns / 4),
            rest: AtomicU32::new(0),
            penalty: AtomicU32::new(0),
        };
        SpinBudget { kinds: std::array::from_fn(kind), max_ns }
    }

    fn kind(&self, op: Op) -> Option<&Kind> {
        self.kinds.get(op as usize)
    }

    /// How long to spin for an answer to `op`, nanoseconds. Who spins says what came of it:
    /// [`SpinBudget::found`] or [`SpinBudget::missed`].
    pub(super) fn of(&self, op: Op) -> u64 {
        let Some(kind) = self.kind(op) else { return 0 };
        let rest = kind.rest.load(Relaxed);
        if rest > 0 {
            kind.rest.store(rest - 1, Relaxed);
            return 0;
        }
        let average = kind.average_ns.load(Relaxed);
        u64::from(average.saturating_mul(2).max(self.max_ns / 4).min(self.max_ns))
    }

    /// An answer to `op` came while it was spun for, after `took`.
    pub(super) fn found(&self, op: Op, took: Duration) {
        let Some(kind) = self.kind(op) else { return };
        let took = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX).min(u64::from(self.max_ns));
        let old = u64::from(kind.average_ns.load(Relaxed));
        kind.average_ns.store(u32::try_from((7 * old + took) / 8).unwrap_or(u32::MAX), Relaxed);
        kind.penalty.store(0, Relaxed);
    }

    /// None came in time.
    pub(super) fn missed(&self, op: Op) {
        let Some(kind) = self.kind(op) else { return };
        // It may only have been a little too short.
        let longer = kind.average_ns.load(Relaxed).saturating_mul(2).min(self.max_ns / 2);
        kind.average_ns.store(longer, Relaxed);
        let penalty = (2 * kind.penalty.load(Relaxed) + 1).min(REST_MAX);
        kind.penalty.store(penalty, Relaxed);
        kind.rest.store(penalty, Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MAX: Duration = Duration::from_micros(100);

    /// Calls that are answered after `took`, each spun for as long as it is worth: how many of them
    /// were spun for, and how many answers were found.
    fn run(spin_budget: &SpinBudget, op: Op, took: Duration, calls: u32) -> (u32, u32) {
        let (mut spun, mut found) = (0, 0);
        for _ in 0..calls {
            let budget = spin_budget.of(op);
            if budget == 0 {
                continue;
            }
            spun += 1;
            if took <= Duration::from_nanos(budget) {
                found += 1;
                spin_budget.found(op, took);
            } else {
                spin_budget.missed(op);
            }
        }
        (spun, found)
    }

    #[test]
    fn quick_operations_are_spun_for_and_slow_ones_are_not() {
        let spin_budget = SpinBudget::new(MAX);
        assert_eq!(run(&spin_budget, Op::Getattr, Duration::from_micros(5), 100), (100, 100));
        assert!((10_000..=100_000).contains(&spin_budget.of(Op::Getattr)));
        run(&spin_budget, Op::Read, Duration::from_millis(5), 200);
        let spun = run(&spin_budget, Op::Read, Duration::from_millis(5), 640).0;
        assert_eq!(spun, 10, "a slow kind is tried once in a while");
        assert_eq!(
            run(&spin_budget, Op::Getattr, Duration::from_micros(5), 9),
            (9, 9),
            "for itself"
        );
    }

    /// Answers that a sleeper took in counted as slow, so that a kind of operation that had been
    /// slept for a few times was slept for ever after: `fcntl` locks answered in 5 us took 60.
    #[test]
    fn what_was_slow_for_a_while_is_spun_for_again() {
        let spin_budget = SpinBudget::new(MAX);
        run(&spin_budget, Op::Setlk, Duration::from_millis(1), 1_000);
        let found = run(&spin_budget, Op::Setlk, Duration::from_micros(5), 164).1;
        assert!(found >= 100, "{found}");
    }

    #[test]
    fn one_miss_costs_one_sleep() {
        let spin_budget = SpinBudget::new(MAX);
        run(&spin_budget, Op::Getattr, Duration::from_micros(5), 50);
        run(&spin_budget, Op::Getattr, Duration::from_secs(1), 1);
        assert_eq!(run(&spin_budget, Op::Getattr, Duration::from_micros(5), 10), (9, 9));
    }

    /// The first guess is a quarter of the longest spin; an answer that takes three quarters is
    /// worth waiting for all the same.
    #[test]
    fn a_spin_that_was_too_short_becomes_longer() {
        let spin_budget = SpinBudget::new(MAX);
        let found = run(&spin_budget, Op::Write, Duration::from_micros(75), 100).1;
        assert!(found >= 95, "{found}");
    }
}
