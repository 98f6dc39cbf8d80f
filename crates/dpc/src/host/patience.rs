//! How long to spin for an answer: as long as experience says that it will come.
//!
//! Sleeping and being woken costs tens of microseconds of two processors; most metadata operations
//! answer in a few. So each kind of operation has a moving average of its time from start to
//! answer: a quick one is spun for, twice its average; a slow one (a read that goes to a disk) is
//! not spun for at all. Now and then a slow one is spun for after all, because an answer taken in
//! by a sleeper looks slower than it was.

use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::time::Duration;

use outboard_wire::file::Op;

const OPS: usize = 64;
const _: () = assert!(Op::ALL.len() <= OPS);
/// One call in this many of a slow kind is spun for.
const PROBE: u32 = 64;

/// Averages by operation. Shared by the threads of a port: a lost update costs nothing.
#[derive(Debug)]
pub(super) struct Patience {
    average_ns: [AtomicU32; OPS],
    turn: AtomicU32,
    max_ns: u32,
}

impl Patience {
    /// Never spins longer than `max`. Starts hopeful.
    pub(super) fn new(max: Duration) -> Patience {
        let max_ns = u32::try_from(max.as_nanos()).unwrap_or(u32::MAX);
        Patience {
            average_ns: std::array::from_fn(|_| AtomicU32::new(max_ns / 4)),
            turn: AtomicU32::new(0),
            max_ns,
        }
    }

    /// How long to spin for an answer to `op`, nanoseconds.
    pub(super) fn budget(&self, op: Op) -> u64 {
        let Some(average) = self.average_ns.get(op as usize) else { return 0 };
        let average = average.load(Relaxed);
        if average <= self.max_ns / 2 {
            return u64::from((average * 2).max(self.max_ns / 4));
        }
        let turn = self.turn.load(Relaxed).wrapping_add(1);
        self.turn.store(turn, Relaxed);
        if turn.is_multiple_of(PROBE) { u64::from(self.max_ns) } else { 0 }
    }

    /// An answer to `op` took this long.
    pub(super) fn learn(&self, op: Op, took: Duration) {
        let Some(average) = self.average_ns.get(op as usize) else { return };
        // One slow answer (a page fault, a preempted poller) must not outweigh many quick ones.
        let took = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX);
        let took = took.min(4 * u64::from(self.max_ns));
        let old = u64::from(average.load(Relaxed));
        let new = (7 * old + took) / 8;
        average.store(u32::try_from(new).unwrap_or(u32::MAX), Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MAX: Duration = Duration::from_micros(100);

    #[test]
    fn quick_operations_are_spun_for_and_slow_ones_are_not() {
        let patience = Patience::new(MAX);
        for _ in 0..50 {
            patience.learn(Op::Getattr, Duration::from_micros(5));
            patience.learn(Op::Read, Duration::from_millis(5));
        }
        let getattr = patience.budget(Op::Getattr);
        assert!((10_000..=100_000).contains(&getattr), "{getattr}");
        let spun = (0..PROBE).filter(|_| patience.budget(Op::Read) != 0).count();
        assert_eq!(spun, 1, "a slow kind is probed once in a while");
    }

    #[test]
    fn one_slow_answer_does_not_end_spinning_and_quick_ones_bring_it_back() {
        let patience = Patience::new(MAX);
        for _ in 0..50 {
            patience.learn(Op::Getattr, Duration::from_micros(5));
        }
        patience.learn(Op::Getattr, Duration::from_secs(1));
        for _ in 0..2 {
            patience.learn(Op::Getattr, Duration::from_micros(5));
        }
        assert_ne!(patience.budget(Op::Getattr), 0);
        for _ in 0..100 {
            patience.learn(Op::Getattr, Duration::from_secs(1));
        }
        assert_eq!(patience.budget(Op::Getattr), 0);
        for _ in 0..100 {
            patience.learn(Op::Getattr, Duration::from_micros(5));
        }
        assert_ne!(patience.budget(Op::Getattr), 0);
    }
}
