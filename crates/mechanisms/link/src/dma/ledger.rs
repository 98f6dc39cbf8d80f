//! What hardware would charge for, in a few relaxed counters.

use std::sync::atomic::{AtomicU64, Ordering};

/// What a DMA is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    /// Fetching submission entries (several at once when they queue up).
    Sqe,
    /// Request header and PRP lists: where the data is and what to do with it.
    Locate,
    /// Data of a write, host to DPU.
    DataIn,
    /// Data of a read, DPU to host.
    DataOut,
    /// Reply header.
    ReplyHeader,
    /// Completion entries.
    Cqe,
    /// Event entries.
    Event,
    /// Compare-and-swap and fetch-add.
    Atomic,
    /// Entries and records of the hybrid cache.
    Cache,
    /// Pages pulled from the hybrid cache, host to DPU.
    CacheIn,
    /// Pages put into the hybrid cache, DPU to host.
    CacheOut,
    /// The pointers of a ring: progress and tail in one, heads, flags.
    RingWords,
    /// Messages of a ring, host to DPU.
    RingIn,
    /// Messages of a ring, DPU to host.
    RingOut,
}

impl Kind {
    /// All kinds, in the order of the tables.
    pub const ALL: [Kind; 14] = [
        Kind::Sqe,
        Kind::Locate,
        Kind::DataIn,
        Kind::DataOut,
        Kind::ReplyHeader,
        Kind::Cqe,
        Kind::Event,
        Kind::Atomic,
        Kind::Cache,
        Kind::CacheIn,
        Kind::CacheOut,
        Kind::RingWords,
        Kind::RingIn,
        Kind::RingOut,
    ];

    /// A short name for tables and JSON.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Kind::Sqe => "sqe",
            Kind::Locate => "locate",
            Kind::DataIn => "data_in",
            Kind::DataOut => "data_out",
            Kind::ReplyHeader => "reply_header",
            Kind::Cqe => "cqe",
            Kind::Event => "event",
            Kind::Atomic => "atomic",
            Kind::Cache => "cache",
            Kind::CacheIn => "cache_in",
            Kind::CacheOut => "cache_out",
            Kind::RingWords => "ring_words",
            Kind::RingIn => "ring_in",
            Kind::RingOut => "ring_out",
        }
    }
}

/// What is counted beside DMA.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Count {
    /// Commands admitted.
    Commands,
    /// Commands refused by the queue with an error completion.
    Refused,
    /// Doorbells out of range, entries that answer nothing: the other side breaks the protocol.
    Violations,
    /// Doorbells rung by the host.
    Doorbells,
    /// Interrupts sent to the host.
    Interrupts,
    /// Abort requests delivered.
    Aborts,
    /// Events dropped because the ring was full.
    EventsLost,
    /// Turns of a loop that found nothing.
    Spins,
    /// Nanoseconds spent in such turns.
    SpinNs,
    /// Times a side went to sleep.
    Sleeps,
    /// Wake-ups sent to a sleeping side.
    Wakes,
    /// Bytes of data a processor of the DPU side copied from one of its buffers to another.
    Copied,
}

impl Count {
    /// All counters, in the order of the tables.
    pub const ALL: [Count; 12] = [
        Count::Commands,
        Count::Refused,
        Count::Violations,
        Count::Doorbells,
        Count::Interrupts,
        Count::Aborts,
        Count::EventsLost,
        Count::Spins,
        Count::SpinNs,
        Count::Sleeps,
        Count::Wakes,
        Count::Copied,
    ];

    /// A short name for tables and JSON.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Count::Commands => "commands",
            Count::Refused => "refused",
            Count::Violations => "violations",
            Count::Doorbells => "doorbells",
            Count::Interrupts => "interrupts",
            Count::Aborts => "aborts",
            Count::EventsLost => "events_lost",
            Count::Spins => "spins",
            Count::SpinNs => "spin_ns",
            Count::Sleeps => "sleeps",
            Count::Wakes => "wakes",
            Count::Copied => "copied_bytes",
        }
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
