//! Makes every operation take the time a bus would.

use std::sync::Arc;
use std::time::Duration;

use outboard_base::ledger::Kind;

use super::{Dma, DmaError};

/// What a bus charges for one operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Price {
    /// Before the first byte of a read or an atomic: there and back, nanoseconds.
    pub round_trip_ns: u64,
    /// Before the next operation after a write, which is posted, nanoseconds.
    pub posted_ns: u64,
    /// Bytes moved in a microsecond.
    pub bytes_per_us: u64,
}

impl Price {
    /// PCIe generation 3, 16 lanes, as card engines on it were measured. One operation occupies the
    /// engine for 0.40 us: 2.5 M/s, what IBM's DPFS reached on a null device with 11 DMAs an
    /// operation. A read waits 0.65 us more (pcie-bench). 15.75 GB/s less 6 % for packet headers.
    pub const PCIE3_X16: Price =
        Price { round_trip_ns: 1050, posted_ns: 400, bytes_per_us: 14_800 };
    /// PCIe generation 4, 16 lanes: the same engine (no measurement of one was at hand), 28 GB/s.
    pub const PCIE4_X16: Price =
        Price { round_trip_ns: 1050, posted_ns: 400, bytes_per_us: 28_000 };

    fn of(self, fixed_ns: u64, bytes: usize) -> Duration {
        let moving = (bytes as u64).saturating_mul(1000) / self.bytes_per_us.max(1);
        Duration::from_nanos(fixed_ns.saturating_add(moving))
    }
}

/// How the world passes a duration (a real one spins, a simulated one advances its clock).
pub type Pause = Arc<dyn Fn(Duration) + Send + Sync>;

/// An engine with the price of a bus.
#[derive(Clone)]
pub struct Delayed<D> {
    inner: D,
    price: Price,
    pause: Pause,
}

impl<D: Dma> Delayed<D> {
    /// Makes `inner` as slow as `price` says.
    #[must_use]
    pub fn new(inner: D, price: Price, pause: Pause) -> Delayed<D> {
        Delayed { inner, price, pause }
    }
}

impl<D: Dma> Dma for Delayed<D> {
    fn region_len(&self) -> u64 {
        self.inner.region_len()
    }

    fn read(&self, kind: Kind, at: u64, out: &mut [u8]) -> Result<(), DmaError> {
        (self.pause)(self.price.of(self.price.round_trip_ns, out.len()));
        self.inner.read(kind, at, out)
    }

    fn write(&self, kind: Kind, at: u64, data: &[u8]) -> Result<(), DmaError> {
        (self.pause)(self.price.of(self.price.posted_ns, data.len()));
        self.inner.write(kind, at, data)
    }

    fn read_words(&self, kind: Kind, at: u64, out: &mut [u64]) -> Result<(), DmaError> {
        (self.pause)(self.price.of(self.price.round_trip_ns, size_of_val(out)));
        self.inner.read_words(kind, at, out)
    }

    fn write_gathered(&self, kind: Kind, at: u64, parts: &[&[u8]]) -> Result<(), DmaError> {
        let bytes = parts.iter().map(|part| part.len()).sum();
        (self.pause)(self.price.of(self.price.posted_ns, bytes));
        self.inner.write_gathered(kind, at, parts)
    }

    fn compare_and_swap(&self, at: u64, expected: u64, new: u64) -> Result<u64, DmaError> {
        (self.pause)(self.price.of(self.price.round_trip_ns, 8));
        self.inner.compare_and_swap(at, expected, new)
    }

    fn fetch_add(&self, at: u64, by: u64) -> Result<u64, DmaError> {
        (self.pause)(self.price.of(self.price.round_trip_ns, 8));
        self.inner.fetch_add(at, by)
    }
}
