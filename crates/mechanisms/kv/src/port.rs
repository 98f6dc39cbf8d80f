//! The key-value port.

use std::fmt;
use std::future::Future;
use std::sync::Arc;

use outboard_base::Errno;

use crate::{Batch, Durability, Key, Value, Version};

/// Why the store did not do what was asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KvError {
    /// A condition did not hold; nothing was applied. Read again and try again.
    Conflict,
    /// No space (the reserve apart); nothing was applied.
    NoSpace,
    /// Stored bytes are not what was stored: a checksum or a format is wrong. Never returned as
    /// data.
    Corrupt,
    /// A key, value or batch beyond the limits; nothing was applied.
    TooLarge,
    /// The device, file or engine failed.
    Io(Errno),
}

impl KvError {
    /// The errno a front-end reports.
    #[must_use]
    pub fn errno(self) -> Errno {
        match self {
            KvError::Conflict => Errno::EAGAIN,
            KvError::NoSpace => Errno::ENOSPC,
            KvError::Corrupt => Errno::EIO,
            KvError::TooLarge => Errno::EFBIG,
            KvError::Io(errno) => errno,
        }
    }
}

impl From<Errno> for KvError {
    fn from(errno: Errno) -> KvError {
        if errno == Errno::ENOSPC { KvError::NoSpace } else { KvError::Io(errno) }
    }
}

impl fmt::Display for KvError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            KvError::Conflict => f.write_str("a condition of the commit no longer holds"),
            KvError::NoSpace => f.write_str("no space left in the store"),
            KvError::Corrupt => f.write_str("stored bytes fail their checksum or format"),
            KvError::TooLarge => f.write_str("key, value or batch too large"),
            KvError::Io(errno) => write!(f, "store: {errno}"),
        }
    }
}

impl std::error::Error for KvError {}

/// Space, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Usage {
    /// What may be stored altogether, the reserve included. `u64::MAX` if only the disk limits it.
    pub capacity: u64,
    /// What is stored now.
    pub used: u64,
    /// Kept back for [`Batch::essential`] batches.
    pub reserve: u64,
}

/// The pairs of a store as they were at one instant, while commits go on. What it names is kept for
/// it until it is dropped: the engine takes more space meanwhile.
pub trait Snapshot: Send {
    /// At most `limit` pairs whose keys are greater than `after`, in key order. Fewer than `limit`
    /// means there are no more. Waits for the device, and for nobody's commit.
    fn scan(&self, after: Option<&[u8]>, limit: usize) -> Result<Vec<(Key, Value)>, KvError>;
}

/// An ordered key-value store with atomic conditional commits. See the crate's promises.
///
/// Dropping a `commit` future before it ends leaves the batch wholly applied or never to be
/// applied.
pub trait Kv: Send + Sync + 'static {
    /// Longest key, bytes. Above the 1,033 bytes of a tagged directory entry (DPC 3.4).
    const KEY_MAX: usize = 2048;
    /// Largest value, bytes: an extended attribute of 64 KiB and its frame.
    const VALUE_MAX: usize = 128 << 10;
    /// Most bytes of keys and values in one batch: above the 17 MiB in which the object store may
    /// rewrite its allocation map after freeing 4,096 blocks scattered over a tebibyte.
    const BATCH_MAX: usize = 32 << 20;

    /// The value of `key`.
    fn get(&self, key: &[u8]) -> impl Future<Output = Result<Option<Value>, KvError>>;

    /// The values of several keys, in their order; not one snapshot.
    fn get_many(&self, keys: &[Key]) -> impl Future<Output = Result<Vec<Option<Value>>, KvError>> {
        async move {
            let mut values = Vec::with_capacity(keys.len());
            for key in keys {
                values.push(self.get(key).await?);
            }
            Ok(values)
        }
    }

    /// At most `limit` pairs whose keys start with `prefix` and are greater than `after`, in key
    /// order, as one snapshot. Fewer than `limit` means there are no more. `after` is a whole key
    /// (prefix included) and need not exist.
    fn scan(
        &self,
        prefix: &[u8],
        after: Option<&[u8]>,
        limit: usize,
    ) -> impl Future<Output = Result<Vec<(Key, Value)>, KvError>>;

    /// Applies `batch` atomically if its conditions hold.
    fn commit(
        &self,
        batch: Batch,
        durability: Durability,
    ) -> impl Future<Output = Result<(), KvError>>;

    /// Makes every commit answered before the call durable. A failure is final: the engine is
    /// poisoned, since the operating system may have dropped what it could not write.
    fn sync(&self) -> impl Future<Output = Result<(), KvError>>;

    /// Whether every commit answered is known to be durable: then a sync would find nothing to do.
    fn is_synced(&self) -> bool {
        false
    }

    /// Nobody asks for anything at the moment: what makes the next sync shorter is begun, if that
    /// waits for nothing.
    fn idle(&self) {}

    /// A moment not after this call: reads begun later see at least every commit up to it.
    fn version(&self) -> Version;

    /// The pairs as they are now: every commit answered before the call, and of each other commit
    /// all or nothing. `EOPNOTSUPP` where the engine cannot.
    fn snapshot(&self) -> Result<Box<dyn Snapshot>, KvError> {
        Err(KvError::Io(Errno::EOPNOTSUPP))
    }

    /// Space used; may lag behind.
    fn usage(&self) -> Usage;
}

impl<K: Kv> Kv for Arc<K> {
    const KEY_MAX: usize = K::KEY_MAX;
    const VALUE_MAX: usize = K::VALUE_MAX;
    const BATCH_MAX: usize = K::BATCH_MAX;

    fn get(&self, key: &[u8]) -> impl Future<Output = Result<Option<Value>, KvError>> {
        (**self).get(key)
    }

    fn get_many(&self, keys: &[Key]) -> impl Future<Output = Result<Vec<Option<Value>>, KvError>> {
        (**self).get_many(keys)
    }

    fn scan(
        &self,
        prefix: &[u8],
        after: Option<&[u8]>,
        limit: usize,
    ) -> impl Future<Output = Result<Vec<(Key, Value)>, KvError>> {
        (**self).scan(prefix, after, limit)
    }

    fn commit(
        &self,
        batch: Batch,
        durability: Durability,
    ) -> impl Future<Output = Result<(), KvError>> {
        (**self).commit(batch, durability)
    }

    fn sync(&self) -> impl Future<Output = Result<(), KvError>> {
        (**self).sync()
    }

    fn is_synced(&self) -> bool {
        (**self).is_synced()
    }

    fn idle(&self) {
        (**self).idle();
    }

    fn version(&self) -> Version {
        (**self).version()
    }

    fn snapshot(&self) -> Result<Box<dyn Snapshot>, KvError> {
        (**self).snapshot()
    }

    fn usage(&self) -> Usage {
        (**self).usage()
    }
}
