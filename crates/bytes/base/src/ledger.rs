//! What hardware would charge for, counted where it happens, in relaxed counters.
//!
//! A [`Ledger`] belongs to one side of one link. DMA is charged by [`Kind`], operations and bytes
//! together; everything else is a [`Count`]. A new kind is one entry in its list below: the tables,
//! the JSON and the counters follow. Whoever does what is charged charges it: the DMA engines, the
//! queues, the loops that spin; and packets, bytes sent and a handler's instructions will be
//! counts as well, added with the code of the shared volumes that charges them.

use std::sync::atomic::{AtomicU64, Ordering};

/// An enum whose entries have short names for tables and JSON, listed in the order of the tables.
macro_rules! charged {
    ($(#[$about:meta])* $enum:ident { $($(#[$doc:meta])* $entry:ident => $name:literal,)* }) => {
        $(#[$about])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum $enum {
            $($(#[$doc])* $entry,)*
        }

        impl $enum {
            /// All of them, in the order of the tables.
            pub const ALL: [$enum; [$($name),*].len()] = [$($enum::$entry),*];

            /// A short name for tables and JSON.
            #[must_use]
            pub fn name(self) -> &'static str {
                match self {
                    $($enum::$entry => $name,)*
                }
            }
        }
    };
}

charged! {
    /// What a DMA is for.
    Kind {
        /// Fetching submission entries (several at once when they queue up).
        Sqe => "sqe",
        /// Request header and PRP lists: where the data is and what to do with it.
        Locate => "locate",
        /// Data of a write, host to DPU.
        DataIn => "data_in",
        /// Data of a read, DPU to host.
        DataOut => "data_out",
        /// Reply header.
        ReplyHeader => "reply_header",
        /// Completion entries.
        Cqe => "cqe",
        /// Event entries.
        Event => "event",
        /// Compare-and-swap and fetch-add.
        Atomic => "atomic",
        /// Entries and records of the hybrid cache.
        Cache => "cache",
        /// Pages pulled from the hybrid cache, host to DPU.
        CacheIn => "cache_in",
        /// Pages put into the hybrid cache, DPU to host.
        CacheOut => "cache_out",
        /// The pointers of a ring: progress and tail in one, heads, flags.
        RingWords => "ring_words",
        /// Messages of a ring, host to DPU.
        RingIn => "ring_in",
        /// Messages of a ring, DPU to host.
        RingOut => "ring_out",
    }
}

charged! {
    /// What is counted beside DMA.
    Count {
        /// Commands admitted.
        Commands => "commands",
        /// Commands refused by the queue with an error completion.
        Refused => "refused",
        /// Doorbells out of range, entries that answer nothing: the other side breaks the protocol.
        Violations => "violations",
        /// Doorbells rung by the host.
        Doorbells => "doorbells",
        /// Interrupts sent to the host.
        Interrupts => "interrupts",
        /// Abort requests delivered.
        Aborts => "aborts",
        /// Events dropped because the ring was full.
        EventsLost => "events_lost",
        /// Passes of a loop that found nothing.
        Spins => "spins",
        /// Nanoseconds spent in such passes.
        SpinNs => "spin_ns",
        /// Times a side went to sleep.
        Sleeps => "sleeps",
        /// Wake-ups sent to a sleeping side.
        Wakes => "wakes",
        /// Bytes of data a processor of the DPU side copied from one of its buffers to another.
        Copied => "copied_bytes",
    }
}

/// Operations and bytes of one kind of DMA.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// Operations.
    pub ops: u64,
    /// Bytes they moved.
    pub bytes: u64,
}

/// The counters of one side of one link.
#[derive(Debug, Default)]
pub struct Ledger {
    ops: [AtomicU64; Kind::ALL.len()],
    bytes: [AtomicU64; Kind::ALL.len()],
    counts: [AtomicU64; Count::ALL.len()],
}

impl Ledger {
    /// All zero.
    #[must_use]
    pub fn new() -> Ledger {
        Ledger::default()
    }

    /// One DMA of `bytes`.
    pub fn charge(&self, kind: Kind, bytes: usize) {
        if let (Some(ops), Some(sum)) = (self.ops.get(kind as usize), self.bytes.get(kind as usize))
        {
            ops.fetch_add(1, Ordering::Relaxed);
            sum.fetch_add(bytes as u64, Ordering::Relaxed);
        }
    }

    /// `by` more of something else.
    pub fn count(&self, what: Count, by: u64) {
        if let Some(counter) = self.counts.get(what as usize) {
            counter.fetch_add(by, Ordering::Relaxed);
        }
    }

    /// What has been charged so far.
    #[must_use]
    pub fn snapshot(&self) -> Snapshot {
        Snapshot {
            ops: self.ops.each_ref().map(|c| c.load(Ordering::Relaxed)),
            bytes: self.bytes.each_ref().map(|c| c.load(Ordering::Relaxed)),
            counts: self.counts.each_ref().map(|c| c.load(Ordering::Relaxed)),
        }
    }
}

/// The counters at a moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Snapshot {
    ops: [u64; Kind::ALL.len()],
    bytes: [u64; Kind::ALL.len()],
    counts: [u64; Count::ALL.len()],
}

impl Snapshot {
    /// Operations and bytes of one kind.
    #[must_use]
    pub fn dma(&self, kind: Kind) -> Tally {
        let of = |all: &[u64]| all.get(kind as usize).copied().unwrap_or(0);
        Tally { ops: of(&self.ops), bytes: of(&self.bytes) }
    }

    /// One counter.
    #[must_use]
    pub fn count(&self, what: Count) -> u64 {
        self.counts.get(what as usize).copied().unwrap_or(0)
    }

    /// All DMA together.
    #[must_use]
    pub fn total(&self) -> Tally {
        Tally { ops: self.ops.iter().sum(), bytes: self.bytes.iter().sum() }
    }

    /// What was charged since `earlier`.
    #[must_use]
    pub fn since(&self, earlier: &Snapshot) -> Snapshot {
        fn less<const N: usize>(now: [u64; N], then: [u64; N]) -> [u64; N] {
            let mut out = now;
            for (to, from) in out.iter_mut().zip(then) {
                *to = to.saturating_sub(from);
            }
            out
        }
        Snapshot {
            ops: less(self.ops, earlier.ops),
            bytes: less(self.bytes, earlier.bytes),
            counts: less(self.counts, earlier.counts),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_charged_is_what_a_snapshot_says() {
        let ledger = Ledger::new();
        ledger.charge(Kind::Sqe, 64);
        let before = ledger.snapshot();
        for (at, kind) in Kind::ALL.into_iter().enumerate() {
            (0..=at).for_each(|_| ledger.charge(kind, 10));
        }
        for (at, count) in Count::ALL.into_iter().enumerate() {
            ledger.count(count, at as u64);
        }
        let spent = ledger.snapshot().since(&before);
        for (at, kind) in Kind::ALL.into_iter().enumerate() {
            let ops = at as u64 + 1;
            assert_eq!(spent.dma(kind), Tally { ops, bytes: 10 * ops }, "{}", kind.name());
        }
        for (at, count) in Count::ALL.into_iter().enumerate() {
            assert_eq!(spent.count(count), at as u64, "{}", count.name());
        }
        assert_eq!(before.total(), Tally { ops: 1, bytes: 64 });
    }
}
