//! Tables keyed by numbers, in shards so that threads seldom meet.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Spreads numbers by multiplication. The keys are the kernel's or the volume's own counters, which
/// nobody outside chooses.
#[derive(Default)]
pub(crate) struct NumberHasher(u64);

impl Hasher for NumberHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            self.write_u64(u64::from(byte));
        }
    }

    fn write_u64(&mut self, number: u64) {
        self.0 = (self.0 ^ number).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        self.0 ^= self.0 >> 32;
    }
}

type Shard<V> = HashMap<u64, V, BuildHasherDefault<NumberHasher>>;

const SHARDS: usize = 16;

/// A table in [`SHARDS`] parts, each behind a lock of its own.
#[derive(Debug)]
pub(crate) struct Table<V>([Mutex<Shard<V>>; SHARDS]);

impl<V> Default for Table<V> {
    fn default() -> Self {
        Table(std::array::from_fn(|_| Mutex::default()))
    }
}

impl<V> Table<V> {
    /// The shard that holds `key`, locked.
    pub(crate) fn shard(&self, key: u64) -> MutexGuard<'_, Shard<V>> {
        // The low bit of the kernel's numbers is a flag and always zero.
        let at = usize::try_from((key >> 1) % SHARDS as u64).unwrap_or(0);
        let [first, ..] = &self.0;
        lock(self.0.get(at).unwrap_or(first))
    }

    /// Every shard in turn, locked while it is looked at.
    pub(crate) fn shards(&self) -> impl Iterator<Item = MutexGuard<'_, Shard<V>>> {
        self.0.iter().map(lock)
    }
}

/// Locks, also after a thread panicked with the lock held: what is guarded stays consistent between
/// any two statements.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
